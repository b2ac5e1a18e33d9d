"""The command as a person meets it: real files, exit status and one clear error each; processes
where they matter.
"""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from cases.report_records import write_study

from mindgap.record.schema import SCHEMA, line, to_json, without_timing
from mindgap.record.store import lock, read_run

Command = Callable[..., subprocess.CompletedProcess[str]]
MINDGAP = [sys.executable, "-m", "mindgap"]
# Enough rows that a kill lands inside a run, few enough that the test stays short.
STUDY = ["run", "e5-cycle", "steps=6000", "--seeds", "2"]
WITHOUT_TORCH = (
    "import sys; sys.argv = ['mindgap', *sys.argv[1:]]; from mindgap.cli.app import app; "
    "app(standalone_mode=False); assert 'torch' not in sys.modules, 'torch was imported'"
)


def mindgap(
    *words: str, cwd: Path | None = None, code: str = ""
) -> subprocess.CompletedProcess[str]:
    start = [sys.executable, "-c", code] if code else MINDGAP
    return subprocess.run(
        [*start, *words], capture_output=True, text=True, cwd=cwd, timeout=120, check=False
    )


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


def test_report_and_check_start_without_torch(tmp_path: Path, command: Command) -> None:
    assert command("run", "e8-windows", "--out", str(tmp_path)).returncode == 0
    for words in (
        ["report", str(tmp_path), "-o", str(tmp_path / "page.html")],
        ["check", str(tmp_path)],
    ):
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


def test_check_exits_with_1_when_a_verdict_fails(tmp_path: Path, command: Command) -> None:
    assert command("run", "e5-cycle", "lr=0.015", "--out", str(tmp_path)).returncode == 0
    done = command("check", str(tmp_path))
    assert done.returncode == 1
    assert "does not hold" in done.stdout


BAD = [
    (["run", "e5-cicle"], "study must be a study or a claim .*did you mean 'e5-cycle'"),
    (
        ["run", "e5-cycle", "--scale", "huge"],
        "scale must be one of 'quick', 'cpu', 'gpu', 'paper', 'trained', got 'huge'",
    ),
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
def test_bad_input_is_one_line_and_leaves_nothing_behind(
    words: list[str], message: str, tmp_path: Path, command: Command
) -> None:
    done = command(*words, cwd=tmp_path)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("mindgap: error: ")
    assert re.search(message, line), line
    assert list(tmp_path.iterdir()) == []


def test_a_record_of_another_schema_is_refused_by_name(tmp_path: Path, command: Command) -> None:
    command("run", "e8-windows", "--out", str(tmp_path))
    path = next(tmp_path.rglob("*.jsonl"))
    lines = path.read_text().splitlines(keepends=True)
    path.write_text(
        "".join([line("header", {**vars(read_run(path).header), "schema": 7}) + "\n", *lines[1:]])
    )
    done = command("check", str(tmp_path))
    assert done.returncode == 3
    assert f"{path.name}:1: schema must be {SCHEMA}" in done.stdout


def test_a_second_run_does_nothing_again(tmp_path: Path, command: Command) -> None:
    command("run", "e8-windows", "--out", str(tmp_path))
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.jsonl")}
    command("run", "e8-windows", "--out", str(tmp_path))
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.jsonl")} == before != {}


def test_parallel_and_serial_runs_give_the_same_records(tmp_path: Path, command: Command) -> None:
    for jobs, run in (("1", command), ("2", mindgap)):
        words = ["run", "e5-cycle", "e8-windows", "--jobs", jobs, "--out", str(tmp_path / jobs)]
        assert run(*words).returncode == 0
    assert records(tmp_path / "1") == records(tmp_path / "2") != {}
    for path in (tmp_path / "2").rglob(
        "*.jsonl"
    ):  # the command that was typed, not that of the worker
        assert read_run(path).header.command == "mindgap run e5-cycle e8-windows --jobs 2 --out 2"


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[object]]:
    folder = tmp_path_factory.mktemp("whole")
    assert mindgap(*STUDY, "--out", str(folder)).returncode == 0
    return records(folder)


@pytest.mark.parametrize("round_", range(2))
def test_killed_at_a_random_moment_and_run_again_gives_the_same_records(
    round_: int, tmp_path: Path, uninterrupted: dict[str, list[object]]
) -> None:
    rng = random.Random(round_)
    killed = False
    for _ in range(3):
        process = subprocess.Popen(
            [*MINDGAP, *STUDY, "--out", str(tmp_path / "killed")], stdout=subprocess.DEVNULL
        )
        # Wait until it records, so that the kill lands inside the work and not in the start of
        # Python.
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


def test_an_error_in_a_pass_rule_is_an_error_and_shown(tmp_path: Path, command: Command) -> None:
    done = command("run", "e5-cycle", "steps=0", "--out", str(tmp_path))
    assert done.returncode == 3
    assert re.search(r"E5\te5-cycle\terror\t.*IndexError: .*\(e5_cycle.py:\d+\)", done.stdout)
    assert command("check", str(tmp_path)).returncode == 3


