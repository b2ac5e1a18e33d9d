"""Recurrent and attention modules as lower and as upper variables; two processes give the run
of one.
"""

from __future__ import annotations

import socket

import numpy as np
import pytest
import torch
from cases.bilevel import BY_KEY, CASES
from references.bilevel_small import small_quadratic
from torch import nn

from mindgap.bilevel import BilevelProblem, TorchOracle, solve
from mindgap.bilevel.backends.oracles import double_backward_kernels
from mindgap.bilevel.backends.trial import try_problem
from mindgap.bilevel.data.sample import Sample


class Recurrent(nn.Module):
    def __init__(self, features=3, hidden=4):
        super().__init__()
        self.lstm = nn.LSTM(features, hidden, batch_first=True)
        self.head = nn.Linear(hidden, 1)

    def forward(self, b):
        return self.head(self.lstm(b)[0][:, -1])


class Attention(nn.Module):
    def __init__(self, features=4):
        super().__init__()
        self.mix = nn.Linear(features, 3 * features)
        self.head = nn.Linear(features, 1)

    def forward(self, b):
        q, k, v = self.mix(b).chunk(3, dim=-1)
        out = nn.functional.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None])[:, 0]
        return self.head(out.mean(1))


def decay(y):
    return 0.05 * sum(p.square().sum() for p in y.parameters())


def network_problem(kind, level):
    """The network is the lower variable (weights to learn) or the upper one (a representation
    under a linear head).
    """
    torch.manual_seed(0)
    features = 3 if kind is Recurrent else 4
    data, targets = torch.randn(12, 5, features), torch.randn(12, 1)
    net = kind(features)
    if level == "lower":
        x, y = torch.zeros(1), net

        def upper(x, y, b):
            return (y(b[0]) - b[1]).square().mean()

        def lower(x, y, b):
            return (y(b[0]) - b[1]).square().mean() + x.exp().sum() * decay(y)
    else:
        x, y = net, torch.zeros(2)

        def upper(x, y, b):
            return (x(b[0]) * y[0] + y[1] - b[1]).square().mean()

        def lower(x, y, b):
            return (x(b[0]) * y[0] + y[1] - b[1]).square().mean() + 0.1 * y.square().sum()

    return BilevelProblem(
        upper, lower, x, y, (data[:6], targets[:6]), (data[6:], targets[6:]), batch_size=3
    )


KINDS = pytest.mark.parametrize("kind", [Recurrent, Attention], ids=["lstm", "attention"])


@KINDS
@pytest.mark.parametrize("level", ["lower", "upper"])
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.id)
def test_networks_as_variables(case, kind, level):
    problem = network_problem(kind, level)
    flags = torch.backends.cudnn.enabled, torch.backends.cuda.flash_sdp_enabled()
    solution = solve(problem, case.make(), steps=2).check()
    assert (torch.backends.cudnn.enabled, torch.backends.cuda.flash_sdp_enabled()) == flags
    network = solution.x if level == "upper" else solution.y
    assert isinstance(network, nn.Module)
    flat = torch.cat([p.detach().reshape(-1) for p in network.parameters()])
    assert torch.equal(flat, solution.state.x if level == "upper" else solution.state.y)
    assert torch.isfinite(flat).all()


