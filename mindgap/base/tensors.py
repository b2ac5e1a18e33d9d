"""Small operations on lists of tensors that several floors need."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor


def flatten(tensors: Sequence[Tensor]) -> Tensor:
    """One flat vector out of many tensors, in order.

    Example:
        >>> flatten([torch.ones(2), torch.zeros(1, 1)])
        tensor([1., 1., 0.])
    """
    if not tensors:
        return torch.zeros(0)
    return torch.cat([t.reshape(-1) for t in tensors])


def unflatten(vector: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """Views of a flat vector in the shapes of ``like``.

    Example:
        >>> [tuple(t.shape) for t in unflatten(torch.arange(3.0), [torch.ones(2), torch.zeros(1, 1)])]
        [(2,), (1, 1)]
    """
    parts = vector.split([math.prod(t.shape) for t in like])
    return [part.view(t.shape) for part, t in zip(parts, like, strict=True)]


def robust_norm(tensors: Sequence[Tensor]) -> Tensor:
    """Euclidean norm over all entries that neither overflows nor underflows: scaled by the largest entry.

    A float32 entry of 1e20 squares to infinity; scaling first keeps the norm finite wherever it is representable.
    Non-finite entries propagate (inf gives inf, NaN gives NaN). Returns a 0-dim tensor on the tensors' device and
    never synchronises with the host.

    Example:
        >>> float(robust_norm([torch.tensor([3e20, 4e20])])) == float(torch.tensor(5e20))
        True
    """
    tensors = [t for t in tensors if t.numel()]
    if not tensors:
        return torch.zeros(())
    wide = [t.detach() if t.dtype in (torch.float32, torch.float64) else t.detach().float() for t in tensors]
    peaks = torch._foreach_norm(wide, ord=math.inf)
    peak = torch.stack([p.to(peaks[0].device) for p in peaks]).max()
    # An infinite or zero peak cannot be divided by; there the peak itself is the answer (NaN passes through max).
    safe = torch.where((peak > 0) & torch.isfinite(peak), peak, torch.ones_like(peak))
    scaled = [t / safe.to(t.device) for t in wide]
    squares = torch.stack([n.to(peak.device) for n in torch._foreach_norm(scaled)])
    return torch.where(torch.isfinite(peak) & (peak > 0), torch.linalg.vector_norm(squares) * safe, peak)
