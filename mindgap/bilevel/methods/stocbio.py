"""StocBio: an inner loop on y and a Neumann sum for the hypergradient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from mindgap.bilevel.core.directions import neumann_hypergradient
from mindgap.bilevel.core.settings import choice, count, positive
from mindgap.bilevel.core.types import Draws, Oracle, Values
from mindgap.bilevel.data.draws import LOWER, UPPER, Iteration, SamplePlan
from mindgap.bilevel.method import LowerStepMethod


@dataclass(frozen=True, kw_only=True)
class StocBio(LowerStepMethod[Values, Draws]):
    """Stochastic bilevel optimizer with a sample-efficient hypergradient.

    Symbols: alpha = ``lr_y``, beta = ``lr_x``, T = ``inner``, Q = ``terms``, eta = ``eta``. The
    update::

        T times:  y <- y - alpha g_y(x, y; S)
        x <- x - beta (f_x(S_f) - J(S_j) eta sum_{q=0..Q} prod_{i<=q} (I - eta H(S_i)) f_y(S_f))

    the second line at the new y (order "seidel").

    Args:
        lr_x, lr_y: steps on x and y.
        eta: step of the Neumann series.
        terms: Q, number of factors in its last term.
        inner: T, steps on y per iteration, which start from the last y.
        order: "seidel" as published; "jacobi" takes x's direction at the old y (then T = 1 is MRBO
            without memory).

    Example:
        >>> StocBio(lr_x=0.1, lr_y=0.1, inner=2, terms=3).plan().period[0].samples
        {'y': ('lower', 2), 'f': ('upper', None), 'h': ('factors', 3), 'j': ('lower', None)}

    Source: Ji, Yang, Liang, ICML 2021, Alg. 1 and 2. Published settings: MNIST cleaning T = 200, Q
    = 3, eta 0.5, steps 0.1, batch 1000; SLIP line: Q = 5, eta 0.1, T = 5 (representation) and 3
    (cleaning).
    *Differs from the paper*: all factors use minibatches of the problem's size; the theory lets the
    q-th factor's batch shrink geometrically (not confirmed from the paper's text).
    *Differs from the authors' code*, which multiplies only the last term by eta, omits the term q =
    0 and reuses one batch for all factors.
    """

    eta: float = positive(0.5)
    terms: int = count(10)
    inner: int = count(10)
    order: Literal["jacobi", "seidel"] = choice("seidel", "jacobi")

    def plan(self) -> SamplePlan:
        # y: T samples for y; f: (f_x, f_y); h: Q factors; j: J
        samples = {"y": ("lower", self.inner), "f": UPPER, "h": ("factors", self.terms), "j": LOWER}
        return SamplePlan((Iteration(samples, lower_steps=self.inner),))

    def update(self, v: Values, s: Draws, oracle: Oracle, kind: str) -> Values:
        """The next values: y by inner steps, then x; for "jacobi" x's direction is at the old y."""
        y_before = v.y
        v = self.descend(oracle, v, s.y, s.lr_y)
        y = v.y if self.order == "seidel" else y_before
        d_x = neumann_hypergradient(oracle, v.x, y, s, self.eta)
        return self.move_x(oracle, v, d_x, s.lr_x)
