"""Cases that others have published, rebuilt in small PyTorch form from their descriptions.

A row names the source, the case, the causes that count as found, and a function that builds it;
rows without a function say why they are out of reach. The checklist of SageMaker Debugger's rules
has one row per rule.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from tasks import (
    Bag,
    Recurrent,
    Transformer,
    adamw,
    batched,
    classify,
    conv,
    digits,
    filled,
    images,
    mlp,
    patient,
    regress,
    scaled,
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

SEVERAL = "needs several processes: what differs is a copy on another device"


@dataclass(frozen=True)
class Row:
    """One published case."""

    source: str
    name: str
    what: str
    causes: tuple[str, ...] = ()  # any of these first counts as found
    build: Callable[[], Parts] | None = None
    why_not: str = ""  # why it is not rebuilt


ROWS: list[Row] = []


def row(
    source: str, name: str, what: str, *causes: str
) -> Callable[[Callable[[], Parts]], Callable[[], Parts]]:
    def add(build: Callable[[], Parts]) -> Callable[[], Parts]:
        ROWS.append(Row(source, name, what, causes, build))
        return build

    return add


def left(source: str, name: str, what: str, why: str) -> None:
    ROWS.append(Row(source, name, what, why_not=why))


# TrainCheck's real errors (OrderLab/TrainCheck-Evaluation-Workloads describes eighteen).

T = "TrainCheck"


@row(T, "pytorch-forum-84911", "everything but batch norm is frozen", "frozen_parameters")
def _() -> Parts:
    model = conv(norm=True)
    bodies = [m for m in model if isinstance(m, (nn.Conv2d, nn.Linear))]
    for m in bodies:
        m.requires_grad_(False)
    return patient(model, images(), adamw(model, 1e-3))


@row(T, "stackoverflow-60335387", "zero_grad is missing", "zero_grad_forgotten")
def _() -> Parts:
    model = conv()
    optimizer = sgd(model, 0.05)
    step = stepping(model, classify, optimizer, zero=False)
    return patient(model, images(), optimizer, step=step)


@row(T, "stackoverflow-67180955", "workers draw the same augmentation", "repeated_batches")
def _() -> Parts:
    train, valid = batched(images())
    noise = [0.3 * torch.randn(train[0][0].shape, generator=_seeded(k)) for k in range(3)]
    few = [(train[k // 4][0] + noise[k // 4 % 3], train[k // 4][1]) for k in range(44)]
    model = conv()
    return patient(model, (few, valid), adamw(model, 3e-3))


def _seeded(k: int) -> torch.Generator:
    return torch.Generator().manual_seed(k)


@row(T, "transformers-33844", "attention keeps its dropout in evaluation", "dropout_in_evaluation")
def _() -> Parts:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.emb, self.head = nn.Embedding(20, 32), nn.Linear(32, 20)
            self.q, self.k, self.v = (nn.Linear(32, 32) for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            h = self.emb(x)
            q, k, v = self.q(h), self.k(h), self.v(h)
            mixed = F.scaled_dot_product_attention(q, k, v, dropout_p=0.3, is_causal=True)
            return self.head(h + mixed)

    model = Model()
    return patient(model, text(), adamw(model, 3e-3))


@row(
    T,
    "pytorch-115607",
    "a compiled step loses the layers whose gradient was None once",
    "optimizer_other_parameters",
    "frozen_parameters",
    "detached_graph",
)
def _() -> Parts:
    model = mlp(64, 32, 32, 10)
    optimizer = sgd(model, 0.1)
    body = list(model.parameters())[:4]
    calls = 0

    def step(batch: Pair) -> Tensor:
        nonlocal calls
        optimizer.zero_grad()
        value = classify(model, batch)
        value.backward()
        calls += 1
        if calls > 2:  # frozen on purpose at step 3, and never again part of the compiled step
            for p in body:
                p.grad = None
        optimizer.step()
        return value

    return patient(model, digits(), optimizer, step=step)


def _lost(train: list[Pair], share: int) -> list[Pair]:
    return [(x * 0 if k % share == 3 else x, y) for k, (x, y) in enumerate(train)]


@row(T, "pytorch-84803", "transfers between devices lose data: zeros arrive", "bad_batch")
def _() -> Parts:
    train, valid = batched(images())
    model = conv()
    return patient(model, (_lost(train, 20), valid), adamw(model, 3e-3))


@row(T, "pytorch-96600", "the same, data parallel", "bad_batch")
def _() -> Parts:
    train, valid = batched(digits())
    model = mlp(64, 64, 10)
    return patient(model, (_lost(train, 25), valid), sgd(model, 0.1))


@row(T, "baichuan2-86", "the same, two cards and a language model", "bad_batch")
def _() -> Parts:
    train, valid = batched(text())
    model = Transformer()
    return patient(model, (_lost(train, 20), valid), adamw(model, 3e-3))


@row(T, "transformers-34204", "the processor returns one row for a batch", "wrong_axis")
def _() -> Parts:
    train, valid = batched(table())
    model = mlp(10, 32, 1)
    short = [(x[:1], y) for x, y in train]
    return patient(model, (short, [(x[:1], y) for x, y in valid]), adamw(model, 3e-3), regress)


left(T, "deepspeed-1801", "clipping on the first rank only; weights drift apart", SEVERAL)
left(T, "deepspeed-5794", "workers call all_to_all with other arguments", SEVERAL)
left(T, "pytorch-104336", "DDP loses its hooks when the model moves", SEVERAL)
left(T, "x-jxmnop-ddp-out-of-sync", "DDP wraps the model again in every run", SEVERAL)
left(
    T,
    "lightning-thunder-725",
    "autocast skips some functions",
    "the run trains as well; only speed and memory differ, which no reading judges",
)
left(
    T,
    "mmpretrain-702",
    "stages that should be frozen train",
    "what should be frozen is not said anywhere that a program can read",
)
left(
    T,
    "pytorch-51800",
    "spectral norm is not yet initialised in evaluation",
    "shows only before the first training step, in a figure nobody asks the doctor for",
)
left(T, "transformers-17877", "weights are initialised several times", "costs time only")
left(T, "transformers-23723", "generation ignores max_new_tokens", "inference, not training")
left(
    T, "two more of the twenty", "missed by TrainCheck itself", "not among the workloads described"
)


# AutoTrainer: the five problems of 2021.

A = "AutoTrainer"


@row(A, "vanishing gradient", "sigmoid layers, ten deep", "vanishing_gradients")
def _() -> Parts:
    model = mlp(64, *[40] * 9, 10, act=nn.Sigmoid)
    return patient(model, digits(), sgd(model, 0.1))


@row(
    A,
    "exploding gradient",
    "weights of a deep net far too large",
    "exploding_gradients",
    "init_too_large",
)
def _() -> Parts:
    # At four times the default weights this net trains (59.9 to 0.634 in 240 steps); at six the
    # loss is not finite after a few steps, as the problem is described.
    model = scaled(mlp(64, *[40] * 7, 10), 6.0)
    return patient(model, digits(), sgd(model, 0.01))


@row(A, "dying ReLU", "large negative biases", "dead_units")
def _() -> Parts:
    model = mlp(64, 64, 64, 10)
    nn.init.constant_(model[0].bias, -9.0)
    return patient(model, digits(), adamw(model, 1e-3))


@row(A, "oscillating loss", "learning rate too large", "lr_too_large")
def _() -> Parts:
    model = conv()
    return patient(model, images(), torch.optim.Adam(model.parameters(), lr=0.2))


@row(A, "slow convergence", "learning rate too small", "lr_too_small")
def _() -> Parts:
    model = conv()
    return patient(model, images(), sgd(model, 1e-4))


left(A, "three more problems of 2024", "eight in all", "the abstract does not name them")


# TheDeepChecker's catalogue of training issues (Ben Braiek and Khomh 2022).

D = "TheDeepChecker"


@row(D, "unscaled inputs", "pixels from 0 to 4080", "unscaled_features")
def _() -> Parts:
    x, y = digits()
    model = mlp(64, 64, 10)
    return patient(model, (x * 4080, y), sgd(model, 0.05))


@row(D, "symmetric start", "all weights equal", "init_equal")
def _() -> Parts:
    model = filled(mlp(64, 48, 48, 10), 0.03)
    return patient(model, digits(), adamw(model, 3e-3))


@row(D, "start of the wrong size", "weights a hundred times too small", "init_too_small")
def _() -> Parts:
    model = scaled(mlp(64, 48, 48, 10), 0.01)
    return patient(model, digits(), sgd(model, 0.1))


@row(D, "saturated units", "sigmoids far from zero", "saturated_units")
def _() -> Parts:
    model = mlp(64, 64, 10, act=nn.Sigmoid)
    nn.init.constant_(model[0].bias, -12.0)
    return patient(model, digits(), sgd(model, 0.3))


@row(D, "dead units", "ReLU zero on every sample", "dead_units")
def _() -> Parts:
    model = conv()
    nn.init.constant_(model[2].bias, -15.0)
    return patient(model, images(), sgd(model, 0.05, momentum=0.9))


@row(D, "unstable gradients", "a recurrent net that multiplies", "exploding_gradients")
def _() -> Parts:
    model = Recurrent("ReLU")
    with torch.no_grad():
        model.cell.weight_hh_l0.copy_(1.7 * torch.eye(24))
    return patient(model, series(length=30), sgd(model, 0.1))


@row(
    D,
    "untrained parameters",
    "the optimizer holds the last layer only",
    "optimizer_other_parameters",
)
def _() -> Parts:
    model = conv(4)
    return patient(model, images(), torch.optim.Adam(list(model.parameters())[-1:], lr=3e-3))


@row(D, "diverging loss", "learning rate far too large", "lr_too_large")
def _() -> Parts:
    model = mlp(10, 48, 48, 1)
    return patient(model, table(), sgd(model, 2.0), regress)


@row(D, "wrong reduction of the loss", "sum in place of mean", "sum_not_mean")
def _() -> Parts:
    model = conv()

    def loss(model: nn.Module, batch: Pair) -> Tensor:
        return F.cross_entropy(model(batch[0]), batch[1], reduction="sum")

    return patient(model, images(), sgd(model, 0.1), loss)


@row(D, "invalid loss of probabilities", "softmax before the loss of scores", "softmax_twice")
def _() -> Parts:
    model = nn.Sequential(Bag(), nn.Softmax(1))
    return patient(model, words(), sgd(model, 1.0))


@row(D, "loss becomes NaN", "logarithm of a probability that underflows", "nan_operation")
def _() -> Parts:
    model = mlp(64, 64, 10)

    def loss(model: nn.Module, batch: Pair) -> Tensor:
        p = torch.softmax(30 * model(batch[0]), 1)
        return F.nll_loss(p.log(), batch[1])

    return patient(model, digits(), sgd(model, 0.2), loss)


@row(D, "regularisation too strong", "weight decay 40", "weight_decay_too_large")
def _() -> Parts:
    model = conv()
    return patient(model, images(), adamw(model, 3e-3, weight_decay=40.0))


@row(D, "cannot fit one batch", "one hidden unit", "underfitting")
def _() -> Parts:
    model = mlp(64, 1, 10)
    return patient(model, digits(), adamw(model, 1e-2))


@row(D, "phases mixed up", "batch norm in evaluation mode while training", "eval_mode_in_training")
def _() -> Parts:
    x, y = digits()
    model = mlp(64, 48, 48, 10, norm=True)
    optimizer = sgd(model, 0.1)
    plain = stepping(model, classify, optimizer)

    def step(batch: Pair) -> Tensor:
        model.eval()
        return plain(batch)

    return patient(model, (30 * x + 90, y), optimizer, step=step)


left(
    "PYSIASSIST",
    "fourteen static patterns",
    "found in source code",
    "their list is not in the material at hand; examine reads a running program, not source",
)


# SageMaker Debugger: built-in rules and what answers them here.

CHECKLIST: list[tuple[str, str]] = [
    ("VanishingGradient", "vanishing_gradients, through depth and time"),
    ("ExplodingTensor", "nan_operation, overflow, exploding_gradients"),
    ("PoorWeightInitialization", "init_too_large, init_too_small, init_equal"),
    ("SaturatedActivation", "saturated_units"),
    ("DeadRelu", "dead_units"),
    ("WeightUpdateRatio", "findings moves_much and moves_little; lr_too_large, lr_too_small"),
    ("AllZero", "zero_gradient, dead_units, bad_batch for batches of zeros"),
    ("UnchangedTensor", "frozen_parameters, optimizer_other_parameters, detached_graph"),
    ("LossNotDecreasing", "every cause; against the constant answer, not against a threshold"),
    ("StalledTrainingRule", "not answered: a run that hangs needs a clock outside it"),
    ("Overfit", "overfitting"),
    ("Overtraining", "overfitting (the step with the smallest validation loss is named)"),
    ("ClassImbalance", "not a cause: rare classes are among the odd but healthy runs"),
    ("CheckInputImages", "unscaled_features"),
    ("NLPSequenceRatio", "not answered: padding costs time, not correctness"),
    ("SimilarAcrossRuns", "not answered: one run is examined; randomness is seeded"),
    ("Confusion", "wrong_labels"),
    ("TensorVariance", "init_too_large, init_too_small, finding collapsed (rank)"),
    ("FeatureImportanceOverweight, TreeDepth", "not answered: boosted trees"),
]
