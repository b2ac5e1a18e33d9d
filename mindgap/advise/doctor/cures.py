"""What a cure does to a copy of the patient. The code for the user stands in the table of causes.

Every function changes a fresh copy in place and raises ``RuleError`` where it cannot.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from mindgap.advise.doctor import tracing
from mindgap.advise.doctor.chart import Chart
from mindgap.advise.doctor.model_readings import layers, unregistered
from mindgap.advise.doctor.patient import Patient
from mindgap.base.batches import merged, pair, replaced, rows, size
from mindgap.base.check import RuleError

Apply = Callable[[Patient, Chart, float], None]


@dataclass(frozen=True)
class Cure:
    """A change that can be tried."""

    apply: Apply
    variants: tuple[float, ...] = (1.0,)  # settings to try, best first guess first
    changes_loss: bool = False  # before and after are both judged by the changed loss


def plain(patient: Patient) -> None:
    """Our own step in place of the user's."""
    patient.step = None


def scale_rate(patient: Patient, chart: Chart, factor: float) -> None:
    """Another learning rate, also as the scheduler knows it."""
    for group in patient.optimizer.param_groups:
        group["lr"] = group["lr"] * factor
    if hasattr(patient.scheduler, "base_lrs"):
        patient.scheduler.base_lrs = [b * factor for b in patient.scheduler.base_lrs]


def warm_up(patient: Patient, chart: Chart, share: float) -> None:
    """A learning rate that rises over a share of the run."""
    plain(patient)
    patient.warmup = max(10, int(share * chart.facts.steps))


def reset(patient: Patient, chart: Chart, _: float) -> None:
    """torch's default start for every module that has one."""
    done = 0
    for module in patient.model.modules():
        again = getattr(module, "reset_parameters", None) or getattr(
            module, "_reset_parameters", None
        )
        if callable(again):
            again()
            done += 1
    if not done:
        raise RuleError("no module of this model has reset_parameters")


def clip(patient: Patient, chart: Chart, limit: float) -> None:
    """The gradient's norm clipped at a limit; below 0: at the median of the norms so far."""
    plain(patient)
    patient.clip = limit


def inner(patient: Patient, chart: Chart, limit: float) -> None:
    """Clipping (or Huber's loss in place of the squared one), judged on the validation samples
    whose targets are not in the tail.
    """
    clip(patient, chart, abs(limit) if limit > 1 else limit)
    ys = [y for _, y in map(pair, patient.train) if y is not None]
    flat = torch.cat([y.flatten(1) if y.ndim > 1 else y.unsqueeze(1) for y in ys]).double()
    middle = flat.median(0).values
    edge = (flat - middle).abs().quantile(0.9, 0)
    if limit > 1:
        bound = float((flat - middle).abs().median())
        patient.modes.append(partial(tracing.huber, bound))

    def kept(batch: Any) -> Any:
        y = _targets(batch)
        far = ((y.flatten(1) if y.ndim > 1 else y.unsqueeze(1)).double() - middle).abs() > edge
        return rows(batch, (~far.any(1)).nonzero().flatten())

    patient.valid = [kept(b) for b in patient.valid]


def _recurrent_kernels(model: nn.Module) -> list[nn.Parameter]:
    """The matrices by which recurrent layers pass their states on."""
    layers = [module for module in model.modules() if isinstance(module, nn.RNNBase)]
    return [p for layer in layers for name, p in layer.named_parameters() if "weight_hh" in name]


