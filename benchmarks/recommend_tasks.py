"""Twelve development tasks for ``benchmarks/recommend.py``, each about two seconds per full-length
run on one core.

All data is made here, once per process. ``seed`` names the start and the order of batches. The
settings of the race were tuned on these tasks; the eight of ``recommend_judged.py`` judge it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mindgap.base.rng import torch_stream

Problem = tuple[tuple[nn.Module, Callable[[Any, Any], Tensor]], list[Any], list[Any]]
Task = Callable[[int], Problem]


def mlp(*widths: int, act: type[nn.Module] = nn.Tanh) -> nn.Sequential:
    layers: list[nn.Module] = []
    for a, b in pairwise(widths[:-1]):
        layers += [nn.Linear(a, b), act()]
    return nn.Sequential(*layers, nn.Linear(widths[-2], widths[-1]))


def square(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return (model(batch[0])[:, 0] - batch[1]).square().mean()


def classify(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def pairs(x: Tensor, y: Tensor, size: int) -> list[Any]:
    return list(zip(x.split(size), y.split(size), strict=True))


def parted(x: Tensor, y: Tensor, size: int, held: int) -> tuple[list[Any], list[Any]]:
    """Training batches, and validation batches of the last ``held`` examples."""
    n = len(x) - held
    return pairs(x[:n], y[:n], size), pairs(x[n:], y[n:], 500)


@cache
def _regression(name: str) -> tuple[list[Any], list[Any]]:
    made, n = torch_stream(0, name), 6400
    x = torch.randn(n + 1000, 16, generator=made)
    clean = torch.sin(x @ torch.randn(16, 4, generator=made) / 2).sum(1)
    bad = torch.rand(n, generator=made) < 0.02
    draws = torch.empty(n).cauchy_(generator=made)
    noise = torch.where(bad, 10 * draws, 0.1 * torch.randn(n, generator=made))
    return pairs(x[:n], clean[:n] + noise, 64), pairs(x[n:], clean[n:], 500)


def cauchy_targets(seed: int) -> Problem:
    """One target in fifty has an error of infinite variance."""
    return ((mlp(16, 64, 64, 1), square), *_regression("cauchy"))


class Factors(nn.Module):
    def __init__(self, ids: int, width: int, spread: float) -> None:
        super().__init__()
        self.left, self.right = nn.Embedding(ids, width), nn.Embedding(ids, width)
        for table in (self.left, self.right):
            nn.init.normal_(table.weight, std=spread)

    def forward(self, ids: Tensor) -> Tensor:
        return (self.left(ids[:, 0]) * self.right(ids[:, 1])).sum(1, keepdim=True)


@cache
def _ids() -> tuple[list[Any], list[Any]]:
    made, n, known = torch_stream(0, "ids"), 19200, 600
    weights = 1 / torch.arange(1, known + 1).float()
    ids = torch.stack(
        [torch.multinomial(weights, n + 2000, True, generator=made) for _ in range(2)], 1
    )
    a, b = (0.7 * torch.randn(known, 4, generator=made) for _ in range(2))
    y = (a[ids[:, 0]] * b[ids[:, 1]]).sum(1) + 0.1 * torch.randn(n + 2000, generator=made)
    return parted(ids, y, 128, 2000)


def rare_ids(seed: int) -> Problem:
    """A factorisation whose ids follow Zipf's law: most rows get few gradients."""
    return ((Factors(600, 12, 0.3), square), *_ids())


@cache
def pictures(name: str, classes: int, count: int) -> tuple[Tensor, Tensor]:
    """Pictures of 12 by 12: a smooth shape per class, moved, scaled and disturbed."""
    made = torch_stream(0, name)
    grid = torch.linspace(-1, 1, 12)
    places = torch.stack(torch.meshgrid(grid, grid, indexing="ij"), -1)
    centres = 0.6 * torch.randn(classes, 5, 2, generator=made)
    labels = torch.randint(0, classes, (count,), generator=made)
    shift = 0.2 * torch.randn(count, 1, 2, generator=made)
    bend = 0.12 * torch.randn(count, 5, 2, generator=made)
    spots = centres[labels] + shift + bend
    distance = (places[None, :, :, None] - spots[:, None, None]).square().sum(-1)
    x = torch.exp(-12 * distance).sum(-1) + 0.1 * torch.randn(count, 12, 12, generator=made)
    return x, labels


