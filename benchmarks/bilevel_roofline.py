"""What can 27 points x 5 seeds in one program cost at least, in runs? ijcnn1's size, one core.

    JAX_PLATFORMS=cpu python benchmarks/bilevel_roofline.py [--methods slip,soba] [--repeats 5]

Processor time, the least over the repeats. *flops* are those of the products with the batch alone:
a gradient of a logistic loss reads it twice, H z and J z together with the gradient four times.
*floor*: 135 times the flops of one run at the speed of the largest matrix product that this core
reached, divided by the time of one run; exponentials, copies and everything else are free there.
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


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--methods", default=",".join(PRODUCTS))
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
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
