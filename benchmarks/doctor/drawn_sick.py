"""Plants of the drawn hospital: one per cause. ``apply(draft, random, fault)`` is called for the
case (with the fault) and for its twin (without), and draws the same numbers for both.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from drawn import (
    Draft,
    Encoder,
    Images,
    Net,
    Sequence,
    copied,
    ordinary_step,
    stacked,
)
from torch import Tensor, nn

ALL = ["clusters", "teacher", "pictures", "signals", "symbols", "documents"]
FLAT = ["clusters", "teacher"]
REAL = ["clusters", "teacher", "pictures", "signals"]
Apply = Callable[[Draft, random.Random, bool], None]


@dataclass(frozen=True)
class Plant:
    """How one cause is planted."""

    apply: Apply
    families: list[str] = field(default_factory=lambda: ALL)
    sgd: bool = False  # only with SGD does it show


PLANTS: dict[str, Plant] = {}


def plant(cause: str, families: list[str] = ALL, sgd: bool = False) -> Callable[[Apply], Apply]:
    def add(apply: Apply) -> Apply:
        PLANTS[cause] = Plant(apply, families, sgd)
        return apply

    return add


def _hidden(model: nn.Module) -> list[nn.Module]:
    """Linear and convolution layers but the last."""
    return [m for m in model.modules() if isinstance(m, (nn.Linear, nn.Conv2d))][:-1]


@plant("lr_too_large")
def _(d: Draft, r: random.Random, fault: bool) -> None:
    factor = 10 ** r.uniform(1.5, 3) if d.optimizer == "SGD" else 10 ** r.uniform(1.8, 2.6)
    d.lr *= factor if fault else 1


@plant("lr_too_small")
def _(d: Draft, r: random.Random, fault: bool) -> None:
    factor = 10 ** -r.uniform(3, 5)
    d.lr *= factor if fault else 1


@plant("no_warmup", ["symbols"])
def _(d: Draft, r: random.Random, fault: bool) -> None:
    depth, count, outs = r.choice([8, 10]), d.spec["symbols"], d.spec["outs"]
    d.make = lambda: Encoder(count, 16, depth, outs, d.spec["pool"], first=False)
    d.optimizer, d.lr, d.settings = r.choice(["Adam", "AdamW"]), r.choice([0.015, 0.02]), {}
    d.size = 16
    d.x, d.xv = d.x[:, :8], d.xv[:, :8]
    if d.y.ndim == 2:
        d.y, d.yv = d.y[:, :8], d.yv[:, :8]
    if not fault:
        d.schedule = lambda o: torch.optim.lr_scheduler.LambdaLR(
            o, lambda k: min(1.0, (k + 1) / 150)
        )


@plant("init_too_large")
def _(d: Draft, r: random.Random, fault: bool) -> None:
    factor, normal = 10 ** r.uniform(1.2, 1.8), r.random() < 0.4

    def change(model: nn.Module) -> None:
        with torch.no_grad():
            for p in model.parameters():
                if p.ndim > 1:
                    if normal:
                        nn.init.normal_(p, std=factor / 6)
                    else:
                        p.mul_(factor)

    if fault:
        d.after.append(change)


@plant("init_too_small", ["clusters", "teacher", "pictures"], sgd=True)
def _(d: Draft, r: random.Random, fault: bool) -> None:
    factor = 10 ** -r.uniform(1.8, 3)
    if "widths" in d.spec:
        widths = [d.spec["widths"][0], 48, 48, 48, d.spec["widths"][-1]]
        d.make = lambda: stacked(widths)

    def change(model: nn.Module) -> None:
        with torch.no_grad():
            for p in model.parameters():
                if p.ndim > 1:
                    p.mul_(factor)

    if fault:
        d.after.append(change)


@plant("init_equal", ["clusters", "teacher", "pictures", "signals", "documents"])
def _(d: Draft, r: random.Random, fault: bool) -> None:
    value = r.choice([0.0, 0.01, 0.05, 0.1])

    def change(model: nn.Module) -> None:
        for p in model.parameters():
            nn.init.constant_(p, value)

    if fault:
        d.after.append(change)


@plant("dead_units", ["clusters", "teacher", "pictures", "documents"])
def _(d: Draft, r: random.Random, fault: bool) -> None:
    value, negative = -r.uniform(8, 25), r.random() < 0.3

    def change(model: nn.Module) -> None:
        layers = _hidden(model)
        if not layers:
            return
        layer = r2.choice(layers)
        if negative and isinstance(layer, nn.Linear):
            nn.init.constant_(layer.bias, value)
            with torch.no_grad():
                layer.weight.copy_(-layer.weight.abs())
        else:
            nn.init.constant_(layer.bias, value)

    r2 = random.Random(r.random())
    picked = r2.random()
    if d.spec.get("ids"):
        d.spec["constant"] = -1.0  # no units: dropped
    if fault:
        d.after.append(lambda m: (setattr_seed(r2, picked), change(m))[1])


def setattr_seed(r: random.Random, value: float) -> None:
    """The same choice at every build."""
    r.seed(value)


@plant("saturated_units", ["clusters", "teacher", "signals"])
def _(d: Draft, r: random.Random, fault: bool) -> None:
    value, kind = r.choice([-1, 1]) * r.uniform(7, 14), r.choice([torch.tanh, torch.sigmoid])
    if d.family == "signals":
        d.make = lambda: Sequence(
            "RNN", d.spec["inputs"], d.spec["width"], d.classes or 1, mean=False
        )

        def change(model: nn.Module) -> None:
            nn.init.constant_(model.rnn.bias_ih_l0, value)  # type: ignore[union-attr, arg-type]
    else:
        widths = d.spec["widths"]
        d.make = lambda: Net(widths, kind)
        d.lr *= 3 if d.optimizer == "SGD" and kind is torch.sigmoid else 1

        def change(model: nn.Module) -> None:
            for layer in _hidden(model):
                nn.init.constant_(layer.bias, value)  # type: ignore[arg-type]

    if fault:
        d.after.append(change)


@plant("exploding_gradients", ["signals", "clusters", "teacher"])
def _(d: Draft, r: random.Random, fault: bool) -> None:
    if d.family == "signals":
        factor, width = r.uniform(1.6, 2.0), d.spec["width"]
        inputs, outs = d.spec["inputs"], d.classes or 1
        d.x, d.xv = (F.pad(t, (0, 0, 20 - t.shape[1], 0)) for t in (d.x, d.xv))

        class Recurrent(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.rnn = nn.RNN(inputs, width, nonlinearity="relu", batch_first=True)
                self.head = nn.Linear(width, outs)
                with torch.no_grad():
                    self.rnn.weight_hh_l0.copy_(factor * torch.eye(width))

            def forward(self, x: Tensor) -> Tensor:
                return self.head(self.rnn(x)[0][:, -1])

        d.make = Recurrent if fault else lambda: Sequence("GRU", inputs, width, outs, False)
    else:
        depth, factor = r.choice([9, 12]), r.uniform(1.6, 2.2)
        widths = [d.spec["widths"][0], *[40] * depth, d.spec["widths"][-1]]

        def change(model: nn.Module) -> None:
            for layer in model.modules():
                if isinstance(layer, nn.Linear):
                    nn.init.kaiming_normal_(layer.weight)
                    layer.weight.data.mul_(factor if fault else 0.7)

        d.make = lambda: stacked(widths)
        d.after.append(change)
        if not fault:
            d.make, d.after = lambda: stacked([widths[0], 40, 40, widths[-1]]), []


@plant("vanishing_gradients", ["clusters", "teacher", "signals"])
def _(d: Draft, r: random.Random, fault: bool) -> None:
    depth, kind = r.choice([7, 9]), r.choice(["sigmoid", "sigmoid", "relu"])
    if d.family == "signals":
        # The class is told in the first step and asked for in the last.
        extra, shrink = r.choice([14, 20]), r.uniform(0.2, 0.5)
        length = d.spec["length"] + extra
        d.x, d.xv = (F.pad(t[:, :1], (0, 0, 0, length - 1)) for t in (d.x, d.xv))
        d.y, d.yv = (t[:, 0, 0].unsqueeze(1) for t in (d.x, d.xv))
        d.classes, d.criterion = 0, F.mse_loss
        width = d.spec["width"]

        class Recurrent(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.cell = nn.RNN(d.spec["inputs"], width, batch_first=True)
                self.read = nn.Linear(width, 1)
                with torch.no_grad():
                    if fault:
                        self.cell.weight_hh_l0.mul_(shrink)
                    else:
                        nn.init.eye_(self.cell.weight_hh_l0)
                        self.cell.bias_ih_l0.zero_()
                        self.cell.bias_hh_l0.zero_()

            def forward(self, x: Tensor) -> Tensor:
                return self.read(self.cell(x)[0][:, -1])

        d.make = Recurrent
        d.lr *= 0.3 if d.optimizer == "SGD" else 1
        return
    first, last = d.spec["widths"][0], d.spec["widths"][-1]
    if kind == "sigmoid":
        d.make = lambda: Net([first, *[32] * (depth if fault else 1), last], torch.sigmoid)
    else:
        d.make = lambda: Net([first, *[24] * (18 if fault else 2), last])


class _Residual(nn.Module):
    def __init__(self, first: int, width: int, depth: int, last: int, norm: bool, gain: float):
        super().__init__()
        self.stem, self.out = nn.Linear(first, width), nn.Linear(width, last)
        self.lin = nn.ModuleList(nn.Linear(width, width) for _ in range(2 * depth))
        self.norms = nn.ModuleList(
            nn.LayerNorm(width) if norm else nn.Identity() for _ in range(depth)
        )
        for m in self.lin:
            nn.init.kaiming_normal_(m.weight)
            m.weight.data.mul_(gain)
        self.end = nn.LayerNorm(width) if norm else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        h = self.stem(x)
        for i, norm in enumerate(self.norms):
            h = h + self.lin[2 * i + 1](F.relu(self.lin[2 * i](norm(h))))
        return self.out(self.end(h))


@plant("missing_normalisation", FLAT)
def _(d: Draft, r: random.Random, fault: bool) -> None:
    depth, gain = r.choice([10, 13]), r.uniform(1.0, 1.3)
    first, last = d.spec["widths"][0], d.spec["widths"][-1]
    d.make = lambda: _Residual(first, 40, depth, last, not fault, gain)
    d.size = 16


@plant("wrong_labels", ["clusters", "pictures", "symbols", "documents", "teacher"])
def _(d: Draft, r: random.Random, fault: bool) -> None:
    share, one = r.choice([0.4, 0.6, 0.8, 1.0]), r.random() < 0.15
    g = torch.Generator().manual_seed(r.randrange(2**31))

    def spoiled(y: Tensor) -> Tensor:
        mixed = y.flatten()[torch.randperm(y.numel(), generator=g)].reshape(y.shape)
        if one:
            return torch.full_like(y, y.flatten()[0].item())
        pick = torch.rand(y.shape, generator=g) < share
        return torch.where(pick, mixed, y)

    if fault:
        d.y, d.yv = spoiled(d.y), spoiled(d.yv)


@plant("labels_shifted", ["clusters", "pictures", "teacher", "documents", "symbols"])
def _(d: Draft, r: random.Random, fault: bool) -> None:
    way, outside = r.choice([1, -1]), r.random() < 0.2
    d.form = r.choice(["mapping", "tuple", "dicts"])
    if fault:
        if d.family == "symbols" and d.y.ndim == 2:
            d.y, d.yv = d.x.clone(), d.xv.clone()  # the input itself, not the next symbol
            d.spec["judge"] = None
        elif outside and d.classes:
            d.y, d.yv = d.y + 1, d.yv + 1
        else:
            d.y, d.yv = d.y.roll(way, 0), d.yv.roll(way, 0)


@plant("bad_sample", REAL, sgd=True)
def _(d: Draft, r: random.Random, fault: bool) -> None:
    where, kind = r.randrange(100, 900), r.choice(["nan", "inf", "huge", "huge", "target"])
    size = 10 ** r.uniform(4, 7)
    if fault:
        d.x, d.y = d.x.clone(), d.y.clone()
        if kind == "target" and not d.classes:
            d.y[where] = size
        elif kind in ("nan", "inf"):
            d.x[where].view(-1)[0] = float(kind)
        else:
            d.x[where] = d.x[where] * size


@plant("bad_batch", REAL, sgd=True)
def _(d: Draft, r: random.Random, fault: bool) -> None:
    where, size, nan = r.randrange(3, 20), 10 ** r.uniform(3, 6), r.random() < 0.3
    d.form, d.size = r.choice(["mapping", "tuple", "dicts"]), 32

    def spoil(batches: list[Any]) -> list[Any]:
        x, y = batches[where]
        batches[where] = (x * (float("nan") if nan else size), y)
        return batches

    if fault:
        d.batches = spoil


@plant("constant_feature", FLAT)
def _(d: Draft, r: random.Random, fault: bool) -> None:
    which, value, nan = r.randrange(6), 10 ** r.uniform(2.3, 5), r.random() < 0.35
    for name in ("x", "xv"):
        x = getattr(d, name).clone()
        x[:, which] = 0
        if fault:
            x[:, which] = value
            if nan:
                x = (x - x.mean(0)) / x.std(0)  # zero by zero
                x[:, which] = float("nan")
        setattr(d, name, x)


@plant("unscaled_features", REAL)
def _(d: Draft, r: random.Random, fault: bool) -> None:
    size, all_of_them = 10 ** r.uniform(3, 6), r.random() < 0.5
    if fault and (all_of_them or d.family == "pictures"):
        scale = min(size, 1e4)
        d.x, d.xv = d.x * scale + scale, d.xv * scale + scale
    elif fault:
        vector = torch.ones(d.x.shape[-1])
        vector[r.randrange(len(vector))] = size
        d.x, d.xv = d.x * vector, d.xv * vector
    if fault:
        d.spec["judge"] = _scaled_judge(d)


def _scaled_judge(d: Draft) -> Callable[[nn.Module, Any], Tensor]:
    """The twin's batches hold scaled inputs; the case is judged on its own, by the same loss."""
    own = list(zip(d.xv.split(160), d.yv.split(160)))
    turn = iter(own * 50)

    def loss(model: nn.Module, batch: Any) -> Tensor:
        x, y = next(turn)
        return d.criterion(model(x), y)

    return loss


