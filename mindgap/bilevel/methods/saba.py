"""SABA: SOBA with SAGA's memory on all five quantities; linear rate with constant steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from mindgap.bilevel.draws import Plan
from mindgap.bilevel.estimators import empty_table, saga
from mindgap.bilevel.lower import project_y
from mindgap.bilevel.method import Method, Values
from mindgap.bilevel.problem import BilevelProblem
from mindgap.bilevel.schedules import Rate, as_schedule
from mindgap.bilevel.upper import check_step


@dataclass(frozen=True, kw_only=True)
class SABA(Method):
    """Stochastic average bilevel algorithm.

    Symbols: rho = ``lr_y`` = ``lr_z``, gamma = ``lr_x``, constant. SOBA's directions, with each of g_y, Hz, Jz (tables
    over the lower batches i) and f_x, f_y (over the upper batches j) replaced by ``q - M[i] + mean``; then
    ``mean += w_i (q - M[i])``, ``M[i] = q``. Tables start at zero; stored products belong to the old z too.

    Args:
        lr_x: step on x.
        lr_y: step on y.
        lr_z: step on the linear system; that of y if not given, as the authors insist.
        x_step: see :mod:`mindgap.bilevel.upper`.
        memory_limit: bytes the tables may take; what is free if not given.

    Raises:
        RuleError: for a step that is not positive; at ``init`` for batches that are not a fixed partition (a shuffled
            loader) and for tables that do not fit, with their size in bytes.

    Example:
        >>> SABA(lr_x=0.1, lr_y=0.1).numbers(5)
        {'lr_x': 0.1, 'lr_y': 0.1, 'lr_z': 0.1}

    Source: Dagreou, Ablin, Vaiter, Moreau, NeurIPS 2022, Alg. 2; the common step of y and z also in the authors' answer
    on SLIP (A5 to reviewer g3Q2). The zero start of the tables and the weights w_i (a batch's share of the samples)
    agree with the public benchmark code.

    *Differs from the paper* in the sign of z, and in that a table has one row a minibatch rather than one a sample.
    """

    lr_x: Rate
    lr_y: Rate
    lr_z: Rate | None = None
    x_step: Any = "plain"
    memory_limit: int | None = None
    fixed_batches: ClassVar[bool] = True

    def __post_init__(self) -> None:
        self.numbers(0)
        check_step(self.x_step)

    def plan(self, kind: str) -> Plan:
        return {"g": ("lower", None), "f": ("upper", None)}

    def numbers(self, t: Any) -> dict[str, Any]:
        lr_z = self.lr_y if self.lr_z is None else self.lr_z
        rates = {"lr_x": self.lr_x, "lr_y": self.lr_y, "lr_z": lr_z}
        return {name: as_schedule(name, rate)(t) for name, rate in rates.items()}

    def begin(self, oracle: Any) -> Values:
        ops, (x, y) = oracle.ops, oracle.start
        lower, upper = oracle.batches("lower"), oracle.batches("upper")
        return {
            "z": ops.zeros_like(y),
            "g_y": empty_table(ops, lower, y), "Hz": empty_table(ops, lower, y), "Jz": empty_table(ops, lower, x),
            "f_x": empty_table(ops, upper, x), "f_y": empty_table(ops, upper, y),
        }  # fmt: skip

    def table_bytes(self, problem: BilevelProblem) -> tuple[int, str]:
        lower, upper = problem.lower_data.batches, problem.upper_data.batches
        numbers = lower * (2 * problem.dim_y + problem.dim_x) + upper * (problem.dim_x + problem.dim_y)
        return numbers * problem.pack_x.start.element_size(), "five SAGA tables"

    def update(self, v: Values, s: Mapping[str, Any], oracle: Any, kind: str) -> Values:
        ops, x, y, z = oracle.ops, v["x"], v["y"], v["z"]
        new: dict[str, Any] = dict(zip(("g_y", "Hz", "Jz"), oracle.system(x, y, z, s["g"]), strict=True))
        new["f_x"], new["f_y"] = oracle.upper(x, y, s["f"])
        tables: Values = {}
        for name, value in new.items():
            level, token = ("upper", s["f"]) if name.startswith("f") else ("lower", s["g"])
            new[name], tables[name] = saga(ops, value, v[name], token.which, oracle.weight(level, token))
        return {
            **v, **tables,
            "x": self.move_x(oracle, v, new["f_x"] - new["Jz"], s["lr_x"]),
            "y": project_y(oracle, ops.move(y, new["g_y"], s["lr_y"])),
            "z": ops.move(z, new["Hz"] - new["f_y"], s["lr_z"]),
        }  # fmt: skip
