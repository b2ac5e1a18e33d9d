"""Real loaders and models: workers, samplers, iterable data, mixed dtypes, methods of a module,
micro-batches.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, WeightedRandomSampler

from mindgap.base.check import RuleError
from mindgap.bilevel import SABA, SOBA, BilevelProblem, TorchOracle, solve
from mindgap.bilevel.data.loaded import Loaded, as_data
from mindgap.bilevel.data.sample import FULL, Batches, row

DRAW = torch.Generator().manual_seed(0)
FEATURES, TARGETS = torch.randn(24, 3, generator=DRAW), torch.randn(24, generator=DRAW)


class Rows(Dataset):
    def __len__(self):
        return 24

    def __getitem__(self, i):
        return FEATURES[i], TARGETS[i], torch.tensor(os.getpid())


class Endless(IterableDataset):
    def __iter__(self):
        for i in range(24):
            yield FEATURES[i], TARGETS[i]


def upper(x, y, b):
    return (b[0] @ y - b[1]).square().mean()


def lower(x, y, b):
    return upper(x, y, b) + x.exp() @ y.square()


def problem(data=(FEATURES, TARGETS), **options):
    return BilevelProblem(
        upper,
        lower,
        torch.zeros(3),
        torch.zeros(3),
        (FEATURES, TARGETS),
        data,
        batch_size=8,
        **options,
    )


WORKERS = """
import os, torch
from torch.utils.data import DataLoader, Dataset
from mindgap.bilevel.data.loaded import Loaded, as_data
from mindgap.bilevel.data.sample import Batches, row

class Rows(Dataset):
    def __len__(self):
        return 24
    def __getitem__(self, i):
        return torch.tensor(i), torch.tensor(os.getpid())

