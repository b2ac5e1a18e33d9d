"""T1 to T3: the textbook's rates, worst cases by semidefinite programs, and Adam's regret
(thesis, chapter 2).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from mindgap.lab.studies.spec import Figure, Parts, Row, Run, Scale, Source, Study, Trial
from mindgap.lab.studies.verdict import by_method, rows_by_method, slope
from mindgap.lab.theory.chapter2.section_2_1 import (
    SmoothConvex,
    amplitudes,
    gd_convex_gap,
    gd_gap_printed,
    iteration_bound,
    nesterov_convex_gap,
    nesterov_gap,
    parameters,
    worst_gap,
)


def rates_loop(trial: Trial) -> Iterator[Row]:
    """Steps to accuracy ε on the worst quadratic, over conditioning, accuracy and smoothness;
    random ones beside it.
    """
    from mindgap.lab.theory import SmoothConvex

    name = trial["method"]
    strongly_convex = [
        (SmoothConvex(1.0, 1 / Q), trial["epsilon"], "Q", Q) for Q in trial["conditions"]
    ]
    convex = [
        (SmoothConvex(1.0), accuracy, "1/ε", 1 / accuracy) for accuracy in trial["accuracies"]
    ]
    convex += [(SmoothConvex(L), trial["accuracies"][-1], "L", L) for L in trial["smoothness"]]
    # the worst quadratic is the same for every seed
    for constants, epsilon, axis, grid_value in (
        (strongly_convex + (convex if name != "heavy-ball" else [])) if trial.seed == 0 else []
    ):
        with trial.timed():
            count, bound = _count(name, constants, epsilon, trial["step_factor"])
        yield {"part": axis, "at": grid_value, "iterations": count, "bound": bound}
    with trial.timed():
        yield {"part": "random", "worst_ratio": _random_quadratics(trial)}


def _count(name: str, constants, epsilon: float, step_factor: float):  # type: ignore[no-untyped-def]
    """First step from which the worst gap stays at most ε, and the table's bound; infinite if
    not within 1.5 bounds.
    """

    bound = math.ceil(
        iteration_bound("nesterov" if name == "heavy-ball" else name, constants, epsilon)
    )
    alpha = (parameters(name, constants)[0] if constants.mu > 0 else 1 / constants.L) * step_factor
    with np.errstate(over="ignore", invalid="ignore"):
        gap = worst_gap(name, constants, min(3 * bound // 2 + 50, 40_000), alpha=alpha)
    too_large = np.flatnonzero(~(gap <= epsilon))
    return (math.inf if too_large[-1] == len(gap) - 1 else int(too_large[-1]) + 1), bound


def _random_quadratics(trial: Trial) -> float:
    """max_k (f(x_k) - f*) / bound over random spectra and starts: 1 is where a bound would
    break.
    """

    name, rng = trial["method"], trial.numpy_generator("quadratics")
    if name == "heavy-ball":
        return 0.0  # no bound is stated for it
    worst = 0.0
    for Q in trial["conditions"]:
        constants = SmoothConvex(1.0, 1 / Q)
        curvature = np.exp(
            rng.uniform(-math.log(Q), 0, size=(trial["functions"], trial["dimension"]))
        )
        curvature[:, 0], curvature[:, 1] = constants.mu, constants.L
        start = rng.standard_normal(curvature.shape)
        start /= np.linalg.norm(start, axis=1, keepdims=True)
        alpha, beta = parameters(name, constants)
        factors = amplitudes(name, curvature, alpha * trial["step_factor"], beta)
        bound = gd_gap_printed if name == "gd" else nesterov_gap
        for k in range(trial["steps"]):
            gap = float((curvature * (next(factors) * start) ** 2).sum(axis=1).max()) / 2
            worst = max(worst, gap / bound(constants, k))
    return worst


#: part -> exponent of the number of steps, for GD and for the accelerated methods.
EXPONENTS = {"Q": (1.0, 0.5), "1/ε": (1.0, 0.5), "L": (1.0, 0.5)}
#: part -> what Table 2.1 prints for Nesterov's method where it is another: O(L/√ε).
PRINTED = {"L": 1.0}


def judge_rates(runs: Sequence[Run]) -> Parts:
    """Every count is within its bound, the exponents are Table 2.1's (√L for Nesterov), random
    runs stay below.
    """
    parts = Parts()
    for method, group in by_method(runs).items():
        rows: dict[str, list[Row]] = {}
        for row in group[0].rows:
            if row["part"] in EXPONENTS:
                rows.setdefault(row["part"], []).append(row)
        powers = {part: _power(of_part) for part, of_part in rows.items()}
        corrected = {part: EXPONENTS[part][method != "GD"] for part in powers}
        printed = {
            part: PRINTED.get(part, power) if method == "Nesterov" else power
            for part, power in corrected.items()
        }
        readings = {"as printed": printed, "as corrected": corrected}
        if printed == corrected:
            readings = {"": corrected}
        for reading, stated in readings.items():
            parts.add(
                f"{method}: exponents of Table 2.1 {reading}".rstrip(),
                all(abs(power - stated[part]) < 0.12 for part, power in powers.items()),
                words=", ".join(
                    f"{part}^{power:.2f} (stated {stated[part]:g})"
                    for part, power in powers.items()
                ),
                reading=reading,
            )
        within_bounds = method == "heavy-ball" or all(
            row["iterations"] <= row["bound"] for of_part in rows.values() for row in of_part
        )
        ratio = max(
            row["worst_ratio"] for run in group for row in run.rows if row["part"] == "random"
        )
        parts.add(
            f"{method}: below its bounds",
            within_bounds and ratio <= 1,
            words=f"random runs at {ratio:.2f} of them",
            numbers={method: {"exponents": powers, "random_over_bound": ratio}},
        )
    return parts


def _power(rows: Sequence[Row]) -> float:
    """The exponent with which the iterations grow; infinite where some never arrived."""
    counts = [row["iterations"] for row in rows]
    if not all(math.isfinite(count) for count in counts):
        return math.inf
    return slope(np.log([row["at"] for row in rows]), np.log(counts))[0]


def worst_case_loop(trial: Trial) -> Iterator[Row]:
    """The smallest certified rate over a grid of condition numbers; finite worst cases against
    closed forms.
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
    exact = {"gd": gd_convex_gap, "nesterov": nesterov_convex_gap}
    for n in trial["pep_steps"] if name in exact else []:
        c = SmoothConvex(1.0)
        with trial.timed():
            gap = pep_gap(name, c, n)
        yield {"pep_steps": n, "pep_gap": gap, "analytic_gap": exact[name](c, n)}


