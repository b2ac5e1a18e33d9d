"""Training runs that break in a way that is known: what ``Monitor.autopsy`` is judged by.

Each case builds a model, its batches and an optimizer, and plants one fault: an update that throws
the weights away, a batch, a sample, an operation, a recurrent state, an overflow of float16, a
learning rate. Some runs recover. The last ones look odd and have no fault. A hash of the name
decides which cases are held out (``judged``).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mindgap.optim import ACClip, AdamW as OurAdamW


@dataclass
class Run:
    """One training with its plant."""

    model: nn.Module
    loss: Callable[[Any, Any], Tensor]
    batches: list[Any]
    optimizer: torch.optim.Optimizer
    steps: int = 80
    change: dict[int, Callable[[Run], None]] = field(default_factory=dict)  # before a step
    factor: dict[int, float] = field(default_factory=dict)  # of the gradient of a step
    clip: float | None = None
    accumulate: int = 1
    scheduler: Any = None
    style: str = "value"  # how the monitor learns of the batch: "value", "observe" or "index"


@dataclass(frozen=True)
class Truth:
    """What was planted."""

    mechanism: str  # "" for a healthy run
    step: int | None = None  # None: the first step whose loss or gradient is not finite
    layers: tuple[str, ...] = ()  # beginnings of names; empty: any
    samples: tuple[int, ...] = ()
    recovers: bool | None = None


@dataclass(frozen=True)
class Case:
    """A name, what it builds, and the truth."""

    name: str
    build: Callable[[], Run]
    truth: Truth

    @property
    def judged(self) -> bool:
        """Whether the case is held out."""
        return hashlib.sha256(f"post-mortem {self.name}".encode()).digest()[0] < 0.4 * 256


# Networks.


class Mlp(nn.Module):
    """Three layers with names."""

    def __init__(self, width: int = 24, out: int = 4, dropout: float = 0.0) -> None:
        super().__init__()
        self.fc1, self.fc2, self.head = (
            nn.Linear(8, width),
            nn.Linear(width, width),
            nn.Linear(width, out),
        )
        self.drop = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.drop(self.fc2(self.fc1(x).relu()).relu()))


class Net(nn.Module):
    """Convolutions with batch norm."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.norm = nn.Conv2d(1, 6, 3, padding=1), nn.BatchNorm2d(6)
        self.conv2, self.head = nn.Conv2d(6, 8, 3, padding=1), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.conv1(x)).relu()
        return self.head(self.conv2(x).relu().mean((2, 3)))


class Attention(nn.Module):
    """One transformer block over tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(30, 16)
        self.block = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
        self.head = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.block(self.table(x)).mean(1))


class Bag(nn.Module):
    """An embedding table and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(30, 12), nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.table(x).mean(1))


class Recurrent(nn.Module):
    """A recurrent net whose gain can be set: tanh is bounded, relu is not."""

    def __init__(self, gain: float = 0.9, kind: str = "relu", bounded: bool = False) -> None:
        super().__init__()
        self.bounded = bounded
        self.rnn = nn.RNN(3, 16, nonlinearity=kind, batch_first=True)
        self.head = nn.Linear(16, 4)
        with torch.no_grad():
            self.rnn.weight_hh_l0.copy_(gain * torch.eye(16))

    def forward(self, x: Tensor) -> Tensor:
        state = self.rnn(x)[0][:, -1]
        return self.head(state / (1 + state.norm(dim=1, keepdim=True)) if self.bounded else state)


class Cell(nn.Module):
    """A recurrence written by hand."""

    def __init__(self, gain: float = 0.9, bounded: bool = False) -> None:
        super().__init__()
        self.bounded = bounded
        self.enter, self.recur, self.head = nn.Linear(3, 12), nn.Linear(12, 12), nn.Linear(12, 4)
        with torch.no_grad():
            self.recur.weight.copy_(gain * torch.eye(12))

    def forward(self, x: Tensor) -> Tensor:
        state = x.new_zeros(len(x), 12)
        for t in range(x.shape[1]):
            state = (self.enter(x[:, t]) + self.recur(state)).relu()
        return self.head(state / (1 + state.norm(dim=1, keepdim=True)) if self.bounded else state)


