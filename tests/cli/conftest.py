"""The command inside the process of the tests."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from mindgap.cli import _run


@pytest.fixture
def command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., CompletedProcess[str]]:
    """Runs the command where a process of its own is not what the test is about: it starts in no time."""

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
