"""Loss and gradient of small networks on a GPU: forward and backward pass in one CUDA graph.

Small networks are limited by kernel launches. A graph replays the whole forward and backward pass
with one launch; the optimizer steps outside it, so that every optimizer and every schedule works
unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from mindgap.base.checked import check_arguments


class CapturedGradient:
    """Loss and gradient of a model on batches of one shape; on CUDA as one graph launch, elsewhere
    eagerly.

    Args:
        model: in training mode; its ``p.grad`` are written in place at every call.
        loss: ``loss(model, *batch) -> scalar``.
        batch: an example batch of tensors; later batches must have its shapes.
        autocast: dtype of autocast, or None for full precision.
        carried: tensors that ``loss`` overwrites in place for the next call (the state of an LSTM,
            say).
        graph: False runs eagerly on CUDA too.

    Example:
        >>> model = nn.Linear(3, 1)
        >>> gradient = CapturedGradient(
        ...     model, lambda m, x: m(x).square().mean(), (torch.ones(2, 3),)
        ... )
        >>> loss = gradient(torch.ones(2, 3))
        >>> model.weight.grad.shape
        torch.Size([1, 3])
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Callable[..., Tensor],
        batch: tuple[Tensor, ...],
        *,
        autocast: torch.dtype | None = None,
        carried: Sequence[Tensor] = (),
        graph: bool = True,
    ) -> None:
        self._model, self._loss, self._autocast = model, loss, autocast
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        # None: eager. With a graph ``_inputs`` are the tensors that it reads, and
        # ``_captured_loss`` is the one that it writes.
        self._graph: torch.cuda.CUDAGraph | None = None
        if graph and batch[0].is_cuda:
            self._capture(batch, carried)

    def __call__(self, *batch: Tensor) -> Tensor:
        """Write the gradients of a batch into ``p.grad`` of every parameter.

        Returns:
            The loss, without its graph; on CUDA the next call overwrites this tensor.
        """
        if self._graph is None:
            for p in self._parameters:
                p.grad = None
            return self._backward(batch)
        for graph_input, tensor in zip(self._inputs, batch, strict=True):
            graph_input.copy_(tensor)
        self._graph.replay()
        return self._captured_loss

    def _backward(self, batch: tuple[Tensor, ...]) -> Tensor:
        """Forward and backward pass of a batch; returns its loss."""
        with torch.autocast(
            batch[0].device.type, self._autocast, enabled=self._autocast is not None
        ):
            loss = self._loss(self._model, *batch)
        loss.backward()
        return loss.detach()

    def _capture(self, batch: tuple[Tensor, ...], carried: Sequence[Tensor]) -> None:
        """Capture forward and backward pass into ``_graph``, on copies of the batch in ``_inputs``
        that later batches overwrite. Parameters, buffers and what is carried are put back.

        Args:
            carried: tensors that the loss overwrites in place.
        """
        state = [*self._model.state_dict().values(), *carried]
        values_before = [value.clone() for value in state]
        self._inputs = tuple(t.clone() for t in batch)
        # Capturing wants a few passes on another stream before.
        warm_up = torch.cuda.Stream()
        warm_up.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(warm_up):
            for _ in range(3):
                for p in self._parameters:
                    p.grad = None
                self._backward(self._inputs)
        torch.cuda.current_stream().wait_stream(warm_up)
        for p in self._parameters:
            p.grad = None  # so that the captured pass makes gradients of its own, at fixed places
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._captured_loss = self._backward(self._inputs)
        # The warm-up moved running statistics and what is carried; training starts from the state
        # before it.
        with torch.no_grad():
            for tensor, value_before in zip(state, values_before, strict=True):
                tensor.copy_(value_before)


@contextmanager
def as_found(model: nn.Module) -> Iterator[None]:
    """Put ``p.grad`` (the same tensors), the buffers' values and each module's mode back at the end
    of the block, without waiting for a device; parameters and random numbers are left to the block.

    Example:
        >>> model = nn.BatchNorm1d(2)
        >>> with as_found(model):
        ...     _ = model(torch.randn(8, 2))
        >>> model.running_mean
        tensor([0., 0.])
    """
    gradients = [(p, p.grad) for p in model.parameters()]
    buffers = [(b, b.clone()) for b in model.buffers()]
    modes = [(module, module.training) for module in model.modules()]
    try:
        yield
    finally:
        for p, gradient in gradients:
            p.grad = gradient
        for module, training in modes:
            module.training = training
        with torch.no_grad():
            for buffer, value in buffers:
                buffer.copy_(value)


@contextmanager
def tf32(allowed: bool) -> Iterator[None]:
    """Allow or forbid matrix products of float32 numbers rounded to 10 bits on CUDA (TF32); undone
    at the end.

    Example:
        >>> with tf32(True):
        ...     torch.backends.cuda.matmul.allow_tf32
        True
    """
    # The attribute of torch.backends.cudnn is refused once torch's own tests were imported.
    matmul_before = torch.backends.cuda.matmul.allow_tf32
    cudnn_before = torch._C._get_cudnn_allow_tf32()
    try:
        torch.backends.cuda.matmul.allow_tf32 = allowed
        torch._C._set_cudnn_allow_tf32(allowed)
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = matmul_before
        torch._C._set_cudnn_allow_tf32(cudnn_before)


check_arguments(__name__)
