"""What the template of the page asks for: sections, signs of the legend, tables."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from mindgap.base.source import PAPERS
from mindgap.lab.report.drawing import ENOUGH_SEEDS, SHAPES, Drawing
from mindgap.lab.report.figure import STATISTIC_WORDS
from mindgap.lab.report.load import Loaded
from mindgap.lab.report.words import finding, number, plain
from mindgap.record.outcomes import SAID, SIGNS, kind_of, length_of, plain_model, worth
from mindgap.record.schema import Run, Verdict, grouped, to_json


class Section:
    """One study as the page shows it, by the names that ``page.html`` uses; a field that an older
    record lacks is empty. Every other attribute is that of the :class:`Loaded` study.

    The verdict: ``word`` as recorded, ``said`` in words for readers, with its ``sign``; ``finding``
    is the sentence that it makes of the claim, ``decisive`` the sentences on which it rests.
    ``parts`` and ``notes`` are the evidence, ``trust`` says how far to trust it; ``printed`` and
    ``corrected`` are the verdicts on the two readings. What was judged: ``about``, ``claim``,
    ``where``, the ``model`` and its ``kind``, the ``length`` of its training, ``source``.
    """

    def __init__(self, study: Loaded, anchor: str, drawings: Sequence[Drawing]) -> None:
        self.study, self.anchor, self.drawings = study, anchor, drawings
        self.about, self.verdict = study.description, study.verdict
        self.word = study.verdict.verdict  # such as "holds"
        self.where = f"{study.name}, {study.scale}"
        self.claim = self.about.claim
        model = study.verdict.model or self.about.model
        self.model, self.kind = plain_model(model), kind_of(model)
        self.length = length_of(study.verdict.length) if model else ""
        self.said, self.sign = SAID[self.word], SIGNS[self.word]
        self.finding = finding(study.name, self.about.title, self.word)
        self.measured = study.verdict.measured.removeprefix(f"{model}: ")
        self.parts, self.notes = evidence(study.verdict.parts, self.measured)
        # The sentences on which the verdict rests.
        self.decisive = decisive(self.word, self.parts, self.notes)
        if self.word == "not trained":
            self.decisive = [study.verdict.gate]
        self.trust = trust(study.verdict)
        # A source is "paper, place in it"; ``paper`` is the short name.
        self.paper, _, place = self.about.source.partition(", ")
        paper_title = PAPERS.get(self.paper, self.paper)
        self.source = f"{paper_title}, {place}" if place else paper_title
        self.others: list[Section] = []  # the same study at its other scales
        self.calls = _calls(study)
        # The verdicts on the two readings of the statement, in words.
        as_printed, as_corrected = study.verdict.as_printed, study.verdict.as_corrected
        self.printed = SAID[as_printed] if as_printed != as_corrected else ""
        self.corrected = SAID.get(as_corrected, "")

    def __getattr__(self, name: str) -> Any:
        """Every attribute that is not set above, of the study."""
        return getattr(self.study, name)


def trust(verdict: Verdict) -> list[tuple[str, str]]:
    """(title, words) of what tells how far a verdict on a network can be trusted: length of the
    training, gate, power and registration, where a record has them.

    Example:
        >>> trust(Verdict("holds", "", length="25 of 25 epochs", gate="91 %: passed (92 %)"))
        [('Length', '25 of 25 epochs'), ('Gate', '91 %: passed (92 %)')]
    """
    lines = {
        "Length": verdict.length,
        "Gate": verdict.gate,
        "Power of the rule": str(verdict.power.get("words", "")).replace("*", ""),
        "Registered": verdict.registered,
    }
    return [(name, words) for name, words in lines.items() if words]


def sections(
    studies: Sequence[Loaded], anchors: Sequence[str], drawings: Sequence[Sequence[Drawing]]
) -> list[Section]:
    """One section per study, at the scale that counts most. Its ``others`` are set to the sections
    of the other scales, the one that counts more first.

    Args:
        studies: each at one scale.
        anchors, drawings: id and figures of each of them, in their order.
    """
    by_name = grouped(
        (study.name, Section(study, anchor, study_drawings))
        for study, anchor, study_drawings in zip(studies, anchors, drawings)
    )
    main_sections = []
    for at_scales in by_name.values():
        at_scales.sort(key=lambda section: worth(section.scale, section.verdict))
        *others, main = at_scales  # ``worth`` ascends: the last counts most
        main.others = others[::-1]
        main_sections.append(main)
    return main_sections


@dataclass(frozen=True)
class Answered:
    """One part of a pass rule as a verdict's text has it."""

    name: str
    answer: str  # ``"yes"``, ``"no"`` or ``"open"``
    words: str  # the numbers behind the answer; may be empty

    @property
    def said(self) -> str:
        """The answer as the page words it: yes, no or undecided."""
        return "undecided" if self.answer == "open" else self.answer

    @property
    def sentence(self) -> str:
        """Name, answer and numbers."""
        return f"{self.name}: {self.said}" + (f" ({self.words})" if self.words else "")


