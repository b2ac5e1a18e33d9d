"""Rooms load lazily, files stay small. The import contracts are checked by ``make lint``."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "mindgap"
#: Modules outside ``bilevel`` that still import each other; this list only gets shorter.
KNOWN_CYCLES = [
    {"cli", "cli.app"},
    {"lab.report.drawing", "lab.report.words"},
    {"measure.probe", "measure.probes.noise"},
    {"optim.optimizer", "optim.trial"},
    {"record.migrate", "record.packed", "record.store"},
]
ROOMS = ["mindgap", "mindgap.optim", "mindgap.measure", "mindgap.bilevel", "mindgap.lab.theory"]


def test_there_is_no_attic() -> None:
    """A file named after nothing ends up holding everything."""
    names = {"utils.py", "util.py", "helpers.py", "misc.py", "common.py"}
    assert [path for path in PACKAGE.rglob("*.py") if path.name in names] == []


def imports_of_modules() -> dict[str, set[str]]:
    """Module -> modules of the package that it imports, in functions and for types too."""
    paths = {
        ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__"): path
        for path in PACKAGE.rglob("*.py")
    }
    found = {}
    for module, path in paths.items():
        names = set()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                inside = {f"{node.module}.{alias.name}" for alias in node.names}
                names |= {n if n.removeprefix("mindgap.") in paths else node.module for n in inside}
        found[module] = {n.removeprefix("mindgap.") for n in names} & paths.keys() - {module}
    return found


def test_modules_do_not_import_each_other() -> None:
    imports = imports_of_modules()

    def reached(module: str) -> set[str]:
        seen: set[str] = set()
        ahead = list(imports[module])
        while ahead:
            there = ahead.pop()
            if there not in seen:
                seen.add(there)
                ahead += imports[there]
        return seen

    reach = {module: reached(module) for module in imports}
    circles = {
        frozenset({module} | {there for there in reach[module] if module in reach[there]})
        for module in imports
        if module in reach[module]
    }
    assert [sorted(circle) for circle in circles if circle not in KNOWN_CYCLES] == []


@pytest.mark.parametrize("room", ROOMS)
def test_importing_a_wing_imports_nothing_heavy(room: str) -> None:
    code = (
        f"import sys, {room}; heavy = {{'torch', 'scipy', 'altair'}} & set(sys.modules); assert "
        "not heavy, heavy"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr


def test_the_optimizers_load_nothing_of_the_laboratory() -> None:
    code = (
        "import sys, torch, mindgap.optim as room; [getattr(room, name) for name in dir(room)];"
        "absent = {'scipy', 'sklearn', 'typer', 'rich', 'joblib', 'mindgap.lab', 'mindgap.cli'} & "
        "set(sys.modules);"
        "assert not absent, absent"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )
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


def test_the_picture_of_the_layers_is_drawn_from_the_imports() -> None:
    code = (
        "import runpy, sys; tool = runpy.run_path(sys.argv[1], run_name='tool'); assert "
        "tool['problems']() == []; "
        "assert tool['PICTURE'].read_text() == tool['draw'](), 'run docs/tools/layers.py'"
    )
    tool = str(ROOT / "docs" / "tools" / "layers.py")
    done = subprocess.run(
        [sys.executable, "-c", code, tool], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
