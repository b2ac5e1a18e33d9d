"""Which large gradients are noise: the rule of ``clip="noise"``.

Large gradients that point to one side are signal; those that point to both sides are noise. A
gradient is *large* if its norm is above four medians of the 128 norms before it, once ten are
known. Its direction a is read at up to 64 entries per tensor and has length 1. L
remembers the directions of large gradients, L ← 0.97·L + a, and r is the cosine of a and L.

Evidence W for signal begins at 2 and stays in [−3, 6]. Each large gradient with r ≠ 0 is *judged*:
it adds min{|r|/r̄, 3}·ℓ to W, where r̄ is the running mean (0.97) of |r|, and ℓ is the logarithm of
the likelihood ratio of "19 of 20 agree with L" to "one of two does". The rule is *on* while
W ≤ 2.5, for 256 steps after each judged gradient.

With the norm n, and the median M and the 0.25 quantile q of the norms before it, the gradient
handed on has the norm

- S·min{1, q/n}² where the rule is on. S is the root of the running mean of the squared norms handed
  on, in which a step counts as S where the rule is on;
- 4·M where a large gradient cannot be judged and the rule is off: it is the first one, or r = 0;
- n otherwise.

All thresholds are ratios of norms: gradients times a power of two give the same decisions.

The state lies in the first parameter group: the window ``norms``, the numbers ``evidence`` and the
memory ``sides``, L. ``judge_`` computes with tensors on the parameters' device and never waits for
it; ``judge_number_`` is the same for the CPU, in Python's numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from mindgap.base.check import fail
from mindgap.base.tensors import as_real, is_sharded
from mindgap.optim.norms import new_window, push_
from mindgap.optim.settings import plain_number

#: What is large, in medians, and how many norms must be known before.
LARGE, KNOWN = 4.0, 10
#: Entries per tensor that tell the direction.
ENTRIES = 64
#: Weight of the past in L and in the mean of |r|.
MEMORY = 0.97
#: What a judged gradient that agrees with L, or does not, adds to the evidence at |r| = r̄.
AGREES, DIFFERS = math.log(0.95 / 0.5), math.log(0.05 / 0.5)
#: The largest |r|/r̄ that counts.
CLEAREST = 3.0
#: Evidence: where it begins, its range, and the largest with which the rule is on.
FIRST, LEAST, MOST, NOISE = 2.0, -3.0, 6.0, 2.5
#: Steps for which a judged gradient keeps the rule on.
STAY = 256
#: The quantile of the norms above which a gradient counts less.
QUANTILE = 0.25
#: The largest factor on a gradient: float32 holds it.
LARGEST_FACTOR = 2.0**100

#: Places in ``evidence``: W; steps since the last judged gradient; the running mean of |r| before
#: its bias correction, and how many gradients were judged; S; how many norms S has seen.
_EVIDENCE, _SINCE, _CLARITY, _JUDGED, _SIZE, _SEEN = range(6)
Groups = Sequence[dict[str, Any]]


def new_numbers(device: Any) -> Tensor:
    """``evidence`` before the first gradient: six numbers in float64.

    Example:
        >>> new_numbers("cpu")
        tensor([2., inf, 0., 0., 0., 0.], dtype=torch.float64)
    """
    return torch.tensor([FIRST, math.inf, 0, 0, 0, 0], dtype=torch.float64, device=device)


def _spacing(p: Tensor) -> int:
    """The distance of the entries of a parameter that are read, in real numbers."""
    return max(1, -(-_length(p) // ENTRIES))


def _length(p: Tensor) -> int:
    """How many real numbers a parameter has."""
    return 2 * p.numel() if p.is_complex() else p.numel()


def sample(p: Tensor, grad: Tensor) -> Tensor:
    """At most 64 entries of a parameter's gradient, evenly spaced in the order in which the
    parameter lies in memory, so that a kernel can read the same ones.

    Example:
        >>> p = torch.zeros(2, 3)
        >>> sample(p, torch.arange(6.0).reshape(2, 3))
        tensor([0., 1., 2., 3., 4., 5.])
        >>> (
        ...     sample(p.t(), torch.arange(6.0).reshape(3, 2)),
        ...     len(sample(torch.ones(90), torch.ones(90))),
        ... )
        (tensor([0., 2., 4., 1., 3., 5.]), 45)
    """
    p, grad = as_real(p), as_real(grad.detach())
    if not p.is_contiguous():
        order = sorted(range(p.dim()), key=lambda d: p.stride(d), reverse=True)
        grad = grad.permute(order)
    return grad.reshape(-1)[:: _spacing(p)]


def sides_of(groups: Groups, device: torch.device) -> Tensor:
    """The direction of all gradients at the entries that are read, of length 1 (or 0), in float64.
    Parameters without a gradient have zeros.
    """
    pieces = []
    for group in groups:
        for p in group["params"]:
            if is_sharded(p):
                fail("clip", "must not be 'noise' where parameters are DTensors", "noise")
            if p.grad is None:
                count = len(range(0, _length(p), _spacing(p)))
                pieces.append(torch.zeros(count, device=device))
            else:
                pieces.append(sample(p, p.grad).to(device))
    entries = torch.cat(pieces).double()
    # Divided by the largest entry first: no square overflows or vanishes.
    peak = entries.abs().amax() if len(entries) else entries.sum()
    entries = entries / torch.where(peak > 0, peak, torch.ones_like(peak))
    length = torch.linalg.vector_norm(entries)
    return entries / torch.where(length > 0, length, torch.ones_like(length))


def _fitting(memory: Tensor | None, direction: Tensor) -> Tensor:
    """L in the length of the direction: longer by zeros where groups were added since."""
    if memory is None:
        return torch.zeros_like(direction)
    memory = memory.to(direction.device)
    if len(memory) < len(direction):
        memory = torch.cat([memory, memory.new_zeros(len(direction) - len(memory))])
    return memory[: len(direction)]


def _memories(groups: Groups, device: torch.device) -> tuple[Tensor, Tensor]:
    """The window of norms and the numbers of the first group, on the device; made where they
    lack.
    """
    head = groups[0]
    for name, new in (("norms", new_window), ("evidence", new_numbers)):
        kept = head.get(name)
        if kept is None or kept.device != device:
            head[name] = new(device) if kept is None else kept.to(device)
    return head["norms"], head["evidence"]


def judge_number_(groups: Groups, norm: float) -> tuple[float, bool]:
    """Judge the gradients of all groups, which lie in ``p.grad``, on the CPU. The state in the
    first group changes in place.

    Args:
        groups: the optimizer's parameter groups; ``betas[1]`` of the first is the memory of S.
        norm: of all gradients.

    Returns:
        The factor on the gradients, and whether the rule is on.

    Example:
        >>> p = torch.zeros(2, requires_grad=True)
        >>> p.grad = torch.ones(2)
        >>> judge_number_([{"params": [p], "betas": (0.9, 0.999)}], 2**0.5)
        (1.0, False)
    """
    head, cpu = groups[0], torch.device("cpu")
    window_kept, numbers_kept = _memories(groups, cpu)
    window, numbers = window_kept.numpy(), numbers_kept.numpy()
    evidence, since, clarity, judged, size, seen = numbers.tolist()
    finite = math.isfinite(norm)
    known = sorted(value for value in window.tolist() if value > 0.0)
    window[:-1] = window[1:]
    window[-1] = norm if finite and norm > 0.0 else 0.0
    limit = LARGE * known[(len(known) - 1) // 2] if known else math.inf
    since += 1.0
    unjudged = False
    if finite and norm > limit and len(known) >= KNOWN:
        direction = sides_of(groups, cpu)
        memory = head["sides"] = _fitting(head.get("sides"), direction)
        length = float(torch.linalg.vector_norm(memory))
        r = float((direction * memory).sum()) / length if length else 0.0
        memory.mul_(MEMORY).add_(direction)
        if r:
            judged += 1.0
            clarity = MEMORY * clarity + (1.0 - MEMORY) * abs(r)
            usual = clarity / (1.0 - MEMORY**judged)
            found = min(abs(r) / usual, CLEAREST) * (AGREES if r > 0 else DIFFERS)
            evidence, since = min(max(evidence + found, LEAST), MOST), 0.0
        unjudged = not r
    on = since <= STAY and evidence <= NOISE
    factor, handed_on = 1.0, norm
    if on:
        factor = _factor_when_on(known, size, norm)
    elif unjudged:
        factor, handed_on = limit / norm, limit
    if finite:
        seen += 1.0
    if finite and not on:
        beta2 = float(plain_number(head["betas"][1]))
        weight = (1.0 - beta2) / (1.0 - beta2**seen)
        size = math.hypot(math.sqrt(1.0 - weight) * size, math.sqrt(weight) * handed_on)
    numbers[:] = (evidence, since, clarity, judged, size, seen)
    return factor, on


def _factor_when_on(known: list[float], size: float, norm: float) -> float:
    """S·min{1, q/n}²/n, with q the quantile of the known norms in ascending order."""
    if not known or norm == 0.0:
        return 1.0
    place = QUANTILE * (len(known) - 1)
    below = int(place)
    above = min(below + 1, len(known) - 1)
    quantile = known[below] + (place - below) * (known[above] - known[below])
    share = min(quantile / norm, 1.0)
    return min(size / norm * share * share, LARGEST_FACTOR)


def judge_(groups: Groups, norm: Tensor) -> tuple[Tensor, Tensor]:
    """``judge_number_`` on any device without waiting for it: the norm and what it returns are
    0-dim tensors, in float64 and bool.

    Example:
        >>> p = torch.zeros(2, requires_grad=True)
        >>> p.grad = torch.ones(2)
        >>> judge_([{"params": [p], "betas": (0.9, 0.999)}], torch.tensor(2.0).sqrt())
        (tensor(1., dtype=torch.float64), tensor(False))
    """
    head, norm = groups[0], norm.double()
    window, numbers = _memories(groups, norm.device)
    evidence, since, clarity, judged, size, seen = numbers.clone().unbind()
    one = torch.ones_like(norm)
    known = (window > 0).sum()
    ordered, first = window.sort().values, window.shape[-1] - known
    push_(window, norm)
    limit = LARGE * _entry(ordered, first + (known - 1) // 2)
    finite = torch.isfinite(norm)
    large = finite & (norm > limit) & (known >= KNOWN)
    direction = sides_of(groups, norm.device)
    memory = head["sides"] = _fitting(head.get("sides"), direction)
    length = torch.linalg.vector_norm(memory)
    r = torch.where(length > 0, (direction * memory).sum() / length, torch.zeros_like(norm))
    remembered = MEMORY * memory + direction
    memory.copy_(torch.where(large, remembered, memory))
    is_judged = large & (r != 0)
    judged = judged + is_judged
    clarity = torch.where(is_judged, MEMORY * clarity + (1.0 - MEMORY) * r.abs(), clarity)
    usual = clarity / torch.where(judged > 0, 1.0 - MEMORY**judged, one)
    found = (r.abs() / usual).clamp(max=CLEAREST) * torch.where(r > 0, AGREES * one, DIFFERS * one)
    evidence = torch.where(is_judged, (evidence + found).clamp(LEAST, MOST), evidence)
    since = torch.where(is_judged, torch.zeros_like(since), since + 1.0)
    on = (since <= STAY) & (evidence <= NOISE)
    unjudged = large & ~is_judged & ~on
    # The factor where the rule is on; 1 for a gradient of zero.
    place = QUANTILE * (known - 1).clamp(min=0).double()
    below = place.floor()
    low = _entry(ordered, first + below.long())
    high = _entry(ordered, first + torch.minimum(below.long() + 1, known - 1))
    quantile = low + (place - below) * (high - low)
    share = (quantile / norm).clamp(max=1.0)
    factor_on = (size / norm * share * share).clamp(max=LARGEST_FACTOR)
    factor_on = torch.where((norm == 0) | (known == 0), one, factor_on)
    factor = torch.where(on, factor_on, torch.where(unjudged, limit / norm, one))
    seen = seen + finite
    beta2 = float(plain_number(head["betas"][1]))
    weight = (1.0 - beta2) / (1.0 - beta2 ** seen.clamp(min=1.0))
    handed_on = torch.where(unjudged, limit, norm)
    followed = torch.hypot((1.0 - weight).sqrt() * size, weight.sqrt() * handed_on)
    size = torch.where(finite & ~on, followed, size)
    numbers.copy_(torch.stack([evidence, since, clarity, judged, size, seen]))
    return factor, on


def _entry(ordered: Tensor, place: Tensor) -> Tensor:
    """One entry, 0-dim, of a vector in ascending order; the place is held inside it."""
    return ordered.gather(-1, place.clamp(0, ordered.shape[-1] - 1).reshape(1)).reshape(())
