"""What else it could be: causes behind the first one, from weak signs and from likeness.

A cause is named only on clear findings. These lists hold what stays possible below that: causes
whose readings lie near their threshold, causes whose cure was tried without effect, and causes that
look like the one that is named.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from statistics import median_high

from torch import nn

from mindgap.advise.doctor.causes import CAUSES
from mindgap.advise.doctor.chart import Chart, ramp
from mindgap.advise.doctor.model_readings import layers
from mindgap.advise.doctor.patient import Patient
from mindgap.base.batches import pair

#: Log-odds below which a cause is not listed, and at most those of a cause that is not named.
LEAST_LISTED, MOST_UNNAMED = -3.0, -1.0
#: Causes that an answer lists.
LISTED = 3
#: Log-odds of a cause whose cure was tried without effect, at most.
REFUTED = -1.5
#: Log-odds of the first cause that looks like the one named; each later one has half a unit less.
ALIKE = -2.2

#: Causes by key with their log-odds, likeliest first.
Ranked = list[tuple[str, float]]
#: Causes by key, and how strongly a reading suggests each; a cause may come twice. The strength is
#: 0 at the first of the two values given to ``ramp`` and 1 at the second, both short of where the
#: reading becomes a finding.
Suspicions = list[tuple[str, float]]


def differential(
    named: str, ranked: Ranked, refuted: Iterable[str], chart: Chart, patient: Patient
) -> Ranked:
    """All causes that remain possible with their log-odds, the named one first, then the others
    from the likeliest on. Weak readings and likeness to the likeliest cause raise their log-odds.

    Args:
        named: key of the cause that is named; empty where none is.
        ranked: causes with their log-odds from clear findings.
        refuted: keys of the causes whose cure was tried and did not help; they get ``REFUTED`` at
            most, and weak readings do not raise them.
    """
    refuted = set(refuted)
    scores = {
        key: min(score, REFUTED) if key in refuted and key != named else score
        for key, score in ranked
    }

    def raise_score(key: str, score: float) -> None:
        """Give a cause these log-odds in ``scores`` unless it has higher ones."""
        scores[key] = max(score, scores.get(key, -math.inf))

    possible = _possible(chart, patient)
    for key, score in _scores_of_weak_signs(chart, patient, possible).items():
        if key not in refuted:
            raise_score(key, score)
    likeliest = named or max(scores, key=lambda key: scores[key], default="")
    if likeliest:
        for place, key in enumerate(CAUSES[likeliest].resembles):
            if key in possible:
                raise_score(key, ALIKE - 0.5 * place)
    others = sorted((key for key in scores if key != named), key=lambda key: -scores[key])
    return [(key, scores[key]) for key in ([named] if named else []) + others]


def _possible(chart: Chart, patient: Patient) -> set[str]:
    """Keys of the causes that this training can have at all, by what the user gave and by its
    modules, optimizer and targets. A deep model has five layers with weights or more.
    """
    given, group = patient.given, patient.optimizer.param_groups[0]
    modules = list(patient.model.modules())
    recurrent = any(isinstance(module, nn.RNNBase) for module in modules)
    batch_norm = any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in modules)
    shallow = len(layers(patient.model)) < 5
    optimizer_clips = any(isinstance(group.get(name), (int, float)) for name in ("tau", "clip"))
    warms_up = patient.scheduler is not None and chart.facts.rate_rises
    targets = pair(patient.train[0])[1]
    trace = chart.facts.trace
    impossible = {  # cause -> whether something is missing without which it cannot be
        "exploding_gradients": shallow and not recurrent,
        "vanishing_gradients": shallow and not recurrent,
        "missing_normalisation": shallow,
        "no_warmup": shallow or "betas" not in group or warms_up or "optimizer" not in given,
        "lr_too_large": "optimizer" not in given,
        "lr_too_small": "optimizer" not in given,
        "momentum_extreme": "optimizer" not in given
        or not (group.get("momentum") or "betas" in group),
        "scheduler_at_zero": patient.scheduler is None,
        "scheduler_negative": patient.scheduler is None,
        "zero_grad_forgotten": "step" not in given,
        "accumulation_undivided": "step" not in given,
        "eval_mode_in_training": "step" not in given or not batch_norm,
        "clipping_too_tight": "step" not in given and not optimizer_clips,
        "leakage": "valid" not in given,
        "batch_norm_of_one": not batch_norm,
        "heavy_tailed_noise": targets is None or not targets.is_floating_point(),
        "overflow": trace is None or not trace.half,
    }
    return {key for key in CAUSES if not impossible.get(key, False)}


def _scores_of_weak_signs(chart: Chart, patient: Patient, possible: set[str]) -> dict[str, float]:
    """Key of a possible cause -> its log-odds, from −3.2 to −1.2, by the strongest of the readings
    that hint at it. These readings may stay below the thresholds of findings.
    """
    scores: dict[str, float] = {}
    suspicions = [
        *_suspicions_of_signals(chart),
        *(_suspicions_of_steps(chart) if "optimizer" in patient.given else ()),
        *_suspicions_of_data(chart, patient),
        *_suspicions_of_settings(chart, patient),
    ]
    for key, strength in suspicions:
        if key in possible and strength > 0.1 and math.isfinite(strength):
            # From -3.2, that of no sign, to -1.2, below any cause that a finding names.
            scores[key] = max(scores.get(key, -math.inf), -3.2 + 2 * strength)
    return scores


def _logarithm(ratio: float) -> float:
    """log10 of a ratio, 0 where the ratio is not a number; a ratio of 0 counts as 1e-30."""
    return math.log10(max(ratio, 1e-30)) if ratio >= 0 else 0.0


def _suspicions_of_signals(chart: Chart) -> Suspicions:
    """What signals, gradients and first weights suggest: (cause, strength from 0 to 1).

    Both ends of every ramp lie short of the same ends of the ramp by which the reading becomes a
    finding. Ratios are read by their logarithms to base ten, sizes of weights (torch's default:
    0.58) by natural ones.
    """
    facts = chart.facts
    through_time = _logarithm(facts.time_ratio)
    sizes = facts.weight_sizes.values() if facts.weight_sizes else [1.0]
    largest, typical = max(*sizes, 1e-12), max(median_high(sizes), 1e-12)
    return [
        ("vanishing_gradients", ramp(through_time, zero_at=-0.7, one_at=-2.5)),
        ("vanishing_gradients", ramp(_logarithm(facts.depth_ratio), zero_at=-0.5, one_at=-2)),
        ("saturated_units", ramp(facts.saturated, zero_at=0.15, one_at=0.6)),
        ("dead_units", ramp(facts.dead, zero_at=0.3, one_at=0.8)),
        ("exploding_gradients", ramp(through_time, zero_at=0.5, one_at=1.5)),
        ("exploding_gradients", ramp(_logarithm(facts.growth), zero_at=0.6, one_at=1.5)),
        ("init_too_large", ramp(math.log(largest), zero_at=math.log(1.5), one_at=math.log(4))),
        ("init_too_small", ramp(math.log(typical), zero_at=math.log(0.3), one_at=math.log(0.1))),
    ]


def _suspicions_of_steps(chart: Chart) -> Suspicions:
    """What the optimizer's steps do to weights and loss suggests: (cause, strength from 0 to 1)."""
    move = 0.005 if math.isnan(chart.facts.move) else chart.facts.move  # 0.005: not suspicious
    grows = chart.has_any("above_start", "broke", "blew_up")
    return [
        ("lr_too_small", 0.8 * ramp(math.log10(max(move, 1e-12)), zero_at=-2.5, one_at=-3.5)),
        ("lr_too_large", ramp(move, zero_at=0.02, one_at=0.1)),
        ("lr_too_large", ramp(chart.facts.overshoot, zero_at=1.0, one_at=2.5)),
        ("lr_too_large", 0.7 if grows else 0.0),
    ]


