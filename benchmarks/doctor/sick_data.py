"""Cases whose cause is in the data."""

from __future__ import annotations

from typing import Any

import torch
from hospital import case
from tasks import (
    Bag,
    Recurrent,
    Transformer,
    adamw,
    batched,
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
    table,
    text,
    words,
)
from torch import Tensor

Parts = dict[str, Any]


def _noisy(y: Tensor, share: float, classes: int, seed: int = 0) -> Tensor:
    wrong = torch.rand(y.shape, generator=draw(seed)) < share
    return torch.where(wrong, torch.randint(classes, y.shape, generator=draw(seed + 1)), y)


@case("labels-40-percent-random-mlp", "wrong_labels")
def _() -> Parts:
    x, y = digits()
    model = mlp(64, 64, 10)
    return patient(model, (x, _noisy(y, 0.4, 10)), adamw(model, 3e-3))


@case("labels-half-random-conv", "wrong_labels")
def _() -> Parts:
    x, y = images()
    model = conv()
    return patient(model, (x, _noisy(y, 0.5, 10, 5)), sgd(model, 0.1))


@case("labels-random-mlp-sgd", "wrong_labels")
def _() -> Parts:
    x, y = digits()
    model = mlp(64, 128, 10)
    return patient(model, (x, _noisy(y, 1.0, 10, 7)), sgd(model, 0.1, momentum=0.9))


@case("labels-half-random-bag", "wrong_labels")
def _() -> Parts:
    x, y = words()
    model = Bag()
    return patient(model, (x, _noisy(y, 0.5, 4, 9)), adamw(model, 1e-2))


@case("labels-one-class-mlp", "wrong_labels")
def _() -> Parts:
    x, y = digits()
    mask = (y == 3) | (y == 8)
    y = torch.where(mask, _noisy(y, 1.0, 10, 11), y)
    model = mlp(64, 64, 10)
    return patient(model, (x, y), adamw(model, 3e-3))


@case("labels-shifted-mlp", "labels_shifted")
def _() -> Parts:
    x, y = digits()
    model = mlp(64, 64, 10)
    return patient(model, (x, y.roll(1)), adamw(model, 3e-3))


@case("labels-shifted-conv", "labels_shifted")
def _() -> Parts:
    x, y = images()
    model = conv()
    return patient(model, (x, y.roll(-1)), sgd(model, 0.1, momentum=0.9))


@case("labels-shifted-table", "labels_shifted")
def _() -> Parts:
    x, y = table()
    model = mlp(10, 64, 1)
    return patient(model, (x, y.roll(1, 0)), adamw(model, 3e-3), regress)


@case("bad-sample-features-mlp", "bad_sample")
def _() -> Parts:
    x, y = digits()
    x[77] = 3e4
    model = mlp(64, 64, 10)
    return patient(model, (x, y), sgd(model, 0.1))


@case("bad-sample-target-table", "bad_sample")
def _() -> Parts:
    x, y = table()
    y[123] = 1e5
    model = mlp(10, 64, 1)
    return patient(model, (x, y), sgd(model, 0.05), regress)


@case("bad-sample-nan-pixel-conv", "bad_sample")
def _() -> Parts:
    x, y = images()
    x[300, 0, 4, 4] = float("nan")
    model = conv()
    return patient(model, (x, y), adamw(model, 1e-3))


@case("bad-sample-series", "bad_sample")
def _() -> Parts:
    x, y = series(length=8)
    x[500, 7, 0] = 1e9
    model = Recurrent("ReLU")
    return patient(model, (x, y), sgd(model, 0.3))


@case("bad-batch-scaled-mlp", "bad_batch")
def _() -> Parts:
    model = mlp(64, 64, 10)
    train, valid = batched(digits())
    train[12] = (train[12][0] * 2000, train[12][1])
    return patient(model, (train, valid), sgd(model, 0.1))


@case("bad-batch-nan-bag", "bad_batch")
def _() -> Parts:
    train, valid = batched(series())
    train[20] = (train[20][0] * float("nan"), train[20][1])
    model = Recurrent("GRU")
    return patient(model, (train, valid), adamw(model, 3e-3))


@case("bad-batch-targets-table", "bad_batch")
def _() -> Parts:
    train, valid = batched(table())
    train[9] = (train[9][0], train[9][1] * 1e4 + 1e4)
    model = mlp(10, 64, 1)
    return patient(model, (train, valid), adamw(model, 3e-3), regress)


