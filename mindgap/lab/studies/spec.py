"""What a study is: data (claim, scales, methods, figures, pass rule) and two functions.

``loop(trial)`` runs one method with one seed and yields rows. ``judge(runs)`` answers the parts of
the pass rule from the records of all runs. Catalogue modules import without torch: a loop imports
what it needs.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from importlib import resources
from typing import Any

from mindgap.base.check import fail, one_of
from mindgap.base.checked import checked_class
from mindgap.base.source import Source
from mindgap.lab.studies.gates import network_gate
from mindgap.lab.studies.loop import Trial
from mindgap.lab.studies.power import Design, rates
from mindgap.lab.studies.verdict import Parts
from mindgap.record.forms import Figure, StudyDescription
from mindgap.record.schema import Row, Run, Verdict, content_hash, grouped

__all__ = [
    "AXES",
    "SCALES",
    "Design",
    "Figure",
    "Parts",
    "Row",
    "Run",
    "Scale",
    "Source",
    "Study",
    "Trial",
    "Verdict",
    "scales",
    "typed_like",
]

#: From seconds on two cores to the sizes of the papers; "trained" is "gpu" with trained networks.
SCALES = ("quick", "cpu", "gpu", "paper", "trained")

#: Columns that may serve as an x-axis, in the order in which the page offers them, with their
#: labels.
AXES = {
    "step": "step",
    "x_epoch": "epochs of the upper data (x-updates)",
    "y_epoch": "epochs of the lower data (y-updates)",
    "oracle_calls": "oracle calls",
    "seconds": "seconds in the algorithm",
    "cpu_seconds": "CPU seconds in the algorithm",
}


@dataclass(frozen=True)
class Scale:
    """Settings of a study at one scale.

    Args:
        settings: name -> value; every trial of the scale has these, and ``key=value`` may override
            them.
        seeds: how many seeds (0, 1, ...) each method gets.
        methods: method -> settings of its own at this scale alone (steps tuned on this scale's
            data, say), laid over those that the study gives it everywhere.
        seeds_of: method -> its number of seeds where that differs; 0: the method does not run at
            this scale.
        grid, tuning_seeds, rule: of this scale; empty where they are the study's.
    """

    settings: Mapping[str, Any]
    seeds: int = 1
    methods: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    seeds_of: Mapping[str, int] = field(default_factory=dict)
    grid: Mapping[str, Sequence[float]] = field(default_factory=dict, repr=False)
    tuning_seeds: tuple[int, ...] = field(default=(), repr=False)
    rule: str = field(default="", repr=False)


def scales(
    quick: Mapping[str, Any], cpu: Mapping[str, Any], seeds: tuple[int, int] = (1, 1)
) -> dict[str, Scale]:
    """The two scales that run on CPUs.

    Args:
        quick: settings at scale quick.
        cpu: the settings that differ at scale cpu; all others are those of scale quick.
        seeds: how many seeds each method gets, at quick and at cpu.

    Example:
        >>> scales({"steps": 30, "lr": 0.5}, {"steps": 900}, seeds=(2, 5))["cpu"]
        Scale(settings={'steps': 900, 'lr': 0.5}, seeds=5, methods={}, seeds_of={})
    """
    return {"quick": Scale(quick, seeds[0]), "cpu": Scale({**quick, **cpu}, seeds[1])}


@checked_class
@dataclass(frozen=True)
class Study:
    """One claim, ready to run."""

    name: str  # what is typed, such as ``e5-cycle``
    claim: str  # id of the claim, such as ``E5``
    title: str  # a short headline
    statement: str  # what the paper states, or what we ask, in one sentence
    source: Source  # where it states so
    scales: Mapping[str, Scale]  # scale name -> :class:`Scale`
    #: label -> settings of that method, laid over the scale's. All methods get the same seeds and
    #: budget.
    methods: Mapping[str, Mapping[str, Any]]
    loop: Callable[[Trial], Iterator[Row]]  # ``loop(trial)`` yields rows
    #: ``judge(runs)`` answers the parts of the pass rule; it sees finished runs only.
    judge: Callable[[Sequence[Run]], Parts]
    rule: str = ""  # the pass rule as text
    #: scale -> model and data that the study runs on; empty where a statement is not about a model.
    models: Mapping[str, str] = field(default_factory=dict)
    paper_model: str = ""  # the model and data of the paper
    #: scale -> how long a network is trained there, beside the paper ("25 of 25 epochs")
    lengths: Mapping[str, str] = field(default_factory=dict)
    #: settings of a record -> the same words, where records of several lengths are kept
    length_of: Callable[[Mapping[str, Any]], str] | None = None
    #: scale -> the rule on made-up data, from which its error rates and its power are simulated
    designs: Mapping[str, Design] = field(default_factory=dict)
    paper_number: str = ""  # the numbers that the paper prints; empty where it prints none
    figures: tuple[Figure, ...] = ()  # what the page draws
    #: settings that ``mindgap tune`` may search, name -> (low, high) on a log scale, for all
    #: methods alike.
    tunable: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    #: the column whose last value a search makes small; validation data, never a test column
    tune_on: str = ""
    #: settings that ``mindgap tune --grid`` tries, name -> values, for all methods alike; a method
    #: in which one of them is None or missing is not tuned.
    grid: Mapping[str, Sequence[float]] = field(default_factory=dict)
    #: settings of the grid that a method may lack: it is then searched in the others alone
    grid_where_present: tuple[str, ...] = ()
    tuning_seeds: tuple[int, ...] = (1000, 1001)  # seeds that a grid search is averaged over
    #: the study whose search this one uses; methods find their own by name, else by their ``key``
    tuned_by: str = ""
    #: simulated studies of equal methods that tell how often the rule errs; fewer for a costly
    #: rule.
    null_draws: int = 50
    #: methods that are controls: records from before they were added are judged without them
    controls: tuple[str, ...] = ()
    #: methods that do not run although the scale has them; without them no verdict
    left_out: tuple[str, ...] = ()
    #: the question is ours: no paper states it, and ``source`` is what it is about
    ours: bool = False

    def __post_init__(self) -> None:
        """Refuse unknown scales and methods, tuning on test data, and search bounds that are not
        0 < low < high.
        """
        for scale, described in self.scales.items():
            one_of("scale", scale, SCALES)
            for method in (*described.methods, *described.seeds_of):
                one_of("method", method, self.methods)
        if "test" in self.tune_on.lower():
            fail("tune_on", "must be a column of validation data", self.tune_on)
        for name, bounds in self.tunable.items():
            is_pair = isinstance(bounds, (list, tuple)) and len(bounds) == 2
            if not (is_pair and 0 < bounds[0] < bounds[1]):
                fail("tunable", f"must have 0 < low < high for {name}", bounds)

    def settings(
        self, scale: str, method: str, overrides: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """The effective settings of one method: the scale's, with the method's own laid over them,
        and the overrides over both.

        An override of a setting that only other methods have (of another network) leaves this one
        as it is.

        Args:
            scale: one of the study's scales.
            method: one of its methods.
            overrides: setting -> value, also as typed text; read as the type of the value that it
                replaces.

        Raises:
            RuleError: unknown scale, method or setting, or a value of another type than the
                setting's.
        """
        one_of("scale", scale, self.scales)
        one_of("method", method, self.methods)
        common = self.scales[scale].settings
        merged = {**common, **self.own(method, scale)}
        for name, value in (overrides or {}).items():
            if name in merged:
                merged[name] = typed_like(name, value, merged[name])
            else:  # it must be a setting of some other method
                of_others = [name for other in self.methods for name in self.own(other, scale)]
                one_of("setting", name, dict.fromkeys([*common, *of_others]))
        return merged

    def own(self, method: str, scale: str) -> dict[str, Any]:
        """The settings of one method at a scale, without those that all methods share."""
        return {**self.methods[method], **self.scales[scale].methods.get(method, {})}

    def seeds(self, scale: str, number: int | None = None) -> dict[str, int]:
        """Method -> how many seeds it has at a scale, for every method that runs there.

        Args:
            scale: one of the study's scales.
            number: replaces the planned numbers of all methods that run; None keeps them.
        """
        at_scale = self.scales[one_of("scale", scale, self.scales)]
        planned_of = {
            method: at_scale.seeds_of.get(method, at_scale.seeds) for method in self.methods
        }
        return {
            method: planned if number is None else number
            for method, planned in planned_of.items()
            if planned
        }

    def only(self, scale: str, methods: Sequence[str]) -> Study:
        """The study with no other methods than these at a scale; itself where none is named.

        A method named here runs even where the scale leaves it out. Methods of the scale that are
        not named are listed in ``left_out``, and no verdict is given without them.

        Example:
            >>> from mindgap.lab.studies.catalogue import find
            >>> find("b3-hyper-cleaning").only("gpu", ["SLIP", "AmIGO"]).seeds("gpu")
            {'AmIGO': 20, 'SLIP': 20}
        """
        if not methods:
            return self
        at_scale = self.scales[one_of("scale", scale, self.scales)]
        seeds_of = dict.fromkeys(self.methods, 0)
        for method in methods:
            one_of(f"method of {self.name}", method, self.methods)
            # A method that the scale leaves out has 0 there.
            seeds_of[method] = at_scale.seeds_of.get(method) or at_scale.seeds
        return replace(
            self,
            scales={**self.scales, scale: replace(at_scale, seeds_of=seeds_of)},
            left_out=tuple(method for method in self.seeds(scale) if method not in methods),
        )

    def at(self, scale: str) -> Study:
        """The study reduced to one scale: its scale alone, with the methods that run there, and
        with the scale's grid, tuning seeds and pass rule where it has its own.
        """
        methods, at_scale = self.seeds(scale), self.scales[scale]
        own_settings = {
            method: settings for method, settings in at_scale.methods.items() if method in methods
        }
        # A method with 0 seeds does not run here.
        seeds_of = {method: number for method, number in at_scale.seeds_of.items() if number}
        return replace(
            self,
            methods={method: self.methods[method] for method in methods},
            scales={scale: replace(at_scale, methods=own_settings, seeds_of=seeds_of)},
            grid=at_scale.grid or self.grid,
            tuning_seeds=at_scale.tuning_seeds or self.tuning_seeds,
            rule=at_scale.rule or self.rule,
        )

    def model(self, scale: str) -> str:
        """The model and data that a verdict at this scale is about, in words; may be empty.

        A model other than the paper's is said to stand in its place, and is called a toy at the
        scales quick and cpu.

        Example:
            >>> from mindgap.lab.studies.catalogue import find
            >>> find("n3-image-network").model("quick")
            'toy (three convolutions, width 4, on digits, in place of ResNet20 on CIFAR-10)'
        """
        model, paper_model = self.models.get(scale, ""), self.paper_model
        # A remark in brackets may follow the paper's model.
        with_remark = paper_model and model.startswith(f"{paper_model} (")
        if not model or model == paper_model or with_remark:
            return model
        if paper_model:
            model += f", in place of {paper_model}"
        return f"toy ({model})" if scale in ("quick", "cpu") else model

    def verdict(self, runs: Sequence[Run]) -> Verdict:
        """Apply the pass rule to the finished runs of one scale.

        At scale gpu a rule without a control of its own for trained networks (a gate) gets the one
        that fits what was recorded. An exception of the rule is passed on.
        """
        scale = runs[0].header.scale
        with warnings.catch_warnings():
            # numpy warns of values that are not finite; the rule decides what they mean.
            warnings.simplefilter("ignore", RuntimeWarning)
            parts = self.judge(runs)
            if scale == "gpu" and not parts.gates:
                network_gate(parts, runs)
            verdict = parts.build(self.model(scale))
        return replace(
            verdict,
            length=self.length(scale, runs[0].header.settings),
            power=self.power(scale, runs),
            registered=self.registered_words(scale, runs),
        )

    def length(self, scale: str, settings: Mapping[str, Any]) -> str:
        """How long a network is trained at a scale, beside the paper, in words such as "25 of 25
        epochs"; empty for a toy or a formula.

        Args:
            scale: one of the study's scales.
            settings: of a record, which say it where the study knows several lengths.
        """
        if self.length_of is None or scale not in self.lengths:
            return self.lengths.get(scale, "")
        return self.length_of(settings)

    def power(self, scale: str, runs: Sequence[Run] = ()) -> dict[str, Any]:
        """Error rates and power of the rule at a scale, simulated from its design.

        They are for as many seeds as the method with the fewest has in the runs, or as planned
        where there are no runs; for two at least.

        Returns:
            The fields of :class:`~mindgap.lab.studies.power.Rates` and its sentence as ``words``;
            empty where the scale has no design.
        """
        design = self.designs.get(scale)
        if design is None:
            return {}
        seeds_of = grouped((run.header.method, run.header.seed) for run in runs)
        fewest = min((len(set(seeds)) for seeds in seeds_of.values()), default=0)
        # One seed has no deviation.
        simulated = rates(design, max(fewest or self.scales[scale].seeds, 2))
        return {**asdict(simulated), "words": simulated.words}

    def registered_content(self, scale: str) -> dict[str, Any]:
        """What decides a verdict beside the numbers: changing any of it changes the hash."""
        at_scale, design = self.at(one_of("scale", scale, self.scales)), self.designs.get(scale)
        return {
            "study": self.name,
            "claim": self.claim,
            "scale": scale,
            "statement": self.statement,
            "rule": at_scale.rule,
            "length": self.lengths.get(scale, ""),
            "settings": {method: at_scale.settings(scale, method) for method in at_scale.methods},
            "seeds": at_scale.seeds(scale),
            "tuned_by": self.tuned_by or self.name,
            "tune_on": self.tune_on,
            "grid": {name: list(values) for name, values in at_scale.grid.items()},
            "tuning_seeds": list(at_scale.tuning_seeds),
            "design": asdict(design) if design else {},
        }

    def registered_words(self, scale: str, runs: Sequence[Run]) -> str:
        """A sentence on whether the runs carry the hash of today's rule and sizes.

        Empty where no run carries a hash and the scale has no design.
        """
        hashes = {run.header.registered for run in runs}
        if hashes == {""}:
            return "not registered before the runs" if scale in self.designs else ""
        if hashes == {content_hash(self.registered_content(scale))}:
            others = self._other_settings(scale, runs)
            if others:
                return f"run with other settings than were registered: {', '.join(others)}"
            return f"registered before the runs ({hashes.pop()})"
        listed = ", ".join(sorted(recorded or "none" for recorded in hashes))
        return f"rule or sizes have changed since the runs, whose records carry the hash {listed}"

    def _other_settings(self, scale: str, runs: Sequence[Run]) -> list[str]:
        """The settings in which runs differ from the planned ones, but for those that a search
        chooses. Where another study's search chooses them, nothing is compared.
        """
        if self.tuned_by:
            return []
        at_scale = self.at(scale)
        chosen = {*at_scale.grid, *at_scale.tunable}
        found = {
            name
            for run in runs
            for planned in (self.settings(scale, run.header.method),)
            for name in {**planned, **run.header.settings}
            if name not in chosen and run.header.settings.get(name) != planned.get(name)
        }
        return sorted(found)

    @property
    def history(self) -> tuple[str, ...]:
        """What was decided when, and what was changed after a run, in order."""
        return diary(self.name).history

    @property
    def differs(self) -> str:
        """How the study differs from the paper."""
        return diary(self.name).differs

    def describe(self, scale: str) -> StudyDescription:
        """What the page needs to draw the study again from its records alone.

        A figure without a label of its x-axis gets that of the column in :data:`AXES`. Where x
        shows names, not numbers, it stays without one.
        """
        shown = [figure for figure in self.figures if scale in (figure.scales or SCALES)]
        return StudyDescription(
            name=self.name,
            scale=scale,
            claim=self.claim,
            title=self.title,
            statement=self.statement,
            source=str(self.source),
            rule=self.scales[scale].rule or self.rule,
            history=self.history,
            differs=self.differs,
            model=self.model(scale),
            paper_model=self.paper_model,
            methods=tuple(self.seeds(scale)),
            figures=tuple(
                figure
                if figure.x_label or figure.x_names or figure.x == "method"
                else replace(figure, x_label=AXES.get(figure.x, figure.x))
                for figure in shown
            ),
            axes=AXES,
            ours=self.ours,
        )

    @property
    def heading(self) -> str:
        """What stands above the statement: "The paper states" or "Our question"."""
        return self.describe(next(iter(self.scales))).heading


def typed_like(name: str, value: Any, like: Any) -> Any:
    """Read a setting's value, given as typed text or as a value already, as the type of another.

    Args:
        name: of the setting.
        value: is read.
        like: gives the type: truth value, whole number, number, list or text. In a text the entries
            of a list are separated by commas; each is read as the type of the first one of
            ``like``.

    Raises:
        RuleError: the value cannot be read so; the message begins with ``name``.

    Example:
        >>> (
        ...     typed_like("lr", "1e-3", 0.1),
        ...     typed_like("steps", "20", 5),
        ...     typed_like("nesterov", "true", False),
        ... )
        (0.001, 20, True)
        >>> typed_like("steps", "2.5", 5)
        Traceback (most recent call last):
        mindgap.base.check.RuleError: steps must be a whole number, got '2.5'
    """
    stripped = value.strip() if isinstance(value, str) else value
    if isinstance(like, bool):  # asked before int, since a bool is one
        truths = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
        if str(stripped).lower() not in truths:
            fail(name, "must be true or false", value)
        return truths[str(stripped).lower()]
    if isinstance(like, int):
        try:
            if isinstance(stripped, float) and stripped != int(stripped):
                raise ValueError  # answered below like a text that is no number
            return int(stripped)
        except (TypeError, ValueError, OverflowError):
            fail(name, "must be a whole number", value)
    if isinstance(like, float):
        try:
            return float(stripped)
        except (TypeError, ValueError):
            fail(name, "must be a number", value)
    if isinstance(like, (list, tuple)):
        entries = stripped.split(",") if isinstance(stripped, str) else list(stripped)
        # An empty ``like`` says nothing of the entries' type: they stay as they are.
        return [typed_like(name, entry, like[0]) if like else entry for entry in entries]
    if not isinstance(value, str):
        fail(name, "must be a text", value)
    return value


#: The headings of a diary, one Markdown file per study in the folder ``diaries``; a study without a
#: file has an empty one.
DIFFERS = "## How it differs from the paper"
HISTORY = "## What was decided when"


@dataclass(frozen=True)
class Diary:
    """The two texts of a file, without its line breaks."""

    differs: str = ""  # how the study differs from the paper
    history: tuple[str, ...] = ()  # what was decided and changed, in order


@cache
def diary(name: str) -> Diary:
    """The diary of the study of that name."""
    path = resources.files("mindgap.lab.studies") / "diaries" / f"{name}.md"
    return parse_diary(path.read_text(encoding="utf-8")) if path.is_file() else Diary()


def parse_diary(text: str) -> Diary:
    """The diary in a Markdown text: what stands below its headings.

    Under :data:`DIFFERS` there is one paragraph, under :data:`HISTORY` a list of ``- `` entries.

    Example:
        >>> parse_diary(
        ...     "# n1\\n\\n## What was decided when\\n\\n- First\\n  run.\\n- Second.\\n"
        ... ).history
        ('First run.', 'Second.')
    """
    text_above, _, history = text.partition(HISTORY)
    differs = text_above.partition(DIFFERS)[2]
    # Every entry begins a line with a dash; the first piece is what stands before them. Joining its
    # words by single blanks takes the line breaks out of an entry.
    entries = [" ".join(entry.split()) for entry in f"\n{history.strip()}".split("\n- ")[1:]]
    return Diary(" ".join(differs.split()), tuple(entries))
