"""The network (6.8), with and without batch normalisation, for many seeds at once.

Weights carry a leading axis S (seeds, or chains): one pass trains S networks side by side on the
CPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mindgap.base.check import one_of
from mindgap.base.checked import check_arguments
from mindgap.lab.theory.chapter6.weight_decay import cross_entropy

#: Activations with σ(0) = 0 that are 1-Lipschitz (Assumption 6.4.1 with c_σ = 1).
ACTIVATIONS = {"tanh": torch.tanh, "relu": torch.relu, "identity": lambda z: z}


@dataclass(frozen=True)
class Network:
    """S copies of an L-layer network: x_{l+1} = σ(W_l x_l), the last layer without activation.

    Example:
        >>> net = Network((2, 3, 2, 2))
        >>> theta = net.start(copies=5, radius=0.5, generator=torch.Generator().manual_seed(0))
        >>> x, y = torch.ones(5, 4, 2, dtype=torch.float64), torch.zeros(5, 4, dtype=torch.long)
        >>> net.loss(theta, x, y).shape, round(float(net.operator_norms(theta).max()), 9)
        (torch.Size([5]), 0.5)

    Source: thesis, (6.8) and the batch normalisation before Theorem 6.4.7.
    """

    widths: tuple[int, ...]  # sizes of x_0, ..., x_L
    activation: str = "tanh"  # a name of ``ACTIVATIONS``
    #: normalise x_L over the batch, then scale by a and shift by b (one each per coordinate)
    batch_norm: bool = False
    epsilon: float = 1e-5  # ε of the normalisation

    def __post_init__(self) -> None:
        one_of("activation", self.activation, ACTIVATIONS)

    @property
    def layers(self) -> int:
        """L, the number of weight matrices."""
        return len(self.widths) - 1

    def start(
        self, copies: int, radius: float, generator: torch.Generator, *, scale: float = 1.0
    ) -> list[Tensor]:
        """Random weights with every operator norm exactly ``radius``; with batch normalisation
        a = scale, b = 0. Advances ``generator``.

        Args:
            copies: S, the number of networks.
            radius: the operator norm.
            generator: draws standard normal entries, which are then scaled.
            scale: a at the start.

        Returns:
            W_l of shape (S, d_l, d_{l-1}) for l = 1, ..., L, then a and b of shape (S, 1, d_L) with
            batch normalisation.
        """
        theta = []
        for rows, columns in zip(self.widths[1:], self.widths[:-1]):
            weights = torch.randn(copies, rows, columns, generator=generator, dtype=torch.float64)
            norms = torch.linalg.matrix_norm(weights, ord=2, keepdim=True)
            theta.append(weights * (radius / norms))
        if self.batch_norm:
            shape = (copies, 1, self.widths[-1])
            theta += [
                torch.full(shape, scale, dtype=torch.float64),
                torch.zeros(shape, dtype=torch.float64),
            ]
        return theta

    def scores(self, theta: Sequence[Tensor], x: Tensor) -> Tensor:
        """The output x_L of all copies, shape (S, m, d_L).

        Args:
            theta: weights, in the order of ``start``.
            x: inputs, shape (S, m, d_0), m the batch size.
        """
        activation = ACTIVATIONS[self.activation]
        for layer in range(self.layers):
            x = x @ theta[layer].transpose(1, 2)
            if layer + 1 < self.layers:
                x = activation(x)
        if self.batch_norm:
            centred = x - x.mean(dim=1, keepdim=True)
            x = centred / torch.sqrt(centred.square().mean(dim=1, keepdim=True) + self.epsilon)
            scale, shift = theta[-2:]
            x = scale * x + shift
        return x

    def loss(self, theta: Sequence[Tensor], x: Tensor, y: Tensor) -> Tensor:
        """Mean cross-entropy over the batch, shape (S,), with the weights ``theta``, inputs ``x``
        of shape (S, m, d_0) and classes ``y`` of shape (S, m).
        """
        return cross_entropy(self.scores(theta, x), y).mean(dim=1)

    def gradient(
        self, theta: Sequence[Tensor], x: Tensor, y: Tensor
    ) -> tuple[Tensor, list[Tensor]]:
        """(losses of shape (S,), gradients in the order and shapes of ``theta``) of all copies,
        detached.

        The copies share nothing, so the gradient of the losses' sum is each one's own. ``x`` has
        shape (S, m, d_0), the classes ``y`` shape (S, m).
        """
        leaves = [tensor.detach().requires_grad_() for tensor in theta]
        with torch.enable_grad():
            losses = self.loss(leaves, x, y)
            gradients = torch.autograd.grad(losses.sum(), leaves)
        return losses.detach(), list(gradients)

    def operator_norms(self, theta: Sequence[Tensor]) -> Tensor:
        """‖W_l‖_op of the weight matrices in ``theta``, shape (S, L)."""
        norms = [torch.linalg.matrix_norm(W, ord=2) for W in theta[: self.layers]]
        return torch.stack(norms, dim=1)


check_arguments(__name__)