@plant("nan_operation", ["clusters", "teacher", "pictures", "documents"])
def _(d: Draft, r: random.Random, fault: bool) -> None:
    kind, scale = r.choice(["log", "sqrt", "divide", "std"]), r.uniform(20, 60)
    d.form = r.choice(["mapping", "tuple"])
    if d.classes and kind == "log":

        def loss(model: nn.Module, batch: Any) -> Tensor:
            scores = scale * model(batch[0])
            if fault:
                p = torch.softmax(scores, 1)
                return -torch.log(p[torch.arange(len(p)), batch[1]]).mean()
            return F.cross_entropy(scores / scale, batch[1])

        if fault:
            d.spec["judge"] = loss  # its own scale: only NaN counts
    elif kind == "sqrt":

        def loss(model: nn.Module, batch: Any) -> Tensor:
            out = model(batch[0])
            penalty = (out - out[:1]).square().sum(1)
            penalty = penalty.sqrt() if fault else (penalty + 1e-6).sqrt()
            return d.criterion(out, batch[1]) + 0.01 * penalty.mean()
    else:
        shrink = kind == "std"

        def loss(model: nn.Module, batch: Any) -> Tensor:
            out = model(batch[0])
            # Weights per sample that are zero for a whole batch now and then.
            weight = (batch[0].flatten(1)[:, 0].float() > (6.0 if shrink else 4.0)).float()
            weight = weight if fault else torch.ones_like(weight)
            return d.criterion(out, batch[1]) * (weight.sum() / weight.sum())

    d.loss = loss


