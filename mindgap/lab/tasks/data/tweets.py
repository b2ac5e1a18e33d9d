"""Sentiment140, SNLI and the Amazon reviews as word numbers with GloVe vectors; prepared once
per machine.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from filelock import FileLock

from mindgap.base.check import whole
from mindgap.base.checked import check_arguments
from mindgap.base.rng import numpy_stream
from mindgap.lab.tasks.data.fetch import cache_folder
from mindgap.lab.tasks.data.tabular import Table
from mindgap.lab.tasks.data.text import amazon_reviews, glove, sentiment140, snli
from mindgap.lab.tasks.data.vectors import SNLI_LABELS, words_of
from mindgap.record.unpacking import checked_zip

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
    kept = _cached_arrays(
        f"sentiment140-{whole('length', length, least=1)}", lambda: _tweets(length)
    )
    return Tweets(
        kept["words"],
        kept["labels"],
        (kept["manual_words"], kept["manual_labels"]),
        kept["vectors"],
    )


@lru_cache(maxsize=2)
def snli_words(length: int = 16, rows: int = 40_000) -> tuple[list[Table], Array]:
    """SNLI's training, development and test pairs as word numbers (pairs, 2, length) with labels,
    and the vectors.

    Args:
        length: words of a sentence; what is longer is cut.
        rows: pairs of the training split.

    Raises:
        DataError: when the files are neither here nor to be had.
    """
    kept = _cached_arrays(
        f"snli-{whole('length', length, least=1)}-{rows}", lambda: _snli(length, rows)
    )
    tables = [
        Table(kept[f"{split}_words"], kept[f"{split}_labels"], f"SNLI {split}") for split in SPLITS
    ]
    return tables, kept["vectors"]


@lru_cache(maxsize=2)
def review_words(length: int = 24) -> tuple[list[Table], Array]:
    """The Amazon reviews by domain as word numbers (reviews, length), 1 for a positive one, and the
    vectors.

    Args:
        length: words of a review; what is longer is cut.

    Raises:
        DataError: when the files are neither here nor to be had.
    """
    kept = _cached_arrays(f"reviews-{whole('length', length, least=1)}", lambda: _reviews(length))
    tables = [
        Table(kept["words"][rows], kept["labels"][rows], f"Amazon reviews: {domain}")
        for domain in np.unique(kept["domains"])
        for rows in [kept["domains"] == domain]
    ]
    return tables, kept["vectors"]


#: of SNLI
SPLITS = ("train", "dev", "test")


def _cached_arrays(name: str, make: Callable[[], dict[str, Array]]) -> dict[str, Array]:
    """Arrays from a file in the cache, which one process makes while others wait."""
    path = cache_folder() / "prepared" / f"{name}.npz"
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_suffix(".lock")):
        if not path.exists():
            part = path.with_suffix(".part.npz")
            np.savez(part, **make())  # type: ignore[arg-type]
            os.replace(part, path)
    with np.load(checked_zip(path)) as kept:
        return dict(kept)


def _number_words(texts: Sequence[list[str]], length: int) -> tuple[Array, Array]:
    """Texts as the numbers of their first known words, 0 where there is none, and the vectors
    of the numbers.
    """
    known, vectors = glove({word for words in texts for word in words})
    place = {word: number for number, word in enumerate(known, 1)}
    found = np.zeros((len(texts), length), dtype=np.int32)
    for numbers, words in zip(found, texts):
        here = [place[word] for word in words if word in place][:length]
        numbers[: len(here)] = here
    return found, np.concatenate([np.zeros((1, vectors.shape[1]), np.float32), vectors])


def _snli(length: int, rows: int) -> dict[str, Array]:
    """Words, labels and vectors of SNLI's splits; the training split has at most ``rows`` pairs."""
    pairs = {split: snli(split) for split in SPLITS}
    pairs["train"] = pairs["train"][:rows]
    pairs = {
        split: [pair for pair in of if pair["gold_label"] in SNLI_LABELS]
        for split, of in pairs.items()
    }
    column = {"dev": "sentence{}_tokenised"}
    texts = [
        words_of(pair[column.get(split, "sentence{}").format(number)])
        for split, of in pairs.items()
        for pair in of
        for number in (1, 2)
    ]
    words, vectors = _number_words(texts, length)
    parts = np.split(
        words.reshape(-1, 2, length), np.cumsum([len(of) for of in pairs.values()])[:-1]
    )
    kept = {f"{split}_words": part for split, part in zip(pairs, parts)}
    labels = {
        f"{split}_labels": np.array(
            [SNLI_LABELS.index(pair["gold_label"]) for pair in of], dtype=np.int64
        )
        for split, of in pairs.items()
    }
    return {**kept, **labels, "vectors": vectors}


def _reviews(length: int) -> dict[str, Array]:
    reviews = amazon_reviews()
    words, vectors = _number_words([words_of(text) for _, _, text in reviews], length)
    labels = np.array([positive for _, positive, _ in reviews], dtype=np.int64)
    return {
        "words": words,
        "labels": labels,
        "domains": np.array([d for d, _, _ in reviews]),
        "vectors": vectors,
    }


def _tweets(length: int) -> dict[str, Array]:
    """Words, labels and vectors of Sentiment140, each text once, and of its test by hand."""
    rows = [*sentiment140("exact"), *sentiment140("random")]
    manual = [row for row in sentiment140("test") if row["target"] != "2"]
    split = [words_of(_NOISE.sub(" ", row["text"])) for row in (*rows, *manual)]
    found, vectors = _number_words(split, length)
    labels = np.array([int(row["target"] == "4") for row in (*rows, *manual)], dtype=np.int64)
    # The random rows lost their first capital letter: equal texts agree from the second word on.
    seen: set[bytes] = set()
    keep = []
    for number, row in enumerate(found[: len(rows)]):
        key = row[1:].tobytes()
        if row[1] and key not in seen:
            keep.append(number)
            seen.add(key)
    return {
        "words": found[keep],
        "labels": labels[keep],
        "vectors": vectors,
        "manual_words": found[len(rows) :],
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
    draw = numpy_stream(seed, "made-up tweets")
    vectors = draw.standard_normal((vocabulary + 1, 8)).astype(np.float32)
    vectors[0] = 0.0
    mood = np.concatenate([[0], np.arange(vocabulary) % 3 - 1])  # -1, 0, 1
    vectors[:, 0] += mood
    words = draw.integers(1, vocabulary + 1, (texts, length)).astype(np.int32)
    words[np.arange(length)[None] >= draw.integers(2, length + 1, texts)[:, None]] = 0
    labels = (mood[words].sum(1) + 0.5 * draw.standard_normal(texts) > 0).astype(np.int64)
    last = max(texts // 10, 1)
    return Tweets(words[:-last], labels[:-last], (words[-last:], labels[-last:]), vectors)


check_arguments(__name__)
