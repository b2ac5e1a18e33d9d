"""VRBO: SPIDER on both directions, with m corrected steps on y for each step on x."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mindgap.base.check import positive, whole
from mindgap.bilevel.directions import Places, implicit_xy, neumann_sums
from mindgap.bilevel.draws import Plan
from mindgap.bilevel.estimators import restart, spider
from mindgap.bilevel.lower import project_y
from mindgap.bilevel.method import Method, Values
from mindgap.bilevel.sample import FULL, Sample
from mindgap.bilevel.schedules import Rate, as_schedule
from mindgap.bilevel.upper import check_step


@dataclass(frozen=True, kw_only=True)
class VRBO(Method):
    """Variance-reduced bilevel optimizer.

    Symbols: alpha = ``lr_x``, beta = ``lr_y``, q = ``period``, m = ``inner``, Q = ``terms``, eta = ``eta``,
    |S1| = ``refresh``. With G(x, y; S) the Neumann hypergradient::

        k mod q = 0:  (u, v) <- (g_y, G)(x, y; S1)
        x' = x - alpha v
        m times, on a fresh S2:  (u, v) <- (u, v) + (g_y, G)(new point; S2) - (g_y, G)(point before; S2);  y <- y -
        beta u

    u and v always remember the point they belong to: after a refresh the first correction leads from (x, y) to (x', y),
    otherwise from (x, y of the last correction) to (x', y), so no move stays uncorrected.

    Args:
        lr_x: step on x.
        lr_y: step on y.
        eta: step of the Neumann series.
        terms: Q, factors of its last term.
        inner: m, steps on y for each step on x.
        period: q, iterations from one refresh to the next.
        refresh: minibatches of the large batch S1; None for all samples.
        x_step: see :mod:`mindgap.bilevel.upper`.

    Raises:
        RuleError: for a step or a count that is not positive.

    Example:
        >>> VRBO(lr_x=0.1, lr_y=0.1, period=2).kinds()
        ['refresh', 'move']

    Source: Yang, Ji, Liang, NeurIPS 2021, Alg. 2. Defaults of the authors' code: q = 3, eta 0.5, Q = 3, steps 0.1.

    *Not confirmed from the paper's text*: whether a last correction without a step on y ends an iteration (not done
    here).

    *Differs from the public benchmark code*, where both evaluations use the new x, so that the move of x is never
    corrected.
    """

    lr_x: Rate
    lr_y: Rate
    eta: float = 0.5
    terms: int = 10
    inner: int = 10
    period: int = 3
    refresh: int | None = None
    x_step: Any = "plain"
    order = "seidel"

    def __post_init__(self) -> None:
        self.numbers(0)
        positive("eta", self.eta)
        for name in ("terms", "inner", "period"):
            whole(name, getattr(self, name), least=1)
        if self.refresh is not None:
            whole("refresh", self.refresh, least=1)
        check_step(self.x_step)

    def kinds(self) -> list[str]:
        return ["refresh"] + ["move"] * (self.period - 1)

    def needs_full(self) -> bool:
        return self.refresh is None

    def plan(self, kind: str) -> Plan:
        small: Plan = {"y": ("lower", self.inner), "f": ("upper", self.inner), "j": ("lower", self.inner),
                       "h": ("lower", (self.inner, self.terms))}  # fmt: skip
        if kind == "move" or self.refresh is None:
            return small
        return {"large": ("lower", self.refresh), "large_f": ("upper", self.refresh), **small}

    def numbers(self, t: Any) -> dict[str, Any]:
        return {name: as_schedule(name, getattr(self, name))(t) for name in ("lr_x", "lr_y")}

    def lower_steps(self, t: int) -> int:
        return self.inner if t >= 0 else 0

    def begin(self, oracle: Any) -> Values:
        x, y = oracle.start
        zero = {"x": oracle.ops.zeros_like(x), "y": oracle.ops.zeros_like(y)}
        return {"spider": {"estimate": zero, "point": {"x": x, "y": y}}}

    def update(self, v: Values, s: Mapping[str, Any], oracle: Any, kind: str) -> Values:
        ops = oracle.ops
        memory = v["spider"]
        here = {"x": v["x"], "y": v["y"]}
        if kind == "refresh":
            lower, upper = (FULL, FULL) if self.refresh is None else (s["large"], s["large_f"])

            def of_all(at: Places, vs: list[Any]) -> list[Any]:
                (point,), (r,) = at, vs
                total = r
                for _ in range(self.terms):
                    r = ops.move(r, oracle.hessian(*point, r, lower), self.eta)
                    total = total + r
                return [self.eta * total]

            memory = restart(lambda points: implicit_xy(oracle, points, of_all, upper, lower, lower), here)
        x = self.move_x(oracle, v, memory["estimate"]["x"], s["lr_x"])

        def correct(carry: tuple[Any, Any], g: Sample, f: Sample, j: Sample, h: Sample) -> tuple[Any, Any]:
            memory, y = carry

            def of_some(at: Places, vs: list[Any]) -> list[Any]:
                return neumann_sums(oracle, at, vs, h, self.eta)

            memory = spider(lambda points: implicit_xy(oracle, points, of_some, f, j, g), {"x": x, "y": y}, memory)
            return memory, project_y(oracle, ops.move(y, memory["estimate"]["y"], s["lr_y"]))

        memory, y = ops.loop(correct, (memory, v["y"]), (s["y"], s["f"], s["j"], s["h"]))
        return {**v, "x": x, "y": y, "spider": memory}
