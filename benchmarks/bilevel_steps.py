"""How good are the steps that ``suggest_steps(problem, method, steps=...)`` advises? Beside a grid.

    MINDGAP_DATA=... JAX_PLATFORMS=cpu python benchmarks/bilevel_steps.py grid GRIDS.jsonl \\
        [--problems quadratic,ijcnn1] [--methods slip,soba] [--jobs 2]
    MINDGAP_DATA=... JAX_PLATFORMS=cpu python benchmarks/bilevel_steps.py advise ADVICE.jsonl ...
    python benchmarks/bilevel_steps.py merge RECORDS.jsonl GRIDS.jsonl ADVICE.jsonl
    python benchmarks/bilevel_steps.py table RECORDS.jsonl
    MINDGAP_DATA=... JAX_PLATFORMS=cpu python benchmarks/bilevel_steps.py race GRIDS.jsonl

Per problem and method: *grid*: 27 points, lr_x at 9 values a factor of 3.16 apart and lr_y (with
lr_z, eta) at 3 around half of 1 / curvature, seed 0, in one compiled program; an axis grows by two
values while the best point is at its end. Of all points the six with the least upper loss at their
own y are judged by Phi (``bilevel_tasks.phi``). *advice*: one race of ``suggest_steps`` in eager
torch, seed 0. The best point of the grid and the advised one then run with seeds 1 to 3, and those
runs are compared: the table shows the share of the grid's gain in Phi that the advised steps reach.
Finished pairs are appended to the records one by one and found again there. A grid runs in pieces
of nine points, so that many processes share a few slow pairs.

The rule of the third search, written down before its judged run: a pair counts where the grid gains
at least 2 % of Phi at the start; it passes with 80 % of that gain or more as the mean over the
three fresh seeds, no seed diverges, and the search costs at most one run. Pairs whose grid gains
less are named, and their advised steps must not raise Phi by more than 2 %. The search is developed
on ``DEVELOPED`` alone and judged once on ``JUDGED``.

*race*: ``race(problem, calls=2500, seeds=3)`` on quadratic, ijcnn1 and two-layer, whose grids are
known for all eight methods. The rule, written down before: the winner's settings run with seeds 1
to 3; they are as good as the best of all grids if their mean Phi is at most that of the grids' best
method plus two standard errors of the difference, or if the difference is below 1 % of the gain.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from functools import lru_cache
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("PJRT_NPROC", "1")
sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))

import numpy as np
import torch
from bilevel_tasks import DEVELOPED, JUDGED, make, phi
from numpy.typing import NDArray
from torch import Tensor

from mindgap.bilevel import METHODS, race, suggest_steps
from mindgap.bilevel.backends.compiled import JaxBackend
from mindgap.bilevel.backends.many import ManyRuns
from mindgap.bilevel.tools.grid import groups_of
from mindgap.bilevel.tools.horizon import Measurements

EIGHT = ("slip", "soba", "masoba", "saba", "stocbio", "f2sa", "borep", "amigo")
#: iterations: those of methods with inner loops make about as many oracle calls
STEPS, INNER = 500, {"stocbio": 100, "amigo": 100}
FRESH = (1, 2, 3)
FACTOR = math.sqrt(10.0)
MOST = int(os.environ.get("BILEVEL_GROW", "4"))  # times that an axis of the grid may grow
KEPT = 6  # points of a grid that are judged by Phi
PIECE = 9  # points of a grid that run in one program

Point = dict[str, float]
Record = dict[str, Any]
#: what tasks of a pair return; each is the name of a method of ``Bench`` with its arguments
AskAll = Callable[[list[tuple[Any, ...]]], list[Any]]


def length(key: str) -> int:
    """Iterations of a run."""
    return INNER.get(key, STEPS)


def settings(key: str, at: tuple[int, int]) -> Point:
    """Settings of a method at a place of the lattice."""
    lr_x, lr_y = (float(f"{FACTOR**i:.4g}") for i in at)
    found = {"lr_x": lr_x, "lr_y": lr_y}
    if key in ("slip", "borep"):
        found["lr_z"] = lr_y
    if key == "stocbio":
        found["eta"] = lr_y
    return found


class Bench:
    """Runs of one method on one problem, many in one program."""

    def __init__(self, name: str, key: str) -> None:
        self.name, self.key = name, key
        self.problem, losses = make(name)
        self.backend = JaxBackend(*losses)

    def run(
        self, points: list[Point], seeds: tuple[int, ...], steps: int | None = None
    ) -> tuple[Tensor, Any]:
        """x at the end of shape (seeds, points, dim), and the upper loss at the run's own y."""
        methods = [METHODS[self.key](**point) for point in points]
        xs = torch.zeros(len(seeds), len(points), self.problem.dim_x, dtype=self.problem.dtype)
        own = np.zeros((len(seeds), len(points)))
        for group in groups_of(methods, self.backend):
            runs = ManyRuns(self.backend, self.problem, [methods[i] for i in group], list(seeds))
            runs.run(length(self.key) if steps is None else steps)
            xs[:, group] = runs.oracle.to_torch(runs.values["x"])
            lower = METHODS[self.key].lower_variable
            own[:, group] = runs.losses(lower)
            y = np.asarray(runs.values[lower])
            own[:, group] = np.where(np.isfinite(y).all(-1), own[:, group], np.inf)
        return xs, np.nan_to_num(own, nan=np.inf, posinf=np.inf)

    def begin(self) -> tuple[float, int]:
        """Phi at the start, and the middle of the grid's lr_y."""
        measured = Measurements(self.problem, STEPS, STEPS, 0)
        middle = round(2.0 * math.log10(0.5 / measured.largest_curvature(*measured.oracle.start)))
        return phi(self.name, self.problem.pack_x.start.repeat(KEPT, 1))[0], middle

    def piece(self, points: list[Point]) -> tuple[NDArray[Any], list[float]]:
        """x and the upper loss at the end of each point with seed 0."""
        xs, own = self.run(points, (0,))
        return xs[0].numpy(), own[0].tolist()

    def phi(self, xs: NDArray[Any]) -> list[float]:
        """Phi at several x."""
        return phi(self.name, torch.from_numpy(xs))

    def judged(self, point: Point, steps: int | None = None) -> list[float]:
        """Phi at the end of runs with fresh seeds; infinite where x, y or Phi is no number."""
        xs, own = self.run([point], FRESH, steps)
        values = phi(self.name, xs[:, 0])
        return [v if math.isfinite(f) else math.inf for v, f in zip(values, own[:, 0], strict=True)]

    def advised(self) -> Record:
        """The advised steps."""
        begin = time.process_time()
        advice = suggest_steps(self.problem, self.key, steps=length(self.key), seed=0)
        point = {k: float(v) for k, v in advice.settings.items()}
        raced = time.process_time() - begin
        return {
            "advised": point,
            "advised_fresh": self.judged(point),
            "runs": round(advice.runs, 3),
            "calls": advice.calls,
            "race_seconds": round(raced, 1),
            "tried": str(advice),
        }


