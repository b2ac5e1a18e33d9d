"""Oddities of the drawn hospital: runs that look strange and are healthy, one function per kind.

``apply(draft, random, odd)`` is called for the case and, without the oddity, for its ordinary twin.
"""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from drawn import Draft, Encoder, Images, Net, Ratings, ordinary_step, stacked
from drawn_sick import ALL, FLAT, REAL, Apply, Plant, _Residual, _x, _y
from torch import Tensor, nn

ODD: dict[str, Plant] = {}
sched = torch.optim.lr_scheduler


def odd(kind: str, families: list[str] = ALL, sgd: bool = False) -> Callable[[Apply], Apply]:
    def add(apply: Apply) -> Apply:
        ODD[kind] = Plant(apply, families, sgd)
        return apply

    return add


# Schedules and optimizer settings.


@odd("warm-up")
def _(d: Draft, r: random.Random, fault: bool) -> None:
    length = r.choice([40, 80, 120])
    if fault:
        d.schedule = lambda o: sched.LambdaLR(o, lambda k: min(1.0, (k + 1) / length))


@odd("restarts")
def _(d: Draft, r: random.Random, fault: bool) -> None:
    length = r.choice([30, 60])
    if fault:
        d.schedule = lambda o: sched.CosineAnnealingWarmRestarts(o, length)


@odd("cosine-to-zero")
def _(d: Draft, r: random.Random, fault: bool) -> None:
    length = r.choice([250, 300])
    if fault:
        d.schedule = lambda o: sched.CosineAnnealingLR(o, length)


@odd("one-cycle")
def _(d: Draft, r: random.Random, fault: bool) -> None:
    if fault:
        d.schedule = lambda o: sched.OneCycleLR(
            o, max_lr=2 * d.lr, total_steps=2000, pct_start=0.05
        )


@odd("step-decay")
def _(d: Draft, r: random.Random, fault: bool) -> None:
    at = r.choice([100, 140])
    if fault:
        d.schedule = lambda o: sched.MultiStepLR(o, [at, at + 60], gamma=0.1)


@odd("large-batches", ["clusters", "teacher"])
def _(d: Draft, r: random.Random, fault: bool) -> None:
    if fault:
        d.size = r.choice([200, 300])


@odd("full-batch-high-rate", ["clusters"], sgd=True)
def _(d: Draft, r: random.Random, fault: bool) -> None:
    widths = d.spec["widths"]
    d.make = lambda: Net(widths, torch.tanh)
    if fault:
        d.size, d.lr, d.settings = len(d.x), r.uniform(0.4, 0.8), {}


@odd("tiny-batches", ["clusters", "pictures", "documents"])
def _(d: Draft, r: random.Random, fault: bool) -> None:
    size = r.choice([2, 4])
    if fault:
        d.size, d.lr = size, d.lr * (0.3 if d.optimizer == "SGD" else 0.6)


@odd("rmsprop-or-rprop", ["clusters", "teacher", "pictures"])
def _(d: Draft, r: random.Random, fault: bool) -> None:
    kind = r.choice([("RMSprop", 2e-3), ("Adagrad", 0.05), ("NAdam", 3e-3), ("Adamax", 5e-3)])
    if fault:
        (d.optimizer, d.lr), d.settings = kind, {}


@odd("decay-0.1")
def _(d: Draft, r: random.Random, fault: bool) -> None:
    if fault:
        d.optimizer, d.lr, d.settings = "AdamW", 3e-3, {"weight_decay": 0.1, "betas": (0.9, 0.95)}


@odd("high-momentum", ["clusters", "teacher", "pictures"], sgd=True)
def _(d: Draft, r: random.Random, fault: bool) -> None:
    if fault:
        d.lr, d.settings = 0.01, {"momentum": r.choice([0.95, 0.97]), "nesterov": True}


