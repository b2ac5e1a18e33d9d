"""StocBio: an inner loop on y and a Neumann sum for the hypergradient."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mindgap.base.check import one_of, positive, whole
from mindgap.bilevel.directions import implicit, neumann_sum
from mindgap.bilevel.draws import Plan
from mindgap.bilevel.lower import descend
from mindgap.bilevel.method import Method, Values
from mindgap.bilevel.schedules import Rate, as_schedule
from mindgap.bilevel.upper import check_step


@dataclass(frozen=True, kw_only=True)
class StocBio(Method):
    """Stochastic bilevel optimizer with a sample-efficient hypergradient.

    Symbols: alpha = ``lr_y``, beta = ``lr_x``, T = ``inner``, Q = ``terms``, eta = ``eta``. The update::

        T times:  y <- y - alpha g_y(x, y; S)
        x <- x - beta (f_x(S_f) - J(S_j) eta sum_{q=0..Q} prod_{i<=q} (I - eta H(S_i)) f_y(S_f))

    the second line at the new y (order "seidel").

    Args:
        lr_x: step on x.
        lr_y: step on y.
        eta: step of the Neumann series.
        terms: Q, factors of its last term.
        inner: T, steps on y, from the last y.
        x_step: see :mod:`mindgap.bilevel.upper`.
        order: "seidel" as published; "jacobi" takes x's direction at the old y (then T = 1 is MRBO without memory).

    Raises:
        RuleError: for a step or a count that is not positive.

    Example:
        >>> StocBio(lr_x=0.1, lr_y=0.1, inner=2, terms=3).plan("step")
        {'y': ('lower', 2), 'f': ('upper', None), 'h': ('lower', 3), 'j': ('lower', None)}

    Source: Ji, Yang, Liang, ICML 2021, Alg. 1 and 2. Published settings: MNIST cleaning T = 200, Q = 3, eta 0.5,
    steps 0.1, batch 1000; SLIP line: Q = 5, eta 0.1, T = 5 (representation) and 3 (cleaning).

    *Differs from the paper*: all factors use minibatches of the problem's size; the theory lets the q-th factor's batch
    shrink geometrically (not confirmed from the paper's text).

    *Differs from the authors' code*, which multiplies only the last term by eta, omits the term q = 0 and reuses one
    batch for all factors.
    """

    lr_x: Rate
    lr_y: Rate
    eta: float = 0.5
    terms: int = 10
    inner: int = 10
    x_step: Any = "plain"
    order: str = "seidel"

    def __post_init__(self) -> None:
        self.numbers(0)
        positive("eta", self.eta)
        whole("terms", self.terms, least=1)
        whole("inner", self.inner, least=1)
        one_of("order", self.order, ("seidel", "jacobi"))
        check_step(self.x_step)

    def plan(self, kind: str) -> Plan:
        return {"y": ("lower", self.inner), "f": ("upper", None), "h": ("lower", self.terms), "j": ("lower", None)}

    def numbers(self, t: Any) -> dict[str, Any]:
        return {name: as_schedule(name, getattr(self, name))(t) for name in ("lr_x", "lr_y")}

    def lower_steps(self, t: int) -> int:
        return self.inner if t >= 0 else 0

    def update(self, v: Values, s: Mapping[str, Any], oracle: Any, kind: str) -> Values:
        x = v["x"]
        new = descend(oracle, x, v["y"], s["y"], s["lr_y"])
        y = new if self.order == "seidel" else v["y"]

        def inverse(f_y: Any) -> Any:
            return neumann_sum(oracle, x, y, f_y, s["h"], self.eta)

        d_x = implicit(oracle, x, y, inverse, s["f"], s["j"])
        return {**v, "x": self.move_x(oracle, v, d_x, s["lr_x"]), "y": new}
