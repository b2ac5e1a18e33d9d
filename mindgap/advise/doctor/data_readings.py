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

# All thresholds here were chosen on the development cases of ``benchmarks/doctor``, too.
#: A sample or a batch so many times as large as the ordinary one is an outlier. Inputs whose 90 %
#: quantile is above the second number are out of scale. A feature whose quantile is so many times
#: that of the others is out of proportion.
OUTLIER, OUT_OF_SCALE, OUT_OF_PROPORTION = 50.0, 20, 30
#: Most batches, zero batches and samples that are outliers, as shares of all (one more is allowed,
#: but not of zero batches): where there are more, something is wrong with all.
FEW_BATCHES, FEW_ZERO_BATCHES, FEW_SAMPLES = 0.1, 0.2, 0.02


def read_data(chart: Chart, patient: Patient) -> None:
    """Find faults of the batches: inputs that are not finite, out of scale or constant, targets
    that are sorted, equal or heavy-tailed, batches that repeat, samples shared with validation.

    The sizes and numbers of the batches become facts. Batches without a tensor of inputs get a
    note, and nothing is read.
    """
    pairs = [pair(batch) for batch in patient.train]
    inputs = [x for x, _ in pairs if x is not None]
    targets = [y for _, y in pairs if y is not None]
    if not inputs:
        chart.notes.append("the batches hold no tensor with one row per sample")
        return
    chart.facts.batch_sizes = [len(x) for x in inputs]
    chart.facts.batch_numbers = patient.numbers
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


def flat(values: Tensor) -> Tensor:
    """Inputs or targets of a batch with one row per sample and one column per number."""
    return values.flatten(1) if values.ndim > 1 else values.unsqueeze(1)


def _read_scales(chart: Chart, inputs: list[Tensor]) -> None:
    """Find a feature that is not finite in every sample, and inputs out of scale: by feature where
    they are vectors or sequences of them, else (images) all together.

    Args:
        inputs: of each batch, (samples, ...); of sequences (samples, places, features).
    """
    # One row per sample, or per place of a sequence.
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
    elif features.numel() < 1e7:  # torch's quantile takes no more than 2^24 numbers
        upper_decile = float(features.abs().quantile(0.9))
        if upper_decile > OUT_OF_SCALE:
            chart.find(
                "unscaled",
                ramp(math.log10(upper_decile), zero_at=1.3, one_at=2.3),
                f"Inputs reach {upper_decile:.3g} (90 %).",
            )


def _read_features(chart: Chart, features: Tensor) -> None:
    """Find a feature that is constant and large, and the feature that is most out of scale.

    Args:
        features: (samples, features), finite.
    """
    medians = features.median(0).values
    upper_deciles = features.abs().quantile(0.9, 0)
    spread = (features - medians).abs().quantile(0.9, 0)
    nonzero = upper_deciles[upper_deciles > 0]
    typical = float(nonzero.median()) if len(nonzero) else 1.0
    # A constant counts where it is far above the other features and above 10.
    large = (upper_deciles > OUT_OF_PROPORTION * min(typical, 1.0)) & (upper_deciles > 10)
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
    if largest > OUT_OF_SCALE:
        ratio = float(varied_deciles.max() / varied_deciles[varied_deciles > 0].median())
        text = f"Inputs reach {largest:.3g} (input {feature}, 90 % of the samples)."
        if ratio > OUT_OF_PROPORTION:
            text = f"Input {feature} reaches {largest:.3g}, {ratio:.3g} times the middle one."
        chart.find("unscaled", ramp(math.log10(largest), zero_at=1.3, one_at=2.0), text)


def _read_outliers(chart: Chart, parts: list[Tensor], kind: str) -> None:
    """Find single batches or samples whose numbers are not finite or, where all are finite, far
    larger than the others. Targets are measured from their median.

    Args:
        parts: inputs or targets of each batch, (samples, ...).
        kind: ``"inputs"`` or ``"targets"``.
    """
    rows_of_batches = [flat(part).double() for part in parts]
    # Of each sample its largest entry; NaN stays NaN.
    sizes = [rows.abs().amax(1) for rows in rows_of_batches]
    not_finite = [~each.isfinite() for each in sizes]
    if any(bool(mask.any()) for mask in not_finite):
        _note_broken_samples(chart, not_finite, kind)
        return
    if kind == "targets":
        median = torch.cat(rows_of_batches).median(0).values
        sizes = [(rows - median).abs().amax(1) for rows in rows_of_batches]
    typical = float(torch.cat(sizes).quantile(0.75))  # the ordinary size; 0: most are zero
    if typical > 0 and not _note_large_batch(chart, sizes, kind):
        _note_large_samples(chart, sizes, typical, kind)