def evidence(parts: Mapping[str, str], measured: str) -> tuple[list[Answered], list[str]]:
    """Take the text of a verdict apart: its parts in the order in which they stand there, with
    their numbers, and the other sentences.

    Args:
        parts: name -> answer.
        measured: the text, in which every part stands as ``name: answer (numbers)``, some behind
            one of :data:`_READINGS`, and sentences are divided by semicolons.

    Returns:
        The parts and the other sentences.

    Example:
        >>> parts, notes = evidence(
        ...     {"a": "yes", "b": "no"}, "b: no (x (1); y); a: yes; more (1; 2); further"
        ... )
        >>> [part.sentence for part in parts], notes
        (['b: no (x (1); y)', 'a: yes'], ['more (1; 2)', 'further'])
    """
    located: list[tuple[int, Answered]] = []  # place in the text, part
    text = measured
    # The longest names first, because a short name may end a longer one.
    for name, answer in sorted(parts.items(), key=lambda part: -len(part[0])):
        sentence, numbers = f"{name}: {answer}", ""
        start = text.find(sentence)  # -1 where it does not stand there: such parts come first
        if start >= 0:
            end = start + len(sentence)
            if text.startswith(" (", end):
                numbers, end = _bracketed(text, end + 1)
            reading = next((words for words in _READINGS if text[:start].endswith(words)), "")
            name, start = reading + name, start - len(reading)
            # Blanked and not cut, so that the starts of all parts stay comparable.
            text = text[:start] + "\n" * (end - start) + text[end:]
        located.append((start, Answered(name, answer, numbers)))
    located.sort(key=lambda item: item[0])
    notes = re.split(r"; (?![^()]*\))", text.replace("\n", ""))  # at semicolons outside brackets
    return [part for _, part in located], [note for note in notes if note.strip(" ;")]


#: What may stand before the name of a part in a verdict's text.
_READINGS = ("as printed, ", "as corrected, ", "variant, ")


def _bracketed(text: str, start: int) -> tuple[str, int]:
    """The text inside the brackets that open at ``start``, and the place behind them; an unclosed
    bracket reaches to the end.

    Example:
        >>> _bracketed("a (b (c)) d", 2)
        ('b (c)', 9)
    """
    depth = 0  # how many brackets are open
    for place in range(start, len(text)):
        depth += {"(": 1, ")": -1}.get(text[place], 0)
        if depth == 0:
            return text[start + 1 : place], place + 1
    return text[start + 1 :], len(text)


#: So many sentences of the evidence stand in the table of verdicts; all of them stand in the
#: study's section.
MOST = 3


