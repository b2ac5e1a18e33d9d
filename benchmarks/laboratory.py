"""What the laboratory itself costs: recording a step of one millisecond, listing finished runs,
drawing a page.

    python benchmarks/laboratory.py

The first is a difference inside one run, in processor time: the same loop with and without a
record.
"""

from __future__ import annotations

import resource
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from mindgap.base.source import Source
from mindgap.lab.report import write_page
from mindgap.lab.studies.loop import Trial
from mindgap.lab.studies.run import StudyPlan, plan, run_all
from mindgap.lab.studies.spec import AXES, Figure, Parts, Scale, Study
from mindgap.record.forms import write_form
from mindgap.record.schema import End, Header, Row, Run, to_json
from mindgap.record.store import STUDY_FILE, RunWriter, run_file

STEP = 0.001


def loop(trial: Trial) -> Iterator[Row]:
    """Steps that cost next to nothing, one row per step, a checkpoint offered at every one."""
    value = 0.5
    for step in range(trial["steps"]):
        with trial.timed():
            value = 3.7 * value * (1 - value)
        trial.save({"step": step, "value": value})
        yield {"step": step, "loss": value, "gradient_norm": value * 2, "oracle_calls": 3 * step}


def judge(runs: Sequence[Run]) -> Parts:
    parts = Parts()
    parts.add("all are there", True, words=f"{len(runs)} runs")
    return parts


STUDY = Study(
    "millisecond",
    "S1",
    "Steps of a millisecond",
    "It takes time.",
    Source("thesis", "1"),
    {"quick": Scale({"steps": 2000}, seeds=1)},
    {"method": {}},
    loop,
    judge,
    figures=(Figure("Loss", "loss", "loss"),),
)


def overhead(rounds: int = 7) -> tuple[float, float]:
    """What recording and scheduling add to a study, as a share of steps of 1 ms: smallest and
    median of some rounds.

    The study is run with steps that cost nothing, recorded and bare; the difference in processor
    time is what the laboratory adds, whatever a step costs. (A step of 1 ms by the clock would make
    a busy machine part of the answer.)
    """
    added = []
    item = plan(STUDY, "quick")
    steps = item.headers[0].settings["steps"]
    for _ in range(rounds):
        begin = time.process_time()
        for _ in STUDY.loop(Trial("method", 0, item.headers[0].settings)):
            pass
        bare = time.process_time() - begin
        with tempfile.TemporaryDirectory() as folder:
            begin = time.process_time()
            run_all([item], Path(folder))
            added.append((time.process_time() - begin - bare) / (steps * STEP))
    return min(added), statistics.median(added)


def listing(runs: int = 10_000) -> tuple[float, float]:
    """Seconds to find that so many runs are finished, and to find that all but one are."""
    with tempfile.TemporaryDirectory() as name:
        headers = tuple(
            Header("millisecond", "S1", "quick", "method", seed, {"steps": 1})
            for seed in range(runs)
        )
        item = StudyPlan(STUDY, "quick", headers)
        folder = item.folder(Path(name))
        folder.mkdir(parents=True)
        row = to_json({"row": {"step": 0, "loss": 0.5}})
        for header in headers:
            lines = [
                to_json({"header": vars(header)}),
                *[row] * 20,
                to_json({"end": vars(End("done"))}),
            ]
            run_file(folder, header).write_text("\n".join(lines) + "\n")
        begin = time.perf_counter()
        assert item.missing(Path(name)) == []
        all_there = time.perf_counter() - begin
        run_file(folder, headers[7]).unlink()
        begin = time.perf_counter()
        assert item.missing(Path(name)) == [headers[7]]
        return all_there, time.perf_counter() - begin


def page(runs: int = 200, rows: int = 1000) -> tuple[float, float, float]:
    """Seconds by the clock, on the processor, and megabytes: 200 runs of 1000 rows, 20 methods,
    10 seeds, 4 figures.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "millisecond" / "quick"
        folder.mkdir(parents=True)
        figures = tuple(Figure(y, y, y) for y in ("loss", "norm", "a", "b"))
        methods = [f"method {i}" for i in range(runs // 10)]
        about = replace(STUDY.describe("quick"), figures=figures, methods=tuple(methods), axes=AXES)
        write_form(folder / STUDY_FILE, about)
        for number in range(runs):
            header = Header("millisecond", "S1", "quick", methods[number // 10], number % 10, {})
            with RunWriter(folder, header) as writer:
                value = 0.1 + number / 1000
                for step in range(rows):
                    value = 3.7 * value * (1 - value)
                    row = {
                        "step": step,
                        "x_epoch": step / 9,
                        "y_epoch": step / 7,
                        "oracle_calls": 3 * step,
                    }
                    writer.row(
                        {
                            **row,
                            "seconds": step * value,
                            "loss": value,
                            "norm": value**2,
                            "a": -value,
                            "b": step,
                        }
                    )
                writer.end(End("done"))
        begin, clock = time.process_time(), time.perf_counter()
        out = write_page(Path(name), Path(name) / "page.html")
        return time.perf_counter() - clock, time.process_time() - begin, out.stat().st_size / 1e6


def main() -> None:
    least, middle = overhead()
    print(
        f"recording and scheduling: {100 * middle:.2f} % of steps of 1 ms, {100 * least:.2f} % at "
        "best (aim: below 2 %)"
    )
    there, one = listing()
    print(
        f"10,000 finished runs listed in {there:.2f} s, one missing found in {one:.2f} s (aim: "
        "below 2 s)"
    )
    seconds, processor, size = page()
    print(
        f"a page of 200 runs of 1000 rows: {seconds:.1f} s, {processor:.1f} s of them on the "
        f"processor, {size:.1f} MB "
        "(aim: 15 s, 15 MB)"
    )
    print(f"largest memory: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6:.2f} GB")


if __name__ == "__main__":
    main()
