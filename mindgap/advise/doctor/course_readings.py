"""What a run shows: the curve against its yardsticks, the loop, and what broke it.

Every function ``read_...`` adds what it finds to the chart: findings with a strength from 0 to 1
and a sentence, and facts for other readings and for cures.

The thresholds (the two numbers of a ``ramp``: strength 0 at the first, 1 at the second) were chosen
on the development cases of ``benchmarks/doctor``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from mindgap.advise.doctor.chart import Chart, middle, ramp
from mindgap.advise.doctor.controls import Ranks
from mindgap.advise.doctor.course import (
    Course,
    follow,
    gradient,
    loss_contexts,
    norm,
    single_output,
)
from mindgap.advise.doctor.model_readings import names_in_words, place_in_words, read_activations
from mindgap.advise.doctor.patient import Patient
from mindgap.base.batches import merged, pair
from mindgap.base.restoring import undisturbed
from mindgap.measure.tracing import traced

#: Functions that are undefined somewhere: what they give is no mere consequence of large weights.
DOMAIN = ("log", "log2", "log10", "sqrt", "rsqrt", "div", "true_divide", "__truediv__", "std")


def progress(chart: Chart, loss: float) -> float:
    """How far a loss lies below the reference loss, over the size of that one: 1 for a loss of 0,
    0 at the reference, and never below -1.
    """
    reference = reference_loss(chart)
    if not math.isfinite(loss):
        return -1.0
    return max(-1.0, (reference - loss) / max(abs(reference), 1e-12))


def reference_loss(chart: Chart) -> float:
    """The loss of the best constant answer; where that is unknown, the loss at the start."""
    constant = chart.facts.trivial
    return chart.facts.start if constant is None else constant


def read_curve(chart: Chart, patient: Patient, course: Course) -> None:
    """Whether the loss falls, against its start and against the constant answer, jumps or breaks,
    and how far a step moves the weights. ``final``, ``progress``, ``late`` and ``move`` become
    facts.
    """
    start, final, reference = chart.facts.start, course.held_final, reference_loss(chart)
    chart.facts.final, chart.facts.losses = final, course.losses
    chart.facts.progress = progress(chart, final)
    chart.facts.late = (course.mean(0.5, 0.75), course.mean(0.75, 1.0))
    scale = max(abs(start), abs(reference), 1e-12)
    _read_jumps(chart, course, scale)
    if math.isfinite(final) and final > start + 0.02 * scale:
        chart.find(
            "above_start", 1.0, f"The loss ends at {final:.3g}, above its start, {start:.3g}."
        )
    if chart.facts.progress < 0.03:
        word = "its start" if chart.facts.trivial is None else "the best constant answer"
        chart.find("stalled", 1.0, f"The loss ends at {final:.3g}; {word} has {reference:.3g}.")
    moves = [
        move
        for name, move in course.relative_moves.items()
        if patient.named_parameters[name].requires_grad
    ]
    if moves:
        chart.facts.move = move = middle(moves)
        chart.find(
            "moves_little",
            ramp(math.log10(max(move, 1e-12)), -3.3, -4.3),
            f"A step moves the weights by {move:.2g} of their size.",
        )
        chart.find(
            "moves_much",
            ramp(move, 0.05, 0.2),
            f"A step moves the weights by {move:.0%} of their size.",
        )


def _read_jumps(chart: Chart, course: Course, scale: float) -> None:
    """Whether the loss is not finite at the end, jumped and came back, or grew out of its scale.

    Args:
        scale: the larger of the losses at the start and of the constant answer.
    """
    start, final = chart.facts.start, chart.facts.final
    finite = [loss for loss in course.losses if math.isfinite(loss)] or [math.inf]
    largest = max(finite)
    if course.broke_at >= 0:
        chart.find("broke", 1.0, f"The loss is not finite from step {course.broke_at} on.")
    elif largest > 10 * max(scale, abs(middle(finite))) and final < 3 * scale:
        chart.facts.spike = largest
        step = course.losses.index(largest)
        chart.find("spikes", 1.0, f"The loss jumps to {largest:.3g} at step {step} and comes back.")
    if course.broke_at > 0 and largest > 20 * scale:
        chart.find("blew_up", 1.0, f"The loss grew from {start:.3g} to {largest:.3g}.")
    elif math.isfinite(final) and final > 3 * scale and final > 1.2 * start:
        chart.find("blew_up", ramp(final / scale, 2, 5), f"The loss ends at {final:.3g}.")


def read_loop(chart: Chart, patient: Patient, course: Course) -> None:
    """Find faults of the user's step: gradients kept or added, parameters that do not move, modes,
    clipping, learning rates, weights that shrink, batch norm with batches of one.
    """
    if course.share_doubled > 0.6:
        chart.find(
            "zero_kept", 1.0, "Each step's gradient still holds the gradient of the step before."
        )
    if course.added_batches > 1:
        chart.facts.added = course.added_batches
        chart.find(
            "added",
            1.0,
            f"Gradients of {course.added_batches} batches are added up without division.",
        )
    _read_moves(chart, patient, course)
    _read_clipping(chart, patient, course)
    if course.evaluating_modules:
        chart.find(
            "evaluates",
            1.0,
            f"{names_in_words(course.evaluating_modules)} are in evaluation mode while training.",
        )
    if course.rates:
        _read_rates(chart, patient, course.rates)
    growths = [growth for name, growth in course.weight_growth.items() if name.endswith("weight")]
    if chart.has("large_decay") and growths and middle(growths) < 0.5:
        chart.find(
            "shrinks", 1.0, f"The weights shrink to {middle(growths):.2g} of their first size."
        )
    sizes = chart.facts.sizes
    has_batch_norm = any(
        isinstance(m, nn.modules.batchnorm._BatchNorm) for m in patient.model.modules()
    )
    if has_batch_norm and sizes and middle(sizes) == 1:
        chart.find("batch_of_one", 1.0, "The model has batch norm, and batches hold one sample.")


def _read_moves(chart: Chart, patient: Patient, course: Course) -> None:
    """Parameters that do not move; takes findings back about those that move after all."""
    idle = course.updates == 0 and not any(move > 0 for move in course.relative_moves.values())
    if "step" in patient.given and idle and course.error is None:
        chart.find("never_steps", 1.0, "No call of optimizer.step() was seen; nothing moves.")
    moving = {name for name, move in course.relative_moves.items() if move > 0}
    if chart.has("cut") and moving.intersection(chart.facts.cut):
        del chart.findings["cut"]  # they follow others on purpose
    if chart.has("left_out") and not any(
        course.relative_moves.get(name, 0) == 0 for name in chart.facts.left_out
    ):
        del chart.findings["left_out"]  # another optimizer moves them
    if course.stuck_parameters and course.broke_at < 0:
        names = names_in_words(course.stuck_parameters)
        chart.find(
            "stuck", 1.0, f"{names} have a gradient, are in the optimizer, and no longer move."
        )


def _read_clipping(chart: Chart, patient: Patient, course: Course) -> None:
    """How much clipping by the loop, or by a threshold of the optimizer, leaves of the gradient's
    norm; the median norm before the loop's clipping becomes a fact.
    """
    shrunk = course.clipped_share
    norms = [norm for norm in course.norms if math.isfinite(norm)]
    median = middle(norms) if norms else 0.0
    chart.facts.norm = median / shrunk if 0 < shrunk < 1 else median
    for name in ("tau", "clip"):
        limit = patient.optimizer.param_groups[0].get(name)
        if isinstance(limit, (int, float)) and not isinstance(limit, bool) and median > 0:
            shrunk = min(shrunk, float(limit) / median)
    chart.facts.shrunk = shrunk
    chart.find(
        "tight",
        ramp(math.log10(max(shrunk, 1e-12)), -1.3, -3),
        f"Clipping leaves {shrunk:.2g} of the gradient's norm.",
    )


def _read_rates(chart: Chart, patient: Patient, rates: list[float]) -> None:
    """Whether the learning rate turns negative, ends near zero, or rises."""
    if min(rates) < 0:
        first = next(step for step, rate in enumerate(rates) if rate < 0)
        chart.find("rate_negative", 1.0, f"The learning rate is negative from step {first} on.")
    elif patient.scheduler is not None:
        largest_rate = max(rates)
        steps_with_rate = [step for step, rate in enumerate(rates) if rate > 1e-3 * largest_rate]
        if steps_with_rate:
            steps_without = len(rates) - 1 - steps_with_rate[-1]
            first = steps_with_rate[-1] + 1
            chart.find(
                "rate_gone",
                ramp(steps_without / len(rates), 0.2, 0.4),
                f"The learning rate is below 1/1000 of its maximum from step {first} on.",
            )
        if rates[-1] > 3 * rates[0]:
            chart.facts.warming = True


def read_error(chart: Chart, course: Course) -> None:
    """Find the causes that an error of the user's code names: no graph, a label, a batch of one."""
    text = str(course.error)
    if "does not require grad" in text or "does not have a grad_fn" in text:
        chart.find("no_graph", 1.0, "The loss does not depend on any parameter by a graph.")
    elif "Target " in text and "out of bounds" in text:
        chart.find("labels_outside", 1.0, f"The loss refuses a label: {text.splitlines()[0][:80]}.")
    elif "more than 1 value per channel" in text:
        chart.find("batch_of_one", 1.0, "Batch norm refuses batches of one sample.")


