"""N1, N2 and N4: INGD, Stochastic INGD, and the oracles that nobody gets past (thesis, chapter
5).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from mindgap.lab.studies.spec import Figure, Parts, Row, Run, Scale, Source, Study, Trial
from mindgap.lab.studies.verdict import last, rows_by_method
from mindgap.lab.theory.chapter5.adversaries import (
    Defeat,
    GradientAdversary,
    LipschitzClass,
    OutOfCalls,
    ValueAdversary,
)
from mindgap.lab.theory.chapter5.ingd import (
    NonsmoothTarget,
    StochasticTarget,
    ingd_calls_printed,
    ingd_gradient_calls,
    ingd_inner_steps,
    mean_direction_bound,
    one_inner_step_radius,
    stochastic_rule,
)
from mindgap.lab.theory.chapter5.stationarity import PiecewiseLinear


def zigzag(rng: np.random.Generator, L: float, teeth: int = 6):  # type: ignore[no-untyped-def]
    """Random teeth of slope ±L that go down to the right and up again: many kinks, bounded
    below.
    """

    widths = rng.uniform(0.05, 0.5, size=2 * teeth)
    widths[0::2] *= 1.5  # falls are longer than rises
    breaks = tuple(Fraction(float(position)) for position in np.cumsum(widths))
    slope = Fraction(L)
    return PiecewiseLinear((Fraction(0), *breaks), (-slope, *[-slope, slope] * teeth, slope))


def ingd_loop(trial: Trial) -> Iterator[Row]:
    """INGD with Theorem 5.4.1's parameters on a zigzag or a smooth function, over a grid of (L,
    δ, ε).
    """

    for L in trial["L"]:
        for epsilon_share in trial["epsilon_over_L"]:
            for delta in trial["delta"]:
                if trial["function"] == "zigzag":
                    function = zigzag(trial.numpy_generator("teeth"), L)
                    target = NonsmoothTarget(
                        L,
                        float(function.value(-0.5) - function.infimum),
                        delta,
                        epsilon_share * L,
                        trial["gamma"],
                    )
                    row = _run_ingd(trial, target, [-0.5], _oracle(function))
                    row["distance"] = float(function.distance(row.pop("x")[0], delta))
                else:
                    row, target = _smooth_quadratic(trial, L, epsilon_share)
                yield {
                    "L": L,
                    "delta": target.delta,
                    "epsilon": target.epsilon,
                    "bound_printed": ingd_calls_printed(target),
                    "share": row["oracle_calls"] / ingd_calls_printed(target),
                    "bound_proved": 2 * ingd_gradient_calls(target),
                    **row,
                }


def _oracle(f: Any) -> Callable[[np.ndarray], tuple[Any, Any]]:
    """Point -> value and gradient of a piecewise linear function."""
    return lambda at: (f.values(at)[0], f.gradients(at))


def _smooth_quadratic(trial: Trial, L: float, share: float) -> tuple[Row, Any]:
    """A quadratic of curvature L from ‖∇f‖ = 10ε, with δ = 3ε/(2L) less a little (times
    ``radius_factor``).
    """

    epsilon = share * L
    start = 10 * epsilon / L * np.array([0.6, -0.8])
    delta = 0.999 * trial["radius_factor"] * one_inner_step_radius(L, epsilon)
    target = NonsmoothTarget(
        11 * epsilon, L / 2 * float(start @ start), delta, epsilon, trial["gamma"]
    )
    row = _run_ingd(trial, target, start, lambda point: (L / 2 * point @ point, L * point))
    row["distance"] = max(0.0, L * float(np.linalg.norm(row.pop("x"))) - L * delta)
    return row, target


def _run_ingd(
    trial: Trial, target: Any, start: Any, oracle: Callable[[np.ndarray], tuple[Any, Any]]
) -> Row:
    """mindgap's INGD until its certificate, or until more calls than stated are spent."""
    import torch

    from mindgap.optim import INGD

    x = torch.tensor(np.asarray(start, dtype=float), requires_grad=True)
    inner_steps = trial["inner"] or ingd_inner_steps(target)
    optimizer = INGD(
        [x],
        lr=target.delta,
        epsilon=target.epsilon,
        lipschitz=target.L,
        inner=inner_steps,
        seed=trial.seed,
    )

    def closure() -> torch.Tensor:
        value, gradient = oracle(x.detach().numpy())
        x.grad = torch.from_numpy(np.asarray(gradient))
        return torch.tensor(float(value), dtype=torch.float64)

    longest_search = 0
    with trial.timed():
        while (
            not optimizer.result().certified
            and optimizer.result().oracle_calls <= ingd_calls_printed(target)
        ):
            optimizer.step(closure)
            longest_search = max(longest_search, optimizer.result().inner_steps)
    result = optimizer.result()
    return {
        "oracle_calls": result.oracle_calls,
        "certified": result.certified,
        "longest_search": longest_search,
        "x": x.detach().numpy(),
    }


