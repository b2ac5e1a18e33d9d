"""BSA: an inner loop on y and one randomised Neumann estimate of the hypergradient."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from mindgap.base.check import fail, non_negative, positive, whole
from mindgap.bilevel.directions import implicit, neumann_random
from mindgap.bilevel.draws import Plan
from mindgap.bilevel.lower import descend
from mindgap.bilevel.method import Method, Values
from mindgap.bilevel.schedules import Rate, as_schedule
from mindgap.bilevel.upper import check_step


@dataclass(frozen=True, kw_only=True)
class BSA(Method):
    """Bilevel stochastic approximation.

    Symbols: alpha_k = ``lr_x`` (a number c means c / sqrt(k + 1)), beta_t = ``lr_y`` / (t + 1)^``inner_exponent``,
    t_k = ``inner``, N = ``terms``, eta = ``eta``. The update::

        t = 0 .. t_k - 1:  y <- y - beta_t g_y(x, y; S)    from y_0 (cold) or from the y before (warm)
        x <- Proj_X(x - alpha_k (f_x - J(S_j) N eta prod_{q<=k'} (I - eta H(S_q)) f_y)),   k' uniform on 0..N-1

    the second line at the new y (order "seidel").

    Args:
        lr_x: step on x.
        lr_y: first step on y in an inner loop (a function of k is allowed).
        inner_exponent: how the step on y falls within the loop.
        eta: step of the Neumann series, at most 1/L for the Hessian of a minibatch.
        terms: N, terms of the series.
        inner: steps on y; "sqrt" for t_k = ceil(sqrt(k + 1)).
        warm: start the inner loop at the last y; False starts it at y_0, as in the paper.
        x_step: see :mod:`mindgap.bilevel.upper`. Projections are the problem's.

    Raises:
        RuleError: for a step or a count that is not positive.

    Example:
        >>> method = BSA(lr_x=0.1, lr_y=0.1, inner="sqrt")
        >>> [method.lower_steps(k) for k in (0, 1, 3, 4, 9)]
        [1, 2, 2, 3, 4]

    Source: Ghadimi, Wang 2018 (arXiv 1802.02246), Alg. 1 and 2. The public benchmark uses 10 inner steps and 10 terms.

    *Not confirmed from the paper's text*: the cold start, t_k = ceil(sqrt(k + 1)), beta_t = O(1 / t).

    *Differs from the benchmark code*, which warm-starts, lets beta fall with k instead (exponent 1/2) and moves x
    before y.
    """

    lr_x: Rate
    lr_y: Rate
    eta: float = 0.5
    terms: int = 10
    inner: int | str = 10
    inner_exponent: float = 1.0
    warm: bool = False
    x_step: Any = "plain"
    order = "seidel"

    def __post_init__(self) -> None:
        self.numbers(0)
        positive("eta", self.eta)
        non_negative("inner_exponent", self.inner_exponent)
        whole("terms", self.terms, least=1)
        if isinstance(self.inner, str):
            if self.inner != "sqrt":
                fail("inner", "must be a whole number of at least 1, or 'sqrt'", self.inner)
        else:
            whole("inner", self.inner, least=1)
        check_step(self.x_step)

    def lower_steps(self, t: int) -> int:
        if t < 0:
            return 0
        return math.isqrt(t) + 1 if self.inner == "sqrt" else int(self.inner)

    def plan(self, kind: str) -> Plan:
        return self.plan_of(int(self.inner))

    def plan_of(self, inner: int) -> Plan:
        """Slots of an iteration with that many steps on y."""
        most = max(self.terms - 1, 1)
        return {"y": ("lower", inner), "f": ("upper", None), "k": ("uniform", self.terms), "h": ("lower", most),
                "j": ("lower", None)}  # fmt: skip

    def growing_plan(self, t: int) -> Plan | None:
        return self.plan_of(self.lower_steps(t)) if self.inner == "sqrt" else None

    def numbers(self, t: Any) -> dict[str, Any]:
        rates = {"lr_x": as_schedule("lr_x", self.lr_x, 0.5)(t), "lr_y": as_schedule("lr_y", self.lr_y)(t)}
        if self.inner == "sqrt":
            rates["inner"] = np.floor(np.sqrt(np.asarray(t))).astype(int) + 1
        return rates

    def begin(self, oracle: Any) -> Values:
        return {} if self.warm else {"y0": oracle.start[1]}

    def update(self, v: Values, s: Mapping[str, Any], oracle: Any, kind: str) -> Values:
        x = v["x"]
        y = v["y"] if self.warm else v["y0"]
        y = descend(oracle, x, y, s["y"], s["lr_y"], length=s.get("inner"), exponent=self.inner_exponent)

        def inverse(f_y: Any) -> Any:
            return neumann_random(oracle, x, y, f_y, s["h"], self.eta, self.terms, s["k"])

        d_x = implicit(oracle, x, y, inverse, s["f"], s["j"])
        return {**v, "x": self.move_x(oracle, v, d_x, s["lr_x"]), "y": y}
