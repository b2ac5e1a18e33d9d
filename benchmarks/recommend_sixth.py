"""Twelve tasks that judge ``mindgap recommend`` a sixth time, registered before any race or search
ran on them. The 62 before are for development now.

On two of them nothing can train (``dice``, ``one-column``), on two the loss stays on a
plateau until a sixth of the steps or later (``parity``, ``recall``), on one it begins slowly
(``sigmoids``): the repair that they judge is about that.
``benchmarks/records/recommend/split.json`` holds the checksum of this file; a test compares it.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from recommend_fifth import bundled
from recommend_tasks import Problem, Task, classify, mlp, pairs, parted, pictures, square
from torch import Tensor, nn

from mindgap.base.rng import torch_stream


class Writer(nn.Module):
    """A transformer that sees the words before; one table for words in and out."""

    def __init__(self, words: int, width: int, length: int) -> None:
        super().__init__()
        self.table = nn.Embedding(words, width)
        nn.init.normal_(self.table.weight, std=0.02)
        self.places = nn.Parameter(0.02 * torch.randn(length, width))
        self.layer = nn.TransformerEncoderLayer(
            width, 4, 2 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.norm = nn.LayerNorm(width)
        self.register_buffer("later", nn.Transformer.generate_square_subsequent_mask(length))

    def forward(self, ids: Tensor) -> Tensor:
        seen = self.layer(self.table(ids) + self.places, src_mask=self.later, is_causal=True)
        return self.norm(seen) @ self.table.weight.T


@cache
def _texts() -> tuple[list[Any], list[Any]]:
    """Words that follow from the two before; the word two before matters more."""
    made, n, length, words = torch_stream(0, "tied"), 4200, 17, 24
    near, far = (torch.randn(words, words, generator=made) for _ in range(2))
    text = [torch.randint(0, words, (n,), generator=made) for _ in range(2)]
    for _ in range(length - 2):
        chances = torch.softmax(1.5 * near[text[-1]] + 2.5 * far[text[-2]], -1)
        text.append(torch.multinomial(chances, 1, generator=made)[:, 0])
    ids = torch.stack(text, 1)
    return parted(ids[:, :-1], ids[:, 1:], 16, 600)


def tied(seed: int) -> Problem:
    """The next word by a small transformer whose table of words is its last layer too."""
    loss = lambda model, batch: F.cross_entropy(  # noqa: E731
        model(batch[0]).flatten(0, 1), batch[1].flatten()
    )
    return ((Writer(24, 32, 16), loss), *_texts())


@cache
def _mislabelled() -> tuple[list[Any], list[Any]]:
    x, labels = pictures("mislabelled", 8, 3600)
    made = torch_stream(0, "mislabelled-labels")
    other = torch.randint(0, 8, labels.shape, generator=made)
    wrong = torch.rand(labels.shape, generator=made) < 0.4
    wrong[-600:] = False
    return parted(x[:, None], torch.where(wrong, other, labels), 32, 600)


def mislabelled(seed: int) -> Problem:
    """Pictures of which 40 % carry a random label, by convolutions with batch normalisation; the
    labels to judge by are right.
    """
    model = nn.Sequential(
        nn.Conv2d(1, 12, 3, stride=2, padding=1, bias=False),
        nn.BatchNorm2d(12),
        nn.ReLU(),
        nn.Conv2d(12, 24, 3, stride=2, padding=1, bias=False),
        nn.BatchNorm2d(24),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(24 * 9, 8),
    )
    return ((model, classify), *_mislabelled())


@cache
def _frauds() -> tuple[list[Any], list[Any]]:
    made, n = torch_stream(0, "frauds"), 8000
    hidden = torch.randn(n, 12, generator=made)
    amounts = torch.exp(torch.randn(n, 4, generator=made) + hidden[:, :4])
    flags = (torch.rand(n, 4, generator=made) < 0.2).float()
    x = torch.cat([hidden, amounts, flags], 1)
    score = hidden[:, 4] * hidden[:, 5] + hidden[:, 6] + torch.log1p(amounts[:, 0]) * flags[:, 0]
    score = score + 0.5 * torch.randn(n, generator=made)
    return parted(x, (score > score.quantile(0.98)).float(), 64, 2000)


def frauds(seed: int) -> Problem:
    """One payment in fifty is a fraud; amounts are as they come."""
    loss = lambda model, batch: F.binary_cross_entropy_with_logits(  # noqa: E731
        model(batch[0])[:, 0], batch[1]
    )
    return ((mlp(20, 48, 48, 1, act=nn.ReLU), loss), *_frauds())


@cache
def _incomes() -> tuple[list[Any], list[Any]]:
    made, n = torch_stream(0, "incomes"), 7400
    draw = torch.randn(n, 6, generator=made)
    age = (45 + 14 * draw[:, 0]).clamp(18, 90).round()
    year = (2000 + 8 * draw[:, 1]).round()
    hours = (38 + 9 * draw[:, 2]).clamp(0, 80)
    distance = 8000 * torch.exp(0.8 * draw[:, 3])
    debts = 30000 * torch.exp(1.2 * draw[:, 4]) * (draw[:, 5] > 0)
    x = torch.stack([age, year, hours, distance, debts], 1)
    level = 0.03 * (year - 2000) + hours / 40 - ((age - 52) / 30).square() + 0.2 * draw[:, 4]
    income = 20 * torch.exp(level + 0.8 * torch.randn(n, generator=made))
    return parted(x, income, 64, 1000)


def incomes(seed: int) -> Problem:
    """Log-normal incomes in thousands from inputs that nobody scaled: years, metres and debts."""
    return ((mlp(5, 64, 64, 1, act=nn.ReLU), square), *_incomes())


class Memory(nn.Module):
    """A GRU that reads symbols and answers at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.core = nn.Embedding(8, 16), nn.GRU(16, 32, batch_first=True)
        self.head = nn.Linear(32, 8)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.core(self.table(ids))[0][:, -1])


