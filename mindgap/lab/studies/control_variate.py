"""SVRG's gradient of a network on a device: g_B(θ) − g_B(θ̃) + mean over B of g_B(θ̃), with a
snapshot θ̃ per epoch.

The batches of an epoch are fixed when it begins, augmentation included, so that the correction is
zero in the mean over the epoch. Batch normalisation uses the statistics of a batch at θ and at θ̃
alike.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from mindgap.base.checked import check_arguments
from mindgap.measure.captured import CapturedGradient


class ControlVariate:
    """The snapshot of a model and the mean of its gradients over the batches of an epoch.

    Args:
        model: in training mode.
        loss: ``loss(model, *batch)``, the mean over the batch.
        autocast: dtype of autocast, or None for full precision.

    Example:
        >>> model = nn.Linear(1, 1, bias=False)
        >>> control = ControlVariate(model, lambda m, x: m(x).square().mean())
        >>> batches = [(torch.full((1, 1), 1.0),), (torch.full((1, 1), 3.0),)]
        >>> control.refresh(batches)
        >>> control.loss(
        ...     model, *batches[0]
        ... ).backward()  # at the snapshot the gradient is the mean: 2·w·(1 + 9)/2
        >>> bool(torch.isclose(model.weight.grad / model.weight.detach(), torch.tensor(10.0)))
        True
    """

    def __init__(
        self, model: nn.Module, loss: Callable[..., Tensor], *, autocast: torch.dtype | None = None
    ) -> None:
        self._model, self._loss, self._autocast = model, loss, autocast
        self._snapshot = deepcopy(model)
        # The mean of the batches' gradients at the snapshot, one tensor per parameter.
        self._mean = [torch.zeros_like(p) for p in self._snapshot.parameters()]
        # At the snapshot; None before the first call.
        self._gradient: CapturedGradient | None = None

    def refresh(self, batches: Sequence[tuple[Tensor, ...]]) -> None:
        """Take the snapshot of the model now, and its mean gradient over these batches.

        Both are written in place. The batches have one shape; the gradient is captured as a CUDA
        graph at the first call.
        """
        parameters = list(self._snapshot.parameters())
        with torch.no_grad():
            self._snapshot.load_state_dict(self._model.state_dict())
            torch._foreach_zero_(self._mean)
        if self._gradient is None:
            self._gradient = CapturedGradient(
                self._snapshot, self._loss, batches[0], autocast=self._autocast
            )
        for batch in batches:
            self._gradient(*batch)
            torch._foreach_add_(
                self._mean,
                [p.grad for p in parameters if p.grad is not None],
                alpha=1 / len(batches),
            )

    def loss(self, model: nn.Module, *batch: Tensor) -> Tensor:
        """The loss of a batch at the model, whose gradient is that of SVRG: corrected by the mean
        gradient at the snapshot less the batch's gradient there.
        """
        snapshot_gradients = torch.autograd.grad(
            self._loss(self._snapshot, *batch), list(self._snapshot.parameters())
        )
        corrections = torch._foreach_sub(self._mean, list(snapshot_gradients))
        corrected: Tensor = _Corrected.apply(
            self._loss(model, *batch), *model.parameters(), *corrections
        )
        return corrected


class _Corrected(torch.autograd.Function):
    """A value whose gradient with respect to each parameter has a correction added."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, *tensors: Tensor) -> Tensor:
        """The value itself; ``tensors`` are the parameters, then their corrections."""
        ctx.save_for_backward(*tensors[len(tensors) // 2 :])
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        """The gradients of the inputs of :meth:`forward`, in their order.

        That of the value is passed on, the parameters get their corrections, and the corrections
        get none.
        """
        # Saved are the corrections. They are not multiplied by the value's own gradient, which is 1
        # for a loss.
        return gradients[0], *ctx.saved_tensors, *(None for _ in ctx.saved_tensors)


check_arguments(__name__)
