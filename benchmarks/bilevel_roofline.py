"""What can 27 points x 5 seeds in one program cost at least, in runs? ijcnn1's size, one core.

    JAX_PLATFORMS=cpu python benchmarks/bilevel_roofline.py [--methods slip,soba] [--repeats 5]
    JAX_PLATFORMS=cpu python benchmarks/bilevel_roofline.py --by-hand

Processor time, the least over the repeats. *flops* are those of the products with the batch alone:
a gradient of a logistic loss reads it twice, H z and J z together with the gradient four times.
*floor*: 135 times the flops of one run at the speed of the largest matrix product that this core
reached, divided by the time of one run; exponentials, copies and everything else are free there.
``--by-hand`` times SOBA with derivatives written out, also where all 135 runs read one batch.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("PJRT_NPROC", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))

import torch
from bilevel_tasks import equal_batches

from mindgap.bilevel import METHODS, solve
from mindgap.bilevel.backends.compiled import JaxBackend
from mindgap.bilevel.backends.many import ManyRuns
from mindgap.lab.tasks.problems.compiled import regularisation_losses
from mindgap.lab.tasks.problems.regularisation import ijcnn1_selection

STEPS, SEEDS, POINTS = 4000, 5, 27
#: products with a batch of 64 x 22 in one iteration
PRODUCTS = {"slip": 8, "soba": 6, "masoba": 6, "saba": 6, "borep": 9, "f2sa": 12}


def least(run: Callable[[], Any], repeats: int) -> float:
    """Least processor time of some calls, after one that compiles."""
    run()
    times = []
    for _ in range(repeats):
        begin = time.process_time()
        run()
        times.append(time.process_time() - begin)
    return min(times)


def speed(repeats: int) -> float:
    """Operations per second of the best matrix product, float32."""
    best = 0.0
    for n in (128, 256, 512):
        a = torch.randn(n, n)
        best = max(best, 2 * n**3 * 20 / least(lambda a=a: [a @ a for _ in range(20)], repeats))
    return best


def by_hand(seeds: int, points: int, joined: bool, repeats: int) -> float:
    """Microseconds per iteration of ``points`` runs of SOBA on the batches of each of ``seeds``,
    its derivatives written out.

    Args:
        seeds: batches per level and iteration.
        points: runs per batch.
        joined: one product for y and z together, in place of one each.
        repeats: the least time of so many counts.
    """
    import jax
    from jax import lax, numpy as jnp

    size, batch, unknowns = 150, 64, 22
    ids = jax.random.randint(jax.random.key(0), (STEPS, seeds, 2), 0, size)
    lower, upper = (jax.random.normal(jax.random.key(k), (size, batch, unknowns)) for k in (1, 2))
    rates = 1e-3 * jnp.arange(points)[:, None]

    def step(a: Any, b: Any, x: Any, y: Any, z: Any) -> tuple[Any, Any, Any]:
        scale, stack = jnp.exp(x), jnp.concatenate
        p, q = jnp.split(stack([y, z]) @ a.T, 2) if joined else (y @ a.T, z @ a.T)
        r = jax.nn.sigmoid(p)
        curved = r * (1 - r) * q
        g, h = jnp.split(stack([r, curved]) @ a, 2) if joined else (r @ a, curved @ a)
        f = jax.nn.sigmoid(y @ b.T) @ b / batch
        y, z, x = (
            y - 0.05 * (g / batch + scale * y),
            z - 0.05 * (h / batch + scale * z - f),
            x + rates * (scale * y * z),
        )
        return x, y, z

    @jax.jit
    def run(ids: Any, lower: Any, upper: Any) -> Any:
        def iteration(t: Any, values: Any) -> Any:
            i = ids[t]
            return jax.vmap(step)(lower[i[:, 0]], upper[i[:, 1]], *values)

        zero = jnp.zeros((seeds, points, unknowns))
        return lax.fori_loop(0, STEPS, iteration, (zero - 3, zero + 0.1, zero))

    took = least(lambda: jax.block_until_ready(run(ids, lower, upper)), repeats)
    return took / STEPS * 1e6


def print_by_hand(repeats: int) -> None:
    """The table of SOBA by hand."""
    one = by_hand(1, 1, False, repeats)
    print(f"one run: {one:.1f} µs per iteration\n\n| 135 runs | µs | in runs |\n|---|---|---|")
    for words, seeds, points in (("a batch per seed", SEEDS, POINTS), ("one batch", 1, 135)):
        for joined in (False, True):
            took = by_hand(seeds, points, joined, repeats)
            more = ", y and z in one product" if joined else ""
            print(f"| {words}{more} | {took:.0f} | {took / one:.0f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--methods", default=",".join(PRODUCTS))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--by-hand", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.by_hand:
        return print_by_hand(options.repeats)
    peak = speed(options.repeats)
    print(f"largest product: {peak / 1e9:.0f} Gflop/s\n")
    task = ijcnn1_selection(source="synthetic", rows=20_000, dtype=torch.float32)
    problem, backend = equal_batches(task.problem()), JaxBackend(*regularisation_losses(task))
    print("| method | one run, µs per iteration | 135 runs | in runs | floor, in runs |")
    print("|---|---|---|---|---|")
    for key in options.methods.split(","):
        extra = {"lr_z": 0.05} if key in ("slip", "borep") else {}
        points = [METHODS[key](lr_x=0.01 * (i + 1), lr_y=0.05, **extra) for i in range(POINTS)]
        one = least(lambda p=points: solve(problem, p[0], STEPS, backend=backend), options.repeats)

        def many(points: list[Any] = points) -> None:
            runs = ManyRuns(backend, problem, points, list(range(SEEDS)))
            runs.run(STEPS)
            runs.values["x"].block_until_ready()

        all_runs = least(many, options.repeats)
        flops = PRODUCTS[key] * 2 * 64 * 22 * POINTS * SEEDS * STEPS
        print(
            f"| {METHODS[key].name} | {one / STEPS * 1e6:.1f} | {all_runs / STEPS * 1e6:.0f} | "
            f"{all_runs / one:.0f} | {flops / peak / one:.1f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
