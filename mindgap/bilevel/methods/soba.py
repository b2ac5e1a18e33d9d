"""SOBA: three plain stochastic steps at once, on y, on the linear system and on x."""

from __future__ import annotations

from dataclasses import dataclass

from mindgap.bilevel.draws import LOWER, UPPER, Iteration, SamplePlan
from mindgap.bilevel.method import Method
from mindgap.bilevel.protocols import Draws, Oracle, Values
from mindgap.bilevel.schedules import Rate
from mindgap.bilevel.settings import choice, rate, setting
from mindgap.bilevel.steps import XStep, check_step


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
        x_step: see :mod:`mindgap.bilevel.steps`.
        order: "jacobi" as published; "seidel" uses the new y in z's step and both in x's step.

    Example:
        >>> SOBA(lr_x=1.0, lr_y=2.0).rates(3)
        {'lr_x': 0.5, 'lr_y': 1.0, 'lr_z': 1.0}

    Source: Dagreou, Ablin, Vaiter, Moreau, NeurIPS 2022, Alg. 1; the exponents 1/2 and the common step agree with the
    public benchmark code.

    *Differs from the paper* in the sign of z only: the paper's v is -z.
    """

    lr_x: Rate = rate(exponent=0.5)
    lr_y: Rate = rate(exponent=0.5)
    lr_z: Rate | None = rate(None, exponent=0.5, like="lr_y")
    x_step: XStep = setting(check_step, "plain")
    order: str = choice("jacobi", "seidel")

    def init(self, oracle: Oracle) -> Values:
        return {"z": oracle.ops.zeros_like(oracle.start[1])}

    def plan(self) -> SamplePlan:
        return SamplePlan((Iteration({"g": LOWER, "f": UPPER}),))

    def update(self, v: Values, s: Draws, oracle: Oracle, kind: str) -> Values:
        ops, x, y, z = oracle.ops, v["x"], v["y"], v["z"]
        if self.order == "seidel":
            y = oracle.move_y(y, oracle.lower(x, y, s["g"]), s["lr_y"])
            f_x, f_y = oracle.upper(x, y, s["f"])
            z = ops.move(z, oracle.hessian(x, y, z, s["g"]) - f_y, s["lr_z"])
            d_x = f_x - oracle.mixed(x, y, z, s["g"])
        else:
            d_y, d_z, d_x = oracle.residuals(x, y, z, s["g"], s["f"])
            y, z = oracle.move_y(y, d_y, s["lr_y"]), ops.move(z, d_z, s["lr_z"])
        return {**v, "x": self.move_x(oracle, v, d_x, s["lr_x"]), "y": y, "z": z}
