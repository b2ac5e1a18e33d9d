"""Cost of an iteration against the number of samples, the dimension and the batch: does it grow as it should?"""

from __future__ import annotations

from typing import Any

from bilevel_ijcnn1 import logistic, logistic_losses
from bilevel_timing import measure_compiled

from mindgap.bilevel import BilevelProblem


def part_scaling(options: Any) -> None:
    names = ("soba", "slip", "stocbio")

    def rate(problem: BilevelProblem, name: str) -> float:
        return measure_compiled(problem, logistic_losses(), name, 4096, options.repeats, options.unroll)["ours"]

    print("| samples | " + " | ".join(f"{n} us" for n in names) + " |\n|---" * 1 + "|---" * len(names) + "|")
    for n in (1000, 10_000, 100_000, 1_000_000):
        problem = logistic(n, n)
        print(f"| {n} | " + " | ".join(f"{1e6 / rate(problem, name):.1f}" for name in names) + " |", flush=True)
    print("| dimension | " + " | ".join(f"{n} us" for n in names) + " |\n|---" * 1 + "|---" * len(names) + "|")
    for d in (22, 200, 2000, 20000):
        problem = logistic(2048, 2048, d)
        print(f"| {d} | " + " | ".join(f"{1e6 / rate(problem, name):.1f}" for name in names) + " |", flush=True)
    print("| batch | " + " | ".join(f"{n} us" for n in names) + " |\n|---" * 1 + "|---" * len(names) + "|")
    for b in (16, 64, 256, 1024):
        problem = logistic(20480, 20480, 200, b)
        print(f"| {b} | " + " | ".join(f"{1e6 / rate(problem, name):.1f}" for name in names) + " |", flush=True)
