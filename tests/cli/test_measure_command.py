"""``mindgap measure`` and ``advise`` on the example, as a person runs them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

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