# Data.


def classified(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Cross-entropy."""
    return F.cross_entropy(model(batch[0]), batch[1])


def squared(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Squared error of the first outputs."""
    return (model(batch[0])[:, :1] - batch[1]).square().mean()


def draw(seed: int = 0) -> torch.Generator:
    """Random numbers of a case."""
    return torch.Generator().manual_seed(seed)


def table(seed: int = 0, count: int = 40, size: int = 16) -> list[Any]:
    """Inputs of eight features, four classes that depend on them."""
    g = draw(seed)
    x = torch.randn(count, size, 8, generator=g)
    return [(a, (a[:, 0] > 0).long() + 2 * (a[:, 1] > 0).long()) for a in x]


def targets(seed: int = 0, scale: float = 1.0, count: int = 40) -> list[Any]:
    """A regression."""
    g = draw(seed)
    x = torch.randn(count, 16, 8, generator=g)
    return [(a, scale * (a[:, :1] - a[:, 1:2].tanh())) for a in x]


def images(seed: int = 0, count: int = 40) -> list[Any]:
    """Small pictures whose brightest quarter is the class."""
    g = draw(seed)
    found = []
    for _ in range(count):
        x, y = 0.3 * torch.rand(16, 1, 6, 6, generator=g), torch.randint(4, (16,), generator=g)
        for i, c in enumerate(y.tolist()):
            x[i, 0, 3 * (c // 2) : 3 * (c // 2) + 3, 3 * (c % 2) : 3 * (c % 2) + 3] += 0.5
        found.append((x, y))
    return found


def tokens(seed: int = 0, count: int = 40) -> list[Any]:
    """Sentences of eight tokens out of 29; number 29 is rare."""
    g = draw(seed)
    x = torch.randint(29, (count, 16, 8), generator=g)
    return [(a, (a[:, 0] % 4)) for a in x]


def series(seed: int = 0, length: int = 12, count: int = 40) -> list[Any]:
    """Sequences of three numbers."""
    g = draw(seed)
    x = torch.randn(count, 16, length, 3, generator=g)
    return [(a, (a[:, -1, 0] > 0).long() + 2 * (a[:, -1, 1] > 0).long()) for a in x]


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.03, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, lr=3e-3),
    "adamw": lambda p: torch.optim.AdamW(p, lr=3e-3),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=1e-3),
    "ours": lambda p: OurAdamW(p, lr=3e-3),
    "acclip": lambda p: ACClip(p, lr=3e-3),
}
NETS: dict[str, tuple[Callable[[], nn.Module], Callable[[int], list[Any]]]] = {
    "mlp": (Mlp, table),
    "dropout": (lambda: Mlp(dropout=0.2), table),
    "conv": (Net, images),
    "attention": (Attention, tokens),
    "bag": (Bag, tokens),
    "rnn": (lambda: Recurrent(0.5, "tanh"), series),
}


def plain(net: str, optimizer: str, seed: int = 0, **more: Any) -> Run:
    """A healthy run."""
    torch.manual_seed(seed)
    made, data = NETS[net]
    model = made()
    return Run(model, classified, data(seed), OPTIMIZERS[optimizer](model.parameters()), **more)


def rates(factor: float) -> Callable[[Run], None]:
    """The learning rate times a factor."""

    def change(run: Run) -> None:
        for group in run.optimizer.param_groups:
            group["lr"] *= factor

    return change


# Plants.


def scaled_gradient(net: str, optimizer: str, step: int, factor: float, **more: Any) -> Run:
    """One gradient is multiplied, as where a loss scale is not taken out."""
    run = plain(net, optimizer, **more)
    run.factor[step] = factor
    return run


