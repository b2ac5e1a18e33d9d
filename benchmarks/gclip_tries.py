"""Does another "auto" make GClip follow AdamW? Two small transformers on the benchmark's data, one seed.

    python benchmarks/gclip_tries.py --out benchmarks/records       makes the missing runs; 6 minutes on a core
    python benchmarks/gclip_tries.py --table benchmarks/records --docs docs/optimizers.md

The tries, each with learning rates around the one that the recipe's step length asks for:

- ``quantile 0.1``: the threshold follows the 0.1 quantile of the norms, so that nearly every step has the same length;
- ``tensor, quantile 0.1``: the same for each tensor by itself, which gives every layer its own scale;
- ``tensor, weight norm``: each tensor's step is lr·‖w‖ long (the layer-wise scale of LARS and LAMB).
"""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from drop_in import markdown, relative, with_table
from drop_in_tasks import TASKS, Vision, batch_of, loss_of, prepare

from mindgap.lab.tasks.models.small import SmallTransformer
from mindgap.optim import GClip, NormalizedSGD
from mindgap.optim.optimizers import gclip

STEPS, SEED = 200, 0
SMALL = {
    "transformer, Penn Treebank": replace(
        TASKS["transformer, Penn Treebank"], build=lambda tiny: SmallTransformer(10_000, 128, 2, 4, 64), batch=4
    ),
    "vision transformer, CIFAR-10": replace(
        TASKS["vision transformer, CIFAR-10"], build=lambda tiny: Vision(64, 2), batch=32
    ),
}
RATES = {
    "torch AdamW": (1e-3,),
    "GClip, tau='auto'": (1.0,),
    "quantile 0.1": (0.3, 1.0, 3.0),
    "tensor, quantile 0.1": (0.3, 1.0, 3.0),
    "tensor, weight norm": (0.003, 0.01, 0.03),
}


def build(name: str, params: list[torch.nn.Parameter], lr: float) -> Any:
    """The optimizer of a try."""
    if name == "torch AdamW":
        return torch.optim.AdamW(params, lr)
    if name == "tensor, weight norm":
        return NormalizedSGD(params, lr, beta=0.9, scope="tensor", foreach=True)
    return GClip(params, lr, "auto", beta=0.9, scope="tensor" if "tensor" in name else "all", foreach=True)


def train(task_name: str, name: str, lr: float, data: dict[str, torch.Tensor]) -> float:
    """Mean training loss of the last tenth; schedule, data and start are those of ``drop_in.py``."""
    task = SMALL[task_name]
    torch.manual_seed(SEED)
    model = task.build(False)
    params = list(model.parameters())
    gclip.QUANTILE = 0.1 if "quantile" in name else 0.9
    optimizer = build(name, params, lr)
    warm = STEPS // 20
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda k: min((k + 1) / warm, 0.5 + 0.5 * math.cos(math.pi * min(1.0, k / STEPS)))
    )
    draw, losses = torch.Generator().manual_seed(1000 + SEED), []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of(task, model, *batch_of(task, data, draw))
        losses.append(float(loss.detach()))
        if not math.isfinite(losses[-1]):
            return math.inf
        loss.backward()
        if name == "tensor, weight norm":
            before = [p.detach().clone() for p in params]
            optimizer.step()
            with torch.no_grad():  # from length lr to length lr·‖w‖, at least that of a weight of norm 1
                for p, x in zip(params, before):
                    p.copy_(x + (p - x) * x.norm().clamp(min=1.0))
        else:
            optimizer.step()
        schedule.step()
    return sum(losses[-STEPS // 10 :]) / (STEPS // 10)


def read(folder: Path) -> dict[tuple[str, str, float], float]:
    """(task, try, lr) -> loss."""
    file = folder / "gclip_tries.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    return {(row["task"], row["try"], row["lr"]): row["loss"] for row in rows}


def table(folder: Path) -> str:
    """Each try against AdamW, at its best learning rate and at the others."""
    losses, lines = read(folder), []
    for name, rates in RATES.items():
        cells = []
        for task in SMALL:
            base = losses[task, "torch AdamW", 1e-3]
            known = {lr: losses[task, name, lr] for lr in rates if (task, name, lr) in losses}
            texts = [f"{relative(loss, base)} at {lr:g}" for lr, loss in known.items()]
            cells.append(f"{base:.3f}" if name == "torch AdamW" else ", ".join(texts))
        lines.append([name, *cells])
    return markdown(["try", *SMALL], lines)


def written(page: Path, folder: Path) -> str:
    """The page with the table between its marks."""
    return with_table(page, "gclip_tries", table(folder))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("out"))
    parser.add_argument("--table", type=Path, help="print the table of the records in this folder")
    parser.add_argument("--docs", type=Path, nargs="+", default=[], help="with --table: pages to write it into")
    args = parser.parse_args()
    if args.table is None:
        torch.set_num_threads(1)
        args.out.mkdir(parents=True, exist_ok=True)
        known = read(args.out)
        with (args.out / "gclip_tries.jsonl").open("a") as file:
            for task in SMALL:
                data = prepare(SMALL[task].data, tiny=False)
                for key in [(task, name, lr) for name, rates in RATES.items() for lr in rates]:
                    if key not in known:
                        loss = train(*key, data)
                        file.write(json.dumps(dict(zip(("task", "try", "lr", "loss"), (*key, loss)))) + "\n")
                        file.flush()
    print(table(args.table or args.out))
    for path in args.docs:
        path.write_text(written(path, args.table or args.out))


if __name__ == "__main__":
    main()
