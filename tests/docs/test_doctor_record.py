"""The hospital is as large as promised, and the document has the table of the records."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
RECORDS = ROOT / "benchmarks" / "records" / "doctor"


@pytest.fixture(scope="module")
def script():
    """A module of ``benchmarks/doctor``, which is no package."""
    folder = str(ROOT / "benchmarks" / "doctor")
    before = set(sys.modules)
    sys.path.insert(0, folder)

    def load(name: str) -> ModuleType:
        return importlib.import_module(name)

    yield load
    sys.path.remove(folder)
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(folder):
            del sys.modules[name]


def test_the_hospital_has_its_size_and_names_known_causes(script) -> None:
    from mindgap.advise.doctor.causes import CAUSES

    cases = script("hospital").all_cases().values()
    assert len(cases) >= 100
    assert sum(case.cause != "healthy" for case in cases) >= 70
    assert sum(case.cause == "healthy" for case in cases) >= 30
    assert {case.cause for case in cases} == {*CAUSES, "healthy"}
    assert 0.3 < sum(case.judged for case in cases) / len(cases) < 0.5


@pytest.mark.parametrize("part", ["development", "judged"])
def test_every_case_of_a_part_has_one_record(script, part: str) -> None:
    rows = script("track_record").read(RECORDS / f"{part}.jsonl")
    cases = {c.name: c for c in script("hospital").all_cases().values() if c.part == part}
    assert sorted(r["name"] for r in rows) == sorted(cases)
    assert all(r["cause"] == cases[r["name"]].cause for r in rows)


def test_the_document_has_the_table_of_the_records(script) -> None:
    page = ROOT / "docs" / "doctor.md"
    assert script("track_record").written(page, RECORDS) == page.read_text(encoding="utf-8"), (
        "run python benchmarks/doctor/run.py --docs docs/doctor.md"
    )


def test_the_judged_draw_runs_with_the_generator_that_was_registered(script) -> None:
    drawn = script("drawn")
    known = json.loads((RECORDS / "drawn-judged.registered.json").read_text(encoding="utf-8"))
    assert known["hash"] == drawn.generator_hash()
    titles = drawn.titles("drawn-judged")
    assert len(titles) == known["drafts"]
    assert sum(not t.startswith("odd-") for t in titles) == known["sick"] >= 100
    assert known["odd"] >= 120
    rows = script("track_record").read(RECORDS / "drawn-judged.jsonl")
    assert len({r["name"] for r in rows}) == len(rows)
    assert {r["name"] for r in rows} <= set(titles)


def test_a_draft_and_its_twin_differ_by_the_fault_alone(script) -> None:
    drawn = script("drawn")
    sick, twin = drawn.draft("drawn-development", "lr_too_large-0")
    again, _ = drawn.draft("drawn-development", "lr_too_large-0")
    assert (sick.family, sick.optimizer, sick.size) == (twin.family, twin.optimizer, twin.size)
    assert bool((sick.x == twin.x).all())
    assert sick.lr == again.lr > 10 * twin.lr
    other, _ = drawn.draft("drawn-judged", "lr_too_large-0")
    assert sick.x.shape != other.x.shape or not bool((sick.x == other.x).all())
