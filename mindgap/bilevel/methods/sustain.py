"""SUSTAIN: STORM on both levels with the randomised Neumann hypergradient, on one time scale."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mindgap.base.check import positive, whole
from mindgap.bilevel.directions import Places, neumann_random
from mindgap.bilevel.draws import Plan
from mindgap.bilevel.schedules import Power
from mindgap.bilevel.storm import StormMethod
from mindgap.bilevel.upper import check_step


@dataclass(frozen=True, kw_only=True)
class SUSTAIN(StormMethod):
    """Single-timescale double-momentum stochastic approximation.

    Symbols: alpha_t = 1 / (w + t)^(1/3) with w = ``w``; steps ``lr_x`` alpha_t and ``lr_y`` alpha_t (the paper's
    c_beta = lr_y / lr_x); eta^f_{t+1} = min(1, ``c_x`` alpha_t^2), eta^g likewise with ``c_y``; Neumann step ``eta``,
    K = ``terms``. With the randomised hypergradient F(x, y; S) (number of factors and samples in S)::

        h^g <- eta^g g_y + (1 - eta^g) (h^g + g_y - g_y')          h^f <- eta^f F + (1 - eta^f) (h^f + F - F')
        y <- y - lr_y alpha_t h^g                                  x <- x - lr_x alpha_t h^f

    primes at the point before, with the same samples and the same number of factors.

    Args:
        lr_x, lr_y: see above.
        eta: step of the Neumann series.
        terms: K, terms of the series.
        w: shift of alpha_t.
        c_x, c_y: of the weights.
        x_step: see :mod:`mindgap.bilevel.upper`.

    Raises:
        RuleError: for a number that is not positive.

    Example:
        >>> SUSTAIN(lr_x=1.0, lr_y=1.0).numbers(7)["lr_x"]
        0.5

    Source: Khanduri, Zeng, Hong, Wai, Wang, Yang, NeurIPS 2021, Alg. 1. The exponents 1/3 and the joint samples agree
    with the public benchmark code.

    *Not confirmed from the paper's text*: the constants of the weights, and whether y's new value enters x's direction
    (here both move from the old point).
    """

    lr_x: float
    lr_y: float
    eta: float = 0.5
    terms: int = 10
    w: float = 1.0
    c_x: float = 0.5
    c_y: float = 0.5
    x_step: Any = "plain"

    def __post_init__(self) -> None:
        for name in ("lr_x", "lr_y", "eta", "w", "c_x", "c_y"):
            positive(name, getattr(self, name))
        whole("terms", self.terms, least=1)
        check_step(self.x_step)

    def plan(self, kind: str) -> Plan:
        return {"y": ("lower", None), "f": ("upper", None), "k": ("uniform", self.terms),
                "h": ("lower", max(self.terms - 1, 1)), "j": ("lower", None)}  # fmt: skip

    def step_size(self) -> Power:
        return Power(1.0, 1 / 3, self.w)

    def inverses(self, oracle: Any, s: Mapping[str, Any], points: Places, vs: list[Any]) -> list[Any]:
        return [
            neumann_random(oracle, x, y, v, s["h"], self.eta, self.terms, s["k"])
            for (x, y), v in zip(points, vs, strict=True)
        ]
