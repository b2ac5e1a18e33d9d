"""MEHA: single loop and Hessian-free, by the Moreau envelope of the lower level."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mindgap.bilevel.core.settings import Rate, non_negative, positive, rate
from mindgap.bilevel.core.types import Draws, Oracle, Scalar, WithW, replace
from mindgap.bilevel.data.draws import LOWER, UPPER, Iteration, SamplePlan
from mindgap.bilevel.methods.penalty import PenaltyMethod
from mindgap.bilevel.tools.step_advice import StepAdvice


@dataclass(frozen=True, kw_only=True)
class MEHA(PenaltyMethod):
    """Moreau-envelope based Hessian-free algorithm.

    Symbols: theta = ``w``, eta = ``lr_w``, alpha = ``lr_x``, beta = ``lr_y``, gamma = ``gamma``,
    c_k = ``c`` (k + 1)^p with p = ``power``. The update::

        first  w <- w - eta [g_y(x, w) + (w - y) / gamma]
        then   x <- x - alpha [f_x(x, y) / c_k + g_x(x, y) - g_x(x, w)]
        then   y <- y - beta [f_y(x, y) / c_k + g_y(x, y) - (y - w) / gamma]

    each at the newest values (order "seidel"). The lower level need not be strongly convex.

    Args:
        lr_x, lr_y: steps on x and y.
        lr_w: step on w; that of y if not given.
        gamma: width of the envelope; below 1 / (2 rho) for a rho-weakly convex lower level.
        c, power: c and p of the penalty c_k.

    Example:
        >>> round(MEHA(lr_x=0.1, lr_y=0.1).rates(3)["share"], 3)
        0.25

    Source: Liu, Liu, Yao, Zeng, Zhang, ICML 2024 (arXiv 2405.09927).

    *Not confirmed from the paper's text*: the order of the three updates and the default power.
    """

    lr_w: Rate | None = rate(None, like="lr_y")
    gamma: float = positive(1.0)
    c: float = positive(2.0)
    power: float = non_negative(0.5)

    @classmethod
    def adapt_settings(cls, settings: dict[str, Any], advice: StepAdvice) -> dict[str, Any]:
        # w sees the curvature L of g and 1 / gamma of the envelope: with gamma = 1 / L it is 2 L.
        return {**settings, "gamma": 1.0 / advice.curvature, "lr_y": advice.lr_y / 2.0}

    def plan(self) -> SamplePlan:
        # w: the step on w; g, f: the steps on x and y
        return SamplePlan((Iteration({"w": LOWER, "g": LOWER, "f": UPPER}),))

    def rates(self, t: Scalar) -> dict[str, Any]:
        # share is 1 / c_k
        return {**super().rates(t), "share": 1.0 / (self.c * (t + 1.0) ** self.power)}

    def update(self, v: WithW, s: Draws, oracle: Oracle, kind: str) -> WithW:
        """The next values: w, then x, then y, each at the newest values of the others."""
        x, y = v.x, v.y  # s.share is 1 / c_k, gamma the width of the envelope
        w = oracle.move_y(v.w, oracle.lower(x, v.w, s.w) + (v.w - y) / self.gamma, s.lr_w)
        f_x, g_x = oracle.upper_x(x, y, s.f), oracle.lower_x(x, y, s.g)
        d_x = s.share * f_x + g_x - oracle.lower_x(x, w, s.g)
        v = self.move_x(oracle, v, d_x, s.lr_x)
        f_y, g_y = oracle.upper_y(v.x, y, s.f), oracle.lower(v.x, y, s.g)
        d_y = s.share * f_y + g_y - (y - w) / self.gamma
        return replace(v, y=oracle.move_y(y, d_y, s.lr_y), w=w)
