"""What the template of the page asks for: sections, signs of the legend, tables."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from markupsafe import Markup

from mindgap.base.source import PAPERS
from mindgap.lab.report.drawing import ENOUGH_SEEDS, SHAPES, Drawing
from mindgap.lab.report.load import Loaded
from mindgap.lab.report.words import number, plain
from mindgap.record.outcomes import SAID, kind_of, length_of, plain_model, worth
from mindgap.record.schema import Run, Verdict, to_json


class Section:
    """One study as the page shows it; a field that an older record has not is empty."""

    finding = sign = ""

    def __init__(self, study: Loaded, anchor: str, drawings: Sequence[Drawing]) -> None:
        self.study, self.anchor, self.drawings = study, anchor, drawings
        self.about, self.verdict = study.description, study.verdict
        self.word = study.verdict.verdict
        self.where = f"{study.name}, {study.scale}"
        self.claim = self.about.claim
        model = study.verdict.model or self.about.model
        self.model, self.kind = plain_model(model), kind_of(model)
        self.length = length_of(study.verdict.length) if model else ""
        self.said = SAID[self.word]
        self.measured = study.verdict.measured.removeprefix(f"{model}: ")
        self.parts, self.notes = evidence(study.verdict.parts, self.measured)
        self.decisive = decisive(self.word, self.parts, self.notes)
        if self.word == "not trained":
            self.decisive = [study.verdict.gate]
        self.trust = trust(study.verdict)
        self.paper, _, place = self.about.source.partition(", ")
        named = PAPERS.get(self.paper, self.paper)
        self.source = f"{named}, {place}" if place else named
        self.others: list[Section] = []  # the same study at its other scales
        self.calls = _calls(study)
        given = study.verdict
        self.printed = SAID[given.as_printed] if given.as_printed != given.as_corrected else ""
        self.corrected = SAID.get(given.as_corrected, "")

    def __getattr__(self, name: str) -> Any:
        return getattr(self.study, name)


def trust(verdict: Verdict) -> list[tuple[str, str]]:
    """What says how far a verdict on a network can be trusted: its length, gate, power and
    registration, where a record has them.

    Example:
        >>> trust(Verdict("holds", "", length="25 of 25 epochs", gate="91 %: passed (92 %)"))
        [('Length', '25 of 25 epochs'), ('Gate', '91 %: passed (92 %)')]
    """
    power = str(verdict.power.get("words", "")) if verdict.power else ""
    named = {
        "Length": verdict.length,
        "Gate": verdict.gate,
        "Power of the rule": power.replace("*", ""),
        "Registered": verdict.registered,
    }
    return [(name, words) for name, words in named.items() if words]


def sections(
    studies: Sequence[Loaded], anchors: Sequence[str], drawings: Sequence[Sequence[Drawing]]
) -> list[Section]:
    """Every study with its figures, at the scale that counts; its other scales stand below it."""
    by_name: dict[str, list[Section]] = {}
    for parts in zip(studies, anchors, drawings):
        by_name.setdefault(parts[0].name, []).append(Section(*parts))
    shown = []
    for scales in by_name.values():
        *others, best = sorted(scales, key=lambda s: worth(s.scale, s.verdict))
        best.others = others[::-1]
        shown.append(best)
    return shown


@dataclass(frozen=True)
class Answered:
    """One part of a pass rule: its name, its answer and the numbers behind it."""

    name: str
    answer: str
    words: str

    @property
    def said(self) -> str:
        """The answer in the word of every surface."""
        return "undecided" if self.answer == "open" else self.answer

    @property
    def sentence(self) -> str:
        return f"{self.name}: {self.said}" + (f" ({self.words})" if self.words else "")


def evidence(parts: Mapping[str, str], measured: str) -> tuple[list[Answered], list[str]]:
    """The parts of a verdict in the order in which they were asked, with their numbers, and the
    other sentences.

    A verdict keeps its parts and one text in which every part stands as ``name: answer (numbers)``.

    Example:
        >>> parts, notes = evidence(
        ...     {"a": "yes", "b": "no"}, "b: no (x (1); y); a: yes; more (1; 2); further"
        ... )
        >>> [part.sentence for part in parts], notes
        (['b: no (x (1); y)', 'a: yes'], ['more (1; 2)', 'further'])
    """
    found, rest = [], measured
    # A short name may end a longer one.
    for name, answer in sorted(parts.items(), key=lambda part: -len(part[0])):
        said, words = f"{name}: {answer}", ""
        if (place := rest.find(said)) >= 0:
            end = place + len(said)
            if rest.startswith(" (", end):
                depths = accumulate((c == "(") - (c == ")") for c in rest[end + 1 :])
                length = next(
                    (i for i, depth in enumerate(depths) if not depth), len(rest) - end - 2
                )
                words, end = rest[end + 2 : end + 1 + length], end + 2 + length
            reading = next(
                (
                    r
                    for r in ("as printed, ", "as corrected, ", "variant, ")
                    if rest[:place].endswith(r)
                ),
                "",
            )
            name, place = reading + name, place - len(reading)
            # As long as before: places stay comparable.
            rest = rest[:place] + "\n" * (end - place) + rest[end:]
        found.append((place, Answered(name, answer, words)))
    found.sort(key=lambda part: part[0])
    notes = re.split(r"; (?![^()]*\))", rest.replace("\n", ""))  # not inside brackets
    return [part for _, part in found], [note for note in notes if note.strip(" ;")]


#: So many sentences of the evidence stand in the table of verdicts; all of them stand in the
#: study's section.
MOST = 3


def decisive(word: str, parts: Sequence[Answered], notes: Sequence[str]) -> list[str]:
    """The sentences on which a verdict rests: the parts that decide it, or why nothing could be
    decided.

    Example:
        >>> decisive("does not hold", [Answered("a", "yes", ""), Answered("b", "no", "2 of 9")], [])
        ['b: no (2 of 9)']
    """
    wanted = {"does not hold": "no", "inconclusive": "open"}.get(word, "yes")
    said = [part.sentence for part in parts if part.answer == wanted]
    if word == "inconclusive" and (not said or any(part.answer == "no" for part in parts)):
        said = [*notes, *said]  # a control failed or a run did not settle: the notes say which
    more = len(said) - MOST
    return said if more < 2 else [*said[:MOST], f"and {more} more"]


def _calls(study: Loaded) -> str:
    """How many oracle calls a run of each method used: methods with the same number together,
    largest first.
    """
    used: dict[str, float] = {}
    for run in study.runs:
        if column := run.column("oracle_calls"):
            used[run.header.method] = max(used.get(run.header.method, 0.0), float(column[-1]))
    by_number: dict[float, list[str]] = {}
    for method, calls in used.items():
        by_number.setdefault(calls, []).append(method)
    said = [
        f"{', '.join(methods) if len(methods) < 4 else f'{len(methods)} methods'} {number(calls)}"
        for calls, methods in sorted(by_number.items(), reverse=True)
    ]
    return "; ".join(said)


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
    """One entry per method that is drawn: its place, its name and its sign as SVG."""
    present = {s.method for axis in drawing.axes for s in axis.series}
    entries = []
    for place, method in enumerate(drawing.methods):
        colour = drawing.colours[place]
        name = "var(--grey)" if colour is None else f"var(--s{colour})"
        dash = " ".join(str(d) for d in drawing.dashes[place])
        line = (
            f'<path d="M0 7H24" stroke="{name}" stroke-width="3" stroke-dasharray="{dash}" '
            'fill="none"/>'
        )
        point = f'<g fill="{name}">{_PATHS[SHAPES[place % len(SHAPES)]]}</g>'
        if method in present:
            entries.append(
                {
                    "place": place,
                    "method": method,
                    "drawn": Markup(point if drawing.kind == "points" else line),
                }
            )
    return entries


def statistics(drawing: Drawing) -> list[tuple[str, str]]:
    """What may be drawn over the seeds; a band only where the seeds are enough for one."""
    if drawing.seeds < ENOUGH_SEEDS:
        return [("every", "every run"), ("value", "mean")]
    return [("mean", "mean ± sd"), ("quantiles", "median, 10–90 %"), ("every", "every run")]


def logs(drawing: Drawing) -> list[str]:
    """The axes that can be made logarithmic; named places cannot."""
    return [axis for axis in "xy" if axis == "y" or not drawing.names]


def axes(drawing: Drawing) -> list[tuple[int, str]]:
    return [(place, axis.label) for place, axis in enumerate(drawing.axes)]


def failed(study: Loaded) -> list[tuple[str, ...]]:
    return [
        (r.header.method, str(r.header.seed), str(len(r.rows)), r.end.message if r.end else "")
        for r in study.failed
    ]


def tuned(study: Loaded) -> list[tuple[str, ...]]:
    """What ``mindgap tune`` chose for each method, from how many trials and at what cost."""

    def words(settings: Mapping[str, Any]) -> str:
        return ", ".join(f"{name} = {value:.3g}" for name, value in settings.items())

    return [
        (
            method,
            str(len(made.trials)),
            words(made.chosen) + (f" (an end for {', '.join(made.ends)})" if made.ends else ""),
            number(made.value),
            number(made.seconds),
        )
        for method, made in study.tuning.methods.items()
    ]


def tried(study: Loaded) -> list[tuple[str, ...]]:
    """Every point that ``mindgap tune`` tried: method, its settings, its value."""
    names = list(study.tuning.space)
    return [
        (
            method,
            *(f"{t.settings[name]:.3g}" if name in t.settings else "" for name in names),
            number(t.value),
        )
        for method, made in study.tuning.methods.items()
        for t in made.trials
    ]


def facts(study: Loaded) -> dict[str, Any]:
    """The settings, versions, machine and exact command behind the figures."""
    by_method: dict[str, dict[str, Any]] = {}
    for run in study.runs:
        by_method.setdefault(run.header.method, run.header.settings)
    names = sorted({name for settings in by_method.values() for name in settings})
    same = [n for n in names if len({to_json(s.get(n)) for s in by_method.values()}) == 1]
    differ = [n for n in names if n not in same]
    first = next(iter(by_method.values()))
    return {
        "same": [(n, plain(first.get(n))) for n in same],
        "differ": [("Method", *differ)]
        + [(m, *(plain(s[n]) if n in s else "–" for n in differ)) for m, s in by_method.items()]
        if differ
        else [],
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
    return sorted(
        {
            ", ".join(f"{k} {plain(v)}" for k, v in getattr(run.header, field).items())
            for run in runs
        }
        - {""}
    )


#: What the template calls.
HELPERS = {f.__name__: f for f in (legend, statistics, logs, axes, failed, tuned, tried, facts)}
