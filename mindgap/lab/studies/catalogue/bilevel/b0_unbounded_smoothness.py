"""B0: all methods on an upper level of unbounded smoothness, at equal oracle calls and equally
tuned.

Table 1 of the SLIP rebuttal lists the assumption under which each method is analysed: only BO-REP
and SLIP allow an upper level whose smoothness grows with its gradient. The problem
(:mod:`mindgap.lab.tasks.problems.unbounded`) is such: f grows like cosh(κ x), and the start is far
out. Each scale has steps of its own, which ``mindgap tune b0-unbounded-smoothness --grid --scale
quick readings=1`` and ``--scale cpu oracle_calls=6000 readings=1`` find again.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from mindgap.lab.studies.bilevel_runs import TITLES, counters, in_units, method_of, states
from mindgap.lab.studies.spec import Figure, Parts, Row, Run, Scale, Source, Study, Trial
from mindgap.lab.studies.verdict import finals

#: the two methods that are analysed without an upper bound on the smoothness
RELAXED = ("BO-REP", "SLIP")
#: The share of the seeds that the rule asks for.
MOST_SEEDS = 0.9


def loop(trial: Trial) -> Iterator[Row]:
    """Run one method to its budget of ``oracle_calls`` and yield ``readings`` + 1 rows, at equal
    distances of calls, the start included.

    A row holds the counters of calls and epochs, ``gradient_norm`` (the exact ‖∇Φ(x)‖ of the
    hyper-objective; inf where x or y is not finite) and ``diverged``, which says the latter.
    """
    import torch

    from mindgap.lab.tasks.problems import unbounded_problem

    task = unbounded_problem(
        growth=trial["growth"],
        rate=trial["rate"],
        distance=trial["distance"],
        lower=trial["lower"],
        upper=trial["upper"],
        dim_y=trial["dim_y"],
        dim_x=trial["dim_x"],
        seed=trial.seed,
        device=trial["device"],
    )
    # μ of the lower level, as ``quadratic_problem`` draws it. SVRB alone reads it; with a third of
    # it or three times it its last ‖∇Φ‖ changes by 0.02 % at scale quick, by 0.15 % at scale cpu.
    problem, settings = task.problem(trial["batch_size"]), {**trial.settings, "convexity": 0.1}
    method = method_of(in_units(settings))
    budget, readings = trial["oracle_calls"], trial["readings"]
    for state in states(
        trial, problem, method, budget=budget, readings=readings, least=trial["least_steps"]
    ):
        norm = float(task.hypergradient(state.x).norm())
        diverged = not (math.isfinite(norm) and bool(torch.isfinite(state.y).all()))
        yield {
            **counters(state),
            "gradient_norm": math.inf if diverged else norm,
            "diverged": diverged,
        }


def judge(runs: Sequence[Run]) -> Parts:
    """Ask of BO-REP and of SLIP whether it ends below all other methods, seed by seed.

    Reads ``gradient_norm``, ‖∇Φ‖, in the first and the last row of every run.

    Returns:
        One part per method of :data:`RELAXED`: yes if its final ‖∇Φ‖ is the smaller one in
        :data:`MOST_SEEDS` of the seeds; no if it is not and its median is not below the best median
        of the others either.
    """
    final_norms = finals(runs, "gradient_norm")  # method -> one number per seed
    median_norms = {name: float(np.median(values)) for name, values in final_norms.items()}
    bounded_methods = [name for name in final_norms if name not in RELAXED]
    best_bounded = min(bounded_methods, key=lambda name: median_norms[name])
    lowest_of_others = np.min([final_norms[name] for name in bounded_methods], axis=0)
    # The share of the seeds in which a method ends below all others.
    wins = {name: float(np.mean(final_norms[name] < lowest_of_others)) for name in RELAXED}
    start = float(np.median([run.rows[0]["gradient_norm"] for run in runs]))
    parts = Parts()
    parts.note(
        f"median ‖∇Φ‖ from {start:.2g}; "
        f"best other: {best_bounded} {median_norms[best_bounded]:.2g}",
        {"median_gradient_norm": median_norms, "wins": wins},
    )
    for name in RELAXED:
        parts.add(
            f"{name} ends below all others",
            holds=wins[name] >= MOST_SEEDS,
            refuted=wins[name] < MOST_SEEDS and median_norms[name] >= median_norms[best_bounded],
            words=f"at {median_norms[name]:.2g}, below them in {wins[name]:.0%} of the seeds",
        )
    return parts


#: Method -> units of (lr_x, lr_y, lr_z), so that one grid serves all; every other method has
#: ``PLAIN``. A plain step on x meets gradients of 10⁵ at the start, a normalised one does not, and
#: F²SA's gradients have a penalty.
UNITS = {"SLIP": [0.1, 1.0, 1.0], "BO-REP": [0.1, 1.0, 1.0], "F²SA": [3e-3, 1.0, 1.0]}
PLAIN = [1e-5, 1.0, 1.0]

#: scale -> method -> (lr_x, lr_y, lr_z) in these units, from the search at that scale
TUNED: dict[str, dict[str, tuple[float, float, float]]] = {
    "quick": {
        "BSA": (1.0, 1.0, 11.111111111111112),
        "StocBio": (1.0, 1.0, 3.3333333333333335),
        "AmIGO": (1.0, 1.0, 1.0),
        "ALSET": (1.0, 0.3, 3.3333333333333335),
        "TTSA": (1.0, 1.0, 3.3333333333333335),
        "F²SA": (1.0, 0.1, 0.1),
        "SOBA": (1.0, 1.0, 3.3333333333333335),
        "SABA": (1.0, 1.0, 1.0),
        "MA-SOBA": (1.0, 1.0, 1.0),
        "BO-REP": (1.0, 0.3, 0.3),
        "SLIP": (1.0, 1.0, 0.011111111111111115),
        "VRBO": (1.0, 3.3333333333333335, 1.0),
        "MRBO": (1.0, 3.3333333333333335, 1.0),
        "SUSTAIN": (1.0, 1.0, 3.3333333333333335),
        "SVRB": (1.0, 3.3333333333333335, 0.1),
        "SRBA": (1.0, 1.0, 1.0),
    },
    "cpu": {
        "BSA": (1.0, 1.0, 3.3333333333333335),
        "StocBio": (1.0, 0.1, 1.0),
        "AmIGO": (1.0, 0.1, 0.1),
        "ALSET": (1.0, 0.1, 3.3333333333333335),
        "TTSA": (1.0, 1.0, 3.3333333333333335),
        "F²SA": (1.0, 0.1, 0.1),
        "SOBA": (1.0, 1.0, 3.3333333333333335),
        "SABA": (1.0, 0.3, 1.0),
        "MA-SOBA": (1.0, 0.1, 0.3),
        "BO-REP": (0.3, 0.1, 0.03333333333333334),
        "SLIP": (0.3, 0.1, 0.03333333333333334),
        "VRBO": (1.0, 1.0, 1.0),
        "MRBO": (1.0, 3.3333333333333335, 1.0),
        "SUSTAIN": (1.0, 1.0, 3.3333333333333335),
        "SVRB": (1.0, 3.3333333333333335, 0.1),
        "SRBA": (1.0, 0.3, 1.0),
    },
}


def _steps(scale: str) -> dict[str, dict[str, float]]:
    """Method -> its tuned steps at a scale, as settings ``lr_x``, ``lr_y`` and ``lr_z``."""
    return {
        method: dict(zip(("lr_x", "lr_y", "lr_z"), steps)) for method, steps in TUNED[scale].items()
    }


_QUICK = {
    "growth": "exponential",
    "rate": 3.0,
    "distance": 5.0,
    "lower": 512,
    "upper": 256,
    "dim_y": 10,
    "dim_x": 5,
    "batch_size": 32,
    "oracle_calls": 500,
    "least_steps": 5,
    "readings": 10,
    "inner": 3,
    "terms": 5,
    "device": "cpu",
}

STUDY = Study(
    name="b0-unbounded-smoothness",
    claim="B0",
    title="An upper level of unbounded smoothness",
    statement="Where the smoothness of the upper level grows with its gradient, SLIP and BO-REP "
    "converge. Methods made for a bounded smoothness diverge at large steps, and make little "
    "progress at the steps that they survive.",
    source=Source("slip-rebuttal-a", "Table 1"),
    scales={
        "quick": Scale(_QUICK, 5, _steps("quick")),
        "cpu": Scale(
            {
                **_QUICK,
                "lower": 4096,
                "upper": 1024,
                "dim_y": 50,
                "dim_x": 20,
                "oracle_calls": 10_000,
                "readings": 40,
            },
            10,
            _steps("cpu"),
            tuning_seeds=(1000,),
        ),
    },
    methods={
        title: {"key": TITLES[title], "units": UNITS.get(title, PLAIN)} for title in TUNED["quick"]
    },
    loop=loop,
    judge=judge,
    rule="In at least nine tenths of the seeds each of BO-REP and SLIP ends below all other "
    "methods; refuted where the median of one of them is not below the best median of the others.",
    figures=(
        Figure(
            "Gradient of the hyper-objective",
            "gradient_norm",
            "‖∇Φ(x)‖",
            x="oracle_calls",
            log_y=True,
            caption="All methods start at the same point, with the best steps of the same grid. A "
            "line would end early where a run diverged.",
        ),
    ),
    tunable={"lr_x": (0.03, 30.0), "lr_y": (0.03, 3.0), "lr_z": (0.03, 3.0)},
    grid={"lr_x": (0.3, 1.0, 3.0), "lr_y": (0.1, 0.3, 1.0), "lr_z": (0.1, 0.3, 1.0)},
    tune_on="gradient_norm",
)
