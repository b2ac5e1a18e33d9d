"""Bilevel problems on CUDA: data move to the device, checkpoints resume bitwise and open on the
other device, captured graphs agree with plain steps; skipped without a GPU.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from cases.bilevel import BY_KEY
from references.bilevel_small import small_quadratic
from torch.utils.data import DataLoader, TensorDataset

from mindgap.base.check import RuleError
from mindgap.bilevel import SOBA, Batches, BilevelProblem, solve
from mindgap.bilevel.backends.graphs import CudaGraphs

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

FEATURES = torch.randn(24, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
TARGETS = torch.randn(24, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
METHOD = SOBA(lr_x=0.05, lr_y=0.1)


def upper(x, y, batch):
    return (batch[0] @ y - batch[1]).square().mean()


def lower(x, y, batch):
    return (batch[0] @ y - batch[1]).square().mean() + (x.exp() * y.square()).sum()


def problem(device: str, data=(FEATURES, TARGETS), **more) -> BilevelProblem:
    start = torch.zeros(3, dtype=torch.float64, device=device)
    return BilevelProblem(upper, lower, start, start.clone(), data, data, **more)


@pytest.mark.parametrize("kind", ["tensors", "data set", "loader", "batches"])
def test_data_on_the_cpu_move_to_the_variables_and_nothing_else_changes(kind: str) -> None:
    data, more = {
        "tensors": ((FEATURES, TARGETS), {"batch_size": 4}),
        "data set": (TensorDataset(FEATURES, TARGETS), {"batch_size": 4}),
        "loader": (DataLoader(TensorDataset(FEATURES, TARGETS), batch_size=4), {}),
        "batches": (Batches((FEATURES, TARGETS), 4, order="reshuffle"), {}),
    }[kind]
    here, there = (
        solve(problem(device, data, **more), METHOD, steps=30, seed=1) for device in ("cpu", "cuda")
    )
    assert there.x.device.type == "cuda"
    torch.testing.assert_close(there.x.cpu(), here.x, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(there.y.cpu(), here.y, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("graphs", [False, True], ids=["eager", "graphs"])
@pytest.mark.parametrize("key", ["soba", "slip", "saba", "srba", "stocbio", "f2sa", "sustain"])
def test_a_checkpoint_resumes_bitwise(key: str, graphs: bool, tmp_path: Path) -> None:
    made, method = small_quadratic(seed=4, device="cuda").problem(16), BY_KEY[key].make()
    file = tmp_path / "state.ckpt"

    def run(steps: int, **more) -> torch.Tensor:
        backend = CudaGraphs(chunk=10) if graphs else None
        return solve(made, method, steps=steps, seed=3, backend=backend, **more).state.x

    whole = run(25)
    run(11, checkpoint=file)
    assert torch.equal(run(25, checkpoint=file, resume=True), whole)


def test_a_checkpoint_opens_on_the_other_device(tmp_path: Path) -> None:
    for first, second in (("cpu", "cuda"), ("cuda", "cpu")):
        file = tmp_path / f"{first}.ckpt"
        solve(problem(first, batch_size=4), METHOD, steps=10, seed=1, checkpoint=file)
        found = solve(problem(second, batch_size=4), METHOD, steps=30, checkpoint=file, resume=True)
        assert found.x.device.type == second
        whole = solve(problem("cpu", batch_size=4), METHOD, steps=30, seed=1)
        torch.testing.assert_close(found.x.cpu(), whole.x, rtol=1e-9, atol=1e-12)


def test_graphs_say_where_the_data_must_be() -> None:
    with pytest.raises(RuleError, match="upper_data must be on cuda:0 for CUDA graphs"):
        solve(problem("cuda", batch_size=4), METHOD, steps=2, backend=CudaGraphs())
