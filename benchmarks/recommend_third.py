"""Ten tasks that judge ``mindgap recommend`` a third time: written and registered before anything
ran on them, and unlike the 32 tasks before, which are all for development now.

``benchmarks/records/recommend/split.json`` holds the checksum of this file; a test compares it.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from recommend_tasks import Problem, Task, classify, mlp, parted, pictures, square
from torch import Tensor, nn

from mindgap.base.rng import torch_stream


class Filters(nn.Module):
    """Convolutions along time, and a linear head of the last place."""

    def __init__(self) -> None:
        super().__init__()
        self.core = nn.Sequential(
            nn.Conv1d(2, 24, 5), nn.GELU(), nn.Conv1d(24, 24, 5, dilation=2), nn.GELU()
        )
        self.head = nn.Linear(24, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.core(x)[:, :, -1])


@cache
def _spikes() -> tuple[list[Any], list[Any]]:
    made, n, length = torch_stream(0, "spikes"), 7400, 24
    phase, pace = (torch.rand(n, 1, 1, generator=made) for _ in range(2))
    time = torch.arange(length + 3.0)
    waves = torch.sin(6 * phase + (0.2 + 0.6 * pace) * time * torch.tensor([[1.0], [1.6]]))
    x = waves[:, :, :length] + 0.1 * torch.randn(n, 2, length, generator=made)
    y = waves[:, 0, -1] * (1 + waves[:, 1, -1])
    jump = torch.rand(n, generator=made).clamp(1e-4) ** (-1 / 1.3)  # Pareto of index 1.3
    bad = torch.rand(n, generator=made) < 0.1
    bad[-1000:] = False
    return parted(x, torch.where(bad, y + 3 * jump, y), 32, 1000)


def spikes(seed: int) -> Problem:
    """Forecast a wave; one target in ten is too high by a Pareto error of infinite variance."""
    return ((Filters(), square), *_spikes())


class Causal(nn.Module):
    """A transformer that sees only what came before."""

    def __init__(self, words: int, width: int, length: int) -> None:
        super().__init__()
        self.table = nn.Embedding(words, width)
        self.places = nn.Parameter(0.02 * torch.randn(length, width))
        layer = nn.TransformerEncoderLayer(
            width, 4, 3 * width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.core = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words)
        mask = torch.full((length, length), -math.inf).triu(1)
        self.register_buffer("mask", mask)

    def forward(self, ids: Tensor) -> Tensor:
        found = self.core(self.table(ids) + self.places, mask=self.mask)
        return self.head(self.norm(found))


def next_word(model: nn.Module, ids: Tensor) -> Tensor:
    return F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())


@cache
def _brackets() -> Tensor:
    """Sentences of three kinds of brackets, every one closed by its own kind or left open."""
    made, n, length = torch_stream(0, "brackets"), 4000, 17
    draws = torch.rand(n, length, 2, generator=made).tolist()
    text = torch.zeros(n, length, dtype=torch.long)
    for row, sentence in enumerate(draws):
        stack: list[int] = []
        for place, (up, kind) in enumerate(sentence):
            if stack and up < 0.5:
                text[row, place] = 3 + stack.pop()
            else:
                stack.append(int(3 * kind**2))
                text[row, place] = stack[-1]
    return text


def brackets(seed: int) -> Problem:
    """The next bracket of a sentence, by a transformer with the norm in front."""
    ids = _brackets()
    return (Causal(6, 32, 16), next_word), list(ids[:3400].split(16)), list(ids[3400:].split(200))


class Echo(nn.Module):
    """A GRU with a layer norm between it and its head."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.core = nn.Embedding(12, 16), nn.GRU(16, 40, batch_first=True)
        self.norm, self.head = nn.LayerNorm(40), nn.Linear(40, 12)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.norm(self.core(self.table(ids))[0]))