def _note_broken_samples(chart: Chart, not_finite: list[Tensor], kind: str) -> None:
    """Find batches whose samples are mostly not finite, where there are few, else samples, where
    there are few. They become the fact ``bad_batches`` or ``bad_samples``.

    Args:
        not_finite: per batch, which samples are not finite; some are.
        kind: ``"inputs"`` or ``"targets"``.
    """
    numbers = chart.facts.batch_numbers
    batches = [batch for batch, mask in enumerate(not_finite) if bool(mask.float().mean() > 0.5)]
    samples = [
        (batch, int(sample))
        for batch, mask in enumerate(not_finite)
        for sample in mask.nonzero().flatten()
    ]
    if len(batches) == len(not_finite):
        return  # a feature of all samples, not an outlier
    few_batches = 0 < len(batches) <= FEW_BATCHES * len(not_finite) + 1
    if few_batches and len(not_finite[batches[0]]) > 1:
        chart.facts.bad_batches = batches
        chart.find(
            "batch_outlier",
            1.0,
            f"Batch {numbers[batches[0]]} has {kind} that are NaN or infinite.",
        )
    elif len(samples) <= FEW_SAMPLES * sum(map(len, not_finite)) + 1:
        chart.facts.bad_samples = samples
        batch, sample = samples[0]
        chart.find(
            "sample_outlier",
            1.0,
            f"Sample {sample} of batch {numbers[batch]} has NaN in its {kind}.",
        )


def _note_large_batch(chart: Chart, sizes: list[Tensor], kind: str) -> bool:
    """Find batches whose median sample is ``OUTLIER`` times as large as that of the others, where
    there are few. They become the fact ``bad_batches``. Returns whether there are any; always False
    of fewer than five batches or of batches of one sample.

    Args:
        sizes: per batch, the size of each sample.
        kind: ``"inputs"`` or ``"targets"``.
    """
    if len(sizes) < 5 or min(map(len, sizes)) < 2:
        return False
    medians = torch.stack([each.median() for each in sizes])
    usual = float(medians.median())
    large = [i for i, median in enumerate(medians.tolist()) if median > OUTLIER * usual]
    if not large or len(large) > FEW_BATCHES * len(sizes) + 1:
        return False
    chart.facts.bad_batches = large
    number, ratio = chart.facts.batch_numbers[large[0]], float(medians[large[0]]) / usual
    chart.find(
        "batch_outlier", 1.0, f"Batch {number} has {kind} {ratio:.3g} times as large as the others."
    )
    return True


def _note_large_samples(chart: Chart, sizes: list[Tensor], typical: float, kind: str) -> None:
    """Find up to three samples far above all others: the smallest of them is more than ten times as
    large as the next sample, and ``OUTLIER`` times the ordinary size. They become the fact
    ``bad_samples``.

    Args:
        sizes: per batch, the size of each sample.
        typical: the ordinary size, the upper quartile of all.
        kind: ``"inputs"`` or ``"targets"``.
    """
    descending = torch.cat(sizes).sort(descending=True).values
    for count in range(1, min(4, len(descending))):
        smallest, next_one = descending[count - 1], descending[count]
        ratio_to_next = float(smallest / next_one.clamp_min(1e-30))
        if ratio_to_next > 10 and float(smallest) > OUTLIER * typical:
            large_samples = [
                (batch, int(sample))
                for batch, each in enumerate(sizes)
                for sample in (each >= smallest).nonzero().flatten()
            ]
            chart.facts.bad_samples = large_samples
            batch, sample = large_samples[0]
            number, ratio = chart.facts.batch_numbers[batch], float(smallest) / typical
            chart.find(
                "sample_outlier",
                1.0,
                f"Sample {sample} of batch {number} has {kind} {ratio:.3g} times the ordinary "
                "size.",
            )
            return


def _read_repetitions(chart: Chart, inputs: list[Tensor]) -> None:
    """Find training batches that equal an earlier one bit for bit, and batches of zeros, which
    become the fact ``bad_batches``. Reads nothing of fewer than eight batches, of batches of fewer
    than four samples, or of inputs that are one number per sample.
    """
    if len(inputs) < 8 or min(map(len, inputs)) < 4 or inputs[0].ndim < 2:
        return
    numbers = chart.facts.batch_numbers
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
    first_with: dict[bytes, int] = {}  # content -> the first batch that has it
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
            ramp(share, zero_at=0.1, one_at=0.3),
            f"Batch {numbers[later]} equals batch {numbers[first]}; {share:.0%} of the batches "
            "repeat another one.",
        )


def _zero_batches(inputs: list[Tensor]) -> list[int]:
    """Numbers of the batches whose inputs are all zero: data that did not arrive. Empty where these
    are many, or where a sample of another batch is zero, too.
    """
    zero_samples = [~x.flatten(1).bool().any(1) for x in inputs]  # per batch, one entry per sample
    zero_batches = [i for i, mask in enumerate(zero_samples) if bool(mask.all())]
    other_batches = [mask for mask in zero_samples if not bool(mask.all())]
    zeros_elsewhere = any(bool(mask.any()) for mask in other_batches)
    too_many = len(zero_batches) > FEW_ZERO_BATCHES * len(inputs)
    return [] if zeros_elsewhere or too_many else zero_batches


