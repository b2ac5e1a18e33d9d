"""Gradient passes: the same batches, the same random numbers and the same model state in every
pass.

Several published estimators compare gradients taken on *different* random chunks, in different
dropout masks or with running averages that moved in between, and so measure their own sampling
error. Here a pass is repeatable: batch ``i`` is drawn and evaluated under the seed of ``(seed,
i)``, buffers are rewound before every batch, and the batches of a later pass are compared with
those of the first.
"""

from __future__ import annotations

import math
import time
import zlib
from array import array
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mindgap.base.batches import plain_tree, tensors_in
from mindgap.base.check import RuleError, fail, flag, shortened
from mindgap.base.objective import Objective
from mindgap.base.restoring import Guard, seed_everything, undisturbed
from mindgap.base.rng import stream_seed


class NonFiniteError(RuleError):
    """A loss or a gradient was not finite, so that nothing can be measured there."""


class OutOfTimeError(RuleError):
    """A measurement did not end within its time."""


class _TimeLimit(NamedTuple):
    """When the present block of ``time_limit`` must stop."""

    end: float  # moment of ``time.perf_counter``
    seconds: float  # that the block was given


_time_limit: ContextVar[_TimeLimit | None] = ContextVar("_time_limit", default=None)


@contextmanager
def time_limit(seconds: float | None) -> Iterator[None]:
    """End passes, products and loops over samples inside the block with an ``OutOfTimeError`` after
    so many seconds; None sets no limit.

    The time is looked at before every batch, product and sample, so that one of these can run over.
    A limit inside another one takes its place.

    Example:
        >>> with time_limit(0.0):
        ...     check_time()
        Traceback (most recent call last):
        mindgap.measure.gradients.OutOfTimeError: seconds must be more: none were left for ...
    """
    if seconds is None:
        yield
        return
    token = _time_limit.set(_TimeLimit(time.perf_counter() + seconds, seconds))
    try:
        yield
    finally:
        _time_limit.reset(token)


def check_time() -> None:
    """Raise ``OutOfTimeError`` if the time of the present block of ``time_limit`` has passed."""
    limit = _time_limit.get()
    if limit is not None and time.perf_counter() >= limit.end:
        sentence = f"this part did not end within its {limit.seconds:.2g} s"
        if limit.seconds <= 0:
            sentence = "none were left for this part"
        raise OutOfTimeError(f"seconds must be more: {sentence}")


def reason(error: Exception) -> str:
    """An error in one line of at most 200 characters; its class too, unless it is one of ours.

    Example:
        >>> reason(RuleError("lr must be positive, got -1")), reason(KeyError("x"))
        ('lr must be positive, got -1', "KeyError: 'x'")
    """
    text = next(iter(str(error).strip().splitlines()), "no message")
    return shortened(text if isinstance(error, RuleError) else f"{type(error).__name__}: {text}")


@dataclass(frozen=True)
class BatchValue:
    """One batch of a pass."""

    index: int  # place in the pass, from 0
    batch: Any  # the batch itself
    samples: int  # in the batch, by ``samples_in``
    loss: Tensor  # 0-dim tensor; in ``values`` with its graph, in ``gradients`` without
    #: one tensor per parameter (empty in ``values``), valid until the next batch is asked for
    gradient: list[Tensor]


