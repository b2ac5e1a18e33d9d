"""AmIGO: inner loops on y and on the linear system, both warm-started."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mindgap.bilevel.core.schedules import Rate
from mindgap.bilevel.core.settings import count, rate, setting
from mindgap.bilevel.core.steps import XStep, YStep, check_lower_step, check_step
from mindgap.bilevel.core.types import Array, Draws, Oracle, Values
from mindgap.bilevel.data.draws import LOWER, UPPER, Iteration, SamplePlan
from mindgap.bilevel.data.sample import Sample
from mindgap.bilevel.method import Method


@dataclass(frozen=True, kw_only=True)
class AmIGO(Method):
    """Amortised implicit gradient optimization.

    Symbols: alpha = ``lr_y``, beta = ``lr_z``, gamma = ``lr_x``, T = ``inner``, N = ``solves``. The
    update::

        T times:  y <- y - alpha g_y(x, y; S)
        (u, v) = (f_x, f_y)(x, y; S_f);   N times:  z <- z - beta (H(S') z - v)
        x <- x - gamma (u - J(S'') z)

    each at the newest values (order "seidel"); v stays fixed over the N steps.

    Args:
        lr_x, lr_y: steps on x and y.
        lr_z: step on the linear system; that of y if not given.
        inner: T, steps on y.
        solves: N, steps on z.
        x_step: see :mod:`mindgap.bilevel.core.steps`; the authors use Adam
            (``TorchStep(torch.optim.Adam, lr=...)``).
        y_step: steps on y and z: "plain", ``AdamStep(...)`` or ``MomentumStep(...)``.

    Example:
        >>> AmIGO(lr_x=0.1, lr_y=0.1, inner=2, solves=3).plan().period[0].slots
        {'y': ('lower', 2), 'f': ('upper', None), 'z': ('lower', 3), 'j': ('lower', None)}

    Source: Arbel, Mairal, ICLR 2022; T = N = 1 with warm starts are the defaults of the authors'
    code, T = N = 10 those of the public benchmark, whose rule agrees with this one.
    """

    lr_x: Rate = rate()
    lr_y: Rate = rate()
    lr_z: Rate | None = rate(None, like="lr_y")
    inner: int = count(10)
    solves: int = count(10)
    x_step: XStep = setting(check_step, "plain")
    y_step: YStep = setting(check_lower_step, "plain")
    order = "seidel"

    def init(self, oracle: Oracle) -> Values:
        return {"z": oracle.ops.zeros_like(oracle.start[1])}

    def plan(self) -> SamplePlan:
        slots = {"y": ("lower", self.inner), "f": UPPER, "z": ("lower", self.solves), "j": LOWER}
        return SamplePlan((Iteration(slots, lower_steps=self.inner),))

    def update(self, v: Values, s: Draws, oracle: Oracle, kind: str) -> Values:
        """The values after one iteration: y, then z by inner steps, then x."""
        ops, x = oracle.ops, v["x"]
        lower = self.descend(oracle, v, s["y"], s["lr_y"])
        y = lower["y"]
        f_x, f_y = oracle.upper(x, y, s["f"])

        def solve(z: Array, token: Sample) -> Array:
            return ops.move(z, oracle.hessian(x, y, z, token) - f_y, s["lr_z"])

        step: Any = self.y_step

        def adapt(carry: tuple[Array, Any], token: Sample) -> tuple[Array, Any]:
            z, memory = carry
            d = oracle.hessian(x, y, z, token) - f_y
            d, memory = step.direction(ops, memory, d, z)
            return ops.move(z, d, s["lr_z"]), memory

        if isinstance(step, str):
            z = ops.loop(solve, v["z"], (s["z"],))
        else:
            z, lower["z_memory"] = ops.loop(adapt, (v["z"], v["z_memory"]), (s["z"],))
        d_x = f_x - oracle.mixed(x, y, z, s["j"])
        return {**v, **self.move_x(oracle, v, d_x, s["lr_x"]), **lower, "z": z}
