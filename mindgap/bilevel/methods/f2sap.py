"""F²SA-p: a finite difference of order p in the penalty, first derivatives only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mindgap.base.check import fail
from mindgap.bilevel.core.settings import count, positive, setting
from mindgap.bilevel.core.types import Array, Draws, Oracle, WithNodes, replace
from mindgap.bilevel.data.draws import LOWER, UPPER, Iteration, SamplePlan
from mindgap.bilevel.data.sample import Sample
from mindgap.bilevel.method import Method

#: order -> node -> weight of the central difference
WEIGHTS = {2: {-1: -1 / 2, 1: 1 / 2}, 4: {-2: 1 / 12, -1: -2 / 3, 1: 2 / 3, 2: -1 / 12}}


def _check_order(name: str, value: object) -> None:
    """A rule for ``p``: 2 or 4, and no bool or float."""
    if isinstance(value, bool) or not isinstance(value, int) or value not in WEIGHTS:
        fail(name, "must be 2 or 4", value)


@dataclass(frozen=True, kw_only=True)
class F2SAp(Method[WithNodes, Draws]):
    """F²SA with a central difference of order p in nu = 1 / lambda.

    Symbols: nu = ``nu``, p = ``p``, T = ``inner``; y_j follows argmin_y g + j nu f for the nodes j
    = -p/2 .. p/2, j != 0, and a_j are the weights of the central difference of order p. The
    update::

        T times, for every j:  y_j <- y_j - lr_y [g_y(x, y_j; S) + j nu f_y(x, y_j; S_f)]
        x <- x - lr_x sum_j a_j [j f_x(x, y_j) + g_x(x, y_j) / nu]

    The bias falls as nu^p; F2SA is the one-sided difference, with bias nu.

    Args:
        lr_x, lr_y: steps on x and on every y_j.
        nu: distance of the nodes.
        p: 2 or 4.
        inner: T.

    The y of the state is the mean of y_1 and y_-1. All nodes use the same samples.

    Example:
        >>> F2SAp(lr_x=0.1, lr_y=0.1, p=2).nodes()
        {-1: -0.5, 1: 0.5}

    Source: Chen, Li, Zhang 2025, "Faster gradient methods for highly-smooth stochastic bilevel
    optimization".

    *Not confirmed from the paper's text*: shared samples and the plain (not normalised) step on x.
    """

    nu: float = positive(0.1)
    p: int = setting(_check_order, 2)
    inner: int = count(1)
    second_order: ClassVar[bool] = False

    def nodes(self) -> dict[int, float]:
        """Node j -> weight a_j of the central difference."""
        return WEIGHTS[self.p]

    def init(self, oracle: Oracle) -> WithNodes:
        # The y of every node begins where y does
        x, y = oracle.start
        return WithNodes(x, y, {str(j): y for j in self.nodes()})

    def plan(self) -> SamplePlan:
        # y, f: T samples each for all y_j; g, fx: those of the step on x
        samples = {"y": ("lower", self.inner), "f": ("upper", self.inner), "g": LOWER, "fx": UPPER}
        return SamplePlan((Iteration(samples, lower_steps=self.inner),))

    def update(self, v: WithNodes, s: Draws, oracle: Oracle, kind: str) -> WithNodes:
        """The next values: the y of every node by inner steps, then x by their difference."""
        x = v.x

        def step(ys: dict[str, Array], g: Sample, f: Sample) -> dict[str, Array]:
            # The y of every node j after one step along g_y + j nu f_y, on samples of g and f
            d = {
                j: oracle.lower(x, y, g) + (int(j) * self.nu) * oracle.upper_y(x, y, f)
                for j, y in ys.items()
            }
            return {j: oracle.move_y(y, d[j], s.lr_y) for j, y in ys.items()}

        ys = oracle.loop(step, v.nodes, (s.y, s.f))
        d_x = oracle.zeros_like(x)
        for j, a in self.nodes().items():  # a: weight of the central difference
            y = ys[str(j)]
            d_x = d_x + (a * j) * oracle.upper_x(x, y, s.fx)
            d_x = d_x + (a / self.nu) * oracle.lower_x(x, y, s.g)
        v = self.move_x(oracle, v, d_x, s.lr_x)
        return replace(v, y=(ys["1"] + ys["-1"]) / 2.0, nodes=ys)
