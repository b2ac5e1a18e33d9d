"""Bad command lines, generated: every parameter of every command gets bad values; no traceback,
a truthful status.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from bad_values import TimeIsUp, time_limit
from cases.report_records import write_study

from mindgap.cli import _run
from mindgap.cli.status import STATUS

NUMBERS = ["nan", "-1", "inf", "abc", "", "1e999", "1.5.2", "10000000000000000000000000000000"]
PATHS = ["FILE", "FILE/below", "nowhere", "", "BINARY", "/proc/none", "a\nb"]
TEXTS = [
    "",
    "no-such",
    "*",
    "../..",
    "é≤",
    "a" * 5000,
    "=",
    "=1",
    "lr=",
    "lr=nan",
    "steps=-1",
    "steps=1e9x",
]

#: command, words that work, parameter -> bad values
COMMANDS: list[tuple[list[str], dict[str, list[str]]]] = [
    (
        ["run", "NAME", "e8-windows"],
        {
            "NAME": TEXTS,
            "--scale": TEXTS[:5],
            "--seeds": ["0", *NUMBERS],
            "--jobs": ["0", *NUMBERS[:6]],
            "--backend": TEXTS[:3],
            "--address": ["tcp://127.0.0.1:1"],
            "--checkpoint": NUMBERS,
            "--limit": NUMBERS,
            "--out": PATHS,
            "--tensorboard": ["FILE", "FILE/below", "/proc/none"],
        },
    ),
    (["demo"], {"--jobs": ["0", *NUMBERS[:6]], "--out": ["FILE", "FILE/below", "/proc/none"]}),
    (["show", "NAME"], {"NAME": TEXTS, "--runs": ["FILE", "nowhere", "BROKEN"]}),
    (
        ["tune", "NAME"],
        {
            "NAME": TEXTS,
            "--trials": NUMBERS,
            "--seeds": NUMBERS,
            "--jobs": NUMBERS,
            "--scale": TEXTS[:3],
        },
    ),
    (
        ["report", "NAME"],
        {
            "NAME": PATHS,
            "-o": ["FILE/below", "FOLDER", "/proc/none"],
            "--png": ["FILE", "FILE/below"],
        },
    ),
    (
        ["watch", "NAME", "--rounds", "1"],
        {"NAME": PATHS, "--every": NUMBERS, "-o": ["FILE/below", "FOLDER"]},
    ),
    (["compare", "NAME", "RUNS"], {"NAME": PATHS, "--level": NUMBERS}),
    (["check", "NAME"], {"NAME": [*PATHS, "BROKEN"]}),
    (
        ["measure", "NAME"],
        {
            "NAME": [*TEXTS, ":", "a:", ":b", "os:getcwd", "json:no", "os:abort_not", "1:2"],
            "-o": ["FILE/below", "FOLDER"],
            "--limit": NUMBERS,
            "--seed": NUMBERS,
        },
    ),
    (["advise", "NAME"], {"NAME": [*PATHS, "FOLDER", "JSON"]}),
    *(([name], {"NAME": ["x"]}) for name in ("list", "optimizers", "methods", "theory")),
    ([], {"NAME": TEXTS, "--nonsense": ["1"]}),
]

LINES = [
    (words, name, value)
    for words, parameters in COMMANDS
    for name, values in parameters.items()
    for value in values
]


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What the capital words of a command line stand for."""
    folder = tmp_path_factory.mktemp("places")
    (folder / "file.txt").write_text("text\n")
    (folder / "binary").write_bytes(bytes(range(256)))
    (folder / "a.json").write_text('{"a": [1]}')
    (folder / "folder").mkdir()
    write_study(folder / "runs", rows=3, seeds=1)
    broken = write_study(folder / "broken", rows=3, seeds=1)
    (broken / "study.json").write_text("{")
    names = {
        "FILE": "file.txt",
        "BINARY": "binary",
        "FOLDER": "folder",
        "RUNS": "runs",
        "BROKEN": "broken",
    }
    names["JSON"] = "a.json"
    return {word: str(folder / name) for word, name in names.items()}


@pytest.mark.parametrize(
    ("words", "name", "value"), LINES, ids=[f"{w[:1]}{n}={v[:20]!r}" for w, n, v in LINES]
)
def test_no_traceback_and_a_known_status(
    words: list[str],
    name: str,
    value: str,
    places: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for word, place in places.items():
        value = value.replace(word, place)
    good = {
        "run": "e8-windows",
        "show": "e5-cycle",
        "tune": "no-such-study",
        "measure": "os:getcwd",
    }
    stand_in = value if name == "NAME" else good.get(words[0] if words else "", places["RUNS"])
    line = [stand_in if word == "NAME" else places.get(word, word) for word in words]
    line += (
        [] if name == "NAME" and "NAME" in words else [name, value] if name != "NAME" else [value]
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["mindgap", *line])
    with time_limit(60, TimeIsUp()):
        status = _run()
    said = capsys.readouterr().err
    assert status in STATUS and status != 5, said  # noqa: PT018
    assert "Traceback" not in said
    assert status in (0, 1) or "mindgap: error: " in said or "failed: " in said or status == 3
