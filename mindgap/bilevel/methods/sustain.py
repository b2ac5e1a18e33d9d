"""SUSTAIN: STORM on both levels with the randomised Neumann hypergradient, on one time scale."""

from __future__ import annotations

from dataclasses import dataclass

from mindgap.bilevel.core.directions import Pairs, neumann_random, random_neumann_samples
from mindgap.bilevel.core.settings import Power, positive
from mindgap.bilevel.core.types import Array, Draws, Oracle
from mindgap.bilevel.data.draws import LOWER, Iteration, SamplePlan
from mindgap.bilevel.methods.storm import StormMethod


@dataclass(frozen=True, kw_only=True)
class SUSTAIN(StormMethod):
    """Single-timescale double-momentum stochastic approximation.

    Symbols: alpha_t = 1 / (w + t)^(1/3) with w = ``w``; steps ``lr_x`` alpha_t and ``lr_y`` alpha_t
    (the paper's c_beta = lr_y / lr_x); eta^f_{t+1} = min(1, ``c_x`` alpha_t^2), eta^g likewise with
    ``c_y``; Neumann step ``eta``, K = ``terms``. With the randomised hypergradient F(x, y; S)
    (number of factors and samples in S)::

        h^g <- eta^g g_y + (1 - eta^g) (h^g + g_y - g_y')
            h^f <- eta^f F + (1 - eta^f) (h^f + F - F')
        y <- y - lr_y alpha_t h^g                                  x <- x - lr_x alpha_t h^f

    primes at the point before, with the same samples and the same number of factors.

    Args:
        lr_x, lr_y: see above.
        eta, terms: step of the Neumann series and K, its number of terms.
        w: shift of alpha_t.
        c_x, c_y: of the weights.

    Example:
        >>> SUSTAIN(lr_x=1.0, lr_y=1.0).rates(7)["lr_x"]
        0.5

    Source: Khanduri, Zeng, Hong, Wai, Wang, Yang, NeurIPS 2021, Alg. 1. The exponents 1/3 and the
    joint samples agree with the public benchmark code.

    *Not confirmed from the paper's text*: the constants of the weights, and whether y's new value
    enters x's direction (here both move from the old point).
    """

    w: float = positive(1.0, host=True)

    def plan(self) -> SamplePlan:
        # y: g_y; the others: those of the random Neumann estimate; each at both points
        samples = {"y": LOWER, **random_neumann_samples(self.terms)}
        return SamplePlan((Iteration(samples),), first=(Iteration(samples, "first"),))

    def step_size(self) -> Power:
        # alpha_t = 1 / (w + t)^(1/3)
        return Power(1.0, 1 / 3, self.w)

    def inverses(self, oracle: Oracle, s: Draws, points: Pairs, vs: list[Array]) -> list[Array]:
        # One product per point, all with the same samples and the same length
        pairs = zip(points, vs, strict=True)
        return [
            neumann_random(oracle, x, y, v, s.h, self.eta, self.terms, s.k) for (x, y), v in pairs
        ]
