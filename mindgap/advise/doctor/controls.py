"""Two yardsticks: the best constant answer, and a plain network on the same batches."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from mindgap.advise.doctor.course import held_out, single_output
from mindgap.advise.doctor.patient import Patient
from mindgap.base.batches import merged, pair, replaced, rows, size
from mindgap.base.restoring import undisturbed


class _Constant(nn.Module):
    """Gives the same answer for every sample."""

    def __init__(self, start: Tensor, shape: torch.Size) -> None:
        super().__init__()
        self.answer = nn.Parameter(start.clone())
        self.shape = shape

    def forward(self, *inputs: Any, **named: Any) -> Tensor:
        given = [t for t in (*inputs, *named.values()) if isinstance(t, Tensor)]
        n = len(given[0]) if given else self.shape[0]
        return self.answer.expand(n, *self.shape[1:])


def output_of(patient: Patient) -> Tensor | None:
    """The model's output on the first batch; None unless the loss calls the model once and gets a
    tensor of numbers.
    """
    with undisturbed(patient.model):
        patient.model.eval()
        output = single_output(patient, patient.train[0])
    return output if output is not None and output.is_floating_point() and output.ndim else None


def trivial(patient: Patient) -> float | None:
    """Held-out loss of the best constant output (class frequencies, unigram, mean); None where
    the loss does not work with a constant in place of the model.
    """
    output = output_of(patient)
    if output is None:
        return None
    targets = [y for _, y in map(pair, patient.train) if y is not None]
    start = _first_constant(output, targets).to(output.device)
    model = _Constant(start, output.shape)
    copy = Patient(model, patient.loss, patient.train, patient.valid, patient.optimizer)
    batches = patient.train[:: max(1, len(patient.train) // 8)][:8]
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=25, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        value = torch.stack([copy.value(batch) for batch in batches]).mean()
        value.backward()
        return value

    first = held_out(copy)
    with suppress(RuntimeError, IndexError):
        optimizer.step(closure)
    best = min(first, held_out(copy))
    return best if math.isfinite(best) else None


def _first_constant(output: Tensor, targets: list[Tensor]) -> Tensor:
    """Where the search for the best constant begins: logarithms of the label frequencies, the mean
    target, or zero where the targets do not fit the output.
    """
    zero = torch.zeros(output.shape[-1:] if output.ndim > 1 else (), dtype=torch.float32)
    if not targets or output.ndim < 2:
        return zero
    if targets[0].is_floating_point():
        flat = torch.cat([y.reshape(len(y), -1).double() for y in targets])
        flat = flat[flat.isfinite().all(1)]
        if not len(flat):
            return zero
        mean = flat.mean(0)
        return (mean if mean.shape == zero.shape else mean.mean().expand(zero.shape)).float()
    labels = torch.cat([y.flatten() for y in targets]).long()
    if int(labels.min()) < 0 or int(labels.max()) >= output.shape[-1]:
        return zero
    counts = torch.bincount(labels, minlength=output.shape[-1]).double() + 0.5
    return (counts / counts.sum()).log().float()


class _Plain(nn.Module):
    """Robust standardisation, then a network with one hidden layer; symbols are embedded."""

    middle: Tensor
    spread: Tensor

    def __init__(self, x: Tensor, shape: torch.Size) -> None:
        super().__init__()
        self.shape = shape[1:]
        self.sequence = not x.is_floating_point() and len(shape) == 3 and x.ndim == 2
        answers = shape[-1] if self.sequence else math.prod(shape[1:])
        if x.is_floating_point():
            flat = x.flatten(1).nan_to_num(0, 0, 0)
            middle = flat.median(0).values
            spread = (flat - middle).abs().quantile(0.8, 0)
            self.register_buffer("middle", middle)
            self.register_buffer("spread", spread.clamp_min(1e-6 + 1e-3 * float(spread.median())))
            width = flat.shape[1]
        else:
            kinds = int(x.max()) + 2
            self.embed = nn.Embedding(kinds, 32)
            width = 64 if self.sequence else 32
        self.body = nn.Sequential(nn.Linear(width, 128), nn.ReLU(), nn.Linear(128, answers))

    def forward(self, x: Tensor, *_: Any, **__: Any) -> Tensor:
        if x.is_floating_point():
            flat = x.flatten(1).nan_to_num(0, 0, 0)
            h = ((flat - self.middle) / self.spread).clamp(-4, 4)
        else:
            e = self.embed(x.clamp(0, self.embed.num_embeddings - 1))
            if self.sequence:
                before = torch.cat([torch.zeros_like(e[:, :1]), e[:, :-1]], 1)
                return self.body(torch.cat([e, before], -1))
            h = e.flatten(1, -2).mean(1) if e.ndim > 2 else e
        return self.body(h).reshape(-1, *self.shape)


def plain_network(
    patient: Patient, steps: int, *, shift: int = 0, shuffled: bool = False
) -> float | None:
    """Lowest held-out loss of a plain network on the user's samples in random order; None where it
    does not fit the user's loss.

    Args:
        shift: targets are moved against the inputs by so many samples.
        shuffled: the training targets are drawn anew from all training targets.
    """
    output = output_of(patient)
    inputs = [x for x, _ in map(pair, patient.train) if x is not None]
    if output is None or len(inputs) != len(patient.train) or len(output) != len(inputs[0]):
        return None
    train, valid = (_shifted(part, shift) for part in (patient.train, patient.valid))
    x = torch.cat(inputs)
    model = _Plain(x, output.shape).to(output.device)
    copy = Patient(model, patient.loss, train, valid, patient.optimizer)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    best, generator = math.inf, torch.Generator().manual_seed(0)
    # The user's batches may be of one sample or sorted: joined and drawn anew.
    everything = merged(train)
    joined = size(everything) == len(x)
    if shuffled:
        y = pair(everything)[1]
        if not joined or y is None:
            return None
        order = torch.randperm(len(x), generator=generator).to(y.device)
        everything = replaced(everything, y=y[order])
    waiting: list[int] = []  # batches of the present epoch, where they cannot be joined
    for step in range(1, steps + 1):
        if joined:
            chosen = torch.randint(len(x), (64,), generator=generator).to(x.device)
            batch = rows(everything, chosen)
        else:
            waiting = waiting or torch.randperm(len(train), generator=generator).tolist()
            batch = train[waiting.pop()]
        optimizer.zero_grad()
        copy.value(batch).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % max(1, steps // 6) == 0:
            best = min(best, held_out(copy))
    return best if math.isfinite(best) else None


def _shifted(batches: list[Any], shift: int) -> list[Any]:
    """Batches whose targets are moved against the inputs by so many samples."""
    if not shift:
        return batches
    return [replaced(b, y=y.roll(shift, 0)) for b in batches if (y := pair(b)[1]) is not None]


@dataclass(frozen=True)
class Ranks:
    """How labels rank among the answers of a network that has not seen them, batch by batch."""

    wrong: list[Tensor]  # the label is not the first answer
    rank: list[Tensor]  # 0: it is the first one
    chance: list[Tensor]  # the probability it gets
    sure: list[Tensor]  # the probability of the first answer
    classes: int


def cross_ranks(patient: Patient, steps: int) -> tuple[Ranks, Ranks | None] | None:
    """Train a plain network on each half of the samples and rank the labels of the other half;
    those of the validation samples are ranked by both networks.

    None where the task is not a classification with one label per sample.
    """
    output = output_of(patient)
    pairs = [pair(batch) for batch in patient.train]
    if output is None or output.ndim != 2 or len(output) != size(patient.train[0]):
        return None
    if any(x is None or y is None or y.is_floating_point() or y.ndim != 1 for x, y in pairs):
        return None
    x, y, sizes = _joined(pairs)
    classes = output.shape[1]
    if classes < 2 or int(y.min()) < 0 or int(y.max()) >= classes:
        return None
    generator = torch.Generator().manual_seed(0)
    half = torch.rand(len(x), generator=generator).to(x.device) < 0.5
    scores = torch.zeros(len(x), classes, device=x.device)
    models = []
    for mask in (half, ~half):
        own = mask.nonzero().flatten()
        if len(own) < 2 * classes:
            return None
        model = _Plain(x, output.shape).to(x.device)
        optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
        for _ in range(steps):
            chosen = own[torch.randint(len(own), (64,), generator=generator).to(own.device)]
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x[chosen]), y[chosen]).backward()
            optimizer.step()
        with torch.no_grad():
            scores[~mask] = model(x[~mask])
        models.append(model)
    train = _rank_labels(scores, y, sizes)
    held = [pair(batch) for batch in patient.valid]
    if not held or any(a is None or b is None for a, b in held):
        return train, None
    held_x, held_y, held_sizes = _joined(held)
    with torch.no_grad():
        mean = torch.stack([torch.softmax(model(held_x), 1) for model in models]).mean(0)
    return train, _rank_labels(mean.log(), held_y, held_sizes)


def _joined(
    pairs: list[tuple[Tensor | None, Tensor | None]],
) -> tuple[Tensor, Tensor, list[int]]:
    """Inputs, labels and the sizes of the batches."""
    inputs = [x for x, _ in pairs if x is not None]
    labels = [y for _, y in pairs if y is not None]
    return torch.cat(inputs), torch.cat(labels).long(), [len(x) for x in inputs]


def _rank_labels(scores: Tensor, labels: Tensor, sizes: list[int]) -> Ranks:
    """How the labels rank among the scores, cut into batches of these sizes."""
    chances = torch.softmax(scores, 1)
    column = labels.unsqueeze(1)
    rank = (scores > scores.gather(1, column)).sum(1)
    chance = chances.gather(1, column).squeeze(1)
    return Ranks(
        list((rank > 0).split(sizes)),
        list(rank.split(sizes)),
        list(chance.split(sizes)),
        list(chances.amax(1).split(sizes)),
        scores.shape[1],
    )
