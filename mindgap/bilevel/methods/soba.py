"""SOBA: three plain stochastic steps at once, on y, on the linear system and on x."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mindgap.base.check import one_of
from mindgap.bilevel.directions import linear_system
from mindgap.bilevel.draws import Plan
from mindgap.bilevel.lower import project_y
from mindgap.bilevel.method import Method, Values
from mindgap.bilevel.schedules import Rate, as_schedule
from mindgap.bilevel.upper import check_step


@dataclass(frozen=True, kw_only=True)
class SOBA(Method):
    """Stochastic bilevel algorithm with simultaneous steps.

    Symbols: rho_t = ``lr_y`` = ``lr_z``, gamma_t = ``lr_x``; a number c means c / sqrt(t + 1). The update, all
    directions at (x, y, z) on one lower and one upper sample::

        y <- y - rho g_y;   z <- z - rho (Hz - f_y);   x <- x - gamma (f_x - Jz)

    Args:
        lr_x: step on x.
        lr_y: step on y.
        lr_z: step on the linear system; that of y if not given, as published.
        x_step: see :mod:`mindgap.bilevel.upper`.
        order: "jacobi" as published; "seidel" uses the new y in z's step and both in x's step.

    Raises:
        RuleError: for a step that is not positive.

    Example:
        >>> SOBA(lr_x=1.0, lr_y=2.0).numbers(3)
        {'lr_x': 0.5, 'lr_y': 1.0, 'lr_z': 1.0}

    Source: Dagreou, Ablin, Vaiter, Moreau, NeurIPS 2022, Alg. 1; the exponents 1/2 and the common step agree with the
    public benchmark code.

    *Differs from the paper* in the sign of z only: the paper's v is -z.
    """

    lr_x: Rate
    lr_y: Rate
    lr_z: Rate | None = None
    x_step: Any = "plain"
    order: str = "jacobi"

    def __post_init__(self) -> None:
        self.numbers(0)
        one_of("order", self.order, ("jacobi", "seidel"))
        check_step(self.x_step)

    def plan(self, kind: str) -> Plan:
        return {"g": ("lower", None), "f": ("upper", None)}

    def numbers(self, t: Any) -> dict[str, Any]:
        lr_z = self.lr_y if self.lr_z is None else self.lr_z
        rates = {"lr_x": self.lr_x, "lr_y": self.lr_y, "lr_z": lr_z}
        return {name: as_schedule(name, rate, 0.5)(t) for name, rate in rates.items()}

    def begin(self, oracle: Any) -> Values:
        return {"z": oracle.ops.zeros_like(oracle.start[1])}

    def update(self, v: Values, s: Mapping[str, Any], oracle: Any, kind: str) -> Values:
        ops, x, y, z = oracle.ops, v["x"], v["y"], v["z"]
        if self.order == "seidel":
            y = project_y(oracle, ops.move(y, oracle.lower(x, y, s["g"]), s["lr_y"]))
            f_x, f_y = oracle.upper(x, y, s["f"])
            z = ops.move(z, oracle.hessian(x, y, z, s["g"]) - f_y, s["lr_z"])
            d_x = f_x - oracle.mixed(x, y, z, s["g"])
            return {**v, "x": self.move_x(oracle, v, d_x, s["lr_x"]), "y": y, "z": z}
        d = linear_system(oracle, x, y, z, s["g"], s["f"])
        return {
            **v,
            "x": self.move_x(oracle, v, d["x"], s["lr_x"]),
            "y": project_y(oracle, ops.move(y, d["y"], s["lr_y"])),
            "z": ops.move(z, d["z"], s["lr_z"]),
        }
