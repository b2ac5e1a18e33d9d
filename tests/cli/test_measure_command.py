"""``mindgap measure`` and ``advise`` on the example, as a person runs them."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from mindgap.advise.training import call_factory
from mindgap.base.check import RuleError
from mindgap.cli import _run, _say
from mindgap.record.outcomes import study_folders

Command = Callable[..., subprocess.CompletedProcess[str]]
EXAMPLES = Path(__file__).parents[2] / "examples"


def mindgap(*words: str, folder: Path = EXAMPLES) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mindgap", *words]
    # As the installed script: the working folder is not on the path by itself.
    root = {"PYTHONPATH": str(EXAMPLES.parent), "PYTHONSAFEPATH": "1"}
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        cwd=folder,
        timeout=300,
        check=False,
        env={**os.environ, **root},
    )


@pytest.fixture(scope="module")
def survey(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    page = tmp_path_factory.mktemp("survey") / "survey.html"
    done = mindgap(
        "measure", "measure_digits:problem", "--seconds", "0", "-o", str(page)
    )  # no limit: a busy machine
    assert done.returncode == 0, done.stderr
    return page, done.stdout


def test_the_page_shows_every_figure_and_sentence(survey: tuple[Path, str]) -> None:
    page, printed = survey
    text = page.read_text()
    assert text.count("<svg ") == 5
    assert "<script" not in text
    for picture in re.findall(
        r"<svg .*?</svg>", text, re.DOTALL
    ):  # one picture, one description: no role inside
        assert picture.startswith('<svg role="img" aria-label="')
        assert len(re.findall(r' (?:role|aria-[a-z]+)="', picture)) == 2
    titles = re.findall(r"<h3>(.*?)</h3>", text)
    assert any("sharpness" in title.lower() for title in titles), (
        titles
    )  # a finding, not the name of a quantity
    assert any(title.startswith(("Enough samples for ", "Too few for ")) for title in titles), (
        titles
    )
    assert "inf]" not in re.sub(r"<style>.*?</style>", "", text, flags=re.DOTALL)  # it is written ∞
    for line in printed.splitlines():
        assert line.split("\t")[0] in text
    assert "not measured" not in printed


def test_advice_names_every_assumption_that_was_measured(
    survey: tuple[Path, str], command: Command
) -> None:
    done = command("advise", str(survey[0].with_suffix(".json")))
    assert done.returncode == 0, done.stderr
    assert "finite variance\t" in done.stdout
    assert "stable step\tholds" in done.stdout


def test_measure_takes_what_recommend_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    from mindgap.cli.measure import load_target

    monkeypatch.syspath_prepend(str(EXAMPLES))
    objective, batches, optimizer = load_target("recommend_digits:problem", seed=0)
    assert objective.value(next(iter(batches))).item() > 0
    assert optimizer is None


BAD = [
    (["measure", "measure_digits"], "TARGET must have the form module:function"),
    (["measure", "no_such_module:problem"], "TARGET must name a module that can be imported"),
    (["measure", "measure_digits:load_digits"], "TARGET must return (objective, batches)"),
    (["measure", "measure_digits:nothing"], "TARGET must name a function of measure_digits"),
    (["measure", "measure_digits:problem", "-o", "x.json"], "--out must not end in .json"),
    (["advise", "nowhere.json"], "nowhere.json cannot be read"),
    (["advise", "measure_digits.py"], "measure_digits.py cannot be read"),
]


@pytest.mark.parametrize(("words", "message"), BAD, ids=[" ".join(words) for words, _ in BAD])
def test_bad_input_is_one_line(words: list[str], message: str, command: Command) -> None:
    done = command(*words, cwd=EXAMPLES)
    assert done.returncode == (4 if words[0] == "advise" else 2), done.stderr
    (line,) = done.stderr.splitlines()
    assert message in line


LATE = """
def problem():
    import late_neighbour

    return late_neighbour.problem()
"""

NEIGHBOUR = """
import torch

from mindgap.base.objective import Objective


def problem():
    data = torch.randn(4, 8, 3, generator=torch.Generator().manual_seed(0))
    model = torch.nn.Linear(3, 1)
    return Objective(model, lambda model, batch: model(batch).square().mean()), list(data)
