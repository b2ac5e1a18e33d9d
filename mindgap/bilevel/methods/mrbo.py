"""MRBO: STORM on y's direction and on the Neumann hypergradient."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mindgap.base.check import positive, whole
from mindgap.bilevel.directions import Places, neumann_sums
from mindgap.bilevel.draws import Plan
from mindgap.bilevel.schedules import Power
from mindgap.bilevel.storm import StormMethod
from mindgap.bilevel.upper import check_step


@dataclass(frozen=True, kw_only=True)
class MRBO(StormMethod):
    """Momentum-based recursive bilevel optimizer.

    Symbols: gamma = ``lr_x``, lambda = ``lr_y``, eta_k = d / (m + k)^(1/3) with d = ``d``, m = ``m``,
    alpha_{k+1} = min(1, c1 eta_k^2) with c1 = ``c_x``, beta_{k+1} likewise with c2 = ``c_y``; Neumann step ``eta``,
    Q = ``terms``. With G(x, y; S) = f_x - J eta sum_q prod (I - eta H) f_y on a frozen bundle S::

        u <- g_y(x, y; S) + (1 - beta_k) (u - g_y(x', y'; S))      v <- G(x, y; S) + (1 - alpha_k) (v - G(x', y'; S))
        x <- x - gamma eta_k v                                     y <- y - lambda eta_k u

    (x', y') being the point before; u_0 and v_0 are plain.

    Args:
        lr_x, lr_y: gamma and lambda.
        eta: step of the Neumann series.
        terms: Q, factors of its last term.
        d, m: of the step eta_k.
        c_x, c_y: of the weights; large values make them 1, which is the method without memory.
        x_step: see :mod:`mindgap.bilevel.upper`.

    Raises:
        RuleError: for a number that is not positive.

    Example:
        >>> MRBO(lr_x=0.1, lr_y=0.1).kind(0), MRBO(lr_x=0.1, lr_y=0.1).kind(1)
        ('first', 'step')

    Source: Yang, Ji, Liang, NeurIPS 2021, Alg. 1. The exponent 1/3 agrees with the public benchmark code (Q = 10,
    Neumann step 0.5).

    *Differs from the authors' code*, whose schedules start again in every epoch and which steps y twice, and from the
    benchmark code, which starts the estimators and the old point at zero.
    """

    lr_x: float
    lr_y: float
    eta: float = 0.5
    terms: int = 10
    d: float = 1.0
    m: float = 1.0
    c_x: float = 0.5
    c_y: float = 0.5
    x_step: Any = "plain"

    def __post_init__(self) -> None:
        for name in ("lr_x", "lr_y", "eta", "d", "m", "c_x", "c_y"):
            positive(name, getattr(self, name))
        whole("terms", self.terms, least=1)
        check_step(self.x_step)

    def plan(self, kind: str) -> Plan:
        return {"y": ("lower", None), "f": ("upper", None), "h": ("lower", self.terms), "j": ("lower", None)}

    def step_size(self) -> Power:
        return Power(self.d, 1 / 3, self.m)

    def inverses(self, oracle: Any, s: Mapping[str, Any], points: Places, vs: list[Any]) -> list[Any]:
        return neumann_sums(oracle, points, vs, s["h"], self.eta)
