"""Twelve tasks that judge ``mindgap recommend`` a fifth time: written by someone who had not read
the race's code, and registered before any run on them. The 50 before are for development now.

``benchmarks/records/recommend/split.json`` holds the checksum of this file; a test compares it.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from recommend_tasks import Problem, Task, classify, mlp, parted, square
from torch import Tensor, nn

from mindgap.base.rng import torch_stream


def bundled(name: str) -> tuple[Tensor, Tensor]:
    """Inputs and targets of a data set that comes with scikit-learn, in random order."""
    from sklearn import datasets

    x, y = getattr(datasets, f"load_{name}")(return_X_y=True)
    order = torch.randperm(len(x), generator=torch_stream(0, name))
    return torch.tensor(x, dtype=torch.float32)[order], torch.tensor(y)[order]


def long_tailed(made: torch.Generator, freedom: int, *shape: int) -> Tensor:
    """Draws of Student's t with a whole number of degrees of freedom."""
    spread = torch.randn(*shape, freedom, generator=made).square().mean(-1).sqrt()
    return torch.randn(*shape, generator=made) / spread


class Block(nn.Module):
    """Two convolutions with batch normalisation, added to their input."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.core = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
        )

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x + self.core(x))


@cache
def _digits() -> tuple[list[Any], list[Any]]:
    x, y = bundled("digits")
    return parted(x.view(-1, 1, 8, 8) / 16, y, 32, 600)


def digits(seed: int) -> Problem:
    """Scikit-learn's written digits by a residual network with batch normalisation, which people
    train by SGD.
    """
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        Block(16),
        nn.MaxPool2d(2),
        Block(16),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, 10),
    )
    return ((model, classify), *_digits())


@cache
def _diabetes() -> tuple[list[Any], list[Any]]:
    x, y = bundled("diabetes")
    return parted(x * math.sqrt(len(x)), (y.float() - 152) / 77, 16, 180)


def diabetes(seed: int) -> Problem:
    """Scikit-learn's 442 patients, 262 to train on: a network learns them by heart."""
    return ((mlp(10, 64, 64, 1, act=nn.ReLU), square), *_diabetes())


@cache
def _tumours() -> tuple[list[Any], list[Any]]:
    x, y = bundled("breast_cancer")
    return parted(x, y.float(), 20, 189)


def tumours(seed: int) -> Problem:
    """Logistic regression on scikit-learn's tumours as measured: features from 0.001 to 4000."""
    loss = lambda model, batch: F.binary_cross_entropy_with_logits(  # noqa: E731
        model(batch[0])[:, 0], batch[1]
    )
    return ((nn.Linear(30, 1), loss), *_tumours())


