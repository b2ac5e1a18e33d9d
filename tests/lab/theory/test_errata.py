"""Errata: every accusation has its kind, its derivation and, if it is *refuted*, a certificate that
runs; page, studies and errata say the same.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from mindgap.base.check import RuleError
from mindgap.lab.studies.catalogue import catalogue
from mindgap.lab.theory import ERRATA, THEOREMS, Erratum
from mindgap.lab.theory.erratum import KINDS, counts

ROOT = Path(__file__).parents[3]
CERTIFIED = [row for row in ERRATA if row.certificate]


def tool(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        f"{name}_tool", ROOT / "docs/tools" / f"{name}.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_refuted_without_a_certificate_cannot_be_written() -> None:
    row = next(row for row in ERRATA if row.kind == "refuted")
    with pytest.raises(
        RuleError, match="certificate must be named: without one nothing is refuted"
    ):
        replace(row, certificate="")
    assert all(row.certificate for row in ERRATA if row.kind == "refuted")
    with pytest.raises(RuleError, match="kind must be one of"):
        replace(row, kind="wrong")


@pytest.mark.parametrize("row", CERTIFIED, ids=lambda row: row.place)
def test_every_certificate_meets_the_assumptions_and_contradicts_the_print(row: Erratum) -> None:
    found = row.certify()
    assert [name for name, met in found.assumptions.items() if not met] == []
    assert found.assumptions
    assert found.contradicts
    assert found.valid
    # A margin: more than rounding, on whichever side the statement puts it.
    assert found.claim == "equal to" or abs(found.ratio - 1) > 0.1


def test_a_certificate_whose_instance_breaks_an_assumption_is_not_valid() -> None:
    found = next(row for row in CERTIFIED if row.place == "Theorem 3.4.5").certify()
    broken = replace(found, assumptions={**found.assumptions, "L1 > 0": False})
    assert not broken.valid
    assert not replace(found, measured=found.printed).valid


def test_every_erratum_is_derived_and_names_tests_and_theorems_that_exist() -> None:
    tests = "".join(p.read_text(encoding="utf-8") for p in (ROOT / "tests").rglob("test_*.py"))
    places = {row.place for row in THEOREMS}
    assert len(ERRATA) == len({row.place for row in ERRATA})
    for row in ERRATA:
        assert len(row.derivation) > 20, row.place
        assert [name for name in row.tests if f"def {name}(" not in tests] == [], row.place
        assert row.tests or "reading" in row.shown_by or "study" in row.shown_by, row.place
        assert not row.theorem or row.theorem in places, row.place
        assert set(row.judged_by) <= set(catalogue()), row.place


def test_the_page_is_that_of_the_records() -> None:
    page = (ROOT / "docs" / "errata.md").read_text(encoding="utf-8")
    assert page == tool("errata").page(), "run docs/tools/errata.py"
    assert set(counts()) == set(KINDS)
    assert all(row.place.replace("|", "\\|") in page for row in ERRATA)


def test_remarks_of_the_theorems_come_from_the_errata() -> None:
    (row,) = (row for row in THEOREMS if row.place == "Theorem 3.4.5")
    assert row.remarks == tuple(e.remark for e in ERRATA if e.theorem == "Theorem 3.4.5")
    assert row.remarks[0].startswith("refuted (Theorem 3.4.5): printed (f(x0) - f* + ")
    # The table itself accuses nobody.
    said = " ".join(row.outcome for row in THEOREMS)
    assert not any(word in said for word in ("as printed", "misprint", "lost", "wrong"))


def test_errata_are_read_without_torch_and_numpy() -> None:
    code = (
        "import sys; from mindgap.lab.theory import ERRATA as e; "
        "print(len(e), {'torch', 'numpy'} & set(sys.modules))"
    )
    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    ).stdout
    assert out.split(maxsplit=1) == [str(len(ERRATA)), "set()\n"]