"""


def test_the_working_folder_stays_importable(tmp_path: Path) -> None:
    (tmp_path / "early.py").write_text(LATE)
    (tmp_path / "late_neighbour.py").write_text(NEIGHBOUR)
    done = mindgap("measure", "early:problem", "-o", "out.html", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out.json").exists()


@pytest.mark.parametrize(
    "text", ["import nothing_at_all", "def problem():\n    raise AttributeError('my own fault')"]
)
def test_an_error_in_the_users_code_shows_the_users_traceback(
    tmp_path: Path, text: str, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken.py").write_text(text)
    monkeypatch.delitem(sys.modules, "broken", raising=False)
    done = command("measure", "broken:problem", cwd=tmp_path)
    assert done.returncode not in (0, 2)
    assert "Traceback" in done.stderr
    assert 'broken.py", line' in done.stderr


def test_recommend_answers_with_a_sentence_code_and_a_page(tmp_path):
    (tmp_path / "mine.py").write_text(
        "import torch\n"
        "def problem(seed):\n"
        "    loss = lambda m, b: (m(b) - b.sum(1, keepdim=True)).square().mean()\n"
        "    return (torch.nn.Linear(3, 1), loss), list(torch.randn(40, 8, 3))\n"
    )
    command = [
        sys.executable,
        "-m",
        "mindgap",
        "recommend",
        "mine:problem",
        "--minutes",
        "5",
        "--steps",
        "96",
    ]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "optimizer = " in done.stdout
    assert "<svg" in (tmp_path / "recommendation.html").read_text()
    assert sorted(p.name for p in tmp_path.glob("recommendation*")) == [
        "recommendation.html",
        "recommendation.json",
    ]


@pytest.mark.parametrize(
    ("target", "status", "words"),
    [
        ("unusual_problems:needs", 2, "problem must be a function of nothing, or of a seed"),
        ("unusual_problems:leaves", 3, "your code called sys.exit(7)"),
        ("unusual_leaves:problem", 3, "your code called sys.exit('no')"),
        ("./unusual_problems.py:needs", 2, "such as unusual_problems:needs"),
        ("unusual_problems.py:needs", 2, "such as unusual_problems:needs"),
    ],
)
def test_a_target_of_an_unusual_kind_gets_one_line(
    target: str,
    status: int,
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "unusual_problems.py").write_text(
        "import sys\ndef needs(x, y): ...\ndef leaves(): sys.exit(7)\n"
    )
    (tmp_path / "unusual_leaves.py").write_text("import sys\nsys.exit('no')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "argv", ["mindgap", "measure", target, "--seconds", "1"])
    assert _run() == status
    error = capsys.readouterr().err
    assert words in error
    assert error.startswith("mindgap: error: ")
    assert error.count("\n") == 1


def test_the_seed_goes_to_the_parameter_of_that_name_and_is_checked() -> None:
    assert call_factory(lambda width=3, seed=0: (width, seed), 5) == (3, 5)
    with pytest.raises(RuleError, match="seed must be a whole number"):
        call_factory(lambda seed: seed, 10**25)


def test_the_survey_is_printed_also_where_its_page_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "small_problem.py").write_text(
        "import torch\n"
        "def problem():\n"
        "    model = torch.nn.Linear(1, 1)\n"
        "    return (model, lambda m, b: m(b).square().mean()), [torch.ones(2, 1)] * 4\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    words = ["mindgap", "measure", "small_problem:problem", "-o", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", words)
    assert _run() == 4
    printed = capsys.readouterr()
    assert "sharpness\t" in printed.out
    assert "Is a directory" in printed.err


def test_an_error_on_a_terminal_ends_its_lines_between_words(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    assert _say("word " * 40, 2) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3
    assert max(map(len, lines)) <= 80


def test_ctrl_c_gives_the_cursor_back_that_a_bar_has_hidden(tmp_path: Path) -> None:
    reader, terminal = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "mindgap", "watch", str(tmp_path / "runs"), "--every", "0.1"],
        stdout=subprocess.DEVNULL,
        stderr=terminal,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(EXAMPLES.parent)},
    )
    os.close(terminal)
    time.sleep(3)
    process.send_signal(2)
    assert process.wait(timeout=20) == 130
    assert b"\x1b[?25h\r\nstopped watching" in os.read(reader, 10_000)
    os.close(reader)


def test_a_folder_that_cannot_be_read_is_not_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    locked = tmp_path / "e5-cycle" / "quick"
    locked.mkdir(parents=True)

    def refuse(path: Path) -> None:  # root may read whatever its rights say
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("mindgap.record.outcomes.os.scandir", refuse)
    with pytest.raises(PermissionError, match="quick"):
        list(study_folders(tmp_path))
