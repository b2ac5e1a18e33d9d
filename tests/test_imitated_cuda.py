"""The imitation of CUDA shows mistakes that a GPU would show, and runs the captures of the library.

Most tests here run on the imitation, which the last one starts.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from mindgap.base.check import RuleError
from mindgap.base.checked import checked

ROOT = Path(__file__).parents[1]
ON_CUDA = torch.cuda.is_available()
IMITATED = ON_CUDA and torch.cuda.get_device_name() == "imitated"
on_imitation = pytest.mark.skipif(not IMITATED, reason="runs on the imitation of CUDA")


def captured(step) -> torch.cuda.CUDAGraph:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph


@on_imitation
def test_tensors_of_two_devices_do_not_mix():
    a, b = torch.randn(3, device="cuda"), torch.randn(3)
    with pytest.raises(RuntimeError, match="on the same device"):
        a + b
    with pytest.raises(TypeError, match="to numpy"):
        a.numpy()
    with pytest.raises(RuntimeError, match="device type for generator"):
        torch.randn(3, device="cuda", generator=torch.Generator())
    assert (a + 1.0).is_cuda
    assert (a * b.sum()).is_cuda  # a number may lie anywhere
    assert not a.cpu().is_cuda
    assert torch.zeros_like(a).device == torch.device("cuda", 0)


@on_imitation
def test_gradients_lie_where_their_parameters_do():
    model = torch.nn.Linear(3, 2).cuda()
    hooked = []
    x = torch.randn(4, 3, device="cuda").requires_grad_()
    loss = model(x).square().sum()
    x.register_hook(lambda g: hooked.append(g.device.type))
    loss.backward()
    assert hooked == ["cuda"]
    assert all(p.grad.is_cuda for p in model.parameters())
    from_cpu = torch.ones(3, requires_grad=True)
    (from_cpu.cuda() * 2).sum().backward()
    assert not from_cpu.grad.is_cuda


@on_imitation
def test_a_replay_writes_the_same_memory_and_runs_no_python():
    x, total, calls = torch.ones(3, device="cuda"), torch.zeros(3, device="cuda"), []
    out = []

    def step():
        calls.append(1)
        out[:] = [x * 2]
        total.add_(out[0])

    graph = captured(step)
    assert out[0].isnan().all()  # nothing has run
    assert total.tolist() == [0.0] * 3
    where = out[0].data_ptr()
    graph.replay()
    x.fill_(5.0)
    graph.replay()
    assert (out[0].tolist(), out[0].data_ptr()) == ([10.0] * 3, where)
    assert total.tolist() == [12.0] * 3
    assert len(calls) == 1


@on_imitation
def test_what_waits_for_the_device_is_an_error_in_a_capture():
    x = torch.ones(3, device="cuda")
    for waits in (
        lambda: float(x.sum()),
        lambda: x.cpu(),
        lambda: x[x > 0],
        lambda: torch.tensor([1.0], device="cuda"),
        torch.cuda.synchronize,
    ):
        with pytest.raises(RuntimeError, match="capturing"):
            captured(waits)
    torch.cuda.set_sync_debug_mode("error")
    try:
        with pytest.raises(RuntimeError, match="synchronizing"):
            x.sum().item()
    finally:
        torch.cuda.set_sync_debug_mode("default")


@on_imitation
def test_an_error_of_torch_is_no_error_of_a_callers_function():
    space = {"__name__": "mindgap.made_up"}  # a function of the library, by its globals
    exec("def eighth(x: object) -> object:\n    return x[7]\n", space)
    for device in ("cpu", "cuda"):
        with pytest.raises(RuleError, match="arguments must fit together in eighth"):
            checked(space["eighth"])(torch.ones(3, device=device))


@on_imitation
def test_a_copy_that_does_not_block_arrives_when_it_is_waited_for():
    x = torch.ones(3, device="cuda")
    copy, event = x.to("cpu", non_blocking=True), torch.cuda.Event()
    event.record()
    assert copy.tolist() != [1.0] * 3
    x.zero_()
    event.synchronize()
    assert copy.tolist() == [1.0] * 3


@pytest.mark.skipif(ON_CUDA, reason="for machines without a GPU")
def test_captures_of_bilevel_methods_and_of_noise_run_on_the_imitation():
    files = ("tests/test_imitated_cuda.py", "tests/bilevel/test_bilevel_graphs.py")
    noise = "tests/lab/tasks/test_captured_noise.py"
    words = ("-q", "-k", "test_imitated or captured_graphs or cuda")
    command = [sys.executable, "tests/imitated_cuda.py", *files, noise, *words]
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed, done.stdout[-1000:]
    assert int(passed[1]) >= 30
