"""T2: worst-case rates by semidefinite programs (thesis, Fig. 2-1)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from mindgap.lab.studies.spec import Figure, Parts, Row, Run, Scale, Source, Study, Trial
from mindgap.lab.studies.verdict import rows_by_method
from mindgap.lab.theory.chapter2.section_2_1 import SmoothConvex, gd_convex_gap, nesterov_convex_gap

#: How far a program's rate or gap may be from the exact one, and the Q beyond which heavy-ball has
#: no rate below 1; the rule states both.
PRECISION, LOST = 1e-4, 17.95


def worst_case_loop(trial: Trial) -> Iterator[Row]:
    """Worst cases of one method by semidefinite programs.

    A row per condition number ``Q`` holds the smallest certified ``rate``, the rate
    ``on_quadratics`` and the ``proved`` one. A row per number of steps, not for heavy-ball, holds
    ``pep_gap``, the worst f(x_n) - f* that the program finds, and the closed form's
    ``analytic_gap``. Where the solver is missing, one row gives the ``reason``.
    """
    from mindgap.lab.theory.chapter2.fig_2_1 import (
        lmi_rate,
        pep_gap,
        pep_missing,
        proved_rate,
        quadratic_rate,
    )

    if pep_missing():
        yield {"reason": pep_missing()}
        return
    name = trial["method"]
    for Q in trial["conditions"]:
        with trial.timed():
            rate = lmi_rate(name, Q)
        yield {
            "Q": Q,
            "rate": rate,
            "on_quadratics": quadratic_rate(name, Q),
            "proved": proved_rate(name, Q),
        }
    closed_forms = {"gd": gd_convex_gap, "nesterov": nesterov_convex_gap}
    for steps in trial["pep_steps"] if name in closed_forms else []:
        constants = SmoothConvex(1.0)
        with trial.timed():
            gap = pep_gap(name, constants, steps)
        yield {
            "pep_steps": steps,
            "pep_gap": gap,
            "analytic_gap": closed_forms[name](constants, steps),
        }


def judge_worst_case(runs: Sequence[Run]) -> Parts:
    """Compare worst-case rates from semidefinite programs with analytic ones.

    Returns:
        Four parts: GD's rate is the proved one, and finite worst cases are the closed forms, both
        within :data:`PRECISION`; Nesterov's rate lies between that on quadratics and Theorem 2.1.3;
        heavy-ball has a rate below 1 up to Q = :data:`LOST` and not beyond. Nothing is decided
        where the package that solves the programs is missing.
    """
    parts, table = Parts(), rows_by_method(runs)
    # Why the programs were not solved.
    reasons = [row["reason"] for rows in table.values() for row in rows if "reason" in row]
    if reasons:
        parts.decide_nothing(reasons[0])
        return parts
    rates = {name: [row for row in rows if "Q" in row] for name, rows in table.items()}
    rate_error = max(abs(row["rate"] - row["proved"]) for row in rates["GD"])
    gap_errors = [
        abs(row["pep_gap"] - row["analytic_gap"])
        for rows in table.values()
        for row in rows
        if "pep_gap" in row
    ]
    # Heavy-ball has no such row, and the simulation of equal methods may draw it for all.
    gap_error = max(gap_errors, default=math.inf)
    between = all(row["on_quadratics"] < row["rate"] < row["proved"] for row in rates["Nesterov"])
    heavy_ball = {row["Q"]: row["rate"] for row in rates["heavy-ball"]}
    last_below_1 = max((Q for Q, rate in heavy_ball.items() if rate < 1), default=0.0)
    first_at_1 = min((Q for Q, rate in heavy_ball.items() if rate >= 1), default=math.inf)
    parts.add(
        "GD has its analytic rate",
        holds=rate_error < PRECISION,
        words=f"off by {rate_error:.1e}",
        numbers={"gd_error": rate_error},
    )
    parts.add(
        "finite worst cases are the closed forms",
        holds=gap_error < PRECISION,
        words=f"off by {gap_error:.1e}",
        numbers={"pep_error": gap_error},
    )
    parts.add(
        "Nesterov lies between its rate on quadratics and Theorem 2.1.3",
        holds=between,
        numbers={"nesterov_between": between},
    )
    parts.add(
        "heavy-ball has a rate below 1 up to Q near 18 only",
        holds=last_below_1 < LOST <= first_at_1 + 0.1 and first_at_1 < math.inf,
        words=f"up to {last_below_1:g}, not from {first_at_1:g} on",
        numbers={"heavy_ball_certified_to": last_below_1, "heavy_ball_lost_from": first_at_1},
    )
    return parts


T2_WORST_CASE_RATES = Study(
    name="t2-worst-case-rates",
    claim="T2",
    source=Source("thesis", "Fig. 2-1"),
    title="In the worst case heavy-ball need not converge, Nesterov's method does",
    statement="Worst-case rates, computed by matrix inequalities: GD's is 1 - 1/Q, Nesterov's "
    "lies below Theorem 2.1.3's for every condition number Q, and heavy-ball's reaches 1 (no "
    "convergence is proved) at Q near 18.",
    scales={
        "quick": Scale({"conditions": [2.0, 8.0, 17.0, 18.5, 64.0], "pep_steps": [1, 2]}),
        "cpu": Scale(
            {
                "conditions": [
                    1.5,
                    2.0,
                    3.0,
                    4.0,
                    6.0,
                    8.0,
                    11.0,
                    14.0,
                    16.0,
                    17.0,
                    17.8,
                    18.1,
                    20.0,
                    25.0,
                    32.0,
                    40.0,
                    50.0,
                    64.0,
                    80.0,
                    100.0,
                ],
                "pep_steps": [1, 2, 3, 4, 5, 6],
            }
        ),
    },
    methods={
        "GD": {"method": "gd"},
        "Nesterov": {"method": "nesterov"},
        "heavy-ball": {"method": "heavy-ball"},
    },
    loop=worst_case_loop,
    judge=judge_worst_case,
    rule="GD agrees with its analytic rate and finite worst cases with their closed forms to "
    "1e-4, Nesterov lies between its rate on quadratics and Theorem 2.1.3 for every Q, and "
    "heavy-ball's rate is below 1 up to Q = 17.95 and not above.",
    figures=(
        Figure(
            "Worst-case rate",
            "rate",
            "ρ, error per step",
            x="Q",
            x_label="condition number Q",
            log_x=True,
            hlines={"no convergence proved": 1.0},
            caption="Heavy-ball's line meets 1 at Q = (2 + √5)² = 17.9.",
        ),
        Figure(
            "Rate on quadratics, in closed form",
            "on_quadratics",
            "ρ on quadratics",
            x="Q",
            x_label="condition number Q",
            log_x=True,
            caption="On quadratics heavy-ball is the fastest of the three.",
        ),
    ),
)
