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
from mindgap.record.forms import read_form
from mindgap.record.outcomes import study_folders
from mindgap.record.schema import Verdict
from mindgap.record.store import VERDICT_FILE

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


def printed_verdicts() -> dict[str, tuple[str, str]]:
    """Study -> its verdicts as printed and as corrected, of the records in results/."""
    found = {}
    for folder in study_folders(ROOT / "results"):
        verdict = read_form(Verdict, folder / VERDICT_FILE)
        found[folder.parent.name] = (verdict.as_printed, verdict.as_corrected)
    return found


def disagreements(errata: tuple[Erratum, ...], verdicts: dict[str, tuple[str, str]]) -> list[str]:
    """Studies and errata that say different things about the same printed sentence."""
    wrong = []
    for name, (printed, _) in verdicts.items():
        mine = [row for row in errata if name in row.judged_by]
        false = [row.place for row in mine if row.certificate]
        if false and printed != "does not hold":
            wrong.append(f"{name} says {printed} as printed, a certificate refutes {false}")
        if mine and not false and printed == "does not hold":
            wrong.append(f"{name} says {printed} as printed, no erratum of it is refuted")
    return wrong


def test_no_study_says_of_the_print_what_the_errata_do_not() -> None:
    verdicts = printed_verdicts()
    assert disagreements(ERRATA, verdicts) == []
    # Both ways: a refuted sentence that a study calls true, and a true one that a study refutes.
    broken = {**verdicts, "s4-counts-below-bounds": ("holds", "holds")}
    assert "a certificate refutes" in disagreements(ERRATA, broken)[0]
    broken = {**verdicts, "s4-clipping-beats-fixed-steps": ("does not hold", "holds")}
    assert "no erratum of it is refuted" in disagreements(ERRATA, broken)[0]


def test_a_formula_that_holds_only_as_corrected_has_an_erratum() -> None:
    verdicts, results = printed_verdicts(), tool("results")
    slips = [
        name
        for name, (printed, corrected) in verdicts.items()
        if printed == "does not hold" and corrected == "holds"
    ]
    assert sorted(slips) == sorted(results.corrected_only())
    assert set(slips) >= {
        "s4-counts-below-bounds",
        "h8-nonconvex-exponent",
        "h8-nonconvex-bounds",
        "t1-textbook-rates",
    }
    assert "e5-cycle" not in slips


def test_readme_and_reproduction_count_slips_from_the_records() -> None:
    results = tool("results")
    number = len(results.corrected_only())
    readme, page = ((ROOT / path).read_text() for path in ("README.md", "docs/reproduction.md"))
    slip = f"{number} of the formulas hold only after a slip in the printed text is corrected"
    assert slip in readme
    assert slip in page
    assert f"([{len(ERRATA)} errata](docs/errata.md))" in readme
    assert f"{len(ERRATA)} places of the papers' text are listed as" in page
    assert results.slips() in page


def test_our_own_questions_are_never_called_the_papers() -> None:
    ours = [study for study in catalogue().values() if study.ours]
    assert {"b14-as-released", "b14-released-representation", "b3-mnist-levels"} <= {
        study.name for study in ours
    }
    page = (ROOT / "docs" / "reproduction.md").read_text(encoding="utf-8")
    claims = (ROOT / "docs" / "claims.md").read_text(encoding="utf-8")
    for study in ours:
        assert study.heading == "Our question"
        block = page.split(f"· `{study.name}`")[1].split("### ")[0]
        assert "The paper states" not in block
        assert "| Our question |" in block
        (row,) = (line for line in claims.splitlines() if f"`{study.name}`" in line)
        assert "our question" in row.lower()


def test_errata_are_read_without_torch_and_numpy() -> None:
    code = (
        "import sys; from mindgap.lab.theory import ERRATA as e; "
        "print(len(e), {'torch', 'numpy'} & set(sys.modules))"
    )
    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    ).stdout
    assert out.split(maxsplit=1) == [str(len(ERRATA)), "set()\n"]
