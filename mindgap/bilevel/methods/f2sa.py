"""F2SA: first derivatives only; the lower level enters through a growing penalty."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from mindgap.base.check import positive, whole
from mindgap.bilevel.directions import penalty
from mindgap.bilevel.draws import Plan
from mindgap.bilevel.lower import project_y
from mindgap.bilevel.method import Method, Values
from mindgap.bilevel.sample import Sample
from mindgap.bilevel.schedules import Rate, as_schedule
from mindgap.bilevel.upper import check_step


@dataclass(frozen=True, kw_only=True)
class F2SA(Method):
    """Fully first-order stochastic approximation.

    Symbols: gamma_k = ``lr_y`` (a number c means c / (1 + k)^(4/7)), lambda_0 = ``lam``, delta_k = ``delta``
    (c / (1 + k)^(6/7)), xi = ``lr_x``, T = ``inner``; alpha_k = gamma_k / (2 lambda_k) is tied. The update::

        T times:  w <- w - gamma_k g_y(x, w; S_w);   y <- y - alpha_k (f_y(x, y; S_f) + lambda_k g_y(x, y; S_y))
        x <- x - xi alpha_k [f_x(x, y; S_f') + lambda_k (g_x(x, y; S_1) - g_x(x, w; S_2))]
        lambda_{k+1} = lambda_k + delta_k

    y minimises f + lambda g, w minimises g; the last line is at the new y and w (order "seidel"). The bias of the
    direction falls as 1 / lambda; below 2 L_f / mu_g the penalty problem is another problem.

    Args:
        lr_x: xi, the ratio of x's step to alpha_k.
        lr_y: gamma, the step of w (and, divided by 2 lambda, of y).
        lam: lambda_0.
        delta: growth of lambda; 0.0 keeps it.
        inner: T.
        shared_samples: one sample for S_w and S_y and one for S_1 and S_2: common random numbers, since lambda
            multiplies the *difference* of two noisy terms. The paper draws them independently.
        x_step: see :mod:`mindgap.bilevel.upper`.

    Raises:
        RuleError: for a step, a penalty or a count that is not positive.

    Example:
        >>> F2SA(lr_x=1.0, lr_y=0.1, shared_samples=True).plan("step")
        {'y': ('lower', 1), 'f': ('upper', 1), 'fx': ('upper', None), 'gx': ('lower', None)}

    Source: Kwon, Kwon, Wright, Nowak, ICML 2023, Alg. 1. No second derivative is needed, so kernels without double
    backward (cuDNN's recurrent nets, fused attention) work.

    *Not confirmed from the paper's text*: the exponents 4/7, 5/7 (through the tie) and 6/7 of the fully stochastic
    case.

    *Differs from the public benchmark code*, whose penalty grows as k^(6/7) and whose x exponent is 4/7.
    """

    lr_x: float
    lr_y: Rate
    lam: float = 10.0
    delta: Rate = 0.1
    inner: int = 1
    shared_samples: bool = False
    x_step: Any = "plain"
    order = "seidel"
    second_order: ClassVar[bool] = False

    def __post_init__(self) -> None:
        positive("lr_x", self.lr_x)
        positive("lam", self.lam)
        self.numbers(0)
        whole("inner", self.inner, least=1)
        check_step(self.x_step)

    def plan(self, kind: str) -> Plan:
        y: Plan = {"y": ("lower", self.inner), "f": ("upper", self.inner)}
        if self.shared_samples:
            return {**y, "fx": ("upper", None), "gx": ("lower", None)}
        return {**y, "w": ("lower", self.inner), "fx": ("upper", None), "gx": ("lower", None), "gw": ("lower", None)}

    def numbers(self, t: Any) -> dict[str, Any]:
        delta = 0.0 if self.delta == 0 else as_schedule("delta", self.delta, 6 / 7)(t)
        return {"lr_y": as_schedule("lr_y", self.lr_y, 4 / 7)(t), "delta": delta}

    def begin(self, oracle: Any) -> Values:
        y = oracle.start[1]
        return {"w": y, "lam": oracle.ops.scalar(self.lam, y)}

    def lower_steps(self, t: int) -> int:
        return self.inner if t >= 0 else 0

    def update(self, v: Values, s: Mapping[str, Any], oracle: Any, kind: str) -> Values:
        ops, x, lam = oracle.ops, v["x"], v["lam"]
        gamma = s["lr_y"]
        alpha = gamma / (2.0 * lam)

        def inner(carry: tuple[Any, Any], at_y: Sample, f: Sample, at_w: Sample) -> tuple[Any, Any]:
            w, y = carry
            w = project_y(oracle, ops.move(w, oracle.lower(x, w, at_w), gamma))
            _, f_y = oracle.upper(x, y, f)
            d = f_y + lam * oracle.lower(x, y, at_y)
            return w, project_y(oracle, ops.move(y, d, alpha))

        at_w, gw = (s["y"], s["gx"]) if self.shared_samples else (s["w"], s["gw"])
        w, y = ops.loop(inner, (v["w"], v["y"]), (s["y"], s["f"], at_w))
        d_x = penalty(oracle, x, y, w, lam, s["fx"], s["gx"], gw)
        new = self.move_x(oracle, v, d_x, self.lr_x * alpha)
        return {**v, "x": new, "y": y, "w": w, "lam": lam + s["delta"]}
