"""SRBA: SPIDER on the three linear-system directions, with a full refresh every q iterations."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mindgap.base.check import positive, whole
from mindgap.bilevel.directions import linear_system
from mindgap.bilevel.draws import Plan
from mindgap.bilevel.estimators import Point, restart, spider
from mindgap.bilevel.lower import project_ball, project_y
from mindgap.bilevel.method import Method, Values
from mindgap.bilevel.sample import FULL
from mindgap.bilevel.schedules import Rate, as_schedule
from mindgap.bilevel.upper import check_step


@dataclass(frozen=True, kw_only=True)
class SRBA(Method):
    """Stochastic recursive bilevel algorithm.

    Symbols: rho = ``lr_y`` = ``lr_z``, gamma = ``lr_x``, q = ``period``, R = ``radius``. The update::

        t mod q = 0:  D <- D(all samples at the point)     else  D <- D + D(S; point) - D(S; point before)
        y <- y - rho D_y;   z <- Proj_{||z|| <= R}(z - rho D_z);   x <- x - gamma D_x

    with D = (g_y, Hz - f_y, f_x - Jz); the point includes z, and both evaluations use the same pair of samples.

    Args:
        lr_x: step on x.
        lr_y: step on y.
        lr_z: step on the linear system; that of y if not given.
        period: iterations from one full evaluation to the next. The benchmark's rule is a fraction of
            (n + m) / batch: 0.5 for ijcnn1 and the quadratic, 8 for covtype, 512 for MNIST.
        radius: R; infinite if not given.
        x_step: see :mod:`mindgap.bilevel.upper`.

    Raises:
        RuleError: for a step, period or radius that is not positive; at ``init`` for data without an end.

    Example:
        >>> SRBA(lr_x=0.1, lr_y=0.1, period=3).kinds()
        ['refresh', 'move', 'move']

    Source: Dagreou, Moreau, Vaiter, Ablin 2023 (arXiv 2302.08766). Constant steps and the common sample at both points
    agree with the public benchmark code.

    *Not confirmed from the paper's text*: the value of R (the benchmark code has no projection).

    *Differs from the paper* in the sign of z.
    """

    lr_x: Rate
    lr_y: Rate
    lr_z: Rate | None = None
    period: int = 32
    radius: float = math.inf
    x_step: Any = "plain"

    def __post_init__(self) -> None:
        self.numbers(0)
        whole("period", self.period, least=1)
        positive("radius", self.radius, finite=False)
        check_step(self.x_step)

    def kinds(self) -> list[str]:
        return ["refresh"] + ["move"] * (self.period - 1)

    def needs_full(self) -> bool:
        return True

    def plan(self, kind: str) -> Plan:
        return {} if kind == "refresh" else {"g": ("lower", None), "f": ("upper", None)}

    def numbers(self, t: Any) -> dict[str, Any]:
        lr_z = self.lr_y if self.lr_z is None else self.lr_z
        rates = {"lr_x": self.lr_x, "lr_y": self.lr_y, "lr_z": lr_z}
        return {name: as_schedule(name, rate)(t) for name, rate in rates.items()}

    def begin(self, oracle: Any) -> Values:
        x, y = oracle.start
        z = oracle.ops.zeros_like(y)
        # Never read: iteration 0 is a refresh. Present so that the values keep one form.
        memory = {"estimate": {"y": z, "z": z, "x": oracle.ops.zeros_like(x)}, "point": {"x": x, "y": y, "z": z}}
        return {"z": z, "spider": memory}

    def update(self, v: Values, s: Mapping[str, Any], oracle: Any, kind: str) -> Values:
        ops = oracle.ops
        point = {"x": v["x"], "y": v["y"], "z": v["z"]}
        lower, upper = (FULL, FULL) if kind == "refresh" else (s["g"], s["f"])

        def direction(points: list[Point]) -> list[dict[str, Any]]:
            return [linear_system(oracle, p["x"], p["y"], p["z"], lower, upper) for p in points]

        memory = restart(direction, point) if kind == "refresh" else spider(direction, point, v["spider"])
        d = memory["estimate"]
        z = ops.move(v["z"], d["z"], s["lr_z"])
        return {
            **v,
            "x": self.move_x(oracle, v, d["x"], s["lr_x"]),
            "y": project_y(oracle, ops.move(v["y"], d["y"], s["lr_y"])),
            "z": project_ball(ops, z, ops.zeros_like(z), self.radius),
            "spider": memory,
        }
