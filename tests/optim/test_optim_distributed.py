"""Two processes with gloo: every optimizer sharded and whole goes the same way, and checkpoints
change processes.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

SCRIPT = Path(__file__).with_name("distributed_checks.py")


def start(task, folder, rank=0, port=0):
    # Gloo works in the memory of the host: where there is a GPU, fully_shard would put the
    # parameters on it.
    there = {
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "PYTHONPATH": str(SCRIPT.parents[2]),
    }
    environment = {**os.environ, **there}
    command = [sys.executable, str(SCRIPT), task, str(folder), str(rank), str(port)]
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def assert_all_fine(*processes):
    try:
        for process in processes:
            out, err = process.communicate(timeout=600)
            assert process.returncode == 0, err[-3000:]
            assert "fine" in out
    finally:
        for process in processes:  # one that waits for another that failed would wait for ever
            process.kill()
            process.communicate()


@pytest.mark.skipif(
    not torch.distributed.is_available(), reason="torch was built without distributed"
)
def test_sharded_and_whole_runs_agree(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    assert_all_fine(start("alone", tmp_path))
    assert_all_fine(*(start("pair", tmp_path, rank, port) for rank in (0, 1)))
    assert_all_fine(start("resume", tmp_path))
