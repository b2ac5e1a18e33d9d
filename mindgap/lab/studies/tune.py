"""One search for settings: it serves ``mindgap tune``, the optimizer studies and the bilevel
studies.

:func:`search` tries settings one after the other. Where they come from is a separate choice: a
list, a grid (:mod:`~mindgap.lab.studies.grid`), random draws (:func:`random_points`), or Optuna's
sampler in :func:`tune`. A loss that diverges counts as infinite. Any other exception of a trial is
an error and ends the search.

Every method gets the same number of trials in the same space, on seeds that no reported run has.
``mindgap tune`` writes what it chose into ``tuning.json``, which ``mindgap run`` reads and the
report shows.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from mindgap.base.check import fail, missing, one_of, whole
from mindgap.base.rng import stream_seed
from mindgap.lab.studies.grid import grid_points, grid_search
from mindgap.lab.studies.processes import Lost, in_processes
from mindgap.lab.studies.spec import Study, Trial
from mindgap.record.forms import (
    MethodTuning,
    TunedTrial,
    Tuning,
    read_form,
    registered_hash,
    write_form,
)
from mindgap.record.schema import content_hash
from mindgap.record.store import TUNING_FILE

JOURNAL_FILE, GRID_FILE = "tuning.journal", "tuning-grid.journal"

#: Tuning runs have seeds from here on; the runs that are reported count from 0.
FIRST_SEED = 10_000

#: What a trial may raise when its numbers grow without bound.
DIVERGENCE = (OverflowError, FloatingPointError)

Settings = dict[str, Any]
OnTrial = Callable[[str, int, float], None]


def search(
    ask: Callable[[Sequence[TunedTrial]], Settings | None],
    evaluate: Callable[[Settings], float],
    before: Sequence[TunedTrial] = (),
    seconds: Callable[[], float] = lambda: 0.0,
) -> Iterator[TunedTrial]:
    """Try what ``ask`` proposes until it proposes nothing.

    Args:
        ask: what was tried so far -> the next settings, or None.
        evaluate: settings -> a score; one that is not finite counts as infinite.
        before: what was tried before an interruption; it is not handed out again.
        seconds: a stopwatch that runs while settings are evaluated.

    Example:
        >>> tried = list(search(listed([{"lr": 1.0}, {"lr": 3.0}]), lambda s: (s["lr"] - 2.5) ** 2))
        >>> best(tried).settings
        {'lr': 3.0}
    """
    made = list(before)
    while (settings := ask(made)) is not None:
        start = seconds()
        try:
            score = float(evaluate(settings))
        except DIVERGENCE:
            score = math.inf
        made.append(
            TunedTrial(settings, score if math.isfinite(score) else math.inf, seconds() - start)
        )
        yield made[-1]


def listed(points: Sequence[Settings]) -> Callable[[Sequence[TunedTrial]], Settings | None]:
    """Propose the given settings in their order."""
    return lambda made: points[len(made)] if len(made) < len(points) else None


def best(tried: Sequence[TunedTrial]) -> TunedTrial:
    """The one with the smallest score, the first of equals."""
    return min(tried, key=lambda one: one.value)


def random_points(
    trial: Trial, space: Mapping[str, tuple[float, float]], number: int
) -> list[Settings]:
    """Settings of a random search: log-uniform between two ends, or uniform among whole numbers
    where both ends are.

    Each setting has a stream of its own name, so that methods which share a setting try the same
    values of it.

    Example:
        >>> one = random_points(Trial("a", 0, {}), {"lr": (0.1, 10.0)}, 2)
        >>> two = random_points(Trial("b", 0, {}), {"period": (1, 5), "lr": (0.1, 10.0)}, 2)
        >>> (
        ...     [s["lr"] for s in one] == [s["lr"] for s in two],
        ...     all(1 <= s["period"] <= 5 for s in two),
        ... )
        (True, True)
    """
    columns = {}
    for name, (low, high) in space.items():
        stream = trial.numpy_generator(f"search {name}")
        if isinstance(low, int) and isinstance(high, int):
            columns[name] = stream.integers(low, high + 1, size=number).tolist()
        else:
            columns[name] = (low * (high / low) ** stream.random(number)).tolist()
    return [{name: values[i] for name, values in columns.items()} for i in range(number)]


def tune(
    study: Study,
    scale: str,
    out: Path,
    *,
    trials: int = 20,
    seeds: int = 1,
    grid: bool = False,
    overrides: Mapping[str, Any] | None = None,
    jobs: int = 1,
    on_trial: OnTrial = lambda method, number, value: None,
) -> Tuning:
    """Search ``study.tunable`` (or ``study.grid``) for every method and write what was chosen.

    A search that was interrupted goes on where it stopped. Asking for fewer trials than were made
    before considers only the first ones. A grid is the same for every method at first; where a
    method's best point lies at an end, further points beyond it are tried (see
    :func:`~mindgap.lab.studies.grid.beyond`).

    Args:
        study: a study with :attr:`~mindgap.lab.studies.spec.Study.tunable` and ``tune_on``.
        scale: one of its scales.
        out: the folder of records.
        trials: trials of every method: there is no way to give one method more than another.
        seeds: tuning seeds that each trial is averaged over.
        grid: try every point of ``study.grid`` instead, on ``study.tuning_seeds``.
        overrides: setting -> value for all methods alike (a smaller budget, say).
        jobs: methods searched at the same time; with ``grid``, points of all methods.
        on_trial: called with method, number and value of each trial.

    Returns:
        What ``tuning.json`` holds.

    Raises:
        RuleError: nothing to tune, unknown scale, or fewer than one trial or seed.
    """
    whole("trials", trials, least=1)
    whole("seeds", seeds, least=1)
    whole("jobs", jobs, least=1)
    study = study.at(one_of("scale", scale, study.scales))
    if not (study.grid if grid else study.tunable) or not study.tune_on:
        which = "grid" if grid else "tunable"
        fail(
            "study",
            f"must say what may be tuned ({which}) and on which column (tune_on)",
            study.name,
        )
    space = study.grid if grid else study.tunable
    untouched = {method: study.settings(scale, method) for method in study.seeds(scale)}
    settings = {
        m: study.settings(scale, m, overrides)
        for m, own in untouched.items()
        if all(own.get(name) is not None or name in study.grid_where_present for name in space)
    }
    if not settings:
        fail("scale", f"must be one at which a method has the settings {', '.join(space)}", scale)
    if not grid:
        _optuna()
    from mindgap.lab.studies.run import command, machine, now, versions

    started, folder = now(), out / study.name / scale
    folder.mkdir(parents=True, exist_ok=True)
    on_seeds = study.tuning_seeds if grid else tuple(FIRST_SEED + k for k in range(seeds))
    trials = len(grid_points(study.grid)) if grid else trials
    if grid:
        made = _grid(study, settings, folder, jobs, on_trial)
    else:
        made = _searches(study, settings, folder, trials, on_seeds, jobs, on_trial)
    tuning = Tuning(
        study=study.name,
        scale=scale,
        metric=study.tune_on,
        space={name: [min(values), max(values)] for name, values in space.items()},
        trials=trials,
        seeds=on_seeds,
        methods={method: _summary(made[method]) for method in settings},
        overrides=dict(overrides or {}),
        command=command(),
        versions=dict(versions()),
        machine=machine(next(iter(settings.values()))),
        started=started,
        registered=registered_hash(folder),
    )
    if study.left_out and (folder / TUNING_FILE).exists():
        before = read_form(Tuning, folder / TUNING_FILE)
        if before.identity == tuning.identity:  # the same search, of other methods
            tuning = replace(tuning, methods={**before.methods, **tuning.methods})
    write_form(folder / TUNING_FILE, tuning)
    return tuning


def _grid(
    study: Study, settings: Mapping[str, Settings], folder: Path, jobs: int, on_trial: OnTrial
) -> dict[str, list[TunedTrial]]:
    """The trials of a grid search; the journal knows a value by everything that it depends on."""

    def score(method: str, point: Settings, seed: int) -> tuple[float, float]:
        try:
            return validation_score(study, method, {**settings[method], **point}, (seed,))
        except DIVERGENCE:
            return math.inf, 0.0

    def name(method: str, point: Settings, seed: int) -> str:
        return content_hash(
            [study.name, method, {**settings[method], **point}, seed, study.tune_on]
        )

    journal = folder / GRID_FILE
    grids = {
        method: {n: values for n, values in study.grid.items() if own.get(n) is not None}
        for method, own in settings.items()
    }
    return grid_search(grids, study.tuning_seeds, score, name, journal, jobs, on_trial)


def _searches(
    study: Study,
    settings: Mapping[str, Settings],
    folder: Path,
    trials: int,
    seeds: Sequence[int],
    jobs: int,
    on_trial: OnTrial,
) -> dict[str, list[TunedTrial]]:
    """The trials of Optuna's search, method by method or several methods at the same time."""
    calls = {
        m: partial(_search, study, m, own, folder, trials, seeds) for m, own in settings.items()
    }
    if jobs == 1:
        return {method: call(on_trial) for method, call in calls.items()}
    made: dict[str, list[TunedTrial]] = {}
    for place, tried in in_processes(list(calls.values()), jobs):
        method = list(calls)[place]
        if isinstance(tried, Lost):
            raise RuntimeError(f"{method}: {tried.reason}")
        made[method] = tried
        for number, one in enumerate(tried, 1):
            on_trial(method, number, one.value)
    return made


