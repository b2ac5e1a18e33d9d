"""What the batches themselves show, before any step.

Every function ``_read_...`` and ``_note_...`` adds what it finds to the chart: findings with a
strength from 0 to 1 and a sentence, and facts for other readings and for cures.

The thresholds (the two numbers of a ``ramp``: strength 0 at the first, 1 at the second) were chosen
on the development cases of ``benchmarks/doctor``.
"""

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
    """Inputs and targets: not finite, out of scale, constant, sorted, shared with validation. Sizes
    and numbers of the batches become facts; batches without a tensor of inputs get a note.
    """
    pairs = [pair(batch) for batch in patient.train]
    inputs = [x for x, _ in pairs if x is not None]
    targets = [y for _, y in pairs if y is not None]
    if not inputs:
        chart.notes.append("the batches hold no tensor with one row per sample")
        return
    chart.facts.sizes = [len(x) for x in inputs]
    chart.facts.numbers = patient.numbers
    if inputs[0].is_floating_point():
        chart.attempt("the scale of the inputs", lambda: _read_scales(chart, inputs))
        chart.attempt("outliers of the inputs", lambda: _read_outliers(chart, inputs, "inputs"))
    chart.attempt("repeated batches", lambda: _read_repetitions(chart, inputs))
    if len(targets) == len(pairs):
        if targets[0].is_floating_point():
            chart.attempt(
                "outliers of the targets", lambda: _read_outliers(chart, targets, "targets")
            )
            chart.attempt("tails of the targets", lambda: _read_tails(chart, targets))
        chart.attempt("the order of the data", lambda: _read_order(chart, targets))
        chart.attempt("the targets", lambda: _read_targets(chart, inputs, targets))
    valid_inputs = [x for x, _ in map(pair, patient.valid) if x is not None]
    if "valid" in patient.given and valid_inputs:
        chart.attempt(
            "samples in both parts", lambda: _read_shared_samples(chart, inputs, valid_inputs)
        )


def _flat(batch: Tensor) -> Tensor:
    """One row per sample, one column per number."""
    return batch.flatten(1) if batch.ndim > 1 else batch.unsqueeze(1)


def _read_scales(chart: Chart, inputs: list[Tensor]) -> None:
    """Note inputs that are not finite in every sample, and inputs out of scale: by feature where
    they are vectors or sequences of them, else (images) all together.
    """
    features = torch.cat(
        [x.flatten(0, -2) if x.ndim == 3 else x.flatten(1) for x in inputs]
    ).double()
    share_not_finite = (~features.isfinite()).double().mean(0)
    if float(share_not_finite.max()) > 0.99 and len(share_not_finite) > 1:
        feature = int(share_not_finite.argmax())
        chart.find(
            "feature_not_finite", 1.0, f"Input {feature} is NaN or infinite in every sample."
        )
    features = features.nan_to_num(0, 0, 0)
    if inputs[0].ndim in (2, 3):
        _read_features(chart, features)
    elif features.numel() < 1e7:
        upper_decile = float(features.abs().quantile(0.9))
        if upper_decile > 20:
            chart.find(
                "unscaled",
                ramp(math.log10(upper_decile), 1.3, 2.3),
                f"Inputs reach {upper_decile:.3g} (90 %).",
            )


def _read_features(chart: Chart, features: Tensor) -> None:
    """Note features (columns) that are constant and large, and features out of scale."""
    medians = features.median(0).values
    upper_deciles = features.abs().quantile(0.9, 0)
    spread = (features - medians).abs().quantile(0.9, 0)
    nonzero = upper_deciles[upper_deciles > 0]
    typical = float(nonzero.median()) if len(nonzero) else 1.0
    large = (upper_deciles > 30 * min(typical, 1.0)) & (upper_deciles > 10)
    constant = (spread <= 1e-6 * upper_deciles) & large
    if bool(constant.any()) and len(upper_deciles) > 1:
        feature = int(constant.nonzero()[0])
        chart.find(
            "constant_large",
            1.0,
            f"Input {feature} is {float(medians[feature]):.3g} in every sample.",
        )
    varied_deciles = upper_deciles.masked_fill(constant, 0)
    feature = int(varied_deciles.argmax())
    largest = float(varied_deciles[feature])
    if largest > 20:
        ratio = float(varied_deciles.max() / varied_deciles[varied_deciles > 0].median())
        text = f"Inputs reach {largest:.3g} (input {feature}, 90 % of the samples)."
        if ratio > 30:
            text = f"Input {feature} reaches {largest:.3g}, {ratio:.3g} times the middle one."
        chart.find("unscaled", ramp(math.log10(largest), 1.3, 2.0), text)