def judge_worst_case(runs: Sequence[Run]) -> Parts:
    """GD agrees with its analytic rate to 1e-4; Nesterov has a rate below 1 everywhere;
    heavy-ball up to 17.9.
    """
    parts, table = Parts(), rows_by_method(runs)
    if missing := [row["reason"] for rows in table.values() for row in rows if "reason" in row]:
        parts.decide_nothing(missing[0])
        return parts
    # method -> condition number -> row
    rate = {name: {row["Q"]: row for row in rows if "Q" in row} for name, rows in table.items()}
    error = max(abs(row["rate"] - row["proved"]) for row in rate["GD"].values())
    gaps = [
        abs(row["pep_gap"] - row["analytic_gap"])
        for rows in table.values()
        for row in rows
        if "pep_gap" in row
    ]
    # Heavy-ball has none: the simulation of equal methods may draw it alone.
    gap = max(gaps, default=math.inf)
    between = all(
        row["on_quadratics"] < row["rate"] < row["proved"] for row in rate["Nesterov"].values()
    )
    heavy_ball = {Q: row["rate"] for Q, row in rate["heavy-ball"].items()}
    last_below_1 = max((Q for Q, value in heavy_ball.items() if value < 1), default=0.0)
    first_at_1 = min((Q for Q, value in heavy_ball.items() if value >= 1), default=math.inf)
    parts.add(
        "GD has its analytic rate",
        error < 1e-4,
        words=f"off by {error:.1e}",
        numbers={"gd_error": error},
    )
    parts.add(
        "finite worst cases are the closed forms",
        gap < 1e-4,
        words=f"off by {gap:.1e}",
        numbers={"pep_error": gap},
    )
    parts.add(
        "Nesterov lies between its rate on quadratics and Theorem 2.1.3",
        between,
        numbers={"nesterov_between": between},
    )
    parts.add(
        "heavy-ball has a rate below 1 up to Q near 18 only",
        last_below_1 < 17.95 <= first_at_1 + 0.1 < math.inf,
        words=f"up to {last_below_1:g}, not from {first_at_1:g} on",
        numbers={"heavy_ball_certified_to": last_below_1, "heavy_ball_lost_from": first_at_1},
    )
    return parts


def regret_loop(trial: Trial) -> Iterator[Row]:
    """Average regret R_t/t and the point x_t, at steps on a logarithmic grid."""
    from mindgap.lab.theory.chapter2.fig_2_3 import RareLargeLoss, online_regret

    problem = RareLargeLoss(trial["C"], trial["s"], trial["period"])
    beta2 = trial["beta2"] or problem.forgetting()
    last_step = trial["periods"] * problem.period
    read_steps = sorted(
        {
            int(step_) // problem.period * problem.period
            for step_ in np.geomspace(10 * problem.period, last_step, 25)
        }
    )
    with trial.timed():
        regrets, points = online_regret(
            problem, trial["rule"], trial["alpha"], (trial["beta1"], beta2), read_steps
        )
    for step, regret, point in zip(read_steps, regrets, points, strict=True):
        yield {"step": step, "regret": regret, "point": point, "floor": problem.adam_floor()}


