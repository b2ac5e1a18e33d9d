"""Theorem 6.4.6: with weight decay, the weights of a deep network stay in a compact set."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

from mindgap.base.check import positive, whole
from mindgap.base.checked import AtLeast, Positive
from mindgap.lab.theory.chapter6.lemma_6_4_5 import CROSS_ENTROPY_LIPSCHITZ


@dataclass(frozen=True)
class DecayedNetwork:
    """The network (6.8) with L layers, c_σ-Lipschitz activations with σ(0) = 0, inputs ‖x‖ <= 1, weight decay γ.

    Args:
        layers: L, at least 3 (see *Differs*).
        gamma: γ, the weight decay, positive.
        c_sigma: Lipschitz constant of the activations (1 for ReLU and tanh).
        c_ell: Lipschitz constant of the loss (√2 for the cross-entropy, Lemma 6.4.5).

    Example:
        >>> DecayedNetwork(layers=3, gamma=2 ** 0.5).radius
        1.0
        >>> DecayedNetwork(layers=2, gamma=1.0)
        Traceback (most recent call last):
        mindgap.base.check.RuleError: layers must be a whole number of at least 3, got 2

    Source: thesis, (6.8), Assumption 6.4.1, Theorem 6.4.6 and 6.7.5.

    *Differs from the paper.* The paper does not say L >= 3; its radius (γ/(c_ℓ c_σ^L))^(1/(L-2)) has no meaning at
    L = 2, and at L = 1 the proof asks for a radius that is large, not small.
    """

    layers: Annotated[int, AtLeast(3)]
    gamma: Positive
    c_sigma: Positive = 1.0
    c_ell: Positive = CROSS_ENTROPY_LIPSCHITZ

    @property
    def radius(self) -> float:
        """The largest w: (γ/(c_ℓ c_σ^L))^(1/(L-2)). C_w = {‖W_l‖_op <= w for all l}."""
        return (self.gamma / (self.c_ell * self.c_sigma**self.layers)) ** (1 / (self.layers - 2))

    @property
    def largest_step(self) -> float:
        """1/γ."""
        return 1 / self.gamma

    def gradient_bound(self, w: float) -> float:
        """c_ℓ c_σ (w c_σ)^(L-1), a bound of ‖∂L_B/∂W_l‖_op on C_w; at most γw when w is at most the radius."""
        return self.c_ell * self.c_sigma * (positive("w", w) * self.c_sigma) ** (self.layers - 1)

    def output_bound(self, w: float) -> float:
        """(w c_σ)^L, a bound of ‖x_L‖ on C_w."""
        return (positive("w", w) * self.c_sigma) ** self.layers

    def loss_bound(self, classes: int) -> float:
        """log d + c_ℓ (γ/(c_ℓ c_σ²))^(L/(L-2)), a bound of the loss on C_w at the largest w.

        *Differs from the paper.* 6.7.5 loses the factor c_ℓ in its last line.
        """
        whole("classes", classes, least=2)
        return math.log(classes) + self.c_ell * self.output_bound(self.radius)

    def printed_loss_bound(self, classes: int) -> float:
        """log d + (γ/(c_ℓ c_σ²))^(L/(L-2)), as the last line of 6.7.5 prints it; does not hold."""
        return math.log(whole("classes", classes, least=2)) + self.output_bound(self.radius)
