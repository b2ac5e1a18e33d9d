"""Sentiment140, SNLI and the Amazon reviews as word numbers with GloVe vectors; prepared once
per machine.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from mindgap.base.check import whole
from mindgap.base.checked import check_arguments
from mindgap.base.rng import numpy_stream
from mindgap.lab.tasks.data.prepared import prepared
from mindgap.lab.tasks.data.tabular import Table
from mindgap.lab.tasks.data.text import amazon_reviews, glove, sentiment140
from mindgap.lab.tasks.data.vectors import labelled_sentences, words_of

Array = np.ndarray[Any, Any]

#: Names of users and addresses say nothing that a word vector knows.
_NOISE = re.compile(r"@\w+|https?://\S+|www\.\S+")


@dataclass(frozen=True)
class Tweets:
    """Labelled texts as word numbers."""

    words: Array  # (texts, length) numbers of words; 0 fills up a short text
    labels: Array  # (texts,) 1 for a positive text, 0 for a negative one
    manual: tuple[Array, Array]  # words and labels of the texts that people labelled
    vectors: Array  # (words, dimensions) float32, one row per number; row 0 is zero


@lru_cache(maxsize=2)
def tweets(length: int = 20) -> Tweets:
    """The exact and the random rows of Sentiment140, each text once; a text without known words is
    left out.

    The manual rows are the 359 of 498 that are positive or negative. A text is its first ``length``
    words that have a GloVe vector of 50 dimensions; names of users and addresses are left out. What
    was prepared is kept in the cache, so that many processes read it in a moment.

    Raises:
        DataError: when the files are neither here nor to be had.
    """
    name = f"sentiment140-{whole('length', length, least=1)}"
    arrays = prepared(name, lambda: _tweets(length))
    manual = arrays["manual_words"], arrays["manual_labels"]
    return Tweets(arrays["words"], arrays["labels"], manual, arrays["vectors"])


@lru_cache(maxsize=2)
def snli_words(length: int = 16, rows: int = 40_000) -> tuple[list[Table], Array]:
    """SNLI's training, development and test pairs as word numbers (pairs, 2, length) with labels,
    and the vectors of the numbers; pairs without a label and unknown words are left out.

    Args:
        length: words of a sentence; what is longer is cut.
        rows: pairs of the training split that are read, from the first on.

    Raises:
        DataError: when the files are neither here nor to be had.
    """
    name = f"snli-{whole('length', length, least=1)}-{rows}"
    arrays = prepared(name, lambda: _snli(length, rows))
    tables = [
        Table(arrays[f"{split}_words"], arrays[f"{split}_labels"], f"SNLI {split}")
        for split in SPLITS
    ]
    return tables, arrays["vectors"]


@lru_cache(maxsize=2)
def review_words(length: int = 24) -> tuple[list[Table], Array]:
    """The Amazon reviews by domain as word numbers (reviews, length), 1 for a positive one, and the
    vectors.

    Args:
        length: words of a review; what is longer is cut.

    Raises:
        DataError: when the files are neither here nor to be had.
    """
    arrays = prepared(f"reviews-{whole('length', length, least=1)}", lambda: _reviews(length))
    tables = []
    for domain in np.unique(arrays["domains"]):
        rows = arrays["domains"] == domain
        origin = f"Amazon reviews: {domain}"
        tables.append(Table(arrays["words"][rows], arrays["labels"][rows], origin))
    return tables, arrays["vectors"]


#: of SNLI
SPLITS = ("train", "dev", "test")


def _number_words(texts: Sequence[list[str]], length: int) -> tuple[Array, Array]:
    """Texts as the numbers of their first known words, 0 where there is none, and the vectors
    of the numbers.
    """
    known_words, vectors = glove({word for words in texts for word in words})
    number_of = {word: number for number, word in enumerate(known_words, 1)}
    rows = np.zeros((len(texts), length), dtype=np.int32)
    for row, words in zip(rows, texts):
        numbers = [number_of[word] for word in words if word in number_of][:length]
        row[: len(numbers)] = numbers
    return rows, np.concatenate([np.zeros((1, vectors.shape[1]), np.float32), vectors])


def _snli(length: int, rows: int) -> dict[str, Array]:
    """Words, labels and vectors of SNLI's splits; the training split has at most ``rows`` pairs."""
    sentences, labels = {}, {}
    for split in SPLITS:
        sentences[split], labels[split] = labelled_sentences(
            split, rows if split == "train" else None
        )
    texts = [words_of(text) for of_split in sentences.values() for text in of_split]
    words, vectors = _number_words(texts, length)
    ends = np.cumsum([len(labels[split]) for split in SPLITS])
    pairs = np.split(words.reshape(-1, 2, length), ends[:-1])
    arrays = {f"{split}_words": of_split for split, of_split in zip(SPLITS, pairs)}
    arrays |= {f"{split}_labels": labels[split] for split in SPLITS}
    return {**arrays, "vectors": vectors}


