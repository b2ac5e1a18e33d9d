"""How good is ``mindgap recommend``? The gap to a 60-run random search and to AdamW at 1e-3, on 12 development tasks.

    python benchmarks/recommend.py --out FOLDER --jobs 2 [--tasks NAME ...] [--runs 60] [--tiny]
    python benchmarks/recommend.py --out FOLDER --table

Every run appends one line to ``FOLDER/records.jsonl``; a second call does only what is missing. Per task:

* *search*: 60 full-length runs, optimizer and learning rate drawn at random from the candidates' families;
* *recommend*: the recommendation, and its ablations (no instruments; no sharpness; instruments without the race).
  Gradient norm and sharpness are the only instruments whose readings change the candidates;
* *final*: the chosen settings, the best of the search and AdamW at 1e-3, each on three fresh seeds, paired.
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
    train_until(
        progress,
        TASKS[task][0],
        candidate.optimizer,
        seed=seed,
        until=steps,
        total=steps,
        clock=time.perf_counter,
    )
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


def work(job: tuple[Any, ...], steps_factor: float) -> dict[str, Any]:
    """Carry out one job in its own process and return its line."""
    import torch
    from recommend_tasks import TASKS, scale_of

    from mindgap.advise.candidates import BASELINE, Candidate, candidate

    torch.set_num_threads(1)
    kind, task, detail = job
    factory, steps = TASKS[task]
    steps = max(96, int(steps * steps_factor))
    begun = time.perf_counter()
    if kind == "search":
        chosen = drawn(task, detail, scale_of(task))
        line: dict[str, Any] = {"loss": full_run(task, chosen, 0, steps), "setting": vars(chosen)}
    elif kind == "final":
        setting, seed = detail
        line = {"loss": full_run(task, Candidate(*setting), seed, steps)}
    elif detail == "instruments only":
        line = {"setting": vars(candidate("AdamW with clipping", 1e-3, scale_of(task))), "runs": 0.0}
    else:
        leave_out = {"race only": ("gradient_norm", "sharpness"), "no sharpness": ("sharpness",)}.get(detail, ())
        answer = recommend_without(leave_out, factory, steps)
        line = {"setting": answer.about["setting"] or vars(BASELINE), "runs": answer.about["full_length_runs"]}
        line |= {"sentence": answer.sentence, "gain": answer.gain, "minutes": answer.about["seconds"] / 60}
    return {"job": json.loads(json.dumps(job)), "seconds": time.perf_counter() - begun, **line}


def recommend_without(leave_out: tuple[str, ...], factory: Any, steps: int) -> Any:
    """The recommendation with some readings of the instruments replaced by "not measured"."""
    from mindgap.advise import recommendation

    measured = recommendation.measure_start
    recommendation.measure_start = lambda *a, **k: {**measured(*a, **k), **dict.fromkeys(leave_out, math.nan)}
    try:
        return recommendation.recommend(factory, minutes=600, steps=steps)
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

    done = read(folder)
    missing = [job for job in jobs if json.dumps(json.loads(json.dumps(job))) not in done]
    results = Parallel(n_jobs=processes, return_as="generator_unordered")(delayed(work)(job, factor) for job in missing)
    with (folder / "records.jsonl").open("a") as file:
        for line in results:
            file.write(json.dumps(line) + "\n")
            file.flush()


MODES = ("recommend", "race only", "no sharpness", "instruments only")


def settings_to_confirm(task: str, done: dict[str, dict[str, Any]]) -> dict[str, tuple[Any, ...]]:
    """What runs on fresh seeds: the answer of each mode, the best of the search, and the baseline."""
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
    """One row per task: gaps in per cent (negative: better), and the cost in full-length runs."""
    done = read(folder)
    names = ["task", "search", "recommend", "gap to search", "gap to AdamW 1e-3", *MODES[1:], "runs"]
    rows = ["| " + " | ".join(names) + " |", "|---" * len(names) + "|"]
    gaps: dict[str, list[float]] = {"search": [], "AdamW 1e-3": []}
    for task in tasks:
        settings = settings_to_confirm(task, done)
        losses = {}
        for name, setting in settings.items():
            lines = [done.get(json.dumps(["final", task, [list(setting), s]])) for s in FRESH_SEEDS]
            losses[name] = [line["loss"] for line in lines if line]
        losses = {name: values for name, values in losses.items() if len(values) == len(FRESH_SEEDS)}
        if not {"AdamW 1e-3", "search", "recommend"} <= losses.keys():
            rows.append(f"| {task} | not finished" + " |" * (len(names) - 1))
            continue
        mean = {name: statistics.fmean(values) for name, values in losses.items()}
        for rival, values in gaps.items():
            values.append(100 * (mean["recommend"] / mean[rival] - 1))
        runs = done[json.dumps(["recommend", task, "recommend"])]["runs"]
        others = [f"{100 * (mean[m] / mean['search'] - 1):+.1f} %" if m in mean else "not run" for m in MODES[1:]]
        rows.append(
            f"| {task} | {_name(settings['search'])} {mean['search']:.3g} | {_name(settings['recommend'])} "
            f"{mean['recommend']:.3g} | {gaps['search'][-1]:+.1f} % | {gaps['AdamW 1e-3'][-1]:+.1f} % | "
            f"{' | '.join(others)} | {runs:.1f} |"
        )
    if gaps["search"]:
        rows.append("")
        rows.append(
            f"Gap to the search: median {statistics.median(gaps['search']):+.1f} %, "
            f"worst {max(gaps['search']):+.1f} %. Gap to AdamW at 1e-3: worst {max(gaps['AdamW 1e-3']):+.1f} %. "
            f"The search had {min(_runs(done, task) for task in tasks)} runs per task or more."
        )
    return "\n".join(rows)


def _runs(done: dict[str, dict[str, Any]], task: str) -> int:
    return sum(line["job"][:2] == ["search", task] for line in done.values())


def _name(setting: tuple[Any, ...]) -> str:
    return f"{setting[0]} {setting[2]:.2g}"


def main() -> None:
    from recommend_tasks import TASKS

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--runs", type=int, default=60)
    parser.add_argument("--tasks", nargs="*", default=list(TASKS))
    parser.add_argument("--tiny", action="store_true", help="a tenth of the steps, to try the command")
    parser.add_argument("--table", action="store_true", help="only print the table")
    words = parser.parse_args()
    words.out.mkdir(parents=True, exist_ok=True)
    if not words.table:
        factor = 0.1 if words.tiny else 1.0
        jobs: list[tuple[Any, ...]] = [("recommend", task, MODES[0]) for task in words.tasks]
        jobs += [("search", task, index) for index in range(words.runs) for task in words.tasks]
        jobs += [("recommend", task, mode) for mode in MODES[1:] for task in words.tasks]
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


if __name__ == "__main__":
    main()
