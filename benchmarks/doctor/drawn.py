"""The drawn hospital: cases whose data, network, optimizer, form and severity come from a seed.

A draw is a list of drafts. A *sick* draft has one planted cause and a healthy twin, which is the
same draft without the plant. An *odd* draft is healthy and has an ordinary twin. Drafts whose truth
does not show in training (the twin is not clearly better, the healthy run does not train) are
dropped by ``verified`` before the doctor sees them.
"""

from __future__ import annotations

import copy
import hashlib
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

HERE = Path(__file__).parent
#: Files that make a draw; their hash names the generator in the registration.
SOURCES = ("drawn.py", "drawn_sick.py", "drawn_odd.py")
#: Draws by name: a seed, sick drafts per cause, odd drafts per kind.
DRAWS = {"drawn-development": (20261118, 4, 3), "drawn-judged": (977310421, 4, 3)}
#: Steps of a verifying run, and the share of the twin's gain that a sick run must miss.
STEPS, CLEARLY = 240, 0.1

Pair = tuple[Tensor, Tensor]
Parts = dict[str, Any]
Loss = Callable[[nn.Module, Any], Tensor]


def generator_hash() -> str:
    """Hash of the files that make a draw."""
    text = b"".join((HERE / name).read_bytes() for name in SOURCES)
    return hashlib.blake2b(text, digest_size=8).hexdigest()


# Networks, in the ways people write them.


class Net(nn.Module):
    """Linear layers called in ``forward``, an activation as a function between them."""

    def __init__(
        self,
        widths: list[int],
        act: Callable[[Tensor], Tensor] = F.relu,
        norm: str = "",
        drop: float = 0.0,
    ) -> None:
        super().__init__()
        self.hidden = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(widths[:-1]))
        self.out = nn.Linear(widths[-2], widths[-1])
        kinds: dict[str, Any] = {"batch": nn.BatchNorm1d, "layer": nn.LayerNorm}
        self.norms = nn.ModuleList(kinds[norm](w) if norm else nn.Identity() for w in widths[1:-1])
        self.act, self.drop = act, nn.Dropout(drop)

    def forward(self, x: Tensor) -> Tensor:
        for layer, norm in zip(self.hidden, self.norms):
            x = self.drop(self.act(norm(layer(x))))
        return self.out(x)


def stacked(widths: list[int], act: type[nn.Module] = nn.ReLU, norm: bool = False) -> nn.Sequential:
    """The same as ``nn.Sequential``."""
    parts: list[nn.Module] = []
    for a, b in pairwise(widths[:-1]):
        parts += [nn.Linear(a, b), *([nn.BatchNorm1d(b)] if norm else []), act()]
    return nn.Sequential(*parts, nn.Linear(widths[-2], widths[-1]))


