"""Theorem 6.4.7: with batch normalisation before the softmax, weight decay bounds scale, shift and loss."""

from __future__ import annotations

import math
from dataclasses import dataclass

from mindgap.base.check import whole
from mindgap.base.checked import Count, Positive


@dataclass(frozen=True)
class DecayedBatchNorm:
    """Batch normalisation as the last layer, x_L = a_L x̂_L + b_L, batches of m samples, weight decay γ.

    Args:
        batch: m, at least 1.
        gamma: γ, the weight decay, positive.

    Example:
        >>> layer = DecayedBatchNorm(batch=16, gamma=0.5)
        >>> layer.scale_bound, layer.shift_bound
        (16.0, 2.0)

    Source: thesis, Theorem 6.4.7 and 6.7.6.

    *Differs from the paper.* The proof bounds the loss by 4m/γ + log d and forgets the shift b_L. With one shift per
    coordinate, as batch normalisation has it, the bound needs |b_L| <= 1/γ at the start (weight decay then keeps
    it) and is 4m/γ + 2/γ + log d.
    """

    batch: Count
    gamma: Positive

    @property
    def largest_step(self) -> float:
        """1/γ."""
        return 1 / self.gamma

    @property
    def normalised_bound(self) -> float:
        """√m, a bound of every coordinate of x̂."""
        return math.sqrt(self.batch)

    @property
    def scale_bound(self) -> float:
        """2√m/γ: the compact set |a_L| <= 2√m/γ that training keeps (one scale for all coordinates or one each)."""
        return 2 * math.sqrt(self.batch) / self.gamma

    @property
    def shift_bound(self) -> float:
        """1/γ: |∂ℓ/∂b_k| = |p_k - δ_{y,k}| <= 1, so |b_k| <= 1/γ is kept."""
        return 1 / self.gamma

    def loss_bound(self, classes: int) -> float:
        """4m/γ + 2/γ + log d."""
        return self.printed_loss_bound(classes) + 2 * self.shift_bound

    def printed_loss_bound(self, classes: int) -> float:
        """4m/γ + log d, as 6.7.6 has it; holds for b_L = 0 or one shift for all coordinates."""
        return 4 * self.batch / self.gamma + math.log(whole("classes", classes, least=2))
