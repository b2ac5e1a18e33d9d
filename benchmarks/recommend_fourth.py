"""Eight tasks that judge ``mindgap recommend`` a fourth time: written and registered before any
run on them, and unlike the 42 tasks before, which are all for development now.

``benchmarks/records/recommend/split.json`` holds the checksum of this file; a test compares it.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from recommend_tasks import Problem, Task, mlp, parted, pictures, square
from torch import Tensor, nn

from mindgap.base.rng import torch_stream


class UNet(nn.Module):
    """Two halvings of a picture and back, with what was there before each halving beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.fine, self.middle = self._block(1, 8), self._block(8, 16)
        self.coarse = self._block(16, 24)
        self.up, self.out = self._block(40, 16), self._block(24, 8)
        self.head = nn.Conv2d(8, 1, 1)

    def _block(self, before: int, after: int) -> nn.Sequential:
        return nn.Sequential(
            nn.Conv2d(before, after, 3, padding=1), nn.GroupNorm(4, after), nn.ReLU()
        )

    def forward(self, x: Tensor) -> Tensor:
        fine = self.fine(x)
        middle = self.middle(F.max_pool2d(fine, 2))
        coarse = self.coarse(F.max_pool2d(middle, 2))
        middle = self.up(torch.cat([F.interpolate(coarse, scale_factor=2), middle], 1))
        return self.head(self.out(torch.cat([F.interpolate(middle, scale_factor=2), fine], 1)))


@cache
def _outlines() -> tuple[list[Any], list[Any]]:
    made = torch_stream(0, "outlines")
    clean = pictures("outlines", 40, 2700)[0][:, None]
    light = torch.randn(2700, 1, 12, 1, generator=made) + torch.randn(
        2700, 1, 1, 12, generator=made
    )
    x = clean + 0.4 * light + 0.2 * torch.randn(clean.shape, generator=made)
    return parted(x, (clean > 0.75).float(), 16, 500)


def outlines(seed: int) -> Problem:
    """Which points of a picture belong to its shape, under stripes of light, by a U-Net."""
    loss = lambda model, batch: F.binary_cross_entropy_with_logits(  # noqa: E731
        model(batch[0]), batch[1]
    )
    return ((UNet(), loss), *_outlines())


class Forecaster(nn.Module):
    """A GRU that reads a series from its last value and says the next six."""

    def __init__(self) -> None:
        super().__init__()
        self.core, self.head = nn.GRU(1, 32, batch_first=True), nn.Linear(32, 6)

    def forward(self, x: Tensor) -> Tensor:
        last = x[:, -1:]
        return last + self.head(self.core((x - last)[..., None])[0][:, -1])


@cache
def _demand() -> tuple[list[Any], list[Any]]:
    made, n, length = torch_stream(0, "demand"), 4600, 26
    time = torch.arange(float(length))
    jumps = 3 * torch.randn(n, length, generator=made)
    level = torch.where(torch.rand(n, length, generator=made) < 0.05, jumps, torch.zeros(()))
    trend = 0.1 * torch.randn(n, 1, generator=made)
    season = torch.sin(6.2832 * (time + 7 * torch.rand(n, 1, generator=made)) / 7)
    noise = 0.3 * torch.randn(n, length, generator=made)
    series = level.cumsum(1) + trend * time + 2 * season + noise
    return parted(series[:, :20], series[:, 20:], 32, 600)


def demand(seed: int) -> Problem:
    """Six days ahead of a series whose level jumps, by a GRU and absolute errors."""
    loss = lambda model, batch: F.l1_loss(model(batch[0]), batch[1])  # noqa: E731
    return ((Forecaster(), loss), *_demand())


@cache
def _survival() -> tuple[list[Any], list[Any]]:
    made, n = torch_stream(0, "survival"), 2600
    x = torch.randn(n, 20, generator=made)
    risk = x[:, 0] * x[:, 1] + 0.8 * x[:, 2] - (x[:, 3].abs() > 1).float()
    death = torch.empty(n).exponential_(generator=made) * torch.exp(-risk)
    leave = 1.5 * torch.empty(n).exponential_(generator=made)
    outcome = torch.stack([torch.minimum(death, leave), (death < leave).float()], 1)
    return parted(x, outcome, 64, 1000)