@odd("groups", ["clusters", "symbols", "documents"])
def _(d: Draft, r: random.Random, fault: bool) -> None:
    """Decay for matrices only, and a smaller rate for the first layer."""
    if fault:
        d.optimizer, d.lr, d.settings = "AdamW", 5e-3, {}
        d.params = lambda m: [
            {"params": [p for p in m.parameters() if p.ndim > 1], "weight_decay": 0.05},
            {"params": [p for p in m.parameters() if p.ndim <= 1], "weight_decay": 0.0},
        ]


@odd("clipping-at-one")
def _(d: Draft, r: random.Random, fault: bool) -> None:
    if fault:
        d.optimizer, d.lr, d.settings = "AdamW", 5e-3, {}
        d.step = lambda m, f, o: ordinary_step(m, f, o, clip=1.0)


@odd("accumulation")
def _(d: Draft, r: random.Random, fault: bool) -> None:
    every = r.choice([2, 4])
    d.size = 16
    if fault:
        d.step = lambda m, f, o: ordinary_step(m, f, o, every=every)
        d.lr *= 2


@odd("own-sgd-clipped", ["clusters", "teacher", "signals"])
def _(d: Draft, r: random.Random, fault: bool) -> None:
    if fault:
        d.optimizer, d.lr, d.settings = "mindgap.GClip", 0.15, {"tau": 1.0}


# Losses.


@odd("label-smoothing", ["clusters", "pictures", "symbols"])
def _(d: Draft, r: random.Random, fault: bool) -> None:
    amount = r.uniform(0.05, 0.2)

    def loss(model: nn.Module, batch: Any) -> Tensor:
        out = model(_x(batch))
        return F.cross_entropy(out.flatten(0, -2), _y(batch).flatten(), label_smoothing=amount)

    if fault:
        d.loss = loss


@odd("focal", ["clusters", "pictures"])
def _(d: Draft, r: random.Random, fault: bool) -> None:
    def loss(model: nn.Module, batch: Any) -> Tensor:
        each = F.cross_entropy(model(_x(batch)), _y(batch), reduction="none")
        return ((1 - (-each).exp()) ** 2 * each).mean()

    if fault:
        d.loss = loss
        own = d.criterion
        d.spec["judge"] = lambda m, b: own(m(_x(b)), _y(b))


@odd("huber-outliers", ["teacher"])
def _(d: Draft, r: random.Random, fault: bool) -> None:
    clean = d.y
    if fault:
        d.y = clean.clone()
        d.y[:: r.choice([90, 130])] += r.choice([20.0, 60.0])
        d.loss = lambda m, b: F.smooth_l1_loss(m(_x(b)), _y(b), beta=0.5)
        d.spec["judge"] = lambda m, b: F.mse_loss(m(_x(b)), _y(b))
    d.spec["constant"] = float((d.yv - clean.mean()).square().mean())


@odd("quantile", ["teacher"])
def _(d: Draft, r: random.Random, fault: bool) -> None:
    level = r.uniform(0.4, 0.6)

    def loss(model: nn.Module, batch: Any) -> Tensor:
        gap = _y(batch) - model(_x(batch))
        return torch.maximum(level * gap, (level - 1) * gap).mean()

    if fault:
        d.loss = loss
        d.spec["judge"] = lambda m, b: F.mse_loss(m(_x(b)), _y(b))


@odd("wide-targets", ["teacher"])
def _(d: Draft, r: random.Random, fault: bool) -> None:
    scale = 10 ** r.uniform(1, 2)
    d.optimizer, d.settings = "AdamW", {}
    d.lr = 5e-3
    if fault:
        d.y, d.yv = d.y * scale, d.yv * scale
        d.lr = 0.03 if scale < 40 else 0.06
        d.spec["judge"] = lambda m, b: (m(_x(b)) / scale - _y(b)).square().mean()


