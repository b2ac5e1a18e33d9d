"""SPABA: PAGE on the three linear-system directions; a full evaluation with probability p."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np

from mindgap.bilevel.core.directions import project_ball
from mindgap.bilevel.core.settings import Rate, count, positive, rate
from mindgap.bilevel.core.types import Array, Draws, Oracle, Scalar, WithPage, replace
from mindgap.bilevel.data.draws import LOWER, UPPER, Iteration, SamplePlan
from mindgap.bilevel.data.sample import Sample
from mindgap.bilevel.method import Method

Vectors = tuple[Array, ...]


@dataclass(frozen=True, kw_only=True)
class SPABA(Method[WithPage, Draws]):
    """Single-loop probabilistic stochastic bilevel algorithm.

    Symbols: rho = ``lr_y`` = ``lr_z``, gamma = ``lr_x``, p = 1 / ``period``, R = ``radius``. The
    update::

        with probability p:  D <- D(all samples at the point)     else
            D <- D + D(S; point) - D(S; point before)
        y <- y - rho D_y;   z <- Proj_{||z|| <= R}(z - rho D_z);   x <- x - gamma D_x

    with D = (g_y, Hz - f_y, f_x - Jz). This is SRBA with random refreshes in place of periodic
    ones.

    Args:
        lr_x, lr_y: steps on x and y.
        lr_z: step on the linear system; that of y if not given.
        period: 1 / p, iterations from one full evaluation to the next, on average.
        radius: R; infinite if not given.

    The full evaluation goes over the batches of a fixed partition; its calls count in the iteration
    that makes it.

    Example:
        >>> SPABA(lr_x=0.1, lr_y=0.1, period=8).plan().period[0].samples["coin"]
        ('uniform', 8)

    Source: Chu, Xu, Yao, Zhang, ICML 2024 (arXiv 2405.18777).

    *Not confirmed from the paper's text*: the projection of z.
    """

    lr_z: Rate | None = rate(None, like="lr_y")
    period: int = count(32)
    radius: float = positive(math.inf, finite=False)
    fixed_batches: ClassVar[bool] = True

    def init(self, oracle: Oracle) -> WithPage:
        """x and y at the start, z = 0, and a PAGE estimate of zeros that the first refresh sets."""
        x, y = oracle.start
        z = oracle.zeros_like(y)
        page = {"y": z, "z": z, "x": oracle.zeros_like(x)}
        return WithPage(x, y, z, page, {"x": x, "y": y, "z": z})

    def plan(self) -> SamplePlan:
        # g: g_y, Hz and Jz; f: f_x and f_y; coin: 0 with probability 1 / period
        samples = {"g": LOWER, "f": UPPER, "coin": ("uniform", self.period)}
        return SamplePlan((Iteration(samples),), first=(Iteration(samples, "first"),))

    def _full(
        self, oracle: Oracle, x: Array, y: Array, z: Array, times: Scalar
    ) -> dict[str, Array]:
        """The directions of y, z and x over all samples; zeros, at no cost, if ``times`` is 0."""

        def mean(level: str, take: Callable[[Sample], Vectors], zeros: Vectors) -> Vectors:
            """The vectors that ``take`` gives of a sample, averaged over a level's minibatches."""
            count = oracle.batches(level)
            weights = np.array([oracle.weight(level, Sample(i)) for i in range(count)])

            def add(totals: Vectors, sample: Sample, weight: Scalar) -> Vectors:
                # The totals plus the sample's vectors, weighted
                return tuple(t + weight * d for t, d in zip(totals, take(sample), strict=True))

            return oracle.loop(add, zeros, (Sample(np.arange(count)), weights), count * times)

        zero_y, zero_x = oracle.zeros_like(y), oracle.zeros_like(x)
        take_lower, take_upper = partial(oracle.system, x, y, z), partial(oracle.upper, x, y)
        g_y, hz, jz = mean("lower", take_lower, (zero_y, zero_y, zero_x))
        f_x, f_y = mean("upper", take_upper, (zero_x, zero_y))
        return {"y": g_y, "z": hz - f_y, "x": f_x - jz}

    def update(self, v: WithPage, s: Draws, oracle: Oracle, kind: str) -> WithPage:
        """The next values: x, y and z together along PAGE's estimate.

        The estimate is the full direction where the coin shows 0 (and at first), else the last one
        plus the difference of the directions at the new and the old point on one pair of samples.
        """
        point, old = {"x": v.x, "y": v.y, "z": v.z}, v.point
        refresh: Scalar = 1 if kind == "first" else 1 * (s.coin == 0)  # 1 or 0, traced in JAX
        d = self._full(oracle, v.x, v.y, v.z, refresh)  # of y, z and x by name
        if kind != "first":
            new = oracle.residuals(v.x, v.y, v.z, s.g, s.f)  # directions of y, z and x
            last = oracle.residuals(old["x"], old["y"], old["z"], s.g, s.f)
            corrected = {k: v.page[k] + (a - b) for k, a, b in zip("yzx", new, last, strict=True)}
            d = {k: refresh * d[k] + (1 - refresh) * corrected[k] for k in "yzx"}
        y, z = oracle.move_y(v.y, d["y"], s.lr_y), oracle.move(v.z, d["z"], s.lr_z)
        z = project_ball(oracle, z, oracle.zeros_like(z), self.radius)
        return replace(self.move_x(oracle, v, d["x"], s.lr_x), y=y, z=z, page=d, point=point)
