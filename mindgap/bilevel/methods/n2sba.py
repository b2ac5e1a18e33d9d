"""N²SBA: the penalty method with normalised steps on x, for heavy-tailed noise."""

from __future__ import annotations

import math
from dataclasses import dataclass

from mindgap.bilevel.core.directions import TINY, penalty_hypergradient
from mindgap.bilevel.core.settings import XStep, count, positive
from mindgap.bilevel.core.types import Array, Draws, Oracle, WithW, replace
from mindgap.bilevel.data.draws import Iteration, SamplePlan
from mindgap.bilevel.data.sample import Sample
from mindgap.bilevel.methods.penalty import PenaltyMethod


@dataclass(frozen=True, kw_only=True)
class N2SBA(PenaltyMethod):
    """Nested-loop normalised stochastic bilevel approximation.

    Symbols: lambda = ``lam``, K = ``inner``, B = ``batches``, eta_x = ``lr_x``, tau = ``clip``. The
    update, with c(d) = min(1, tau / ||d||) d::

        K times:  w <- w - lr_y c(g_y(x, w; S));
            y <- y - lr_y c(f_y(x, y; S_f) / lambda + g_y(x, y; S))
        D = mean over B samples of f_x(x, y) + lambda (g_x(x, y) - g_x(x, w));
            x <- x - eta_x D / ||D||

    First derivatives only.

    Args:
        lr_x: length of a step on x.
        lr_y: step on w and y.
        lam: the penalty.
        inner: K.
        batches: B, minibatches of the direction of x.
        clip: tau; infinite if not given (plain inner steps).

    Example:
        >>> N2SBA(lr_x=0.01, lr_y=0.1, inner=4).x_step
        'normalised'

    Source: Liu, Luo 2025 (arXiv 2509.14952): the penalty, the nested loops and the normalised step
    on the mean of a minibatch are stated in public summaries.

    *Not confirmed from the paper's text*: the inner solver (plain or clipped steps here), and that
    w and y share samples.
    """

    lam: float = positive(10.0)
    inner: int = count(10)
    batches: int = count(1)
    clip: float = positive(math.inf, finite=False)
    x_step: XStep = "normalised"

    def plan(self) -> SamplePlan:
        # y, f: K samples each for w and y; g, fx: B samples each for x
        samples = {
            "y": ("lower", self.inner),
            "f": ("upper", self.inner),
            "g": ("lower", self.batches),
            "fx": ("upper", self.batches),
        }
        return SamplePlan((Iteration(samples, lower_steps=self.inner),))

    def update(self, v: WithW, s: Draws, oracle: Oracle, kind: str) -> WithW:
        """The next values: w and y by clipped inner steps, then x by the mean penalty gradient."""
        x, lam = v.x, oracle.scalar(self.lam, v.x)

        def clip(d: Array) -> Array:
            # d, shortened to the length ``clip`` where it is longer
            if math.isinf(self.clip):
                return d
            return oracle.minimum(self.clip / oracle.maximum(oracle.norm(d), TINY), 1.0) * d

        def step(carry: tuple[Array, Array], g: Sample, f: Sample) -> tuple[Array, Array]:
            # w and y after one step each from the old (w, y), on a lower and an upper sample
            w, y = carry
            d_y = oracle.upper_y(x, y, f) / self.lam + oracle.lower(x, y, g)
            w = oracle.move_y(w, clip(oracle.lower(x, w, g)), s.lr_y)
            return w, oracle.move_y(y, clip(d_y), s.lr_y)

        w, y = oracle.loop(step, (v.w, v.y), (s.y, s.f))

        def add(total: Array, g: Sample, f: Sample) -> Array:
            # The sum so far plus the direction of x on one more pair of samples
            return total + penalty_hypergradient(oracle, x, y, w, lam, f, g, g)

        total = oracle.loop(add, oracle.zeros_like(x), (s.g, s.fx))  # over ``batches`` pairs
        return replace(self.move_x(oracle, v, total / self.batches, s.lr_x), y=y, w=w)
