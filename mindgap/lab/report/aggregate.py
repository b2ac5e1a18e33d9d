"""From rows to what is drawn: one value per run and place, statistics over seeds, and thinning
that keeps extremes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from mindgap.record.schema import Run, grouped

#: Columns of a series of statistics, in the order of the CSV file.
STATISTICS = ("mean", "sd", "q10", "q50", "q90", "n")
#: Places of statistics over runs that were not read at the same ones.
MOST_PLACES = 512

#: Places (x) and values (y) of one run, equally long.
Curve = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Series:
    """What one method shows in one panel: equally long columns, ``x`` among them.

    A series over seeds has the columns of :data:`STATISTICS`, and ``ends`` with the same statistics
    of the last values of its runs; a series of one run has ``y``, and ``seed`` says whose.
    """

    method: str
    facet: str  # title of the panel
    columns: dict[str, np.ndarray]
    seed: int | None = None
    ends: Mapping[str, float] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.columns["x"])


def panel_titles(runs: Iterable[Run], facet: str) -> list[str]:
    """The titles of a figure's panels, in order of appearance (numbers by size).

    Args:
        facet: the quantity whose values split the figure, ``"method"`` or a setting or a column;
            empty for one panel, whose title is ``""``.
    """
    if not facet:
        return [""]
    distinct: dict[Any, None] = {}  # values as keys, in order of appearance
    for run in runs:
        value_of_run = _value_of_run(run, facet)
        for value in run.column(facet) if value_of_run is None else [value_of_run]:
            # A list cannot be a key.
            distinct[tuple(value) if isinstance(value, list) else value] = None
    all_numbers = all(isinstance(value, (int, float)) for value in distinct)
    ordered = sorted(distinct) if all_numbers else distinct
    return [facet_label(facet, value) for value in ordered]


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
    """The words above a panel: the value of the quantity ``facet`` with its name.

    Example:
        >>> facet_label("tail", 1.5), facet_label("alpha", 2), facet_label("method", "SGD")
        ('tail = 1.5', 'α = 2', 'SGD')
    """
    if facet == "method" or isinstance(value, str):
        return str(value)
    name = GREEK.get(facet, facet)
    return f"{name} = {value:g}" if isinstance(value, float) else f"{name} = {value}"


def _value_of_run(run: Run, facet: str) -> Any:
    """The run's value of the quantity ``facet``: its method or a setting. None where ``facet`` is
    neither: then it may be a column, with a value per row.
    """
    return run.header.method if facet == "method" else run.header.settings.get(facet)


def _is_number(value: Any) -> bool:
    """Whether a value of a row can be drawn. JSON may hold whole numbers beyond the largest float,
    about 2^1024.
    """
    return isinstance(value, float) or (isinstance(value, int) and abs(value) < 2**1000)


class Readings:
    """One run as columns of numbers, each made once however many figures ask for it."""

    def __init__(self, run: Run) -> None:
        self.run = run
        # Name -> what :meth:`column` returned for it.
        self._columns: dict[str, tuple[np.ndarray, np.ndarray]] = {}

    def column(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """A quantity of the run, computed at the first call only.

        Returns:
            The values, NaN where a row has no number, and a mask of the rows that have one (which
            may be NaN itself); both of shape (rows,).
        """
        if name not in self._columns:
            entries = [row.get(name) for row in self.run.rows]
            has_number = [_is_number(entry) for entry in entries]
            values = [entry if drawn else np.nan for entry, drawn in zip(entries, has_number)]
            self._columns[name] = np.array(values, dtype=float), np.array(has_number, dtype=bool)
        return self._columns[name]

    def panels(self, x: str, y: str, facet: str) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """Title of a panel -> (x, y) of the rows that have both as numbers.

        Args:
            facet: what splits the rows into panels: a quantity of the whole run, which puts all
                rows into one panel, or a column; empty for one panel, whose title is ``""``.

        Example:
            >>> from mindgap.record.schema import Header
            >>> rows = ({"step": 0, "loss": 2.0}, {"step": 1}, {"step": 2, "loss": 1.0})
            >>> readings = Readings(Run(Header("s", "S1", "quick", "m", 0, {}), rows))
            >>> [column.tolist() for column in readings.panels("step", "loss", "")[""]]
            [[0.0, 2.0], [2.0, 1.0]]
        """
        (x_values, has_x), (y_values, has_y) = self.column(x), self.column(y)
        has_both = has_x & has_y
        value_of_run = _value_of_run(self.run, facet) if facet else ""
        if value_of_run is not None:  # one panel for all rows
            title = facet_label(facet, value_of_run) if facet else ""
            return {title: (x_values[has_both], y_values[has_both])} if has_both.any() else {}
        rows_of_panel = grouped(
            (facet_label(facet, self.run.rows[row][facet]), row)
            for row in np.flatnonzero(has_both).tolist()
            if facet in self.run.rows[row]
        )
        return {title: (x_values[rows], y_values[rows]) for title, rows in rows_of_panel.items()}


def over_seeds(readings_of_runs: Sequence[Curve]) -> dict[str, np.ndarray]:
    """Statistics over runs at common places: a column ``x`` and those of :data:`STATISTICS`,
    equally long.

    Where the runs were read at the same places (steps, epochs), those are used as they are. Where
    they were not (seconds), each run is interpolated linearly, inside its own range only, at up to
    :data:`MOST_PLACES` of the places read. The statistics stop where the first run ends: beyond,
    they would be about other seeds. A value that is not finite makes the mean there undefined (the
    line stops); in the quantiles it counts as largest.

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
    curves = _sorted_curves(readings_of_runs)
    # Beyond the first run's end the statistics would be about other seeds.
    first_end = min((x[-1] for x, _ in curves), default=-np.inf)
    curves = [(x[x <= first_end], y[x <= first_end]) for x, y in curves]
    if not curves or not all(len(x) for x, _ in curves):
        return {name: np.empty(0) for name in ("x", *STATISTICS)}
    places = np.unique(np.concatenate([x for x, _ in curves]))
    # Few places beyond those of the longest run: the runs were read at the same ones.
    if len(places) <= 1.2 * max(len(x) for x, _ in curves):
        return {"x": places, **_statistics(*_on_common_places(curves, places))}
    if len(places) > MOST_PLACES:
        places = places[np.unique(np.linspace(0, len(places) - 1, MOST_PLACES).astype(int))]
    inside = np.stack([(places >= x[0]) & (places <= x[-1]) for x, _ in curves])
    values = np.stack([np.interp(places, x, y) for x, y in curves])
    return {"x": places, **_statistics(values, inside)}


