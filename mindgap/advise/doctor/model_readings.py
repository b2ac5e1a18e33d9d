"""What the model, the loss and the optimizer show at the start, before any step."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from mindgap.advise.doctor.chart import Chart, ramp
from mindgap.advise.doctor.course import around
from mindgap.advise.doctor.patient import Patient
from mindgap.advise.doctor.tracing import no_dropout
from mindgap.base.batches import merged, pair, replaced, rows, size
from mindgap.base.restoring import seed_everything, undisturbed
from mindgap.measure.tracing import Trace, traced

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
    total = sum(p.numel() for p in named.values()) or 1
    frozen = [n for n, p in named.items() if not p.requires_grad]
    if frozen:
        share = sum(named[n].numel() for n in frozen) / total
        text = f"{share:.0%} of the weights have requires_grad=False: {shown(frozen)}."
        chart.find("frozen", ramp(share, 0.02, 0.3), text)
        chart.facts["frozen"] = frozen
        if len(frozen) == len(named):
            chart.find("all_frozen", 1.0, "No parameter of the model requires a gradient.")
    held = {id(p) for g in patient.optimizer.param_groups for p in g["params"]}
    free = {n: p for n, p in named.items() if p.requires_grad}
    left = [n for n, p in free.items() if id(p) not in held]
    foreign = len(held - {id(p) for p in named.values()})
    chart.facts["left_out"] = left
    if "optimizer" in patient.given and left:
        share = sum(free[n].numel() for n in left) / total
        text = f"The optimizer does not hold {shown(left)} ({share:.0%} of the weights)."
        chart.find("left_out", max(0.5, ramp(share, 0.0, 0.2)), text)
    if foreign and left and "optimizer" in patient.given and not list(unregistered(patient.model)):
        text = f"The optimizer holds {foreign} tensors that are not the model's."
        chart.find("foreign", 1.0, text)
    found = list(unregistered(patient.model))
    chart.facts["unregistered"] = found
    lost = [
        (where, t) for where, t in found if id(t) not in held and t.requires_grad and t.numel() > 1
    ]
    if lost:
        text = (
            f"{shown(sorted({w for w, _ in lost}))} hold tensors that torch does not register as "
            "parameters."
        )
        chart.find("unregistered", 1.0, text)
        chart.facts["lost"] = lost


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
    sizes, equal = {}, []
    for name, m in layers(patient.model):
        w = weight_of(m)
        if not (w.is_floating_point() and w.numel() > 4 and w.layout == torch.strided):
            continue
        flat = w.flatten(1).double()
        fan = flat.shape[1]
        sizes[name] = float(flat.square().mean().sqrt()) * fan**0.5
        if _units_equal(flat):
            equal.append(name)
    for name, m in patient.model.named_modules():
        if isinstance(m, nn.RNNBase):  # every unit reads the same inputs and the same states
            kernels = [p.detach().double() for n, p in m.named_parameters() if "weight" in n]
            equal += [name] * sum(map(_units_equal, kernels))
    tables = [
        (n, m)
        for n, m in patient.model.named_modules()
        if isinstance(m, (nn.Embedding, nn.EmbeddingBag))
    ]
    for name, m in tables:
        w = m.weight.detach()
        if len(w) > 1 and float((w - w[0]).abs().max()) == 0:
            equal.append(name)
        spread = float(w.double().square().mean().sqrt()) if w.is_floating_point() else 0.0
        if spread > 8:  # torch draws them with spread 1
            text = f"The entries of {name} start {spread:.3g} times as large as torch's default."
            chart.find("large_weights", ramp(math.log(spread), math.log(6), math.log(16)), text)
    if len(equal) >= 2 or (equal and not sizes):
        text = f"All units of {shown(list(dict.fromkeys(equal)))} start with equal weights."
        chart.find("equal_weights", 1.0, text)
    chart.facts["weight_sizes"] = sizes
    if not sizes or len(equal) >= 2:
        return
    name = max(sizes, key=lambda n: sizes[n])
    if sizes[name] > 4:
        text = (
            f"The weights of {name or 'the model'} start {sizes[name] / 0.58:.3g} times as large "
            "as torch's default."
        )
        chart.find("large_weights", ramp(math.log(sizes[name]), math.log(3), math.log(8)), text)
    small = {n: s for n, s in sizes.items() if n not in equal}
    if small:
        low = max(1e-12, sorted(small.values())[len(small) // 2])
        if low < 0.1:
            text = (
                f"The weights start at {low / 0.58:.2g} times torch's default size "
                f"({shown([n for n, s in small.items() if s < 0.1])})."
            )
            chart.find("small_weights", ramp(math.log(low), math.log(0.1), math.log(0.03)), text)


def _units_equal(rows: Tensor) -> bool:
    """Are all rows equal? A single row counts if all its entries are."""
    first = rows[0] if len(rows) > 1 else rows[0, 0]
    return float((rows - first).abs().max()) == 0


def read_optimizer(chart: Chart, patient: Patient) -> None:
    """Settings that are far outside what anybody uses."""
    if "optimizer" not in patient.given:
        return
    group = patient.optimizer.param_groups[0]
    chart.facts["lr"] = float(group["lr"])
    chart.facts["momentum"] = "betas" if "betas" in group else "momentum"
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
    """One forward and backward pass: dead and saturated units, scales, axes, gradients."""
    model = patient.model
    batch = merged(patient.train[:4]) if size(patient.train[0]) > 1 else patient.train[0]
    with undisturbed(model), around(patient):
        model.train()
        with torch.no_grad(), warnings.catch_warnings(record=True) as told, traced(model) as trace:
            warnings.simplefilter("always")
            value = float(patient.value(batch))
    if any("Using a target size" in str(w.message) for w in told):
        text = "torch warns that output and target have different sizes and broadcast."
        chart.find("broadcasts", 1.0, text)
    chart.facts["trace"] = trace
    chart.facts["first_value"] = value
    activations(chart, trace)
    if trace.twice:
        text = f"The loss is given probabilities ({trace.twice}) where it expects scores."
        chart.find("probabilities_as_scores", 1.0, text)
    wrong = [n for n, axis, ndim in trace.softmax_axes if axis == 0 and ndim > 1]
    if wrong:
        chart.find("softmax_over_batch", 1.0, f"{wrong[0]} runs over the samples (axis 0).")
    norms = any(isinstance(m, NORMS) for m in model.modules())
    chart.facts["normalised"] = norms
    inner = [(n, s) for n, s in trace.scales if math.isfinite(s) and s > 0]
    if len(inner) >= 4:
        first = inner[0][1]
        name, high = max(inner, key=lambda pair: pair[1])
        growth = high / max(first, 1e-12)
        chart.facts["growth"] = growth
        if growth > 8 and not norms:
            text = f"The signal grows by a factor of {growth:.3g} from {inner[0][0]} to {name}."
            chart.find("signal_grows", ramp(math.log10(growth), 0.9, 1.6), text)
        if {"add", "__add__", "add_", "__iadd__", "__radd__"} & trace.functions:
            chart.find("residual", 1.0, "The model adds a shortcut around its blocks.")
    last = trace.scales[-1][0] if trace.scales else ""  # it has as many directions as answers
    inside = [row for row in trace.ranks if row[0] != last]
    if inside:
        name, rank, units = min(inside, key=lambda row: row[1])
        chart.facts["rank"] = rank
        if rank < 1.5:
            text = f"The outputs of {name} use {rank:.2g} of {units} directions."
            chart.find("collapsed", ramp(rank, 1.5, 1.1), text)
    if trace.half and trace.origin_half:
        text = f"{trace.origin} overflows in float16 ({_place(trace)})."
        chart.find("half_overflow", 1.0, text)


def activations(chart: Chart, trace: Trace) -> None:
    """Dead and saturated units."""
    if trace.dead:
        name, share = max(trace.dead, key=lambda pair: pair[1])
        chart.facts["dead"] = share
        if share > 0.5:
            place = _layer(name) or "a relu"
            text = f"{share:.0%} of the units after {place} are zero on every sample."
            chart.find("dead", ramp(share, 0.6, 0.9), text)
    if trace.saturated:
        name, share = max(trace.saturated, key=lambda pair: pair[1])
        chart.facts["saturated"] = share
        if share > 0.5:
            place = _layer(name) or "a squashing"
            text = f"{share:.0%} of the values after {place} are saturated."
            chart.find("saturated", ramp(share, 0.5, 0.9), text)


def _layer(name: str) -> str:
    """The name of a module in a sentence; a bare number, as in nn.Sequential, is called a layer."""
    return f"layer {name}" if name.isdigit() else name


def _place(trace: Trace) -> str:
    return f"in {trace.origin_module}" if trace.origin_module else "in the loss"


def read_gradients(chart: Chart, patient: Patient) -> None:
    """Which parameters get no gradient, and how gradients change through depth and time."""
    model = patient.model
    grabbed: list[tuple[str, nn.Module, Tensor]] = []
    handles = []

    def grab(name: str) -> Any:
        def look(module: nn.Module, inputs: Any) -> Any:
            if isinstance(inputs, tuple) and inputs and isinstance(inputs[0], Tensor):
                x = inputs[0]
                if x.is_floating_point():
                    x = x if x.requires_grad else x.detach().requires_grad_()
                    grabbed.append((name, module, x))
                    return (x, *inputs[1:])
            return None

        return look

    held_states: list[tuple[str, float]] = []

    def states(name: str) -> Any:
        def look(module: nn.Module, inputs: Any, out: Any) -> None:
            if isinstance(out, tuple) and isinstance(out[0], Tensor):
                at_the_edge = out[0].detach().abs() > 0.99
                held_states.append((name, float(at_the_edge.double().mean())))

        return look

    called: set[str] = set()
    for name, module in model.named_modules():
        if isinstance(module, nn.RNNBase):
            handles.append(module.register_forward_pre_hook(grab(name)))
            if getattr(module, "nonlinearity", "tanh") == "tanh":
                handles.append(module.register_forward_hook(states(name)))
        handles.append(module.register_forward_hook(lambda m, i, o, name=name: called.add(name)))
    free = {n: p for n, p in model.named_parameters() if p.requires_grad}
    try:
        with undisturbed(model), around(patient), torch.enable_grad():
            model.train()
            value = patient.value(patient.train[0])
            if not value.requires_grad:
                chart.find("no_graph", 1.0, "The loss does not depend on any parameter by a graph.")
                return
            lost = [t for _, t in chart.facts.get("lost", ())]
            wanted = [*free.values(), *(x for _, _, x in grabbed), *lost]
            found = torch.autograd.grad(value, wanted, allow_unused=True)
            if lost and all(g is None for g in found[-len(lost) :]):
                chart.findings.pop("unregistered", None)  # kept aside on purpose: not trained
    finally:
        for handle in handles:
            handle.remove()
    grads = dict(zip(free, found))
    none = [n for n, g in grads.items() if g is None]
    cut = [n for n in none if n.rpartition(".")[0] in called or "." not in n]
    if none and len(none) == len(grads):
        chart.find("no_graph", 1.0, "No parameter gets a gradient from the loss.")
    elif cut:
        share = sum(free[n].numel() for n in cut) / sum(p.numel() for p in free.values())
        text = f"{shown(cut)} take part in the forward pass and get no gradient."
        chart.find("cut", max(0.6, ramp(share, 0.0, 0.2)), text)
        chart.facts["cut"] = cut
    known = {n: g.detach() for n, g in grads.items() if g is not None}
    bad = [n for n, g in known.items() if not bool(_to_dense(g).isfinite().all())]
    if bad and math.isfinite(float(value.detach())):
        chart.find(
            "gradient_not_finite", 1.0, f"The loss is finite, the gradient of {bad[0]} is not."
        )
    total = math.sqrt(
        sum(float(_to_dense(g).abs().double().square().sum()) for g in known.values())
    )
    chart.facts["gradient_norm"] = total
    if math.isfinite(total) and total > 300:
        text = f"The first gradient has norm {total:.3g}."
        chart.find("huge_gradient", ramp(math.log10(total), 2.5, 4), text)
    chart.facts["denormal"] = share = _denormal(list(known.values()))
    if share > 0.01:
        text = f"{share:.0%} of the gradient's entries are denormal: below the least normal number."
        chart.find("denormal", ramp(share, 0.01, 0.2), text)
    if total == 0:
        chart.find("zero_gradient", 1.0, "The gradient is exactly zero at the start.")
    deep = [
        (n, float(_to_dense(known[f"{n}.weight"]).double().square().mean().sqrt()))
        for n, _ in layers(model)
        if f"{n}.weight" in known and n
    ]
    if len(deep) >= 5 and math.isfinite(total) and total > 0:
        first, last = deep[0][1], deep[-1][1]
        chart.facts["depth_ratio"] = first / max(last, 1e-30)
        middle = min(v for _, v in deep)
        if last > 0 and first / last < 1e-2:
            text = (
                f"The gradient of {deep[0][0]} is {first / last:.2g} times that of {deep[-1][0]}: "
                f"it vanishes over {len(deep)} layers."
            )
            chart.find("vanishes", ramp(math.log10(max(first / last, 1e-30)), -2, -3.5), text)
        elif last > 0 and middle / last < 1e-4 and first / last < 0.1:
            chart.find("vanishes", 0.5, f"The gradient vanishes over {len(deep)} layers.")
        grows = chart.facts.get("growth", 1.0)
        if grows > 30 and not chart.facts.get("normalised"):
            text = f"Signal and gradient grow over {len(deep)} layers (factor {grows:.3g})."
            chart.find("explodes_depth", ramp(math.log10(grows), 1.3, 2.0), text)
    for name, share in held_states:
        chart.facts["saturated"] = max(share, chart.facts.get("saturated", 0.0))
        if share > 0.5:
            text = f"{share:.0%} of the states of {_layer(name)} are saturated."
            chart.find("saturated", ramp(share, 0.5, 0.9), text)
    for (name, module, x), g in zip(grabbed, found[len(free) :]):
        if g is None or x.ndim != 3:
            continue
        axis = 1 if getattr(module, "batch_first", False) else 0
        along = g.double().square().mean(dim=[1 - axis, 2]).sqrt()
        early, late = float(along[: max(1, len(along) // 8)].mean()), float(along[-1])
        if not (math.isfinite(early) and late > 0 and len(along) >= 8):
            continue
        ratio = early / late
        chart.facts["time_ratio"] = ratio
        if ratio > 30:
            text = f"The gradient through time in {name} grows by {ratio:.2g} ({len(along)} steps)."
            chart.find("explodes_time", ramp(math.log10(ratio), 1.5, 3), text)
        if ratio < 1e-3:
            text = f"The gradient through time in {name} shrinks to {ratio:.2g} of its size."
            chart.find("vanishes_time", ramp(math.log10(max(ratio, 1e-30)), -3, -6), text)


def _denormal(tensors: list[Tensor]) -> float:
    """Share of the entries other than zero whose size is below the smallest normal number."""
    small, others = 0, 0
    for t in map(_to_dense, tensors):
        if t.is_floating_point():
            size = t.abs()
            others += int((size > 0).sum())
            small += int(((size > 0) & (size < torch.finfo(t.dtype).tiny)).sum())
    return small / others if others else 0.0


def _to_dense(t: Tensor) -> Tensor:
    t = t.to_dense() if t.is_sparse else t
    return torch.view_as_real(t) if t.is_complex() else t


def read_modes(chart: Chart, patient: Patient) -> None:
    """Evaluation gives the same loss twice, keeps its mode, and does not mix samples."""
    model = patient.model
    batch = (patient.valid or patient.train)[0]
    n = size(batch)

    def value(what: Any, seed: int) -> float:
        seed_everything(seed)
        model.eval()
        with torch.no_grad():
            return float(patient.value(what))

    with undisturbed(model), around(patient):
        first, second = value(batch, 1), value(batch, 2)
        flipped = model.training
        spread = abs(first - second) / max(abs(first), 1e-12)
        if math.isfinite(spread) and spread > 1e-5:
            with no_dropout():
                calm = abs(value(batch, 1) - value(batch, 2)) / max(abs(first), 1e-12)
            if calm < 1e-6:
                text = (
                    f"Two evaluations of one batch give {first:.4g} and {second:.4g}: dropout is "
                    "active."
                )
                chart.find("dropout_active", 1.0, text)
        if flipped and any(
            isinstance(m, (nn.modules.batchnorm._BatchNorm, nn.modules.dropout._DropoutNd))
            for m in model.modules()
        ):
            chart.find("loss_trains", 0.7, "The loss switches the model back to training mode.")
        single = patient.train[0] if size(patient.train[0]) >= 4 else batch
        n = size(single)
        if n >= 4:
            half = n // 2
            whole = value(rows(single, slice(0, 2 * half)), 1)
            parts = [value(rows(single, slice(a, a + half)), 1) for a in (0, half)]
            mean = sum(parts) / 2
            if math.isfinite(whole) and abs(mean) > 1e-6:
                ratio = whole / mean
                chart.facts["sum_ratio"] = ratio
                if abs(ratio - 2) < 0.02 and not chart.has("dropout_active"):
                    text = "Twice as many samples give twice the loss: it is a sum."
                    chart.find("loss_is_sum", 1.0, text)
        _mixing(chart, patient, single, n)


def _mixing(chart: Chart, patient: Patient, batch: Any, n: int) -> None:
    """Does the output of one sample depend on the others, and do shapes broadcast?"""
    x, y = pair(batch)
    outs: list[Any] = []
    handle = patient.model.register_forward_hook(lambda m, i, o: outs.append(o))
    try:
        seed_everything(1)
        patient.model.eval()
        with torch.no_grad():
            patient.value(batch)
        if len(outs) != 1 or not isinstance(outs[0], Tensor) or x is None:
            return
        out = outs[0]
        chart.facts["output"] = tuple(out.shape)
        if y is not None and y.is_floating_point() and out.ndim == 2 and y.ndim == 1:
            if out.shape == (len(y), 1) and n > 1:
                text = (
                    f"The model gives {tuple(out.shape)}, the targets have {tuple(y.shape)}: "
                    "the difference broadcasts."
                )
                chart.find("broadcasts", 1.0, text)
        elif y is not None and y.is_floating_point() and y.ndim == 2 and out.ndim == 1 and n > 1:
            text = f"The model gives {tuple(out.shape)}, the targets have {tuple(y.shape)}."
            chart.find("broadcasts", 1.0, text)
        elif y is not None and y.is_floating_point() and n > 2 and len(out) == n:
            # A squeeze inside the loss: every output meets every target.
            turned, level = replaced(batch, y=y.flip(0)), replaced(batch, y=y.mean().expand_as(y))
            with torch.no_grad():
                a, b, c = (float(patient.value(t)) for t in (batch, turned, level))
            spread = float(out.double().std(0).max()) * float(y.double().std())
            varied = spread > 1e-3 * abs(a)  # else the order of the targets cannot show
            # The targets must matter at all: beside outputs of 1e4 they do not.
            same = abs(a - b) < 1e-5 * max(abs(a), 1e-9) and abs(a - c) > 1e-3 * abs(a)
            if same and varied and float(y.double().std()) > 0:
                text = "The loss stays the same when the targets are shuffled: it broadcasts."
                chart.find("broadcasts", 1.0, text)
        if n >= 4 and len(out) == n and out.is_floating_point():
            # A recurrence along the batch shows in the second half only.
            for part in (slice(0, n // 2), slice(n // 2, n)):
                outs.clear()
                with torch.no_grad():
                    patient.value(rows(batch, part))
                alone = outs[0] if outs else None
                if not isinstance(alone, Tensor) or alone.shape != out[part].shape:
                    continue
                rest = float((alone - out[part]).abs().max())
                scale = float(out.abs().max())
                if math.isfinite(rest) and rest > 1e-3 * max(scale, 1e-9):
                    chart.find(
                        "samples_mix",
                        0.0 if chart.has("dropout_active") else 1.0,
                        "The output of a sample depends on the other samples of the batch.",
                    )
    finally:
        handle.remove()
