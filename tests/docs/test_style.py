"""Sentences that readers had to read twice do not come back, and "per" is not written as "a"."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PLACES = ("mindgap", "docs", "tests", "examples", "benchmarks")
ENDINGS = {".py", ".md", ".txt", ".html", ".js", ".css", ".toml"}
TEXTS = [
    *(p for p in ROOT.iterdir() if p.suffix in ENDINGS),
    *(
        p
        for place in PLACES
        for p in (ROOT / place).rglob("*")
        if p.suffix in ENDINGS and p != Path(__file__)
    ),
]
#: Beginnings of the sentences that were rewritten.
BEFORE = (
    "where the textbook's assumptions fail: losses",
    "median of means over blocks of n replicas keeps growing",
    "is not always welcome",
    "synchronises only when asked",
    "without changing it by a bit",
    "rooms of one floor do not know",
    "wrong theorem cannot hide",
    "named by their hash",
    "yields its first row at its end",
    "reading of a dear probe",
    "off by a tenth, a quarter, once by half",
    "computed once a reading",
    "waits for a device at every step",
    "means what it says",
    "cannot be had in this measure",
    "clearly ahead of",
    "two batches of m agree in loss",
    "how often equal laws may be called different",
    "heavier than gaussian: no, index",
    "where nobody came as far",
    "at every so-manyth step",
    "no loop costs less than any",
    "must be installed, got",
)
UNITS = (
    "step|run|seed|method|batch|minibatch|sample|reading|parameter|column|layer|iteration|cell"
    "|coordinate|epoch"
)
A_FOR_PER = re.compile(
    rf"\b(one number|one row|one label|one file|bytes|ms|products|once) an? ({UNITS}|study)\b"
)


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    return {
        str(p.relative_to(ROOT)): " ".join(p.read_text(encoding="utf-8").split()) for p in TEXTS
    }


def test_no_rewritten_sentence_is_back(texts: dict[str, str]) -> None:
    found = [
        (name, words) for name, text in texts.items() for words in BEFORE if words in text.lower()
    ]
    assert found == []


def test_per_is_not_written_as_a(texts: dict[str, str]) -> None:
    assert [(name, m[0]) for name, text in texts.items() for m in A_FOR_PER.finditer(text)] == []