def _search(
    study: Study,
    method: str,
    settings: Settings,
    folder: Path,
    trials: int,
    seeds: Sequence[int],
    on_trial: OnTrial = lambda method, number, value: None,
) -> list[TunedTrial]:
    """The first ``trials`` trials of one method, made now or before."""
    clock = [0.0]

    def evaluate(guess: Settings) -> float:
        score, seconds = validation_score(study, method, {**settings, **guess}, seeds)
        clock[0] += seconds
        return score

    ask, keep, before = _sampler(study, method, settings, folder, trials, len(seeds))
    made = list(before)
    for tried in search(ask, evaluate, before, lambda: clock[0]):
        made.append(tried)
        keep(tried)
        on_trial(method, len(made), tried.value)
    return made[:trials]


def _sampler(
    study: Study, method: str, settings: Settings, folder: Path, trials: int, seeds: int
) -> Any:
    """Optuna's proposals, what keeps a trial in its journal, and the trials kept before."""
    optuna = _optuna()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        journal = optuna.storages.journal.JournalFileBackend(str(folder / JOURNAL_FILE))
        storage = optuna.storages.JournalStorage(journal)
    # Trials of another space, budget or number of seeds are another search.
    identity = content_hash(
        [settings, {k: list(v) for k, v in study.tunable.items()}, study.tune_on, seeds]
    )
    optimize = optuna.create_study(
        study_name=f"{method}/{identity}", storage=storage, load_if_exists=True
    )
    asked: list[Any] = []

    def ask(made: Sequence[TunedTrial]) -> Settings | None:
        if len(made) >= trials:
            return None
        # Seeded by how many trials are done: the search is the same for every method and after an
        # interruption.
        optimize.sampler = optuna.samplers.TPESampler(
            seed=stream_seed(0, f"tune-{len(made)}") % 2**32
        )
        asked.append(optimize.ask())
        return {
            n: asked[-1].suggest_float(n, low, high, log=True)
            for n, (low, high) in study.tunable.items()
        }

    def keep(tried: TunedTrial) -> None:
        asked[-1].set_user_attr("seconds", tried.seconds)
        optimize.tell(asked[-1], tried.value)

    # A trial that was killed does not count.
    done = optimize.get_trials(deepcopy=False, states=(optuna.trial.TrialState.COMPLETE,))
    ordered = sorted(done, key=lambda t: t.number)
    return (
        ask,
        keep,
        [TunedTrial(dict(t.params), t.value, t.user_attrs.get("seconds", 0.0)) for t in ordered],
    )


def validation_score(
    study: Study, method: str, settings: Settings, seeds: Sequence[int]
) -> tuple[float, float]:
    """Mean over the seeds of the last value of the validation column, and the seconds it took.

    A run that ends with ``diverged`` counts as infinite. Nothing but that column is looked at: test
    data cannot leak into a choice.
    """
    values, seconds = [], 0.0
    for seed in seeds:
        trial = Trial(method, seed, settings)
        value, diverged = math.inf, False
        for row in study.loop(trial):
            value, diverged = float(row.get(study.tune_on, value)), bool(row.get("diverged", False))
        values.append(value if math.isfinite(value) and not diverged else math.inf)
        seconds += trial.seconds
    return sum(values) / len(values), seconds


def _summary(made: Sequence[TunedTrial]) -> MethodTuning:
    first = best(made)
    return MethodTuning(
        first.settings, first.value, sum(trial.seconds for trial in made), tuple(made)
    )


def _optuna() -> Any:
    """Optuna, told to print errors only; an error that says what to install where it is missing."""
    try:
        import optuna
    except ImportError:
        missing("optuna", "tune")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna
