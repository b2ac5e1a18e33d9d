"""Six tasks that judge ``mindgap recommend`` a second time: written and registered after the race
was changed for the last time, unlike the 26 tasks before, and run once.

``benchmarks/records/recommend/split.json`` holds the checksum of this file; a test compares it.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from recommend_tasks import Problem, Task, classify, mlp, parted
from torch import Tensor, nn

from mindgap.base.rng import torch_stream


@cache
def _orders() -> tuple[list[Any], list[Any]]:
    made, n = torch_stream(0, "orders"), 11000
    x = torch.randn(n, 2, 12, generator=made)
    a, b = torch.randn(12, 5, generator=made), torch.randn(5, generator=made)
    worth = torch.tanh(x @ a / 2) @ b
    sign = (worth[:, 0] > worth[:, 1]).float() * 2 - 1
    wrong = torch.rand(n, generator=made) < 0.05
    wrong[-1000:] = False
    return parted(x, torch.where(wrong, -sign, sign), 64, 1000)


def ranking(seed: int) -> Problem:
    """Learn the worth of things from which of two is better; 5 % of the answers are wrong."""

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        worth = model(batch[0])[..., 0]
        return F.softplus(-batch[1] * (worth[:, 0] - worth[:, 1])).mean()

    return ((mlp(12, 64, 32, 1, act=nn.ReLU), loss), *_orders())


class Residual(nn.Module):
    """Blocks with a layer norm that are added to their input."""

    def __init__(self, width: int, blocks: int) -> None:
        super().__init__()
        self.begin, self.end = nn.Linear(12, width), nn.Linear(width, 3)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.GELU())
            for _ in range(blocks)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.begin(x)
        for block in self.blocks:
            x = x + block(x)
        return self.end(x)


@cache
def _prices() -> tuple[list[Any], list[Any]]:
    made, n = torch_stream(0, "prices"), 8400
    x = torch.randn(n, 12, generator=made)
    clean = torch.sin(x @ torch.randn(12, 6, generator=made) / 2) @ torch.randn(
        6, 3, generator=made
    )
    # Student's t with 1.5 degrees of freedom: a normal over the root of a mean of squares.
    chi = torch.distributions.Gamma(0.75, 0.5)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        squares = chi.sample((n - 1000, 1))
    noise = torch.randn(n - 1000, 3, generator=made) / (squares / 1.5).sqrt()
    return parted(x, torch.cat([clean[:-1000] + noise, clean[-1000:]]), 32, 1000)


def prices(seed: int) -> Problem:
    """Three targets whose errors follow Student's t with 1.5 degrees of freedom."""
    loss = lambda model, batch: (model(batch[0]) - batch[1]).square().mean()  # noqa: E731
    return ((Residual(48, 3), loss), *_prices())


class Graph(nn.Module):
    """Two layers that mix the features of neighbours; the graph is part of the model."""

    def __init__(self, mix: Tensor, features: Tensor, classes: int) -> None:
        super().__init__()
        self.register_buffer("mix", mix)
        self.register_buffer("features", features)
        self.first, self.second = nn.Linear(24, 48), nn.Linear(48, classes)

    def forward(self, nodes: Tensor) -> Tensor:
        hidden = torch.relu(self.mix @ self.first(self.features))
        return self.second(self.mix[nodes] @ hidden)


@cache
def _graph() -> tuple[Tensor, Tensor, Tensor]:
    made, n, classes = torch_stream(0, "graph"), 500, 8
    labels = torch.randint(0, classes, (n,), generator=made)
    chance = torch.where(labels[:, None] == labels, 0.08, 0.012)
    edges = (torch.rand(n, n, generator=made) < chance).triu(1).float()
    edges = edges + edges.T + torch.eye(n)
    degree = edges.sum(1)
    mix = edges / (degree[:, None] * degree).sqrt()
    centres = torch.randn(classes, 24, generator=made)
    features = 0.4 * centres[labels] + torch.randn(n, 24, generator=made)
    return mix, features, labels


def graph(seed: int) -> Problem:
    """Classes of the nodes of a graph, from 250 known ones."""
    mix, features, labels = _graph()
    nodes = torch.arange(len(labels))
    train = list(zip(nodes[:250].split(25), labels[:250].split(25), strict=True))
    return (Graph(mix, features, 8), classify), train, [(nodes[250:], labels[250:])]


class Sets(nn.Module):
    """A network of the mean over what another network makes of each member."""

    def __init__(self) -> None:
        super().__init__()
        self.each, self.all = mlp(2, 32, 32, act=nn.ReLU), mlp(32, 32, 1, act=nn.ReLU)

    def forward(self, x: Tensor) -> Tensor:
        return self.all(self.each(x).mean(1))


@cache
def _sets() -> tuple[list[Any], list[Any]]:
    made, n = torch_stream(0, "sets"), 7400
    x = torch.randn(n, 12, 2, generator=made) * torch.rand(n, 1, 2, generator=made).mul(2)
    centred = x - x.mean(1, keepdim=True)
    y = (centred[..., 0] * centred[..., 1]).mean(1) + x[..., 0].amax(1)
    return parted(x, y, 64, 1000)


def sets(seed: int) -> Problem:
    """A covariance plus a maximum, from sets of twelve points."""
    loss = lambda model, batch: (model(batch[0])[:, 0] - batch[1]).square().mean()  # noqa: E731
    return ((Sets(), loss), *_sets())


@cache
def _loads() -> tuple[list[Any], list[Any]]:
    made, n = torch_stream(0, "loads"), 8400
    x = torch.randn(n, 8, generator=made)
    spread = F.softplus(x[:, 0] + x[:, 1] * x[:, 2])
    y = torch.sin(2 * x[:, 3]) + x[:, 4].abs() + spread * torch.randn(n, generator=made)
    return parted(x, y, 64, 1000)


def quantiles(seed: int) -> Problem:
    """Three quantiles at once, by a loss with kinks."""
    levels = torch.tensor([0.1, 0.5, 0.9])

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        off = batch[1][:, None] - model(batch[0])
        return torch.maximum(levels * off, (levels - 1) * off).mean()

    return ((mlp(8, 64, 64, 3, act=nn.SiLU), loss), *_loads())


class Experts(nn.Module):
    """Four small networks, mixed by a gate that sees the input."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(10, 4)
        self.experts = nn.ModuleList(mlp(10, 24, 6, act=nn.ReLU) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        weights = torch.softmax(self.gate(x), 1)
        answers = torch.stack([expert(x) for expert in self.experts], 1)
        return (weights[:, :, None] * answers).sum(1)


@cache
def _regions() -> tuple[list[Any], list[Any]]:
    made, n = torch_stream(0, "regions"), 9000
    x = torch.randn(n, 10, generator=made)
    region = 2 * (x[:, 0] > 0).long() + (x[:, 1] > 0).long()
    maps = torch.randn(4, 10, 6, generator=made)
    scores = torch.einsum("ni,nij->nj", x, maps[region])
    return parted(x, scores.argmax(1), 64, 1000)


def experts(seed: int) -> Problem:
    """Six classes by a mixture of experts: in every quarter of the space another map is right."""
    return ((Experts(), classify), *_regions())


#: Name -> (factory, steps of a full-length run).
TASKS: dict[str, tuple[Task, int]] = {
    "ranking": (ranking, 1500),
    "prices": (prices, 1000),
    "graph": (graph, 500),
    "sets": (sets, 1200),
    "quantiles": (quantiles, 1500),
    "experts": (experts, 900),
}
