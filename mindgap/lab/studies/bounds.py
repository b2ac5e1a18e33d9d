"""Parts of a rule that ask whether a mean over seeds lies above a bound, and the power of such a
rule.

One level everywhere: *yes* where the one-sided 95 % bound of the mean says so, without a
correction, because every part of a rule must say *yes*. *No* is corrected for the number of parts
(Bonferroni), because one part is enough for it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import numpy as np

from mindgap.lab.studies.power import AnswerDesign, Array, Design
from mindgap.lab.studies.verdict import (
    ONE_SIDED,
    Parts,
    Values,
    as_ratios,
    mean_interval,
    ratio_words,
    student_quantile,
)


def mean_within(
    parts: Parts,
    name: str,
    values: Values,
    *,
    least: float = -math.inf,
    most: float = math.inf,
    gap: float = 0.0,
    questions: int,
    logs: bool = False,
    reading: str = "",
) -> None:
    """Add the part: the mean of ``values`` lies between ``least`` and ``most``.

    Args:
        parts: changed in place.
        name: of the part.
        values: one per seed.
        least, most: bounds of *yes*.
        gap: how far outside a bound the mean must lie for *no*. Between the two the part is open.
        questions: how many such parts the rule has, by which *no* is corrected.
        logs: whether the values are natural logarithms, so that the words give ratios.
        reading: of the statement that the part is about.

    Example:
        >>> parts = Parts()
        >>> mean_within(parts, "falls", [-1.0, -1.2, -1.1], most=0.0, questions=2, logs=True)
        >>> parts.measured
        'falls: yes (ratio 0.333 [0.281, 0.394])'
    """
    interval = mean_interval(values, miss=ONE_SIDED)
    corrected = mean_interval(values, miss=ONE_SIDED / questions)
    parts.add(
        name,
        holds=interval.low > least and interval.high < most,
        refuted=corrected.high < least - gap or corrected.low > most + gap,
        words=ratio_words(interval) if logs else interval.words(digits=".3g"),
        numbers={name: as_ratios(interval) if logs else interval.triple},
        reading=reading,
    )


@dataclass(frozen=True)
class BoundDesign(Design):
    """A rule whose parts are those of :func:`mean_within`, on made-up margins; and, behind them,
    parts that the median answer of an instrument decides.

    A margin is how far inside the bound of *yes* a value lies. ``paper`` and ``deviation`` are the
    first part's. Where the claim is false, the first part alone is: its true margin is ``false``.

    Args:
        margins: the true margin of every part at the paper's effect.
        deviations: of one margin between seeds, per part.
        gaps: how far outside its bound the mean of a part must lie for *no*; empty: 0.
        widths: of the parts with two bounds how far these are apart, else infinity; empty: all
            have one.
        answers: how many parts an instrument decides, by 1 (yes), 1/2 (open) or 0 (no).
        right_rate, wrong_rate: how often the instrument answers 1 and 0 where the part is true.

    Example:
        >>> from mindgap.lab.studies.power import rates
        >>> design = BoundDesign(
        ...     "bounds", 0.0, 1.0, 0.2, "u", "s", margins=(1.0, 2.0), deviations=(0.2, 0.2)
        ... )
        >>> rates(design, 5, draws=200).power
        1.0
    """

    margins: tuple[float, ...] = ()
    deviations: tuple[float, ...] = ()
    gaps: tuple[float, ...] = ()
    widths: tuple[float, ...] = ()
    answers: int = 0
    right_rate: float = 1.0
    wrong_rate: float = 0.0

    def draws(
        self, effect: float, seeds: int, studies: int, generator: np.random.Generator
    ) -> Array:
        """Made-up margins, and the instrument's answers behind them.

        ``effect`` is the true margin of the first part; all others are as the paper says.
        ``generator`` is advanced.

        Returns:
            Shape (studies, parts, seeds).
        """
        means = np.array((effect, *self.margins[1:]))[:, None]
        noise = generator.standard_normal((studies, len(self.margins), seeds))
        uniform = generator.random((studies, self.answers, seeds))
        answers = np.select(
            [uniform < self.right_rate, uniform >= 1 - self.wrong_rate], [1.0, 0.0], 0.5
        )
        return np.concatenate([means + np.array(self.deviations)[:, None] * noise, answers], axis=1)

    def decide(self, differences: Array) -> tuple[Array, Array]:
        """What the rule says of many studies at once.

        Args:
            differences: (studies, parts, seeds), as from :meth:`draws`.

        Returns:
            Whether it says *holds*, and whether *does not hold*, two arrays of shape (studies,).
        """
        bounded = len(self.margins)
        values, medians = differences[:, :bounded], np.median(differences[:, bounded:], axis=2)
        seeds, mean = values.shape[2], values.mean(2)
        standard_error = values.std(2, ddof=1) / math.sqrt(seeds)
        gaps = np.array(self.gaps or (0.0,) * bounded)
        widths = np.array(self.widths or (math.inf,) * bounded)
        questions = differences.shape[1]
        half, corrected = (
            student_quantile(1 - miss, seeds - 1) * standard_error
            for miss in (ONE_SIDED / 2, ONE_SIDED / 2 / questions)
        )
        inside = (mean - half > 0) & (mean + half < widths)
        outside = (mean + corrected < -gaps) | (mean - corrected > widths + gaps)
        return (
            inside.all(1) & (medians == 1.0).all(1),
            outside.any(1) | (medians == 0.0).any(1),
        )


@dataclass(frozen=True)
class OneFalseDesign(AnswerDesign):
    """As :class:`AnswerDesign`; where the claim is false, the first part alone is."""

    def draws(
        self, effect: float, seeds: int, studies: int, generator: np.random.Generator
    ) -> Array:
        """Made-up answers; the first part's come as often as the instrument gives them at
        ``effect``, all others as at the paper's. ``generator`` is advanced.
        """
        answers = super().draws(self.paper, seeds, studies, generator)
        if effect != self.paper:
            answers[:, 0] = super().draws(effect, seeds, studies, generator)[:, 0]
        return answers


@dataclass(frozen=True)
class ShareDesign(Design):
    """A rule that asks by :func:`share_bounds`, per part, whether nearly all readings agree, on
    made-up numbers of agreeing readings.

    ``false`` and ``paper`` are true shares; where the claim is false, the first part alone is.

    Args:
        readings: per seed and part.
        least: the share that *yes* asks for.
    """

    readings: int = 1
    least: float = 0.9

    def draws(
        self, effect: float, seeds: int, studies: int, generator: np.random.Generator
    ) -> Array:
        """How many of the readings of a seed agree, (studies, parts, seeds); the first part's have
        the true share ``effect``. ``generator`` is advanced.
        """
        shares = np.full((self.parts, 1), self.paper)
        shares[0] = effect
        return generator.binomial(self.readings, shares, size=(studies, self.parts, seeds))

    def decide(self, differences: Array) -> tuple[Array, Array]:
        """What the rule says of many studies at once.

        Args:
            differences: numbers as from :meth:`draws`.

        Returns:
            Whether it says *holds*, and whether *does not hold*, two arrays of shape (studies,).
        """
        total = self.readings * differences.shape[2]
        fewest, too_few = share_bounds(total, self.least, self.parts)
        agreeing = differences.sum(2)
        return (agreeing >= fewest).all(1), (agreeing <= too_few).any(1)


@cache
def share_bounds(total: int, least: float, questions: int) -> tuple[int, int]:
    """From how many agreeing readings on a part is answered with yes, and up to how many with no.

    Yes: if their true share were ``least``, so many would agree with a probability of 5 % at most.
    No: so few with 5 % over the number of ``questions`` at most.

    Args:
        total: number of readings.
        least: a share.
        questions: parts of the rule.

    Example:
        >>> share_bounds(65, 0.9, 8), share_bounds(12, 0.9, 1)
        ((63, 51), (13, 8))
    """
    from scipy.stats import binom

    counts = np.arange(total + 1)
    enough = counts[binom.sf(counts - 1, total, least) <= ONE_SIDED / 2]
    too_few = counts[binom.cdf(counts, total, least) <= ONE_SIDED / 2 / questions]
    return int(min(enough, default=total + 1)), int(max(too_few, default=-1))
