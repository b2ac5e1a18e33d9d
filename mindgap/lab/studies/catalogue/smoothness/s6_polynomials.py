"""S6: polynomials of degree three or more are (L0, L1)-smooth and not L-smooth (thesis, Lemma
3.2.1).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from mindgap.lab.studies.spec import Figure, Parts, Row, Run, Source, Study, Trial, scales
from mindgap.lab.studies.verdict import by_method, slope


def loop_polynomials(trial: Trial) -> Iterator[Row]:
    """Random polynomials f on intervals [-R, R] of growing radius R (``radii``).

    A row per polynomial and radius holds ``smoothness``, the largest |f''|, ``relaxed``, the
    largest |f''| - L1|f'|, both over a grid and 1,000 random points, and the exact ``L0``, which
    the latter must not exceed.
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
    """Ask of the polynomials of each degree d whether |f''| is unbounded and |f''| - L1|f'|
    bounded.

    Returns:
        Two parts per method (a degree): |f''| grows like R^(d-2) between the two largest radii, by
        the median exponent and within 0.1; ``relaxed`` exceeds ``L0`` in no row.
    """
    parts = Parts()
    for name, own_runs in by_method(runs).items():
        degree = own_runs[0].header.settings["degree"]
        rows = [row for run in own_runs for row in run.rows]
        above = sum(row["relaxed"] > row["L0"] * (1 + 1e-9) for row in rows)
        radii = sorted({row["radius"] for row in rows})[-2:]  # the two largest
        # A row per run, polynomial and radius, in this order: pairs of a polynomial's two values.
        logs = np.log([row["smoothness"] for row in rows if row["radius"] in radii])
        exponents = [slope(np.log(radii), pair)[0] for pair in logs.reshape(-1, 2)]
        power = float(np.median(exponents))
        parts.add(
            f"{name}: |f''| is not bounded",
            holds=abs(power - (degree - 2)) < 0.1,
            words=f"grows like R^{power:.2f}",
            numbers={name: {"over": above, "growth": power}},
        )
        parts.add(f"{name}: |f''| <= L0 + L1|f'|", holds=above == 0, words=f"{above} times above")
    return parts


S6_POLYNOMIALS = Study(
    name="s6-polynomials",
    claim="S6",
    title="Polynomials are (L0, L1)-smooth and not L-smooth",
    statement="Univariate polynomials of degree d >= 3 satisfy |f''| <= L0 + L1|f'| for some L0 "
    "at every L1 > 0, and no bound |f''| <= L.",
    source=Source("thesis", "Lemma 3.2.1"),
    scales=scales(
        {
            "L1": 1.0,
            "radii": [1.0, 10.0, 100.0, 1e3, 1e4],
            "points": 4001,
            "polynomials": 5,
            "l0_factor": 1.0,
        },
        {"points": 40_001, "polynomials": 10},
        seeds=(2, 5),
    ),
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
