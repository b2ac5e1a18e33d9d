"""What the records say about each study: one verdict, its model, its length and its effects.

README, site, page and terminal count and name verdicts through this module alone, so that no two of
them can tell different stories. Standard library only.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from mindgap.record.forms import StudyDescription, read_form
from mindgap.record.packed import SUFFIX, unpacked
from mindgap.record.schema import NoRecordsError, Verdict, grouped
from mindgap.record.store import STUDY_FILE, VERDICT_FILE

#: From seconds on two cores to the sizes of the papers; "trained", "gpu" with trained
#: networks, stands beside it.
SCALES = ("quick", "cpu", "gpu", "paper", "trained")

#: Verdict as it is written -> the word that every surface shows.
SAID = {
    "holds": "holds",
    "does not hold": "does not hold",
    "inconclusive": "undecided",
    "not trained": "not trained",
    "error": "error",
    "": "no verdict yet",
}

#: Verdict -> how a count of several such studies is written.
COUNTED = {
    "holds": "hold",
    "does not hold": "do not hold",
    "inconclusive": "undecided",
    "not trained": "not trained",
    "error": "error",
    "": "no verdict yet",
}

#: Verdict -> a sign of one column, where there is no room for words.
SIGNS = {
    "holds": "✓",
    "does not hold": "✗",
    "inconclusive": "?",
    "not trained": "–",
    "error": "!",
    "": "…",
}

#: On what a verdict rests -> the words for several such studies.
KINDS = {
    "formula": "formulas and made-up problems",
    "network": "the papers' own networks",
    "stand-in": "named stand-in networks",
    "small stand-in": "small stand-in networks",
}

#: How long a network was trained, beside the paper.
LENGTHS = ("as long as the paper's", "shorter than the paper's", "the paper's length is not known")


@dataclass(frozen=True)
class Effect:
    """How large what a part of a rule asks for came out, with the interval that decided it."""

    part: str  # the part's name
    answer: str  # yes, no or open
    unit: str  # *ratio*, *points* (of 100) or *correlation*
    value: float
    low: float
    high: float

    @property
    def words(self) -> str:
        """Value and interval in words. The largest of the three numbers decides how many digits
        stand after the point: two below 10, one below 100, else none.

        Example:
            >>> Effect("a below b", "yes", "ratio", 0.91, 0.85, 0.98).words
            'ratio 0.91 [0.85, 0.98]'
            >>> Effect("a above b", "open", "points", 37.01, -29.48, 103.5).words
            'points +37 [−29, +104]'
        """
        numbers = (self.value, self.low, self.high)
        largest = max(map(abs, numbers))
        digits = 2 if largest < 10 else (1 if largest < 100 else 0)
        sign = "+" if self.unit == "points" else ""
        value, low, high = (format(v, f"{sign}.{digits}f") for v in numbers)
        return f"{self.unit} {value} [{low}, {high}]".replace("-", "−")


@dataclass(frozen=True)
class Outcome:
    """One study: its description and its verdict at the scale that counts, and the other scales."""

    description: StudyDescription
    verdict: Verdict
    folder: Path
    others: tuple[tuple[str, str], ...] = ()  # (scale, verdict) of the further scales, largest last

    @property
    def name(self) -> str:
        """The study's name."""
        return self.description.name

    @property
    def claim(self) -> str:
        """The number of its claim, such as "B3"."""
        return self.description.claim

    @property
    def scale(self) -> str:
        """The scale that counts, one of ``SCALES``."""
        return self.description.scale

    @property
    def paper(self) -> str:
        """The key of the paper that states the claim."""
        return self.description.source.partition(",")[0]

    @property
    def said(self) -> str:
        """The verdict in the word of every surface."""
        return SAID[self.verdict.verdict]

    @property
    def kind(self) -> str:
        """One of :data:`KINDS`."""
        return kind_of(self.description.model)

    @property
    def model(self) -> str:
        """The model in plain words; empty for a formula."""
        return plain_model(self.description.model)

    @property
    def length(self) -> str:
        """One of :data:`LENGTHS`; empty for a formula."""
        return length_of(self.verdict.length) if self.description.model else ""

    @property
    def effects(self) -> list[Effect]:
        """One effect per part of the rule that has an interval."""
        return effects_of(self.verdict)

    @property
    def effect(self) -> Effect | None:
        """The effect that decides the verdict: the first whose answer is that of the verdict (no,
        open or yes), else the first that says no, else the first; None without effects.
        """
        answers = {"does not hold": "no", "inconclusive": "open"}  # any other: yes
        deciding_answer = answers.get(self.verdict.verdict, "yes")
        return min(
            self.effects,
            key=lambda effect: (effect.answer != deciding_answer, effect.answer != "no"),
            default=None,
        )


