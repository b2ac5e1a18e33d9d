"""VRBO: SPIDER on both directions, with m corrected steps on y for each step on x."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from mindgap.bilevel.core.directions import Pairs, directions_xy, neumann_series, neumann_sums
from mindgap.bilevel.core.estimators import empty_memory, restart, spider
from mindgap.bilevel.core.settings import count, positive
from mindgap.bilevel.core.types import Array, Draws, Memory, Oracle, WithSpider, replace
from mindgap.bilevel.data.draws import Iteration, SamplePlan, Samples
from mindgap.bilevel.data.sample import FULL, Sample
from mindgap.bilevel.method import Method


@dataclass(frozen=True, kw_only=True)
class VRBO(Method[WithSpider, Draws]):
    """Variance-reduced bilevel optimizer.

    Symbols: alpha = ``lr_x``, beta = ``lr_y``, q = ``period``, m = ``inner``, Q = ``terms``, eta =
    ``eta``, S1 of ``refresh`` minibatches. With D(point; S) = (g_y, Neumann hypergradient)::

        k mod q = 0:  (u, v) <- D(x, y; S1)
        x' = x - alpha v
        m times, on a fresh S2:  (u, v) <- (u, v) + D(new point; S2) - D(point before; S2)
            y <- y - beta u

    u and v always remember the point they belong to: after a refresh the first correction leads
    from (x, y) to (x', y), otherwise from (x, y of the last correction) to (x', y), so no move
    stays uncorrected.

    Args:
        lr_x, lr_y: steps on x and y.
        eta, terms: step of the Neumann series and Q, the factors of its last term.
        inner: m, steps on y for each step on x.
        period: q, iterations from one refresh to the next.
        refresh: minibatches of the large batch S1; None for all samples.

    Example:
        >>> [i.kind for i in VRBO(lr_x=0.1, lr_y=0.1, period=2).plan().period]
        ['refresh', 'move']

    Source: Yang, Ji, Liang, NeurIPS 2021, Alg. 2. Defaults of the authors' code: q = 3, eta 0.5, Q
    = 3, steps 0.1.

    *Not confirmed from the paper's text*: whether a last correction without a step on y ends an
    iteration (not done here).
    *Differs from the public benchmark code*, where both evaluations use the new x, so that the move
    of x is never corrected.
    """

    eta: float = positive(0.5)
    terms: int = count(10)
    inner: int = count(10)
    period: int = count(3)
    refresh: int | None = count(None)

    def init(self, oracle: Oracle) -> WithSpider:
        # The memory is not read: iteration 0 is a refresh
        x, y = oracle.start
        return WithSpider(x, y, empty_memory(oracle, {"x": x, "y": y}, "xy"))

    def plan(self) -> SamplePlan:
        """A refresh on the large batch, then q - 1 iterations without; m inner samples in each."""
        small: Samples = {
            "y": ("lower", self.inner),
            "f": ("upper", self.inner),
            "j": ("lower", self.inner),
            "h": ("factors", (self.inner, self.terms)),
        }
        large: Samples = {}
        if self.refresh is not None:
            large = {"large": ("lower", self.refresh), "large_f": ("upper", self.refresh)}
        first = Iteration({**large, **small}, "refresh", self.inner)
        move = Iteration(small, "move", self.inner)
        return SamplePlan((first,) + (move,) * (self.period - 1), all_samples=self.refresh is None)

    def update(self, v: WithSpider, s: Draws, oracle: Oracle, kind: str) -> WithSpider:
        """The next values: the estimate at a refresh, then x by it, then y by m corrected steps."""
        memory = v.spider  # the estimate (x: hypergradient, y: g_y) and its point
        if kind == "refresh":
            lower, upper = (FULL, FULL) if self.refresh is None else (s.large, s.large_f)

            def inverses_on_all(points: Pairs, f_ys: list[Array]) -> list[Array]:
                """H^-1 f_y at the one point, by the Neumann series on the large batch."""
                ((x, y),), (f_y,) = points, f_ys  # a restart hands over one point
                # The map of the base class: one product at a time, without a graph that is kept.
                hessian, _ = Oracle.operator(oracle, x, y, lower)
                return [neumann_series(oracle, hessian, f_y, self.terms, self.eta)]

            memory = restart(
                lambda points: directions_xy(oracle, points, inverses_on_all, upper, lower, lower),
                {"x": v.x, "y": v.y},
            )
        v = self.move_x(oracle, v, memory["estimate"]["x"], s.lr_x)

        def correct(
            carry: tuple[Memory, Array], g: Sample, f: Sample, j: Sample, h: Sample
        ) -> tuple[Memory, Array]:
            """The memory corrected to (x, y) on samples of g_y, f, J, H; y after a step by it."""
            memory, y = carry
            inverses = partial(neumann_sums, oracle, samples=h, eta=self.eta)
            memory = spider(
                lambda points: directions_xy(oracle, points, inverses, f, j, g),
                {"x": v.x, "y": y},
                memory,
            )
            return memory, oracle.move_y(y, memory["estimate"]["y"], s.lr_y)

        memory, y = oracle.loop(correct, (memory, v.y), (s.y, s.f, s.j, s.h))
        return replace(v, y=y, spider=memory)
