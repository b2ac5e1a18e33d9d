"""Disturb sweeps at random moments, then run again and compare with an undisturbed sweep.

    python benchmarks/faults.py [--rounds 100] [--seed 0]
        [--kinds SIGINT,SIGTERM,SIGHUP,SIGKILL,worker,disk,writers,bytes]

A signal goes to the driver of a sweep with two workers, at a moment drawn evenly from the whole
sweep, from the first line of the command on: while packages are imported, while the workers start,
while they record. After each round: the driver ended within 10 s with the status of the signal (or
0, if it was done before) and without a traceback; no process of it is left after 5 s; the next run
completes; its records equal those of an undisturbed run (without clocks); no recorded row is lost.
``worker`` kills one worker; the sweep must complete. ``disk`` fills the disk (a small tmpfs; it
needs the right to mount and is skipped without it). ``writers``: two processes create one record at
the same moment. ``bytes``: every byte of one record is changed; each change is named, or harmless
(the run reads as unfinished, or as it was).
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from mindgap.lab.studies.catalogue import find
from mindgap.lab.studies.run import plan, run_all
from mindgap.record.schema import RecordError, to_json, without_timing
from mindgap.record.store import read_run

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from cases.record_race import race

MINDGAP = [sys.executable, "-m", "mindgap"]
NAME, STEPS, SEEDS = "e5-cycle", 1500, 2
STUDY = ["run", NAME, f"steps={STEPS}", "--seeds", str(SEEDS)]
MARK = "MINDGAP_FAULTS"


def records(folder: Path) -> dict[str, list[str]]:
    """File name -> its lines without clocks and machines."""
    found = {}
    for path in sorted(folder.rglob("*.jsonl")):
        run = read_run(path)
        lines = [vars(run.header), *run.rows, *([vars(run.end)] if run.end else [])]
        found[path.name] = [to_json(without_timing(line)) for line in lines]
    return found


def rows_so_far(folder: Path) -> dict[str, list[str]]:
    """The whole rows that are on the disk now, without incomplete lines."""
    found = {}
    for path in folder.rglob("*.jsonl"):
        data = path.read_bytes()
        found[path.name] = [
            t for t in data[: data.rfind(b"\n") + 1].decode().splitlines() if t.startswith('{"row"')
        ]
    return found


def start(out: Path, jobs: int) -> subprocess.Popen[bytes]:
    command = [*MINDGAP, *STUDY, "--jobs", str(jobs), "--out", str(out)]
    environment = {**os.environ, MARK: str(out)}
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )


def processes(out: Path) -> dict[int, bytes]:
    """The processes that belong to a sweep, by a mark in their environment: number -> command
    line.
    """
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if f"{MARK}={out}\0".encode() in (entry / "environ").read_bytes():
                found[int(entry.name)] = (entry / "cmdline").read_bytes()
    return found


def wait_for_rows(out: Path, process: subprocess.Popen[bytes]) -> None:
    while process.poll() is None and not any(out.rglob("*.jsonl")):
        time.sleep(0.005)


def wait_for_handler(process: subprocess.Popen[bytes]) -> None:
    """Wait until the command handles SIGTERM: before its first line runs, Python itself answers
    signals.
    """
    while process.poll() is None:
        text = Path(f"/proc/{process.pid}/status").read_text()
        if int(text.partition("SigCgt:")[2].split()[0], 16) >> (signal.SIGTERM - 1) & 1:
            return
        time.sleep(0.002)


def send_signal(out: Path, rng: random.Random, number: int, whole: float) -> bool:
    """A signal at a random moment; every second round aims at the start of the workers."""
    process = start(out, 2)
    wait_for_handler(process)
    if rng.random() < 0.5:
        time.sleep(rng.uniform(0, whole))
    else:
        while process.poll() is None and len(processes(out)) < 2:
            time.sleep(0.002)
        time.sleep(rng.uniform(0, 0.6))
    process.send_signal(number)
    begun = time.monotonic()
    try:
        _, errors = process.communicate(timeout=10)
    except subprocess.TimeoutExpired:
        process.kill()
        raise AssertionError("the driver did not end within 10 s") from None
    took = time.monotonic() - begun
    # The negative number: the system ended it, before the handler was there or while Python itself
    # was ending.
    status = process.returncode
    assert status in {128 + number, -number, 0}, (
        f"status {status} after {took:.1f} s: {errors.decode()}"
    )
    assert b"Traceback" not in errors, errors.decode()
    while processes(out):
        assert time.monotonic() - begun < took + 5, f"left behind: {processes(out)}"
        time.sleep(0.05)
    return process.returncode != 0


def kill_worker(out: Path, rng: random.Random) -> bool:
    """The sweep itself must go on: no second command is needed, though one is run to see that
    it has nothing to do.
    """
    process = start(out, 2)
    wait_for_rows(out, process)
    time.sleep(rng.uniform(0, 0.3))
    found = [
        number for number, command in processes(out).items() if b"studies.processes" in command
    ]
    hit = False
    if found:
        with suppress(ProcessLookupError):
            os.kill(rng.choice(found), signal.SIGKILL)
            hit = True
    process.communicate()
    assert process.returncode == 0, (
        f"a dead worker ended the sweep with status {process.returncode}"
    )
    return hit


def fill_disk(out: Path, rng: random.Random, limit: int) -> bool:
    """A run that finds no room ends with an error and leaves what it has; then there is room
    again.
    """
    size = rng.randrange(limit // 20, limit)
    out.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(out)], check=True)
    process = start(out, 1)
    _, errors = process.communicate()
    assert process.returncode in (0, 3, 4), f"status {process.returncode}"
    assert b"Traceback" not in errors, errors.decode()
    subprocess.run(["mount", "-o", f"remount,size={8 * limit}", str(out)], check=True)
    return process.returncode != 0


def hidden(out: Path) -> list[Path]:
    """Files that were not whole when their writer was killed."""
    return [path for path in out.rglob(".*") if path.is_file()]


def one_round(
    kind: str, out: Path, rng: random.Random, truth: dict[str, list[str]], limit: int, whole: float
) -> bool:
    """One disturbance and what must hold after it; returns whether the disturbance hit."""
    try:
        if kind == "worker":
            hit = kill_worker(out, rng)
        elif kind == "disk":
            hit = fill_disk(out, rng, limit)
        else:
            hit = send_signal(out, rng, getattr(signal, kind), whole)
        before = rows_so_far(out)
        for path in out.rglob("*.jsonl"):
            if before.get(path.name):
                read_run(path)  # raises if anything but an incomplete last line is damaged
        for path in hidden(out):  # as a person would run it again: not in the same second
            os.utime(path, (0, 0))
        failed: list[str] = []
        again = plan(find(NAME), "quick", seeds=SEEDS, overrides={"steps": STEPS})
        run_all(
            [again],
            out,
            on_end=lambda header, end: failed.append(end.message) if end.message else None,
        )
        assert not failed, f"the next run: {failed}"
        after = rows_so_far(out)
        for name, lines in before.items():
            assert after[name][: len(lines)] == lines, f"{name}: a recorded row was lost or changed"
        assert records(out) == truth, "the records are not those of an undisturbed run"
        assert not hidden(out), f"left behind: {hidden(out)}"
        return hit
    finally:
        if kind == "disk" and out.is_mount():
            subprocess.run(["umount", str(out)], check=True)


def change_bytes(source: Path, rng: random.Random) -> tuple[int, int]:
    """Change every byte of a record to another: how many changes are named, and how many are
    harmless.
    """
    data, truth = source.read_bytes(), read_run(source)
    named = harmless = 0
    folder = Path(tempfile.mkdtemp(prefix="mindgap-bytes-"))
    path = folder / source.name
    for place in range(len(data)):
        changed = bytearray(data)
        changed[place] ^= rng.choice((1 << rng.randrange(8), rng.randrange(1, 256)))
        path.write_bytes(changed)
        try:
            run = read_run(path)
        except RecordError:
            named += 1
            continue
        same = to_json([vars(run.header), run.rows]) == to_json([vars(truth.header), truth.rows])
        assert same and (run.end is None or run.end == truth.end), (  # noqa: PT018
            f"byte {place} was read without complaint"
        )
        harmless += 1
    shutil.rmtree(folder)
    return named, harmless


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument(
        "--kinds", default="SIGINT,SIGTERM,SIGHUP,SIGKILL,worker,disk,writers,bytes"
    )
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    # A shell's background job and nohup ignore signals, and what they start inherits that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    folder = Path(tempfile.mkdtemp(prefix="mindgap-faults-"))
    begun = time.monotonic()
    undisturbed = start(folder / "truth", 2)
    undisturbed.communicate()
    assert undisturbed.returncode == 0
    whole = time.monotonic() - begun
    truth = records(folder / "truth")
    limit = sum(p.stat().st_size for p in (folder / "truth").rglob("*.json*")) + 40_000
    for kind in arguments.kinds.split(","):
        rng = random.Random(f"{kind}{arguments.seed}")
        if kind == "disk" and (os.geteuid() != 0 or not shutil.which("mount")):
            print("disk: skipped, mounting a tmpfs needs root")
            continue
        if kind == "bytes":
            small = min((folder / "truth").rglob("*.jsonl"), key=lambda path: path.stat().st_size)
            short = folder / "short" / small.name
            short.parent.mkdir()
            lines = small.read_bytes().splitlines(keepends=True)
            short.write_bytes(b"".join([*lines[:20], lines[-1]]))
            named, harmless = change_bytes(short, rng)
            print(
                f"bytes: {named + harmless} changes, {named} named, {harmless} harmless", flush=True
            )
            continue
        begun, hits, failures = time.monotonic(), 0, []
        for number in range(arguments.rounds):
            out = folder / f"{kind}{number}"
            try:
                if kind == "writers":
                    race(out)
                    hits += 1
                else:
                    hits += one_round(kind, out, rng, truth, limit, whole)
            except (AssertionError, RecordError) as error:
                failures.append(f"round {number}: {error}")
                print(failures[-1], file=sys.stderr, flush=True)
            shutil.rmtree(out, ignore_errors=True)
            print(
                f"{kind}: round {number + 1}, {hits} hit, {len(failures)} failures",
                file=sys.stderr,
                flush=True,
            )
        took = time.monotonic() - begun
        print(
            f"{kind}: {arguments.rounds} rounds, {hits} hit, {len(failures)} failures, {took:.0f} "
            "s",
            flush=True,
        )
        for failure in failures:
            print(f"  {failure}", flush=True)
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