def autoencoder(seed: int) -> Problem:
    """Pictures through ten numbers and back."""
    x = pictures("autoencoder", 10, 5000)[0].flatten(1)
    loss = lambda model, batch: (model(batch) - batch).square().mean()  # noqa: E731
    return (mlp(144, 96, 10, 96, 144), loss), list(x[:4000].split(64)), list(x[4000:].split(500))


@cache
def _density() -> tuple[list[Any], list[Any]]:
    made = torch_stream(0, "density")
    x = torch.rand(7400, 4, generator=made)
    y = torch.sin(3 * x.sum(1)) + (0.02 + 0.1 * x[:, 0]) * torch.randn(7400, generator=made)
    return parted(x, y, 64, 1000)


def density(seed: int) -> Problem:
    """A negative log density of changing spread: the loss changes its sign."""

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        out = model(batch[0])
        log_scale = out[:, 1].clamp(-6, 6)
        return (log_scale + 0.5 * ((batch[1] - out[:, 0]) / log_scale.exp()).square()).mean()

    return ((mlp(4, 64, 64, 2), loss), *_density())


@cache
def _conditioned() -> tuple[list[Any], list[Any]]:
    made = torch_stream(0, "conditioned")
    turn = torch.linalg.qr(torch.randn(60, 60, generator=made))[0]
    x = (torch.randn(7400, 60, generator=made) * torch.logspace(-1.5, 0.5, 60)) @ turn
    y = x @ torch.randn(60, generator=made) + 0.1 * torch.randn(7400, generator=made)
    return parted(x, y, 64, 1000)


def ill_conditioned(seed: int) -> Problem:
    """Linear regression of condition 10⁴ in turned coordinates, where no coordinate helps Adam."""
    return ((nn.Linear(60, 1), square), *_conditioned())


@cache
def _wide() -> tuple[list[Any], list[Any]]:
    made = torch_stream(0, "wide")
    z = torch.randn(7400, 12, generator=made)
    x = z * torch.logspace(-2, 2, 12)
    y = 300 * (torch.sin(2 * z[:, 0]) + z[:, 5] * z[:, 6] + z[:, 11]) + 1000
    return parted(x, y + 10 * torch.randn(7400, generator=made), 64, 1000)


def wide_scales(seed: int) -> Problem:
    """Inputs from 0.01 to 100 and targets about 1,000: the start is far away from the answer."""
    return ((mlp(12, 64, 64, 1, act=nn.ReLU), square), *_wide())


def physics(seed: int) -> Problem:
    """u'' = -25 sin(5x), u(0) = u(1) = 0 by a network; the loss needs derivatives."""

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        x = x.clone().requires_grad_()
        u = x * (1 - x) * model(x)
        (slope,) = torch.autograd.grad(u.sum(), x, create_graph=True)
        (bend,) = torch.autograd.grad(slope.sum(), x, create_graph=True)
        return (bend + 25 * torch.sin(5 * x)).square().mean()

    made = torch_stream(0, "physics")
    train = list(torch.rand(60, 32, 1, generator=made))
    return (mlp(1, 32, 32, 1), loss), train, [torch.linspace(0, 1, 200)[:, None]]


class Letters(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.core = nn.Embedding(20, 24), nn.GRU(24, 48, batch_first=True)
        self.head = nn.Linear(48, 20)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.core(self.table(ids))[0])


@cache
def _letters() -> Tensor:
    made = torch_stream(0, "letters")
    law = torch.softmax(3 * torch.randn(20, 20, 20, generator=made), -1)
    text = [torch.randint(0, 20, (16 * 200,), generator=made) for _ in range(2)]
    for _ in range(15):
        text.append(torch.multinomial(law[text[-2], text[-1]], 1, generator=made)[:, 0])
    return torch.stack(text, 1)


def recurrent(seed: int) -> Problem:
    """Letters of a chain in which the next one depends on the last two, by a GRU."""

    def loss(model: nn.Module, batch: Tensor) -> Tensor:
        scores = model(batch[:, :-1])
        return F.cross_entropy(scores.flatten(0, 1), batch[:, 1:].flatten())

    ids = _letters()
    return (Letters(), loss), list(ids[:2800].split(16)), list(ids[2800:].split(200))


