"""The words and the code that an examination is made of."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mindgap.advise.doctor.causes import CODE_OF_CASE, Cause
from mindgap.advise.doctor.chart import Chart, FindingName
from mindgap.advise.doctor.differential import Ranked, differential
from mindgap.advise.doctor.page import Examination, Trial
from mindgap.advise.doctor.patient import Patient

#: Log-odds below which a cause is not named.
NAMED = 0.5


def fit_cause(cause: Cause, chart: Chart) -> Cause:
    """A copy of the cause with the name, the change and the cure that fit what was found. Most
    causes stay as they are in the table.

    Vanishing through depth, for example, is cured by normalisation, through time by the recurrence.
    """
    all_equal = chart.has("targets_equal")
    if cause.key == "wrong_labels" and (all_equal or not chart.has("labels_disagree")):
        name = "all targets are equal" if all_equal else "the targets do not follow from the inputs"
        change = "check how labels and samples are matched (shuffled apart, shifted, wrong file)"
        return replace(cause, cure="", name=name, change=change)
    if cause.key == "bad_batch" and chart.has("inputs_lost"):
        return replace(
            cause,
            name="the inputs of some batches did not arrive",
            change="check how these batches are loaded and moved (zeros where data should be)",
            source="PyTorch: non_blocking transfers and pinned memory",
            proof=False,  # a fault, also where training hardly suffers
        )
    if cause.key == "labels_shifted" and chart.has("targets_are_inputs"):
        return replace(
            cause,
            name="the targets are the inputs, not shifted by one",
            change="predict the next symbol",
            code="inputs, targets = symbols[:, :-1], symbols[:, 1:]",
        )
    if cause.key == "labels_shifted" and chart.has("labels_outside"):
        return replace(
            cause, name="the labels begin at one", change="lower them", code="targets = targets - 1"
        )
    if cause.key == "exploding_gradients" and not chart.has("explodes_time"):
        change = "start from torch's default weights and clip, or normalise every layer"
        return replace(cause, cure="calm_depth", change=change)
    if cause.key == "vanishing_gradients" and not chart.has("vanishes_time"):
        return replace(cause, cure="normalise")
    return cause


def name_of(cause: Cause, chart: Chart) -> str:
    """The cause's name, which says whether gradients explode or vanish through time or depth."""
    through_time = chart.has_any("explodes_time", "vanishes_time")
    return cause.name.replace("{through}", "time" if through_time else "depth")


def evidence(cause: Cause, chart: Chart, curve: Sequence[FindingName]) -> list[str]:
    """At most three different sentences: the two strongest signs of the cause, what the curve
    shows, further signs.

    Args:
        curve: names of the findings that describe the curve.
    """
    signs = sorted(
        (finding for finding in chart.findings.values() if cause.signs.get(finding.name, 0) > 0),
        key=lambda finding: -cause.signs[finding.name] * finding.strength,
    )
    of_curve = [chart.findings[name] for name in curve if chart.has(name)]
    sentences = [finding.sentence for finding in [*signs[:2], *of_curve, *signs[2:]]]
    return list(dict.fromkeys(sentences))[:3]


