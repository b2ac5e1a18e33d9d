"""Defects of use, each with the case that showed it: warm starts, NaN, loaders, arrays,
projections, devices.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from references.bilevel_small import PROBLEM
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

from mindgap.base.check import RuleError
from mindgap.bilevel import (
    METHODS,
    SLIP,
    SOBA,
    SVRB,
    VRBO,
    AdamStep,
    Batches,
    BilevelProblem,
    Constant,
    TorchOracle,
    solve,
    suggest_steps,
)
from mindgap.bilevel.backends.graphs import CudaGraphs
from mindgap.bilevel.data.loaded import Loaded
from mindgap.bilevel.data.problem import Pack
from mindgap.bilevel.data.sample import row
from mindgap.bilevel.tools.exact import flat_vector

DRAW = torch.Generator().manual_seed(0)
FEATURES, TARGETS = torch.randn(24, 3, generator=DRAW), torch.randn(24, generator=DRAW)


def upper(x, y, b):
    return ((b[0] @ y - b[1]) ** 2).mean()


def lower(x, y, b):
    return upper(x, y, b) + (2.0**x * y**2).sum()


def problem(**changes):
    parts = {
        "upper": upper,
        "lower": lower,
        "x": torch.zeros(3),
        "y": torch.zeros(3),
        "upper_data": (FEATURES, TARGETS),
        "lower_data": (FEATURES, TARGETS),
        "batch_size": 8,
    }
    return BilevelProblem(**{**parts, **changes})


# Methods.


def test_the_warm_start_of_slip_takes_the_steps_it_was_given():
    """It took plain steps whatever ``y_step`` was: Adam's first step moves each number by lr."""
    method = SLIP(lr_x=0.1, lr_y=0.01, lr_z=0.1, warm_start=1, y_step=AdamStep())
    state = method.start(problem())
    assert torch.allclose(state.y.abs(), torch.full((3,), 0.01), rtol=1e-3)
    assert float(state.values["y_memory"]["k"]) == 1.0


@pytest.mark.parametrize(
    "linear",
    [lambda x, y, b: y.sum(), lambda x, y, b: (x * y).sum(), lambda x, y, b: (b[0] @ y).mean()],
)
def test_svrb_takes_a_lower_loss_that_is_linear_in_y(linear):
    """It ended in ``linalg.eigh: The input tensor A must have at least 2 dimensions``."""
    made = problem(lower=linear, upper=lambda x, y, b: upper(x, y, b) + (x**2).sum())
    oracle = TorchOracle(made)
    _, h, j = oracle.dense(*oracle.start, row(made.lower_data.draw(0, "lower", 0, 1), 0))
    assert h.shape == j.shape == (3, 3)
    assert solve(made, SVRB(lr_x=0.01, lr_y=0.01, mu=0.1), 3).ok


def test_svrb_reports_numbers_that_are_not_finite():
    """It raised LinAlgError inside the run."""
    wild = SVRB(lr_x=1.0, lr_y=1e25, mu=0.1)
    assert solve(problem(lower=lambda x, y, b: lower(x, y, b) ** 2), wild, 50).outcome in (
        "non-finite",
        "diverged",
    )


@pytest.mark.parametrize("scale", [0.02, 1.0, 50.0])
def test_advised_steps_of_meha_follow_the_scale_of_the_lower_level(scale):
    """With a curvature of 0.2 and less (ijcnn1 from x = -2) the advice ended in NaN, 3 of 3 seeds:
    w also sees 1 / gamma, which was 1 whatever the scale.
    """
    made = problem(
        lower=lambda x, y, b: scale * (y - x - b[0]).square().sum(1).mean(),
        upper=lambda x, y, b: (y - 1.0).square().sum() + 0.0 * b[1].sum(),
    )
    settings = suggest_steps(made).settings("meha")
    for seed in range(3):
        assert solve(made, METHODS["meha"](**settings), 400, seed=seed).ok


@pytest.mark.parametrize("backend", ["eager", "graphs", "jax"])
def test_nan_is_noticed_within_64_iterations(backend):
    """It was noticed after 100 iterations (eager), 1,024 (graphs) or 8,192 (JAX)."""

    def wall(x, y, b):  # not a number once y has gone a little way
        return lower(x, y, b) + 0.0 * ((0.5 - (y * y).sum()) ** 0.5)

    if backend == "jax":
        pytest.importorskip("jax")
        from mindgap.bilevel.backends.compiled import JaxBackend

        runner = JaxBackend(upper, wall)
    else:
        runner = None if backend == "eager" else CudaGraphs()
    made = problem(lower=wall, lower_data=(FEATURES, 10 * TARGETS))
    method = SOBA(lr_x=Constant(0.01), lr_y=Constant(0.01))
    found = solve(made, method, 20_000, backend=runner)
    assert found.outcome == "non-finite"
    assert found.state.t <= 128
    assert found.state.t % (16 if backend == "eager" else 64) == 0
    assert found.state.total_calls == 5 * found.state.t
    assert found.state.drawn["lower"] == found.state.t


