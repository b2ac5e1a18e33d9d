"""S6: polynomials of degree three or more are (L0, L1)-smooth and not L-smooth; deep linear
networks are not globally.

The thesis proves the first and argues the second by the common factors of gradient and Hessian.
What the factors give is a correlation; a bound of the curvature by the gradient fails along the
valley of zero loss.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from mindgap.lab.studies.spec import Figure, Parts, Row, Run, Source, Study, Trial, scales
from mindgap.lab.studies.verdict import by_method, rows_by_method, slope


def loop_polynomials(trial: Trial) -> Iterator[Row]:
    """For growing radius R: the largest |f''| and the largest |f''| - L1|f'| on [-R, R],
    against the exact L0.
    """
    from mindgap.lab.theory import Polynomial, polynomial_l0

    rng = trial.numpy_generator("coefficients")
    for number in range(trial["polynomials"]):
        polynomial = Polynomial(tuple(rng.normal(size=trial["degree"] + 1)))
        L0 = polynomial_l0(polynomial, trial["L1"])
        for radius in trial["radii"]:
            with trial.timed():
                x = np.concatenate(
                    [
                        np.linspace(-radius, radius, trial["points"]),
                        rng.uniform(-radius, radius, 1000),
                    ]
                )
                curvature = np.abs(polynomial.curvature(x))
                relaxed = curvature - trial["L1"] * polynomial.gradient_norm(x)
            yield {
                "polynomial": number,
                "radius": radius,
                "smoothness": float(curvature.max()),
                "relaxed": float(relaxed.max()),
                "L0": trial["l0_factor"] * L0,
            }


def judge_polynomials(runs: Sequence[Run]) -> Parts:
    """|f''| grows like R^(d-2) and |f''| - L1|f'| never exceeds L0."""
    parts = Parts()
    for name, group in by_method(runs).items():
        degree = group[0].header.settings["degree"]
        rows = [row for run in group for row in run.rows]
        above = sum(row["relaxed"] > row["L0"] * (1 + 1e-9) for row in rows)
        radii = sorted({row["radius"] for row in rows})[-2:]  # the two largest
        exponents = []
        for run in group:
            # A row per polynomial and radius, in this order.
            largest = [row["smoothness"] for row in run.rows if row["radius"] in radii]
            for pair in zip(largest[::2], largest[1::2]):
                exponents.append(slope(np.log(radii), np.log(pair))[0])
        growth = float(np.median(exponents))
        parts.add(
            f"{name}: |f''| is not bounded",
            abs(growth - (degree - 2)) < 0.1,
            words=f"grows like R^{growth:.2f}",
            numbers={name: {"over": above, "growth": growth}},
        )
        parts.add(f"{name}: |f''| <= L0 + L1|f'|", above == 0, words=f"{above} times above")
    return parts


def loop_networks(trial: Trial) -> Iterator[Row]:
    """Gradient and Hessian norms over random weights of varying size, or along the valley of
    zero loss.
    """
    from mindgap.lab.theory import DeepLinear

    rng = trial.numpy_generator("network")
    if trial["valley"]:
        network = DeepLinear(np.ones((1, 1)), np.ones((1, 1)), hidden=(1,))
        points = [network.valley(t) for t in np.geomspace(1, trial["farthest"], 13)]
    else:
        width, samples = trial["width"], trial["samples"]
        network = DeepLinear(
            rng.standard_normal((width, samples)),
            rng.standard_normal((1, samples)),
            hidden=(width,) * (trial["layers"] - 1),
        )
        scales_ = np.exp(rng.uniform(np.log(0.1), np.log(3.0), trial["points"]))
        points = [
            size * rng.standard_normal(network.dimension) / np.sqrt(width) for size in scales_
        ]
    for number, weights in enumerate(points):
        with trial.timed():
            norm, curvature = float(network.gradient_norm(weights)), network.hessian_norm(weights)
        yield {
            "step": number,
            "gradient": max(norm, 1e-16),
            "curvature": curvature,
            "size": float(np.linalg.norm(weights)),
        }