def kind_of(model: str) -> str:
    """On what a verdict rests, from the words of a record.

    Example:
        >>> [kind_of(m) for m in ("", "toy (x)", "proxy: y", "proxies, y", "ResNet20 on CIFAR-10")]
        ['formula', 'small stand-in', 'stand-in', 'stand-in', 'network']
    """
    if not model:
        return "formula"
    if model.startswith("toy"):
        return "small stand-in"
    return "stand-in" if model.startswith(("proxy", "proxies")) else "network"


def plain_model(model: str) -> str:
    """A record's words for its model, without jargon.

    Example:
        >>> plain_model("toy (a net on digits, in place of ResNet20)")
        'small stand-in network: a net on digits, in place of ResNet20'
        >>> plain_model("proxy: ResNet20, in place of ResNet50")
        'stand-in network: ResNet20, in place of ResNet50'
    """
    if model.startswith("toy (") and model.endswith(")"):
        return f"small stand-in network: {model[len('toy (') : -1]}"
    for old, new in (("proxies", "stand-in networks"), ("proxy", "stand-in network")):
        if model.startswith(old):
            return f"{new}: {model[len(old) :].lstrip(',: ')}"
    return model


def length_of(words: str) -> str:
    """One of :data:`LENGTHS`, from a record's words: two numbers "... of ..." are compared, and any
    other words are searched for "as in the paper".

    Example:
        >>> length_of("25 of 25 epochs (SLIP)"), length_of("2.4 of 20 epochs")
        ("as long as the paper's", "shorter than the paper's")
        >>> length_of("at the start, as in the paper"), length_of("6 epochs")
        ("as long as the paper's", "the paper's length is not known")
    """
    as_long, shorter, unknown = LENGTHS
    match = re.match(r"([\d.,]+) of ([\d.,]+) ", words)
    if match:
        ours, theirs = (float(number.replace(",", "")) for number in match.groups())
        return as_long if ours >= theirs else shorter
    return as_long if "as in the paper" in words else unknown


def outcomes(runs: Path) -> list[Outcome]:
    """One outcome per study below ``runs``, in the order of the claims.

    The scale that counts is one whose rule was registered before the runs if there is one; else the
    largest scale that passed its gate. A small stand-in never counts in place of a larger network
    whose gate failed: such a study is *not trained*.
    """
    scales = []
    for folder in study_folders(runs):
        path = folder / VERDICT_FILE
        verdict = read_form(Verdict, path) if path.exists() else Verdict("", "")
        scales.append((read_form(StudyDescription, folder / STUDY_FILE), verdict, folder))
    return one_per_study(scales)


def one_per_study(
    scales_of_all: Iterable[tuple[StudyDescription, Verdict, Path]],
) -> list[Outcome]:
    """One outcome per study, in the order of the claims; :func:`outcomes` says which of its scales
    counts.

    Args:
        scales_of_all: one entry per study and scale: description, verdict and folder of records.
    """
    listed = []
    for scales in grouped((entry[0].name, entry) for entry in scales_of_all).values():
        scales.sort(key=lambda entry: worth(entry[0].scale, entry[1]))
        *others, counting = scales
        others.sort(key=lambda entry: _rank(entry[0].scale))
        other_verdicts = tuple((study.scale, verdict.verdict) for study, verdict, _ in others)
        listed.append(Outcome(*counting, other_verdicts))
    return sorted(listed, key=lambda outcome: claim_order(outcome.claim, outcome.name))


def worth(scale: str, verdict: Verdict) -> tuple[bool, bool, bool, int]:
    """Sort key of a study's scales, the last of which counts (:func:`outcomes`): whether its rule
    was registered, whether it has the paper's own networks ("gpu", "paper"), whether it has a
    verdict on a trained network, and the place in ``SCALES``.
    """
    return (
        verdict.registered.startswith("registered"),
        scale in ("gpu", "paper"),
        verdict.verdict not in ("not trained", ""),
        _rank(scale),
    )


def _rank(scale: str) -> int:
    """Number of a scale in the order of scales; -1 for one that is not known."""
    return SCALES.index(scale) if scale in SCALES else -1