@plant("overflow", ["clusters", "teacher", "pictures"])
def _(d: Draft, r: random.Random, fault: bool) -> None:
    scale, inside = r.uniform(300, 2000), r.random() < 0.5
    d.form = r.choice(["mapping", "tuple"])

    def loss(model: nn.Module, batch: Any) -> Tensor:
        out = model(batch[0]) * scale
        low = out.half() if fault else out
        if inside:
            low = (low * 8) / 8
        big = low.square().sum() * 1e-4
        big = big.float() / scale**2
        return d.criterion(low.float() / scale, batch[1]) + 1e-6 * big

    d.loss = loss


@plant("frozen_parameters", ["clusters", "teacher", "pictures", "symbols", "documents"])
def _(d: Draft, r: random.Random, fault: bool) -> None:
    keep = r.choice([1, 1, 2])

    def freeze(model: nn.Module) -> None:
        params = list(model.parameters())
        for p in params[:-keep]:
            p.requires_grad_(False)

    if fault:
        d.after.append(freeze)
        d.params = lambda m: [p for p in m.parameters() if p.requires_grad]


class _Hidden(nn.Module):
    """Layers that torch does not see, in a list, a dictionary or a tensor."""

    def __init__(self, widths: list[int], kind: str) -> None:
        super().__init__()
        layers = [nn.Linear(a, b) for a, b in pairwise(widths[:-1])]
        for layer in layers:
            with torch.no_grad():
                layer.weight.mul_(0.3)
        self.layers: Any = layers
        if kind == "dict":
            self.layers = {str(i): layer for i, layer in enumerate(layers)}
        elif kind == "tuple":
            self.layers = tuple(layers)
        elif kind == "seen":
            self.layers = nn.ModuleList(layers)
        self.out = nn.Linear(widths[-2], widths[-1])
        with torch.no_grad():
            self.out.weight.mul_(0.3)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers.values() if isinstance(self.layers, dict) else self.layers:
            x = torch.relu(layer(x))
        return self.out(x)


