"""Cost of an iteration against the number of samples, the dimension and the batch: does it grow as
it should?

Beside the methods stands a control: a compiled loop that does nothing but read one lower and one
upper minibatch. What it takes longer on more samples is the memory's doing, not a method's.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from bilevel_ijcnn1 import logistic, logistic_losses
from bilevel_timing import SETTINGS, Race, measure, prepare

from mindgap.bilevel import BilevelProblem

#: minibatches instead of all samples at VRBO's refreshes, so that its period need not grow with the
#: data
EXTRA: dict[str, dict[str, Any]] = {
    "vrbo": {**SETTINGS["vrbo"], "period": 20, "refresh": 100},
    "svrb": {"lr_x": 0.01, "lr_y": 0.1, "mu": 0.1},
}


def reading(problem: BilevelProblem, steps: int) -> Race:
    """The control: the sums of one lower and one upper minibatch an iteration, in the random
    order of a partition.
    """
    import jax
    import jax.numpy as jnp
    from jax import lax

    from mindgap.bilevel.backends.compiled import JaxBackend

    oracle = JaxBackend(*logistic_losses()).oracle(problem, _soba(), 0, False)
    arrays = oracle.arrays["lower"][0], oracle.arrays["upper"][0]
    ids = [
        problem.data(level).draw(0, level, 0, steps).which.astype(np.int32)
        for level in ("lower", "upper")
    ]

    @jax.jit
    def run(arrays: Any, ids: Any) -> Any:
        def one(t: Any, total: Any) -> Any:
            return total + sum(
                lax.dynamic_index_in_dim(a, i[t], keepdims=False).sum() for a, i in zip(arrays, ids)
            )

        return lax.fori_loop(0, steps, one, jnp.zeros(()))

    jax.block_until_ready(run(arrays, ids))
    return Race(lambda: jax.block_until_ready(run(arrays, ids)), steps, 0.0)


def _soba() -> Any:
    from mindgap.bilevel import METHODS

    return METHODS["soba"](**SETTINGS["soba"])


def sweep(
    title: str,
    problems: dict[int, BilevelProblem],
    names: tuple[str, ...],
    steps: Any,
    repeats: int,
) -> None:
    """Microseconds an iteration of each method on each problem, all in turn, and the slope of a
    line through the logarithms of the last three."""
    races: dict[str, Race] = {}
    for size, problem in problems.items():
        for name in names:
            many = steps(size, name)
            make = reading if name == "reading" else None
            races[f"{name} {size}"] = (
                make(problem, many)
                if make
                else prepare(
                    problem, logistic_losses(), name, many, hand=False, settings=EXTRA.get(name)
                )
            )
    rows = measure(races, repeats)
    print(f"| {title} | " + " | ".join(names) + " |\n|---" + "|---" * len(names) + "|")
    cost = {name: [1e6 / rows[f"{name} {size}"]["ours"] for size in problems] for name in names}
    for i, size in enumerate(problems):
        print(f"| {size:,} | " + " | ".join(f"{cost[name][i]:.1f}" for name in names) + " |")
    last = np.log(list(problems))[-3:]
    slopes = [np.polyfit(last, np.log(cost[name][-3:]), 1)[0] for name in names]
    print("| slope | " + " | ".join(f"{s:.2f}" for s in slopes) + " |", flush=True)


def part_scaling(options: Any) -> None:
    few = {"stocbio": 1024, "vrbo": 40, "svrb": 1024}

    def by_samples(size: int, name: str) -> int:
        return few.get(name, 8192)

    names = ("reading", "soba", "slip", "saba", "srba", "stocbio", "vrbo", "svrb")
    sizes = (1000, 10_000, 100_000, 1_000_000)
    sweep("samples", {n: logistic(n, n) for n in sizes}, names, by_samples, options.repeats)

    def by_dimension(size: int, name: str) -> int:
        return max(few.get(name, 4096) * 22 // size, 32)

    names = ("reading", "soba", "slip", "saba", "stocbio")
    sizes = (22, 200, 2000, 20_000)
    sweep(
        "dimension",
        {d: logistic(1024, 1024, d) for d in sizes},
        names,
        by_dimension,
        options.repeats,
    )
    sizes = (16, 64, 256, 1024)
    problems = {b: logistic(20480, 20480, 200, b) for b in sizes}
    sweep(
        "batch",
        problems,
        names,
        lambda size, name: few.get(name, 2048) // (size // 16),
        options.repeats,
    )
