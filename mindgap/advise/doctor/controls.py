"""Two yardsticks: the best constant answer, and a plain network on the same batches."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from mindgap.advise.doctor.course import held_out
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
    """The model's output on the first batch, where the loss calls the model once and gets a
    tensor.
    """
    outs: list[Any] = []
    handle = patient.model.register_forward_hook(lambda m, i, o: outs.append(o))
    try:
        with undisturbed(patient.model), torch.no_grad():
            patient.model.eval()
            patient.value(patient.train[0])
    finally:
        handle.remove()
    if len(outs) != 1 or not isinstance(outs[0], Tensor) or not outs[0].is_floating_point():
        return None
    return outs[0] if outs[0].ndim else None


def trivial(patient: Patient) -> float | None:
    """Held-out loss of the best constant output (class frequencies, unigram, mean); None where
    the loss does not work with a constant in place of the model.
    """
    out = output_of(patient)
    if out is None:
        return None
    start = torch.zeros(out.shape[-1:] if out.ndim > 1 else (), dtype=torch.float32)
    ys = [y for _, y in map(pair, patient.train) if y is not None]
    if ys and ys[0].is_floating_point() and out.ndim > 1:
        flat = torch.cat([y.reshape(len(y), -1).double() for y in ys])
        flat = flat[flat.isfinite().all(1)]
        if len(flat):
            middle = flat.mean(0)
            start = middle if middle.shape == start.shape else middle.mean().expand(start.shape)
            start = start.float()
    elif ys and out.ndim > 1:
        labels = torch.cat([y.flatten() for y in ys]).long()
        if int(labels.min()) >= 0 and int(labels.max()) < out.shape[-1]:
            counts = torch.bincount(labels, minlength=out.shape[-1]).double() + 0.5
            start = (counts / counts.sum()).log().float()
    model = _Constant(start.to(out.device), out.shape)
    copy = Patient(model, patient.loss, patient.train, patient.valid, patient.optimizer)
    batches = patient.train[:: max(1, len(patient.train) // 8)][:8]
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=25, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        value = torch.stack([copy.value(b) for b in batches]).mean()
        value.backward()
        return value

    first = held_out(copy)
    with suppress(RuntimeError, IndexError):
        optimizer.step(closure)
    best = held_out(copy)
    best = min(v for v in (first, best, math.inf) if not math.isnan(v))
    return best if math.isfinite(best) else None


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
    patient: Patient,
    steps: int,
    *,
    shift: int = 0,
    shuffled: bool = False,
    valid: list[Any] | None = None,
) -> float | None:
    """Lowest held-out loss of a plain network on the user's samples in random order; None where it
    does not fit the user's loss.

    Args:
        shift: targets are moved against the inputs by so many samples.
        shuffled: the training targets are drawn anew from all training targets.
    """
    out = output_of(patient)
    xs = [x for x, _ in map(pair, patient.train) if x is not None]
    if out is None or len(xs) != len(patient.train) or len(out) != len(xs[0]):
        return None

    def moved(batches: list[Any]) -> list[Any]:
        if not shift:
            return batches
        return [replaced(b, y=y.roll(shift, 0)) for b in batches if (y := pair(b)[1]) is not None]

    x = torch.cat(xs)
    train = moved(patient.train)
    model = _Plain(x, out.shape).to(out.device)
    copy = Patient(
        model, patient.loss, train, moved(valid or patient.valid or []), patient.optimizer
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    best, generator = math.inf, torch.Generator().manual_seed(0)
    order: list[int] = []
    # The user's batches may be of one sample or sorted: joined and drawn anew.
    whole = merged(train)
    joined = size(whole) == len(x)
    if shuffled:
        y = pair(whole)[1]
        if not joined or y is None:
            return None
        whole = replaced(whole, y=y[torch.randperm(len(x), generator=generator).to(y.device)])
    for k in range(steps):
        if joined:
            batch = rows(whole, torch.randint(len(x), (64,), generator=generator).to(x.device))
        else:
            if not order:
                order = torch.randperm(len(train), generator=generator).tolist()
            batch = train[order.pop()]
        optimizer.zero_grad()
        value = copy.value(batch)
        value.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if (k + 1) % max(1, steps // 6) == 0:
            best = min(best, held_out(copy))
    return best if math.isfinite(best) else None


@dataclass(frozen=True)
class Ranks:
    """How labels rank among the answers of a network that has not seen them, batch by batch."""

    wrong: list[Tensor]  # the label is not the first answer
    rank: list[Tensor]  # 0: it is the first one
    chance: list[Tensor]  # the probability it gets
    sure: list[Tensor]  # the probability of the first answer
    classes: int


def cross_ranks(patient: Patient, steps: int) -> tuple[Ranks, Ranks | None] | None:
    """Train a plain network on each half of the samples and rank the labels of the other half.

    None where the task is not a classification with one label per sample.
    """
    out = output_of(patient)
    pairs = [pair(batch) for batch in patient.train]
    if out is None or out.ndim != 2 or len(out) != size(patient.train[0]):
        return None
    if any(x is None or y is None or y.is_floating_point() or y.ndim != 1 for x, y in pairs):
        return None
    x = torch.cat([a for a, _ in pairs if a is not None])
    y = torch.cat([b for _, b in pairs if b is not None]).long()
    classes = out.shape[1]
    if classes < 2 or int(y.min()) < 0 or int(y.max()) >= classes:
        return None
    generator = torch.Generator().manual_seed(0)
    half = torch.rand(len(x), generator=generator).to(x.device) < 0.5
    scores = torch.zeros(len(x), classes, device=x.device)
    models = []
    for mask in (half, ~half):
        model = _Plain(x, out.shape).to(x.device)
        optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
        own = mask.nonzero().flatten()
        if len(own) < 2 * classes:
            return None
        for _ in range(steps):
            pick = own[torch.randint(len(own), (64,), generator=generator).to(own.device)]
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x[pick]), y[pick]).backward()
            optimizer.step()
        with torch.no_grad():
            scores[~mask] = model(x[~mask])
        models.append(model)
    train = _rank_labels(scores, y, [len(a) for a, _ in pairs if a is not None])
    held = [pair(batch) for batch in patient.valid]
    if not held or any(a is None or b is None for a, b in held):
        return train, None
    hx = torch.cat([a for a, _ in held if a is not None])
    hy = torch.cat([b for _, b in held if b is not None]).long()
    with torch.no_grad():
        mean = sum(torch.softmax(m(hx), 1) for m in models) / 2
    return train, _rank_labels(
        torch.as_tensor(mean).log(), hy, [len(a) for a, _ in held if a is not None]
    )


def _rank_labels(scores: Tensor, y: Tensor, sizes: list[int]) -> Ranks:
    own = scores.gather(1, y.unsqueeze(1))
    rank = (scores > own).sum(1)
    chance = torch.softmax(scores, 1).gather(1, y.unsqueeze(1)).squeeze(1)
    return Ranks(
        list((rank > 0).split(sizes)),
        list(rank.split(sizes)),
        list(chance.split(sizes)),
        list(torch.softmax(scores, 1).amax(1).split(sizes)),
        scores.shape[1],
    )
