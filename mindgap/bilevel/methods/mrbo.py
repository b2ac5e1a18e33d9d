"""MRBO: STORM on y's direction and on the Neumann hypergradient."""

from __future__ import annotations

from dataclasses import dataclass

from mindgap.bilevel.core.directions import Pairs, neumann_sums
from mindgap.bilevel.core.settings import Power, positive
from mindgap.bilevel.core.types import Array, Draws, Oracle
from mindgap.bilevel.data.draws import LOWER, UPPER, Iteration, SamplePlan
from mindgap.bilevel.methods.storm import StormMethod


@dataclass(frozen=True, kw_only=True)
class MRBO(StormMethod):
    """Momentum-based recursive bilevel optimizer.

    Symbols: gamma = ``lr_x``, lambda = ``lr_y``, eta_k = d / (m + k)^(1/3) with d = ``d``, m =
    ``m``, alpha_{k+1} = min(1, c1 eta_k^2) with c1 = ``c_x``, beta_{k+1} likewise with c2 =
    ``c_y``; Neumann step ``eta``, Q = ``terms``. With G(x, y; S) = f_x - J eta sum_q prod (I - eta
    H) f_y on a frozen bundle S::

        u <- g_y(x, y; S) + (1 - beta_k) (u - g_y(x', y'; S))
            v <- G(x, y; S) + (1 - alpha_k) (v - G(x', y'; S))
        x <- x - gamma eta_k v                                     y <- y - lambda eta_k u

    (x', y') being the point before; u_0 and v_0 are plain.

    Args:
        lr_x, lr_y: gamma and lambda.
        eta, terms: step of the Neumann series and Q, the factors of its last term.
        d, m: of the step eta_k.
        c_x, c_y: of the weights; large values make them 1, which is the method without memory.

    Example:
        >>> [i.kind for i in MRBO(lr_x=0.1, lr_y=0.1).plan().at(0, 3)]
        ['first', 'step', 'step']

    Source: Yang, Ji, Liang, NeurIPS 2021, Alg. 1. The exponent 1/3 agrees with the public benchmark
    code (Q = 10, Neumann step 0.5).
    *Differs from the authors' code*, whose schedules start again in every epoch and which steps y
    twice, and from the benchmark code, which starts the estimators and the old point at zero.
    """

    d: float = positive(1.0, host=True)
    m: float = positive(1.0, host=True)

    def plan(self) -> SamplePlan:
        # y: g_y; f, h, j: (f_x, f_y), Q factors and J; each at both points
        samples = {"y": LOWER, "f": UPPER, "h": ("factors", self.terms), "j": LOWER}
        return SamplePlan((Iteration(samples),), first=(Iteration(samples, "first"),))

    def step_size(self) -> Power:
        # eta_k = d / (m + k)^(1/3)
        return Power(self.d, 1 / 3, self.m)

    def inverses(self, oracle: Oracle, s: Draws, points: Pairs, vs: list[Array]) -> list[Array]:
        # The sums at all points read each sample once
        return neumann_sums(oracle, points, vs, s.h, self.eta)
