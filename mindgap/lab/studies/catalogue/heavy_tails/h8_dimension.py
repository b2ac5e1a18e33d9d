"""H8, dimension: CClip's worst error is free of it, GClip's is not (thesis, Corollary 4.5.1)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from mindgap.lab.studies.spec import Figure, Parts, Row, Run, Source, Study, Trial, scales
from mindgap.lab.studies.verdict import by_method, slope

#: How far an exponent of d may be from 0 and from the sharp bound's; the rule states both.
FREE, NEAR = 0.05, 0.1


def loop_dimension(trial: Trial) -> Iterator[Row]:
    """The worst mean error E f(x̄_K) - f* over a family of rare jumps, in d = ``dimensions``, for
    "cclip" or "gclip" (setting ``clip``).

    Coordinates of the stochastic gradient jump independently: -J with p = (B_i/J)^α, else a x_i
    (:func:`_rare_jumps`). The moments are B_i = d^(-1/2), so that ‖B‖_2 = 1 for every d.

    A row per dimension holds the largest mean ``error`` over J, its standard error ``se``, the
    ``jump`` J at which it is reached, and the ``printed_bound``.
    """
    horizon, alpha = trial["horizon"], trial["alpha"]
    for dimension in trial.cells(trial["dimensions"]):
        coordinate_moment = dimension**-0.5  # B_i
        norm_moment = dimension ** (1 / alpha) * coordinate_moment  # ‖B‖_α
        replicas = max(trial["least_runs"], trial["coordinates"] // dimension)
        # Jumps around the thresholds of both methods at the horizon: each is worst near its own.
        sizes = {
            float(moment * horizon ** (1 / alpha) * multiple)
            for moment in (coordinate_moment, norm_moment)
            for multiple in trial["multiples"]
        }
        # Mean error, its standard error and J where the mean error is largest.
        worst: dict[str, float] = {"error": 0.0, "se": 0.0, "jump": 0.0}
        for J in sorted(sizes):
            with trial.timed():
                errors = _rare_jumps(
                    trial.numpy_generator(f"{dimension} {J}"),
                    dimension,
                    replicas,
                    horizon,
                    alpha,
                    coordinate_moment,
                    norm_moment,
                    jump=J,
                    clip=trial["clip"],
                )
            if errors.mean() > worst["error"]:
                worst = {
                    "error": float(errors.mean()),
                    "se": float(errors.std() / math.sqrt(replicas)),
                    "jump": J,
                }
        printed_bound = 16 * dimension * norm_moment**2 / (horizon + 1) ** (2 * (alpha - 1) / alpha)
        yield {"dimension": dimension, **worst, "printed_bound": printed_bound}


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
    """f(x̄_K) - f* of independent runs of CClip or GClip from x_0 = 0, without projection and with
    μ = 1.

    Args:
        rng: advanced by the draws of the jumps.
        dimension: d.
        replicas: runs.
        horizon: K; x̄_K is the average of the iterates with weights k.
        alpha: order of the moment.
        coordinate_moment: B_i, the same for all coordinates; CClip's threshold is B_i k^(1/α).
        norm_moment: ‖B‖_α; GClip's threshold is ‖B‖_α k^(1/α).
        jump: J. A coordinate of the gradient is -J with probability p = (B_i/J)^α, else x_i/(1-p).
        clip: "cclip" or "gclip".

    Returns:
        One error per run, shape (replicas,).
    """
    probability = (coordinate_moment / jump) ** alpha
    # The mean gradient, (1-p)·x/(1-p) - p·J, is 0 at p·J.
    slope, optimum = 1 / (1 - probability), probability * jump
    shape, draws = (replicas, dimension), replicas * dimension
    x, weighted_sum, row_numbers = np.zeros(shape), np.zeros(shape), np.arange(replicas)
    for k in range(1, horizon + 1):
        weighted_sum += k * x
        # Jumps are rare: their number is drawn, then their places.
        jumps = rng.binomial(draws, probability)
        row, column = divmod(rng.choice(draws, jumps, replace=False, shuffle=False), dimension)
        tau = (coordinate_moment if clip == "cclip" else norm_moment) * k ** (1 / alpha)
        gradient = slope * x
        gradient[row, column] = -jump
        if clip == "cclip":
            np.clip(gradient, -tau, tau, out=gradient)
        else:
            norm = np.sqrt(np.einsum("ij,ij->i", gradient, gradient))
            clipped_rows = row_numbers[norm > tau]
            gradient[clipped_rows] *= (tau / norm[clipped_rows])[:, None]
        gradient *= 4 / (k + 1)  # the theorems' step 4/(μ(k+1))
        x -= gradient
    average = weighted_sum / (horizon * (horizon + 1) / 2)
    return ((average - optimum) ** 2).sum(1) / 2


def judge_dimension(runs: Sequence[Run]) -> Parts:
    """Fit the exponent of d in the worst ``error`` of CClip and of GClip, averaged over seeds.

    Returns:
        Two parts, with two standard errors allowed for: CClip's exponent is 0 within :data:`FREE`;
        GClip's is above that and within :data:`NEAR` of 2/α - 1, the exponent of the sharp bound
        (the printed bound has 2/α).
    """
    alpha, fits, parts = runs[0].header.settings["alpha"], {}, Parts()
    for name, own_runs in by_method(runs).items():
        d = np.array(own_runs[0].column("dimension"))
        error = np.mean([run.column("error") for run in own_runs], axis=0)  # one per dimension
        se = np.sqrt(np.sum([np.square(run.column("se")) for run in own_runs], axis=0)) / len(
            own_runs
        )
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
        holds=abs(cclip) <= FREE + 2 * cclip_error,
        words=f"d^{cclip:.2f}±{2 * cclip_error:.2f}",
    )
    parts.add(
        "GClip's grows as the sharp bound",
        holds=gclip - 2 * gclip_error > FREE and abs(gclip - sharp) <= NEAR + 2 * gclip_error,
        words=f"d^{gclip:.2f}±{2 * gclip_error:.2f}; sharp bound d^{sharp:.2f}, printed bound "
        f"d^{2 / alpha:.2f}",
    )
    return parts


H8_DIMENSION = Study(
    name="h8-dimension",
    claim="H8",
    title="CClip's worst error is free of the dimension, GClip's is not",
    statement="Under coordinate-wise moments with ‖B‖_2 fixed, CClip's error does not depend on "
    "d, GClip's grows.",
    source=Source("thesis", "Corollary 4.5.1 and Theorem 4.5.1"),
    scales=scales(
        {
            "alpha": 1.5,
            "horizon": 60,
            "dimensions": [1, 10, 100, 1000],
            "coordinates": 20_000,
            "least_runs": 250,
            "multiples": [1.0, 2.0],
        },
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
