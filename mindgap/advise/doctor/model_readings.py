"""What the model, the loss and the optimizer show at the start, before any step."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from mindgap.advise.doctor.chart import Chart, middle, ramp
from mindgap.advise.doctor.course import around, single_output
from mindgap.advise.doctor.patient import Patient
from mindgap.advise.doctor.tracing import no_dropout
from mindgap.base.batches import merged, pair, replaced, rows, size
from mindgap.base.restoring import seed_everything, undisturbed
from mindgap.measure.tracing import Trace, traced

#: Root mean square of torch's first weights times the root of a layer's inputs: 1 / sqrt(3).
DEFAULT_SIZE = 0.58
NORMS = (
    nn.modules.batchnorm._BatchNorm,
    nn.LayerNorm,
    nn.GroupNorm,
    nn.modules.instancenorm._InstanceNorm,
)


def shown(names: list[str], most: int = 3) -> str:
    """Some names for a sentence.

    Example:
        >>> shown(["a", "b", "c", "d"])
        'a, b, c and 1 more'
    """
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def read_parameters(chart: Chart, patient: Patient) -> None:
    """Frozen parameters, parameters the optimizer does not hold, and tensors torch does not see."""
    named = patient.named
    held = {id(p) for group in patient.optimizer.param_groups for p in group["params"]}
    hidden = list(unregistered(patient.model))
    _read_frozen(chart, named)
    if "optimizer" in patient.given:
        _read_left_out(chart, named, held, any_hidden=bool(hidden))
    lost = [
        (place, tensor)
        for place, tensor in hidden
        if id(tensor) not in held and tensor.requires_grad and tensor.numel() > 1
    ]
    if lost:
        places = shown(sorted({place for place, _ in lost}))
        text = f"{places} hold tensors that torch does not register as parameters."
        chart.find("unregistered", 1.0, text)
        chart.facts.lost = lost


def _read_frozen(chart: Chart, named: dict[str, nn.Parameter]) -> None:
    frozen = [name for name, p in named.items() if not p.requires_grad]
    if not frozen:
        return
    share = _share_of_weights(frozen, named)
    text = f"{share:.0%} of the weights have requires_grad=False: {shown(frozen)}."
    chart.find("frozen", ramp(share, 0.02, 0.3), text)
    if len(frozen) == len(named):
        chart.find("all_frozen", 1.0, "No parameter of the model requires a gradient.")


def _read_left_out(
    chart: Chart, named: dict[str, nn.Parameter], held: set[int], *, any_hidden: bool
) -> None:
    """Trainable parameters that the optimizer does not hold, and tensors in it that are foreign.

    Args:
        held: ids of the optimizer's tensors.
        any_hidden: whether the model has tensors that torch does not register.
    """
    left = [name for name, p in named.items() if p.requires_grad and id(p) not in held]
    if not left:
        return
    chart.facts.left_out = left
    share = _share_of_weights(left, named)
    text = f"The optimizer does not hold {shown(left)} ({share:.0%} of the weights)."
    chart.find("left_out", max(0.5, ramp(share, 0.0, 0.2)), text)
    foreign = len(held - {id(p) for p in named.values()})
    if foreign and not any_hidden:
        text = f"The optimizer holds {foreign} tensors that are not the model's."
        chart.find("foreign", 1.0, text)


def _share_of_weights(names: list[str], named: dict[str, nn.Parameter]) -> float:
    """Share of all entries that the named parameters hold."""
    total = sum(p.numel() for p in named.values()) or 1
    return sum(named[name].numel() for name in names) / total


def unregistered(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Trainable tensors and modules that a module keeps in a plain list, dictionary or attribute.

    Example:
        >>> class Model(nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.hidden = [nn.Linear(1, 1)]
        >>> [where for where, _ in unregistered(Model())]
        ['hidden[0]', 'hidden[0]']
    """
    known = {id(p) for p in model.parameters()} | {id(b) for b in model.buffers()}
    inner = {id(m) for m in model.modules()}
    for prefix, module in model.named_modules():
        for name, value in list(vars(module).items()):
            if name.startswith("_") or name == "training":
                continue
            where = f"{prefix}.{name}" if prefix else name
            if isinstance(value, dict):
                items = [(f"{where}[{k!r}]", v) for k, v in value.items()]
            elif isinstance(value, (list, tuple)):
                items = [(f"{where}[{k}]", v) for k, v in enumerate(value)]
            else:
                items = [(where, value)]
            for place, item in items[:100]:
                if isinstance(item, nn.Module) and id(item) not in inner:
                    yield from ((place, p) for p in item.parameters() if id(p) not in known)
                elif isinstance(item, Tensor) and item.requires_grad and id(item) not in known:
                    yield place, item


