"""The same command with local processes, on a Dask cluster and on a Ray node gives the same
records.

Dask and Ray run if they are installed (``make test-cluster`` installs them).
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from mindgap.record.schema import to_json, without_timing
from mindgap.record.store import read_run

Records = dict[str, list[object]]
STUDY = ["run", "e5-cycle", "e8-windows", "--seeds", "2"]
QUIET = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
PATIENCE = 120.0


def mindgap(*words: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mindgap", *words],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def records(folder: Path) -> Records:
    """File name -> its lines, without clocks and machines."""
    found: Records = {}
    for path in sorted(folder.rglob("*.jsonl")):
        run = read_run(path)
        lines = [vars(run.header), *run.rows, *([vars(run.end)] if run.end else [])]
        found[path.name] = [to_json(without_timing(line)) for line in lines]
    return found


@pytest.fixture(scope="module")
def serial(tmp_path_factory: pytest.TempPathFactory) -> Records:
    folder = tmp_path_factory.mktemp("serial")
    mindgap(*STUDY, "--out", str(folder))
    return records(folder)


def free_port(low: int) -> int:
    """A port nobody listens on, from ``low`` up (Ray keeps those above 10000 for its workers)."""
    for port in range(low, low + 500):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)):
                return port
    raise AssertionError("no free port")


def assert_answers(port: int, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        assert process.poll() is None, "the cluster did not start"
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.2)
    raise AssertionError("the cluster did not answer")


def stop(*processes: subprocess.Popen[bytes]) -> None:
    for process in processes:
        process.terminate()
    for process in processes:
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def test_local_processes_give_the_records_of_a_serial_run(tmp_path: Path, serial: Records) -> None:
    mindgap(*STUDY, "--jobs", "2", "--out", str(tmp_path))
    assert records(tmp_path) == serial != {}


def assert_interrupted_goes_on(folder: Path, *where: str) -> None:
    """Ctrl-C ends the driver with its last words and the workers too; the same command then
    ends as a serial run.
    """
    long = ["run", "e5-cycle", "steps=60000", "--seeds", "1"]
    mindgap(*long, "--out", str(folder / "long"))
    out = folder / "cut"
    command = [sys.executable, "-m", "mindgap", *long, *where, "--out", str(out)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    end = time.monotonic() + PATIENCE
    while not any(p.stat().st_size > 5000 for p in out.rglob("*.jsonl")) and time.monotonic() < end:
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "0 of 2 runs are finished, and every row recorded so far is kept" in errors
    mindgap(*long, *where, "--out", str(out))
    assert records(out) == records(folder / "long") != {}


@pytest.fixture
def dask_address(tmp_path: Path) -> Iterator[str]:
    """A scheduler and two workers, each a process."""
    port = free_port(8786)
    address = f"tcp://127.0.0.1:{port}"
    command = [
        sys.executable,
        "-m",
        "distributed.cli.dask_scheduler",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
    ]
    scheduler = subprocess.Popen([*command, "--no-dashboard"], **QUIET)  # type: ignore[call-overload]
    assert_answers(port, scheduler)
    command = [
        sys.executable,
        "-m",
        "distributed.cli.dask_worker",
        address,
        "--nthreads",
        "1",
        "--no-dashboard",
    ]
    workers = [
        subprocess.Popen([*command, "--local-directory", str(tmp_path / f"worker{i}")], **QUIET)  # type: ignore[call-overload]
        for i in range(2)
    ]
    yield address
    stop(*workers, scheduler)


@pytest.mark.skipif(
    find_spec("distributed") is None, reason="Dask is not installed (make test-cluster)"
)
def test_a_dask_cluster_gives_the_same_records(
    tmp_path: Path, dask_address: str, serial: Records
) -> None:
    mindgap(*STUDY, "--backend", "dask", "--address", dask_address, "--out", str(tmp_path / "runs"))
    assert records(tmp_path / "runs") == serial
    assert_interrupted_goes_on(tmp_path, "--backend", "dask", "--address", dask_address)


@pytest.fixture
def ray_address() -> Iterator[str]:
    """One Ray node of two processors."""
    port = free_port(6380)
    folder = Path("/tmp") / f"mgray{os.getpid()}"  # Ray's sockets need a short path
    options = [
        "--num-cpus",
        "2",
        "--include-dashboard",
        "false",
        "--disable-usage-stats",
        "--block",
    ]
    place = [
        "--node-ip-address",
        "127.0.0.1",
        "--temp-dir",
        str(folder),
        "--object-store-memory",
        "100000000",
    ]
    ray = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--port", str(port)]
    node = subprocess.Popen([*ray, *options, *place], **QUIET)  # type: ignore[call-overload]
    assert_answers(port, node)
    yield f"127.0.0.1:{port}"
    stop(node)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed (make test-cluster)")
def test_a_ray_node_gives_the_same_records(
    tmp_path: Path, ray_address: str, serial: Records
) -> None:
    mindgap(*STUDY, "--backend", "ray", "--address", ray_address, "--out", str(tmp_path / "runs"))
    assert records(tmp_path / "runs") == serial
    assert_interrupted_goes_on(tmp_path, "--backend", "ray", "--address", ray_address)


def test_an_address_where_nobody_answers_is_one_clear_error(tmp_path: Path) -> None:
    pytest.importorskip("distributed")
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "mindgap",
            *STUDY,
            "--backend",
            "dask",
            "--address",
            "tcp://127.0.0.1:1",
        ]
        + ["--out", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 2
    assert (
        "address must be that of a running dask cluster, got 'tcp://127.0.0.1:1'"
        in done.stderr.splitlines()[-1]
    )
    assert list(tmp_path.rglob("*.jsonl")) == []
