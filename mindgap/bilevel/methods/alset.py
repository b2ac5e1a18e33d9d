"""ALSET: T warm-started steps on y, then one randomised Neumann step on x, on one time scale."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mindgap.base.check import positive, whole
from mindgap.bilevel.directions import implicit, neumann_random
from mindgap.bilevel.draws import Plan
from mindgap.bilevel.lower import descend
from mindgap.bilevel.method import Method, Values
from mindgap.bilevel.schedules import Rate, as_schedule
from mindgap.bilevel.upper import check_step


@dataclass(frozen=True, kw_only=True)
class ALSET(Method):
    """Alternating stochastic gradient descent; ``inner=1`` is the single loop.

    Symbols: beta_k = ``lr_y``, alpha_k = ``lr_x``, T = ``inner``, N = ``terms``, eta = ``eta``. The update::

        T times:  y <- y - beta_k g_y(x, y; S)
        x <- x - alpha_k (f_x - J(S_j) N eta prod_{q<=k'} (I - eta H(S_q)) f_y),   k' uniform on 0..N-1

    the second line at the new y (order "seidel").

    Args:
        lr_x: step on x; the theory takes lr_x and lr_y both Theta(1 / sqrt K), constant over a run of K iterations.
        lr_y: step on y.
        eta: step of the Neumann series.
        terms: N, terms of the series.
        inner: T, steps on y. 1 converges too, with a worse dependence on the condition number (footnote 2 of Table 1).
        x_step: see :mod:`mindgap.bilevel.upper`.

    Raises:
        RuleError: for a step or a count that is not positive.

    Example:
        >>> ALSET(lr_x=0.1, lr_y=0.1, inner=1).lower_steps(0)
        1

    Source: Chen, Sun, Yin, NeurIPS 2021, Alg. 1; Table 1 and its footnote 2 in the authors' answer on SLIP.

    *Differs from the paper*, which draws the number of factors from 1..N; 0..N-1 is the choice that is unbiased for the
    sum of N terms. *Not confirmed from the paper's text*: that range.
    """

    lr_x: Rate
    lr_y: Rate
    eta: float = 0.5
    terms: int = 10
    inner: int = 10
    x_step: Any = "plain"
    order = "seidel"

    def __post_init__(self) -> None:
        self.numbers(0)
        positive("eta", self.eta)
        whole("terms", self.terms, least=1)
        whole("inner", self.inner, least=1)
        check_step(self.x_step)

    def plan(self, kind: str) -> Plan:
        return {"y": ("lower", self.inner), "f": ("upper", None), "k": ("uniform", self.terms),
                "h": ("lower", max(self.terms - 1, 1)), "j": ("lower", None)}  # fmt: skip

    def numbers(self, t: Any) -> dict[str, Any]:
        return {name: as_schedule(name, getattr(self, name))(t) for name in ("lr_x", "lr_y")}

    def lower_steps(self, t: int) -> int:
        return self.inner if t >= 0 else 0

    def update(self, v: Values, s: Mapping[str, Any], oracle: Any, kind: str) -> Values:
        x = v["x"]
        y = descend(oracle, x, v["y"], s["y"], s["lr_y"])

        def inverse(f_y: Any) -> Any:
            return neumann_random(oracle, x, y, f_y, s["h"], self.eta, self.terms, s["k"])

        d_x = implicit(oracle, x, y, inverse, s["f"], s["j"])
        return {**v, "x": self.move_x(oracle, v, d_x, s["lr_x"]), "y": y}
