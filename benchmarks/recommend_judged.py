"""Eight tasks that judge ``mindgap recommend``: written and registered before the race was tuned,
and unlike the development tasks.

``benchmarks/records/recommend/split.json`` holds the checksum of this file; a test compares it.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from recommend_tasks import Problem, Task, mlp, parted, pictures
from torch import Tensor, nn

from mindgap.base.rng import torch_stream


class Variational(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encode = mlp(144, 64, 12, act=nn.ReLU)
        self.decode = mlp(6, 64, 144, act=nn.ReLU)

    def forward(self, x: Tensor) -> Tensor:
        middle, log_spread = self.encode(x).chunk(2, 1)
        log_spread = log_spread.clamp(-8, 8)
        noise = torch.randn_like(middle) if self.training else torch.zeros_like(middle)
        found = self.decode(middle + log_spread.exp() * noise)
        likelihood = (F.softplus(found) - x * found).sum(1)
        divergence = 0.5 * (middle.square() + (2 * log_spread).exp() - 2 * log_spread - 1).sum(1)
        return likelihood + divergence


def variational(seed: int) -> Problem:
    """A variational autoencoder of black and white pictures, with noise inside the loss."""
    x = (pictures("variational", 10, 5000)[0].flatten(1) > 0.5).float()
    loss = lambda model, batch: model(batch).mean()  # noqa: E731
    return (Variational(), loss), list(x[:4000].split(64)), list(x[4000:].split(500))


@cache
def _bandit() -> tuple[list[Any], list[Any]]:
    made, n = torch_stream(0, "bandit"), 9000
    x = torch.randn(n, 10, generator=made)
    wanted = torch.tanh(x @ torch.randn(10, 6, generator=made))
    old = torch.softmax(0.5 * x[:, :6], 1)
    act = torch.multinomial(old, 1, generator=made)
    reward = wanted.gather(1, act)[:, 0] + 0.5 * torch.randn(n, generator=made)
    parts = (x, act[:, 0], reward, old.gather(1, act)[:, 0])
    train = list(zip(*(p[:6400].split(64) for p in parts), strict=True))
    held = (x[6400:], wanted[6400:])
    return train, [(*pair, None, None) for pair in zip(*(p.split(650) for p in held), strict=True)]


def bandit(seed: int) -> Problem:
    """A policy learnt from logged rewards by importance weights; the loss is negative."""

    def loss(model: nn.Module, batch: tuple[Any, ...]) -> Tensor:
        x, act, reward, old = batch
        chance = torch.softmax(model(x), 1)
        if old is None:  # validation: the expected reward of the policy
            return -(chance * act).sum(1).mean()
        return -(chance.gather(1, act[:, None])[:, 0] / old * reward).mean()

    return ((mlp(10, 48, 48, 6), loss), *_bandit())


class Adder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.core, self.head = nn.RNN(2, 32, batch_first=True), nn.Linear(32, 1)
        nn.init.orthogonal_(self.core.weight_hh_l0, 1.1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.core(x)[0][:, -1])


@cache
def _sums() -> tuple[list[Any], list[Any]]:
    made, n, length = torch_stream(0, "sums"), 7000, 16
    values = torch.rand(n, length, generator=made)
    marks = torch.zeros(n, length).scatter_(1, torch.rand(n, length, generator=made).topk(2)[1], 1)
    return parted(torch.stack([values, marks], 2), 3 * (values * marks).sum(1), 32, 1000)


def adding(seed: int) -> Problem:
    """Add the two marked numbers of a sequence, by a plain recurrent net: gradients explode."""
    loss = lambda model, batch: (model(batch[0])[:, 0] - batch[1]).square().mean()  # noqa: E731
    return ((Adder(), loss), *_sums())


class Counts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.shop, self.item = nn.Embedding(80, 4), nn.Embedding(300, 4)
        self.rest = mlp(8 + 3, 32, 1, act=nn.ReLU)

    def forward(self, ids: Tensor, x: Tensor) -> Tensor:
        parts = [self.shop(ids[:, 0]), self.item(ids[:, 1]), x]
        return self.rest(torch.cat(parts, 1))[:, 0]


@cache
def _counts() -> tuple[list[Any], list[Any]]:
    made, n = torch_stream(0, "counts"), 12000
    shop = torch.randint(0, 80, (n,), generator=made)
    item = torch.multinomial(1 / torch.arange(1, 301).float(), n, True, generator=made)
    x = torch.randn(n, 3, generator=made)
    log_mean = 0.8 * torch.randn(80, generator=made)[shop] + torch.randn(300, generator=made)[item]
    log_mean = (log_mean + 0.5 * x[:, 0] * x[:, 1] + 1).clamp(max=5)
    y = torch.poisson(log_mean.exp(), generator=made)
    parts = (torch.stack([shop, item], 1), x, y)
    return tuple(  # type: ignore[return-value]
        list(zip(*(p[part].split(size) for p in parts), strict=True))
        for part, size in ((slice(0, 10000), 64), (slice(10000, n), 500))
    )


def counts(seed: int) -> Problem:
    """Sales counts by shop and item: a Poisson likelihood, negative where counts are large."""

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        log_mean = model(batch[0], batch[1]).clamp(max=12)
        return (log_mean.exp() - batch[2] * log_mean).mean()

    return ((Counts(), loss), *_counts())


class SkipGrams(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.word, self.near = nn.Embedding(500, 16), nn.Embedding(500, 16)
        nn.init.uniform_(self.word.weight, -1 / 32, 1 / 32)
        nn.init.zeros_(self.near.weight)

    def forward(self, ids: Tensor) -> Tensor:
        score = (self.word(ids[:, :1]) * self.near(ids[:, 1:])).sum(2)
        return -F.logsigmoid(score[:, 0]) - F.logsigmoid(-score[:, 1:]).sum(1)


@cache
def _grams() -> tuple[list[Any], list[Any]]:
    made, n = torch_stream(0, "grams"), 26000
    weights = 1 / torch.arange(1, 501).float()
    topic = torch.randint(0, 10, (500,), generator=made)
    word = torch.multinomial(weights, n, True, generator=made)
    law = weights * torch.where(topic[:, None] == topic, 12.0, 1.0)
    near = torch.multinomial(law[word], 1, generator=made)
    others = torch.multinomial(weights.sqrt().expand(n, -1), 4, True, generator=made)
    ids = torch.cat([word[:, None], near, others], 1)
    return list(ids[:23040].split(128)), list(ids[23040:].split(500))


def skip_grams(seed: int) -> Problem:
    """Word vectors by negative sampling; one of the two tables begins at zero."""
    loss = lambda model, batch: model(batch).mean()  # noqa: E731
    return ((SkipGrams(), loss), *_grams())


@cache
def _views() -> tuple[list[Any], list[Any]]:
    made = torch_stream(0, "views")
    x = pictures("views", 60, 7400)[0].flatten(1)
    two = [x * (torch.rand(x.shape, generator=made) < 0.6) for _ in range(2)]
    return parted(two[0], two[1], 64, 1000)


def contrastive(seed: int) -> Problem:
    """Find the other half of a picture among those of the batch."""

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        a, b = (F.normalize(model(part[:64]), dim=1) for part in batch)
        return F.cross_entropy(a @ b.T / 0.1, torch.arange(len(a)))

    return ((mlp(144, 96, 32, act=nn.GELU), loss), *_views())


class Signal(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.signal = nn.Parameter(0.1 * torch.randn(64, 4))

    def forward(self, x: Tensor) -> Tensor:
        return (x @ self.signal).square().sum(1, keepdim=True)


@cache
def _phases() -> tuple[list[Any], list[Any]]:
    made = torch_stream(0, "phases")
    x = torch.randn(5000, 64, generator=made)
    y = (x @ (torch.randn(64, 4, generator=made) / 4)).square().sum(1)
    return parted(x, y + 0.1 * torch.randn(5000, generator=made), 32, 1000)


def phases(seed: int) -> Problem:
    """Recover a signal from squares, a polynomial of degree four in the weights."""
    loss = lambda model, batch: (model(batch[0])[:, 0] - batch[1]).square().mean()  # noqa: E731
    return ((Signal(), loss), *_phases())


def heat(seed: int) -> Problem:
    """The heat equation on a rod by a network: residual, start and ends in one loss."""

    def loss(model: nn.Module, batch: Tensor) -> Tensor:
        t, x = (batch[:, k : k + 1].clone().requires_grad_() for k in range(2))
        u = model(torch.cat([t, x], 1))
        in_t, in_x = torch.autograd.grad(u.sum(), (t, x), create_graph=True)
        (in_xx,) = torch.autograd.grad(in_x.sum(), x, create_graph=True)
        zero = torch.zeros_like(t)
        begin = model(torch.cat([zero, x], 1)) - torch.sin(torch.pi * x)
        ends = [model(torch.cat([t, zero + side], 1)) for side in (0, 1)]
        residual = (in_t - 0.2 * in_xx).square().mean()
        return residual + 10 * (begin.square().mean() + sum(e.square().mean() for e in ends))

    made = torch_stream(0, "heat")
    train = list(torch.rand(60, 32, 2, generator=made))
    return (mlp(2, 32, 32, 1), loss), train, [torch.rand(400, 2, generator=made)]


#: Name -> (factory, steps of a full-length run).
TASKS: dict[str, tuple[Task, int]] = {
    "variational": (variational, 1000),
    "bandit": (bandit, 1200),
    "adding": (adding, 700),
    "counts": (counts, 1200),
    "skip-grams": (skip_grams, 1500),
    "contrastive": (contrastive, 900),
    "phases": (phases, 1500),
    "heat": (heat, 600),
}