def calm_recurrence(patient: Patient, chart: Chart, limit: float) -> None:
    """Orthogonal recurrent weights, and the gradient's norm clipped."""
    clip(patient, chart, limit)
    kernels = _recurrent_kernels(patient.model)
    for kernel in kernels:
        for part in kernel.detach().chunk(kernel.shape[0] // kernel.shape[1]):
            nn.init.orthogonal_(part)
    if not kernels:
        reset(patient, chart, 1.0)


def calm_depth(patient: Patient, chart: Chart, way: float) -> None:
    """Torch's default weights and a clipped gradient, or a norm behind every hidden layer."""
    clip(patient, chart, 1.0)
    if way > 1:
        normalise(patient, chart, 1.0)
    else:
        reset(patient, chart, 1.0)


def remember(patient: Patient, chart: Chart, _: float) -> None:
    """A recurrence that keeps its state: recurrent weights at the identity."""
    square = [k for k in _recurrent_kernels(patient.model) if k.shape[0] == k.shape[1]]
    for kernel in square:
        nn.init.eye_(kernel)
    if not square:
        normalise(patient, chart, 1.0)


def normalise(patient: Patient, chart: Chart, way: float) -> None:
    """A LayerNorm (or, in the second way, batch norm) behind every hidden linear layer; squashing
    units become ReLU. A chain without shortcuts needs batch norm: samples that have become alike
    differ again only if what they share is taken away.
    """
    model = patient.model
    changed = False
    for name, module in layers(model)[:-1]:
        place, _, leaf = name.rpartition(".")
        parent = model.get_submodule(place)
        norm: nn.Module | None = None
        if isinstance(module, nn.Linear):
            width = module.out_features
            norm = nn.LayerNorm(width) if way < 2 else nn.BatchNorm1d(width)
        elif isinstance(module, nn.Conv2d):
            norm = nn.GroupNorm(1, module.out_channels)
        if norm is not None and not isinstance(parent, nn.MultiheadAttention):
            setattr(parent, leaf, _Normed(module, norm))
            changed = True
    if not changed:
        raise RuleError("this model has no hidden linear layer to normalise")
    for parent in list(model.modules()):
        for leaf, child in list(parent.named_children()):
            if isinstance(child, (nn.Sigmoid, nn.Tanh)):
                setattr(parent, leaf, nn.ReLU())
    _train_new_parameters(patient)


def _train_new_parameters(patient: Patient) -> None:
    """Hand the optimizer the model's parameters that it does not hold yet."""
    held = {id(p) for group in patient.optimizer.param_groups for p in group["params"]}
    new = [p for p in patient.model.parameters() if id(p) not in held and p.requires_grad]
    if new:
        patient.optimizer.add_param_group({"params": new})


class _Normed(nn.Module):
    """A layer and a norm behind it."""

    def __init__(self, layer: nn.Module, norm: nn.Module) -> None:
        super().__init__()
        self.layer, self.norm = layer, norm

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.layer(x))


def _change_batches(patient: Patient, change: Callable[[Any], Any]) -> None:
    """Change every batch of both parts."""
    patient.train = [change(b) for b in patient.train]
    patient.valid = [change(b) for b in patient.valid]


def scale_inputs(patient: Patient, chart: Chart, _: float) -> None:
    """Inputs with middle 0 and spread 1; constant and broken ones become 0."""
    xs = [x for x, _ in map(pair, patient.train) if x is not None]
    if not xs or not xs[0].is_floating_point():
        raise RuleError("the inputs are not real numbers")
    axes = [0, *range(1, xs[0].ndim - 1)] if xs[0].ndim in (2, 3) else list(range(xs[0].ndim))
    inputs = torch.cat(xs).nan_to_num(0, 0, 0)
    middle = inputs.mean(axes, keepdim=True)
    spread = inputs.std(axes, keepdim=True)
    spread = torch.where(spread < 1e-6 * middle.abs() + 1e-12, torch.inf, spread)

    def change(batch: Any) -> Any:
        x, _ = pair(batch)
        assert x is not None
        return replaced(batch, x=((x.nan_to_num(0, 0, 0) - middle) / spread).to(x.dtype))

    _change_batches(patient, change)


def drop_samples(patient: Patient, chart: Chart, _: float) -> None:
    """Leave bad samples out of their batches, and batches without any other sample."""
    bad = set(chart.facts.bad_samples)
    if not bad:
        raise RuleError("no sample is known to be bad")
    train = []
    for i, batch in enumerate(patient.train):
        keep = [j for j in range(size(batch)) if (i, j) not in bad]
        if len(keep) == size(batch):
            train.append(batch)
        elif keep:
            train.append(rows(batch, keep))
    patient.train = train


def drop_batches(patient: Patient, chart: Chart, _: float) -> None:
    """Leave bad batches out."""
    bad = set(chart.facts.bad_batches)
    if not bad:
        raise RuleError("no batch is known to be bad")
    patient.train = [b for i, b in enumerate(patient.train) if i not in bad]


def shuffle(patient: Patient, chart: Chart, _: float) -> None:
    """All samples drawn into batches at random."""
    samples = merged(patient.train)
    count, batch_size = sum(map(size, patient.train)), size(patient.train[0])
    if not batch_size or size(samples) != count:
        raise RuleError("the samples of these batches cannot be moved")
    order = torch.randperm(count, generator=torch.Generator().manual_seed(0))
    patient.train = [rows(samples, part) for part in order.split(batch_size)]


