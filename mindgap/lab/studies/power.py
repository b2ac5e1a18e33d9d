"""How often a pass rule errs and how often it finds what the paper reports: one simulation per
rule.

A :class:`Design` says what a rule decides on made-up differences between seeds, and at which
effects it is asked. :func:`rates` gives three numbers: how often the rule says *holds* where the
claim is false by the smallest effect that matters, how often it says *does not hold* where the
claim is true at the paper's effect, and how often it says *holds* there: its power.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from mindgap.base.check import fail, whole
from mindgap.base.rng import numpy_stream
from mindgap.lab.studies.verdict import LEAST_SEEDS, ONE_SIDED, student_quantile

Array = np.ndarray[Any, Any]

#: A rule below this power at its planned seeds is refused.
LEAST_POWER = 0.7


@dataclass(frozen=True)
class Design:
    """A rule on made-up data.

    Args:
        kind: ``"lead"`` (one method above all rivals), ``"equivalent"`` (differences within a
            margin) or ``"sooner"`` (a pooled log ratio above 0); a subclass has a name of its own.
        false: the true effect where the claim is false by the smallest effect that matters.
        paper: the true effect that the paper reports, or that is assumed where it prints none.
        deviation: of one paired difference between seeds, in the same unit.
        unit: of the effects, in words.
        source: where paper effect and deviation come from.
        parts: rivals, or questions that must all be answered with yes.
        smallest: of a lead: what it must be on average.
        margin: of an equivalence.
    """

    kind: str
    false: float
    paper: float
    deviation: float
    unit: str
    source: str
    parts: int = 1
    smallest: float = 0.0
    margin: float = 0.0

    def draws(
        self, effect: float, seeds: int, studies: int, generator: np.random.Generator
    ) -> Array:
        """Made-up paired differences between seeds.

        Of a lead all parts have the true ``effect``. Of the other kinds the first part has it and
        all others have the paper's: one part alone is false.

        Args:
            effect: the mean of the differences.
            seeds: differences per part.
            studies: how many studies are made up.
            generator: advanced by the draws.

        Returns:
            Shape (studies, parts, seeds).
        """
        if self.kind != "lead":
            differences: Array = self.deviation * generator.standard_normal(
                (studies, self.parts, seeds)
            )
            differences += self.paper
            differences[:, 0] += effect - self.paper
            return differences
        # Noise 0 is the method's, the others are its rivals'. Leads over independent rivals share
        # the method's noise: correlation 1/2.
        noise = generator.standard_normal((studies, self.parts + 1, seeds))
        leads: Array = effect + self.deviation / np.sqrt(2) * (noise[:, :1] - noise[:, 1:])
        return leads

    def decide(self, differences: Array) -> tuple[Array, Array]:
        """What the rule says of many studies at once.

        It repeats the rules of :class:`~mindgap.lab.studies.verdict.Parts` for arrays: a lead is
        judged as by :meth:`~mindgap.lab.studies.verdict.Parts.ahead_of_all`, an equivalence as by
        ``equivalent``, the kind ``"sooner"`` as by ``sooner``, and every part must say yes. The
        intervals are Student's, each end a one-sided test of 5 %.

        Args:
            differences: (studies, parts, seeds), as from :meth:`draws`.

        Returns:
            Whether it says *holds*, and whether *does not hold*, two arrays of shape (studies,).
        """
        # All of shape (studies, parts).
        seeds, mean = differences.shape[2], differences.mean(2)
        standard_error = differences.std(2, ddof=1) / np.sqrt(seeds)
        half_width = student_quantile(0.95, seeds - 1) * standard_error
        low, high = mean - half_width, mean + half_width
        if self.kind == "lead":
            # A rival that is better must show it with 95 % for all comparisons (Bonferroni).
            corrected_quantile = student_quantile(1 - 0.05 / self.parts, seeds - 1)
            corrected_high = mean + corrected_quantile * standard_error
            refuted = ((corrected_high < 0) & (mean <= -self.smallest)).any(1)
            holds = ((low > 0) & (mean >= self.smallest)).all(1)
            enough_seeds = seeds >= LEAST_SEEDS
            return holds & ~refuted & enough_seeds, refuted & enough_seeds
        if self.kind == "equivalent":
            inside = (low > -self.margin) & (high < self.margin)
            outside = (low > self.margin) | (high < -self.margin)
            return inside.all(1), outside.any(1)
        return (low > 0).all(1), (high < 0).any(1)


@dataclass(frozen=True)
class AnswerDesign(Design):
    """A rule on answers of an instrument, yes, no or open, whose median over the seeds must be yes
    in every part.

    Args:
        yes_if_false, no_if_false: how often the instrument gives these answers where the claim is
            false by the smallest effect that matters, measured on samples of a known law.
        yes_if_true, no_if_true: the same at the paper's effect.
    """

    yes_if_false: float = 0.0
    no_if_false: float = 1.0
    yes_if_true: float = 1.0
    no_if_true: float = 0.0

    def draws(
        self, effect: float, seeds: int, studies: int, generator: np.random.Generator
    ) -> Array:
        """Made-up answers 1 (yes), 1/2 (open) or 0 (no), of shape (studies, parts, seeds).

        They come as often as the instrument gives them where the claim is true if ``effect`` is
        the paper's, and as often as where it is false otherwise. ``generator`` is advanced.
        """
        if effect == self.paper:
            yes_rate, no_rate = self.yes_if_true, self.no_if_true
        else:
            yes_rate, no_rate = self.yes_if_false, self.no_if_false
        uniform = generator.random((studies, self.parts, seeds))
        answers: Array = np.select([uniform < yes_rate, uniform >= 1 - no_rate], [1.0, 0.0], 0.5)
        return answers

    def decide(self, answers: Array) -> tuple[Array, Array]:
        """What the rule says of many studies at once.

        It holds where the median answer of every part is yes, and not where one of them is no.

        Args:
            answers: (studies, parts, seeds), as from :meth:`draws`.

        Returns:
            Whether it says *holds*, and whether *does not hold*, two arrays of shape (studies,).
        """
        medians = np.median(answers, axis=2)  # (studies, parts)
        return (medians == 1.0).all(1), (medians == 0.0).any(1)


@dataclass(frozen=True)
class GainDesign(Design):
    """Gains that must all be above 0; each is refuted where it is certainly negligible.

    It repeats for arrays what :meth:`~mindgap.lab.studies.verdict.Parts.below` and its like decide
    at scale gpu: yes is one-sided at 95 %, and no is corrected for the number of parts.

    Args:
        negligible: a gain that is certainly below this is none; of the first part.
        others: effect at the paper's claim, deviation and ``negligible`` of each further part, in a
            unit of its own; empty where all ``parts`` are like the first.
        shared: the gains are those of one method over independent rivals, which share its noise:
            correlation 1/2. Otherwise they are independent, which makes it hardest that all hold.
    """

    negligible: float = 0.0
    others: tuple[tuple[float, float, float], ...] = ()
    shared: bool = False

    def __post_init__(self) -> None:
        """Refuse a number of parts that is not that of the parts described."""
        if self.others and self.parts != 1 + len(self.others):
            fail("parts", f"must be {1 + len(self.others)}, one more than others", self.parts)

    @property
    def each(self) -> Array:
        """Effect at the paper's claim, deviation and negligible gain, per part: (3, parts)."""
        first = (self.paper, self.deviation, self.negligible)
        described = [first, *self.others] if self.others else [first] * self.parts
        return np.array(described).T

    def draws(
        self, effect: float, seeds: int, studies: int, generator: np.random.Generator
    ) -> Array:
        """Made-up gains, of shape (studies, parts, seeds).

        The first part has the true ``effect``, all others that of the paper's claim. ``generator``
        is advanced.
        """
        papers, deviations, _ = self.each
        noise: Array = generator.standard_normal((studies, len(papers), seeds))
        if self.shared:
            of_the_method = generator.standard_normal((studies, 1, seeds))
            noise = (of_the_method - noise) / np.sqrt(2)
        gains: Array = papers[:, None] + deviations[:, None] * noise
        gains[:, 0] += effect - self.paper
        return gains

    def decide(self, gains: Array) -> tuple[Array, Array]:
        """What the rule says of many studies at once.

        Args:
            gains: (studies, parts, seeds), as from :meth:`draws`.

        Returns:
            Whether it says *holds*, and whether *does not hold*, two arrays of shape (studies,).
        """
        _, parts, seeds = gains.shape
        mean = gains.mean(2)
        standard_error = gains.std(2, ddof=1) / np.sqrt(seeds)
        half_width, corrected = (
            student_quantile(1 - miss / 2, seeds - 1) * standard_error
            for miss in (ONE_SIDED, ONE_SIDED / parts)
        )
        *_, negligible = self.each
        none = mean + corrected < negligible
        return ((mean - half_width > 0) & ~none).all(1), none.any(1)


