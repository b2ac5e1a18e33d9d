"""Does another "auto" make GClip follow AdamW? Two small transformers on the benchmark's data, one
seed.

    python benchmarks/gclip_tries.py --out benchmarks/records
        makes the missing runs; 6 minutes on a core
    python benchmarks/gclip_tries.py --table benchmarks/records \
        --docs docs/appendix/optimizer-tables.md

The tries, each with learning rates around the one that the recipe's step length asks for:

- ``quantile 0.1``: the threshold follows the 0.1 quantile of the norms, so that nearly every step
  has the same length;
- ``tensor, quantile 0.1``: the same for each tensor by itself, which gives every layer its own
  scale;
- ``tensor, weight norm``: each tensor's step is lr·‖w‖ long (the layer-wise scale of LARS and
  LAMB).
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import kept_runs
import torch
from drop_in import markdown, relative
from drop_in_tasks import TASKS, Vision, batch_of, loss_of, prepare

from mindgap.lab.tasks.models.small import SmallTransformer
from mindgap.optim import GClip, NormalizedSGD
from mindgap.optim.optimizers import gclip

STEPS, SEED = 200, 0
SMALL = {
    "transformer, Penn Treebank": replace(
        TASKS["transformer, Penn Treebank"],
        build=lambda tiny: SmallTransformer(10_000, 128, 2, 4, 64),
        batch=4,
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
    return GClip(
        params, lr, "auto", beta=0.9, scope="tensor" if "tensor" in name else "all", foreach=True
    )


@cache
def samples(name: str) -> dict[str, torch.Tensor]:
    return prepare(name, tiny=False)


def train(task_name: str, name: str, lr: float) -> float:
    """Mean training loss of the last tenth; schedule, data and start are those of
    ``drop_in.py``.
    """
    task = SMALL[task_name]
    data = samples(task.data)
    torch.manual_seed(SEED)
    model = task.build(False)
    params = list(model.parameters())
    gclip.QUANTILE = 0.1 if "quantile" in name else 0.9
    optimizer = build(name, params, lr)
    warm = STEPS // 20
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda k: min((k + 1) / warm, 0.5 + 0.5 * math.cos(math.pi * min(1.0, k / STEPS))),
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
            with (
                torch.no_grad()
            ):  # from length lr to length lr·‖w‖, at least that of a weight of norm 1
                for p, x in zip(params, before):
                    p.copy_(x + (p - x) * x.norm().clamp(min=1.0))
        else:
            optimizer.step()
        schedule.step()
    return sum(losses[-STEPS // 10 :]) / (STEPS // 10)


def table(folder: Path) -> str:
    """Each try against AdamW, at its best learning rate and at the others."""
    losses, lines = kept_runs.read(folder, "gclip_tries"), []
    for name, rates in RATES.items():
        cells = []
        for task in SMALL:
            base = losses[task, "torch AdamW", 1e-3]
            known = {lr: losses[task, name, lr] for lr in rates if (task, name, lr) in losses}
            texts = [f"{relative(loss, base)} at {lr:g}" for lr, loss in known.items()]
            cells.append(f"{base:.3f}" if name == "torch AdamW" else ", ".join(texts))
        lines.append([name, *cells])
    return markdown(["try", *SMALL], lines)


KEYS = [(task, name, lr) for task in SMALL for name, rates in RATES.items() for lr in rates]

if __name__ == "__main__":
    kept_runs.main(__doc__, "gclip_tries", ("task", "try", "lr"), KEYS, train, table)