def shift_labels(patient: Patient, chart: Chart, _: float) -> None:
    """Pair every input with the label that belongs to it: shift the sequence, lower labels that
    begin at one, or roll the labels of a batch back.
    """
    if chart.has("targets_are_inputs"):
        _change_batches(patient, _with_next_symbols)
    elif chart.has("labels_outside"):
        labels = [y for _, y in map(pair, patient.train) if y is not None]
        if not labels or min(int(y.min()) for y in labels) < 1:
            raise RuleError("some labels are zero: they are not shifted by one")
        _change_batches(patient, lambda batch: replaced(batch, y=_targets(batch) - 1))
    elif chart.facts.shift:
        _change_batches(patient, partial(_with_rolled_labels, shift=chart.facts.shift))
    else:
        raise RuleError("by how much the labels are shifted is not known")


def _targets(batch: Any) -> Tensor:
    targets = pair(batch)[1]
    assert targets is not None
    return targets


def _with_next_symbols(batch: Any) -> Any:
    """The batch of sequences with the symbol behind each one as its target."""
    symbols = pair(batch)[0]
    assert symbols is not None
    return replaced(batch, x=symbols[:, :-1], y=symbols[:, 1:])


def _with_rolled_labels(batch: Any, shift: int) -> Any:
    """The batch with its labels moved by one sample, without the one that has no label then."""
    labels = _targets(batch)
    moved = replaced(batch, y=labels.roll(shift, 0))
    return rows(moved, slice(1, None) if shift > 0 else slice(0, len(labels) - 1))


def drop_suspects(patient: Patient, chart: Chart, _: float) -> None:
    """Samples whose label the trained model holds for wrong are left out, in both parts."""
    train, valid = chart.facts.suspects, chart.facts.suspects_valid
    if not train:
        raise RuleError("no label is known to be wrong")

    def cleaned(batches: list[Any], wrong: Sequence[Tensor]) -> list[Any]:
        kept = []
        for batch, mask in zip(batches, wrong):
            keep = (~mask).nonzero().flatten()
            if len(keep):
                kept.append(rows(batch, keep))
        return kept

    patient.train = cleaned(patient.train, train)
    patient.valid = cleaned(patient.valid, valid) if valid else patient.valid


def add_floors(patient: Patient, chart: Chart, factor: float) -> None:
    """Logarithms, roots and divisions that keep away from zero, and another learning rate."""
    plain(patient)
    scale_rate(patient, chart, factor)
    patient.modes.append(tracing.floors)


def _computed_in(mode: Callable[[], tracing.Rewritten]) -> Apply:
    """A cure that computes the loss inside a function mode, with our own step."""

    def apply(patient: Patient, chart: Chart, _: float) -> None:
        plain(patient)
        patient.modes.append(mode)

    return apply


def right_axis(patient: Patient, chart: Chart, _: float) -> None:
    """A softmax over the classes, or a squared error of outputs in the targets' shape."""
    plain(patient)
    if chart.has("softmax_over_batch"):
        patient.modes.append(tracing.softmax_over_classes)
    elif chart.has("broadcasts"):

        def loss(model: Any, batch: Any) -> Tensor:
            targets = _targets(batch)
            output = model(pair(batch)[0])
            return (output.reshape(targets.shape) - targets).square().mean()

        patient.loss = loss
    else:
        raise RuleError("which axes are mixed inside the model is not visible from outside")


def divide_loss(patient: Patient, chart: Chart, _: float) -> None:
    """The mean over samples, and over the answers per sample, in place of the sum."""
    plain(patient)
    own = patient.loss
    scores = chart.facts.trace.output_scores if chart.facts.trace is not None else None
    per_sample = 1.0
    if isinstance(scores, Tensor) and size(patient.train[0]):
        samples = min(4, len(patient.train)) * size(patient.train[0])  # of the traced batch
        per_sample = max(1.0, len(scores) / samples)

    def loss(model: Any, batch: Any) -> Tensor:
        return own(model, batch) / (size(batch) * per_sample)

    patient.loss = loss


def own_step(patient: Patient, chart: Chart, _: float) -> None:
    """zero_grad, loss, backward, step: nothing else."""
    if patient.step is None:
        raise RuleError("the step is the plain one already")
    plain(patient)
    patient.accumulate = max(1, int(chart.facts.added))


def unclipped(patient: Patient, chart: Chart, _: float) -> None:
    """Our own step without clipping, and every threshold of the optimizer at 1."""
    plain(patient)
    changed = False
    for group in patient.optimizer.param_groups:
        for name in ("tau", "clip", "clip_c", "threshold"):
            if isinstance(group.get(name), (int, float)):
                group[name] = 1.0
                changed = True
    if not changed and "step" not in patient.given:
        raise RuleError("the optimizer has no threshold")


