"""Cases that look odd and are healthy."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from hospital import case
from tasks import (
    Bag,
    Recurrent,
    Transformer,
    adamw,
    batched,
    circles,
    classify,
    conv,
    digits,
    draw,
    images,
    mlp,
    ours,
    patient,
    regress,
    series,
    sgd,
    stepping,
    table,
    text,
    words,
)
from torch import Tensor, nn

Parts = dict[str, Any]
Pair = tuple[Tensor, Tensor]


@case("odd-warm-up-transformer", "healthy")
def _() -> Parts:
    model = Transformer(depth=2)
    optimizer = adamw(model, 5e-3)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda k: min(1.0, (k + 1) / 100))
    return patient(model, text(), optimizer, scheduler=scheduler)


@case("odd-warm-restarts", "healthy")
def _() -> Parts:
    model = mlp(64, 64, 10)
    optimizer = sgd(model, 0.3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 40)
    return patient(model, digits(), optimizer, scheduler=scheduler)


@case("odd-large-batches", "healthy")
def _() -> Parts:
    model = mlp(64, 64, 10)
    return patient(model, digits(), adamw(model, 1e-2), size=368)


@case("odd-full-batch-edge-of-stability", "healthy")
def _() -> Parts:
    model = mlp(64, 32, 10, act=nn.Tanh)
    return patient(model, digits(), sgd(model, 0.8), size=736)


@case("odd-label-smoothing", "healthy")
def _() -> Parts:
    model = mlp(64, 64, 10)

    def loss(model: nn.Module, batch: Pair) -> Tensor:
        return F.cross_entropy(model(batch[0]), batch[1], label_smoothing=0.2)

    return patient(model, digits(), adamw(model, 3e-3), loss)


@case("odd-wide-targets", "healthy")
def _() -> Parts:
    x, y = table()
    model = mlp(10, 64, 1)
    return patient(model, (x, 100 * y + 30), adamw(model, 3e-2), regress)


@case("odd-gan", "healthy")
def _() -> Parts:
    """Generator and judge play; the loss of the judge must not fall steadily."""
    g = draw(8)
    real = torch.randn(1280, 2, generator=g) * torch.tensor([0.5, 1.0]) + 2
    make, judge = mlp(4, 32, 2), mlp(2, 32, 1)
    model = nn.ModuleDict({"make": make, "judge": judge})
    first = torch.optim.Adam(make.parameters(), lr=1e-3)
    second = torch.optim.Adam(judge.parameters(), lr=1e-3)

    def loss(model: nn.Module, batch: Tensor) -> Tensor:
        fake = model["make"](torch.randn(len(batch), 4))
        return F.softplus(-model["judge"](batch)).mean() + F.softplus(model["judge"](fake)).mean()

    def step(batch: Tensor) -> Tensor:
        value = loss(model, batch)
        second.zero_grad()
        value.backward()
        second.step()
        first.zero_grad()
        F.softplus(-judge(make(torch.randn(len(batch), 4)))).mean().backward()
        first.step()
        return value

    return {
        "model": model,
        "loss": loss,
        "train": list(real.split(32)),
        "optimizer": second,
        "step": step,
    }


@case("odd-pinn", "healthy")
def _() -> Parts:
    """u'' = -sin(x), u(0) = u(π) = 0, by the residual at random points."""
    model = mlp(1, 32, 32, 1, act=nn.Tanh)

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        with torch.enable_grad():
            x = x.clone().requires_grad_()
            u = model(x)
            du = torch.autograd.grad(u.sum(), x, create_graph=True)[0]
            ddu = torch.autograd.grad(du.sum(), x, create_graph=True)[0]
        ends = model(torch.tensor([[0.0], [math.pi]]))
        return (ddu + x.detach().sin()).square().mean() + ends.square().mean()

    points = math.pi * torch.rand(1280, 1, generator=draw(9))
    return {
        "model": model,
        "loss": loss,
        "train": list(points.split(32)),
        "optimizer": adamw(model, 3e-3),
    }


@case("odd-batch-norm-conv", "healthy")
def _() -> Parts:
    model = conv(norm=True)
    return patient(model, images(), sgd(model, 0.1))


@case("odd-bfloat16", "healthy")
def _() -> Parts:
    model = mlp(64, 64, 10)

    def loss(model: nn.Module, batch: Pair) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            scores = model(batch[0])
        return F.cross_entropy(scores.float(), batch[1])

    return patient(model, digits(), adamw(model, 3e-3), loss)


@case("odd-loss-near-its-floor", "healthy")
def _() -> Parts:
    """Noise is most of the loss: the best fit leaves 85 % of it."""
    x, _ = table()
    g = draw(10)
    y = 0.4 * x[:, :1] + torch.randn(len(x), 1, generator=g)
    model = nn.Linear(10, 1)
    return patient(model, (x, y), sgd(model, 0.02), regress)


@case("odd-dropout", "healthy")
def _() -> Parts:
    model = nn.Sequential(
        nn.Linear(64, 128),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(128, 64),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(64, 10),
    )
    return patient(model, digits(), adamw(model, 3e-3))


@case("odd-fine-tuning-frozen-body", "healthy")
def _() -> Parts:
    """The body was trained before; only the head is trained now."""
    torch.manual_seed(3)
    x, y = digits()
    body = mlp(64, 64, 10)
    before = adamw(body, 1e-2)
    for _ in range(60):
        before.zero_grad()
        F.cross_entropy(body(x[:800]), y[:800]).backward()
        before.step()
    for p in body.parameters():
        p.requires_grad_(False)
    head = nn.Linear(64, 10)
    model = nn.Sequential(body[0], body[1], head)
    return patient(model, (x, y), torch.optim.Adam(head.parameters(), lr=1e-2))


@case("odd-tied-embeddings", "healthy")
def _() -> Parts:
    model = Transformer()
    model.head.weight = model.embed.weight
    nn.init.normal_(model.embed.weight, std=0.2)
    return patient(model, text(), adamw(model, 5e-3))


@case("odd-zero-initialised-last-layer", "healthy")
def _() -> Parts:
    model = mlp(64, 64, 10)
    nn.init.zeros_(model[-1].weight)
    nn.init.zeros_(model[-1].bias)
    return patient(model, digits(), sgd(model, 0.2))


@case("odd-clipping-at-one", "healthy")
def _() -> Parts:
    model = Recurrent("LSTM")
    optimizer = adamw(model, 1e-2)
    return patient(model, series(), optimizer, step=stepping(model, classify, optimizer, clip=1.0))


@case("odd-accumulation-divided", "healthy")
def _() -> Parts:
    model = mlp(64, 64, 10)
    optimizer = adamw(model, 1e-2)
    step = stepping(model, classify, optimizer, every=4)
    return patient(model, digits(), optimizer, size=8, step=step)


@case("odd-rare-class", "healthy")
def _() -> Parts:
    x, y = digits()
    keep = (y != 7) | (torch.arange(len(y)) % 12 == 0)
    model = mlp(64, 64, 10)
    return patient(model, (x[keep], y[keep]), adamw(model, 3e-3))


@case("odd-three-percent-wrong-labels", "healthy")
def _() -> Parts:
    x, y = digits()
    wrong = torch.rand(len(y), generator=draw(12)) < 0.02
    y = torch.where(wrong, torch.randint(10, y.shape, generator=draw(13)), y)
    model = mlp(64, 64, 10)
    return patient(model, (x, y), adamw(model, 2e-3))


@case("odd-contrastive", "healthy")
def _() -> Parts:
    """Two views of one sample must find each other in the batch: samples are mixed on purpose."""
    x, _ = digits()
    model = mlp(64, 64, 16)

    def loss(model: nn.Module, batch: Tensor) -> Tensor:
        a = F.normalize(model(batch + 0.1 * torch.randn_like(batch)), dim=1)
        b = F.normalize(model(batch + 0.1 * torch.randn_like(batch)), dim=1)
        return F.cross_entropy(a @ b.T / 0.2, torch.arange(len(batch)))

    return {
        "model": model,
        "loss": loss,
        "train": list(x[:1280].split(32)),
        "optimizer": adamw(model, 3e-3),
    }


@case("odd-autoencoder", "healthy")
def _() -> Parts:
    x, _ = digits()
    model = nn.Sequential(mlp(64, 32, 8), nn.ReLU(), mlp(8, 32, 64))

    def loss(model: nn.Module, batch: Tensor) -> Tensor:
        return F.mse_loss(model(batch), batch)

    return {
        "model": model,
        "loss": loss,
        "train": list(x[:1440].split(32)),
        "optimizer": adamw(model, 5e-3),
    }


@case("odd-vae", "healthy")
def _() -> Parts:
    x, _ = digits()

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.code, self.paint = mlp(64, 64, 16), mlp(8, 64, 64)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            mean, log = self.code(x).chunk(2, 1)
            return self.paint(mean + (log / 2).exp() * torch.randn_like(mean)), mean, log

    def loss(model: nn.Module, batch: Tensor) -> Tensor:
        out, mean, log = model(batch)
        fit = (out - batch).square().sum(1).mean()
        return fit + 0.02 * (mean.square() + log.exp() - 1 - log).sum(1).mean()

    model = Model()
    return {
        "model": model,
        "loss": loss,
        "train": list(x[:1440].split(32)),
        "optimizer": adamw(model, 5e-3),
    }


@case("odd-negative-loss", "healthy")
def _() -> Parts:
    """A density: the loss goes below zero."""
    x, y = table(9600)

    def loss(model: nn.Module, batch: Pair) -> Tensor:
        mean, log = model(batch[0]).chunk(2, 1)
        return (log + 0.5 * ((batch[1] - mean) * (-log).exp()).square()).mean()

    model = mlp(10, 32, 32, 2)
    return patient(model, (x, y), adamw(model, 3e-3), loss)


@case("odd-sparse-features-bag", "healthy")
def _() -> Parts:
    model = Bag(width=32)
    return patient(model, words(6400), adamw(model, 5e-3))


@case("odd-half-dead-wide-relu", "healthy")
def _() -> Parts:
    """A third of the units are zero on every sample; the others are enough."""
    model = mlp(64, 192, 10)
    with torch.no_grad():
        model[0].bias[:64] = -5.0
    return patient(model, digits(), adamw(model, 3e-3))


@case("odd-binary-features", "healthy")
def _() -> Parts:
    x, y = digits()
    model = mlp(64, 64, 10)
    return patient(model, ((x > 0.5).float(), y), ours("AdamW", model, lr=3e-3, clip="auto"))


@case("odd-huber-outliers-sgd", "healthy")
def _() -> Parts:
    """A few wild targets, and a loss that bounds them."""
    x, y = table()
    y[::97] += 50

    def loss(model: nn.Module, batch: Pair) -> Tensor:
        return F.smooth_l1_loss(model(batch[0]), batch[1], beta=0.5)

    model = mlp(10, 64, 64, 1)
    return patient(model, (x, y), adamw(model, 3e-3), loss)


@case("odd-acclip-conv", "healthy")
def _() -> Parts:
    model = conv()
    return patient(model, images(), ours("ACClip", model, lr=3e-3))


@case("odd-momentum-0.95-cosine", "healthy")
def _() -> Parts:
    model = conv(norm=True)
    optimizer = sgd(model, 0.05, momentum=0.95)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 300)
    return patient(model, images(), optimizer, scheduler=scheduler)


@case("odd-weight-decay-0.1-transformer", "healthy")
def _() -> Parts:
    model = Transformer(depth=2)
    return patient(model, text(), adamw(model, 3e-3, betas=(0.9, 0.95), weight_decay=0.1))


@case("odd-ema-teacher", "healthy")
def _() -> Parts:
    """A teacher follows the student without being in the optimizer."""
    x, y = digits()

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.student, self.teacher = mlp(64, 64, 10), mlp(64, 64, 10)
            self.teacher.load_state_dict(self.student.state_dict())
            self.teacher.requires_grad_(False)

        def forward(self, x: Tensor) -> Tensor:
            return self.student(x)

    model = Model()
    optimizer = adamw(model.student, 3e-3)

    def loss(model: nn.Module, batch: Pair) -> Tensor:
        scores = model(batch[0])
        near = F.mse_loss(scores, model.teacher(batch[0]).detach())
        return F.cross_entropy(scores, batch[1]) + 0.05 * near

    def step(batch: Pair) -> Tensor:
        optimizer.zero_grad()
        value = loss(model, batch)
        value.backward()
        optimizer.step()
        with torch.no_grad():
            for a, b in zip(model.teacher.parameters(), model.student.parameters()):
                a.lerp_(b, 0.1)
        return value

    return patient(model, (x, y), optimizer, loss, step=step)


@case("odd-plain-linear-on-digits", "healthy")
def _() -> Parts:
    model = nn.Linear(64, 10)
    return patient(model, digits(), sgd(model, 0.5))


@case("odd-small-batches-of-four", "healthy")
def _() -> Parts:
    model = mlp(64, 64, 10)
    return patient(model, digits(), sgd(model, 0.05), size=4)


@case("odd-group-norm-batch-of-one", "healthy")
def _() -> Parts:
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.GroupNorm(2, 8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(128, 10),
    )
    train, valid = batched(images(), 1)
    return patient(model, (train[:400], valid), adamw(model, 2e-3))


@case("odd-circles-mlp", "healthy")
def _() -> Parts:
    model = mlp(6, 64, 64, 2)
    return patient(model, circles(), torch.optim.Adam(model.parameters(), lr=5e-3))
