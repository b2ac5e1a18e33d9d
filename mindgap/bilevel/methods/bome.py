"""BOME: descent on f with a multiplier that keeps the lower level's value gap falling."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mindgap.bilevel.core.directions import TINY, descend
from mindgap.bilevel.core.settings import count, positive
from mindgap.bilevel.core.types import Draws, Oracle, Values, replace
from mindgap.bilevel.data.draws import LOWER, UPPER, Iteration, SamplePlan
from mindgap.bilevel.method import Method


@dataclass(frozen=True, kw_only=True)
class BOME(Method[Values, Draws]):
    """Bilevel optimization made easy: a dynamic barrier method.

    Symbols: q(x, y) = g(x, y) - g(x, w) with w = y after T steps on g(x, .) of size ``lr_y``; eta =
    ``eta``. The update::

        df = (f_x, f_y);  dq = (g_x(x, y) - g_x(x, w), g_y(x, y));
            lambda = max(0, eta ||dq||^2 - <df, dq>) / ||dq||^2
        x <- x - lr_x (f_x + lambda dq_x);   y <- y - lr_y (f_y + lambda dq_y)

    First derivatives only, and no penalty to tune.

    Args:
        lr_x, lr_y: steps on x and y.
        eta: speed at which the gap must fall.
        inner: T, steps on w from y.

    Example:
        >>> BOME(lr_x=0.1, lr_y=0.1, inner=3).plan().period[0].samples
        {'w': ('lower', 3), 'g': ('lower', None), 'f': ('upper', None)}

    Source: Ye, Liu, Wright, Stone, Liu, NeurIPS 2022, Alg. 1; the rule is that of the public
    benchmark code.
    *Differs from the paper* in that gradients are those of minibatches.
    """

    eta: float = positive(0.5)
    inner: int = count(10)
    second_order: ClassVar[bool] = False

    def plan(self) -> SamplePlan:
        # w: T samples for w; g and f: one sample for all derivatives of a level
        samples = {"w": ("lower", self.inner), "g": LOWER, "f": UPPER}
        return SamplePlan((Iteration(samples, lower_steps=self.inner),))

    def update(self, v: Values, s: Draws, oracle: Oracle, kind: str) -> Values:
        """The next values: w by steps from y, then x and y together along df + lambda dq."""
        x, y = v.x, v.y
        w = descend(oracle, x, y, s.w, s.lr_y)
        f_x, f_y = oracle.upper(x, y, s.f)
        q_x = oracle.lower_x(x, y, s.g) - oracle.lower_x(x, w, s.g)  # of q = g(x, y) - g(x, w)
        q_y = oracle.lower(x, y, s.g)
        squared_norm = q_x @ q_x + q_y @ q_y
        shortfall = self.eta * squared_norm - (f_x @ q_x + f_y @ q_y)
        lam = oracle.maximum(shortfall, 0.0) / oracle.maximum(squared_norm, TINY)
        v = replace(v, y=oracle.move_y(y, f_y + lam * q_y, s.lr_y))
        return self.move_x(oracle, v, f_x + lam * q_x, s.lr_x)