def _read_outliers(chart: Chart, parts: list[Tensor], kind: str) -> None:
    """Note single samples or batches whose numbers are not finite, else those far from all others
    (targets: from their median).

    Args:
        parts: inputs or targets of each batch.
        kind: ``"inputs"`` or ``"targets"``.
    """
    rows_of_batches = [_flat(part).double() for part in parts]
    sizes = [rows.abs().amax(1) for rows in rows_of_batches]  # NaN stays NaN
    not_finite = [~each.isfinite() for each in sizes]
    if any(bool(mask.any()) for mask in not_finite):
        _note_broken_samples(chart, not_finite, kind)
        return
    if kind == "targets":
        median = torch.cat(rows_of_batches).median(0).values
        sizes = [(rows - median).abs().amax(1) for rows in rows_of_batches]
    typical = float(torch.cat(sizes).quantile(0.75))
    if typical > 0 and not _note_large_batch(chart, sizes, kind):
        _note_large_samples(chart, sizes, typical, kind)


def _note_broken_samples(chart: Chart, not_finite: list[Tensor], kind: str) -> None:
    """Note the batches whose samples are mostly not finite, where they are few, else the samples,
    where these are few; they become facts.

    Args:
        not_finite: per batch, which samples are not finite.
    """
    numbers = chart.facts.numbers
    batches = [batch for batch, mask in enumerate(not_finite) if bool(mask.float().mean() > 0.5)]
    samples = [
        (batch, int(sample))
        for batch, mask in enumerate(not_finite)
        for sample in mask.nonzero().flatten()
    ]
    if len(batches) == len(not_finite):
        return  # a feature of all samples, not an outlier
    if batches and len(batches) <= 0.1 * len(not_finite) + 1 and len(not_finite[batches[0]]) > 1:
        chart.facts.bad_batches = batches
        chart.find(
            "batch_outlier",
            1.0,
            f"Batch {numbers[batches[0]]} has {kind} that are NaN or infinite.",
        )
    elif len(samples) <= 0.02 * sum(map(len, not_finite)) + 1:
        chart.facts.bad_samples = samples
        batch, sample = samples[0]
        chart.find(
            "sample_outlier",
            1.0,
            f"Sample {sample} of batch {numbers[batch]} has NaN in its {kind}.",
        )


def _note_large_batch(chart: Chart, sizes: list[Tensor], kind: str) -> bool:
    """Note batches whose samples are far larger than those of the others, where few are; whether
    there are any. They become facts.

    Args:
        sizes: per batch, the size of each sample.
    """
    if len(sizes) < 5 or min(map(len, sizes)) < 2:
        return False
    medians = torch.stack([each.median() for each in sizes])
    usual = float(medians.median())
    large = [i for i, median in enumerate(medians.tolist()) if median > OUTLIER * usual]
    if not large or len(large) > 0.1 * len(sizes) + 1:
        return False
    chart.facts.bad_batches = large
    number, ratio = chart.facts.numbers[large[0]], float(medians[large[0]]) / usual
    chart.find(
        "batch_outlier", 1.0, f"Batch {number} has {kind} {ratio:.3g} times as large as the others."
    )
    return True


def _note_large_samples(chart: Chart, sizes: list[Tensor], typical: float, kind: str) -> None:
    """Note up to three samples that stand far above all others: the smallest of them ten times
    above the next, and ``OUTLIER`` times the ordinary size. They become facts.

    Args:
        sizes: per batch, the size of each sample.
        typical: upper quartile of all sizes.
    """
    descending = torch.cat(sizes).sort(descending=True).values
    for count in range(1, min(4, len(descending))):
        smallest = descending[count - 1]
        gap = float(smallest / descending[count].clamp_min(1e-30))
        if gap > 10 and float(smallest) > OUTLIER * typical:
            large_samples = [
                (batch, int(sample))
                for batch, each in enumerate(sizes)
                for sample in (each >= smallest).nonzero().flatten()
            ]
            chart.facts.bad_samples = large_samples
            batch, sample = large_samples[0]
            number, ratio = chart.facts.numbers[batch], float(smallest) / typical
            chart.find(
                "sample_outlier",
                1.0,
                f"Sample {sample} of batch {number} has {kind} {ratio:.3g} times the ordinary "
                "size.",
            )
            return


def _read_repetitions(chart: Chart, inputs: list[Tensor]) -> None:
    """Batches that equal an earlier one bit for bit, and batches of zeros; needs eight batches of
    four samples with two axes.
    """
    if len(inputs) < 8 or min(map(len, inputs)) < 4 or inputs[0].ndim < 2:
        return
    numbers = chart.facts.numbers
    zero_batches = _zero_batches(inputs)
    if zero_batches and not chart.has("batch_outlier"):
        chart.facts.bad_batches = zero_batches
        more = f" and those of {len(zero_batches) - 1} more" if len(zero_batches) > 1 else ""
        number = numbers[zero_batches[0]]
        chart.find(
            "inputs_lost",
            1.0,
            f"All inputs of batch {number}{more} are zero; no sample elsewhere is.",
        )
    first_with: dict[bytes, int] = {}
    repeated = []  # (batch, an earlier one that is equal)
    for i, x in enumerate(inputs):
        if i not in zero_batches:
            first = first_with.setdefault(x.contiguous().cpu().numpy().tobytes(), i)
            if first != i:
                repeated.append((i, first))
    if repeated:
        later, first = repeated[0]
        share = len(repeated) / len(inputs)
        chart.find(
            "batches_repeat",
            ramp(share, 0.1, 0.3),
            f"Batch {numbers[later]} equals batch {numbers[first]}; {share:.0%} of the batches "
            "repeat another one.",
        )