@lru_cache(maxsize=8)
def bench(name: str, key: str) -> Bench:
    """The pair in this process, with what it has compiled."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    return Bench(name, key)


def work(name: str, key: str, what: str, *arguments: Any) -> tuple[Any, float]:
    """What a method of a pair returns, in a process of its own, and its processor seconds."""
    begin = time.process_time()
    return getattr(bench(name, key), what)(*arguments), time.process_time() - begin


def best_of_grid(key: str, middle: int, ask_all: AskAll) -> Record:
    """The best point of a grid of one method on one problem, and what is recorded of it."""
    i, j = [-4, 4], [middle - 1, middle + 1]
    known: dict[tuple[int, int], tuple[float, NDArray[Any]]] = {}
    judged: dict[tuple[int, int], float] = {}
    for _ in range(2 * MOST):
        places = [(a, b) for a in range(i[0], i[1] + 1) for b in range(j[0], j[1] + 1)]
        todo = [at for at in places if at not in known]
        pieces = [todo[n : n + PIECE] for n in range(0, len(todo), PIECE)]
        padded = [(piece * PIECE)[:PIECE] for piece in pieces]  # one shape, one compilation
        tasks = [("piece", [settings(key, at) for at in piece]) for piece in padded]
        for piece, (xs, own) in zip(pieces, ask_all(tasks), strict=True):
            known |= {at: (own[n], xs[n]) for n, at in enumerate(piece)}
        first = sorted(places, key=lambda at: known[at][0])[:KEPT]
        new = [at for at in first if at not in judged and math.isfinite(known[at][0])]
        if new:
            some = (new * KEPT)[:KEPT]
            (values,) = ask_all([("phi", np.stack([known[at][1] for at in some]))])
            judged |= dict(zip(some, values, strict=True))
        best = min(judged, key=lambda at: judged[at]) if judged else places[0]
        inside = True
        for axis, place, most in ((i, best[0], 8), (j, best[1], 2)):
            if place in axis:
                if axis[1] - axis[0] < most + 2 * MOST:
                    end = axis.index(place)
                    axis[end] += 2 if end else -2
                inside = False
        if inside:
            break
    seen = [[*at, own, judged.get(at)] for at, (own, _) in sorted(known.items())]
    value = judged.get(best, math.inf)
    found = {"points": len(known), "inside": inside, "best": settings(key, best)}
    return {**found, "best_value": value, "seen": seen}


def searched(pool: ProcessPoolExecutor, name: str, key: str) -> Record:
    """The grid of one method on one problem."""
    seconds = 0.0

    def ask_all(tasks: list[tuple[Any, ...]]) -> list[Any]:
        nonlocal seconds
        sent = [pool.submit(work, name, key, *task) for task in tasks]
        done = [future.result() for future in sent]
        seconds += sum(spent for _, spent in done)
        return [found for found, _ in done]

    ((start, middle),) = ask_all([("begin",)])
    found = best_of_grid(key, middle, ask_all)
    (fresh,) = ask_all([("judged", found["best"])])
    seen = found.pop("seen")  # places of the lattice: own upper loss at the end, and Phi
    return {
        "problem": name,
        "method": key,
        "steps": length(key),
        "start": start,
        **found,
        "best_fresh": fresh,
        "seen": seen,
        "grid_seconds": round(seconds, 1),
    }


def read(paths: list[Path]) -> Iterator[Record]:
    """The records of some files."""
    for path in paths:
        if path.exists():
            for line in path.read_text().splitlines():
                try:
                    yield json.loads(line)
                except json.JSONDecodeError:  # the last line of a killed run
                    continue


def share(row: Record) -> float:
    """Part of the grid's gain that the advised steps reach, both over fresh seeds."""
    best, advised = (np.mean(row[k]) for k in ("best_fresh", "advised_fresh"))
    if not math.isfinite(advised):
        return -math.inf
    return float((row["start"] - advised) / (row["start"] - best))


