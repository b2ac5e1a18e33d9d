"""A grid search that several methods share: points in parallel, a journal, and further points
beyond an end.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from mindgap.lab.studies.processes import Lost, pool_of
from mindgap.record.forms import TunedTrial
from mindgap.record.schema import to_json
from mindgap.record.store import naming

Settings = dict[str, Any]
#: What the journal calls a value, and what computes it with the seconds it took.
Call = tuple[str, Callable[[], tuple[float, float]]]

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
    """The next points where the best one has the smallest or largest value tried of a setting; none
    if it is inside.

    The new value is as far from the end as the value before it, as a ratio; the other settings are
    those of the best point. A setting with one value or with values that are not positive is left
    as it is.

    Example:
        >>> scores = {1.0: 0.5, 3.0: 0.3, 9.0: 0.2}
        >>> beyond(
        ...     [TunedTrial({"lr": lr}, score) for lr, score in scores.items()],
        ...     {"lr": (1.0, 3.0, 9.0)},
        ... )
        [{'lr': 27.0}]
    """
    top = min(tried, key=lambda one: one.value).settings
    found = []
    for name, first in grid.items():
        values = sorted({one.settings[name] for one in tried})
        if len(values) < 2 or values[0] <= 0:
            continue
        below, above = (sum(v < min(first) for v in values), sum(v > max(first) for v in values))
        for end, inner, made in ((values[0], values[1], below), (values[-1], values[-2], above)):
            value = end * end / inner
            if isinstance(end, int):
                value = int(value) if value == int(value) else end
            if top[name] == end != value and made < MOST_EXTENSIONS:
                found.append({**top, name: value})
    return found


def grid_search(
    grids: Mapping[str, Mapping[str, Sequence[float]]],
    seeds: Sequence[int],
    score: Callable[[str, Settings, int], tuple[float, float]],
    name: Callable[[str, Settings, int], str],
    journal: Path,
    jobs: int = 1,
    on_trial: Callable[[str, int, float], None] = lambda method, number, value: None,
) -> dict[str, list[TunedTrial]]:
    """Try every point for every method, then points :func:`beyond` the ends until each method's
    best lies inside.

    No method waits for another: one whose points are all known goes on to those beyond its ends.

    Args:
        grids: method -> setting -> values.
        seeds: a point's value is the mean over the seeds.
        score: method, point, seed -> value, the smaller the better, and the seconds it took.
        name: method, point, seed -> what the journal calls them.
        journal: one line per value, written as it comes; values that it holds are not computed
            again.
        jobs: processes; each computes one value at a time.
        on_trial: called with method, number and value of each point.
    """
    known = _read(journal)
    points = {method: grid_points(grid) for method, grid in grids.items()}
    made: dict[str, list[TunedTrial]] = {method: [] for method in grids}
    wanted: dict[str, int] = {}  # method -> values that it waits for
    owner: dict[str, str] = {}  # name of a value -> its method

    def next_of(method: str) -> list[Call]:
        """Take in what is known of a method; the values that it needs next, none when it is
        done.
        """
        while todo := points[method][len(made[method]) :]:
            names = {name(method, p, s): partial(score, method, p, s) for p in todo for s in seeds}
            missing: list[Call] = [(key, call) for key, call in names.items() if key not in known]
            if missing:
                wanted[method] = len(missing)
                owner.update((key, method) for key, _ in missing)
                return missing
            for point in todo:
                values, seconds = zip(*(known[name(method, point, seed)] for seed in seeds))
                made[method].append(TunedTrial(point, sum(values) / len(values), sum(seconds)))
                on_trial(method, len(made[method]), made[method][-1].value)
            points[method] += beyond(made[method], grids[method])
        return []

    with journal.open("a") as file:

        def keep(key: str, result: tuple[float, float]) -> list[Call]:
            """Write a value down; the values that are needed next because of it."""
            known[key] = result
            with naming(journal):  # a line cut short before stays alone
                file.write("\n" + to_json([key, *result]))
                file.flush()
            wanted[owner[key]] -= 1
            return [] if wanted[owner[key]] else next_of(owner[key])

        _compute([call for method in grids for call in next_of(method)], keep, jobs)
    return made


def _compute(
    first: Sequence[Call], keep: Callable[[str, tuple[float, float]], list[Call]], jobs: int
) -> None:
    """Carry out calls and those that follow from their results."""
    calls = list(first)
    if jobs == 1:
        for key, call in calls:  # grows meanwhile
            calls += keep(key, call())
        return
    with pool_of([call for _, call in calls], jobs) as pool:
        for place, result in pool:
            if isinstance(result, Lost):
                raise RuntimeError(f"a point of the grid: {result.reason}")
            more = keep(calls[place][0], result)
            calls += more
            pool.add([call for _, call in more])


def _read(journal: Path) -> dict[str, tuple[float, float]]:
    """What the journal holds; a line cut short by an interruption is left out."""
    known = {}
    for line in journal.read_text().splitlines() if journal.exists() else []:
        try:
            key, value, seconds = json.loads(line)
            known[str(key)] = float(value), float(seconds)
        except (ValueError, TypeError):
            continue
    return known