def _zero_batches(inputs: list[Tensor]) -> list[int]:
    """Batches of zeros, where they are few and the other batches hold no such sample: data that
    did not arrive.
    """
    zero_samples = [~x.flatten(1).bool().any(1) for x in inputs]
    places = [i for i, mask in enumerate(zero_samples) if bool(mask.all())]
    other_batches = [mask for mask in zero_samples if not bool(mask.all())]
    zeros_elsewhere = any(bool(mask.any()) for mask in other_batches)
    return [] if zeros_elsewhere or len(places) > 0.2 * len(inputs) else places


def _read_targets(chart: Chart, inputs: list[Tensor], targets: list[Tensor]) -> None:
    """Targets that are all equal, and targets that are the inputs themselves."""
    every_target = torch.cat([y.flatten() for y in targets])
    if len(every_target) > 20 and bool((every_target == every_target[0]).all()):
        chart.find(
            "targets_equal", 1.0, f"All {len(every_target)} targets are {float(every_target[0]):g}."
        )
    symbols = not inputs[0].is_floating_point() and not targets[0].is_floating_point()
    if (
        symbols
        and len(inputs) == len(targets)
        and all(x.shape == y.shape for x, y in zip(inputs, targets))
    ):
        share_equal = (
            torch.cat([(x == y).flatten() for x, y in zip(inputs, targets)]).double().mean()
        )
        chart.find(
            "targets_are_inputs",
            ramp(float(share_equal), 0.95, 0.99),
            f"{float(share_equal):.0%} of the targets equal the input at the same place.",
        )


def _read_tails(chart: Chart, targets: list[Tensor]) -> None:
    """The tail index of the targets, by Hill's estimate from the largest thirtieth of the distances
    to the median; needs 300 finite targets.
    """
    values = torch.cat([values.flatten() for values in targets]).double()
    values = values[values.isfinite()]
    if len(values) < 300:
        return
    sizes = (values - values.median()).abs().sort(descending=True).values
    tail_length = max(15, len(sizes) // 30)
    if float(sizes[tail_length]) <= 0:
        return
    chart.facts.tail_index = index = 1 / float(
        (sizes[:tail_length] / sizes[tail_length]).log().mean()
    )
    if float(sizes[0] / sizes[1].clamp_min(1e-30)) < 30:  # else a single outlier
        chart.find(
            "heavy_targets",
            ramp(index, 2.2, 1.6),
            f"The targets have a tail of index {index:.2g} (below 2: infinite variance).",
        )


def _read_order(chart: Chart, targets: list[Tensor]) -> None:
    """Whether targets differ more between batches than samples drawn at random would: the variance
    of the batches' means, times the batch size, over that of all. Labels count as indicators of
    their (at most 50) classes; numbers are cut at their 2 % quantiles.
    """
    labels = not targets[0].is_floating_point()
    if len(targets) < 5 or min(map(len, targets)) < 2 or (labels and targets[0].ndim > 1):
        return
    columns = [
        y.flatten(1).double().nan_to_num(0, 0, 0) if y.ndim > 1 else y.double().unsqueeze(1)
        for y in targets
    ]
    all_columns = torch.cat(columns)
    if labels:
        parts = [(column == all_columns.unique()[:50]).double() for column in columns]
    else:
        low, high = all_columns.quantile(0.02, 0), all_columns.quantile(0.98, 0)
        parts = [column.clamp(low, high) for column in columns]
    within = torch.cat(parts).var(0).sum()
    between = torch.stack([part.mean(0) for part in parts]).var(0).sum()
    batch_size = sum(map(len, parts)) / len(parts)
    chart.facts.order_ratio = ratio = float(batch_size * between / within.clamp_min(1e-30))
    chart.find(
        "sorted",
        ramp(ratio, 4.0, 10.0),
        f"Targets differ between batches {ratio:.3g} times as much as random order would give: "
        "the data are sorted.",
    )


def _read_shared_samples(chart: Chart, inputs: list[Tensor], valid_inputs: list[Tensor]) -> None:
    """Which validation samples are training samples, too, bit for bit, beyond what duplicates
    within training let expect.

    Args:
        inputs, valid_inputs: of each training and of each validation batch.
    """
    train, valid = (torch.cat([_flat(x) for x in batches]) for batches in (inputs, valid_inputs))
    if train.shape[1] != valid.shape[1] or train.shape[1] < 2:
        return
    training_samples = {row.tobytes() for row in train.contiguous().cpu().numpy()}
    shared = [row.tobytes() in training_samples for row in valid.contiguous().cpu().numpy()]
    # Duplicates within training show that the space of inputs is small.
    share_duplicates = 1 - len(training_samples) / len(train)
    share = sum(shared) / len(shared)
    chart.facts.shared = shared
    chart.find(
        "shared_samples",
        ramp(share - 2 * share_duplicates, 0.02, 0.1),
        f"{share:.0%} of the validation samples are also training samples.",
    )