def read_break(chart: Chart, patient: Patient, course: Course) -> None:
    """Where the first number that is not finite comes from, at the state before it, which is loaded
    into the patient: an operation of the forward pass, else one of the backward pass of this or the
    former step. Nothing is found where the batch is not finite, or the weights grew first.
    """
    if course.broke_at < 0 or course.state_before_break is None:
        return
    model = patient.model
    model.load_state_dict(course.state_before_break)
    batch = patient.train[course.broke_at % len(patient.train)]
    with undisturbed(model), loss_contexts(patient):
        model.train()
        with torch.no_grad(), traced(model) as trace:
            value = float(patient.value(batch))
    inputs, _ = pair(batch)
    clean = inputs is None or not inputs.is_floating_point() or bool(inputs.isfinite().all())
    growth = _growth(course.state_before_break, chart.facts.first_state or {})
    # Where the function has a value everywhere, its argument grew: that is divergence.
    diverged = trace.origin not in DOMAIN and (chart.has("blew_up") or growth > 1.5)
    if not clean or growth > 20 or diverged:
        return
    if trace.origin and not math.isfinite(value):
        place = place_in_words(trace)
        text = f"{trace.origin} {place} gives NaN or infinity at step {course.broke_at}."
        if trace.origin_half:
            chart.find("half_overflow", 1.0, f"{trace.origin} overflows in float16 ({place}).")
        else:
            chart.find("nan_op", 1.0, text)
        return
    # The forward pass is finite: the gradient of the step before was not.
    for step in range(max(0, course.broke_at - 1), course.broke_at + 1):
        name = _backward_origin(patient, patient.train[step % len(patient.train)])
        if name:
            chart.find("nan_op", 1.0, f"The derivative of {name} is NaN at step {step}.")
            return