def count_words(verdicts: Iterable[str]) -> str:
    """How many verdicts of each kind there are, in words.

    Example:
        >>> count_words(["holds", "inconclusive", "holds"])
        '2 hold, 1 undecided'
        >>> count_words(["holds", "does not hold"])
        '1 holds, 1 does not hold'
    """
    words = list(verdicts)
    return ", ".join(
        f"{words.count(verdict)} {SAID[verdict] if words.count(verdict) == 1 else plural}"
        for verdict, plural in COUNTED.items()
        if verdict in words
    )


@dataclass(frozen=True)
class Summary:
    """The counts of a folder of records, as every surface gives them."""

    outcomes: tuple[Outcome, ...]

    @property
    def stated(self) -> list[Outcome]:
        """The studies of what a paper states."""
        return [outcome for outcome in self.outcomes if not outcome.description.ours]

    @property
    def ours(self) -> list[Outcome]:
        """The studies of questions of ours."""
        return [outcome for outcome in self.outcomes if outcome.description.ours]

    def of(self, kind: str) -> list[Outcome]:
        """The studies of what a paper states that rest on one kind of evidence."""
        return [outcome for outcome in self.stated if outcome.kind == kind]

    @property
    def sentence(self) -> str:
        """All studies in one sentence."""
        number = len(self.outcomes)
        return (
            f"{number} {'study' if number == 1 else 'studies'}: "
            f"{count_words(o.verdict.verdict for o in self.outcomes)}"
        )

    @property
    def lines(self) -> list[str]:
        """One line per kind of evidence, and one for our own questions."""
        lines = [
            f"{len(studies)} on {words}: {count_words(o.verdict.verdict for o in studies)}"
            for kind, words in KINDS.items()
            if (studies := self.of(kind))
        ]
        if self.ours:
            counts = count_words(outcome.verdict.verdict for outcome in self.ours)
            lines.append(f"{len(self.ours)} on questions of ours, which no paper states: {counts}")
        return lines


def summary(runs: Path) -> Summary:
    """The counts of a folder of records."""
    return Summary(tuple(outcomes(runs)))


@cache
def _titles() -> dict[str, str]:
    """Study -> short title, from ``titles.txt``."""
    text = (resources.files("mindgap.record") / "titles.txt").read_text(encoding="utf-8")
    rows = (line.split(" | ") for line in text.splitlines() if not line.startswith("#"))
    return {row[0]: row[1] for row in rows}


def short_title(name: str, title: str = "") -> str:
    """A title of at most 34 letters for one line of a terminal; a study without one keeps its own.

    Example:
        >>> short_title("e5-cycle"), short_title("x1-new", "A new claim")
        ('loss settles, weights never do', 'A new claim')
    """
    return _titles().get(name, title)


def effects_of(verdict: Verdict) -> list[Effect]:
    """One effect per part of the verdict's rule for which an interval of numbers is recorded.

    A part's numbers stand under its own name, under the pair that it compares, or, for a rule about
    all rivals, as leads over each of them: then the smallest lead is the one that decides.

    Example:
        >>> numbers = {"lead_of_slip": {"BSA": [0.02, 0.01, 0.03], "SOBA": [-0.01, -0.02, 0.0]}}
        >>> found = effects_of(Verdict("inconclusive", "", numbers, {"SLIP ahead": "open"}))
        >>> found[0].part, found[0].words
        ('SLIP ahead: over SOBA', 'points −1.00 [−2.00, +0.00]')
    """
    if not verdict.parts:
        return []
    first_part, first_answer = next(iter(verdict.parts.items()))
    effects = [
        _effect(part, answer, _numbers_of(part, verdict.numbers, first=part == first_part))
        for part, answer in verdict.parts.items()
    ]
    # rival -> (lead, low, high), in points as a share of 1
    leads = next((v for k, v in verdict.numbers.items() if k.startswith("lead_of_")), None)
    if not any(effects) and isinstance(leads, Mapping) and leads:
        rival = min(leads, key=lambda name: leads[name][0])
        effects = [_effect(f"{first_part}: over {rival}", first_answer, leads[rival])]
    return [effect for effect in effects if effect is not None]