def judge_networks(runs: Sequence[Run]) -> Parts:
    """The rank correlation over random weights; how the curvature grows where the gradient
    vanishes is noted.
    """
    from scipy.stats import spearmanr

    parts, table = Parts(), rows_by_method(runs)
    random_rows, valley_rows = table["random weights"], table["valley of zero loss"]
    rank = float(
        spearmanr(
            [row_["gradient"] for row_ in random_rows], [row_["curvature"] for row_ in random_rows]
        ).statistic
    )
    largest_gradient = max(row["gradient"] for row in valley_rows)
    growth, _ = slope(
        np.log([row_["size"] for row_ in valley_rows[-6:]]),
        np.log([row_["curvature"] for row_ in valley_rows[-6:]]),
    )
    parts.add(
        "gradient and Hessian norm are correlated",
        rank > 0.5,
        words=f"rank correlation {rank:.2f}",
        numbers={"rank_correlation": rank},
    )
    parts.note(
        "no bound follows from it: on the valley of zero loss the gradient stays below "
        f"{largest_gradient:.1g} while the curvature grows like |w|^{growth:.2f}, up to "
        f"{valley_rows[-1]['curvature']:.2g}",
        {"valley_growth": growth, "valley_gradient": largest_gradient},
    )
    return parts


_POLY = {
    "L1": 1.0,
    "radii": [1.0, 10.0, 100.0, 1e3, 1e4],
    "points": 4001,
    "polynomials": 5,
    "l0_factor": 1.0,
}
_NET = {"points": 40, "width": 3, "samples": 8, "layers": 3, "farthest": 1e4}

S6_POLYNOMIALS = Study(
    name="s6-polynomials",
    claim="S6",
    title="Polynomials are (L0, L1)-smooth and not L-smooth",
    statement="Univariate polynomials of degree d >= 3 satisfy |f''| <= L0 + L1|f'| for some L0 "
    "at every L1 > 0, and no bound |f''| <= L.",
    source=Source("thesis", "Lemma 3.2.1"),
    scales=scales(_POLY, {"points": 40_001, "polynomials": 10}, seeds=(2, 5)),
    methods={f"degree {d}": {"degree": d} for d in (3, 4, 6)},
    loop=loop_polynomials,
    judge=judge_polynomials,
    rule="|f''| grows like R^(d-2) (within 0.1) and |f''| - L1|f'| never exceeds L0.",
    figures=(
        Figure(
            "Largest curvature on [-R, R]",
            "smoothness",
            "max |f''|",
            x="radius",
            x_label="R",
            log_x=True,
            log_y=True,
            caption="An L-smooth function would level off; these grow like R^(d-2).",
        ),
        Figure(
            "Largest |f''| - L1|f'| on [-R, R]",
            "relaxed",
            "max (|f''| - L1|f'|)",
            x="radius",
            x_label="R",
            log_x=True,
            caption="Relaxed smoothness: it stays below a constant L0 however large R is.",
        ),
    ),
)

S6_DEEP_LINEAR = Study(
    name="s6-deep-linear",
    claim="S6",
    title="Deep linear networks: gradient and curvature grow together",
    statement="Gradient and Hessian of deep linear networks share factors, so that their norms "
    "are correlated over the weights.",
    source=Source("thesis", "3.2.3"),
    scales=scales(_NET, {"points": 200, "width": 6, "layers": 4}, seeds=(1, 2)),
    methods={"random weights": {"valley": False}, "valley of zero loss": {"valley": True}},
    loop=loop_networks,
    judge=judge_networks,
    rule="The rank correlation of gradient and Hessian norm over random weights is above "
    "0.5. That the curvature is not bounded along the valley of zero loss is noted, not judged.",
    figures=(
        Figure(
            "Curvature against gradient norm",
            "curvature",
            "‖∇²f‖",
            x="gradient",
            x_label="‖∇f‖",
            kind="points",
            log_x=True,
            log_y=True,
            caption="Over random weights the two grow together; on the valley of zero "
            "loss the gradient is zero and the curvature anything.",
        ),
    ),
)
