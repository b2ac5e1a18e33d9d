"""Commands of the laboratory: show, run, watch, and what an interruption leaves."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from cases.report_records import write_study

from mindgap.base.check import RuleError
from mindgap.lab.studies.catalogue import find
from mindgap.lab.studies.run import judge_folder
from mindgap.record.store import read_run

MINDGAP = [sys.executable, "-m", "mindgap"]


def mindgap(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*MINDGAP, *words], capture_output=True, text=True, timeout=120, check=False
    )


def test_show_prints_what_a_study_is_and_what_it_has_cost(tmp_path: Path, command) -> None:
    assert command("run", "e8-windows", "--out", str(tmp_path)).returncode == 0
    done = command("show", "e8-windows", "--runs", str(tmp_path))
    assert done.returncode == 0, done.stderr
    lines = dict(line.split("\t", 1) for line in done.stdout.splitlines())
    assert "Lemma 6.4.2" in lines["source"]
    assert lines["pass rule"].startswith("The iterates have period n+1")
    assert re.fullmatch(
        r"periods=20, window=0\tabout \d+ s with --jobs 1 for 2 runs \(2 methods, 1 seeds\)",
        lines["quick"],
    )
    assert lines["cpu"] == "periods=1000, window=0\tunknown for 2 runs (2 methods, 1 seeds)"
    assert re.fullmatch(r"n=20\t\d+ s \(quick, median of 1\)", lines["n = 20"])


def test_some_methods_alone_run_and_are_not_judged(capsys, tmp_path: Path) -> None:
    from mindgap.cli.studies import run

    study = find("s4-clipping-beats-fixed-steps")
    one, *others = study.seeds("quick")
    run([study.name], seeds=1, out=tmp_path, method=[one])
    assert f"not judged without {', '.join(others)}" in " ".join(capsys.readouterr().out.split())
    (folder,) = tmp_path.glob("*/quick")
    assert {read_run(path).header.method for path in folder.glob("*.jsonl")} == {one}
    assert judge_folder(folder)[2].measured == f"not judged without {', '.join(others)}"
    with pytest.raises(RuleError, match=f"method of {study.name} must be one of"):
        study.only("quick", ["no such method"])


def test_force_says_what_it_overwrites_and_compare_finds_no_difference(
    tmp_path: Path, command
) -> None:
    words = ["run", "e8-windows", "--out", str(tmp_path / "a")]
    assert command(*words).returncode == 0
    again = command(*words, "--force")
    assert again.returncode == 0
    assert again.stderr.count("overwriting ") == 2
    assert command("run", "e8-windows", "--out", str(tmp_path / "b")).returncode == 0
    same = command("compare", str(tmp_path / "a"), str(tmp_path / "b"))
    assert (same.returncode, same.stdout) == (0, "e8-windows\tquick\tholds\tholds\tsame\n")


def test_watch_draws_the_page_and_leaves_one_that_does_not_reload(tmp_path: Path) -> None:
    write_study(tmp_path / "runs", rows=3)
    page = tmp_path / "page.html"
    process = subprocess.Popen(
        [*MINDGAP, "watch", str(tmp_path / "runs"), "-o", str(page), "--every", "0.2"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    with process.stdout as told:
        assert told.readline().endswith(f"{page}: 8 files\n")
        assert 'http-equiv="refresh"' in page.read_text()
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
    assert 'http-equiv="refresh"' not in page.read_text()


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_interrupted_by_ctrl_c_it_keeps_rows_and_says_how_to_go_on(
    tmp_path: Path, jobs: str
) -> None:
    words = [
        "run",
        "e5-cycle",
        "steps=2000000",
        "--seeds",
        "1",
        "--jobs",
        jobs,
        "--out",
        str(tmp_path),
    ]
    process = subprocess.Popen(
        [*MINDGAP, *words], stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    end = time.monotonic() + 60
    while (
        not any(p.stat().st_size > 5000 for p in tmp_path.rglob("*.jsonl"))
        and time.monotonic() < end
    ):
        time.sleep(0.05)
    before = {p: len(read_run(p).rows) for p in tmp_path.rglob("*.jsonl")}
    os.killpg(process.pid, signal.SIGINT)  # a terminal sends it to every process of the group
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "0 of 2 runs are finished, and every row recorded so far is kept" in errors
    assert f"To go on: mindgap {' '.join(words)}" in errors
    # With two workers one record may hold its header only when the other has rows.
    assert sum(before.values()) > 0
    for path, rows in before.items():
        assert len(read_run(path).rows) >= rows


def processes_of(mark: str) -> list[str]:
    """The processes that were started with this text in their environment."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if mark.encode() in (entry / "environ").read_bytes():
                found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode())
    return found


def test_workers_whose_driver_was_killed_end_by_themselves_and_the_next_run_goes_on(
    tmp_path: Path,
) -> None:
    words = [
        "run",
        "e5-cycle",
        "steps=15000",
        "--seeds",
        "1",
        "--jobs",
        "2",
        "--out",
        str(tmp_path),
    ]
    environment = {**os.environ, "MINDGAP_TEST": str(tmp_path)}
    process = subprocess.Popen([*MINDGAP, *words], stderr=subprocess.DEVNULL, env=environment)
    end = time.monotonic() + 60
    while (
        sum(p.stat().st_size > 1000 for p in tmp_path.rglob("*.jsonl")) < 2
        and time.monotonic() < end
    ):
        time.sleep(0.02)
    process.kill()
    process.wait()
    before = {p: len(read_run(p).rows) for p in tmp_path.rglob("*.jsonl")}
    assert len(before) == 2
    done = mindgap(*words)
    assert (done.returncode, done.stderr) == (0, "")
    assert {len(read_run(p).rows) for p in before} == {15_000}
    assert processes_of(str(tmp_path)) == []


def test_workers_end_when_their_driver_is_killed_while_they_start(tmp_path: Path) -> None:
    code = (
        "from mindgap.lab.studies.processes import in_processes; import time; from functools "
        "import partial\n"
    )
    code += "list(in_processes([partial(time.sleep, 60)] * 2, 2))"
    environment = {**os.environ, "MINDGAP_TEST": str(tmp_path)}
    process = subprocess.Popen([sys.executable, "-c", code], env=environment)
    end = time.monotonic() + 60
    while len(processes_of(str(tmp_path))) < 3 and time.monotonic() < end:
        time.sleep(0.005)
    process.kill()
    process.wait()
    while processes_of(str(tmp_path)) and time.monotonic() < end:
        time.sleep(0.05)
    assert time.monotonic() < end


def test_ctrl_c_ends_the_program_even_deep_inside_a_long_call() -> None:
    """One call of C that lasts minutes: Python itself could act on the signal only after it."""
    code = (
        "import hashlib\n"
        "from mindgap.cli.interrupt import end_on_signals, last_words\n"
        "end_on_signals()\n"
        "with last_words(lambda: 'last words'):\n"
        "    print('begun', flush=True)\n"
        "    hashlib.pbkdf2_hmac('sha256', b'a', b'b', 2_000_000_000)\n"
        "    print('came to its end', flush=True)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    process.send_signal(signal.SIGINT)
    out, errors = process.communicate(timeout=60)
    assert (process.returncode, out, errors) == (130, "", "last words\n")
