"""Which of the textbook's assumptions fails, from numbers that were measured.

Torch-free: a diagnosis can be made from a saved file of readings on any machine.
"""

from __future__ import annotations

from dataclasses import dataclass

from mindgap.base.check import fail, non_negative, positive

#: The assumptions that are looked at, with what the textbook takes for granted.
ASSUMPTIONS = {
    "finite variance": "the gradient noise has finite variance",
    "smoothness": "the smoothness does not grow with the gradient",
    "stable step": "the sharpness stays below the optimizer's stability threshold",
    "stationarity": "where the loss settles, the gradient vanishes",
    "finite gradients": "every gradient is a finite number",
}


@dataclass(frozen=True)
class Interval:
    """An estimate with its confidence interval.

    Example:
        >>> Interval(1.4, 1.2, 1.6).below(2.0), Interval(1.9, 1.7, 2.1).below(2.0)
        (True, None)
    """

    value: float
    low: float
    high: float

    def __post_init__(self) -> None:
        if not self.low <= self.value <= self.high:
            fail("interval", "must satisfy low <= value <= high", (self.low, self.value, self.high))

    def below(self, level: float) -> bool | None:
        """True or False where the whole interval agrees, None where it cannot tell."""
        if self.high < level:
            return True
        return False if self.low >= level else None

    def __str__(self) -> str:
        return f"{self.value:.3g} [{self.low:.3g}, {self.high:.3g}]"


@dataclass(frozen=True)
class Readings:
    """What was measured; everything may be missing.

    Args:
        tail_index: tail index of the gradient noise norms (2 and above: finite variance).
        smoothness_slope: slope of log smoothness against log gradient norm (0: textbook smoothness).
        sharpness: largest Hessian eigenvalue.
        threshold: stability threshold of the optimizer in use, in the unit of ``sharpness``.
        loss_drift: change of the loss between two late windows, over the loss.
        gradient_norm: unbiased norm of the mean gradient, late in training.
        gradient_norm_start: the same at the start.
        skipped: share of steps with gradients that were not finite.
    """

    tail_index: Interval | None = None
    smoothness_slope: Interval | None = None
    sharpness: float | None = None
    threshold: float | None = None
    loss_drift: float | None = None
    gradient_norm: float | None = None
    gradient_norm_start: float | None = None
    skipped: float | None = None


@dataclass(frozen=True)
class Finding:
    """One assumption: whether it fails (None: cannot tell), and the numbers behind that."""

    assumption: str
    fails: bool | None
    evidence: str

    def __str__(self) -> str:
        word = {True: "fails", False: "holds", None: "cannot tell"}[self.fails]
        return f"{self.assumption}: {word} ({self.evidence})"


def diagnose(readings: Readings) -> list[Finding]:
    """Judge every assumption that the readings speak about.

    Example:
        >>> for finding in diagnose(Readings(tail_index=Interval(1.4, 1.2, 1.6), sharpness=50.0, threshold=20.0)):
        ...     print(finding)
        finite variance: fails (tail index of the noise 1.4 [1.2, 1.6], 2 is the border)
        stable step: fails (sharpness 50 against a threshold of 20)
    """
    found = []
    if readings.tail_index is not None:
        evidence = f"tail index of the noise {readings.tail_index}, 2 is the border"
        found.append(Finding("finite variance", readings.tail_index.below(2.0), evidence))
    if readings.smoothness_slope is not None:
        slope = readings.smoothness_slope
        # A slope is called growth only where it is clearly above zero and of a size that matters.
        grows = True if slope.low > 0.2 else (False if slope.high < 0.2 else None)
        evidence = f"log smoothness against log gradient norm has slope {slope}"
        found.append(Finding("smoothness", grows, evidence))
    if readings.sharpness is not None and readings.threshold is not None:
        positive("threshold", readings.threshold)
        evidence = f"sharpness {readings.sharpness:.3g} against a threshold of {readings.threshold:.3g}"
        found.append(Finding("stable step", readings.sharpness > readings.threshold, evidence))
    if None not in (readings.loss_drift, readings.gradient_norm, readings.gradient_norm_start):
        found.append(_stationarity(readings))
    if readings.skipped is not None:
        non_negative("skipped", readings.skipped)
        evidence = f"{readings.skipped:.2%} of the steps had a gradient that was not finite"
        found.append(Finding("finite gradients", readings.skipped > 0, evidence))
    return found


def _stationarity(readings: Readings) -> Finding:
    assert readings.loss_drift is not None
    assert readings.gradient_norm is not None
    assert readings.gradient_norm_start is not None
    ratio = readings.gradient_norm / positive("gradient_norm_start", readings.gradient_norm_start)
    evidence = f"the loss drifts by {readings.loss_drift:.1%} while the gradient norm is {ratio:.2g} times its start"
    if abs(readings.loss_drift) > 0.01:
        return Finding("stationarity", None, evidence + "; the loss has not settled")
    return Finding("stationarity", ratio > 0.1, evidence)
