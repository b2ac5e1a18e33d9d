"""Texts as numbers: the word vectors of a text, averaged and maximised, so that a small network
can read them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from mindgap.base.check import whole
from mindgap.base.checked import check_arguments
from mindgap.lab.tasks.data.tabular import Table
from mindgap.lab.tasks.data.text import amazon_reviews, glove, snli

#: labels of SNLI in the order of their numbers
SNLI_LABELS = ("entailment", "neutral", "contradiction")

_WORD = re.compile(r"n't|'s|[a-z]+(?=n't)|[a-z]+|[0-9]+|[.,!?]")


def words_of(text: str) -> list[str]:
    """The words and stops of a text in lower case, negations cut off as GloVe has them.

    Example:
        >>> words_of("I didn't like it!")
        ['i', 'did', "n't", 'like', 'it', '!']
    """
    return _WORD.findall(text.lower())


def text_vectors(texts: Sequence[str]) -> np.ndarray[Any, Any]:
    """Mean and largest entry of the GloVe vectors of each text's words: float64 (texts, 100), the
    50 means first.

    Words without a vector are left out; a text without any known word is a row of zeros.

    Raises:
        DataError: when the vectors are neither here nor to be had.
    """
    words_of_texts = [words_of(text) for text in texts]
    known_words, vectors = glove({word for words in words_of_texts for word in words})
    row_of = {word: row for row, word in enumerate(known_words)}
    rows = np.zeros((len(texts), 100))
    for row, words in zip(rows, words_of_texts):
        word_vectors = vectors[[row_of[word] for word in words if word in row_of]]
        if len(word_vectors):
            row[:50], row[50:] = word_vectors.mean(0), word_vectors.max(0)  # in place, in ``rows``
    return rows


def snli_pairs(split: str = "train", *, rows: int | None = None) -> Table:
    """SNLI: features (pairs, 2, 100) of premise and hypothesis, labels 0..2 in the order of
    ``SNLI_LABELS``.

    Args:
        split: ``"train"``, ``"dev"`` or ``"test"``.
        rows: only that many first pairs; pairs without a label are left out.

    Raises:
        DataError: when the files are neither here nor to be had.
    """
    sentences, labels = labelled_sentences(split, rows)
    return Table(text_vectors(sentences).reshape(-1, 2, 100), labels, f"SNLI {split}")


def labelled_sentences(
    split: str, rows: int | None = None
) -> tuple[list[str], np.ndarray[Any, Any]]:
    """The sentences of SNLI's labelled pairs.

    Args:
        split: ``"train"``, ``"dev"`` or ``"test"``.
        rows: only that many first pairs, None for all; pairs without a label are left out of them.

    Returns:
        (sentences, premise and hypothesis in turn; int64 labels of the pairs, their places in
        ``SNLI_LABELS``).
    """
    pairs = snli(split)[: None if rows is None else whole("rows", rows, least=1)]
    pairs = [pair for pair in pairs if pair["gold_label"] in SNLI_LABELS]
    column = "sentence{}_tokenised" if split == "dev" else "sentence{}"
    sentences = [pair[column.format(number)] for pair in pairs for number in (1, 2)]
    labels = np.array([SNLI_LABELS.index(pair["gold_label"]) for pair in pairs], dtype=np.int64)
    return sentences, labels


def review_domains() -> dict[str, Table]:
    """The Amazon reviews: domain -> a table of features (reviews, 100), those of
    :func:`text_vectors`, and labels, 1 for a positive review and 0 for a negative one.

    Raises:
        DataError: when the files are neither here nor to be had.
    """
    reviews = amazon_reviews()
    features = text_vectors([text for _, _, text in reviews])
    # The domain of each review, row by row.
    names = np.array([domain for domain, _, _ in reviews])
    labels = np.array([positive for _, positive, _ in reviews], dtype=np.int64)
    return {
        str(domain): Table(
            features[names == domain], labels[names == domain], f"Amazon reviews: {domain}"
        )
        for domain in np.unique(names)
    }


check_arguments(__name__)
