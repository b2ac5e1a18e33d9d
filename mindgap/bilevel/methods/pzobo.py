"""PZOBO: the response of y to x from differences along random directions, no second derivative."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from mindgap.bilevel.core.directions import descend
from mindgap.bilevel.core.settings import count, positive
from mindgap.bilevel.core.types import Array, Draws, Oracle, Values, replace
from mindgap.bilevel.data.draws import UPPER, Iteration, SamplePlan
from mindgap.bilevel.method import Method
from mindgap.bilevel.tools.step_advice import StepAdvice


@dataclass(frozen=True, kw_only=True)
class PZOBO(Method[Values, Draws]):
    """Partial zeroth-order bilevel optimizer.

    Symbols: T = ``inner``, Q = ``directions``, mu = ``mu``; u_1 .. u_Q are standard normal. The
    update, with y_T(x) the end of T steps of size ``lr_y`` from y at x, always on the same
    samples::

        d = f_x(x, y_T(x)) + 1/Q sum_j <y_T(x + mu u_j) - y_T(x), f_y(x, y_T(x))> / mu  u_j
        x <- x - lr_x d;   y <- y_T(x)

    First derivatives only. The variance of d grows with dim x / Q, so lr_x must fall with it.

    Args:
        lr_x, lr_y: steps on x and y.
        inner: T.
        directions: Q.
        mu: distance of the points x + mu u_j.

    Example:
        >>> PZOBO(lr_x=0.1, lr_y=0.1, inner=3, directions=2).plan().period[0].samples
        {'y': ('lower', 3), 'f': ('upper', None), 'u': ('direction', 2)}

    Source: Sow, Ji, Liang 2022, "On the convergence theory for Hessian-free bilevel algorithms",
    Alg. 1; the rule is that of the public benchmark code.
    *Differs from the public benchmark code* in that gradients are those of minibatches, as in the
    paper's PZOBO-S.
    """

    second_order: ClassVar[bool] = False
    inner: int = count(10)
    directions: int = count(1)
    mu: float = positive(0.01)

    @classmethod
    def adapt_settings(cls, settings: dict[str, Any], advice: StepAdvice) -> dict[str, Any]:
        # The variance of its direction grows with the dimension.
        return {**settings, "lr_x": advice.lr_x / (1.0 + advice.dim_x / cls.directions)}

    def plan(self) -> SamplePlan:
        # y: T samples, the same for every inner loop; u: seeds of Q directions
        samples = {"y": ("lower", self.inner), "f": UPPER, "u": ("direction", self.directions)}
        return SamplePlan((Iteration(samples, lower_steps=self.inner),))

    def update(self, v: Values, s: Draws, oracle: Oracle, kind: str) -> Values:
        """The next values: y after T steps at x, and x along f_x and differences at x + mu u_j."""
        x, y = v.x, v.y
        y_new = descend(oracle, x, y, s.y, s.lr_y)
        f_x, f_y = oracle.upper(x, y_new, s.f)

        def add(d: Array, u: Array) -> Array:
            # d plus the part along u of J* f_y, the derivative of f(x, y_T(x)) through y_T
            y_shifted = descend(oracle, x + self.mu * u, y, s.y, s.lr_y)
            return d + (((y_shifted - y_new) @ f_y) / (self.mu * self.directions)) * u

        d_x = oracle.loop(add, f_x, (oracle.normals(s.u.which, x.shape[0], x),))
        return self.move_x(oracle, replace(v, y=y_new), d_x, s.lr_x)
