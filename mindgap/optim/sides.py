"""Which large gradients are noise: the rule of ``AdamW(clip="noise")``.

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
- min{n, 2·R·M} where the gradient is large and the rule is off, and 4·M if it cannot be judged: it
  is the first one, or r = 0. R is the largest ratio of a norm handed on in this way to its median,
  at least 2; it shrinks by 0.97 per large gradient. So a single gradient of any size does little,
  and large ones of one side pass as they are after a few;
- n otherwise.

All thresholds are ratios of norms: gradients times a power of two give the same decisions.

The state lies in the first parameter group: the window ``norms``, the numbers ``evidence`` and the
memory ``sides``, L. ``judge_`` computes with tensors on the parameters' device and does not wait
for it; ``judge_number_`` is the same for the CPU, in Python's numbers; the kernel ``policy`` of
``mindgap.rules.fused.cuda_kernels`` is the same on CUDA.
Parameters may be spread over processes: pieces of DTensors give the entries that the whole tensor
would, and with ZeRO each process remembers its own parameters' part of L.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from mindgap.base.tensors import as_real, is_sharded, local, placed
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
#: A large gradient that is signal is handed on with at most so many times the largest one before.
GROWTH = 2.0
#: The largest factor on a gradient: float32 holds it.
LARGEST_FACTOR = 2.0**100

#: Places in ``evidence``: W; steps since the last judged gradient; the running mean of |r| before
#: its bias correction, and how many gradients were judged; S; how many norms S has seen; R.
_EVIDENCE, _SINCE, _CLARITY, _JUDGED, _SIZE, _SEEN, _RATIO = range(7)
Groups = Sequence[dict[str, Any]]


class Memories(NamedTuple):
    """What the judge remembers, on one device; the first group keeps the same tensors."""

    norms: Tensor  # the window of the last 128 norms
    evidence: Tensor  # seven numbers, see the places above
    sides: Tensor  # L, one entry per entry that is read


def new_numbers(device: Any) -> Tensor:
    """``evidence`` before the first gradient: seven numbers in float64.

    Example:
        >>> new_numbers("cpu")
        tensor([2., inf, 0., 0., 0., 0., 2.], dtype=torch.float64)
    """
    numbers = [FIRST, math.inf, 0.0, 0.0, 0.0, 0.0, LARGE / GROWTH]
    return torch.tensor(numbers, dtype=torch.float64, device=device)


def spacing_and_count(p: Tensor) -> tuple[int, int]:
    """The distance of the entries of a parameter that are read, in real numbers, and how many they
    are: at most 64.

    Example:
        >>> spacing_and_count(torch.zeros(300)), spacing_and_count(torch.zeros(0))
        ((5, 60), (1, 0))
    """
    length = 2 * p.numel() if p.is_complex() else p.numel()
    spacing = max(1, -(-length // ENTRIES))
    return spacing, -(-length // spacing)


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
    return grad.reshape(-1)[:: spacing_and_count(p)[0]]


def _sample_of_piece(p: Any, grad: Any) -> Tensor:
    """The entries of a DTensor's gradient that lie in this process's piece, each at its place among
    the entries of the whole tensor (in the order of its indices), and zeros elsewhere. All zeros
    where a placement is neither ``Shard`` nor ``Replicate``.
    """
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    spacing, count = spacing_and_count(p)
    piece = as_real(local(grad).detach())
    nothing = piece.new_zeros(count)
    if not piece.numel() or any(type(x) not in (Shard, Replicate) for x in p.placements):
        return nothing
    # ``begin`` is the piece's first index in the whole tensor.
    _, offset = compute_local_shape_and_global_offset(p.shape, p.device_mesh, p.placements)
    pair = (2,) if p.is_complex() else ()  # real and imaginary part
    shape, begin = (*p.shape, *pair), (*offset, *(0 for _ in pair))
    # From each entry's place in the whole tensor its index along each axis of the piece, the last
    # axis first, and whether it lies in the piece.
    flat = torch.arange(count, device=piece.device) * spacing
    inside = torch.ones_like(flat, dtype=torch.bool)
    indices = []
    for size, first, length in zip(shape[::-1], begin[::-1], piece.shape[::-1]):
        index = flat % size - first
        flat = flat // size
        inside &= (index >= 0) & (index < length)
        indices.append(index.clamp(0, length - 1))
    # Entries elsewhere are read at a wrong place and dropped: picking those inside would wait.
    return torch.where(inside, piece[tuple(reversed(indices))], nothing)


def _sum_over_pieces(values: Tensor, mesh: Any, placements: Any) -> Tensor:
    """The sum of what the processes of a mesh have for pieces with these placements; replicas count
    once. A collective call.
    """
    from torch.distributed.tensor import DTensor, Partial, Replicate

    parts = [Replicate() if placement.is_replicate() else Partial() for placement in placements]
    return DTensor.from_local(values, mesh, parts, run_check=False).full_tensor()


def entries_of(groups: Groups, device: torch.device) -> Tensor:
    """The entries of all gradients that are read, in float64 and in the order of the parameters;
    zeros for a parameter without a gradient. A collective call where there are DTensors.

    Example:
        >>> p = torch.zeros(2, requires_grad=True)
        >>> p.grad = torch.tensor([3.0, 4.0])
        >>> entries_of([{"params": [p, torch.zeros(1)]}], torch.device("cpu"))
        tensor([3., 4., 0.], dtype=torch.float64)
    """
    pieces: list[Tensor] = []
    # Places of DTensors in ``pieces``, by mesh and placements: one collective call for each.
    places_of: dict[Any, list[int]] = defaultdict(list)
    for group in groups:
        for p in group["params"]:
            if p.grad is None:
                pieces.append(torch.zeros(spacing_and_count(p)[1], device=device))
            elif is_sharded(p):
                places_of[p.device_mesh, p.placements].append(len(pieces))
                pieces.append(_sample_of_piece(p, placed(p.grad, p)))
            else:
                pieces.append(sample(p, p.grad))
    pieces = [piece.to(device, torch.float64) for piece in pieces]
    for (mesh, placements), places in places_of.items():
        joined = _sum_over_pieces(torch.cat([pieces[i] for i in places]), mesh, placements)
        for i, piece in zip(places, joined.split([len(pieces[i]) for i in places])):
            pieces[i] = piece
    return torch.cat(pieces) if pieces else torch.zeros(0, dtype=torch.float64, device=device)


def _products(direction: Tensor, sides: Tensor, everyone: Any) -> Tensor:
    """The scalar products ⟨d, d⟩, ⟨d, L⟩ and ⟨L, L⟩, as one tensor of three.

    Args:
        direction: d, this process's entries of the gradients.
        sides: L, the remembered direction, at the same entries.
        everyone: the processes over which the parameters are spread (ZeRO), for a collective call;
            None for this one.
    """
    products = torch.stack([direction.dot(direction), direction.dot(sides), sides.dot(sides)])
    if everyone is not None:
        torch.distributed.all_reduce(products, group=everyone)
    return products


def _kept(groups: Groups, device: torch.device) -> tuple[Tensor, Tensor]:
    """The window of norms and the numbers (``evidence``) that the first group keeps, on the device;
    made where they lack. L is made too, though not returned: a distributed checkpoint is read into
    what is there.
    """
    head = groups[0]
    if "sides" not in head:
        _kept_sides(groups, _entry_count(groups), device)
    for name, new in (("norms", new_window), ("evidence", new_numbers)):
        kept = head.get(name)
        if kept is None or kept.device != device:
            head[name] = new(device) if kept is None else kept.to(device)
    return head["norms"], head["evidence"]


def _kept_sides(groups: Groups, length: int, device: torch.device) -> Tensor:
    """L as the first group keeps it, on the device; zeros where it lacks, and for parameters that
    were added since.
    """
    sides = groups[0].get("sides")
    if sides is None or sides.device != device or len(sides) != length:
        new_sides = torch.zeros(length, dtype=torch.float64, device=device)
        if sides is not None:
            common_length = min(len(sides), length)
            new_sides[:common_length] = sides[:common_length].to(device)
        sides = groups[0]["sides"] = new_sides
    return sides


def memories_of(groups: Groups, device: torch.device) -> Memories:
    """What the first group keeps for the judge, on the device; made where it lacks."""
    return Memories(*_kept(groups, device), _kept_sides(groups, _entry_count(groups), device))


def _entry_count(groups: Groups) -> int:
    """How many entries of all parameters are read."""
    return sum(spacing_and_count(p)[1] for group in groups for p in group["params"])


def _weight_in_size(groups: Groups, seen: Any) -> Any:
    """Weight of the newest squared norm in S², which is a running mean with Adam's β₂, after
    ``seen`` norms.
    """
    beta2 = float(plain_number(groups[0]["betas"][1]))
    return (1.0 - beta2) / (1.0 - beta2**seen)


def judge_number_(groups: Groups, norm: float, everyone: Any = None) -> tuple[float, bool]:
    """Judge the gradients of all groups, which lie in ``p.grad``, on the CPU. The state in the
    first group changes in place.

    Args:
        groups: the optimizer's parameter groups; ``betas[1]`` of the first is the memory of S.
        norm: of all gradients, over all processes.
        everyone: the processes over which the parameters are spread (ZeRO); None for this one.

    Returns:
        The factor on the gradients, and whether the rule is on.

    Example:
        >>> p = torch.zeros(2, requires_grad=True)
        >>> p.grad = torch.ones(2)
        >>> judge_number_([{"params": [p], "betas": (0.9, 0.999)}], 2**0.5)
        (1.0, False)
    """
    cpu = torch.device("cpu")
    window, numbers = (kept.numpy() for kept in _kept(groups, cpu))  # the group's own memory
    # W; steps since the last judged gradient; the mean of |r| before its bias correction, and how
    # many were judged; S, and how many norms it has seen; R.
    evidence, since, clarity, judged, size, seen, ratio = numbers.tolist()
    finite = math.isfinite(norm)
    known = np.sort(window[window > 0.0])  # zeros stand for norms not seen
    window[:-1] = window[1:]
    window[-1] = norm if finite and norm > 0.0 else 0.0
    median = float(known[(len(known) - 1) // 2]) if len(known) else math.inf
    since += 1.0
    large = finite and norm > LARGE * median and len(known) >= KNOWN
    handed_on = norm  # the norm handed on where the rule is off
    if large:
        direction = entries_of(groups, cpu) / norm
        sides = _kept_sides(groups, len(direction), cpu)
        square, product, memory_square = _products(direction, sides, everyone).tolist()
        lengths = math.sqrt(square) * math.sqrt(memory_square)
        r = product / lengths if lengths else 0.0  # the cosine of the direction and L
        sides.mul_(MEMORY)
        if square:
            sides.add_(direction, alpha=1.0 / math.sqrt(square))
        if r:
            judged += 1.0
            clarity = MEMORY * clarity + (1.0 - MEMORY) * abs(r)
            usual = clarity / (1.0 - MEMORY**judged)  # the mean of |r|
            gain = min(abs(r) / usual, CLEAREST) * (AGREES if r > 0 else DIFFERS)
            evidence, since = min(max(evidence + gain, LEAST), MOST), 0.0
        handed_on = min(norm, GROWTH * ratio * median) if r else LARGE * median
    on = since <= STAY and evidence <= NOISE
    factor = _factor_when_on(known, size, norm) if on else 1.0
    if large and not on:
        factor = handed_on / norm
        ratio = max(MEMORY * ratio, handed_on / median, LARGE / GROWTH)
    if finite:
        seen += 1.0
    if finite and not on:
        weight = _weight_in_size(groups, seen)
        size = math.hypot(math.sqrt(1.0 - weight) * size, math.sqrt(weight) * handed_on)
    numbers[:] = (evidence, since, clarity, judged, size, seen, ratio)
    return factor, on


def _factor_when_on(known: np.ndarray, size: float, norm: float) -> float:
    """The factor on the gradient while the rule is on: S·min{1, q/n}²/n with the norm n, S in
    ``size``, and q the quantile of the known norms; 1 where none is known or n is 0.

    Args:
        known: the norms before this one that are not 0, in ascending order.
    """
    if not len(known) or norm == 0.0:
        return 1.0
    # Between two order statistics the quantile is interpolated, as NumPy's.
    place = QUANTILE * (len(known) - 1)
    below = int(place)
    low, high = known[below].item(), known[min(below + 1, len(known) - 1)].item()
    quantile = low + (place - below) * (high - low)
    share = min(quantile / norm, 1.0)
    return min(size / norm * share * share, LARGEST_FACTOR)


def judge_(groups: Groups, norm: Tensor, everyone: Any = None) -> tuple[Tensor, Tensor]:
    """``judge_number_`` on any device without waiting for it: the norm and what it returns are
    0-dim tensors, in float64 and bool.

    Example:
        >>> p = torch.zeros(2, requires_grad=True)
        >>> p.grad = torch.ones(2)
        >>> judge_([{"params": [p], "betas": (0.9, 0.999)}], torch.tensor(2.0).sqrt())
        (tensor(1., dtype=torch.float64), tensor(False))
    """
    norm = norm.double()
    window, numbers = _kept(groups, norm.device)
    # W; steps since the last judged gradient; the mean of |r| before its bias correction, and how
    # many were judged; S, and how many norms it has seen; R. Nothing branches on a value, which
    # would wait for the device: both ways are computed and ``torch.where`` picks one.
    evidence, since, clarity, judged, size, seen, ratio = numbers.clone().unbind()
    one, zero = torch.ones_like(norm), torch.zeros_like(norm)
    known = (window > 0).sum()
    # In ascending order the known norms stand from ``first`` on, behind zeros for those not seen.
    ordered, first = window.sort().values, window.shape[-1] - known
    push_(window, norm)
    median = _entry(ordered, first + (known - 1) // 2)
    finite = torch.isfinite(norm)
    large = finite & (norm > LARGE * median) & (known >= KNOWN)
    direction = entries_of(groups, norm.device) / torch.where(large, norm, one)
    sides = _kept_sides(groups, len(direction), norm.device)
    square, product, memory_square = _products(direction, sides, everyone)
    lengths = square.sqrt() * memory_square.sqrt()
    # The cosine of the direction and L.
    r = torch.where(lengths > 0, product / lengths, zero)
    share_of_direction = torch.where(square > 0, square.rsqrt(), zero)
    sides.copy_(torch.where(large, MEMORY * sides + share_of_direction * direction, sides))
    is_judged = large & (r != 0)
    judged = judged + is_judged
    clarity = torch.where(is_judged, MEMORY * clarity + (1.0 - MEMORY) * r.abs(), clarity)
    usual = clarity / torch.where(judged > 0, 1.0 - MEMORY**judged, one)
    gain = (r.abs() / usual).clamp(max=CLEAREST) * torch.where(r > 0, AGREES * one, DIFFERS * one)
    evidence = torch.where(is_judged, (evidence + gain).clamp(LEAST, MOST), evidence)
    since = torch.where(is_judged, torch.zeros_like(since), since + 1.0)
    on = (since <= STAY) & (evidence <= NOISE)
    most = torch.where(is_judged, GROWTH * ratio, LARGE * one) * median
    handed_on = torch.where(large & ~on, torch.minimum(norm, most), norm)
    least_ratio = (MEMORY * ratio).clamp(min=LARGE / GROWTH)
    ratio = torch.where(large & ~on, torch.maximum(least_ratio, handed_on / median), ratio)
    # The factor where the rule is on; 1 for a gradient of zero.
    place = QUANTILE * (known - 1).clamp(min=0).double()
    below = place.floor()
    low = _entry(ordered, first + below.long())
    high = _entry(ordered, first + torch.minimum(below.long() + 1, known - 1))
    quantile = low + (place - below) * (high - low)
    share = (quantile / norm).clamp(max=1.0)
    factor_on = (size / norm * share * share).clamp(max=LARGEST_FACTOR)
    factor_on = torch.where((norm == 0) | (known == 0), one, factor_on)
    factor = torch.where(on, factor_on, torch.where(large, handed_on / norm, one))
    seen = seen + finite
    weight = _weight_in_size(groups, seen.clamp(min=1.0))
    followed = torch.hypot((1.0 - weight).sqrt() * size, weight.sqrt() * handed_on)
    size = torch.where(finite & ~on, followed, size)
    numbers.copy_(torch.stack([evidence, since, clarity, judged, size, seen, ratio]))
    return factor, on


def _entry(ordered: Tensor, place: Tensor) -> Tensor:
    """One entry, 0-dim, of a vector in ascending order; the place, a 0-dim tensor, is held inside
    it.
    """
    return ordered.gather(-1, place.clamp(0, ordered.shape[-1] - 1).reshape(1)).reshape(())
