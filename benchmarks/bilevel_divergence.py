"""Does any method diverge with the steps that ``suggest_steps`` proposes? All methods, four
problems, several seeds.

    MINDGAP_DATA=... JAX_PLATFORMS=cpu python benchmarks/bilevel_divergence.py [--seeds 5] \
        [--problems ijcnn1,ridge]

Compiled runs. Steps are proposed once per problem, seeds are those of the draws. One row per
method: over the seeds, how many runs diverged or became non-finite, and the largest quotient of
f(x, y) at the end and f(x0, y*(x0)) at the start (above 1: worse than a solved lower level at the
start); y is the method's own lower solution (``MethodInfo.lower_variable``). ijcnn1 is real where
its files are stored.
"""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from pathlib import Path
from typing import Any

os.environ.setdefault("PJRT_NPROC", "1")
sys.path.insert(0, str(Path(__file__).parents[1]))

import torch

from mindgap.bilevel import METHODS, Batches, BilevelProblem, hyper_objective, solve, suggest_steps
from mindgap.bilevel.backends.compiled import JaxBackend
from mindgap.lab.tasks.data.images import digits
from mindgap.lab.tasks.problems.cleaning import hyper_cleaning
from mindgap.lab.tasks.problems.compiled import (
    cleaning_losses,
    quadratic_losses,
    regularisation_losses,
)
from mindgap.lab.tasks.problems.quadratic import quadratic_problem
from mindgap.lab.tasks.problems.regularisation import ijcnn1_selection

#: methods with inner loops of their own, or dense matrices, take fewer iterations
STEPS = {
    "vrbo": 100,
    "svrb": 100,
    "bsa": 500,
    "stocbio": 500,
    "amigo": 500,
    "n2sba": 500,
    "accbo": 1000,
}


def equal_batches(problem: BilevelProblem) -> BilevelProblem:
    """The problem with its last, shorter batches left out, as the compiled backend needs it."""
    for name in ("upper_data", "lower_data"):
        data: Any = getattr(problem, name)
        setattr(problem, name, Batches(data.data, data.batch_size, shuffle=False, last="drop"))
    return problem


def ridge() -> tuple[BilevelProblem, Any]:
    """Ridge regression with one penalty per feature, 1,280 / 640 samples, 20 features of
    unequal size.
    """
    draw = torch.Generator().manual_seed(0)
    features = torch.randn(1920, 20, generator=draw) * torch.logspace(0, 1, 20) / 5
    targets = features[:, :5].sum(1) + torch.randn(1920, generator=draw)

    def upper(x: Any, y: Any, b: Any) -> Any:
        return ((b[0] @ y - b[1]) ** 2).mean()

    def lower(x: Any, y: Any, b: Any) -> Any:
        return upper(x, y, b) + (2.0**x * y**2).sum()

    data = (features[:640], targets[:640]), (features[640:], targets[640:])
    return BilevelProblem(upper, lower, torch.zeros(20), torch.zeros(20), *data, batch_size=64), (
        upper,
        lower,
    )


def make(name: str) -> tuple[BilevelProblem, Any]:
    if name == "ridge":
        return ridge()
    if name == "quadratic":
        return quadratic_problem(
            lower=4096, upper=1024, dim_y=50, dim_x=10
        ).problem(), quadratic_losses()
    if name == "ijcnn1":
        task = ijcnn1_selection(dtype=torch.float32)
        print(f"# ijcnn1: {task.origin}")
        return equal_batches(task.problem()), regularisation_losses(task)
    cleaning = hyper_cleaning(digits(), dtype=torch.float32)
    return equal_batches(cleaning.problem(32)), cleaning_losses(cleaning)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--problems", default="quadratic,ijcnn1,ridge,cleaning")
    parser.add_argument("--methods", default=",".join(METHODS))
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    total = 0
    print(
        "| problem | method | diverged | largest f at the end / at the start |\n|---|---|---|---|"
    )
    for name in options.problems.split(","):
        problem, losses = make(name)
        advice = suggest_steps(problem)
        before = hyper_objective(problem, problem.pack_x.start)
        for key in options.methods.split(","):
            method, backend = METHODS[key](**advice.settings(key)), JaxBackend(*losses)
            bad, worst = 0, 0.0
            for seed in range(options.seeds):
                run = solve(
                    problem, method, STEPS.get(key, options.steps), seed=seed, backend=backend
                )
                bad += not run.ok
                state = run.state
                lower = state.values[METHODS[key].lower_variable]  # a penalty method's y knows f
                at = state.oracle.to_torch(state.x), state.oracle.to_torch(lower)
                after = float(problem.loss("upper", *at)) if run.ok else float("inf")
                worst = max(
                    worst, after / before if before > 0 else 1.0 + (after - before) / abs(before)
                )
            total += bad
            print(
                f"| {name} | {METHODS[key].name} | {bad} of {options.seeds} | {worst:.3g} |",
                flush=True,
            )
    print(f"# {total} runs diverged")


if __name__ == "__main__":
    main()