def counts(row: Record) -> bool:
    """Whether the grid's best point gains 2 % or more with fresh seeds."""
    gain = row["start"] - float(np.mean(row["best_fresh"]))
    return bool(math.isfinite(gain) and gain >= 0.02 * abs(row["start"]))


def by_pair(rows: Iterator[Record]) -> dict[tuple[str, str], Record]:
    """Grid and advice of each pair; what was read last holds."""
    pairs: dict[tuple[str, str], Record] = {}
    for row in rows:
        pairs.setdefault((row["problem"], row["method"]), {}).update(row)
    return pairs


def table(rows: list[Record]) -> str:
    """The table of docs/bilevel.md."""
    known = {(row["method"], row["problem"]): row for row in rows}
    names = [name for name in (*JUDGED, *DEVELOPED) if any(k[1] == name for k in known)]
    lines = [f"| method | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    for key in METHODS:
        if not any(k[0] == key for k in known):
            continue
        cells = []
        for name in names:
            row = known.get((key, name))
            if row is None:
                cells.append("not run")
                continue
            wrong = sum(not math.isfinite(v) for v in row["advised_fresh"])
            text = f"{wrong} of {len(FRESH)} diverged" if wrong else f"{100 * share(row):.0f} %"
            cells.append(f"{text if wrong or counts(row) else 'no gain'} ({row['runs']:.2f})")
        lines.append(f"| {METHODS[key].name} | {' | '.join(cells)} |")
    judged = [row for row in rows if counts(row)]
    passed = [share(row) >= 0.8 and row["runs"] <= 1.0 for row in judged]
    lines.append(
        f"\n{sum(passed)} of {len(judged)} pairs reach 80 % for at most one run; largest cost "
        f"{max(row['runs'] for row in rows):.2f} runs. No gain: the grid's best point gains less "
        "than 2 % or diverges with another seed."
    )
    return "\n".join(lines)


def raced(name: str, rows: list[Record]) -> str:
    """The winner of a race beside the best of all grids, on fresh seeds."""
    grids = {row["method"]: row for row in rows if row["problem"] == name and "best" in row}
    best = min(grids, key=lambda key: float(np.mean(grids[key]["best_fresh"])))
    found = race(make(name)[0], calls=2500, seeds=len(FRESH))
    key, settings = found.winner.key, found.winner.settings
    ours, theirs = np.array(Bench(name, key).judged(settings)), np.array(grids[best]["best_fresh"])
    apart, start = float(ours.mean() - theirs.mean()), grids[best]["start"]
    noise = 2.0 * math.sqrt((ours.var(ddof=1) + theirs.var(ddof=1)) / len(FRESH))
    gain = start - float(theirs.mean())
    verdict = "as good" if apart <= max(noise, 0.01 * gain) else "worse"
    return (
        f"{name}: start {start:.4g}; race {METHODS[key].name} {ours.mean():.4g} at {settings}; "
        f"grids {METHODS[best].name} {theirs.mean():.4g}; difference {apart:.2g}, noise "
        f"{noise:.2g}, share {100 * (gain - apart) / gain:.0f} %: {verdict}\n{found}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("grid", "advise", "merge", "table", "race"))
    parser.add_argument("records", type=Path, nargs="+")
    parser.add_argument("--problems", default=",".join(JUDGED))
    parser.add_argument("--methods", default=",".join(EIGHT))
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    if options.what == "table":
        recorded = by_pair(read(options.records)).values()
        print(table([row for row in recorded if "best" in row and "advised" in row]))
        return
    if options.what == "merge":  # a line per pair, without the long lists
        rows = by_pair(read(options.records)).values()
        short = [{k: v for k, v in row.items() if k not in ("seen", "tried")} for row in rows]
        options.records[0].write_text("".join(json.dumps(row) + "\n" for row in short))
        return
    if options.what == "race":
        for name in ("quadratic", "ijcnn1", "two-layer"):
            print(raced(name, list(read(options.records))), flush=True)
        return
    done = {(row["problem"], row["method"]) for row in read(options.records)}
    names = DEVELOPED if options.problems == "developed" else options.problems.split(",")
    todo = [(n, key) for n in names for key in options.methods.split(",") if (n, key) not in done]
    if not todo:
        return
    with (
        ProcessPoolExecutor(options.jobs, multiprocessing.get_context("spawn")) as pool,
        ThreadPoolExecutor(len(todo)) as pairs,
    ):

        def finish(name: str, key: str) -> Record:
            if options.what == "grid":
                return searched(pool, name, key)
            found: Record = pool.submit(work, name, key, "advised").result()[0]
            return {"problem": name, "method": key, **found}

        sent = {pairs.submit(finish, *pair): pair for pair in todo}
        for future in as_completed(sent):
            if future.exception() is not None:
                print(*sent[future], "failed:", repr(future.exception()), flush=True)
                continue
            row = future.result()
            with options.records[0].open("a") as file:
                file.write(json.dumps(row) + "\n")
            shown = row.get("best") or (row["advised"], row["runs"])
            print(row["problem"], row["method"], shown, flush=True)


if __name__ == "__main__":
    main()
