"""PBGD: gradient steps on f plus a penalty of the lower level's value gap."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mindgap.bilevel.core.directions import descend
from mindgap.bilevel.core.settings import count, positive
from mindgap.bilevel.core.types import Draws, Oracle, WithW, replace
from mindgap.bilevel.data.draws import LOWER, UPPER, Iteration, SamplePlan
from mindgap.bilevel.methods.penalty import PenaltyMethod
from mindgap.bilevel.tools.step_advice import StepAdvice


@dataclass(frozen=True, kw_only=True)
class PBGD(PenaltyMethod):
    """Penalty-based bilevel gradient descent, for the value-function penalty (V-PBGD).

    Symbols: alpha = ``lr_x``, beta = ``lr_y``, gamma = ``lam``, T = ``inner``. The update::

        T times:  w <- w - beta g_y(x, w; S)
        x <- x - alpha [f_x(x, y) + gamma (g_x(x, y) - g_x(x, w))];
            y <- y - alpha [f_y(x, y) + gamma g_y(x, y)]

    x and y move together with one step, from the old point; first derivatives only.

    Args:
        lr_x: step on (x, y); at most of the order of 1 / (gamma L).
        lr_y: step on w.
        lam: gamma, the penalty; its bias falls as 1 / gamma.
        inner: T, steps on w, which starts where it was.

    Example:
        >>> PBGD(lr_x=0.01, lr_y=0.1, lam=10.0, inner=2).plan().period[0].lower_steps
        2

    Source: Shen, Chen, ICML 2023 (arXiv 2302.05185), Alg. 1 (V-PBGD).

    *Not confirmed from the paper's text*: that w starts where it was, and that one lower sample
    serves both values of g_x.
    """

    lam: float = positive(10.0)
    inner: int = count(1)

    @classmethod
    def adapt_settings(cls, settings: dict[str, Any], advice: StepAdvice) -> dict[str, Any]:
        # One step for x and for y, where the penalty multiplies the curvature.
        return {**settings, "lr_x": min(advice.lr_x, advice.lr_y / (1.0 + cls.lam))}

    def plan(self) -> SamplePlan:
        # w: T samples for w; g and f: one sample for all derivatives of a level
        samples = {"w": ("lower", self.inner), "g": LOWER, "f": UPPER}
        return SamplePlan((Iteration(samples, lower_steps=self.inner),))

    def update(self, v: WithW, s: Draws, oracle: Oracle, kind: str) -> WithW:
        """The next values: w by inner steps, then x and y together from the old (x, y)."""
        x, w = v.x, descend(oracle, v.x, v.w, s.w, s.lr_y)
        f_x, f_y = oracle.upper(x, v.y, s.f)
        d_x = f_x + self.lam * (oracle.lower_x(x, v.y, s.g) - oracle.lower_x(x, w, s.g))
        y = oracle.move_y(v.y, f_y + self.lam * oracle.lower(x, v.y, s.g), s.lr_x)
        return replace(self.move_x(oracle, v, d_x, s.lr_x), y=y, w=w)
