"""Tensors that change between two steps, and a machine on which compiled code cannot be kept."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from optim import fused_memory, fused_sequences

from mindgap.optim import GClip
from mindgap.rules.fused import arithmetic, cpu

ROOT = Path(__file__).parents[2]
needs_numba = pytest.mark.skipif(cpu.unavailable() is not None, reason=str(cpu.unavailable()))


@needs_numba
@pytest.mark.parametrize("name", fused_memory.CHECKS)
def test_fused_equals_the_plain_loop_or_refuses(name):
    fused_memory.CHECKS[name]("cpu")


@needs_numba
@pytest.mark.parametrize("first", range(0, 120, 30))
def test_random_sequences(first):
    """20,000 were run by hand: python tests/optim/fused_sequences.py --count 20000."""
    found = [fused_sequences.run_sequence(seed) for seed in range(first, first + 30)]
    assert [text for text in found if text] == []


def run(program, **environment):
    paths = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    known = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", **environment}
    return subprocess.run(
        [sys.executable, "-c", program], env=known, capture_output=True, text=True, timeout=240
    )


@needs_numba
@pytest.mark.skipif(sys.platform != "linux", reason="mprotect")
def test_no_kernel_touches_the_page_behind_a_tensor():
    """In a process of its own: a touch is a segmentation fault."""
    done = run("from optim import fused_pages; fused_pages.main()")
    assert done.returncode == 0, done.stderr[-2000:]
    assert "all pages intact" in done.stdout


@needs_numba
@pytest.mark.parametrize("move", ["share_memory", "other data"])
@pytest.mark.parametrize("name", ["norms", "tau_norms"])
def test_a_window_of_norms_whose_memory_moved(name, move):
    """Sending a state dict to another process moves the window; an array over the old memory
    must not be used.
    """
    runs = []
    for options in ({}, {"foreach": False}):
        p = torch.nn.Parameter(torch.zeros(3))
        optimizer = GClip([p], 0.1, "auto", spike_guard="clip", **options)
        for k in range(30):
            p.grad = torch.full((3,), 1.0 + 0.1 * (k % 7))
            optimizer.step()
            if k == 9:
                window = optimizer.param_groups[0][name]
                if move == "share_memory":
                    window.share_memory_()
                else:
                    window.data = window.data.clone()
        runs.append(
            torch.cat(
                [
                    p.detach().double(),
                    *(optimizer.param_groups[0][n] for n in ("norms", "tau_norms")),
                ]
            )
        )
    torch.testing.assert_close(*runs)


@pytest.fixture
def norm_kernel(tmp_path, monkeypatch):
    """Runs the kernel of the norm, compiled anew with an empty folder for compiled code."""
    import numba

    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))

    def norm():
        cpu.compiled.cache_clear()
        monkeypatch.setitem(cpu._CACHED, "disk", True)
        values, sums = np.full(3, 2.0, dtype=np.float32), np.zeros(1)
        rows, chunks = np.array([[values.ctypes.data]]), np.array([[0, 0, 3]])
        cpu.launch("norm", rows, chunks, np.zeros((1, 1), np.float32), (np.float32(0),), sums)
        return float(sums[0])

    yield norm
    cpu.compiled.cache_clear()


@needs_numba
@pytest.mark.parametrize("ending", ["*.nbi", "*.nbc"])
def test_a_damaged_file_of_compiled_code_does_not_stop_a_step(ending, tmp_path, norm_kernel):
    assert norm_kernel() == 12.0
    files = list(tmp_path.rglob(ending))
    assert files
    for file in files:
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    assert norm_kernel() == 12.0


@needs_numba
@pytest.mark.parametrize("name", ["full", "read-only"])
def test_a_full_or_read_only_disk_does_not_stop_a_step(name, norm_kernel, monkeypatch):
    from numba.core import caching

    def refuse(*_, **__):
        raise OSError(28, "No space left on device")

    if name == "full":
        monkeypatch.setattr(caching.IndexDataCacheFile, "save", refuse)
    else:  # as in a read-only installation without a home
        monkeypatch.setattr(caching.CacheImpl, "_locator_classes", [])
    assert norm_kernel() == 12.0


@needs_numba
def test_no_two_kernels_call_functions_of_one_name():
    """Code that two processes kept on disk is linked by name in a third."""
    names = []
    for rule in arithmetic.RULES:
        for parallel in (False, True):
            inside = cpu.compiled(rule, parallel, False).py_func.__globals__
            called = [inside[name] for name in ("sweep", "total")]
            names += [
                f.py_func.__qualname__ for f in called if f.targetoptions.get("inline") != "always"
            ]
    assert len(names) > len(arithmetic.RULES)
    assert len(set(names)) == len(names)


@needs_numba
def test_steps_of_several_threads():
    """Numba's own threading layer ends the process when two threads enter it."""
    program = (
        "import threading, torch; from mindgap.optim import ACClip, GClip\n"
        "torch.set_num_threads(2)\n"
        "def train(make):\n"
        "    p = torch.nn.Parameter(torch.ones(200_000)); p.grad = torch.ones_like(p)\n"
        "    optimizer = make([p])\n"
        "    for _ in range(60): optimizer.step()\n"
        "    ends.append(float(p.detach()[0]))\n"
        "ends = []; train(lambda p: GClip(p, 0.1, 1.0))\n"
        "makes = [lambda p: GClip(p, 0.1, 1.0)] * 6\n"
        "threads = [threading.Thread(target=train, args=(make,)) for make in makes]\n"
        "[t.start() for t in threads]; [t.join() for t in threads]\n"
        "assert len(ends) == 7 and len(set(ends)) == 1, ends\n"
    )
    layer = {"NUMBA_NUM_THREADS": "2", "NUMBA_THREADING_LAYER": "workqueue", "OMP_NUM_THREADS": "2"}
    done = run(program, **layer)
    assert done.returncode == 0, done.stderr


def test_no_private_name_of_an_optimizer_in_the_engine():
    text = (ROOT / "mindgap/optim/fused.py").read_text() + "".join(
        file.read_text() for file in (ROOT / "mindgap/rules/fused").glob("*.py")
    )
    assert "optimizer._" not in text
