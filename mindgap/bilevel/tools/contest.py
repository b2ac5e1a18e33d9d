"""A race of methods on one problem: equal oracle budgets, equal tuning, one answer with code to
paste.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from mindgap.base.calls import call
from mindgap.base.check import RuleError, check_call, fail, positive, whole
from mindgap.base.checked import checked_types
from mindgap.base.checkpoint import (
    CheckpointError,
    make_folder,
    read_checkpoint,
    set_aside,
    write_checkpoint,
)
from mindgap.bilevel.backends.oracles import TorchOracle
from mindgap.bilevel.backends.trial import try_problem
from mindgap.bilevel.core.settings import check_count
from mindgap.bilevel.core.types import State
from mindgap.bilevel.data.problem import BilevelProblem
from mindgap.bilevel.registry import METHODS
from mindgap.bilevel.solver import solve
from mindgap.bilevel.tools.checkpoint import belongs_to
from mindgap.bilevel.tools.horizon import Measurements, Scale, race_steps

#: Methods that race where none are named.
RACED = ("slip", "soba", "masoba", "saba", "stocbio", "f2sa", "borep", "amigo")
#: Iterations of a run at which it is judged, the start included.
PLACES = 7
#: What judging and tuning a method cost, in runs.
OVERHEAD = 1.6
#: What is kept of a run at each place.
COLUMNS = ("calls", "seconds", "x_epochs", "value", "slope")
KIND = "bilevel race"


@dataclass(frozen=True)
class Entrant:
    """One method of a race."""

    key: str
    settings: dict[str, float]
    tuning: float  # what finding them cost, in runs
    #: by seed: columns "calls", "seconds", "x_epochs", "value" (the upper loss once y has
    #: followed), "slope" (norm of the hypergradient there); empty where a run went wrong
    runs: tuple[dict[str, list[float]], ...]

    @property
    def final(self) -> list[float]:
        """The last value by seed; infinite where a run went wrong."""
        return [run["value"][-1] if run.get("value") else math.inf for run in self.runs]

    @property
    def mean(self) -> float:
        """Mean of the last values."""
        return float(np.mean(self.final))

    def band(self, column: str) -> tuple[list[float], list[float], list[float]]:
        """Mean, least and largest over the seeds of a column, place by place; three empty lists
        where every run went wrong.
        """
        curves = [run[column] for run in self.runs if run.get(column)]
        if not curves:
            return [], [], []
        rows = np.array([curve[: min(map(len, curves))] for curve in curves])  # of equal length
        return rows.mean(0).tolist(), rows.min(0).tolist(), rows.max(0).tolist()


@dataclass(frozen=True)
class Contest:
    """What a race found."""

    entrants: tuple[Entrant, ...]  # the best first
    refused: dict[str, str] = field(default_factory=dict)  # methods that do not fit, and why
    calls: int = 0  # oracle calls of a run
    start: float = math.nan  # the value at the start

    @property
    def winner(self) -> Entrant:
        """The method with the least value at the end."""
        return self.entrants[0]

    def is_level(self, other: Entrant) -> bool:
        """Whether a method is as good as the winner: the 95 % interval (Student's t) of the mean
        over the seeds of the difference of their last values contains 0.
        """
        differences = np.array(other.final) - np.array(self.winner.final)
        if not np.isfinite(differences).all():
            return False
        if len(differences) < 2:
            return bool(differences.mean() <= 0)
        # The 97.5 % quantile of Student's t with one degree of freedom less than there are seeds.
        t_quantile = {2: 12.7, 3: 4.3, 4: 3.18, 5: 2.78}.get(len(differences), 2.5)
        standard_error = differences.std(ddof=1) / math.sqrt(len(differences))
        return bool(abs(differences.mean()) <= t_quantile * standard_error)

    @property
    def code(self) -> str:
        """The winner as code to paste."""
        info = METHODS[self.winner.key]
        rates = ", ".join(f"{name}={value:.4g}" for name, value in self.winner.settings.items())
        return (
            f"from mindgap.bilevel import {info.class_name}, solve\n\n"
            f"method = {info.class_name}({rates})\n"
            f"solution = solve(problem, method, calls={self.calls}).check()\n"
        )

    def __str__(self) -> str:
        """The table at the end of the race."""
        lines = [f"{'method':10} {'upper loss':>12} {'least':>10} {'largest':>10} {'slope':>10}"]
        for entrant in self.entrants:
            slopes, final = entrant.band("slope")[0] or [math.nan], entrant.final
            row = (
                f"{entrant.mean:>12.4g} {min(final):>10.4g} {max(final):>10.4g} {slopes[-1]:>10.4g}"
            )
            is_tie = entrant is not self.winner and self.is_level(entrant)
            level = " level with the first" if is_tie else ""
            lines.append(f"{METHODS[entrant.key].name:10} {row}{level}")
        lines.append(f"start {self.start:.4g}; {self.calls} oracle calls per run")
        lines += [f"{METHODS[key].name} did not run: {why}" for key, why in self.refused.items()]
        return "\n".join(lines)


@checked_types
def race(
    problem: BilevelProblem,
    methods: Sequence[str] | None = None,
    *,
    minutes: float = 10.0,
    calls: int | None = None,
    seeds: int = 3,
    folder: str | Path | None = None,
    told: Callable[[str, float], Any] | None = None,
) -> Contest:
    """Race methods on a problem: each is tuned by ``suggest_steps``, then runs with every seed for
    the same number of oracle calls.

    Runs are judged at six places after the start by the upper loss on common minibatches once y has
    followed x for some steps, and by the norm of the hypergradient there.

    Args:
        problem: what to solve; the losses must be differentiable twice.
        methods: keys of ``METHODS``; eight of them if not given. Those that the problem does not
            fit (constraints, tables, batches) are named with the reason.
        minutes: time for everything; sets ``calls`` where they are not given.
        calls: oracle calls of every run.
        seeds: runs of each method.
        folder: where finished pieces are kept; the same race goes on from there.
        told: called as ``told(text, share)`` after every piece.

    Raises:
        RuleError: where no method fits, or the folder is of another race.

    Example:
        >>> from mindgap.bilevel.data.problem import example_problem
        >>> found = race(example_problem(), ["soba", "slip"], calls=400, seeds=2)
        >>> sorted(e.key for e in found.entrants), found.winner.mean < found.start
        (['slip', 'soba'], True)
    """
    if not isinstance(problem, BilevelProblem):
        fail("problem", "must be a BilevelProblem", type(problem).__name__)
    positive("minutes", minutes)
    check_count("seeds", seeds, most=100)
    if calls is not None:
        whole("calls", calls, least=200)
    if told is not None:
        check_call("told", told, "a function of (text, share)", "", 0.5)
    keys = list(RACED if methods is None else dict.fromkeys(methods))
    if not keys or any(key not in METHODS for key in keys):
        fail("methods", f"must be keys of {', '.join(METHODS)}", methods)
    fitting, refused = _split_by_fit(problem, keys)
    if not fitting:
        fail("methods", "must fit the problem", refused)
    pieces = _Pieces(folder, problem, fitting, seeds, calls)
    if calls is None:
        budget = partial(_budget, problem, fitting, minutes, seeds)
        calls = int(pieces.piece("calls", budget, _is_count)["number"])
    # One judge for all methods: measured once, on minibatches of a seed that no run has.
    judge = Measurements(problem, steps=500, lower_steps=100, seed=10_007)
    judge.measure()
    entrants, piece_count, pieces_done = [], len(fitting) * (1 + seeds), 0
    for key in fitting:
        steps = max(20, round(calls / _cost_per_iteration(problem, key)[0]))
        tuned = pieces.piece(f"{key}-steps", partial(_tune, problem, key, steps), _is_tuned)
        pieces_done += 1
        if told is not None:
            call("told", told, f"{METHODS[key].name}: steps", pieces_done / piece_count)
        runs = []
        for seed in range(seeds):
            make_run = partial(_run, problem, judge, key, tuned["settings"], seed, steps, calls)
            runs.append(pieces.piece(f"{key}-{seed}", make_run, _is_run))
            pieces_done += 1
            if told is not None:
                call("told", told, f"{METHODS[key].name}: seed {seed}", pieces_done / piece_count)
        entrants.append(Entrant(key, tuned["settings"], tuned["runs"], tuple(runs)))
    entrants.sort(key=lambda e: e.mean)
    # Read as the first point of every curve: y has followed from its start, it is not solved.
    start, _ = judge.judged_loss(judge.x, judge.y0)
    return Contest(tuple(entrants), refused, calls, start)


def _split_by_fit(problem: BilevelProblem, keys: list[str]) -> tuple[list[str], dict[str, str]]:
    """Keys of methods that can run on the problem, and by key why the others cannot."""
    fitting, refused = [], {}
    for key in keys:
        try:
            scale = Scale(key, METHODS[key].load(), 1.0, problem.dim_x)  # any steps will do
            METHODS[key](**scale.settings(1.0, 100, 1.0)).check_problem(problem)
            try_problem(TorchOracle(problem), second_order=True)
            fitting.append(key)
        except RuleError as error:
            refused[key] = str(error)
    return fitting, refused


def _cost_per_iteration(problem: BilevelProblem, key: str) -> tuple[float, float]:
    """Oracle calls and seconds per iteration of a method, from 4 iterations with tiny steps."""
    settings = Scale(key, METHODS[key].load(), 1.0, problem.dim_x).settings(1e-9, 4, 1e-9)
    solution = solve(problem, METHODS[key](**settings), 4)
    return solution.state.total_calls / 4, solution.seconds / 4


def _budget(problem: BilevelProblem, keys: list[str], minutes: float, seeds: int) -> dict[str, int]:
    """Under "number" the oracle calls of a run such that all runs of all methods take 3/4 of the
    time, tuning and judging included; between 300 and 10 million.
    """
    costs = [_cost_per_iteration(problem, key) for key in keys]
    # What one oracle call in every run of every method takes.
    seconds_per_call = sum(seconds / calls for calls, seconds in costs) * (seeds + OVERHEAD)
    return {"number": int(min(max(0.75 * 60.0 * minutes / seconds_per_call, 300), 10**7))}


def _tune(problem: BilevelProblem, key: str, steps: int) -> dict[str, Any]:
    """The "settings" that a race of short runs finds for a method, and its cost in "runs"."""
    tuned = race_steps(problem, key, steps)
    return {"settings": tuned.settings, "runs": tuned.runs}


def _run(
    problem: BilevelProblem,
    judge: Measurements,
    key: str,
    settings: dict[str, float],
    seed: int,
    steps: int,
    calls: int,
) -> dict[str, list[float]]:
    """The ``COLUMNS`` of one run, judged at the start, on the way and at the end; {} if it goes
    wrong.

    Args:
        judge: gives the loss and the hypergradient of a state.
        key, settings: of the method.
        steps: about how many iterations the budget ``calls`` allows; a sixth of them lies between
            two judgements.
    """
    columns: dict[str, list[float]] = {name: [] for name in COLUMNS}
    steps_between, lower_name = max(1, steps // (PLACES - 1)), METHODS[key].lower_variable
    run_begin, seconds_judging = time.perf_counter(), 0.0

    def judge_here(state: State) -> None:
        """Add a row of all columns at this state; the time it takes does not count."""
        nonlocal seconds_judging
        now = time.perf_counter()
        value, y = judge.judged_loss(state.x, state.values[lower_name])
        slope = math.inf
        if math.isfinite(value):
            slope = float(judge.hypergradient(state.x, y).norm())
        row = state.total_calls, now - run_begin - seconds_judging, state.x_epochs, value, slope
        for name, number in zip(columns, row, strict=True):
            columns[name].append(float(number))
        seconds_judging += time.perf_counter() - now

    method = METHODS[key](**settings)
    solution = solve(
        problem, method, calls=calls, seed=seed, callbacks=judge_here, every=steps_between
    )
    if solution.ok and solution.state.t % steps_between:
        judge_here(solution.state)
    return columns if solution.ok and all(map(math.isfinite, columns["value"])) else {}


class _Pieces:
    """Finished pieces of a race in a folder, so that it can go on."""

    def __init__(
        self,
        folder: str | Path | None,
        problem: BilevelProblem,
        keys: list[str],
        seeds: int,
        calls: int | None,
    ) -> None:
        self.folder = None if folder is None else make_folder("folder", folder)
        if self.folder is None:
            return
        self.of = belongs_to(METHODS["soba"](lr_x=1.0, lr_y=1.0), problem)  # "method" is replaced
        self.of |= {"method": ", ".join(keys), "seeds": str(seeds), "calls": str(calls)}
        self.piece("race", dict, lambda content: content == {})  # refuses another race's folder

    def piece(
        self, name: str, make: Callable[[], dict[str, Any]], is_sound: Callable[[Any], bool]
    ) -> dict[str, Any]:
        """The content of a piece that was kept under a name; else ``make`` makes it and it is kept.

        A damaged one, or one that ``is_sound`` refuses, is named in a warning and set aside.
        """
        if self.folder is None:
            return make()
        path, belongs = self.folder / f"{name}.piece", {**self.of, "piece": name}
        if path.exists():
            try:
                saved: dict[str, Any] = read_checkpoint(path, KIND, belongs)
                if is_sound(saved):
                    return saved
                raise CheckpointError(f"checkpoint must hold a piece of a race: {path}", "damaged")
            except CheckpointError as error:
                if error.reason == "other":
                    fail("folder", f"must be of this race ({error})", str(self.folder))
                aside = set_aside(path).name
                warnings.warn(f"{error}. It is now {aside}.", RuntimeWarning, stacklevel=4)
        content = make()
        write_checkpoint(path, KIND, content, belongs)
        return content


def _is_number(value: Any) -> bool:
    """Whether a value from a file is a finite number and no bool."""
    return type(value) in (int, float) and abs(value) < math.inf


def _is_tuned(content: Any) -> bool:
    """Whether content of a file has the form of what ``_tune`` returns."""
    return (
        isinstance(content, dict)
        and content.keys() == {"settings", "runs"}
        and isinstance(content["settings"], dict)
        and all(map(_is_number, (content["runs"], *content["settings"].values())))
        and all(isinstance(name, str) for name in content["settings"])
    )


def _is_run(content: Any) -> bool:
    """Whether content of a file has the form of what ``_run`` returns: equal columns, or {}."""
    if not isinstance(content, dict) or not content:
        return content == {}
    columns = list(content.values())
    return (
        content.keys() == set(COLUMNS)
        and all(isinstance(column, list) and column for column in columns)
        and len(set(map(len, columns))) == 1
        and all(type(value) is float for column in columns for value in column)
    )


def _is_count(content: Any) -> bool:
    """Whether content of a file is a "number" of calls, whole and up to 10 million."""
    number = content.get("number") if isinstance(content, dict) else None
    return type(number) is int and 0 < number <= 10**7
