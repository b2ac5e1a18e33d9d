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
    sizes = [len(x) for x in xs]
    chart.facts["sizes"] = sizes
    chart.facts["numbers"] = patient.numbers
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
    if "valid" in patient.given:
        held = [x for x, _ in map(pair, patient.valid) if x is not None]
        if held:
            chart.attempt("samples in both parts", lambda: _count_shared_samples(chart, xs, held))


def _inputs(chart: Chart, xs: list[Tensor]) -> None:
    """Note inputs that are not finite, constant and large, or of very different scales."""
    x = torch.cat([x.flatten(0, -2) if x.ndim == 3 else x.flatten(1) for x in xs]).double()
    if x.ndim == 1:
        x = x.unsqueeze(1)
    bad = ~x.isfinite()
    if bool(bad.any()):
        share = bad.double().mean(0)
        if float(share.max()) > 0.99 and len(share) > 1:
            k = int(share.argmax())
            chart.find("feature_not_finite", 1.0, f"Input {k} is NaN or infinite in every sample.")
            chart.facts["features"] = [int(i) for i in (share > 0.99).nonzero().flatten()]
    if xs[0].ndim not in (2, 3):
        big = float(x.abs().nan_to_num(0, 0, 0).quantile(0.9)) if x.numel() < 1e7 else 0.0
        if big > 20:
            chart.find(
                "unscaled", ramp(math.log10(big), 1.3, 2.3), f"Inputs reach {big:.3g} (90 %)."
            )
        return
    x = x.nan_to_num(0, 0, 0)
    middle = x.median(0).values
    scale = x.abs().quantile(0.9, 0)
    spread = (x - middle).abs().quantile(0.9, 0)
    typical = float(scale[scale > 0].median()) if bool((scale > 0).any()) else 1.0
    constant = (spread <= 1e-6 * scale) & (scale > 30 * min(typical, 1.0)) & (scale > 10)
    if bool(constant.any()) and len(scale) > 1:
        where = [int(i) for i in constant.nonzero().flatten()]
        chart.facts["features"] = where
        text = f"Input {where[0]} is {float(middle[where[0]]):.3g} in every sample."
        chart.find("constant_large", 1.0, text)
    live = scale.masked_fill(constant, 0)
    k = int(live.argmax())
    big = float(live[k])
    if big > 20:
        varied = live[live > 0]
        strength = ramp(math.log10(big), 1.3, 2.0)
        if len(varied) > 1 and float(varied.max() / varied.median()) > 30:
            text = (
                f"Input {k} reaches {big:.3g}, {float(varied.max() / varied.median()):.3g} times "
                "the middle one."
            )
        else:
            text = f"Inputs reach {big:.3g} (input {k}, 90 % of the samples)."
        chart.find("unscaled", strength, text)


def _outliers(chart: Chart, parts: list[Tensor], what: str) -> None:
    """Note single samples or batches whose ``what`` (inputs or targets) are not finite or far from
    all others.
    """
    flat = [p.flatten(1).double() if p.ndim > 1 else p.double().unsqueeze(1) for p in parts]
    each = [f.abs().amax(1) for f in flat]  # NaN stays NaN
    numbers: list[int] = chart.facts["numbers"]
    broken = [~e.isfinite() for e in each]
    if any(bool(b.any()) for b in broken):
        full = [i for i, b in enumerate(broken) if bool(b.float().mean() > 0.5)]
        single = [(i, int(j)) for i, b in enumerate(broken) for j in b.nonzero().flatten()]
        if len(full) == len(parts):
            return  # a feature of all samples, not an outlier
        if full and len(full) <= 0.1 * len(parts) + 1 and len(parts[full[0]]) > 1:
            chart.facts["bad_batches"] = full
            text = f"Batch {numbers[full[0]]} has {what} that are NaN or infinite."
            chart.find("batch_outlier", 1.0, text)
        elif len(single) <= 0.02 * sum(map(len, each)) + 1:
            chart.facts["bad_samples"] = single
            i, j = single[0]
            chart.find(
                "sample_outlier", 1.0, f"Sample {j} of batch {numbers[i]} has NaN in its {what}."
            )
        return
    whole = torch.cat(each)
    if what == "targets":
        middle = torch.cat(flat).median(0).values
        each = [(f - middle).abs().amax(1) for f in flat]
        whole = torch.cat(each)
    typical = float(whole.quantile(0.75))
    if typical <= 0:
        return
    medians = torch.stack([e.median() for e in each])
    if len(each) >= 5 and min(map(len, each)) > 1:
        wild = [
            i for i in range(len(each)) if float(medians[i]) > OUTLIER * float(medians.median())
        ]
        if wild and len(wild) <= 0.1 * len(each) + 1:
            chart.facts["bad_batches"] = wild
            ratio = float(medians[wild[0]]) / float(medians.median())
            text = f"Batch {numbers[wild[0]]} has {what} {ratio:.3g} times as large as the others."
            chart.find("batch_outlier", 1.0, text)
            return
    order = whole.sort(descending=True).values
    for k in range(1, min(4, len(order))):
        gap = float(order[k - 1] / order[k].clamp_min(1e-30))
        if gap > 10 and float(order[k - 1]) > OUTLIER * typical:
            found = [
                (i, int(j))
                for i, e in enumerate(each)
                for j in (e >= order[k - 1]).nonzero().flatten()
            ]
            chart.facts["bad_samples"] = found
            i, j = found[0]
            ratio = float(order[k - 1]) / typical
            text = (
                f"Sample {j} of batch {numbers[i]} has {what} {ratio:.3g} times the ordinary size."
            )
            chart.find("sample_outlier", 1.0, text)
            return


