"""A copy of the tree gets a new optimizer, bilevel method, probe, study and cause by ``mindgap
new``.

Every command must then list and run them, ruff must accept the files, and the contract tests of the
new things must pass without further edits.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from mindgap.base.check import RuleError
from mindgap.cli.new import Kind, new

ROOT = Path(__file__).parents[2]
MADE = {
    Kind.OPTIMIZER: "dummy",
    Kind.METHOD: "dummy-soba",
    Kind.PROBE: "dummy",
    Kind.STUDY: "e5-dummy",
    Kind.CAUSE: "equal_dummy",
}


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    top = tmp_path_factory.mktemp("tree")
    skipped = shutil.ignore_patterns("__pycache__", "pictures", "appendix", "studies.json")
    for name in ("mindgap", "tests", "docs"):
        shutil.copytree(ROOT / name, top / name, ignore=skipped)
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, top)
    for kind, key in MADE.items():
        new(kind, key, top)
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
        (["methods"], "dummy-soba"),
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
        "from mindgap.bilevel import METHODS, DummySoba\n"
        "from mindgap.bilevel import suggest_steps\n"
        "from mindgap.bilevel.data.problem import example_problem\n"
        "settings = suggest_steps(example_problem()).settings('dummy-soba')\n"
        "print(isinstance(METHODS['dummy-soba'](**settings), DummySoba))\n"
        "from mindgap.measure import PROBES\n"
        "print(type(PROBES['dummy'].load()()).__name__)\n"
    )
    assert run(tree, "-c", code).split() == ["True", "True", "DummyProbe"]


CONTRACTS = {
    "optimizer": ["tests/optim/test_optimizer_contract.py", "tests/optim/test_optimizer_own.py"],
    "method": [
        "tests/bilevel/test_bilevel_transcriptions.py",
        "tests/bilevel/test_bilevel_defaults.py",
    ],
    "probe": ["tests/measure/test_dummy.py", "tests/docs/test_measure_guide.py"],
    "study": ["tests/lab/studies/test_e5_dummy.py", "tests/docs/test_claims_page.py"],
    "cause": ["tests/advise/test_equal_dummy.py", "tests/advise/test_doctor.py"],
}


@pytest.mark.parametrize("kind", CONTRACTS)
def test_the_contract_tests_of_a_new_thing_pass(tree: Path, kind: str) -> None:
    words = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    only = ["-k", "dummy or every_method or every_optimizer or table"]
    only = ["-k", "dummy or every_cause"] if kind == "cause" else only
    only = only if kind in ("optimizer", "method", "cause") else []
    said = run(tree, "-m", "pytest", *words, *CONTRACTS[kind], *only)
    assert " passed" in said
    assert " failed" not in said


def test_ruff_accepts_what_was_written(tree: Path) -> None:
    pytest.importorskip("ruff")
    run(tree, "-m", "ruff", "check", "-q", "mindgap", "tests")
    run(tree, "-m", "ruff", "format", "-q", "--check", "mindgap", "tests")


@pytest.mark.parametrize(
    ("kind", "name", "words"),
    [
        (Kind.OPTIMIZER, "adamw", "name must be new"),
        (Kind.OPTIMIZER, "Soft Clip", "name must be small letters"),
        (Kind.STUDY, "my-study", "must begin with its claim"),
        (Kind.STUDY, "e99-study", "must begin with a claim that has its own row"),
        (Kind.CAUSE, "causes", "name must be new"),
    ],
)
def test_a_bad_name_changes_nothing(tree: Path, kind: Kind, name: str, words: str) -> None:
    before = {path: path.read_bytes() for path in tree.rglob("*.py")}
    with pytest.raises(RuleError, match=words):
        new(kind, name, tree)
    assert {path: path.read_bytes() for path in tree.rglob("*.py")} == before


def test_a_folder_that_is_no_checkout_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RuleError, match="root must be a checkout of mindgap"):
        new(Kind.PROBE, "mine", tmp_path)