@cache
def _words() -> Tensor:
    """Words of a small language: a stem that is said twice with another ending, and noise."""
    made, n = torch_stream(0, "words"), 3600
    stems = torch.randint(0, 10, (40, 5), generator=made)
    chosen = torch.multinomial(1 / torch.arange(1, 41).float(), n, True, generator=made)
    ends = torch.randint(0, 10, (n, 1), generator=made)
    mark = torch.full((n, 1), 10)
    other = (ends + stems[chosen, :1]) % 10
    text = torch.cat([stems[chosen], ends, mark, stems[chosen], other, mark + 1], 1)
    wrong = torch.rand(text.shape, generator=made) < 0.03
    return torch.where(wrong, torch.randint(0, 10, text.shape, generator=made), text)


def echo(seed: int) -> Problem:
    """Letters of words that come twice, by a GRU; 3 % of the letters are wrong."""
    ids = _words()
    return (Echo(), next_word), list(ids[:3000].split(16)), list(ids[3000:].split(200))


def helmholtz(seed: int) -> Problem:
    """u'' + u_yy + 20 u = f on a square with u = 0 at its edge, by a network of sines."""

    class Sines(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.rest = nn.Linear(2, 40), mlp(40, 40, 1)

        def forward(self, place: Tensor) -> Tensor:
            inside = (place * (1 - place)).prod(1, keepdim=True)
            return 16 * inside * self.rest(torch.sin(4 * self.first(place)))

    def loss(model: nn.Module, place: Tensor) -> Tensor:
        place = place.clone().requires_grad_()
        u = model(place)
        (slope,) = torch.autograd.grad(u.sum(), place, create_graph=True)
        bends = [
            torch.autograd.grad(slope[:, k].sum(), place, create_graph=True)[0][:, k]
            for k in range(2)
        ]
        wave = torch.sin(math.pi * place[:, 0]) * torch.sin(2 * math.pi * place[:, 1])
        return (sum(bends) + 20 * u[:, 0] + (5 * math.pi**2 - 20) * wave).square().mean() / 100

    made = torch_stream(0, "helmholtz")
    train = list(torch.rand(60, 32, 2, generator=made))
    return (Sines(), loss), train, [torch.rand(300, 2, generator=made)]


@cache
def _species() -> tuple[list[Any], list[Any]]:
    made, classes = torch_stream(0, "species"), 30
    centres = torch.randn(classes, 20, generator=made)
    often = torch.arange(1, classes + 1).float() ** -1.5
    rare = torch.multinomial(often, 6400, True, generator=made)
    even = torch.randint(0, classes, (1500,), generator=made)
    labels = torch.cat([rare, even])
    x = 0.7 * centres[labels] + torch.randn(len(labels), 20, generator=made)
    x = torch.cat([x, (x[:, :10] * x[:, 10:]).tanh()], 1)
    return parted(x, labels, 64, 1500)


def species(seed: int) -> Problem:
    """Thirty classes, the commonest 160 times as frequent as the rarest, judged on equal shares."""
    model = nn.Sequential(
        nn.Linear(30, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 30)
    )
    return ((model, classify), *_species())


@cache
def _lists() -> tuple[list[Any], list[Any]]:
    made, n = torch_stream(0, "lists"), 3700
    x = torch.randn(n, 8, 14, generator=made)
    x = x + torch.randn(n, 1, 14, generator=made)  # what the documents of a query share
    taste = torch.randn(14, 14, generator=made) / 4
    worth = torch.einsum("ndi,ij,ndj->nd", x, taste, x) + x[..., 0].abs()
    clicks = torch.softmax(worth, 1)
    seen = torch.multinomial(clicks, 1, generator=made)[:, 0]
    return parted(x, seen, 32, 700)


def lists(seed: int) -> Problem:
    """Which of eight documents is clicked, by a network that scores each of them."""
    loss = lambda model, batch: F.cross_entropy(model(batch[0])[..., 0], batch[1])  # noqa: E731
    return ((mlp(14, 64, 64, 1, act=nn.SiLU), loss), *_lists())


@cache
def _turns() -> tuple[list[Any], list[Any]]:
    made, n = torch_stream(0, "turns"), 7400
    x = torch.rand(n, 3, generator=made) * 2 - 1
    side = (torch.rand(n, generator=made) < 0.35).float() * 2 - 1
    middle = side * (0.5 + x[:, 0].square()) + torch.sin(3 * x[:, 1])
    y = middle + 0.05 * (1 + x[:, 2].abs()) * torch.randn(n, generator=made)
    return parted(x, y, 64, 1000)


def mixture(seed: int) -> Problem:
    """The negative log density of a mixture of five normals that a network gives."""

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        middle, log_scale, weight = model(batch[0]).chunk(3, 1)
        log_scale = log_scale.clamp(-5, 3)
        off = (batch[1][:, None] - middle) / log_scale.exp()
        parts = F.log_softmax(weight, 1) - log_scale - off.square() / 2
        return -parts.logsumexp(1).mean()

    return ((mlp(3, 64, 64, 15), loss), *_turns())


@cache
def _documents() -> tuple[list[Any], list[Any]]:
    made, words, classes = torch_stream(0, "documents"), 400, 6
    weights = 1 / torch.arange(1, words + 1).float()
    law = weights * torch.exp(1.3 * torch.randn(classes, words, generator=made))
    labels = torch.randint(0, classes, (2000,), generator=made)
    ids = torch.multinomial(law[labels], 14, True, generator=made)
    wrong = torch.rand(2000, generator=made) < 0.25
    wrong[-1400:] = False
    given = torch.where(wrong, torch.randint(0, classes, (2000,), generator=made), labels)
    return parted(ids, given, 24, 1400)


def documents(seed: int) -> Problem:
    """600 short documents, a quarter of the labels wrong: a mean of word vectors, and a network."""
    model = nn.Sequential(nn.EmbeddingBag(400, 32), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 6))
    return ((model, classify), *_documents())