@KINDS
def test_second_derivatives_through_networks_are_right(kind):
    """Against differences of first derivatives, in float64."""
    torch.manual_seed(0)
    net = kind().double()
    features = 3 if kind is Recurrent else 4
    data = torch.randn(6, 5, features, dtype=torch.float64)
    problem = BilevelProblem(
        lambda x, y, b: y(b).mean(),
        lambda x, y, b: (y(b) - x).square().mean() + x[0] * decay(y),
        torch.ones(1, dtype=torch.float64),
        net,
        data,
        data,
        batch_size=3,
    )
    oracle = TorchOracle(problem)
    try_problem(oracle)
    assert oracle.plain_kernels == (
        kind is Attention
    )  # on the CPU only fused attention lacks a double backward
    x, y = oracle.start
    z, step = torch.randn_like(y), 1e-6
    hz, jz = oracle.second(x, y, z, Sample(0), ("Hz", "Jz"))
    ahead, behind = (oracle.lower(x, y + s * step * z, Sample(0)) for s in (1, -1))
    np.testing.assert_allclose(hz, (ahead - behind) / (2 * step), rtol=1e-5, atol=1e-7)
    ahead, behind = (oracle.lower_x(x, y + s * step * z, Sample(0)) for s in (1, -1))
    np.testing.assert_allclose(jz, (ahead - behind) / (2 * step), rtol=1e-5, atol=1e-7)


def test_kernel_switches_are_restored_after_an_error():
    before = torch.backends.cudnn.enabled, torch.backends.cuda.flash_sdp_enabled()
    inside = []

    def fails():
        with double_backward_kernels():
            inside.append((torch.backends.cudnn.enabled, torch.backends.cuda.flash_sdp_enabled()))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    assert inside == [(False, False)]
    assert (torch.backends.cudnn.enabled, torch.backends.cuda.flash_sdp_enabled()) == before


def test_a_module_is_left_alone():
    problem = network_problem(Recurrent, "lower")
    net = problem.pack_y.module
    start = [p.detach().clone() for p in net.parameters()]
    solution = solve(problem, BY_KEY["soba"].make(), steps=3)
    assert all(torch.equal(a, b) for a, b in zip(start, net.parameters()))
    assert all(p.grad is None for p in net.parameters())
    assert not torch.equal(start[0], next(solution.y.parameters()))
    assert torch.equal(start[0], next(net.parameters()))


def test_batch_statistics_do_not_leak_between_evaluations():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    data = torch.randn(12, 3)
    problem = BilevelProblem(
        lambda x, y, b: y(b).square().mean(),
        lambda x, y, b: (y(b) - 1).square().mean() + x.exp().sum() * decay(y),
        torch.zeros(1),
        net,
        data,
        data,
        batch_size=6,
    )
    before = net[1].running_mean.clone()
    solve(problem, BY_KEY["soba"].make(), steps=3)
    assert torch.equal(before, net[1].running_mean)
    assert int(net[1].num_batches_tracked) == 0


KEYS = list(BY_KEY)


def _rank(rank, port, folder):
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    quadratic = small_quadratic(seed=4, dtype=torch.float32)
    found = {}
    for key in KEYS:
        state = solve(
            quadratic.problem((15, 16)), BY_KEY[key].make(), steps=12, distributed=True
        ).state
        found[key] = (state.x, state.y, state.calls)
    torch.save(found, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


def test_two_processes_give_the_run_of_one(tmp_path):
    """Also where a batch (15 samples) does not divide evenly: parts are weighted by their size."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    torch.multiprocessing.spawn(_rank, (port, str(tmp_path)), nprocs=2)
    ranks = [torch.load(tmp_path / f"{r}.pt", weights_only=True) for r in range(2)]
    quadratic = small_quadratic(seed=4, dtype=torch.float32)
    for key in KEYS:
        state = solve(quadratic.problem((15, 16)), BY_KEY[key].make(), steps=12).state
        for x, y, calls in (ranks[0][key], ranks[1][key]):
            assert calls == state.calls
            for name, a, b in (("x", x, state.x), ("y", y, state.y)):
                scale = float(b.abs().max())
                np.testing.assert_allclose(
                    a, b, rtol=1e-6, atol=1e-6 * scale, err_msg=f"{key} {name}"
                )
        assert torch.equal(ranks[0][key][0], ranks[1][key][0])


def test_distributed_needs_a_group():
    with pytest.raises(
        ValueError, match=r"distributed needs torch\.distributed to be initialised, got True"
    ):
        BY_KEY["soba"].make().start(small_quadratic(seed=4).problem(16), distributed=True)
