"""A copy of the tree gets a new optimizer, bilevel method, probe and study, as CONTRIBUTING.md
says.

In the package that is one file and one row (one file for a study), and for optimizers and methods
the public name; every command must then list and run them.
"""

from __future__ import annotations

import os
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NAMES = runpy.run_path(str(ROOT / "docs" / "tools" / "public_names.py"))


def copy_file(package: Path, source: str, target: str, old: str, new: str) -> None:
    """A new file: an old one under another name, with another class or study in it."""
    text = (package / source).read_text(encoding="utf-8")
    (package / target).write_text(re.sub(rf"\b{old}\b", new, text), encoding="utf-8")


def add_row(path: Path, before: str, row: str) -> None:
    """One row in a table, in front of another."""
    text = path.read_text(encoding="utf-8")
    assert text.count(before) == 1
    path.write_text(text.replace(before, row + before), encoding="utf-8")


def add_name(package: Path, room: str, module: str, name: str) -> None:
    """A public name: one import for type checkers, one row for Python."""
    path = package / room / "__init__.py"
    add_row(path, "else:\n", f"    from mindgap.{room}.{module} import {name} as {name}\n")
    path.write_text(NAMES["written"](f"mindgap.{room}", path.read_text(encoding="utf-8")))


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    top = tmp_path_factory.mktemp("tree")
    package = top / "mindgap"
    shutil.copytree(ROOT / "mindgap", package, ignore=shutil.ignore_patterns("__pycache__"))
    # an optimizer
    copy_file(
        package,
        "optim/optimizers/normalized_sgd.py",
        "optim/optimizers/dummy.py",
        "NormalizedSGD",
        "Dummy",
    )
    add_row(
        package / "optim/table.py",
        '        _entry(\n            "normalized_sgd",',
        '        _entry("dummy", "Dummy", Source("thesis", "nowhere"), "a dummy", "x ← x"),\n',
    )
    add_name(package, "optim", "optimizers.dummy", "Dummy")
    # a bilevel method
    template = str(ROOT / "examples/seventeenth_method.py")
    copy_file(package, template, "bilevel/methods/dummy.py", "PeriodicSOBA", "DummySOBA")
    add_row(
        package / "bilevel/registry.py",
        '    MethodInfo(\n        "adambo",',
        '    MethodInfo("dummy", "Dummy", "Nobody, 2026", "single", _FINITE, "–", SMOOTH, SC2, '
        '"O(1)",\n'
        '               ("lr_x", "lr_y"), "jacobi", "dummy", "DummySOBA"),\n',
    )
    add_name(package, "bilevel", "methods.dummy", "DummySOBA")
    # a probe
    copy_file(
        package, "measure/probes/update.py", "measure/probes/dummy.py", "UpdateProbe", "DummyProbe"
    )
    add_row(
        package / "measure/table.py",
        '    _entry(\n        "sharpness",',
        '    _entry("dummy", "dummy", "DummyProbe", "nowhere", "a dummy", needs="update"),\n',
    )
    # a study
    folder = "lab/studies/catalogue/never_at_rest"
    copy_file(package, f"{folder}/e5_cycle.py", f"{folder}/e5_dummy.py", "e5-cycle", "e5-dummy")
    return top


def run(tree: Path, *words: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    command = [sys.executable, *words]
    done = subprocess.run(
        command, cwd=tree, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["list"], "e5-dummy"),
        (["list", "--long"], "b0-unbounded-smoothness"),
        (["optimizers"], "Dummy"),
        (["methods"], "dummy"),
        (["theory"], "Theorem"),
        (["show", "e5-dummy"], "Loss settles"),
        (["show", "b0-unbounded-smoothness"], "SLIP"),
        (["show", "b3-hyper-cleaning"], "SLIP"),
        (["run", "e5-dummy", "--seeds", "1"], "e5-dummy\tholds"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_every_command_lists_and_runs(tree: Path, words: list[str], shown: str) -> None:
    assert shown in run(tree, "-m", "mindgap", *words)


def test_the_new_things_can_be_used(tree: Path) -> None:
    code = (
        "import torch, mindgap; assert mindgap.__file__.startswith(__import__('os').getcwd())\n"
        "from mindgap.optim import Dummy\n"
        "x = torch.ones(2, requires_grad=True); x.square().sum().backward()\n"
        "optimizer = Dummy([x], lr=0.1); optimizer.step(); print(float(x[0]) < 1)\n"
        "from mindgap.bilevel import METHODS, DummySOBA\n"
        "from mindgap.bilevel import suggest_steps\n"
        "from mindgap.bilevel.data.problem import example_problem\n"
        "settings = suggest_steps(example_problem()).settings('dummy')\n"
        "print(isinstance(METHODS['dummy'](**settings), DummySOBA))\n"
        "from mindgap.measure import PROBES\n"
        "print(type(PROBES['dummy'].load()()).__name__)\n"
    )
    assert run(tree, "-c", code).split() == ["True", "True", "DummyProbe"]