def _sorted_curves(readings: Sequence[Curve]) -> list[Curve]:
    """The runs that have a reading, each with one value per place, in order of place."""
    curves = [one_value_per_place(x, y) for x, y in readings]
    return [(places, values) for places, values in curves if len(places)]


def _on_common_places(curves: Sequence[Curve], places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The values of every run at common places, NaN where the run has no reading, and a mask of the
    places where it has one; both of shape (runs, places).
    """
    values = np.full((len(curves), len(places)), np.nan)
    present = np.zeros(values.shape, dtype=bool)
    for number, (x, y) in enumerate(curves):
        columns = np.searchsorted(places, x)
        values[number, columns], present[number, columns] = y, True
    return values, present


def one_value_per_place(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sort the readings (x, y) of one run by x, and average those at one place, so that a run has
    one vote there. Readings whose x is not finite are left out.

    Returns:
        The places, rising, and the value at each of them.
    """
    finite = np.isfinite(x)
    x, y = x[finite], y[finite]
    # ``place_of`` is the number of each reading's place, ``counts`` how many readings it has.
    places, place_of, counts = np.unique(x, return_inverse=True, return_counts=True)
    if len(places) == len(x):
        return places, y[np.argsort(x, kind="stable")]
    with np.errstate(invalid="ignore"):
        return places, np.bincount(place_of, weights=y, minlength=len(places)) / counts


def end_values(readings_of_runs: Sequence[Curve]) -> dict[str, float]:
    """Statistics over runs of each run's last value, and the places ``first`` to ``last`` between
    which the runs end; empty where none was read.

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
    curves = _sorted_curves(readings_of_runs)
    if not curves:
        return {}
    places = np.array([x[-1] for x, _ in curves])
    values = np.array([[y[-1]] for _, y in curves])
    table = _statistics(values, np.ones(values.shape, dtype=bool))
    return {"first": float(places.min()), "last": float(places.max())} | {
        name: float(column[0]) for name, column in table.items()
    }


def _statistics(values: np.ndarray, present: np.ndarray) -> dict[str, np.ndarray]:
    """Mean, standard deviation (with n − 1), three quantiles and count over the runs at each place.

    Mean and deviation are NaN where a value is not finite. In the quantiles, which are interpolated
    linearly between the sorted values, such a value counts as the largest.

    Args:
        values: (runs, places).
        present: (runs, places), where a run was read.
    """
    n = present.sum(0)
    # ``all_finite``: the place was read, and no run has an undefined value there.
    read_and_finite = present & np.isfinite(values)
    all_finite = (read_and_finite | ~present).all(0) & (n > 0)
    summands = np.where(read_and_finite, values, 0.0)
    mean = np.where(all_finite, summands.sum(0) / np.maximum(n, 1), np.nan)
    centre = np.where(all_finite, mean, 0.0)
    with np.errstate(over="ignore"):  # numbers beyond 1e154 have an infinite deviation
        squares = np.where(read_and_finite, (summands - centre) ** 2, 0.0).sum(0)
    sd = np.where(all_finite, np.sqrt(squares / np.maximum(n - 1, 1)), np.nan)
    # Missing and undefined values sort to the end; only the first n of a column are looked at.
    ordered = np.sort(np.where(present & ~np.isnan(values), values, np.inf), axis=0)
    table = {"mean": mean, "sd": sd}
    for name, q in (("q10", 0.1), ("q50", 0.5), ("q90", 0.9)):
        rank = q * np.maximum(n - 1, 0)  # of the quantile among the sorted values, from 0
        lower_rank = np.floor(rank).astype(int)
        upper_rank = np.minimum(lower_rank + 1, np.maximum(n - 1, 0))
        lower, upper = (
            np.take_along_axis(ordered, ranks[None], 0)[0] for ranks in (lower_rank, upper_rank)
        )
        share = rank - lower_rank
        with np.errstate(invalid="ignore"):  # inf - inf where values are undefined
            quantile = np.where(share == 0, lower, lower + share * (upper - lower))
        table[name] = np.where(np.isfinite(quantile), quantile, np.nan)
    return {**table, "n": n.astype(float)}


def thin(series: Series, buckets: int, *, log_x: bool = False) -> Series:
    """A series of fewer rows that looks the same: each bucket along x keeps its ends and its
    extremes.

    Extremes are those of the value, or of mean and median (four or six rows per bucket), so that no
    peak is lost. A series of at most two rows per bucket is returned as it is.

    Args:
        buckets: how many the x-axis is cut into.
        log_x: whether they are equally wide on a logarithmic axis.

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
    borders = _bucket_borders(series.columns["x"], buckets, log_x)
    holds_a_row = borders[1:] > borders[:-1]
    starts, stops = borders[:-1][holds_a_row], borders[1:][holds_a_row]
    kept_rows = {0, size - 1, *starts.tolist(), *(stops - 1).tolist()}  # ends of all buckets
    bucket_of_row = np.searchsorted(starts, np.arange(size), side="right")
    for name in series.columns.keys() & {"y", "mean", "q50"}:
        column = series.columns[name]
        # Rows sorted by bucket, then by value: where a bucket starts stands the row of its smallest
        # value, where it stops that of its largest. NaN is put at the other end.
        for instead_of_nan, ranks in ((np.inf, starts), (-np.inf, stops - 1)):
            values = np.where(np.isnan(column), instead_of_nan, column)
            kept_rows.update(np.lexsort((values, bucket_of_row))[ranks].tolist())
    for name in series.columns.keys() & {"q10", "q90", "sd"}:  # the band's widest places
        edge = series.columns[name]
        if not np.isnan(edge).all():
            kept_rows |= {int(np.nanargmin(edge)), int(np.nanargmax(edge))}
    return _with_rows(series, kept_rows)


def _with_rows(series: Series, rows: Iterable[int]) -> Series:
    """The series with these rows alone, in their old order."""
    index = np.array(sorted(rows))
    return replace(series, columns={name: column[index] for name, column in series.columns.items()})


def _bucket_borders(x: np.ndarray, buckets: int, log_x: bool) -> np.ndarray:
    """Borders of buckets along the places ``x`` as row numbers, shape (buckets + 1,), from 0 to the
    number of rows: bucket i holds the rows from border i up to, not including, border i + 1.

    Where x never falls the buckets are equally wide on the axis, which is logarithmic where
    ``log_x``; otherwise they have equally many rows.
    """
    if np.all(np.diff(x) >= 0):
        if log_x and (x > 0).any():  # places at 0 or below count as the smallest positive one
            x = np.log(np.maximum(x, x[x > 0].min()))
        if x[-1] > x[0]:
            starts = np.searchsorted(x, np.linspace(x[0], x[-1], buckets + 1)[:-1])
            return np.append(starts, len(x))
    return np.linspace(0, len(x), buckets + 1).astype(int)


def thin_points(series: Series, limit: int) -> Series:
    """Thin a scatter to about ``limit`` points: half of them evenly spread over the rows, and for
    each of ``limit / 8`` stretches along either coordinate the extremes of the other one.
    """
    size = len(series)
    if size <= limit:
        return series
    kept_rows = set(np.linspace(0, size - 1, max(limit // 2, 1)).astype(int).tolist())
    for name, other in (("x", "y"), ("y", "x")):
        sorted_rows = np.argsort(series.columns[name], kind="stable")
        for rows in np.array_split(sorted_rows, max(limit // 8, 1)):
            values = series.columns[other][rows]
            if not np.isnan(values).all():
                kept_rows |= {int(rows[np.nanargmin(values)]), int(rows[np.nanargmax(values)])}
    return _with_rows(series, kept_rows)
