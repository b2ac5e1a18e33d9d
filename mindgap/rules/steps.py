"""Update maps on lists of tensors: clipping, averages, normalised lengths, and the step itself.

Functions write to nothing but what a name with a trailing underscore says.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mindgap.base.check import fail, number, positive
from mindgap.base.tensors import blocks, local, robust_norm, widen

# Clipping: of a whole vector (GClip), of each coordinate (CClip), by an estimated moment (ACClip).


def clip_coefficient(norm: Tensor, tau: float | Tensor) -> Tensor:
    """min{τ/‖m‖, 1}, the factor of global clipping; 1 at ‖m‖ = 0 (acclip, (GClip); thesis, (3.5)
    with γ = τ).

    Example:
        >>> clip_coefficient(torch.tensor([4.0, 0.5, 0.0]), 1.0)
        tensor([0.2500, 1.0000, 1.0000])
    """
    return (tau / norm).clamp(max=1.0)


def clip_coordinates(
    directions: Sequence[Tensor], tau: float | Tensor | Sequence[Tensor]
) -> list[Tensor]:
    """min{τ/|m|, 1}·m in every coordinate, which is m held inside [−τ, τ] (acclip, (CClip)).

    Args:
        tau: τ: one number, a 0-dim tensor, or a tensor for each direction that broadcasts to it.

    Example:
        >>> clip_coordinates([torch.tensor([3.0, -0.5])], 1.0)
        [tensor([ 1.0000, -0.5000])]
        >>> clip_coordinates([torch.tensor([3.0, -0.5])], [torch.tensor([2.0, 0.1])])
        [tensor([ 2.0000, -0.1000])]

    Differs from the paper:
        An infinite coordinate becomes ±τ (the limit), where τ/∞·∞ would be undefined. NaN stays
        NaN.
    """
    if isinstance(tau, (int, float)):
        clamped = torch._foreach_clamp_max(list(directions), tau)
        torch._foreach_clamp_min_(clamped, -tau)
        return list(clamped)
    taus = [tau] * len(directions) if isinstance(tau, Tensor) else list(tau)
    return [
        m.clamp(-t, t)
        for m, t in zip(directions, (t.to(m) for t, m in zip(taus, directions)), strict=True)
    ]


def clip_adaptive(
    momenta: Sequence[Tensor],
    moments: Sequence[Tensor],
    alpha: float,
    eps: float,
    *,
    normalized: bool = False,
) -> tuple[list[Tensor], list[Tensor]]:
    """min{τ/(|m|+ε), 1}·m with τ = (τ^α)^(1/α), in every coordinate (acclip, (ACClip); thesis, Alg.
    1, l. 5). ``clip_second_moment`` is the same with another τ, for α = 2.

    Args:
        momenta: m, the averages of gradients.
        moments: τ^α, the averages of |g|^α, of the same shapes.
        normalized: divide the result by τ+ε too (the step of section 3.1), so that it does not
            scale with m.

    Returns:
        The clipped directions, and the factors min{τ/(|m|+ε), 1}.

    Example:
        >>> clip_adaptive([torch.tensor([4.0, 1.0])], [torch.tensor([2.0, 2.0])], 1.0, 0.0)[0]
        [tensor([2., 1.])]
    """
    if alpha == 1.0:
        tau: Sequence[Tensor] = moments
    elif alpha == 2.0:
        tau = torch._foreach_sqrt(list(moments))
    else:
        tau = torch._foreach_pow(list(moments), 1.0 / alpha)
    factors = torch._foreach_abs(list(momenta))
    torch._foreach_add_(factors, eps)
    # 0/0 (no gradient yet seen, ε = 0) would be NaN where the direction is plainly 0: its factor is
    # set to 1.
    quotients = list(torch._foreach_div(list(tau), factors))
    if eps == 0.0:
        quotients = [torch.where(f == 0, torch.ones_like(q), q) for q, f in zip(quotients, factors)]
    del factors  # as large as all parameters
    torch._foreach_clamp_max_(quotients, 1.0)
    clipped = list(torch._foreach_mul(list(momenta), quotients))
    if normalized:
        clipped = _divide(clipped, list(torch._foreach_add(list(tau), eps)), eps)
    return clipped, quotients


def clip_second_moment(
    momenta: Sequence[Tensor], moments: Sequence[Tensor], beta2: float, eps: float
) -> tuple[list[Tensor], list[Tensor]]:
    """min{τ/|m|, 1}·m/d with d = ε + √(β₂v) and τ = d/√(1−β₂), in every coordinate: m/d held inside
    ±1/√(1−β₂).

    Args:
        momenta: m, the averages of gradients.
        moments: v, the averages of squared gradients, of the same shapes.

    Returns:
        The directions (section 3.1 has twice that as its step), and m/d before it was held.

    Example:
        >>> clip_second_moment([torch.tensor([4.0, 0.5])], [torch.tensor([1.0, 1.0])], 0.75, 0.0)[0]
        [tensor([2.0000, 0.5774])]

    Source: acclip, 3.1; thesis, 7.2.1.
    """
    scales = torch._foreach_mul(list(moments), beta2)
    torch._foreach_sqrt_(scales)
    torch._foreach_add_(scales, eps)
    quotients = _divide(list(momenta), list(scales), eps)
    return clip_coordinates(quotients, (1.0 - beta2) ** -0.5), quotients


def _divide(values: list[Tensor], scales: list[Tensor], eps: float) -> list[Tensor]:
    """Quotients, 0 for 0/0 (which can occur only for ε = 0)."""
    if eps == 0.0:
        return [torch.where(v == 0, v, v / s) for v, s in zip(values, scales)]
    return list(torch._foreach_div(values, scales))


# Exponential moving averages of gradients and of their powers, in place.


def average_(
    memory: Sequence[Tensor], gradients: Sequence[Tensor], beta: float, sign: float = 1.0
) -> None:
    """m ← β·m + (1−β)·s·g in place, with m ``memory`` and the sign s = ±1 (acclip, Alg. 1, l. 3;
    thesis, Alg. 1, l. 3 and Alg. 3, l. 7).

    Example:
        >>> m = [torch.tensor([1.0])]
        >>> average_(m, [torch.tensor([3.0])], 0.5)
        >>> m
        [tensor([2.])]
    """
    torch._foreach_mul_(list(memory), beta)
    torch._foreach_add_(list(memory), [widen(g) for g in gradients], alpha=sign * (1.0 - beta))


def average_power_(
    memory: Sequence[Tensor], gradients: Sequence[Tensor], beta: float, alpha: float
) -> None:
    """τ^α ← β·τ^α + (1−β)·|g|^α in place, with τ^α ``memory`` (thesis, Alg. 1, l. 4; acclip,
    (ACClip)).

    Example:
        >>> v = [torch.tensor([1.0])]
        >>> average_power_(v, [torch.tensor([-3.0])], 0.5, 2.0)
        >>> v
        [tensor([5.])]
    """
    torch._foreach_mul_(list(memory), beta)
    powers = torch._foreach_abs([widen(g) for g in gradients])
    if alpha != 1.0:
        torch._foreach_pow_(powers, alpha)
        # A finite gradient whose power overflows must not make the moment infinite for ever.
        torch._foreach_clamp_max_(powers, torch.finfo(powers[0].dtype).max)
    torch._foreach_add_(list(memory), powers, alpha=1.0 - beta)


def follow_median_(
    medians: Sequence[Tensor], values: Sequence[Tensor], step: float | Tensor
) -> None:
    """Move each running median of |value| by half a step towards |value|, in logarithms and in
    place; zeros move nothing.

    The first value other than zero becomes the median. Where f is the density of log|value| at its
    median, the estimate's variance is step/(8·f) (stochastic approximation with a constant step, to
    first order).

    Args:
        medians: running medians, 0 where none is known yet.
        values: of the same shapes.
        step: in logarithms, a number or a 0-dim tensor.

    Example:
        >>> medians = [torch.tensor([1.0, 1.0, 0.0, 2.0])]
        >>> follow_median_(medians, [torch.tensor([9.0, -0.1, -5.0, 0.0])], 0.2)
        >>> [round(float(m), 3) for m in medians[0]]
        [1.105, 0.905, 5.0, 2.0]
    """
    half = step / 2.0
    raise_by: Any = half.exp() if isinstance(half, Tensor) else math.exp(half)
    lower_by: Any = (-half).exp() if isinstance(half, Tensor) else math.exp(-half)
    for median, value in zip(medians, values):
        size = value.abs()
        if isinstance(step, Tensor):
            raise_by, lower_by = raise_by.to(median), lower_by.to(median)
        lowered = torch.where(size < median, median * lower_by, median)
        followed = torch.where(size > median, median * raise_by, lowered)
        followed = torch.where(median == 0, size, followed)
        median.copy_(torch.where(size == 0, median, followed))


def clip_at_means_(
    gradients: Sequence[Tensor], means: Sequence[Tensor], factor: float, rate: float | Tensor
) -> list[Tensor]:
    """min{c·τ/|g|, 1}·g in every coordinate, with τ the running mean of |g| over the steps with
    g ≠ 0.

    τ is the mean before this gradient. Then the gradient enters it: τ ← τ + r·(|g| − τ) where g is
    not zero. The first gradient other than zero passes as it is and becomes the mean. If all
    gradients are multiplied by a number, so are the means and the result.

    Args:
        gradients: g, which are only read.
        means: τ, zero where no gradient was seen; changed in place.
        factor: c.
        rate: r, the weight of the new gradient in the mean; max{1 − β, 1/k} at step k makes the
            first steps a plain mean.

    Example:
        >>> means = [torch.tensor([1.0, 0.0, 2.0])]
        >>> clip_at_means_([torch.tensor([-9.0, 5.0, 0.0])], means, 3.0, 0.5)
        [tensor([-3.,  5.,  0.])]
        >>> means
        [tensor([5., 5., 2.])]
    """
    clipped = []
    for g, mean in zip(gradients, means, strict=True):
        magnitude = widen(g).abs()
        weight = rate.to(mean.device, mean.dtype) if isinstance(rate, Tensor) else rate
        tau = torch.where(mean == 0, magnitude, mean * factor)
        clipped.append(widen(g).clamp(-tau, tau))
        updated = torch.where(mean == 0, magnitude, mean + weight * (magnitude - mean))
        mean.copy_(torch.where(magnitude == 0, mean, updated))
    return clipped


# Normalised steps: the scalars that make a step's length independent of the gradient's.


def normalize_coefficient(norm: Tensor, damping: float = 0.0) -> Tensor:
    """1/(‖m‖ + b), and 0 where both are 0: without a direction there is no step (thesis, (3.6),
    where b is called β).

    Example:
        >>> normalize_coefficient(torch.tensor([4.0, 0.0]))
        tensor([0.2500, 0.0000])
    """
    length = norm + damping
    return torch.where(length == 0, torch.zeros_like(length), 1.0 / length)


def interpolated_coefficient(norm: Tensor, p: float, q: float) -> Tensor:
    """η = 1/(p·‖m‖ + q); 0 where the denominator is 0 (thesis, Alg. 3, l. 4).

    Example:
        >>> interpolated_coefficient(torch.tensor(2.0), 1.0, 2.0)
        tensor(0.2500)
    """
    return normalize_coefficient(norm * p, q)


def descent_weight(norm: float, lipschitz: float) -> float:
    """β = (4L² − ‖m‖²)/(4L² + 2‖m‖²), the weight of the old direction in INGD's inner loop (thesis,
    Alg. 2, l. 15).

    Example:
        >>> descent_weight(1.0, 1.0)
        0.5

    Differs from the paper:
        Held at 0 from below. Negative values need ‖m‖ > 2L, against the assumption that L bounds
        all gradients; with β in [0, 1] m remains an average of gradients near x, so the certificate
        ‖m‖ ≤ ε stays valid all the same.
    """
    square, bound = norm * norm, 4.0 * lipschitz * lipschitz
    return max(0.0, (bound - square) / (bound + 2.0 * square))


# The last line of every rule: move the parameters, with the weight decay that stands outside the
# rule.


def descend_(
    params: Sequence[Tensor],
    updates: Sequence[Tensor],
    lr: float | Tensor,
    shrink: float | Tensor = 0.0,
) -> None:
    """x ← (1 − s)·x − η·u in place, rounded once for 16-bit parameters.

    Args:
        params: x.
        updates: u in at least float32, temporaries that may be overwritten.
        lr: η, a number or a 0-dim tensor (which is never read on the host).
        shrink: s, what decoupled weight decay takes away; a number or a 0-dim tensor.

    Example:
        >>> x = [torch.tensor([1.0])]
        >>> descend_(x, [torch.tensor([2.0])], 0.25, shrink=0.25)
        >>> x
        [tensor([0.2500])]
    """
    targets, steps = list(params), list(updates)
    is_16_bit = targets[0].dtype in (torch.bfloat16, torch.float16)
    wide = [widen(x) for x in targets] if is_16_bit else targets
    if isinstance(shrink, Tensor):
        torch._foreach_mul_(wide, 1.0 - shrink.to(wide[0].device, wide[0].dtype))
    elif shrink:
        torch._foreach_mul_(wide, 1.0 - shrink)
    if isinstance(lr, Tensor):
        torch._foreach_mul_(steps, lr.to(wide[0].device, wide[0].dtype))
        torch._foreach_sub_(wide, steps)
    else:
        torch._foreach_add_(wide, steps, alpha=-lr)
    if is_16_bit:
        torch._foreach_copy_(targets, wide)


# Euclidean projections of a list of tensors, taken as one vector, onto simple sets.


@dataclass(frozen=True)
class Ball:
    """Projection onto {x : ‖x‖ ≤ radius}, the norm taken over all parameters together (thesis,
    (proj-GClip)).

    Example:
        >>> x = [torch.tensor([3.0]), torch.tensor([4.0])]
        >>> Ball(1.0)(x)
        >>> x
        [tensor([0.6000]), tensor([0.8000])]
    """

    radius: float

    def __post_init__(self) -> None:
        positive("radius", self.radius)

    def __call__(self, parameters: Sequence[Tensor]) -> None:
        factor = clip_coefficient(robust_norm(parameters, wide=True), float(self.radius))
        for (block,) in blocks([local(p) for p in parameters]):
            torch._foreach_mul_(block, factor.to(block[0].device, block[0].dtype))


@dataclass(frozen=True)
class Box:
    """Projection onto {x : low ≤ x_i ≤ high for all i}.

    Example:
        >>> x = [torch.tensor([3.0, -4.0])]
        >>> Box(-1.0, 2.0)(x)
        >>> x
        [tensor([ 2., -1.])]
    """

    low: float
    high: float

    def __post_init__(self) -> None:
        if not number("low", self.low) <= number("high", self.high):
            fail("low", f"must not exceed high = {self.high!r}", self.low)

    def __call__(self, parameters: Sequence[Tensor]) -> None:
        for (block,) in blocks([local(p) for p in parameters]):
            torch._foreach_clamp_min_(block, float(self.low))
            torch._foreach_clamp_max_(block, float(self.high))