class GradientPasses:
    """Repeatable passes over an objective's batches, made by ``gradient_passes``."""

    # ``_guard`` puts loader, buffers and parameters back; ``_checksums`` are those of the batches
    # of the first pass, and ``_batch_count`` is their number, None until that pass has ended.

    def __init__(
        self, objective: Objective, batches: Iterable[Any], guard: Guard, seed: int
    ) -> None:
        self.objective, self.batches, self.parameters = objective, batches, objective.parameters
        self._guard, self._seed = guard, seed
        self._checksums = array("Q")  # of the batches of the first pass; "Q" is 64 bits, no sign
        self._batch_count: int | None = None  # known after the first pass

    def gradients(self) -> Iterator[BatchValue]:
        """Loss and gradient of every batch, one batch's gradient in memory at a time.

        Parameters the loss does not depend on get a zero gradient.

        Raises:
            NonFiniteError: when a loss or a gradient is NaN or infinite.
            RuleError: when the batches differ from those of an earlier pass, or the loader is
                empty.
        """
        for item in self.values():
            if not item.loss.requires_grad:
                fail(
                    "loss",
                    "must depend on a parameter that takes a gradient",
                    f"a constant on batch {item.index}",
                )
            with torch.inference_mode(False):
                derivatives = torch.autograd.grad(item.loss, self.parameters, allow_unused=True)
            gradient = with_zeros(derivatives, self.parameters)
            if not _all_finite(gradient):
                raise NonFiniteError(
                    f"gradient must be finite, got NaN or infinity on batch {item.index}"
                )
            yield BatchValue(item.index, item.batch, item.samples, item.loss.detach(), gradient)
            del derivatives, gradient  # or two would be alive while the next one is computed

    def values(self) -> Iterator[BatchValue]:
        """The loss of every batch with its graph, for callers that differentiate it themselves
        (Hessian products). ``gradients`` is the same with gradients.

        The loader is rewound before the pass, buffers, modes and random numbers before every batch.

        Raises:
            NonFiniteError: when a loss is NaN or infinite.
            RuleError: when the batches differ from those of an earlier pass, or the loader is
                empty.
        """
        self._guard.rewind_loader()
        seed_everything(stream_seed(self._seed, "pass"))
        try:
            iterator, index = iter(self.batches), 0
        except TypeError as error:  # an __iter__ that gives no iterator
            raise RuleError(f"batches must be an iterable of batches, got {error}") from error
        while True:
            check_time()
            # One seed per batch, for drawing it (augmentations) and for evaluating it (dropout): a
            # batch's gradient then does not depend on how much randomness the batches before it
            # used.
            seed = stream_seed(self._seed, "batch", index)
            seed_everything(seed)
            # The modes are set around each evaluation, not around the loop: a generator would leak
            # them to its user.
            with torch.inference_mode(False), torch.enable_grad():
                try:
                    batch = next(iterator)
                except StopIteration:
                    break
                self._check_same(index, batch)
                self._guard.rewind_buffers()
                modes = [(module, module.training) for module in self.objective.model.modules()]
                seed_everything(seed)
                loss = self._loss_of(index, batch)
                for module, training in modes:  # the loss may have switched them
                    if module.training is not training:
                        module.training = training
            yield BatchValue(index, batch, samples_in(batch), loss, [])
            index += 1
        if index == 0:
            fail("batches", "must give at least one batch", self.batches)
        if self._batch_count is not None and index != self._batch_count:
            fail(
                "batches",
                f"must give the same {self._batch_count} batches in every pass",
                f"{index} batches",
            )
        self._batch_count = index

    @contextmanager
    def moved(self, direction: list[Tensor], scale: float = 1.0) -> Iterator[None]:
        """A block in which the parameters stand at ``x + scale * direction``; they return to x bit
        for bit, also after an error. Needs ``gradient_passes(..., move=True)``.

        Args:
            direction: one tensor per parameter.
        """
        if not self._guard.may_move:
            fail("move", "must be True in gradient_passes for parameters to be moved", False)
        try:
            with torch.no_grad():
                for p, d in zip(self.parameters, direction, strict=True):
                    p.add_(d.to(p.dtype), alpha=scale)
            yield
        finally:
            self._guard.restore_parameters()

    def _loss_of(self, index: int, batch: Any) -> Tensor:
        """The loss of a batch, with its graph.

        Args:
            index: place of the batch in the pass, for errors.

        Raises:
            NonFiniteError: the loss is not finite.
            RuleError: it cannot be computed, because the batch holds no samples or lies on another
                device, or because the model is on the meta device. Other errors of the loss pass.
        """
        try:
            loss = self.objective.value(batch)
        except RuleError:
            raise
        except (TypeError, AttributeError, ValueError, RuntimeError, IndexError, KeyError) as error:
            if not any(t.ndim for t in tensors_in(batch)):  # no tensor with an axis of samples
                raise RuleError(
                    f"batches must be what the loss takes, got {batch!r:.100} as batch {index}: "
                    f"{error}"
                ) from error
            devices = {str(p.device) for p in self.parameters}
            other_devices = {str(t.device) for t in tensors_in(batch)} - devices
            if other_devices and "device" in str(error):
                raise RuleError(
                    f"batches must lie on the model's device {', '.join(sorted(devices))}, got a "
                    f"batch on {', '.join(sorted(other_devices))}"
                ) from error
            raise
        if loss.device.type == "meta":
            fail("model", "must hold numbers", "parameters on the meta device")
        number = float(loss.detach())
        if not math.isfinite(number):
            raise NonFiniteError(
                f"loss must be finite on every batch, got {number} on batch {index}"
            )
        return loss

    def _check_same(self, index: int, batch: Any) -> None:
        """Append the checksum of the batch at place ``index`` to ``_checksums`` in the first pass;
        in later passes an error where it differs from the one kept.
        """
        checksum = fingerprint(batch)
        if index == len(self._checksums) and self._batch_count is None:  # the first pass
            self._checksums.append(checksum)
        elif index >= len(self._checksums) or self._checksums[index] != checksum:
            fail(
                "batches",
                "must be the same in every pass (give a list, or a loader that does not shuffle "
                "on its own)",
                f"another batch {index} than before from {type(self.batches).__name__}",
            )


