"""Candidates for ``clip="auto"`` on tasks whose noise is known: all models of a task in one
program.

    python benchmarks/clipping/run.py --out benchmarks/records/clipping [--device cuda] [--jobs 4]
    python benchmarks/clipping/run.py --table benchmarks/records/clipping

Five learning rates, three seeds, 200 steps and the task's own length; warm-up over a twentieth,
then cosine. One JSON line per task, length and candidate; a second call makes what is missing.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parent))
from rules import FIXED, Candidate, candidates
from tasks import TASKS, Batch, Params, Task

RATES = (3e-4, 1e-3, 3e-3, 1e-2, 3e-2)
SEEDS = (0, 1, 2)
SHORT = 200
DECAY = 0.01


def as_params(flat: Tensor, task: Task) -> Params:
    out, at = {}, 0
    for name, shape in task.shapes.items():
        size = math.prod(shape)
        out[name] = flat[at : at + size].view(shape)
        at += size
    return out


def stacked(batches: list[Batch], device: str) -> Batch:
    return tuple(torch.stack(parts).to(device) for parts in zip(*batches))


def train(
    task: Task, chosen: list[Candidate], steps: int, device: str, seeds: tuple[int, ...] = SEEDS
) -> dict[str, list[list[float]]]:
    """Candidate -> held-out loss per rate and seed, at the end."""
    streams = [torch.Generator().manual_seed(1000 + seed) for seed in seeds]
    worlds = [task.world(g) for g in streams]
    starts = [
        torch.cat([v.reshape(-1) for v in task.init(torch.Generator().manual_seed(seed)).values()])
        for seed in seeds
    ]
    sizes = [math.prod(shape) for shape in task.shapes.values()]
    count, rates = len(chosen), len(RATES)
    start = torch.stack(starts).to(device)[:, None, None]
    theta = start.expand(-1, count, rates, -1).clone()
    lr = torch.tensor(RATES, device=device)[None, :, None]

    def loss(flat: Tensor, *batch: Tensor) -> Tensor:
        return task.loss(as_params(flat, task), batch)

    inner = torch.func.vmap(
        torch.func.grad(loss), in_dims=(0,) + (None,) * len(task.draw(worlds[0], streams[0]))
    )
    gradient = torch.func.vmap(inner)
    warm = max(1, steps // 20)
    for k in range(1, steps + 1):
        batch = stacked([task.draw(w, g) for w, g in zip(worlds, streams)], device)
        flat = theta.reshape(len(seeds), count * rates, -1)
        g = gradient(flat, *batch).view_as(theta)
        factor = min(k / warm, 0.5 + 0.5 * math.cos(math.pi * (k - 1) / steps))
        for i, candidate in enumerate(chosen):
            step = candidate.update(g[:, i], k, sizes)
            theta[:, i] = theta[:, i] * (1 - factor * lr * DECAY) - factor * lr * step
    score = task.score or task.loss

    def held(flat: Tensor, *batch: Tensor) -> Tensor:
        return score(as_params(flat, task), batch)

    draws = [torch.Generator().manual_seed(5000 + seed) for seed in seeds]
    batch = stacked([task.held_out(w, g) for w, g in zip(worlds, draws)], device)
    measure = torch.func.vmap(torch.func.vmap(held, in_dims=(0,) + (None,) * len(batch)))
    with torch.no_grad():
        losses = measure(theta.reshape(len(seeds), count * rates, -1), *batch).view(
            len(seeds), count, rates
        )
    return {c.name: losses[:, i].T.cpu().double().tolist() for i, c in enumerate(chosen)}


def work(job: tuple[str, int, list[str], str, str]) -> str:
    name, steps, names, device, out = job
    torch.set_num_threads(1)
    task = TASKS[name]
    chosen = [c for c in candidates() if c.name in names]
    begin = time.monotonic()
    losses = train(task, chosen, steps, device)
    seconds = time.monotonic() - begin
    with Path(out).open("a", encoding="utf-8") as file:
        for candidate, table in losses.items():
            row = {"task": name, "steps": steps, "candidate": candidate, "losses": table}
            file.write(json.dumps(row) + "\n")
    return f"{name}, {steps} steps, {len(chosen)} candidates: {seconds:.0f} s"


def load(folder: Path) -> dict[tuple[str, int, str], list[list[float]]]:
    rows: dict[tuple[str, int, str], list[list[float]]] = {}
    for file in sorted(folder.glob("*.jsonl")):
        for line in file.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            rows[row["task"], row["steps"], row["candidate"]] = row["losses"]
    return rows


def middle(values: list[float]) -> float:
    good = [v if math.isfinite(v) else math.inf for v in values]
    return statistics.median(good)


def table(folder: Path, split: str) -> str:
    """Per task: loss of the best fixed clip at lr 1e-3, and every candidate's ratio to it, at 1e-3
    and at its best rate."""
    rows = load(folder)
    out = []
    at = RATES.index(1e-3)
    for name, task in TASKS.items():
        for steps in (SHORT, task.steps):
            here = {c: v for (t, s, c), v in rows.items() if t == name and s == steps}
            if task.split != split or "AdamW" not in here:
                continue
            base = middle(here["AdamW"][at])
            best_base = min(middle(v) for v in here["AdamW"])
            clips = [c for c in here if c in {f"clip {tau:g}" for tau in FIXED}]
            best = min(middle(here[c][at]) for c in clips)
            tuned = min(middle(v) for c in clips for v in here[c])
            out.append(
                f"{name} ({task.tail}), {steps} steps: AdamW {base:.4g} ({best_base:.4g}), "
                f"best clip {best:.4g} ({tuned:.4g})"
            )
            for c, v in here.items():
                own, own_best = middle(v[at]), min(middle(r) for r in v)
                paired = statistics.mean(
                    math.log(a / b) for a, b in zip(v[at], here["AdamW"][at]) if a > 0 and b > 0
                )
                out.append(
                    f"    {c:32s} {own:9.4g} {100 * math.expm1(paired):+7.1f} % AdamW "
                    f"{100 * (own / best - 1):+7.1f} % clip"
                    f"   tuned {own_best:9.4g} {100 * (own_best / best_base - 1):+7.1f} % "
                    f"{100 * (own_best / tuned - 1):+7.1f} %"
                )
    return "\n".join(out)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path)
    parser.add_argument("--table", type=Path)
    parser.add_argument("--split", default="develop")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--tasks", default="")
    parser.add_argument("--candidates", default="")
    parser.add_argument("--lengths", default="short,own")
    parser.add_argument("--tiny", type=int, default=0)
    options = parser.parse_args()
    if options.table:
        print(table(options.table, options.split))
        return
    options.out.mkdir(parents=True, exist_ok=True)
    known = load(options.out)
    jobs = []
    for name, task in TASKS.items():
        if task.split != options.split or (options.tasks and name not in options.tasks.split(";")):
            continue
        for length in options.lengths.split(","):
            steps = options.tiny or (SHORT if length == "short" else task.steps)
            names = [
                c.name
                for c in candidates()
                if (name, steps, c.name) not in known
                and (not options.candidates or c.name in options.candidates.split(";"))
            ]
            if names:
                file = options.out / f"{''.join(ch for ch in name if ch.isalnum())}-{steps}.jsonl"
                jobs.append((name, steps, names, options.device, str(file)))
    jobs.sort(key=lambda job: -job[1])
    if options.jobs == 1:
        for job in jobs:
            print(work(job), flush=True)
    else:
        with ProcessPoolExecutor(options.jobs) as pool:
            for said in pool.map(work, jobs):
                print(said, flush=True)


if __name__ == "__main__":
    main()
