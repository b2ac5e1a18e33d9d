"""What a run shows: the curve against its yardsticks, the loop, and what broke it.

Every function ``read_...`` adds what it finds to the chart: findings with a strength from 0 to 1
and a sentence, and facts for other readings and for cures.

The thresholds (the two numbers of a ``ramp``: strength 0 at the first, 1 at the second) were chosen
on the development cases of ``benchmarks/doctor``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import median_high
from typing import Any

import torch
from torch import Tensor, nn

from mindgap.advise.doctor.chart import Chart, ramp
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
from mindgap.base.check import error_words
from mindgap.base.restoring import undisturbed
from mindgap.measure.tracing import traced

# All thresholds here were chosen on the development cases of ``benchmarks/doctor``, too.
#: A run below this progress is stalled; one that rises by this share of the loss's scale has risen.
STALLED, RISE = 0.03, 0.02
#: In units of the loss's scale: the least peak, the least loss at the end that has not come back
#: from one, and the least peak before NaN that means divergence.
PEAK, NOT_BACK, DIVERGED = 10, 3, 20
#: A step keeps its gradients if more than this share of the compared ones does; weights shrink
#: where their norm falls below this share of the first one.
MOSTLY, SHRUNK = 0.6, 0.5
#: Ratios of the learning rate to its largest one, of a rate that is as good as zero, and to its
#: first one, of a rate that rises.
NO_RATE, RISEN_RATE = 1e-3, 3
#: Weights' norm over the first one: above the first it may explain an overflow, above the second
#: it always does.
GROWN, FAR_GROWN = 1.5, 20
#: Fewest labels that are judged, and fewest wrong ones among them.
FEWEST_LABELS, FEWEST_WRONG = 200, 20
#: Functions that are undefined somewhere: what they give is no mere consequence of large weights.
DOMAIN = ("log", "log2", "log10", "sqrt", "rsqrt", "div", "true_divide", "__truediv__", "std")


def progress(chart: Chart, loss: float) -> float:
    """The fall of a loss below the reference loss, divided by the size of the reference: 1 for a
    loss of 0, 0 at the reference, and -1 at least (also where the loss is not finite).
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
    """Find whether the loss falls below its start and below that of the best constant answer,
    whether it jumps or breaks, and whether a step moves the weights too little or too much.

    ``final``, ``losses``, ``progress``, ``late_means`` and ``move`` become facts of the chart.
    """
    start, final, reference = chart.facts.start, course.final_held_out, reference_loss(chart)
    chart.facts.final, chart.facts.losses = final, course.losses
    chart.facts.progress = progress(chart, final)
    chart.facts.late_means = (course.mean(0.5, 0.75), course.mean(0.75, 1.0))
    scale = max(abs(start), abs(reference), 1e-12)
    _read_jumps(chart, course, scale)
    if math.isfinite(final) and final > start + RISE * scale:
        chart.find(
            "above_start", 1.0, f"The loss ends at {final:.3g}, above its start, {start:.3g}."
        )
    if chart.facts.progress < STALLED:
        word = "its start" if chart.facts.trivial is None else "the best constant answer"
        chart.find("stalled", 1.0, f"The loss ends at {final:.3g}; {word} has {reference:.3g}.")
    moves = [
        move
        for name, move in course.relative_moves.items()
        if patient.named_parameters[name].requires_grad
    ]
    if moves:
        chart.facts.move = move = median_high(moves)
        chart.find(
            "moves_little",
            ramp(math.log10(max(move, 1e-12)), zero_at=-3.3, one_at=-4.3),
            f"A step moves the weights by {move:.2g} of their size.",
        )
        chart.find(
            "moves_much",
            ramp(move, zero_at=0.05, one_at=0.2),
            f"A step moves the weights by {move:.0%} of their size.",
        )


def _read_jumps(chart: Chart, course: Course, scale: float) -> None:
    """Find whether the loss is not finite at the end, jumped and came back, or grew out of its
    scale. A jump that came back becomes the fact ``spike``.

    Args:
        course: its ``broke_at`` is the step from which on the loss is not finite, or -1.
        scale: the larger of the losses at the start and of the constant answer.
    """
    start, final = chart.facts.start, chart.facts.final
    finite = [loss for loss in course.losses if math.isfinite(loss)] or [math.inf]
    largest = max(finite)
    if course.broke_at >= 0:
        chart.find("broke", 1.0, f"The loss is not finite from step {course.broke_at} on.")
    elif largest > PEAK * max(scale, abs(median_high(finite))) and final < NOT_BACK * scale:
        chart.facts.spike = largest
        step = course.losses.index(largest)
        chart.find("spikes", 1.0, f"The loss jumps to {largest:.3g} at step {step} and comes back.")
    if course.broke_at > 0 and largest > DIVERGED * scale:
        chart.find("blew_up", 1.0, f"The loss grew from {start:.3g} to {largest:.3g}.")
    elif math.isfinite(final) and final > NOT_BACK * scale and final > 1.2 * start:
        chart.find(
            "blew_up", ramp(final / scale, zero_at=2, one_at=5), f"The loss ends at {final:.3g}."
        )


