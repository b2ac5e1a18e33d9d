"""The written forms beside the runs: what a study is, and what a search of its settings found.

Whoever writes such a file and whoever reads it use the same dataclass. A file carries a checksum of
its content under ``sum``; files from before the checksum are read without it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar
from zlib import crc32

from mindgap.record.schema import RecordError, Verdict, check_fields, to_json
from mindgap.record.store import REGISTERED_FILE, read_json, write_atomically

KINDS = ("lines", "points", "path")


@dataclass(frozen=True)
class Figure:
    """One figure of a study, drawn from the rows alone."""

    title: str  # what the reader sees; say what is compared
    y: str  # column drawn upwards, with ``y_label`` as its text
    y_label: str
    #: column drawn to the right; any column of ``axes`` that the rows have is offered as a switch.
    #: ``"method"`` puts each method at a place of its own.
    x: str = "step"
    x_label: str = ""
    #: names of the places 0, 1, ... of that column, if it counts things (a newline breaks a name).
    x_names: tuple[str, ...] = ()
    #: ``"lines"`` (a band over the seeds), ``"points"`` (a scatter), ``"path"`` (a line in row
    #: order).
    kind: str = "lines"
    #: logarithmic axes, as the paper has them.
    log_x: bool = False
    log_y: bool = False
    #: column or setting by which the figure is split into panels (``""``: one panel)
    facet: str = ""
    #: label -> value, drawn as horizontal rules (a bound, an optimum).
    hlines: Mapping[str, float] = field(default_factory=dict)
    caption: str = ""  # one or two sentences: what to look at
    scales: tuple[str, ...] = ()  # where the rows have these columns; empty: at every scale

    def __post_init__(self) -> None:
        """Refuse an unknown kind, and turn lists into tuples."""
        if self.kind not in KINDS:
            raise ValueError(f"kind must be one of {', '.join(KINDS)}, got {self.kind!r}")
        # What was read from JSON has lists where these fields are tuples.
        object.__setattr__(self, "x_names", tuple(self.x_names))
        object.__setattr__(self, "scales", tuple(self.scales))


@dataclass(frozen=True)
class StudyDescription:
    """What a page needs to draw a study again from its records alone (``study.json``)."""

    name: str
    scale: str  # one of ``outcomes.SCALES``
    claim: str = ""  # its number in ``docs/claims.md``, such as "B3"
    title: str = ""
    statement: str = ""  # what the paper states, in words
    source: str = ""  # key of the paper, a comma, and the place in it
    rule: str = ""  # when the study holds, in words
    history: tuple[str, ...] = ()  # what was decided when, and what was changed after a run
    differs: str = ""  # how the study differs from the paper
    model: str = ""  # on what it was measured; empty for a formula
    paper_model: str = ""  # on what the paper measured it
    methods: tuple[str, ...] = ()
    figures: tuple[Figure, ...] = ()
    #: column that may serve as an x-axis -> its label.
    axes: Mapping[str, str] = field(default_factory=dict)
    files: tuple[str, ...] = ()  # names of the records of the last plan
    ours: bool = False  # the question is ours: no paper states it

    @property
    def heading(self) -> str:
        """What stands above the statement, on every page."""
        return "Our question" if self.ours else "The paper states"

    def __post_init__(self) -> None:
        # What was read from JSON has lists and mappings where these fields are tuples and figures.
        for name in ("history", "methods", "files"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        figures = tuple(f if isinstance(f, Figure) else Figure(**f) for f in self.figures)
        object.__setattr__(self, "figures", figures)


@dataclass(frozen=True)
class TunedTrial:
    """One guess of a search."""

    settings: Mapping[str, Any]  # the settings tried, all of them numbers
    value: float  # the validation value that they gave
    seconds: float = 0.0


@dataclass(frozen=True)
class MethodTuning:
    """What a search found for one method."""

    chosen: Mapping[str, Any]  # the best settings
    value: float  # their validation value
    seconds: float  # of all trials
    trials: tuple[TunedTrial, ...]  # in order
    #: the best trials again at full length, of which one was chosen; empty where none was repeated
    confirmed: tuple[TunedTrial, ...] = ()

    def __post_init__(self) -> None:
        """Turn trials that were read from a file into ``TunedTrial``, and check that all settings
        are numbers and that every trial has those of ``chosen``.
        """
        for name in ("trials", "confirmed"):
            trials = (
                t if isinstance(t, TunedTrial) else TunedTrial(**t) for t in getattr(self, name)
            )
            object.__setattr__(self, name, tuple(trials))
        every_trial = (*self.trials, *self.confirmed)
        for settings in (self.chosen, *(trial.settings for trial in every_trial)):
            if not self.chosen.keys() <= settings.keys():
                raise ValueError(f"every trial must have the settings {sorted(self.chosen)}")
            if not all(isinstance(value, (int, float)) for value in settings.values()):
                raise ValueError(f"settings must be numbers, got {dict(settings)!r:.100}")

    @property
    def ends(self) -> tuple[str, ...]:
        """The settings whose chosen value is the smallest or the largest of several tried ones.

        Example:
            >>> MethodTuning(
            ...     {"lr": 3.0},
            ...     0.2,
            ...     1.0,
            ...     (TunedTrial({"lr": 1.0}, 0.5), TunedTrial({"lr": 3.0}, 0.2)),
            ... ).ends
            ('lr',)
        """
        values = {name: {trial.settings[name] for trial in self.trials} for name in self.chosen}
        return tuple(
            name
            for name, tried in values.items()
            if len(tried) > 1 and self.chosen[name] in (min(tried), max(tried))
        )


@dataclass(frozen=True)
class Tuning:
    """A search of a study's settings at one scale (``tuning.json``): the same space and number of
    trials per method.

    A grid may have further points of a method beyond its ends; ``space`` and ``trials`` are those
    of the start.
    """

    study: str
    scale: str
    metric: str  # the column of validation data by which a trial is judged
    space: Mapping[str, Any]  # setting -> its smallest and largest value
    trials: int  # per method
    seeds: tuple[int, ...]
    methods: Mapping[str, MethodTuning]
    overrides: Mapping[str, Any] = field(default_factory=dict)  # settings typed for all methods
    command: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    machine: Mapping[str, Any] = field(default_factory=dict)
    started: str = ""
    registered: str = ""  # hash of the registration before the search

    def __post_init__(self) -> None:
        """Turn what was read from a file into tuples and ``MethodTuning``, and check that the space
        consists of numbers.
        """
        object.__setattr__(self, "seeds", tuple(self.seeds))
        for name, ends in self.space.items():
            is_list = isinstance(ends, (list, tuple)) and len(ends) >= 2
            if not is_list or not all(isinstance(end, (int, float)) for end in ends):
                raise ValueError(f"space.{name} must be two numbers or more, got {ends!r:.60}")
        methods = {
            m: t if isinstance(t, MethodTuning) else MethodTuning(**t)
            for m, t in self.methods.items()
        }
        object.__setattr__(self, "methods", methods)

    @property
    def identity(self) -> Tuning:
        """The search without its results and without what may differ between two of its parts."""
        return replace(self, methods={}, command="", versions={}, machine={}, started="")

    @property
    def extended(self) -> bool:
        """Whether some method has points beyond the ends of the grid."""
        return any(len(method.trials) > self.trials for method in self.methods.values())


@dataclass(frozen=True)
class Registration:
    """What was written down before a run (``registered.json``)."""

    study: str
    scale: str
    #: rule, settings, seeds, search space and the design of the power simulation.
    content: Mapping[str, Any]
    hash: str  # depends on ``content`` alone
    power: Mapping[str, Any] = field(default_factory=dict)  # the simulated error rates
    versions: Mapping[str, str] = field(default_factory=dict)
    written: str = ""  # when


Form = TypeVar("Form", StudyDescription, Tuning, Verdict, Registration)


def write_form(path: Path, form: StudyDescription | Tuning | Verdict | Registration) -> None:
    """Write a form as JSON with its checksum; the file appears whole or not at all."""
    content = asdict(form)
    write_atomically(path, to_json({**content, "sum": _sum(content)}, indent=1) + "\n")


def read_form(kind: type[Form], path: Path) -> Form:
    """Read a form of the given kind, and check its checksum (if it has one) and its fields' types.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "study.json"
        >>> write_form(path, StudyDescription("e5-cycle", "quick", methods=("SGD",)))
        >>> read_form(StudyDescription, path).methods
        ('SGD',)

    Raises:
        RecordError: the file cannot be read, does not fit its checksum, or is no such form; the
            message names it.
    """
    content = read_json(path)
    try:
        checksum = content.pop("sum", None)
        if checksum is not None and checksum != _sum(content):
            raise ValueError("its checksum does not fit its content")
        check_fields(kind, content)
        return kind(**content)
    except (ValueError, TypeError, AttributeError) as error:
        raise RecordError(f"{path} cannot be read: {error}") from error


def registered_hash(folder: Path) -> str:
    """The hash that was written down in a folder of records before the runs; empty where there is
    none.
    """
    path = folder / REGISTERED_FILE
    return read_form(Registration, path).hash if path.exists() else ""


def _sum(content: Mapping[str, Any]) -> str:
    """The checksum of a form's content."""
    return f"{crc32(to_json(content).encode()):08x}"
