"""Which of the textbook's assumptions fails, from a survey or from single numbers.

Needs no torch: a saved survey can be judged on any machine.
"""

from __future__ import annotations

from dataclasses import dataclass

from mindgap.base.check import fail, non_negative, number, positive
from mindgap.record.survey import Survey

#: The assumptions that are looked at, with what the textbook takes for granted.
ASSUMPTIONS = {
    "finite variance": "the gradient noise has finite variance",
    "smoothness": "the smoothness does not grow with the gradient",
    "stable step": "the sharpness stays below the optimizer's stability threshold",
    "stationarity": "where the loss settles, the gradient vanishes",
    "finite gradients": "every gradient is a finite number",
}

#: Conventions of these judgements: slope of the smoothness against the gradient's norm that counts
#: as growth, relative drift of a loss that has settled at most, and gradient norm over that at the
#: start below which the gradient has vanished.
LEAST_GROWTH, MOST_DRIFT, VANISHED = 0.2, 0.01, 0.1


@dataclass(frozen=True)
class Estimate:
    """A number with its confidence interval.

    Example:
        >>> Estimate(1.4, 1.2, 1.6).below(2.0), Estimate(1.9, 1.7, 2.1).below(2.0)
        (True, None)
    """

    value: float
    low: float  # lower end of the interval
    high: float  # its upper end

    def __post_init__(self) -> None:
        """Check that these are numbers, and that the interval holds the value."""
        for name in ("value", "low", "high"):
            number(name, getattr(self, name))
        if not self.low <= self.value <= self.high:
            fail("interval", "must satisfy low <= value <= high", (self.low, self.value, self.high))

    def below(self, level: float) -> bool | None:
        """Whether the number is below a level: True or False where the whole interval agrees, None
        where the level lies inside it.
        """
        number("level", level)
        if self.high < level:
            return True
        return False if self.low >= level else None

    def __str__(self) -> str:
        return f"{self.value:.3g} [{self.low:.3g}, {self.high:.3g}]"


@dataclass(frozen=True)
class Measurements:
    """Numbers to judge; everything may be missing."""

    tail_index: Estimate | None = (
        None  # tail index of the gradient noise norms (2 and above: finite variance)
    )
    #: slope of log smoothness against log gradient norm (0: textbook smoothness).
    smoothness_slope: Estimate | None = None
    sharpness: float | None = None  # largest Hessian eigenvalue
    threshold: float | None = (
        None  # stability threshold of the optimizer in use, in the unit of ``sharpness``
    )
    loss_drift: float | None = None  # change of the loss between two late windows, over the loss
    gradient_norm: float | None = None  # unbiased norm of the mean gradient, late in training
    gradient_norm_start: float | None = None  # the same at the start
    skipped: float | None = None  # share of steps with gradients that were not finite

    def __post_init__(self) -> None:
        """Check every number that is given against its rule."""
        for name in ("tail_index", "smoothness_slope"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, Estimate):
                fail(name, "must be an Estimate or None", value)
        for name, rule in {
            "sharpness": number,
            "loss_drift": number,
            "threshold": positive,
            "gradient_norm_start": positive,
            "gradient_norm": non_negative,
            "skipped": non_negative,
        }.items():
            if getattr(self, name) is not None:
                rule(name, getattr(self, name))


@dataclass(frozen=True)
class Judgement:
    """One assumption: whether it fails (None: cannot tell), and the evidence."""

    assumption: str  # a key of ASSUMPTIONS
    fails: bool | None
    evidence: str  # the numbers, as words

    @property
    def verdict(self) -> str:
        """``"fails"``, ``"holds"`` or ``"cannot tell"``."""
        return {True: "fails", False: "holds", None: "cannot tell"}[self.fails]

    def __str__(self) -> str:
        return f"{self.assumption}: {self.verdict} ({self.evidence})"


def diagnose(given: Survey | Measurements) -> list[Judgement]:
    """Judge every assumption that a survey, or single numbers, speak about. Assumptions about which
    a number is missing are left out.

    A survey carries its own verdicts, and an assumption that it could not judge stays so.

    Example:
        >>> for judged in diagnose(
        ...     Measurements(tail_index=Estimate(1.4, 1.2, 1.6), sharpness=50.0, threshold=20.0)
        ... ):
        ...     print(judged)
        finite variance: fails (tail index of the noise 1.4 [1.2, 1.6], the border is 2)
        stable step: fails (sharpness 50 against a threshold of 20)
    """
    if isinstance(given, Survey):
        return [
            Judgement(f.assumption, f.fails, f.sentence) for f in given.findings if f.assumption
        ]
    if not isinstance(given, Measurements):
        fail("given", "must be a Survey or Measurements", given)
    judged = []
    if given.tail_index is not None:
        evidence = f"tail index of the noise {given.tail_index}, the border is 2"
        judged.append(Judgement("finite variance", given.tail_index.below(2.0), evidence))
    if given.smoothness_slope is not None:
        slope = given.smoothness_slope
        # A slope counts as growth only where it is clearly above zero and of a size that matters.
        unclear = slope.low <= LEAST_GROWTH <= slope.high
        grows = None if unclear else slope.low > LEAST_GROWTH
        judged.append(
            Judgement(
                "smoothness", grows, f"log smoothness against log gradient norm has slope {slope}"
            )
        )
    if given.sharpness is not None and given.threshold is not None:
        evidence = f"sharpness {given.sharpness:.3g} against a threshold of {given.threshold:.3g}"
        judged.append(Judgement("stable step", given.sharpness > given.threshold, evidence))
    if (
        given.loss_drift is not None
        and given.gradient_norm is not None
        and given.gradient_norm_start is not None
    ):
        ratio = given.gradient_norm / given.gradient_norm_start
        evidence = (
            f"the loss drifts by {given.loss_drift:.1%} while the gradient norm is {ratio:.2g} "
            "times its start"
        )
        settled = abs(given.loss_drift) <= MOST_DRIFT
        fails = ratio > VANISHED if settled else None
        evidence += "" if settled else "; the loss has not settled"
        judged.append(Judgement("stationarity", fails, evidence))
    if given.skipped is not None:
        evidence = f"{given.skipped:.2%} of the steps had a gradient that was not finite"
        judged.append(Judgement("finite gradients", given.skipped > 0, evidence))
    return judged
