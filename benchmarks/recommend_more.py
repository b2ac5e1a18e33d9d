"""Six more development tasks for ``benchmarks/recommend.py``, written after the first twelve: most
have no noise, so their losses fall by orders of magnitude and the end of a run decides.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import torch
from recommend_tasks import Problem, Task, classify, mlp, parted, pictures, square
from torch import Tensor, nn

from mindgap.base.rng import torch_stream


@cache
def _taught() -> tuple[list[Any], list[Any]]:
    made = torch_stream(0, "teacher")
    x = torch.randn(7400, 10, generator=made)
    hidden = torch.tanh(x @ torch.randn(10, 6, generator=made) / 2)
    y = hidden @ torch.randn(6, generator=made)
    return parted(x, y, 64, 1000)


def teacher(seed: int) -> Problem:
    """Learn a small network from its answers, without noise."""
    return ((mlp(10, 48, 48, 1), square), *_taught())


class Waves(nn.Module):
    """Sines and cosines of the place before a network."""

    def __init__(self) -> None:
        super().__init__()
        self.core = mlp(16, 64, 64, 1, act=nn.ReLU)

    def forward(self, place: Tensor) -> Tensor:
        waves = [place * (math.pi * 2**k) for k in range(4)]
        return self.core(torch.cat([f(w) for w in waves for f in (torch.sin, torch.cos)], 1))


@cache
def _places() -> tuple[list[Any], list[Any]]:
    made = torch_stream(0, "picture")
    place = 2 * torch.rand(7400, 2, generator=made) - 1
    rings = torch.sin(9 * place.square().sum(1).sqrt()) * torch.cos(4 * place[:, 0])
    return parted(place, rings, 64, 1000)


def picture(seed: int) -> Problem:
    """A picture as a function of the place, by a network of waves."""
    return ((Waves(), square), *_places())


def oscillator(seed: int) -> Problem:
    """A damped oscillation by a network: the equation and the two starting values in one loss."""

    def loss(model: nn.Module, t: Tensor) -> Tensor:
        t = torch.cat([torch.zeros(1, 1), t]).requires_grad_()
        u = model(t)
        (slope,) = torch.autograd.grad(u.sum(), t, create_graph=True)
        (bend,) = torch.autograd.grad(slope.sum(), t, create_graph=True)
        residual = (bend + 0.8 * slope + 16 * u).square().mean()
        return residual + 20 * ((u[0] - 1).square() + slope[0].square()).sum()

    made = torch_stream(0, "oscillator")
    train = list(2 * torch.rand(60, 32, 1, generator=made))
    return (mlp(1, 32, 32, 1), loss), train, [torch.linspace(0, 2, 200)[:, None]]


@cache
def _returns() -> tuple[list[Any], list[Any]]:
    made = torch_stream(0, "returns")
    x = torch.randn(7400, 8, generator=made)
    y = torch.exp(1.2 * torch.randn(7400, generator=made) + torch.sin(x[:, :3]).sum(1))
    return parted(x, y, 64, 1000)


def returns(seed: int) -> Problem:
    """Values of returns that are lognormal: a finite variance with a long tail."""
    return ((mlp(8, 64, 64, 1, act=nn.ReLU), square), *_returns())


class Patches(nn.Module):
    """A small vision transformer on patches of 4 by 4."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.cut = nn.Conv2d(1, 32, 4, stride=4)
        self.places = nn.Parameter(0.02 * torch.randn(9, 32))
        layer = nn.TransformerEncoderLayer(32, 2, 64, dropout=0.0, batch_first=True)
        self.core = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(32, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.core(self.cut(x[:, None]).flatten(2).mT + self.places).mean(1))


def patches(seed: int) -> Problem:
    """Twenty classes of pictures by a small vision transformer."""
    x, y = pictures("patches", 20, 5000)
    return ((Patches(20), classify), *parted(x, y, 32, 1000))


class Coupling(nn.Module):
    """A normalising flow of four affine couplings."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList([mlp(1, 32, 32, 2) for _ in range(4)])

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        a, b = x[:, :1], x[:, 1:]
        slopes = torch.zeros_like(a)
        for part in self.parts:
            log_scale, shift = part(a).tanh().mul(2).chunk(2, 1)
            a, b = b * log_scale.exp() + shift, a
            slopes = slopes + log_scale
        return torch.cat([a, b], 1), slopes[:, 0]


@cache
def _moons() -> tuple[list[Any], list[Any]]:
    made = torch_stream(0, "moons")
    angle = math.pi * torch.rand(7400, generator=made)
    upper = torch.rand(7400, generator=made) < 0.5
    x = torch.stack([torch.cos(angle), torch.sin(angle)], 1)
    x = torch.where(upper[:, None], x, torch.tensor([1.0, 0.5]) - x)
    x = x + 0.05 * torch.randn(7400, 2, generator=made)
    return list(x[:6400].split(64)), list(x[6400:].split(500))


def flow(seed: int) -> Problem:
    """The density of two moons by a normalising flow: the loss changes its sign."""

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        z, slopes = model(x)
        return (0.5 * z.square().sum(1) - slopes).mean()

    return ((Coupling(), loss), *_moons())


#: Name -> (factory, steps of a full-length run).
TASKS: dict[str, tuple[Task, int]] = {
    "teacher": (teacher, 1500),
    "picture": (picture, 1200),
    "oscillator": (oscillator, 800),
    "returns": (returns, 1500),
    "patches": (patches, 350),
    "flow": (flow, 600),
}
