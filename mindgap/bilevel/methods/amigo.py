"""AmIGO: inner loops on y and on the linear system, both warm-started."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mindgap.bilevel.core.settings import Rate, count, rate
from mindgap.bilevel.core.types import Array, Draws, Oracle, WithZ, replace
from mindgap.bilevel.data.draws import LOWER, UPPER, Iteration, SamplePlan
from mindgap.bilevel.data.sample import Sample
from mindgap.bilevel.method import LowerStepMethod


@dataclass(frozen=True, kw_only=True)
class AmIGO(LowerStepMethod[WithZ, Draws]):
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
        x_step: see :mod:`mindgap.bilevel.core.settings`; the authors use Adam
            (``TorchStep(torch.optim.Adam, lr=...)``).
        y_step: steps on y and z: "plain", ``AdamStep(...)`` or ``MomentumStep(...)``.

    Example:
        >>> AmIGO(lr_x=0.1, lr_y=0.1, inner=2, solves=3).plan().period[0].samples
        {'y': ('lower', 2), 'f': ('upper', None), 'z': ('lower', 3), 'j': ('lower', None)}

    Source: Arbel, Mairal, ICLR 2022; T = N = 1 with warm starts are the defaults of the authors'
    code, T = N = 10 those of the public benchmark, whose rule agrees with this one.
    """

    lr_z: Rate | None = rate(None, like="lr_y")
    inner: int = count(10)
    solves: int = count(10)

    def plan(self) -> SamplePlan:
        # y: T samples for y; f: (f_x, f_y); z: N samples for z; j: Jz
        samples = {"y": ("lower", self.inner), "f": UPPER, "z": ("lower", self.solves), "j": LOWER}
        return SamplePlan((Iteration(samples, lower_steps=self.inner),))

    def update(self, v: WithZ, s: Draws, oracle: Oracle, kind: str) -> WithZ:
        """The values after one iteration: y, then z by inner steps, then x."""
        v, step = self.descend(oracle, v, s.y, s.lr_y), self.y_step
        f_x, f_y = oracle.upper(v.x, v.y, s.f)

        def solve(carry: tuple[Array, Any], sample: Sample) -> tuple[Array, Any]:
            """z and the memory of its steps after one step on H z = f_y by ``y_step``."""
            z, memory = carry
            d = oracle.hessian(v.x, v.y, z, sample) - f_y
            if not isinstance(step, str):
                d, memory = step.direction(oracle, memory, d, z)
            return oracle.move(z, d, s.lr_z), memory

        z, memory = oracle.loop(solve, (v.z, v.z_memory), (s.z,))
        d_x = f_x - oracle.mixed(v.x, v.y, z, s.j)
        v = self.move_x(oracle, v, d_x, s.lr_x)
        return replace(v, z=z) if memory is None else replace(v, z=z, z_memory=memory)
