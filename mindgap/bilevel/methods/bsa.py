"""BSA: an inner loop on y and one randomised Neumann estimate of the hypergradient."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from mindgap.base.check import fail
from mindgap.bilevel.core.directions import descend, neumann_hypergradient, random_neumann_samples
from mindgap.bilevel.core.settings import (
    Rate,
    check_count,
    count,
    flag,
    non_negative,
    positive,
    rate,
    setting,
)
from mindgap.bilevel.core.types import Draws, Oracle, Scalar, WithStart, replace
from mindgap.bilevel.data.draws import Iteration, SamplePlan
from mindgap.bilevel.method import Method


def _check_inner(name: str, value: object) -> None:
    """A rule for ``inner``: a whole number of at least 1, or "sqrt"."""
    if isinstance(value, str) and value != "sqrt":
        fail(name, "must be a whole number of at least 1, or 'sqrt'", value)
    elif not isinstance(value, str):
        check_count(name, value)


@dataclass(frozen=True, kw_only=True)
class BSA(Method[WithStart, Draws]):
    """Bilevel stochastic approximation.

    Symbols: alpha_k = ``lr_x`` (a number c means c / sqrt(k + 1)), beta_t = ``lr_y`` / (t +
    1)^``inner_exponent``, t_k = ``inner``, N = ``terms``, eta = ``eta``. The update::

        t = 0 .. t_k - 1:  y <- y - beta_t g_y(x, y; S)
            from y_0 (cold) or from the y before (warm)
        x <- Proj_X(x - alpha_k (f_x - J(S_j) N eta prod_{q<=k'} (I - eta H(S_q)) f_y)),
            k' uniform on 0..N-1

    the second line at the new y (order "seidel").

    Args:
        lr_x: step on x.
        lr_y: first step on y in an inner loop (a function of k is allowed).
        inner_exponent: how the step on y falls within the loop.
        eta: step of the Neumann series, at most 1/L for the Hessian of a minibatch.
        terms: N, terms of the series.
        inner: steps on y; "sqrt" for t_k = ceil(sqrt(k + 1)).
        warm: start the inner loop at the last y; False starts it at y_0, as in the paper.
        x_step: see :mod:`mindgap.bilevel.core.settings`. Projections are the problem's.

    Example:
        >>> plan = BSA(lr_x=0.1, lr_y=0.1, inner="sqrt").plan()
        >>> [plan.at(k)[0].lower_steps for k in (0, 1, 3, 4, 9)]
        [1, 2, 2, 3, 4]

    Source: Ghadimi, Wang 2018 (arXiv 1802.02246), Alg. 1 and 2. The public benchmark uses 10 inner
    steps and 10 terms.

    *Not confirmed from the paper's text*: the cold start, t_k = ceil(sqrt(k + 1)), beta_t = O(1 /
    t).
    *Differs from the benchmark code*, which warm-starts, lets beta fall with k instead (exponent
    1/2) and moves x before y.
    """

    lr_x: Rate = rate(exponent=0.5)
    eta: float = positive(0.5)
    terms: int = count(10)
    inner: int | str = setting(_check_inner, 10)
    inner_exponent: float = non_negative(1.0)
    warm: bool = flag(False)

    def init(self, oracle: Oracle) -> WithStart:
        # y0 is kept where every inner loop begins there
        x, y = oracle.start
        return WithStart(x, y, None if self.warm else y)

    def _iteration(self, inner: int) -> Iteration:
        """The samples of an iteration with ``inner`` steps on y."""
        return Iteration(
            {"y": ("lower", inner), **random_neumann_samples(self.terms)}, lower_steps=inner
        )

    def plan(self) -> SamplePlan:
        # With "sqrt" iteration k has t_k = ceil(sqrt(k + 1)) = isqrt(k) + 1 steps on y
        if isinstance(self.inner, int):
            return SamplePlan((self._iteration(self.inner),))
        return SamplePlan(
            (self._iteration(1),), growing=lambda t: self._iteration(math.isqrt(t) + 1)
        )

    def rates(self, t: Scalar) -> dict[str, Any]:
        """The rates of iteration t; with ``inner="sqrt"`` also ``inner``, the steps on y."""
        rates = super().rates(t)
        if self.inner == "sqrt":
            # ceil(sqrt(t + 1)) as floor(sqrt(t)) + 1, which rounding cannot make wrong
            rates["inner"] = np.floor(np.sqrt(np.asarray(t))).astype(int) + 1
        return rates

    def update(self, v: WithStart, s: Draws, oracle: Oracle, kind: str) -> WithStart:
        """The next values: y by inner steps, from y_0 if it is kept, then x at the new y."""
        y = v.y if v.y0 is None else v.y0
        # Step i on y has the size lr_y / (i + 1)^inner_exponent.
        exponent = self.inner_exponent
        y = descend(oracle, v.x, y, s.y, s.lr_y, length=s.inner, exponent=exponent)
        d_x = neumann_hypergradient(oracle, v.x, y, s, self.eta, self.terms)
        return self.move_x(oracle, replace(v, y=y), d_x, s.lr_x)