@case("bad-batch-scaled-conv", "bad_batch")
def _() -> Parts:
    train, valid = batched(images())
    train[15] = (train[15][0] * 1e4, train[15][1])
    model = conv()
    return patient(model, (train, valid), sgd(model, 0.05, momentum=0.9))


@case("constant-feature-mlp", "constant_feature")
def _() -> Parts:
    x, y = digits()
    x[:, 0] = 500.0
    model = mlp(64, 64, 10)
    return patient(model, (x, y), sgd(model, 0.1))


@case("constant-feature-standardised", "constant_feature")
def _() -> Parts:
    x, y = table()
    x[:, 4] = 2.0
    model = mlp(10, 64, 1)
    return patient(model, ((x - x.mean(0)) / x.std(0), y), adamw(model, 3e-3), regress)


@case("constant-feature-table", "constant_feature")
def _() -> Parts:
    x, y = table()
    x[:, 2] = 1000.0
    model = mlp(10, 64, 1)
    return patient(model, (x, y), sgd(model, 0.01), regress)


@case("feature-1e6-table", "unscaled_features")
def _() -> Parts:
    x, y = table()
    x[:, 3] *= 1e6
    model = mlp(10, 64, 1)
    return patient(model, (x, y), adamw(model, 3e-3), regress)


@case("unscaled-digits-sgd", "unscaled_features")
def _() -> Parts:
    x, y = digits()
    model = mlp(64, 64, 10)
    return patient(model, (x * 4080, y), sgd(model, 0.1))


@case("unscaled-series-rnn", "unscaled_features")
def _() -> Parts:
    x, y = series()
    model = Recurrent("RNN")
    return patient(model, (x * torch.tensor([1.0, 1e5]), y), adamw(model, 3e-3))


@case("unscaled-columns-ours", "unscaled_features")
def _() -> Parts:
    x, y = table()
    x = x * torch.tensor([1.0, 1e3, 1.0, 3e4, 1.0, 1.0, 2e3, 1.0, 1.0, 1.0]) + 5e3
    model = mlp(10, 64, 1)
    return patient(model, (x, y), ours("AdamW", model, lr=3e-3, clip="auto"), regress)


@case("leakage-duplicates-mlp", "leakage")
def _() -> Parts:
    x, y = digits()
    train, _ = batched((x, y))
    model = mlp(64, 64, 10)
    valid = [(x[:160], y[:160]), (x[1300:1400], y[1300:1400])]
    return patient(model, (train, valid), adamw(model, 3e-3))


@case("leakage-duplicates-bag", "leakage")
def _() -> Parts:
    x, y = words()
    train, _ = batched((x, y))
    model = Bag()
    return patient(model, (train, [(x[200:520], y[200:520])]), adamw(model, 1e-2))


@case("leakage-half-conv", "leakage")
def _() -> Parts:
    x, y = images()
    train, valid = batched((x, y))
    model = conv()
    valid = [(torch.cat([a[:80], x[:80]]), torch.cat([b[:80], y[:80]])) for a, b in valid]
    return patient(model, (train, valid), sgd(model, 0.1))


@case("not-shuffled-mlp", "not_shuffled")
def _() -> Parts:
    x, y = digits()
    order = y[:1472].argsort()
    x, y = torch.cat([x[:1472][order], x[1472:]]), torch.cat([y[:1472][order], y[1472:]])
    model = mlp(64, 64, 10)
    return patient(model, (x, y), sgd(model, 0.1))


@case("not-shuffled-conv-adamw", "not_shuffled")
def _() -> Parts:
    x, y = images()
    order = y[:1472].argsort(stable=True)
    x, y = torch.cat([x[:1472][order], x[1472:]]), torch.cat([y[:1472][order], y[1472:]])
    model = conv()
    return patient(model, (x, y), adamw(model, 3e-3))


@case("not-shuffled-table", "not_shuffled")
def _() -> Parts:
    x, y = table()
    order = y[:1280, 0].argsort()
    x, y = torch.cat([x[:1280][order], x[1280:]]), torch.cat([y[:1280][order], y[1280:]])
    model = mlp(10, 64, 1)
    return patient(model, (x, y), sgd(model, 0.1), regress)


@case("labels-half-random-text", "wrong_labels")
def _() -> Parts:
    x, y = text()
    model = Transformer()
    return patient(model, (x, _noisy(y, 0.6, 20, 21)), adamw(model, 3e-3))


@case("repeated-batches-workers", "repeated_batches")
def _() -> Parts:
    """Four workers with one seed: every batch comes four times."""
    train, valid = batched(images())
    model = conv()
    return patient(model, ([train[k // 4] for k in range(48)], valid), adamw(model, 3e-3))
