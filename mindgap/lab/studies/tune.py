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
from importlib import import_module
from pathlib import Path
from typing import Any

from mindgap.base.check import fail, missing, one_of, whole
from mindgap.base.rng import stream_seed
from mindgap.lab.studies.grid import Settings, grid_points, grid_search
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

#: Overrides that shorten the runs of a search.
SHORTENING = ("steps", "epochs", "every", "oracle_calls", "readings")

#: What a trial may raise when its numbers grow without bound.
DIVERGENCE = (OverflowError, FloatingPointError)

#: Called with method, number (from 1) and value (score) of a trial.
OnTrial = Callable[[str, int, float], None]


def search(
    ask: Callable[[Sequence[TunedTrial]], Settings | None],
    evaluate: Callable[[Settings], float],
    earlier: Sequence[TunedTrial] = (),
    seconds: Callable[[], float] = lambda: 0.0,
) -> Iterator[TunedTrial]:
    """Try what ``ask`` proposes until it proposes nothing, and yield each trial as it ends.

    Args:
        ask: what was tried so far -> the next settings, or None.
        evaluate: settings -> a score, the smaller the better. One that is not finite, or an error
            of :data:`DIVERGENCE`, counts as infinite.
        earlier: what was tried before an interruption; it is not handed out again.
        seconds: reads a stopwatch that runs while settings are evaluated.

    Example:
        >>> points = [{"lr": 1.0}, {"lr": 3.0}]
        >>> tried = list(search(listed(points), lambda point: (point["lr"] - 2.5) ** 2))
        >>> best_trial(tried).settings
        {'lr': 3.0}
    """
    tried = list(earlier)
    while (settings := ask(tried)) is not None:
        start = seconds()
        try:
            score = float(evaluate(settings))
        except DIVERGENCE:
            score = math.inf
        value = score if math.isfinite(score) else math.inf
        tried.append(TunedTrial(settings, value, seconds() - start))
        yield tried[-1]


def listed(points: Sequence[Settings]) -> Callable[[Sequence[TunedTrial]], Settings | None]:
    """An ``ask`` for :func:`search` that proposes the given settings in their order."""
    return lambda tried: points[len(tried)] if len(tried) < len(points) else None


def best_trial(tried: Sequence[TunedTrial]) -> TunedTrial:
    """The one with the smallest score, the first of equals."""
    return min(tried, key=lambda trial: trial.value)


def _best_trials(tried: Sequence[TunedTrial], number: int) -> list[TunedTrial]:
    """The trials with the smallest scores, at most so many; without those that diverged, unless all
    have.
    """
    ranked = sorted(tried, key=lambda trial: trial.value)
    return [trial for trial in ranked if math.isfinite(trial.value)][:number] or ranked[:1]