@odd("tiny-targets", ["teacher"])
def _(d: Draft, r: random.Random, fault: bool) -> None:
    scale = 10 ** -r.uniform(1, 2)
    d.optimizer, d.lr, d.settings = "AdamW", 3e-3, {}
    if fault:
        d.y, d.yv = d.y * scale, d.yv * scale
        d.spec["judge"] = lambda m, b: (m(_x(b)) / scale - _y(b)).square().mean()


@odd("density", ["teacher"])
def _(d: Draft, r: random.Random, fault: bool) -> None:
    """Mean and spread are learned; the loss may go below zero."""
    widths = [*d.spec["widths"][:-1], 2]
    d.optimizer, d.lr, d.settings = "Adam", 3e-3, {}

    def loss(model: nn.Module, batch: Any) -> Tensor:
        mean, log = model(_x(batch)).chunk(2, 1)
        return (log + 0.5 * ((_y(batch) - mean) * (-log).exp()).square()).mean()

    if fault:
        d.make, d.loss = lambda: Net(widths), loss
        d.spec["judge"] = lambda m, b: F.mse_loss(m(_x(b))[:, :1], _y(b))


@odd("noise-floor", ["teacher"])
def _(d: Draft, r: random.Random, fault: bool) -> None:
    """Most of the loss is noise that nobody can learn."""
    g = torch.Generator().manual_seed(r.randrange(2**31))
    size = r.uniform(1.0, 1.5) * float(d.y.std())
    d.optimizer, d.lr, d.settings = "AdamW", 2e-3, {}
    d.make = lambda: Net([d.spec["widths"][0], 24, 1])
    if fault:
        d.y = d.y + size * torch.randn(d.y.shape, generator=g)
        own = d.yv
        d.yv = d.yv + size * torch.randn(d.yv.shape, generator=g)
        d.spec["judge"] = lambda m, b: F.mse_loss(m(_x(b)), _y(b))
        del own


@odd("auxiliary-loss", ["clusters", "pictures"])
def _(d: Draft, r: random.Random, fault: bool) -> None:
    weight = r.uniform(1e-4, 1e-3)
    own = d.criterion

    def loss(model: nn.Module, batch: Any) -> Tensor:
        return own(model(_x(batch)), _y(batch)) + weight * sum(
            p.abs().sum() for p in model.parameters()
        )

    if fault:
        d.loss = loss
        d.spec["judge"] = lambda m, b: own(m(_x(b)), _y(b))


# Data.


@odd("rare-class", ["clusters", "pictures", "documents"])
def _(d: Draft, r: random.Random, fault: bool) -> None:
    if d.spec.get("ids"):
        return
    if fault:
        keep = (d.y != 0) | (torch.arange(len(d.y)) % 10 == 0)
        d.x, d.y = d.x[keep], d.y[keep]
        keep = (d.yv != 0) | (torch.arange(len(d.yv)) % 10 == 0)
        d.xv, d.yv = d.xv[keep], d.yv[keep]


@odd("two-percent-wrong", ["clusters", "pictures", "documents"])
def _(d: Draft, r: random.Random, fault: bool) -> None:
    if fault and d.classes:
        d.y = d.y.clone()
        d.y[:: r.choice([45, 60])] = 0


@odd("binary-inputs", ["clusters"])
def _(d: Draft, r: random.Random, fault: bool) -> None:
    d.x, d.xv = ((t > 0).float() for t in (d.x, d.xv))


@odd("zero-columns", FLAT)
def _(d: Draft, r: random.Random, fault: bool) -> None:
    """Padding: some inputs are always zero, one is always one."""
    if fault:
        for name in ("x", "xv"):
            x = getattr(d, name).clone()
            x[:, 0], x[:, 1] = 0.0, 1.0
            setattr(d, name, x)