def read_loop(chart: Chart, patient: Patient, course: Course) -> None:
    """Find faults of the user's training step: gradients kept or added up, parameters that do not
    move, modules in evaluation mode, clipping, learning rates, weights that shrink, and batch norm
    with batches of one sample.
    """
    if course.doubled_share > MOSTLY:
        chart.find(
            "zero_kept", 1.0, "Each step's gradient still holds the gradient of the step before."
        )
    if course.added_batches > 1:
        chart.facts.added_batches = course.added_batches
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
    if chart.has("large_decay") and growths and median_high(growths) < SHRUNK:
        chart.find(
            "shrinks", 1.0, f"The weights shrink to {median_high(growths):.2g} of their first size."
        )
    sizes = chart.facts.batch_sizes
    has_batch_norm = any(
        isinstance(module, nn.modules.batchnorm._BatchNorm) for module in patient.model.modules()
    )
    if has_batch_norm and sizes and median_high(sizes) == 1:
        chart.find("batch_of_one", 1.0, "The model has batch norm, and batches hold one sample.")


def _read_moves(chart: Chart, patient: Patient, course: Course) -> None:
    """Find parameters that do not move. Findings of the start about parameters that move after all
    (without a gradient, or outside the optimizer) are deleted.
    """
    idle = course.updates == 0 and not any(move > 0 for move in course.relative_moves.values())
    if "step" in patient.given and idle and course.error is None:
        chart.find("never_steps", 1.0, "No call of optimizer.step() was seen; nothing moves.")
    moving = {name for name, move in course.relative_moves.items() if move > 0}
    if chart.has("cut") and moving.intersection(chart.facts.cut):
        del chart.findings["cut"]  # they follow others on purpose
    if chart.has("left_out") and moving.issuperset(chart.facts.left_out):
        del chart.findings["left_out"]  # another optimizer moves them
    if course.stuck_parameters and course.broke_at < 0:
        names = names_in_words(course.stuck_parameters)
        chart.find(
            "stuck", 1.0, f"{names} have a gradient, are in the optimizer, and no longer move."
        )


def _read_clipping(chart: Chart, patient: Patient, course: Course) -> None:
    """Find whether clipping, by the loop or by a threshold of the optimizer, leaves too little of
    the gradient's norm. The share that it leaves becomes the fact ``shrunk``, and the median norm
    before the loop's clipping the fact ``unclipped_norm``.
    """
    shrunk = course.kept_norm_share
    norms = [norm for norm in course.norms if math.isfinite(norm)]
    median = median_high(norms) if norms else 0.0
    chart.facts.unclipped_norm = median / shrunk if 0 < shrunk < 1 else median
    # Optimizers that clip by themselves keep their threshold in a group under one of these names.
    for name in ("tau", "clip"):
        limit = patient.optimizer.param_groups[0].get(name)
        if isinstance(limit, (int, float)) and not isinstance(limit, bool) and median > 0:
            shrunk = min(shrunk, float(limit) / median)
    chart.facts.shrunk = shrunk
    chart.find(
        "tight",
        ramp(math.log10(max(shrunk, 1e-12)), zero_at=-1.3, one_at=-3),
        f"Clipping leaves {shrunk:.2g} of the gradient's norm.",
    )


def _read_rates(chart: Chart, patient: Patient, rates: list[float]) -> None:
    """Find whether the learning rate turns negative or, under a scheduler, ends near zero. One
    that rises under a scheduler becomes the fact ``rate_rises``.

    Args:
        rates: the learning rate of every step.
    """
    if min(rates) < 0:
        first = next(step for step, rate in enumerate(rates) if rate < 0)
        chart.find("rate_negative", 1.0, f"The learning rate is negative from step {first} on.")
    elif patient.scheduler is not None:
        largest_rate = max(rates)
        steps_with_rate = [step for step, rate in enumerate(rates) if rate > NO_RATE * largest_rate]
        if steps_with_rate:
            steps_without = len(rates) - 1 - steps_with_rate[-1]
            first = steps_with_rate[-1] + 1
            chart.find(
                "rate_gone",
                ramp(steps_without / len(rates), zero_at=0.2, one_at=0.4),
                f"The learning rate is below 1/1000 of its maximum from step {first} on.",
            )
        if rates[-1] > RISEN_RATE * rates[0]:
            chart.facts.rate_rises = True