def random_points(
    trial: Trial, space: Mapping[str, tuple[float, float]], number: int
) -> list[Settings]:
    """The points of a random search.

    Each setting has a stream of its own name, so that methods which share a setting try the same
    values of it.

    Args:
        trial: names the random streams by its seed.
        space: setting -> its two ends. Values are log-uniform between them, or uniform among whole
            numbers where both ends are whole.
        number: of points.

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
    confirm: int = 0,
    jobs: int = 1,
    on_trial: OnTrial = lambda method, number, value: None,
) -> Tuning:
    """Search ``study.tunable`` (or ``study.grid``) for every method and write what was chosen.

    Two files are written into the study's folder below ``out``: ``tuning.json``, and the journal of
    trials, with which an interrupted search goes on where it stopped.

    * Methods of the same search that are left out now keep what was chosen for them.
    * Asking for fewer trials than were made before considers only the first ones.
    * A grid is the same for every method at first. Where a method's best point lies at an end,
      further points beyond it are tried (see :func:`~mindgap.lab.studies.grid.beyond`).

    Args:
        study: a study with :attr:`~mindgap.lab.studies.spec.Study.tunable` and ``tune_on``.
        scale: one of its scales.
        out: the folder of records.
        trials: trials of every method: there is no way to give one method more than another.
        seeds: tuning seeds that each trial is averaged over.
        grid: try every point of ``study.grid`` instead, on ``study.tuning_seeds``.
        overrides: setting -> value for all methods alike (a smaller budget, say).
        confirm: so many of a method's best points of a grid are tried again without the overrides
            named in :data:`SHORTENING`, and one of them is chosen; 0: none.
        jobs: methods searched at the same time; with ``grid``, points of all methods.
        on_trial: called with method, number and value of each trial.

    Returns:
        What ``tuning.json`` holds.

    Raises:
        RuleError: nothing to tune, unknown scale, fewer than one trial or seed, or some methods
            by another search than the others had.
    """
    for name, number in {"trials": trials, "seeds": seeds, "jobs": jobs}.items():
        whole(name, number, least=1)
    if whole("confirm", confirm, least=0) and not grid:
        fail("confirm", "must be 0 without grid", confirm)
    from mindgap.lab.studies.run import command, machine, now, versions

    study = study.at(one_of("scale", scale, study.scales))
    space = study.grid if grid else study.tunable
    if not space or not study.tune_on:
        kind = "grid" if grid else "tunable"
        rule = f"must say what may be tuned ({kind}) and on which column (tune_on)"
        fail("study", rule, study.name)
    settings = _settings_to_tune(study, scale, tuple(space), overrides)
    started, folder = now(), out / study.name / scale
    folder.mkdir(parents=True, exist_ok=True)
    if grid:
        tuning_seeds, trials = study.tuning_seeds, len(grid_points(study.grid))
    else:
        tuning_seeds = tuple(FIRST_SEED + k for k in range(seeds))
    tuning = Tuning(
        study=study.name,
        scale=scale,
        metric=study.tune_on,
        space={name: [min(values), max(values)] for name, values in space.items()},
        trials=trials,
        seeds=tuning_seeds,
        methods={},
        overrides=dict(overrides or {}),
        command=command(),
        versions=dict(versions()),
        machine=machine(next(iter(settings.values()))),
        started=started,
        registered=registered_hash(folder),
    )
    methods: dict[str, MethodTuning] = {}
    if study.left_out and (folder / TUNING_FILE).exists():
        written = read_form(Tuning, folder / TUNING_FILE)  # by an earlier search
        if written.identity != tuning.identity:
            others, their_seeds = ", ".join(written.methods), ", ".join(map(str, written.seeds))
            rule = (
                f"must be searched as {others} were ({written.trials} trials, seeds {their_seeds}; "
                f"{folder / TUNING_FILE}), or all methods at once"
            )
            fail("method", rule, ", ".join(settings))
        methods = dict(written.methods)
    if grid:
        trials_of = _tune_by_grid(study, settings, folder, jobs, on_trial)
    else:
        trials_of = _tune_by_optuna(study, settings, folder, trials, tuning_seeds, jobs, on_trial)
    confirmed: Mapping[str, list[TunedTrial]] = {}
    if confirm:
        kept = {name: value for name, value in (overrides or {}).items() if name not in SHORTENING}
        at_length = _settings_to_tune(study, scale, tuple(space), kept)
        only = {
            method: [dict(trial.settings) for trial in _best_trials(tried, confirm)]
            for method, tried in trials_of.items()
        }
        confirmed = _tune_by_grid(study, at_length, folder, jobs, on_trial, only)
    for method in settings:
        tried, again = trials_of[method], confirmed.get(method, [])
        best = best_trial(again or tried)
        seconds = sum(trial.seconds for trial in (*tried, *again))
        methods[method] = MethodTuning(
            best.settings, best.value, seconds, tuple(tried), tuple(again)
        )
    tuning = replace(tuning, methods=methods)
    write_form(folder / TUNING_FILE, tuning)
    return tuning


def _settings_to_tune(
    study: Study, scale: str, names: Sequence[str], overrides: Mapping[str, Any] | None
) -> dict[str, Settings]:
    """The methods that can be tuned at a scale.

    They have a value for every setting to be searched; those of ``grid_where_present`` may be
    missing.

    Args:
        study, scale: of the methods.
        names: of the settings to be searched.
        overrides: setting -> value, for all methods alike.

    Returns:
        Method -> all its settings.

    Raises:
        RuleError: no method has the settings.
    """
    must_have = [name for name in names if name not in study.grid_where_present]
    settings = {
        method: study.settings(scale, method, overrides)
        for method in study.seeds(scale)
        if all(study.settings(scale, method).get(name) is not None for name in must_have)
    }
    if not settings:
        fail("scale", f"must be one at which a method has the settings {', '.join(names)}", scale)
    return settings


def _tune_by_grid(
    study: Study,
    settings: Mapping[str, Settings],
    folder: Path,
    jobs: int,
    on_trial: OnTrial,
    only: Mapping[str, Sequence[Settings]] | None = None,
) -> dict[str, list[TunedTrial]]:
    """Search each method over those settings of ``study.grid`` that it has.

    Its twin :func:`_tune_by_optuna` searches ``study.tunable``.

    Args:
        study: with ``grid`` and ``tuning_seeds``.
        settings: method -> all its settings.
        folder: of the study's records; the journal of the grid is written there.
        jobs: processes, for points of all methods.
        on_trial: see :data:`OnTrial`.
        only: see :func:`~mindgap.lab.studies.grid.grid_search`.

    Returns:
        Method -> its trials.
    """

    def score(method: str, point: Settings, seed: int) -> tuple[float, float]:
        """Score of a point, laid over the method's own settings, with one seed, and the seconds it
        took; infinite and 0 after an error of :data:`DIVERGENCE`.
        """
        try:
            return validation_score(study, method, {**settings[method], **point}, (seed,))
        except DIVERGENCE:
            return math.inf, 0.0

    def name(method: str, point: Settings, seed: int) -> str:
        """What the journal calls the score: a hash of everything that it depends on."""
        return content_hash(
            [study.name, method, {**settings[method], **point}, seed, study.tune_on]
        )

    grids = {
        method: {
            setting: values
            for setting, values in study.grid.items()
            if own_settings.get(setting) is not None
        }
        for method, own_settings in settings.items()
    }
    journal = folder / GRID_FILE
    return grid_search(grids, study.tuning_seeds, score, name, journal, jobs, on_trial, only)


def _tune_by_optuna(
    study: Study,
    settings: Mapping[str, Settings],
    folder: Path,
    trials: int,
    seeds: Sequence[int],
    jobs: int,
    on_trial: OnTrial,
) -> dict[str, list[TunedTrial]]:
    """Search each method over ``study.tunable`` by Optuna.

    Its twin :func:`_tune_by_grid` tries the points of ``study.grid``.

    Args:
        study: with ``tunable``.
        settings: method -> all its settings.
        folder: of the study's records; Optuna's journal is written there.
        trials: of each method.
        seeds: that each trial is averaged over.
        jobs: methods searched at the same time, in processes of their own; 1: one after the other
            in this process.
        on_trial: see :data:`OnTrial`; with several jobs it is called when a method is done.

    Returns:
        Method -> its trials.

    Raises:
        RuntimeError: a process died several times.
    """
    calls = {
        method: partial(_search_method, study, method, own_settings, folder, trials, seeds)
        for method, own_settings in settings.items()
    }
    if jobs == 1:
        return {method: call(on_trial) for method, call in calls.items()}
    trials_of: dict[str, list[TunedTrial]] = {}
    for number, result in in_processes(list(calls.values()), jobs):
        method = list(calls)[number]
        if isinstance(result, Lost):
            raise RuntimeError(f"{method}: {result.reason}")
        trials_of[method] = result
        for trial_number, trial in enumerate(result, 1):
            on_trial(method, trial_number, trial.value)
    return trials_of


def _search_method(
    study: Study,
    method: str,
    settings: Settings,
    folder: Path,
    trials: int,
    seeds: Sequence[int],
    on_trial: OnTrial = lambda method, number, value: None,
) -> list[TunedTrial]:
    """Search one method over ``study.tunable`` by Optuna; returns its first ``trials`` trials.

    Those in its journal are taken from there. The others are carried out now and written into it.
    The other arguments are those of :func:`_tune_by_optuna`, with the ``settings`` of the one
    ``method``.
    """
    total_seconds = 0.0  # of the trials carried out now

    def evaluate(proposed: Settings) -> float:
        """The mean score over the seeds with the proposed settings laid over the method's own; the
        seconds of the runs are added to the total.
        """
        nonlocal total_seconds
        score, seconds = validation_score(study, method, {**settings, **proposed}, seeds)
        total_seconds += seconds
        return score

    ask, write, journalled = _sampler(study, method, settings, folder, trials, len(seeds))
    all_trials = list(journalled)
    # The search reads its seconds from the runs' own stopwatches, which stand while rows are read.
    for trial in search(ask, evaluate, journalled, lambda: total_seconds):
        all_trials.append(trial)
        write(trial)
        on_trial(method, len(all_trials), trial.value)
    return all_trials[:trials]


def _sampler(
    study: Study, method: str, settings: Settings, folder: Path, trials: int, seeds: int
) -> Any:
    """Optuna's search for the settings of one method, with its journal in a folder.

    Args:
        study: with the space ``tunable`` and the column ``tune_on``.
        method: whose settings.
        settings: all settings of the method.
        folder: of the journal.
        trials: after so many nothing more is proposed.
        seeds: how many each trial is averaged over; another number is another search.

    Returns:
        ``ask(trials so far) -> next settings or None``; ``write(trial)``, which writes a trial
        into the journal; and the trials that the journal holds, in their order.

    Raises:
        MissingPackageError: Optuna is not installed.
    """
    try:
        optuna: Any = import_module("optuna")
    except ImportError:
        missing("optuna", "tune")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        journal = optuna.storages.journal.JournalFileBackend(str(folder / JOURNAL_FILE))
        storage = optuna.storages.JournalStorage(journal)
    # Trials of another space, budget or number of seeds are another search.
    identity = content_hash(
        [settings, {name: list(ends) for name, ends in study.tunable.items()}, study.tune_on, seeds]
    )
    optimize = optuna.create_study(
        study_name=f"{method}/{identity}", storage=storage, load_if_exists=True
    )
    proposals: list[Any] = []  # Optuna's trials, filled by ``ask``

    def ask(tried: Sequence[TunedTrial]) -> Settings | None:
        """The next settings; None after so many trials."""
        if len(tried) >= trials:
            return None
        # Seeded by how many trials are done: the search is the same for every method and after an
        # interruption. Optuna takes seeds of 32 bits.
        optimize.sampler = optuna.samplers.TPESampler(
            seed=stream_seed(0, f"tune-{len(tried)}") % 2**32
        )
        proposals.append(optimize.ask())
        return {
            name: proposals[-1].suggest_float(name, low, high, log=True)
            for name, (low, high) in study.tunable.items()
        }

    def write(trial: TunedTrial) -> None:
        """Write the trial proposed last, and its score, into the journal."""
        proposals[-1].set_user_attr("seconds", trial.seconds)
        optimize.tell(proposals[-1], trial.value)

    # A trial that was killed does not count.
    complete = optimize.get_trials(deepcopy=False, states=(optuna.trial.TrialState.COMPLETE,))
    journalled = [
        TunedTrial(dict(trial.params), trial.value, trial.user_attrs.get("seconds", 0.0))
        for trial in sorted(complete, key=lambda trial: trial.number)
    ]
    return ask, write, journalled


def validation_score(
    study: Study, method: str, settings: Settings, seeds: Sequence[int]
) -> tuple[float, float]:
    """Run a method with each seed; returns its mean score, and the seconds that all runs took.

    The score of a run is its last value of the validation column ``study.tune_on``. It is infinite
    if that is not finite or missing, or if the run ends with ``diverged``. Nothing else is looked
    at: test data cannot leak into a choice.
    """
    scores, seconds = [], 0.0
    for seed in seeds:
        trial = Trial(method, seed, settings)
        score, diverged = math.inf, False
        for row in study.loop(trial):
            # A row without the column keeps the last value; only the last row tells a divergence.
            score = float(row.get(study.tune_on, score))
            diverged = bool(row.get("diverged", False))
        scores.append(score if math.isfinite(score) and not diverged else math.inf)
        seconds += trial.seconds
    return sum(scores) / len(scores), seconds
