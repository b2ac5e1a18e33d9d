"""The table of theorems: complete, loadable, pointing at tests that exist, printable without
torch.
"""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
from pathlib import Path

import pytest

import mindgap.lab.theory
from mindgap.lab.studies.catalogue import catalogue
from mindgap.lab.theory import THEOREMS, Theorem

ROOT = Path(__file__).parents[3]

#: What claims.md names.
NAMED = [
    "Theorem 3.4.1",
    "Theorem 3.4.2",
    "Theorem 3.4.3",
    "Theorem 3.4.4",
    "Theorem 3.4.5",
    "Theorem 4.4.1",
    "Theorem 4.4.2",
    "Theorem 4.4.3",
    "Theorem 4.4.4",
    "Theorem 4.5.1",
    "Corollary 4.5.1",
    "Theorem 2 (acclip)",
    "Theorem 5 (acclip)",
    "Corollary 3 (acclip)",
    "Lemma 2 (acclip)",
    "Lemma 4.7.1",
    "Lemma 4.7.2",
    "Lemma 4.7.4",
    "Lemma 4.7.5",
    "Lemma 4.7.9",
    "Lemma 4.7.10",
    "Remark 3.2.1",
    "Remark 4.4.1",
    "Section 5.5, q = 0",
    "Section 5.5, smooth functions",
    "Lemma 3.2.1",
    "Section 3.3.1",
    "Table 2.1",
    "Theorem 2.1.3",
    "Fig. 2-1",
    "Fig. 2-3",
    "Proposition 5.3.1",
    "Theorem 5.3.1",
    "Theorem 5.4.1",
    "Remark 5.4.1",
    "Theorem 5.5.1",
    "Theorem 5.5.2",
    "Theorem 6.4.1",
    "Lemma 6.4.2",
    "Lemma 6.4.5",
    "Theorem 6.4.6",
    "Theorem 6.4.7",
    "Theorem 6.5.1",
]


def test_every_named_statement_is_listed() -> None:
    places = [row.place for row in THEOREMS]
    assert len(places) == len(set(places))
    assert set(NAMED) <= set(places)


@pytest.mark.parametrize("row", THEOREMS, ids=lambda row: row.place)
def test_rows_point_at_code_and_tests_that_exist(row: Theorem) -> None:
    found = row.load()
    assert callable(found)
    module = sys.modules[found.__module__]
    assert row.bounds == f"{module.__name__}.{found.__name__}"
    # The code says itself which statement it is.
    number = re.search(r"[\d.-]*\d", row.place)[0]
    assert number in f"{found.__doc__} {module.__doc__}"
    if row.assumptions:
        constants = getattr(mindgap.lab.theory, row.assumptions)
        assert dataclasses.is_dataclass(constants)
    for part in re.findall(r"tests/\S+::\w+", row.checked_by):
        file, _, name = part.partition("::")
        assert f"def {name}(" in (ROOT / file).read_text(encoding="utf-8")
    studies = re.findall(r"study ([\w-]+)", row.checked_by)
    assert set(studies) <= set(catalogue())
    assert studies or "tests/" in row.checked_by


def test_the_table_is_read_without_torch_and_numpy() -> None:
    code = (
        "import sys; from mindgap.lab.theory import THEOREMS as t; "
        "print(len(t), {'torch', 'numpy'} & set(sys.modules))"
    )
    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    ).stdout
    assert out.split(maxsplit=1) == [str(len(THEOREMS)), "set()\n"]


def test_every_public_name_loads() -> None:
    for name in dir(mindgap.lab.theory):
        assert getattr(mindgap.lab.theory, name) is not None


def test_rows_are_one_line_of_text() -> None:
    with pytest.raises(ValueError, match="statement must be one line"):
        Theorem("a", "b", "c\nd", "e", "", "f.g", "h", "i", THEOREMS[0].source)
    with pytest.raises(ValueError, match="outcome must be a non-empty text"):
        Theorem("a", "b", "c", "e", "", "f.g", "h", "", THEOREMS[0].source)
