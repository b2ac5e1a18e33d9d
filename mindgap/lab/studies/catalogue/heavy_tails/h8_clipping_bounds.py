"""H8, bounds: GClip and CClip stay below Theorem 4.4.2, Corollary 4.5.1 and Theorem 4.5.1; what
the dimension does.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from mindgap.lab.studies.clipping_runs import below_bounds, noise_law
from mindgap.lab.studies.spec import Figure, Parts, Row, Run, Source, Study, Trial, scales
from mindgap.lab.studies.verdict import by_method, slope


def loop_bounds(trial: Trial) -> Iterator[Row]:
    """Mean error of the averaged output over replicas, against the bound, for every law, α and
    μ.
    """
    from mindgap.lab import theory

    dimension, optimum, horizons, replicas = (
        trial["dimension"],
        0.4,
        trial["horizons"],
        trial["replicas"],
    )
    for name, alpha, mu in itertools.product(trial["laws"], trial["alphas"], trial["mus"]):
        law = noise_law(name, alpha, max(horizons))
        rng = trial.numpy_generator(f"{name} {alpha} {mu}")
        # On the box [-1, 1]^d a coordinate of the gradient is at most 1.4 μ; Minkowski adds the
        # noise.
        coordinate = theory.CoordinateMoment(
            alpha=alpha, B=(1.4 * mu + float(law.moment(alpha)) ** (1 / alpha),) * dimension, mu=mu
        )
        strongly_convex = theory.StronglyConvexMoment(alpha=alpha, G=coordinate.norm(alpha), mu=mu)
        start = rng.uniform(-1, 1, (replicas, dimension))
        tau = theory.cclip_threshold if trial["clip"] == "cclip" else theory.gclip_threshold
        record: Any = coordinate if trial["clip"] == "cclip" else strongly_convex

        def gradient(x: np.ndarray, k: int, mu=mu, law=law, rng=rng) -> np.ndarray:  # type: ignore[no-untyped-def]
            return mu * (x - optimum) + law.sample(rng, x.shape)

        def step(k: int, mu: float = mu) -> float:
            return 4 / (mu * (k + 1))

        with trial.timed():
            averages = theory.weighted_average_runs(
                gradient,
                start,
                step,
                partial(tau, record),
                horizons,
                method=trial["clip"],
                box=(-1.0, 1.0),
            )
        for k, points in zip(horizons, averages):
            error = mu / 2 * ((points - optimum) ** 2).sum(1)
            bound = (
                theory.cclip_bound(coordinate, k)
                if trial["clip"] == "cclip"
                else theory.gclip_bound(strongly_convex, k)
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


def judge_bounds(runs: Sequence[Run]) -> Parts:
    """No mean error (over seeds and replicas) exceeds its bound by more than four standard
    errors.
    """
    return below_bounds(runs, ("law", "alpha", "mu", "k"))


def loop_dimension(trial: Trial) -> Iterator[Row]:
    """sup over jumps of E f(x̄_K) - f* in d dimensions, with ‖B‖_2 = 1 shared equally by the
    coordinates.

    Coordinates jump independently: -J with p = (B_i/J)^α, else a x_i. Jumps are drawn as positions,
    because there is about one of them in K·d draws at the sizes that matter.
    """
    horizon, alpha = trial["horizon"], trial["alpha"]
    for dimension in trial.cells(trial["dimensions"]):
        coordinate_moment = dimension**-0.5
        norm_moment = dimension ** (1 / alpha) * coordinate_moment  # ‖B‖_α
        replicas = max(trial["least_runs"], trial["coordinates"] // dimension)
        # Jumps around the thresholds of both methods at the horizon: each is worst near its own.
        sizes = sorted(
            {
                float(threshold * multiple)
                for threshold in (
                    coordinate_moment * horizon ** (1 / alpha),
                    norm_moment * horizon ** (1 / alpha),
                )
                for multiple in trial["multiples"]
            }
        )
        worst: dict[str, float] = {"error": 0.0, "se": 0.0, "jump": 0.0}
        for J in sizes:
            rng = trial.numpy_generator(f"{dimension} {J}")
            with trial.timed():
                error = _rare_jumps(
                    rng,
                    dimension,
                    replicas,
                    horizon,
                    alpha,
                    coordinate_moment,
                    norm_moment,
                    J,
                    trial["clip"],
                )
            if error.mean() > worst["error"]:
                worst = {
                    "error": float(error.mean()),
                    "se": float(error.std() / math.sqrt(replicas)),
                    "jump": J,
                }
        yield {
            "dimension": dimension,
            **worst,
            "printed_bound": 16
            * dimension
            * norm_moment**2
            / (horizon + 1) ** (2 * (alpha - 1) / alpha),
        }


def _rare_jumps(
    rng: np.random.Generator,
    dimension: int,
    replicas: int,
    horizon: int,
    alpha: float,
    coordinate_moment: float,
    norm_moment: float,
    jump: float,
    clip: str,
) -> np.ndarray:
    """f(x̄_K) - f* of every run from x_0 = 0, μ = 1; the weighted average is kept on the fly."""
    probability = (coordinate_moment / jump) ** alpha
    slope, optimum = 1 / (1 - probability), probability * jump
    x, total, row_numbers = (
        np.zeros((replicas, dimension)),
        np.zeros((replicas, dimension)),
        np.arange(replicas),
    )
    for k in range(1, horizon + 1):
        total += k * x
        jump_places = rng.choice(
            replicas * dimension,
            rng.binomial(replicas * dimension, probability),
            replace=False,
            shuffle=False,
        )
        row, column = jump_places // dimension, jump_places % dimension
        tau = (coordinate_moment if clip == "cclip" else norm_moment) * k ** (1 / alpha)
        gradient = slope * x
        gradient[row, column] = -jump
        if clip == "cclip":
            np.clip(gradient, -tau, tau, out=gradient)
        else:
            norm = np.sqrt(np.einsum("ij,ij->i", gradient, gradient))
            clipped_rows = row_numbers[norm > tau]
            gradient[clipped_rows] *= (tau / norm[clipped_rows])[:, None]
        gradient *= 4 / (k + 1)
        x -= gradient
    mean = total / (horizon * (horizon + 1) / 2)
    return ((mean - optimum) ** 2).sum(1) / 2


def judge_dimension(runs: Sequence[Run]) -> Parts:
    """CClip's worst error does not grow with d; GClip's grows like d^(2/α-1), less than the
    printed d^(2/α).
    """
    alpha, fits, parts = runs[0].header.settings["alpha"], {}, Parts()
    for name, group in by_method(runs).items():
        d = np.array(group[0].column("dimension"))
        error = np.mean([run.column("error") for run in group], axis=0)
        se = np.sqrt(np.sum([np.square(run.column("se")) for run in group], axis=0)) / len(group)
        exponent, fit_error = slope(np.log(d), np.log(error))
        # Sampling error of the slope from the errors' own standard errors, added to the fit's.
        centred = np.log(d) - np.log(d).mean()
        sampling_error = np.sqrt(((centred * se / error) ** 2).sum()) / (centred @ centred)
        fits[name] = exponent, math.hypot(fit_error, float(sampling_error))
    sharp = 2 / alpha - 1
    gclip, gclip_error = fits["GClip"]
    cclip, cclip_error = fits["CClip"]
    parts.note(
        f"‖B‖_2 = 1, α = {alpha:g}",
        {"GClip": [gclip, gclip_error], "CClip": [cclip, cclip_error], "sharp": sharp},
    )
    parts.add(
        "CClip's worst error is free of d",
        abs(cclip) <= 0.05 + 2 * cclip_error,
        words=f"d^{cclip:.2f}±{2 * cclip_error:.2f}",
    )
    parts.add(
        "GClip's grows as the sharp bound",
        gclip - 2 * gclip_error > 0.05 and abs(gclip - sharp) <= 0.1 + 2 * gclip_error,
        words=f"d^{gclip:.2f}±{2 * gclip_error:.2f}; sharp bound d^{sharp:.2f}, printed bound "
        f"d^{2 / alpha:.2f}",
    )
    return parts


_BOUNDS = {
    "laws": ["gaussian", "student", "pareto", "stable", "rare jump"],
    "alphas": [1.2, 1.5, 1.8, 2.0],
    "mus": [0.5, 2.0],
    "dimension": 3,
    "horizons": [1, 3, 10, 30, 100],
    "replicas": 20,
    "bound_factor": 1.0,
}
_DIM = {
    "alpha": 1.5,
    "horizon": 60,
    "dimensions": [1, 10, 100, 1000],
    "coordinates": 20_000,
    "least_runs": 250,
    "multiples": [1.0, 2.0],
}

H8_ERRORS_BELOW_BOUNDS = Study(
    name="h8-errors-below-bounds",
    claim="H8",
    title="GClip and CClip stay below their strongly convex bounds",
    statement="E f(x̄_k) - f* <= 16G²/(μ(k+1)^(2(α-1)/α)) for projected GClip, with ‖B‖_2 in "
    "place of G for CClip.",
    source=Source("thesis", "Theorems 4.4.2 and 4.5.1"),
    scales=scales(
        _BOUNDS,
        {"horizons": [1, 3, 10, 30, 100, 300, 1000], "mus": [0.1, 1.0, 10.0], "replicas": 200},
        seeds=(2, 2),
    ),
    methods={"GClip": {"clip": "gclip"}, "CClip": {"clip": "cclip"}},
    loop=loop_bounds,
    judge=judge_bounds,
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

H8_DIMENSION = Study(
    name="h8-dimension",
    claim="H8",
    title="CClip's worst error is free of the dimension, GClip's is not",
    statement="Under coordinate-wise moments with ‖B‖_2 fixed, CClip's error does not depend on "
    "d, GClip's grows.",
    source=Source("thesis", "Corollary 4.5.1 and Theorem 4.5.1"),
    scales=scales(
        _DIM,
        {
            "horizon": 300,
            "coordinates": 200_000,
            "least_runs": 500,
            "multiples": [0.7, 1.0, 1.5, 2.5],
        },
        seeds=(1, 2),
    ),
    methods={"GClip": {"clip": "gclip"}, "CClip": {"clip": "cclip"}},
    loop=loop_dimension,
    judge=judge_dimension,
    rule="The exponent of d is 0 for CClip (within 0.05 and two standard errors) and, for GClip, "
    "above 0.05 and within 0.1 of the sharp bound's 2/α - 1.",
    figures=(
        Figure(
            "Worst error against dimension",
            "error",
            "E f(x̄_K) - f*",
            x="dimension",
            x_label="d",
            log_x=True,
            log_y=True,
            caption="Errors on the worst rare jump, with ‖B‖_2 = 1 shared by all coordinates.",
        ),
    ),
)