def decisive(word: str, parts: Sequence[Answered], notes: Sequence[str]) -> list[str]:
    """The sentences on which a verdict rests: the parts that decide it or, where nothing could be
    decided, the notes as well. The first :data:`MOST` stand there; if there are two or more others,
    only their number is given.

    Args:
        word: the verdict.

    Example:
        >>> decisive("does not hold", [Answered("a", "yes", ""), Answered("b", "no", "2 of 9")], [])
        ['b: no (2 of 9)']
    """
    deciding_answer = {"does not hold": "no", "inconclusive": "open"}.get(word, "yes")
    sentences = [part.sentence for part in parts if part.answer == deciding_answer]
    if word == "inconclusive" and (not sentences or any(part.answer == "no" for part in parts)):
        # A control failed or a run did not settle: the notes say which.
        sentences = [*notes, *sentences]
    others = len(sentences) - MOST
    return sentences if others < 2 else [*sentences[:MOST], f"and {others} more"]


def _calls(study: Loaded) -> str:
    """The most oracle calls of a run of each method, in words such as "SLIP, SOBA 2,500; BSA 800":
    methods with the same number together, the largest number first. Empty where no calls were
    recorded.
    """
    most_calls: dict[str, float] = {}
    for run in study.runs:
        method, column = run.header.method, run.column("oracle_calls")
        if column:
            most_calls[method] = max(most_calls.get(method, 0.0), float(column[-1]))
    methods_with = grouped((calls, method) for method, calls in most_calls.items())
    entries = []
    for calls, methods in sorted(methods_with.items(), reverse=True):
        names = ", ".join(methods) if len(methods) < 4 else f"{len(methods)} methods"
        entries.append(f"{names} {number(calls)}")
    return "; ".join(entries)


#: Shape of a point -> its picture as SVG, in a box of 24 x 14.
_PATHS = {
    "circle": '<circle cx="12" cy="7" r="5"/>',
    "square": '<rect x="7.5" y="2.5" width="9" height="9"/>',
    "triangle-up": '<path d="M12 1.5 18 12H6Z"/>',
    "diamond": '<path d="M12 0.5 17.5 7 12 13.5 6.5 7Z"/>',
    "cross": '<path d="M10 2h4v3h3v4h-3v3h-4V9H7V5h3Z"/>',
    "triangle-down": '<path d="M12 12.5 18 2H6Z"/>',
    "triangle-right": '<path d="M17.5 7 7 13V1Z"/>',
    "triangle-left": '<path d="M6.5 7 17 13V1Z"/>',
}


def legend(drawing: Drawing) -> list[dict[str, Any]]:
    """One entry per method that is drawn: its ``place`` among the methods, its name as ``method``,
    and as ``drawn`` the SVG of its sign, with the colour and shape or dash of its points or lines.
    """
    drawn_methods = {series.method for axis in drawing.axes for series in axis.series}
    entries = []
    for place, method in enumerate(drawing.methods):
        if method not in drawn_methods:
            continue
        colour_number = drawing.colours[place]
        colour = "var(--grey)" if colour_number is None else f"var(--s{colour_number})"
        if drawing.kind == "points":
            sign = f'<g fill="{colour}">{_PATHS[SHAPES[place % len(SHAPES)]]}</g>'
        else:
            dash = " ".join(str(length) for length in drawing.dashes[place])
            sign = (
                f'<path d="M0 7H24" stroke="{colour}" stroke-width="3" stroke-dasharray="{dash}" '
                'fill="none"/>'
            )
        entries.append({"place": place, "method": method, "drawn": Markup(sign)})
    return entries


def statistic_choices(drawing: Drawing) -> list[tuple[str, str]]:
    """(value, words) of the choices of what is drawn over the seeds; with a band only where the
    seeds are enough for one.
    """
    if drawing.seeds < ENOUGH_SEEDS:
        return [("every", "every run"), ("value", "mean")]
    return list(STATISTIC_WORDS.items())


def log_axes(drawing: Drawing) -> list[str]:
    """The axes that can be made logarithmic: y always, x unless its places have names."""
    return ["y"] if drawing.names else ["x", "y"]


def axis_choices(drawing: Drawing) -> list[tuple[int, str]]:
    """Number and label of every x-axis on offer."""
    return [(number, axis.label) for number, axis in enumerate(drawing.axes)]


