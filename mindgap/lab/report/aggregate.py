"""From rows to what is drawn: one value per run and place, statistics over seeds, and thinning
that keeps extremes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from mindgap.record.schema import Run

#: Columns of a series of statistics, in the order of the CSV file.
STATISTICS = ("mean", "sd", "q10", "q50", "q90", "n")


#: Places and values of one run.
Curve = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Series:
    """What one method shows in one panel: equally long columns, ``x`` among them.

    A series over seeds has the columns of :data:`STATISTICS`, and ``ends`` with the same statistics
    of the last values of its runs; a series of one run has ``y``, and ``seed`` says whose.
    """

    method: str
    facet: str
    columns: dict[str, np.ndarray]
    seed: int | None = None
    ends: Mapping[str, float] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.columns["x"])


def facet_values(runs: Iterable[Run], facet: str) -> list[str]:
    """The panels of a figure, in order of appearance (numbers by size); ``[""]`` for one panel."""
    if not facet:
        return [""]
    seen: dict[Any, None] = {}
    for run in runs:
        for value in (
            [_of_run(run, facet)] if _of_run(run, facet) is not None else run.column(facet)
        ):
            seen.setdefault(tuple(value) if isinstance(value, list) else value)
    values = list(seen)
    if all(isinstance(v, (int, float)) for v in values):
        values.sort()
    return [facet_label(facet, v) for v in values]


#: Settings that the papers write in Greek.
GREEK = {
    "alpha": "α",
    "beta": "β",
    "gamma": "γ",
    "delta": "δ",
    "epsilon": "ε",
    "mu": "μ",
    "sigma": "σ",
    "tau": "τ",
}


def facet_label(facet: str, value: Any) -> str:
    """Example:
    >>> facet_label("tail", 1.5), facet_label("alpha", 2), facet_label("method", "SGD")
    ('tail = 1.5', 'α = 2', 'SGD')
    """
    if facet == "method" or isinstance(value, str):
        return str(value)
    name = GREEK.get(facet, facet)
    return f"{name} = {value:g}" if isinstance(value, float) else f"{name} = {value}"


def _of_run(run: Run, facet: str) -> Any:
    return run.header.method if facet == "method" else run.header.settings.get(facet)


def _is_number(value: Any) -> bool:
    """Whether a value of a row can be drawn; JSON has whole numbers that no float holds."""
    return isinstance(value, float) or (isinstance(value, int) and abs(value) < 2**1000)


class Readings:
    """One run as columns of numbers, each made once however many figures ask for it."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self._columns: dict[str, tuple[np.ndarray, np.ndarray]] = {}

    def column(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """The values of a quantity and in which rows it is a number."""
        if name not in self._columns:
            raw = [row.get(name) for row in self.run.rows]
            number = np.array([_is_number(v) for v in raw], dtype=bool)
            values = np.array(
                [v if ok else np.nan for v, ok in zip(raw, number.tolist())], dtype=float
            )
            self._columns[name] = values, number
        return self._columns[name]

    def panels(self, x: str, y: str, facet: str) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """Panel -> (x, y), over the rows that have both as numbers.

        Example:
            >>> from mindgap.record.schema import Header
            >>> rows = ({"step": 0, "loss": 2.0}, {"step": 1}, {"step": 2, "loss": 1.0})
            >>> readings = Readings(Run(Header("s", "S1", "quick", "m", 0, {}), rows))
            >>> [column.tolist() for column in readings.panels("step", "loss", "")[""]]
            [[0.0, 2.0], [2.0, 1.0]]
        """
        (a, has_a), (b, has_b) = self.column(x), self.column(y)
        both = has_a & has_b
        fixed = _of_run(self.run, facet) if facet else ""
        if fixed is not None:
            label = facet_label(facet, fixed) if facet else ""
            return {label: (a[both], b[both])} if both.any() else {}
        where: dict[str, list[int]] = {}
        for place in np.flatnonzero(both).tolist():
            if facet in self.run.rows[place]:
                where.setdefault(facet_label(facet, self.run.rows[place][facet]), []).append(place)
        return {label: (a[places], b[places]) for label, places in where.items()}


def over_seeds(
    readings_of_runs: Sequence[tuple[np.ndarray, np.ndarray]], grid: int = 512
) -> dict[str, np.ndarray]:
    """Statistics over runs at common places.

    Where the runs were read at the same places (steps, epochs), those are used as they are. Where
    they were not (seconds), each run is interpolated linearly, inside its own range only, at up to
    ``grid`` of the places read. The statistics stop where the first run ends: beyond, they would be
    about other seeds. A value that is not finite makes the mean there undefined (the line stops);
    in the quantiles it counts as largest.

    Example:
        >>> import numpy as np
        >>> table = over_seeds(
        ...     [
        ...         (np.array([0.0, 1.0]), np.array([1.0, 3.0])),
        ...         (np.array([0.0, 1.0]), np.array([3.0, 5.0])),
        ...     ]
        ... )
        >>> table["mean"].tolist(), table["n"].tolist()
        ([2.0, 4.0], [2.0, 2.0])
    """
    curves = _in_order(readings_of_runs)
    first_end = min((x[-1] for x, _ in curves), default=-np.inf)
    curves = [(x[x <= first_end], y[x <= first_end]) for x, y in curves]
    if not curves or not all(len(x) for x, _ in curves):
        return {name: np.empty(0) for name in ("x", *STATISTICS)}
    places = np.unique(np.concatenate([x for x, _ in curves]))
    if len(places) <= 1.2 * max(len(x) for x, _ in curves):
        return {"x": places, **_statistics(*_where_read(curves, places))}
    if len(places) > grid:
        places = places[np.unique(np.linspace(0, len(places) - 1, grid).astype(int))]
    inside = np.stack([(places >= x[0]) & (places <= x[-1]) for x, _ in curves])
    values = np.stack([np.interp(places, x, y) for x, y in curves])
    return {"x": places, **_statistics(values, inside)}


def _in_order(readings: Sequence[tuple[np.ndarray, np.ndarray]]) -> list[Curve]:
    """The runs that were read at all, each with one value per place, in order of place."""
    return [curve for x, y in readings if len((curve := one_value_per_place(x, y))[0])]


def _where_read(curves: Sequence[Curve], places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(runs, places): the values of every run, and whether it was read there."""
    values = np.full((len(curves), len(places)), np.nan)
    present = np.zeros(values.shape, dtype=bool)
    for number, (x, y) in enumerate(curves):
        where = np.searchsorted(places, x)
        values[number, where], present[number, where] = y, True
    return values, present


def one_value_per_place(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Readings in order of place; several at one place are averaged, so that a run has one vote."""
    keep = np.isfinite(x)
    x, y = x[keep], y[keep]
    places, which, counts = np.unique(x, return_inverse=True, return_counts=True)
    if len(places) == len(x):
        return places, y[np.argsort(x, kind="stable")]
    with np.errstate(invalid="ignore"):
        return places, np.bincount(which, weights=y, minlength=len(places)) / counts


def end_values(readings_of_runs: Sequence[tuple[np.ndarray, np.ndarray]]) -> dict[str, float]:
    """Statistics over runs of each run's last value, and the places ``first`` to ``last`` between
    which the runs end.

    Example:
        >>> import numpy as np
        >>> ends = end_values(
        ...     [
        ...         (np.array([0.0, 1.0]), np.array([1.0, 3.0])),
        ...         (np.array([0.0, 5.0]), np.array([3.0, 5.0])),
        ...     ]
        ... )
        >>> ends["mean"], ends["n"], ends["first"], ends["last"]
        (4.0, 2.0, 1.0, 5.0)
    """
    curves = _in_order(readings_of_runs)
    if not curves:
        return {}
    places, values = np.array([x[-1] for x, _ in curves]), np.array([[y[-1]] for _, y in curves])
    table = _statistics(values, np.ones(values.shape, dtype=bool))
    return {"first": float(places.min()), "last": float(places.max())} | {
        name: float(column[0]) for name, column in table.items()
    }


def _statistics(values: np.ndarray, present: np.ndarray) -> dict[str, np.ndarray]:
    """Mean, deviation, three quantiles and count over the seeds, per place; NaN where a value is
    not finite.
    """
    n = present.sum(0)
    finite = np.isfinite(values) | ~present
    sound = finite.all(0) & (n > 0)
    known = np.where(present & np.isfinite(values), values, 0.0)
    mean = np.where(sound, known.sum(0) / np.maximum(n, 1), np.nan)
    with np.errstate(over="ignore"):  # numbers beyond 1e154 have an infinite deviation
        squares = np.where(present & finite, (known - np.where(sound, mean, 0.0)) ** 2, 0.0).sum(0)
    sd = np.where(sound, np.sqrt(squares / np.maximum(n - 1, 1)), np.nan)
    # Missing and undefined values sort to the end; only the first n of a column are looked at.
    ordered = np.sort(np.where(present & ~np.isnan(values), values, np.inf), axis=0)
    table = {"mean": mean, "sd": sd}
    for name, q in (("q10", 0.1), ("q50", 0.5), ("q90", 0.9)):
        place = q * np.maximum(n - 1, 0)
        low = np.floor(place).astype(int)
        a = np.take_along_axis(ordered, low[None], 0)[0]
        b = np.take_along_axis(ordered, np.minimum(low + 1, np.maximum(n - 1, 0))[None], 0)[0]
        share = place - low
        with np.errstate(invalid="ignore"):
            mixed = np.where(share == 0, a, a + share * (b - a))
        table[name] = np.where(np.isfinite(mixed), mixed, np.nan)
    return {**table, "n": n.astype(float)}


def thin(series: Series, buckets: int, *, log_x: bool = False) -> Series:
    """A few rows per bucket that look the same: each bucket along x keeps its ends and its
    extremes.

    Extremes are those of the value, or of mean and median (four or six rows per bucket), so that no
    peak is lost.

    Example:
        >>> import numpy as np
        >>> y = np.zeros(10_000)
        >>> y[7777] = 1.0
        >>> thinned = thin(Series("m", "", {"x": np.arange(1e4), "y": y}), 20)
        >>> len(thinned) <= 80, float(thinned.columns["y"].max())
        (True, 1.0)
    """
    size = len(series)
    if size <= 2 * buckets:
        return series
    edges = _edges(series.columns["x"], buckets, log_x)
    names = [n for n in ("y", "mean", "q50") if n in series.columns]
    keep = {0, size - 1}
    begin, stop = edges[:-1], edges[1:]
    begin, stop = begin[stop > begin], stop[stop > begin]
    keep.update(begin.tolist(), (stop - 1).tolist())
    bucket = np.searchsorted(begin, np.arange(size), side="right")
    for name in names:
        column = series.columns[name]
        # Sorted inside each bucket, the first is the smallest and the last the largest; an
        # undefined value is neither.
        smallest = np.lexsort((np.where(np.isnan(column), np.inf, column), bucket))[begin]
        largest = np.lexsort((np.where(np.isnan(column), -np.inf, column), bucket))[stop - 1]
        keep.update(smallest.tolist(), largest.tolist())
    for edge in ("q10", "q90", "sd"):  # the widest places of the band, a few for the whole series
        if edge in series.columns and not np.isnan(series.columns[edge]).all():
            keep.update(
                (int(np.nanargmin(series.columns[edge])), int(np.nanargmax(series.columns[edge])))
            )
    index = np.array(sorted(keep))
    return replace(series, columns={k: v[index] for k, v in series.columns.items()})


def _edges(x: np.ndarray, buckets: int, log_x: bool) -> np.ndarray:
    """Bucket borders as row numbers: equally wide on the axis where x is in order, equally many
    rows otherwise.
    """
    if np.all(np.diff(x) >= 0):
        if log_x and (x > 0).any():
            x = np.log(np.maximum(x, x[x > 0].min()))
        if x[-1] > x[0]:
            return np.append(np.searchsorted(x, np.linspace(x[0], x[-1], buckets + 1)[:-1]), len(x))
    return np.linspace(0, len(x), buckets + 1).astype(int)


def thin_points(series: Series, most: int) -> Series:
    """At most about ``most`` points of a scatter: every k-th, and the extremes of both
    coordinates in each stretch.
    """
    size = len(series)
    if size <= most:
        return series
    keep = set(np.linspace(0, size - 1, max(most // 2, 1)).astype(int).tolist())
    for name in ("x", "y"):
        order = np.argsort(series.columns[name], kind="stable")
        other = series.columns["y" if name == "x" else "x"][order]
        for part in np.array_split(np.arange(size), max(most // 8, 1)):
            values = other[part]
            if not np.isnan(values).all():
                keep.update(
                    (int(order[part[np.nanargmin(values)]]), int(order[part[np.nanargmax(values)]]))
                )
    index = np.array(sorted(keep))
    return replace(series, columns={k: v[index] for k, v in series.columns.items()})
