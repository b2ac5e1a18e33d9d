"""The candidates of ``clipping_rules.py`` on the networks of ``drop_in.py``, one model at a time.

python benchmarks/clipping_networks.py --out OUT --device cuda --steps 1200 --jobs 4
python benchmarks/clipping_networks.py --table benchmarks/records/clipping_networks
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))
from clipping_rules import candidates
from drop_in_tasks import TASKS as NETWORKS, WORDS, SmallLSTM, Task, batch_of, loss_of, prepared

#: The networks of ``drop_in.py``, and an LSTM that a CPU can train.
TASKS = NETWORKS | {
    "small LSTM, Penn Treebank": Task("ptb", lambda _: SmallLSTM(WORDS[False], 64), 8, 32)
}
DECAY = 0.01


def train(job: dict) -> dict:
    """One run; the held-out loss at its end."""
    device, tiny = job["device"], job["tiny"]
    torch.set_num_threads(1)
    task = TASKS[job["task"]]
    torch.manual_seed(job["seed"])
    data = prepared(task.data, tiny, Path(job["data"]), device)
    model = task.build(tiny).to(device)
    params = [p for p in model.parameters() if p.requires_grad]
    sizes = [p.numel() for p in params]
    (candidate,) = [c for c in candidates() if c.name == job["candidate"]]
    draw = torch.Generator().manual_seed(1000 + job["seed"])
    steps, warm = job["steps"], max(1, job["steps"] // 20)
    begin = time.monotonic()
    for k in range(1, steps + 1):
        inputs, targets = batch_of(task, data, draw, tiny=tiny)
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            loss = loss_of(task, model, inputs, targets)
        grads = torch.autograd.grad(loss, params)
        g = torch.cat([x.reshape(-1) for x in grads])[None]
        lr = job["lr"] * min(k / warm, 0.5 + 0.5 * math.cos(math.pi * (k - 1) / steps))
        step = candidate.update(g, k, sizes)[0]
        with torch.no_grad():
            for p, s in zip(params, step.split(sizes)):
                p.mul_(1 - lr * DECAY).sub_(s.view_as(p), alpha=lr)
    model.eval()
    draw = torch.Generator().manual_seed(77)
    losses = []
    with torch.no_grad():
        for _ in range(2 if tiny else 20):
            inputs, targets = batch_of(task, data, draw, held_out=True, tiny=tiny)
            losses.append(float(loss_of(task, model, inputs, targets)))
    keys = ("task", "candidate", "lr", "seed", "steps", "tiny")
    row = {key: job[key] for key in keys}
    share = candidate.state.get("share")
    if share is not None:
        row["share"] = [round(x, 3) for x in share.flatten().tolist()][:80]
    return {**row, "loss": sum(losses) / len(losses), "seconds": time.monotonic() - begin}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--table", type=Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--tasks", default="transformer, Penn Treebank")
    parser.add_argument("--candidates", default="AdamW;unit;sides")
    parser.add_argument("--rates", default="0.001,0.003")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--tiny", action="store_true")
    options = parser.parse_args()
    if options.table:
        best: dict = {}
        for file in options.table.glob("*.jsonl"):
            for line in file.read_text().splitlines():
                row = json.loads(line)
                key = row["task"], row["steps"], row["lr"], row["candidate"]
                best.setdefault(key, []).append(row["loss"])
        for key, losses in sorted(best.items()):
            print(*key, " ".join(f"{x:.4f}" for x in sorted(losses)))
        return
    options.out.mkdir(parents=True, exist_ok=True)
    file = options.out / f"networks-{options.steps}.jsonl"
    known = set()
    names = ("task", "candidate", "lr", "seed", "steps", "tiny")
    if file.exists():
        known = {tuple(json.loads(x)[n] for n in names) for x in file.read_text().splitlines()}
    folder = options.out / "data"
    folder.mkdir(exist_ok=True)
    jobs = []
    for task in options.tasks.split(";"):
        prepared(TASKS[task].data, options.tiny, folder, "cpu")
    for seed in range(options.seeds):
        for task in options.tasks.split(";"):
            for lr in map(float, options.rates.split(",")):
                for candidate in options.candidates.split(";"):
                    job = dict(zip(names, (task, candidate, lr, seed, options.steps, options.tiny)))
                    if tuple(job.values()) not in known:
                        jobs.append({**job, "device": options.device, "data": str(folder)})
    with ProcessPoolExecutor(options.jobs) as pool:
        for done in as_completed([pool.submit(train, job) for job in jobs]):
            row = done.result()
            with file.open("a") as out:
                out.write(json.dumps(row) + "\n")
            print(row["task"], row["candidate"], row["lr"], round(row["loss"], 4), flush=True)


if __name__ == "__main__":
    main()
