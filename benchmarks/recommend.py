"""How good is ``mindgap recommend``? The gap to a 60-run random search and to AdamW at 1e-3, on 12
development tasks.

    python benchmarks/recommend.py --out FOLDER --jobs 2 [--tasks NAME ...] [--runs 60] [--tiny]
    python benchmarks/recommend.py --out FOLDER --table [--docs docs/recommend.md]

Every run appends one line to ``FOLDER/records.jsonl``; a second call does only what is missing. Per
task:

* *scale*: gradient norm and sharpness at the start, which place the learning rates of SGD and GClip
  in the search;
* *search*: 60 full-length runs, optimizer and learning rate drawn at random from the candidates'
  families;
* *recommend*: the recommendation, and its ablations (no instruments; no sharpness; instruments
  without the race). Gradient norm and sharpness are the only instruments whose readings change the
  candidates;
* *final*: the chosen settings, the best of the search and AdamW at 1e-3, each on three fresh seeds,
  paired.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from pathlib import Path
from typing import Any

FRESH_SEEDS = (101, 102, 103)
#: Rates between which the search draws, as rates of AdamW.
RANGE = (1e-4, 1e-1)


def full_run(task: str, candidate: Any, seed: int, steps: int) -> float:
    """Validation loss at the end of one full-length run."""
    from recommend_tasks import TASKS

    from mindgap.advise.training import Progress, train_until

    progress = Progress()
    shape = candidate.shape
    factory, make = TASKS[task][0], candidate.optimizer
    train_until(progress, factory, make, seed=seed, until=steps, total=steps, shape=shape)
    return progress.scores[steps]


def drawn(task: str, index: int, scale: Any) -> Any:
    """Candidate number ``index`` of the random search."""
    from recommend_tasks import TASKS

    from mindgap.advise.candidates import FAMILIES, candidate
    from mindgap.advise.training import build
    from mindgap.base.rng import numpy_stream

    model = build(TASKS[task][0], 0).objective.model
    families = [name for name, family in FAMILIES.items() if family.fits(model)]
    stream = numpy_stream(0, "search", index)
    family = families[int(stream.integers(len(families)))]
    low, high = (math.log(r) for r in RANGE)
    return candidate(family, math.exp(low + (high - low) * float(stream.random())), scale)


def work(job: tuple[Any, ...], steps_factor: float, scales: dict[str, Any]) -> dict[str, Any]:
    """Carry out one job in its own process and return its line; ``scales``: task -> readings at
    its start.
    """
    import torch
    from recommend_tasks import TASKS, scale_of

    from mindgap.advise.candidates import BASELINE, Candidate, candidate

    torch.set_num_threads(1)
    kind, task, detail = job
    factory, steps = TASKS[task]
    steps = max(96, int(steps * steps_factor))
    begun = time.perf_counter()
    if kind == "scale":
        line: dict[str, Any] = vars(scale_of(task))
    elif kind == "search":
        chosen = drawn(task, detail, scales.get(task) or scale_of(task))
        line = {"loss": full_run(task, chosen, 0, steps), "setting": vars(chosen)}
    elif kind == "final":
        setting, seed = detail
        line = {"loss": full_run(task, Candidate(*setting), seed, steps)}
    elif detail == "instruments only":
        line = {
            "setting": vars(
                candidate("AdamW with clipping", 1e-3, scales.get(task) or scale_of(task))
            ),
            "runs": 0.0,
        }
    else:
        answer = recommended(factory, steps, detail)
        line = {
            "setting": answer.about["setting"] or vars(BASELINE),
            "runs": answer.about["full_length_runs"],
        }
        line |= {
            "sentence": answer.sentence,
            "gain": answer.gain,
            "minutes": answer.about["seconds"] / 60,
        }
    return {"job": json.loads(json.dumps(job)), "seconds": time.perf_counter() - begun, **line}


def recommended(factory: Any, steps: int, mode: str) -> Any:
    """The recommendation, or one of its ablations."""
    from mindgap.advise import recommendation

    measured = recommendation.measure_start
    if mode == "no sharpness":
        recommendation.measure_start = lambda *a, **k: {**measured(*a, **k), "sharpness": math.nan}
    try:
        return recommendation.recommend(
            factory, minutes=600, steps=steps, measure=mode != "race only"
        )
    finally:
        recommendation.measure_start = measured


def read(folder: Path) -> dict[str, dict[str, Any]]:
    """Lines written so far, by job."""
    path = folder / "records.jsonl"
    lines = [json.loads(text) for text in path.read_text().splitlines()] if path.exists() else []
    return {json.dumps(line["job"]): line for line in lines}


def carry_out(jobs: list[tuple[Any, ...]], folder: Path, processes: int, factor: float) -> None:
    """Run the jobs that have no line yet, several side by side, writing each line as it comes."""
    from joblib import Parallel, delayed

    from mindgap.advise.candidates import Scale

    done = read(folder)
    scales = {
        line["job"][1]: Scale(
            *(line[name] for name in ("parameters", "gradient_norm", "sharpness"))
        )
        for line in done.values()
        if line["job"][0] == "scale"
    }
    missing = [job for job in jobs if json.dumps(json.loads(json.dumps(job))) not in done]
    results = Parallel(n_jobs=processes, return_as="generator_unordered", batch_size=1)(
        delayed(work)(job, factor, scales) for job in missing
    )
    with (folder / "records.jsonl").open("a") as file:
        for line in results:
            file.write(json.dumps(line) + "\n")
            file.flush()


MODES = ("recommend", "race only", "no sharpness", "instruments only")


def settings_to_confirm(task: str, done: dict[str, dict[str, Any]]) -> dict[str, tuple[Any, ...]]:
    """What runs on fresh seeds: the answer of each mode, the best of the search, and the
    baseline.
    """
    settings = {"AdamW 1e-3": ("AdamW", 1e-3, 1e-3)}
    searched = [line for line in done.values() if line["job"][:2] == ["search", task]]
    if searched:
        settings["search"] = tuple(min(searched, key=lambda line: line["loss"])["setting"].values())
    for mode in MODES:
        line = done.get(json.dumps(["recommend", task, mode]))
        if line:
            settings[mode] = tuple(line["setting"].values())
    return settings


def table(tasks: list[str], folder: Path) -> str:
    """One row per task: gaps in per cent (below zero is better), and the cost in full-length
    runs.
    """
    done = read(folder)
    modes = [
        mode
        for mode in MODES[1:]
        if any(["recommend", task, mode] == line["job"] for task in tasks for line in done.values())
    ]
    names = [
        "task",
        "best of the search",
        "recommendation",
        "gap to the search",
        "gap to AdamW at 1e-3",
    ]
    rows = [[*names, *modes, "cost in runs"]]
    gaps: dict[str, list[float]] = {"search": [], "AdamW 1e-3": []}
    for task in tasks:
        settings = settings_to_confirm(task, done)
        mean = {}
        for name, setting in settings.items():
            lines = [done.get(json.dumps(["final", task, [list(setting), s]])) for s in FRESH_SEEDS]
            if all(lines):
                mean[name] = statistics.fmean(line["loss"] for line in lines if line)
        if not {"AdamW 1e-3", "search", "recommend"} <= mean.keys():
            rows.append([task, "not finished", *[""] * (len(rows[0]) - 2)])
            continue
        for rival, values in gaps.items():
            values.append(100 * (mean["recommend"] / mean[rival] - 1))
        runs = done[json.dumps(["recommend", task, "recommend"])]["runs"]
        said = [f"{_name(settings[name])}: {mean[name]:.3g}" for name in ("search", "recommend")]
        others = [
            _percent(100 * (mean[m] / mean["search"] - 1)) if m in mean else "not run"
            for m in modes
        ]
        rows.append(
            [
                task,
                *said,
                *(_percent(values[-1]) for values in gaps.values()),
                *others,
                f"{runs:.1f}",
            ]
        )
    rows.insert(1, ["---"] * len(rows[0]))
    text = "\n".join("| " + " | ".join(row) + " |" for row in rows)
    if not gaps["search"]:
        return text
    return (
        f"{text}\n\nGap to the search: median {_percent(statistics.median(gaps['search']))}, worst "
        f"{_percent(max(gaps['search']))}. Gap to AdamW at 1e-3: worst "
        f"{_percent(max(gaps['AdamW 1e-3']))}. The search "
        f"made at least {min(_runs(done, task) for task in tasks)} runs per task."
    )


def written(page: Path, tasks: list[str], folder: Path) -> str:
    """The text of a page with the table between its marks."""
    begin, end = "<!-- recommend: begin -->", "<!-- recommend: end -->"
    head, _, rest = page.read_text(encoding="utf-8").partition(begin)
    return f"{head}{begin}\n\n{table(tasks, folder)}\n\n{end}{rest.partition(end)[2]}"


def _percent(value: float) -> str:
    return f"{value:+.1f} %".replace("-", "−")


def _runs(done: dict[str, dict[str, Any]], task: str) -> int:
    return sum(line["job"][:2] == ["search", task] for line in done.values())


def _name(setting: tuple[Any, ...]) -> str:
    return f"{setting[0]}, lr {setting[2]:.2g}"


def main() -> None:
    from recommend_tasks import TASKS

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--runs", type=int, default=60)
    parser.add_argument(
        "--tasks",
        nargs="*",
        help="default: all that this machine can run; with --table, all recorded",
    )
    parser.add_argument("--ablations", nargs="*", choices=MODES[1:], default=MODES[1:])
    parser.add_argument(
        "--tiny", action="store_true", help="a tenth of the steps, to try the command"
    )
    parser.add_argument("--table", action="store_true", help="only print the table")
    parser.add_argument("--docs", type=Path, help="with --table: the page to write it into")
    words = parser.parse_args()
    words.out.mkdir(parents=True, exist_ok=True)
    recorded = dict.fromkeys(
        line["job"][1] for line in read(words.out).values() if line["job"][0] == "recommend"
    )
    words.tasks = words.tasks or list(recorded if words.table else TASKS)
    if not words.table:
        factor = 0.1 if words.tiny else 1.0
        jobs: list[tuple[Any, ...]] = [("recommend", task, MODES[0]) for task in words.tasks]
        searched = ["search", words.tasks[-1], words.runs - 1]
        if json.dumps(searched) not in read(words.out):
            carry_out(
                [("scale", task, "start") for task in words.tasks], words.out, words.jobs, factor
            )
        jobs += [("search", task, index) for index in range(words.runs) for task in words.tasks]
        jobs += [("recommend", task, mode) for mode in words.ablations for task in words.tasks]
        carry_out(jobs, words.out, words.jobs, factor)
        done = read(words.out)
        final = {
            ("final", task, (setting, seed))
            for task in words.tasks
            for setting in settings_to_confirm(task, done).values()
            for seed in FRESH_SEEDS
        }
        carry_out(sorted(final), words.out, words.jobs, factor)
    print(table(words.tasks, words.out))
    if words.docs:
        words.docs.write_text(written(words.docs, words.tasks, words.out), encoding="utf-8")


if __name__ == "__main__":
    main()