def judge_regret(runs: Sequence[Run]) -> Parts:
    """Adam's regret is never below its floor (a tenth allowed for); AMSGrad's falls, to below
    half of it.
    """
    parts = Parts()
    for run in runs:
        regret, floor = run.column("regret"), run.rows[0]["floor"]
        half = len(regret) // 2
        late_steps, late_regret = run.column("step")[half:], np.maximum(regret[half:], 1e-12)
        power, _ = slope(np.log(late_steps), np.log(late_regret))
        adam, method = run.header.settings["rule"] == "adam", run.header.method
        holds = min(regret) >= 0.9 * floor if adam else regret[-1] < floor / 2 and power < -0.3
        parts.add(
            f"{method}: the regret {'stays' if adam else 'falls'}",
            holds,
            numbers={method: {"regret": regret[-1], "floor": floor, "power": power}},
            words=f"R_T/T = {regret[-1]:.3g} ({regret[-1] / floor:.2f} of the floor), like "
            f"T^{power:.2f}",
        )
    return parts


_THEOREM = {"C": 3.0, "s": 1.0, "period": 3, "alpha": 0.5, "beta1": 0.0, "beta2": 0.0}
_FIGURE = {"C": 1010.0, "s": 10.0, "period": 101, "alpha": 0.5, "beta1": 0.9, "beta2": 0.99}
_RATES = {"epsilon": 1e-8, "step_factor": 1.0, "functions": 50, "dimension": 20, "steps": 300}

T1_TEXTBOOK_RATES = Study(
    name="t1-textbook-rates",
    claim="T1",
    title="Iteration counts agree with the textbook",
    statement="GD needs (L/μ) log(1/ε) or L/ε steps, Nesterov's method √(L/μ) log(1/ε) or L/√ε, "
    "and both stay below their bounds; heavy-ball accelerates on quadratics too.",
    source=Source("thesis", "2.1, Table 2.1, Theorem 2.1.3"),
    scales={
        "quick": Scale(
            {
                **_RATES,
                "conditions": [64.0, 256.0, 1024.0],
                "accuracies": [1e-2, 1e-3, 1e-4],
                "smoothness": [0.5, 1.0, 4.0],
            },
            seeds=2,
        ),
        "cpu": Scale(
            {
                **_RATES,
                "functions": 500,
                "steps": 1000,
                "conditions": [64.0, 128.0, 256.0, 512.0, 1024.0],
                "accuracies": [1e-2, 1e-3, 1e-4],
                "smoothness": [0.25, 0.5, 1.0, 2.0, 4.0],
            },
            seeds=20,
        ),
    },
    methods={
        "GD": {"method": "gd"},
        "Nesterov": {"method": "nesterov"},
        "heavy-ball": {"method": "heavy-ball"},
    },
    loop=rates_loop,
    judge=judge_rates,
    rule="Every count is within its bound, the exponents are within 0.12 of Table 2.1's (as "
    "printed L¹ for Nesterov's method on convex functions, as corrected √L), and random "
    "quadratics stay below the bounds.",
    figures=(
        Figure(
            "Steps to accuracy ε on the worst quadratic",
            "iterations",
            "iterations",
            x="at",
            x_label="Q, 1/ε or L",
            facet="part",
            log_x=True,
            log_y=True,
            caption="Slopes: 1 for GD, 1/2 for the accelerated methods, in all three panels.",
        ),
    ),
)

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

T3_ADAM_REGRET = Study(
    name="t3-adam-regret",
    claim="T3",
    title="Adam's average regret stays, AMSGrad's goes to zero",
    statement="On the online problem with a rare large loss Adam's average regret does not go to "
    "zero; AMSGrad's does.",
    source=Source("thesis", "Fig. 2-3"),
    scales={"quick": Scale({"periods": 5_000}), "cpu": Scale({"periods": 50_000})},
    methods={
        "Adam": {"rule": "adam", **_THEOREM},
        "AMSGrad": {"rule": "amsgrad", **_THEOREM},
        "Adam, as in the figure": {"rule": "adam", **_FIGURE},
        "AMSGrad, as in the figure": {"rule": "amsgrad", **_FIGURE},
    },
    loop=regret_loop,
    judge=judge_regret,
    rule="Adam's average regret is never below nine tenths of its floor; "
    "AMSGrad's falls to below half of the floor, faster than T^-0.3.",
    figures=(
        Figure(
            "Average regret",
            "regret",
            "R_t / t",
            log_x=True,
            log_y=True,
            caption="Adam levels off at its floor; AMSGrad falls like 1/√t or faster.",
        ),
        Figure(
            "The point",
            "point",
            "x_t",
            log_x=True,
            caption="The best point is -1; Adam sits at +1.",
        ),
    ),
)