def _reviews(length: int) -> dict[str, Array]:
    """Words, labels, domains and vectors of the Amazon reviews."""
    reviews = amazon_reviews()
    words, vectors = _number_words([words_of(text) for _, _, text in reviews], length)
    labels = np.array([positive for _, positive, _ in reviews], dtype=np.int64)
    return {
        "words": words,
        "labels": labels,
        "domains": np.array([domain for domain, _, _ in reviews]),
        "vectors": vectors,
    }


def _tweets(length: int) -> dict[str, Array]:
    """Words, labels and vectors of Sentiment140, each text once, and of the texts that people
    labelled; texts without known words and neutral ones (target 2) are left out.
    """
    rows = [*sentiment140("exact"), *sentiment140("random")]
    manual = [row for row in sentiment140("test") if row["target"] != "2"]
    split = [words_of(_NOISE.sub(" ", row["text"])) for row in (*rows, *manual)]
    words, vectors = _number_words(split, length)
    labels = np.array([int(row["target"] == "4") for row in (*rows, *manual)], dtype=np.int64)
    # The random rows lost their first capital letter: equal texts agree from the second word on.
    seen: set[bytes] = set()
    kept_rows = []
    for number, row in enumerate(words[: len(rows)]):
        key = row[1:].tobytes()
        if row[1] and key not in seen:
            kept_rows.append(number)
            seen.add(key)
    return {
        "words": words[kept_rows],
        "labels": labels[kept_rows],
        "vectors": vectors,
        "manual_words": words[len(rows) :],
        "manual_labels": labels[len(rows) :],
    }


def made_up_tweets(
    texts: int = 2000, length: int = 8, *, vocabulary: int = 60, seed: int = 0
) -> Tweets:
    """Texts of made-up words, a third of which are nice, a third nasty: the label says which are
    more frequent.

    A tenth of the texts are the manual ones.

    Example:
        >>> made = made_up_tweets(100, 5)
        >>> made.words.shape, made.vectors.shape, sorted(set(made.labels.tolist()))
        ((90, 5), (61, 8), [0, 1])
    """
    generator = numpy_stream(seed, "made-up tweets")
    vectors = generator.standard_normal((vocabulary + 1, 8)).astype(np.float32)
    vectors[0] = 0.0
    mood = np.concatenate([[0], np.arange(vocabulary) % 3 - 1])  # -1, 0, 1
    vectors[:, 0] += mood
    words = generator.integers(1, vocabulary + 1, (texts, length)).astype(np.int32)
    words[np.arange(length)[None] >= generator.integers(2, length + 1, texts)[:, None]] = 0
    labels = (mood[words].sum(1) + 0.5 * generator.standard_normal(texts) > 0).astype(np.int64)
    manual = max(texts // 10, 1)
    return Tweets(words[:-manual], labels[:-manual], (words[-manual:], labels[-manual:]), vectors)


check_arguments(__name__)
