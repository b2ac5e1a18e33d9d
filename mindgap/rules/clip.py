"""Clipping: of a whole vector (GClip), of each coordinate (CClip), by an estimated moment (ACClip).

Functions on lists of tensors; they write to nothing but what their name with a trailing underscore says.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def clip_coefficient(norm: Tensor, tau: float | Tensor) -> Tensor:
    """min{τ/‖m‖, 1}, the factor of global clipping; 1 at ‖m‖ = 0 (acclip, (GClip); thesis, (3.5) with γ = τ).

    Example:
        >>> clip_coefficient(torch.tensor([4.0, 0.5, 0.0]), 1.0)
        tensor([0.2500, 1.0000, 1.0000])
    """
    return (tau / norm).clamp(max=1.0)


def clip_coordinates(directions: Sequence[Tensor], tau: float | Tensor | Sequence[Tensor]) -> list[Tensor]:
    """min{τ/|m|, 1}·m in every coordinate, which is m held inside [−τ, τ] (acclip, (CClip)).

    Args:
        directions: m.
        tau: τ: one number, a 0-dim tensor, or a tensor for each direction that broadcasts to it.

    Example:
        >>> clip_coordinates([torch.tensor([3.0, -0.5])], 1.0)
        [tensor([ 1.0000, -0.5000])]
        >>> clip_coordinates([torch.tensor([3.0, -0.5])], [torch.tensor([2.0, 0.1])])
        [tensor([ 2.0000, -0.1000])]

    Differs from the paper:
        An infinite coordinate becomes ±τ (the limit), where τ/∞·∞ would be undefined. NaN stays NaN.
    """
    if isinstance(tau, (int, float)):
        held = torch._foreach_clamp_max(list(directions), tau)
        torch._foreach_clamp_min_(held, -tau)
        return list(held)
    taus = [tau] * len(directions) if isinstance(tau, Tensor) else list(tau)
    return [m.clamp(-t, t) for m, t in zip(directions, (t.to(m) for t, m in zip(taus, directions)), strict=True)]


def clip_adaptive(momenta: Sequence[Tensor], moments: Sequence[Tensor], alpha: float, eps: float, *,
                  normalized: bool = False) -> tuple[list[Tensor], list[Tensor]]:
    """min{τ/(|m|+ε), 1}·m with τ = (τ^α)^(1/α), in every coordinate (acclip, (ACClip); thesis, Alg. 1, l. 5).

    Args:
        normalized: divide the result by τ+ε too (the step of section 3.1), so that it does not scale with m.

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
    # 0/0 (no gradient yet seen, ε = 0) would be NaN where the direction is plainly 0: its factor is set to 1.
    quotients = list(torch._foreach_div(list(tau), factors))
    if eps == 0.0:
        quotients = [torch.where(f == 0, torch.ones_like(q), q) for q, f in zip(quotients, factors)]
    del factors
    torch._foreach_clamp_max_(quotients, 1.0)
    clipped = list(torch._foreach_mul(list(momenta), quotients))
    if normalized:
        clipped = _divided(clipped, list(torch._foreach_add(list(tau), eps)), eps)
    return clipped, quotients


def clip_second_moment(momenta: Sequence[Tensor], moments: Sequence[Tensor], beta2: float,
                       eps: float) -> tuple[list[Tensor], list[Tensor]]:
    """min{τ/|m|, 1}·m/d with d = ε + √(β₂v) and τ = d/√(1−β₂), in every coordinate: m/d held inside ±1/√(1−β₂).

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
    quotients = _divided(list(momenta), list(scales), eps)
    return clip_coordinates(quotients, (1.0 - beta2) ** -0.5), quotients


def _divided(values: list[Tensor], scales: list[Tensor], eps: float) -> list[Tensor]:
    """Quotients, 0 for 0/0 (which can occur only for ε = 0)."""
    if eps == 0.0:
        return [torch.where(v == 0, v, v / s) for v, s in zip(values, scales)]
    return list(torch._foreach_div(values, scales))
