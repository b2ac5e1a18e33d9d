"""What MRBO and SUSTAIN share: STORM on y's direction and on an estimate of the hypergradient."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from functools import partial
from typing import Any

from mindgap.bilevel.core.directions import Pairs, directions_xy
from mindgap.bilevel.core.estimators import empty_memory, storm
from mindgap.bilevel.core.settings import Power, count, positive, storm_weight
from mindgap.bilevel.core.types import Array, Draws, Oracle, Point, Scalar, WithStorm, replace
from mindgap.bilevel.method import Method


@dataclass(frozen=True, kw_only=True)
class StormMethod(Method[WithStorm, Draws]):
    """Both variables move along STORM estimates with steps lr·eta_k and weights min(1, c·eta_k²).

    A final class says what eta_k is (:meth:`step_size`) and how H^-1 f_y is estimated
    (:meth:`inverses`), with ``terms`` terms of step ``eta``. The first iteration takes plain
    directions.
    """

    lr_x: float = positive(host=True)
    lr_y: float = positive(host=True)
    eta: float = positive(0.5)
    terms: int = count(10)
    c_x: float = positive(0.5, host=True)
    c_y: float = positive(0.5, host=True)

    @abstractmethod
    def step_size(self) -> Power:
        """eta_k as a function of k."""

    @abstractmethod
    def inverses(self, oracle: Oracle, s: Draws, points: Pairs, vs: list[Array]) -> list[Array]:
        """Estimates of H^-1 v, one per point, on the samples of this iteration."""

    def init(self, oracle: Oracle) -> WithStorm:
        # The memory is not read: the first iteration takes plain directions
        x, y = oracle.start
        return WithStorm(x, y, empty_memory(oracle, {"x": x, "y": y}, "xy"))

    def rates(self, t: Scalar) -> dict[str, Any]:
        # lr eta_k, and the weights min(1, c eta_{k-1}^2)
        step = self.step_size()
        return {
            "lr_x": self.lr_x * step(t),
            "lr_y": self.lr_y * step(t),
            "a_x": storm_weight(self.c_x, step, t),
            "a_y": storm_weight(self.c_y, step, t),
        }

    def update(self, v: WithStorm, s: Draws, oracle: Oracle, kind: str) -> WithStorm:
        """The next values: x and y together along their STORM estimates at the old point."""

        inverses = partial(self.inverses, oracle, s)

        def direction(points: list[Point]) -> list[dict[str, Any]]:
            # The hypergradient estimate as "x" and g_y as "y" at each point
            return directions_xy(oracle, points, inverses, s.f, s.j, s.y)

        weights = {"x": s.a_x, "y": s.a_y}
        memory = storm(direction, {"x": v.x, "y": v.y}, v.storm, weights, first=kind == "first")
        d = memory["estimate"]
        v = replace(v, y=oracle.move_y(v.y, d["y"], s.lr_y), storm=memory)
        return self.move_x(oracle, v, d["x"], s.lr_x)
