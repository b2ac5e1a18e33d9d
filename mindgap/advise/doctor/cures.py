"""What a cure does to a copy of the patient. The code for the user stands in the table of causes.

Every cure is called with a fresh copy, which it changes in place, with the chart of what is
known, and with one of its variants, a number (``_`` where it has one variant only). It raises
``RuleError`` where it cannot change anything. The *standard step* is zero_grad, loss, backward and
``optimizer.step`` in place of the user's own.
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
from mindgap.advise.doctor.data_readings import flat
from mindgap.advise.doctor.model_readings import layers, unregistered
from mindgap.advise.doctor.patient import Patient
from mindgap.base.batches import merged, pair, replaced, rows, size
from mindgap.base.check import RuleError

Apply = Callable[[Patient, Chart, float], None]


@dataclass(frozen=True)
class Cure:
    """A change that can be tried."""

    apply: Apply  # changes a copy; its last argument is one of the variants
    variants: tuple[float, ...] = (1.0,)  # settings to try, the best guess first
    changes_loss: bool = False  # before and after are both judged by the changed loss


def scale_rate(patient: Patient, chart: Chart, factor: float) -> None:
    """Multiply the learning rates by a factor, also those that the scheduler starts from."""
    for group in patient.optimizer.param_groups:
        group["lr"] = group["lr"] * factor
    if hasattr(patient.scheduler, "base_lrs"):
        patient.scheduler.base_lrs = [rate * factor for rate in patient.scheduler.base_lrs]


def warm_up(patient: Patient, chart: Chart, share: float) -> None:
    """Take the standard step, with a learning rate that rises linearly over a share of the run (ten
    steps at least).
    """
    patient.step = None
    patient.warmup = max(10, int(share * chart.facts.steps))


def reset_weights(patient: Patient, chart: Chart, _: float) -> None:
    """Draw new weights by torch's default for every module that has one."""
    methods = [
        getattr(module, "reset_parameters", None) or getattr(module, "_reset_parameters", None)
        for module in patient.model.modules()
    ]
    resets = [method for method in methods if callable(method)]
    if not resets:
        raise RuleError("no module of this model has reset_parameters")
    for reset in resets:
        reset()


def clip_gradient(patient: Patient, chart: Chart, limit: float) -> None:
    """Take the standard step with the gradient's norm clipped at a limit. A limit below 0 stands
    for the median of the norms so far.
    """
    patient.step = None
    patient.clip = limit


def fit_inner_targets(patient: Patient, chart: Chart, limit: float) -> None:
    """Clip the gradient, and keep only the validation samples whose targets are near the median of
    the training targets: no farther than nine tenths of these are, in every column.

    Args:
        limit: of :func:`clip_gradient`. Above 1 also Huber's loss takes the place of the squared
            error: beyond the median distance it grows linearly, which becomes the fact
            ``huber_bound``.
    """
    clip_gradient(patient, chart, limit)
    targets = torch.cat([flat(y) for _, y in map(pair, patient.train) if y is not None]).double()
    median = targets.median(0).values
    tail = (targets - median).abs().quantile(0.9, 0)  # distance at which the outliers begin
    if limit > 1:
        bound = float((targets - median).abs().median())
        patient.contexts.append(partial(tracing.huber, bound))
        chart.facts.huber_bound = bound
    # Per batch, which samples have an outlier among their targets.
    distances = [(flat(_targets(batch)).double() - median).abs() for batch in patient.valid]
    in_tail = [(distance > tail).any(1) for distance in distances]
    patient.valid = [rows(b, (~far).nonzero().flatten()) for b, far in zip(patient.valid, in_tail)]


def _recurrent_kernels(model: nn.Module) -> list[nn.Parameter]:
    """The matrices by which recurrent layers pass their states on."""
    layers = [module for module in model.modules() if isinstance(module, nn.RNNBase)]
    return [p for layer in layers for name, p in layer.named_parameters() if "weight_hh" in name]


