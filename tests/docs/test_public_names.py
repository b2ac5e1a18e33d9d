"""Public names: written once for type checkers and once for Python, never hidden by a module of the
same name, and importable from a zip and without sources.
"""

from __future__ import annotations

import os
import py_compile
import runpy
import subprocess
import sys
import zipfile
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

from mindgap.bilevel import METHODS
from mindgap.optim import OPTIMIZERS

ROOT = Path(__file__).parents[2]
TOOL = runpy.run_path(str(ROOT / "docs" / "tools" / "public_names.py"))
ROOMS: dict[str, Path] = TOOL["rooms"]()
#: Rooms whose public names may be modules.
OF_MODULES = ("mindgap", "mindgap.adapters")

#: Load every public name of the library, far from the sources.
LOAD_ALL = """
import sys, mindgap
assert sys.path[1] in mindgap.__file__, mindgap.__file__
assert not any(name == "torch" for name in sys.modules)
for room in ("optim", "measure", "bilevel", "advise"):
    package = getattr(mindgap, room)
    for name in dir(package):
        getattr(package, name)
for room in ("adapters", "base", "lab", "record", "rules"):
    getattr(mindgap, room)
"""
#: The CPU's kernels need no sources; Triton does, and its kernels say so.
STEP_WITHOUT_SOURCES = """
import torch
p = torch.nn.Parameter(torch.ones(3))
p.grad = torch.ones(3)
mindgap.optim.SGD([p], lr=0.5, fused=False).step()
assert (p == 0.5).all()
from mindgap.rules.fused import cpu, cuda
assert len(cpu._digest()) == 12
from importlib.machinery import ModuleSpec
triton = sys.modules["triton"] = type(sys)("triton")
triton.__spec__, triton.__version__ = ModuleSpec("triton", None), "3.3.0"
assert "without its sources" in cuda.unavailable(), cuda.unavailable()
"""


@pytest.mark.parametrize("room", sorted(set(ROOMS) - set(OF_MODULES)))
def test_no_public_name_is_a_module(room: str) -> None:
    package = import_module(room)
    names = [name for name in package.__dir__() if not name.startswith("_")]
    scope: dict[str, object] = {}
    for name in names:
        exec(f"from {room} import {name}", scope)
    assert [name for name in names if isinstance(scope[name], ModuleType)] == []


@pytest.mark.parametrize("room", sorted(ROOMS))
def test_type_checkers_and_python_read_the_same_names(room: str) -> None:
    text = ROOMS[room].read_text(encoding="utf-8")
    assert TOOL["tables"](text) == TOOL["imported"](room, text), (
        "run python docs/tools/public_names.py"
    )
    where, modules = TOOL["tables"](text)
    assert sorted({*where, *modules}) == sorted(dir(import_module(room)))


def test_every_room_is_listed() -> None:
    rooms = ("optim", "measure", "bilevel", "advise", "adapters", "lab.report", "lab.theory")
    tasks = ("models", "data", "problems")
    named = {"mindgap", *(f"mindgap.{room}" for room in rooms)}
    assert set(ROOMS) >= named | {f"mindgap.lab.tasks.{task}" for task in tasks}


def test_every_method_and_optimizer_is_a_public_name() -> None:
    bilevel, optim = import_module("mindgap.bilevel"), import_module("mindgap.optim")
    assert {method.class_name for method in METHODS.values()} <= set(dir(bilevel))
    assert {entry.class_name for entry in OPTIMIZERS.values()} <= set(dir(optim))


def test_a_name_without_a_row_and_an_import_without_as_are_found() -> None:
    text = (
        "if TYPE_CHECKING:\n    from m.a import x as x\n    from m import b as b\n"
        'else:\n    _WHERE = {"x": "c"}\n    _MODULES = ()\n'
    )
    assert TOOL["imported"]("m", text) == ({"x": "a"}, ("b",))
    assert TOOL["tables"](text) == ({"x": "c"}, ())
    corrected = TOOL["written"]("m", text)
    assert TOOL["tables"](corrected) == TOOL["imported"]("m", corrected)
    with pytest.raises(ValueError, match="import x as x"):
        TOOL["imported"]("m", text.replace("x as x", "x"))


def _run_far_from_the_sources(code: str, place: Path, *options: str) -> None:
    done = subprocess.run(
        [sys.executable, *options, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        cwd=place.parent,
        env={**os.environ, "PYTHONPATH": str(place), "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr


def _library() -> list[Path]:
    files = [path for path in (ROOT / "mindgap").rglob("*") if path.is_file()]
    skipped = {"__pycache__", "studies", "report", "tasks", "theory"}
    return [path for path in sorted(files) if not skipped & set(path.parts)]


def test_the_library_can_be_imported_from_a_zip(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "library.zip", "w") as archive:
        for path in _library():
            archive.write(path, path.relative_to(ROOT))
    _run_far_from_the_sources(LOAD_ALL, tmp_path / "library.zip")


def test_the_library_works_without_sources_and_docstrings(tmp_path: Path) -> None:
    place = tmp_path / "compiled"
    for path in _library():
        copy = (place / path.relative_to(ROOT)).with_suffix(".pyc")
        copy.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".py":
            py_compile.compile(str(path), str(copy), str(copy), doraise=True, optimize=2)
    _run_far_from_the_sources(LOAD_ALL + STEP_WITHOUT_SOURCES, place, "-OO")