class Tagger(nn.Module):
    """An LSTM that reads a sentence in both directions and names a tag per word."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(240, 24)
        self.core = nn.LSTM(24, 24, batch_first=True, bidirectional=True)
        self.head = nn.Linear(48, 8)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.core(self.table(ids))[0])


@cache
def _tagged() -> tuple[list[Any], list[Any]]:
    made, n, length = torch_stream(0, "tagging"), 880, 10
    follow = torch.softmax(2 * torch.randn(8, 8, 8, generator=made), -1)
    words = torch.exp(2 * torch.randn(8, 240, generator=made)) / torch.arange(1, 241)
    tags = [torch.randint(0, 8, (n,), generator=made) for _ in range(2)]
    for _ in range(length - 2):
        tags.append(torch.multinomial(follow[tags[-2], tags[-1]], 1, generator=made)[:, 0])
    y = torch.stack(tags, 1)
    ids = torch.multinomial(words[y.flatten()], 1, generator=made).view(n, length)
    return parted(ids, y, 16, 560)


def tagging(seed: int) -> Problem:
    """Tags of the words of 320 sentences, by an LSTM in both directions that can learn them by
    heart.
    """
    loss = lambda model, batch: F.cross_entropy(  # noqa: E731
        model(batch[0]).flatten(0, 1), batch[1].flatten()
    )
    return ((Tagger(), loss), *_tagged())


class Gaps(nn.Module):
    """A transformer with layer norms that names the masked words; one table for in and out."""

    def __init__(self, words: int, width: int, length: int) -> None:
        super().__init__()
        self.table = nn.Embedding(words + 1, width)
        nn.init.normal_(self.table.weight, std=0.1)
        self.places = nn.Parameter(0.1 * torch.randn(length, width))
        layer = nn.TransformerEncoderLayer(
            width, 4, 2 * width, dropout=0.0, activation="gelu", batch_first=True
        )
        self.norm = nn.LayerNorm(width)
        self.core = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.shift = nn.Parameter(torch.zeros(words))

    def forward(self, ids: Tensor) -> Tensor:
        found = self.core(self.norm(self.table(ids) + self.places))
        return found @ self.table.weight[:-1].T + self.shift


@cache
def _gaps() -> tuple[list[Any], list[Any]]:
    """Texts of one of six subjects, whose words depend on the subject and the word before."""
    made, n, length, words = torch_stream(0, "masked"), 5800, 12, 32
    often = torch.log(torch.arange(1, words + 1).float())
    law = torch.softmax(2.5 * torch.randn(6, words, words, generator=made) - often, -1)
    subject = torch.randint(0, 6, (n,), generator=made)
    text = [torch.randint(0, words, (n,), generator=made)]
    for _ in range(length - 1):
        text.append(torch.multinomial(law[subject, text[-1]], 1, generator=made)[:, 0])
    ids = torch.stack(text, 1)
    masked = torch.rand(n, length, generator=made).argsort(1) < 2
    return parted(ids.masked_fill(masked, words), ids.masked_fill(~masked, -100), 16, 1000)


def masked(seed: int) -> Problem:
    """Two missing words per text, by a transformer that sees both sides."""
    loss = lambda model, batch: F.cross_entropy(  # noqa: E731
        model(batch[0]).flatten(0, 1), batch[1].flatten()
    )
    return ((Gaps(32, 32, 12), loss), *_gaps())


@cache
def _maps() -> tuple[list[Any], list[Any]]:
    made = torch_stream(0, "deep-linear")
    left = torch.linalg.qr(torch.randn(20, 6, generator=made))[0]
    right = torch.linalg.qr(torch.randn(6, 6, generator=made))[0]
    x = torch.randn(7400, 20, generator=made)
    return parted(x, x @ (left * torch.tensor([5.0, 3, 2, 1, 0.5, 0.2])) @ right, 64, 1000)


def deep_linear(seed: int) -> Problem:
    """A linear map of six singular values by five linear layers, without noise: the loss is not
    convex and can become zero.
    """
    loss = lambda model, batch: (model(batch[0]) - batch[1]).square().mean()  # noqa: E731
    return ((mlp(20, 20, 20, 20, 20, 6, act=nn.Identity), loss), *_maps())


@cache
def _pendulums() -> tuple[list[Any], list[Any]]:
    made = torch_stream(0, "pendulums")
    state = 3 * torch.rand(5100, 4, generator=made) - 1.5
    angle, momentum = state.chunk(2, 1)
    force = -torch.sin(angle) - 0.5 * (angle - angle.flip(1))
    return parted(state, torch.cat([momentum, force], 1), 48, 300)


def pendulums(seed: int) -> Problem:
    """Two coupled pendulums: a network is their energy, its derivatives are the motion. The
    motions are exact, so that the loss becomes small.
    """

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        state = batch[0].clone().requires_grad_()
        (slope,) = torch.autograd.grad(model(state).sum(), state, create_graph=True)
        motion = torch.cat([slope[:, 2:], -slope[:, :2]], 1)
        return (motion - batch[1]).square().mean()

    model = mlp(4, 48, 48, 1)
    model[-1] = nn.Linear(48, 1, bias=False)  # the zero of an energy has no derivative
    return ((model, loss), *_pendulums())


#: Moves of ``steering``, and how many of them an episode has.
MOVES, EPISODE = ((0, 1), (0, -1), (1, 0), (-1, 0)), 9
WALL = (7, 12, 13)


@cache
def _world() -> Tensor:
    """Chances of the next of 25 cells by move and cell; one move in ten is a random one."""
    moved = torch.zeros(4, 25, 25)
    for move, (down, right) in enumerate(MOVES):
        for cell in range(25):
            row, column = cell // 5 + down, cell % 5 + right
            to = 5 * row + column if 0 <= row < 5 and 0 <= column < 5 else cell
            moved[move, cell, cell if to in WALL else to] = 1
    return 0.9 * moved + 0.1 * moved.mean(0)


@cache
def _journeys() -> tuple[list[Any], list[Any]]:
    made = torch_stream(0, "steering")
    free = torch.tensor([cell for cell in range(25) if cell not in WALL])
    ends = free[torch.randint(0, 22, (64 * 32, 2), generator=made)]
    start = F.one_hot(free, 25).sum(0) / 22
    return list(ends.split(32)), [(free, start.expand(22, 25))]


def steering(seed: int) -> Problem:
    """Walk to a goal around a wall, learnt from sampled episodes by policy gradients; judged by
    the exact expected share of time away from the goal.
    """

    def seen(cell: Tensor, goal: Tensor) -> Tensor:
        return torch.cat([F.one_hot(cell, 25), F.one_hot(goal, 25)], -1).float()

    def away(model: nn.Module, goal: Tensor, chance: Tensor) -> Tensor:
        cells = torch.arange(25).expand(len(goal), 25)
        policy = torch.softmax(model(seen(cells, goal[:, None].expand_as(cells))), -1)
        law = torch.einsum("gca,acn->gcn", policy, _world())
        time = torch.zeros(len(goal))
        for _ in range(EPISODE):
            chance = chance.scatter(1, goal[:, None], 0.0)  # who has arrived stays there
            chance = torch.einsum("gc,gcn->gn", chance, law)
            time = time + chance.sum(1) - chance.gather(1, goal[:, None])[:, 0]
        return time.mean() / EPISODE

    def loss(model: nn.Module, batch: Any) -> Tensor:
        if isinstance(batch, tuple):  # validation: goals and the chances of the starts
            return away(model, *batch)
        cell, goal = batch.unbind(1)
        scores, costs, entropy = [], [], torch.zeros(())
        for _ in range(EPISODE):
            log_chance = F.log_softmax(model(seen(cell, goal)), -1)
            move = torch.multinomial(log_chance.detach().exp(), 1)
            on = (cell != goal).float()
            scores.append(on * log_chance.gather(1, move)[:, 0])
            entropy = entropy - (on * (log_chance.exp() * log_chance).sum(1)).mean()
            following = torch.multinomial(_world()[move[:, 0], cell], 1)[:, 0]
            cell = torch.where(cell == goal, cell, following)
            costs.append((cell != goal).float())
        ahead = torch.stack(costs).flip(0).cumsum(0).flip(0)
        surplus = ahead - ahead.mean(1, keepdim=True)
        return ((torch.stack(scores) * surplus).sum(0).mean() - 0.02 * entropy) / EPISODE

    return ((mlp(50, 48, 4, act=nn.ReLU), loss), *_journeys())


@cache
def _rings() -> tuple[list[Any], list[Any]]:
    made, n = torch_stream(0, "energy"), 7400
    angle = 2 * math.pi * torch.rand(n, generator=made)
    ring = torch.stack([torch.cos(angle), torch.sin(angle), torch.zeros(n)], 1)
    linked = torch.stack([1 + torch.cos(angle), torch.zeros(n), torch.sin(angle)], 1)
    first = torch.rand(n, 1, generator=made) < 0.6
    x = torch.where(first, ring, linked) + 0.1 * torch.randn(n, 3, generator=made)
    other = torch.tensor([0.4, 0.0, 0.0]) + torch.randn(n, 3, generator=made)
    return parted(x, other, 64, 1000)


def energy(seed: int) -> Problem:
    """The energy of points on two linked rings, learnt by telling them from a normal sample."""

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        def ratio(x: Tensor) -> Tensor:
            off = (x - torch.tensor([0.4, 0.0, 0.0])).square().sum(1)
            return -model(x)[:, 0] + off / 2 + 1.5 * math.log(2 * math.pi)

        return (F.softplus(-ratio(batch[0])) + F.softplus(ratio(batch[1]))).mean()

    return ((mlp(3, 64, 64, 1, act=nn.SiLU), loss), *_rings())


@cache
def _baskets() -> tuple[list[Any], list[Any]]:
    made, n, things = torch_stream(0, "baskets"), 8400, 400
    taste = torch.randn(n, 5, generator=made)
    kind = torch.randn(things, 5, generator=made)
    popular = torch.log(torch.arange(1, things + 1).float())
    chances = torch.softmax(0.9 * taste @ kind.T - 0.9 * popular, 1)
    ids = torch.multinomial(chances, 7, generator=made)
    return parted(ids[:, :6], ids[:, 6], 64, 2000)


def baskets(seed: int) -> Problem:
    """The next of 400 things from six that were bought, most of them rare: a mean of vectors, and
    a score per thing.
    """
    model = nn.Sequential(nn.EmbeddingBag(400, 24), nn.Linear(24, 400))
    return ((model, classify), *_baskets())


class Volatility(nn.Module):
    """A GRU that reads returns and gives the logarithm of the next one's spread."""

    def __init__(self) -> None:
        super().__init__()
        self.core, self.head = nn.GRU(1, 24, batch_first=True), nn.Linear(24, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.core(x[..., None])[0])[..., 0].clamp(-5, 5)