class Denoiser(nn.Module):
    """Three convolutions whose answer is taken off their input."""

    def __init__(self) -> None:
        super().__init__()
        self.core = nn.Sequential(
            nn.Conv2d(1, 12, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(12, 12, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(12, 1, 3, padding=1),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x - self.core(x)


@cache
def _spoilt() -> tuple[list[Any], list[Any]]:
    made = torch_stream(0, "spoilt")
    clean = pictures("spoilt", 12, 3600)[0][:, None]
    salt = torch.rand(clean.shape, generator=made) < 0.1
    spoilt = clean + 0.3 * torch.randn(clean.shape, generator=made)
    return parted(torch.where(salt, torch.tensor(3.0), spoilt), clean, 16, 600)


def denoising(seed: int) -> Problem:
    """Take noise and white points off pictures, by three convolutions."""
    loss = lambda model, batch: (model(batch[0]) - batch[1]).square().mean()  # noqa: E731
    return ((Denoiser(), loss), *_spoilt())


@cache
def _steps() -> tuple[list[Any], list[Any]]:
    made, n = torch_stream(0, "steps"), 7400
    x = torch.randn(n, 6, generator=made)
    y = torch.where(x[:, 0] * x[:, 1] > 0, 3.0, -1.0) + (x[:, 2] > 0.5).float() * x[:, 3]
    return parted(x, y + 0.2 * torch.randn(n, generator=made), 64, 1000)


def steps(seed: int) -> Problem:
    """A function with jumps, by a deep narrow network with a robust loss."""
    loss = lambda model, batch: F.huber_loss(model(batch[0])[:, 0], batch[1])  # noqa: E731
    return ((mlp(6, 32, 32, 32, 32, 1, act=nn.ReLU), loss), *_steps())


#: Name -> (factory, steps of a full-length run).
TASKS: dict[str, tuple[Task, int]] = {
    "spikes": (spikes, 900),
    "brackets": (brackets, 400),
    "echo": (echo, 400),
    "helmholtz": (helmholtz, 700),
    "species": (species, 1200),
    "lists": (lists, 1000),
    "mixture": (mixture, 1200),
    "documents": (documents, 1000),
    "denoising": (denoising, 500),
    "steps": (steps, 1200),
}
