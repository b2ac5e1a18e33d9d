"""How a user hands over a training problem: a model and a loss of (model, batch)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from mindgap.base.check import fail


class Objective:
    """A model together with ``loss(model, batch) -> scalar``.

    The scalar is a mean over the samples of the batch, so that the gradient of a batch estimates
    the gradient of the whole problem.

    Args:
        model: any ``torch.nn.Module``.
        loss: function of the model and one batch that returns a scalar tensor.

    Example:
        >>> model = nn.Linear(2, 1)
        >>> problem = Objective(model, lambda model, batch: model(batch).square().mean())
        >>> value, gradient = problem.value_and_grad(torch.ones(4, 2))
        >>> value.shape, [tuple(g.shape) for g in gradient]
        (torch.Size([]), [(1, 2), (1,)])
    """

    def __init__(self, model: nn.Module, loss: Callable[[Any, Any], Tensor]) -> None:
        if not isinstance(model, nn.Module):
            fail("model", "must be a torch.nn.Module", model)
        if not callable(loss):
            fail("loss", "must be a function of (model, batch)", loss)
        self.model = model
        self.loss = loss

    @property
    def parameters(self) -> list[nn.Parameter]:
        """The parameters that take gradients, in the model's order."""
        return [p for p in self.model.parameters() if p.requires_grad]

    def value(self, batch: Any) -> Tensor:
        """The loss on a batch as a 0-dim tensor, finite or not, with its autograd graph.

        Raises:
            RuleError: the loss function returns something else than a tensor with one real number.
        """
        value = self.loss(self.model, batch)
        if not isinstance(value, Tensor) or value.numel() != 1:
            shape = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
            fail("loss", "must return a tensor with one element", shape)
        if value.is_complex():
            fail("loss", "must be a real number", value.dtype)
        if value.layout is not torch.strided:
            fail("loss", "must be a dense tensor", value.layout)
        return value.reshape(())

    def value_and_grad(self, batch: Any) -> tuple[Tensor, list[Tensor]]:
        """Loss (0-dim) and gradient on a batch, both without a graph; the gradient has one tensor
        per entry of ``parameters``, zeros where the loss does not depend on it. ``p.grad`` is
        neither read nor written.
        """
        parameters = self.parameters
        with torch.enable_grad():
            value = self.value(batch)
            gradient = torch.autograd.grad(value, parameters, allow_unused=True)
        return value.detach(), [
            torch.zeros_like(p) if g is None else g
            for g, p in zip(gradient, parameters, strict=True)
        ]
