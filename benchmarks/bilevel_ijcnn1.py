"""Regularisation selection of ijcnn1's size: every method compiled, against a loop by hand."""

from __future__ import annotations

from typing import Any

import torch
from bilevel_timing import SETTINGS, measure, prepare

from mindgap.bilevel import Batches, BilevelProblem


def logistic(
    n: int = 49990, m: int = 91701, d: int = 22, batch: int = 64, dtype: Any = torch.float32
) -> BilevelProblem:
    """A problem of ijcnn1's size on synthetic samples."""
    draw = torch.Generator().manual_seed(0)
    truth = torch.randn(d, generator=draw)

    def sample(rows: int) -> tuple[torch.Tensor, torch.Tensor]:
        features = torch.randn(rows, d, generator=draw)
        return features.to(dtype), torch.sign(
            features @ truth + torch.randn(rows, generator=draw)
        ).to(dtype)

    softplus = torch.nn.functional.softplus

    def upper(x: Any, y: Any, b: Any) -> Any:
        return softplus(-b[1] * (b[0] @ y)).mean()

    def lower(x: Any, y: Any, b: Any) -> Any:
        return upper(x, y, b) + 0.5 * (x.exp() * y.square()).sum()

    return BilevelProblem(
        upper,
        lower,
        torch.full((d,), -1.0, dtype=dtype),
        torch.zeros(d, dtype=dtype),
        Batches(sample(m), batch, last="drop"),
        Batches(sample(n), batch, last="drop"),
    )


def logistic_losses() -> tuple[Any, Any]:
    import jax
    import jax.numpy as jnp

    def upper(x: Any, y: Any, b: Any) -> Any:
        return jax.nn.softplus(-b[1] * (b[0] @ y)).mean()

    def lower(x: Any, y: Any, b: Any) -> Any:
        return upper(x, y, b) + 0.5 * (jnp.exp(x) * y**2).sum()

    return upper, lower


def part_ijcnn1(options: Any) -> None:
    problem, losses = logistic(), logistic_losses()
    names = options.methods.split(",") if options.methods else list(SETTINGS)
    # Fewer iterations where one takes long.
    steps = dict.fromkeys(("amigo", "stocbio", "bsa", "mrbo", "sustain", "f2sa-10"), 8192) | {
        "vrbo": 2000
    }
    many = {n: steps.get(n, 32768) if options.steps == 8192 else options.steps for n in names}
    races = {n: prepare(problem, losses, n, many[n], options.unroll) for n in names}
    rows = measure(races, options.repeats)
    print("| method | ours it/s | by hand it/s | ratio of the best | median ratio | compile s |")
    print("|---|---|---|---|---|---|")
    for name, row in rows.items():
        print(
            f"| {name} | {row['ours']:,.0f} | {row['hand']:,.0f} | {row['ours'] / row['hand']:.2f} "
            f"| {row['median']:.2f} | {row['compile']:.1f} |"
        )
    for name in ("slip", "slip-shared"):
        if name in rows and "soba" in rows:
            print(f"time of {name} / time of SOBA: {rows['soba']['ours'] / rows[name]['ours']:.2f}")