@plant("unregistered_parameters", FLAT)
def _(d: Draft, r: random.Random, fault: bool) -> None:
    kind = r.choice(["list", "dict", "tuple"])
    widths = [d.spec["widths"][0], 32, 16, d.spec["widths"][-1]]
    d.make = lambda: _Hidden(widths, kind if fault else "seen")


class _Cut(nn.Module):
    """The graph is cut between two parts."""

    def __init__(self, body: nn.Module, head: nn.Module, how: str) -> None:
        super().__init__()
        self.body, self.head, self.how = body, head, how

    def forward(self, x: Tensor) -> Tensor:
        if self.how == "no_grad":
            with torch.no_grad():
                h = self.body(x)
        else:
            h = self.body(x)
        if self.how == "detach":
            h = h.detach()
        elif self.how == "data":
            h = h.data
        elif self.how == "numpy":
            h = torch.as_tensor(h.detach().numpy())
        elif self.how == "tensor":
            h = torch.tensor(h.tolist())
        return self.head(torch.tanh(h))


@plant("detached_graph", ["clusters", "teacher", "pictures", "documents"])
def _(d: Draft, r: random.Random, fault: bool) -> None:
    how = r.choice(["detach", "data", "numpy", "no_grad", "tensor"])
    if r.random() < 0.25:  # the whole loss is cut
        d.form = "mapping"

        def loss(model: nn.Module, batch: Any) -> Tensor:
            value = d.criterion(model(batch[0]), batch[1])
            return torch.tensor(value.item(), requires_grad=True) if fault else value

        d.loss = loss
        return
    make, outs = d.make, d.classes or 1

    def cut() -> nn.Module:
        body = make()
        last = [m for m in body.modules() if isinstance(m, nn.Linear)]
        width = last[-1].in_features if last else 1
        if not last:
            return _Cut(body, nn.Linear(1, 1), how if fault else "")
        last[-1].out_features = 6
        last[-1].weight = nn.Parameter(0.2 * torch.randn(6, width) / width**0.5)
        last[-1].bias = nn.Parameter(torch.zeros(6))
        return _Cut(body, nn.Linear(6, outs), how if fault else "")

    d.make = cut


