"""AccBO: normalised recursive momentum on x, Nesterov's acceleration and averaging on y."""

from __future__ import annotations

from dataclasses import dataclass

from mindgap.bilevel.core.directions import (
    Pairs,
    descend,
    hypergradients_at,
    neumann_random,
    random_neumann_samples,
)
from mindgap.bilevel.core.estimators import empty_memory, storm
from mindgap.bilevel.core.settings import XStep, count, positive, within
from mindgap.bilevel.core.types import Array, Draws, Oracle, Point, WithNesterov, replace
from mindgap.bilevel.data.draws import LOWER, Iteration, SamplePlan, Samples
from mindgap.bilevel.method import Method


@dataclass(frozen=True, kw_only=True)
class AccBO(Method[WithNesterov, Draws]):
    """Accelerated bilevel method for upper levels of unbounded smoothness.

    Symbols: alpha = ``lr_y``, gamma = ``gamma``, tau = ``tau``, beta = ``beta``, N = ``terms``, eta
    = ``eta``. After T0 plain steps on y at x_0, with G the randomised Neumann hypergradient on one
    bundle of samples S::

        u = y + gamma (y - y_before);   y <- u - alpha g_y(x, u; S_y);   a <- (1 - tau) a + tau y
        m <- G(x, a; S) + beta (m - G(x_before, a_before; S));   x <- x - lr_x m / (||m|| + 1e-10)

    m_0 is the plain direction.

    Args:
        lr_x: length of a step on x.
        lr_y: step on y.
        gamma: Nesterov's extrapolation, in [0, 1).
        tau: weight of the newest y in the average, in (0, 1].
        beta: momentum, in [0, 1).
        eta: step of the Neumann series.
        terms: N.
        warm_start: T0.

    Example:
        >>> [i.kind for i in AccBO(lr_x=0.1, lr_y=0.1).plan().at(0, 2)]
        ['first', 'step']

    Source: Gong, Hao, Liu, NeurIPS 2024 (arXiv 2409.19212); the steps on y, the average and the
    recursive momentum are those of a public copy of the authors' code.

    *Not confirmed from the paper's text*: whether y is stepped in every iteration (here) or in
    periods. *Differs from that code*, whose momentum compares with the estimate of the iteration
    before instead of evaluating the old point on the same samples, and whose average is not used.
    """

    gamma: float = within(0, 1, "[)", 0.5)
    tau: float = within(0, 1, "(]", 0.5)
    beta: float = within(0, 1, "[)", 0.9)
    eta: float = positive(0.5)
    terms: int = count(5)
    warm_start: int = count(3, least=0)
    x_step: XStep = "normalised"

    def init(self, oracle: Oracle) -> WithNesterov:
        # The memory is not read: the first iteration takes the plain direction
        x, y = oracle.start
        return WithNesterov(x, y, empty_memory(oracle, {"x": x, "y": y}, "x"), y, y)

    def plan(self) -> SamplePlan:
        """T0 warm samples, an iteration of kind "first" without momentum, then plain ones."""
        samples: Samples = {"y": LOWER, **random_neumann_samples(self.terms)}
        warm: Samples = {"warm": ("lower", self.warm_start)} if self.warm_start else {}
        first = (Iteration(samples, "first"),)
        return SamplePlan((Iteration(samples),), first, Iteration(warm, "warm", self.warm_start))

    def prepare(self, v: WithNesterov, s: Draws, oracle: Oracle) -> WithNesterov:
        """The values with y, its predecessor and its average after T0 plain steps at x_0."""
        if not self.warm_start:
            return v
        y = descend(oracle, v.x, v.y, s.warm, s.lr_y)
        return replace(v, y=y, before=y, average=y)

    def update(self, v: WithNesterov, s: Draws, oracle: Oracle, kind: str) -> WithNesterov:
        """The next values: y by an extrapolated step, y's average, then x by STORM there."""
        x, y = v.x, v.y  # v.before: y of the iteration before
        extrapolated = y + self.gamma * (y - v.before)
        y_new = oracle.move_y(extrapolated, oracle.lower(x, extrapolated, s.y), s.lr_y)
        average = oracle.mix(v.average, y_new, self.tau)

        def inverses(points: Pairs, f_ys: list[Array]) -> list[Array]:
            # An estimate of H^-1 f_y per point, all with the same samples and k factors
            return [
                neumann_random(oracle, *point, f_y, s.h, self.eta, self.terms, s.k)
                for point, f_y in zip(points, f_ys, strict=True)
            ]

        def direction(points: list[Point]) -> list[dict[str, Array]]:
            # The hypergradient estimate at each point, as "x"
            pairs = [(p["x"], p["y"]) for p in points]
            return [{"x": d} for d in hypergradients_at(oracle, pairs, inverses, s.f, s.j)]

        point = {"x": x, "y": average}
        memory = storm(direction, point, v.storm, {"x": 1.0 - self.beta}, first=kind == "first")
        v = self.move_x(oracle, v, memory["estimate"]["x"], s.lr_x)
        return replace(v, y=y_new, before=y, average=average, storm=memory)