def _read_targets(chart: Chart, inputs: list[Tensor], targets: list[Tensor]) -> None:
    """Find targets that are all equal and, where inputs and targets are whole numbers (symbols),
    targets that are the inputs themselves.
    """
    every_target = torch.cat([y.flatten() for y in targets])
    if len(every_target) > 20 and bool((every_target == every_target[0]).all()):
        chart.find(
            "targets_equal", 1.0, f"All {len(every_target)} targets are {float(every_target[0]):g}."
        )
    are_symbols = not inputs[0].is_floating_point() and not targets[0].is_floating_point()
    if (
        are_symbols
        and len(inputs) == len(targets)
        and all(x.shape == y.shape for x, y in zip(inputs, targets))
    ):
        share_equal = (
            torch.cat([(x == y).flatten() for x, y in zip(inputs, targets)]).double().mean()
        )
        chart.find(
            "targets_are_inputs",
            ramp(float(share_equal), zero_at=0.95, one_at=0.99),
            f"{float(share_equal):.0%} of the targets equal the input at the same place.",
        )


def _read_tails(chart: Chart, targets: list[Tensor]) -> None:
    """Find targets with heavy tails. The tail index, by Hill's estimate from the largest thirtieth
    of the distances to the median, becomes a fact. Reads nothing of fewer than 300 finite targets.

    With the k largest distances d_1 ≥ … ≥ d_k Hill's estimate is 1 / mean of log(d_i / d_(k+1)).
    """
    values = torch.cat([values.flatten() for values in targets]).double()
    values = values[values.isfinite()]
    if len(values) < 300:
        return
    distances = (values - values.median()).abs().sort(descending=True).values
    tail_length = max(15, len(distances) // 30)
    tail, threshold = distances[:tail_length], distances[tail_length]
    if float(threshold) <= 0:
        return
    chart.facts.tail_index = index = 1 / float((tail / threshold).log().mean())
    if float(tail[0] / tail[1].clamp_min(1e-30)) < 30:  # else a single outlier
        chart.find(
            "heavy_targets",
            ramp(index, zero_at=2.2, one_at=1.6),
            f"The targets have a tail of index {index:.2g} (below 2: infinite variance).",
        )


def _read_order(chart: Chart, targets: list[Tensor]) -> None:
    """Find targets that differ more between batches than random order would give: the data are
    sorted. The fact ``order_ratio`` is the variance of the batches' means, times the batch size,
    over the variance of all targets: about 1 in random order.

    Labels are read as indicators of the first 50 classes, and real targets are cut at their 2 % and
    98 % quantiles. Reads nothing of fewer than five batches or of batches of one sample.
    """
    labels = not targets[0].is_floating_point()
    if len(targets) < 5 or min(map(len, targets)) < 2 or (labels and targets[0].ndim > 1):
        return
    # Per batch, (samples, columns).
    columns = [
        y.flatten(1).double().nan_to_num(0, 0, 0) if y.ndim > 1 else y.double().unsqueeze(1)
        for y in targets
    ]
    all_columns = torch.cat(columns)
    if labels:  # one column per class, 1 where the label is of that class
        parts = [(column == all_columns.unique()[:50]).double() for column in columns]
    else:
        low, high = all_columns.quantile(0.02, 0), all_columns.quantile(0.98, 0)
        parts = [column.clamp(low, high) for column in columns]
    variance_of_all = torch.cat(parts).var(0).sum()
    between = torch.stack([part.mean(0) for part in parts]).var(0).sum()
    batch_size = sum(map(len, parts)) / len(parts)
    chart.facts.order_ratio = ratio = float(batch_size * between / variance_of_all.clamp_min(1e-30))
    chart.find(
        "sorted",
        ramp(ratio, zero_at=4.0, one_at=10.0),
        f"Targets differ between batches {ratio:.3g} times as much as random order would give: "
        "the data are sorted.",
    )


def _read_shared_samples(chart: Chart, inputs: list[Tensor], valid_inputs: list[Tensor]) -> None:
    """Find validation samples whose inputs are those of a training sample, bit for bit. Which ones
    are becomes the fact ``shared``. The finding counts their share beyond twice the share of
    duplicates within training.

    Args:
        inputs, valid_inputs: of each training and of each validation batch.
    """
    train, valid = (torch.cat([flat(x) for x in batches]) for batches in (inputs, valid_inputs))
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
        ramp(share - 2 * share_duplicates, zero_at=0.02, one_at=0.1),
        f"{share:.0%} of the validation samples are also training samples.",
    )
