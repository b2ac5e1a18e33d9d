"""WordPiece, BERT's vocabulary of word parts, trained on a corpus of ours (extra ``transformers``)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mindgap.base.check import fail, whole
from mindgap.base.checked import check_arguments
from mindgap.lab.tasks.data.prepared import prepared
from mindgap.lab.tasks.data.text import language_tokens

if TYPE_CHECKING:
    from tokenizers import BertWordPieceTokenizer

#: Numbers 0 to 4 of every vocabulary, in this order.
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


@dataclass(frozen=True)
class WordPieces:
    """A trained vocabulary.

    Attributes:
        tokenizer: of the package ``tokenizers``.
    """

    tokenizer: BertWordPieceTokenizer

    def __len__(self) -> int:
        return int(self.tokenizer.get_vocab_size())

    def numbers(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Each text as the numbers of its word pieces."""
        return [np.asarray(code.ids) for code in self.tokenizer.encode_batch(list(texts), add_special_tokens=False)]

    def words(self, numbers: Sequence[int] | np.ndarray) -> list[str]:
        """The word pieces of some numbers; a piece inside a word begins with ``##``."""
        return [self.tokenizer.id_to_token(int(n)) for n in numbers]


def train_word_pieces(texts: Sequence[str], size: int = 30_522) -> WordPieces:
    """Train a lower-case vocabulary of at most ``size`` word pieces on texts.

    Args:
        texts: the corpus, one text per entry.
        size: of the vocabulary, the five special pieces included; BERT has 30,522.

    Example:
        >>> pieces = train_word_pieces(["the cat sat", "the cats sit"], size=40)      # doctest: +SKIP
        >>> pieces.words(pieces.numbers(["cats"])[0])                                 # doctest: +SKIP
        ['cat', '##s']

    Source: Devlin et al. 2019, 3 (WordPiece embeddings).
    """
    whole("size", size, least=len(SPECIAL) + 1)
    if not texts:
        fail("texts", "must hold at least one text", texts)
    try:
        from tokenizers import BertWordPieceTokenizer
    except ImportError as error:
        raise ImportError("word pieces need the package tokenizers: pip install 'mindgap[transformers]'") from error
    tokenizer = BertWordPieceTokenizer(lowercase=True)
    tokenizer.train_from_iterator(texts, vocab_size=size, min_frequency=1, special_tokens=list(SPECIAL),
                                  show_progress=False)
    return WordPieces(tokenizer)


def wikitext_pieces(size: int = 8192) -> dict[str, np.ndarray]:
    """WikiText-2 as numbers of word pieces: ``train``, ``valid`` and ``test``, with ``[SEP]`` at each line's end.

    The vocabulary is trained on the part ``train``. It is trained once per machine; later calls read the numbers from
    the cache folder and do not need the package ``tokenizers``.

    Args:
        size: of the vocabulary, at most.

    Example:
        >>> wikitext_pieces()["train"].shape                                                      # doctest: +SKIP
        (2496976,)
    """

    def make() -> dict[str, np.ndarray]:
        texts = {}
        for split in ("train", "valid", "test"):
            words = ("[UNK]" if word == "<unk>" else word for word in language_tokens("wikitext-2", split))
            texts[split] = [line for line in " ".join(words).split("<eos>") if line.strip()]
        pieces, end = train_word_pieces(texts["train"], size), [SPECIAL.index("[SEP]")]
        return {split: np.concatenate([np.asarray([*line, *end], np.int32) for line in pieces.numbers(lines)])
                for split, lines in texts.items()}  # fmt: skip

    return prepared(f"wikitext-2-pieces-{size}", make)


check_arguments(__name__)