@cache
def _markets() -> tuple[list[Any], list[Any]]:
    made, n, length = torch_stream(0, "volatility"), 4600, 21
    shocks = long_tailed(made, 3, n, length + 20) / math.sqrt(3)  # of variance 1
    variance, found, true = torch.full((n,), 0.1), [], []
    for shock in shocks.unbind(1):
        found.append(variance.sqrt() * shock)
        true.append(variance)
        down = found[-1].clamp(max=0)
        variance = 0.004 + 0.1 * found[-1].square() + 0.2 * down.square() + 0.75 * variance
    returns, variances = torch.stack(found, 1)[:, 20:], torch.stack(true, 1)[:, 20:]
    target = returns.square()
    target[-600:] = variances[-600:]  # the mean instead of a draw
    return parted(returns[:, :-1], target[:, 1:], 32, 600)


def volatility(seed: int) -> Problem:
    """How much a price will move, from returns that follow Student's t with three degrees of
    freedom: a normal likelihood, whose gradients have an infinite variance. The loss changes sign.
    """

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        log_spread = model(batch[0])
        return (log_spread + batch[1] * torch.exp(-2 * log_spread) / 2).mean()

    return ((Volatility(), loss), *_markets())


@cache
def _tails() -> tuple[list[Any], list[Any]]:
    made, n = torch_stream(0, "long-tails"), 7400
    x = long_tailed(made, 3, n, 16)
    y = x @ torch.randn(16, generator=made) / 2 + (x @ torch.randn(16, generator=made)).abs() / 3
    noise = 2 * long_tailed(made, 2, n)
    noise[-1000:] = 0
    return parted(x, y + noise, 64, 1000)


def long_tails(seed: int) -> Problem:
    """Inputs that follow Student's t with three degrees of freedom and errors with two, both as
    they come.
    """
    return ((mlp(16, 64, 64, 1, act=nn.ReLU), square), *_tails())


#: Name -> (factory, steps of a full-length run).
TASKS: dict[str, tuple[Task, int]] = {
    "digits": (digits, 350),
    "diabetes": (diabetes, 1800),
    "tumours": (tumours, 3000),
    "tagging": (tagging, 400),
    "masked": (masked, 350),
    "deep-linear": (deep_linear, 1800),
    "pendulums": (pendulums, 1000),
    "steering": (steering, 350),
    "energy": (energy, 1200),
    "baskets": (baskets, 1200),
    "volatility": (volatility, 300),
    "long-tails": (long_tails, 1500),
}