def unfreeze(patient: Patient, chart: Chart, _: float) -> None:
    """Every parameter takes a gradient, and the optimizer holds them all."""
    for p in patient.model.parameters():
        if p.is_floating_point() or p.is_complex():
            p.requires_grad_(True)
    rebuild(patient, chart, 1.0)


def rebuild(patient: Patient, chart: Chart, _: float) -> None:
    """The same optimizer for all parameters of the model, and those that torch does not see."""
    plain(patient)
    lost = [t for _, t in unregistered(patient.model)]
    free = [p for p in [*patient.model.parameters(), *lost] if p.requires_grad]
    unique = list({id(p): p for p in free}.values())
    first = patient.optimizer.param_groups[0]
    patient.optimizer.param_groups.clear()
    patient.optimizer.state.clear()
    patient.optimizer.add_param_group({**first, "params": unique})


def no_decay(patient: Patient, chart: Chart, _: float) -> None:
    """No weight decay."""
    for group in patient.optimizer.param_groups:
        if "weight_decay" in group:
            group["weight_decay"] = 0.0


def ordinary_momentum(patient: Patient, chart: Chart, _: float) -> None:
    """Momentum 0.9, or betas (0.9, 0.999)."""
    for group in patient.optimizer.param_groups:
        if isinstance(group.get("momentum"), (int, float)) and group["momentum"] > 0:
            group["momentum"] = 0.9
        if isinstance(group.get("betas"), (tuple, list)):
            group["betas"] = (0.9, 0.999, *group["betas"][2:])


def constant_rate(patient: Patient, chart: Chart, _: float) -> None:
    """The first learning rate throughout."""
    patient.scheduler = None
    for group in patient.optimizer.param_groups:
        group["lr"] = group.get("initial_lr", group["lr"])


def group_norm(patient: Patient, chart: Chart, samples: float) -> None:
    """Batches joined to so many samples, or (with 1) GroupNorm in place of batch norm."""
    if samples > 1:
        count, train = int(samples), patient.train
        plain(patient)
        patient.train = [merged(train[i : i + count]) for i in range(0, len(train), count)]
        if size(patient.train[0]) < count:
            raise RuleError("these batches cannot be joined")
        return
    changed = False
    for parent in list(patient.model.modules()):
        for leaf, child in list(parent.named_children()):
            if isinstance(child, nn.modules.batchnorm._BatchNorm):
                groups = math.gcd(child.num_features, 4)
                setattr(parent, leaf, nn.GroupNorm(groups, child.num_features))
                changed = True
    if not changed:
        raise RuleError("the model has no batch norm")
    _train_new_parameters(patient)


CURES: dict[str, Cure] = {
    "slower": Cure(scale_rate, (0.1, 0.01, 0.001)),
    "faster": Cure(scale_rate, (10.0, 100.0, 1000.0, 1e4)),
    "warm_up": Cure(warm_up, (0.25, 0.6)),
    "reset": Cure(reset),
    "clip": Cure(clip, (-1.0, 1.0)),
    "inner": Cure(inner, (-1.0, 1.0, 5.0), changes_loss=True),
    "calm_recurrence": Cure(calm_recurrence, (1.0,)),
    "calm_depth": Cure(calm_depth, (1.0, 2.0)),
    "remember": Cure(remember),
    "normalise": Cure(normalise, (1.0, 2.0)),
    "scale_inputs": Cure(scale_inputs),
    "drop_samples": Cure(drop_samples),
    "drop_batches": Cure(drop_batches),
    "shuffle": Cure(shuffle),
    "shift_labels": Cure(shift_labels, changes_loss=True),
    "drop_suspects": Cure(drop_suspects, changes_loss=True),
    "floors": Cure(add_floors, (1.0, 0.1)),
    "single_precision": Cure(_computed_in(tracing.single_precision)),
    "reattach": Cure(_computed_in(tracing.no_detach)),
    "right_axis": Cure(right_axis, changes_loss=True),
    "scores": Cure(_computed_in(tracing.scores_from_probabilities), changes_loss=True),
    "divide_loss": Cure(divide_loss, changes_loss=True),
    "own_step": Cure(own_step),
    "unclipped": Cure(unclipped),
    "unfreeze": Cure(unfreeze),
    "rebuild": Cure(rebuild),
    "no_decay": Cure(no_decay),
    "ordinary_momentum": Cure(ordinary_momentum),
    "constant_rate": Cure(constant_rate),
    "group_norm": Cure(group_norm, (16.0, 1.0)),
}