@plant("optimizer_other_parameters")
def _(d: Draft, r: random.Random, fault: bool) -> None:
    kind = r.choice(["copy", "part", "new head", "no step"])
    if not fault:
        return
    if kind == "copy":
        d.params = lambda m: copied(m).parameters()
    elif kind == "part":
        d.params = lambda m: list(m.parameters())[-1:]
    elif kind == "new head":
        # The optimizer is built, then the layers are replaced.
        def params(model: nn.Module) -> Any:
            old = list(model.parameters())
            for module in list(model.modules()):
                for name, child in list(module.named_children()):
                    leaf = isinstance(child, (nn.Linear, nn.Embedding, nn.Conv2d))
                    if leaf and not isinstance(module, nn.MultiheadAttention):
                        setattr(module, name, copied(child))
            return old

        d.params = params
    else:

        def step(model: nn.Module, loss: Any, optimizer: Any) -> Any:
            def body(batch: Any) -> float:
                optimizer.zero_grad()
                value = loss(model, batch)
                value.backward()
                return float(value)

            return body

        d.step = step


@plant("zero_grad_forgotten", ["clusters", "teacher", "pictures", "signals", "symbols"])
def _(d: Draft, r: random.Random, fault: bool) -> None:
    d.step = lambda m, f, o: ordinary_step(m, f, o, zero=not fault)


@plant("accumulation_undivided", ["clusters", "teacher", "pictures", "signals"], sgd=True)
def _(d: Draft, r: random.Random, fault: bool) -> None:
    every = r.choice([4, 8, 16])
    d.size = 8
    d.lr *= {4: 4, 8: 3, 16: 2}[every]
    d.step = lambda m, f, o: ordinary_step(m, f, o, every=every, divide=not fault)


@plant("softmax_twice", ["clusters", "pictures", "symbols", "documents"], sgd=True)
def _(d: Draft, r: random.Random, fault: bool) -> None:
    inside = r.random() < 0.5
    if d.spec.get("ids"):
        d.y, d.yv = ((t > 0).float() for t in (d.y, d.yv))
        d.criterion = F.binary_cross_entropy_with_logits
        d.spec["constant"] = 0.693
        if fault:
            d.after.append(lambda m: nn.Sequential(m, nn.Sigmoid()))
            d.spec["judge"] = lambda m, b: F.binary_cross_entropy(m(_x(b)), _y(b))
        return
    if fault:
        if inside:
            d.after.append(lambda m: nn.Sequential(m, nn.Softmax(-1)))
            d.spec["judge"] = lambda m, b: F.nll_loss(
                m(_x(b)).clamp_min(1e-9).log().flatten(0, -2), _y(b).flatten()
            )
        else:
            own = d.criterion
            d.loss = lambda m, b: own(torch.softmax(m(_x(b)), -1), _y(b))


