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
    for key, score in _weak(chart, patient).items():
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


def _weak(chart: Chart, patient: Patient) -> dict[str, float]:
    """Log-odds from readings on this side of their thresholds: from −3.2 to −1.2."""
    facts = chart.facts
    found: dict[str, float] = {}
    own = facts.get("progress", -1.0)

    def suspect(key: str, strength: float) -> None:
        if strength > 0.1 and math.isfinite(strength):
            found[key] = max(found.get(key, -math.inf), -3.2 + 2 * strength)

    def logarithm(name: str) -> float:
        value = facts.get(name)
        return math.log10(max(value, 1e-30)) if isinstance(value, float) and value >= 0 else 0.0

    vanished = max(
        ramp(logarithm("time_ratio"), -0.7, -2.5), ramp(logarithm("depth_ratio"), -0.5, -2)
    )
    suspect("vanishing_gradients", vanished)
    suspect("saturated_units", ramp(facts.get("saturated", 0.0), 0.15, 0.6))
    suspect("dead_units", ramp(facts.get("dead", 0.0), 0.3, 0.8))
    grown = max(ramp(logarithm("time_ratio"), 0.5, 1.5), ramp(logarithm("growth"), 0.6, 1.5))
    suspect("exploding_gradients", grown)
    sizes = facts.get("weight_sizes") or {}
    if sizes:
        suspect(
            "init_too_large",
            ramp(math.log(max(*sizes.values(), 1e-12)), math.log(1.5), math.log(4)),
        )
        typical = max(middle(sizes.values()), 1e-12)
        suspect("init_too_small", ramp(math.log(typical), math.log(0.3), math.log(0.1)))
    if "optimizer" in patient.given:
        move = facts.get("move")
        if isinstance(move, float):
            suspect("lr_too_small", 0.8 * ramp(math.log10(max(move, 1e-12)), -2.5, -3.5))
            suspect("lr_too_large", ramp(move, 0.02, 0.1))
        suspect("lr_too_large", ramp(facts.get("overshoot", 0.0), 1.0, 2.5))
        if chart.has("above_start") or chart.has("broke") or chart.has("blew_up"):
            suspect("lr_too_large", 0.7)
    share, place = facts.get("label_rank") or (0.0, 0.0)
    suspect("wrong_labels", ramp(share, 0.05, 0.2) * ramp(place, 0.1, 0.35))
    narrow = facts.get("narrow", math.inf)
    suspect("underfitting", ramp(facts.get("behind", 0.0), 0.1, 0.4) * ramp(narrow, 24, 6))
    if patient.valid and "valid" in patient.given:
        low, high = facts.get("low", math.nan), facts.get("high", math.nan)
        losses = facts.get("losses") or [math.nan]
        late = losses[-max(1, len(losses) // 10) :]
        gap = (high - sum(late) / len(late)) / max(abs(facts.get("trivial") or high), 1e-12)
        suspect("overfitting", ramp(gap, 0.08, 0.3) if gap == gap else 0.0)
        suspect("overfitting", ramp((high - low) / max(abs(low), 1e-12), 0.05, 0.3))
    tail = facts.get("tail_index")
    if isinstance(tail, float):
        suspect("heavy_tailed_noise", ramp(tail, 3.0, 2.0))
    suspect("not_shuffled", ramp(facts.get("order_ratio", 1.0), 2.0, 5.0))
    suspect(
        "clipping_too_tight", ramp(math.log10(max(facts.get("shrunk", 1.0), 1e-12)), -0.5, -1.3)
    )
    decay = patient.optimizer.param_groups[0].get("weight_decay") or 0.0
    if isinstance(decay, float) and own < 0.5:
        suspect("weight_decay_too_large", ramp(math.log10(max(decay, 1e-12)), -1.3, 0.0))
    recurrent = any(isinstance(m, nn.RNNBase) for m in patient.model.modules())
    if own < 0.05 and recurrent and not logarithm("time_ratio") > -0.5:
        suspect("vanishing_gradients", 0.5)
    attention = any(isinstance(m, nn.MultiheadAttention) for m in patient.model.modules())
    if "no_warmup" in _possible(chart, patient) and attention and own < 0.3:
        suspect("no_warmup", 0.6)
    return {key: score for key, score in found.items() if key in _possible(chart, patient)}


def in_words(keys: Iterable[str]) -> str:
    """Names of causes for a sentence.

    Example:
        >>> in_words(["lr_too_large", "overfitting"])
        'the learning rate is too large; the model overfits'
    """
    return "; ".join(CAUSES[key].name.replace("{through}", "depth or time") for key in keys)
