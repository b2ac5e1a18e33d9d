"""B0: all methods on an upper level of unbounded smoothness, at equal oracle calls and equally tuned.

Table 1 of the SLIP rebuttal lists the assumption under which each method is analysed: only BO-REP and SLIP allow an
upper level whose smoothness grows with its gradient. The problem (:mod:`mindgap.lab.tasks.problems.unbounded`) is such:
f grows like cosh(κ x), and the start is far out. ``mindgap tune b0-unbounded-smoothness --grid`` finds the steps again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from mindgap.lab.studies.bilevel_runs import counters, method_of, states, tuned_methods
from mindgap.lab.studies.spec import Figure, Parts, Row, Run, Scale, Source, Study, Trial
from mindgap.lab.studies.verdict import by_method

#: the two methods that are analysed without an upper bound on the smoothness
RELAXED = ("BO-REP", "SLIP")


def loop(trial: Trial) -> Iterator[Row]:
    """Run one method to the budget of oracle calls; read the exact ‖∇Φ‖ at equal distances of calls."""
    import torch

    from mindgap.lab.tasks.problems import unbounded_problem

    task = unbounded_problem(growth=trial["growth"], rate=trial["rate"], distance=trial["distance"],
                             lower=trial["lower"], upper=trial["upper"], dim_y=trial["dim_y"], dim_x=trial["dim_x"],
                             seed=trial.seed, device=trial["device"])
    problem = task.problem(trial["batch_size"])
    method = method_of({**trial.settings, "convexity": 0.1})
    budget, readings = trial["oracle_calls"], trial["readings"]
    for state in states(trial, problem, method, budget=budget, readings=readings, least=trial["least_steps"]):
        norm = float(task.hypergradient(state.x).norm())
        finite = bool(np.isfinite(norm)) and bool(torch.isfinite(state.y).all())
        yield {**counters(state), "gradient_norm": norm if finite else float("inf"), "diverged": not finite}


def judge(runs: Sequence[Run]) -> Parts:
    """Final ‖∇Φ‖ of BO-REP and SLIP against the least of all other methods, seed by seed."""
    end = {name: np.array([run.rows[-1]["gradient_norm"] for run in group]) for name, group in by_method(runs).items()}
    middle = {name: float(np.median(values)) for name, values in end.items()}
    others = [name for name in end if name not in RELAXED]
    best = min(others, key=lambda name: middle[name])
    floor = np.min([end[name] for name in others], axis=0)
    wins = {name: float(np.mean(end[name] < floor)) for name in RELAXED}
    start = float(np.median([run.rows[0]["gradient_norm"] for run in runs]))
    parts = Parts()
    parts.note(f"median ‖∇Φ‖ from {start:.2g}; best other: {best} {middle[best]:.2g}",
               {"median_gradient_norm": middle, "wins": wins})
    for name in RELAXED:
        parts.add(f"{name} ends below all others", wins[name] >= 0.9, wins[name] < 0.9 and middle[name] >= middle[best],
                  f"at {middle[name]:.2g}, below them in {wins[name]:.0%} of the seeds")
    return parts


#: (lr_x, lr_y) by method, from the grid search at scale quick
TUNED: dict[str, tuple[float, float]] = {"BSA": (1e-05, 0.3), "StocBio": (1e-05, 0.3), "AmIGO": (1e-05, 0.3),
                                         "ALSET": (1e-05, 0.3), "TTSA": (1e-05, 0.3), "F²SA": (0.00316, 0.1),
                                         "SOBA": (1e-05, 0.3), "SABA": (1e-05, 0.3), "MA-SOBA": (1e-05, 0.3),
                                         "BO-REP": (0.1, 0.3), "SLIP": (0.1, 0.1), "VRBO": (1e-05, 0.3),
                                         "MRBO": (1e-05, 0.3), "SUSTAIN": (1e-05, 0.3), "SVRB": (1e-05, 0.3),
                                         "SRBA": (1e-05, 0.3)}


_QUICK = {"growth": "exponential", "rate": 3.0, "distance": 5.0, "lower": 512, "upper": 256, "dim_y": 10, "dim_x": 5,
          "batch_size": 32, "oracle_calls": 500, "least_steps": 5, "readings": 10, "inner": 3, "terms": 5,
          "device": "cpu"}
_CPU = {**_QUICK, "lower": 4096, "upper": 1024, "dim_y": 50, "dim_x": 20, "oracle_calls": 20_000, "readings": 40}
_GPU = {**_CPU, "lower": 32_768, "upper": 8192, "dim_y": 500, "dim_x": 100, "batch_size": 256, "device": "cuda"}

STUDY = Study(
    name="b0-unbounded-smoothness", claim="B0", title="An upper level of unbounded smoothness",
    statement="Where the smoothness of the upper level grows with its gradient, SLIP and BO-REP converge at steps "
    "at which methods made for a bounded smoothness diverge, and these crawl at the steps they survive.",
    source=Source("slip-rebuttal-a", "Table 1"),
    scales={"quick": Scale(_QUICK, seeds=5), "cpu": Scale(_CPU, seeds=10), "gpu": Scale(_GPU, seeds=10),
            "paper": Scale({**_GPU, "oracle_calls": 1_000_000, "readings": 100}, seeds=10)},
    methods=tuned_methods(TUNED), loop=loop, judge=judge, rule="In at least nine tenths of the seeds each of "
    "BO-REP and SLIP ends below all other methods; refuted where the median of one of them is not below the best "
    "median of the others.",
    figures=(
        Figure("Gradient of the hyper-objective", "gradient_norm", "‖∇Φ(x)‖", x="oracle_calls", log_y=True,
               caption="All methods from the same start, with the best steps of the same grid. A line that "
               "ended early would have left the finite numbers."),
    ),
    tunable={"lr_x": (1e-7, 1.0), "lr_y": (0.1, 0.3)},
    grid={"lr_x": [float(f"{10 ** (k / 2):.3g}") for k in range(-14, 1)], "lr_y": (0.1, 0.3)},
    tune_on="gradient_norm",
)  # fmt: skip
