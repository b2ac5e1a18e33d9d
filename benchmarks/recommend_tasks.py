"""The development tasks of ``benchmarks/recommend.py``: images, text and tables; clean and with
faults.

Every task is a factory ``task(seed)`` that returns ``(objective, train, valid)``. The CPU tasks
take about five seconds per full-length run on one core; so do the GPU tasks on one H200, when a
dozen run side by side.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mindgap import Objective
from mindgap.base.rng import torch_stream
from mindgap.lab.tasks import data

#: Where the GPU tasks run.
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cuda":
    torch.set_float32_matmul_precision("high")  # TF32, for every candidate alike

Task = Callable[[int], tuple[Objective, list[Any], list[Any]]]


def classify(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Cross-entropy of the last dimension; language models give one answer per position."""
    scores = model(batch[0])
    return F.cross_entropy(scores.flatten(0, -2), batch[1].flatten())


def _split(
    x: Tensor, y: Tensor, size: int, train: int, valid: int, device: str = "cpu"
) -> tuple[list[Any], list[Any]]:
    order = torch.randperm(len(x), generator=torch_stream(0, "split"))[: train + valid]
    x, y = x[order].to(device), y[order].to(device)
    inside = list(zip(x[:train].split(size), y[:train].split(size)))
    return inside[: train // size], list(zip(x[train:].split(500), y[train:].split(500)))


def _mlp(*widths: int, norm: bool = False) -> nn.Module:
    layers: list[nn.Module] = []
    for a, b in pairwise(widths[:-1]):
        layers += [nn.Linear(a, b), *([nn.BatchNorm1d(b)] if norm else []), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(widths[-2], widths[-1]))


@cache
def _digits() -> tuple[Tensor, Tensor]:
    table = data.digits()
    return torch.tensor(table.features, dtype=torch.float32), torch.tensor(table.labels).long()


@cache
def _covtype(rows: int) -> tuple[Tensor, Tensor]:
    table = data.covtype("train", rows=rows)
    x = torch.tensor(table.features, dtype=torch.float32)
    return (x - x.mean(0)) / (x.std(0) + 1e-6), torch.tensor(table.labels).long()


@cache
def _images(name: str, rows: int) -> tuple[Tensor, Tensor]:
    table = (
        data.mnist("train")
        if name == "mnist"
        else data.cifar10("train", batches=max(1, rows // 10000))
    )
    x = torch.tensor(table.features[:rows], dtype=torch.float32)
    x = x.reshape(len(x), *((1, 28, 28) if name == "mnist" else (3, 32, 32)))
    return (x - x.mean()) / x.std(), torch.tensor(table.labels[:rows]).long()


@cache
def _words(words: int, count: int) -> Tensor:
    tokens = data.language_tokens("ptb", "train")[:count]
    known: dict[str, int] = {}
    for word, _ in sorted(_counts(tokens).items(), key=lambda pair: (-pair[1], pair[0]))[
        : words - 1
    ]:
        known[word] = len(known) + 1
    return torch.tensor([known.get(word, 0) for word in tokens])


def _counts(tokens: list[str]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for token in tokens:
        counts[token] = counts.get(token, 0) + 1
    return counts


def _text(
    words: int, length: int, size: int, train: int, device: str = "cpu"
) -> tuple[list[Any], list[Any]]:
    tokens = _words(words, (train + 64) * size * length + 1 if train else 10**7).to(device)
    n = (len(tokens) - 1) // length
    x, y = tokens[: n * length].view(n, length), tokens[1 : n * length + 1].view(n, length)
    pairs = list(zip(x.split(size), y.split(size)))
    return pairs[:-8], pairs[-8:]


class Convolutions(nn.Module):
    """Three convolutions with batch normalisation and a linear head."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        widths = (channels, width, 2 * width, 4 * width)
        layers: list[nn.Module] = []
        for a, b in pairwise(widths):
            layers += [
                nn.Conv2d(a, b, 3, stride=2, padding=1, bias=False),
                nn.BatchNorm2d(b),
                nn.ReLU(),
            ]
        self.features, self.head = nn.Sequential(*layers), nn.Linear(4 * width, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x).mean((2, 3)))  # type: ignore[no-any-return]


class Recurrent(nn.Module):
    """An LSTM that predicts the next word."""

    def __init__(self, words: int, width: int, layers: int = 1) -> None:
        super().__init__()
        self.words, self.lstm = (
            nn.Embedding(words, width),
            nn.LSTM(width, width, layers, batch_first=True),
        )
        self.head = nn.Linear(width, words)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(self.words(x))[0])  # type: ignore[no-any-return]


class Attention(nn.Module):
    """A transformer: causal over words, or over the patches of an image with a mean at the end."""

    def __init__(
        self,
        words: int,
        width: int,
        layers: int,
        length: int,
        *,
        patches: int = 0,
        norm_first: bool = True,
    ):
        super().__init__()
        self.patches = patches
        self.inputs = nn.Linear(patches, width) if patches else nn.Embedding(words, width)
        self.places = nn.Parameter(0.02 * torch.randn(length, width))
        block = nn.TransformerEncoderLayer(
            width,
            max(1, width // 32),
            4 * width,
            dropout=0.0,
            batch_first=True,
            norm_first=norm_first,
        )
        self.blocks = nn.TransformerEncoder(block, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, words)

    def forward(self, x: Tensor) -> Tensor:
        if self.patches:
            x = F.unfold(x, 4, stride=4).transpose(1, 2)
        h = self.inputs(x) + self.places[: x.shape[1]]
        mask = (
            None
            if self.patches
            else nn.Transformer.generate_square_subsequent_mask(x.shape[1], device=x.device)
        )
        h = self.blocks(h, mask=mask, is_causal=mask is not None)
        return self.head(h.mean(1) if self.patches else h)  # type: ignore[no-any-return]


def _spoiled(batches: list[Any], every: int, factor: float) -> list[Any]:
    """One batch in ``every`` has inputs ``factor`` times too large."""
    return [
        (x * factor, y) if i % every == every // 2 else (x, y) for i, (x, y) in enumerate(batches)
    ]


def digits_mlp(seed: int) -> Any:
    train, valid = _split(*_digits(), 16, 1300, 490)
    return Objective(_mlp(64, 128, 128, 10), classify), train, valid


def mnist_convolutions(seed: int) -> Any:
    train, valid = _split(*_images("mnist", 12000), 64, 9600, 1500)
    return Objective(Convolutions(1, 8), classify), train, valid


def covtype_mlp(seed: int) -> Any:
    train, valid = _split(*_covtype(15120), 64, 12000, 3000)
    return Objective(_mlp(54, 128, 128, 7), classify), train, valid


def covtype_normalised_faults(seed: int) -> Any:
    train, valid = _split(*_covtype(15120), 64, 12000, 3000)
    return Objective(_mlp(54, 128, 128, 7, norm=False), classify), _spoiled(train, 60, 1e3), valid


def ptb_lstm(seed: int) -> Any:
    train, valid = _text(2000, 20, 16, 900)
    return Objective(Recurrent(2000, 64), classify), train, valid


def ptb_transformer(seed: int) -> Any:
    train, valid = _text(2000, 24, 12, 900)
    return Objective(Attention(2000, 64, 2, 24), classify), train, valid


def cifar_convolutions_faults(seed: int) -> Any:
    train, valid = _split(*_images("cifar10", 10000), 48, 8000, 2000)
    return Objective(Convolutions(3, 12), classify), _spoiled(train, 80, 1e2), valid


def heavy_tailed_regression(seed: int) -> Any:
    made = torch_stream(0, "regression")
    x = torch.randn(12000, 40, generator=made)
    clean = torch.sin(x @ torch.randn(40, 8, generator=made) / 3).sum(1)
    noise = torch.distributions.StudentT(1.5)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        noisy = clean + 0.5 * noise.sample((12000,))
    loss = lambda model, batch: (model(batch[0])[:, 0] - batch[1]).square().mean()  # noqa: E731
    train = list(zip(x[:10000].split(32), noisy[:10000].split(32)))[:-1]
    return (
        Objective(_mlp(40, 96, 96, 1), loss),
        train,
        list(zip(x[10000:].split(500), clean[10000:].split(500))),
    )


def _resnet(seed: int) -> Any:
    from mindgap.lab.tasks.models import ResNet20

    train, valid = _split(*_images("cifar10", 20000), 64, 18000, 2000, device=DEVICE)
    return Objective(ResNet20().to(DEVICE), classify), train, valid


def _gpu_transformer(seed: int) -> Any:
    train, valid = _text(10000, 64, 32, 0, device=DEVICE)
    return Objective(Attention(10000, 256, 6, 64).to(DEVICE), classify), train, valid


def _gpu_lstm(seed: int) -> Any:
    train, valid = _text(10000, 35, 20, 0, device=DEVICE)
    return Objective(Recurrent(10000, 400, 2).to(DEVICE), classify), train, valid


def _gpu_vision_transformer_faults(seed: int) -> Any:
    train, valid = _split(*_images("cifar10", 20000), 64, 18000, 2000, device=DEVICE)
    return (
        Objective(Attention(10, 192, 6, 64, patches=48).to(DEVICE), classify),
        _spoiled(train, 100, 1e2),
        valid,
    )


#: Name -> (factory, steps of a full-length run).
CPU_TASKS: dict[str, tuple[Task, int]] = {
    "digits-mlp": (digits_mlp, 1500),
    "mnist-convolutions": (mnist_convolutions, 600),
    "covtype-mlp": (covtype_mlp, 2000),
    "covtype-mlp-faults": (covtype_normalised_faults, 2000),
    "ptb-lstm": (ptb_lstm, 400),
    "ptb-transformer": (ptb_transformer, 300),
    "cifar-convolutions-faults": (cifar_convolutions_faults, 500),
    "heavy-tailed-regression": (heavy_tailed_regression, 2500),
}
GPU_TASKS: dict[str, tuple[Task, int]] = {
    "cifar-resnet20": (_resnet, 300),
    "ptb-transformer-6": (_gpu_transformer, 300),
    "ptb-lstm-2": (_gpu_lstm, 300),
    "cifar-vision-transformer-faults": (_gpu_vision_transformer_faults, 300),
}
TASKS = {
    **CPU_TASKS,
    **(GPU_TASKS if torch.cuda.is_available() or os.environ.get("ALL_TASKS") else {}),
}


@cache
def scale_of(task: str) -> Any:
    """The start's measurements, as the recommendation takes them; once per process."""
    from mindgap.advise.candidates import Scale
    from mindgap.advise.recommendation import measure_start

    plan = measure_start(TASKS[task][0], seed=0, seconds=20.0)
    return Scale(plan["parameters"], plan["gradient_norm"], plan["sharpness"])