def judge_ingd(runs: Sequence[Run]) -> Parts:
    """At most a share γ of the runs needs more calls than stated; certificates are true;
    smooth: one inner step.
    """
    parts, table = Parts(), rows_by_method(runs)
    gamma = runs[0].header.settings["gamma"]
    rows = [row for group in table.values() for row in group]
    share_too_late = float(
        np.mean(
            [not row["certified"] or row["oracle_calls"] > row["bound_printed"] for row in rows]
        )
    )
    share = max(row["oracle_calls"] / row["bound_printed"] for row in rows)
    false_certificates = sum(
        row["certified"] and row["distance"] > row["epsilon"] * (1 + 1e-9) for row in rows
    )
    longest_search = max(row["longest_search"] for row in table["smooth"])
    parts.add(
        "within the stated calls",
        share_too_late <= gamma,
        numbers={"late": share_too_late, "largest_share": share},
        words=f"{share_too_late:.0%} of {len(rows)} runs over them (allowed {gamma:.0%}), the "
        "costliest at "
        f"{share:.1%}",
    )
    parts.add(
        "certificates are true",
        false_certificates == 0,
        words=f"{false_certificates} untrue",
        numbers={"untrue": false_certificates},
    )
    parts.add(
        "one inner step on smooth functions",
        longest_search == 1,
        words=f"at most {longest_search} per search",
        numbers={"smooth_inner_steps": longest_search},
    )
    return parts


def stochastic_loop(trial: Trial) -> Iterator[Row]:
    """Algorithm 3 with Theorem 5.5.1's parameters, ``number`` runs side by side; outputs by the
    rule x_{max(i-K,1)}.

    f = L|x|, so that Δ = f(x_1) exactly and d(0, ∂f(x + δB)) is 0 within δ of the kink and L
    elsewhere.
    """
    target = StochasticTarget(
        trial["L"], trial["sigma"], trial["Delta"], trial["delta"], trial["epsilon"]
    )
    rule, rng, number = stochastic_rule(target), trial.numpy_generator("run"), trial["runs"]
    beta = 1 - trial["beta_factor"] * (1 - rule.beta)
    drawn_steps = rng.integers(1, rule.T + 1, size=number)
    output_at = np.array([rule.output_index(int(step_)) for step_ in drawn_steps])
    positions = np.full(number, target.Delta / target.L)
    output = positions.copy()
    directions = target.L * np.sign(positions) + target.sigma * rng.choice([-1.0, 1.0], size=number)
    # Stop where a row is due or an output is taken; between two stops nothing but Algorithm 3 runs.
    row_steps = {*np.geomspace(1, rule.T, 30).astype(int).tolist(), rule.T}
    stops = sorted(row_steps | set(output_at.tolist()) | set(range(1, rule.T, 4096)))
    total, last_row_step = 0.0, trial.restored.get("step", 0)
    if trial.restored:
        positions, directions, output = (
            trial.restored[name].numpy().copy() for name in ("x", "m", "output")
        )
        total, rng.bit_generator.state = trial.restored["total"], trial.restored["rng"]
    for step, next_step in zip(stops, [*stops[1:], rule.T + 1], strict=True):
        if step < last_row_step:
            continue
        output[output_at == step] = positions[output_at == step]
        if step in row_steps and step != last_row_step:
            trial.save(lambda: _state(step, rng, total, x=positions, m=directions, output=output))  # noqa: B023
            yield {
                "step": step,
                "mean_direction": float(total + np.abs(directions).sum()) / (step * number),
                "bound": mean_direction_bound(target),
            }
        with trial.timed():
            uniform = rng.random((next_step - step, number))
            noise = target.sigma * (2.0 * rng.integers(0, 2, size=uniform.shape) - 1)
            positions, directions, total = _algorithm_3(
                target.L, rule, beta, positions, directions, total, uniform, noise
            )
    distance = np.where(np.abs(output) <= target.delta, 0.0, target.L)
    yield {
        "step": rule.T,
        "mean_distance": float(distance.mean()),
        "stationary": float((distance <= target.epsilon).mean()),
        "distance_bound": target.epsilon / 3,
    }