@dataclass(frozen=True)
class Answering:
    """What every answer of one examination shares."""

    chart: Chart
    begun_at: float  # moment (``time.perf_counter``) at which the examination began

    def rank_all(
        self, named: str, ranked: Ranked, refuted: Collection[str], patient: Patient
    ) -> Ranked:
        """All causes that remain possible, as ``differential`` lists them; where it raises,
        ``ranked`` itself, and a note.

        Args:
            named: key of the cause that is named, or empty.
            ranked: (key, log-odds) of the causes from clear findings.
            refuted: keys of the causes whose cure did not help.
        """
        listed = self.chart.attempt(
            "the other causes",
            lambda: differential(named, ranked, refuted, self.chart, patient),
        )
        return ranked if listed is None else listed

    def cannot_tell(self, reason: str, ranked: Ranked, curve: Sequence[float]) -> Examination:
        """The examination that names no cause for a reason, with the three strongest findings.

        Args:
            ranked: causes with their log-odds, likeliest first.
            curve: training losses.
        """
        strongest = sorted(self.chart.findings.values(), key=lambda finding: -finding.strength)
        findings = [finding.sentence for finding in strongest[:3]]
        sentence = f"Cannot tell, because {reason}."
        return self.examination("cannot tell", sentence, ranked, findings, curve)

    def examination(
        self,
        verdict: str,
        sentence: str,
        ranked: Ranked,
        findings: Sequence[str],
        curve: Sequence[float],
        code: str = "",
        trial: Trial | None = None,
    ) -> Examination:
        """The examination with the chart's notes and facts, and the strength of every finding.

        Args:
            verdict: ``"sick"``, ``"healthy"`` or ``"cannot tell"``.
            ranked: causes with their log-odds, likeliest first; five are kept.
            findings: sentences.
            curve: training losses.
            code: what to paste.
        """
        chart = self.chart
        facts = chart.facts.for_answer()
        facts["findings"] = {f.name: round(f.strength, 3) for f in chart.findings.values()}
        return Examination(
            verdict=verdict,
            sentence=sentence,
            causes=tuple((key, round(_probability(log_odds), 3)) for key, log_odds in ranked[:5]),
            findings=tuple(findings),
            code=code,
            trial=trial,
            curve=tuple(curve),
            notes=tuple(chart.notes),
            seconds=round(time.perf_counter() - self.begun_at, 2),
            facts=facts,
        )


def _probability(log_odds: float) -> float:
    """The probability of these odds."""
    return 1 / (1 + math.exp(-min(log_odds, 50.0)))


def certainty_words(log_odds: float) -> str:
    """How sure the doctor is, as the first words of a sentence.

    Example:
        >>> certainty_words(3.0)
        'Likely:'
    """
    if log_odds > 4:
        return "Almost certain:"
    return "Likely:" if log_odds > 2 else "Possible:"


def loss_words(value: float) -> str:
    """A loss with three digits, or "not finite"."""
    return f"{value:.3g}" if math.isfinite(value) else "not finite"


def clipping_limit(variant: float, median: float) -> float:
    """The threshold of a cure that clips: its variant, or the median gradient norm below 0.

    Example:
        >>> clipping_limit(5.0, 2.0), clipping_limit(-1.0, 2.0), clipping_limit(-1.0, math.inf)
        (5.0, 2.0, 1.0)
    """
    if variant > 0:
        return variant
    return median if median > 0 and math.isfinite(median) else 1.0


def code_of(cause: Cause, chart: Chart, trial: Trial | None) -> str:
    """The code to paste for a cause. Its places, such as ``{lr:g}``, are filled with the numbers of
    this run; braces around any other name stay as they are.

    Args:
        trial: whose variant the code names; None: that of the cure's first guess.
    """
    facts = chart.facts
    places: Any = [(facts.batch_numbers[batch], sample) for batch, sample in facts.bad_samples]
    if cause.key == "bad_batch":
        places = [facts.batch_numbers[batch] for batch in facts.bad_batches]
    first_factor = 10.0 if cause.cure == "faster" else 0.1  # of the learning rate
    values = {  # name of a place -> what fills it
        "variant": trial.variant if trial else first_factor,
        "limit": clipping_limit(trial.variant if trial else -1.0, facts.unclipped_norm),
        "beta": facts.huber_bound,
        "outputs": facts.output[-1] if len(facts.output) > 1 else 1,
        "steps": max(10, int(0.25 * facts.steps)),  # of a warm-up
        "shift": facts.shift or 1,
        "where": places,
        "added": facts.added_batches,
        "norm": facts.unclipped_norm or 1.0,
        "best": facts.best_step,
        "low": facts.lowest_valid,
        "high": facts.last_valid,
        "lr": facts.lr,
        "momentum": facts.momentum,
        "ordinary": "(0.9, 0.999)" if facts.momentum == "betas" else "0.9",
    }
    case = ""  # of a cause with several codes
    if trial and trial.variant > 1:
        case = "huber"
    elif facts.trace and "sigmoid" in facts.trace.twice:
        case = "binary"
    code = CODE_OF_CASE.get((cause.key, case), cause.code)
    # A name in braces, perhaps with a format such as ``:.3g``.
    place = re.compile(r"\{(" + "|".join(values) + r")(?::([.0-9]*g))?\}")
    return place.sub(lambda found: format(values[found[1]], found[2] or ""), code)
