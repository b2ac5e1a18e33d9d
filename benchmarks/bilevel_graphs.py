"""Eager torch, CUDA graphs and compiled JAX on hyper-cleaning (784 x 10 weights, 5,000 sample
weights, batch 64).

    python benchmarks/bilevel_graphs.py [--device cuda|cpu] [--steps 2000] \
        [--methods soba,slip,stocbio,f2sa]

Prints one row per method as it goes: iterations per second of eager torch and of CUDA graphs, their
ratio, and the relative difference of x between the two after the same iterations. With OUT set,
rows go to $OUT/bilevel_graphs.json.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

import torch  # noqa: E402
from bilevel_cleaning import cleaning_problem  # noqa: E402
from bilevel_timing import SETTINGS  # noqa: E402

from mindgap.bilevel import METHODS, solve  # noqa: E402
from mindgap.bilevel.backends.graphs import CudaGraphs  # noqa: E402


def rate(problem: Any, method: Any, steps: int, backend: Any) -> tuple[float, Any]:
    """Iterations per second after a warm-up of the same backend, and x at the end."""
    solve(problem, method, steps=32, backend=backend)
    begin = time.perf_counter()
    x = solve(problem, method, steps=steps, backend=backend).check().state.x.cpu()
    return steps / (time.perf_counter() - begin), x


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--methods", default="soba,slip,slip-shared,masoba,amigo,stocbio,f2sa")
    options = parser.parse_args()
    problem, _ = cleaning_problem(options.device)
    rows = []
    print("| method | eager it/s | graphs it/s | ratio | difference of x |\n|---|---|---|---|---|")
    for name in options.methods.split(","):
        method = METHODS[name.split("-")[0]](**SETTINGS[name])
        eager, a = rate(problem, method, options.steps, None)
        graphs, b = rate(problem, method, options.steps, CudaGraphs())
        away = float((a - b).norm() / a.norm())
        rows.append({"method": name, "eager": eager, "graphs": graphs, "difference": away})
        print(
            f"| {name} | {eager:,.0f} | {graphs:,.0f} | {graphs / eager:.2f} | {away:.1e} |",
            flush=True,
        )
        if "OUT" in os.environ:
            Path(os.environ["OUT"], "bilevel_graphs.json").write_text(json.dumps(rows))
    if options.device == "cuda":
        print(f"# {torch.cuda.get_device_name()}, torch {torch.__version__}")


if __name__ == "__main__":
    main()