def layers(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Modules with a weight matrix or kernel, embeddings left out, in the model's order."""
    found = []
    for name, m in model.named_modules():
        weight = getattr(m, "weight", None)
        matrix = isinstance(weight, Tensor) and weight.ndim >= 2
        if matrix and not isinstance(m, (nn.Embedding, nn.EmbeddingBag)):
            found.append((name, m))
    return found


def weight_of(module: nn.Module) -> Tensor:
    """The weight of a layer, without its graph."""
    weight = module.weight
    assert isinstance(weight, Tensor)
    return weight.detach()


def read_start(chart: Chart, patient: Patient) -> None:
    """The size of the first weights, and weights that are all equal."""
    sizes, equal = _weight_sizes(patient.model)
    equal += _read_embeddings(chart, patient.model)
    if len(equal) >= 2 or (equal and not sizes):
        text = f"All units of {shown(list(dict.fromkeys(equal)))} start with equal weights."
        chart.find("equal_weights", 1.0, text)
    chart.facts.weight_sizes = sizes
    if not sizes or len(equal) >= 2:
        return
    name, largest = max(sizes.items(), key=lambda item: item[1])
    if largest > 4:
        text = (
            f"The weights of {name or 'the model'} start {largest / DEFAULT_SIZE:.3g} times as "
            "large as torch's default."
        )
        chart.find("large_weights", ramp(math.log(largest), math.log(3), math.log(8)), text)
    varied = {name: size for name, size in sizes.items() if name not in equal}
    typical = max(1e-12, middle(varied.values())) if varied else math.inf
    if typical < 0.1:
        small = [name for name, size in varied.items() if size < 0.1]
        text = (
            f"The weights start at {typical / DEFAULT_SIZE:.2g} times torch's default size "
            f"({shown(small)})."
        )
        chart.find("small_weights", ramp(math.log(typical), math.log(0.1), math.log(0.03)), text)


def _weight_sizes(model: nn.Module) -> tuple[dict[str, float], list[str]]:
    """Root mean square of each layer's weights times the root of its inputs, and the names of
    layers (recurrent ones once per matrix) whose units all have equal weights.
    """
    sizes, equal = {}, []
    for name, module in layers(model):
        weight = weight_of(module)
        if weight.is_floating_point() and weight.numel() > 4 and weight.layout == torch.strided:
            flat = weight.flatten(1).double()
            sizes[name] = float(flat.square().mean().sqrt()) * flat.shape[1] ** 0.5
            equal += [name] * _units_equal(flat)
    for name, module in model.named_modules():
        if isinstance(module, nn.RNNBase):  # every unit reads the same inputs and the same states
            kernels = [p.detach().double() for n, p in module.named_parameters() if "weight" in n]
            equal += [name] * sum(map(_units_equal, kernels))
    return sizes, equal


def _read_embeddings(chart: Chart, model: nn.Module) -> list[str]:
    """Embeddings with large entries; returns the names of those whose rows are all equal."""
    equal = []
    for name, module in model.named_modules():
        if not isinstance(module, (nn.Embedding, nn.EmbeddingBag)):
            continue
        table = module.weight.detach()
        if len(table) > 1 and float((table - table[0]).abs().max()) == 0:
            equal.append(name)
        spread = float(table.double().square().mean().sqrt()) if table.is_floating_point() else 0.0
        if spread > 8:  # torch draws them with spread 1
            text = f"The entries of {name} start {spread:.3g} times as large as torch's default."
            chart.find("large_weights", ramp(math.log(spread), math.log(6), math.log(16)), text)
    return equal


def _units_equal(rows: Tensor) -> bool:
    """Are all rows equal? A single row counts if all its entries are."""
    first = rows[0] if len(rows) > 1 else rows[0, 0]
    return float((rows - first).abs().max()) == 0


def read_optimizer(chart: Chart, patient: Patient) -> None:
    """Settings that are far outside what anybody uses."""
    if "optimizer" not in patient.given:
        return
    group = patient.optimizer.param_groups[0]
    chart.facts.lr = float(group["lr"])
    chart.facts.momentum = "betas" if "betas" in group else "momentum"
    momentum = group.get("momentum", 0)
    if isinstance(momentum, float) and momentum > 0.985:
        text = f"Momentum {momentum:g} averages over {1 / max(1e-9, 1 - momentum):.0f} steps."
        chart.find("extreme_momentum", ramp(momentum, 0.985, 0.995), text)
    betas = group.get("betas")
    if isinstance(betas, (tuple, list)) and len(betas) >= 2:
        first, second = float(betas[0]), float(betas[1])
        if first > 0.985 or second < 0.8 or first > second:
            chart.find("extreme_momentum", 1.0, f"betas = ({first:g}, {second:g}) are extreme.")
    decay = group.get("weight_decay", 0) or 0
    name = type(patient.optimizer).__name__
    if isinstance(decay, (int, float)) and decay > 0:
        decoupled = name in ("AdamW", "ACClip", "Lion", "SignSGD")
        high = ramp(math.log10(decay), -0.3, 0.7) if decoupled else ramp(decay, 0.02, 0.1)
        chart.find("large_decay", high, f"Weight decay is {decay:g}.")


def read_forward(chart: Chart, patient: Patient) -> None:
    """One forward pass: dead and saturated units, scales, axes, ranks, overflows."""
    model = patient.model
    batch = merged(patient.train[:4]) if size(patient.train[0]) > 1 else patient.train[0]
    with undisturbed(model), around(patient):
        model.train()
        with torch.no_grad(), warnings.catch_warnings(record=True) as told, traced(model) as trace:
            warnings.simplefilter("always")
            patient.value(batch)
    if any("Using a target size" in str(w.message) for w in told):
        text = "torch warns that output and target have different sizes and broadcast."
        chart.find("broadcasts", 1.0, text)
    chart.facts.trace = trace
    read_activations(chart, trace)
    if trace.twice:
        text = f"The loss is given probabilities ({trace.twice}) where it expects scores."
        chart.find("probabilities_as_scores", 1.0, text)
    wrong = [name for name, axis, ndim in trace.softmax_axes if axis == 0 and ndim > 1]
    if wrong:
        chart.find("softmax_over_batch", 1.0, f"{wrong[0]} runs over the samples (axis 0).")
    chart.facts.normalised = any(isinstance(m, NORMS) for m in model.modules())
    _read_scales(chart, trace)
    _read_ranks(chart, trace)
    if trace.half and trace.origin_half:
        chart.find(
            "half_overflow", 1.0, f"{trace.origin} overflows in float16 ({place_of(trace)})."
        )


def _read_scales(chart: Chart, trace: Trace) -> None:
    """How much the signal grows through the modules, and whether there are shortcuts."""
    scales = [(name, scale) for name, scale in trace.scales if math.isfinite(scale) and scale > 0]
    if len(scales) < 4:
        return
    first_name, first = scales[0]
    name, largest = max(scales, key=lambda row: row[1])
    chart.facts.growth = growth = largest / max(first, 1e-12)
    if growth > 8 and not chart.facts.normalised:
        text = f"The signal grows by a factor of {growth:.3g} from {first_name} to {name}."
        chart.find("signal_grows", ramp(math.log10(growth), 0.9, 1.6), text)
    if {"add", "__add__", "add_", "__iadd__", "__radd__"} & trace.functions:
        chart.find("residual", 1.0, "The model adds a shortcut around its blocks.")


def _read_ranks(chart: Chart, trace: Trace) -> None:
    """Whether the outputs of a layer lie in few directions."""
    last = trace.scales[-1][0] if trace.scales else ""  # it has as many directions as answers
    inside = [row for row in trace.ranks if row[0] != last]
    if inside:
        name, rank, units = min(inside, key=lambda row: row[1])
        chart.facts.rank = rank
        text = f"The outputs of {name} use {rank:.2g} of {units} directions."
        chart.find("collapsed", ramp(rank, 1.5, 1.1), text)


def read_activations(chart: Chart, trace: Trace) -> None:
    """Dead and saturated units."""
    if trace.dead:
        name, share = max(trace.dead, key=lambda pair: pair[1])
        chart.facts.dead = share
        place = _layer(name) or "a relu"
        text = f"{share:.0%} of the units after {place} are zero on every sample."
        chart.find("dead", ramp(share, 0.6, 0.9), text)
    if trace.saturated:
        name, share = max(trace.saturated, key=lambda pair: pair[1])
        chart.facts.saturated = share
        place = _layer(name) or "a squashing"
        text = f"{share:.0%} of the values after {place} are saturated."
        chart.find("saturated", ramp(share, 0.5, 0.9), text)


def _layer(name: str) -> str:
    """The name of a module in a sentence; a bare number, as in nn.Sequential, is called a layer."""
    return f"layer {name}" if name.isdigit() else name


def place_of(trace: Trace) -> str:
    """Where the first number that is not finite appeared, for a sentence."""
    return f"in {trace.origin_module}" if trace.origin_module else "in the loss"


@dataclass
class _BackwardPass:
    """One backward pass of the first batch."""

    loss: float = math.nan
    gradients: dict[str, Tensor | None] = field(default_factory=dict)  # of trainable parameters
    called: set[str] = field(default_factory=set)  # modules that the forward pass used
    #: recurrent module, the module, its input and the gradient by it
    sequences: list[tuple[str, nn.RNNBase, Tensor, Tensor | None]] = field(default_factory=list)
    #: recurrent module with tanh, share of its states near -1 or 1
    states_at_edge: list[tuple[str, float]] = field(default_factory=list)


def _backward_pass(chart: Chart, patient: Patient) -> _BackwardPass | None:
    """Differentiate the loss of the first batch; None, and a finding, where it has no graph."""
    model, made = patient.model, _BackwardPass()
    inputs: list[tuple[str, nn.RNNBase, Tensor]] = []

    def note_call(name: str, module: nn.Module, given: Any, output: Any) -> None:
        made.called.add(name)
        recurrent = isinstance(module, nn.RNNBase)
        bounded = recurrent and getattr(module, "nonlinearity", None) in (None, "tanh")
        if bounded and isinstance(output, tuple) and isinstance(output[0], Tensor):
            at_edge = output[0].detach().abs() > 0.99
            made.states_at_edge.append((name, float(at_edge.double().mean())))

    def note_input(name: str, module: nn.RNNBase, given: Any) -> Any:
        """Keep a sequence that can be differentiated by; it takes the place of the one given."""
        if not (given and isinstance(given[0], Tensor) and given[0].is_floating_point()):
            return None
        sequence = given[0] if given[0].requires_grad else given[0].detach().requires_grad_()
        inputs.append((name, module, sequence))
        return (sequence, *given[1:])

    handles = []
    for name, module in model.named_modules():
        if isinstance(module, nn.RNNBase):
            handles.append(module.register_forward_pre_hook(partial(note_input, name)))
        handles.append(module.register_forward_hook(partial(note_call, name)))
    free = {name: p for name, p in model.named_parameters() if p.requires_grad}
    hidden = [tensor for _, tensor in chart.facts.lost]
    try:
        with undisturbed(model), around(patient), torch.enable_grad():
            model.train()
            loss = patient.value(patient.train[0])
            if not loss.requires_grad:
                chart.find("no_graph", 1.0, "The loss does not depend on any parameter by a graph.")
                return None
            wanted = [*free.values(), *(row[2] for row in inputs), *hidden]
            found = torch.autograd.grad(loss, wanted, allow_unused=True)
    finally:
        for handle in handles:
            handle.remove()
    if hidden and all(g is None for g in found[-len(hidden) :]):
        chart.findings.pop("unregistered", None)  # kept aside on purpose: not trained
    made.loss = float(loss.detach())
    made.gradients = dict(zip(free, found))
    made.sequences = [(*row, g) for row, g in zip(inputs, found[len(free) :])]
    return made


def read_gradients(chart: Chart, patient: Patient) -> None:
    """Which parameters get no gradient, and how gradients change through depth and time."""
    made = _backward_pass(chart, patient)
    if made is None:
        return
    _read_missing_gradients(chart, patient, made)
    known = {n: _to_dense(g.detach()) for n, g in made.gradients.items() if g is not None}
    bad = [name for name, g in known.items() if not bool(g.isfinite().all())]
    if bad and math.isfinite(made.loss):
        text = f"The loss is finite, the gradient of {bad[0]} is not."
        chart.find("gradient_not_finite", 1.0, text)
    total = math.sqrt(sum(float(g.abs().double().square().sum()) for g in known.values()))
    if math.isfinite(total) and total > 300:
        text = f"The first gradient has norm {total:.3g}."
        chart.find("huge_gradient", ramp(math.log10(total), 2.5, 4), text)
    chart.facts.denormal = share = _denormal(list(known.values()))
    text = f"{share:.0%} of the gradient's entries are denormal: below the least normal number."
    chart.find("denormal", ramp(share, 0.01, 0.2), text)
    if total == 0:
        chart.find("zero_gradient", 1.0, "The gradient is exactly zero at the start.")
    elif math.isfinite(total):
        _read_depth(chart, patient, known)
    for name, share in made.states_at_edge:
        chart.facts.saturated = max(share, chart.facts.saturated)
        text = f"{share:.0%} of the states of {_layer(name)} are saturated."
        chart.find("saturated", ramp(share, 0.5, 0.9), text)
    _read_time(chart, made)


def _read_missing_gradients(chart: Chart, patient: Patient, made: _BackwardPass) -> None:
    """Parameters that the forward pass uses and the backward pass does not reach."""
    missing = [name for name, g in made.gradients.items() if g is None]
    cut = [name for name in missing if name.rpartition(".")[0] in made.called or "." not in name]
    if missing and len(missing) == len(made.gradients):
        chart.find("no_graph", 1.0, "No parameter gets a gradient from the loss.")
    elif cut:
        free = {name: p for name, p in patient.named.items() if name in made.gradients}
        chart.facts.cut = cut
        text = f"{shown(cut)} take part in the forward pass and get no gradient."
        chart.find("cut", max(0.6, ramp(_share_of_weights(cut, free), 0.0, 0.2)), text)


def _read_depth(chart: Chart, patient: Patient, known: dict[str, Tensor]) -> None:
    """Whether gradients vanish or grow from the last layer to the first.

    Args:
        known: parameter -> its gradient.
    """
    depth = [
        (name, float(known[f"{name}.weight"].double().square().mean().sqrt()))
        for name, _ in layers(patient.model)
        if f"{name}.weight" in known and name
    ]
    if len(depth) < 5:
        return
    (first_name, first), (last_name, last) = depth[0], depth[-1]
    chart.facts.depth_ratio = first / max(last, 1e-30)
    if last > 0 and first / last < 1e-2:
        text = (
            f"The gradient of {first_name} is {first / last:.2g} times that of {last_name}: "
            f"it vanishes over {len(depth)} layers."
        )
        chart.find("vanishes", ramp(math.log10(max(first / last, 1e-30)), -2, -3.5), text)
    elif last > 0 and min(size for _, size in depth) / last < 1e-4 and first / last < 0.1:
        chart.find("vanishes", 0.5, f"The gradient vanishes over {len(depth)} layers.")
    growth = chart.facts.growth
    if growth > 30 and not chart.facts.normalised:
        text = f"Signal and gradient grow over {len(depth)} layers (factor {growth:.3g})."
        chart.find("explodes_depth", ramp(math.log10(growth), 1.3, 2.0), text)


def _read_time(chart: Chart, made: _BackwardPass) -> None:
    """Whether the gradient by a recurrent module's input vanishes or grows back through time."""
    for name, module, sequence, slope in made.sequences:
        if slope is None or sequence.ndim != 3:
            continue
        time_axis = 1 if module.batch_first else 0
        sizes = slope.double().square().mean(dim=[1 - time_axis, 2]).sqrt()
        early, late = float(sizes[: max(1, len(sizes) // 8)].mean()), float(sizes[-1])
        if not (math.isfinite(early) and late > 0 and len(sizes) >= 8):
            continue
        chart.facts.time_ratio = ratio = early / late
        if ratio > 30:
            text = f"The gradient through time in {name} grows by {ratio:.2g} ({len(sizes)} steps)."
            chart.find("explodes_time", ramp(math.log10(ratio), 1.5, 3), text)
        elif ratio < 1e-3:
            text = f"The gradient through time in {name} shrinks to {ratio:.2g} of its size."
            chart.find("vanishes_time", ramp(math.log10(max(ratio, 1e-30)), -3, -6), text)


def _denormal(tensors: list[Tensor]) -> float:
    """Share of the entries other than zero whose size is below the smallest normal number."""
    small, others = 0, 0
    for tensor in tensors:
        if tensor.is_floating_point():
            sizes = tensor.abs()
            others += int((sizes > 0).sum())
            small += int(((sizes > 0) & (sizes < torch.finfo(tensor.dtype).tiny)).sum())
    return small / others if others else 0.0


def _to_dense(tensor: Tensor) -> Tensor:
    """The tensor with its zeros, complex numbers as pairs."""
    tensor = tensor.to_dense() if tensor.is_sparse else tensor
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def read_modes(chart: Chart, patient: Patient) -> None:
    """Evaluation gives the same loss twice, keeps its mode, and does not mix samples."""
    model = patient.model
    with undisturbed(model), around(patient):
        _read_dropout(chart, patient)
        noisy = (nn.modules.batchnorm._BatchNorm, nn.modules.dropout._DropoutNd)
        if model.training and any(isinstance(m, noisy) for m in model.modules()):
            chart.find("loss_trains", 0.7, "The loss switches the model back to training mode.")
        batch = patient.train[0]
        if size(batch) < 4 and patient.valid:
            batch = patient.valid[0]
        if size(batch) >= 4:
            _read_sum(chart, patient, batch)
        _read_mixing(chart, patient, batch)


def _evaluated(patient: Patient, batch: Any, seed: int = 1) -> float:
    """The loss of a batch in evaluation mode, under a seed."""
    seed_everything(seed)
    patient.model.eval()
    with torch.no_grad():
        return float(patient.value(batch))


def _read_dropout(chart: Chart, patient: Patient) -> None:
    """Whether two evaluations of one batch differ, and agree without dropout."""
    batch = (patient.valid or patient.train)[0]
    first, second = _evaluated(patient, batch, 1), _evaluated(patient, batch, 2)
    spread = abs(first - second) / max(abs(first), 1e-12)
    if not (math.isfinite(spread) and spread > 1e-5):
        return
    with no_dropout():
        calm = abs(_evaluated(patient, batch, 1) - _evaluated(patient, batch, 2))
    if calm / max(abs(first), 1e-12) < 1e-6:
        text = f"Two evaluations of one batch give {first:.4g} and {second:.4g}: dropout is active."
        chart.find("dropout_active", 1.0, text)


def _read_sum(chart: Chart, patient: Patient, batch: Any) -> None:
    """Whether the loss is a sum over the samples: twice as many give twice the loss."""
    half = size(batch) // 2
    both = _evaluated(patient, rows(batch, slice(0, 2 * half)))
    parts = [_evaluated(patient, rows(batch, slice(a, a + half))) for a in (0, half)]
    mean = sum(parts) / 2
    doubled = math.isfinite(both) and abs(mean) > 1e-6 and abs(both / mean - 2) < 0.02
    if doubled and not chart.has("dropout_active"):
        chart.find("loss_is_sum", 1.0, "Twice as many samples give twice the loss: it is a sum.")


def _read_mixing(chart: Chart, patient: Patient, batch: Any) -> None:
    """Does the output of one sample depend on the others, and do shapes broadcast?"""
    inputs, targets = pair(batch)
    seed_everything(1)
    patient.model.eval()
    output = single_output(patient, batch)
    if output is None or inputs is None:
        return
    chart.facts.output = tuple(output.shape)
    count = size(batch)
    if targets is not None and targets.is_floating_point() and count > 1:
        _read_broadcast(chart, patient, batch, output, targets)
    if count < 4 or len(output) != count or not output.is_floating_point():
        return
    # A recurrence along the batch shows in the second half only.
    for part in (slice(0, count // 2), slice(count // 2, count)):
        alone = single_output(patient, rows(batch, part))
        if alone is None or alone.shape != output[part].shape:
            continue
        apart = float((alone - output[part]).abs().max())
        if math.isfinite(apart) and apart > 1e-3 * max(float(output.abs().max()), 1e-9):
            text = "The output of a sample depends on the other samples of the batch."
            chart.find("samples_mix", 0.0 if chart.has("dropout_active") else 1.0, text)


def _read_broadcast(
    chart: Chart, patient: Patient, batch: Any, output: Tensor, targets: Tensor
) -> None:
    """Whether output and targets have shapes that broadcast, before the loss or inside it."""
    given, wanted = tuple(output.shape), tuple(targets.shape)
    if output.ndim == 2 and targets.ndim == 1:
        if given == (len(targets), 1):
            text = f"The model gives {given}, the targets have {wanted}: the difference broadcasts."
            chart.find("broadcasts", 1.0, text)
    elif output.ndim == 1 and targets.ndim == 2:
        chart.find("broadcasts", 1.0, f"The model gives {given}, the targets have {wanted}.")
    elif len(targets) > 2 and len(output) == len(targets):
        # A squeeze inside the loss: every output meets every target.
        turned = replaced(batch, y=targets.flip(0))
        level = replaced(batch, y=targets.mean().expand_as(targets))
        with torch.no_grad():
            own, shuffled, constant = (float(patient.value(b)) for b in (batch, turned, level))
        target_spread = float(targets.double().std())
        spread = float(output.double().std(0).max()) * target_spread
        varied = spread > 1e-3 * abs(own)  # else the order of the targets cannot show
        # The targets must matter at all: beside outputs of 1e4 they do not.
        matter = abs(own - constant) > 1e-3 * abs(own)
        same = abs(own - shuffled) < 1e-5 * max(abs(own), 1e-9)
        if same and matter and varied and target_spread > 0:
            text = "The loss stays the same when the targets are shuffled: it broadcasts."
            chart.find("broadcasts", 1.0, text)
