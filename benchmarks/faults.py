"""Kill the driver, kill a worker, fill the disk, at random moments; then run again and compare with an undisturbed run.

    python benchmarks/faults.py [--rounds 50] [--kinds driver,worker,disk] [--seed 0]

After each round: the next run completes, its records equal those of an undisturbed run (less clocks), no row that was
recorded before is lost, and every record is readable. The disk is a tmpfs of some tens of kilobytes, which needs the
right to mount; without it that kind is skipped, saying so.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from mindgap.record.schema import RecordError, without_timing
from mindgap.record.store import read_run

MINDGAP = [sys.executable, "-m", "mindgap"]
STUDY = ["run", "e5-cycle", "steps=4000", "--seeds", "2"]


def records(folder: Path) -> dict[str, list[object]]:
    """File name -> its lines less clocks and machines."""
    found = {}
    for path in sorted(folder.rglob("*.jsonl")):
        lines = [json.loads(text) for text in path.read_text().splitlines()]
        found[path.name] = [{kind: without_timing(body) for kind, body in line.items()} for line in lines]
    return found


def rows_so_far(folder: Path) -> dict[str, list[str]]:
    """The whole rows that are on the disk now, torn tails apart."""
    found = {}
    for path in folder.rglob("*.jsonl"):
        data = path.read_bytes()
        found[path.name] = [t for t in data[: data.rfind(b"\n") + 1].decode().splitlines() if t.startswith('{"row"')]
    return found


def start(out: Path, jobs: int) -> subprocess.Popen[bytes]:
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    return subprocess.Popen(  # type: ignore[call-overload, no-any-return]
        [*MINDGAP, *STUDY, "--jobs", str(jobs), "--out", str(out)], start_new_session=True, **quiet
    )


def wait_for_rows(out: Path, process: subprocess.Popen[bytes]) -> None:
    while process.poll() is None and not any(out.rglob("*.jsonl")):
        time.sleep(0.005)


def workers(process: subprocess.Popen[bytes]) -> list[int]:
    """The processes of its group that run a trial (loky's workers), less the driver itself and its helpers."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != process.pid:
            try:
                group = os.getpgid(int(entry.name))
                command = (entry / "cmdline").read_bytes()
            except (OSError, ProcessLookupError):
                continue
            if group == process.pid and b"popen_loky" in command and b"resource_tracker" not in command:
                found.append(int(entry.name))
    return found


def kill_driver(out: Path, rng: random.Random) -> bool:
    """Alone or with two workers, which must then end by themselves."""
    process = start(out, rng.choice((1, 2)))
    wait_for_rows(out, process)
    time.sleep(rng.uniform(0, 0.4))
    process.kill()
    return process.wait() == -signal.SIGKILL


def kill_worker(out: Path, rng: random.Random) -> bool:
    """The sweep itself must go on: no second command is needed, though one is run to see that it has nothing to do."""
    process = start(out, 2)
    wait_for_rows(out, process)
    time.sleep(rng.uniform(0, 0.3))
    found = workers(process)
    if found:
        os.kill(rng.choice(found), signal.SIGKILL)
    status = process.wait()
    if found and status != 0:
        raise AssertionError(f"a dead worker ended the sweep with status {status}")
    return bool(found)


def fill_disk(out: Path, rng: random.Random, limit: int) -> bool:
    """A run that finds no room ends with an error and leaves what it has; then there is room again."""
    size = rng.randrange(limit // 20, limit)
    out.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(out)], check=True)
    status = start(out, 1).wait()
    subprocess.run(["mount", "-o", f"remount,size={8 * limit}", str(out)], check=True)
    return status != 0


def hidden(out: Path) -> list[Path]:
    """Files that were not whole when their writer was killed."""
    return [path for path in out.rglob(".*") if path.is_file()]


def one_round(kind: str, out: Path, rng: random.Random, truth: dict[str, list[object]], limit: int) -> bool:
    """One disturbance and what must hold after it; returns whether the disturbance hit."""
    try:
        if kind == "driver":
            hit = kill_driver(out, rng)
        elif kind == "worker":
            hit = kill_worker(out, rng)
        else:
            hit = fill_disk(out, rng, limit)
        before = rows_so_far(out)
        for path in out.rglob("*.jsonl"):
            if before.get(path.name):  # a worker may just have begun it, and ends with its driver
                read_run(path)  # raises where anything but the last, torn line is damaged
        for path in hidden(out):  # as a person would run it again: not in the same second
            os.utime(path, (0, 0))
        status = start(out, 1).wait()
        assert status == 0, f"the next run ended with status {status}"
        after = rows_so_far(out)
        for name, lines in before.items():
            assert after[name][: len(lines)] == lines, f"{name}: a recorded row was lost or changed"
        assert records(out) == truth, "the records are not those of an undisturbed run"
        assert not hidden(out), f"left behind: {hidden(out)}"
        return hit
    finally:
        if kind == "disk" and out.is_mount():
            subprocess.run(["umount", str(out)], check=True)


def damaged_line(out: Path, rng: random.Random) -> None:
    """A line damaged in the middle is refused with file and line number."""
    path = rng.choice(sorted(out.rglob("*.jsonl")))
    lines = path.read_bytes().split(b"\n")
    number = rng.randrange(1, len(lines) - 2)
    lines[number] = lines[number][: len(lines[number]) // 2]
    path.write_bytes(b"\n".join(lines))
    said = "nothing"
    try:
        read_run(path)
    except RecordError as error:
        said = str(error)
    assert f"{path.name}:{number + 1}: damaged line" in said, (
        f"line {number + 1} of {path.name} is damaged, said: {said}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--kinds", default="driver,worker,disk")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="mindgap-faults-"))
    assert start(folder / "truth", 1).wait() == 0
    truth = records(folder / "truth")
    limit = sum(p.stat().st_size for p in (folder / "truth").rglob("*.json*")) + 40_000
    for kind in arguments.kinds.split(","):
        if kind == "disk" and (os.geteuid() != 0 or not shutil.which("mount")):
            print("disk: skipped, mounting a tmpfs needs root")
            continue
        rng = random.Random(f"{kind}{arguments.seed}")
        begun, hits, failures = time.monotonic(), 0, []
        for number in range(arguments.rounds):
            out = folder / f"{kind}{number}"
            try:
                hits += one_round(kind, out, rng, truth, limit)
            except (AssertionError, RecordError) as error:
                failures.append(f"round {number}: {error}")
            shutil.rmtree(out, ignore_errors=True)
        took = time.monotonic() - begun
        print(
            f"{kind}: {arguments.rounds} rounds, {hits} hit the work, {len(failures)} failures, {took:.0f} s",
            flush=True,
        )
        for failure in failures:
            print(f"  {failure}")
    rng = random.Random(arguments.seed)
    for _ in range(arguments.rounds):
        shutil.copytree(folder / "truth", folder / "damaged")
        damaged_line(folder / "damaged", rng)
        shutil.rmtree(folder / "damaged")
    print(f"damaged line: {arguments.rounds} rounds, each named with file and line number")
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
