"""WordPiece, BERT's vocabulary of word parts, trained on a corpus of ours (extra
``transformers``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mindgap.base.check import fail, whole
from mindgap.base.checked import check_arguments
from mindgap.lab.tasks.data.prepared import prepared
from mindgap.lab.tasks.data.text import language_tokens, rated_reviews

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
        return [
            np.asarray(code.ids)
            for code in self.tokenizer.encode_batch(list(texts), add_special_tokens=False)
        ]

    def placed(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """A text as the numbers of its word pieces, and where each begins and ends in the text."""
        code = self.tokenizer.encode(text, add_special_tokens=False)
        return code.ids, code.offsets

    def words(self, numbers: Sequence[int] | np.ndarray) -> list[str]:
        """The word pieces of some numbers; a piece inside a word begins with ``##``."""
        return [self.tokenizer.id_to_token(int(number)) for number in numbers]


def known_word_pieces(vocabulary: Sequence[str]) -> WordPieces:
    """The vocabulary that has these word pieces, in the order of their numbers.

    Example:
        >>> known_word_pieces([*SPECIAL, "cat", "##s"]).numbers(["cats"])  # doctest: +SKIP
        [array([5, 6])]
    """
    return WordPieces(
        _package()(vocab={word: number for number, word in enumerate(vocabulary)}, lowercase=True)
    )


def train_word_pieces(texts: Sequence[str], size: int = 30_522) -> WordPieces:
    """Train a lower-case vocabulary of at most ``size`` word pieces on texts.

    Args:
        texts: the corpus, one text per entry.
        size: of the vocabulary, the five special pieces included; BERT has 30,522.

    Example:
        >>> pieces = train_word_pieces(["the cat sat", "the cats sit"], size=40)  # doctest: +SKIP
        >>> pieces.words(pieces.numbers(["cats"])[0])  # doctest: +SKIP
        ['cat', '##s']

    Source: Devlin et al. 2019, 3 (WordPiece embeddings).
    """
    whole("size", size, least=len(SPECIAL) + 1)
    if not texts:
        fail("texts", "must hold at least one text", texts)
    tokenizer = _package()(lowercase=True)
    tokenizer.train_from_iterator(
        texts, vocab_size=size, min_frequency=1, special_tokens=list(SPECIAL), show_progress=False
    )
    return WordPieces(tokenizer)


def _package() -> type[BertWordPieceTokenizer]:
    """The tokenizer's class; an error that says what to install where its package is missing."""
    try:
        from tokenizers import BertWordPieceTokenizer
    except ImportError as error:
        raise ImportError(
            "word pieces need the package tokenizers: pip install 'mindgap[transformers]'"
        ) from error
    return BertWordPieceTokenizer


def wikitext_pieces(size: int = 8192, *, reviews: bool = False) -> dict[str, np.ndarray]:
    """WikiText-2 as numbers of word pieces: ``train``, ``valid`` and ``test``, with ``[SEP]`` at
    each line's end; empty lines are left out, and an unknown word is ``[UNK]``.

    The vocabulary is trained on the part ``train``; it is the array ``vocabulary``. It is trained
    once per machine; later calls read the numbers from the cache folder and do not need the package
    ``tokenizers``.

    Args:
        size: of the vocabulary, at most.
        reviews: add the training reviews of FDU-MTL to the part ``train``: 5.4 million words in
            place of 2.1, the largest text at hand.

    Example:
        >>> wikitext_pieces()["train"].shape  # doctest: +SKIP
        (2496976,)
    """

    def make() -> dict[str, np.ndarray]:
        """Train the vocabulary and number the pieces of every part."""
        texts = {}
        for split in ("train", "valid", "test"):
            words = (
                "[UNK]" if word == "<unk>" else word
                for word in language_tokens("wikitext-2", split)
            )
            texts[split] = [line for line in " ".join(words).split("<eos>") if line.strip()]
        texts["train"] += rated_reviews("train") if reviews else []
        vocabulary, line_end = train_word_pieces(texts["train"], size), [SPECIAL.index("[SEP]")]
        arrays = {
            split: np.concatenate(
                [np.asarray([*line, *line_end], np.int32) for line in vocabulary.numbers(lines)]
            )
            for split, lines in texts.items()
        }
        return {**arrays, "vocabulary": np.array(vocabulary.words(range(len(vocabulary))))}

    return prepared(f"wikitext-2{'-and-reviews' if reviews else ''}-{size}-pieces", make)


check_arguments(__name__)
