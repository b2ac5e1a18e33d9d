"""TTSA: one step on y and one on x, on two time scales."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mindgap.base.check import positive, whole
from mindgap.bilevel.directions import implicit, neumann_random
from mindgap.bilevel.draws import Plan
from mindgap.bilevel.lower import project_y
from mindgap.bilevel.method import Method, Values
from mindgap.bilevel.schedules import Rate, as_schedule
from mindgap.bilevel.upper import check_step


@dataclass(frozen=True, kw_only=True)
class TTSA(Method):
    """Two-timescale stochastic approximation.

    Symbols: alpha_k = ``lr_x`` (a number a means a / (1 + k)^(3/5)), beta_k = ``lr_y`` (b / (1 + k)^(2/5)),
    N = ``terms``, eta = ``eta``. The update::

        y <- y - beta_k g_y(x, y; S)
        x <- Proj_X(x - alpha_k (f_x - J(S_j) N eta prod_{q<=k'} (I - eta H(S_q)) f_y)),   k' uniform on 0..N-1

    the second line at the new y (order "seidel").

    Args:
        lr_x: step on x.
        lr_y: step on y.
        eta: step of the Neumann series.
        terms: N, terms of the series.
        x_step: see :mod:`mindgap.bilevel.upper`. Projections are the problem's.

    Raises:
        RuleError: for a step or a count that is not positive.

    Example:
        >>> {k: round(v, 4) for k, v in TTSA(lr_x=1.0, lr_y=1.0).numbers(31).items()}
        {'lr_x': 0.125, 'lr_y': 0.25}

    Source: Hong, Wai, Wang, Yang, SIAM J. Optim. 2023, Alg. 1. The exponents and the use of the new y agree with the
    public benchmark code. Published settings in the SLIP line: lr_y 0.02, lr_x 0.1, eta 0.1, N = 5.

    *Not confirmed from the paper's text*: the projection onto X.

    *Differs from the benchmark code*, which uses y's sample in J again.
    """

    lr_x: Rate
    lr_y: Rate
    eta: float = 0.5
    terms: int = 10
    x_step: Any = "plain"
    order = "seidel"

    def __post_init__(self) -> None:
        self.numbers(0)
        positive("eta", self.eta)
        whole("terms", self.terms, least=1)
        check_step(self.x_step)

    def plan(self, kind: str) -> Plan:
        return {"y": ("lower", None), "f": ("upper", None), "k": ("uniform", self.terms),
                "h": ("lower", max(self.terms - 1, 1)), "j": ("lower", None)}  # fmt: skip

    def numbers(self, t: Any) -> dict[str, Any]:
        return {"lr_x": as_schedule("lr_x", self.lr_x, 0.6)(t), "lr_y": as_schedule("lr_y", self.lr_y, 0.4)(t)}

    def update(self, v: Values, s: Mapping[str, Any], oracle: Any, kind: str) -> Values:
        x = v["x"]
        y = project_y(oracle, oracle.ops.move(v["y"], oracle.lower(x, v["y"], s["y"]), s["lr_y"]))

        def inverse(f_y: Any) -> Any:
            return neumann_random(oracle, x, y, f_y, s["h"], self.eta, self.terms, s["k"])

        d_x = implicit(oracle, x, y, inverse, s["f"], s["j"])
        return {**v, "x": self.move_x(oracle, v, d_x, s["lr_x"]), "y": y}
