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

#: The parts of SNLI.
SPLITS = ("train", "dev", "test")

#: Names of users and web addresses, which have no word vectors.
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
    """The exact and the random rows of Sentiment140 as word numbers, each text once; a text with
    fewer than two known words is left out.

    The manual rows are the 359 of 498 that are positive or negative. A text is its first ``length``
    words that have a GloVe vector of 50 dimensions; names of users and addresses are left out. What
    was prepared is kept in the cache folder, so that many processes read it in a moment.

    Args:
        length: words of a text.

    Raises:
        DataError: when the files are neither here nor to be had.
    """
    whole("length", length, least=1)
    arrays = prepared(f"sentiment140-{length}", lambda: _tweet_arrays(length))
    manual = arrays["manual_words"], arrays["manual_labels"]
    return Tweets(arrays["words"], arrays["labels"], manual, arrays["vectors"])


@lru_cache(maxsize=2)
def snli_words(length: int = 16, rows: int = 40_000) -> tuple[list[Table], Array]:
    """SNLI as word numbers; pairs without a label and unknown words are left out.

    Args:
        length: words of a sentence; what is longer is cut.
        rows: pairs of the training split that are read, from the first on.

    Returns:
        (one table each for training, development and test, features (pairs, 2, length); vectors
        (words, 50), one row per number, row 0 zero).

    Raises:
        DataError: when the files are neither here nor to be had.
    """
    name = f"snli-{whole('length', length, least=1)}-{rows}"
    arrays = prepared(name, lambda: _snli_arrays(length, rows))
    tables = [
        Table(arrays[f"{split}_words"], arrays[f"{split}_labels"], f"SNLI {split}")
        for split in SPLITS
    ]
    return tables, arrays["vectors"]


@lru_cache(maxsize=2)
def review_words(length: int = 24) -> tuple[list[Table], Array]:
    """The Amazon reviews as word numbers.

    Args:
        length: words of a review; what is longer is cut.

    Returns:
        (one table per domain, features (reviews, length), label 1 for a positive review and 0 for a
        negative one; vectors (words, 50), one row per number, row 0 zero).

    Raises:
        DataError: when the files are neither here nor to be had.
    """
    arrays = prepared(f"reviews-{whole('length', length, least=1)}", lambda: _review_arrays(length))
    tables = []
    for domain in np.unique(arrays["domains"]):
        rows = arrays["domains"] == domain
        origin = f"Amazon reviews: {domain}"
        tables.append(Table(arrays["words"][rows], arrays["labels"][rows], origin))
    return tables, arrays["vectors"]


def _number_words(texts: Sequence[list[str]], length: int) -> tuple[Array, Array]:
    """Number the words of texts that have a GloVe vector, from 1 on.

    Args:
        texts: the words of each text.
        length: how many known words of a text are kept, the first ones.

    Returns:
        (word numbers, int32 (texts, length), 0 after the end of a short text; vectors, float32
        (words + 1, 50), one row per number, row 0 zero).
    """
    known_words, vectors = glove({word for words in texts for word in words})
    number_of = {word: number for number, word in enumerate(known_words, 1)}
    rows = np.zeros((len(texts), length), dtype=np.int32)
    for row, words in zip(rows, texts):
        numbers = [number_of[word] for word in words if word in number_of][:length]
        row[: len(numbers)] = numbers
    return rows, np.concatenate([np.zeros((1, vectors.shape[1]), np.float32), vectors])


def _snli_arrays(length: int, rows: int) -> dict[str, Array]:
    """The arrays of :func:`snli_words` by name: ``train_words`` and ``train_labels``, likewise for
    each of ``SPLITS``, and ``vectors``. At most ``rows`` training pairs are read.
    """
    texts: list[list[str]] = []  # premise and hypothesis in turn, of all splits
    labels = {}
    for split in SPLITS:
        sentences, labels[split] = labelled_sentences(split, rows if split == "train" else None)
        texts += [words_of(sentence) for sentence in sentences]
    words, vectors = _number_words(texts, length)
    # Sentences back to pairs, and the pairs to their splits.
    ends = np.cumsum([len(labels[split]) for split in SPLITS])
    pairs = np.split(words.reshape(-1, 2, length), ends[:-1])
    arrays = {f"{split}_words": of_split for split, of_split in zip(SPLITS, pairs)}
    arrays |= {f"{split}_labels": labels[split] for split in SPLITS}
    return {**arrays, "vectors": vectors}


def _review_arrays(length: int) -> dict[str, Array]:
    """The arrays of :func:`review_words` by name: ``words``, ``labels``, ``domains`` (a name per
    review) and ``vectors``.
    """
    reviews = amazon_reviews()
    words, vectors = _number_words([words_of(text) for _, _, text in reviews], length)
    labels = np.array([positive for _, positive, _ in reviews], dtype=np.int64)
    return {
        "words": words,
        "labels": labels,
        "domains": np.array([domain for domain, _, _ in reviews]),
        "vectors": vectors,
    }


def _tweet_arrays(length: int) -> dict[str, Array]:
    """The arrays of :class:`Tweets` by name, the manual texts as ``manual_words`` and
    ``manual_labels``.

    Each text stands once. Texts with fewer than two known words, and manual ones that are neutral
    (target 2; 4 is positive, 0 negative), are left out.
    """
    rows = [*sentiment140("exact"), *sentiment140("random")]
    manual = [row for row in sentiment140("test") if row["target"] != "2"]
    words, vectors = _number_words(
        [words_of(_NOISE.sub(" ", row["text"])) for row in (*rows, *manual)], length
    )
    labels = np.array([int(row["target"] == "4") for row in (*rows, *manual)], dtype=np.int64)
    # The random rows lost their first capital letter: equal texts agree from the second word on.
    row_of_text: dict[bytes, int] = {}
    for number, row in enumerate(words[: len(rows)]):
        if row[1]:  # a text of one word ends with 0
            row_of_text.setdefault(row[1:].tobytes(), number)  # the first of equal texts stays
    kept_rows = list(row_of_text.values())
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
    """Texts of made-up words, a third of which are nice and a third nasty: the label says which are
    more frequent, with some noise.

    Args:
        texts: how many; a tenth of them are the manual ones.
        length: longest text; lengths are uniform from 2 on.
        vocabulary: how many words there are.
        seed: of all draws.

    Returns:
        Tweets whose vectors have 8 dimensions, of which the first says the mood.

    Example:
        >>> made = made_up_tweets(100, 5)
        >>> made.words.shape, made.vectors.shape, sorted(set(made.labels.tolist()))
        ((90, 5), (61, 8), [0, 1])
    """
    generator = numpy_stream(seed, "made-up tweets")
    vectors = generator.standard_normal((vocabulary + 1, 8)).astype(np.float32)
    vectors[0] = 0.0
    # Of each word number: -1 nasty, 0 neither (as no word is), 1 nice.
    mood = np.concatenate([[0], np.arange(vocabulary) % 3 - 1])
    vectors[:, 0] += mood
    words = generator.integers(1, vocabulary + 1, (texts, length)).astype(np.int32)
    lengths = generator.integers(2, length + 1, texts)
    words[np.arange(length)[None] >= lengths[:, None]] = 0  # behind the end of each text
    labels = (mood[words].sum(1) + 0.5 * generator.standard_normal(texts) > 0).astype(np.int64)
    manual = max(texts // 10, 1)
    return Tweets(words[:-manual], labels[:-manual], (words[-manual:], labels[-manual:]), vectors)


check_arguments(__name__)