def _growth(state: Mapping[str, Tensor], first: Mapping[str, Tensor]) -> float:
    """Norm of a state's floating-point tensors over that of the first state; 1 where that is 0."""
    present_square, first_square = (
        sum(float(v.double().square().sum()) for v in tensors.values() if v.is_floating_point())
        for tensors in (state, first)
    )
    return math.sqrt(present_square / first_square) if first_square > 0 else 1.0


def _backward_origin(patient: Patient, batch: Any) -> str:
    """The function whose derivative is NaN on a batch, by its name in torch's anomaly mode; empty
    where none is.
    """
    try:
        with torch.autograd.detect_anomaly(check_nan=True):
            gradient(patient, batch)
    except RuntimeError as error:
        text = str(error)
        if "Function '" in text and "nan values" in text:
            return text.split("Function '")[1].split("'")[0].removesuffix("Backward0").lower()
    return ""


def read_end(chart: Chart, patient: Patient, course: Course) -> None:
    """Units that died on the way, and overfitting where the user gave validation batches; nothing
    of a run that broke.
    """
    if course.broke_at >= 0:
        return
    model, chart_at_end = patient.model, Chart()
    with undisturbed(model), loss_contexts(patient), torch.no_grad():
        model.train()
        with traced(model) as trace:
            patient.value(merged(patient.train[:4]))
    read_activations(chart_at_end, trace)
    if chart_at_end.has("dead") and chart_at_end.facts.dead > chart.facts.dead + 0.3:
        chart.find("died", 1.0, chart_at_end.findings["dead"].sentence)
    if "valid" in patient.given and len(course.held_out_losses) >= 3:
        _read_overfitting(chart, course)


