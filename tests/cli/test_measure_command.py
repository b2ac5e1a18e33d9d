"""``mindgap measure`` and ``advise`` on the example, as a person runs them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def mindgap(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mindgap", *words]
    return subprocess.run(command, capture_output=True, text=True, cwd=EXAMPLES, timeout=300, check=False)


@pytest.fixture(scope="module")
def survey(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    page = tmp_path_factory.mktemp("survey") / "survey.html"
    done = mindgap("measure", "measure_digits:problem", "-o", str(page))
    assert done.returncode == 0, done.stderr
    return page, done.stdout


def test_the_page_shows_every_figure_and_sentence(survey: tuple[Path, str]) -> None:
    page, printed = survey
    text = page.read_text()
    assert text.count("<svg ") == 5
    assert "<script" not in text
    for line in printed.splitlines():
        assert line.split("\t")[0] in text
    assert "not measured" not in printed


def test_advice_names_every_assumption_that_was_measured(survey: tuple[Path, str]) -> None:
    done = mindgap("advise", str(survey[0].with_suffix(".json")))
    assert done.returncode == 0, done.stderr
    assert "finite variance\t" in done.stdout
    assert "stable step\tholds" in done.stdout


BAD = [
    (["measure", "measure_digits"], "TARGET must have the form module:function"),
    (["measure", "no_such_module:problem"], "TARGET must name a function that can be imported"),
    (["measure", "measure_digits:load_digits"], "TARGET must return (objective, batches)"),
    (["advise", "nowhere.json"], "nowhere.json cannot be read"),
    (["advise", "measure_digits.py"], "measure_digits.py cannot be read"),
]


@pytest.mark.parametrize(("words", "message"), BAD, ids=[" ".join(words) for words, _ in BAD])
def test_bad_input_is_one_line(words: list[str], message: str) -> None:
    done = mindgap(*words)
    assert done.returncode == (4 if words[0] == "advise" else 2), done.stderr
    (line,) = done.stderr.splitlines()
    assert message in line
