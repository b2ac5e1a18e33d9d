"""From named parts to a verdict, and the statistics that pass rules use.

Every ``judge`` fills a :class:`Parts` with what its rule asks, one named part per question.
:meth:`Parts.build` is the only place that turns parts into *holds*, *does not hold* or
*inconclusive*.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np

from mindgap.base.check import fail, one_of, whole
from mindgap.base.checked import Positive, checked, checked_class
from mindgap.record.schema import Run, Verdict, grouped

#: One number per seed, draw or place.
Values = Sequence[float] | np.ndarray

#: Seeds that a comparison of one method with all others needs.
LEAST_SEEDS = 8

#: ``miss`` of a two-sided interval each of whose ends is a one-sided test of 5 %.
ONE_SIDED = 0.1

#: Of which form of a statement a part speaks: both, the one in print, the one that the proof gives.
#: A part about a "variant" is answered like any other and decides neither.
READINGS = ("", "as printed", "as corrected", "variant")


@dataclass(frozen=True)
class Part:
    """One question of a pass rule and its answer."""

    name: str
    answer: str  # ``"yes"``, ``"no"`` or ``"open"``
    words: str = ""  # the numbers in words; may be empty
    reading: str = ""  # one of :data:`READINGS`


@checked_class
@dataclass
class Parts:
    """What a pass rule asks, part by part.

    The statement holds when every part is answered with yes and does not hold when one is answered
    with no. It is inconclusive otherwise, and whenever :meth:`decide_nothing` was called (a run did
    not settle, a record lacks what the rule reads). Where a :meth:`gate` failed, the verdict is
    *not trained* whatever the parts say.

    Example:
        >>> parts = Parts()
        >>> parts.ratio("grows", [2.0, 2.1, 2.05], [1.0, 1.0, 1.0], 1.0)
        >>> parts.verdict, parts.measured
        ('holds', 'grows: yes (ratio 2.05 [1.93, 2.18])')
        >>> parts.add("as fast as printed", False, words="0.5", reading="as printed")
        >>> parts.build().as_printed, parts.build().as_corrected, parts.verdict
        ('does not hold', 'holds', 'holds')
    """

    asked: list[Part] = field(default_factory=list)  # the parts so far
    sentences: list[str] = field(default_factory=list)  # what the verdict prints
    numbers: dict[str, Any] = field(default_factory=dict)  # what the verdict keeps
    usable: bool = True  # False makes every reading inconclusive
    trained: bool = True  # False makes every reading *not trained*
    gates: list[str] = field(default_factory=list)  # the controls, in words

    def add(
        self,
        name: str,
        holds: bool,
        refuted: bool | None = None,
        words: str = "",
        numbers: Mapping[str, Any] | None = None,
        reading: str = "",
    ) -> None:
        """Answer one part, with a sentence in the verdict's words.

        Args:
            name: of the part.
            holds: whether the answer is yes.
            refuted: whether the answer is no, which has the last word; None: if it does not hold.
                Where neither is true the answer is open.
            words: the numbers behind the answer; they stand in brackets after it.
            numbers: name -> number or list, kept in the verdict.
            reading: the form of the statement that the part is about, one of :data:`READINGS`.
        """
        refuted = not holds if refuted is None else refuted
        answer = "no" if refuted else "yes" if holds else "open"
        self.asked.append(Part(name, answer, words, one_of("reading", reading, READINGS)))
        label = name if reading in name else f"{reading}, {name}"
        self.note(f"{label}: {answer}" + (f" ({words})" if words else ""), numbers)

    def certified(self, study: str) -> None:
        """Add a part for each sentence of the study that is known to be wrong by a counterexample.

        The counterexample (the certificate of an erratum) is computed, not measured: it meets the
        statement's assumptions and contradicts it, whatever the runs say. The part's reading is
        ``"as printed"``, and its answer is no where the counterexample is valid.

        Args:
            study: name of the study.
        """
        from mindgap.lab.theory.erratum import about

        for erratum in about(study):
            if erratum.certificate:
                certificate = erratum.certify()
                words = f"printed {erratum.printed}, counterexample {certificate.words()}"
                self.add(  # a page breaks lines at semicolons
                    erratum.place.replace("; ", ", "),
                    holds=not certificate.valid,
                    reading="as printed",
                    words=words.replace("; ", ", "),
                    numbers={f"certificate, {erratum.place}": certificate.ratio},
                )

    def note(self, sentence: str, numbers: Mapping[str, Any] | None = None) -> None:
        """Add a sentence to the verdict's words, and numbers to its numbers, without judging
        them; an empty sentence is not added.
        """
        if sentence:
            self.sentences.append(sentence)
        self.numbers.update(numbers or {})

    def decide_nothing(self, reason: str) -> None:
        """Make the verdict inconclusive whatever the parts say."""
        self.usable = False
        self.note(reason)

    def gate(self, name: str, passed: bool, words: str) -> None:
        """Add a control that shows that the network is trained.

        Where one of them fails, the verdict is *not trained*. ``words`` are the numbers behind it.
        """
        self.gates.append(f"{name}: {'passed' if passed else 'failed'} ({words})")
        self.trained = self.trained and passed

    @checked
    def ratio(
        self,
        name: str,
        upper: Values,
        lower: Values,
        least: Positive,
        miss: float = 0.05,
        questions: int = 1,
    ) -> None:
        """Add the part: ``upper`` lies above ``least`` times ``lower``.

        It is judged by an interval for the mean log of their ratio over paired values: yes where
        the interval lies above log(``least``). No where it lies below, corrected (Bonferroni) for
        all ``questions`` of a study.

        Args:
            name: of the part.
            upper, lower: positive values, in the same order of seeds.
            least: the smallest ratio.
            miss: how often the interval misses (:func:`miss_at`).
            questions: how many such parts the study asks.
        """
        log = log_ratio(upper, lower, miss=miss)
        corrected = log_ratio(upper, lower, miss=miss / questions)
        self.add(
            name,
            holds=log.low > math.log(least),
            refuted=corrected.high < math.log(least),
            words=ratio_words(log),
            numbers={name: as_ratios(log)},
        )

    def below(
        self,
        name: str,
        ours: Values,
        rivals: Values,
        negligible: float,
        questions: int,
        reading: str = "",
        miss: float = 0.05,
    ) -> None:
        """Add the part: the paired values ``ours`` are smaller than ``rivals``.

        Yes where the interval for the mean log of ours/rivals lies below 0. No where an interval
        shows that less than the share ``negligible`` is saved; it is wider (Bonferroni), so that
        all ``questions`` of a study together err in one of 20 studies.

        Args:
            name: of the part.
            ours: positive values, the smaller the better.
            rivals: those of the other method, in the same order of seeds.
            negligible: a share of the rival's value, such as 0.005.
            questions: how many such parts the study asks.
            reading: see :meth:`add`.
            miss: how often the interval misses (:func:`miss_at`).
        """
        log = log_ratio(ours, rivals, miss=miss)
        corrected = log_ratio(ours, rivals, miss=miss / questions)
        nothing_saved = corrected.low > math.log1p(-negligible)
        self.add(
            name,
            holds=log.high < 0 and not nothing_saved,
            refuted=nothing_saved,
            words=ratio_words(log),
            numbers={name: as_ratios(log)},
            reading=reading,
        )

    def ahead_of_all(
        self, name: str, values: Mapping[str, np.ndarray], method: str, smallest: float
    ) -> Standing:
        """Add the part: one method is above every other, by paired differences over at least
        :data:`LEAST_SEEDS` seeds.

        Yes if each difference is above 0 with 95 % confidence and at least ``smallest`` on average.
        To be above *all* every comparison must say so, which errs in at most 5 % of cases without a
        correction. No if some other method is above by at least ``smallest`` on average with a
        confidence of 95 % for all comparisons together (Bonferroni).
        ``Design.decide`` in ``power.py`` repeats the rule for arrays of made-up data.

        With fewer seeds the whole verdict becomes inconclusive (:meth:`decide_nothing`).

        Args:
            name: of the part.
            values: method -> one number per seed, higher is better, the same seeds in one order.
            method: the one that is said to be ahead.
            smallest: the smallest difference that matters.

        Returns:
            How the method stands, by the intervals without a correction.
        """
        rivals, seeds = len(values) - 1, len(values[method])
        standing = against_all(values, method, miss=ONE_SIDED)
        corrected = against_all(values, method, miss=ONE_SIDED / rivals)
        clearly_better = [
            rival
            for rival, lead in corrected.leads.items()
            if lead.high < 0 and lead.mean <= -smallest
        ]
        place, best = standing.order.index(method) + 1, standing.order[0]
        leads = {rival: lead.triple for rival, lead in standing.leads.items()}
        self.add(
            name,
            holds=all(lead.low > 0 and lead.mean >= smallest for lead in standing.leads.values()),
            refuted=bool(clearly_better),
            words=f"{values[method].mean():.3f} ± {spread(values[method]):.3f}, "
            f"place {place} of {rivals + 1}; best: {best} {values[best].mean():.3f}; "
            f"{standing.words}; the rule asks for all {rivals}",
            numbers={"lead_of_" + method.lower(): leads, "clearly_above": clearly_better},
        )
        if seeds < LEAST_SEEDS:
            self.decide_nothing(f"{seeds} seeds are too few: the rule asks for {LEAST_SEEDS}")
        return standing

    def equivalent(self, name: str, gaps: Values, margin: float, unit: float = 1.0) -> Interval:
        """Add the part: the mean of paired differences lies within ± a fixed margin.

        Yes where its two-sided 90 % interval lies inside (two one-sided tests of 5 % each), no
        where it lies outside altogether. Several such parts need no correction for *yes*: all of
        them must say so.

        Args:
            name: of the part.
            gaps: the differences, one per seed.
            margin: in the unit of the gaps.
            unit: multiplies gaps and margin in the words alone (100: shares become points).

        Returns:
            The interval of the mean.
        """
        gap = mean_interval(gaps, miss=ONE_SIDED)
        self.add(
            name,
            holds=-margin < gap.low and gap.high < margin,
            refuted=gap.low > margin or gap.high < -margin,
            words=f"{gap.words(unit)} within ±{margin * unit:g}",
            numbers={name: gap.triple},
        )
        return gap

    def sooner(self, name: str, logs: Values, words: str = "") -> Interval:
        """Add the part: the mean log of a ratio of times lies above 0, so that the method in the
        denominator is sooner.

        Yes where the 90 % interval lies above 0, no where it lies below: each is a one-sided test
        of 5 %.

        Args:
            name: of the part.
            logs: log(rival's time / own time), one number per seed.
            words: stand before the ratio.

        Returns:
            The interval of the mean log.
        """
        log = mean_interval(logs, miss=ONE_SIDED)
        self.add(
            name,
            holds=log.low > 0,
            refuted=log.high < 0,
            words=f"{words}{ratio_words(log)}",
            numbers={name: as_ratios(log)},
        )
        return log

    def factor_two(self, name: str, ratios: Sequence[float], words: str, reading: str = "") -> None:
        """Add the part: a ratio lies in [1/2, 2] in every draw, up to rounding (a part in 10^9).

        Args:
            name: of the part.
            ratios: one per draw.
            words: what the ratio is of.
            reading: see :meth:`add`.
        """
        low, high = min(ratios), max(ratios)
        self.add(
            name,
            holds=low >= 0.5 * (1 - 1e-9) and high <= 2 * (1 + 1e-9),
            reading=reading,
            words=f"{words} lies in [{low:.4f}, {high:.4f}] over {len(ratios)} random draws",
            numbers={name: {"low": low, "high": high, "draws": len(ratios)}},
        )

    def reading(self, name: str) -> str:
        """The verdict on one reading of the statement, ``"as printed"`` or ``"as corrected"``.

        Parts of no particular reading count for both.
        """
        answers = [part.answer for part in self.asked if part.reading in ("", name)]
        if not self.trained:
            return "not trained"
        return verdict_of(answers) if self.usable and answers else "inconclusive"

    @property
    def verdict(self) -> str:
        """The verdict on the statement as corrected; most statements have one reading only."""
        return self.reading("as corrected")

    @property
    def measured(self) -> str:
        """All parts and notes in words."""
        return "; ".join(self.sentences)

    def build(self, model: str = "") -> Verdict:
        """The verdict as it is written; ``model`` says on what it was measured."""
        return Verdict(
            self.verdict,
            (f"{model}: " if model else "") + self.measured,
            self.numbers,
            parts={part.name: part.answer for part in self.asked},
            as_printed=self.reading("as printed"),
            as_corrected=self.reading("as corrected"),
            model=model,
            gate="; ".join(self.gates),
        )


def verdict_of(answers: Iterable[str]) -> str:
    """The verdict on a statement whose parts have these answers: no beats open, and open beats
    yes.

    Example:
        >>> verdict_of(["yes", "open"]), verdict_of(["no", "open"])
        ('inconclusive', 'does not hold')
    """
    distinct = set(answers)
    if "no" in distinct:
        return "does not hold"
    return "inconclusive" if "open" in distinct else "holds"


def miss_at(runs: Sequence[Run]) -> float:
    """How often the intervals of a rule miss at the scale of these runs.

    At scale gpu an answer is one-sided at 95 % (:data:`ONE_SIDED`). The smaller scales keep the
    two-sided 95 % that they were judged by first.
    """
    return ONE_SIDED if runs[0].header.scale == "gpu" else 0.05


def by_method(runs: Iterable[Run]) -> dict[str, list[Run]]:
    """Runs grouped by method, in order of first appearance."""
    return grouped((run.header.method, run) for run in runs)


def rows_by_method(runs: Iterable[Run]) -> dict[str, list[dict[str, Any]]]:
    """The rows of all runs of each method."""
    return {
        method: [row for run in own_runs for row in run.rows]
        for method, own_runs in by_method(runs).items()
    }


def by_seed(runs: Iterable[Run]) -> dict[str, list[Run]]:
    """Method -> its runs with the seeds that every method has, in ascending order of the seeds.

    Run i of every list has the same seed, so that the lists can be compared pairwise.
    """
    run_of = {  # method -> seed -> run
        method: {run.header.seed: run for run in own_runs}
        for method, own_runs in by_method(runs).items()
    }
    common_seeds = sorted(set.intersection(*(set(of_seed) for of_seed in run_of.values())))
    return {method: [of_seed[seed] for seed in common_seeds] for method, of_seed in run_of.items()}


def by_setting(runs: Iterable[Run], *names: str) -> dict[tuple[Any, ...], dict[int, Run]]:
    """(values of the named settings, in the order of the names) -> seed -> run."""
    groups: dict[tuple[Any, ...], dict[int, Run]] = {}
    for run in runs:
        values = tuple(run.header.settings[name] for name in names)
        groups.setdefault(values, {})[run.header.seed] = run
    return groups


def last(run: Run, name: str) -> float:
    """The last recorded value of a column, which need not stand in the last row.

    Raises:
        RuleError: no row has it.
    """
    column = run.column(name)
    if not column:
        fail("column", f"must be recorded by {run.header.study}/{run.header.method}", name)
    return float(column[-1])


def finals(runs: Iterable[Run], column: str) -> dict[str, np.ndarray]:
    """Method -> the last values of a column, in the order of the seeds that every method has."""
    return last_values(by_seed(runs), column)


def last_values(groups: Mapping[str, Sequence[Run]], column: str) -> dict[str, np.ndarray]:
    """Method -> the last value of a column in each of its runs, in their order."""
    return {
        method: np.array([last(run, column) for run in group]) for method, group in groups.items()
    }


def means(values: Mapping[str, Values]) -> dict[str, float]:
    """Method -> the mean of its values."""
    return {method: float(np.mean(of_method)) for method, of_method in values.items()}


def triples(intervals: Mapping[str, Interval]) -> dict[str, list[float]]:
    """Method -> mean, low and high of its interval, for a verdict's numbers."""
    return {method: interval.triple for method, interval in intervals.items()}


def medians(runs: Sequence[Run], columns: Iterable[str]) -> dict[str, float]:
    """Column -> the median over the runs of its last value."""
    return {column: float(np.median([last(run, column) for run in runs])) for column in columns}


def chosen_steps(group: Sequence[Run]) -> tuple[float, int]:
    """The median of the step sizes that the runs chose, and how many chose an end of their list.

    The step size is the last value of ``lr``. The list are the candidates in the rows, else those
    in the settings; its ends are the smallest and the largest of them.
    """
    steps, at_an_end = [last(run, "lr") for run in group], 0
    for run, step in zip(group, steps):
        candidates = run.column("candidate") or run.header.settings.get("candidates", [])
        at_an_end += len(candidates) > 1 and step in (min(candidates), max(candidates))
    return float(np.median(steps)), at_an_end


def step_words(group: Sequence[Run]) -> str:
    """The median step size that the runs chose, and how often it stood at an end of its list."""
    median_step, at_an_end = chosen_steps(group)
    end_words = f", {at_an_end} of {len(group)} at an end of the list" if at_an_end else ""
    return f"step {median_step:.3g}{end_words}"


def median_of_means(values: Sequence[float], blocks: int = 8) -> float:
    """The median of the means of consecutive blocks of (nearly) equal size.

    It concentrates where the plain mean does not, for values of infinite variance.

    Example:
        >>> median_of_means([1.0, 1.0, 1.0, 1.0, 1.0, 1e9], blocks=3)
        1.0
    """
    whole("blocks", blocks, least=1)
    array = np.asarray(values, dtype=float)
    if len(array) < blocks:
        fail("values", f"must hold at least {blocks} numbers, one per block", len(array))
    return float(np.median([block.mean() for block in np.array_split(array, blocks)]))


def slope(x: Values, y: Values) -> tuple[float, float]:
    """Least-squares slope of y against x, and its standard error.

    Two points leave no degree of freedom for the error; it is then computed as with one, and is 0.

    Example:
        >>> slope([0.0, 1.0, 2.0], [1.0, 3.0, 5.0])
        (2.0, 0.0)
        >>> slope([1.0, 1.0], [1.0, 3.0])
        Traceback (most recent call last):
        mindgap.base.check.RuleError: x must hold at least two different numbers, got [1.0, 1.0]
    """
    xs, ys = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    centred = xs - xs.mean()
    sum_of_squares = float(centred @ centred)
    if not sum_of_squares:
        fail("x", "must hold at least two different numbers", xs.tolist())
    fitted_slope = float(centred @ ys) / sum_of_squares
    residual = ys - ys.mean() - fitted_slope * centred
    variance = residual @ residual / max(len(xs) - 2, 1)
    return fitted_slope, float(np.sqrt(variance / sum_of_squares))


@dataclass(frozen=True)
class Interval:
    """A mean and the interval it is known to lie in.

    Example:
        >>> Interval(0.5, 0.25, 0.75).words(100)
        '+50.00 [+25.00, +75.00]'
    """

    mean: float
    low: float
    high: float

    @property
    def triple(self) -> list[float]:
        """Mean, low and high as a list, for a verdict's numbers."""
        return [self.mean, self.low, self.high]

    def words(self, unit: float = 1.0, digits: str = "+.2f") -> str:
        """Mean and interval in words, times ``unit``."""
        mean, low, high = (format(unit * value, digits) for value in self.triple)
        return f"{mean} [{low}, {high}]"


def mean_interval(values: Values, *, miss: float = 0.05) -> Interval:
    """Student's interval for the mean of independent values, missed with probability ``miss``.

    The interval of a single value is unbounded. A rule that asks several questions at once divides
    ``miss`` by their number, so that it errs that often in all.

    Example:
        >>> interval = mean_interval([1.0, 2.0, 3.0])
        >>> round(interval.mean, 3), round(interval.low, 3), round(interval.high, 3)
        (2.0, -0.484, 4.484)
    """
    array = np.asarray(values, dtype=float)
    mean, number = float(array.mean()), len(array)
    if number < 2:
        return Interval(mean, -math.inf, math.inf)
    quantile = student_quantile(1 - miss / 2, number - 1)
    half_width = float(quantile * array.std(ddof=1) / math.sqrt(number))
    return Interval(mean, mean - half_width, mean + half_width)


@cache
def student_quantile(share: float, degrees: int) -> float:
    """The value that Student's t with so many ``degrees`` of freedom stays below with probability
    ``share``.
    """
    from scipy.stats import t as student

    return float(student.ppf(share, degrees))


def spread(values: Values) -> float:
    """Standard deviation between seeds; 0 where there is one."""
    return float(np.std(values, ddof=1)) if len(values) > 1 else 0.0


@dataclass(frozen=True)
class Standing:
    """How one method stands against each of the others.

    Args:
        leads: other method -> how far the one is above it, an interval over paired seeds.
        order: all methods by their mean, the highest first.
    """

    leads: Mapping[str, Interval]
    order: Sequence[str]

    @property
    def words(self) -> str:
        """How many methods the one beats, ties with and loses to, and the names of the last.

        It beats or loses to a method where the interval of its lead excludes 0. An example is
        ``beats 9, ties with 6, loses to none of 15``.
        """
        beaten = sum(lead.low > 0 for lead in self.leads.values())
        better = [name for name, lead in self.leads.items() if lead.high < 0]
        ties = len(self.leads) - beaten - len(better)
        loses = f"{len(better)} ({', '.join(better)})" if better else "none"
        return f"beats {beaten}, ties with {ties}, loses to {loses} of {len(self.leads)}"


def against_all(values: Mapping[str, np.ndarray], method: str, *, miss: float = 0.05) -> Standing:
    """Compare one method with every other, seed by seed.

    Args:
        values: method -> one number per seed, higher is better, the same seeds in the same order.
        method: the method that is said to be ahead.
        miss: how often an interval for a mean difference misses it (:func:`mean_interval`).

    Example:
        >>> a, b, c = np.array([3.0, 4.0]), np.array([1.0, 2.1]), np.array([3.1, 3.9])
        >>> standing = against_all({"a": a, "b": b, "c": c}, "a")
        >>> standing.order, standing.words
        (['a', 'c', 'b'], 'beats 1, ties with 1, loses to none of 2')
    """
    leads = {
        name: mean_interval(values[method] - other, miss=miss)
        for name, other in values.items()
        if name != method
    }
    return Standing(leads, sorted(values, key=lambda name: -values[name].mean()))


def log_ratio(over: Values, under: Values, *, miss: float = 0.05) -> Interval:
    """The interval for the mean of log(over/under), for paired positive values.

    Values below 1e-12 count as 1e-12, so that a zero has a logarithm. ``miss`` is how often the
    interval misses the mean.
    """
    logs = np.log(np.maximum(over, 1e-12)) - np.log(np.maximum(under, 1e-12))
    return mean_interval(logs, miss=miss)


def as_ratios(log: Interval) -> dict[str, float]:
    """The interval of a logarithm, as ``ratio``, ``low`` and ``high`` of the ratio itself.

    The logarithms are cut at ±700, beyond which an exponential overflows.
    """
    ratio, low, high = (math.exp(min(max(value, -700.0), 700.0)) for value in log.triple)
    return {"ratio": ratio, "low": low, "high": high}


def ratio_words(log: Interval) -> str:
    """The interval of a log, as ratios in words."""
    return "ratio {ratio:.3g} [{low:.3g}, {high:.3g}]".format(**as_ratios(log))