def survival(seed: int) -> Problem:
    """Who dies first among those at risk: Cox's partial likelihood of 1600 censored times."""

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        order = batch[1][:, 0].argsort(descending=True)
        risk, died = model(batch[0])[order, 0], batch[1][order, 1]
        return -((risk - risk.logcumsumexp(0)) * died).sum() / died.sum().clamp(1)

    model = nn.Sequential(
        nn.Linear(20, 64),
        nn.ReLU(),
        nn.Dropout(0.1),
        nn.Linear(64, 32),
        nn.ReLU(),
        nn.Linear(32, 1),
    )
    return ((model, loss), *_survival())


class Ordinal(nn.Module):
    """One score, and thresholds in order that cut it into grades."""

    def __init__(self, grades: int) -> None:
        super().__init__()
        self.score = mlp(12, 48, 48, 1, act=nn.ELU)
        self.first = nn.Parameter(torch.tensor(-2.0))
        self.apart = nn.Parameter(torch.zeros(grades - 2))

    def forward(self, x: Tensor) -> Tensor:
        cuts = torch.cat([self.first[None], self.first + F.softplus(self.apart).cumsum(0)])
        return self.score(x) - cuts


@cache
def _grades() -> tuple[list[Any], list[Any]]:
    made, n = torch_stream(0, "grades"), 3000
    x = torch.randn(n, 12, generator=made)
    worth = x[:, 0] + torch.tanh(2 * x[:, 1]) * x[:, 2] + 0.3 * x[:, 3:6].square().sum(1)
    cuts = worth.quantile(torch.tensor([0.1, 0.3, 0.6, 0.8, 0.95]))
    grade = torch.bucketize(worth, cuts)
    off = torch.randint(-2, 3, (n,), generator=made)
    off[torch.rand(n, generator=made) < 0.6] = 0
    off[-1400:] = 0
    above = (grade + off).clamp(0, 5)[:, None] > torch.arange(5)
    return parted(x, above.float(), 32, 1400)


def grades(seed: int) -> Problem:
    """Six grades in order from 1600 examples, a third of which are graded one or two off."""
    loss = lambda model, batch: F.binary_cross_entropy_with_logits(  # noqa: E731
        model(batch[0]), batch[1]
    )
    return ((Ordinal(6), loss), *_grades())


class Cloud(nn.Module):
    """A vector from a cloud of points that turns with it: sums of differences, weighted by what a
    network makes of distances.
    """

    def __init__(self) -> None:
        super().__init__()
        self.message, self.mix = mlp(5, 24, 24, act=nn.SiLU), mlp(26, 24, 24, act=nn.SiLU)
        self.weight = mlp(49, 24, 1, act=nn.SiLU)

    def forward(self, cloud: Tensor) -> Tensor:
        place, charge = cloud[..., :3], cloud[..., 3:]
        apart = place[:, :, None] - place[:, None]
        size = apart.square().sum(-1, keepdim=True)
        near = torch.cat([size, torch.exp(-size), torch.exp(-4 * size)], -1)
        shape = (*size.shape[:3], charge.shape[-1])
        first, second = charge[:, :, None].expand(shape), charge[:, None].expand(shape)
        told = self.message(torch.cat([near, first, second], -1)).mean(2)
        state = self.mix(torch.cat([told, charge, charge.square()], -1))
        wide = (*size.shape[:3], 24)
        pair = [state[:, :, None].expand(wide), state[:, None].expand(wide), near[..., 1:2]]
        return (self.weight(torch.cat(pair, -1)) * apart).mean((1, 2))


@cache
def _clouds() -> tuple[list[Any], list[Any]]:
    made, n = torch_stream(0, "clouds"), 3600
    place = torch.randn(n, 6, 3, generator=made)
    charge = torch.randn(n, 6, 1, generator=made)
    distance = torch.cdist(place, place) + 0.5
    field = (charge.transpose(1, 2) / distance).sum(2, keepdim=True)
    vector = (charge * torch.tanh(field) * (place - place.mean(1, keepdim=True))).sum(1)
    return parted(torch.cat([place, charge], 2), vector, 32, 600)


def clouds(seed: int) -> Problem:
    """A vector that turns with a cloud of six charges, by a network that turns too."""
    loss = lambda model, batch: (model(batch[0]) - batch[1]).square().mean()  # noqa: E731
    return ((Cloud(), loss), *_clouds())