def _algorithm_3(
    L: float,
    rule: Any,
    beta: float,
    positions: np.ndarray,
    directions: np.ndarray,
    total: float,
    uniform: np.ndarray,
    noise: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, float]:
    """Steps of Algorithm 3 on L|x| for all runs at once, one per row of the draws; returns x, the
    direction m, and ``total`` with |m| of every step added.
    """
    for uniform_share, noise_share in zip(uniform, (1 - beta) * noise):
        size = np.abs(directions)
        total += np.add.reduce(size)
        step = directions / (rule.p * size + rule.q)
        slope = np.sign(positions - uniform_share * step)
        positions = positions - step
        directions = beta * directions + ((1 - beta) * L) * slope + noise_share
    return positions, directions, total


def _state(
    step: int, rng: np.random.Generator, total: float, **arrays: np.ndarray
) -> dict[str, Any]:
    """Where ``stochastic_loop`` stands after the row of that step, as tensors and numbers."""
    import torch

    saved = {name: torch.from_numpy(array.copy()) for name, array in arrays.items()}
    return {"step": step, "total": float(total), "rng": rng.bit_generator.state, **saved}


def judge_stochastic(runs: Sequence[Run]) -> Parts:
    """(1/T) Σ E‖m_t‖ <= ε/4; the outputs' mean distance <= ε/3, and two thirds of them are
    stationary.
    """
    parts = Parts()
    direction, distance, stationary = (
        float(np.mean([last(run, column) for run in runs]))
        for column in ("mean_direction", "mean_distance", "stationary")
    )
    bound, limit = runs[0].column("bound")[0], runs[0].column("distance_bound")[0]
    parts.add(
        "mean ‖m_t‖ below its bound",
        direction <= bound,
        words=f"{direction:.3g}, bound {bound:.3g}",
        numbers={"mean_direction": direction, "bound": bound},
    )
    parts.add(
        "mean distance at the outputs below its bound",
        distance <= limit,
        words=f"{distance:.3g}, bound {limit:.3g}",
        numbers={"mean_distance": distance},
    )
    parts.add(
        "two thirds of the outputs are (δ, ε)-stationary",
        stationary >= 2 / 3,
        words=f"{stationary:.0%}",
        numbers={"stationary": stationary},
    )
    return parts


def black_box(name: str, calls: int) -> Callable[[Any, float], float]:
    """An optimizer as an algorithm that sees nothing but the oracle's answers; runs until its
    calls are spent.
    """
    import torch

    from mindgap.optim import INGD, GClip, StochasticINGD

    make: dict[str, Callable[[list[Any]], torch.optim.Optimizer]] = {
        "SGD": lambda p: torch.optim.SGD(p, lr=0.05),
        "GClip": lambda p: GClip(p, lr=0.05, tau=0.3),
        "INGD": lambda p: INGD(p, lr=0.05, epsilon=0.1, lipschitz=1.0, inner=50),
        "StochasticINGD": lambda p: StochasticINGD(p, clip=None),
        "Adam": lambda p: torch.optim.Adam(p, lr=0.02),
        "L-BFGS": lambda p: torch.optim.LBFGS(p, lr=0.2),
    }

    def algorithm(oracle: Any, start: float) -> float:
        x = torch.tensor([start], dtype=torch.float64, requires_grad=True)
        optimizer: Any = make[name]([x])

        def closure() -> torch.Tensor:
            answer = oracle(float(x.detach()))
            value, gradient = answer if isinstance(answer, tuple) else (0.0, answer)
            x.grad = torch.tensor([gradient], dtype=torch.float64)
            return torch.tensor(value, dtype=torch.float64)

        for _ in range(2 * calls):  # an optimizer that stops asking returns where it stands
            optimizer.step(closure)
        return float(x.detach())

    return algorithm


