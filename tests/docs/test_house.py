"""The house keeps its rules: layers, lazy rooms, no attic."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "mindgap"
ROOMS = ["mindgap", "mindgap.optim", "mindgap.measure", "mindgap.bilevel", "mindgap.lab.theory"]


def test_there_is_no_attic() -> None:
    """A file named after nothing ends up holding everything."""
    names = {"utils.py", "util.py", "helpers.py", "misc.py", "common.py"}
    assert [path for path in PACKAGE.rglob("*.py") if path.name in names] == []


def test_import_contracts_are_kept() -> None:
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("room", ROOMS)
def test_importing_a_wing_imports_nothing_heavy(room: str) -> None:
    code = f"import sys, {room}; heavy = {{'torch', 'scipy', 'altair'}} & set(sys.modules); assert not heavy, heavy"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("room", ROOMS)
def test_every_public_name_of_a_wing_can_be_loaded(room: str) -> None:
    module = import_module(room)
    names = dir(module)
    assert names
    for name in names:
        assert getattr(module, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'nothing_of_this_name'"):
        _ = module.nothing_of_this_name


def test_files_stay_small() -> None:
    """A file of more than 450 lines has become two."""
    long = {str(p.relative_to(ROOT)): n for p in PACKAGE.rglob("*.py") if (n := len(p.read_text().splitlines())) > 450}
    assert long == {}
