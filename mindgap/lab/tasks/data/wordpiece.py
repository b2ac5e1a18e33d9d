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
        encodings = self.tokenizer.encode_batch(list(texts), add_special_tokens=False)
        return [np.asarray(encoding.ids) for encoding in encodings]

    def numbers_and_places(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """(the numbers of a text's word pieces; where each begins and ends in the text, in
        letters).
        """
        encoding = self.tokenizer.encode(text, add_special_tokens=False)
        return encoding.ids, encoding.offsets

    def words(self, numbers: Sequence[int] | np.ndarray) -> list[str]:
        """The word pieces of some numbers; a piece inside a word begins with ``##``."""
        return [self.tokenizer.id_to_token(int(number)) for number in numbers]


def known_word_pieces(vocabulary: Sequence[str]) -> WordPieces:
    """The vocabulary that has these word pieces, in the order of their numbers.

    Example:
        >>> known_word_pieces([*SPECIAL, "cat", "##s"]).numbers(["cats"])  # doctest: +SKIP
        [array([5, 6])]
    """
    number_of = {piece: number for number, piece in enumerate(vocabulary)}
    return WordPieces(_tokenizer_class()(vocab=number_of, lowercase=True))


def train_word_pieces(texts: Sequence[str], size: int = 30_522) -> WordPieces:
    """Train a lower-case vocabulary of at most ``size`` word pieces on texts.

    Args:
        texts: the corpus, one text per entry.
        size: most word pieces, the five special ones included; BERT has 30,522.

    Raises:
        RuleError: no text, or no room for a piece that is not special.

    Example:
        >>> pieces = train_word_pieces(["the cat sat", "the cats sit"], size=40)  # doctest: +SKIP
        >>> pieces.words(pieces.numbers(["cats"])[0])  # doctest: +SKIP
        ['cat', '##s']

    Source: Devlin et al. 2019, 3 (WordPiece embeddings).
    """
    whole("size", size, least=len(SPECIAL) + 1)
    if not texts:
        fail("texts", "must hold at least one text", texts)
    tokenizer = _tokenizer_class()(lowercase=True)
    tokenizer.train_from_iterator(
        texts, vocab_size=size, min_frequency=1, special_tokens=list(SPECIAL), show_progress=False
    )
    return WordPieces(tokenizer)


def _tokenizer_class() -> type[BertWordPieceTokenizer]:
    """The class ``BertWordPieceTokenizer`` of the package ``tokenizers``, imported at its first
    use.

    Raises:
        ImportError: the package is missing; the message says what to install.
    """
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
        """Train the vocabulary of ``size`` pieces and number the pieces of every part, the training
        part with the other data set's reviews where ``reviews``; return the arrays by name.
        """
        lines = {}  # part -> its lines
        for split in ("train", "valid", "test"):
            tokens = language_tokens("wikitext-2", split)
            text = " ".join("[UNK]" if token == "<unk>" else token for token in tokens)
            lines[split] = [line for line in text.split("<eos>") if line.strip()]
        if reviews:  # one line each
            lines["train"] += rated_reviews("train")
        vocabulary, line_end = train_word_pieces(lines["train"], size), SPECIAL.index("[SEP]")
        arrays = {"vocabulary": np.array(vocabulary.words(range(len(vocabulary))))}
        for split in lines:
            numbers = [np.append(line, line_end) for line in vocabulary.numbers(lines[split])]
            arrays[split] = np.concatenate(numbers).astype(np.int32)
        return arrays

    return prepared(f"wikitext-2{'-and-reviews' if reviews else ''}-{size}-pieces", make)


check_arguments(__name__)