# Data.


class Count(IterableDataset):
    """Samples that count how often they are read."""

    def __init__(self, n):
        self.n, self.reads = n, 0

    def __iter__(self):
        for i in range(self.n):
            self.reads += 1
            yield FEATURES[i % 24], TARGETS[i % 24]


def test_an_iterable_loader_counts_its_epochs():
    """An epoch counted as 100 minibatches whatever its length."""
    made = problem(lower_data=DataLoader(Count(24), batch_size=8))
    state = solve(made, SOBA(lr_x=0.05, lr_y=0.1), 30).state
    assert state.y_epochs == 10.0


def test_a_method_that_goes_back_and_forth_reads_each_sample_once():
    """VRBO read 3,840 samples and more for 20 iterations: each step back began the epoch again."""
    data = Count(10_000)
    method = VRBO(lr_x=0.01, lr_y=0.01, inner=10, terms=10, refresh=2)
    state = solve(problem(lower_data=DataLoader(data, batch_size=2)), method, 4).state
    needed = 2 * state.drawn["lower"]
    assert needed <= data.reads < needed + 2 * 600


def test_an_empty_loader_is_refused():
    """It ended in StopIteration."""
    with pytest.raises(RuleError, match="data must hold at least one batch"):
        solve(problem(lower_data=DataLoader(Count(0), batch_size=2)), SOBA(lr_x=0.1, lr_y=0.1), 1)


class Rows(Dataset):
    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        return i


@pytest.mark.parametrize("iterable", [False, True])
def test_a_short_batch_of_a_loader_comes_by_its_share(iterable):
    class Stream10(IterableDataset):
        def __iter__(self):
            return iter(range(10))

    loader = (
        DataLoader(Stream10(), batch_size=4)
        if iterable
        else DataLoader(
            Rows(10), batch_size=4, sampler=torch.utils.data.SequentialSampler(Rows(10))
        )
    )
    data = Loaded(loader)
    tokens = data.draw(0, "lower", 0, 1500)
    means = [float(data.fetch(row(tokens, i)).float().mean()) for i in range(1500)]
    counts = [means.count(m) for m in (1.5, 5.5, 8.5)]
    assert sum(counts) == 1500
    assert abs(np.mean(means) - 4.5) < 0.1  # 5.17 where all batches come equally often
    again = Loaded(loader)  # a fresh process that goes on at once at a late position
    assert float(again.fetch(row(tokens, 777)).float().mean()) == means[777]


def test_arrays_of_numpy_are_read_as_tensors_are():
    """A tuple of two arrays was read as a data set of two items."""
    arrays = problem(
        upper_data=(FEATURES.numpy(), TARGETS.numpy()),
        lower_data={"a": FEATURES.numpy(), "b": TARGETS.numpy()},
        lower=lambda x, y, b: lower(x, y, (b["a"], b["b"])),
    )
    assert (arrays.upper_data.n, arrays.lower_data.n) == (24, 24)
    method = SOBA(lr_x=0.05, lr_y=0.1)
    assert torch.equal(solve(arrays, method, 9).x, solve(problem(), method, 9).x)


def test_batches_are_moved_to_the_device_of_the_variables():
    """On the device "meta", which every machine has."""
    for data in (
        (FEATURES, TARGETS),
        torch.utils.data.TensorDataset(FEATURES, TARGETS),
        DataLoader(Count(24), batch_size=4),
        Batches((FEATURES, TARGETS), 4, order="reshuffle"),
    ):
        made = problem(
            x=torch.zeros(3, device="meta"), y=torch.zeros(3, device="meta"), lower_data=data
        )
        batch = made.lower_data.fetch(row(made.lower_data.draw(0, "lower", 0, 1), 0))
        assert [t.device.type for t in batch] == ["meta", "meta"]
    assert problem().lower_data.device is None  # nothing to move, nothing to pay


# Variables.


