"""What else it could be: causes behind the first one, from weak signs and from likeness.

A cause is named only on clear findings. These lists hold what stays possible below that: causes
whose readings lie near their threshold, causes whose cure was tried without effect, and causes that
look like the one that is named.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from torch import nn

from mindgap.advise.doctor.causes import CAUSES
from mindgap.advise.doctor.chart import Chart, middle, ramp
from mindgap.advise.doctor.model_readings import layers
from mindgap.advise.doctor.patient import Patient
from mindgap.base.batches import pair

#: Causes that an answer lists.
LISTED = 3
#: Log-odds of a cause whose cure was tried without effect, at most.
REFUTED = -1.5
#: Log-odds of the first cause that looks like the one named; each later one has half a unit less.
ALIKE = -2.2

Ranked = list[tuple[str, float]]


def differential(
    named: str, ranked: Ranked, refuted: Iterable[str], chart: Chart, patient: Patient
) -> Ranked:
    """All causes that remain, likeliest first.

    Args:
        named: the cause that is named; empty where none is.
        ranked: causes with their log-odds from clear findings.
        refuted: causes whose cure was tried and did not help.
    """
    refuted = set(refuted)
    scores = {
        key: min(score, REFUTED) if key in refuted and key != named else score
        for key, score in ranked
    }
    possible = _possible(chart, patient)
    for key, score in _weak(chart, patient, possible).items():
        if score > scores.get(key, -math.inf) and key not in refuted:
            scores[key] = score
    first = named or max(scores, key=lambda key: scores[key], default="")
    if first:
        for place, key in enumerate(CAUSES[first].resembles):
            score = ALIKE - 0.5 * place
            if key in possible and score > scores.get(key, -math.inf):
                scores[key] = score
    rest = sorted((k for k in scores if k != named), key=lambda key: -scores[key])
    return [(key, scores[key]) for key in ([named] if named else []) + rest]


def _possible(chart: Chart, patient: Patient) -> set[str]:
    """Causes that this training can have at all."""
    model, group = patient.model, patient.optimizer.param_groups[0]
    recurrent = any(isinstance(m, nn.RNNBase) for m in model.modules())
    depth = len(layers(model))
    left = set(CAUSES)
    if depth < 5 and not recurrent:
        left -= {"exploding_gradients", "vanishing_gradients", "missing_normalisation"}
    if recurrent and depth < 5:
        left -= {"missing_normalisation"}
    warms = patient.scheduler is not None and chart.facts.get("warming")
    if depth < 5 or "betas" not in group or warms:
        left -= {"no_warmup"}
    if "optimizer" not in patient.given:
        left -= {"momentum_extreme", "lr_too_large", "lr_too_small", "no_warmup"}
    if not (group.get("momentum") or "betas" in group):
        left -= {"momentum_extreme"}
    if patient.scheduler is None:
        left -= {"scheduler_at_zero", "scheduler_negative"}
    if "step" not in patient.given:
        left -= {"zero_grad_forgotten", "accumulation_undivided", "eval_mode_in_training"}
        if not any(isinstance(group.get(name), (int, float)) for name in ("tau", "clip")):
            left -= {"clipping_too_tight"}
    if "valid" not in patient.given:
        left -= {"leakage"}
    if not any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in model.modules()):
        left -= {"batch_norm_of_one", "eval_mode_in_training"}
    targets = pair(patient.train[0])[1]
    if targets is None or not targets.is_floating_point():
        left -= {"heavy_tailed_noise"}
    halves = chart.facts.get("trace")
    if not getattr(halves, "half", False):
        left -= {"overflow"}
    return left


#: Cause -> how strongly a reading suggests it, from 0 to 1; a cause may come more than once.
Suspicions = list[tuple[str, float]]


def _weak(chart: Chart, patient: Patient, possible: set[str]) -> dict[str, float]:
    """Log-odds from readings on this side of their thresholds: from −3.2 to −1.2. Of equals the
    first one stays first.
    """
    found: dict[str, float] = {}
    suspicions = [
        *_of_signals(chart),
        *(_of_steps(chart) if "optimizer" in patient.given else ()),
        *_of_data(chart, patient),
        *_of_settings(chart, patient),
    ]
    for key, strength in suspicions:
        if key in possible and strength > 0.1 and math.isfinite(strength):
            found[key] = max(found.get(key, -math.inf), -3.2 + 2 * strength)
    return found


def _logarithm(chart: Chart, name: str) -> float:
    """log10 of a fact; 0 where it is unknown."""
    value = chart.facts.get(name)
    return math.log10(max(value, 1e-30)) if isinstance(value, float) and value >= 0 else 0.0


def _of_signals(chart: Chart) -> Suspicions:
    """What signals, gradients and first weights suggest."""
    facts, through_time = chart.facts, _logarithm(chart, "time_ratio")
    found = [
        ("vanishing_gradients", ramp(through_time, -0.7, -2.5)),
        ("vanishing_gradients", ramp(_logarithm(chart, "depth_ratio"), -0.5, -2)),
        ("saturated_units", ramp(facts.get("saturated", 0.0), 0.15, 0.6)),
        ("dead_units", ramp(facts.get("dead", 0.0), 0.3, 0.8)),
        ("exploding_gradients", ramp(through_time, 0.5, 1.5)),
        ("exploding_gradients", ramp(_logarithm(chart, "growth"), 0.6, 1.5)),
    ]
    sizes = (facts.get("weight_sizes") or {}).values()
    if sizes:
        largest, typical = math.log(max(*sizes, 1e-12)), math.log(max(middle(sizes), 1e-12))
        found.append(("init_too_large", ramp(largest, math.log(1.5), math.log(4))))
        found.append(("init_too_small", ramp(typical, math.log(0.3), math.log(0.1))))
    return found


def _of_steps(chart: Chart) -> Suspicions:
    """What the optimizer's steps do to weights and loss suggests."""
    found, move = [], chart.facts.get("move")
    if isinstance(move, float):
        found.append(("lr_too_small", 0.8 * ramp(math.log10(max(move, 1e-12)), -2.5, -3.5)))
        found.append(("lr_too_large", ramp(move, 0.02, 0.1)))
    found.append(("lr_too_large", ramp(chart.facts.get("overshoot", 0.0), 1.0, 2.5)))
    if any(map(chart.has, ("above_start", "broke", "blew_up"))):
        found.append(("lr_too_large", 0.7))
    return found


