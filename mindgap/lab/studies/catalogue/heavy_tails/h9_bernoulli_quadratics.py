"""H9: no method beats k^(-2(α-1)/α) on the two Bernoulli quadratics of Theorem 4.4.3."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import product

import numpy as np

from mindgap.lab import theory
from mindgap.lab.studies.spec import Figure, Parts, Row, Run, Source, Study, Trial, scales
from mindgap.lab.studies.verdict import rows_by_method


def loop_quadratics(trial: Trial) -> Iterator[Row]:
    """The average error over the two problems that k samples cannot tell apart, against the lower
    bound 2^(-14) k^(-2(α-1)/α).

    The setting ``rule`` is "bayes" (the exact risk of the best estimator), "gclip" or averaged SGD.
    A row per ``alpha`` and ``k`` holds ``error``, its standard error ``se``, the ``bound`` and
    their ``ratio``.
    """
    for alpha, k in trial.cells(product(trial["alphas"], trial["horizons"])):
        epsilon = theory.hardest_epsilon(alpha, k)
        bound = trial["bound_factor"] * theory.strongly_convex_lower_bound(alpha, k)
        with trial.timed():
            if trial["rule"] == "bayes":
                error, se = theory.bayes_risk(alpha, epsilon, k), 0.0
            else:
                values = np.concatenate([_runs(trial, alpha, epsilon, k, nu) for nu in (0, 1)])
                error, se = float(values.mean()), float(values.std() / math.sqrt(len(values)))
        yield {
            "alpha": alpha,
            "k": k,
            "error": error,
            "se": se,
            "bound": bound,
            "ratio": error / bound,
        }


def _runs(trial: Trial, alpha: float, epsilon: float, k: int, nu: int) -> np.ndarray:
    """f(x̄_k) of ``replicas`` runs of GClip (Theorem 4.4.2) or averaged SGD, projected on [0, 1/2].

    Args:
        trial: its setting ``rule`` says which method runs.
        alpha, epsilon, nu: of the problem; ν is 0 or 1.
        k: steps.

    Returns:
        One value per run; the problem's least value is 0.
    """
    problem = theory.BernoulliQuadratic(alpha, epsilon, nu)
    rng = trial.numpy_generator(f"coins {alpha} {k} {nu}")
    averages = theory.weighted_average_runs(
        # The stochastic gradient, with a coin per run.
        lambda x, step: problem.stochastic_gradient(x, rng.random(x.shape) < problem.probability),
        np.full((trial["replicas"], 1), 0.25),
        lambda step: 4 / (step + 1),  # step size
        # Threshold; infinite: SGD, which clips nothing.
        lambda step: float(step) ** (1 / alpha) if trial["rule"] == "gclip" else math.inf,
        [k],
        method="cclip",  # which is GClip in one dimension
        box=(0.0, 0.5),
    )
    return np.asarray(problem.value(averages[0, :, 0]))


def judge_quadratics(runs: Sequence[Run]) -> Parts:
    """Ask of each method whether its mean ``error`` stays above the lower bound and above the exact
    Bayes risk, at every α and k.

    Returns:
        One part per method: no row lies more than four standard errors below either; a thousandth
        of the Bayes risk is allowed for rounding.
    """
    parts, table = Parts(), rows_by_method(runs)
    bayes = {(row["alpha"], row["k"]): row["error"] for row in table["Bayes rule"]}
    for name, rows in table.items():
        below = [
            row
            for row in rows
            if row["error"] + 4 * row["se"]
            < max(row["bound"], 0.999 * bayes[row["alpha"], row["k"]])
        ]
        smallest = min(row["ratio"] for row in rows)
        parts.add(
            f"{name} stays above",
            holds=not below,
            words=f"smallest error/bound {smallest:.3g}, {len(below)} below",
            numbers={name: {"below": len(below), "smallest_ratio": smallest}},
        )
    return parts


H9_BERNOULLI_QUADRATICS = Study(
    name="h9-bernoulli-quadratics",
    claim="H9",
    title="No method beats k^(-2(α-1)/α) on two Bernoulli quadratics",
    statement="Every method that sees k stochastic gradients has an expected error of at least "
    "2^(-14) k^(-2(α-1)/α) on one of two one-dimensional quadratics.",
    source=Source("thesis", "Theorem 4.4.3, 4.7.6"),
    scales=scales(
        {
            "alphas": [1.2, 1.5, 1.8, 2.0],
            "horizons": [1, 10, 100, 300],
            "replicas": 1000,
            "bound_factor": 1.0,
        },
        {"horizons": [1, 10, 100, 1000, 3000], "replicas": 10_000},
        seeds=(1, 2),
    ),
    methods={
        "Bayes rule": {"rule": "bayes"},
        "GClip": {"rule": "gclip"},
        "averaged SGD": {"rule": "sgd"},
    },
    loop=loop_quadratics,
    judge=judge_quadratics,
    rule="No method's mean error lies four standard errors below the "
    "bound, nor below the exact Bayes risk, at any α and k.",
    figures=(
        Figure(
            "Error over the lower bound",
            "ratio",
            "error / bound",
            x="k",
            x_label="k",
            log_x=True,
            log_y=True,
            facet="alpha",
            hlines={"bound": 1.0},
            caption="The Bayes rule is exact: nothing can lie below it.",
        ),
    ),
)
