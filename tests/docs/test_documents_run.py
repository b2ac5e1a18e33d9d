"""Documents run: every python block of the README, the docs and the contribution guide, and
every console line.
"""

from __future__ import annotations

import doctest
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
#: Pages whose own test runs their Python blocks and compares what they print.
TESTED_ELSEWHERE = {"data.md"}
#: A block of text directly after a block of Python is what the Python prints (``...`` stands for
#: anything).
PRINTS = re.compile(r"\s*^```text\n(.*?)^```", re.MULTILINE | re.DOTALL)
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
LINK = re.compile(r"\[[^\]]*\]\((?!https?:|#)([^)#\s]+)")


def blocks(kind: str) -> list[tuple[Path, int, str]]:
    found = []
    for path in DOCUMENTS:
        text = path.read_text()
        matches = [match for match in BLOCK.finditer(text) if match[1] == kind]
        found += [(path, text[: match.start()].count("\n") + 1, match[2]) for match in matches]
    return found


def name(block: tuple[Path, int, str]) -> str:
    return f"{block[0].relative_to(ROOT)}:{block[1]}"


@pytest.mark.parametrize(
    "block", [b for b in blocks("python") if b[0].name not in TESTED_ELSEWHERE], ids=name
)
def test_python_blocks_run(
    block: tuple[Path, int, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path, line, code = block
    text = path.read_text()
    printed = PRINTS.match(text, text.index(code) + len(code) + len("```"))
    monkeypatch.chdir(tmp_path)
    scope: dict[str, object] = {"__name__": "__document__"}
    exec(compile("\n" * line + code, str(path), "exec"), scope)
    assert len(scope) > 1
    if printed:
        got = capsys.readouterr().out
        assert doctest.OutputChecker().check_output(printed[1], got, FLAGS), got


@pytest.mark.parametrize("block", blocks("console"), ids=name)
def test_console_blocks_print_what_they_show(block: tuple[Path, int, str], tmp_path: Path) -> None:
    """Lines after ``$ `` are commands; what follows is their output (``...`` stands for
    anything).
    """
    commands = re.split(r"^\$ ", block[2], flags=re.MULTILINE)[1:]
    assert commands
    search = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": search, "PYTHONPATH": str(ROOT), "COLUMNS": "120"}
    for item in commands:
        command, _, expected = item.partition("\n")
        command = re.sub(r"^mindgap\b", f"{sys.executable} -m mindgap", command)
        done = subprocess.run(
            command,
            shell=True,
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        got = done.stdout + done.stderr
        assert doctest.OutputChecker().check_output(expected, got, FLAGS), (
            f"{command}\nprinted\n{got}"
        )


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_inside_the_project_lead_somewhere(path: Path) -> None:
    prose = BLOCK.sub("", path.read_text())  # code may look like a link
    missing = [target for target in LINK.findall(prose) if not (path.parent / target).exists()]
    assert missing == []
