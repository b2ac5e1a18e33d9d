"""The six training tasks of ``drop_in.py``: data, network and loss, at full size or tiny for
the CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mindgap.lab.tasks.models.resnet import ResNet20
from mindgap.lab.tasks.models.small import SmallLSTM, SmallTransformer


@dataclass(frozen=True)
class Task:
    """One task.

    Attributes:
        data: name of the prepared data.
        build: makes the network for a number of words or classes, tiny or not.
        batch: samples (or sequences) per step.
        length: words per sequence; 0 where samples are rows of a table.
        classes: what labels are drawn from when they are corrupted.
    """

    data: str
    build: Callable[[bool], nn.Module]
    batch: int
    length: int = 0
    classes: int = 10


class Vision(nn.Module):
    """A small vision transformer: 4x4 patches, layers without a mask, the mean over places."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, stride=4)
        self.body = SmallTransformer(10, width, layers, 4, 64, causal=False, embedding=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.body(self.patches(x).flatten(2).transpose(1, 2)).mean(1)


def _mlp(tiny: bool) -> nn.Module:
    width = 32 if tiny else 256
    return nn.Sequential(
        nn.Linear(54, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 7)
    )


WORDS = {True: 200, False: 10_000}
TASKS = {
    "ResNet20, CIFAR-10": Task("cifar10", lambda tiny: ResNet20(), 128),
    "transformer, Penn Treebank": Task(
        "ptb",
        lambda tiny: SmallTransformer(WORDS[tiny], 32 if tiny else 256, 2 if tiny else 6, 4, 64),
        32,
        64,
    ),
    "LSTM, Penn Treebank": Task(
        "ptb", lambda tiny: SmallLSTM(WORDS[tiny], 32 if tiny else 256), 32, 64
    ),
    "MLP, covtype": Task("covtype", _mlp, 256, classes=7),
    "vision transformer, CIFAR-10": Task(
        "cifar10", lambda tiny: Vision(32 if tiny else 128, 2 if tiny else 4), 128
    ),
    "hyper-cleaning, MNIST": Task("cleaning", lambda tiny: nn.Linear(784, 10), 256),
}


def prepare(name: str, tiny: bool) -> dict[str, Tensor]:
    """Data as tensors: ``x`` and ``y`` for rows, ``tokens`` for text; the last tenth is kept
    for evaluation.
    """
    rng = np.random.default_rng(0)
    # made up, so that it runs anywhere: a teacher's labels, and a text in which a word follows from
    # the last
    if tiny:
        if name == "ptb":
            steps = rng.integers(0, 5, size=20_000)
            return {"tokens": torch.tensor(np.cumsum(steps) % WORDS[True])}
        shape = {"cifar10": (3, 32, 32), "covtype": (54,), "cleaning": (784,)}[name]
        x = rng.normal(size=(600, int(np.prod(shape)))).astype(np.float32)
        classes = 7 if name == "covtype" else 10
        y = (x @ rng.normal(size=(x.shape[1], classes))).argmax(1)
        return {"x": torch.tensor(x).reshape(-1, *shape), "y": torch.tensor(y)}
    if name == "ptb":
        from mindgap.lab.tasks.data.text import language_tokens

        words = language_tokens("ptb")
        known = {word: i for i, word in enumerate(sorted(set(words)))}
        return {"tokens": torch.tensor([known[word] for word in words])}
    if name == "cifar10":
        from mindgap.lab.tasks.data.images import cifar10

        table = cifar10("train", batches=2)  # 20,000 images: more than a short schedule reads
        x = torch.tensor(table.features, dtype=torch.float32).reshape(-1, 3, 32, 32)
        x = (x - x.mean((0, 2, 3), keepdim=True)) / x.std((0, 2, 3), keepdim=True)
        return {"x": x, "y": torch.tensor(table.labels)}
    if name == "covtype":
        from mindgap.lab.tasks.data.tabular import covtype

        table = covtype("train", rows=100_000)
        return {
            "x": torch.tensor(table.features, dtype=torch.float32),
            "y": torch.tensor(table.labels),
        }
    from mindgap.lab.tasks.data.images import mnist
    from mindgap.lab.tasks.problems.cleaning import corrupt

    table = mnist("train")
    labels, _ = corrupt(table.labels, 10, 0.5, 0)
    return {"x": torch.tensor(table.features, dtype=torch.float32), "y": torch.tensor(labels)}


@lru_cache
def prepared(name: str, tiny: bool, folder: Path, device: str) -> dict[str, Tensor]:
    """The data on a device; written to the folder once, so that processes do not each decode it."""
    file = folder / f"{name}{'-tiny' if tiny else ''}.pt"
    if not file.exists():
        partial = file.with_suffix(f".{torch.initial_seed() % 10**9}")
        torch.save(prepare(name, tiny), partial)
        partial.rename(file)
    return {key: value.to(device) for key, value in torch.load(file).items()}


def batch_of(
    task: Task,
    data: dict[str, Tensor],
    draw: torch.Generator,
    *,
    held_out: bool = False,
    tiny: bool = False,
) -> Any:
    """Inputs and targets of one step, from the first nine tenths or from the last."""
    count = max(4, task.batch // 16) if tiny else task.batch
    if task.length:
        tokens = data["tokens"]
        size = len(tokens) - task.length - 1
        low, high = (int(0.9 * size), size) if held_out else (0, int(0.9 * size))
        starts = torch.randint(low, high, (count, 1), generator=draw)
        places = (starts + torch.arange(task.length + 1)).to(tokens.device)
        text = tokens[places]
        return text[:, :-1], text[:, 1:].reshape(-1)
    size = len(data["y"])
    low, high = (int(0.9 * size), size) if held_out else (0, int(0.9 * size))
    places = torch.randint(low, high, (count,), generator=draw).to(data["y"].device)
    return data["x"][places], data["y"][places]


def loss_of(task: Task, model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy; for hyper-cleaning the lower problem at equal weights: half of it, and
    10⁻³·‖w‖².
    """
    scores = model(inputs)
    loss = F.cross_entropy(scores.reshape(len(targets), -1), targets)
    if task.data == "cleaning":
        return 0.5 * loss + 1e-3 * model.weight.square().sum()  # type: ignore[union-attr,operator]
    return loss
