"""Would successive halving of a grid search choose as well as the full grid?

    MINDGAP_DATA=... python benchmarks/halving.py --out benchmarks/records/halving.jsonl
        makes the missing runs
    python benchmarks/halving.py --table benchmarks/records/halving.jsonl
        prints the tables from the kept runs

A *search* is one method of a study with one tuning seed. Every point of its grid runs to the end,
and is read after a quarter, after a half and at the end. In the part "choose" most points run once
more with a quarter and with half of the steps (a schedule of the step is then compressed, not cut).
From these runs the script computes what each rule would have chosen, points beyond the ends of the
grid included, and compares two things with the full search: the final validation value of the
chosen point (regret: percent of the value, or 100 times the difference of an error or a log), and
the steps made. Rules were to be taken on the part "choose" and judged on the part "judge". The
rules with neighbours were added after both had been seen.

Steps count as if a stopped run went on where it stands: what a restart costs is left out.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import mean, median
from typing import Any

from mindgap.lab.studies.catalogue import find
from mindgap.lab.studies.grid import beyond, grid_points
from mindgap.lab.studies.processes import Lost, pool_of
from mindgap.lab.studies.spec import Trial
from mindgap.lab.studies.tune import DIVERGENCE, best_trial
from mindgap.record.forms import TunedTrial

SEEDS = (1000, 1001)
SHORTER = (0.25, 0.5)
READ_AT = (0.25, 0.5, 1.0)  # shares of a run
FACTORS = (1 / 9, 1 / 3, 1.0, 3.0, 9.0)
Point = dict[str, float]


@dataclass(frozen=True)
class Source:
    """A study whose searches are measured.

    ``settings`` are laid over those of the scale, and there are ``readings`` on the way. Regret is
    relative to the best value, or, where ``absolute``, a difference (an error, a log).
    """

    study: str
    scale: str
    part: str  # "choose" or "judge"
    readings: int = 8
    settings: Mapping[str, Any] = field(default_factory=dict)
    shorter: str = "none"  # runs of 1/4 and 1/2: "made", or the "same" as readings on the way
    absolute: bool = False
    seeds: tuple[int, ...] = SEEDS

    @property
    def name(self) -> str:
        return f"{self.study.split('-')[0].upper()} {self.scale}"


SOURCES = (
    Source("h3-language-model", "cpu", "choose", 8, {"steps": 320}, "made"),
    Source("s3-clipping-speeds-up", "cpu", "choose", 8, {"steps": 480}, "same", absolute=True),
    Source("t5-momentum-in-practice", "cpu", "choose", 4, {"steps": 400}, "made", absolute=True),
    Source("h4-masked-language-model", "quick", "choose", 8, {"steps": 240}, "made"),
    Source("b0-unbounded-smoothness", "quick", "choose", 8, {"least_steps": 1}, "same"),
    Source(
        "b1-hyper-representation",
        "quick",
        "judge",
        settings={"oracle_calls": 1500, "least_steps": 1},
    ),
    Source("h12-images-acclip", "quick", "judge", settings={"steps": 240}, absolute=True),
    Source("h5-question-answering", "quick", "judge", settings={"steps": 240}, absolute=True),
    Source("h14-order-of-the-moment", "cpu", "judge", settings={"steps": 320}),
    Source("s7-clipping-generalises", "cpu", "judge", 4, {"steps": 400}, absolute=True),
    Source(
        "b3-hyper-cleaning",
        "quick",
        "judge",
        settings={"oracle_calls": 600, "least_steps": 1},
    ),
    Source("h12-images-acclip", "cpu", "judge", 4, {"steps": 400}, absolute=True),
    Source("h15-steps-and-thresholds", "cpu", "judge", settings={"steps": 320}),
    # In the part "choose" this one ran after the rule had been taken, for its first seed alone.
    Source("h4-masked-language-model", "cpu", "choose", 4, {"steps": 320}, seeds=SEEDS[:1]),
    Source(
        "h5-question-answering", "cpu", "judge", 4, {"steps": 400}, absolute=True, seeds=SEEDS[:1]
    ),
)


def grid_of(source: Source) -> Mapping[str, Any]:
    """The grid of the searches: that of the study, or the factors on a method's middle step."""
    grid = find(source.study).at(source.scale).grid
    return {"factor": FACTORS} if "factor" in grid else grid


