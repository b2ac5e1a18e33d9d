"""BO-REP: initialisation refinement, periodic updates of y, normalised momentum on x."""

from __future__ import annotations

import math
from dataclasses import dataclass

from mindgap.bilevel.core.directions import descend, descend_average, epoch_sgd, epoch_sgd_lengths
from mindgap.bilevel.core.settings import Rate, XStep, count, positive, rate, within
from mindgap.bilevel.core.types import Draws, Oracle, WithMomentum, replace
from mindgap.bilevel.data.draws import LOWER, UPPER, Iteration, SamplePlan, Samples, part_of
from mindgap.bilevel.method import Method


@dataclass(frozen=True, kw_only=True)
class BOREP(Method[WithMomentum, Draws]):
    """Bilevel optimizer with initialisation refinement and periodic updates of the lower variable.

    Symbols: alpha = ``lr_y``, nu = ``lr_z``, eta = ``lr_x``, beta = ``beta``, I = ``period``, N =
    ``inner``, R = ``radius``. The update::

        if k > 0 and k mod I = 0:
            y <- mean of N projected steps y' <- Proj_B(y, R) (y' - alpha g_y(x, y'; S))
        z <- z - nu (H(S') z - f_y(S_f));  m <- beta m + (1 - beta)(f_x(S_f) - J(S') z);
            x <- x - eta m / (||m|| + 1e-10)

    The last line is taken at the y just found (order "seidel") and at the old z.

    Args:
        lr_x, lr_y, lr_z, beta, x_step: as in SLIP.
        period: I, iterations from one update of y to the next.
        inner: N, steps of such an update.
        radius: R of the projection ball around y; infinite if not given (no source states a value).
        refine: epochs of epoch-SGD before the first iteration; the s-th has ``refine_steps * 2**s``
            steps.
        refine_steps: steps of the first epoch.
        lr_refine: their first step; ``lr_y`` at iteration 0 if not given.
        refine_radius: their first ball.
        warm_start: plain steps on y instead, when ``refine`` is 0.

    Example:
        >>> [i.kind for i in BOREP(lr_x=0.01, lr_y=0.1, lr_z=0.1, period=3).plan().at(0, 4)]
        ['hold', 'hold', 'hold', 'update']

    Source: Hao, Gong, Liu, ICLR 2024 (arXiv 2401.09587). Published settings: lr_y 0.05, lr_z 0.01,
    beta 0.9, N = 3, I = 2.

    *Not confirmed from the paper's text*: the epoch-SGD schedule (doubling lengths, halving steps,
    shrinking balls), the value of R, the time indices of z and m.
    *Differs from the authors' code*, which has neither projection nor epoch-SGD nor averaging.
    """

    lr_z: Rate = rate()
    beta: float = within(0, 1, "[)", 0.9)
    period: int = count(2)
    inner: int = count(3)
    radius: float = positive(math.inf, finite=False)
    refine: int = count(2, least=0)
    refine_steps: int = count(4)
    lr_refine: float | None = positive(None)
    refine_radius: float = positive(math.inf, finite=False)
    warm_start: int = count(0, least=0)
    x_step: XStep = "normalised"

    def plan(self) -> SamplePlan:
        """I - 1 iterations that hold y, then one that updates it; the warm samples refine y_0."""
        samples: Samples = {"z": LOWER, "f": UPPER}
        hold = Iteration(samples, "hold", 0)
        update = Iteration({"y": ("lower", self.inner), **samples}, "update", self.inner)
        lengths = epoch_sgd_lengths(self.refine_steps, self.refine)  # none where refine is 0
        steps = sum(lengths) or self.warm_start
        warm: Samples = {"warm": ("lower", steps)} if steps else {}
        period = (hold,) * (self.period - 1) + (update,)
        # Iteration 0 holds y as well: it was refined just before.
        return SamplePlan(period, first=(hold,), warm=Iteration(warm, "warm", steps))

    def prepare(self, v: WithMomentum, s: Draws, oracle: Oracle) -> WithMomentum:
        """The values with y refined at x_0: by epoch-SGD, or by ``warm_start`` plain steps."""
        lr = s.lr_y if self.lr_refine is None else self.lr_refine
        if self.refine:
            epochs, begin = [], 0  # samples of each epoch
            for steps in epoch_sgd_lengths(self.refine_steps, self.refine):
                epochs.append(part_of(s.warm, begin, begin + steps))
                begin += steps
            return replace(v, y=epoch_sgd(oracle, v.x, v.y, epochs, lr, self.refine_radius))
        return replace(v, y=descend(oracle, v.x, v.y, s.warm, lr)) if self.warm_start else v

    def update(self, v: WithMomentum, s: Draws, oracle: Oracle, kind: str) -> WithMomentum:
        """The next values: y where ``kind`` is "update", then x and z at that y and the old z."""
        if kind == "update":
            y = descend_average(oracle, v.x, v.y, s.y, s.lr_y, self.radius, self.inner)
            v = replace(v, y=y)
        _, d_z, d_x = oracle.residuals(v.x, v.y, v.z, s.z, s.f, gradient=False)
        m = oracle.mix(v.m, d_x, 1.0 - self.beta)  # d_x = f_x - Jz, d_z = Hz - f_y
        v = self.move_x(oracle, v, m, s.lr_x)
        return replace(v, z=oracle.move(v.z, d_z, s.lr_z), m=m)