@odd("bytes-normalised-inside", ["pictures", "clusters"])
def _(d: Draft, r: random.Random, fault: bool) -> None:
    """Inputs from 0 to 255; the network normalises them itself."""
    low, high = float(d.x.min()), float(d.x.max())
    if fault:
        d.x, d.xv = ((t - low) / (high - low) * 255 for t in (d.x, d.xv))
        own = d.make

        class Inside(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.net = own()

            def forward(self, x: Tensor) -> Tensor:
                return self.net(x / 255 * (high - low) + low)

        d.make = Inside
        d.spec["judge"] = lambda m, b: d.criterion(m((_x(b) - low) / (high - low) * 255), _y(b))


@odd("heavy-inputs", ["clusters", "teacher"])
def _(d: Draft, r: random.Random, fault: bool) -> None:
    """A log-normal column beside the others."""
    g = torch.Generator().manual_seed(r.randrange(2**31))
    if fault:
        for name in ("x", "xv"):
            x = getattr(d, name)
            more = (torch.randn(len(x), 1, generator=g)).exp()
            setattr(d, name, torch.cat([x, more], 1))
        widths = [d.spec["widths"][0] + 1, *d.spec["widths"][1:]]
        d.make = lambda: Net(widths)
        d.spec["judge"] = lambda m, b: d.criterion(m(F.pad(_x(b), (0, 1), value=1.0)), _y(b))


@odd("blocks-of-time", ["signals"])
def _(d: Draft, r: random.Random, fault: bool) -> None:
    """Sequences in the order they came: windows of one long series overlap."""


@odd("duplicates-in-training", ["clusters", "documents"])
def _(d: Draft, r: random.Random, fault: bool) -> None:
    """Oversampling: a third of the training samples stands there twice."""
    if fault:
        n = len(d.x) // 3
        g = torch.Generator().manual_seed(1)
        x, y = torch.cat([d.x, d.x[:n]]), torch.cat([d.y, d.y[:n]])
        order = torch.randperm(len(x), generator=g)
        d.x, d.y = x[order], y[order]


@odd("mixup", ["clusters"])
def _(d: Draft, r: random.Random, fault: bool) -> None:
    def loss(model: nn.Module, batch: Any) -> Tensor:
        x, y = _x(batch), _y(batch)
        if not model.training:
            return F.cross_entropy(model(x), y)
        lam, order = 0.8 + 0.2 * torch.rand(()), torch.randperm(len(x))
        out = model(lam * x + (1 - lam) * x[order])
        return lam * F.cross_entropy(out, y) + (1 - lam) * F.cross_entropy(out, y[order])

    if fault:
        d.loss = loss


@odd("augmented", ["pictures", "signals"])
def _(d: Draft, r: random.Random, fault: bool) -> None:
    own = d.criterion

    def loss(model: nn.Module, batch: Any) -> Tensor:
        x = _x(batch)
        if model.training:
            x = x + 0.2 * torch.randn_like(x)
        return own(model(x), _y(batch))

    if fault:
        d.loss = loss


# Networks.


@odd("dropout", ["clusters", "teacher"])
def _(d: Draft, r: random.Random, fault: bool) -> None:
    rate = r.uniform(0.3, 0.5)
    if fault:
        widths = [d.spec["widths"][0], 128, d.spec["widths"][-1]]
        d.make = lambda: Net(widths, drop=rate)


@odd("batch-norm", ["clusters", "pictures"])
def _(d: Draft, r: random.Random, fault: bool) -> None:
    s = d.spec
    if fault and d.family == "pictures":
        d.make = lambda: Images(s["channels"], s["side"], d.classes, s["width"], True)
    elif fault:
        d.make = lambda: stacked(s["widths"], norm=True)


@odd("zero-last-layer", ["clusters", "teacher", "symbols"])
def _(d: Draft, r: random.Random, fault: bool) -> None:
    def change(model: nn.Module) -> None:
        last = [m for m in model.modules() if isinstance(m, nn.Linear)][-1]
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)

    if fault:
        d.after.append(change)


