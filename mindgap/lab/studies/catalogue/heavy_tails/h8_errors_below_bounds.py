"""H8, bounds: GClip and CClip stay below Theorem 4.4.2 and Theorem 4.5.1."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from mindgap.lab.studies.clipping_runs import below_bounds, noise_law
from mindgap.lab.studies.spec import Figure, Row, Source, Study, Trial, scales


def loop_bounds(trial: Trial) -> Iterator[Row]:
    """Mean error f(x̄_k) - f* of projected GClip or CClip (setting ``clip``) over replicas, against
    the theorem's bound, on f(x) = μ‖x - 0.4‖²/2 in the box [-1, 1]^d.

    A row per noise ``law``, moment order ``alpha``, convexity ``mu`` and horizon ``k`` holds
    ``error``, its standard error ``se``, the ``bound`` and their ``ratio``.
    """
    from mindgap.lab import theory

    dimension, horizons, replicas = (trial[key] for key in ("dimension", "horizons", "replicas"))
    optimum = 0.4
    for name, alpha, mu in itertools.product(trial["laws"], trial["alphas"], trial["mus"]):
        law = noise_law(name, alpha, max(horizons))
        rng = trial.numpy_generator(f"{name} {alpha} {mu}")
        # On the box a coordinate of the gradient is at most 1.4 μ; Minkowski adds the noise.
        coordinate_moment = theory.CoordinateMoment(
            alpha=alpha, B=(1.4 * mu + float(law.moment(alpha)) ** (1 / alpha),) * dimension, mu=mu
        )
        norm_moment = theory.StronglyConvexMoment(
            alpha=alpha, G=coordinate_moment.norm(alpha), mu=mu
        )
        start = rng.uniform(-1, 1, (replicas, dimension))
        threshold: Any = partial(theory.gclip_threshold, norm_moment)
        if trial["clip"] == "cclip":
            threshold = partial(theory.cclip_threshold, coordinate_moment)

        def gradient(x: np.ndarray, k: int) -> np.ndarray:
            """The gradient of μ‖x - optimum‖²/2 plus noise of this cell's law, at any step k."""
            return mu * (x - optimum) + law.sample(rng, x.shape)  # noqa: B023

        with trial.timed():
            averages = theory.weighted_average_runs(
                gradient,
                start,
                partial(theory.gclip_step, norm_moment),
                threshold,
                horizons,
                method=trial["clip"],
                box=(-1.0, 1.0),
            )
        for k, points in zip(horizons, averages):
            error = mu / 2 * ((points - optimum) ** 2).sum(1)
            bound = (
                theory.cclip_bound(coordinate_moment, k)
                if trial["clip"] == "cclip"
                else theory.gclip_bound(norm_moment, k)
            )
            bound *= trial["bound_factor"]
            yield {
                "law": name,
                "alpha": alpha,
                "mu": mu,
                "k": k,
                "error": float(error.mean()),
                "se": float(error.std() / math.sqrt(replicas)),
                "bound": bound,
                "ratio": float(error.mean()) / bound,
            }


H8_ERRORS_BELOW_BOUNDS = Study(
    name="h8-errors-below-bounds",
    claim="H8",
    title="GClip and CClip stay below their strongly convex bounds",
    statement="E f(x̄_k) - f* <= 16G²/(μ(k+1)^(2(α-1)/α)) for projected GClip, with ‖B‖_2 in "
    "place of G for CClip.",
    source=Source("thesis", "Theorems 4.4.2 and 4.5.1"),
    scales=scales(
        {
            "laws": ["gaussian", "student", "pareto", "stable", "rare jump"],
            "alphas": [1.2, 1.5, 1.8, 2.0],
            "mus": [0.5, 2.0],
            "dimension": 3,
            "horizons": [1, 3, 10, 30, 100],
            "replicas": 20,
            "bound_factor": 1.0,
        },
        {"horizons": [1, 3, 10, 30, 100, 300, 1000], "mus": [0.1, 1.0, 10.0], "replicas": 200},
        seeds=(2, 2),
    ),
    methods={"GClip": {"clip": "gclip"}, "CClip": {"clip": "cclip"}},
    loop=loop_bounds,
    judge=partial(below_bounds, cell=("law", "alpha", "mu", "k")),
    rule="No mean error (over seeds and replicas) exceeds its bound by more than four standard "
    "errors, for any law, α, μ and k.",
    figures=(
        Figure(
            "Error over bound",
            "ratio",
            "mean error / bound",
            x="k",
            x_label="k",
            kind="points",
            log_x=True,
            log_y=True,
            facet="alpha",
            hlines={"bound": 1.0},
            caption="A point above 1 would refute a bound.",
        ),
    ),
)