@contextmanager
def gradient_passes(
    objective: Objective,
    batches: Iterable[Any],
    *,
    seed: int = 0,
    train: bool | None = None,
    move: bool = False,
) -> Iterator[GradientPasses]:
    """Open repeatable gradient passes; the model is left exactly as it was found, also after an
    error or Ctrl-C.

    A ``DataLoader`` that shuffles repeats its order, because its generators and the global random
    states are rewound before every pass. Dropout repeats its masks. Batch norm in training mode
    uses each batch's own statistics, as in training, and its running averages are put back.

    Args:
        batches: anything that can be iterated over more than once: a list, a ``DataLoader``.
        seed: names the random numbers used while measuring.
        train: put the model into training (True) or evaluation (False) mode meanwhile; None leaves
            it as it is.
        move: keep a copy of the parameters so that ``moved`` may be used.

    Raises:
        RuleError: no batches, an iterator that can be used only once, no parameter that takes
            gradients, another device, or batches that change between passes. NonFiniteError for a
            NaN loss.

    Example:
        >>> problem = Objective(
        ...     torch.nn.Linear(1, 1, bias=False), lambda m, b: (m.weight.sum() * b).mean()
        ... )
        >>> with gradient_passes(problem, [torch.tensor([1.0]), torch.tensor([3.0])]) as passes:
        ...     print(
        ...         [float(item.gradient[0]) for item in passes.gradients()],
        ...         float(passes_mean(passes)[0]),
        ...     )
        [1.0, 3.0] 2.0
    """
    if not isinstance(objective, Objective):
        fail("objective", "must be a mindgap Objective", objective)
    if not objective.parameters:
        fail("model", "must have a parameter that takes gradients", "none with requires_grad")
    if not hasattr(batches, "__iter__"):
        fail("batches", "must be an iterable of batches", batches)
    # Not by iter(batches), which would already draw from a loader's generator.
    if hasattr(batches, "__next__"):
        fail("batches", "must allow more than one pass (give a list or a loader)", batches)
    if isinstance(batches, (str, bytes, dict)) or (
        isinstance(batches, Tensor) and batches.ndim == 0
    ):
        fail("batches", "must be a list of batches or a loader", batches)
    if train is not None:
        flag("train", train)
    stream_seed(seed)  # an error for a bad seed, before anything is done
    with undisturbed(objective.model, batches, parameters=flag("move", move)) as guard:
        if train is not None:
            objective.model.train(train)
        yield GradientPasses(objective, batches, guard, seed)


def passes_mean(passes: GradientPasses) -> list[Tensor]:
    """The mean of the batches' gradients in one pass, one tensor per parameter; every batch has
    equal weight.

    It is kept as a running mean in the parameters' precision (float32 for narrower types), which
    takes the memory of one gradient.
    """
    mean: list[Tensor] = []
    for batch in passes.gradients():
        mean = add_to_mean(mean, batch.gradient, batch.index + 1)
    return mean


def _all_finite(tensors: list[Tensor]) -> bool:
    """Whether no entry is NaN or infinite: the largest modulus of each tensor shows either. Empty
    tensors count as finite.
    """
    peaks = torch._foreach_norm([t.detach() for t in tensors if t.numel()], ord=math.inf)
    on_cpu = torch.stack([peak.cpu() if peak.is_cuda else peak for peak in peaks])
    return all(math.isfinite(peak) for peak in on_cpu.tolist())


def with_zeros(derivatives: Sequence[Tensor | None], parameters: Sequence[Tensor]) -> list[Tensor]:
    """One dense tensor per parameter; zero where the loss does not depend on it (None).

    Example:
        >>> with_zeros([None, torch.ones(1).to_sparse()], [torch.ones(2), torch.ones(1)])
        [tensor([0., 0.]), tensor([1.])]
    """
    # Those of ``nn.Embedding(sparse=True)`` are sparse.
    dense = [d if d is None or d.layout == torch.strided else d.to_dense() for d in derivatives]
    return [torch.zeros_like(p) if d is None else d for d, p in zip(dense, parameters, strict=True)]