@odd("many-dead-units", ["clusters", "teacher"])
def _(d: Draft, r: random.Random, fault: bool) -> None:
    share = r.uniform(0.3, 0.5)

    def change(model: nn.Module) -> None:
        layer = model.hidden[0]  # type: ignore[index, union-attr]
        with torch.no_grad():
            layer.bias[: int(share * len(layer.bias))] = -8.0  # type: ignore[index, union-attr]

    widths = [d.spec["widths"][0], 128, d.spec["widths"][-1]]
    d.make = lambda: Net(widths)
    if fault:
        d.after.append(change)


@odd("deep-residual", FLAT)
def _(d: Draft, r: random.Random, fault: bool) -> None:
    depth = r.choice([6, 9])
    first, last = d.spec["widths"][0], d.spec["widths"][-1]
    d.size = 16
    if fault:
        d.make = lambda: _Residual(first, 32, depth, last, True, 0.7)


@odd("tied-weights", ["symbols"])
def _(d: Draft, r: random.Random, fault: bool) -> None:
    def tie(model: nn.Module) -> None:
        if model.head.weight.shape == model.tok.weight.shape:  # type: ignore[union-attr]
            nn.init.normal_(model.tok.weight, std=0.2)  # type: ignore[union-attr, arg-type]
            model.head.weight = model.tok.weight  # type: ignore[union-attr]

    if fault:
        d.after.append(tie)


@odd("frozen-body", ["clusters", "pictures"])
def _(d: Draft, r: random.Random, fault: bool) -> None:
    """A body that was trained before; only the head is trained now."""
    make, x, y, own = d.make, d.x, d.y, d.criterion
    kept: list[dict[str, Tensor]] = []

    def trained() -> nn.Module:
        model = make()
        if not kept:
            before = torch.optim.Adam(model.parameters(), lr=5e-3)
            for k in range(120):
                pick = slice(32 * (k % 30), 32 * (k % 30) + 32)
                before.zero_grad()
                own(model(x[pick]), y[pick]).backward()
                before.step()
            kept.append(copy.deepcopy(model.state_dict()))
        model.load_state_dict(kept[0])
        last = [m for m in model.modules() if isinstance(m, nn.Linear)][-1]
        last.reset_parameters()
        for p in model.parameters():
            p.requires_grad_(False)
        for p in last.parameters():
            p.requires_grad_(True)
        return model

    if fault:
        d.make = trained
        d.params = lambda m: [p for p in m.parameters() if p.requires_grad]


@odd("spectral-or-weight-norm", ["clusters", "teacher"])
def _(d: Draft, r: random.Random, fault: bool) -> None:
    def change(model: nn.Module) -> None:
        for layer in list(model.modules()):
            if isinstance(layer, nn.Linear):
                nn.utils.parametrizations.weight_norm(layer)

    if fault:
        d.after.append(change)


@odd("bfloat16", ["clusters", "pictures", "teacher"])
def _(d: Draft, r: random.Random, fault: bool) -> None:
    own = d.criterion

    def loss(model: nn.Module, batch: Any) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            out = model(_x(batch))
        return own(out.float(), _y(batch))

    if fault:
        d.loss = loss


@odd("double", ["teacher", "clusters"])
def _(d: Draft, r: random.Random, fault: bool) -> None:
    if fault:
        d.x, d.xv = d.x.double(), d.xv.double()
        if not d.classes:
            d.y, d.yv = d.y.double(), d.yv.double()
        d.after.append(lambda m: m.double())
        d.spec["judge"] = lambda m, b: d.criterion(
            m(_x(b).double()), _y(b) if d.classes else _y(b).double()
        )


@odd("sparse-embedding", ["documents"], sgd=True)
def _(d: Draft, r: random.Random, fault: bool) -> None:
    def change(model: nn.Module) -> None:
        for m in model.modules():
            if isinstance(m, nn.Embedding):
                m.sparse = True

    d.settings, d.lr = {}, 1.0
    if fault:
        d.after.append(change)