def lost_moments(net: str, optimizer: str, step: int, **more: Any) -> Run:
    """The second moments of Adam are lost while the first stay."""

    def change(run: Run) -> None:
        for state in run.optimizer.state.values():
            for key in ("exp_avg_sq", "v", "square_avg"):
                if key in state:
                    state[key].zero_()

    def setting(run: Run) -> None:
        change(run)
        for group in run.optimizer.param_groups:
            if "betas" in group:
                group["betas"] = (0.9, 1 - 1e-12)

    run = plain(net, optimizer, **more)
    run.change[step] = setting
    return run


def decayed(net: str, optimizer: str, step: int, **more: Any) -> Run:
    """A weight decay of the wrong sign and size for one step."""

    def change(run: Run) -> None:
        for group in run.optimizer.param_groups:
            group["weight_decay"] = -3e4

    def back(run: Run) -> None:
        for group in run.optimizer.param_groups:
            group["weight_decay"] = 0.0

    run = plain(net, optimizer, **more)
    run.change[step], run.change[step + 1] = change, back
    return run


def bad_batch(
    net: str, optimizer: str, step: int, make: Callable[[Any], Any], seed: int = 0, **more: Any
) -> Run:
    """One batch is replaced."""
    run = plain(net, optimizer, seed, **more)
    i = step % len(run.batches)
    run.batches = list(run.batches)
    old, new = run.batches[i], make(run.batches[i])

    def put(run: Run) -> None:
        run.batches[i] = new

    def away(run: Run) -> None:
        run.batches[i] = old

    run.change[step], run.change[step + 1] = put, away
    return run


def times(factor: float) -> Callable[[Any], Any]:
    """Inputs in another unit."""
    return lambda batch: (factor * batch[0], batch[1])


def wrong_labels(batch: Any) -> Any:
    """Every label is another one."""
    return batch[0], (batch[1] + 1) % 4


def one_sample(row: int, value: float) -> Callable[[Any], Any]:
    """One sample with a number out of range."""

    def make(batch: Any) -> Any:
        x = batch[0].clone()
        x[row] = value * (1 + x[row].abs()) if math.isfinite(value) else value
        return x, batch[1]

    return make


def one_target(row: int, value: float) -> Callable[[Any], Any]:
    """One target out of range."""

    def make(batch: Any) -> Any:
        y = batch[1].clone()
        y[row] = value
        return batch[0], y

    return make


def regression(optimizer: str, make: Callable[[Any], Any], step: int, **more: Any) -> Run:
    """A regression with one batch replaced."""
    torch.manual_seed(0)
    model = Mlp()
    data = targets()
    made = OPTIMIZERS[optimizer](model.parameters())
    run = Run(model, squared, data, made, **more)
    old = data[step % 40]

    def put(run: Run) -> None:
        run.batches[step % 40] = make(old)

    def away(run: Run) -> None:
        run.batches[step % 40] = old

    run.change[step], run.change[step + 1] = put, away
    return run


class Learned(nn.Module):
    """A scale that is learned and whose logarithm, root or inverse is taken."""

    def __init__(self, kind: str, start: float = 0.15) -> None:
        super().__init__()
        self.kind, self.scale = kind, nn.Parameter(torch.tensor(start))

    def forward(self, x: Tensor) -> Tensor:
        if self.kind == "log":
            return x + 0 * torch.log(self.scale)
        if self.kind == "sqrt":
            return x * torch.sqrt(self.scale)
        if self.kind == "atanh":
            return x + 0 * torch.atanh(0.95 - self.scale)
        return x / (self.scale - self.scale.detach().clamp_min(0.0))


class Scaled(nn.Module):
    """A network with a learned scale that an odd loss drives out of its domain."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.fc1, self.squash, self.head = nn.Linear(8, 16), Learned(kind), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.squash(self.fc1(x).tanh()))


def drifting(kind: str, optimizer: str, rate: float, **more: Any) -> Run:
    """The loss lowers the scale a little at every step until the operation is undefined."""
    torch.manual_seed(0)
    model = Scaled(kind)

    def loss(model: Any, batch: Any) -> Tensor:
        return classified(model, batch) + rate * model.squash.scale

    return Run(model, loss, table(), OPTIMIZERS[optimizer](model.parameters()), **more)


class Distance(nn.Module):
    """Distances between neighbours, whose derivative is undefined at zero."""

    def forward(self, x: Tensor) -> Tensor:
        return (x[1:] - x[:-1]).square().sum(1).sqrt()


class Embedded(nn.Module):
    """A network with a layer of distances."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.distance, self.head = nn.Linear(8, 16), Distance(), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = self.fc1(x).tanh()
        self.spread = self.distance(h).mean()
        return self.head(h)


