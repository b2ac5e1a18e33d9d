"""The README is short, and its numbers stand on pages that commands write."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_it_is_short_and_in_the_order_of_a_visitors_questions() -> None:
    assert len(README.splitlines()) <= 120
    assert re.findall(r"^## (.*)$", README, re.M) == [
        "Try it in one minute",
        "Swap the optimizer",
        "Ask what is wrong",
        "Let it choose",
        "Two nested losses",
        "Why not what you use?",
        "Do the papers' claims hold?",
        "Documents",
    ]


def test_its_table_of_clipping_is_that_of_the_judged_tasks() -> None:
    spec = importlib.util.spec_from_file_location("readme", ROOT / "docs" / "tools" / "readme.py")
    assert spec is not None
    assert spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    assert tool.written() == README, "run docs/tools/readme.py"
    # Not only what flatters: some of our own rules lose to AdamW in it.
    assert re.search(r"\+\d", tool.clipping())


def test_its_rates_of_the_doctor_are_those_of_its_page() -> None:
    doctor = (ROOT / "docs" / "doctor.md").read_text(encoding="utf-8")
    named = re.search(r"first in (\d+ of \d+)\W", README)
    alarms = re.search(r"with (\d+)\s+false alarms? on (\d+) odd", README)
    assert named is not None
    assert alarms is not None
    assert f"| planted cause named first | {named[1]} " in doctor
    cured = re.search(r"cure helped in (\d+ of \d+)\.", README)
    assert cured is not None
    assert f"| proposed cure helps on a copy (causes that have one) | {cured[1]} " in doctor
    assert f"| false alarm on an odd but healthy run | {alarms[1]} of {alarms[2]} " in doctor


def test_it_counts_what_there_is_and_speaks_plainly() -> None:
    from mindgap.bilevel.registry import METHODS
    from mindgap.optim.table import OPTIMIZERS

    assert f"{len(METHODS)} methods" in README
    assert {8: "eight"}[len(OPTIMIZERS)] in README
    assert not re.search(r"\b(toys?|prox(y|ies)|inconclusive|rooms?|house)\b", README)