@odd("several-outputs", ["teacher", "clusters"])
def _(d: Draft, r: random.Random, fault: bool) -> None:
    """Two heads; the model returns a dictionary."""
    first, last, own = d.spec["widths"][0], d.spec["widths"][-1], d.criterion

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.a, self.b = (
                nn.Linear(first, 48),
                nn.Linear(48, last),
                nn.Linear(48, first),
            )

        def forward(self, x: Tensor) -> dict[str, Tensor]:
            h = torch.relu(self.body(x))
            return {"answer": self.a(h), "copy": self.b(h)}

    def loss(model: nn.Module, batch: Any) -> Tensor:
        out = model(_x(batch))
        return own(out["answer"], _y(batch)) + 0.1 * F.mse_loss(out["copy"], _x(batch))

    if fault:
        d.make, d.loss = Two, loss
        d.spec["judge"] = lambda m, b: own(m(_x(b))["answer"], _y(b))


@odd("linear-on-linear", ["teacher"])
def _(d: Draft, r: random.Random, fault: bool) -> None:
    g = torch.Generator().manual_seed(r.randrange(2**31))
    w = torch.randn(d.x.shape[1], 1, generator=g) / d.x.shape[1] ** 0.5
    d.y, d.yv = (t @ w + 0.3 * torch.randn(len(t), 1, generator=g) for t in (d.x, d.xv))
    if fault:
        width = d.x.shape[1]
        d.make = lambda: nn.Linear(width, 1)
        d.optimizer, d.lr, d.settings = "SGD", 0.05, {}


