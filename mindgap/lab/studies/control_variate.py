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

from mindgap.base.check import fail
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
        # The mean of the batches' gradients at the snapshot, one tensor per trained parameter.
        self._mean = [torch.zeros_like(p) for p in _trained(self._snapshot)]
        # At the snapshot; None before the first call of ``refresh``.
        self._gradient: CapturedGradient | None = None

    def refresh(self, batches: Sequence[tuple[Tensor, ...]]) -> None:
        """Take the snapshot of the model now, and its mean gradient over these batches.

        Both are written in place. The batches have one shape; the gradient is captured as a CUDA
        graph at the first call.
        """
        if not batches:
            fail("batches", "must hold at least one batch", batches)
        parameters = _trained(self._snapshot)
        with torch.no_grad():
            self._snapshot.load_state_dict(self._model.state_dict())
            torch._foreach_zero_(self._mean)
        if self._gradient is None:
            self._gradient = CapturedGradient(
                self._snapshot, self._loss, batches[0], autocast=self._autocast
            )
        for batch in batches:
            self._gradient(*batch)
            # A parameter that the loss does not use has no gradient and keeps a mean of zeros.
            used = [(m, p.grad) for m, p in zip(self._mean, parameters) if p.grad is not None]
            torch._foreach_add_(
                [mean for mean, _ in used], [g for _, g in used], alpha=1 / len(batches)
            )

    def loss(self, model: nn.Module, *batch: Tensor) -> Tensor:
        """The loss of a batch at the model, a 0-dim tensor whose gradient is that of SVRG:
        corrected by the mean gradient at the snapshot less the batch's gradient there.

        The corrections are constants. So a scaled loss, a sum of losses, a second backward pass
        and second derivatives are those of the loss plus a function linear in the parameters.
        Frozen parameters are left out. Where autograd is off, this is the loss alone.

        Raises:
            RuleError: the loss has more than one entry (a correction belongs to one number), the
                model's parameters are not those of the snapshot, or there is no snapshot yet.
        """
        if self._gradient is None:
            fail("batches", "must be given to refresh before loss is called", None)
        value = self._loss(model, *batch)
        if not isinstance(value, Tensor) or value.numel() != 1:
            shape = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
            fail("loss", "must return a tensor with one element", shape)
        if not torch.is_grad_enabled():
            return value.reshape(())
        parameters, snapshot_parameters = _trained(model), _trained(self._snapshot)
        shapes = [tuple(p.shape) for p in parameters]
        snapshot_shapes = [tuple(p.shape) for p in snapshot_parameters]
        if shapes != snapshot_shapes:
            fail("model", f"must train parameters of the shapes {snapshot_shapes}", shapes)
        snapshot_gradients = torch.autograd.grad(
            self._loss(self._snapshot, *batch).reshape(()), snapshot_parameters, allow_unused=True
        )
        at_snapshot = [
            torch.zeros_like(p) if g is None else g
            for p, g in zip(snapshot_parameters, snapshot_gradients)
        ]
        corrections = torch._foreach_sub(self._mean, at_snapshot)
        corrected: Tensor = _Corrected.apply(value.reshape(()), *parameters, *corrections)
        return corrected


def _trained(model: nn.Module) -> list[nn.Parameter]:
    """The parameters that take gradients, in the model's order."""
    return [p for p in model.parameters() if p.requires_grad]


class _Corrected(torch.autograd.Function):
    """A number whose gradient with respect to each parameter has a correction added."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, *tensors: Tensor) -> Tensor:
        """The value itself; ``tensors`` are the parameters, then their corrections."""
        ctx.save_for_backward(*tensors[len(tensors) // 2 :])
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        """The gradients of the inputs of :meth:`forward`, in their order.

        That of the value is passed on, the parameters get their corrections times it, and the
        corrections get none.
        """
        corrections = ctx.saved_tensors
        # 0-dim: the products keep the corrections' dtype.
        scaled = [correction * gradients[0] for correction in corrections]
        return gradients[0], *scaled, *(None for _ in corrections)


check_arguments(__name__)