def repeated_sample(optimizer: str, step: int, **more: Any) -> Run:
    """Two equal samples stand side by side: their distance has no derivative."""
    torch.manual_seed(1)
    model = Embedded()

    def loss(model: Any, batch: Any) -> Tensor:
        return classified(model, batch) + 0.01 * model.spread

    data = table()
    x, y = data[step % 40]
    x, y = x.clone(), y.clone()
    x[5], y[5] = x[4], y[4]
    run = Run(model, loss, data, OPTIMIZERS[optimizer](model.parameters()), **more)
    old = data[step % 40]

    def put(run: Run) -> None:
        run.batches[step % 40] = (x, y)

    def away(run: Run) -> None:
        run.batches[step % 40] = old

    run.change[step], run.change[step + 1] = put, away
    return run


class Standard(nn.Module):
    """Features over their spread in the batch, without a floor."""

    def forward(self, x: Tensor) -> Tensor:
        return (x - x.mean(0)) / x.std(0)


class Standardised(nn.Module):
    """A rectifier before the layer that divides by the spread."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.standard, self.head = nn.Linear(8, 12), Standard(), nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.standard(self.fc1(x).relu()))


def dying_unit(optimizer: str, **more: Any) -> Run:
    """A bias falls until its unit is zero on a whole batch."""
    torch.manual_seed(0)
    model = Standardised()

    def loss(model: Any, batch: Any) -> Tensor:
        return classified(model, batch) + 0.8 * model.fc1.bias[3]

    return Run(model, loss, table(), OPTIMIZERS[optimizer](model.parameters()), **more)


class Entropy(nn.Module):
    """p log p without a floor."""

    def forward(self, scores: Tensor) -> Tensor:
        p = scores.softmax(1)
        return (p * p.log()).sum(1).mean()


class Confident(nn.Module):
    """Scores that a factor makes extreme."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.head, self.entropy = nn.Linear(8, 16), nn.Linear(16, 4), Entropy()
        self.sharp = nn.Parameter(torch.tensor(20.0))

    def forward(self, x: Tensor) -> Tensor:
        return self.sharp * self.head(self.fc1(x).tanh())


def sure(optimizer: str, **more: Any) -> Run:
    """Probabilities underflow to zero as the scores grow."""
    torch.manual_seed(0)
    model = Confident()

    def loss(model: Any, batch: Any) -> Tensor:
        scores = model(batch[0])
        return F.cross_entropy(scores, batch[1]) + 0.01 * model.entropy(scores) - 15 * model.sharp

    return Run(model, loss, table(), OPTIMIZERS[optimizer](model.parameters()), **more)


class Half(nn.Module):
    """A sum of squares in float16."""

    def forward(self, x: Tensor) -> Tensor:
        return x.half().square().sum(1, keepdim=True).float()


class Energy(nn.Module):
    """A network whose energy is computed in float16."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.energy, self.head = nn.Linear(8, 32), Half(), nn.Linear(33, 4)
        self.gain = nn.Parameter(torch.tensor(30.0))

    def forward(self, x: Tensor) -> Tensor:
        h = self.fc1(x).tanh()
        wide = self.energy(self.gain * h) / 1e4
        return self.head(torch.cat([h, wide], 1))


def overflowing(optimizer: str, pull: float, **more: Any) -> Run:
    """The gain grows until the sum of squares leaves the range of float16."""
    torch.manual_seed(0)
    model = Energy()

    def loss(model: Any, batch: Any) -> Tensor:
        return classified(model, batch) - pull * model.gain

    groups = [
        {"params": [p for n, p in model.named_parameters() if n != "gain"]},
        {"params": [model.gain], "lr": 0.3 if optimizer == "adam" else 0.1},
    ]
    return Run(model, loss, table(), OPTIMIZERS[optimizer](groups), **more)


class HalfLinear(nn.Linear):
    """A linear layer in float16."""

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x.half(), self.weight.half(), self.bias.half()).float()


class Mixed(nn.Module):
    """The middle layer works in float16."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.mid, self.head = nn.Linear(8, 24), HalfLinear(24, 24), nn.Linear(24, 1)
        self.gain = nn.Parameter(torch.tensor(1.0))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.mid(self.gain * self.fc1(x).relu()) / 1e3)


