"""AmIGO: inner loops on y and on the linear system, both warm-started."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mindgap.base.check import whole
from mindgap.bilevel.draws import Plan
from mindgap.bilevel.lower import descend
from mindgap.bilevel.method import Method, Values
from mindgap.bilevel.sample import Sample
from mindgap.bilevel.schedules import Rate, as_schedule
from mindgap.bilevel.upper import check_step


@dataclass(frozen=True, kw_only=True)
class AmIGO(Method):
    """Amortised implicit gradient optimization.

    Symbols: alpha = ``lr_y``, beta = ``lr_z``, gamma = ``lr_x``, T = ``inner``, N = ``solves``. The update::

        T times:  y <- y - alpha g_y(x, y; S)
        (u, v) = (f_x, f_y)(x, y; S_f);   N times:  z <- z - beta (H(S') z - v)
        x <- x - gamma (u - J(S'') z)

    each at the newest values (order "seidel"); v stays fixed over the N steps.

    Args:
        lr_x: step on x.
        lr_y: step on y.
        lr_z: step on the linear system; that of y if not given.
        inner: T, steps on y.
        solves: N, steps on z.
        x_step: see :mod:`mindgap.bilevel.upper`; the authors use Adam (``TorchStep(torch.optim.Adam, lr=...)``).

    Raises:
        RuleError: for a step or a count that is not positive.

    Example:
        >>> AmIGO(lr_x=0.1, lr_y=0.1, inner=2, solves=3).plan("step")
        {'y': ('lower', 2), 'f': ('upper', None), 'z': ('lower', 3), 'j': ('lower', None)}

    Source: Arbel, Mairal, ICLR 2022; T = N = 1 with warm starts are the defaults of the authors' code, T = N = 10 those
    of the public benchmark, whose rule agrees with this one.
    """

    lr_x: Rate
    lr_y: Rate
    lr_z: Rate | None = None
    inner: int = 10
    solves: int = 10
    x_step: Any = "plain"
    order = "seidel"

    def __post_init__(self) -> None:
        self.numbers(0)
        whole("inner", self.inner, least=1)
        whole("solves", self.solves, least=1)
        check_step(self.x_step)

    def plan(self, kind: str) -> Plan:
        return {"y": ("lower", self.inner), "f": ("upper", None), "z": ("lower", self.solves), "j": ("lower", None)}

    def numbers(self, t: Any) -> dict[str, Any]:
        lr_z = self.lr_y if self.lr_z is None else self.lr_z
        rates = {"lr_x": self.lr_x, "lr_y": self.lr_y, "lr_z": lr_z}
        return {name: as_schedule(name, rate)(t) for name, rate in rates.items()}

    def begin(self, oracle: Any) -> Values:
        return {"z": oracle.ops.zeros_like(oracle.start[1])}

    def lower_steps(self, t: int) -> int:
        return self.inner if t >= 0 else 0

    def update(self, v: Values, s: Mapping[str, Any], oracle: Any, kind: str) -> Values:
        ops, x = oracle.ops, v["x"]
        y = descend(oracle, x, v["y"], s["y"], s["lr_y"])
        f_x, f_y = oracle.upper(x, y, s["f"])

        def solve(z: Any, token: Sample) -> Any:
            return ops.move(z, oracle.hessian(x, y, z, token) - f_y, s["lr_z"])

        z = ops.loop(solve, v["z"], (s["z"],))
        d_x = f_x - oracle.mixed(x, y, z, s["j"])
        return {**v, "x": self.move_x(oracle, v, d_x, s["lr_x"]), "y": y, "z": z}