def calm_recurrence(patient: Patient, chart: Chart, limit: float) -> None:
    """Clip the gradient's norm and make the recurrent weights orthogonal, gate by gate. Where
    nothing is recurrent, all weights are drawn anew by torch's default.
    """
    clip_gradient(patient, chart, limit)
    kernels = _recurrent_kernels(patient.model)
    for kernel in kernels:  # (gates * units, units)
        for gate in kernel.detach().chunk(kernel.shape[0] // kernel.shape[1]):
            nn.init.orthogonal_(gate)
    if not kernels:
        reset_weights(patient, chart, 1.0)


def calm_depth(patient: Patient, chart: Chart, variant: float) -> None:
    """Clip the gradient's norm at 1 and draw all weights anew by torch's default or, in a variant
    above 1, put a norm layer behind every hidden layer.
    """
    clip_gradient(patient, chart, 1.0)
    if variant > 1:
        normalise(patient, chart, 1.0)
    else:
        reset_weights(patient, chart, 1.0)


def keep_recurrent_state(patient: Patient, chart: Chart, _: float) -> None:
    """Set the square recurrent weights to the identity, so that the recurrence keeps its state.
    Where none is square (gates), put a norm layer behind every hidden layer.
    """
    square = [k for k in _recurrent_kernels(patient.model) if k.shape[0] == k.shape[1]]
    for kernel in square:
        nn.init.eye_(kernel)
    if not square:
        normalise(patient, chart, 1.0)


def normalise(patient: Patient, chart: Chart, variant: float) -> None:
    """Put a norm layer behind every hidden layer, replace Sigmoid and Tanh by ReLU, and hand the
    optimizer the new parameters.

    A linear layer gets LayerNorm or, in the variant 2, batch norm. A convolution always gets
    GroupNorm with one group. A chain without shortcuts needs batch norm: samples that have become
    alike differ again only if what they share is taken away.
    """
    model = patient.model
    changed = False
    for name, module in layers(model)[:-1]:  # the last one gives the output
        parent_name, _, child_name = name.rpartition(".")
        parent = model.get_submodule(parent_name)
        norm: nn.Module | None = None
        if isinstance(module, nn.Linear):
            width = module.out_features
            norm = nn.LayerNorm(width) if variant < 2 else nn.BatchNorm1d(width)
        elif isinstance(module, nn.Conv2d):
            norm = nn.GroupNorm(1, module.out_channels)
        if norm is not None and not isinstance(parent, nn.MultiheadAttention):
            setattr(parent, child_name, nn.Sequential(module, norm))
            changed = True
    if not changed:
        raise RuleError("this model has no hidden linear layer to normalise")
    for parent in list(model.modules()):
        for child_name, child in list(parent.named_children()):
            if isinstance(child, (nn.Sigmoid, nn.Tanh)):
                setattr(parent, child_name, nn.ReLU())
    _train_new_parameters(patient)


def _train_new_parameters(patient: Patient) -> None:
    """Hand the optimizer the model's parameters that it does not hold yet."""
    trained = {id(p) for group in patient.optimizer.param_groups for p in group["params"]}
    new = [p for p in patient.model.parameters() if id(p) not in trained and p.requires_grad]
    if new:
        patient.optimizer.add_param_group({"params": new})


def _change_batches(patient: Patient, change: Callable[[Any], Any]) -> None:
    """Replace every training and every validation batch by what ``change`` returns for it."""
    patient.train = [change(b) for b in patient.train]
    patient.valid = [change(b) for b in patient.valid]


def scale_inputs(patient: Patient, chart: Chart, _: float) -> None:
    """Scale the inputs of all batches to mean 0 and standard deviation 1 over the training samples.
    A feature that is constant becomes 0, and so does a number that is not finite.

    Vectors (samples, features) and sequences (samples, places, features) are scaled feature by
    feature, anything else (images) as a whole.
    """
    inputs = [x for x, _ in map(pair, patient.train) if x is not None]
    if not inputs or not inputs[0].is_floating_point():
        raise RuleError("the inputs are not real numbers")
    ndim = inputs[0].ndim
    axes = list(range(ndim - 1)) if ndim in (2, 3) else list(range(ndim))  # that share a scale
    joined = torch.cat(inputs).nan_to_num(0, 0, 0)
    mean = joined.mean(axes, keepdim=True)
    spread = joined.std(axes, keepdim=True)
    # Infinite for a constant feature, which becomes 0 by the division.
    spread = torch.where(spread < 1e-6 * mean.abs() + 1e-12, torch.inf, spread)

    def scaled(batch: Any) -> Any:
        """The batch with inputs minus ``mean`` over ``spread``, in their own dtype."""
        x, _ = pair(batch)
        assert x is not None
        return replaced(batch, x=((x.nan_to_num(0, 0, 0) - mean) / spread).to(x.dtype))

    _change_batches(patient, scaled)


def drop_samples(patient: Patient, chart: Chart, _: float) -> None:
    """Drop the samples that the chart knows to be bad, and training batches without any other."""
    bad_samples = set(chart.facts.bad_samples)
    if not bad_samples:
        raise RuleError("no sample is known to be bad")
    train = []
    for i, batch in enumerate(patient.train):
        good = [j for j in range(size(batch)) if (i, j) not in bad_samples]
        if len(good) == size(batch):  # a batch of unknown size, which counts as 0, stays
            train.append(batch)
        elif good:
            train.append(rows(batch, good))
    patient.train = train


def drop_batches(patient: Patient, chart: Chart, _: float) -> None:
    """Drop the training batches that the chart knows to be bad."""
    bad_batches = set(chart.facts.bad_batches)
    if not bad_batches:
        raise RuleError("no batch is known to be bad")
    patient.train = [b for i, b in enumerate(patient.train) if i not in bad_batches]


def shuffle(patient: Patient, chart: Chart, _: float) -> None:
    """Draw all training samples at random into batches of the size of the first one."""
    samples = merged(patient.train)
    count, batch_size = sum(map(size, patient.train)), size(patient.train[0])
    if not batch_size or size(samples) != count:
        raise RuleError("the samples of these batches cannot be moved")
    order = torch.randperm(count, generator=torch.Generator().manual_seed(0))
    patient.train = [rows(samples, part) for part in order.split(batch_size)]


def shift_labels(patient: Patient, chart: Chart, _: float) -> None:
    """Pair every input with the label that belongs to it, in the training and validation batches.

    Targets that equal the input sequence become the symbols one place later. Labels that begin at
    one are lowered by one. Else the labels of every batch are rolled back by the known shift.
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
    """The targets of a batch that is known to have some."""
    targets = pair(batch)[1]
    assert targets is not None
    return targets


def _with_next_symbols(batch: Any) -> Any:
    """A batch of symbols (samples, places) with the symbol behind each one as its target; the last
    symbol is a target only.
    """
    symbols = pair(batch)[0]
    assert symbols is not None
    return replaced(batch, x=symbols[:, :-1], y=symbols[:, 1:])


def _with_rolled_labels(batch: Any, shift: int) -> Any:
    """The batch with its labels moved by one sample, without the sample that has no label then.

    Args:
        shift: 1: every sample gets the label of the one before it; -1: of the one behind it.
    """
    labels = _targets(batch)
    moved = replaced(batch, y=labels.roll(shift, 0))
    return rows(moved, slice(1, None) if shift > 0 else slice(0, len(labels) - 1))


def drop_suspects(patient: Patient, chart: Chart, _: float) -> None:
    """Drop the training and validation samples whose label a network trained on other samples holds
    for wrong, and batches that have no other sample.
    """
    suspects, suspects_valid = chart.facts.suspects, chart.facts.suspects_valid
    if not suspects:
        raise RuleError("no label is known to be wrong")

    def without(batches: list[Any], wrong: Sequence[Tensor]) -> list[Any]:
        """The batches without their wrong samples; ``wrong`` has a mask per batch."""
        trusted = [(~mask).nonzero().flatten() for mask in wrong]
        return [rows(b, places) for b, places in zip(batches, trusted) if len(places)]

    patient.train = without(patient.train, suspects)
    if suspects_valid:
        patient.valid = without(patient.valid, suspects_valid)


def add_floors(patient: Patient, chart: Chart, factor: float) -> None:
    """Take the standard step with logarithms, roots and divisions that keep away from zero, and
    multiply the learning rate by a factor.
    """
    scale_rate(patient, chart, factor)
    compute_inside(tracing.floors, patient, chart, 1.0)


def compute_inside(
    mode: Callable[[], tracing.Rewritten], patient: Patient, chart: Chart, _: float
) -> None:
    """Take the standard step, with the loss computed inside a function mode.

    Args:
        mode: makes the context manager that computes some torch functions otherwise.
    """
    patient.step = None
    patient.contexts.append(mode)


def correct_axes(patient: Patient, chart: Chart, _: float) -> None:
    """Take the standard step with a softmax over the classes where it ran over the samples or,
    where shapes broadcast, with the mean squared error of outputs in the targets' shape in place of
    the user's loss.
    """
    patient.step = None
    if chart.has("softmax_over_batch"):
        patient.contexts.append(tracing.softmax_over_classes)
    elif chart.has("broadcasts"):

        def loss(model: Any, batch: Any) -> Tensor:
            """Mean squared error of the outputs, in the targets' shape."""
            targets = _targets(batch)
            output = model(pair(batch)[0])
            return (output.reshape(targets.shape) - targets).square().mean()

        patient.loss = loss
    else:
        raise RuleError("which axes are mixed inside the model is not visible from outside")


def divide_loss(patient: Patient, chart: Chart, _: float) -> None:
    """Take the standard step on the user's loss, which is a sum, divided by the number of samples
    and of answers per sample (places of a sequence, as the traced forward pass shows them).
    """
    patient.step = None
    summed_loss = patient.loss
    scores = chart.facts.trace.output_scores if chart.facts.trace is not None else None
    answers_per_sample = 1.0
    if isinstance(scores, Tensor) and size(patient.train[0]):
        # The trace is of the first four batches, joined.
        traced_samples = min(4, len(patient.train)) * size(patient.train[0])
        answers_per_sample = max(1.0, len(scores) / traced_samples)

    def mean_loss(model: Any, batch: Any) -> Tensor:
        """The user's sum over samples and answers, divided by their number."""
        return summed_loss(model, batch) / (size(batch) * answers_per_sample)

    patient.loss = mean_loss


def simplify_step(patient: Patient, chart: Chart, _: float) -> None:
    """Take the standard step in place of the user's own, with the mean gradient of as many batches
    as that one adds up.
    """
    if patient.step is None:
        raise RuleError("the step is the standard one already")
    patient.step = None
    patient.accumulate = max(1, int(chart.facts.added_batches))


def remove_clipping(patient: Patient, chart: Chart, _: float) -> None:
    """Take the standard step, which clips nothing, and set every clipping threshold of the
    optimizer to 1.
    """
    patient.step = None
    thresholds = [
        (group, name)
        for group in patient.optimizer.param_groups
        for name in ("tau", "clip", "clip_c", "threshold")
        if isinstance(group.get(name), (int, float))
    ]
    if not thresholds and "step" not in patient.given:
        raise RuleError("the optimizer has no threshold")
    for group, name in thresholds:
        group[name] = 1.0


def unfreeze(patient: Patient, chart: Chart, _: float) -> None:
    """Let every parameter take a gradient, and rebuild the optimizer so that it holds them all."""
    for p in patient.model.parameters():
        if p.is_floating_point() or p.is_complex():
            p.requires_grad_(True)
    rebuild_optimizer(patient, chart, 1.0)


def rebuild_optimizer(patient: Patient, chart: Chart, _: float) -> None:
    """Take the standard step and give the optimizer all trainable parameters, also those that torch
    does not see, in one group with the settings of its first one. Its state is cleared.
    """
    patient.step = None
    unregistered_tensors = [t for _, t in unregistered(patient.model)]
    trainable = [p for p in [*patient.model.parameters(), *unregistered_tensors] if p.requires_grad]
    each_once = list({id(p): p for p in trainable}.values())
    first = patient.optimizer.param_groups[0]
    patient.optimizer.param_groups.clear()
    patient.optimizer.state.clear()
    patient.optimizer.add_param_group({**first, "params": each_once})


def remove_decay(patient: Patient, chart: Chart, _: float) -> None:
    """Set weight decay to 0 in every group."""
    for group in patient.optimizer.param_groups:
        if "weight_decay" in group:
            group["weight_decay"] = 0.0


def set_ordinary_momentum(patient: Patient, chart: Chart, _: float) -> None:
    """Set momentum to 0.9 where there is any, and the first two betas to 0.9 and 0.999."""
    for group in patient.optimizer.param_groups:
        if isinstance(group.get("momentum"), (int, float)) and group["momentum"] > 0:
            group["momentum"] = 0.9
        if isinstance(group.get("betas"), (tuple, list)):
            group["betas"] = (0.9, 0.999, *group["betas"][2:])


def keep_rate_constant(patient: Patient, chart: Chart, _: float) -> None:
    """Drop the scheduler and keep the first learning rate throughout."""
    patient.scheduler = None
    for group in patient.optimizer.param_groups:
        group["lr"] = group.get("initial_lr", group["lr"])


def replace_batch_norm(patient: Patient, chart: Chart, samples: float) -> None:
    """Take the standard step on larger batches: every ``samples`` training batches in a row, which
    are taken to hold one sample each, are joined into one. With 1, put GroupNorm in place of batch
    norm instead, and leave step and batches as they are.
    """
    if samples > 1:
        joined, train = int(samples), patient.train
        patient.step = None
        patient.train = [merged(train[i : i + joined]) for i in range(0, len(train), joined)]
        if size(patient.train[0]) < joined:
            raise RuleError("these batches cannot be joined")
        return
    norms = [
        (parent, child_name, child)
        for parent in patient.model.modules()
        for child_name, child in parent.named_children()
        if isinstance(child, nn.modules.batchnorm._BatchNorm)
    ]
    if not norms:
        raise RuleError("the model has no batch norm")
    for parent, child_name, child in norms:
        channels = child.num_features
        setattr(parent, child_name, nn.GroupNorm(math.gcd(channels, 4), channels))
    _train_new_parameters(patient)


CURES: dict[str, Cure] = {
    "slower": Cure(scale_rate, (0.1, 0.01, 0.001)),
    "faster": Cure(scale_rate, (10.0, 100.0, 1000.0, 1e4)),
    "warm_up": Cure(warm_up, (0.25, 0.6)),
    "reset": Cure(reset_weights),
    "clip": Cure(clip_gradient, (-1.0, 1.0)),
    "inner": Cure(fit_inner_targets, (-1.0, 1.0, 5.0), changes_loss=True),
    "calm_recurrence": Cure(calm_recurrence, (1.0,)),
    "calm_depth": Cure(calm_depth, (1.0, 2.0)),
    "remember": Cure(keep_recurrent_state),
    "normalise": Cure(normalise, (1.0, 2.0)),
    "scale_inputs": Cure(scale_inputs),
    "drop_samples": Cure(drop_samples),
    "drop_batches": Cure(drop_batches),
    "shuffle": Cure(shuffle),
    "shift_labels": Cure(shift_labels, changes_loss=True),
    "drop_suspects": Cure(drop_suspects, changes_loss=True),
    "floors": Cure(add_floors, (1.0, 0.1)),
    "single_precision": Cure(partial(compute_inside, tracing.single_precision)),
    "reattach": Cure(partial(compute_inside, tracing.no_detach)),
    "right_axis": Cure(correct_axes, changes_loss=True),
    "scores": Cure(partial(compute_inside, tracing.scores_from_probabilities), changes_loss=True),
    "divide_loss": Cure(divide_loss, changes_loss=True),
    "own_step": Cure(simplify_step),
    "unclipped": Cure(remove_clipping),
    "unfreeze": Cure(unfreeze),
    "rebuild": Cure(rebuild_optimizer),
    "no_decay": Cure(remove_decay),
    "ordinary_momentum": Cure(set_ordinary_momentum),
    "constant_rate": Cure(keep_rate_constant),
    "group_norm": Cure(replace_batch_norm, (16.0, 1.0)),
}