@dataclass(frozen=True)
class Rates:
    """The two error rates and the power of a rule, and what they were computed for."""

    holds_if_false: float  # share of studies
    does_not_hold_if_true: float  # share of studies
    power: float  # share of studies in which the rule says *holds* at the paper's effect
    seeds: int
    #: from here on as in :class:`Design`
    false: float
    paper: float
    deviation: float
    unit: str
    source: str

    @property
    def words(self) -> str:
        """The three numbers in one sentence."""
        deviation_words = (
            f" and a deviation of {self.deviation:g} {self.unit} between seeds"
            if self.deviation
            else ""
        )
        return (
            f"with {self.seeds} seeds{deviation_words} the rule says *holds* in "
            f"{100 * self.holds_if_false:.1f} % of studies where the true effect is "
            f"{self.false:g} {self.unit} (false by the smallest effect that matters), *does not "
            f"hold* in {100 * self.does_not_hold_if_true:.1f} % and *holds* in "
            f"{100 * self.power:.0f} % (its power) where it is {self.paper:g} {self.unit} "
            f"({self.source})"
        )


@cache
def rates(design: Design, seeds: int, draws: int = 4000) -> Rates:
    """The two error rates and the power of a rule, by simulation; computed once per process.

    Args:
        design: the rule on made-up data.
        seeds: of each study, two or more.
        draws: how many studies are simulated at each of the two true effects.

    Example:
        >>> design = Design("sooner", 0.0, 0.5, 0.3, "log ratio", "made up")
        >>> found = rates(design, 12, draws=200)
        >>> found.power > 0.9, found.holds_if_false < 0.1, found.does_not_hold_if_true
        (True, True, 0.0)
    """
    whole("seeds", seeds, least=2)
    whole("draws", draws, least=1)
    generator = numpy_stream(0, "power", design.kind)
    holds_if_false, _ = design.decide(design.draws(design.false, seeds, draws, generator))
    holds_if_true, refuted_if_true = design.decide(
        design.draws(design.paper, seeds, draws, generator)
    )
    return Rates(
        holds_if_false=float(holds_if_false.mean()),
        does_not_hold_if_true=float(refuted_if_true.mean()),
        power=float(holds_if_true.mean()),
        seeds=seeds,
        false=design.false,
        paper=design.paper,
        deviation=design.deviation,
        unit=design.unit,
        source=design.source,
    )
