"""What the batches themselves show, before any step."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from mindgap.advise.doctor.chart import Chart, ramp
from mindgap.advise.doctor.patient import Patient
from mindgap.base.batches import pair

#: A sample or a batch this many times as large as the ordinary one is an outlier.
OUTLIER = 50.0


def read_data(chart: Chart, patient: Patient) -> None:
    """Inputs and targets: not finite, out of scale, constant, sorted, shared with validation."""
    pairs = [pair(batch) for batch in patient.train]
    xs = [x for x, _ in pairs if x is not None]
    ys = [y for _, y in pairs if y is not None]
    if not xs:
        chart.notes.append("the batches hold no tensor with one row per sample")
        return
    chart.facts.sizes = [len(x) for x in xs]
    chart.facts.numbers = patient.numbers
    if xs[0].is_floating_point():
        chart.attempt("the scale of the inputs", lambda: _inputs(chart, xs))
        chart.attempt("outliers of the inputs", lambda: _outliers(chart, xs, "inputs"))
    chart.attempt("repeated batches", lambda: _repeated(chart, xs))
    if len(ys) == len(pairs):
        if ys[0].is_floating_point():
            chart.attempt("outliers of the targets", lambda: _outliers(chart, ys, "targets"))
            chart.attempt("tails of the targets", lambda: _tails(chart, ys))
        chart.attempt("the order of the data", lambda: _order(chart, ys))
        chart.attempt("the targets", lambda: _targets(chart, xs, ys))
    held = [x for x, _ in map(pair, patient.valid) if x is not None]
    if "valid" in patient.given and held:
        chart.attempt("samples in both parts", lambda: _shared_samples(chart, xs, held))


def _flat(batch: Tensor) -> Tensor:
    """One row per sample, one column per number."""
    return batch.flatten(1) if batch.ndim > 1 else batch.unsqueeze(1)


def _inputs(chart: Chart, xs: list[Tensor]) -> None:
    """Note inputs that are not finite, constant and large, or of very different scales."""
    x = torch.cat([x.flatten(0, -2) if x.ndim == 3 else x.flatten(1) for x in xs]).double()
    share_broken = (~x.isfinite()).double().mean(0)
    if float(share_broken.max()) > 0.99 and len(share_broken) > 1:
        feature = int(share_broken.argmax())
        text = f"Input {feature} is NaN or infinite in every sample."
        chart.find("feature_not_finite", 1.0, text)
    x = x.nan_to_num(0, 0, 0)
    if xs[0].ndim in (2, 3):
        _features(chart, x)
    elif x.numel() < 1e7:
        large = float(x.abs().quantile(0.9))
        if large > 20:
            text = f"Inputs reach {large:.3g} (90 %)."
            chart.find("unscaled", ramp(math.log10(large), 1.3, 2.3), text)


def _features(chart: Chart, x: Tensor) -> None:
    """Note features (columns of x) that are constant and large, and features out of scale."""
    center = x.median(0).values
    scale = x.abs().quantile(0.9, 0)
    spread = (x - center).abs().quantile(0.9, 0)
    typical = float(scale[scale > 0].median()) if bool((scale > 0).any()) else 1.0
    constant = (spread <= 1e-6 * scale) & (scale > 30 * min(typical, 1.0)) & (scale > 10)
    if bool(constant.any()) and len(scale) > 1:
        feature = int(constant.nonzero()[0])
        text = f"Input {feature} is {float(center[feature]):.3g} in every sample."
        chart.find("constant_large", 1.0, text)
    varied = scale.masked_fill(constant, 0)
    feature = int(varied.argmax())
    large = float(varied[feature])
    if large > 20:
        ratio = float(varied.max() / varied[varied > 0].median())
        text = f"Inputs reach {large:.3g} (input {feature}, 90 % of the samples)."
        if ratio > 30:
            text = f"Input {feature} reaches {large:.3g}, {ratio:.3g} times the middle one."
        chart.find("unscaled", ramp(math.log10(large), 1.3, 2.0), text)


def _outliers(chart: Chart, parts: list[Tensor], what: str) -> None:
    """Note single samples or batches whose ``what`` (inputs or targets) are not finite or far from
    all others.
    """
    flat = [_flat(part).double() for part in parts]
    sizes = [rows.abs().amax(1) for rows in flat]  # NaN stays NaN
    broken = [~each.isfinite() for each in sizes]
    if any(bool(mask.any()) for mask in broken):
        _broken_samples(chart, broken, what)
        return
    if what == "targets":
        center = torch.cat(flat).median(0).values
        sizes = [(rows - center).abs().amax(1) for rows in flat]
    typical = float(torch.cat(sizes).quantile(0.75))
    if typical > 0 and not _large_batch(chart, sizes, what):
        _large_samples(chart, sizes, typical, what)


def _broken_samples(chart: Chart, broken: list[Tensor], what: str) -> None:
    """Note the batch or the sample that is not finite, where few are.

    Args:
        broken: per batch, which samples are not finite.
    """
    numbers = chart.facts.numbers
    batches = [i for i, mask in enumerate(broken) if bool(mask.float().mean() > 0.5)]
    samples = [(i, int(j)) for i, mask in enumerate(broken) for j in mask.nonzero().flatten()]
    if len(batches) == len(broken):
        return  # a feature of all samples, not an outlier
    if batches and len(batches) <= 0.1 * len(broken) + 1 and len(broken[batches[0]]) > 1:
        chart.facts.bad_batches = batches
        text = f"Batch {numbers[batches[0]]} has {what} that are NaN or infinite."
        chart.find("batch_outlier", 1.0, text)
    elif len(samples) <= 0.02 * sum(map(len, broken)) + 1:
        chart.facts.bad_samples = samples
        i, j = samples[0]
        text = f"Sample {j} of batch {numbers[i]} has NaN in its {what}."
        chart.find("sample_outlier", 1.0, text)


def _large_batch(chart: Chart, sizes: list[Tensor], what: str) -> bool:
    """Note a batch whose samples are far larger than those of the others; whether there is one.

    Args:
        sizes: per batch, the size of each sample.
    """
    if len(sizes) < 5 or min(map(len, sizes)) < 2:
        return False
    medians = torch.stack([each.median() for each in sizes])
    usual = float(medians.median())
    wild = [i for i, median in enumerate(medians.tolist()) if median > OUTLIER * usual]
    if not wild or len(wild) > 0.1 * len(sizes) + 1:
        return False
    chart.facts.bad_batches = wild
    number, ratio = chart.facts.numbers[wild[0]], float(medians[wild[0]]) / usual
    text = f"Batch {number} has {what} {ratio:.3g} times as large as the others."
    chart.find("batch_outlier", 1.0, text)
    return True


def _large_samples(chart: Chart, sizes: list[Tensor], typical: float, what: str) -> None:
    """Note up to three samples that stand far above all others.

    Args:
        sizes: per batch, the size of each sample.
        typical: upper quartile of all sizes.
    """
    order = torch.cat(sizes).sort(descending=True).values
    for count in range(1, min(4, len(order))):
        least = order[count - 1]
        gap = float(least / order[count].clamp_min(1e-30))
        if gap > 10 and float(least) > OUTLIER * typical:
            found = [
                (i, int(j))
                for i, each in enumerate(sizes)
                for j in (each >= least).nonzero().flatten()
            ]
            chart.facts.bad_samples = found
            i, j = found[0]
            number, ratio = chart.facts.numbers[i], float(least) / typical
            text = f"Sample {j} of batch {number} has {what} {ratio:.3g} times the ordinary size."
            chart.find("sample_outlier", 1.0, text)
            return


def _repeated(chart: Chart, xs: list[Tensor]) -> None:
    """Batches that hold the same samples again, and batches of zeros."""
    if len(xs) < 8 or min(map(len, xs)) < 4 or xs[0].ndim < 2:
        return
    numbers = chart.facts.numbers
    zero = _lost_batches(xs)
    if zero and not chart.has("batch_outlier"):
        chart.facts.bad_batches = zero
        more = f" and those of {len(zero) - 1} more" if len(zero) > 1 else ""
        text = f"All inputs of batch {numbers[zero[0]]}{more} are zero; no sample elsewhere is."
        chart.find("inputs_lost", 1.0, text)
    first_with: dict[bytes, int] = {}
    again = []  # (batch, an earlier one that is equal)
    for i, x in enumerate(xs):
        if i not in zero:
            first = first_with.setdefault(x.contiguous().cpu().numpy().tobytes(), i)
            if first != i:
                again.append((i, first))
    if again:
        later, first = again[0]
        share = len(again) / len(xs)
        text = (
            f"Batch {numbers[later]} equals batch {numbers[first]}; {share:.0%} of the batches "
            "repeat another one."
        )
        chart.find("batches_repeat", ramp(share, 0.1, 0.3), text)


def _lost_batches(xs: list[Tensor]) -> list[int]:
    """Batches of zeros, where the other batches hold no such sample: data that did not arrive."""
    empty = [~x.flatten(1).bool().any(1) for x in xs]
    zero = [i for i, e in enumerate(empty) if bool(e.all())]
    others = [e for e in empty if not bool(e.all())]
    if not zero or len(zero) > 0.2 * len(xs) or any(bool(e.any()) for e in others):
        return []
    return zero


def _targets(chart: Chart, xs: list[Tensor], ys: list[Tensor]) -> None:
    """Targets that are all equal, and targets that are the inputs themselves."""
    whole = torch.cat([y.flatten() for y in ys])
    if len(whole) > 20 and bool((whole == whole[0]).all()):
        chart.find("targets_equal", 1.0, f"All {len(whole)} targets are {float(whole[0]):g}.")
    symbols = not xs[0].is_floating_point() and not ys[0].is_floating_point()
    if symbols and len(xs) == len(ys) and all(x.shape == y.shape for x, y in zip(xs, ys)):
        same = torch.cat([(x == y).flatten() for x, y in zip(xs, ys)]).double().mean()
        text = f"{float(same):.0%} of the targets equal the input at the same place."
        chart.find("targets_are_inputs", ramp(float(same), 0.95, 0.99), text)


def _tails(chart: Chart, ys: list[Tensor]) -> None:
    """The tail index of the targets, by Hill's estimate from the largest thirtieth."""
    y = torch.cat([y.flatten() for y in ys]).double()
    y = y[y.isfinite()]
    if len(y) < 300:
        return
    sizes = (y - y.median()).abs().sort(descending=True).values
    top = max(15, len(sizes) // 30)
    if float(sizes[top]) <= 0:
        return
    chart.facts.tail_index = index = 1 / float((sizes[:top] / sizes[top]).log().mean())
    if float(sizes[0] / sizes[1].clamp_min(1e-30)) < 30:  # else a single outlier
        text = f"The targets have a tail of index {index:.2g} (below 2: infinite variance)."
        chart.find("heavy_targets", ramp(index, 2.2, 1.6), text)


def _order(chart: Chart, ys: list[Tensor]) -> None:
    """Targets differ more between batches than samples drawn at random would."""
    labels = not ys[0].is_floating_point()
    if len(ys) < 5 or min(map(len, ys)) < 2 or (labels and ys[0].ndim > 1):
        return
    columns = [
        y.flatten(1).double().nan_to_num(0, 0, 0) if y.ndim > 1 else y.double().unsqueeze(1)
        for y in ys
    ]
    everything = torch.cat(columns)
    if labels:
        parts = [(column == everything.unique()[:50]).double() for column in columns]
    else:
        low, high = everything.quantile(0.02, 0), everything.quantile(0.98, 0)
        parts = [column.clamp(low, high) for column in columns]
    within = torch.cat(parts).var(0).sum()
    between = torch.stack([part.mean(0) for part in parts]).var(0).sum()
    batch_size = sum(map(len, parts)) / len(parts)
    chart.facts.order_ratio = ratio = float(batch_size * between / within.clamp_min(1e-30))
    text = (
        f"Targets differ between batches {ratio:.3g} times as much as random order would give: "
        "the data are sorted."
    )
    chart.find("sorted", ramp(ratio, 4.0, 10.0), text)


def _shared_samples(chart: Chart, xs: list[Tensor], held: list[Tensor]) -> None:
    """Which validation samples are training samples, too.

    Args:
        held: the inputs of the validation batches.
    """
    train, valid = (torch.cat([_flat(x) for x in part]) for part in (xs, held))
    if train.shape[1] != valid.shape[1] or train.shape[1] < 2:
        return
    known = {row.tobytes() for row in train.contiguous().cpu().numpy()}
    shared = [row.tobytes() in known for row in valid.contiguous().cpu().numpy()]
    twice = 1 - len(known) / len(train)  # duplicates within training: a small space of inputs
    share = sum(shared) / len(shared)
    chart.facts.shared = shared
    text = f"{share:.0%} of the validation samples are also training samples."
    chart.find("shared_samples", ramp(share - 2 * twice, 0.02, 0.1), text)
