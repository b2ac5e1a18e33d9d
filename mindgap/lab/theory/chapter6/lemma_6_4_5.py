"""Lemma 6.4.5: the cross-entropy after softmax is bounded by the range of its argument, and √2-Lipschitz."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from mindgap.base.check import non_negative, whole

if TYPE_CHECKING:
    from torch import Tensor

#: c_ℓ, from the proof: ‖e_y - softmax(x)‖ <= √2, approached when another class has all the mass.
CROSS_ENTROPY_LIPSCHITZ = math.sqrt(2)


def cross_entropy(x: Tensor, y: Tensor) -> Tensor:
    """ℓ(x, y) = log Σ_j exp(x_j) - x_y for scores x of shape (..., d) and classes y of shape (...).

    Example:
        >>> import torch
        >>> round(float(cross_entropy(torch.zeros(4), torch.tensor(2))), 6)
        1.386294

    Source: thesis, (6.9).

    *Differs from the paper.* (6.9) prints the negative: x_y - log Σ_j exp(x_j), which training would maximise.
    """
    import torch

    return torch.logsumexp(x, dim=-1) - x.gather(-1, y.unsqueeze(-1)).squeeze(-1)


def cross_entropy_bound(spread: float, classes: int) -> float:
    """c + log d, an upper bound of |ℓ(x, y)| when max_i x_i - min_i x_i <= c.

    Args:
        spread: c, zero or positive.
        classes: d, at least 1.

    Example:
        >>> round(cross_entropy_bound(1.0, 10), 4)
        3.3026

    Source: thesis, Lemma 6.4.5, 1.
    """
    return non_negative("spread", spread) + math.log(whole("classes", classes, least=1))


def cross_entropy_peak(spread: float, classes: int) -> float:
    """log(1 + (d-1) e^c), the largest value of ℓ with that spread: how far the lemma's bound is from tight.

    Example:
        >>> cross_entropy_peak(0.0, 10) == cross_entropy_bound(0.0, 10)
        True

    Source: thesis, Lemma 6.4.5, 1., where it is attained.
    """
    non_negative("spread", spread)
    return math.log1p((whole("classes", classes, least=1) - 1) * math.exp(spread))