class Images(nn.Module):
    """Convolutions, pooling, one linear layer."""

    def __init__(self, channels: int, side: int, classes: int, width: int, norm: bool) -> None:
        super().__init__()
        self.one = nn.Conv2d(channels, width, 3, padding=1)
        self.two = nn.Conv2d(width, 2 * width, 3, padding=1)
        self.norm1 = nn.BatchNorm2d(width) if norm else nn.Identity()
        self.norm2 = nn.BatchNorm2d(2 * width) if norm else nn.Identity()
        self.fc = nn.Linear(2 * width * (side // 2) ** 2, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm1(self.one(x)))
        x = F.max_pool2d(F.relu(self.norm2(self.two(x))), 2)
        return self.fc(x.flatten(1))


class Sequence(nn.Module):
    """A recurrent net; the last state or the mean of all states is read out."""

    def __init__(self, kind: str, inputs: int, width: int, outputs: int, mean: bool) -> None:
        super().__init__()
        self.rnn = getattr(nn, kind)(inputs, width, batch_first=True)
        self.head, self.mean = nn.Linear(width, outputs), mean

    def forward(self, x: Tensor) -> Tensor:
        states = self.rnn(x)[0]
        return self.head(states.mean(1) if self.mean else states[:, -1])


class Encoder(nn.Module):
    """torch's own transformer layers. With ``pool`` one answer per sequence, else per symbol."""

    def __init__(
        self, symbols: int, width: int, depth: int, outputs: int, pool: bool, first: bool = True
    ) -> None:
        super().__init__()
        self.tok = nn.Embedding(symbols, width)
        self.pos = nn.Parameter(torch.randn(40, width) * 0.02)
        layer = nn.TransformerEncoderLayer(
            width, 2, 2 * width, dropout=0.0, batch_first=True, norm_first=first
        )
        self.body = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.head, self.pool = nn.Linear(width, outputs), pool

    def forward(self, x: Tensor) -> Tensor:
        h = self.tok(x) + self.pos[: x.shape[1]]
        if self.pool:
            return self.head(self.body(h).mean(1))
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        return self.head(self.body(h, mask=mask, is_causal=True))


class Words(nn.Module):
    """Mean of word vectors and a small head."""

    def __init__(self, vocabulary: int, width: int, classes: int) -> None:
        super().__init__()
        self.emb = nn.Embedding(vocabulary, width)
        self.fc1, self.fc2 = nn.Linear(width, 32), nn.Linear(32, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(torch.relu(self.fc1(self.emb(x).mean(1))))


class Ratings(nn.Module):
    """User and item vectors; their product is the rating."""

    def __init__(self, users: int, items: int, width: int) -> None:
        super().__init__()
        self.user, self.item = nn.Embedding(users, width), nn.Embedding(items, width)
        self.bias = nn.Parameter(torch.zeros(1))
        for table in (self.user, self.item):
            nn.init.normal_(table.weight, std=0.4)

    def forward(self, x: Tensor) -> Tensor:
        return (self.user(x[:, 0]) * self.item(x[:, 1])).sum(1, keepdim=True) + self.bias


# Drafts.


@dataclass
class Draft:
    """One training run before it is built; a plant or an oddity changes its fields."""

    name: str
    cause: str  # the planted cause, or "healthy"
    rng: random.Random
    family: str = ""
    x: Tensor = field(default_factory=lambda: torch.zeros(0))
    y: Tensor = field(default_factory=lambda: torch.zeros(0))
    xv: Tensor = field(default_factory=lambda: torch.zeros(0))
    yv: Tensor = field(default_factory=lambda: torch.zeros(0))
    classes: int = 0  # 0: regression
    make: Callable[[], nn.Module] = nn.Identity
    spec: dict[str, Any] = field(default_factory=dict)  # what ``make`` was drawn from
    criterion: Callable[[Tensor, Tensor], Tensor] = F.mse_loss
    loss: Loss | None = None  # in place of criterion(model(x), y)
    optimizer: str = "AdamW"
    lr: float = 3e-3
    settings: dict[str, Any] = field(default_factory=dict)
    size: int = 32
    form: str = "mapping"  # mapping, tuple, loader or dicts
    hold: bool = True  # validation batches are handed over
    after: list[Callable[[nn.Module], nn.Module | None]] = field(default_factory=list)
    batches: Callable[[list[Any]], list[Any]] = lambda b: b
    params: Callable[[nn.Module], Any] = lambda m: m.parameters()
    schedule: Callable[[torch.optim.Optimizer], Any] | None = None
    step: Callable[[nn.Module, Loss, torch.optim.Optimizer], Any] | None = None
    twin_only: Callable[[Draft], None] | None = None  # changes the twin, too
    whole: Callable[[], Parts] | None = None  # in place of everything above
    twin_whole: Callable[[], Parts] | None = None
    weak: bool = False  # the truth does not show in the loss: nothing to verify but the twin

    def build(self) -> Parts | tuple[Any, ...]:
        """What ``examine`` takes, built afresh."""
        if self.whole is not None:
            return self.whole()
        return handed(self.parts(), self.form)

    def parts(self) -> Parts:
        if self.whole is not None:
            return self.whole()
        model = self.make()
        for change in self.after:
            model = change(model) or model
        optimizer = made(self.optimizer, self.params(model), self.lr, self.settings)
        criterion = self.criterion

        def plain(model: nn.Module, batch: Any) -> Tensor:
            x, y = (batch["x"], batch["label"]) if isinstance(batch, dict) else batch
            return criterion(model(x), y)

        loss = self.loss or plain
        n = len(self.x) // self.size * self.size or len(self.x)
        train: Any = list(zip(self.x[:n].split(self.size), self.y[:n].split(self.size)))
        train = self.batches(train)
        valid: Any = list(zip(self.xv.split(160), self.yv.split(160)))
        if self.form == "loader" and self.batches is Draft.batches:
            data = torch.utils.data.TensorDataset(self.x[:n], self.y[:n])
            train = torch.utils.data.DataLoader(data, self.size, shuffle=True)
        if self.form == "dicts":
            train = [{"x": x, "label": y} for x, y in train]
            valid = [{"x": x, "label": y} for x, y in valid]
        found: Parts = {"model": model, "loss": loss, "train": train, "optimizer": optimizer}
        if self.hold:
            found["valid"] = valid
        if self.schedule is not None:
            found["scheduler"] = self.schedule(optimizer)
        if self.step is not None:
            found["step"] = self.step(model, loss, optimizer)
        return found


def handed(parts: Parts, form: str) -> Parts | tuple[Any, ...]:
    if form != "tuple":
        return parts
    rest = [parts[k] for k in ("valid", "optimizer", "scheduler", "step") if k in parts]
    return ((parts["model"], parts["loss"]), parts["train"], *rest)


def made(kind: str, params: Any, lr: float, settings: dict[str, Any]) -> torch.optim.Optimizer:
    """An optimizer of torch or of mindgap by its name."""
    if kind.startswith("mindgap."):
        import mindgap.optim

        return getattr(mindgap.optim, kind.removeprefix("mindgap."))(params, lr=lr, **settings)
    return getattr(torch.optim, kind)(params, lr=lr, **settings)


def ordinary_step(
    model: nn.Module,
    loss: Loss,
    optimizer: torch.optim.Optimizer,
    *,
    zero: bool = True,
    every: int = 1,
    divide: bool = True,
    clip: float | None = None,
    before: Callable[[], Any] | None = None,
) -> Callable[[Any], float]:
    """A loop's body; what it returns is the loss as a number."""
    count = 0

    def step(batch: Any) -> float:
        nonlocal count
        if before is not None:
            before()
        value = loss(model, batch)
        (value / every if divide else value).backward()
        count += 1
        if count % every == 0:
            if clip is not None:
                torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
            if zero:
                optimizer.zero_grad()
        return value.item()

    return step


# Families: data and network.


def _tensors(d: Draft) -> torch.Generator:
    return torch.Generator().manual_seed(d.rng.randrange(2**31))


def _split(d: Draft, x: Tensor, y: Tensor) -> None:
    cut = len(x) - 320
    d.x, d.y, d.xv, d.yv = x[:cut], y[:cut], x[cut:], y[cut:]


def _classified(out: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(out, y)


def _per_symbol(out: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(out.reshape(-1, out.shape[-1]), y.reshape(-1))


def clusters(d: Draft) -> None:
    """Classes of two clouds each; linear layers."""
    g, r = _tensors(d), d.rng
    d.classes, width = r.choice([3, 4, 6, 8, 10]), r.choice([8, 12, 20, 32])
    rows = r.choice([1500, 1900, 2300])
    centres = torch.randn(2 * d.classes, width, generator=g)
    which = torch.randint(2 * d.classes, (rows,), generator=g)
    noise = r.uniform(0.45, 0.8) * (width / 8) ** 0.25
    x = centres[which] + noise * torch.randn(rows, width, generator=g)
    _split(d, x, which % d.classes)
    d.criterion = _classified
    d.spec = {"widths": [width, *[r.choice([32, 48, 64])] * r.choice([1, 2]), d.classes]}
    _linear(d)


def _linear(d: Draft) -> None:
    widths, style = d.spec["widths"], d.rng.choice(["net", "stacked"])
    d.spec["style"] = style
    d.make = lambda: Net(widths) if style == "net" else stacked(widths)


def teacher(d: Draft) -> None:
    """Regression on a drawn network; linear layers."""
    g, r = _tensors(d), d.rng
    width, rows = r.choice([6, 10, 16]), r.choice([1500, 1900, 2300])
    x = torch.randn(rows, width, generator=g)
    a = torch.randn(width, 6, generator=g) / width**0.5
    y = (torch.tanh(1.5 * x @ a) @ torch.randn(6, 1, generator=g)) / 1.5
    _split(d, x, y + r.uniform(0.05, 0.3) * torch.randn(rows, 1, generator=g))
    d.spec = {"widths": [width, *[r.choice([32, 48, 64])] * r.choice([1, 2]), 1]}
    _linear(d)


def pictures(d: Draft) -> None:
    """Drawn patterns, moved and noisy; convolutions."""
    g, r = _tensors(d), d.rng
    d.classes, channels, side = r.choice([4, 6, 8]), r.choice([1, 3]), 8
    rows = 1500
    base = F.interpolate(torch.randn(d.classes, channels, 4, 4, generator=g), side, mode="bilinear")
    y = torch.randint(d.classes, (rows,), generator=g)
    x = base[y] / base.std()
    moves = torch.randint(3, (rows,), generator=g).tolist()
    x = torch.stack([a.roll(m, 2) for a, m in zip(x, moves)])
    x = x + r.uniform(0.4, 0.9) * torch.randn(x.shape, generator=g)
    _split(d, x, y)
    d.criterion = _classified
    norm, width = r.random() < 0.3, r.choice([6, 8])
    d.spec = {"norm": norm, "channels": channels, "side": side, "width": width}
    d.make = lambda: Images(channels, side, d.classes, width, norm)


def signals(d: Draft) -> None:
    """Sequences; a class from their trend, or a number from a weighted sum; recurrent nets."""
    g, r = _tensors(d), d.rng
    rows, length, inputs = 1500, r.choice([10, 14, 18]), r.choice([2, 3])
    x = torch.randn(rows, length, inputs, generator=g)
    score = x[:, :, 0].mean(1) * length**0.5 + 0.5 * x[:, -1, 1]
    if r.random() < 0.6:
        d.classes, d.criterion = 3, _classified
        y = (score > -0.5).long() + (score > 0.5).long()
    else:
        y = (score + 0.1 * torch.randn(rows, generator=g)).unsqueeze(1)
    _split(d, x, y)
    kind, width = r.choice(["GRU", "LSTM", "RNN"]), r.choice([16, 24])
    d.spec = {"kind": kind, "inputs": inputs, "width": width, "length": length}
    outs, mean = d.classes or 1, r.random() < 0.3
    d.make = lambda: Sequence(kind, inputs, width, outs, mean)


def symbols(d: Draft) -> None:
    """A Markov chain whose next symbol is predicted; or classes of sequences; transformers."""
    g, r = _tensors(d), d.rng
    rows, length, count = 1300, r.choice([8, 12]), r.choice([10, 16, 24])
    width, depth = r.choice([16, 24, 32]), r.choice([1, 2])
    pool = r.random() < 0.4
    if pool:
        d.classes, d.criterion = 4, _classified
        y = torch.randint(4, (rows,), generator=g)
        own = torch.randint(count // 2, (rows, length), generator=g) * 2 % count
        own = (own + 3 * y.unsqueeze(1)) % count
        free = torch.randint(count, (rows, length), generator=g)
        x = torch.where(torch.rand(rows, length, generator=g) < 0.6, own, free)
        x[:, 0] = torch.where(torch.rand(rows, generator=g) < 0.8, y, x[:, 0])
        outs = 4
    else:
        table = torch.softmax(r.uniform(2, 3) * torch.randn(count, count, generator=g), 1)
        now, steps = torch.randint(count, (rows,), generator=g), []
        for _ in range(length + 1):
            steps.append(now)
            now = torch.multinomial(table[now], 1, generator=g).squeeze(1)
        chain = torch.stack(steps, 1)
        x, y, outs = chain[:, :-1], chain[:, 1:], count
        d.classes, d.criterion = count, _per_symbol
    _split(d, x, y)
    d.spec = {"symbols": count, "width": width, "depth": depth, "pool": pool, "outs": outs}
    d.make = lambda: Encoder(count, width, depth, outs, pool)


def documents(d: Draft) -> None:
    """Bags of words, or ratings of items by users; embeddings."""
    g, r = _tensors(d), d.rng
    rows = 1900
    if r.random() < 0.65:
        d.classes, d.criterion = r.choice([3, 4, 5]), _classified
        words, length = r.choice([100, 200]), r.choice([12, 20])
        y = torch.randint(d.classes, (rows,), generator=g)
        own = torch.randint(words // d.classes, (rows, length), generator=g) * d.classes
        own = own + y.unsqueeze(1)
        free = torch.randint(words, (rows, length), generator=g)
        x = torch.where(torch.rand(rows, length, generator=g) < r.uniform(0.3, 0.5), own, free)
        width = r.choice([16, 24])
        d.spec = {"words": words, "width": width, "ids": False}
        d.make = lambda: Words(words, width, d.classes)
    else:
        users, items = 30, 25
        x = torch.stack(
            [
                torch.randint(users, (rows,), generator=g),
                torch.randint(items, (rows,), generator=g),
            ],
            1,
        )
        a, b = torch.randn(users, 3, generator=g), torch.randn(items, 3, generator=g)
        y = (a[x[:, 0]] * b[x[:, 1]]).sum(1, keepdim=True) / 1.7
        y = y + 0.2 * torch.randn(rows, 1, generator=g)
        d.spec = {"ids": True}
        d.make = lambda: Ratings(users, items, 6)
    _split(d, x, y)


FAMILIES: dict[str, Callable[[Draft], None]] = {
    "clusters": clusters,
    "teacher": teacher,
    "pictures": pictures,
    "signals": signals,
    "symbols": symbols,
    "documents": documents,
}
#: Ordinary learning rates of plain SGD; with momentum 0.9 a fifth of it.
_SGD = {
    "clusters": 0.15,
    "teacher": 0.08,
    "pictures": 0.08,
    "signals": 0.2,
    "symbols": 0.4,
    "documents": 1.0,
}


def drafted(name: str, cause: str, seed: int, families: list[str], sgd: bool = False) -> Draft:
    """A healthy draft: family, optimizer and form are drawn."""
    d = Draft(name, cause, random.Random(f"{seed}:{name}"))
    r = d.rng
    d.family = r.choice(families)
    FAMILIES[d.family](d)
    kinds = ["SGD", "momentum", "Adam", "AdamW", "AdamW", "mindgap.AdamW", "mindgap.ACClip"]
    kind = r.choice(["SGD", "momentum", "momentum"] if sgd else kinds)
    rate = _SGD[d.family] * r.uniform(0.6, 1.4)
    if d.spec.get("ids"):
        rate *= 1.0
    if kind == "SGD":
        d.optimizer, d.lr = "SGD", rate
    elif kind == "momentum":
        d.optimizer, d.lr, d.settings = "SGD", rate / 5, {"momentum": 0.9}
    else:
        d.optimizer, d.lr = kind, r.choice([2e-3, 3e-3, 5e-3])
        if d.family == "documents":
            d.lr = r.choice([5e-3, 1e-2])
        if kind == "mindgap.AdamW":
            d.settings = {"clip": "auto"}
    d.size = r.choice([16, 32, 32, 48])
    d.form = r.choice(["mapping", "mapping", "tuple", "loader", "dicts"])
    d.hold = r.random() < 0.7
    return d


# Truth.


def trained(parts: Parts, steps: int = STEPS) -> tuple[nn.Module, bool]:
    """Train as the user would; the model, and whether every loss and weight stayed finite."""
    model, loss, optimizer = parts["model"], parts["loss"], parts["optimizer"]
    batches, scheduler, step = list(parts["train"]), parts.get("scheduler"), parts.get("step")
    if step is None:
        model.train()
    value = 0.0
    for k in range(steps):
        batch = batches[k % len(batches)]
        if step is not None:
            value = float(step(batch))
        else:
            optimizer.zero_grad()
            found = loss(model, batch)
            found.backward()
            optimizer.step()
            value = float(found.detach())
        if scheduler is not None:
            scheduler.step()
        if not math.isfinite(value) and k > 20:
            break
    weights = all(bool(p.isfinite().all()) for p in model.parameters())
    return model, math.isfinite(value) and weights


def judged_by(model: nn.Module, loss: Loss, batches: list[Any]) -> float:
    """Mean loss in evaluation mode; infinite where it is not finite."""
    model.eval()
    with torch.no_grad():
        values = [float(loss(model, b)) for b in batches]
    mean = sum(values) / len(values)
    return mean if math.isfinite(mean) else math.inf


def own_course(d: Draft) -> list[float]:
    """Held-out loss by the case's own measure at the start and after each quarter of the run."""
    parts = d.parts()
    model, loss, valid = parts["model"], parts["loss"], parts["valid"]
    found = [judged_by(model, loss, valid)]
    for _ in range(4):
        model.train()
        trained(parts, STEPS // 4)
        found.append(judged_by(model, loss, valid))
    return found


def constant_loss(d: Draft) -> float:
    """Loss of the best constant answer on the validation part of the healthy twin."""
    if not d.classes:
        return float(d.criterion(d.y.mean(0, keepdim=True).expand_as(d.yv), d.yv))
    counts = torch.bincount(d.y.flatten(), minlength=d.classes).double() + 0.5
    return float(
        F.cross_entropy(
            (counts / counts.sum()).log().float().expand(d.yv.numel(), -1), d.yv.flatten()
        )
    )


@dataclass(frozen=True)
class Truth:
    """What a draft's runs show without the doctor."""

    kept: bool
    sick: float  # held-out loss of the case, by the twin's measure
    twin: float
    constant: float
    why: str = ""


def verified(d: Draft, twin: Draft) -> Truth:
    """Train the draft and its twin, and judge both by the twin's loss on its validation part."""
    torch.manual_seed(1)
    first = twin.whole() if twin.whole is not None else twin.parts()
    torch.manual_seed(1)
    own: Parts | None
    try:
        own = d.parts()
    except Exception as error:
        return Truth(False, math.inf, math.inf, math.inf, f"cannot be built: {error}")
    model, fine = trained(first)
    valid = first.get("valid") or list(zip(twin.xv.split(160), twin.yv.split(160)))
    if isinstance(valid[0], tuple) and isinstance(
        first["train"][0] if isinstance(first["train"], list) else 0, dict
    ):
        valid = [{"x": x, "label": y} for x, y in valid]
    good = judged_by(model, first["loss"], valid) if fine else math.inf
    constant = d.spec["constant"] if "constant" in d.spec else constant_loss(twin)
    if not good < constant - 0.1 * abs(constant):
        return Truth(False, math.inf, good, constant, "the twin does not train")
    if d.weak:
        return Truth(True, math.nan, good, constant)
    if d.cause == "healthy" and own.get("valid"):
        torch.manual_seed(1)
        course = own_course(d)
        if not course[-1] < course[0] - 0.05 * abs(course[0]) or course[-1] > min(course) + 0.1 * (
            course[0] - min(course)
        ):
            return Truth(False, course[-1], good, constant, "its own held-out loss rises again")
    try:
        model, fine = trained(own)
        bad = judged_by(model, d.spec.get("judge") or first["loss"], valid)
    except Exception:
        fine, bad = False, math.inf  # the user's code raises: sick beyond doubt
    bad = bad if fine else math.inf
    missed = (bad - good) / max(constant - good, 1e-12)
    if d.cause == "healthy":
        kept = missed < 0.5
        why = "" if kept else f"the odd run misses {missed:.0%} of the ordinary one's gain"
    else:
        kept = missed > CLEARLY
        why = "" if kept else f"the planted run misses only {missed:.0%} of its twin's gain"
    return Truth(kept, bad, good, constant, why)


def titles(name: str) -> list[str]:
    """Names of all drafts of a draw."""
    from drawn_odd import ODD
    from drawn_sick import PLANTS

    _, sick, odd = DRAWS[name]
    found = [f"{cause}-{k}" for cause in PLANTS for k in range(sick)]
    found += [f"odd-{kind}-{k}" for kind in ODD for k in range(odd)]
    # By hash: a run that ends early has examined a random part.
    return sorted(found, key=lambda t: hashlib.blake2b(f"{name}:{t}".encode()).hexdigest())


def draft(name: str, title: str) -> tuple[Draft, Draft]:
    """One draft of a draw and its twin. Both share every draw; the fault is applied to one."""
    from drawn_odd import ODD
    from drawn_sick import PLANTS

    seed = DRAWS[name][0]
    kind = title.rpartition("-")[0]
    healthy = kind.startswith("odd-")
    plant = ODD[kind.removeprefix("odd-")] if healthy else PLANTS[kind]
    made = []
    for fault in (True, False):
        d = drafted(title, "healthy" if healthy else kind, seed, plant.families, plant.sgd)
        plant.apply(d, random.Random(f"{seed}:{title}:plant"), fault)
        made.append(d)
    return made[0], made[1]


def copied(module: nn.Module) -> nn.Module:
    return copy.deepcopy(module)
