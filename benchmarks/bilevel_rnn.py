"""Hyper-representation with a recurrent encoder: eager torch on CPU or CUDA, against a loop by
hand.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from bilevel_timing import X, Y, best

from mindgap.bilevel import METHODS, BilevelProblem
from mindgap.bilevel.solver import Eager


class Encoder(torch.nn.Module):
    """Two-layer tanh RNN over word vectors, max-pooled, with a linear map on (u, v, |u - v|, u
    v) of a pair.
    """

    def __init__(self, words: int, hidden: int) -> None:
        super().__init__()
        self.rnn = torch.nn.RNN(words, hidden, 2, batch_first=True)
        self.join = torch.nn.Linear(4 * hidden, hidden)

    def forward(self, pair: torch.Tensor) -> torch.Tensor:
        u, v = (self.rnn(pair[:, i])[0].max(1)[0] for i in (0, 1))
        return self.join(torch.cat([u, v, (u - v).abs(), u * v], 1))


def rnn_problem(hidden: int, device: str, words: int = 300, length: int = 20) -> BilevelProblem:
    torch.manual_seed(0)
    encoder = Encoder(words, hidden).to(device)
    head = torch.nn.Sequential(
        torch.nn.Linear(hidden, 1024),
        torch.nn.Tanh(),
        torch.nn.Linear(1024, 1024),
        torch.nn.Tanh(),
        torch.nn.Linear(1024, 3),
    ).to(device)
    data = (
        torch.randn(80, 2, length, words, device=device),
        torch.randint(0, 3, (80,), device=device),
    )
    entropy = torch.nn.functional.cross_entropy

    def upper(x: Any, y: Any, b: Any) -> Any:
        return entropy(y(x(b[0])), b[1])

    def lower(x: Any, y: Any, b: Any) -> Any:
        return upper(x, y, b) + 1e-4 * sum(p.square().sum() for p in y.parameters())

    return BilevelProblem(upper, lower, encoder, head, data, data, batch_size=20)


def hand_eager_slip(problem: BilevelProblem, steps: int) -> Callable[[], Any]:
    """SLIP (one sample for g_y, Hz, Jz) on two modules whose parameters are moved in place, so that
    the recurrent weights stay in one piece for cuDNN; kernels without double backward are off only
    where it is needed."""
    entropy = torch.nn.functional.cross_entropy
    features, labels = problem.lower_data.data

    def run() -> Any:
        enc, head = copy.deepcopy(problem.pack_x.module), copy.deepcopy(problem.pack_y.module)
        enc.rnn.flatten_parameters()
        x, y = list(enc.parameters()), list(head.parameters())
        z, m = [torch.zeros_like(p) for p in y], [torch.zeros_like(p) for p in x]
        for t in range(steps):
            i, j = t % 4 * 20, (t + 1) % 4 * 20
            with torch.backends.cudnn.flags(enabled=False):
                loss = entropy(head(enc(features[i : i + 20])), labels[i : i + 20])
                loss = loss + 1e-4 * sum(p.square().sum() for p in y)
                g = torch.autograd.grad(loss, y, create_graph=True)
                seconds = torch.autograd.grad(g, (*y, *x), grad_outputs=z)
            f = torch.autograd.grad(
                entropy(head(enc(features[j : j + 20])), labels[j : j + 20]), (*x, *y)
            )
            with torch.no_grad():
                h, jz = seconds[: len(y)], seconds[len(y) :]
                for a, b, c in zip(m, f, jz):
                    a.mul_(0.9).add_(b - c, alpha=0.1)
                scale = X / (torch.stack([a.norm() for a in m]).norm() + 1e-10)
                for p, a in zip(x, m):
                    p.sub_(a * scale)
                for a, b, c in zip(z, h, f[len(x) :]):
                    a.sub_(b - c, alpha=Y)
                for p, a in zip(y, g):
                    p.sub_(a, alpha=Y)
            del loss, g, seconds, f, h, jz
        return x

    return run


def part_rnn(options: Any) -> None:
    device, hidden = options.device, options.hidden
    steps = options.steps if options.steps != 8192 else (20 if device == "cuda" else 3)
    cuda = device == "cuda"
    sync = torch.cuda.synchronize if cuda else lambda: None
    problem = rnn_problem(hidden, device)
    method = METHODS["slip"](lr_x=X, lr_y=Y, lr_z=Y, warm_start=0)
    oracle = method.oracle(problem)
    hand = hand_eager_slip(problem, steps)

    def ours() -> None:
        Eager().run(method.start_with(oracle, 0), steps, None, None, keep=False)  # as solve does
        sync()

    candidates: dict[str, Callable[[], Any]] = {"ours": ours, "by hand": lambda: (hand(), sync())}
    memory = {}
    for name, call in candidates.items():
        call()
        if cuda:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            call()
            memory[name] = torch.cuda.max_memory_allocated() / 2**30
    times = best(candidates, options.repeats)
    where = torch.cuda.get_device_name() if cuda else "CPU"
    print(
        f"RNN 300 -> {hidden} x 2, upper {problem.dim_x / 1e6:.1f} M, lower "
        f"{problem.dim_y / 1e6:.2f} M "
        f"unknowns, 20 pairs of 20 words, SLIP, float32, {where}, torch {torch.__version__}"
    )
    print("| how | ms per iteration | peak memory GiB |\n|---|---|---|")
    for name, seconds in times.items():
        print(f"| {name} | {1e3 * seconds / steps:.1f} | {memory.get(name, float('nan')):.2f} |")
    print(
        f"speed ours / by hand {times['by hand'] / times['ours']:.3f}"
        + (f", memory ours / by hand {memory['ours'] / memory['by hand']:.3f}" if cuda else "")
    )
