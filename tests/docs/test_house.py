"""Rooms load lazily, modules never import each other. The import contracts are checked by ``make
lint``.
"""

from __future__ import annotations

import ast
import runpy
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


CYCLES = runpy.run_path(str(ROOT / "docs" / "tools" / "module_cycles.py"))


def test_modules_do_not_import_each_other() -> None:
    assert CYCLES["cycles"](CYCLES["package_imports"]("mindgap")) == []


@pytest.mark.parametrize(
    ("imports", "found"),
    [
        ({"a": ["b"], "b": ["c"], "c": []}, []),
        ({"a": ["b"], "b": ["c"], "c": ["a"], "d": ["a"]}, [["a", "b", "c"]]),
        ({"a": ["a"], "b": ["c"], "c": ["b"]}, [["b", "c"], ["a"]]),
    ],
)
def test_cycles_of_modules_are_found(imports: dict[str, list[str]], found: list[list[str]]) -> None:
    assert CYCLES["cycles"](imports) == found


def test_imports_inside_functions_and_for_types_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    room = tmp_path / "room_of_cycles"
    room.mkdir()
    (room / "__init__.py").touch()
    (room / "a.py").write_text("def f():\n    import room_of_cycles.b\n")
    (room / "b.py").write_text(
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from room_of_cycles.a import f\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    found = CYCLES["cycles"](CYCLES["package_imports"]("room_of_cycles"))
    assert found == [["room_of_cycles.a", "room_of_cycles.b"]]


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


def test_the_lists_of_files_to_open_name_files_that_exist_and_count_them() -> None:
    text = (ROOT / "docs" / "house.md").read_text(encoding="utf-8")
    table = text.partition("<!-- paths -->")[2].partition("<!-- end of paths -->")[0]
    rows = [line.strip("| ").split(" | ") for line in table.strip().splitlines()[2:]]
    paths = runpy.run_path(str(ROOT / "docs" / "tools" / "paths.py"))["PATHS"]
    assert [(row[0], row[1]) for row in rows] == [(p[2], str(p[3])) for p in paths.values()]
    for _, _, number, _, files in rows:
        names = [name.strip("`") for name in files.split(", ")]
        assert int(number) == len(names)
        assert [name for name in names if not (PACKAGE / f"{name}.py").exists()] == []


COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def stored_names(node: ast.AST) -> set[str]:
    """Names that are assigned anywhere below a node."""
    below = (n for n in ast.walk(node) if isinstance(n, ast.Name))
    return {n.id for n in below if isinstance(n.ctx, ast.Store)}


def mistaken_globals(function: ast.AST) -> set[str]:
    """Names that a comprehension of a function reads from outside the function, and that another
    comprehension of it uses as its variable.
    """
    comprehensions = [n for n in ast.walk(function) if isinstance(n, COMPREHENSIONS)]
    variables = {c: stored_names(c) for c in comprehensions}
    everything = [n for n in ast.walk(function) if isinstance(n, (ast.Name, ast.arg, ast.alias))]
    inside = {n for c in comprehensions for n in ast.walk(c) if isinstance(n, ast.Name)}
    own = {n.arg for n in everything if isinstance(n, ast.arg)}
    own |= {(n.asname or n.name) for n in everything if isinstance(n, ast.alias)}
    own |= {
        n.id
        for n in everything
        if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store) and n not in inside
    }
    walrus = {n.target.id for n in ast.walk(function) if isinstance(n, ast.NamedExpr)}
    around: dict[ast.Name, set[str]] = {}
    for c in comprehensions:
        for n in ast.walk(c):
            if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load):
                around.setdefault(n, set()).update(variables[c])
    read = {n.id for n, names in around.items() if n.id not in names}
    return (read & set().union(*variables.values())) - own - walrus if variables else set()


def test_python_3_12_reads_no_name_of_another_comprehension():
    """Python 3.12.0 to 3.12.3 take a module's name for the variable of a comprehension elsewhere in
    the function and raise UnboundLocalError; no other version does.
    """
    wrong = ast.parse(
        "def f(v):\n if v: return [w for row in v for w in row]\n"
        " return [[row(c, i) for i in v] for c in v]"
    )
    assert mistaken_globals(wrong.body[0]) == {"row"}
    found = []
    for path in sorted((ROOT / "mindgap").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef) and (names := mistaken_globals(node)):
                found.append((str(path.relative_to(ROOT)), node.name, sorted(names)))
    assert not found
