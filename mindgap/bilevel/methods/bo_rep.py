"""BO-REP: initialisation refinement, periodic updates of y, normalised momentum on x."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mindgap.base.check import between, positive, whole
from mindgap.bilevel.draws import Plan, part_of
from mindgap.bilevel.estimators import average
from mindgap.bilevel.lower import descend, descend_average, epoch_sgd, epoch_sgd_lengths
from mindgap.bilevel.method import Method, Values
from mindgap.bilevel.schedules import Rate, as_schedule
from mindgap.bilevel.upper import check_step


@dataclass(frozen=True, kw_only=True)
class BOREP(Method):
    """Bilevel optimizer with initialisation refinement and periodic updates of the lower variable.

    Symbols: alpha = ``lr_y``, nu = ``lr_z``, eta = ``lr_x``, beta = ``beta``, I = ``period``, N = ``inner``,
    R = ``radius``. The update::

        if k > 0 and k mod I = 0:  y <- mean of N projected steps y' <- Proj_B(y, R) (y' - alpha g_y(x, y'; S))
        z <- z - nu (H(S') z - f_y(S_f));  m <- beta m + (1 - beta)(f_x(S_f) - J(S') z);  x <- x - eta m / ||m||

    The last line is taken at the y just found (order "seidel") and at the old z.

    Args:
        lr_x, lr_y, lr_z, beta, x_step: as in SLIP.
        period: I, iterations from one update of y to the next.
        inner: N, steps of such an update.
        radius: R of the projection ball around y; infinite if not given (no source states a value).
        refine: epochs of epoch-SGD before the first iteration; the s-th has ``refine_steps * 2**s`` steps.
        refine_steps: steps of the first epoch.
        lr_refine: their first step; ``lr_y`` at iteration 0 if not given.
        refine_radius: their first ball.
        warm_start: plain steps on y instead, when ``refine`` is 0.

    Raises:
        RuleError: for a step, period, count or radius that is not positive.

    Example:
        >>> BOREP(lr_x=0.01, lr_y=0.1, lr_z=0.1, period=3).kinds()  # of iterations 1, 2, 3
        ['hold', 'hold', 'update']

    Source: Hao, Gong, Liu, ICLR 2024 (arXiv 2401.09587). Published settings: lr_y 0.05, lr_z 0.01, beta 0.9, N = 3, I
    = 2.

    *Not confirmed from the paper's text*: the epoch-SGD schedule (doubling lengths, halving steps, shrinking balls),
    the value of R, the time indices of z and m.

    *Differs from the authors' code*, which has neither projection nor epoch-SGD nor averaging.
    """

    lr_x: Rate
    lr_y: Rate
    lr_z: Rate
    beta: float = 0.9
    period: int = 2
    inner: int = 3
    radius: float = math.inf
    refine: int = 2
    refine_steps: int = 4
    lr_refine: float | None = None
    refine_radius: float = math.inf
    warm_start: int = 0
    x_step: Any = "normalised"
    order = "seidel"

    def __post_init__(self) -> None:
        for name in ("lr_x", "lr_y", "lr_z"):
            as_schedule(name, getattr(self, name))
        between("beta", self.beta, 0, 1, ends="[)")
        for name in ("period", "inner", "refine_steps"):
            whole(name, getattr(self, name), least=1)
        whole("refine", self.refine)
        whole("warm_start", self.warm_start)
        positive("radius", self.radius, finite=False)
        positive("refine_radius", self.refine_radius, finite=False)
        check_step(self.x_step)

    def prelude(self) -> list[str]:
        return ["hold"]  # iteration 0 starts from the refined y

    def kinds(self) -> list[str]:
        return ["hold"] * (self.period - 1) + ["update"]

    def plan(self, kind: str) -> Plan:
        slots: Plan = {"z": ("lower", None), "f": ("upper", None)}
        return {"y": ("lower", self.inner), **slots} if kind == "update" else slots

    def numbers(self, t: Any) -> dict[str, Any]:
        return {name: as_schedule(name, getattr(self, name))(t) for name in ("lr_x", "lr_y", "lr_z")}

    def begin(self, oracle: Any) -> Values:
        x, y = oracle.start
        return {"z": oracle.ops.zeros_like(y), "m": oracle.ops.zeros_like(x)}

    def start_plan(self) -> Plan:
        if self.refine:
            return {"warm": ("lower", sum(epoch_sgd_lengths(self.refine_steps, self.refine)))}
        return {"warm": ("lower", self.warm_start)} if self.warm_start else {}

    def start(self, v: Values, s: Mapping[str, Any], oracle: Any) -> Values:
        lr = as_schedule("lr_y", self.lr_y)(0) if self.lr_refine is None else self.lr_refine
        if self.refine:
            parts, begin = [], 0
            for count in epoch_sgd_lengths(self.refine_steps, self.refine):
                parts.append(part_of(s["warm"], begin, begin + count))
                begin += count
            return {**v, "y": epoch_sgd(oracle, v["x"], v["y"], parts, lr, self.refine_radius)}
        if self.warm_start:
            return {**v, "y": descend(oracle, v["x"], v["y"], s["warm"], lr)}
        return v

    def lower_steps(self, t: int) -> int:
        if t < 0:
            return sum(epoch_sgd_lengths(self.refine_steps, self.refine)) if self.refine else self.warm_start
        return self.inner if t > 0 and t % self.period == 0 else 0

    def update(self, v: Values, s: Mapping[str, Any], oracle: Any, kind: str) -> Values:
        ops, x, y, z = oracle.ops, v["x"], v["y"], v["z"]
        if kind == "update":
            y = descend_average(oracle, x, y, s["y"], s["lr_y"], self.radius, self.inner)
        _, d_z, d_x = oracle.residuals(x, y, z, s["z"], s["f"], gradient=False)
        m = average(ops, v["m"], d_x, 1.0 - self.beta)
        return {**v, "x": self.move_x(oracle, v, m, s["lr_x"]), "y": y, "z": ops.move(z, d_z, s["lr_z"]), "m": m}
