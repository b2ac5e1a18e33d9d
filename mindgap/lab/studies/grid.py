"""A grid search that several methods share: points in parallel, a journal, and further points
beyond an end.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from mindgap.lab.studies.processes import Lost, pool_of
from mindgap.record.forms import TunedTrial
from mindgap.record.schema import to_json
from mindgap.record.store import naming

#: Name of a setting -> its value.
Settings = dict[str, Any]


class Call(NamedTuple):
    """The value of one point with one seed, still to be computed."""

    method: str
    name: str  # of the value, in the journal
    compute: Callable[[], tuple[float, float]]  # returns the value and the seconds it took


#: A grid is extended at most so many times at each of its ends.
MOST_EXTENSIONS = 4


def grid_points(grid: Mapping[str, Sequence[float]]) -> list[Settings]:
    """Every point of a grid.

    Example:
        >>> grid_points({"lr_x": (1.0, 10.0), "lr_y": (0.1,)})
        [{'lr_x': 1.0, 'lr_y': 0.1}, {'lr_x': 10.0, 'lr_y': 0.1}]
    """
    return [dict(zip(grid, values)) for values in product(*grid.values())]


def beyond(tried: Sequence[TunedTrial], grid: Mapping[str, Sequence[float]]) -> list[Settings]:
    """The points to try next: beyond each end of the grid at which the best point lies.

    Args:
        tried: all trials so far.
        grid: setting -> the values planned at first.

    Returns:
        One point per setting of which the best point has the smallest or the largest value tried.

    The new value continues the ratio of the last two: 1, 3, 9 is followed by 27. The other settings
    are those of the best point. A setting with one value or with values that are not positive is
    not extended, nor one that was extended :data:`MOST_EXTENSIONS` times at that end.

    Example:
        >>> scores = {1.0: 0.5, 3.0: 0.3, 9.0: 0.2}
        >>> beyond(
        ...     [TunedTrial({"lr": lr}, score) for lr, score in scores.items()],
        ...     {"lr": (1.0, 3.0, 9.0)},
        ... )
        [{'lr': 27.0}]
    """
    best = min(tried, key=lambda trial: trial.value).settings
    further = []
    for name, planned in grid.items():
        values = sorted({trial.settings[name] for trial in tried})
        if len(values) < 2 or values[0] <= 0:
            continue
        extended_below = sum(value < min(planned) for value in values)
        extended_above = sum(value > max(planned) for value in values)
        for end, neighbour, extensions in (
            (values[0], values[1], extended_below),
            (values[-1], values[-2], extended_above),
        ):
            if best[name] != end or extensions >= MOST_EXTENSIONS:
                continue
            next_value, is_whole = end * end / neighbour, isinstance(end, int)
            if is_whole and next_value != int(next_value):  # whole numbers stay whole
                continue
            if next_value != end:  # rounding may leave it where it is
                further.append({**best, name: int(next_value) if is_whole else next_value})
    return further


def grid_search(
    grids: Mapping[str, Mapping[str, Sequence[float]]],
    seeds: Sequence[int],
    score: Callable[[str, Settings, int], tuple[float, float]],
    name: Callable[[str, Settings, int], str],
    journal: Path,
    jobs: int = 1,
    on_trial: Callable[[str, int, float], None] = lambda method, number, value: None,
    only: Mapping[str, Sequence[Settings]] | None = None,
) -> dict[str, list[TunedTrial]]:
    """Try every point for every method, then points :func:`beyond` the ends until each method's
    best lies inside.

    No method waits for another: one whose points are all known goes on to those beyond its ends. A
    *value* is the score of one point with one seed.

    Args:
        grids: method -> setting -> values.
        seeds: a point's value is the mean over the seeds.
        score: method, point, seed -> value, the smaller the better, and the seconds it took.
        name: method, point, seed -> what the journal calls them.
        journal: file with one line per value, written as it comes; values that it holds are not
            computed again.
        jobs: processes; each computes one value at a time.
        on_trial: called with method, number (from 1) and mean score of each point.
        only: method -> points to try in place of those of its grid, and none beyond them.

    Returns:
        Method -> its trials, in the order in which their points were laid out.
    """
    known = _read(journal)  # name of a value -> the value, and the seconds it took
    # Method -> all points laid out so far, and trials of the first of them, whose values are known.
    points = {
        method: grid_points(grid) if only is None else list(only[method])
        for method, grid in grids.items()
    }
    trials_of: dict[str, list[TunedTrial]] = {method: [] for method in grids}
    asked_for: set[str] = set()  # names of the values whose calls were handed out

    def next_calls(method: str) -> list[Call]:
        """Hand out the calls that a method needs next; none while it waits for values, or at its
        end.

        Points of which all values are known become trials, and points beyond them are laid out.
        """
        while todo := points[method][len(trials_of[method]) :]:
            calls = {
                name(method, point, seed): partial(score, method, point, seed)
                for point in todo
                for seed in seeds
            }
            missing = [key for key in calls if key not in known]
            if missing:
                new = [Call(method, key, calls[key]) for key in missing if key not in asked_for]
                asked_for.update(missing)
                return new
            for point in todo:
                values, seconds = zip(*(known[name(method, point, seed)] for seed in seeds))
                trials_of[method].append(TunedTrial(point, sum(values) / len(values), sum(seconds)))
                on_trial(method, len(trials_of[method]), trials_of[method][-1].value)
            if only is None:
                points[method] += beyond(trials_of[method], grids[method])
        return []

    with journal.open("a") as file:

        def keep(call: Call, result: tuple[float, float]) -> list[Call]:
            """Write a call's value and seconds into the journal; returns what can follow it."""
            known[call.name] = result
            with naming(journal):
                # The line break comes first: a line that was cut short before stays alone.
                file.write("\n" + to_json([call.name, *result]))
                file.flush()
            return next_calls(call.method)

        _compute([call for method in grids for call in next_calls(method)], keep, jobs)
    return trials_of


def _compute(
    calls: list[Call], keep: Callable[[Call, tuple[float, float]], list[Call]], jobs: int
) -> None:
    """Carry out calls until none is left.

    Args:
        calls: those to begin with; those that follow are appended.
        keep: (call, its result) -> further calls that the result allows.
        jobs: in how many processes; 1: in this one.

    Raises:
        RuntimeError: a process died several times.
    """
    if jobs == 1:
        for call in calls:  # the list grows meanwhile
            calls += keep(call, call.compute())
        return
    with pool_of([call.compute for call in calls], jobs) as pool:
        for number, result in pool:
            if isinstance(result, Lost):
                raise RuntimeError(f"a point of the grid: {result.reason}")
            further = keep(calls[number], result)
            calls += further  # the pool numbers its calls in the order of this list
            pool.add([call.compute for call in further])


def _read(journal: Path) -> dict[str, tuple[float, float]]:
    """Name -> (value, seconds), from the journal; empty where there is no journal.

    Lines that cannot be read, such as one cut short by an interruption, are left out.
    """
    known = {}
    for line in journal.read_text().splitlines() if journal.exists() else []:
        with suppress(ValueError, TypeError):
            name, value, seconds = json.loads(line)
            known[str(name)] = float(value), float(seconds)
    return known