def read_error(chart: Chart, course: Course) -> None:
    """Find what the error that the user's code raised tells by its text: a loss without a graph, a
    label outside the classes, or batch norm on a batch of one sample. Other errors tell nothing.
    """
    if course.error is None:
        return
    try:
        text = str(course.error)  # all lines: a wrapper names its own error in the first
    except Exception:
        text = error_words(course.error)
    if "does not require grad" in text or "does not have a grad_fn" in text:
        chart.find("no_graph", 1.0, "The loss does not depend on any parameter by a graph.")
    elif "Target " in text and "out of bounds" in text:
        chart.find(
            "labels_outside", 1.0, f"The loss refuses a label: {text.partition(': ')[2][:80]}."
        )
    elif "more than 1 value per channel" in text:
        chart.find("batch_of_one", 1.0, "Batch norm refuses batches of one sample.")


def read_break(chart: Chart, patient: Patient, course: Course) -> None:
    """Find the operation that gave the first NaN or infinity of a run that broke: one of the
    forward pass, or else one of the backward pass of that step or of the step before.

    The patient's model gets the weights from before the break. Nothing is found where the batch
    itself is not finite, or where the weights grew first: that is divergence.
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
    inputs_are_finite = (
        inputs is None or not inputs.is_floating_point() or bool(inputs.isfinite().all())
    )
    growth = _growth(course.state_before_break, chart.facts.first_state or {})
    # Where the function has a value everywhere, its argument grew: that is divergence.
    diverged = trace.origin not in DOMAIN and (chart.has("blew_up") or growth > GROWN)
    if not inputs_are_finite or growth > FAR_GROWN or diverged:
        return
    if trace.origin and not math.isfinite(value):
        place = place_in_words(trace)
        if trace.origin_half:
            chart.find("half_overflow", 1.0, f"{trace.origin} overflows in float16 ({place}).")
        else:
            chart.find(
                "nan_op",
                1.0,
                f"{trace.origin} {place} gives NaN or infinity at step {course.broke_at}.",
            )
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
    """The name of the function whose derivative is NaN on a batch, in small letters; empty where
    none is. It stands in the error that torch raises in anomaly mode.
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
    """Find units that died in training, and overfitting where the user gave validation batches.
    Nothing is found of a run that broke.
    """
    if course.broke_at >= 0:
        return
    model, chart_at_end = patient.model, Chart()  # a chart of its own, for its dead units only
    with undisturbed(model), loss_contexts(patient), torch.no_grad():
        model.train()
        with traced(model) as trace:
            patient.value(merged(patient.train[:4]))
    read_activations(chart_at_end, trace)
    # The dead units are more by at least 30 % of all.
    if chart_at_end.has("dead") and chart_at_end.facts.dead > chart.facts.dead + 0.3:
        chart.find("died", 1.0, chart_at_end.findings["dead"].sentence)
    if "valid" in patient.given and len(course.held_out_losses) >= 3:
        _read_overfitting(chart, course)


def _read_overfitting(chart: Chart, course: Course) -> None:
    """Find whether the validation loss rises again or, with few batches, stays far above the
    training loss. Its lowest value, with its step, and its last value become facts.

    ``rise`` is the rise from the lowest to the last value over the fall from the reference loss to
    the lowest; ``gap`` is the distance to the training loss over the reference loss.
    """
    lowest, best_step = min((loss, step) for step, loss in course.held_out_losses)
    _, last = course.held_out_losses[-1]  # (step, loss)
    train_loss, reference = course.final, reference_loss(chart)
    chart.facts.best_step = best_step
    chart.facts.lowest_valid, chart.facts.last_valid = lowest, last
    rise = (last - lowest) / max(abs(reference - lowest), 0.1 * abs(reference), 1e-12)
    gap = (last - train_loss) / max(abs(reference), 1e-12)
    if rise > 0.1 and gap > 0.3 and best_step < len(course.losses):
        chart.find(
            "overfits",
            ramp(rise, zero_at=0.08, one_at=0.2),
            f"The validation loss was {lowest:.3g} at step {best_step} and is {last:.3g} at the "
            f"end; training {train_loss:.3g}.",
        )
    # With few batches a large gap alone is a sign: they are learned by heart.
    elif gap > 0.15 and last > 5 * abs(train_loss) and 0 < len(chart.facts.batch_sizes) < 60:
        chart.find(
            "overfits",
            ramp(gap, zero_at=0.12, one_at=0.25),
            f"The training loss is {train_loss:.3g}, the validation loss {last:.3g}, with "
            f"{sum(chart.facts.batch_sizes)} training samples.",
        )