@odd("group-norm-batch-of-one", ["pictures"])
def _(d: Draft, r: random.Random, fault: bool) -> None:
    s = d.spec
    if fault:
        d.size = 1
        d.make = lambda: nn.Sequential(
            nn.Conv2d(s["channels"], 8, 3, padding=1),
            nn.GroupNorm(2, 8),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(8 * (s["side"] // 2) ** 2, d.classes),
        )
        d.optimizer, d.lr, d.settings = "AdamW", 2e-3, {}
        d.x, d.y = d.x[:600], d.y[:600]


# Loops and whole programs.


@odd("teacher-that-follows", ["clusters"])
def _(d: Draft, r: random.Random, fault: bool) -> None:
    make, own = d.make, d.criterion

    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.student = make()
            self.teacher = copy.deepcopy(self.student).requires_grad_(False)

        def forward(self, x: Tensor) -> Tensor:
            return self.student(x)

    def step(model: nn.Module, loss: Any, optimizer: Any) -> Any:
        plain = ordinary_step(model, loss, optimizer)

        def body(batch: Any) -> float:
            value = plain(batch)
            with torch.no_grad():
                for a, b in zip(model.teacher.parameters(), model.student.parameters()):  # type: ignore[union-attr, operator]
                    a.lerp_(b, 0.05)
            return value

        return body

    if fault:
        d.make, d.step = Both, step
        d.params = lambda m: m.student.parameters()
        d.criterion = own


@odd("sharpness-aware", ["clusters", "teacher"], sgd=True)
def _(d: Draft, r: random.Random, fault: bool) -> None:
    def step(model: nn.Module, loss: Any, optimizer: Any) -> Any:
        def body(batch: Any) -> float:
            optimizer.zero_grad()
            value = loss(model, batch)
            value.backward()
            params = [p for p in model.parameters() if p.grad is not None]
            norm = torch.stack([p.grad.norm() for p in params]).norm() + 1e-12
            moves = [0.02 * p.grad / norm for p in params]
            with torch.no_grad():
                for p, m in zip(params, moves):
                    p.add_(m)
            optimizer.zero_grad()
            loss(model, batch).backward()
            with torch.no_grad():
                for p, m in zip(params, moves):
                    p.sub_(m)
            optimizer.step()
            return float(value)

        return body

    if fault:
        d.step = step


@odd("noise-in-gradients", ["clusters", "teacher"])
def _(d: Draft, r: random.Random, fault: bool) -> None:
    def step(model: nn.Module, loss: Any, optimizer: Any) -> Any:
        def body(batch: Any) -> float:
            optimizer.zero_grad()
            value = loss(model, batch)
            value.backward()
            for p in model.parameters():
                if p.grad is not None:
                    p.grad.add_(0.002 * torch.randn_like(p.grad))
            optimizer.step()
            return float(value)

        return body

    if fault:
        d.step = step


@odd("closed-loop-two-steps", ["clusters"])
def _(d: Draft, r: random.Random, fault: bool) -> None:
    """Two updates per batch."""

    def step(model: nn.Module, loss: Any, optimizer: Any) -> Any:
        plain = ordinary_step(model, loss, optimizer)

        def body(batch: Any) -> float:
            first = plain(batch)
            plain(batch)
            return first

        return body

    if fault:
        d.step = step


def _own_program(
    d: Draft, fault: bool, model: Callable[[], nn.Module], loss: Any, rows: Tensor
) -> None:
    """A run without targets: the twin is the same, the constant answer is the loss at the start."""
    if not fault:
        d.weak = True
    lr = d.rng.choice([2e-3, 4e-3])

    def whole() -> dict[str, Any]:
        net = model()
        cut = len(rows) - 160
        return {
            "model": net,
            "loss": loss,
            "train": list(rows[:cut].split(32)),
            "valid": list(rows[cut:].split(160)),
            "optimizer": torch.optim.Adam(net.parameters(), lr=lr),
        }

    d.whole = whole
    torch.manual_seed(0)
    first = model()
    first.eval()
    d.spec["constant"] = float(loss(first, rows[:320]).detach())


@odd("autoencoder", ["clusters"])
def _(d: Draft, r: random.Random, fault: bool) -> None:
    width = d.x.shape[1]
    _own_program(
        d, fault, lambda: stacked([width, 32, 4, 32, width]), lambda m, x: F.mse_loss(m(x), x), d.x
    )


@odd("variational", ["clusters"])
def _(d: Draft, r: random.Random, fault: bool) -> None:
    width = d.x.shape[1]

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.code, self.back = stacked([width, 32, 8]), stacked([4, 32, width])

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            mean, log = self.code(x).chunk(2, 1)
            return self.back(mean + (log / 2).exp() * torch.randn_like(mean)), mean, log

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        out, mean, log = model(x)
        fit = (out - x).square().sum(1).mean()
        return fit + 0.1 * (mean.square() + log.exp() - 1 - log).sum(1).mean()

    _own_program(d, fault, Model, loss, d.x)


@odd("contrastive", ["clusters"])
def _(d: Draft, r: random.Random, fault: bool) -> None:
    width, heat = d.x.shape[1], r.uniform(0.2, 0.4)

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        a = F.normalize(model(x + 0.1 * torch.randn_like(x)), dim=1)
        b = F.normalize(model(x + 0.1 * torch.randn_like(x)), dim=1)
        return F.cross_entropy(a @ b.T / heat, torch.arange(len(x)))

    _own_program(d, fault, lambda: stacked([width, 48, 16]), loss, d.x)


@odd("physics", ["teacher"])
def _(d: Draft, r: random.Random, fault: bool) -> None:
    """u'' = -k² sin(kx) with u = 0 at both ends, by its residual."""
    k = r.choice([1, 2])

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        with torch.enable_grad():
            x = x.clone().requires_grad_()
            u = model(x)
            du = torch.autograd.grad(u.sum(), x, create_graph=True)[0]
            ddu = torch.autograd.grad(du.sum(), x, create_graph=True)[0]
        ends = model(torch.tensor([[0.0], [math.pi]]))
        return (ddu / k**2 + (k * x.detach()).sin()).square().mean() + ends.square().mean()

    points = math.pi * torch.rand(1440, 1, generator=torch.Generator().manual_seed(3))
    _own_program(d, fault, lambda: stacked([1, 32, 32, 1], nn.Tanh), loss, points)


@odd("adversarial", ["teacher"])
def _(d: Draft, r: random.Random, fault: bool) -> None:
    """Generator and judge; the judge's loss need not fall."""
    g = torch.Generator().manual_seed(r.randrange(2**31))
    real = torch.randn(1440, 2, generator=g) * torch.tensor([0.5, 1.0]) + r.uniform(1, 3)
    d.weak = True
    d.spec["constant"] = 1e9

    def whole() -> dict[str, Any]:
        make, judge = stacked([4, 32, 2]), stacked([2, 32, 1])
        model = nn.ModuleDict({"make": make, "judge": judge})
        first = torch.optim.Adam(make.parameters(), lr=1e-3)
        second = torch.optim.Adam(judge.parameters(), lr=1e-3)

        def loss(model: Any, batch: Tensor) -> Tensor:
            fake = model["make"](torch.randn(len(batch), 4))
            return (
                F.softplus(-model["judge"](batch)).mean() + F.softplus(model["judge"](fake)).mean()
            )

        def step(batch: Tensor) -> float:
            value = loss(model, batch)
            second.zero_grad()
            value.backward()
            second.step()
            first.zero_grad()
            F.softplus(-judge(make(torch.randn(len(batch), 4)))).mean().backward()
            first.step()
            return float(value)

        return {
            "model": model,
            "loss": loss,
            "train": list(real[:1280].split(32)),
            "valid": list(real[1280:].split(160)),
            "optimizer": second,
            "step": step,
        }

    d.whole = whole


@odd("ratings-ordinary", ["documents"])
def _(d: Draft, r: random.Random, fault: bool) -> None:
    """Pairs of ids: validation repeats pairs of the training part by chance."""
    g = torch.Generator().manual_seed(r.randrange(2**31))
    users, items = 25, 20
    x = torch.stack([torch.randint(n, (2200,), generator=g) for n in (users, items)], 1)
    a, b = torch.randn(users, 2, generator=g), torch.randn(items, 2, generator=g)
    y = (a[x[:, 0]] * b[x[:, 1]]).sum(1, keepdim=True)
    y = y + 0.3 * torch.randn(len(y), 1, generator=g)
    d.x, d.y, d.xv, d.yv, d.classes = x[:1880], y[:1880], x[1880:], y[1880:], 0
    d.criterion = F.mse_loss
    d.make = lambda: Ratings(users, items, 6)
    d.optimizer, d.lr, d.settings = "Adam", 2e-2, {}


@odd("masked-symbols", ["symbols"])
def _(d: Draft, r: random.Random, fault: bool) -> None:
    """The loss counts some positions only (ignore_index)."""
    count, outs = d.spec["symbols"], d.spec["outs"]
    if d.y.ndim == 2 and fault:
        d.y, d.yv = d.y.clone(), d.yv.clone()
        d.y[:, ::3] = -100
        d.yv[:, ::3] = -100
        d.spec["judge"] = lambda m, b: F.cross_entropy(
            m(_x(b)).flatten(0, 1), _y(b).flatten(), ignore_index=-100
        )
    if d.y.ndim == 2:
        d.make = lambda: Encoder(count, 24, 1, outs, False)


@odd("weights-per-class", ["clusters"])
def _(d: Draft, r: random.Random, fault: bool) -> None:
    weight = 0.5 + torch.rand(d.classes, generator=torch.Generator().manual_seed(5))
    if fault:
        d.loss = lambda m, b: F.cross_entropy(m(_x(b)), _y(b), weight=weight)


@odd("orthogonal-start", ["clusters", "signals"])
def _(d: Draft, r: random.Random, fault: bool) -> None:
    gain = r.uniform(1.0, 1.6)

    def change(model: nn.Module) -> None:
        for p in model.parameters():
            if p.ndim == 2:
                nn.init.orthogonal_(p, gain)

    if fault:
        d.after.append(change)


_ = REAL