def add_to_mean(mean: list[Tensor], gradient: Iterable[Tensor], count: int) -> list[Tensor]:
    """Running mean after ``count`` gradients: ``mean += (gradient - mean) / count``.

    Args:
        mean: of the gradients before, changed in place; empty before the first gradient, of which a
            copy in at least float32 is returned.
        gradient: one tensor per tensor of the mean (parameters, or chunks of them).
        count: number of gradients, this one included.

    Example:
        >>> mean = add_to_mean([], [torch.tensor([2.0])], 1)
        >>> add_to_mean(mean, [torch.tensor([4.0])], 2)
        [tensor([3.])]
    """
    if not mean:
        # Types narrower than float32 are widened to it.
        return [
            part.to(torch.promote_types(part.dtype, torch.float32), copy=True) for part in gradient
        ]
    for mean_part, part in zip(mean, gradient, strict=True):
        mean_part.lerp_(part.to(mean_part.dtype), 1.0 / count)
    return mean


def samples_in(batch: Any) -> int:
    """Number of samples in a batch: the length that most of its own tensors have along their first
    axis (of equally many that of the first), or, where all are nested deeper, of these; without
    tensors that of its first list, or of the batch if it is a list of samples, else 1.

    Example:
        >>> samples_in({"epoch": torch.tensor(3), "input": torch.ones(5, 2)}), samples_in(3.0)
        (5, 1)
        >>> edges, nodes, targets = torch.ones(2, 9), torch.ones(6, 4), torch.ones(6)
        >>> samples_in((edges, nodes, targets)), samples_in({"text": ["a", "b", "c"]})
        (6, 3)
        >>> boxes = [{"boxes": torch.ones(3, 4), "labels": torch.ones(3)}] * 8
        >>> samples_in((torch.ones(8, 3, 4, 4), boxes)), samples_in([("a", 1), ("b", 2), ("c", 3)])
        (8, 3)
    """
    plain = plain_tree(batch)
    nested = isinstance(plain, (dict, list, tuple))
    entries = list(plain.values()) if isinstance(plain, dict) else plain if nested else [plain]
    own = [entry for entry in entries if not isinstance(entry, (dict, list, tuple))]
    for level in (own, batch):
        lengths = [int(tensor.shape[0]) for tensor in tensors_in(level) if tensor.ndim]
        if lengths:
            return max(lengths, key=lengths.count)
    # Of a list each tuple is a sample, of a tuple or a dict a column.
    columns = list if isinstance(plain, list) else (list, tuple)
    lists = [entry for entry in entries if isinstance(entry, columns)]
    return len(lists[0]) if lists else len(plain) if isinstance(plain, list) else 1


def _dense_parts(batch: Any) -> Iterator[Tensor]:
    """Every tensor of a batch; of a sparse one the tensors that hold its places and values."""
    for tensor in tensors_in(batch):
        if tensor.layout is torch.sparse_coo:
            coalesced = tensor.detach().coalesce()
            yield from (coalesced.indices(), coalesced.values())
        elif tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
            yield from (tensor.crow_indices(), tensor.col_indices(), tensor.values())
        elif tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
            yield from (tensor.ccol_indices(), tensor.row_indices(), tensor.values())
        else:
            yield tensor


def fingerprint(batch: Any) -> int:
    """A checksum of the numbers in a batch's tensors, to notice a loader that gives other batches
    in the next pass; of an empty or a meta tensor the shape counts. On a GPU it is another number
    than on a CPU.

    Example:
        >>> fingerprint([torch.ones(2)]) == fingerprint([torch.ones(2)])
        True
        >>> fingerprint(torch.ones(2)) == fingerprint(torch.zeros(2))
        False
    """
    checksum = 0
    for tensor in _dense_parts(batch):
        flat = tensor.detach().contiguous().reshape(-1)
        data: Any
        if flat.is_meta or flat.numel() == 0:
            data = repr(tuple(tensor.shape)).encode()
        elif flat.device.type == "cpu":
            data = flat.view(torch.uint8).numpy().data
        else:  # the bytes stay on the device: their sum weighted by position, exact in integers
            values = flat.view(torch.uint8).long()
            weights = torch.arange(1, len(values) + 1, device=values.device)
            data = str(int((values * weights).sum())).encode()
        checksum = zlib.crc32(data, checksum)
    return checksum
