"""TTSA: one step on y and one on x, on two time scales."""

from __future__ import annotations

from dataclasses import dataclass

from mindgap.bilevel.core.directions import neumann_hypergradient, random_neumann_samples
from mindgap.bilevel.core.settings import Rate, count, positive, rate
from mindgap.bilevel.core.types import Draws, Oracle, Values, replace
from mindgap.bilevel.data.draws import LOWER, Iteration, SamplePlan
from mindgap.bilevel.method import Method


@dataclass(frozen=True, kw_only=True)
class TTSA(Method[Values, Draws]):
    """Two-timescale stochastic approximation.

    Symbols: alpha_k = ``lr_x`` (a number a means a / (1 + k)^(3/5)), beta_k = ``lr_y`` (b / (1 +
    k)^(2/5)), N = ``terms``, eta = ``eta``. The update::

        y <- y - beta_k g_y(x, y; S)
        x <- Proj_X(x - alpha_k (f_x - J(S_j) N eta prod_{q<=k'} (I - eta H(S_q)) f_y)),
            k' uniform on 0..N-1

    the second line at the new y (order "seidel").

    Args:
        lr_x, lr_y: steps on x and y.
        eta, terms: step of the Neumann series and N, its number of terms.
        x_step: see :mod:`mindgap.bilevel.core.settings`. Projections are the problem's.

    Example:
        >>> {k: round(v, 4) for k, v in TTSA(lr_x=1.0, lr_y=1.0).rates(31).items()}
        {'lr_x': 0.125, 'lr_y': 0.25}

    Source: Hong, Wai, Wang, Yang, SIAM J. Optim. 2023, Alg. 1. The exponents and the use of the new
    y agree with the public benchmark code. Published settings in the SLIP line: lr_y 0.02, lr_x
    0.1, eta 0.1, N = 5.

    *Not confirmed from the paper's text*: the projection onto X.
    *Differs from the benchmark code*, which uses y's sample in J again.
    """

    lr_x: Rate = rate(exponent=0.6)
    lr_y: Rate = rate(exponent=0.4)
    eta: float = positive(0.5)
    terms: int = count(10)

    def plan(self) -> SamplePlan:
        # y: g_y; the others: those of the random Neumann estimate
        return SamplePlan((Iteration({"y": LOWER, **random_neumann_samples(self.terms)}),))

    def update(self, v: Values, s: Draws, oracle: Oracle, kind: str) -> Values:
        """The next values: y by one step, then x along a random Neumann estimate at the new y."""
        v = replace(v, y=oracle.move_y(v.y, oracle.lower(v.x, v.y, s.y), s.lr_y))
        d_x = neumann_hypergradient(oracle, v.x, v.y, s, self.eta, self.terms)
        return self.move_x(oracle, v, d_x, s.lr_x)