def _read_overfitting(chart: Chart, course: Course) -> None:
    """Whether the validation loss rises again, or stays far above the training loss."""
    best_step, lowest = min(course.held_out_losses, key=lambda row: row[1])
    last, train_loss, reference = course.held_out_losses[-1][1], course.final, reference_loss(chart)
    chart.facts.best, chart.facts.low, chart.facts.high = best_step, lowest, last
    rise = (last - lowest) / max(abs(reference - lowest), 0.1 * abs(reference), 1e-12)
    gap = (last - train_loss) / max(abs(reference), 1e-12)
    if rise > 0.1 and gap > 0.3 and best_step < len(course.losses):
        chart.find(
            "overfits",
            ramp(rise, 0.08, 0.2),
            f"The validation loss was {lowest:.3g} at step {best_step} and is {last:.3g} at the "
            f"end; training {train_loss:.3g}.",
        )
    elif gap > 0.15 and last > 5 * abs(train_loss) and 0 < len(chart.facts.sizes) < 60:
        chart.find(
            "overfits",
            ramp(gap, 0.12, 0.25),
            f"The training loss is {train_loss:.3g}, the validation loss {last:.3g}, with "
            f"{sum(chart.facts.sizes)} training samples.",
        )


def read_labels(chart: Chart, train: Ranks, valid: Ranks | None) -> None:
    """Labels that a network trained on other samples ranks at random. The suspects become facts;
    fewer than 200 labels, or 20 wrong ones, tell too little.

    An honest confusion puts the label second; a wrong label stands anywhere.

    Args:
        train, valid: ranks of the labels of the training and of the validation samples.
    """
    wrong = torch.cat(train.wrong)
    ranks_of_wrong = torch.cat(train.rank)[wrong]
    share, classes = float(wrong.double().mean()), train.classes
    if len(ranks_of_wrong) < 20 or len(wrong) < 200:
        return
    chart.facts.suspects = _suspects(train)
    chart.facts.suspects_valid = [] if valid is None else _suspects(valid)
    if classes < 4:
        _read_few_classes(chart, train, wrong)
        return
    place = float(((ranks_of_wrong.double() - 1) / (classes - 2)).mean())
    chart.facts.label_rank = (share, place)
    text = (
        f"{share:.0%} of {len(wrong)} labels contradict a network trained on other samples, and "
        "rank at random among its other answers."
    )
    strength = ramp(place, 0.3, 0.4) * ramp(share, 0.06, 0.12)
    # A network that has learned nothing also ranks at random: it must be better than chance.
    strength *= ramp(1 - share, 1.5 / classes, 2.5 / classes)
    chart.find("labels_disagree", strength, text)


def _suspects(ranks: Ranks) -> list[Tensor]:
    """Per batch, which labels are not the network's answer and get less than 0.3 from it."""
    return [
        wrong & (probability < 0.3) for wrong, probability in zip(ranks.wrong, ranks.probability)
    ]


