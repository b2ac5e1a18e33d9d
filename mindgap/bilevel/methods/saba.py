"""SABA: SOBA with SAGA's memory on all five quantities; linear rate with constant steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from mindgap.bilevel.core.estimators import empty_table, saga
from mindgap.bilevel.core.settings import Rate, count, rate
from mindgap.bilevel.core.types import Draws, Oracle, WithTables, replace
from mindgap.bilevel.data.draws import LOWER, UPPER, Iteration, SamplePlan
from mindgap.bilevel.method import Method


@dataclass(frozen=True, kw_only=True)
class SABA(Method[WithTables, Draws]):
    """Stochastic average bilevel algorithm.

    Symbols: rho = ``lr_y`` = ``lr_z``, gamma = ``lr_x``, constant. SOBA's directions, with each of
    g_y, Hz, Jz (tables over the lower batches i) and f_x, f_y (over the upper batches j) replaced
    by ``q - M[i] + mean``; then ``mean += w_i (q - M[i])``, ``M[i] = q``. Tables start at zero;
    stored products belong to the old z too.

    Args:
        lr_x, lr_y: steps on x and y.
        lr_z: step on the linear system; that of y if not given, as the authors insist.
        memory_limit: bytes the tables may take; what is free if not given.

    Raises:
        RuleError: for a step that is not positive; at ``start`` for batches that are not a fixed
            partition (a shuffled loader) and for tables that do not fit, with their size in bytes.

    Example:
        >>> SABA(lr_x=0.1, lr_y=0.1).rates(5)
        {'lr_x': 0.1, 'lr_y': 0.1, 'lr_z': 0.1}

    Source: Dagreou, Ablin, Vaiter, Moreau, NeurIPS 2022, Alg. 2; the common step of y and z also in
    the authors' answer on SLIP (A5 to reviewer g3Q2). The zero start of the tables and the weights
    w_i (a batch's share of the samples) agree with the public benchmark code.
    *Differs from the paper* in the sign of z, and in that a table has one row per minibatch rather
    than one per sample.
    """

    lr_z: Rate | None = rate(None, like="lr_y")
    memory_limit: int | None = count(None, most=2**62)
    fixed_batches: ClassVar[bool] = True
    tables: ClassVar[str] = "five SAGA tables"

    def init(self, oracle: Oracle) -> WithTables:
        """x and y at the start, z = 0, and five tables of zeros: g_y, Hz, Jz, f_x and f_y."""
        (x, y), lower, upper = oracle.start, oracle.batches("lower"), oracle.batches("upper")
        of_lower = [empty_table(oracle, lower, like) for like in (y, y, x)]
        of_upper = [empty_table(oracle, upper, like) for like in (x, y)]
        return WithTables(x, y, oracle.zeros_like(y), *of_lower, *of_upper)

    def plan(self) -> SamplePlan:
        # g: g_y, Hz and Jz; f: f_x and f_y
        return SamplePlan((Iteration({"g": LOWER, "f": UPPER}),))

    def update(self, v: WithTables, s: Draws, oracle: Oracle, kind: str) -> WithTables:
        """The next values: tables updated, then x, y and z together along SAGA's estimates.

        In torch the tables are overwritten in place.
        """
        fresh = dict(zip(("g_y", "Hz", "Jz"), oracle.system(v.x, v.y, v.z, s.g), strict=True))
        fresh["f_x"], fresh["f_y"] = oracle.upper(v.x, v.y, s.f)
        d: dict[str, Any] = {}  # SAGA's estimate of each quantity
        tables: dict[str, Any] = {}
        for name, value in fresh.items():
            level, sample = ("upper", s.f) if name.startswith("f") else ("lower", s.g)
            weight = oracle.weight(level, sample)  # share of the batch in the level's samples
            d[name], tables[name] = saga(oracle, value, getattr(v, name), sample.which, weight)
        y = oracle.move_y(v.y, d["g_y"], s.lr_y)
        z = oracle.move(v.z, d["Hz"] - d["f_y"], s.lr_z)
        v = self.move_x(oracle, v, d["f_x"] - d["Jz"], s.lr_x)
        return replace(v, y=y, z=z, **tables)