def _of_data(chart: Chart, patient: Patient) -> Suspicions:
    """What samples, labels and the held-out loss suggest."""
    facts = chart.facts
    contradicted, rank = facts.get("label_rank") or (0.0, 0.0)
    behind, narrow = facts.get("behind", 0.0), facts.get("narrow", math.inf)
    found = [
        ("wrong_labels", ramp(contradicted, 0.05, 0.2) * ramp(rank, 0.1, 0.35)),
        ("underfitting", ramp(behind, 0.1, 0.4) * ramp(narrow, 24, 6)),
    ]
    if patient.valid and "valid" in patient.given:
        low, high = facts.get("low", math.nan), facts.get("high", math.nan)
        losses = facts.get("losses") or [math.nan]
        late = losses[-max(1, len(losses) // 10) :]
        gap = (high - sum(late) / len(late)) / max(abs(facts.get("trivial") or high), 1e-12)
        found.append(("overfitting", ramp(gap, 0.08, 0.3)))
        found.append(("overfitting", ramp((high - low) / max(abs(low), 1e-12), 0.05, 0.3)))
    tail = facts.get("tail_index")
    if isinstance(tail, float):
        found.append(("heavy_tailed_noise", ramp(tail, 3.0, 2.0)))
    found.append(("not_shuffled", ramp(facts.get("order_ratio", 1.0), 2.0, 5.0)))
    return found


def _of_settings(chart: Chart, patient: Patient) -> Suspicions:
    """What clipping, weight decay and the kinds of layers suggest."""
    facts, own = chart.facts, chart.facts.get("progress", -1.0)
    shrunk = math.log10(max(facts.get("shrunk", 1.0), 1e-12))
    found = [("clipping_too_tight", ramp(shrunk, -0.5, -1.3))]
    decay = patient.optimizer.param_groups[0].get("weight_decay") or 0.0
    if isinstance(decay, float) and own < 0.5:
        found.append(("weight_decay_too_large", ramp(math.log10(max(decay, 1e-12)), -1.3, 0.0)))
    modules = list(patient.model.modules())
    recurrent = any(isinstance(m, nn.RNNBase) for m in modules)
    if own < 0.05 and recurrent and not _logarithm(chart, "time_ratio") > -0.5:
        found.append(("vanishing_gradients", 0.5))
    if own < 0.3 and any(isinstance(m, nn.MultiheadAttention) for m in modules):
        found.append(("no_warmup", 0.6))
    return found


def in_words(keys: Iterable[str]) -> str:
    """Names of causes for a sentence.

    Example:
        >>> in_words(["lr_too_large", "overfitting"])
        'the learning rate is too large; the model overfits'
    """
    return "; ".join(CAUSES[key].name.replace("{through}", "depth or time") for key in keys)