def failed_table(study: Loaded) -> list[tuple[str, ...]]:
    """The table of failed runs: method, seed, number of rows, message of the error."""
    return [
        (
            run.header.method,
            str(run.header.seed),
            str(len(run.rows)),
            run.end.message if run.end else "",
        )
        for run in study.failed
    ]


def tuned_table(study: Loaded) -> list[tuple[str, ...]]:
    """The table of what ``mindgap tune`` chose: method, number of trials, chosen settings and which
    of them stand at an end of the grid, value of the metric, seconds.
    """
    rows: list[tuple[str, ...]] = []
    for method, search in study.tuning.methods.items():
        settings = ", ".join(f"{name} = {value:.3g}" for name, value in search.chosen.items())
        at_an_end = f" (an end for {', '.join(search.ends)})" if search.ends else ""
        trials = len(search.trials) + len(search.confirmed)
        value, seconds = number(search.value), number(search.seconds)
        rows.append((method, str(trials), settings + at_an_end, value, seconds))
    return rows


def tried_table(study: Loaded) -> list[tuple[str, ...]]:
    """The table of the points that ``mindgap tune`` tried: method, settings in the order of the
    search space (empty where a method lacks one), value of the metric. Points that were tried
    again at full length come last.
    """
    names = list(study.tuning.space)
    return [
        (
            f"{method}{again}",
            *(f"{trial.settings[name]:.3g}" if name in trial.settings else "" for name in names),
            number(trial.value),
        )
        for method, search in study.tuning.methods.items()
        for again, trials in (("", search.trials), (", at full length", search.confirmed))
        for trial in trials
    ]


def run_facts(study: Loaded) -> dict[str, Any]:
    """Settings, versions and runs of a study that has runs, by the names that the template uses.

    Returns:
        ``same``: (name, value) of the settings that all methods share; ``differ``: a table of the
        others with its heading, empty where there are none; ``versions``, ``machine`` and
        ``commands`` that occur; ``runs``: method, seed, outcome, rows, seconds, start and key of
        each.
    """
    by_method: dict[str, dict[str, Any]] = {}  # method -> settings of its first run
    for run in study.runs:
        by_method.setdefault(run.header.method, run.header.settings)
    names = sorted({name for settings in by_method.values() for name in settings})
    # As JSON, because a setting may be a list, which a set cannot hold.
    values_of = {  # setting -> its distinct values over the methods
        name: {to_json(settings.get(name)) for settings in by_method.values()} for name in names
    }
    common = [name for name in names if len(values_of[name]) == 1]
    differing = [name for name in names if len(values_of[name]) > 1]
    table: list[tuple[str, ...]] = []
    if differing:
        table.append(("Method", *differing))
        for method, settings in by_method.items():
            table.append(
                (
                    method,
                    *(plain(settings[name]) if name in settings else "–" for name in differing),
                )
            )
    any_settings = next(iter(by_method.values()))
    return {
        "same": [(name, plain(any_settings.get(name))) for name in common],
        "differ": table,
        "versions": _distinct(study.runs, "versions"),
        "machine": _distinct(study.runs, "machine"),
        "commands": sorted({run.header.command for run in study.runs if run.header.command}),
        "runs": [
            (
                run.header.method,
                str(run.header.seed),
                run.end.outcome if run.end else "not finished",
                str(len(run.rows)),
                number(run.end.seconds) if run.end else "–",
                run.header.started,
                run.header.key,
            )
            for run in study.runs
        ],
    }


def _distinct(runs: Sequence[Run], field: str) -> list[str]:
    """The distinct values of a field of the runs' headers, each a mapping, in words: "name value",
    divided by commas.
    """
    texts = {
        ", ".join(f"{name} {plain(value)}" for name, value in getattr(run.header, field).items())
        for run in runs
    }
    return sorted(texts - {""})


#: What the template calls.
HELPERS = {
    function.__name__: function
    for function in (
        legend,
        statistic_choices,
        log_axes,
        axis_choices,
        failed_table,
        tuned_table,
        tried_table,
        run_facts,
    )
}