def _repeated(chart: Chart, xs: list[Tensor]) -> None:
    """Batches that hold the same samples again, and batches of zeros."""
    if len(xs) < 8 or min(map(len, xs)) < 4 or xs[0].ndim < 2:
        return
    numbers: list[int] = chart.facts["numbers"]
    zero = _lost_batches(xs)
    if zero and not chart.has("batch_outlier"):
        chart.facts["bad_batches"] = zero
        more = f" and those of {len(zero) - 1} more" if len(zero) > 1 else ""
        text = f"All inputs of batch {numbers[zero[0]]}{more} are zero; no sample elsewhere is."
        chart.find("inputs_lost", 1.0, text)
    known: dict[bytes, int] = {}
    again = []
    for i, x in enumerate(xs):
        if i not in zero:
            first = known.setdefault(x.contiguous().cpu().numpy().tobytes(), i)
            if first != i:
                again.append((first, i))
    chart.facts["repeated"] = [i for _, i in again]
    if again:
        share = len(again) / len(xs)
        text = (
            f"Batch {numbers[again[0][1]]} equals batch {numbers[again[0][0]]}; {share:.0%} of the "
            "batches repeat another one."
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
    y = torch.cat([y.flatten() for y in ys]).double()
    y = y[y.isfinite()]
    if len(y) < 300:
        return
    a = (y - y.median()).abs().sort(descending=True).values
    top = max(15, len(a) // 30)
    if float(a[top]) <= 0:
        return
    index = 1 / float((a[:top] / a[top]).log().mean())
    chart.facts["tail_index"] = index
    gap = float(a[0] / a[1].clamp_min(1e-30))
    if gap < 30:
        text = f"The targets have a tail of index {index:.2g} (below 2: infinite variance)."
        chart.find("heavy_targets", ramp(index, 2.2, 1.6), text)


def _order(chart: Chart, ys: list[Tensor]) -> None:
    """Targets differ more between batches than samples drawn at random would."""
    if len(ys) < 5 or min(map(len, ys)) < 2:
        return
    columns = []
    for y in ys:
        flat = y.flatten(1).double().nan_to_num(0, 0, 0) if y.ndim > 1 else y.double().unsqueeze(1)
        columns.append(flat)
    whole = torch.cat(columns)
    if ys[0].is_floating_point():
        low, high = whole.quantile(0.02, 0), whole.quantile(0.98, 0)
        parts = [c.clamp(low, high) for c in columns]
    else:
        classes = whole.unique()[:50]
        if ys[0].ndim > 1:
            return
        parts = [(c == classes).double() for c in columns]
    whole = torch.cat(parts)
    within = whole.var(0).sum()
    means = torch.stack([p.mean(0) for p in parts])
    n = sum(map(len, parts)) / len(parts)
    ratio = float(n * means.var(0).sum() / within.clamp_min(1e-30))
    chart.facts["order_ratio"] = ratio
    text = (
        f"Targets differ between batches {ratio:.3g} times as much as random order would give: "
        "the data are sorted."
    )
    chart.find("sorted", ramp(ratio, 4.0, 10.0), text)


def _count_shared_samples(chart: Chart, xs: list[Tensor], held: list[Tensor]) -> None:
    train = torch.cat([x.flatten(1) if x.ndim > 1 else x.unsqueeze(1) for x in xs])
    valid = torch.cat([x.flatten(1) if x.ndim > 1 else x.unsqueeze(1) for x in held])
    if train.shape[1] != valid.shape[1] or train.shape[1] < 2:
        return
    known = {row.tobytes() for row in train.contiguous().cpu().numpy()}
    shared = [row.tobytes() in known for row in valid.contiguous().cpu().numpy()]
    twice = 1 - len(known) / len(train)  # duplicates within training: a small space of inputs
    share = sum(shared) / len(shared)
    chart.facts["shared"] = shared
    text = f"{share:.0%} of the validation samples are also training samples."
    chart.find("shared_samples", ramp(share - 2 * twice, 0.02, 0.1), text)
