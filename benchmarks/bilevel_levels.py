"""How far each bilevel method gets on the standard quadratic (32,768 / 1,024 samples, 100 / 10
unknowns, batch 64).

    python benchmarks/bilevel_levels.py [--backend jax|eager] [--methods slip,soba] [--seeds 1]

Prints one row per method and seed: iterations, oracle calls, ||grad Phi||^2 at the start and at the
end (closed form), the level it is expected to reach, and whether it did; with several seeds, the
median and range of each method. Settings are lightly chosen constants, not a ranking. Exit status 1
if a level is missed.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time

import torch

from mindgap.bilevel import METHODS, Power, solve
from mindgap.lab.tasks.problems import quadratic_problem

NEUMANN = {"eta": 0.3, "terms": 10}
#: settings, iterations, level of ||grad Phi||^2
LEVELS: dict[str, tuple[dict, int, float]] = {
    "srba": ({"lr_x": 0.1, "lr_y": 0.1, "period": 264}, 20000, 1e-20),
    "saba": ({"lr_x": 0.1, "lr_y": 0.1}, 20000, 1e-12),
    "svrb": ({"lr_x": 1.0, "lr_y": 1.0, "mu": 0.05}, 20000, 1e-3),
    "mrbo": ({"lr_x": 0.5, "lr_y": 0.5, **NEUMANN}, 20000, 2e-2),
    "sustain": ({"lr_x": 0.5, "lr_y": 0.5, **NEUMANN}, 20000, 2e-2),
    "ttsa": ({"lr_x": 1.0, "lr_y": 0.5, **NEUMANN}, 20000, 2e-2),
    "slip": ({"lr_x": 0.003, "lr_y": 0.1, "lr_z": 0.1}, 20000, 2e-2),
    "slip-shared": ({"lr_x": 0.003, "lr_y": 0.1, "lr_z": 0.1, "samples": "shared"}, 20000, 2e-2),
    "slip-released": (
        {"lr_x": 0.003, "lr_y": 0.1, "lr_z": 0.1, "samples": "as released"},
        20000,
        2e-2,
    ),
    "borep": ({"lr_x": 0.003, "lr_y": 0.1, "lr_z": 0.1}, 20000, 2e-2),
    "vrbo": ({"lr_x": 0.1, "lr_y": 0.1, **NEUMANN, "inner": 10, "period": 5}, 600, 2e-2),
    "soba": ({"lr_x": 1.0, "lr_y": 1.0}, 20000, 2e-2),
    "masoba": ({"lr_x": 0.02, "lr_y": 0.05, "lr_z": 0.05, "theta": 0.1}, 20000, 2e-2),
    "stocbio": ({"lr_x": 0.05, "lr_y": 0.03, **NEUMANN, "inner": 10}, 4000, 2e-2),
    "alset": ({"lr_x": 0.01, "lr_y": 0.03, **NEUMANN, "inner": 10}, 4000, 2e-2),
    "alset-single": ({"lr_x": 0.01, "lr_y": 0.1, **NEUMANN, "inner": 1}, 20000, 2e-2),
    "amigo": ({"lr_x": 0.05, "lr_y": 0.02, "inner": 10, "solves": 10}, 4000, 2e-2),
    "bsa": (
        {
            "lr_x": 0.5,
            "lr_y": Power(0.5, 0.5),
            **NEUMANN,
            "inner": 10,
            "inner_exponent": 0.0,
            "warm": True,
        },
        4000,
        2e-2,
    ),
    "f2sa-shared": (
        {"lr_x": 20.0, "lr_y": 1.0, "lam": 10.0, "delta": 0.1, "inner": 2, "shared_samples": True},
        4000,
        5e-3,
    ),
    "f2sa": (
        {"lr_x": 20.0, "lr_y": 1.0, "lam": 10.0, "delta": 0.1, "inner": 2},
        4000,
        float("inf"),
    ),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", choices=("jax", "eager"), default="jax")
    parser.add_argument("--methods", default=",".join(LEVELS))
    parser.add_argument("--seeds", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(1)
    backend = None
    if options.backend == "jax":
        from mindgap.bilevel.backends.compiled import JaxBackend
        from mindgap.lab.tasks.problems.compiled import quadratic_losses

        backend = JaxBackend(*quadratic_losses())
    missed, ends = 0, {name: [] for name in options.methods.split(",")}
    print("| method | seed | iterations | oracle calls | start | end | level | reached | s |")
    print("|---|---|---|---|---|---|---|---|---|")
    for seed in range(options.seeds):
        quadratic = quadratic_problem(lower=32768, upper=1024, dim_y=100, dim_x=10, seed=seed)
        problem = quadratic.problem(64)
        start = float(quadratic.hypergradient(quadratic.x0).square().sum())
        for name in options.methods.split(","):
            settings, steps, level = LEVELS[name]
            begin = time.perf_counter()
            method = METHODS[name.split("-")[0]](**settings)
            state = solve(problem, method, steps=steps, seed=seed, backend=backend).state
            x = state.oracle.to_torch(state.x)
            end = float(quadratic.hypergradient(x).square().sum())
            missed += not end < level
            ends[name].append(end)
            print(
                f"| {name} | {seed} | {steps} | {state.total_calls} | {start:.2f} | {end:.1e} | "
                f"{level:.0e} "
                f"| {'yes' if end < level else 'NO'} | {time.perf_counter() - begin:.1f} |",
                flush=True,
            )
    if options.seeds > 1:
        for name, found in ends.items():
            print(
                f"# {name}: median {statistics.median(found):.2e}, {min(found):.1e} to "
                f"{max(found):.1e}"
            )
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