@cache
def _recalled(name: str = "first-symbol") -> tuple[list[Any], list[Any]]:
    ids = torch.randint(0, 8, (7400, 15), generator=torch_stream(0, name))
    return parted(ids, ids[:, 0], 32, 1000)


def recall(seed: int) -> Problem:
    """Name the first of fifteen symbols after the last one: the loss stays flat, then falls."""
    return ((Memory(), classify), *_recalled())


class Towers(nn.Module):
    """Two networks whose vectors are compared, and a temperature that is learnt."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = mlp(24, 48, 12, act=nn.ReLU), mlp(16, 48, 12, act=nn.ReLU)
        self.sharpness = nn.Parameter(torch.tensor(math.log(1 / 0.07)))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        alike = F.normalize(self.left(x), dim=1) @ F.normalize(self.right(y), dim=1).T
        return alike * self.sharpness.exp().clamp(max=100)


@cache
def _twins() -> tuple[list[Any], list[Any]]:
    made, n, held, size = torch_stream(0, "towers"), 6000, 960, 48
    z = torch.randn(n, 6, generator=made)
    x = torch.tanh(z @ torch.randn(6, 24, generator=made))
    y = torch.sin(z @ torch.randn(6, 16, generator=made))
    x = x + 0.3 * torch.randn(x.shape, generator=made)
    y = y + 0.3 * torch.randn(y.shape, generator=made)
    return pairs(x[:-held], y[:-held], size), pairs(x[-held:], y[-held:], size)


def towers(seed: int) -> Problem:
    """Find each thing's other half in the batch, as pictures and captions are matched."""

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        scores, own = model(*batch), torch.arange(len(batch[0]))
        return (F.cross_entropy(scores, own) + F.cross_entropy(scores.T, own)) / 2

    return ((Towers(), loss), *_twins())