def test_one_damaged_file_does_not_stop_a_report_or_a_check(
    tmp_path: Path, command: Command
) -> None:
    assert (
        command("run", "e5-cycle", "e8-windows", "--seeds", "1", "--out", str(tmp_path)).returncode
        == 0
    )
    path = next((tmp_path / "e5-cycle").rglob("*.jsonl"))
    path.write_bytes(path.read_bytes().replace(b'"step":3', b'"step":4', 1))
    done = command("check", str(tmp_path))
    assert done.returncode == 3
    assert [line.split("\t")[2] for line in done.stdout.splitlines()] == ["error", "holds"]
    assert f"{path.name}:" in done.stdout
    page = tmp_path / "page.html"
    assert command("report", str(tmp_path), "-o", str(page)).returncode == 0
    assert f"{path.name}:" in page.read_text()
    (tmp_path / "e8-windows" / "quick" / "study.json").write_text("{")
    assert command("report", str(tmp_path), "-o", str(page)).returncode == 0
    assert "study.json cannot be read" in page.read_text()


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
@pytest.mark.parametrize("command", ["list", "methods", "theory", "optimizers"])
def test_a_terminal_without_mathematics_shows_the_tables(command: str, encoding: str) -> None:
    environment = {**os.environ, "PYTHONIOENCODING": encoding, "PYTHONUTF8": "0"}
    done = subprocess.run(
        [*MINDGAP, command], capture_output=True, env=environment, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.decode(encoding).splitlines()) > 5


def test_a_reader_that_goes_away_is_no_error_of_ours() -> None:
    process = subprocess.Popen([*MINDGAP, "list"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    with process.stderr as errors:
        said = errors.read()
    assert (process.wait(60), said) == (141, b"")
    done = subprocess.run(
        ["sh", "-c", f"{sys.executable} -m mindgap list >&-"], capture_output=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run", "e8-windows", "--out", "FILE"], "File exists|Not a directory"),
        (["run", "e8-windows", "--out", "/proc/none"], "/proc/none"),
        (["report", "RUNS", "-o", "/proc/page.html"], "/proc"),
        (["advise", "FILE"], "file cannot be read"),
    ],
)
def test_an_error_of_the_system_is_one_line_with_its_own_status(
    words: list[str], said: str, tmp_path: Path, command: Command
) -> None:
    (tmp_path / "file").write_text("text")
    write_study(tmp_path / "runs", rows=3, seeds=1)
    places = {"FILE": str(tmp_path / "file"), "RUNS": str(tmp_path / "runs")}
    done = command(*(places.get(word, word) for word in words))
    assert done.returncode == 4
    (line,) = done.stderr.splitlines()
    assert re.search(said, line)


def test_names_in_records_do_not_steer_the_terminal(tmp_path: Path, command: Command) -> None:
    for side in ("a", "b"):
        write_study(tmp_path / side, rows=3, seeds=1, methods=("\x1b[31mred",))
    write_study(tmp_path / "a", "z-\x1b[2Jstudy", rows=3, seeds=1)
    done = command("compare", str(tmp_path / "a"), str(tmp_path / "b"))
    assert "only in A\tz-\\x1b[2Jstudy/quick" in done.stdout
    assert "\x1b" not in done.stdout


@pytest.mark.parametrize("package", ["typer"])
def test_without_the_laboratory_the_command_says_what_to_install(package: str) -> None:
    code = (
        f"import sys; sys.modules['{package}'] = None; sys.argv = ['mindgap', 'run', 'e8-windows', "
        "'--jobs', '2']\n"
        "from mindgap.cli import main; main()"
    )
    done = mindgap(code=code)
    assert done.returncode == 2
    assert (
        done.stderr
        == f"mindgap: error: the command needs the package {package}: pip install 'mindgap[lab]'\n"
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_driver_and_its_workers_with_a_truthful_status(
    number: int, tmp_path: Path
) -> None:
    words = [
        "run",
        "e5-cycle",
        "steps=2000000",
        "--seeds",
        "1",
        "--jobs",
        "2",
        "--out",
        str(tmp_path),
    ]
    process = subprocess.Popen([*MINDGAP, *words], stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while (
        sum(p.stat().st_size > 1000 for p in tmp_path.rglob("*.jsonl")) < 2
        and time.monotonic() < deadline
    ):
        time.sleep(0.02)
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert errors.startswith(
        "interrupted: 0 of 2 runs are finished, and every row recorded so far is kept."
    )
    for path in tmp_path.rglob("*.jsonl"):
        os.close(lock(path))  # no worker holds it any more


def test_a_run_that_takes_longer_than_its_limit_fails_and_the_others_go_on(tmp_path: Path) -> None:
    for jobs in ("1", "2"):
        words = [
            "run",
            "e5-cycle",
            "steps=2000000",
            "--seeds",
            "1",
            "--jobs",
            jobs,
            "--limit",
            "2.5",
        ]
        done = mindgap(*words, "--out", str(tmp_path / jobs))
        assert done.returncode == 3
        assert done.stderr.count("it took longer than the limit of 2.5 s; its rows are kept") == 2
        assert all(read_run(p).rows for p in (tmp_path / jobs).rglob("*.jsonl"))
