"""Training steps of small networks on a GPU: data and augmentation on the device, forward and
backward in a CUDA graph.

Small networks are limited by kernel launches. A graph replays the whole forward and backward pass
with one launch; the optimizer steps outside it, so that every optimizer and every schedule works
unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
import torch.nn.functional as F
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
        self._graph: torch.cuda.CUDAGraph | None = None
        if graph and batch[0].is_cuda:
            self._capture(batch, carried)

    def __call__(self, *batch: Tensor) -> Tensor:
        """Write the gradients of a batch into ``p.grad``; return its loss, which the next call
        overwrites.
        """
        if self._graph is None:
            for p in self._parameters:
                p.grad = None
            return self._backward(batch)
        for place, value in zip(self._inputs, batch, strict=True):
            place.copy_(value)
        self._graph.replay()
        return self._value

    def _backward(self, batch: tuple[Tensor, ...]) -> Tensor:
        with torch.autocast(
            batch[0].device.type, self._autocast, enabled=self._autocast is not None
        ):
            value = self._loss(self._model, *batch)
        value.backward()
        return value.detach()

    def _capture(self, batch: tuple[Tensor, ...], carried: Sequence[Tensor]) -> None:
        """Capture forward and backward pass on copies of the batch; the state is put back
        afterwards.
        """
        moved = [*self._model.state_dict().values(), *carried]
        kept = [value.clone() for value in moved]
        self._inputs = tuple(t.clone() for t in batch)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                for p in self._parameters:
                    p.grad = None
                self._backward(self._inputs)
        torch.cuda.current_stream().wait_stream(side)
        for p in self._parameters:
            p.grad = None
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._value = self._backward(self._inputs)
        # The warm-up moved running statistics and what is carried; training starts from the state
        # before it.
        with torch.no_grad():
            for place, value in zip(moved, kept):
                place.copy_(value)


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
    before = torch.backends.cuda.matmul.allow_tf32, torch._C._get_cudnn_allow_tf32()
    try:
        torch.backends.cuda.matmul.allow_tf32 = allowed
        torch._C._set_cudnn_allow_tf32(allowed)
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before[0]
        torch._C._set_cudnn_allow_tf32(before[1])


def augmented_batches(
    images: Tensor, labels: Tensor, size: int, generator: torch.Generator, *, pad: int = 4
) -> list[tuple[Tensor, Tensor]]:
    """One epoch of shuffled batches, each image shifted by up to ``pad`` pixels and mirrored at
    random.

    The whole epoch is made at once, by a dozen kernels; it takes three times the memory of the
    images. The channels of a pixel lie side by side, as fast convolutions want them.

    Args:
        images: samples x channels x height x width, on the device of ``generator``.
        labels: one per image.
        size: images per batch; a short last batch is left out.
        generator: draws order, shifts and mirrors.
        pad: largest shift; the border is filled with zeros, as He et al. do.

    Example:
        >>> images, labels = torch.randn(10, 3, 8, 8), torch.arange(10)
        >>> batches = augmented_batches(images, labels, 4, torch.Generator().manual_seed(0))
        >>> len(batches), batches[0][0].shape
        (2, torch.Size([4, 3, 8, 8]))
    """
    device, (number, _, height, width) = images.device, images.shape
    used = number - number % size
    order = torch.randperm(number, generator=generator, device=device)[:used]
    shift = torch.randint(0, 2 * pad + 1, (2, used, 1), generator=generator, device=device)
    mirror = torch.rand(used, 1, generator=generator, device=device) < 0.5
    rows, columns = torch.arange(height, device=device), torch.arange(width, device=device)
    down, across = shift[0] + rows, shift[1] + torch.where(mirror, width - 1 - columns, columns)
    padded = F.pad(images, (pad, pad, pad, pad)).permute(0, 2, 3, 1)
    moved = padded[order[:, None, None], down[:, :, None], across[:, None, :]].permute(0, 3, 1, 2)
    return list(zip(moved.split(size), labels[order].split(size)))


def shuffled_batches(
    images: Tensor, labels: Tensor, size: int, generator: torch.Generator
) -> list[tuple[Tensor, Tensor]]:
    """One epoch of shuffled batches of the images as they are; a short last batch is left out.

    Example:
        >>> batches = shuffled_batches(
        ...     torch.randn(10, 3, 8, 8), torch.arange(10), 4, torch.Generator().manual_seed(0)
        ... )
        >>> len(batches), batches[0][0].shape
        (2, torch.Size([4, 3, 8, 8]))
    """
    used = len(labels) - len(labels) % size
    order = torch.randperm(len(labels), generator=generator, device=images.device)[:used]
    moved = images[order].contiguous(memory_format=torch.channels_last)
    return list(zip(moved.split(size), labels[order].split(size)))


@torch.no_grad()
def accuracy_and_loss(
    model: nn.Module, images: Tensor, labels: Tensor, *, size: int = 1000
) -> tuple[float, float]:
    """Share of right answers and mean cross-entropy in evaluation mode; the model's mode is
    restored.

    Example:
        >>> right, loss = accuracy_and_loss(
        ...     nn.Flatten(), torch.eye(4).view(4, 1, 2, 2), torch.arange(4)
        ... )
        >>> right, round(loss, 2)
        (1.0, 0.74)
    """
    mode = model.training
    model.eval()
    scores = torch.cat([model(part) for part in images.split(size)]).float()
    model.train(mode)
    right = (scores.argmax(1) == labels).double().mean()
    return float(right), float(F.cross_entropy(scores, labels))


def cifar_on(device: torch.device | str) -> dict[str, tuple[Tensor, Tensor]]:
    """CIFAR-10 on a device, normalised per channel: 45,000 training, 5,000 validation and 10,000
    test images.

    The archives are decoded once per machine; see
    :func:`~mindgap.lab.tasks.data.prepared.prepared`.
    """
    from mindgap.lab.tasks.data import cifar10
    from mindgap.lab.tasks.data.prepared import prepared

    def decode() -> dict[str, np.ndarray]:
        tables = {split: cifar10(split) for split in ("train", "test")}
        return {
            split: np.rint(t.features * 255).astype(np.uint8) for split, t in tables.items()
        } | {f"{split}_labels": t.labels for split, t in tables.items()}

    arrays = {
        name: torch.as_tensor(array, device=device)
        for name, array in prepared("cifar10", decode).items()
    }
    images = {
        name: arrays[name].float().div_(255).view(-1, 3, 32, 32) for name in ("train", "test")
    }
    mean, spread = (
        images["train"].mean((0, 2, 3), keepdim=True),
        images["train"].std((0, 2, 3), keepdim=True),
    )
    train, test = (images[name].sub_(mean).div_(spread) for name in ("train", "test"))
    labels = arrays["train_labels"]
    return {
        "train": (train[:45_000], labels[:45_000]),
        "validation": (train[45_000:], labels[45_000:]),
        "test": (test, arrays["test_labels"]),
    }


check_arguments(__name__)
