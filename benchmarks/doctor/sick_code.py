"""Cases whose cause is a mistake in the user's code."""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.nn.functional as F
from hospital import case
from tasks import (
    Bag,
    Block,
    Chain,
    Recurrent,
    Transformer,
    adamw,
    batched,
    classify,
    conv,
    digits,
    images,
    mlp,
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


# NaN and overflow.


@case("nan-log-of-zero", "nan_operation")
def _() -> Parts:
    model = mlp(64, 64, 10)

    def loss(model: nn.Module, batch: Pair) -> Tensor:
        chances = torch.softmax(40 * model(batch[0]), 1)
        return -chances.log()[torch.arange(len(batch[1])), batch[1]].mean()

    return patient(model, digits(), sgd(model, 0.5), loss)


@case("nan-sqrt-at-zero", "nan_operation")
def _() -> Parts:
    model = mlp(10, 32, 1)

    def loss(model: nn.Module, batch: Pair) -> Tensor:
        out = model(batch[0])
        apart = (out - out.T).square().sqrt().mean()  # the derivative at zero distance is infinite
        return (out - batch[1]).square().mean() - 0.01 * apart

    return patient(model, table(), adamw(model, 3e-3), loss)


@case("nan-division-by-norm", "nan_operation")
def _() -> Parts:
    x, y = digits()
    x[::50] = 0
    model = Chain(lambda x: x / x.norm(dim=1, keepdim=True), mlp(64, 64, 10))
    return patient(model, (x, y), adamw(model, 3e-3))


@case("nan-log-loss-bag", "nan_operation")
def _() -> Parts:
    model = nn.Sequential(Bag(), nn.ReLU())

    def loss(model: nn.Module, batch: Pair) -> Tensor:
        score = model(batch[0])
        return -(score / score.sum(1, keepdim=True)).log().gather(1, batch[1][:, None]).mean()

    return patient(model, words(), adamw(model, 3e-3), loss)


@case("overflow-half-mlp", "overflow")
def _() -> Parts:
    class Half(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(64, 64), nn.Linear(64, 10)

        def forward(self, x: Tensor) -> Tensor:
            h = self.first(x).relu().half() * 300
            return self.last(h.square().float() / 9e4)

    model = Half()
    return patient(model, digits(), adamw(model, 3e-3))


@case("overflow-half-table", "overflow")
def _() -> Parts:
    model = mlp(10, 64, 1)

    def loss(model: nn.Module, batch: Pair) -> Tensor:
        return ((model(batch[0]) - batch[1]) * 400).half().square().mean().float()

    return patient(model, table(), adamw(model, 1e-3), loss)


# Parameters that do not train.


@case("frozen-mlp-hidden", "frozen_parameters")
def _() -> Parts:
    model = mlp(64, 32, 10)
    for p in list(model.parameters())[:-1]:
        p.requires_grad_(False)
    return patient(model, digits(), sgd(model, 0.1))


@case("frozen-conv", "frozen_parameters")
def _() -> Parts:
    model = conv(2)
    for p in list(model.parameters())[2:-1]:
        p.requires_grad_(False)
    with torch.no_grad():
        model[5 if isinstance(model[5], nn.Linear) else -1].weight.mul_(0.1)
    return patient(model, images(), adamw(model, 3e-3))


@case("frozen-transformer", "frozen_parameters")
def _() -> Parts:
    model = Transformer()
    for name, p in model.named_parameters():
        p.requires_grad_(name == "head.bias" or name == "place")
    return patient(model, text(), adamw(model, 3e-3))


class _Listed(nn.Module):
    """Layers in a plain list: torch does not see them."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.hidden = [nn.Linear(inputs, 64), nn.Linear(64, 64)]
        self.last = nn.Linear(64, outputs)
        with torch.no_grad():
            self.last.weight.mul_(0.2)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.hidden:
            x = layer(x).relu()
        return self.last(x)


@case("unregistered-mlp-list", "unregistered_parameters")
def _() -> Parts:
    model = _Listed(64, 10)
    return patient(model, digits(), sgd(model, 0.1))


@case("unregistered-table-list", "unregistered_parameters")
def _() -> Parts:
    model = _Listed(10, 1)
    return patient(model, table(), adamw(model, 3e-3), regress)


@case("unregistered-transformer-blocks", "unregistered_parameters")
def _() -> Parts:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = nn.Embedding(20, 32), nn.Linear(32, 20)
            self.blocks = {"a": Block(32), "b": Block(32)}

        def forward(self, x: Tensor) -> Tensor:
            h = self.embed(x)
            for block in self.blocks.values():
                h = block(h)
            return self.head(h)

    model = Model()
    return patient(model, text(800), adamw(model, 3e-3))


@case("unregistered-tensor", "unregistered_parameters")
def _() -> Parts:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = (0.1 * torch.randn(64, 64)).requires_grad_()
            self.last = nn.Linear(64, 10)

        def forward(self, x: Tensor) -> Tensor:
            return self.last((x @ self.weight).relu())

    model = Model()
    return patient(model, digits(), sgd(model, 0.1))


@case("detached-mlp-middle", "detached_graph")
def _() -> Parts:
    model = Chain(nn.Linear(64, 16), nn.Tanh(), lambda h: h.detach(), mlp(16, 16, 10))
    return patient(model, digits(), adamw(model, 3e-3))


@case("detached-conv-numpy", "detached_graph")
def _() -> Parts:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = conv(2, classes=16), nn.Linear(16, 10)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(torch.from_numpy(self.body(x).detach().numpy()).relu())

    model = Model()
    return patient(model, images(), sgd(model, 0.1))


@case("detached-everything", "detached_graph")
def _() -> Parts:
    model = mlp(10, 32, 1)

    def loss(model: nn.Module, batch: Pair) -> Tensor:
        with torch.no_grad():
            out = model(batch[0])
        return F.mse_loss(out, batch[1])

    return patient(model, table(), adamw(model, 3e-3), loss)


@case("detached-rnn-state", "detached_graph")
def _() -> Parts:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell, self.head = nn.RNNCell(2, 16), nn.Linear(16, 2)

        def forward(self, x: Tensor) -> Tensor:
            h = x.new_zeros(len(x), 16)
            for t in range(x.shape[1]):
                h = self.cell(x[:, t], h).data
            return self.head(h)

    model = Model()
    return patient(model, series(), sgd(model, 0.1))


@case("optimizer-of-a-copy-mlp", "optimizer_other_parameters")
def _() -> Parts:
    model = mlp(64, 64, 10)
    return patient(model, digits(), sgd(copy.deepcopy(model), 0.1))


@case("optimizer-head-only-conv", "optimizer_other_parameters")
def _() -> Parts:
    model = conv(4)
    with torch.no_grad():
        model[-1].weight.mul_(0.3)
    return patient(model, images(), torch.optim.SGD([model[-1].bias], lr=0.1))


@case("optimizer-before-new-head", "optimizer_other_parameters")
def _() -> Parts:
    model = Transformer()
    optimizer = adamw(model, 3e-3)
    model.head = nn.Linear(32, 20)
    model.embed = nn.Embedding(20, 32)
    return patient(model, text(), optimizer)


@case("optimizer-first-layer-only-table", "optimizer_other_parameters")
def _() -> Parts:
    model = mlp(10, 16, 16, 1)
    return patient(model, table(), torch.optim.Adam(model[4].parameters(), lr=1e-3), regress)


# The loop.


@case("zero-grad-mlp-sgd", "zero_grad_forgotten")
def _() -> Parts:
    model = mlp(64, 64, 10)
    optimizer = sgd(model, 0.1)
    step = stepping(model, classify, optimizer, zero=False)
    return patient(model, digits(), optimizer, step=step)


@case("zero-grad-transformer-adamw", "zero_grad_forgotten")
def _() -> Parts:
    model = Transformer()
    optimizer = adamw(model, 3e-3)
    step = stepping(model, classify, optimizer, zero=False)
    return patient(model, text(), optimizer, step=step)


@case("zero-grad-table-momentum", "zero_grad_forgotten")
def _() -> Parts:
    model = mlp(10, 32, 1)
    optimizer = sgd(model, 0.02, momentum=0.9)
    step = stepping(model, regress, optimizer, zero=False)
    return patient(model, table(), optimizer, regress, step=step)


@case("accumulation-mlp-sgd", "accumulation_undivided")
def _() -> Parts:
    model = mlp(64, 64, 10)
    optimizer = sgd(model, 0.3)
    step = stepping(model, classify, optimizer, every=8, divide=False)
    return patient(model, digits(), optimizer, size=8, step=step)


@case("accumulation-conv-momentum", "accumulation_undivided")
def _() -> Parts:
    model = conv()
    optimizer = sgd(model, 0.1, momentum=0.9)
    step = stepping(model, classify, optimizer, every=16, divide=False)
    return patient(model, images(), optimizer, size=8, step=step)


@case("softmax-twice-mlp", "softmax_twice")
def _() -> Parts:
    model = nn.Sequential(mlp(64, 64, 10), nn.Softmax(1))
    return patient(model, digits(), sgd(model, 0.1))


@case("softmax-twice-conv", "softmax_twice")
def _() -> Parts:
    model = nn.Sequential(conv(), nn.Softmax(dim=1))
    return patient(model, images(), adamw(model, 3e-3))


@case("sigmoid-twice-circles", "softmax_twice")
def _() -> Parts:
    x, y = words(classes=2)
    model = nn.Sequential(Bag(classes=1), nn.Sigmoid())

    def loss(model: nn.Module, batch: Pair) -> Tensor:
        return F.binary_cross_entropy_with_logits(model(batch[0]).squeeze(1), batch[1].float())

    return patient(model, (x, y), adamw(model, 1e-2), loss)


@case("softmax-twice-transformer", "softmax_twice")
def _() -> Parts:
    model = nn.Sequential(Transformer(), nn.Softmax(-1))
    return patient(model, text(), adamw(model, 3e-3))


@case("wrong-axis-softmax-mlp", "wrong_axis")
def _() -> Parts:
    model = mlp(64, 64, 10)

    def loss(model: nn.Module, batch: Pair) -> Tensor:
        return F.nll_loss(torch.log_softmax(model(batch[0]), 0), batch[1])

    return patient(model, digits(), sgd(model, 0.1), loss)


@case("wrong-axis-broadcast-table", "wrong_axis")
def _() -> Parts:
    model = mlp(10, 64, 1)

    def loss(model: nn.Module, batch: Pair) -> Tensor:
        return (model(batch[0]) - batch[1].squeeze(1)).square().mean()

    return patient(model, table(), adamw(model, 3e-3), loss)


@case("wrong-axis-view-rnn", "wrong_axis")
def _() -> Parts:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell, self.head = nn.GRU(2, 24), nn.Linear(24, 2)

        def forward(self, x: Tensor) -> Tensor:
            # Time and batch change places by view instead of transpose: samples are mixed.
            h = self.cell(x.reshape(x.shape[1], x.shape[0], 2))[0]
            return self.head(h[-1])

    model = Model()
    return patient(model, series(), adamw(model, 3e-3))


@case("sum-not-mean-mlp", "sum_not_mean")
def _() -> Parts:
    model = mlp(64, 64, 10)

    def loss(model: nn.Module, batch: Pair) -> Tensor:
        return F.cross_entropy(model(batch[0]), batch[1], reduction="sum")

    return patient(model, digits(), sgd(model, 0.3), loss, size=64)


@case("sum-not-mean-table", "sum_not_mean")
def _() -> Parts:
    model = mlp(10, 64, 1)

    def loss(model: nn.Module, batch: Pair) -> Tensor:
        return F.mse_loss(model(batch[0]), batch[1], reduction="sum")

    return patient(model, table(), sgd(model, 0.05), loss)


@case("sum-not-mean-text", "sum_not_mean")
def _() -> Parts:
    model = Transformer()

    def loss(model: nn.Module, batch: Pair) -> Tensor:
        return F.cross_entropy(model(batch[0]).flatten(0, 1), batch[1].flatten(), reduction="sum")

    return patient(model, text(), sgd(model, 0.3), loss)


# Modes.


@case("eval-mode-batch-norm", "eval_mode_in_training")
def _() -> Parts:
    x, y = digits()
    model = mlp(64, 64, 64, 10, norm=True)
    optimizer = sgd(model, 0.1)
    plain = stepping(model, classify, optimizer)

    def step(batch: Pair) -> Tensor:
        model.eval()
        return plain(batch)

    return patient(model, (20 * x + 100, y), optimizer, step=step)


@case("eval-mode-handed-over", "eval_mode_in_training")
def _() -> Parts:
    x, y = images()
    model = conv(norm=True).eval()
    optimizer = sgd(model, 0.1)
    return patient(model, (10 * x + 30, y), optimizer, step=stepping(model, classify, optimizer))


@case("dropout-always-mlp", "dropout_in_evaluation")
def _() -> Parts:
    model = Chain(nn.Linear(64, 64), nn.ReLU(), lambda h: F.dropout(h, 0.7), nn.Linear(64, 10))
    return patient(model, digits(), adamw(model, 3e-3))


@case("train-mode-in-validation-bag", "dropout_in_evaluation")
def _() -> Parts:
    model = nn.Sequential(Bag(), nn.Identity())
    model[0].head = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Dropout(0.6), nn.Linear(64, 4))

    def loss(model: nn.Module, batch: Pair) -> Tensor:
        model.train()
        return classify(model, batch)

    return patient(model, words(), adamw(model, 1e-2), loss)


@case("dropout-always-rnn", "dropout_in_evaluation")
def _() -> Parts:
    class Model(Recurrent):
        def forward(self, x: Tensor) -> Tensor:
            return self.head(F.dropout(self.cell(x)[0][:, -1], 0.6, training=True))

    model = Model("GRU")
    return patient(model, series(), adamw(model, 1e-2))


@case("softmax-before-mse-none", "detached_graph")
def _() -> Parts:
    """The loss is computed on the predicted class, which has no gradient."""
    model = Bag()

    def loss(model: nn.Module, batch: Pair) -> Tensor:
        guess = model(batch[0]).argmax(1).float()
        return F.mse_loss(guess, batch[1].float()).requires_grad_()

    return patient(model, words(), adamw(model, 3e-3), loss)


@case("step-forgets-optimizer-step", "optimizer_other_parameters")
def _() -> Parts:
    model = mlp(64, 32, 10)
    optimizer = adamw(model, 3e-3)

    def step(batch: Pair) -> Tensor:
        optimizer.zero_grad()
        value = classify(model, batch)
        value.backward()
        return value

    return patient(model, digits(), optimizer, step=step)


@case("batch-norm-of-one-mlp-rows", "batch_norm_of_one")
def _() -> Parts:
    model = nn.Sequential(
        nn.Unflatten(1, (8, 8)),
        nn.Conv1d(8, 16, 3, padding=1),
        nn.BatchNorm1d(16),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(128, 10),
    )
    train, valid = batched(digits(), 1)
    return patient(model, (train[:400], valid), adamw(model, 3e-3))
