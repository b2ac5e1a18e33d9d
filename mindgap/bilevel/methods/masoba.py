"""MA-SOBA: SOBA with a moving average of the upper direction."""

from __future__ import annotations

from dataclasses import dataclass

from mindgap.bilevel.core.settings import Rate, flag, rate, within
from mindgap.bilevel.core.types import Draws, Oracle, WithAverage, replace
from mindgap.bilevel.data.draws import LOWER, UPPER, Iteration, SamplePlan
from mindgap.bilevel.method import LowerStepMethod


@dataclass(frozen=True, kw_only=True)
class MASOBA(LowerStepMethod[WithAverage, Draws]):
    """Moving-average SOBA.

    Symbols: alpha = ``lr_x``, beta = ``lr_y``, gamma = ``lr_z``, theta = ``theta``. The update, one
    lower and one upper sample, all at the old point::

        x <- x - alpha h;   y <- y - beta g_y;   z <- z - gamma (Hz - f_y);
            h <- (1 - theta) h + theta (f_x - Jz)

    x moves along the average of the iteration before (a delay of one step).

    Args:
        lr_x, lr_y: steps on x and y.
        lr_z: step on the linear system; that of y if not given.
        theta: weight of the newest direction, in (0, 1].
        delayed: x uses the average before this iteration's direction enters it, as in the paper;
            False uses the new one.

    Example:
        >>> MASOBA(lr_x=0.1, lr_y=0.1, theta=1.0).plan().period[0].samples
        {'g': ('lower', None), 'f': ('upper', None)}

    Source: Chen, Xiao, Balasubramanian 2023 (arXiv 2306.12067). The theory takes all four Theta(1 /
    sqrt K). Published settings in the SLIP line: hyper-representation 0.05 / 0.05 / 0.01 (x / y /
    z), theta 0.1; cleaning 0.05 / 0.1 / 0.1.

    *Not confirmed from the paper's text*: the delay of one step. *Differs from the code published
    with SLIP*, which moves x along the new average.
    """

    lr_z: Rate | None = rate(None, like="lr_y")
    theta: float = within(0, 1, "(]", 0.1)
    delayed: bool = flag(True)

    def plan(self) -> SamplePlan:
        # g: g_y, Hz and Jz; f: f_x and f_y
        return SamplePlan((Iteration({"g": LOWER, "f": UPPER}),))

    def update(self, v: WithAverage, s: Draws, oracle: Oracle, kind: str) -> WithAverage:
        """The next values: x (along h), y and z move together from the old point, then h."""
        d_y, d_z, d_x = oracle.residuals(v.x, v.y, v.z, s.g, s.f)  # g_y, Hz - f_y, f_x - Jz
        h = oracle.mix(v.h, d_x, self.theta)
        v = self.move_x(oracle, v, v.h if self.delayed else h, s.lr_x)
        return replace(self.move_yz(oracle, v, s, d_y, d_z), h=h)
