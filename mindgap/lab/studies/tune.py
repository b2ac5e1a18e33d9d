"""Search each method's settings with the same number of trials, in the same space, on validation data only.

Optuna's storage is a file beside the records; what is chosen goes into ``tuning.json``, which ``mindgap run`` reads and
the report shows. Fairness is not left to care: one number of trials holds for all methods, the choice is made among
the first so many of each, seeds are the same for all methods and are not those of the runs that are reported.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from mindgap.base.check import fail, one_of, whole
from mindgap.base.rng import stream_seed
from mindgap.lab.studies.loop import Trial
from mindgap.lab.studies.processes import Lost, in_processes
from mindgap.lab.studies.spec import Study
from mindgap.record.forms import MethodTuning, TunedTrial, Tuning, read_form, write_form
from mindgap.record.schema import content_hash
from mindgap.record.store import TUNING_FILE

JOURNAL_FILE = "tuning.journal"

#: Tuning runs have seeds from here on; the runs that are reported count from 0.
FIRST_SEED = 10_000

OnTrial = Callable[[str, int, float], None]


def tune(
    study: Study,
    scale: str,
    out: Path,
    *,
    trials: int = 20,
    seeds: int = 1,
    overrides: Mapping[str, Any] | None = None,
    jobs: int = 1,
    on_trial: OnTrial = lambda method, number, value: None,
) -> Tuning:
    """Search ``study.tunable`` for every method and write what was chosen.

    A search that was interrupted goes on where it stopped; asking for fewer trials than were made before considers
    the first so many only.

    Args:
        study: a study with :attr:`~mindgap.lab.studies.spec.Study.tunable` and ``tune_on``.
        scale: one of its scales.
        out: the folder of records.
        trials: trials of every method: there is no way to give one method more than another.
        seeds: tuning seeds that each trial is averaged over.
        overrides: setting -> value for all methods alike (a smaller budget, say).
        jobs: methods searched at the same time.
        on_trial: called after each trial with method, number and value; with several ``jobs``, after each method.

    Returns:
        What ``tuning.json`` holds.

    Raises:
        RuleError: nothing to tune, unknown scale, or fewer than one trial or seed.
    """
    whole("trials", trials, least=1)
    whole("seeds", seeds, least=1)
    whole("jobs", jobs, least=1)
    one_of("scale", scale, study.scales)
    if not study.tunable or not study.tune_on:
        fail("study", "must say what may be tuned (tunable) and on which column (tune_on)", study.name)
    _optuna()
    folder = out / study.name / scale
    folder.mkdir(parents=True, exist_ok=True)
    arguments = [(study, scale, method, folder, trials, seeds, dict(overrides or {})) for method in study.methods]
    if jobs == 1:
        found = [_search(*a, on_trial=on_trial) for a in arguments]
    else:
        ended: dict[int, list[TunedTrial]] = {}
        for place, made in in_processes([partial(_search, *a) for a in arguments], jobs):
            if isinstance(made, Lost):
                raise RuntimeError(f"{list(study.methods)[place]}: {made.reason}")
            ended[place] = made
            for number, trial in enumerate(made, 1):
                on_trial(list(study.methods)[place], number, trial.value)
        found = [ended[place] for place in range(len(arguments))]
    tuning = Tuning(
        study=study.name,
        scale=scale,
        metric=study.tune_on,
        space={name: list(ends) for name, ends in study.tunable.items()},
        trials=trials,
        seeds=tuple(FIRST_SEED + k for k in range(seeds)),
        methods={method: _summary(made[:trials]) for method, made in zip(study.methods, found)},
    )
    write_form(folder / TUNING_FILE, tuning)
    return tuning


def chosen(out: Path, study: Study, scale: str) -> dict[str, dict[str, Any]]:
    """Method -> the settings a search has chosen; empty where there was none."""
    path = out / study.name / scale / TUNING_FILE
    if not path.exists():
        return {}
    return {method: dict(found.chosen) for method, found in read_form(Tuning, path).methods.items()}


def _search(
    study: Study,
    scale: str,
    method: str,
    folder: Path,
    trials: int,
    seeds: int,
    overrides: dict[str, Any],
    on_trial: OnTrial = lambda method, number, value: None,
) -> list[TunedTrial]:
    """The first ``trials`` trials of one method, made now or before."""
    optuna = _optuna()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        journal = optuna.storages.journal.JournalFileBackend(str(folder / JOURNAL_FILE))
        storage = optuna.storages.JournalStorage(journal)
    settings = study.settings(scale, method, overrides)
    # Trials of another space, budget or number of seeds are another search.
    identity = content_hash([settings, {k: list(v) for k, v in study.tunable.items()}, study.tune_on, seeds])
    search = optuna.create_study(study_name=f"{method}/{identity}", storage=storage, load_if_exists=True)
    while True:
        made = _completed(search, optuna)
        if len(made) >= trials:
            return made[:trials]
        # Seeded by how many trials are done: the search is the same for every method and after an interruption.
        search.sampler = optuna.samplers.TPESampler(seed=stream_seed(0, f"tune-{len(made)}") % 2**32)
        trial = search.ask()
        guess = {n: trial.suggest_float(n, low, high, log=True) for n, (low, high) in study.tunable.items()}
        value, seconds = _evaluate(study, method, {**settings, **guess}, seeds)
        trial.set_user_attr("seconds", seconds)
        search.tell(trial, value)
        on_trial(method, len(made) + 1, value)


def _completed(search: Any, optuna: Any) -> list[TunedTrial]:
    """Completed trials in the order in which they were made; a trial that was killed does not count."""
    done = search.get_trials(deepcopy=False, states=(optuna.trial.TrialState.COMPLETE,))
    return [
        TunedTrial(dict(t.params), t.value, t.user_attrs.get("seconds", 0.0))
        for t in sorted(done, key=lambda t: t.number)
    ]


def _evaluate(study: Study, method: str, settings: dict[str, Any], seeds: int) -> tuple[float, float]:
    """Mean over the tuning seeds of the last value of the validation column; what fails or diverges is infinitely bad.

    Nothing but that column is looked at: test data cannot leak into a choice.
    """
    values, seconds = [], 0.0
    for k in range(seeds):
        trial = Trial(method, FIRST_SEED + k, settings)
        last = math.inf
        try:
            for row in study.loop(trial):
                last = float(row.get(study.tune_on, last))
        except Exception:  # settings that break the method are settings that do not work
            last = math.inf
        values.append(last if math.isfinite(last) else math.inf)
        seconds += trial.seconds
    return sum(values) / len(values), seconds


def _summary(made: list[TunedTrial]) -> MethodTuning:
    best = min(made, key=lambda trial: trial.value)
    return MethodTuning(best.settings, best.value, sum(trial.seconds for trial in made), tuple(made))


def _optuna() -> Any:
    try:
        import optuna
    except ImportError:
        fail("optuna", "must be installed: pip install 'mindgap[tune]'", None)
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna
