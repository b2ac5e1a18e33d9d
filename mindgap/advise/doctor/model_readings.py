"""What the model, the loss and the optimizer show at the start, before any step.

Every function ``read_...`` adds what it finds to the chart: findings with a strength from 0 to 1
and a sentence, and facts for other readings and for cures.

The thresholds (the two numbers of a ``ramp``: strength 0 at the first, 1 at the second) were chosen
on the development cases of ``benchmarks/doctor``.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from statistics import median_high
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from mindgap.advise.doctor.chart import Chart, ramp
from mindgap.advise.doctor.course import MODAL, loss_contexts, single_output
from mindgap.advise.doctor.patient import Patient
from mindgap.advise.doctor.tracing import no_dropout
from mindgap.base.batches import merged, pair, replaced, rows, size
from mindgap.base.restoring import seed_everything, undisturbed
from mindgap.base.tensors import as_real, euclidean_norm
from mindgap.measure.tracing import Trace, traced

# All thresholds here were chosen on the development cases of ``benchmarks/doctor``, too.
#: Root mean square of torch's first weights times the root of a layer's inputs: 1 / sqrt(3).
DEFAULT_SIZE = 0.58
#: Sizes (as that of torch's default above) beyond which first weights are small or large, and the
#: root mean square of an embedding's entries, of which torch's default is 1, beyond which it is.
SMALL_SIZE, LARGE_SIZE, LARGE_EMBEDDING = 0.1, 4, 8
#: Beyond this momentum or first beta, or below this second beta, settings are extreme.
MOST_MOMENTUM, LEAST_BETA = 0.985, 0.8
#: Two losses that differ by more than the first, relatively, are different; by less than the second
#: they are the same but for rounding.
DIFFERENT, SAME = 1e-5, 1e-6
NORMS = (
    nn.modules.batchnorm._BatchNorm,
    nn.LayerNorm,
    nn.GroupNorm,
    nn.modules.instancenorm._InstanceNorm,
)


def names_in_words(names: list[str], most: int = 3) -> str:
    """The first names, at most ``most``, and the number of the others, for a sentence.

    Example:
        >>> names_in_words(["a", "b", "c", "d"])
        'a, b, c and 1 more'
    """
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def read_parameters(chart: Chart, patient: Patient) -> None:
    """Find frozen parameters, parameters that the optimizer does not hold, and trainable tensors
    that torch does not register. The latter, with their places, become a fact.
    """
    parameters = patient.named_parameters
    # Ids of the tensors that the optimizer holds.
    trained = {id(p) for group in patient.optimizer.param_groups for p in group["params"]}
    unregistered_tensors = list(unregistered(patient.model))
    _read_frozen(chart, parameters)
    if "optimizer" in patient.given:
        _read_left_out(chart, parameters, trained, any_unregistered=bool(unregistered_tensors))
    untrained = [
        (place, tensor)
        for place, tensor in unregistered_tensors
        if id(tensor) not in trained and tensor.requires_grad and tensor.numel() > 1
    ]
    if untrained:
        places = names_in_words(sorted({place for place, _ in untrained}))
        chart.find(
            "unregistered",
            1.0,
            f"{places} hold tensors that torch does not register as parameters.",
        )
        chart.facts.unregistered_tensors = untrained


def _read_frozen(chart: Chart, parameters: dict[str, nn.Parameter]) -> None:
    """Find parameters, given by name, that take no gradient: some of them, or all."""
    frozen = [name for name, p in parameters.items() if not p.requires_grad]
    if not frozen:
        return
    share = _share_of_weights(frozen, parameters)
    chart.find(
        "frozen",
        ramp(share, zero_at=0.02, one_at=0.3),
        f"{share:.0%} of the weights have requires_grad=False: {names_in_words(frozen)}.",
    )
    if len(frozen) == len(parameters):
        chart.find("all_frozen", 1.0, "No parameter of the model requires a gradient.")


def _read_left_out(
    chart: Chart, parameters: dict[str, nn.Parameter], trained: set[int], *, any_unregistered: bool
) -> None:
    """Find trainable parameters that the optimizer does not hold; their names become a fact. Where
    there are any, also find tensors in the optimizer that are not the model's.

    Args:
        parameters: the model's, by name.
        trained: ids of the optimizer's tensors.
        any_unregistered: whether the model has tensors that torch does not register.
    """
    left_out = [name for name, p in parameters.items() if p.requires_grad and id(p) not in trained]
    if not left_out:
        return
    chart.facts.left_out = left_out
    share = _share_of_weights(left_out, parameters)
    chart.find(
        "left_out",
        max(0.5, ramp(share, zero_at=0.0, one_at=0.2)),
        f"The optimizer does not hold {names_in_words(left_out)} ({share:.0%} of the weights).",
    )
    foreign = len(trained - {id(p) for p in parameters.values()})
    if foreign and not any_unregistered:
        chart.find(
            "foreign", 1.0, f"The optimizer holds {foreign} tensors that are not the model's."
        )


def _share_of_weights(names: list[str], parameters: dict[str, nn.Parameter]) -> float:
    """Share of all entries that the named parameters hold."""
    total = sum(p.numel() for p in parameters.values()) or 1
    return sum(parameters[name].numel() for name in names) / total


def unregistered(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield the trainable tensors that torch does not register, with the place of each: those in a
    plain list, dictionary or attribute of a module, also inside a module that is kept there. Of a
    list or dictionary the first 100 entries are looked at.

    Example:
        >>> class Model(nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.hidden = [nn.Linear(1, 1)]
        >>> [where for where, _ in unregistered(Model())]
        ['hidden[0]', 'hidden[0]']
    """
    registered = {id(p) for p in model.parameters()} | {id(b) for b in model.buffers()}
    registered_modules = {id(m) for m in model.modules()}
    for prefix, module in model.named_modules():
        for name, value in list(vars(module).items()):
            if name.startswith("_") or name == "training":
                continue
            attribute = f"{prefix}.{name}" if prefix else name
            # (place, thing) of what may hide a tensor, or a module with some.
            if isinstance(value, dict):
                candidates = [(f"{attribute}[{k!r}]", v) for k, v in value.items()]
            elif isinstance(value, (list, tuple)):
                candidates = [(f"{attribute}[{k}]", v) for k, v in enumerate(value)]
            else:
                candidates = [(attribute, value)]
            for place, item in candidates[:100]:
                if isinstance(item, nn.Module) and id(item) not in registered_modules:
                    yield from ((place, p) for p in item.parameters() if id(p) not in registered)
                elif isinstance(item, Tensor) and item.requires_grad and id(item) not in registered:
                    yield place, item


