"""What a person reads on a terminal of 80 × 24: answers first, one line per study, what to type
next.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from cases.report_records import write_study

from mindgap.cli.app import GUIDE, app
from mindgap.cli.live import Watcher
from mindgap.cli.studies import DEMO, complete_scale, print_next_steps, print_verdicts
from mindgap.lab.studies.catalogue import catalogue, find
from mindgap.lab.studies.run import judge_and_write, plan
from mindgap.record.schema import End, Verdict
from mindgap.record.store import VERDICT_FILE, RunWriter


@pytest.fixture
def at_80(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[[Callable[[], object]], list[str]]:
    """What an action prints on a terminal of 80 columns."""

    def lines(action: Callable[[], object]) -> list[str]:
        with monkeypatch.context() as patch:
            patch.setenv("COLUMNS", "80")
            patch.setenv("TERM", "dumb")
            for stream in ("stdout", "stderr"):
                patch.setattr(f"sys.{stream}.isatty", lambda: True)
            action()
        return lines_of(capsys)

    return lines


def lines_of(capsys: pytest.CaptureFixture[str]) -> list[str]:
    out, err = capsys.readouterr()
    return (out + err).splitlines()


def test_the_bare_command_is_a_guide_with_the_engineers_commands_first(
    capsys: pytest.CaptureFixture[str],
) -> None:
    from mindgap.bilevel.registry import METHODS
    from mindgap.optim.table import OPTIMIZERS

    app([], standalone_mode=False)
    lines = lines_of(capsys)
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80
    named = [line.split()[1] for line in lines if line.startswith("  mindgap ")]
    assert named[:4] == ["examine", "recommend", "measure", "advise"]
    known = [c.name or c.callback.__name__ for c in app.registered_commands]
    known += [group.name for group in app.registered_groups]
    assert set(named) <= set(known)
    assert known[:4] == named[:4]
    assert f"{len(METHODS)} methods" in GUIDE
    assert {8: "eight"}[len(OPTIMIZERS)] + " optimizers" in GUIDE


Screen = Callable[[Callable[[], object]], list[str]]


def test_the_demo_ends_in_one_screen(at_80: Screen) -> None:
    long = "the evidence fills a paragraph. " * 20
    verdicts = [(find(name).claim, name, Verdict("inconclusive", long)) for name in DEMO]
    found = "the learning rate is too large for this curvature, and the noise is heavy-tailed. " * 3

    def end() -> None:
        print("178 runs planned, 0 recorded already")
        print_verdicts(verdicts)
        print_next_steps(found, Path("demo/index.html"), Path("demo/survey.html"))

    lines = at_80(end)
    assert len(lines) <= 24
    text = "\n".join(lines)
    assert "10 verdicts: 10 undecided" in text
    assert "demo/index.html" in text
    assert "mindgap examine my_training:problem" in lines[-1] + lines[-2]


def test_a_verdict_is_one_line_and_its_evidence_comes_on_request(at_80: Screen) -> None:
    verdicts = [(s.claim, s.name, Verdict("holds", "why " * 80)) for s in catalogue().values()]
    lines = at_80(lambda: print_verdicts(verdicts))
    assert len(lines) == len(verdicts) + 3
    assert len(set(lines)) == len(lines), "no two titles are cut until they are equal"
    assert "…" not in "".join(lines)
    assert "why why" in "\n".join(at_80(lambda: print_verdicts(verdicts[:1], verbose=True)))
    error = [("E5", "e5-cycle", Verdict("error", "the pass rule raised ValueError"))]
    assert "the pass rule raised ValueError" in "\n".join(at_80(lambda: print_verdicts(error)))


def test_check_has_one_line_per_study_and_counts_like_every_page(
    at_80: Screen, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged = {"quick": "does not hold", "cpu": "holds"}
    for scale in judged:
        write_study(tmp_path / scale, "e5-cycle", rows=3, seeds=1)
        (tmp_path / "runs" / "e5-cycle").mkdir(parents=True, exist_ok=True)
        (tmp_path / scale / "e5-cycle" / "quick").rename(tmp_path / "runs" / "e5-cycle" / scale)
    monkeypatch.setattr(
        "mindgap.lab.studies.run.judge_folder",
        lambda folder: ("E5", "e5-cycle", Verdict(judged[folder.name], "measured")),
    )
    lines = at_80(lambda: app(["check", str(tmp_path / "runs")], standalone_mode=False))
    assert [line.split()[0] for line in lines if "e5-cycle" in line] == ["holds"]


def test_naming_one_study_imports_its_module_alone() -> None:
    program = (
        "import sys; from mindgap.cli.studies import matching_names;"
        "assert matching_names('e5-cycle') == ['e5-cycle'] and matching_names('H10');"
        "print(sum(m.startswith('mindgap.lab.studies.catalogue.') and m.count('.') == 5"
        " for m in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert int(done.stdout) <= 4, done.stderr


def test_a_second_run_judges_once_and_simulates_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mindgap.lab.studies.run import run_all

    item = plan(find("e8-windows"), "quick")
    (first,) = run_all([item], tmp_path)
    judged: list[str] = []
    whole = type(item.study).verdict
    monkeypatch.setattr(
        type(item.study), "verdict", lambda s, r: judged.append(s.name) or whole(s, r)
    )
    monkeypatch.setattr("mindgap.lab.studies.run.null_rates", lambda *a: pytest.fail("again"))
    (second,) = run_all([item], tmp_path)
    assert judged == ["e8-windows"]
    assert second == first
    (item.folder(tmp_path) / VERDICT_FILE).write_text("{}")  # damaged: judged and written anew
    monkeypatch.setattr("mindgap.lab.studies.run.null_rates", lambda *a: {})
    assert judge_and_write(item, tmp_path).verdict == first.verdict


def test_a_run_that_ends_before_the_first_look_is_not_shown_as_running(tmp_path: Path) -> None:
    item = plan(find("e8-windows"), "quick")
    watcher = Watcher([item], tmp_path)
    with RunWriter(item.folder(tmp_path), item.headers[0]) as writer:
        writer.row({"step": 0})
        writer.end(End("done"))
    watcher.look()
    bar, *running = watcher.lines()
    assert running == []
    assert f"1 of {len(item.headers)}" in bar


def test_the_time_left_is_that_of_the_shipped_times_and_does_not_jump(tmp_path: Path) -> None:
    from mindgap.lab.studies.catalogue import reference_times

    items = [plan(find(name), "quick") for name in ("e5-cycle", "b3-mnist-levels")]
    watcher = Watcher(items, tmp_path)
    watcher.look()
    total = reference_times()["e5-cycle"] + reference_times()["b3-mnist-levels"]
    at_first = watcher.seconds_left(watcher._started)
    assert at_first == pytest.approx(total + 8.0)
    # All runs of the short study end at once: the long one still has its own time.
    for header in items[0].headers:
        with RunWriter(items[0].folder(tmp_path), header) as writer:
            writer.row({"step": 0})
            writer.end(End("done"))
    watcher.look()
    left = watcher.seconds_left(watcher._started + 9.0)
    assert left is not None
    assert 0.3 * reference_times()["b3-mnist-levels"] < left < total + 8.0


def test_scales_are_completed() -> None:
    assert complete_scale("") == ["quick", "cpu", "gpu", "paper", "trained"]
    assert complete_scale("g") == ["gpu"]


INTERRUPTED = """
import os, signal, sys, threading, time
from pathlib import Path
sys.argv = ["mindgap", "recommend", "mine:problem", "-o", "page.html"]
import mindgap.advise.recommendation as module
Path("mine.py").write_text("def problem(seed): pass")

def race(*a, folder, **k):
    folder.mkdir()
    (folder / "1.piece").write_text("")
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(20)

module.recommend = race
from mindgap.cli import main
main()
"""


def test_an_interrupted_race_says_what_is_kept_and_how_to_go_on(tmp_path: Path) -> None:
    begun = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 130
    assert "1 finished piece is kept in page.race" in done.stderr
    assert "To go on: mindgap recommend mine:problem -o page.html" in done.stderr
    assert begun > 0
