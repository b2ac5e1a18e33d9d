"""SAMA: the inverse Hessian as a multiple of the identity, J by a finite difference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from mindgap.bilevel.core.directions import TINY
from mindgap.bilevel.core.settings import count, positive
from mindgap.bilevel.core.types import Draws, Oracle, Values
from mindgap.bilevel.data.draws import LOWER, UPPER, Iteration, SamplePlan
from mindgap.bilevel.method import LowerStepMethod
from mindgap.bilevel.tools.step_advice import StepAdvice


@dataclass(frozen=True, kw_only=True)
class SAMA(LowerStepMethod[Values, Draws]):
    """Scalable meta-learning: first derivatives and two extra gradients per step on x.

    Symbols: T = ``inner``, alpha = ``scale``, epsilon = ``radius``. The update::

        T times:  y <- y - lr_y g_y(x, y; S)
        v = alpha f_y;  e = epsilon / ||v||;
            x <- x - lr_x [f_x - (g_x(x, y + e v) - g_x(x, y - e v)) / (2 e)]

    the second line at the new y (order "seidel"). H^-1 is replaced by alpha times the identity, so
    the direction is biased unless the lower Hessian is a multiple of the identity.

    Args:
        lr_x, lr_y: steps on x and y.
        scale: alpha.
        radius: epsilon, length of the finite difference.
        inner: T.

    Example:
        >>> SAMA(lr_x=0.1, lr_y=0.1).second_order
        False

    Source: Choe et al., NeurIPS 2023; the finite difference as in the public library betty.

    *Not confirmed from the paper's text*: the scale. *Differs from the paper*, which also
    multiplies v by the derivative of an adaptive lower optimizer.
    """

    scale: float = positive(1.0)
    radius: float = positive(0.01)
    inner: int = count(1)
    second_order: ClassVar[bool] = False

    @classmethod
    def adapt_settings(cls, settings: dict[str, Any], advice: StepAdvice) -> dict[str, Any]:
        return {**settings, "scale": advice.lr_y}  # a step that suits H is about as large as H^-1

    def plan(self) -> SamplePlan:
        # y: T samples for y; f: (f_x, f_y); j: both g_x of the difference
        samples = {"y": ("lower", self.inner), "f": UPPER, "j": LOWER}
        return SamplePlan((Iteration(samples, lower_steps=self.inner),))

    def update(self, v: Values, s: Draws, oracle: Oracle, kind: str) -> Values:
        """The next values: y by inner steps, then x at the new y, with J v by a difference."""
        v = self.descend(oracle, v, s.y, s.lr_y)
        f_x, f_y = oracle.upper(v.x, v.y, s.f)
        z = self.scale * f_y  # stands for H^-1 f_y
        e = self.radius / oracle.maximum(oracle.norm(z), TINY)
        ahead = oracle.lower_x(v.x, v.y + e * z, s.j)
        behind = oracle.lower_x(v.x, v.y - e * z, s.j)
        return self.move_x(oracle, v, f_x - (ahead - behind) / (2.0 * e), s.lr_x)
