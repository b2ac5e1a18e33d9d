"""Shared by all tests: ``tests/`` on the path, slow tests marked, one thread (or
OMP_NUM_THREADS), fresh seeds.
"""

from __future__ import annotations

import gc
import os
import random
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

sys.path.insert(0, str(Path(__file__).parent))

#: For type checkers only; see ``users_types.py``.
collect_ignore = ["cases/users_program.py"]

# A shell that starts the tests in the background has them ignore Ctrl-C, and every process they
# start inherits that; the tests of Ctrl-C need it as a person at a terminal has it.
signal.signal(signal.SIGINT, signal.default_int_handler)


#: Tests that take seconds, one ``file::function`` per line; ``make test-fast`` leaves them out.
SLOW = frozenset(Path(__file__).with_name("slow.txt").read_text(encoding="utf-8").split())


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the slow tests."""
    for item in items:
        if item.nodeid.partition("[")[0] in SLOW:
            item.add_marker(pytest.mark.slow)


def pytest_collection_finish() -> None:
    """Leave what the collection loaded out of every later garbage collection: the libraries
    bring a million objects.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _fresh_seeds() -> None:
    """Every test starts from the same random state, whatever ran before it."""
    random.seed(0)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(0)
    if "torch" in sys.modules:
        torch = sys.modules["torch"]
        # Without a GPU torch.manual_seed writes down who called it, for the day one is found: 1 ms
        # per test.
        (torch.manual_seed if torch.cuda.is_available() else torch.default_generator.manual_seed)(0)
        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))


@pytest.fixture
def command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., CompletedProcess[str]]:
    """Runs the command in this process, where a process of its own is not what a test is about:
    it starts at once.
    """
    from mindgap.cli import _run

    def call(*words: str, cwd: Path | None = None) -> CompletedProcess[str]:
        capsys.readouterr()
        with monkeypatch.context() as patch:
            patch.setattr(sys, "argv", ["mindgap", *words])
            patch.setattr(sys, "path", [*sys.path])  # `measure` adds the working folder
            if cwd is not None:
                patch.chdir(cwd)
            status = _run()
        out, errors = capsys.readouterr()
        return CompletedProcess(words, status, out, errors)

    return call
