"""Fig. 2-3: an online problem on which Adam's average regret does not vanish and AMSGrad's does.

f_t(x) = C x when t mod P = 1 and -s x otherwise, x in [-1, 1]. The sum over a period is (C -
(P-1)s) x, so x = -1 is best when that factor is positive; Adam forgets the rare large gradient and
goes to x = +1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from mindgap.base.check import between, fail, one_of
from mindgap.base.checked import AtLeast, Positive


@dataclass(frozen=True)
class RareLargeLoss:
    """f_t(x) = C x in the first step of every period, else -s x, x in [-1, 1] (Reddi et al., cited
    for thesis, Fig. 2-3).

    Example:
        >>> RareLargeLoss(C=3.0).gain, RareLargeLoss(C=1010.0, s=10.0, period=101).gain
        (1.0, 10.0)
        >>> RareLargeLoss(C=2.0)
        Traceback (most recent call last):
        mindgap.base.check.RuleError: C must be above (P-1)s = 2, got 2.0
    """

    C: Positive  # slope of the rare loss, above (P-1)s
    s: Positive = 1.0  # minus the slope of all other losses
    period: Annotated[int, AtLeast(2)] = 3  # P, steps

    def __post_init__(self) -> None:
        if self.gain <= 0:
            fail("C", f"must be above (P-1)s = {(self.period - 1) * self.s:g}", self.C)

    @property
    def gain(self) -> float:
        """C - (P-1)s, the slope of the sum of a period's losses."""
        return self.C - (self.period - 1) * self.s

    def forgetting(self) -> float:
        """β2 = 1/(1 + C²), with which the theorem forces Adam back to x = 1 (s = 1, P = 3)."""
        return 1 / (1 + self.C**2)

    def adam_floor(self) -> float:
        """2(C-2)/3 for s = 1 and P = 3: a lower bound of Adam's average regret where x returns to 1
        in every period.

        A period begins at x = 1 with the loss C, and its other two losses are at least -1 each; x =
        -1 pays 2 - C in a period.
        """
        return 2 * self.gain / self.period


def online_regret(
    problem: RareLargeLoss,
    method: str,
    alpha: Positive,
    betas: tuple[float, float],
    reported_steps: Sequence[int],
) -> tuple[list[float], list[float]]:
    """Run Adam or AMSGrad, projected to [-1, 1], with steps α/√t from x_1 = 1.

    R_t is the sum of losses up to step t less that of the best fixed point, x = -1.

    Args:
        problem: the losses.
        method: "adam" or "amsgrad".
        alpha: α.
        betas: (β1, β2), each in [0, 1).
        reported_steps: the steps t to report, increasing.

    Returns:
        (average regrets R_t/t, points x_t), one entry each per reported step.

    Example:
        >>> problem = RareLargeLoss(C=3.0)
        >>> adam, _ = online_regret(problem, "adam", 0.5, (0.0, problem.forgetting()), [30, 3000])
        >>> ams, _ = online_regret(problem, "amsgrad", 0.5, (0.0, problem.forgetting()), [30, 3000])
        >>> min(adam) >= problem.adam_floor(), ams[1] < ams[0] / 3
        (True, True)

    Source: thesis, Fig. 2-3.
    """
    one_of("method", method, ("adam", "amsgrad"))
    for name, value in zip(("beta1", "beta2"), betas, strict=True):
        between(name, value, 0, 1, ends="[)")
    beta1, beta2 = betas
    amsgrad, reported = method == "amsgrad", set(reported_steps)
    # m and v are the moments; ``divisor`` is v (Adam) or the largest v so far (AMSGrad).
    x, m, v, divisor = 1.0, 0.0, 0.0, 0.0
    losses, best_losses = 0.0, 0.0  # summed, at x_t and at x = -1
    regrets, points = [], []
    for t in range(1, reported_steps[-1] + 1):
        gradient = problem.C if t % problem.period == 1 else -problem.s
        losses += gradient * x
        best_losses -= gradient
        if t in reported:
            regrets.append((losses - best_losses) / t)
            points.append(x)
        m = beta1 * m + (1 - beta1) * gradient
        v = beta2 * v + (1 - beta2) * gradient * gradient
        # Comparisons, not max and min, because they take half the time.
        divisor = v if v > divisor or not amsgrad else divisor
        x -= alpha * m / math.sqrt(t * divisor)
        x = 1.0 if x > 1 else -1.0 if x < -1 else x
    return regrets, points