@cache
def _spiral() -> tuple[list[Any], list[Any]]:
    made = torch_stream(0, "spiral")
    t = torch.rand(9400, generator=made)
    points = torch.stack([t * torch.cos(12 * t), t * torch.sin(12 * t)], 1)
    level, noise = torch.rand(9400, 1, generator=made), torch.randn(9400, 2, generator=made)
    x = torch.cat([(1 - level).sqrt() * points + level.sqrt() * noise, level], 1)
    return parted(x, noise, 64, 3000)


def diffusion(seed: int) -> Problem:
    """Predict the noise that was added to points on a spiral."""
    loss = lambda model, batch: (model(batch[0]) - batch[1]).square().mean()  # noqa: E731
    return ((mlp(3, 96, 96, 2, act=nn.SiLU), loss), *_spiral())


def few_noisy_labels(seed: int) -> Problem:
    """480 pictures, every fifth label wrong: weight decay and calm training help."""
    x, labels = pictures("labels", 8, 2480)
    made = torch_stream(0, "wrong")
    wrong = torch.randint(0, 8, (480,), generator=made)
    y = torch.where(torch.rand(480, generator=made) < 0.2, wrong, labels[:480])
    x = x.flatten(1)
    return (
        (mlp(144, 64, 8, act=nn.ReLU), classify),
        pairs(x[:480], y, 32),
        pairs(x[480:], labels[480:], 500),
    )


class Sequence(nn.Module):
    def __init__(self, words: int, width: int, length: int) -> None:
        super().__init__()
        self.table = nn.Embedding(words, width)
        self.places = nn.Parameter(0.02 * torch.randn(length, width))
        layer = nn.TransformerEncoderLayer(width, 2, 2 * width, dropout=0.0, batch_first=True)
        self.core = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, words)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.core(self.table(ids) + self.places)[:, -1])


@cache
def _recall() -> tuple[list[Any], list[Any]]:
    """Pairs of key and value, and one key again: its value is the answer."""
    made, n = torch_stream(0, "recall"), 8000
    keys = torch.rand(n, 12, generator=made).argsort(1)[:, :4]
    values = torch.randint(12, 24, (n, 4), generator=made)
    asked = torch.randint(0, 4, (n, 1), generator=made)
    ids = torch.cat([torch.stack([keys, values], 2).flatten(1), keys.gather(1, asked)], 1)
    return parted(ids, values.gather(1, asked)[:, 0], 32, 1000)


def attention(seed: int) -> Problem:
    """A small transformer that learns to look something up: the loss stays flat, then falls."""
    return ((Sequence(24, 32, 9), classify), *_recall())


class Convolutions(nn.Module):
    """Convolutions with batch normalisation and a linear head."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.core = nn.Sequential(
            nn.Conv2d(1, 12, 3, padding=1, bias=False),
            nn.BatchNorm2d(12),
            nn.ReLU(),
            nn.Conv2d(12, 24, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(24),
            nn.ReLU(),
        )
        self.head = nn.Linear(24, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.core(x[:, None]).mean((2, 3)))


def convolutions(seed: int) -> Problem:
    """Forty classes of pictures and batch normalisation, the home of SGD."""
    x, y = pictures("convolutions", 40, 6000)
    return ((Convolutions(40), classify), *parted(x, y, 32, 2000))


#: Name -> (factory, steps of a full-length run).
TASKS: dict[str, tuple[Task, int]] = {
    "cauchy-targets": (cauchy_targets, 1200),
    "rare-ids": (rare_ids, 1500),
    "autoencoder": (autoencoder, 1200),
    "density": (density, 1200),
    "ill-conditioned": (ill_conditioned, 2000),
    "wide-scales": (wide_scales, 1500),
    "physics": (physics, 900),
    "recurrent": (recurrent, 350),
    "diffusion": (diffusion, 1200),
    "few-noisy-labels": (few_noisy_labels, 1200),
    "attention": (attention, 500),
    "convolutions": (convolutions, 500),
}