def _read_few_classes(chart: Chart, train: Ranks, wrong: Tensor) -> None:
    """Two or three classes: where classes overlap, a network is wrong where it is unsure; wrong
    labels also contradict it where it is sure.

    Args:
        wrong: which labels are not the network's first answer.
    """
    confidence = torch.cat(train.confidence)
    share_wrong = float(wrong.double().mean())
    share_where_sure = float(wrong[confidence >= confidence.quantile(0.85)].double().mean())
    chart.facts.label_rank = (share_wrong, share_where_sure)
    by_chance = 1 - 1 / train.classes
    if share_wrong < 0.12 or share_wrong > 0.85 * by_chance or chart.facts.progress > 0.5:
        return
    text = (
        f"{share_wrong:.0%} of {len(wrong)} labels contradict a network trained on other samples, "
        f"and {share_where_sure:.0%} where it is most sure."
    )
    strength = ramp(share_where_sure / share_wrong, 0.45, 0.6) * ramp(share_where_sure, 0.08, 0.12)
    chart.find("labels_disagree", strength, text)


def read_step(chart: Chart, patient: Patient, warm_up: int = 10) -> None:
    """Curvature along the optimizer's own update, preconditioned as it is, against the step: the
    median over five standard steps. The patient is trained; with a step of the user's own nothing
    is read.

    For an update d the ratio is d·(g(w + d) − g(w)) / (−g(w)·d): 1 reaches the lowest point of the
    line, above 2 the loss of the same batch rises. A value near 0 means a small step.

    Args:
        warm_up: steps to make before.
    """
    if patient.step is not None:
        return
    follow(patient, warm_up)
    batches = patient.train
    read = [_overshoot(patient, batch) for batch in batches[warm_up : warm_up + 5]]
    patient.train = batches
    ratios = [ratio for ratio in read if ratio is not None]
    if len(ratios) < 3:
        return
    chart.facts.overshoot = ratio = middle(ratios)
    if ratio > 2:
        chart.find(
            "overshoots",
            ramp(math.log10(ratio), 0.3, 1.0),
            f"A step goes {ratio:.2g} times as far as the lowest point of its line (above 2 the "
            "loss rises).",
        )


def _overshoot(patient: Patient, batch: Any) -> float | None:
    """Make one step on a batch; how far it goes over the distance to the lowest point of its line,
    None where the step does not descend. The batch stays the patient's only one.
    """
    trainable = [p for p in patient.model.parameters() if p.requires_grad]
    weights_before = [p.detach().clone() for p in trainable]
    gradient_before = gradient(patient, batch)
    patient.train = [batch]
    course = follow(patient, 1)
    gradient_after = gradient(patient, batch)
    update = [p.detach() - w for p, w in zip(trainable, weights_before)]
    slope = sum(float((u * before).double().sum()) for u, before in zip(update, gradient_before))
    slope_change = sum(
        float((u * (after - before)).double().sum())
        for u, before, after in zip(update, gradient_before, gradient_after)
    )
    if course.error is not None or not math.isfinite(slope_change) or slope >= 0:
        return None
    return slope_change / -slope


