"""H7: under noise of infinite variance SGD's E‖∇f(x_k)‖² is infinite for fixed steps; clipped SGD
converges.

An infinite mean cannot be seen in a mean. What can be seen: over independent replicas, the median
of the means of blocks of size n tends to E‖∇f‖² where that is finite, and grows like n^(2/α - 1)
where the tail index of ‖∇f‖ is α < 2. So the verdict rests on the slope of log(median of block
means) against log n, and on quantiles over time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from mindgap.lab.studies.spec import Figure, Parts, Row, Run, Source, Study, Trial, scales
from mindgap.lab.studies.verdict import by_method, median_of_means, slope, spread

#: The slopes of log block mean against log block size that count as growth and as none: the rule.
GROWS, FLAT = 0.15, 0.1
#: A median is taken of at least so many block means, a slope through blocks of at least this size.
LEAST_BLOCKS = SMALLEST_BLOCK = 16


def loop(trial: Trial) -> Iterator[Row]:
    """Many replicas of x <- x - η_k clip(x + ξ_k) on f(x) = x²/2 on the line, from x = 1, with
    steps η_k = 4·``lr``/(k + 3). Without the setting ``clip`` nothing is clipped.

    Rows at powers of two hold ``step`` and the quantiles ``q50``, ``q90`` and ``q99`` of ‖∇f‖² = x²
    over the replicas. Rows at the end hold the size of a ``block`` of replicas and ``block_mean``,
    the median of the means of such blocks of x².

    Each replica is one coordinate: in one dimension GClip clips |g|, which is what CClip does to
    every coordinate.
    """
    import torch

    from mindgap.optim import CClip

    replicas = trial["replicas"]
    points = torch.ones(replicas, dtype=torch.float64)
    optimizer: torch.optim.Optimizer
    if trial["clip"]:
        # Theorem 1's schedule as its proof has it: τ_k = G k^(1/α).
        optimizer = CClip([points], lr=1.0, tau=lambda k: trial["tau"] * k ** (1 / trial["alpha"]))
    else:
        optimizer = torch.optim.SGD([points], lr=1.0)
    rng = trial.numpy_generator("noise")
    if trial.restored:
        points.copy_(trial.restored["points"])
        rng.bit_generator.state = trial.restored["rng"]
        optimizer.load_state_dict(trial.restored["optimizer"])
    for step in range(trial.restored.get("step", 0) + 1, trial["steps"] + 1):
        points.grad = points + torch.from_numpy(_noise(rng, replicas, trial["tail"]))
        with trial.timed():
            optimizer.param_groups[0]["lr"] = trial["lr"] * 4 / (step + 3)
            optimizer.step()
        if step & (step - 1) == 0 or step == trial["steps"]:  # powers of two
            squares = points.square().numpy()
            trial.save(
                {
                    "step": step,
                    "points": points,
                    "optimizer": optimizer.state_dict(),
                    "rng": rng.bit_generator.state,
                }
            )
            yield {
                "step": step,
                **{f"q{q}": float(np.quantile(squares, q / 100)) for q in (50, 90, 99)},
            }
    squares = points.square().numpy()
    size = 1
    while replicas // size >= LEAST_BLOCKS:
        yield {
            "block": size,
            "block_mean": median_of_means(squares.tolist(), blocks=replicas // size),
        }
        size *= 4


def _noise(rng: np.random.Generator, replicas: int, tail: float) -> np.ndarray:
    """One draw of noise per replica: symmetric Pareto with |ξ| >= 1 and tail index ``tail``, or
    standard normal where the index is infinite.
    """
    if np.isinf(tail):
        return rng.standard_normal(replicas)
    return rng.choice([-1.0, 1.0], size=replicas) * rng.random(replicas) ** (-1 / tail)


def judge(runs: Sequence[Run]) -> Parts:
    """Ask whether SGD's E‖∇f‖² is infinite and clipped SGD converges.

    Returns:
        Three parts: SGD's block means grow with the size of the block (slope of their logs above
        :data:`GROWS`, by two standard errors over seeds); GClip's do not (below :data:`FLAT`); the
        median over seeds of GClip's ``q99`` halves between the third reading (step 4) and the last.
    """
    parts, runs_of = Parts(), by_method(runs)
    sgd_slope, sgd_error = _block_slope(runs_of["SGD"])
    clip_slope, clip_error = _block_slope(runs_of["GClip"])
    early, late = (
        float(np.median([run.column("q99")[i] for run in runs_of["GClip"]])) for i in (2, -1)
    )
    parts.add(
        "SGD's block means grow",
        holds=sgd_slope - 2 * sgd_error > GROWS,
        words=f"like n^{sgd_slope:.2f}±{sgd_error:.2f}",
        numbers={"sgd_slope": sgd_slope},
    )
    parts.add(
        "GClip's do not",
        holds=clip_slope + 2 * clip_error < FLAT,
        words=f"n^{clip_slope:.2f}±{clip_error:.2f}",
        numbers={"gclip_slope": clip_slope},
    )
    parts.add(
        "GClip's 99 % quantile of ‖∇f‖² falls",
        holds=late < 0.5 * early,
        words=f"{early:.2g} to {late:.2g}",
        numbers={"gclip_q99_early": early, "gclip_q99_late": late},
    )
    return parts


def _block_slope(runs: Sequence[Run]) -> tuple[float, float]:
    """Slope of log block mean against log block size, averaged over seeds, and its standard error
    over seeds.

    Blocks below :data:`SMALLEST_BLOCK` are left out: there the median of means lies below the mean
    for any skew law, x² of a Gaussian included, and the slope would measure that.
    """
    slopes = []
    for run in runs:
        block, mean = np.array(run.column("block")), np.array(run.column("block_mean"))
        large = block >= SMALLEST_BLOCK
        slopes.append(slope(np.log(block[large]), np.log(mean[large]))[0])
    return float(np.mean(slopes)), spread(slopes) / math.sqrt(len(slopes))


STUDY = Study(
    name="h7-infinite-variance",
    claim="H7",
    title="Infinite variance breaks SGD, not clipped SGD",
    statement="With noise of infinite variance E‖∇f(x_k)‖² is infinite for SGD at every fixed "
    "sequence of steps, while clipped SGD converges.",
    source=Source("thesis", "Remark 4.4.1"),
    scales=scales(
        {"steps": 256, "replicas": 16_384, "tail": 1.5, "alpha": 1.4, "tau": 1.0, "lr": 1.0},
        {"replicas": 262_144, "steps": 1024},
        seeds=(4, 10),
    ),
    methods={"SGD": {"clip": False}, "GClip": {"clip": True}},
    loop=loop,
    judge=judge,
    rule="The median of block means of SGD's ‖∇f‖² grows with the block size n (slope above 0.15 "
    "by two standard "
    "errors), GClip's does not (below 0.1), and GClip's 99 % quantile falls by half.",
    tunable={"lr": (0.05, 5.0)},
    tune_on="q90",
    figures=(
        Figure(
            "Median of block means of ‖∇f‖²",
            "block_mean",
            "median of block means",
            x="block",
            x_label="block size n",
            log_x=True,
            log_y=True,
            caption="A finite mean would level off as the block grows: SGD's does not.",
        ),
        Figure(
            "99 % quantile of ‖∇f(x_k)‖² over replicas",
            "q99",
            "99 % quantile of ‖∇f‖²",
            log_x=True,
            log_y=True,
        ),
    ),
)