data = as_data(DataLoader(Rows(), batch_size=6, shuffle=True, num_workers=1), 1)
assert isinstance(data, Loaded)
batch = data.fetch(row(data.draw(0, "lower", 0, 1), 0))
assert (batch[1] != os.getpid()).all()
"""


def test_workers_read_the_samples():
    # In a process of its own: workers are forked, and JAX, which other tests load, does not stand
    # that.
    subprocess.run([sys.executable, "-c", WORKERS], check=True, timeout=120)
    again = as_data(DataLoader(Rows(), batch_size=6, shuffle=True), 1)
    assert isinstance(again, Batches)  # without workers: fixed order, all samples at once


def test_an_iterable_data_set_runs_and_repeats():
    solutions = [
        solve(problem(DataLoader(Endless(), batch_size=8)), SOBA(lr_x=0.05, lr_y=0.1), 20).x
        for _ in range(2)
    ]
    assert (solutions[0] == solutions[1]).all()
    assert solutions[0].norm() > 0


def test_a_loader_gives_the_same_batches_again_after_a_step_back():
    data = Loaded(DataLoader(list(range(40)), batch_size=2, shuffle=True), keep=3)
    tokens = [row(data.draw(0, "lower", 0, 50), i) for i in range(50)]
    first = [data.fetch(token).tolist() for token in tokens]
    assert sorted(i for batch in first[:20] for i in batch) == list(range(40))
    assert first[:20] != first[20:40]  # another epoch, another order
    assert [data.fetch(tokens[i]).tolist() for i in (3, 30, 49, 0)] == [
        first[i] for i in (3, 30, 49, 0)
    ]
    other = [
        data.fetch(row(data.draw(1, "lower", 0, 1), 0)).tolist(),
        data.fetch(tokens[7]).tolist(),
    ]
    assert other[0] != first[0]
    assert other[1] == first[7]


def test_a_weighted_sampler_is_used():
    weights = torch.zeros(24)
    weights[[2, 5]] = 1.0
    loader = DataLoader(Rows(), batch_size=8, sampler=WeightedRandomSampler(weights, 24))
    data = problem(loader).lower_data
    seen = data.fetch(row(data.draw(0, "lower", 0, 1), 0))[1]
    assert set(seen.tolist()) <= {TARGETS[2].item(), TARGETS[5].item()}
    with pytest.raises(RuleError, match="must be a fixed partition for SABA"):
        SABA(lr_x=0.1, lr_y=0.1).start(problem(loader))


@pytest.mark.parametrize("method", ["soba", "f2sa", "stocbio", "saba"])
def test_micro_batches_change_memory_not_numbers(method):
    from mindgap.bilevel import METHODS

    make = METHODS[method]
    whole, parts = (
        solve(problem(micro_batch=m), make(lr_x=0.05, lr_y=0.1), 12).state for m in (None, 3)
    )
    assert torch.allclose(whole.x, parts.x, atol=1e-6)
    assert whole.calls == parts.calls


def test_variables_of_different_dtypes():
    """float32 weights above, a bfloat16 model with a float32 bias below."""
    torch.manual_seed(0)
    model = nn.Linear(3, 1).to(torch.bfloat16)
    model.bias = nn.Parameter(model.bias.detach().float())

    def score(y, b):
        return (b[0].bfloat16() @ y["weight"].T).float()[:, 0] + y["bias"] - b[1]

    made = BilevelProblem(
        lambda x, y, b: score(y, b).square().mean(),
        lambda x, y, b: (
            (x[b[2]].sigmoid() * score(y, b).square()).mean()
            + 0.01 * y["weight"].float().square().sum()
        ),
        torch.zeros(24),
        model,
        (FEATURES, TARGETS),
        (FEATURES, TARGETS, torch.arange(24)),
        batch_size=8,
    )
    oracle = TorchOracle(made)
    x, y = oracle.start
    assert (x.dtype, y.dtype) == (torch.float32, torch.float32)
    assert [p.dtype for p in made.view_y(y).parameters()] == [torch.bfloat16, torch.float32]
    before = float(made.loss("upper", x, y))
    solution = solve(made, SOBA(lr_x=0.5, lr_y=0.2), 60).check()
    assert solution.y.weight.dtype == torch.bfloat16
    assert float(made.loss("upper", solution.state.x, solution.state.y)) < before
    pure = BilevelProblem(
        upper,
        lambda x, y, b: (
            (b[0] @ y.double().float() - b[1]).square().mean() + x.exp() @ y.float().square()
        ),
        torch.zeros(3),
        torch.zeros(3, dtype=torch.float64),
        (FEATURES.double(), TARGETS),
        (FEATURES, TARGETS),
        batch_size=8,
    )
    run = solve(pure, SOBA(lr_x=0.05, lr_y=0.1), 20).check()
    assert (run.x.dtype, run.y.dtype) == (torch.float32, torch.float64)


class Coder(nn.Module):
    scale = 2.0

    def __init__(self):
        super().__init__()
        self.inside = nn.Linear(3, 2, bias=False)
        self.outside = nn.Linear(2, 3, bias=False)

    def encode(self, a, *, factor=1.0):
        return factor * self.inside(a)

    def forward(self, a):
        return self.outside(self.encode(a))


def test_any_method_of_a_module_can_be_used():
    torch.manual_seed(0)
    coder = Coder()
    made = BilevelProblem(
        lambda x, y, b: (x.encode(b[0], factor=0.5) @ y - b[1]).square().mean(),
        lambda x, y, b: (
            (x.inside(b[0]) @ y - b[1]).square().mean() + 0.1 * x.scale * y.square().sum()
        ),
        coder,
        torch.zeros(2),
        (FEATURES, TARGETS),
        (FEATURES, TARGETS),
        batch_size=8,
    )
    x = made.pack_x.start
    bound = made.view_x(2.0 * x)
    assert torch.allclose(bound.encode(FEATURES), 2.0 * coder.encode(FEATURES))
    f_x, _ = TorchOracle(made).upper(x, torch.ones(2), FULL)
    assert f_x[:6].norm() > 0
    assert f_x[6:].norm() == 0  # the decoder is not used
    solve(made, SOBA(lr_x=0.05, lr_y=0.1), 10).check()
    with pytest.raises(AttributeError, match="decode"):
        bound.decode(FEATURES)