def _x(batch: Any) -> Tensor:
    return batch["x"] if isinstance(batch, dict) else batch[0]


def _y(batch: Any) -> Tensor:
    return batch["label"] if isinstance(batch, dict) else batch[1]


@plant("wrong_axis", ["clusters", "teacher", "teacher", "pictures", "signals"])
def _(d: Draft, r: random.Random, fault: bool) -> None:
    own = d.criterion
    if d.family == "signals":
        inputs, width, outs = d.spec["inputs"], d.spec["width"], d.classes or 1

        class Mixed(nn.Module):
            """Batch first, and the net reads it as time first."""

            def __init__(self) -> None:
                super().__init__()
                self.rnn = nn.GRU(inputs, width, batch_first=not fault)
                self.head = nn.Linear(width, outs)

            def forward(self, x: Tensor) -> Tensor:
                return self.head(self.rnn(x)[0][:, -1])

        d.make = Mixed
    elif d.family == "clusters":
        first, last = d.spec["widths"][0], d.spec["widths"][-1]

        class Turned(nn.Module):
            """A view where a transpose is meant: entries of several samples meet in one row."""

            def __init__(self) -> None:
                super().__init__()
                self.one, self.two = nn.Linear(first, 48), nn.Linear(48, last)

            def forward(self, x: Tensor) -> Tensor:
                h = torch.relu(self.one(x)).t()  # units first
                h = h.reshape(h.shape[1], h.shape[0]) if fault else h.t()
                return self.two(h)

        d.make = Turned
    elif not d.classes:
        d.y, d.yv = d.y.squeeze(1), d.yv.squeeze(1)
        d.criterion = (
            (lambda out, y: (out - y).square().mean())
            if fault
            else (lambda out, y: (out.squeeze(1) - y).square().mean())
        )
        d.spec["constant"] = float((d.yv - d.y.mean()).square().mean())
    elif fault:
        d.loss = lambda m, b: F.nll_loss(torch.log_softmax(m(_x(b)), dim=0), _y(b))
    if fault and d.loss is not None:
        d.spec["judge"] = lambda m, b: own(m(_x(b)), _y(b))


@plant("sum_not_mean", ["clusters", "teacher", "pictures", "symbols"], sgd=True)
def _(d: Draft, r: random.Random, fault: bool) -> None:
    d.size, hand = r.choice([32, 64]), r.random() < 0.5
    own = d.criterion
    d.lr *= 1.5

    def summed(model: nn.Module, batch: Any) -> Tensor:
        out, y = model(_x(batch)), _y(batch)
        if not d.classes:
            return (out - y).square().sum() if hand else F.mse_loss(out, y, reduction="sum")
        out, y = out.reshape(-1, out.shape[-1]), y.reshape(-1)
        each = F.cross_entropy(out, y, reduction="none")
        return each.sum() if hand else F.cross_entropy(out, y, reduction="sum")

    if fault:
        d.loss = summed
        d.spec["judge"] = lambda m, b: own(m(_x(b)), _y(b))


@plant("eval_mode_in_training", ["clusters", "teacher", "pictures"], sgd=True)
def _(d: Draft, r: random.Random, fault: bool) -> None:
    shift, inside = r.uniform(20, 60), r.random() < 0.5
    d.x, d.xv = (10 * t + shift for t in (d.x, d.xv))
    if d.family == "pictures":
        s = d.spec
        d.make = lambda: Images(s["channels"], s["side"], d.classes, s["width"], True)
    else:
        first, last = d.spec["widths"][0], d.spec["widths"][-1]
        d.make = lambda: Net([first, 48, 48, 48, last], norm="batch")

    def step(model: nn.Module, loss: Any, optimizer: Any) -> Any:
        before = model.eval if fault and inside else None
        if fault and not inside:
            model.eval()
        elif not fault:
            before = model.train
        return ordinary_step(model, loss, optimizer, before=before)

    d.step = step


