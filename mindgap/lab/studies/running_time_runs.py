"""Runs whose time is measured, and the rule that compares times: what the studies of B5 share.

*Time* is CPU seconds of the process inside the method, warm start and refinement included; a
throw-away run of a few iterations comes first, so that no method pays for what is loaded once. For
a net, time is seconds of the clock in CUDA graphs, without the time that capturing them takes, and
comes from a run of its own that nothing interrupts: the host's work at every reading would count
otherwise, and takes longer than ten oracle calls.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from mindgap.bilevel.registry import METHODS
from mindgap.lab.studies import cleaning_runs, representation_runs
from mindgap.lab.studies.bilevel_runs import by_case, trained_gate
from mindgap.lab.studies.spec import Parts, Row, Run, Trial
from mindgap.lab.studies.verdict import ONE_SIDED, as_ratios, mean_interval, ratio_words

#: data on which a recurrent net runs, on a GPU
NETS = (*cleaning_runs.TEXTS, *representation_runs.WORDS)

#: iterations of the run that is thrown away
THROWN_AWAY = 5


def time_alone(
    trial: Trial, task: Any, method: Any, rows_of: Callable[..., Iterator[Row]], perfect: float
) -> Iterator[Row]:
    """Rows of a run with its times.

    With the setting ``alone`` it waits until it has the GPU to itself. For a net two runs are made:
    the first is not interrupted and gives the seconds per oracle call, the second gives the rows,
    whose seconds are computed from their calls.

    Args:
        trial: its settings ``clock_calls`` (oracle calls of the first run; else ``oracle_calls``)
            and ``alone`` may be missing.
        task, method: what runs on what.
        rows_of: (trial, task, method, budget, readings) -> the rows of a run.
        perfect: the accuracy of which :func:`reach` takes shares.

    Yields:
        The rows of ``rows_of`` with ``seconds``, ``cpu_seconds`` and ``perfect_accuracy``.
    """
    budget, on_net = trial["oracle_calls"], trial["data"] in NETS
    with _gpu_to_itself(trial):
        _throw_away(task.problem(trial["batch_size"]), method, trial.seed)
        if on_net:
            clock_trial = Trial(trial.method, trial.seed, trial.settings)
            clock_calls = trial.settings.get("clock_calls", budget)
            clock_rows = rows_of(clock_trial, task, method, budget=clock_calls, readings=1)
            # Rows of the start and of the end. While a row is looked at, the stopwatch stands at
            # its time.
            (first_calls, start_seconds), (last_calls, end_seconds) = [
                (row["oracle_calls"], clock_trial.seconds) for row in clock_rows
            ]
            seconds_per_call = (end_seconds - start_seconds) / (last_calls - first_calls)
        for row in rows_of(trial, task, method, budget=budget, readings=trial["readings"]):
            seconds = (
                start_seconds + seconds_per_call * (row["oracle_calls"] - first_calls)
                if on_net
                else trial.seconds
            )
            yield {
                **row,
                "cpu_seconds": round(trial.cpu_seconds, 6),
                "perfect_accuracy": perfect,
                "seconds": round(seconds, 6),
            }


@contextmanager
def _gpu_to_itself(trial: Trial) -> Iterator[None]:
    """With the setting ``alone``: wait until no other such run has the GPU, and keep it for the
    block.

    Clocks of runs that share a device tell nothing. The lock is a file in the cache folder.
    """
    if not trial.settings.get("alone"):
        yield
        return
    from filelock import FileLock

    from mindgap.lab.tasks.data.fetch import cache_folder

    cache_folder().mkdir(parents=True, exist_ok=True)
    with FileLock(cache_folder() / "clocked.lock"):
        yield


def _throw_away(problem: Any, method: Any, seed: int) -> None:
    """Run :data:`THROWN_AWAY` iterations and discard them, so that no method pays for what is
    loaded once.
    """
    state = method.start(problem, seed=seed)
    for _ in range(THROWN_AWAY):
        state = method.step(state)


class Reached(NamedTuple):
    """When a run first shows an accuracy; its end, a lower bound, where it never does."""

    seconds: float  # of the processor, or of the clock for a net on a GPU
    calls: int  # of the oracle
    seen: bool  # whether the run shows the accuracy


def reach(run: Run, share: float) -> Reached:
    """When a run first shows the given share of the perfect accuracy."""
    level = share * run.rows[0]["perfect_accuracy"]
    seen = [row for row in run.rows if row["test_accuracy"] >= level]
    row = seen[0] if seen else run.rows[-1]
    return Reached(row[clock_of(run)], row["oracle_calls"], bool(seen))


def clock_of(run: Run) -> str:
    """The column in which time is read."""
    return "seconds" if run.header.settings["data"] in NETS else "cpu_seconds"


#: (case, share of the perfect accuracy in words) -> seed -> (log of another method's time over
#: SLIP's, log of its oracle calls over SLIP's).
Ratios = dict[tuple[str, str], dict[int, tuple[float, float]]]


def judge(runs: Sequence[Run]) -> Parts:
    """Judge whether SLIP is sooner than BO-REP, by one number per seed.

    The number is the mean log of BO-REP's time over SLIP's, pooled over cases (corruptions or data)
    and accuracies. Notes give the same ratio in oracle calls, the other methods' times, and the
    accuracies that nobody reached.
    """
    # (case, key of the method) -> seed -> run.
    parts, groups, settings = Parts(), by_case(runs, "key"), runs[0].header.settings
    on_gpu = clock_of(runs[0]) == "seconds"
    ratios = _ratios_to_slip(groups, "borep", settings["levels"])
    if runs[0].header.scale in ("gpu", "paper"):
        trained_gate(parts, runs)
    seeds = sorted({seed for of_seeds in ratios.values() for seed in of_seeds})
    if len(seeds) < 2:
        parts.decide_nothing("too few runs reach an accuracy")
        return parts
    # Per seed: mean log ratio of times and of calls, over the cases and accuracies it has.
    means_of_seeds = [
        np.mean([of_seeds[seed] for of_seeds in ratios.values() if seed in of_seeds], axis=0)
        for seed in seeds
    ]
    in_time, in_calls = (np.array(logs) for logs in zip(*means_of_seeds))
    parts.sooner("SLIP sooner", in_time, "seconds on the GPU: " if on_gpu else "CPU seconds: ")
    calls = mean_interval(in_calls, miss=ONE_SIDED)
    logs_of = {
        ", ".join(place): list(by_seed.values()) for place, by_seed in ratios.items() if by_seed
    }
    parts.note(
        f"in oracle calls: {ratio_words(calls)}",
        {
            "ratio_of_oracle_calls": as_ratios(calls),
            "ratio": {name: float(np.exp(np.mean(logs, 0)[0])) for name, logs in logs_of.items()},
        },
    )
    parts.note(*_note_on_others(groups, settings["levels"]))
    unreached = [", ".join(place) for place, by_seed in ratios.items() if not by_seed]
    parts.note(
        f"not reached: {', '.join(unreached)}" if unreached else "", {"not_reached": unreached}
    )
    if on_gpu and not settings.get("alone"):
        parts.decide_nothing("several runs shared the GPU while they were timed")
    return parts


def _ratios_to_slip(
    groups: Mapping[tuple[Any, ...], Mapping[int, Run]], key: str, levels: Sequence[float]
) -> Ratios:
    """How much longer than SLIP another method takes to each accuracy in each case.

    Args:
        groups: (case, key of the method) -> seed -> run.
        key: of the other method.
        levels: shares of the perfect accuracy.

    Returns:
        See :data:`Ratios`; seeds in which neither method reaches an accuracy are left out.
    """
    ratios: Ratios = {}
    for case in sorted({case for case, method in groups if method == key}):
        slip, other = groups[case, "slip"], groups[case, key]
        for level in levels:
            ratios[case, f"{level:.0%}"] = of_seeds = {}  # filled below, in place
            for seed in sorted(slip.keys() & other.keys()):
                own, others = reach(slip[seed], level), reach(other[seed], level)
                if own.seen or others.seen:
                    # A level met at the start of both, before any clock ran, is a tie.
                    of_seeds[seed] = (
                        math.log(max(others.seconds, 1e-9) / max(own.seconds, 1e-9)),
                        math.log(max(others.calls, 1) / max(own.calls, 1)),
                    )
    return ratios


def _note_on_others(
    groups: Mapping[tuple[Any, ...], Mapping[int, Run]], levels: Sequence[float]
) -> tuple[str, dict[str, Any]]:
    """A note on all methods but SLIP and BO-REP: their times over SLIP's.

    Each is the geometric mean over cases, accuracies and seeds; a method that reaches none is left
    out. The arguments are those of :func:`_ratios_to_slip`.

    Returns:
        The sentence, empty where there is no such method, and the numbers for the verdict.
    """
    ratios = {}
    for key in dict.fromkeys(key for _, key in groups if key not in ("slip", "borep")):
        ratios_of_case = _ratios_to_slip(groups, key, levels).values()
        logs = [log for of_seeds in ratios_of_case for log, _ in of_seeds.values()]
        if logs:
            ratios[key] = float(np.exp(np.mean(logs)))
    fastest_first = sorted(ratios, key=lambda key: ratios[key])
    words = ", ".join(f"{METHODS[key].name} {ratios[key]:.2f}" for key in fastest_first)
    return (f"time over SLIP's, beside: {words}" if words else "", {"ratio_beside": ratios})