def _numbers_of(part: str, numbers: Mapping[str, Any], *, first: bool) -> Any:
    """What a verdict's numbers hold of one part of its rule, in one of the forms that ``_effect``
    reads; None where they hold nothing.

    Args:
        part: its name; "a below b" may stand as "a / b", and "a above b" as "a minus b".
        first: whether it is the first part, to which the common names ``ratio`` and ``gap`` belong.
    """
    head = part.partition(":")[0]  # the name without what follows a colon
    for name in (part, part.replace(" below ", " / "), part.replace(" above ", " minus "), head):
        if name in numbers:
            return numbers[name]
    if not first:
        return None
    triple = numbers.get("ratio")
    if isinstance(triple, Sequence) and len(triple) == 3:
        return dict(zip(("ratio", "low", "high"), triple))
    return numbers.get("gap")


#: Unit -> the names under which rules keep a number and the ends of its interval.
_INTERVALS = {
    "ratio": ("ratio", "low", "high"),
    "points": ("mean", "low", "high"),
    "correlation": ("rank", "rank_low", "rank_high"),
}


def _effect(part: str, answer: str, numbers: Any) -> Effect | None:
    """An effect from the numbers that a rule keeps of a part; None where they are no interval of
    finite numbers.

    Args:
        part: the part's name.
        answer: yes, no or open.
        numbers: a mapping with the names of one unit of ``_INTERVALS`` (or such a mapping under
            ``change``), or a list (value, low, high) in points.
    """
    if isinstance(numbers, Mapping):
        if "change" in numbers:
            return _effect(part, answer, numbers["change"])
        named: dict[str, list[Any]] = {
            unit: [numbers.get(name) for name in names] for unit, names in _INTERVALS.items()
        }
    elif isinstance(numbers, Sequence) and len(numbers) == 3:
        named = {"points": list(numbers)}
    else:
        return None
    for unit, triple in named.items():
        if all(isinstance(number, (int, float)) for number in triple):
            # Rules keep points as shares of 1, unless the part says "in points".
            factor = 100.0 if unit == "points" and "in points" not in part else 1.0
            value, low, high = (factor * float(number) for number in triple)
            if not all(map(math.isfinite, (value, low, high))) or low > high:
                return None
            return Effect(part, answer, unit, value, low, high)
    return None


#: Letter of a claim -> what the group is about, in the order in which everything is listed.
GROUPS = {
    "B": "bilevel",
    "S": "smoothness",
    "H": "heavy tails",
    "N": "kinks",
    "E": "never at rest",
    "T": "textbook",
}


def natural(text: str) -> list[tuple[int, int | str]]:
    """Sort key under which e5 comes before e10.

    Example:
        >>> sorted(["e10-b", "e5-a"], key=natural)
        ['e5-a', 'e10-b']
    """
    # The first number keeps numbers and texts apart, which cannot be compared.
    return [
        (0, int(part)) if part.isdigit() else (1, part) for part in re.split(r"(\d+)", text) if part
    ]


def claim_order(claim: str, name: str = "") -> tuple[int, list[tuple[int, int | str]]]:
    """Sort key of a claim and the name of its study: the place of the claim's letter in ``GROUPS``
    (other letters last), then numbers by size, B3 before B10.

    Example:
        >>> sorted(["H11", "T1", "H2", "B10", "B3"], key=claim_order)
        ['B3', 'B10', 'H2', 'H11', 'T1']
    """
    letters = list(GROUPS)
    group = letters.index(claim[0]) if claim[:1] in GROUPS else len(letters)
    return group, natural(f"{claim} {name}")


def study_folders(runs: Path) -> Iterator[Path]:
    """The folders ``<study>/<scale>`` below ``runs`` that hold records, in order of name; archives
    are unpacked.

    Raises:
        NoRecordsError: ``runs`` is no folder, or holds no records.
        OSError: one of its folders cannot be read.
    """
    if not runs.is_dir():
        raise NoRecordsError(f"RUNS must be a folder of records, got {str(runs)!r}")
    for study in filter(Path.is_dir, runs.iterdir()):
        for scale in filter(Path.is_dir, study.iterdir()):
            os.scandir(scale).close()  # an error where ``glob`` would pass over it in silence
    folders = [path.parent for path in runs.glob(f"*/*/{STUDY_FILE}")]
    folders += [unpacked(path) for path in runs.glob(f"*/*{SUFFIX}")]
    folders.sort(key=lambda folder: (folder.parent.name, folder.name))
    if not folders:
        raise NoRecordsError(
            f"RUNS must hold records (made by 'mindgap run'), got {str(runs)!r} with none"
        )
    yield from folders