class _Honest:
    """|x| with honest answers, in place of an adversary: the statement is false for it."""

    def __init__(self, values: bool, calls: int, delta: float) -> None:
        self.values, self.calls, self.delta, self.queries = values, calls, delta, [0.4]

    def __call__(self, x: float, direction: float = 0.0) -> Any:
        if len(self.queries) >= self.calls:
            raise OutOfCalls
        self.queries.append(x)
        gradient = math.copysign(1.0, x) if x else 0.0
        return (abs(x), gradient) if self.values else gradient

    def play(self, algorithm: Callable[[Any, float], float]) -> Any:
        """Let an algorithm run from 0.4 until its calls are spent, and measure how near it came."""
        try:
            output = algorithm(self, 0.4)
        except OutOfCalls:
            output = self.queries[-1]
        absolute_value = PiecewiseLinear((Fraction(0),), (Fraction(-1), Fraction(1)))
        smallest = min(
            float(absolute_value.distance(query, self.delta)) for query in [*self.queries, output]
        )
        return Defeat(
            absolute_value,
            tuple(self.queries),
            output,
            float(absolute_value.distance(output, self.delta)),
            smallest,
            True,
            True,
        )


def adversary_loop(trial: Trial) -> Iterator[Row]:
    """One optimizer against both resisting oracles, over a grid of Δ and δ (L = 1)."""

    for Delta in trial["Delta"]:
        for calls in trial["calls"]:
            delta = Delta / (8 * calls)
            games: dict[str, Any] = {
                "5.3.1": ValueAdversary(LipschitzClass(1.0, Delta), 0.4, calls),
                "5.5.2": GradientAdversary(Delta, delta, 0.4),
            }
            if not trial["resist"]:
                games = {"5.3.1": _Honest(True, calls, 1e-9), "5.5.2": _Honest(False, calls, delta)}
            for theorem, game in games.items():
                with trial.timed():
                    defeat = game.play(black_box(trial["optimizer"], calls))
                yield {
                    "theorem": theorem,
                    "Delta": Delta,
                    "delta": delta,
                    "oracle_calls": len(defeat.queries),
                    "best_distance": defeat.best_distance,
                    "consistent": defeat.consistent,
                    "in_class": defeat.in_class,
                }


def judge_adversary(runs: Sequence[Run]) -> Parts:
    """No optimizer comes to a (δ-)stationary point of the function shown, which agrees with
    every answer.
    """
    parts, table = Parts(), rows_by_method(runs)
    rows = [row for group in table.values() for row in group]
    smallest = min(row["best_distance"] for row in rows)
    undefeated = sorted(
        name for name, group in table.items() if min(row["best_distance"] for row in group) < 1
    )
    parts.add(
        "no optimizer comes near a stationary point",
        smallest == 1.0,
        words=f"{len(table)} optimizers, {len(rows)} games, smallest distance {smallest:g} (L = 1)"
        + (f"; not defeated: {', '.join(undefeated)}" if undefeated else ""),
        numbers={"closest": smallest, "games": len(rows)},
    )
    parts.add(
        "the functions shown agree with the answers",
        all(row["consistent"] and row["in_class"] for row in rows),
    )
    return parts


_GRID = {"gamma": 0.1, "inner": 0, "radius_factor": 1.0}
_STOCHASTIC = {"L": 1.0, "sigma": 0.1, "delta": 1.0, "epsilon": 0.98, "beta_factor": 1.0}