def read_labels(chart: Chart, train: Ranks, valid: Ranks | None) -> None:
    """Find labels that a network trained on other samples ranks at random among its answers. An
    honest confusion puts the label second, and a wrong label may stand anywhere.

    Nothing is found among fewer than ``FEWEST_LABELS`` labels or ``FEWEST_WRONG`` that the network
    contradicts. Else the labels in doubt become the facts ``suspects`` and ``suspects_valid``.

    Args:
        train, valid: ranks of the labels of the training and of the validation samples, by batch;
            ``valid`` is None where there are no such samples.
    """
    wrong = torch.cat(train.wrong)
    ranks_of_wrong = torch.cat(train.rank)[wrong]
    share, classes = float(wrong.double().mean()), train.classes
    if len(ranks_of_wrong) < FEWEST_WRONG or len(wrong) < FEWEST_LABELS:
        return
    chart.facts.suspects = _suspects(train)
    chart.facts.suspects_valid = [] if valid is None else _suspects(valid)
    if classes < 4:
        _read_few_classes(chart, train, wrong)
        return
    # A contradicted label has rank 1 (second) to classes - 1 (last): as a place, 0 to 1.
    place = float(((ranks_of_wrong.double() - 1) / (classes - 2)).mean())
    chart.facts.label_rank = (share, place)
    text = (
        f"{share:.0%} of {len(wrong)} labels contradict a network trained on other samples, and "
        "rank at random among its other answers."
    )
    strength = ramp(place, zero_at=0.3, one_at=0.4) * ramp(share, zero_at=0.06, one_at=0.12)
    # A network that has learned nothing also ranks at random: it must be better than chance.
    strength *= ramp(1 - share, zero_at=1.5 / classes, one_at=2.5 / classes)
    chart.find("labels_disagree", strength, text)


def _suspects(ranks: Ranks) -> list[Tensor]:
    """Per batch, which labels are not the network's answer and get less than 0.3 from it."""
    return [
        wrong & (probability < 0.3) for wrong, probability in zip(ranks.wrong, ranks.probability)
    ]


def _read_few_classes(chart: Chart, train: Ranks, wrong: Tensor) -> None:
    """Find wrong labels where there are two or three classes, too few for a rank to tell anything.

    Where classes overlap, a network is wrong where it is unsure. Wrong labels contradict it also
    where it is sure, here on the 15 % of the samples with the highest confidence. Nothing is found
    where few labels contradict it, where it is no better than chance, or where the user's model
    learns well.

    Args:
        wrong: for each training sample, whether its label is not the network's first answer.
    """
    confidence = torch.cat(train.confidence)
    share_wrong = float(wrong.double().mean())
    share_where_sure = float(wrong[confidence >= confidence.quantile(0.85)].double().mean())
    chart.facts.label_rank = (share_wrong, share_where_sure)
    by_chance = 1 - 1 / train.classes  # share of wrong answers where these are drawn at random
    if share_wrong < 0.12 or share_wrong > 0.85 * by_chance or chart.facts.progress > 0.5:
        return
    text = (
        f"{share_wrong:.0%} of {len(wrong)} labels contradict a network trained on other samples, "
        f"and {share_where_sure:.0%} where it is most sure."
    )
    strength = ramp(share_where_sure / share_wrong, zero_at=0.45, one_at=0.6)
    strength *= ramp(share_where_sure, zero_at=0.08, one_at=0.12)
    chart.find("labels_disagree", strength, text)


def read_step(chart: Chart, patient: Patient, warm_up: int = 10) -> None:
    """Find whether the optimizer's steps overshoot: the median over five standard steps of how far
    a step goes, over the distance to the lowest point of its line. It becomes a fact.

    For an update d of the weights w and the gradient g of one batch the ratio is
    d·(g(w + d) − g(w)) / (−g(w)·d). At 1 the step reaches the lowest point, above 2 the loss of the
    batch rises, near 0 the step is small. The patient is trained by this; nothing is done where the
    user gave a step of their own.

    Args:
        warm_up: steps that are made before the five.
    """
    if patient.step is not None:
        return
    follow(patient, warm_up)
    batches = patient.train  # each step below leaves one batch in its place
    ratios_of_steps = [_overshoot(patient, batch) for batch in batches[warm_up : warm_up + 5]]
    patient.train = batches
    ratios = [ratio for ratio in ratios_of_steps if ratio is not None]
    if len(ratios) < 3:
        return
    chart.facts.overshoot = ratio = median_high(ratios)
    if ratio > 2:
        chart.find(
            "overshoots",
            ramp(math.log10(ratio), zero_at=0.3, one_at=1.0),
            f"A step goes {ratio:.2g} times as far as the lowest point of its line (above 2 the "
            "loss rises).",
        )