def test_two_solutions_of_one_problem_have_modules_of_their_own():
    """``a.y`` and ``b.y`` were the problem's module, which the last one asked had overwritten."""
    net = nn.Linear(3, 1)
    net.bias.requires_grad_(False)
    start = net.weight.detach().clone()
    made = problem(
        y=net,
        upper=lambda x, y, b: (y(b[0])[:, 0] - b[1]).square().mean(),
        lower=lambda x, y, b: (
            (y(b[0])[:, 0] - b[1]).square().mean()
            + (2.0**x).sum() * sum(p.square().sum() for p in y.parameters())
        ),
    )
    a, b = (solve(made, SOBA(lr_x=0.05, lr_y=lr), 20) for lr in (0.1, 0.3))
    assert not torch.equal(a.y.weight, b.y.weight)
    assert torch.equal(a.y.weight.flatten(), a.state.y)
    assert torch.equal(net.weight, start)
    assert a.y is a.y
    assert a.y.bias is net.bias  # what is frozen is not copied


@pytest.mark.parametrize("compiled", [False, True])
def test_projections_get_the_variable_in_its_own_form(compiled):
    """``project_x`` got a flat vector for a dict, and the start stayed outside the set."""

    def total(x, y, b):
        return ((b[0] @ y["w"] - b[1]) ** 2).mean() + (x["r"] ** 2).sum() + (x["s"] ** 2).sum()

    def ridge(x, y, b):
        return (
            total(x, y, b) + (2.0 ** x["r"]).sum() * (y["w"] ** 2).sum() + (y["w"] * x["s"]).sum()
        )

    made = problem(
        x={"r": torch.full((2, 1), 9.0), "s": torch.full((3,), -7.0)},
        y={"w": torch.ones(3)},
        upper=total,
        lower=ridge,
        project_x=lambda x: {"s": x["s"].clip(-0.5, 0.5), "r": x["r"].clip(1.0, 2.0)},
    )
    runner = None
    if compiled:
        pytest.importorskip("jax")
        from mindgap.bilevel.backends.compiled import JaxBackend

        runner = JaxBackend(total, ridge)
    first = solve(made, SOBA(lr_x=0.01, lr_y=0.01), 0, backend=runner)
    assert first.x["r"].flatten().tolist() == [2.0, 2.0]
    assert first.x["s"].tolist() == [-0.5] * 3
    last = solve(made, SOBA(lr_x=0.3, lr_y=0.05), 60, backend=runner)
    assert last.x["r"].flatten().tolist() == [1.0, 1.0]
    assert float(last.x["s"].abs().max()) <= 0.5


def test_a_projection_that_returns_something_else_is_refused():
    for wrong in (lambda x: x[:2], lambda x: x * float("nan"), lambda x: None, lambda x: x["r"]):
        with pytest.raises(RuleError, match="project_x must return"):
            SOBA(lr_x=0.1, lr_y=0.1).start(problem(project_x=wrong))


@pytest.mark.parametrize("key", METHODS)
def test_one_stream_per_slot_and_none_shared(key):
    from cases.bilevel import CASES

    method = next(c for c in CASES if c.key == key).make()
    streams = method.plan().streams(PROBLEM)
    data = [s for s in streams.values() if s not in ("uniform", "direction")]
    assert len(data) == len(set(data))


# Bad arguments that ended in foreign errors.


class Odd:
    """Something with the methods of an array and of a data set, and none that works."""

    def __array__(self, dtype=None, copy=None):
        raise OSError("no numbers here")

    def __len__(self):
        raise OSError("no length here")

    def __getitem__(self, i):
        return i


def test_points_that_are_no_numbers_are_refused():
    for bad in (
        Odd(),
        np.array(["a"] * 3),
        np.array([object()] * 3),
        torch.zeros(3, device="meta"),
    ):
        with pytest.raises(RuleError, match="x must be a"):
            flat_vector(problem(), "x", bad)


def test_data_that_cannot_be_counted_are_refused():
    inside = [torch.zeros(3)]
    inside.append(inside)
    for bad in (Odd(), inside):
        with pytest.raises(RuleError, match="data must be samples that can be counted"):
            Batches(bad, 1)


def test_a_variable_of_sparse_tensors_is_refused():
    with pytest.raises(RuleError, match="x must hold dense tensors"):
        Pack("x", torch.eye(3).to_sparse())


@pytest.mark.parametrize("value", [torch.zeros(2), {"a": torch.zeros(1), "b": torch.zeros(1, 1)}])
def test_a_pack_refuses_vectors_that_are_not_its_own(value):
    pack = Pack("y", value)
    for call in (pack.view, pack.split, pack.leaves):
        for bad in (None, "ab", 1.5, [1.0, 2.0], np.zeros(2), torch.zeros(3), torch.tensor(1.0)):
            with pytest.raises(RuleError, match="vector must be a flat tensor of 2 numbers"):
                call(bad)
