"""One gradient of 140 multiplied by 10,000, or every twentieth: every optimizer at its defaults,
against its own run without that.

    python benchmarks/spikes.py --out benchmarks/records
        makes the missing runs; minutes on one core
    python benchmarks/spikes.py --table benchmarks/records --docs docs/appendix/optimizer-tables.md
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from statistics import mean
from typing import Any

import kept_runs
import torch
from drop_in import average, markdown, relative
from drop_in_tasks import prepare
from torch import nn

from mindgap.lab.tasks.models.small import small_convolutional_network
from mindgap.optim import SGD, ACClip, AdamW, CClip, GClip, NormalizedSGD, StochasticINGD

REFERENCE = "torch AdamW, clip_grad_norm_(1)"
#: Those at their defaults must pass; lr and tau where there is no default.
DEFAULTS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "AdamW(params)": lambda p: AdamW(p),
    "AdamW(params, clip='noise')": lambda p: AdamW(p, clip="noise"),
    "AdamW(params, clip=1.0)": lambda p: AdamW(p, clip=1.0),
    "SGD(params, 0.05)": lambda p: SGD(p, 0.05),
    "SGD(params, 0.02, 0.9)": lambda p: SGD(p, 0.02, 0.9),
    "ACClip(params)": lambda p: ACClip(p),
    "ACClip(params, form='second_moment')": lambda p: ACClip(p, form="second_moment"),
    "ACClip(params, 0.3, form='algorithm')": lambda p: ACClip(p, 0.3, form="algorithm"),
    "GClip(params, 0.1, 1.0)": lambda p: GClip(p, 0.1, 1.0),
    "GClip(params, 0.2, 1.0, beta=0.9)": lambda p: GClip(p, 0.2, 1.0, beta=0.9),
    "GClip(params, 0.2, 'auto', beta=0.9)": lambda p: GClip(p, 0.2, "auto", beta=0.9),
    "GClip(params, 0.2, 'auto', beta=0.9, scope='tensor')": lambda p: GClip(
        p, 0.2, "auto", beta=0.9, scope="tensor"
    ),
    "CClip(params, 0.2, 0.02, beta=0.9)": lambda p: CClip(p, 0.2, 0.02, beta=0.9),
    "CClip(params, 0.2, 'auto', beta=0.9)": lambda p: CClip(p, 0.2, "auto", beta=0.9),
    "NormalizedSGD(params, 0.1)": lambda p: NormalizedSGD(p, 0.1),
    "NormalizedSGD(params, 0.1, beta=0.9)": lambda p: NormalizedSGD(p, 0.1, beta=0.9),
    "StochasticINGD(params)": lambda p: StochasticINGD(p),
}
#: What stands in the table of many spikes beside torch's.
OFTEN: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "AdamW(params)": lambda p: AdamW(p),
    "AdamW(params, clip='noise')": lambda p: AdamW(p, clip="noise"),
    "AdamW(params, clip='noise', spike_guard='clip')": lambda p: AdamW(
        p, clip="noise", spike_guard="clip"
    ),
    "AdamW(params, clip='unit')": lambda p: AdamW(p, clip="unit"),
    "ACClip(params)": lambda p: ACClip(p),
}
#: For comparison: torch's, and the papers' order, in which the average is clipped.
OTHERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    REFERENCE: lambda p: torch.optim.AdamW(p, 1e-3),
    "torch AdamW": lambda p: torch.optim.AdamW(p, 1e-3),
    "torch SGD, lr 0.02, momentum 0.9": lambda p: torch.optim.SGD(p, 0.02, 0.9),
    "ACClip(params, clip=None)": lambda p: ACClip(p, clip=None),
    "GClip(params, 0.2, 1.0, beta=0.9, clip='momentum')": lambda p: GClip(
        p, 0.2, 1.0, beta=0.9, clip="momentum"
    ),
    "CClip(params, 0.2, 0.02, beta=0.9, clip='momentum')": lambda p: CClip(
        p, 0.2, 0.02, beta=0.9, clip="momentum"
    ),
    "StochasticINGD(params, clip=None)": lambda p: StochasticINGD(p, clip=None),
}
SEEDS = (0, 1)
STEPS, SPIKE_AT, EVERY, FACTOR, BATCH = 140, 60, 20, 1e4, 64


@cache
def images() -> dict[str, torch.Tensor]:
    return prepare("cifar10", tiny=False)


def train(name: str, seed: int, spiked: bool | str) -> float:
    """Mean loss of steps 131 to 140 of a small convolutional network on CIFAR-10, at a constant
    learning rate, with no spike (False), one (True) or six ("often").
    """
    data = images()
    torch.manual_seed(seed)
    model = small_convolutional_network(8, channels=3, side=32)
    params = list(model.parameters())
    optimizer = {**OFTEN, **DEFAULTS, **OTHERS}[name](params)
    draw = torch.Generator().manual_seed(1000 + seed)
    losses = []
    for k in range(1, STEPS + 1):
        rows = torch.randint(0, len(data["y"]), (BATCH,), generator=draw)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(data["x"][rows]), data["y"][rows])
        losses.append(float(loss.detach()))
        spike = k == SPIKE_AT if spiked is True else k % EVERY == 0 and k < STEPS
        (loss * FACTOR if spiked and spike else loss).backward()
        if name == REFERENCE:
            nn.utils.clip_grad_norm_(params, 1.0)
        optimizer.step()
    return mean(losses[-10:])


def table(folder: Path) -> str:
    """Means over the seeds, with and without the spike, and the difference."""
    losses = kept_runs.read(folder, "spikes")
    limit = mean(losses[REFERENCE, seed, True] for seed in SEEDS)
    parts = []
    for title, names in (("at its defaults", DEFAULTS), ("for comparison", OTHERS)):
        lines = []
        for name in names:
            calm, spiked = (
                average([losses[name, seed, s] for seed in SEEDS]) for s in (False, True)
            )
            passes = "yes" if spiked <= 1.02 * max(calm, limit) else "**no**"
            lines.append(
                [f"`{name}`", f"{calm:.3f}", f"{spiked:.3f}", relative(spiked, calm), passes]
            )
        parts.append(markdown([title, "without", "with", "difference", "within 2 %"], lines))
    lines = []
    for name in (*OFTEN, REFERENCE, "torch AdamW"):
        calm, spiked = (
            average([losses[name, seed, s] for seed in SEEDS]) for s in (False, "often")
        )
        lines.append([f"`{name}`", f"{calm:.3f}", f"{spiked:.3f}", relative(spiked, calm)])
    title = f"every {EVERY}th gradient multiplied"
    parts.append(markdown([title, "without", "with", "difference"], lines))
    return "\n\n".join(parts)


KEYS = [(n, seed, s) for seed in SEEDS for n in (*DEFAULTS, *OTHERS) for s in (False, True)]
KEYS += [
    (n, seed, s)
    for seed in SEEDS
    for n in (*OFTEN, REFERENCE, "torch AdamW")
    for s in (False, "often")
    if (n, seed, s) not in KEYS
]

if __name__ == "__main__":
    kept_runs.main(__doc__, "spikes", ("optimizer", "seed", "spiked"), KEYS, train, table)