def wide_layer(optimizer: str, pull: float, **more: Any) -> Run:
    """Activations grow steadily past 65504 in the layer ``mid``."""
    torch.manual_seed(0)
    model = Mixed()

    def loss(model: Any, batch: Any) -> Tensor:
        return squared(model, batch) / 1e4 - pull * model.gain

    groups = [
        {"params": [p for n, p in model.named_parameters() if n != "gain"]},
        {"params": [model.gain], "lr": 0.1},
    ]
    return Run(model, loss, targets(), OPTIMIZERS[optimizer](groups), **more)


def long_sequence(make: Callable[[], nn.Module], optimizer: str, step: int, length: int) -> Run:
    """A long sequence arrives, and the state grows at every time step."""
    torch.manual_seed(0)
    model = make()
    data = series()
    old, new = data[step % 40], series(7, length, 1)[0]
    run = Run(model, classified, data, OPTIMIZERS[optimizer](model.parameters()))

    def put(run: Run) -> None:
        run.batches[step % 40] = new

    def away(run: Run) -> None:
        run.batches[step % 40] = old

    run.change[step], run.change[step + 1] = put, away
    return run


def growing_recurrence(make: Callable[[], nn.Module], optimizer: str, length: int) -> Run:
    """The recurrent weight grows a little at every step until the state overflows."""
    torch.manual_seed(0)
    model = make()
    weight = model.rnn.weight_hh_l0 if isinstance(model, Recurrent) else model.recur.weight

    def loss(model: Any, batch: Any) -> Tensor:
        return classified(model, batch) - 20 * weight.diagonal().mean()

    data = series(0, length)
    return Run(model, loss, data, OPTIMIZERS[optimizer](model.parameters()), steps=120)


def large_rate(net: str, lr: float, kind: str = "SGD", **more: Any) -> Run:
    """A learning rate above the stability threshold from the start."""
    run = plain(net, "sgd", **more)
    run.optimizer = getattr(torch.optim, kind)(run.model.parameters(), lr=lr)
    return run


def linear(lr: float, optimizer: str = "SGD", ramp: float = 1.0, steps: int = 120) -> Run:
    """Least squares, at a rate that is too large or grows until it is."""
    torch.manual_seed(0)
    model = nn.Sequential()
    model.add_module("only", nn.Linear(8, 1))
    made = getattr(torch.optim, optimizer)(model.parameters(), lr=lr)
    run = Run(model, squared, targets(), made, steps=steps)
    run.scheduler = torch.optim.lr_scheduler.ExponentialLR(made, ramp)
    return run


def quiet(net: str, optimizer: str, seed: int = 3, **more: Any) -> Run:
    """Nothing is planted."""
    return plain(net, optimizer, seed, steps=more.pop("steps", 150), **more)


def restarts() -> Run:
    """A cosine schedule with restarts."""
    run = quiet("mlp", "momentum")
    run.scheduler = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(run.optimizer, 25)
    return run


def warm_up() -> Run:
    """A rate that rises for 50 steps."""
    run = quiet("attention", "adamw")
    run.scheduler = torch.optim.lr_scheduler.LinearLR(run.optimizer, 0.01, total_iters=50)
    return run


def noisy_targets() -> Run:
    """Regression with targets that have heavy tails of index 3."""
    run = regression("adam", lambda b: b, 0)
    noise = torch.distributions.StudentT(3.0)
    torch.manual_seed(4)
    run.change, run.steps = {}, 150
    run.batches = [(x, y + 0.5 * noise.sample(y.shape)) for x, y in run.batches]
    return run