@cache
def _played() -> tuple[list[Any], list[Any]]:
    made, n, held, size = torch_stream(0, "proximal"), 5000, 1000, 64
    state = torch.randn(n, 8, generator=made)
    action = torch.randint(0, 5, (n,), generator=made)
    worth = torch.tanh(state @ torch.randn(8, 16, generator=made))
    worth = (worth @ torch.randn(16, 5, generator=made)).gather(1, action[:, None])[:, 0]
    surplus = worth + 2 * torch.randn(n, generator=made)
    surplus = (surplus - surplus.mean()) / surplus.std()
    made_of = list(zip(*(t.split(size) for t in (state, action, surplus)), strict=True))
    return made_of[: -(held // size)], made_of[-(held // size) :]


def proximal(seed: int) -> Problem:
    """One round of proximal policy optimisation on the play of a uniform policy: a clipped ratio
    of chances times noisy advantages, whose loss is negative.
    """

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        state, action, surplus = batch
        log_chances = F.log_softmax(model(state), -1)
        ratio = torch.exp(log_chances.gather(1, action[:, None])[:, 0] + math.log(5))
        gain = torch.minimum(ratio * surplus, ratio.clamp(0.8, 1.2) * surplus).mean()
        entropy = -(log_chances.exp() * log_chances).sum(1).mean()
        return -gain - 0.01 * entropy

    return ((mlp(8, 64, 64, 5), loss), *_played())


@cache
def _wines() -> tuple[list[Any], list[Any]]:
    x, y = bundled("wine")
    return parted((x - x.mean(0)) / x.std(0), y, 8, 60)


def wines(seed: int) -> Problem:
    """Scikit-learn's 178 wines of three kinds, 118 to train on."""
    return ((mlp(13, 32, 3, act=nn.ReLU), classify), *_wines())


@cache
def _bits(name: str = "parity") -> tuple[list[Any], list[Any]]:
    made, n = torch_stream(0, name), 33_000
    x = torch.randint(0, 2, (n, 40), generator=made) * 2.0 - 1
    return parted(x, (x[:, [5, 18, 31]].prod(1) > 0).float(), 32, 1000)


def parity(seed: int) -> Problem:
    """Whether an even number of three of 40 bits is off: no smaller part of the input says it."""
    loss = lambda model, batch: F.binary_cross_entropy_with_logits(  # noqa: E731
        model(batch[0])[:, 0], batch[1]
    )
    return ((mlp(40, 64, 1, act=nn.ReLU), loss), *_bits())


@cache
def _waves(name: str = "sigmoids") -> tuple[list[Any], list[Any]]:
    made, n = torch_stream(0, name), 7400
    x = torch.randn(n, 10, generator=made)
    wave = torch.sin(x @ torch.randn(10, 6, generator=made)).mean(1)
    y = x @ torch.randn(10, generator=made) / 3 + wave
    return parted(x, (y - y.mean()) / y.std(), 64, 1000)


def sigmoids(seed: int) -> Problem:
    """Six hidden layers of sigmoids, as networks once were: the first steps change nothing."""
    return ((mlp(10, *[40] * 6, 1, act=nn.Sigmoid), square), *_waves())


@cache
def _dice() -> tuple[list[Any], list[Any]]:
    made, n = torch_stream(0, "dice"), 26_600
    x = torch.randn(n, 12, generator=made)
    return parted(x, torch.randint(0, 4, (n,), generator=made), 64, 1000)


def dice(seed: int) -> Problem:
    """Labels that have nothing to do with their inputs: no model ends below log 4."""
    return ((mlp(12, 48, 4), classify), *_dice())


@cache
def _halves() -> tuple[list[Any], list[Any]]:
    made, n = torch_stream(0, "one-column"), 7400
    x = torch.randn(n, 10, generator=made)
    return parted(x, (x @ torch.randn(10, generator=made) > 0).float(), 64, 1000)


def one_column(seed: int) -> Problem:
    """A mistake of users: a softmax over one column, which is always 1, so every gradient is 0."""
    model = nn.Sequential(mlp(10, 32, 32, 1, act=nn.ReLU), nn.Softmax(1))
    loss = lambda model, batch: F.binary_cross_entropy(  # noqa: E731
        model(batch[0])[:, 0], batch[1]
    )
    return ((model, loss), *_halves())


#: Name -> (factory, steps of a full-length run).
TASKS: dict[str, tuple[Task, int]] = {
    "tied": (tied, 600),
    "mislabelled": (mislabelled, 800),
    "frauds": (frauds, 2400),
    "incomes": (incomes, 2400),
    "recall": (recall, 450),
    "towers": (towers, 1300),
    "proximal": (proximal, 1500),
    "wines": (wines, 2400),
    "parity": (parity, 2000),
    "sigmoids": (sigmoids, 1300),
    "dice": (dice, 2400),
    "one-column": (one_column, 2000),
}

#: Tasks on which nothing can train, by how they are made.
DEAD = ("dice", "one-column")