@plant("dropout_in_evaluation", ["clusters", "teacher", "signals", "documents"])
def _(d: Draft, r: random.Random, fault: bool) -> None:
    rate, in_loss = r.uniform(0.6, 0.85), r.random() < 0.4
    make = d.make
    if in_loss and "widths" in d.spec:
        widths = d.spec["widths"]
        d.make = lambda: Net([widths[0], 64, widths[-1]], drop=rate)
        own = d.criterion

        def loss(model: nn.Module, batch: Any) -> Tensor:
            if fault:
                model.train()
            return own(model(_x(batch)), _y(batch))

        d.loss = loss
        d.spec["judge"] = loss
        return

    def dropped() -> nn.Module:
        model = make()
        last = [m for m in model.modules() if isinstance(m, nn.Linear)]
        if last:
            last[-1].register_forward_pre_hook(
                lambda m, i: (F.dropout(i[0], rate, training=True if fault else m.training),)
            )
        else:
            model.user.register_forward_hook(  # type: ignore[union-attr, operator]
                lambda m, i, o: F.dropout(o, rate, training=True if fault else m.training)
            )
        return model

    d.make = dropped


@plant("weight_decay_too_large")
def _(d: Draft, r: random.Random, fault: bool) -> None:
    if d.optimizer in ("SGD", "Adam"):
        size = 10 ** r.uniform(-0.5, 0.3) if d.optimizer == "SGD" else 10 ** r.uniform(-0.7, 0.5)
    else:
        size = 10 ** r.uniform(1.2, 2)
    if fault:
        d.settings = {**d.settings, "weight_decay": size}


@plant("momentum_extreme")
def _(d: Draft, r: random.Random, fault: bool) -> None:
    size, betas = (
        r.choice([0.997, 0.999, 0.9995]),
        r.choice([(0.999, 0.1), (0.997, 0.3), (0.9, 0.01)]),
    )
    if not fault:
        return
    if d.optimizer == "SGD":
        d.settings = {**d.settings, "momentum": size}
    else:
        d.settings = {**d.settings, "betas": betas}
        d.lr *= 4


@plant("leakage", ["clusters", "teacher", "pictures", "signals", "documents"])
def _(d: Draft, r: random.Random, fault: bool) -> None:
    share = r.uniform(0.3, 1.0)
    d.hold, d.weak = True, True
    if d.spec.get("ids"):
        d.weak, d.spec["constant"] = False, -1.0  # pairs of ids repeat anyway: dropped
    if fault:
        n = int(share * len(d.xv))
        d.xv = torch.cat([d.x[:n], d.xv[n:]])
        d.yv = torch.cat([d.y[:n], d.yv[n:]])


@plant("overfitting", ["clusters", "teacher", "pictures", "documents"])
def _(d: Draft, r: random.Random, fault: bool) -> None:
    rows, width = r.choice([24, 32, 48]), r.choice([128, 256])
    d.hold, d.size = True, 16
    if d.spec.get("ids"):
        d.spec["constant"] = -1.0
    if "widths" in d.spec:
        first, last = d.spec["widths"][0], d.spec["widths"][-1]
        d.make = lambda: Net([first, width, width, last])
        d.optimizer, d.lr, d.settings = "AdamW", 3e-3, {}
    g = torch.Generator().manual_seed(r.randrange(2**31))
    if not d.classes:
        d.y = d.y + 0.7 * torch.randn(d.y.shape, generator=g)
    elif d.x.is_floating_point():  # classes overlap
        d.x = d.x + 1.0 * torch.randn(d.x.shape, generator=g)
        d.xv = d.xv + 1.0 * torch.randn(d.xv.shape, generator=g)
    if fault:
        d.x, d.y = d.x[:rows], d.y[:rows]


@plant("underfitting", ["clusters", "teacher"])
def _(d: Draft, r: random.Random, fault: bool) -> None:
    width = r.choice([0, 1, 2])
    first, last = d.spec["widths"][0], d.spec["widths"][-1]
    g = torch.Generator().manual_seed(r.randrange(2**31))
    if not d.classes:
        w = torch.randn(first, 2, generator=g) / first**0.5
        d.y, d.yv = (((t @ w).square().sum(1, keepdim=True) - 2) / 2 for t in (d.x, d.xv))
    else:
        w = torch.randn(first, 4, generator=g) / first**0.5
        d.y, d.yv = (((t @ w)[:, 0] * (t @ w)[:, 1] > 0).long() for t in (d.x, d.xv))
        d.classes, last = 2, 2
    d.optimizer, d.lr, d.settings = "Adam", 5e-3, {}
    if fault and not width:
        d.make = lambda: nn.Linear(first, last)
    else:
        d.make = lambda: stacked([first, width if fault else 64, last])


