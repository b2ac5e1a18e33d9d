"""What ``advise`` prescribes on the tasks of ``clipping.py``, against what it did there.

    python benchmarks/clipping_advice.py --out benchmarks/records/clipping_advice.jsonl
    python benchmarks/clipping_advice.py --table benchmarks/records/clipping_advice.jsonl

Each task trains for 200 steps with torch's AdamW at lr 1e-3. Then the gradients of 512 minibatches
say, as in ``mindgap measure``, whether the variance of the noise is infinite; only then ``advise``
prescribes ``clip="noise"``. What that clip did comes from the records of its judgement,
``clipping_fifth.jsonl`` and ``clipping_sixth.jsonl``: its change at lr 1e-3 and full length, paired
by seed. One JSON line per task and seed; a second call makes what is missing.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parent))
from clipping import SEEDS, TASKS, at_one_rate, paired
from clipping_tasks import Batch

from mindgap.advise.diagnosis import Judgement
from mindgap.advise.prescription import prescribe
from mindgap.base.objective import Objective
from mindgap.measure.probes.noise import noise_sample
from mindgap.measure.probes.tails import infinite_variance

STEPS, BATCHES = 200, 512
#: A larger index is written as this one.
MOST = 1000.0


class Network(nn.Module):
    """The parameters of a task by name."""

    def __init__(self, start: dict[str, Tensor]) -> None:
        super().__init__()
        self.names = list(start)
        self.values = nn.ParameterList([nn.Parameter(v.clone()) for v in start.values()])

    def named(self) -> dict[str, Tensor]:
        return dict(zip(self.names, self.values))


def examine(name: str, seed: int) -> dict[str, object]:
    task = TASKS[name]
    stream = torch.Generator().manual_seed(1000 + seed)
    world = task.world(stream)
    network = Network(task.init(torch.Generator().manual_seed(seed)))

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        return task.loss(network.named(), batch)

    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3)
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss(network, task.draw(world, stream)).backward()
        optimizer.step()
    batches = [task.draw(world, stream) for _ in range(BATCHES)]
    found = infinite_variance(noise_sample(Objective(network, loss), batches, seed=seed))
    judged = Judgement("finite variance", found.infinite, found.answer)
    clips = any('clip="noise"' in advice.code for advice in prescribe([judged]))
    index, low, high = (round(min(x, MOST), 3) for x in (found.index, *found.interval))
    row = {"task": name, "seed": seed, "index": index, "interval": [low, high]}
    return {**row, "infinite": found.infinite, "prescribed": clips}


def read(file: Path) -> dict[tuple[str, int], dict]:
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    return {(row["task"], row["seed"]): row for row in map(json.loads, lines)}


def records(folder: Path) -> dict:
    """What the clip and AdamW did: (task, steps) -> candidate -> losses."""
    return at_one_rate(folder / "clipping_fifth.jsonl", folder / "clipping_sixth.jsonl")


def effect(losses: dict, name: str) -> float:
    """The change in percent by ``clip="noise"``: median of three pairs, full length, lr 1e-3."""
    here = losses[name, TASKS[name].steps]
    return 100 * (paired(here["weighed 2, growth 2"], here["AdamW"]) - 1)


def table(file: Path) -> str:
    """Per task: the measured indices, how often clipping was prescribed, and what it did."""
    found, losses = read(file), records(file.parent)
    head = ("task", "tail", "set", "measured index, seeds 0, 1, 2", "prescribed", "its effect")
    lines = [head, ("---",) * len(head)]
    for name, task in TASKS.items():
        rows = [found[name, seed] for seed in SEEDS if (name, seed) in found]
        if not rows:
            continue
        indices = ", ".join("above 20" if r["index"] > 20 else f"{r['index']:.1f}" for r in rows)
        count = f"{sum(r['prescribed'] for r in rows)} of {len(rows)}"
        change = f"{effect(losses, name):+.1f} %".replace("+0.0", "0.0").replace("-0.0", "0.0")
        change = change.replace("-", "−")
        shown = name.partition(": ")[2] or name
        lines.append((shown, task.tail, task.split, indices, count, change))
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path)
    parser.add_argument("--table", type=Path)
    parser.add_argument("--tasks", default="")
    options = parser.parse_args()
    if options.table:
        print(table(options.table))
        return
    torch.set_num_threads(1)
    known = read(options.out)
    for seed in SEEDS:
        for name in options.tasks.split(";") if options.tasks else TASKS:
            if (name, seed) in known:
                continue
            row = examine(name, seed)
            with options.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
            print(row, flush=True)


if __name__ == "__main__":
    main()
