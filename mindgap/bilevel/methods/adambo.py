"""AdamBO: Adam on x with a Neumann hypergradient, plain steps on y after a warm start."""

from __future__ import annotations

from dataclasses import dataclass

from mindgap.bilevel.core.directions import descend, neumann_hypergradient
from mindgap.bilevel.core.settings import AdamStep, XStep, count, positive
from mindgap.bilevel.core.types import Draws, Oracle, Values, replace
from mindgap.bilevel.data.draws import LOWER, UPPER, Iteration, SamplePlan, Samples
from mindgap.bilevel.method import Method


@dataclass(frozen=True, kw_only=True)
class AdamBO(Method[Values, Draws]):
    """Adam-type bilevel method for upper levels of unbounded smoothness.

    Symbols: alpha = ``lr_y``, T0 = ``warm_start``, T = ``inner``, Q = ``terms``, eta = ``eta``.
    After T0 steps on y at x_0::

        T times:  y <- y - alpha g_y(x, y; S)
        x <- Adam(x, lr_x, f_x - J(S_j) eta sum_{q=0..Q} prod_{i<=q} (I - eta H(S_i)) f_y)

    the second line at the new y (order "seidel").

    Args:
        lr_x: Adam's step.
        lr_y: step on y.
        eta, terms: step of the Neumann series and Q, the factors of its last term.
        inner: T.
        warm_start: T0.
        x_step: Adam with its betas; ``AdamStep(beta1=0.9, beta2=0.999)`` if not given.

    Example:
        >>> AdamBO(lr_x=0.01, lr_y=0.1).x_step
        AdamStep(beta1=0.9, beta2=0.999, eps=1e-08, weight_decay=0.0)

    Source: Gong, Hao, Liu 2025, "On the convergence of Adam-type algorithm for bilevel optimization
    under unbounded smoothness"; the rule is that of the authors' published code.

    *Not confirmed from the paper's text*: eps (the paper's lambda), the samples of the Neumann
    factors. *Differs from the authors' code*, which uses one sample for all factors and lacks the
    term q = 0.
    """

    eta: float = positive(0.5)
    terms: int = count(5)
    inner: int = count(1)
    warm_start: int = count(3, least=0)
    x_step: XStep = AdamStep()

    def plan(self) -> SamplePlan:
        # y: T samples for y; f, h, j: (f_x, f_y), Q factors and J; warm: T0 samples
        samples = {"y": ("lower", self.inner), "f": UPPER, "h": ("factors", self.terms), "j": LOWER}
        warm: Samples = {"warm": ("lower", self.warm_start)} if self.warm_start else {}
        return SamplePlan(
            (Iteration(samples, lower_steps=self.inner),),
            warm=Iteration(warm, "warm", self.warm_start),
        )

    def prepare(self, v: Values, s: Draws, oracle: Oracle) -> Values:
        # T0 steps on y at x_0
        if not self.warm_start:
            return v
        return replace(v, y=descend(oracle, v.x, v.y, s.warm, s.lr_y))

    def update(self, v: Values, s: Draws, oracle: Oracle, kind: str) -> Values:
        """The next values: y after steps on s.y, then x along the Neumann hypergradient there."""
        v = replace(v, y=descend(oracle, v.x, v.y, s.y, s.lr_y))
        d_x = neumann_hypergradient(oracle, v.x, v.y, s, self.eta)
        return self.move_x(oracle, v, d_x, s.lr_x)