def _overshoot(patient: Patient, batch: Any) -> float | None:
    """Make one step d on a batch, and return its length over the distance to the lowest point of
    its line: d·(g(w + d) − g(w)) / (−g(w)·d) with the batch's gradient g. None where d does not
    descend. Changes the weights w, and leaves the patient with this one training batch.
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
    """Find whether the loss, as a function of the model's output, has a curvature that grows with
    its slope: the power p in curvature ∝ slope^p becomes the fact ``loss_growth``.

    Squared error has p = 0, and the curvature of cross-entropy falls. That of a fourth power or an
    exponential grows. Slope and curvature are read on the line from the present output along the
    signs of the slope, at a distance of one and of eight typical outputs. Nothing is found unless
    both grow between these two places.
    """
    batch = patient.train[0]
    with undisturbed(patient.model):
        output = single_output(patient, batch)
    if output is None:
        return
    targets = pair(batch)[1]
    unit = max(float(output.abs().mean()), 1e-3)  # size of a typical output or target
    if targets is not None and targets.is_floating_point():
        unit = max(unit, float(targets.abs().mean()))
    slope = _slope(patient, batch, output)
    if not float(slope.norm()) > 0:
        return
    direction, shift = slope.sign(), 0.01 * unit  # the shift of a finite difference
    curvatures, slopes = [], []  # along the direction, near and far
    for distance in (1.0, 8.0):
        place = output + distance * unit * direction
        slope_here = _slope(patient, batch, place)
        slope_beyond = _slope(patient, batch, place + shift * direction)
        curvatures.append(float(((slope_beyond - slope_here) * direction).sum()) / shift)
        slopes.append(float((slope_here * direction).sum()))
    (near_curvature, far_curvature), (near_slope, far_slope) = curvatures, slopes
    curvature_grows = 0 < near_curvature < far_curvature < math.inf
    if not (curvature_grows and 0 < 1.2 * near_slope < far_slope < math.inf):
        return
    power = math.log(far_curvature / near_curvature) / math.log(far_slope / near_slope)
    chart.facts.loss_growth = power
    chart.find(
        "steep",
        ramp(power, zero_at=0.2, one_at=0.5),
        f"The loss bends as the power {power:.2g} of its slope (squared error: 0).",
    )


def read_bounded_loss(chart: Chart, patient: Patient) -> None:
    """Delete the finding of heavy-tailed targets where the loss bears them, because its slope by
    the output stays the same far away (Huber's loss, absolute error): at a hundred typical outputs
    it is less than 1.5 times that at ten.
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
    near, far = (  # norms of the slope, at ten and at a hundred units from the output
        float(_slope(patient, batch, output + distance * unit).norm()) for distance in (10.0, 100.0)
    )
    if 0 < far < 1.5 * near:
        del chart.findings["heavy_targets"]


def _slope(patient: Patient, batch: Any, output: Tensor) -> Tensor:
    """Derivative of the user's loss on a batch by the model's output, if the model gave this
    output; of the output's shape.
    """
    variable = output.detach().clone().requires_grad_()
    return torch.autograd.grad(patient.loss(_FixedOutput(variable), batch), variable)[0]


class _FixedOutput(nn.Module):
    """Stands for the model: gives the outputs that it was made with."""

    def __init__(self, output: Tensor) -> None:
        super().__init__()
        self.output = output

    def forward(self, *inputs: Any, **named: Any) -> Tensor:
        """The fixed output, whatever the inputs."""
        return self.output


def read_ray(chart: Chart, patient: Patient) -> None:
    """Find whether the smoothness grows with the gradient's norm: the power p in
    smoothness ∝ norm^p becomes the fact ``steepening``.

    The smoothness is the change of the gradient over the length of a move of the weights. Two moves
    go uphill along the first batch's gradient, by 0.3 % and by 10 % of the weights' norm. The
    weights are put back. Nothing is found where a gradient is not finite or does not grow by 20 %.
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
        ramp(power, zero_at=0.2, one_at=0.5),
        f"The smoothness grows as the power {power:.2g} of the gradient's norm.",
    )


@torch.no_grad()
def _move(parameters: list[nn.Parameter], direction: list[Tensor], scale: float) -> None:
    """Add a multiple of a direction to the parameters, in place."""
    for p, change in zip(parameters, direction):
        p.add_(change, alpha=scale)