def _suspicions_of_data(chart: Chart, patient: Patient) -> Suspicions:
    """What samples, labels and the validation loss suggest: (cause, strength from 0 to 1). Wrong
    labels need two signs at once, and so does too small a model: the strengths are multiplied.
    """
    facts = chart.facts
    contradicted, rank = facts.label_rank  # share of the labels, their mean place
    suspicions = [
        (
            "wrong_labels",
            ramp(contradicted, zero_at=0.05, one_at=0.2) * ramp(rank, zero_at=0.1, one_at=0.35),
        ),
        (
            "underfitting",
            ramp(facts.behind, zero_at=0.1, one_at=0.4)
            * ramp(facts.narrowest, zero_at=24, one_at=6),
        ),
    ]
    if patient.valid and "valid" in patient.given:
        lowest, last = facts.lowest_valid, facts.last_valid
        losses = facts.losses or [math.nan]
        last_tenth = losses[-max(1, len(losses) // 10) :]
        gap = last - sum(last_tenth) / len(last_tenth)  # to the training loss at the end
        relative_gap = gap / max(abs(facts.trivial or last), 1e-12)
        rise = (last - lowest) / max(abs(lowest), 1e-12)
        suspicions += [
            ("overfitting", ramp(relative_gap, zero_at=0.08, one_at=0.3)),
            ("overfitting", ramp(rise, zero_at=0.05, one_at=0.3)),
        ]
    return [
        *suspicions,
        ("heavy_tailed_noise", ramp(facts.tail_index, zero_at=3.0, one_at=2.0)),
        ("not_shuffled", ramp(facts.order_ratio, zero_at=2.0, one_at=5.0)),
    ]


def _suspicions_of_settings(chart: Chart, patient: Patient) -> Suspicions:
    """What clipping, weight decay and the kinds of layers suggest: (cause, strength)."""
    facts = chart.facts
    shrunk = math.log10(max(facts.shrunk, 1e-12))  # of the norm's share that clipping leaves
    suspicions = [("clipping_too_tight", ramp(shrunk, zero_at=-0.5, one_at=-1.3))]
    decay = patient.optimizer.param_groups[0].get("weight_decay") or 0.0
    if isinstance(decay, float) and facts.progress < 0.5:
        strength = ramp(math.log10(max(decay, 1e-12)), zero_at=-1.3, one_at=0.0)
        suspicions.append(("weight_decay_too_large", strength))
    modules = list(patient.model.modules())
    recurrent = any(isinstance(module, nn.RNNBase) for module in modules)
    # The gradient by early elements is at most a third of that by late ones.
    if facts.progress < 0.05 and recurrent and not _logarithm(facts.time_ratio) > -0.5:
        suspicions.append(("vanishing_gradients", 0.5))
    if facts.progress < 0.3 and any(isinstance(m, nn.MultiheadAttention) for m in modules):
        suspicions.append(("no_warmup", 0.6))
    return suspicions


def in_words(keys: Iterable[str]) -> str:
    """Names of causes for a sentence.

    Example:
        >>> in_words(["lr_too_large", "overfitting"])
        'the learning rate is too large; the model overfits'
    """
    return "; ".join(CAUSES[key].name.replace("{through}", "depth or time") for key in keys)