def read_growth(chart: Chart, patient: Patient) -> None:
    """Whether the loss itself bends more where its slope is larger, as a function of the outputs:
    along its own slope, at one and at eight typical outputs from where it stands.

    Squared error bends equally everywhere and cross-entropy less and less; a fourth power or an
    exponential bends more and more.
    """
    batch = patient.train[0]
    with undisturbed(patient.model):
        output = single_output(patient, batch)
    if output is None:
        return
    targets = pair(batch)[1]
    unit = max(float(output.abs().mean()), 1e-3)
    if targets is not None and targets.is_floating_point():
        unit = max(unit, float(targets.abs().mean()))
    slope = _slope(patient, batch, output)
    if not float(slope.norm()) > 0:
        return
    direction, shift = slope.sign(), 0.01 * unit
    bends, slopes = [], []
    for distance in (1.0, 8.0):
        place = output + distance * unit * direction
        here = _slope(patient, batch, place)
        beyond = _slope(patient, batch, place + shift * direction)
        bends.append(float(((beyond - here) * direction).sum()) / shift)
        slopes.append(float((here * direction).sum()))
    if not (0 < bends[0] < bends[1] < math.inf and 0 < 1.2 * slopes[0] < slopes[1] < math.inf):
        return
    power = math.log(bends[1] / bends[0]) / math.log(slopes[1] / slopes[0])
    chart.facts.loss_growth = power
    chart.find(
        "steep",
        ramp(power, 0.2, 0.5),
        f"The loss bends as the power {power:.2g} of its slope (squared error: 0).",
    )


def read_bounded_loss(chart: Chart, patient: Patient) -> None:
    """Take the finding of heavy tails back where the loss bears them: its slope stays the same far
    away (Huber, absolute error).
    """
    if not chart.has("heavy_targets"):
        return
    batch = patient.train[0]
    targets = pair(batch)[1]
    with undisturbed(patient.model):
        output = single_output(patient, batch)
    if output is None or targets is None:
        return
    unit = max(float(targets.abs().max()), float(output.abs().max()), 1e-6)
    near, far = (
        float(_slope(patient, batch, output + distance * unit).norm()) for distance in (10.0, 100.0)
    )
    if 0 < far < 1.5 * near:
        del chart.findings["heavy_targets"]


def _slope(patient: Patient, batch: Any, output: Tensor) -> Tensor:
    """Derivative of the user's loss by the model's output, where the model would give this one."""
    variable = output.detach().clone().requires_grad_()
    return torch.autograd.grad(patient.loss(_FixedOutput(variable), batch), variable)[0]


class _FixedOutput(nn.Module):
    """Stands for the model: gives the outputs that it was made with."""

    def __init__(self, output: Tensor) -> None:
        super().__init__()
        self.output = output

    def forward(self, *inputs: Any, **named: Any) -> Tensor:
        return self.output


def read_ray(chart: Chart, patient: Patient) -> None:
    """Whether smoothness grows with the gradient: uphill along the first batch's gradient, near the
    start and farther away; the weights are put back.
    """
    batch = patient.train[0]
    trainable = [p for p in patient.model.parameters() if p.requires_grad]
    smoothness, norms = [], []
    with undisturbed(patient.model, parameters=True):
        patient.model.train()
        uphill = gradient(patient, batch)
        uphill_norm, weight_norm = norm(uphill), max(norm(trainable), 1.0)
        if not uphill_norm > 0:
            return
        for length in (0.003 * weight_norm, 0.1 * weight_norm):
            _move(trainable, uphill, length / uphill_norm)  # uphill: where the gradient grows
            gradient_there = gradient(patient, batch)
            _move(trainable, uphill, -length / uphill_norm)
            change = norm([a - b for a, b in zip(uphill, gradient_there)])
            if not (math.isfinite(change) and math.isfinite(norm(gradient_there))):
                return
            smoothness.append(change / length)
            norms.append(max(norm(gradient_there), uphill_norm))
    # Smoothness against the gradient's norm, both in logarithms: 0 for a quadratic, 1 for exp.
    if min(smoothness) <= 0 or norms[1] < 1.2 * norms[0]:
        return
    power = math.log(smoothness[1] / smoothness[0]) / math.log(norms[1] / norms[0])
    chart.facts.steepening = power
    chart.find(
        "steep",
        ramp(power, 0.2, 0.5),
        f"The smoothness grows as the power {power:.2g} of the gradient's norm.",
    )


@torch.no_grad()
def _move(parameters: list[nn.Parameter], direction: list[Tensor], scale: float) -> None:
    """Add a multiple of a direction to the parameters, in place."""
    for p, change in zip(parameters, direction):
        p.add_(change, alpha=scale)
