"""Type-check ``tests/cases/users_program.py`` as a user does, with mypy --strict and pyright,
against an installed mindgap.

``tests/clean_install.py`` calls it with the environment that holds the wheel. By hand:

    python tests/users_types.py PYTHON [CACHE_FOLDER]

where PYTHON is the interpreter of an environment with mindgap.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

PROGRAM = Path(__file__).parent / "cases" / "users_program.py"
#: What one looks for on a line: errors, and types shown.
Messages = Mapping[int, list[str]]


def judge(text: str, errors: Messages, revealed: Messages) -> list[str]:
    """What a type checker did not do as the marks of the program say; empty if all is well.

    Args:
        text: the program.
        errors: line (from 1) -> messages of errors there.
        revealed: line -> types that ``reveal_type`` showed there.
    """
    problems = []
    for number, line in enumerate(text.splitlines(), 1):
        _, rejected, words = line.partition("  # rejected: ")
        found = " ".join(errors.get(number, []))
        if rejected and words.strip('"') not in found:
            problems.append(
                f"line {number} must be rejected for {words}, got: {found or 'nothing'}"
            )
        if not rejected and found:
            problems.append(f"line {number} must be accepted, got: {found}")
        _, shown, kind = line.partition("  # revealed: ")
        types = " ".join(revealed.get(number, []))
        if shown and not re.search(rf"\b{kind}\b", types):
            problems.append(f"line {number} must reveal {kind}, got: {types or 'nothing'}")
    return problems


def by_mypy(python: str, cache: Path) -> list[str]:
    """What mypy --strict gets wrong; the mypy of this environment reads the packages of
    ``python``.
    """
    words = ["--strict", "--no-error-summary", "--hide-error-context", "--no-color-output"]
    places = ["--python-executable", python, "--cache-dir", str(cache), "--config-file", ""]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *words, *places, str(PROGRAM)],
        capture_output=True,
        text=True,
        check=False,
        cwd=PROGRAM.parent,
    )
    if done.returncode > 1 or done.stderr:
        return [f"mypy failed: {done.stdout}{done.stderr}"]
    errors: dict[int, list[str]] = {}
    revealed: dict[int, list[str]] = {}
    others = []
    for line in done.stdout.splitlines():
        match = re.match(rf"{PROGRAM.name}:(\d+): (error|note): (.*)", line)
        if match is None:
            others.append(f"elsewhere: {line}")
        elif match[3].startswith("Revealed type is "):
            revealed.setdefault(int(match[1]), []).append(match[3][len("Revealed type is ") :])
        elif match[2] == "error":
            errors.setdefault(int(match[1]), []).append(match[3])
    return others + judge(PROGRAM.read_text(encoding="utf-8"), errors, revealed)


def pyright() -> str | None:
    """The program pyright, or basedpyright, which brings its own; None where there is neither."""
    beside = Path(sys.executable).parent
    for name in ("basedpyright", "pyright"):
        found = shutil.which(name, path=f"{beside}{os.pathsep}{os.environ.get('PATH', '')}")
        if found:
            return found
    return None


def by_pyright(program: str, python: str) -> list[str]:
    """What pyright in its standard mode gets wrong."""
    settings = {"include": [str(PROGRAM)], "typeCheckingMode": "standard"}
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "pyrightconfig.json").write_text(json.dumps(settings), encoding="utf-8")
        words = ["--pythonpath", python, "--outputjson", "--project", folder]
        done = subprocess.run([program, *words], capture_output=True, text=True, check=False)
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        return [f"pyright failed: {done.stdout}{done.stderr}"]
    errors: dict[int, list[str]] = {}
    revealed: dict[int, list[str]] = {}
    for item in answer["generalDiagnostics"]:
        line = item["range"]["start"]["line"] + 1
        if item["severity"] == "error":
            errors.setdefault(line, []).append(item["message"])
        elif item["severity"] == "information":
            revealed.setdefault(line, []).append(item["message"])
    return judge(PROGRAM.read_text(encoding="utf-8"), errors, revealed)


def main() -> int:
    python = sys.argv[1]
    cache = Path(sys.argv[2] if len(sys.argv) > 2 else ".mypy_cache")
    problems = [f"mypy: {line}" for line in by_mypy(python, cache)]
    program = pyright()
    if program is None:
        print("pyright is not installed: the user's program was checked by mypy alone")
    else:
        problems += [f"pyright: {line}" for line in by_pyright(program, python)]
    print("\n".join(problems) or f"types of {PROGRAM.name}: as marked")
    return 1 if problems else 0


if __name__ == "__main__":
    raise SystemExit(main())
