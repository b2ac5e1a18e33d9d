"""What a run shows: the curve against its yardsticks, the loop, and what broke it."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from mindgap.advise.doctor.chart import Chart, ramp
from mindgap.advise.doctor.controls import Ranks
from mindgap.advise.doctor.course import Course, around, follow, gradient
from mindgap.advise.doctor.model_readings import activations, shown
from mindgap.advise.doctor.patient import Patient
from mindgap.base.batches import merged, pair, rows, size
from mindgap.base.restoring import undisturbed
from mindgap.measure.tracing import traced

#: Functions that are undefined somewhere: what they give is no mere consequence of large weights.
DOMAIN = ("log", "log2", "log10", "sqrt", "rsqrt", "div", "true_divide", "__truediv__", "std")


def progress(chart: Chart, loss: float) -> float:
    """How far below the constant answer (or below the start) a loss is, over that one's size."""
    reference = reference_loss(chart)
    if not math.isfinite(loss):
        return -1.0
    return max(-1.0, (reference - loss) / max(abs(reference), 1e-12))


def reference_loss(chart: Chart) -> float:
    known = chart.facts.get("trivial")
    return float(chart.facts["start"] if known is None else known)


def read_curve(chart: Chart, patient: Patient, course: Course) -> None:
    """Does the loss fall, against its start and against the constant answer?"""
    start = chart.facts["start"]
    final = course.held_final
    chart.facts.update(final=final, losses=course.losses, held=course.held)
    reference = reference_loss(chart)
    word = "the best constant answer" if chart.facts.get("trivial") is not None else "its start"
    gain = progress(chart, final)
    chart.facts["progress"] = gain
    finite = [v for v in course.losses if math.isfinite(v)]
    top = max(finite) if finite else math.inf
    if course.broken >= 0:
        chart.find("broke", 1.0, f"The loss is not finite from step {course.broken} on.")
    scale = max(abs(start), abs(reference), 1e-12)
    middle = sorted(finite)[len(finite) // 2] if finite else math.inf
    if course.broken < 0 and top > 10 * max(scale, abs(middle)) and final < 3 * scale:
        chart.facts["spike"] = top
        text = f"The loss jumps to {top:.3g} at step {course.losses.index(top)} and comes back."
        chart.find("spikes", 1.0, text)
    if course.broken > 0 and top > 20 * scale:
        chart.find("blew_up", 1.0, f"The loss grew from {start:.3g} to {top:.3g}.")
    elif math.isfinite(final) and final > 3 * scale and final > 1.2 * start:
        chart.find("blew_up", ramp(final / scale, 2, 5), f"The loss ends at {final:.3g}.")
    if math.isfinite(final) and final > start + 0.02 * scale:
        text = f"The loss ends at {final:.3g}, above its start, {start:.3g}."
        chart.find("above_start", 1.0, text)
    if gain < 0.03:
        text = f"The loss ends at {final:.3g}; {word} has {reference:.3g}."
        chart.find("stalled", 1.0, text)
    chart.facts["late"] = (course.mean(0.5, 0.75), course.mean(0.75, 1.0))
    moves = sorted(v for n, v in course.moved.items() if patient.named[n].requires_grad)
    if moves:
        middle = moves[len(moves) // 2]
        chart.facts["move"] = middle
        if middle < 5e-4:
            text = f"A step moves the weights by {middle:.2g} of their size."
            chart.find("moves_little", ramp(math.log10(max(middle, 1e-12)), -3.3, -4.3), text)
        if middle > 0.05:
            text = f"A step moves the weights by {middle:.0%} of their size."
            chart.find("moves_much", ramp(middle, 0.05, 0.2), text)


def read_loop(chart: Chart, patient: Patient, course: Course) -> None:
    """What the user's step does with gradients, modes and the learning rate."""
    if course.doubled > 0.6:
        chart.find(
            "zero_kept", 1.0, "Each step's gradient still holds the gradient of the step before."
        )
    if course.added > 1:
        chart.facts["added"] = course.added
        text = f"Gradients of {course.added} batches are added up without division."
        chart.find("added", 1.0, text)
    idle = course.updates == 0 and not any(v > 0 for v in course.moved.values())
    if "step" in patient.given and idle and course.error is None:
        chart.find("never_steps", 1.0, "No call of optimizer.step() was seen; nothing moves.")
    if chart.has("cut") and any(course.moved.get(n, 0) > 0 for n in chart.facts["cut"]):
        del chart.findings["cut"]  # they follow others on purpose
    if chart.has("left_out"):
        still = [n for n in chart.facts["left_out"] if course.moved.get(n, 0) == 0]
        if not still:
            del chart.findings["left_out"]  # another optimizer moves them
        else:
            chart.facts["left_out"] = still
    if course.stuck and course.broken < 0:
        text = f"{shown(course.stuck)} have a gradient, are in the optimizer, and no longer move."
        chart.find("stuck", 1.0, text)
    shrunk = course.shrunk
    group = patient.optimizer.param_groups[0]
    norms = sorted(n for n in course.norms if math.isfinite(n))
    median = norms[len(norms) // 2] if norms else 0.0
    chart.facts["norm"] = median / shrunk if 0 < shrunk < 1 else median
    for name in ("tau", "clip"):
        limit = group.get(name)
        if isinstance(limit, (int, float)) and not isinstance(limit, bool) and median > 0:
            shrunk = min(shrunk, float(limit) / median)
    chart.facts["shrunk"] = shrunk
    if shrunk < 0.1:
        text = f"Clipping leaves {shrunk:.2g} of the gradient's norm."
        chart.find("tight", ramp(math.log10(max(shrunk, 1e-12)), -1.3, -3), text)
    if course.wrong_mode:
        text = f"{shown(course.wrong_mode)} are in evaluation mode while training."
        chart.find("evaluates", 1.0, text)
    rates = course.rates
    if rates and min(rates) < 0:
        first = next(i for i, r in enumerate(rates) if r < 0)
        chart.find("rate_negative", 1.0, f"The learning rate is negative from step {first} on.")
    elif rates and patient.scheduler is not None:
        top = max(rates)
        tail = 0
        for r in reversed(rates):
            if r > 1e-3 * top:
                break
            tail += 1
        if tail / len(rates) > 0.2 and top > 0:
            text = (
                f"The learning rate is below 1/1000 of its maximum from step {len(rates) - tail} "
                "on."
            )
            chart.find("rate_gone", ramp(tail / len(rates), 0.2, 0.4), text)
        if rates[-1] > 3 * rates[0]:
            chart.facts["warming"] = True
    if chart.has("large_decay"):
        grown = sorted(v for n, v in course.grown.items() if n.endswith("weight"))
        if grown and grown[len(grown) // 2] < 0.5:
            text = f"The weights shrink to {grown[len(grown) // 2]:.2g} of their first size."
            chart.find("shrinks", 1.0, text)
    batches = chart.facts.get("sizes", [])
    norm = any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in patient.model.modules())
    if norm and batches and sorted(batches)[len(batches) // 2] == 1:
        chart.find("batch_of_one", 1.0, "The model has batch norm, and batches hold one sample.")


def read_error(chart: Chart, course: Course) -> None:
    """What the user's code raised says something, too."""
    text = str(course.error)
    if "does not require grad" in text or "does not have a grad_fn" in text:
        chart.find("no_graph", 1.0, "The loss does not depend on any parameter by a graph.")
    elif "Target " in text and "out of bounds" in text:
        chart.find("labels_outside", 1.0, f"The loss refuses a label: {text.splitlines()[0][:80]}.")
    elif "more than 1 value per channel" in text:
        chart.find("batch_of_one", 1.0, "Batch norm refuses batches of one sample.")


def read_break(chart: Chart, patient: Patient, course: Course) -> None:
    """Where the first number that is not finite comes from, at the state before it."""
    if course.broken < 0 or course.before is None:
        return
    model = patient.model
    model.load_state_dict(course.before)
    batch = patient.train[course.broken % len(patient.train)]
    now, then = (
        sum(float(v.double().square().sum()) for v in state.values() if v.is_floating_point())
        for state in (course.before, chart.facts["first_state"])
    )
    grown = math.sqrt(now / then) if then > 0 else 1.0
    with undisturbed(model), around(patient):
        model.train()
        with torch.no_grad(), traced(model) as trace:
            value = float(patient.value(batch))
    place = f"in {trace.origin_module}" if trace.origin_module else "in the loss"
    x, _ = pair(batch)
    clean = x is None or not x.is_floating_point() or bool(x.isfinite().all())
    # Where the function has a value everywhere, its argument grew: that is divergence.
    diverged = trace.origin not in DOMAIN and (chart.has("blew_up") or grown > 1.5)
    if not clean or grown > 20 or diverged:
        return
    if trace.origin and not math.isfinite(value):
        if trace.origin_half:
            chart.find("half_overflow", 1.0, f"{trace.origin} overflows in float16 ({place}).")
        else:
            text = f"{trace.origin} {place} gives NaN or infinity at step {course.broken}."
            chart.find("nan_op", 1.0, text)
        return
    # The forward pass is finite: the gradient of the step before was not.
    for k in range(max(0, course.broken - 1), course.broken + 1):
        name = _backward_origin(patient, patient.train[k % len(patient.train)])
        if name:
            chart.find("nan_op", 1.0, f"The derivative of {name} is NaN at step {k}.")
            return


def _backward_origin(patient: Patient, batch: Any) -> str:
    try:
        with torch.autograd.detect_anomaly(check_nan=True):
            gradient(patient, batch)
    except RuntimeError as error:
        text = str(error)
        if "Function '" in text and "nan values" in text:
            return text.split("Function '")[1].split("'")[0].removesuffix("Backward0").lower()
    return ""


def read_end(chart: Chart, patient: Patient, course: Course) -> None:
    """Units that died on the way, overfitting."""
    model = patient.model
    if course.broken < 0:
        dead = chart.facts.get("dead", 0.0)
        later = Chart()
        batch = merged(patient.train[:4])
        with undisturbed(model), around(patient), torch.no_grad():
            model.train()
            with traced(model) as trace:
                patient.value(batch)
        activations(later, trace)
        if later.has("dead") and later.facts["dead"] > dead + 0.3:
            chart.find("died", 1.0, later.findings["dead"].sentence)
    if "valid" in patient.given and len(course.held) >= 3 and course.broken < 0:
        step, low = min(course.held, key=lambda pair: pair[1])
        high = course.held[-1][1]
        train = course.final
        reference = reference_loss(chart)
        chart.facts.update(best=step, low=low, high=high)
        rise = (high - low) / max(abs(reference - low), 0.1 * abs(reference), 1e-12)
        gap = (high - train) / max(abs(reference), 1e-12)
        if rise > 0.1 and gap > 0.3 and step < len(course.losses):
            text = (
                f"The validation loss was {low:.3g} at step {step} and is {high:.3g} at the end; "
                f"training {train:.3g}."
            )
            chart.find("overfits", ramp(rise, 0.08, 0.2), text)
        elif gap > 0.15 and high > 5 * abs(train) and len(chart.facts.get("sizes", ())) < 60:
            text = (
                f"The training loss is {train:.3g}, the validation loss {high:.3g}, with "
                f"{sum(chart.facts['sizes'])} training samples."
            )
            chart.find("overfits", ramp(gap, 0.12, 0.25), text)


def read_labels(chart: Chart, train: Ranks, held: Ranks | None) -> None:
    """Labels that a network trained on other samples ranks at random.

    An honest confusion puts the label second; a wrong label stands anywhere.
    """
    wrong = torch.cat(train.wrong)
    flat = torch.cat(train.rank)[wrong]
    share, classes = float(wrong.double().mean()), train.classes
    if len(flat) < 20 or len(wrong) < 200:  # fewer samples tell too little
        return
    chart.facts["suspects"] = [w & (s < 0.3) for w, s in zip(train.wrong, train.chance)]
    chart.facts["suspects_valid"] = []
    if held is not None:
        chart.facts["suspects_valid"] = [w & (s < 0.3) for w, s in zip(held.wrong, held.chance)]
    if classes < 4:
        _few_classes(chart, train, wrong)
        return
    place = float(((flat.double() - 1) / (classes - 2)).mean())
    chart.facts["label_rank"] = (share, place)
    text = (
        f"{share:.0%} of {len(wrong)} labels contradict a network trained on other samples, and "
        "rank at random among its other answers."
    )
    strength = ramp(place, 0.3, 0.4) * ramp(share, 0.06, 0.12)
    # A network that has learned nothing also ranks at random: it must be better than chance.
    strength *= ramp(1 - share, 1.5 / classes, 2.5 / classes)
    chart.find("labels_disagree", strength, text)


def _few_classes(chart: Chart, train: Ranks, wrong: torch.Tensor) -> None:
    """Two or three classes: where classes overlap, a network is wrong where it is unsure; wrong
    labels also contradict it where it is sure.
    """
    sure = torch.cat(train.sure)
    share = float(wrong.double().mean())
    chance = 1 - 1 / train.classes
    top = sure >= sure.quantile(0.85)
    among = float(wrong[top].double().mean())
    chart.facts["label_rank"] = (share, among)
    if share < 0.12 or share > 0.85 * chance or chart.facts["progress"] > 0.5:
        return
    text = (
        f"{share:.0%} of {len(wrong)} labels contradict a network trained on other samples, and "
        f"{among:.0%} where it is most sure."
    )
    strength = ramp(among / share, 0.45, 0.6) * ramp(among, 0.08, 0.12)
    chart.find("labels_disagree", strength, text)


def read_step(chart: Chart, patient: Patient, warm: int = 10) -> None:
    """Curvature along the optimizer's own update, preconditioned as it is, against the step.

    For an update d the ratio is d·(g(w + d) − g(w)) / (−g(w)·d): 1 reaches the lowest point of the
    line, above 2 the loss of the same batch rises. A value near 0 means a small step.
    """
    if patient.step is not None:
        return
    follow(patient, warm)
    free = [p for p in patient.model.parameters() if p.requires_grad]
    found = []
    for batch in patient.train[warm : warm + 5]:
        before = [p.detach().clone() for p in free]
        first = gradient(patient, batch)
        patient.train, kept = [batch], patient.train
        course = follow(patient, 1)
        patient.train = kept
        second = gradient(patient, batch)
        moves = [p.detach() - b for p, b in zip(free, before)]
        along = sum(float((d * g).double().sum()) for d, g in zip(moves, first))
        bend = sum(float((d * (h - g)).double().sum()) for d, g, h in zip(moves, first, second))
        if course.error is not None or not math.isfinite(bend) or along >= 0:
            continue
        found.append(bend / -along)
    if len(found) < 3:
        return
    ratio = sorted(found)[len(found) // 2]
    chart.facts["overshoot"] = ratio
    if ratio > 2:
        text = (
            f"A step goes {ratio:.2g} times as far as the lowest point of its line (above 2 the "
            "loss rises)."
        )
        chart.find("overshoots", ramp(math.log10(ratio), 0.3, 1.0), text)


def read_growth(chart: Chart, patient: Patient) -> None:
    """Does the loss itself bend more where its slope is larger, as a function of the outputs?

    Squared error bends equally everywhere and cross-entropy less and less; a fourth power or an
    exponential bends more and more.
    """
    outs: list[Any] = []
    handle = patient.model.register_forward_hook(lambda m, i, o: outs.append(o))
    batch = patient.train[0]
    with undisturbed(patient.model), torch.no_grad():
        patient.value(batch)
    handle.remove()
    if len(outs) != 1 or not isinstance(outs[0], torch.Tensor):
        return
    out = outs[0].detach()
    _, y = pair(batch)
    unit = max(float(out.abs().mean()), 1e-3)
    if y is not None and y.is_floating_point():
        unit = max(unit, float(y.abs().mean()))

    def slope(at: torch.Tensor) -> torch.Tensor:
        given = at.clone().requires_grad_()
        value = patient.loss(_Given(given), batch)
        return torch.autograd.grad(value, given)[0]

    first = slope(out)
    if not float(first.norm()) > 0:
        return
    up = first.sign()
    found = []
    for far in (1.0, 8.0):
        at, step = out + far * unit * up, 0.01 * unit
        here, there = slope(at), slope(at + step * up)
        found.append((float(((there - here) * up).sum()) / step, float((here * up).sum())))
    (bend, low), (more, high) = found
    if not (0 < bend < more < math.inf and low > 0 and 1.2 * low < high < math.inf):
        return
    power = math.log(more / bend) / math.log(high / low)
    chart.facts["loss_growth"] = power
    text = f"The loss bends as the power {power:.2g} of its slope (squared error: 0)."
    chart.find("steep", ramp(power, 0.2, 0.5), text)


def read_bounded_loss(chart: Chart, patient: Patient) -> None:
    """A loss whose slope stays the same far away (Huber, absolute error) bears heavy tails."""
    if not chart.has("heavy_targets"):
        return
    outs: list[Any] = []
    handle = patient.model.register_forward_hook(lambda m, i, o: outs.append(o))
    batch = patient.train[0]
    with undisturbed(patient.model), torch.no_grad():
        patient.value(batch)
    handle.remove()
    targets = pair(batch)[1]
    if len(outs) != 1 or not isinstance(outs[0], torch.Tensor) or targets is None:
        return
    unit = max(float(targets.abs().max()), float(outs[0].abs().max()), 1e-6)
    slopes = []
    for far in (10.0, 100.0):
        given = (outs[0].detach() + far * unit).requires_grad_()
        slopes.append(
            float(torch.autograd.grad(patient.loss(_Given(given), batch), given)[0].norm())
        )
    if 0 < slopes[1] < 1.5 * slopes[0]:
        del chart.findings["heavy_targets"]


class _Given(nn.Module):
    """Stands for the model: gives the outputs that it was made with."""

    def __init__(self, out: torch.Tensor) -> None:
        super().__init__()
        self.out = out

    def forward(self, *inputs: Any, **named: Any) -> torch.Tensor:
        return self.out


def read_ray(chart: Chart, patient: Patient) -> None:
    """Smoothness along one step of the optimizer's length, near the start and at its end."""
    batch = patient.train[0]
    n = size(batch)
    batch = rows(batch, slice(0, n)) if n else batch
    free = [p for p in patient.model.parameters() if p.requires_grad]
    with undisturbed(patient.model, parameters=True):
        patient.model.train()
        g = gradient(patient, batch)
        size_g = math.sqrt(sum(float(t.double().square().sum()) for t in g))
        if not size_g > 0:
            return
        weight = math.sqrt(sum(float(p.detach().double().square().sum()) for p in free))
        found = []
        for share in (0.003, 0.1):
            length = share * max(weight, 1.0)
            with torch.no_grad():
                for p, t in zip(free, g):
                    p.add_(t, alpha=length / size_g)  # uphill: where the gradient grows
            h = gradient(patient, batch)
            with torch.no_grad():
                for p, t in zip(free, g):
                    p.add_(t, alpha=-length / size_g)
            diff = math.sqrt(sum(float((a - b).double().square().sum()) for a, b in zip(g, h)))
            size_h = math.sqrt(sum(float(t.double().square().sum()) for t in h))
            if not (math.isfinite(diff) and math.isfinite(size_h)):
                return
            found.append((diff / length, max(size_h, size_g)))
    # Smoothness against the gradient's norm, both in logarithms: 0 for a quadratic, 1 for exp.
    if found[0][0] <= 0 or found[1][0] <= 0 or found[1][1] < 1.2 * found[0][1]:
        return
    slope = math.log(found[1][0] / found[0][0]) / math.log(found[1][1] / found[0][1])
    chart.facts["steepening"] = slope
    text = f"The smoothness grows as the power {slope:.2g} of the gradient's norm."
    chart.find("steep", ramp(slope, 0.2, 0.5), text)
