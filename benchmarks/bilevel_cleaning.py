"""Hyper-cleaning, 784 x 10 weights and 5,000 sample weights: eager and compiled, against loops
by hand and peers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from bilevel_peers import compare_peers
from bilevel_timing import X, Y, best, measure, prepare

from mindgap.bilevel import METHODS, Batches, BilevelProblem, Constant
from mindgap.bilevel.solver import Eager


def cleaning_problem(device: str, dtype: Any = torch.float32) -> tuple[BilevelProblem, Any]:
    draw = torch.Generator().manual_seed(0)
    features = torch.rand(10000, 784, generator=draw)
    truth = torch.randn(784, 10, generator=draw)
    labels = (features @ truth).argmax(1)
    noisy = torch.where(
        torch.rand(5000, generator=draw) < 0.5,
        torch.randint(0, 10, (5000,), generator=draw),
        labels[:5000],
    )
    features, labels, noisy = features.to(device, dtype), labels.to(device), noisy.to(device)
    entropy = torch.nn.functional.cross_entropy

    def upper(x: Any, y: Any, b: Any) -> Any:
        return entropy(b[0] @ y, b[1])

    def lower(x: Any, y: Any, b: Any) -> Any:
        return (
            torch.sigmoid(x[b[2]]) * entropy(b[0] @ y, b[1], reduction="none")
        ).mean() + 1e-3 * y.square().sum()

    samples = torch.arange(5000, device=device)
    return BilevelProblem(
        upper,
        lower,
        torch.zeros(5000, device=device, dtype=dtype),
        torch.zeros(784, 10, device=device, dtype=dtype),
        Batches((features[5000:], labels[5000:]), 64, last="drop", shuffle=False),
        Batches((features[:5000], noisy, samples), 64, last="drop", shuffle=False),
    ), (upper, lower)


def hand_eager_soba(problem: BilevelProblem, steps: int) -> Callable[[], Any]:
    """SOBA in eager torch with one double backward, tensors kept in shape, no library around it."""
    upper, lower = problem.upper, problem.lower
    below, above = problem.lower_data.data, problem.upper_data.data
    n, m = problem.lower_data.batches, problem.upper_data.batches
    shape_x, shape_y = problem.pack_x.shapes[0], problem.pack_y.shapes[0]

    def run() -> Any:
        x, y = (
            problem.pack_x.start.view(shape_x).clone(),
            problem.pack_y.start.view(shape_y).clone(),
        )
        z = torch.zeros_like(y)
        for t in range(steps):
            i, j = (t * 7) % n * 64, (t * 5) % m * 64
            b, u = tuple(a[i : i + 64] for a in below), tuple(a[j : j + 64] for a in above)
            x.requires_grad_()
            y.requires_grad_()
            (g,) = torch.autograd.grad(lower(x, y, b), y, create_graph=True)
            h, jz = torch.autograd.grad(g, (y, x), grad_outputs=z)
            f_x, f_y = torch.autograd.grad(upper(x, y, u), (x, y), allow_unused=True)
            with torch.no_grad():
                x, y, z = (
                    x + X * jz if f_x is None else x - X * (f_x - jz),
                    y - Y * g,
                    z - Y * (h - f_y),
                )
        return x

    return run


def part_cleaning(options: Any) -> None:
    device = options.device
    problem, _ = cleaning_problem(device)
    steps = options.steps if options.steps != 8192 else 1000
    method = METHODS["soba"](lr_x=Constant(X), lr_y=Constant(Y))
    sync = torch.cuda.synchronize if device == "cuda" else lambda: None

    start = method.start(problem)

    def ours() -> None:
        Eager().run(start, steps, None, None)
        sync()

    hand = hand_eager_soba(problem, steps)
    candidates: dict[str, Callable[[], Any]] = {
        "eager, ours": ours,
        "eager, by hand": lambda: (hand(), sync()),
    }
    for call in candidates.values():
        call()
    times = best(candidates, options.repeats)
    print(
        "| hyper-cleaning 784 x 10, SOBA or one hypergradient an iteration | it/s | to eager by "
        "hand |"
    )
    print("|---|---|---|")
    base = times["eager, by hand"]
    for name, seconds in times.items():
        print(f"| {name} | {steps / seconds:.0f} | {base / seconds:.2f} |")
    if device == "cpu" and not options.no_jax:
        races = {
            n: prepare(problem, cleaning_jax(), n, 2048, options.unroll)
            for n in ("soba", "slip", "stocbio")
        }
        for name, row in measure(races, options.repeats).items():
            print(
                f"| compiled {name}, ours / by hand | {row['ours']:.0f} / {row['hand']:.0f} "
                f"| {row['ours'] / row['hand']:.2f} of by hand (median {row['median']:.2f}), "
                f"compile {row['compile']:.1f} s |"
            )
    if device == "cpu":
        compare_peers(cleaning_problem, cleaning_jax(), options.repeats)


def cleaning_jax() -> tuple[Any, Any]:
    import jax
    import jax.numpy as jnp

    def entropy(scores: Any, labels: Any) -> Any:
        right = (labels[:, None] == jnp.arange(10)[None, :]).astype(scores.dtype)
        return jax.nn.logsumexp(scores, axis=1) - (right * scores).sum(1)

    def upper(x: Any, y: Any, b: Any) -> Any:
        return entropy(b[0] @ y.reshape(784, 10), b[1]).mean()

    def lower(x: Any, y: Any, b: Any) -> Any:
        return (
            jax.nn.sigmoid(x[b[2]]) * entropy(b[0] @ y.reshape(784, 10), b[1])
        ).mean() + 1e-3 * (y**2).sum()

    return upper, lower
