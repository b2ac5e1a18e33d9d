"""MA-SOBA: SOBA with a moving average of the upper direction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mindgap.base.check import between
from mindgap.bilevel.directions import linear_system
from mindgap.bilevel.draws import Plan
from mindgap.bilevel.estimators import average
from mindgap.bilevel.lower import project_y
from mindgap.bilevel.method import Method, Values
from mindgap.bilevel.schedules import Rate, as_schedule
from mindgap.bilevel.upper import check_step


@dataclass(frozen=True, kw_only=True)
class MASOBA(Method):
    """Moving-average SOBA.

    Symbols: alpha = ``lr_x``, beta = ``lr_y``, gamma = ``lr_z``, theta = ``theta``. The update, one lower and one upper
    sample, all at the old point::

        x <- x - alpha h;   y <- y - beta g_y;   z <- z - gamma (Hz - f_y);   h <- (1 - theta) h + theta (f_x - Jz)

    x moves along the average of the iteration before (a delay of one step).

    Args:
        lr_x: step on x.
        lr_y: step on y.
        lr_z: step on the linear system; that of y if not given.
        theta: weight of the newest direction, in (0, 1].
        delayed: x uses the average before this iteration's direction enters it, as in the paper; False uses the new
            one.
        x_step: see :mod:`mindgap.bilevel.upper`.

    Raises:
        RuleError: for a step that is not positive or theta outside (0, 1].

    Example:
        >>> MASOBA(lr_x=0.1, lr_y=0.1, theta=1.0).plan("step")
        {'g': ('lower', None), 'f': ('upper', None)}

    Source: Chen, Xiao, Balasubramanian 2023 (arXiv 2306.12067). The theory takes all four Theta(1 / sqrt K). Published
    settings in the SLIP line: hyper-representation 0.05 / 0.05 / 0.01 (x / y / z), theta 0.1; cleaning 0.05 / 0.1 /
    0.1.

    *Not confirmed from the paper's text*: the delay of one step.

    *Differs from the code published with SLIP*, which moves x along the new average.
    """

    lr_x: Rate
    lr_y: Rate
    lr_z: Rate | None = None
    theta: float = 0.1
    delayed: bool = True
    x_step: Any = "plain"

    def __post_init__(self) -> None:
        self.numbers(0)
        between("theta", self.theta, 0, 1, ends="(]")
        check_step(self.x_step)

    def plan(self, kind: str) -> Plan:
        return {"g": ("lower", None), "f": ("upper", None)}

    def numbers(self, t: Any) -> dict[str, Any]:
        lr_z = self.lr_y if self.lr_z is None else self.lr_z
        rates = {"lr_x": self.lr_x, "lr_y": self.lr_y, "lr_z": lr_z}
        return {name: as_schedule(name, rate)(t) for name, rate in rates.items()}

    def begin(self, oracle: Any) -> Values:
        x, y = oracle.start
        return {"z": oracle.ops.zeros_like(y), "h": oracle.ops.zeros_like(x)}

    def update(self, v: Values, s: Mapping[str, Any], oracle: Any, kind: str) -> Values:
        ops, y, z = oracle.ops, v["y"], v["z"]
        d = linear_system(oracle, v["x"], y, z, s["g"], s["f"])
        h = average(ops, v["h"], d["x"], self.theta)
        return {
            **v,
            "x": self.move_x(oracle, v, v["h"] if self.delayed else h, s["lr_x"]),
            "y": project_y(oracle, ops.move(y, d["y"], s["lr_y"])),
            "z": ops.move(z, d["z"], s["lr_z"]),
            "h": h,
        }
