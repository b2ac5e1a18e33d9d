"""Lemma 6.4.5 with Theorems 6.4.6 and 6.4.7: weight decay keeps the weights bounded, and so the
loss.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from mindgap.base.check import non_negative, positive, whole
from mindgap.base.checked import AtLeast, Count, Positive

if TYPE_CHECKING:
    from torch import Tensor


# Lemma 6.4.5: the cross-entropy after softmax is bounded by the range of its argument, and
# √2-Lipschitz.

#: c_ℓ, from the proof: ‖e_y - softmax(x)‖ <= √2, approached when another class has all the mass.
CROSS_ENTROPY_LIPSCHITZ = math.sqrt(2)


def cross_entropy(x: Tensor, y: Tensor) -> Tensor:
    """ℓ(x, y) = log Σ_j exp(x_j) - x_y for scores x of shape (..., d) and classes y of shape (...)
    (thesis, (6.9)).

    Example:
        >>> import torch
        >>> round(float(cross_entropy(torch.zeros(4), torch.tensor(2))), 6)
        1.386294

    *Differs from the paper.* (6.9) prints the negative: x_y - log Σ_j exp(x_j), which training
    would maximise.
    """
    import torch

    return torch.logsumexp(x, dim=-1) - x.gather(-1, y.unsqueeze(-1)).squeeze(-1)


def cross_entropy_bound(spread: float, classes: int) -> float:
    """c + log d, an upper bound of |ℓ(x, y)| for d ``classes`` when max_i x_i - min_i x_i <= c, the
    ``spread`` (thesis, Lemma 6.4.5, 1).

    Example:
        >>> round(cross_entropy_bound(1.0, 10), 4)
        3.3026
    """
    return non_negative("spread", spread) + math.log(whole("classes", classes, least=1))


# Theorem 6.4.6: with weight decay, the weights of a deep network stay in a compact set.


@dataclass(frozen=True)
class DecayedNetwork:
    """The network (6.8) with L layers, c_σ-Lipschitz activations with σ(0) = 0, inputs ‖x‖ <= 1,
    weight decay γ.

    Example:
        >>> DecayedNetwork(layers=3, gamma=2**0.5).radius
        1.0
        >>> DecayedNetwork(layers=2, gamma=1.0)
        Traceback (most recent call last):
        mindgap.base.check.RuleError: layers must be a whole number of at least 3, got 2

    Source: thesis, (6.8), Assumption 6.4.1, Theorem 6.4.6 and 6.7.5.

    *Differs from the paper.* The paper does not say L >= 3; its radius (γ/(c_ℓ c_σ^L))^(1/(L-2))
    has no meaning at L = 2, and at L = 1 the proof asks for a radius that is large, not small.
    """

    layers: Annotated[int, AtLeast(3)]  # L, at least 3 (see *Differs*)
    gamma: Positive  # γ, the weight decay, positive
    c_sigma: Positive = 1.0  # Lipschitz constant of the activations (1 for ReLU and tanh)
    #: Lipschitz constant of the loss (√2 for the cross-entropy, Lemma 6.4.5).
    c_ell: Positive = CROSS_ENTROPY_LIPSCHITZ

    @property
    def radius(self) -> float:
        """The largest w: (γ/(c_ℓ c_σ^L))^(1/(L-2)). C_w = {‖W_l‖_op <= w for all l}."""
        return (self.gamma / (self.c_ell * self.c_sigma**self.layers)) ** (1 / (self.layers - 2))

    def output_bound(self, w: float) -> float:
        """(w c_σ)^L, a bound of ‖x_L‖ on C_w."""
        return (positive("w", w) * self.c_sigma) ** self.layers

    def loss_bound(self, classes: int) -> float:
        """log d + c_ℓ (γ/(c_ℓ c_σ²))^(L/(L-2)), a bound of the loss for d classes on C_w at the
        largest w.

        *Differs from the paper.* 6.7.5 loses the factor c_ℓ in its last line.
        """
        whole("classes", classes, least=2)
        return math.log(classes) + self.c_ell * self.output_bound(self.radius)

    def printed_loss_bound(self, classes: int) -> float:
        """log d + (γ/(c_ℓ c_σ²))^(L/(L-2)), as the last line of 6.7.5 prints it; does not hold."""
        return math.log(whole("classes", classes, least=2)) + self.output_bound(self.radius)


# Theorem 6.4.7: with batch normalisation before the softmax, weight decay bounds scale, shift and
# loss.


@dataclass(frozen=True)
class DecayedBatchNorm:
    """Batch normalisation as the last layer, x_L = a_L x̂_L + b_L, batches of m samples, weight
    decay γ.

    Example:
        >>> layer = DecayedBatchNorm(batch=16, gamma=0.5)
        >>> layer.scale_bound, layer.shift_bound
        (16.0, 2.0)

    Source: thesis, Theorem 6.4.7 and 6.7.6.

    *Differs from the paper.* 6.7.6 sums ∂L/∂a_L over the coordinates, so it has one scale and one
    shift for all of them; such a shift cancels in softmax, and 4m/γ + log d holds. With one shift
    per coordinate, as batch normalisation usually has it, the bound needs |b_L| <= 1/γ at the start
    (weight decay then keeps it) and is 4m/γ + 2/γ + log d.
    """

    batch: Count
    gamma: Positive

    @property
    def scale_bound(self) -> float:
        """2√m/γ: the compact set |a_L| <= 2√m/γ that training keeps (one scale for all
        coordinates or one each).
        """
        return 2 * math.sqrt(self.batch) / self.gamma

    @property
    def shift_bound(self) -> float:
        """1/γ: |∂ℓ/∂b_k| = |p_k - δ_{y,k}| <= 1, so |b_k| <= 1/γ is kept."""
        return 1 / self.gamma

    def loss_bound(self, classes: int) -> float:
        """4m/γ + 2/γ + log d, a bound of the loss for d classes."""
        return self.printed_loss_bound(classes) + 2 * self.shift_bound

    def printed_loss_bound(self, classes: int) -> float:
        """4m/γ + log d for d classes, as 6.7.6 has it; holds for b_L = 0 or one shift for all
        coordinates.
        """
        return 4 * self.batch / self.gamma + math.log(whole("classes", classes, least=2))