def layers(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Name and module of every layer with a weight matrix or kernel, without embeddings, in the
    model's order.
    """
    return [
        (name, module)
        for name, module in model.named_modules()
        if isinstance(weight := getattr(module, "weight", None), Tensor)
        and weight.ndim >= 2
        and not isinstance(module, (nn.Embedding, nn.EmbeddingBag))
    ]


def weight_of(module: nn.Module) -> Tensor:
    """The weight of a layer, without its graph."""
    weight = module.weight
    assert isinstance(weight, Tensor)
    return weight.detach()


def read_start(chart: Chart, patient: Patient) -> None:
    """Find first weights that are too large or too small, and layers whose units all have equal
    weights: two of these, or one without any other weights. Where two have, sizes are not judged.

    Sizes are root mean squares times the root of the number of inputs; they become a fact.
    """
    sizes, equal = _weight_sizes(patient.model)  # by layer, and names of layers with equal units
    equal += _read_embeddings(chart, patient.model)
    if len(equal) >= 2 or (equal and not sizes):
        chart.find(
            "equal_weights",
            1.0,
            f"All units of {names_in_words(list(dict.fromkeys(equal)))} start with equal weights.",
        )
    chart.facts.weight_sizes = sizes
    if not sizes or len(equal) >= 2:
        return
    name, largest = max(sizes.items(), key=lambda item: item[1])
    if largest > LARGE_SIZE:
        chart.find(
            "large_weights",
            ramp(math.log(largest), zero_at=math.log(3), one_at=math.log(8)),
            f"The weights of {name or 'the model'} start {largest / DEFAULT_SIZE:.3g} times as "
            "large as torch's default.",
        )
    # Layers with equal units are a finding of their own.
    varied_sizes = {name: size for name, size in sizes.items() if name not in equal}
    median_size = max(1e-12, median_high(varied_sizes.values())) if varied_sizes else math.inf
    if median_size < SMALL_SIZE:
        small_layers = [name for name, size in varied_sizes.items() if size < SMALL_SIZE]
        chart.find(
            "small_weights",
            ramp(math.log(median_size), zero_at=math.log(0.1), one_at=math.log(0.03)),
            f"The weights start at {median_size / DEFAULT_SIZE:.2g} times torch's default size "
            f"({names_in_words(small_layers)}).",
        )


def _weight_sizes(model: nn.Module) -> tuple[dict[str, float], list[str]]:
    """Sizes of the weights, and layers whose units all have equal weights.

    Returns:
        Layer -> root mean square of its weights times the root of the number of its inputs (0.58
        for torch's default), and the names of the layers whose units have equal weights, a
        recurrent one as often as it has such matrices.
    """
    sizes, equal = {}, []
    for name, module in layers(model):
        weight = weight_of(module)
        if weight.is_floating_point() and weight.numel() > 4 and weight.layout == torch.strided:
            flat = weight.flatten(1).double()  # (units, inputs)
            sizes[name] = float(flat.square().mean().sqrt()) * flat.shape[1] ** 0.5
            if _units_equal(flat):
                equal.append(name)
    for name, module in model.named_modules():
        if isinstance(module, nn.RNNBase):  # every unit reads the same inputs and the same states
            kernels = [p.detach().double() for n, p in module.named_parameters() if "weight" in n]
            equal += [name] * sum(map(_units_equal, kernels))
    return sizes, equal


def _read_embeddings(chart: Chart, model: nn.Module) -> list[str]:
    """Find embeddings with large entries; returns the names of those whose rows are all equal."""
    equal = []
    for name, module in model.named_modules():
        if not isinstance(module, (nn.Embedding, nn.EmbeddingBag)):
            continue
        table = module.weight.detach()
        if len(table) > 1 and float((table - table[0]).abs().max()) == 0:
            equal.append(name)
        rms = float(table.double().square().mean().sqrt()) if table.is_floating_point() else 0.0
        if rms > LARGE_EMBEDDING:  # torch draws them with root mean square 1
            chart.find(
                "large_weights",
                ramp(math.log(rms), zero_at=math.log(6), one_at=math.log(16)),
                f"The entries of {name} start {rms:.3g} times as large as torch's default.",
            )
    return equal


def _units_equal(rows: Tensor) -> bool:
    """Whether all rows are equal; a single row counts if all its entries are.

    Args:
        rows: (units, inputs).
    """
    reference = rows[0] if len(rows) > 1 else rows[0, 0]
    return float((rows - reference).abs().max()) == 0


def read_optimizer(chart: Chart, patient: Patient) -> None:
    """Find a momentum, betas or a weight decay far outside what anybody uses, where the user gave
    the optimizer. Its learning rate, and what it calls its momentum, become facts. Only the first
    parameter group is read.
    """
    if "optimizer" not in patient.given:
        return
    group = patient.optimizer.param_groups[0]
    chart.facts.lr = float(group["lr"])
    chart.facts.momentum = "betas" if "betas" in group else "momentum"
    momentum = group.get("momentum", 0)
    if isinstance(momentum, float) and momentum > MOST_MOMENTUM:
        chart.find(
            "extreme_momentum",
            ramp(momentum, zero_at=MOST_MOMENTUM, one_at=0.995),
            f"Momentum {momentum:g} averages over {1 / max(1e-9, 1 - momentum):.0f} steps.",
        )
    betas = group.get("betas")
    if isinstance(betas, (tuple, list)) and len(betas) >= 2:
        first, second = float(betas[0]), float(betas[1])
        if first > MOST_MOMENTUM or second < LEAST_BETA or first > second:
            chart.find("extreme_momentum", 1.0, f"betas = ({first:g}, {second:g}) are extreme.")
    decay = group.get("weight_decay", 0) or 0
    if isinstance(decay, (int, float)) and decay > 0:
        # Decay beside the gradient may be large; as a part of the gradient 0.1 already is.
        decoupled = type(patient.optimizer).__name__ in ("AdamW", "ACClip", "Lion", "SignSGD")
        strength = (
            ramp(math.log10(decay), zero_at=-0.3, one_at=0.7)
            if decoupled
            else ramp(decay, zero_at=0.02, one_at=0.1)
        )
        chart.find("large_decay", strength, f"Weight decay is {decay:g}.")


def read_forward(chart: Chart, patient: Patient) -> None:
    """Make one forward pass of the first four batches, joined, in training mode, and find what it
    shows: dead and saturated units, a signal that grows or collapses, a softmax or a difference
    over the wrong axes, probabilities in place of scores, overflows in float16.

    The trace of the pass becomes a fact, and whether the model has norm layers.
    """
    model = patient.model
    batch = merged(patient.train[:4]) if size(patient.train[0]) > 1 else patient.train[0]
    with undisturbed(model), loss_contexts(patient):
        model.train()
        with (
            torch.no_grad(),
            warnings.catch_warnings(record=True) as caught_warnings,
            traced(model) as trace,
        ):
            warnings.simplefilter("always")
            patient.value(batch)
    if any("Using a target size" in str(w.message) for w in caught_warnings):
        chart.find(
            "broadcasts",
            1.0,
            "torch warns that output and target have different sizes and broadcast.",
        )
    chart.facts.trace = trace
    read_activations(chart, trace)
    if trace.twice:
        chart.find(
            "probabilities_as_scores",
            1.0,
            f"The loss is given probabilities ({trace.twice}) where it expects scores.",
        )
    # A softmax of a tensor with several axes over the first one.
    over_samples = [name for name, axis, ndim in trace.softmax_axes if axis == 0 and ndim > 1]
    if over_samples:
        chart.find("softmax_over_batch", 1.0, f"{over_samples[0]} runs over the samples (axis 0).")
    chart.facts.normalised = any(isinstance(m, NORMS) for m in model.modules())
    _read_scales(chart, trace)
    _read_ranks(chart, trace)
    if trace.half and trace.origin_half:
        chart.find(
            "half_overflow", 1.0, f"{trace.origin} overflows in float16 ({place_in_words(trace)})."
        )


def _read_scales(chart: Chart, trace: Trace) -> None:
    """Find a signal that grows through the modules, and additions around blocks (shortcuts). The
    factor of growth, from the first output to the largest one, becomes a fact. Reads nothing of
    fewer than four outputs that are finite and not zero.
    """
    scales = [(name, scale) for name, scale in trace.scales if math.isfinite(scale) and scale > 0]
    if len(scales) < 4:
        return
    first_name, first_scale = scales[0]
    name, largest_scale = max(scales, key=lambda named_scale: named_scale[1])
    chart.facts.growth = growth = largest_scale / max(first_scale, 1e-12)
    if growth > 8 and not chart.facts.normalised:
        chart.find(
            "signal_grows",
            ramp(math.log10(growth), zero_at=0.9, one_at=1.6),
            f"The signal grows by a factor of {growth:.3g} from {first_name} to {name}.",
        )
    if {"add", "__add__", "add_", "__iadd__", "__radd__"} & trace.functions:
        chart.find("residual", 1.0, "The model adds a shortcut around its blocks.")


def _read_ranks(chart: Chart, trace: Trace) -> None:
    """Find a layer whose outputs lie in few directions: the least effective rank becomes a fact."""
    # The last module is left out: it has as many directions as answers.
    inner_layers = [
        (rank, name, units) for name, rank, units in trace.ranks if name != trace.scales[-1][0]
    ]
    if inner_layers:
        rank, name, units = min(inner_layers, key=lambda layer: layer[0])
        chart.facts.rank = rank
        chart.find(
            "collapsed",
            ramp(rank, zero_at=1.5, one_at=1.1),
            f"The outputs of {name} use {rank:.2g} of {units} directions.",
        )


def read_activations(chart: Chart, trace: Trace) -> None:
    """Find dead units (ReLU, zero on every sample) and saturated values (sigmoid, tanh) in a traced
    forward pass. Their shares in the worst layer become the facts ``dead`` and ``saturated``.
    """
    if trace.dead:
        name, share = max(trace.dead, key=lambda named_share: named_share[1])
        chart.facts.dead = share
        place = _module_words(name) or "a relu"
        chart.find(
            "dead",
            ramp(share, zero_at=0.6, one_at=0.9),
            f"{share:.0%} of the units after {place} are zero on every sample.",
        )
    if trace.saturated:
        name, share = max(trace.saturated, key=lambda named_share: named_share[1])
        chart.facts.saturated = share
        place = _module_words(name) or "a squashing"
        chart.find(
            "saturated",
            ramp(share, zero_at=0.5, one_at=0.9),
            f"{share:.0%} of the values after {place} are saturated.",
        )


def _module_words(name: str) -> str:
    """The name of a module for a sentence. A bare number, as in nn.Sequential, is called a layer;
    an empty name stays empty.
    """
    return f"layer {name}" if name.isdigit() else name


def place_in_words(trace: Trace) -> str:
    """Where the first number that is not finite appeared, for a sentence."""
    return f"in {trace.origin_module}" if trace.origin_module else "in the loss"


class _Sequence(NamedTuple):
    """What a recurrent module was given."""

    name: str  # of the module
    module: nn.RNNBase
    values: Tensor  # its input, which has a gradient


@dataclass
class _BackwardPass:
    """What one backward pass of the first batch showed."""

    loss: float = math.nan
    gradients: dict[str, Tensor | None] = field(default_factory=dict)  # of trainable parameters
    called: set[str] = field(default_factory=set)  # modules that the forward pass used
    sequences: list[tuple[_Sequence, Tensor | None]] = field(default_factory=list)  # with gradients
    #: recurrent module with tanh, share of its states near -1 or 1
    saturated_states: list[tuple[str, float]] = field(default_factory=list)


def _backward_pass(chart: Chart, patient: Patient) -> _BackwardPass | None:
    """Differentiate the loss of the first batch in training mode by the trainable parameters, the
    inputs of recurrent modules and the tensors that torch does not register.

    Deletes the finding ``unregistered`` where none of those tensors gets a gradient. The model and
    its gradients stay as they are.

    Returns:
        What the pass showed; None, with the finding ``no_graph``, where the loss has no graph.
    """
    model, backward = patient.model, _BackwardPass()
    sequences: list[_Sequence] = []

    def note_call(name: str, module: nn.Module, arguments: Any, output: Any) -> None:
        """Hook after a module: note that it was called and, of a recurrent one with tanh, the share
        of its states beyond 0.99.
        """
        backward.called.add(name)
        has_tanh = getattr(module, "nonlinearity", None) in (None, "tanh")
        states = output[0] if isinstance(output, tuple) and output else None
        if isinstance(module, nn.RNNBase) and has_tanh and isinstance(states, Tensor):
            share = float((states.detach().abs() > 0.99).double().mean())
            backward.saturated_states.append((name, share))

    def note_input(name: str, module: nn.RNNBase, arguments: Any) -> Any:
        """Hook before a recurrent module: give its input a gradient, append it to ``sequences``,
        and return the arguments with it in place; None leaves them as they are.
        """
        values = arguments[0] if arguments else None
        if not (isinstance(values, Tensor) and values.is_floating_point()):
            return None
        values = values if values.requires_grad else values.detach().requires_grad_()
        sequences.append(_Sequence(name, module, values))
        return (values, *arguments[1:])

    handles = []
    for name, module in model.named_modules():
        if isinstance(module, nn.RNNBase):
            handles.append(module.register_forward_pre_hook(partial(note_input, name)))
        handles.append(module.register_forward_hook(partial(note_call, name)))
    trainable = {name: p for name, p in model.named_parameters() if p.requires_grad}
    unregistered_tensors = [tensor for _, tensor in chart.facts.unregistered_tensors]
    try:
        with undisturbed(model), loss_contexts(patient), torch.enable_grad():
            model.train()
            loss = patient.value(patient.train[0])
            if not loss.requires_grad:
                chart.find("no_graph", 1.0, "The loss does not depend on any parameter by a graph.")
                return None
            inputs = [sequence.values for sequence in sequences]
            variables = [*trainable.values(), *inputs, *unregistered_tensors]
            gradients = torch.autograd.grad(loss, variables, allow_unused=True)
    finally:
        for handle in handles:
            handle.remove()
    if unregistered_tensors and all(g is None for g in gradients[-len(unregistered_tensors) :]):
        chart.findings.pop("unregistered", None)  # kept aside on purpose: not trained
    backward.loss = float(loss.detach())
    # The gradients come in the order of ``variables``; zip leaves out those behind its own part.
    backward.gradients = dict(zip(trainable, gradients))
    backward.sequences = list(zip(sequences, gradients[len(trainable) :]))
    return backward


def read_gradients(chart: Chart, patient: Patient) -> None:
    """Make one backward pass of the first batch and find what its gradients show: parameters
    without one, numbers that are not finite, huge or below the normal ones, a gradient of zero,
    saturated states, and gradients that vanish or grow through depth or time.
    """
    backward = _backward_pass(chart, patient)
    if backward is None:
        return
    _read_missing_gradients(chart, patient, backward)
    gradients = {
        name: as_real(g.detach().to_dense())
        for name, g in backward.gradients.items()
        if g is not None
    }
    not_finite = [name for name, g in gradients.items() if not bool(g.isfinite().all())]
    if not_finite and math.isfinite(backward.loss):
        chart.find(
            "gradient_not_finite",
            1.0,
            f"The loss is finite, the gradient of {not_finite[0]} is not.",
        )
    gradient_norm = euclidean_norm(list(gradients.values()))  # of all parameters together
    if 0 < gradient_norm < math.inf:
        chart.find(
            "huge_gradient",
            ramp(math.log10(gradient_norm), zero_at=2.5, one_at=4),
            f"The first gradient has norm {gradient_norm:.3g}.",
        )
    chart.facts.denormal = share = _share_denormal(gradients.values())
    chart.find(
        "denormal",
        ramp(share, zero_at=0.01, one_at=0.2),
        f"{share:.0%} of the gradient's entries are denormal: below the least normal number.",
    )
    if gradient_norm == 0:
        chart.find("zero_gradient", 1.0, "The gradient is exactly zero at the start.")
    elif math.isfinite(gradient_norm):
        _read_depth(chart, patient, gradients)
    for name, share in backward.saturated_states:
        chart.facts.saturated = max(share, chart.facts.saturated)
        chart.find(
            "saturated",
            ramp(share, zero_at=0.5, one_at=0.9),
            f"{share:.0%} of the states of {_module_words(name)} are saturated.",
        )
    _read_time(chart, backward)


def _read_missing_gradients(chart: Chart, patient: Patient, backward: _BackwardPass) -> None:
    """Find parameters that the forward pass uses and the backward pass does not reach; their names
    become the fact ``cut``. Where no parameter gets a gradient, the finding is ``no_graph``.
    """
    missing = [name for name, g in backward.gradients.items() if g is None]
    # A parameter takes part where its module was called; one of the model itself always does.
    cut = [
        name for name in missing if name.rpartition(".")[0] in backward.called or "." not in name
    ]
    if missing and len(missing) == len(backward.gradients):
        chart.find("no_graph", 1.0, "No parameter gets a gradient from the loss.")
    elif cut:
        trainable = {
            name: p for name, p in patient.named_parameters.items() if name in backward.gradients
        }
        chart.facts.cut = cut
        chart.find(
            "cut",
            max(0.6, ramp(_share_of_weights(cut, trainable), zero_at=0.0, one_at=0.2)),
            f"{names_in_words(cut)} take part in the forward pass and get no gradient.",
        )


def _read_depth(chart: Chart, patient: Patient, gradients: dict[str, Tensor]) -> None:
    """Find gradients that vanish, and signals that grow, through at least five layers with weights.

    Gradients are compared by the root mean squares of the layers' weight gradients: that of the
    first layer over that of the last one becomes the fact ``depth_ratio``.

    Args:
        gradients: name of a parameter -> its gradient.
    """
    sizes = [  # (layer, root mean square of its weight's gradient)
        (name, float(gradients[f"{name}.weight"].double().square().mean().sqrt()))
        for name, _ in layers(patient.model)
        if f"{name}.weight" in gradients and name
    ]
    if len(sizes) < 5:
        return
    (first_name, first), (last_name, last) = sizes[0], sizes[-1]
    least = min(gradient_size for _, gradient_size in sizes)
    chart.facts.depth_ratio = first / max(last, 1e-30)
    if last > 0 and first / last < 1e-2:
        chart.find(
            "vanishes",
            ramp(math.log10(max(first / last, 1e-30)), zero_at=-2, one_at=-3.5),
            f"The gradient of {first_name} is {first / last:.2g} times that of {last_name}: "
            f"it vanishes over {len(sizes)} layers.",
        )
    # A layer in between gets next to nothing, and the first one little: a weaker sign.
    elif last > 0 and least / last < 1e-4 and first / last < 0.1:
        chart.find("vanishes", 0.5, f"The gradient vanishes over {len(sizes)} layers.")
    growth = chart.facts.growth  # of the signal, from the forward pass
    if growth > 30 and not chart.facts.normalised:
        chart.find(
            "explodes_depth",
            ramp(math.log10(growth), zero_at=1.3, one_at=2.0),
            f"Signal and gradient grow over {len(sizes)} layers (factor {growth:.3g}).",
        )


def _read_time(chart: Chart, backward: _BackwardPass) -> None:
    """Find a gradient by a recurrent module's input that vanishes or grows back through time. Its
    mean size over the first eighth of the sequence, over its size at the last element, becomes the
    fact ``time_ratio``. Reads nothing of fewer than eight elements.
    """
    for sequence, gradient in backward.sequences:
        if gradient is None or sequence.values.ndim != 3:
            continue
        name, time_axis = sequence.name, 1 if sequence.module.batch_first else 0
        # Root mean square by time; the input is (samples, time, features) or has time first.
        sizes = gradient.double().square().mean(dim=[1 - time_axis, 2]).sqrt()
        early, late = float(sizes[: max(1, len(sizes) // 8)].mean()), float(sizes[-1])
        if not (math.isfinite(early) and late > 0 and len(sizes) >= 8):
            continue
        chart.facts.time_ratio = ratio = early / late
        if ratio > 30:
            chart.find(
                "explodes_time",
                ramp(math.log10(ratio), zero_at=1.5, one_at=3),
                f"The gradient through time in {name} grows by {ratio:.2g} ({len(sizes)} steps).",
            )
        elif ratio < 1e-3:
            chart.find(
                "vanishes_time",
                ramp(math.log10(max(ratio, 1e-30)), zero_at=-3, one_at=-6),
                f"The gradient through time in {name} shrinks to {ratio:.2g} of its size.",
            )


def _share_denormal(tensors: Iterable[Tensor]) -> float:
    """Share of the entries other than zero whose size is below the smallest normal number of their
    dtype; 0 where all are zero.
    """
    denormal, nonzero = 0, 0
    for tensor in tensors:
        sizes = tensor.abs()
        nonzero += int((sizes > 0).sum())
        denormal += int(((sizes > 0) & (sizes < torch.finfo(tensor.dtype).tiny)).sum())
    return denormal / nonzero if nonzero else 0.0


def read_modes(chart: Chart, patient: Patient) -> None:
    """Find faults that show in evaluation mode: two losses of one batch that differ, a loss that
    switches the model back to training, a loss that is a sum, samples that depend on each other,
    shapes that broadcast. The model's modes are put back.
    """
    model = patient.model
    with undisturbed(model), loss_contexts(patient):
        # Afterwards the model is in evaluation mode, unless the loss has switched it back.
        _read_dropout(chart, patient)
        if model.training and any(isinstance(m, MODAL) for m in model.modules()):
            chart.find("loss_trains", 0.7, "The loss switches the model back to training mode.")
        batch = patient.train[0]
        if size(batch) < 4 and patient.valid:  # too few samples to compare parts of it
            batch = patient.valid[0]
        if size(batch) >= 4:
            _read_sum(chart, patient, batch)
        _read_mixing(chart, patient, batch)


def _evaluation_loss(patient: Patient, batch: Any, seed: int = 1) -> float:
    """Seed the global generators, switch the model to evaluation mode, in which it stays, and
    return the loss of a batch.
    """
    seed_everything(seed)
    patient.model.eval()
    with torch.no_grad():
        return float(patient.value(batch))


def _read_dropout(chart: Chart, patient: Patient) -> None:
    """Find dropout that is active in evaluation mode: two evaluations of one batch under different
    seeds differ, and agree when dropout is computed as the identity.
    """
    batch = (patient.valid or patient.train)[0]
    first, second = _evaluation_loss(patient, batch, 1), _evaluation_loss(patient, batch, 2)
    size_of_loss = max(abs(first), 1e-12)
    difference = abs(first - second) / size_of_loss
    if not (math.isfinite(difference) and difference > DIFFERENT):
        return
    with no_dropout():
        undropped = [_evaluation_loss(patient, batch, seed) for seed in (1, 2)]
    if abs(undropped[0] - undropped[1]) / size_of_loss < SAME:
        chart.find(
            "dropout_active",
            1.0,
            f"Two evaluations of one batch give {first:.4g} and {second:.4g}: dropout is active.",
        )


def _read_sum(chart: Chart, patient: Patient, batch: Any) -> None:
    """Find a loss that is a sum over the samples: in evaluation mode two halves of the batch have
    together twice their mean loss, within 2 %.
    """
    half = size(batch) // 2
    joined_loss = _evaluation_loss(patient, rows(batch, slice(0, 2 * half)))
    half_losses = [
        _evaluation_loss(patient, rows(batch, slice(begin, begin + half))) for begin in (0, half)
    ]
    mean = sum(half_losses) / 2
    is_sum = math.isfinite(joined_loss) and abs(mean) > 1e-6 and abs(joined_loss / mean - 2) < 0.02
    if is_sum and not chart.has("dropout_active"):
        chart.find("loss_is_sum", 1.0, "Twice as many samples give twice the loss: it is a sum.")


def _read_mixing(chart: Chart, patient: Patient, batch: Any) -> None:
    """Find outputs of a sample that depend on the other samples of the batch, and shapes that
    broadcast. The shape of the output becomes a fact, and the model stays in evaluation mode.

    Halves of the batch are evaluated alone: their outputs must be those within the whole batch.
    """
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
        difference = float((alone - output[part]).abs().max())
        tolerance = 1e-3 * max(float(output.abs().max()), 1e-9)
        if math.isfinite(difference) and difference > tolerance:
            chart.find(
                "samples_mix",
                0.0 if chart.has("dropout_active") else 1.0,
                "The output of a sample depends on the other samples of the batch.",
            )


def _read_broadcast(
    chart: Chart, patient: Patient, batch: Any, output: Tensor, targets: Tensor
) -> None:
    """Find output and targets whose shapes broadcast, so that every output meets every target: one
    is a column and the other a row, or both have one row per sample and the loss does not change
    when the targets are reversed, although it depends on them and the outputs differ.

    Args:
        output: of the model, for this batch.
        targets: real numbers, one row per sample.
    """
    shapes = f"The model gives {tuple(output.shape)}, the targets have {tuple(targets.shape)}"
    if output.ndim == 2 and targets.ndim == 1:
        if tuple(output.shape) == (len(targets), 1):
            chart.find("broadcasts", 1.0, f"{shapes}: the difference broadcasts.")
    elif output.ndim == 1 and targets.ndim == 2:
        chart.find("broadcasts", 1.0, f"{shapes}.")
    elif len(targets) > 2 and len(output) == len(targets):
        # A squeeze inside the loss: every output meets every target.
        reversed_batch = replaced(batch, y=targets.flip(0))
        constant_batch = replaced(batch, y=targets.mean().expand_as(targets))
        with torch.no_grad():
            loss, reversed_loss, constant_loss = (
                float(patient.value(b)) for b in (batch, reversed_batch, constant_batch)
            )
        target_spread = float(targets.double().std())
        # How much the order of the targets can change the loss: by the product of both spreads.
        spread = float(output.double().std(0).max()) * target_spread
        outputs_vary = spread > 1e-3 * abs(loss)
        # The targets must matter at all: beside outputs of 1e4 they do not.
        targets_matter = abs(loss - constant_loss) > 1e-3 * abs(loss)
        order_does_not_matter = abs(loss - reversed_loss) < 1e-5 * max(abs(loss), 1e-9)
        if order_does_not_matter and targets_matter and outputs_vary and target_spread > 0:
            chart.find(
                "broadcasts",
                1.0,
                "The loss stays the same when the targets are shuffled: it broadcasts.",
            )