@cache
def _triplets() -> tuple[list[Any], list[Any]]:
    made, classes, n = torch_stream(0, "triplets"), 60, 5800
    centres = torch.randn(classes, 6, generator=made)
    lift = torch.randn(6, 24, generator=made)

    def seen(labels: Tensor) -> Tensor:
        inner = centres[labels] + 0.3 * torch.randn(len(labels), 6, generator=made)
        return torch.sin(inner @ lift) + 0.3 * torch.randn(len(labels), 24, generator=made)

    known = torch.arange(n) < n - 1000  # the last 1000 are of classes that nothing trains on
    labels = torch.where(
        known,
        torch.randint(0, 45, (n,), generator=made),
        torch.randint(45, classes, (n,), generator=made),
    )
    other = torch.where(
        known,
        (labels + torch.randint(1, 45, (n,), generator=made)) % 45,
        45 + (labels - 45 + torch.randint(1, 15, (n,), generator=made)) % 15,
    )
    x = torch.stack([seen(labels), seen(labels), seen(other)], 1)
    return parted(x, labels, 48, 1000)


def triplets(seed: int) -> Problem:
    """Places on a sphere, nearer for two of a class than for a third, judged on new classes."""

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        own, same, other = F.normalize(model(batch[0]), dim=-1).unbind(1)
        return F.triplet_margin_loss(own, same, other, margin=0.5)

    return ((mlp(24, 64, 64, 12, act=nn.ReLU), loss), *_triplets())


class Signs(nn.Module):
    """Layers whose activations are signs, with the slope of a clipped line behind them."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(32, 96), nn.Linear(96, 96)])
        self.norms = nn.ModuleList([nn.BatchNorm1d(96), nn.BatchNorm1d(96)])
        self.head = nn.Linear(96, 8)

    def forward(self, x: Tensor) -> Tensor:
        for layer, norm in zip(self.layers, self.norms, strict=True):
            soft = F.hardtanh(norm(layer(x)))
            x = soft + (torch.sign(soft) - soft).detach()
        return self.head(x)


@cache
def _bits() -> tuple[list[Any], list[Any]]:
    made, n = torch_stream(0, "bits"), 7400
    x = torch.randint(0, 2, (n, 32), generator=made).float() * 2 - 1
    rules = torch.stack([torch.randperm(32, generator=made)[:5] for _ in range(8)])
    votes = (x[:, rules].sum(2) > 0).float()  # (n, 8): majorities of five bits
    chained = (votes + votes.roll(1, 1)) % 2
    wrong = torch.rand(n, 8, generator=made) < 0.05
    return parted(x, torch.where(wrong, 1 - chained, chained), 64, 1000)


def bits(seed: int) -> Problem:
    """Eight answers to 32 bits, by a network whose activations are signs; 5 % are wrong."""
    loss = lambda model, batch: F.binary_cross_entropy_with_logits(  # noqa: E731
        model(batch[0]), batch[1]
    )
    return ((Signs(), loss), *_bits())


@cache
def _claims() -> tuple[list[Any], list[Any]]:
    made, n = torch_stream(0, "claims"), 7400
    x = torch.randn(n, 8, generator=made)
    scale = torch.exp(0.8 * torch.sin(2 * x[:, 0]) + 0.5 * x[:, 1])
    amount = torch.exp(1.4 * torch.randn(n, generator=made) - 0.98)  # of mean 1
    often = torch.sigmoid(x[:, 2] + x[:, 3] * x[:, 4])
    paid = torch.rand(n, generator=made) < often
    paid[-1000:], amount[-1000:] = True, often[-1000:]  # the mean instead of a draw
    return parted(x, torch.where(paid, scale * amount, torch.zeros(())), 64, 1000)


def claims(seed: int) -> Problem:
    """What an insured person costs: half of them nothing, the others log-normal amounts, learnt by
    squared errors and judged against the mean.
    """
    return ((mlp(8, 64, 64, 1, act=nn.SiLU), square), *_claims())


#: Name -> (factory, steps of a full-length run).
TASKS: dict[str, tuple[Task, int]] = {
    "outlines": (outlines, 250),
    "demand": (demand, 300),
    "survival": (survival, 1000),
    "grades": (grades, 1200),
    "clouds": (clouds, 400),
    "triplets": (triplets, 1000),
    "bits": (bits, 1000),
    "claims": (claims, 1200),
}
