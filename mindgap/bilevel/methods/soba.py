"""SOBA: three plain stochastic steps at once, on y, on the linear system and on x."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from mindgap.base.check import fail
from mindgap.bilevel.core.settings import Rate, choice, rate
from mindgap.bilevel.core.types import Draws, Oracle, WithZ, replace
from mindgap.bilevel.data.draws import LOWER, UPPER, Iteration, SamplePlan
from mindgap.bilevel.method import LowerStepMethod


@dataclass(frozen=True, kw_only=True)
class SOBA(LowerStepMethod[WithZ, Draws]):
    """Stochastic bilevel algorithm with simultaneous steps.

    Symbols: rho_t = ``lr_y`` = ``lr_z``, gamma_t = ``lr_x``; a number c means c / sqrt(t + 1). The
    update, all directions at (x, y, z) on one lower and one upper sample::

        y <- y - rho g_y;   z <- z - rho (Hz - f_y);   x <- x - gamma (f_x - Jz)

    Args:
        lr_x, lr_y: steps on x and y.
        lr_z: step on the linear system; that of y if not given, as published.
        order: "jacobi" as published; "seidel" uses the new y in z's step and both in x's step.

    Example:
        >>> SOBA(lr_x=1.0, lr_y=2.0).rates(3)
        {'lr_x': 0.5, 'lr_y': 1.0, 'lr_z': 1.0}

    Source: Dagreou, Ablin, Vaiter, Moreau, NeurIPS 2022, Alg. 1; the exponents 1/2 and the common
    step agree with the public benchmark code.
    *Differs from the paper* in the sign of z only: the paper's v is -z.
    """

    lr_x: Rate = rate(exponent=0.5)
    lr_y: Rate = rate(exponent=0.5)
    lr_z: Rate | None = rate(None, exponent=0.5, like="lr_y")
    order: Literal["jacobi", "seidel"] = choice("jacobi", "seidel")

    def __post_init__(self) -> None:
        # With "seidel" y is stepped before z: there is no step with a memory
        super().__post_init__()
        if self.y_step != "plain" and self.order == "seidel":
            fail("y_step", "must be 'plain' with this order", self.y_step)

    def plan(self) -> SamplePlan:
        # g: g_y, Hz and Jz; f: f_x and f_y
        return SamplePlan((Iteration({"g": LOWER, "f": UPPER}),))

    def update(self, v: WithZ, s: Draws, oracle: Oracle, kind: str) -> WithZ:
        """The next values: x, y and z together, or for "seidel" y, z and x one after the other."""
        x = v.x
        if self.order == "jacobi":
            d_y, d_z, d_x = oracle.residuals(x, v.y, v.z, s.g, s.f)  # g_y, Hz - f_y, f_x - Jz
            v = self.move_yz(oracle, v, s, d_y, d_z)
        else:
            y = oracle.move_y(v.y, oracle.lower(x, v.y, s.g), s.lr_y)
            f_x, f_y = oracle.upper(x, y, s.f)
            z = oracle.move(v.z, oracle.hessian(x, y, v.z, s.g) - f_y, s.lr_z)
            d_x, v = f_x - oracle.mixed(x, y, z, s.g), replace(v, y=y, z=z)
        return self.move_x(oracle, v, d_x, s.lr_x)