N1_INGD = Study(
    name="n1-ingd",
    claim="N1",
    title="INGD stays within its stated number of oracle calls",
    statement="INGD reaches a (δ, ε)-stationary point within the stated number of oracle calls "
    "with probability 1 "
    "- γ; on smooth functions every search takes one inner step (for δ < 3ε/(2L)).",
    source=Source("thesis", "Theorem 5.4.1, Remark 5.4.1"),
    scales={
        "quick": Scale(
            {**_GRID, "L": [0.5, 2.0], "epsilon_over_L": [0.8], "delta": [0.3, 0.05]}, seeds=20
        ),
        "cpu": Scale(
            {
                **_GRID,
                "L": [0.1, 1.0, 10.0],
                "epsilon_over_L": [0.2, 0.5, 0.8],
                "delta": [0.3, 0.1, 0.03],
            },
            seeds=20,
        ),
    },
    methods={"zigzag": {"function": "zigzag"}, "smooth": {"function": "smooth"}},
    loop=ingd_loop,
    judge=judge_ingd,
    rule="At most a share γ of the runs needs more calls than stated, every certificate is true, "
    "and on smooth functions every search takes one inner step.",
    figures=(
        Figure(
            "Calls against the stated bound",
            "share",
            "oracle calls / stated number",
            x="bound_printed",
            x_label="stated number of calls",
            kind="points",
            log_x=True,
            log_y=True,
            hlines={"stated": 1.0},
            caption="A point above 1 has needed more calls than stated; the bound is far from "
            "tight here.",
        ),
    ),
)

N2_STOCHASTIC_INGD = Study(
    name="n2-stochastic-ingd",
    claim="N2",
    title="Stochastic INGD finds stationary points with the theorem's parameters",
    statement="With β, p, q, K, T of Theorem 5.5.1 the mean of ‖m_t‖ is at most ε/4, and "
    "x_{max(i-K,1)} is (δ, "
    "ε)-stationary with probability at least 2/3.",
    source=Source("thesis", "Theorem 5.5.1"),
    scales={
        "quick": Scale({**_STOCHASTIC, "Delta": 1.1, "runs": 20}),
        "cpu": Scale({**_STOCHASTIC, "Delta": 4.0, "epsilon": 0.9, "runs": 50}, seeds=4),
    },
    methods={"noise ±σ": {}, "no noise": {"sigma": 0.0}},
    loop=stochastic_loop,
    judge=judge_stochastic,
    rule="The mean of ‖m_t‖ is at most ε/4, the outputs' mean distance from stationarity at most "
    "ε/3, and at least two thirds of the outputs are (δ, ε)-stationary.",
    figures=(
        Figure(
            "Mean of ‖m_t‖ up to step t",
            "mean_direction",
            "(1/t) Σ ‖m_s‖",
            log_x=True,
            log_y=True,
            caption="At the last step it must be at most ε/4.",
        ),
    ),
)

N4_RESISTING_ORACLES = Study(
    name="n4-resisting-oracles",
    claim="N4",
    title="Worst-case oracles keep every optimizer away from stationary points",
    statement="Against the resisting oracles no algorithm reaches an ε-stationary point (values "
    "and gradients), nor a (δ, ε)-stationary point within Δ/(8δ) gradient calls.",
    source=Source("thesis", "Theorems 5.3.1 and 5.5.2"),
    scales={
        "quick": Scale({"Delta": [1.0], "calls": [16, 64], "resist": True}),
        "cpu": Scale({"Delta": [0.01, 1.0, 100.0], "calls": [16, 128, 512], "resist": True}),
    },
    methods={
        name: {"optimizer": name}
        for name in ("SGD", "GClip", "INGD", "StochasticINGD", "Adam", "L-BFGS")
    },
    loop=adversary_loop,
    judge=judge_adversary,
    rule="Every query and output of every optimizer stays at distance L = 1 from stationarity, "
    "and the functions shown agree with every answer and lie in the class.",
    figures=(
        Figure(
            "Distance from stationarity after all calls",
            "best_distance",
            "d(0, ∂f(x + δB)) at the best point",
            x="method",
            kind="points",
            facet="theorem",
            hlines={"L": 1.0},
            caption="Every optimizer stays at the largest possible distance, L = 1.",
        ),
    ),
)
