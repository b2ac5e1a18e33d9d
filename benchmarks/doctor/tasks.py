"""Data, models and loops from which the cases of the hospital are built: small, seeded, CPU only.

A batch is a pair (inputs, targets). Every function that draws takes its own seed, so that a case is
the same at every call; the weights depend on torch's global seed, which the doctor sets.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Batches = list[tuple[Tensor, Tensor]]
Data = tuple[Tensor, Tensor]


def draw(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


# Data: (inputs, targets) of the whole set.


@cache
def _digits() -> Data:
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    order = torch.randperm(len(y), generator=draw(1))
    return torch.tensor(x, dtype=torch.float32)[order] / 16, torch.tensor(y).long()[order]


def digits() -> Data:
    x, y = _digits()
    return x.clone(), y.clone()


def images() -> Data:
    x, y = digits()
    return x.reshape(-1, 1, 8, 8), y


def table(rows: int = 1600, width: int = 10, noise: float = 0.1) -> Data:
    """Regression on ten features of unit scale."""
    g = draw(2)
    x = torch.randn(rows, width, generator=g)
    w = torch.randn(width, 3, generator=g) / width**0.5
    h = x @ w
    y = torch.sin(h[:, 0]) + h[:, 1] * h[:, 2] + 0.5 * h[:, 2]
    return x, (y + noise * torch.randn(rows, generator=g)).unsqueeze(1)


def circles(rows: int = 1600) -> Data:
    """Two classes that no line separates."""
    g = draw(3)
    x = torch.randn(rows, 6, generator=g)
    return x, (x.square().sum(1) > 5.3).long()


def words(rows: int = 1600, length: int = 20, vocabulary: int = 200, classes: int = 4) -> Data:
    """Bags of words; each class prefers words of its own."""
    g = draw(4)
    y = torch.randint(classes, (rows,), generator=g)
    prefer = torch.randint(vocabulary // classes, (rows, length), generator=g) * classes
    prefer = prefer + y.unsqueeze(1)
    common = torch.randint(vocabulary, (rows, length), generator=g)
    keep = torch.rand(rows, length, generator=g) < 0.3
    return torch.where(keep, prefer, common), y


def series(rows: int = 1600, length: int = 24, first: bool = False) -> Data:
    """Sequences of two channels. The class is the sign of the mean of one, or of its first step."""
    g = draw(5)
    x = torch.randn(rows, length, 2, generator=g)
    score = x[:, 0, 0] if first else x[:, :, 0].mean(1)
    return x, (score > 0).long()


def text(rows: int = 1600, length: int = 16, symbols: int = 20) -> Data:
    """A Markov chain: predict the next symbol at every position."""
    g = draw(6)
    chances = torch.softmax(2.5 * torch.randn(symbols, symbols, generator=g), 1)
    now = torch.randint(symbols, (rows,), generator=g)
    steps = [now]
    for _ in range(length):
        now = torch.multinomial(chances[now], 1, generator=g).squeeze(1)
        steps.append(now)
    chain = torch.stack(steps, 1)
    return chain[:, :-1], chain[:, 1:]


def batched(data: Data, size: int = 32, held: int = 320) -> tuple[Batches, Batches]:
    """Training and validation batches; the last ``held`` samples validate."""
    x, y = data
    cut = len(x) - held
    whole = cut // size * size
    train = list(zip(x[:whole].split(size), y[:whole].split(size)))
    return train, list(zip(x[cut:].split(160), y[cut:].split(160)))


# Models.


def mlp(*widths: int, act: type[nn.Module] = nn.ReLU, norm: bool = False) -> nn.Sequential:
    layers: list[nn.Module] = []
    for a, b in pairwise(widths[:-1]):
        layers += [nn.Linear(a, b), *([nn.BatchNorm1d(b)] if norm else []), act()]
    return nn.Sequential(*layers, nn.Linear(widths[-2], widths[-1]))


def conv(width: int = 8, norm: bool = False, classes: int = 10) -> nn.Sequential:
    def block(a: int, b: int) -> list[nn.Module]:
        return [nn.Conv2d(a, b, 3, padding=1), *([nn.BatchNorm2d(b)] if norm else []), nn.ReLU()]

    return nn.Sequential(
        *block(1, width),
        *block(width, 2 * width),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(2 * width * 16, classes),
    )


class Recurrent(nn.Module):
    """A recurrent layer whose last state is classified."""

    def __init__(self, kind: str = "GRU", width: int = 24, inputs: int = 2, classes: int = 2):
        super().__init__()
        if kind == "ReLU":
            self.cell: nn.Module = nn.RNN(inputs, width, nonlinearity="relu", batch_first=True)
        else:
            self.cell = getattr(nn, kind)(inputs, width, batch_first=True)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.cell(x)[0][:, -1])


class Block(nn.Module):
    """One layer of a small causal transformer."""

    def __init__(self, width: int, norm: str = "first", scale: float = 1.0) -> None:
        super().__init__()
        self.mix = nn.MultiheadAttention(width, 2, batch_first=True)
        self.feed = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)] if norm else [])
        self.norm, self.scale = norm, scale

    def forward(self, x: Tensor) -> Tensor:
        n = x.shape[1]
        mask = torch.full((n, n), float("-inf"), device=x.device).triu(1)
        for i, part in enumerate((lambda h: self.mix(h, h, h, attn_mask=mask)[0], self.feed)):
            if self.norm == "first":
                x = x + self.scale * part(self.norms[i](x))
            elif self.norm == "last":
                x = self.norms[i](x + self.scale * part(x))
            else:
                x = x + self.scale * part(x)
        return x


class Transformer(nn.Module):
    """Embedding, blocks, one score per symbol and position."""

    def __init__(
        self, width: int = 32, depth: int = 1, symbols: int = 20, norm: str = "first"
    ) -> None:
        super().__init__()
        self.embed = nn.Embedding(symbols, width)
        self.place = nn.Parameter(0.02 * torch.randn(64, width))
        self.blocks = nn.ModuleList(Block(width, norm) for _ in range(depth))
        self.last = nn.LayerNorm(width) if norm == "first" else nn.Identity()
        self.head = nn.Linear(width, symbols)

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x) + self.place[: x.shape[1]]
        for block in self.blocks:
            h = block(h)
        return self.head(self.last(h))


class Bag(nn.Module):
    """Mean of word vectors, then a small network."""

    def __init__(self, vocabulary: int = 200, width: int = 16, classes: int = 4) -> None:
        super().__init__()
        self.words = nn.EmbeddingBag(vocabulary, width)
        self.head = mlp(width, 32, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.words(x))


class Chain(nn.Module):
    """Layers with a function of the user's between them."""

    def __init__(self, *parts: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.modules_ = nn.ModuleList(p for p in parts if isinstance(p, nn.Module))
        self.parts = parts

    def forward(self, x: Tensor) -> Tensor:
        for part in self.parts:
            x = part(x)
        return x


# Losses and optimizers.


def classify(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    scores = model(batch[0])
    return F.cross_entropy(scores.flatten(0, -2), batch[1].flatten())


def regress(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return F.mse_loss(model(batch[0]), batch[1])


def sgd(model: nn.Module, lr: float = 0.1, **more: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=lr, **more)


def adamw(model: nn.Module, lr: float = 3e-3, **more: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=lr, **more)


def ours(name: str, model: nn.Module, **more: Any) -> torch.optim.Optimizer:
    import mindgap.optim

    return getattr(mindgap.optim, name)(model.parameters(), **more)


def patient(
    model: nn.Module,
    data: Data | tuple[Batches, Batches],
    optimizer: torch.optim.Optimizer | None,
    loss: Callable[..., Tensor] = classify,
    size: int = 32,
    **more: Any,
) -> dict[str, Any]:
    """What a case hands to the doctor."""
    train, valid = data if isinstance(data[0], list) else batched(data, size)  # type: ignore[arg-type]
    return {
        "model": model,
        "loss": loss,
        "train": train,
        "valid": valid,
        "optimizer": optimizer,
        **more,
    }


def stepping(
    model: nn.Module,
    loss: Callable[..., Tensor],
    optimizer: torch.optim.Optimizer,
    *,
    zero: bool = True,
    every: int = 1,
    divide: bool = True,
    clip: float | None = None,
) -> Callable[[Any], Tensor]:
    """A user's training step: one call per batch."""
    calls = 0

    def step(batch: Any) -> Tensor:
        nonlocal calls
        value = loss(model, batch)
        (value / every if divide else value).backward()
        calls += 1
        if calls % every == 0:
            if clip is not None:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
            if zero:
                optimizer.zero_grad()
        return value

    return step


def scaled(module: nn.Module, factor: float, weights_only: bool = True) -> nn.Module:
    """Multiply the weights of a model, to plant a bad initialisation."""
    with torch.no_grad():
        for p in module.parameters():
            if p.ndim > 1 or not weights_only:
                p.mul_(factor)
    return module


def filled(module: nn.Module, value: float) -> nn.Module:
    with torch.no_grad():
        for p in module.parameters():
            p.fill_(value)
    return module
