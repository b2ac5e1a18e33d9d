"""N4: oracles that keep every optimizer away from stationary points (thesis, Theorems 5.3.1 and
5.5.2).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from typing import Any

from mindgap.lab.studies.spec import Figure, Parts, Row, Run, Scale, Source, Study, Trial
from mindgap.lab.studies.verdict import rows_by_method
from mindgap.lab.theory.chapter5.adversaries import (
    Defeat,
    GradientAdversary,
    LipschitzClass,
    OutOfCalls,
    ValueAdversary,
)
from mindgap.lab.theory.chapter5.stationarity import PiecewiseLinear


def black_box(name: str, calls: int) -> Callable[[Any, float], float]:
    """An optimizer of torch or mindgap as an algorithm that sees nothing but an oracle's answers.

    Args:
        name: of the optimizer.
        calls: after so many the oracle ends the run with ``OutOfCalls``.

    Returns:
        A function of an oracle and a start, which returns where the optimizer ends. An oracle takes
        a point and gives its gradient, or value and gradient.
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
        """Run the named optimizer on one variable from ``start``, on the oracle's answers alone;
        returns where it ends. The oracle raises ``OutOfCalls`` after so many ``calls``.
        """
        x = torch.tensor([start], dtype=torch.float64, requires_grad=True)
        optimizer: Any = make[name]([x])

        def closure() -> torch.Tensor:
            """Ask the oracle at x, which the optimizer moves: set the gradient there and return the
            value. An oracle that gives the gradient alone is taken to say 0.
            """
            answer = oracle(float(x.detach()))
            value, gradient = answer if isinstance(answer, tuple) else (0.0, answer)
            x.grad = torch.tensor([gradient], dtype=torch.float64)
            return torch.tensor(value, dtype=torch.float64)

        # Every step asks at least once, so that the oracle ends the loop; twice the steps are a
        # bound for an optimizer that stops asking, which returns where it stands.
        for _ in range(2 * calls):
            optimizer.step(closure)
        return float(x.detach())

    return algorithm


class _HonestOracle:
    """|x| with honest answers, in place of an adversary: the statement is false for it.

    Args:
        values: whether it answers with value and gradient, or with the gradient alone.
        calls: how many queries it answers, the start included.
        delta: radius of the subdifferentials whose distance from 0 is measured.
    """

    def __init__(self, values: bool, calls: int, delta: float) -> None:
        self.values, self.calls, self.delta, self.queries = values, calls, delta, [0.4]

    def __call__(self, x: float, direction: float = 0.0) -> Any:
        """Answer a query at x and record it. At the kink the gradient is 0, whatever the direction.

        Raises:
            OutOfCalls: all calls are spent.
        """
        if len(self.queries) >= self.calls:
            raise OutOfCalls
        self.queries.append(x)
        gradient = math.copysign(1.0, x) if x else 0.0
        return (abs(x), gradient) if self.values else gradient

    def play(self, algorithm: Callable[[Any, float], float]) -> Any:
        """Run an algorithm from 0.4 until its calls are spent, and measure how near it came.

        Returns:
            A ``Defeat``, as an adversary returns it: |x|, the queries, the output, and the distance
            of 0 from ∂f at the output and its smallest value over all points.
        """
        try:
            output = algorithm(self, 0.4)
        except OutOfCalls:
            output = self.queries[-1]
        absolute_value = PiecewiseLinear((Fraction(0),), (Fraction(-1), Fraction(1)))
        smallest = min(
            float(absolute_value.distance(query, self.delta)) for query in [*self.queries, output]
        )
        return Defeat(
            function=absolute_value,
            queries=tuple(self.queries),
            output=output,
            output_distance=float(absolute_value.distance(output, self.delta)),
            best_distance=smallest,
            consistent=True,
            in_class=True,
        )


def adversary_loop(trial: Trial) -> Iterator[Row]:
    """Play one optimizer against the resisting oracles of both theorems, for functions with
    Lipschitz constant 1, over a grid of Δ and of the number of calls, with δ = Δ/(8 calls).

    A row per game holds ``theorem``, ``Delta``, ``delta``, ``oracle_calls``, ``best_distance`` (the
    least distance of 0 from the subdifferential at a query or at the output), ``consistent`` (the
    function shown gives every answer) and ``in_class``. Without the setting ``resist`` the oracles
    are honest.
    """

    for Delta in trial["Delta"]:
        for calls in trial["calls"]:
            delta = Delta / (8 * calls)
            games: dict[str, Any] = {
                "5.3.1": ValueAdversary(LipschitzClass(1.0, Delta), start=0.4, calls=calls),
                "5.5.2": GradientAdversary(Delta, delta, start=0.4),
            }
            if not trial["resist"]:
                games = {
                    "5.3.1": _HonestOracle(values=True, calls=calls, delta=1e-9),
                    "5.5.2": _HonestOracle(values=False, calls=calls, delta=delta),
                }
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
    """Ask whether every optimizer was kept away from stationary points in every game.

    Returns:
        Two parts: the least ``best_distance`` is 1, the Lipschitz constant, in all games; every
        function shown agrees with the answers and belongs to the class.
    """
    parts, table = Parts(), rows_by_method(runs)
    rows = [row for of_method in table.values() for row in of_method]
    smallest = min(row["best_distance"] for row in rows)
    undefeated = sorted(
        name for name, games in table.items() if min(game["best_distance"] for game in games) < 1
    )
    parts.add(
        "no optimizer comes near a stationary point",
        holds=smallest == 1.0,
        words=f"{len(table)} optimizers, {len(rows)} games, smallest distance {smallest:g} (L = 1)"
        + (f"; not defeated: {', '.join(undefeated)}" if undefeated else ""),
        numbers={"closest": smallest, "games": len(rows)},
    )
    parts.add(
        "the functions shown agree with the answers",
        holds=all(row["consistent"] and row["in_class"] for row in rows),
    )
    return parts


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
