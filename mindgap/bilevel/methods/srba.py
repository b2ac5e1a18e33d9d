"""SRBA: SPIDER on the three linear-system directions, with a full refresh every q iterations."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from mindgap.bilevel.core.directions import project_ball
from mindgap.bilevel.core.estimators import empty_memory, restart, spider
from mindgap.bilevel.core.settings import Rate, count, positive, rate
from mindgap.bilevel.core.types import Draws, Oracle, Point, WithZSpider, replace
from mindgap.bilevel.data.draws import LOWER, UPPER, Iteration, SamplePlan
from mindgap.bilevel.data.sample import FULL
from mindgap.bilevel.method import Method


@dataclass(frozen=True, kw_only=True)
class SRBA(Method[WithZSpider, Draws]):
    """Stochastic recursive bilevel algorithm.

    Symbols: rho = ``lr_y`` = ``lr_z``, gamma = ``lr_x``, q = ``period``, R = ``radius``. The
    update::

        t mod q = 0:  D <- D(all samples at the point)     else
            D <- D + D(S; point) - D(S; point before)
        y <- y - rho D_y;   z <- Proj_{||z|| <= R}(z - rho D_z);   x <- x - gamma D_x

    with D = (g_y, Hz - f_y, f_x - Jz); the point includes z, and both evaluations use the same pair
    of samples.

    Args:
        lr_x, lr_y: steps on x and y.
        lr_z: step on the linear system; that of y if not given.
        period: iterations from one full evaluation to the next. The benchmark's rule is a fraction
            of (n + m) / batch: 0.5 for ijcnn1 and the quadratic, 8 for covtype, 512 for MNIST.
        radius: R; infinite if not given.

    Raises:
        RuleError: for a step, period or radius that is not positive; at ``start`` for data without
            an end.

    Example:
        >>> [i.kind for i in SRBA(lr_x=0.1, lr_y=0.1, period=3).plan().period]
        ['refresh', 'move', 'move']

    Source: Dagreou, Moreau, Vaiter, Ablin 2023 (arXiv 2302.08766). Constant steps and the common
    sample at both points agree with the public benchmark code.

    *Not confirmed from the paper's text*: the value of R (the benchmark code has no projection).
    *Differs from the paper* in the sign of z.
    """

    lr_z: Rate | None = rate(None, like="lr_y")
    period: int = count(32)
    radius: float = positive(math.inf, finite=False)

    def init(self, oracle: Oracle) -> WithZSpider:
        x, y = oracle.start
        z = oracle.zeros_like(y)
        # Never read: iteration 0 is a refresh. Present so that the values keep one form.
        return WithZSpider(x, y, z, empty_memory(oracle, {"x": x, "y": y, "z": z}, "yzx"))

    def plan(self) -> SamplePlan:
        # A refresh takes all samples, so that it draws none
        move = Iteration({"g": LOWER, "f": UPPER}, "move")
        return SamplePlan(
            (Iteration({}, "refresh"),) + (move,) * (self.period - 1), all_samples=True
        )

    def update(self, v: WithZSpider, s: Draws, oracle: Oracle, kind: str) -> WithZSpider:
        """The next values: x, y and z together along SPIDER's estimate.

        The estimate is the full direction where ``kind`` is "refresh", else the corrected last one.
        """
        refresh = kind == "refresh"
        lower, upper = (FULL, FULL) if refresh else (s.g, s.f)

        def direction(points: list[Point]) -> list[dict[str, Any]]:
            # g_y as "y", Hz - f_y as "z" and f_x - Jz as "x" at each point
            residuals = (oracle.residuals(p["x"], p["y"], p["z"], lower, upper) for p in points)
            return [{"y": d_y, "z": d_z, "x": d_x} for d_y, d_z, d_x in residuals]

        point = {"x": v.x, "y": v.y, "z": v.z}
        memory = restart(direction, point) if refresh else spider(direction, point, v.spider)
        d = memory["estimate"]
        y, z = oracle.move_y(v.y, d["y"], s.lr_y), oracle.move(v.z, d["z"], s.lr_z)
        z = project_ball(oracle, z, oracle.zeros_like(z), self.radius)
        return replace(self.move_x(oracle, v, d["x"], s.lr_x), y=y, z=z, spider=memory)
