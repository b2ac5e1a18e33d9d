"""ALSET: T warm-started steps on y, then one randomised Neumann step on x, on one time scale."""

from __future__ import annotations

from dataclasses import dataclass

from mindgap.bilevel.core.directions import neumann_hypergradient, random_neumann_samples
from mindgap.bilevel.core.settings import count, positive
from mindgap.bilevel.core.types import Draws, Oracle, Values
from mindgap.bilevel.data.draws import Iteration, SamplePlan
from mindgap.bilevel.method import LowerStepMethod


@dataclass(frozen=True, kw_only=True)
class ALSET(LowerStepMethod[Values, Draws]):
    """Alternating stochastic gradient descent; ``inner=1`` is the single loop.

    Symbols: beta_k = ``lr_y``, alpha_k = ``lr_x``, T = ``inner``, N = ``terms``, eta = ``eta``. The
    update::

        T times:  y <- y - beta_k g_y(x, y; S)
        x <- x - alpha_k (f_x - J(S_j) N eta prod_{q<=k'} (I - eta H(S_q)) f_y),
            k' uniform on 0..N-1

    the second line at the new y (order "seidel").

    Args:
        lr_x: step on x; the theory takes lr_x and lr_y both Theta(1 / sqrt K), constant over a run
            of K iterations.
        lr_y: step on y.
        eta, terms: step of the Neumann series and N, its number of terms.
        inner: T, steps on y. 1 converges too, with a worse dependence on the condition number
            (footnote 2 of Table 1).

    Example:
        >>> ALSET(lr_x=0.1, lr_y=0.1, inner=1).plan().period[0].lower_steps
        1

    Source: Chen, Sun, Yin, NeurIPS 2021, Alg. 1; Table 1 and its footnote 2 in the authors' answer
    on SLIP.
    *Differs from the paper*, which draws the number of factors from 1..N; 0..N-1 is the choice that
    is unbiased for the sum of N terms. *Not confirmed from the paper's text*: that range.
    """

    eta: float = positive(0.5)
    terms: int = count(10)
    inner: int = count(10)

    def plan(self) -> SamplePlan:
        # y: T samples for y; the others: those of the random Neumann estimate
        samples = {"y": ("lower", self.inner), **random_neumann_samples(self.terms)}
        return SamplePlan((Iteration(samples, lower_steps=self.inner),))

    def update(self, v: Values, s: Draws, oracle: Oracle, kind: str) -> Values:
        """The next values: y after steps on s.y, then x along a random Neumann estimate there."""
        v = self.descend(oracle, v, s.y, s.lr_y)
        d_x = neumann_hypergradient(oracle, v.x, v.y, s, self.eta, self.terms)
        return self.move_x(oracle, v, d_x, s.lr_x)