def edge() -> Run:
    """Gradient descent on one batch at the edge of stability: the loss goes up and down."""
    run = plain("mlp", "sgd", steps=150)
    run.batches = run.batches[:1]
    run.optimizer = torch.optim.SGD(run.model.parameters(), lr=0.8)
    return run


def near_zero() -> Run:
    """A loss near its floor, where ratios are large and mean nothing."""
    run = plain("mlp", "adam", steps=300)
    run.batches = run.batches[:4]
    return run


def small_batches() -> Run:
    """Batches of two samples."""
    run = quiet("mlp", "adamw")
    run.batches = [(x[:2], y[:2]) for x, y in run.batches]
    return run


def planted(mechanism: str, step: int | None = None, *layers: str, **more: Any) -> Truth:
    """Short for a truth."""
    return Truth(mechanism, step, layers, **more)


_U = "update"
CASES = (
    # An update throws the weights away.
    Case("update-mlp-sgd", lambda: scaled_gradient("mlp", "sgd", 52, 3e4), planted(_U, 52)),
    Case(
        "update-conv-momentum",
        lambda: scaled_gradient("conv", "momentum", 47, 1e5),
        planted(_U, 47),
    ),
    Case(
        "update-bag-sgd-clip",
        lambda: scaled_gradient("bag", "sgd", 33, 1e5, clip=1.0),
        planted(_U, 33),
    ),
    Case(
        "update-rnn-sgd-observe",
        lambda: scaled_gradient("rnn", "sgd", 61, 1e4, style="observe"),
        planted(_U, 61),
    ),
    Case(
        "update-attention-momentum",
        lambda: scaled_gradient("attention", "momentum", 39, 1e5),
        planted(_U, 39),
    ),
    Case("update-dropout-sgd", lambda: scaled_gradient("dropout", "sgd", 66, 1e5), planted(_U, 66)),
    Case("lost-moments-mlp-adam", lambda: lost_moments("mlp", "adam", 45), planted(_U, 45)),
    Case("lost-moments-bag-adamw", lambda: lost_moments("bag", "adamw", 55), planted(_U, 55)),
    Case("lost-moments-dropout-adam", lambda: lost_moments("dropout", "adam", 36), planted(_U, 36)),
    Case("decay-mlp-adamw", lambda: decayed("mlp", "adamw", 50), planted(_U, 50)),
    Case("decay-rnn-sgd", lambda: decayed("rnn", "sgd", 41), planted(_U, 41)),
    # The learning rate jumps.
    Case(
        "rate-mlp-sgd",
        lambda: plain("mlp", "sgd", change={48: rates(1e4)}),
        planted("learning_rate", 48),
    ),
    Case(
        "rate-mlp-adam",
        lambda: plain("mlp", "adam", change={57: rates(1e4)}),
        planted("learning_rate", 57),
    ),
    Case(
        "rate-conv-adamw",
        lambda: plain("conv", "adamw", change={44: rates(3e3)}),
        planted("learning_rate", 44),
    ),
    Case(
        "rate-attention-ours",
        lambda: plain("attention", "ours", change={51: rates(1e4)}),
        planted("learning_rate", 51),
    ),
    Case(
        "rate-bag-momentum",
        lambda: plain("bag", "momentum", change={62: rates(1e5)}),
        planted("learning_rate", 62),
    ),
    Case(
        "rate-rnn-rmsprop-index",
        lambda: plain("rnn", "rmsprop", change={38: rates(1e4)}, style="index"),
        planted("learning_rate", 38),
    ),
    Case(
        "rate-blip-mlp-sgd",
        lambda: plain("mlp", "sgd", change={40: rates(150), 41: rates(1 / 150)}, steps=140),
        planted("learning_rate", 40, recovers=True),
    ),
    Case(
        "rate-blip-bag-adam",
        lambda: plain("bag", "adam", change={40: rates(1e3), 41: rates(1e-3)}, steps=200),
        planted("learning_rate", 40),
    ),
    # Divergence: the rate is too large for the curvature.
    Case("divergence-linear-sgd", lambda: linear(1.3), planted("divergence")),
    Case("divergence-linear-ramp", lambda: linear(0.05, ramp=1.08), planted("divergence")),
    Case("divergence-linear-momentum-ramp", lambda: linear(0.02, ramp=1.1), planted("divergence")),
    Case(
        "healthy-regression-sgd",
        lambda: regression("sgd", lambda b: b, 0, scheduler=None),
        planted(""),
    ),
    # One bad batch.
    Case("batch-mlp-sgd", lambda: bad_batch("mlp", "sgd", 46, times(1e3)), planted("batch", 46)),
    Case(
        "batch-mlp-adam",
        lambda: bad_batch("mlp", "adam", 59, times(1e4)),
        planted("batch", 59, recovers=True),
    ),
    Case(
        "healthy-batch-norm-absorbs",
        lambda: bad_batch("conv", "momentum", 43, times(255.0)),
        planted(""),
    ),
    Case(
        "batch-nan-mlp-adamw",
        lambda: bad_batch("mlp", "adamw", 53, times(math.nan)),
        planted("batch", 53),
    ),
    Case(
        "batch-inf-conv-sgd",
        lambda: bad_batch("conv", "sgd", 37, times(math.inf)),
        planted("batch", 37),
    ),
    Case(
        "batch-labels-conv-adam",
        lambda: bad_batch("conv", "adam", 110, wrong_labels, steps=160),
        planted("batch", 110, recovers=True),
    ),
    Case(
        "batch-labels-rnn-adam",
        lambda: bad_batch("rnn", "adam", 150, wrong_labels, steps=200),
        planted("batch", 150, recovers=True),
    ),
    Case(
        "batch-rnn-ours-clip",
        lambda: bad_batch("rnn", "ours", 130, wrong_labels, clip=1.0, steps=180),
        planted("batch", 130, recovers=True),
    ),
    Case(
        "batch-targets-adam",
        lambda: regression("adam", lambda b: (b[0], 1e4 * b[1]), 54, steps=110),
        planted("batch", 54, recovers=True),
    ),
    Case(
        "batch-targets-sgd-observe",
        lambda: regression("sgd", lambda b: (b[0], 1e5 + b[1]), 34, style="observe"),
        planted("batch", 34),
    ),
    Case(
        "batch-accumulated-sgd",
        lambda: bad_batch("mlp", "sgd", 50, times(1e3), accumulate=4, steps=100),
        planted("batch", None),
    ),
    # One bad sample.
    Case(
        "sample-mlp-sgd",
        lambda: bad_batch("mlp", "sgd", 56, one_sample(11, 1e4)),
        planted("sample", 56, samples=(11,)),
    ),
    Case(
        "sample-mlp-adamw",
        lambda: bad_batch("mlp", "adamw", 42, one_sample(3, 1e5)),
        planted("sample", 42, samples=(3,)),
    ),
    Case(
        "sample-nan-conv-adam",
        lambda: bad_batch("conv", "adam", 58, one_sample(7, math.nan)),
        planted("sample", 58, samples=(7,)),
    ),
    Case(
        "sample-nan-mlp-momentum",
        lambda: bad_batch("mlp", "momentum", 35, one_sample(0, math.nan)),
        planted("sample", 35, samples=(0,)),
    ),
    Case(
        "sample-target-sgd",
        lambda: regression("sgd", one_target(9, 3e5), 48),
        planted("sample", 48, samples=(9,)),
    ),
    Case(
        "sample-target-ours",
        lambda: regression("ours", one_target(14, 1e4), 60, steps=120),
        planted("sample", 60, samples=(14,), recovers=True),
    ),
    Case(
        "sample-target-inf-adamw",
        lambda: regression("adamw", one_target(2, math.inf), 45),
        planted("sample", 45, samples=(2,)),
    ),
    Case(
        "sample-dropout-adam-observe",
        lambda: bad_batch("dropout", "adam", 51, one_sample(6, 1e5), style="observe"),
        planted("sample", 51, samples=(6,)),
    ),
    # An operation without a value.
    Case("log-mlp-sgd", lambda: drifting("log", "sgd", 0.03), planted("operation", None, "squash")),
    Case(
        "log-mlp-adam", lambda: drifting("log", "adam", 1.0), planted("operation", None, "squash")
    ),
    Case(
        "sqrt-mlp-adamw",
        lambda: drifting("sqrt", "adamw", 3.0),
        planted("operation", None, "squash"),
    ),
    Case(
        "atanh-mlp-sgd",
        lambda: drifting("atanh", "sgd", 0.03),
        planted("operation", None, "squash"),
    ),
    Case(
        "distance-adam", lambda: repeated_sample("adam", 44), planted("operation", 44, "distance")
    ),
    Case(
        "distance-sgd-observe",
        lambda: repeated_sample("sgd", 57, style="observe"),
        planted("operation", 57, "distance"),
    ),
    Case("spread-sgd", lambda: dying_unit("sgd"), planted("operation", None, "standard")),
    Case(
        "spread-adam", lambda: dying_unit("adam", steps=600), planted("operation", None, "standard")
    ),
    Case("entropy-sgd", lambda: sure("sgd"), planted("operation", None, "entropy")),
    # float16.
    Case("half-energy-sgd", lambda: overflowing("sgd", 8.0), planted("overflow", None, "energy")),
    Case(
        "half-energy-adam",
        lambda: overflowing("adam", 8.0, steps=200),
        planted("overflow", None, "energy"),
    ),
    Case("half-layer-sgd", lambda: wide_layer("sgd", 2e4), planted("overflow", None, "mid")),
    Case(
        "half-layer-momentum", lambda: wide_layer("momentum", 2e3), planted("overflow", None, "mid")
    ),
    # A recurrent state.
    Case(
        "recurrent-long-rmsprop",
        lambda: long_sequence(lambda: Recurrent(1.2), "rmsprop", 46, 700),
        planted("recurrence", 46, "rnn"),
    ),
    Case(
        "recurrent-long-adam",
        lambda: long_sequence(lambda: Recurrent(1.15), "adam", 55, 900),
        planted("recurrence", 55, "rnn"),
    ),
    Case(
        "recurrent-cell-adamw",
        lambda: long_sequence(lambda: Cell(1.25), "adamw", 40, 500),
        planted("recurrence", 40, "recur", "enter"),
    ),
    Case(
        "recurrent-cell-spike-adam",
        lambda: long_sequence(lambda: Cell(1.2), "adam", 50, 60),
        planted("recurrence", 50, "recur", "enter"),
    ),
    Case(
        "recurrent-grows-adam",
        lambda: growing_recurrence(lambda: Recurrent(1.3, bounded=True), "adam", 250),
        planted("recurrence", None, "rnn"),
    ),
    Case(
        "recurrent-grows-cell",
        lambda: growing_recurrence(lambda: Cell(1.35, bounded=True), "adamw", 200),
        planted("recurrence", None, "recur", "enter"),
    ),
    # Healthy.
    Case("healthy-mlp-adam", lambda: quiet("mlp", "adam"), planted("")),
    Case("healthy-conv-momentum", lambda: quiet("conv", "momentum"), planted("")),
    Case("healthy-attention-adamw", lambda: quiet("attention", "adamw"), planted("")),
    Case("healthy-bag-rmsprop", lambda: quiet("bag", "rmsprop"), planted("")),
    Case("healthy-rnn-ours", lambda: quiet("rnn", "ours"), planted("")),
    Case("healthy-restarts", restarts, planted("")),
    Case("healthy-warm-up", warm_up, planted("")),
    Case("healthy-noisy-targets", noisy_targets, planted("")),
    Case("healthy-edge-of-stability", edge, planted("")),
    Case("healthy-near-zero", near_zero, planted("")),
    Case("healthy-small-batches", small_batches, planted("")),
    Case("healthy-dropout", lambda: quiet("dropout", "adamw"), planted("")),
)
