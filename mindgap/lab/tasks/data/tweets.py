"""Sentiment140 as sequences of word numbers with GloVe vectors, for recurrent nets; prepared once per machine."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from filelock import FileLock

from mindgap.base.check import whole
from mindgap.base.checked import check_arguments
from mindgap.base.rng import numpy_stream
from mindgap.lab.tasks.data.fetch import cache_folder
from mindgap.lab.tasks.data.text import glove, sentiment140
from mindgap.lab.tasks.data.vectors import words_of

Array = np.ndarray[Any, Any]

#: Names of users and addresses say nothing that a word vector knows.
_NOISE = re.compile(r"@\w+|https?://\S+|www\.\S+")


@dataclass(frozen=True)
class Tweets:
    """Labelled texts as word numbers.

    Args:
        words: (texts, length) numbers of words; 0 fills up a short text.
        labels: (texts,) 1 for a positive text, 0 for a negative one.
        manual: words and labels of the texts that people labelled.
        vectors: (words, dimensions) float32, one row per number; row 0 is zero.
    """

    words: Array
    labels: Array
    manual: tuple[Array, Array]
    vectors: Array


@lru_cache(maxsize=2)
def tweets(length: int = 20) -> Tweets:
    """The exact and the random rows of Sentiment140, each text once; a text without known words is left out.

    The manual rows are the 359 of 498 that are positive or negative. A text is its first ``length`` words that have a
    GloVe vector of 50 dimensions; names of users and addresses are left out. What was prepared is kept in the cache,
    so that many processes read it in a moment.

    Raises:
        DataError: when the files are neither here nor to be had.
    """
    whole("length", length, least=1)
    path = cache_folder() / "prepared" / f"sentiment140-{length}.npz"
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_suffix(".lock")):
        if not path.exists():
            part = path.with_suffix(".part.npz")
            made = _prepare(length)
            np.savez(part, words=made.words, labels=made.labels, vectors=made.vectors,
                     manual_words=made.manual[0], manual_labels=made.manual[1])  # fmt: skip
            os.replace(part, path)
    with np.load(path) as kept:
        manual = kept["manual_words"], kept["manual_labels"]
        return Tweets(kept["words"], kept["labels"], manual, kept["vectors"])


def _prepare(length: int) -> Tweets:
    rows = [*sentiment140("exact"), *sentiment140("random")]
    manual = [row for row in sentiment140("test") if row["target"] != "2"]
    split = [words_of(_NOISE.sub(" ", row["text"])) for row in (*rows, *manual)]
    known, vectors = glove({word for words in split for word in words})
    place = {word: number for number, word in enumerate(known, 1)}
    found = np.zeros((len(split), length), dtype=np.int32)
    for numbers, words in zip(found, split):
        here = [place[word] for word in words if word in place][:length]
        numbers[: len(here)] = here
    labels = np.array([int(row["target"] == "4") for row in (*rows, *manual)], dtype=np.int64)
    # The random rows lost their first capital letter: equal texts agree from the second word on.
    seen: set[bytes] = set()
    keep = []
    for number, row in enumerate(found[: len(rows)]):
        key = row[1:].tobytes()
        if row[1] and key not in seen:
            keep.append(number)
            seen.add(key)
    table = np.concatenate([np.zeros((1, vectors.shape[1]), np.float32), vectors])
    return Tweets(found[keep], labels[keep], (found[len(rows) :], labels[len(rows) :]), table)


def made_up_tweets(texts: int = 2000, length: int = 8, *, vocabulary: int = 60, seed: int = 0) -> Tweets:
    """Texts of made-up words, a third of which are nice, a third nasty: the label says which are more frequent.

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