def methods_of(source: Source) -> list[str]:
    """The methods that have the settings of the grid."""
    study = find(source.study).at(source.scale)
    if "factor" in study.grid:
        return list(study.methods)
    return [
        name
        for name in study.methods
        if all(study.settings(source.scale, name).get(key) is not None for key in study.grid)
    ]


def run(source: Source, method: str, point: Point, seed: int, share: float) -> list[float]:
    """The validation column of one run after a quarter, after a half and at its end, infinite from
    a divergence on. With a ``share`` below 1 the run has that share of the steps, and the one
    reading is at its end.
    """
    import torch

    torch.set_num_threads(1)
    study = find(source.study)
    settings = {**study.settings(source.scale, method), **source.settings}
    readings, restored = source.readings if share == 1 else 1, {}
    column, on_the_way = study.tune_on, study.tune_on
    if "steps" in settings and "every" in settings:
        settings["steps"] = round(settings["steps"] * share)
        # A mean over readings (S3) needs as many as the full run.
        settings["every"] = settings["steps"] // (1 if share < 1 else readings)
        # One candidate, whose score counts as known: the loop trains it once, with readings.
        restored = {"scores": [0.0]}
        if "factors" in settings:
            settings["factors"] = [point["factor"]]
        else:
            candidates = settings["candidates"]
            settings["candidates"] = [candidates[len(candidates) // 2] * point["factor"]]
    else:
        settings |= point
        settings["oracle_calls"] = round(settings["oracle_calls"] * share)
        settings["readings"] = readings
        if column == "solved_held_loss":  # only the last reading has it
            on_the_way = "held_loss"
    trial, rows = Trial(method, seed, settings, restored=restored), []
    with suppress(DIVERGENCE):
        rows = list(study.loop(trial))
    if "oracle_calls" in settings:
        rows = rows[1:]  # without the start
    values = [
        math.inf if row.get("diverged") else float(row.get(on_the_way, math.inf)) for row in rows
    ]
    if rows and len(rows) == readings and not rows[-1].get("diverged"):
        values[-1] = float(rows[-1].get(column, math.inf))
    values = [value if math.isfinite(value) else math.inf for value in values]
    values = values[:readings] + [math.inf] * (readings - len(values))
    return (
        values if share < 1 else [values[readings // 4 - 1], values[readings // 2 - 1], values[-1]]
    )


class Missing(Exception):
    """A run that a rule needs is not kept."""


class Kept:
    """The kept runs, by name; :meth:`get` notes those that are missing."""

    def __init__(self, path: Path) -> None:
        self.path, self.runs, self.missing = path, {}, {}
        for line in path.read_text().splitlines() if path.exists() else []:
            record = json.loads(line)
            values = [math.inf if value is None else value for value in record["values"]]
            self.runs[json.dumps(record["run"], ensure_ascii=False)] = values

    def get(
        self, source: Source, method: str, point: Point, seed: int, share: float = 1.0
    ) -> list[float]:
        """The readings of a run; raises :class:`Missing` where it is not kept."""
        coordinates = [float(f"{value:.6g}") for value in point.values()]
        name = json.dumps([source.name, method, coordinates, seed, share], ensure_ascii=False)
        if name not in self.runs:
            self.missing[name] = partial(run, source, method, point, seed, share)
            raise Missing(name)
        return self.runs[name]

    def fill(self, jobs: int) -> None:
        """Make the runs that were asked for and are missing, and keep them."""
        names, calls = list(self.missing), list(self.missing.values())
        self.missing = {}
        with self.path.open("a") as file, pool_of(calls, jobs) as pool:
            for number, values in pool:
                if isinstance(values, Lost):
                    raise RuntimeError(f"{names[number]}: {values.reason}")
                self.runs[names[number]] = values
                plain = [round(v, 7) if math.isfinite(v) else None for v in values]
                record = {"run": json.loads(names[number]), "values": plain}
                text = json.dumps(record, ensure_ascii=False, separators=(",", ":"))
                file.write(text + "\n")
                file.flush()


#: point -> what it reads with a share of the steps done, and with a run of that share
Read = Callable[[Point, float], float]


@dataclass
class Choice:
    """What a rule chose, and the steps that it made, in runs of full length."""

    point: Point
    cost: float


def finish(
    grid: Mapping[str, Any],
    tried: list[TunedTrial],
    score: Callable[[Point], float],
    cost: float,
    each: float,
) -> Choice:
    """Try points beyond the ends, as the full search does, each at the cost ``each``."""
    while True:
        further = beyond(tried, grid)
        if not further:
            return Choice(dict(best_trial(tried).settings), cost)
        tried += [TunedTrial(point, score(point)) for point in further]
        cost += each * len(further)


def full(grid: Mapping[str, Any], read: Read, short: Read) -> Choice:
    """Every point at full length."""
    points = grid_points(grid)
    tried = [TunedTrial(point, read(point, 1.0)) for point in points]
    return finish(grid, tried, lambda point: read(point, 1.0), len(points), 1.0)


def shorter(share: float, confirm: int = 0) -> Callable[..., Choice]:
    """Every point with a share of the steps: what ``steps=`` does. With ``confirm`` so many of the
    best points run again at full length, and the best of them is taken: ``mindgap tune --confirm``.
    """

    def rule(grid: Mapping[str, Any], read: Read, short: Read) -> Choice:
        points = grid_points(grid)
        tried = [TunedTrial(point, short(point, share)) for point in points]
        found = finish(grid, tried, lambda p: short(p, share), share * len(points), share)
        if not confirm:
            return found
        # ``finish`` has added the points beyond the ends to the list.
        ranked = sorted(tried, key=lambda trial: trial.value)
        best = [trial for trial in ranked if math.isfinite(trial.value)][:confirm] or ranked[:1]
        again = [TunedTrial(trial.settings, read(dict(trial.settings), 1.0)) for trial in best]
        return Choice(dict(best_trial(again).settings), found.cost + len(again))

    return rule


def halving(
    rungs: tuple[float, ...],
    keep: float,
    rounded: Callable[[float], int] = math.ceil,
    neighbours: bool = False,
) -> Callable[..., Choice]:
    """Keep a share of the points at each rung, at least one; a point whose reading is not finite is
    stopped in any case. Points beyond the ends run to the end. With ``neighbours`` the stopped
    neighbours of the best point go on to the end too, until the best one has none.
    """

    def rule(grid: Mapping[str, Any], read: Read, short: Read) -> Choice:
        points = grid_points(grid)
        alive, cost = list(range(len(points))), 0.0
        reached = [0.0] * len(points)  # share of its run that a point has made

        def go_on(places: Iterable[int], share: float) -> None:
            nonlocal cost
            for place in places:
                cost += share - reached[place]
                reached[place] = share

        for share in rungs:
            go_on(alive, share)
            readings = {place: read(points[place], share) for place in alive}
            ranked = sorted(alive, key=readings.__getitem__)
            finite = [place for place in ranked if math.isfinite(readings[place])]
            alive = (finite or ranked[:1])[: max(1, rounded(keep * len(alive)))]
        go_on(alive, 1.0)
        while True:
            tried = [
                TunedTrial(point, read(point, 1.0) if share == 1 else math.inf)
                for point, share in zip(points, reached)
            ]
            best = best_trial(tried).settings
            stopped = [
                place
                for place, point in enumerate(points)
                if neighbours
                and reached[place] < 1
                and math.isfinite(read(point, reached[place]))
                and are_neighbours(point, best, grid)
            ]
            if not stopped:
                return finish(grid, tried, lambda point: read(point, 1.0), cost, 1.0)
            go_on(stopped, 1.0)

    return rule


def are_neighbours(
    one: Mapping[str, Any], other: Mapping[str, Any], grid: Mapping[str, Any]
) -> bool:
    """Whether two points of a grid differ by one place of one setting."""
    places = (
        abs(sorted(values).index(one[name]) - sorted(values).index(other[name]))
        for name, values in grid.items()
    )
    return sum(places) == 1


RULES: dict[str, Callable[..., Choice]] = {
    "full grid": full,
    "halve at 1/2": halving((0.5,), 0.5),
    "halve at 1/4": halving((0.25,), 0.5),
    "halve at 1/4 and 1/2, up": halving((0.25, 0.5), 0.5),
    "halve at 1/4 and 1/2, down": halving((0.25, 0.5), 0.5, math.floor),
    "a third at 1/4": halving((0.25,), 1 / 3),
    "runs of 1/2": shorter(0.5),
    "runs of 1/4": shorter(0.25),
    "runs of 1/4, best 2 whole": shorter(0.25, confirm=2),
    "halve twice, up, neighbours": halving((0.25, 0.5), 0.5, neighbours=True),
    "a quarter at 1/4, neighbours": halving((0.25,), 0.25, neighbours=True),
}


def searches(kept: Kept) -> Iterator[tuple[Source, str, int, dict[str, dict[str, float]]]]:
    """Source, method, seed and, per rule, ``cost``, ``regret`` and ``other`` (the regret with
    another seed, not a number where that did not run). A search of which runs are missing is left
    out, and so is a rule for which no runs are made.
    """
    for source in SOURCES:
        grid = grid_of(source)
        for method in methods_of(source):
            for seed in source.seeds:
                # Ask for all runs of the grid at once, so that they are made side by side.
                for point in grid_points(grid):
                    for share in (1.0, *(SHORTER if source.shorter == "made" else ())):
                        with suppress(Missing):
                            kept.get(source, method, point, seed, share)
                with suppress(Missing):
                    yield source, method, seed, outcomes(kept, source, method, seed)


def outcomes(kept: Kept, source: Source, method: str, seed: int) -> dict[str, dict[str, float]]:
    """Rule -> what came of it in one search; raises :class:`Missing` where a run is missing."""

    def read(point: Point, share: float) -> float:
        """The reading on the way, after a share of the run."""
        return kept.get(source, method, point, seed)[READ_AT.index(share)]

    def short(point: Point, share: float) -> float:
        """What a run of a share of the steps ends with."""
        if source.shorter == "same":
            return read(point, share)
        return kept.get(source, method, point, seed, share)[-1]

    def end(point: Point, seed: int) -> float:
        """What the whole run ends with."""
        return kept.get(source, method, point, seed)[-1]

    others = [other for other in source.seeds if other != seed]
    rules = {
        name: rule
        for name, rule in RULES.items()
        if source.shorter != "none" or not name.startswith("runs of")
    }
    choices = {name: rule(grid_of(source), read, short) for name, rule in rules.items()}
    best = choices["full grid"]
    return {
        name: {
            "cost": choice.cost / best.cost,
            "regret": difference(source, end(choice.point, seed), end(best.point, seed)),
            "other": mean(
                difference(source, end(choice.point, other), end(best.point, other))
                for other in others
            )
            if others
            else math.nan,
        }
        for name, choice in choices.items()
    }


def difference(source: Source, value: float, best: float) -> float:
    """How much worse a value is than the best, in percent or, where ``absolute``, in points."""
    if value == best:
        return 0.0
    if math.isinf(value) or math.isinf(best):
        return math.copysign(math.inf, value - best)
    return 100 * (value - best) / (1.0 if source.absolute else abs(best))


def tables(kept: Kept) -> str:
    """Per part and rule: steps saved, equal choices, and regret; then the same per source."""
    found = list(searches(kept))
    lines = []
    for part in ("choose", "judge"):
        of_part = [(s, row) for s, _, _, row in found if s.part == part]
        lines += [f"\n{part}: {len(of_part)} searches", HEAD]
        lines += [line(name, [row[name] for _, row in of_part if name in row]) for name in RULES]
    for source in SOURCES:
        of_source = [row for s, _, _, row in found if s == source]
        if of_source:
            lines += [f"\n{source.name} ({source.part}): {len(of_source)} searches", HEAD]
            lines += [line(name, [row[name] for row in of_source if name in row]) for name in RULES]
    return "\n".join(lines)


HEAD = "{:30} {:>6} {:>5} {:>7} {:>7} {:>7} {:>6} {:>10}".format(
    "rule", "saved", "same", "median", "90 %", "worst", "> 1", "other seed"
)


def line(name: str, rows: list[dict[str, float]]) -> str:
    """One line of a table."""
    if not rows:
        return f"{name:30} not made"
    regrets = sorted(row["regret"] for row in rows)
    others = [row["other"] for row in rows if math.isfinite(row["other"])]
    return (
        f"{name:30} {1 - mean(row['cost'] for row in rows):6.0%} "
        f"{mean(abs(r) < 1e-9 for r in regrets):5.0%} {median(regrets):7.2f} "
        f"{regrets[math.ceil(0.9 * len(regrets)) - 1]:7.2f} {regrets[-1]:7.2f} "
        f"{sum(regret > 1 for regret in regrets):6d} "
        f"{mean(others or [0]):10.2f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--table", type=Path)
    parser.add_argument("--jobs", type=int, default=2)
    arguments = parser.parse_args()
    if arguments.out:
        kept, start = Kept(arguments.out), time.monotonic()
        while list(searches(kept)) is not None and kept.missing:
            print(f"{len(kept.missing)} runs, {time.monotonic() - start:.0f} s", flush=True)
            kept.fill(arguments.jobs)
    if arguments.table:
        print(tables(Kept(arguments.table)))


if __name__ == "__main__":
    main()
