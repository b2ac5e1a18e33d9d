"""Normalised steps: the scalars that make a step's length independent of the gradient's."""

from __future__ import annotations

import torch
from torch import Tensor


def normalize_coefficient(norm: Tensor, damping: float = 0.0) -> Tensor:
    """1/(‖m‖ + b), and 0 where both are 0: without a direction there is no step (thesis, (3.6), where b is called β).

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
    """β = (4L² − ‖m‖²)/(4L² + 2‖m‖²), the weight of the old direction in INGD's inner loop (thesis, Alg. 2, l. 15).

    Example:
        >>> descent_weight(1.0, 1.0)
        0.5

    Differs from the paper:
        Held at 0 from below. Negative values need ‖m‖ > 2L, against the assumption that L bounds all gradients; with
        β in [0, 1] m remains an average of gradients near x, so the certificate ‖m‖ ≤ ε stays valid all the same.
    """
    square, bound = norm * norm, 4.0 * lipschitz * lipschitz
    return max(0.0, (bound - square) / (bound + 2.0 * square))
