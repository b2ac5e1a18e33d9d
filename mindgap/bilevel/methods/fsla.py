"""FSLA: one plain step on y and on the linear system, a recursive estimate for x."""

from __future__ import annotations

from dataclasses import dataclass

from mindgap.bilevel.core.estimators import empty_memory, storm
from mindgap.bilevel.core.settings import Rate, rate
from mindgap.bilevel.core.types import Draws, Oracle, Point, WithZStorm, replace
from mindgap.bilevel.data.draws import LOWER, UPPER, Iteration, SamplePlan
from mindgap.bilevel.method import Method


@dataclass(frozen=True, kw_only=True)
class FSLA(Method[WithZStorm, Draws]):
    """Fully single loop algorithm.

    Symbols: rho = ``lr_y`` = ``lr_z``, gamma = ``lr_x``, a_t = ``weight`` (c / sqrt(t + 1) for a
    number c). The update::

        y' = y - rho g_y(x, y; S1);   z' = z - rho (H(x, y'; S2) z - f_y(x, y'; S_f))
        d <- G(x, y', z'; S) + (1 - a_t) (d - G(x_before, y, z; S)),   G = f_x - J z;
            x <- x - gamma d

    The first iteration takes the plain direction.

    Args:
        lr_x, lr_y: steps on x and y.
        lr_z: step on the linear system; that of y if not given.
        weight: STORM's weight of the newest direction.

    Example:
        >>> [i.kind for i in FSLA(lr_x=0.1, lr_y=0.1).plan().at(0, 2)]
        ['first', 'step']

    Source: Li, Gu, Huang, AAAI 2022; the rule is that of the public benchmark code.

    *Not confirmed from the paper's text*: the decay of the weight.
    *Differs from the benchmark code*, which starts d and the old point at zero.
    """

    lr_z: Rate | None = rate(None, like="lr_y")
    weight: Rate = rate(0.5, exponent=0.5)

    def init(self, oracle: Oracle) -> WithZStorm:
        # The memory is not read: the first iteration takes the plain direction
        x, y = oracle.start
        z = oracle.zeros_like(y)
        return WithZStorm(x, y, z, empty_memory(oracle, {"x": x, "y": y, "z": z}, "x"))

    def plan(self) -> SamplePlan:
        # y: g_y; z: Hz; f: f_y; fx and j: f_x and Jz at both points
        samples = {"y": LOWER, "z": LOWER, "f": UPPER, "j": LOWER, "fx": UPPER}
        return SamplePlan((Iteration(samples),), first=(Iteration(samples, "first"),))

    def update(self, v: WithZStorm, s: Draws, oracle: Oracle, kind: str) -> WithZStorm:
        """The next values: y, z at the new y, then x along a STORM estimate at the new y and z."""
        x, y = v.x, oracle.move_y(v.y, oracle.lower(v.x, v.y, s.y), s.lr_y)
        d_z = oracle.hessian(x, y, v.z, s.z) - oracle.upper_y(x, y, s.f)
        z = oracle.move(v.z, d_z, s.lr_z)

        def direction(points: list[Point]) -> list[Point]:
            # f_x - J z at each point, as "x"
            return [
                {"x": oracle.upper_x(p["x"], p["y"], s.fx) - oracle.mixed(**p, sample=s.j)}
                for p in points
            ]

        point = {"x": x, "y": y, "z": z}
        memory = storm(direction, point, v.storm, {"x": s.weight}, first=kind == "first")
        v = self.move_x(oracle, v, memory["estimate"]["x"], s.lr_x)
        return replace(v, y=y, z=z, storm=memory)
