"""The command as a person meets it: real processes, real files, exit status and one clear error each."""

from __future__ import annotations

import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mindgap.record.schema import SCHEMA, line, to_json, without_timing
from mindgap.record.store import read_run

MINDGAP = [sys.executable, "-m", "mindgap"]
# Enough rows that a kill lands inside a run, few enough that the test stays short.
STUDY = ["run", "e5-cycle", "steps=6000", "--seeds", "2"]
WITHOUT_TORCH = (
    "import sys; sys.argv = ['mindgap', *sys.argv[1:]]; from mindgap.cli.app import app; "
    "app(standalone_mode=False); assert 'torch' not in sys.modules, 'torch was imported'"
)


def mindgap(*words: str, cwd: Path | None = None, code: str = "") -> subprocess.CompletedProcess[str]:
    start = [sys.executable, "-c", code] if code else MINDGAP
    return subprocess.run([*start, *words], capture_output=True, text=True, cwd=cwd, timeout=120, check=False)


def records(folder: Path) -> dict[str, list[object]]:
    """File name -> its lines, without clocks and machines."""
    found: dict[str, list[object]] = {}
    for path in sorted(folder.rglob("*.jsonl")):
        run = read_run(path)
        lines = [vars(run.header), *run.rows, *([vars(run.end)] if run.end else [])]
        found[path.name] = [to_json(without_timing(line)) for line in lines]
    return found


@pytest.mark.parametrize("command", ["list", "theory", "methods", "optimizers"])
def test_tables_start_without_torch(command: str) -> None:
    done = mindgap(command, code=WITHOUT_TORCH)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_report_and_check_start_without_torch(tmp_path: Path) -> None:
    assert mindgap("run", "e8-windows", "--out", str(tmp_path)).returncode == 0
    for words in (["report", str(tmp_path), "-o", str(tmp_path / "page.html")], ["check", str(tmp_path)]):
        done = mindgap(*words, code=WITHOUT_TORCH)
        assert done.returncode == 0, done.stderr
    assert "<html" in (tmp_path / "page.html").read_text()


def test_output_is_one_tab_separated_line_a_study_when_not_on_a_terminal(tmp_path: Path) -> None:
    done = mindgap("run", "e5-cycle", "e8-windows", "--out", str(tmp_path))
    assert [line.split("\t")[:3] for line in done.stdout.splitlines()] == [
        ["E5", "e5-cycle", "holds"],
        ["E8", "e8-windows", "holds"],
    ]
    assert done.stderr == ""


def test_check_exits_with_1_when_a_verdict_fails(tmp_path: Path) -> None:
    assert mindgap("run", "e5-cycle", "lr=0.015", "--out", str(tmp_path)).returncode == 0
    done = mindgap("check", str(tmp_path))
    assert done.returncode == 1
    assert "does not hold" in done.stdout


BAD = [
    (["run", "e5-cicle"], "study must be a study or a claim .*did you mean 'e5-cycle'"),
    (["run", "e5-cycle", "--scale", "huge"], "scale must be one of 'quick', 'cpu', 'gpu', 'paper', got 'huge'"),
    (["run", "e5-cycle", "--seeds", "0"], "seeds must be a whole number of at least 1, got 0"),
    (["run", "e5-cycle", "--jobs", "0"], "jobs must be a whole number of at least 1, got 0"),
    (["run", "e5-cycle", "leer=0.1"], r"setting must be one of .*got 'leer'"),
    (["run", "e5-cycle", "lr=fast"], "lr must be a number, got 'fast'"),
    (["run", "e5-cycle", "lr="], "override must have the form key=value, got 'lr='"),
    (["run", "lr=0.1"], "NAMES must name at least one study"),
    (["check", "nowhere"], "RUNS must be a folder of records, got 'nowhere'"),
    (["report", "nowhere"], "RUNS must be a folder of records, got 'nowhere'"),
]


@pytest.mark.parametrize(("words", "message"), BAD, ids=[" ".join(words) for words, _ in BAD])
def test_bad_input_is_one_line_and_leaves_nothing_behind(words: list[str], message: str, tmp_path: Path) -> None:
    done = mindgap(*words, cwd=tmp_path)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("mindgap: error: ")
    assert re.search(message, line), line
    assert list(tmp_path.iterdir()) == []


def test_a_record_of_another_schema_is_refused_by_name(tmp_path: Path) -> None:
    mindgap("run", "e8-windows", "--out", str(tmp_path))
    path = next(tmp_path.rglob("*.jsonl"))
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([line("header", {**vars(read_run(path).header), "schema": 7}) + "\n", *lines[1:]]))
    done = mindgap("check", str(tmp_path))
    assert done.returncode == 3
    assert f"{path.name}:1: schema must be {SCHEMA}" in done.stdout


def test_a_second_run_does_nothing_again(tmp_path: Path) -> None:
    mindgap("run", "e8-windows", "--out", str(tmp_path))
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.jsonl")}
    mindgap("run", "e8-windows", "--out", str(tmp_path))
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.jsonl")} == before != {}


def test_parallel_and_serial_runs_give_the_same_records(tmp_path: Path) -> None:
    for jobs in ("1", "2"):
        words = ["run", "e5-cycle", "e8-windows", "--jobs", jobs, "--out", str(tmp_path / jobs)]
        assert mindgap(*words).returncode == 0
    assert records(tmp_path / "1") == records(tmp_path / "2") != {}


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[object]]:
    folder = tmp_path_factory.mktemp("whole")
    assert mindgap(*STUDY, "--out", str(folder)).returncode == 0
    return records(folder)


@pytest.mark.parametrize("round_", range(3))
def test_killed_at_a_random_moment_and_run_again_gives_the_same_records(
    round_: int, tmp_path: Path, uninterrupted: dict[str, list[object]]
) -> None:
    rng = random.Random(round_)
    killed = False
    for _ in range(3):
        process = subprocess.Popen([*MINDGAP, *STUDY, "--out", str(tmp_path / "killed")], stdout=subprocess.DEVNULL)
        # Wait until it records, so that the kill lands inside the work and not in the start of Python.
        deadline = time.monotonic() + 30
        while process.poll() is None and time.monotonic() < deadline:
            if list((tmp_path / "killed").rglob("*.jsonl")):
                break
            time.sleep(0.01)
        time.sleep(rng.uniform(0, 0.5))
        process.send_signal(signal.SIGKILL)
        killed = process.wait() == -signal.SIGKILL or killed
    assert killed
    assert mindgap(*STUDY, "--out", str(tmp_path / "killed")).returncode == 0
    assert records(tmp_path / "killed") == uninterrupted
