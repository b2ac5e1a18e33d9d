"""Two yardsticks: the best constant answer, and a plain network on the same batches."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from mindgap.advise.doctor.course import held_out_loss, single_output
from mindgap.advise.doctor.patient import Patient
from mindgap.base.batches import merged, pair, replaced, rows, size
from mindgap.base.restoring import undisturbed


class _ConstantModel(nn.Module):
    """Gives the same answer, its one parameter, for every sample.

    Args:
        start: the first answer.
        shape: of the user's model's output for a batch.
    """

    def __init__(self, start: Tensor, shape: torch.Size) -> None:
        super().__init__()
        self.answer = nn.Parameter(start.clone())
        self.shape = shape

    def forward(self, *inputs: Any, **named: Any) -> Tensor:
        """The answer, once for each sample of the first tensor that is handed over."""
        tensors = [t for t in (*inputs, *named.values()) if isinstance(t, Tensor)]
        samples = len(tensors[0]) if tensors else self.shape[0]
        return self.answer.expand(samples, *self.shape[1:])


def output_of(patient: Patient) -> Tensor | None:
    """The model's output on the first batch in evaluation mode; None unless the loss calls the
    model once and gets a tensor of real numbers.
    """
    with undisturbed(patient.model):
        patient.model.eval()
        output = single_output(patient, patient.train[0])
    return output if output is not None and output.is_floating_point() and output.ndim else None


def constant_loss(patient: Patient) -> float | None:
    """Held-out loss of the best constant output: class or symbol frequencies, or the mean target.
    It is searched by L-BFGS on at most eight training batches.

    None where the loss is not finite or the model's output is not one tensor of real numbers.
    """
    output = output_of(patient)
    if output is None:
        return None
    targets = [y for _, y in map(pair, patient.train) if y is not None]
    model = _ConstantModel(_first_constant(output, targets).to(output.device), output.shape)
    copy = Patient(model, patient.loss, patient.train, patient.valid, patient.optimizer)
    batches = patient.train[:: max(1, len(patient.train) // 8)][:8]
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=25, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        """The mean loss of the batches at the present answer, with its gradient computed."""
        optimizer.zero_grad()
        loss = torch.stack([copy.value(batch) for batch in batches]).mean()
        loss.backward()
        return loss

    loss_at_start = held_out_loss(copy)
    with suppress(RuntimeError, IndexError):  # of line searches that meet NaN
        optimizer.step(closure)
    lowest = min(loss_at_start, held_out_loss(copy))
    return lowest if math.isfinite(lowest) else None


def _first_constant(output: Tensor, targets: list[Tensor]) -> Tensor:
    """Where the search for the best constant begins: the logarithms of the label frequencies, the
    mean target, or zeros where the targets do not fit the output. Shape ``output.shape[-1:]``, or
    a scalar where the output has one axis.

    Args:
        output: the model's, for the first batch.
        targets: of each training batch.
    """
    zero = torch.zeros(output.shape[-1:] if output.ndim > 1 else (), dtype=torch.float32)
    if not targets or output.ndim < 2:
        return zero
    if targets[0].is_floating_point():
        flat = torch.cat([y.reshape(len(y), -1).double() for y in targets])  # a row per sample
        flat = flat[flat.isfinite().all(1)]
        if not len(flat):
            return zero
        mean = flat.mean(0)
        return (mean if mean.shape == zero.shape else mean.mean().expand(zero.shape)).float()
    labels = torch.cat([y.flatten() for y in targets]).long()
    if int(labels.min()) < 0 or int(labels.max()) >= output.shape[-1]:
        return zero
    # Half a sample more in each class, so that no logarithm is infinite.
    counts = torch.bincount(labels, minlength=output.shape[-1]).double() + 0.5
    return (counts / counts.sum()).log().float()


class _PlainNetwork(nn.Module):
    """Standardised inputs, then a network with one hidden layer of 128 units; symbols are embedded.

    Inputs are standardised by medians and quantiles, so that outliers do not matter. A sequence of
    symbols gets one answer per place, from the symbol there and the one before it.

    Args:
        inputs: of all samples.
        output_shape: of the user's model's output for a batch; the first axis is the samples'.
    """

    median: Tensor
    spread: Tensor

    def __init__(self, inputs: Tensor, output_shape: torch.Size) -> None:
        super().__init__()
        self.answer_shape = output_shape[1:]
        real_inputs = inputs.is_floating_point()  # else they are symbols
        self.per_place = not real_inputs and len(output_shape) == 3 and inputs.ndim == 2
        answers = output_shape[-1] if self.per_place else math.prod(output_shape[1:])
        if real_inputs:
            flat = inputs.flatten(1).nan_to_num(0, 0, 0)
            median = flat.median(0).values
            spread = (flat - median).abs().quantile(0.8, 0)
            self.register_buffer("median", median)
            # A feature that hardly varies is not blown up: its spread is bounded from below.
            self.register_buffer("spread", spread.clamp_min(1e-6 + 1e-3 * float(spread.median())))
            width = flat.shape[1]
        else:
            self.embed = nn.Embedding(int(inputs.max()) + 2, 32)
            width = 64 if self.per_place else 32  # per place two embeddings of 32 are joined
        self.body = nn.Sequential(nn.Linear(width, 128), nn.ReLU(), nn.Linear(128, answers))

    def forward(self, x: Tensor, *_: Any, **__: Any) -> Tensor:
        """Answers of ``answer_shape`` per sample: to numbers, standardised and cut at 4, or to
        symbols, of which the mean embedding is read unless there is an answer per place.
        """
        if x.is_floating_point():
            flat = x.flatten(1).nan_to_num(0, 0, 0)
            features = ((flat - self.median) / self.spread).clamp(-4, 4)
        else:
            embedded = self.embed(x.clamp(0, self.embed.num_embeddings - 1))
            if self.per_place:
                # (samples, places, 32): of each symbol, and of the one before it (zeros at first)
                first = torch.zeros_like(embedded[:, :1])
                before = torch.cat([first, embedded[:, :-1]], 1)
                return self.body(torch.cat([embedded, before], -1))
            features = embedded.flatten(1, -2).mean(1) if embedded.ndim > 2 else embedded
        return self.body(features).reshape(-1, *self.answer_shape)


def plain_network(
    patient: Patient, steps: int, *, shift: int = 0, shuffled: bool = False
) -> float | None:
    """Train a network with one hidden layer on the user's samples by Adam, and return its lowest
    held-out loss under the user's loss, which is looked at six times.

    Each step takes 64 random samples, or one of the user's batches where these cannot be joined.
    None where the samples or the model's output do not fit the network, where targets that cannot
    be joined should be shuffled, or where no loss is finite.

    Args:
        shift: targets of both parts are moved against the inputs by so many samples.
        shuffled: the training targets are permuted at random over all training samples.
    """
    output = output_of(patient)
    inputs = [x for x, _ in map(pair, patient.train) if x is not None]
    if output is None or len(inputs) != len(patient.train) or len(output) != len(inputs[0]):
        return None
    train, valid = (_shifted(part, shift) for part in (patient.train, patient.valid))
    all_inputs = torch.cat(inputs)
    model = _PlainNetwork(all_inputs, output.shape).to(output.device)
    copy = Patient(model, patient.loss, train, valid, patient.optimizer)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    lowest, generator = math.inf, torch.Generator().manual_seed(0)
    # The user's batches may be of one sample or sorted: joined and drawn anew.
    samples = merged(train)
    joined = size(samples) == len(all_inputs)
    if shuffled:
        y = pair(samples)[1]
        if not joined or y is None:
            return None
        order = torch.randperm(len(all_inputs), generator=generator).to(y.device)
        samples = replaced(samples, y=y[order])
    remaining: list[int] = []  # batches left in this epoch, where they cannot be joined
    for step in range(1, steps + 1):
        if joined:
            chosen = torch.randint(len(all_inputs), (64,), generator=generator).to(
                all_inputs.device
            )
            batch = rows(samples, chosen)
        else:
            if not remaining:
                remaining = torch.randperm(len(train), generator=generator).tolist()
            batch = train[remaining.pop()]
        optimizer.zero_grad()
        copy.value(batch).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % max(1, steps // 6) == 0:
            lowest = min(lowest, held_out_loss(copy))
    return lowest if math.isfinite(lowest) else None


def _shifted(batches: list[Any], shift: int) -> list[Any]:
    """Batches whose targets are moved against the inputs by so many samples, round the end of each
    batch; those without targets are left out.
    """
    if not shift:
        return batches
    with_targets = [(batch, pair(batch)[1]) for batch in batches]
    return [replaced(b, y=y.roll(shift, 0)) for b, y in with_targets if y is not None]


@dataclass(frozen=True)
class Ranks:
    """How labels rank among the answers of a network that has not seen them, batch by batch."""

    # One tensor per batch with one entry per sample.
    wrong: list[Tensor]  # whether the label is not the network's first answer
    rank: list[Tensor]  # of the label among the answers, from 0 (first) to classes - 1
    probability: list[Tensor]  # that the network gives the label
    confidence: list[Tensor]  # probability of the first answer
    classes: int  # number of answers


def cross_ranks(patient: Patient, steps: int) -> tuple[Ranks, Ranks | None] | None:
    """Rank every label among the answers of a network that has not seen it. One plain network is
    trained on each random half of the training samples and ranks the labels of the other half. The
    validation labels are ranked by the mean probability of both networks.

    Args:
        steps: training steps of each network.

    Returns:
        Ranks of the training and of the validation labels (None without validation batches that
        have labels). None in place of both where the task is not a classification with one label
        per sample, or where a half has fewer samples than two per class.
    """
    output = output_of(patient)
    pairs = [pair(batch) for batch in patient.train]
    if output is None or output.ndim != 2 or len(output) != size(patient.train[0]):
        return None
    if any(x is None or y is None or y.is_floating_point() or y.ndim != 1 for x, y in pairs):
        return None
    inputs, labels, sizes = _joined(pairs)
    classes = output.shape[1]
    if classes < 2 or int(labels.min()) < 0 or int(labels.max()) >= classes:
        return None
    generator = torch.Generator().manual_seed(0)
    first_half = torch.rand(len(inputs), generator=generator).to(inputs.device) < 0.5
    if min(int(first_half.sum()), int((~first_half).sum())) < 2 * classes:
        return None
    scores = torch.zeros(len(inputs), classes, device=inputs.device)  # by the other half's network
    models = []
    for half in (first_half, ~first_half):
        model = _PlainNetwork(inputs, output.shape).to(inputs.device)
        _train_classifier(model, inputs[half], labels[half], steps, generator)
        with torch.no_grad():
            scores[~half] = model(inputs[~half])
        models.append(model)
    train = _rank_labels(scores, labels, sizes)
    valid_pairs = [pair(batch) for batch in patient.valid]
    if not valid_pairs or any(x is None or y is None for x, y in valid_pairs):
        return train, None
    valid_inputs, valid_labels, valid_sizes = _joined(valid_pairs)
    with torch.no_grad():
        probabilities = [torch.softmax(model(valid_inputs), 1) for model in models]
    mean = torch.stack(probabilities).mean(0)
    # The logarithms serve as scores: their softmax is the mean itself.
    return train, _rank_labels(mean.log(), valid_labels, valid_sizes)


def _train_classifier(
    model: nn.Module, inputs: Tensor, labels: Tensor, steps: int, generator: torch.Generator
) -> None:
    """Train the model in place by Adam on random batches of 64 samples.

    Args:
        labels: the class of each sample.
        generator: draws the batches, and is advanced.
    """
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for _ in range(steps):
        chosen = torch.randint(len(inputs), (64,), generator=generator).to(inputs.device)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs[chosen]), labels[chosen]).backward()
        optimizer.step()


def _joined(
    pairs: list[tuple[Tensor | None, Tensor | None]],
) -> tuple[Tensor, Tensor, list[int]]:
    """All inputs, all labels, and the number of samples of each batch, from (inputs, labels) of
    each batch; None is left out.
    """
    inputs = [x for x, _ in pairs if x is not None]
    labels = [y for _, y in pairs if y is not None]
    return torch.cat(inputs), torch.cat(labels).long(), [len(x) for x in inputs]


def _rank_labels(scores: Tensor, labels: Tensor, sizes: list[int]) -> Ranks:
    """How the labels rank among a network's answers.

    Args:
        scores: logits, (samples, classes).
        labels: (samples,).
        sizes: samples of each batch, into which the ranks are cut.
    """
    probabilities = torch.softmax(scores, 1)
    column = labels.unsqueeze(1)
    rank = (scores > scores.gather(1, column)).sum(1)  # number of better answers
    return Ranks(
        wrong=list((rank > 0).split(sizes)),
        rank=list(rank.split(sizes)),
        probability=list(probabilities.gather(1, column).squeeze(1).split(sizes)),
        confidence=list(probabilities.amax(1).split(sizes)),
        classes=scores.shape[1],
    )