@plant("batch_norm_of_one", ["clusters", "pictures"])
def _(d: Draft, r: random.Random, fault: bool) -> None:
    d.size = 1 if fault else 16
    d.form = r.choice(["mapping", "tuple"])
    s = d.spec
    if d.family == "pictures":
        d.make = lambda: Images(s["channels"], s["side"], d.classes, s["width"], True)
    else:
        first, last = s["widths"][0], s["widths"][-1]
        d.make = lambda: Net([first, 32, last], norm="batch")
    d.x, d.y = d.x[:400], d.y[:400]


@plant("not_shuffled", ["clusters", "teacher", "pictures", "documents"])
def _(d: Draft, r: random.Random, fault: bool) -> None:
    d.form = r.choice(["mapping", "tuple", "dicts"])
    if fault:
        order = d.y.flatten().argsort(stable=True)
        d.x, d.y = d.x[order], d.y[order]


@plant("repeated_batches", ["clusters", "teacher", "pictures", "documents"])
def _(d: Draft, r: random.Random, fault: bool) -> None:
    """So many workers share one seed: every batch comes so often, and most are never seen."""
    workers, hold = r.choice([4, 6, 8]), r.choice(["mapping", "tuple", "dicts"])
    d.form, d.hold = hold, True
    if fault:
        d.batches = lambda b: [b[k // workers] for k in range(len(b))]


@plant("clipping_too_tight", sgd=True)
def _(d: Draft, r: random.Random, fault: bool) -> None:
    limit, own = 10 ** -r.uniform(4, 7), r.random() < 0.25
    if own:
        d.optimizer, d.settings = "mindgap.GClip", {"tau": limit if fault else 10.0}
        return
    d.step = lambda m, f, o: ordinary_step(m, f, o, clip=limit if fault else None)


@plant("scheduler_at_zero")
def _(d: Draft, r: random.Random, fault: bool) -> None:
    kind, gamma = r.choice(["exponential", "step", "linear", "lambda"]), r.uniform(0.3, 0.7)
    sched = torch.optim.lr_scheduler
    if not fault:
        return
    if kind == "exponential":
        d.schedule = lambda o: sched.ExponentialLR(o, gamma)
    elif kind == "step":
        d.schedule = lambda o: sched.StepLR(o, 2, gamma=0.1)
    elif kind == "linear":
        d.schedule = lambda o: sched.LinearLR(o, 1.0, 1e-9, total_iters=8)
    else:
        d.schedule = lambda o: sched.LambdaLR(o, lambda k: max(0.0, 1 - k / 10))


@plant("scheduler_negative")
def _(d: Draft, r: random.Random, fault: bool) -> None:
    length = r.randrange(25, 70)
    if fault:
        d.schedule = lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda k: 1 - k / length)


@plant("heavy_tailed_noise", ["teacher", "documents"])
def _(d: Draft, r: random.Random, fault: bool) -> None:
    index, seed, scale = r.uniform(1.05, 1.3), r.randrange(2**31), r.uniform(1, 2)
    if d.classes:
        d.spec["constant"] = -1.0
        return
    if fault:
        state = torch.get_rng_state()
        torch.manual_seed(seed)
        noise = torch.distributions.StudentT(index)
        d.y = d.y + scale * noise.sample(d.y.shape)
        d.yv = d.yv + scale * noise.sample(d.yv.shape)
        torch.set_rng_state(state)


@plant("smoothness_grows", ["teacher", "clusters"], sgd=True)
def _(d: Draft, r: random.Random, fault: bool) -> None:
    kind, factor = r.choice(["fourth", "exp"]), r.uniform(4, 8)
    d.form = r.choice(["mapping", "tuple"])
    if d.classes:
        d.y, d.yv = ((t % 2).long() for t in (d.y, d.yv))
        w = d.spec["widths"]
        d.classes = 2
        d.make = lambda: Net([w[0], 32, 1])

        def margin(model: nn.Module, batch: Any) -> Tensor:
            sign = 2 * batch[1].float() - 1
            return (-sign * factor * model(batch[0]).squeeze(1)).exp().mean()

        d.lr = 0.1
        d.spec["constant"] = 1.0
        d.loss = margin
        d.step = None if fault else _clipped
        return
    d.y, d.yv = factor * d.y, factor * d.yv
    power = 4 if kind == "fourth" else 6

    def loss(model: nn.Module, batch: Any) -> Tensor:
        return ((model(batch[0]) - batch[1]) / 2).pow(power).mean()

    d.lr = 0.5
    d.settings = {}
    d.loss = loss
    d.spec["constant"] = float(((d.yv - d.y.mean()) / 2).pow(power).mean())
    d.step = None if fault else _clipped


def _clipped(model: nn.Module, loss: Any, optimizer: Any) -> Any:
    return ordinary_step(model, loss, optimizer, clip=0.3)
