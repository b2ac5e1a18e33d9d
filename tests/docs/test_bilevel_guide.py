"""The guide's table is the library's, its example has 25 lines, the template of a seventeenth
method works.
"""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest
import torch

from mindgap.bilevel.registry import SIXTEEN as METHODS, table_markdown
from mindgap.lab.studies.catalogue import find

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "bilevel.md").read_text()


def test_table_of_the_guide_is_generated():
    """After a change of the table: python -m mindgap.bilevel.registry docs/bilevel.md"""
    inside = re.search(r"<!-- methods: begin -->\n(.*?)<!-- methods: end -->", GUIDE, re.DOTALL)
    assert inside is not None
    assert inside[1].strip() == table_markdown()


@pytest.mark.parametrize(
    "page", ["bilevel.md", "bilevel_speed.md", "appendix/bilevel-speed-notes.md"]
)
def test_every_table_of_measurements_has_a_date_and_a_command_that_exists(page):
    text = re.sub(
        r"<!-- methods: begin.*?methods: end -->",
        "",
        (ROOT / "docs" / page).read_text(),
        flags=re.DOTALL,
    )
    top, *sections = re.split(r"^## ", text, flags=re.MULTILINE)
    with_tables = [
        part for part in (top, *sections) if re.search(r"^\|[-| ]+\|$", part, re.MULTILINE)
    ]
    assert len(with_tables) >= 2
    for part in with_tables:
        assert re.search(r"\b2026-\d\d-\d\d\b", top + part), part[:60]
        before_first_table = part[: re.search(r"^\|", part, re.MULTILINE).start()]
        assert re.search(r"benchmarks/\w+\.py|mindgap run \S+", before_first_table), part[:60]
    for script, options in re.findall(r"python (benchmarks/\w+\.py)([^`]*)`", text):
        assert (ROOT / script).exists(), script
        known = "".join(path.read_text() for path in ROOT.glob("benchmarks/bilevel*.py"))
        assert all(f'"{option}"' in known for option in re.findall(r"--[a-z-]+", options)), (
            script,
            options,
        )
    for name, scale in re.findall(r"mindgap run ([\w-]+)(?: --scale (\w+))?", text):
        assert not scale or scale in find(name).scales, (name, scale)


def test_hyper_cleaning_takes_25_lines():
    block = re.search(r"```python\n(.*?)```", GUIDE, re.DOTALL)[1]
    assert len([line for line in block.splitlines() if line.strip()]) <= 25


def test_table_one_as_data():
    """Spot checks against the table in the authors' answer."""
    assert len(METHODS) == 16
    assert [m.name for m in METHODS.values() if m.listed] == [
        "BSA",
        "StocBio",
        "AmIGO",
        "ALSET",
        "TTSA",
        "F²SA",
        "SOBA",
        "SABA",
        "MA-SOBA",
        "BO-REP",
        "SLIP",
    ]
    complexity = {k: m.complexity for k, m in METHODS.items()}
    assert complexity["bsa"] == "Õ(ε⁻⁶)"
    assert complexity["ttsa"] == "Õ(ε⁻⁵)"
    assert complexity["f2sa"] == "O(ε⁻⁷)"
    assert complexity["saba"] == "O(N^{4/3} ε⁻²)"
    assert {k for k, m in METHODS.items() if m.setting == "finite sum"} == {"soba", "saba", "srba"}
    assert {k for k, m in METHODS.items() if "L_x0" in m.upper} == {"borep", "slip"}
    assert {k for k, m in METHODS.items() if m.listed and m.loop.startswith("double")} == {
        "bsa",
        "stocbio",
        "amigo",
        "alset",
        "borep",
    }
    assert (
        METHODS["borep"].hyperparameters == METHODS["slip"].hyperparameters + 3
    )  # R, I, N (claim B9)


def test_template_of_a_seventeenth_method():
    path = ROOT / "examples" / "seventeenth_method.py"
    spec = importlib.util.spec_from_file_location("seventeenth_method", path)
    module = importlib.util.module_from_spec(spec)
    import sys

    sys.modules["seventeenth_method"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    torch.manual_seed(0)
    assert module.main() < 0.03  # noise variance is 0.01
    plan = module.PeriodicSOBA(lr_x=0.1, lr_y=0.1, period=3).plan()
    assert [iteration.kind for iteration in plan.period] == ["inner", "inner", "both"]
