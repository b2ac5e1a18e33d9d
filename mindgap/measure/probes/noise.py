"""Gradient noise: how far the gradients of minibatches lie from their mean, in memory of two
gradients.

The papers draw histograms of ``‖g_b - ∇f‖`` over minibatches b and the empirical variance against
the number of minibatches (thesis, Fig. 4-1; acclip, Fig. 2). Only numbers are kept per minibatch:
the norm, its inner product with the mean, a fixed random projection and a few fixed coordinates;
never P x M numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mindgap.base.check import between, fail, flag, whole
from mindgap.base.objective import Objective
from mindgap.base.rng import torch_stream
from mindgap.base.tensors import as_real
from mindgap.measure.distributions import student_quantile
from mindgap.measure.gradients import add_to_mean, gradient_passes

#: Numbers handled at once on a CPU (sixteen times as many elsewhere, where launches cost more than
#: memory): what is above the two gradients stays near a few times this, whatever the model.
CHUNK = 2**16

#: Bytes that the gradients of a list of minibatches may take together on a CPU to be kept for the
#: second pass.
KEPT = 2**26


@dataclass(frozen=True)
class NoiseSample:
    """Numbers about M minibatch gradients g_b and their mean ḡ; the noise of b is n_b = g_b - ḡ."""

    norms: NDArray[np.float64]  # ‖n_b‖, shape (M,)
    dots: NDArray[np.float64]  # ⟨n_b, ḡ⟩, shape (M,)
    #: a fixed random sketch of n_b, shape (M, k); inner products are unbiased over the sketch's
    #: signs.
    projections: NDArray[np.float32]
    coordinates: NDArray[np.float32]  # n_b at c fixed random parameters, shape (M, c)
    coordinate_layer: NDArray[np.int64]  # parameter tensor of each of the c coordinates
    #: ‖n_b‖ within each parameter tensor, shape (M, tensors), or None
    layer_norms: NDArray[np.float32] | None
    mean_norm: float  # ‖ḡ‖, biased upward by the noise that is left in ḡ
    batch_size: int  # samples in a minibatch (0: they have no common size)
    left_out: int  # minibatches of another size than the first, not used (a short last one)
    loss: float  # mean loss over the minibatches

    @property
    def batches(self) -> int:
        """M, the number of minibatches."""
        return len(self.norms)

    @property
    def variance(self) -> float:
        """s² = Σ‖n_b‖² / (M - 1): unbiased for E‖g_b - ∇f‖² of one minibatch."""
        return float(np.sum(self.norms**2) / (self.batches - 1))

    @property
    def squared_mean(self) -> float:
        """‖ḡ‖² - s²/M: unbiased for ‖∇f‖², and so sometimes negative."""
        return self.mean_norm**2 - self.variance / self.batches

    def squared_mean_interval(self, level: float = 0.9) -> tuple[float, float]:
        """An interval for ‖∇f‖² around ``squared_mean``, by leaving out one minibatch at a time
        (jackknife); the whole line where there are fewer than three.

        Valid for noise of finite fourth moment; with heavier tails it is too narrow.
        """
        between("level", level, 0, 1, ends="()")
        count, squared_norm = self.batches, self.mean_norm**2
        if count < 3:
            return (-math.inf, math.inf)
        # With g_b = ḡ + n_b: ‖g_b‖² and ⟨g_b, ḡ⟩ from the kept scalars.
        squares = self.norms**2 + 2 * self.dots + squared_norm
        inner_products = self.dots + squared_norm
        # Without b: ‖Σ g_c‖² = ‖M ḡ - g_b‖² less Σ ‖g_c‖² is the sum of ⟨g_c, g_d⟩ over the
        # (M - 1)(M - 2) pairs of different minibatches, each of which is unbiased for ‖∇f‖².
        sums_without = count * count * squared_norm - 2 * count * inner_products + squares
        estimates = (sums_without - (squares.sum() - squares)) / ((count - 1) * (count - 2))
        error = math.sqrt((count - 1) / count * float(np.sum((estimates - estimates.mean()) ** 2)))
        reach = student_quantile(0.5 + level / 2, count - 1) * error
        return (self.squared_mean - reach, self.squared_mean + reach)


def noise_sample(
    objective: Objective,
    batches: Iterable[Any],
    *,
    seed: int = 0,
    train: bool | None = None,
    projections: int = 16,
    coordinates: int = 64,
    by_layer: bool = False,
) -> NoiseSample:
    """Measure the gradient noise over minibatches with the model held fixed: ‖g_b - ḡ‖ for every
    minibatch b.

    Two passes: one for the mean gradient ḡ, one for the differences. Memory is that of two
    gradients (the mean and the current one) and a few numbers per minibatch. Of a list of
    minibatches whose gradients take at most 64 MiB together on a CPU, each is computed once and
    kept for the second pass. The model is left as it was found. Source: thesis, section 4.2 and
    Fig. 4-1; acclip, section 2 and Fig. 2.

    Args:
        objective: model and loss (a mean over the samples of a batch).
        batches: minibatches of one size that can be passed over twice; those of another size than
            the first are left out, because their noise follows another law.
        seed: names the random numbers of dropout, of the projection and of the chosen coordinates.
        train: training (True) or evaluation (False) mode meanwhile; None keeps the model's own.
        projections: k, the length of the sketch of each difference.
        coordinates: c, how many single parameters to follow (at most as many as there are).
        by_layer: also keep one norm per parameter tensor and minibatch (4 bytes each).

    Example:
        >>> problem = Objective(
        ...     torch.nn.Linear(1, 1, bias=False), lambda m, b: (m.weight.sum() * b).mean()
        ... )
        >>> sample = noise_sample(problem, [torch.tensor([1.0]), torch.tensor([3.0])])
        >>> sample.norms.tolist(), sample.mean_norm, sample.variance, sample.squared_mean
        ([1.0, 1.0], 2.0, 2.0, 3.0)

    Differs from the paper: the norm of the mean gradient is corrected for the noise left in it.
    """
    whole("projections", projections, most=2**20)
    whole("coordinates", coordinates, most=2**30)
    flag("by_layer", by_layer)
    with gradient_passes(objective, batches, seed=seed, train=train) as passes:
        sketch = Sketch(passes.parameters, projections, coordinates, seed)
        size = used = left_out = 0  # the size is that of the first minibatch
        losses = 0.0
        mean: list[Tensor] = []  # in chunks
        keeps_gradients, kept_batches = _can_keep_gradients(passes.parameters, batches), []
        for item in passes.gradients():
            if item.index == 0:
                size = item.samples
            if item.samples != size:
                left_out += 1
                continue
            if keeps_gradients:
                kept_batches.append(item)
            used += 1
            losses += float(item.loss)
            mean = add_to_mean(mean, chunks(item.gradient), used)
            del item  # it holds a gradient, and the next one is about to be computed
        # The second pass: the mean is known, and each minibatch becomes a row of the results.
        if used < 2:
            fail("batches", "must give at least two batches of one size", f"{used}")
        norms, dots = np.empty(used), np.empty(used)
        projected = np.empty((used, projections), np.float32)
        followed = np.empty((used, len(sketch.layer)), np.float32)
        of_layers = np.empty((used, len(passes.parameters)), np.float32) if by_layer else None
        mean_norm = math.sqrt(sum(float(_inner(m, m)) for m in mean))
        row = 0
        for item in kept_batches or passes.gradients():
            if item.samples != size:
                continue
            norms[row], dots[row] = sketch.read(item.gradient, mean, projected[row], followed[row])
            if of_layers is not None:
                of_layers[row] = _norms_by_tensor(item.gradient, mean)
            row += 1
            del item
    return NoiseSample(
        norms=norms,
        dots=dots,
        projections=projected,
        coordinates=followed,
        coordinate_layer=sketch.layer,
        layer_norms=of_layers,
        mean_norm=mean_norm,
        batch_size=size,
        left_out=left_out,
        loss=losses / used,
    )


class Sketch:
    """A fixed linear map of a gradient to k numbers, and a fixed choice of c coordinates, in memory
    independent of P.

    Coordinate j of chunk i goes to number ``j mod k`` with sign ``s[j] * t[i, j mod k]``: random
    signs along a chunk, the same for all chunks, times random signs per chunk. Two different
    coordinates have uncorrelated signs, so that inner products of sketches are unbiased.

    Args:
        parameters: whose gradients are sketched.
        projections: k.
        coordinates: c, at most; one that is drawn twice counts once.
        seed: names the random numbers.

    Attributes:
        layer: place of the parameter tensor that each chosen coordinate lies in, shape (c,).
    """

    # ``_k`` is k, ``_signs`` is s, ``_chunk_signs`` is t; ``_places`` says for each chunk where the
    # chosen coordinates lie in it.

    def __init__(
        self, parameters: list[Any], projections: int, coordinates: int, seed: int
    ) -> None:
        self._k = projections  # may be 0: no sketch
        generator = torch_stream(seed, "sketch")
        lengths = [len(chunk) for chunk in chunks([p.detach() for p in parameters])]
        longest, k = max(lengths), max(projections, 1)
        device = parameters[0].device
        padded_length = math.ceil(longest / k) * k  # whole rows of k numbers
        # Bits 0 and 1 become signs -1 and 1.
        bits = torch.randint(0, 2, (padded_length,), generator=generator, dtype=torch.int8)
        self._signs = bits.mul_(2).sub_(1).to(device, torch.float32)  # s
        chunk_bits = torch.randint(0, 2, (len(lengths), k), generator=generator)
        self._chunk_signs = chunk_bits.mul_(2).sub_(1).to(device).float()  # t
        size = sum(lengths)  # coordinates of all parameters
        if size <= 2**16:
            chosen = torch.randperm(size, generator=generator)[: min(coordinates, size)]
            chosen = chosen.sort().values
        else:  # a permutation of so many parameters would take the memory of a gradient
            chosen = torch.randint(0, size, (coordinates,), generator=generator).unique()
        self._places: list[Tensor] = []  # per chunk, where the chosen coordinates lie in it
        start = 0  # of the chunk in the joined parameters
        for length in lengths:
            in_chunk = chosen[(chosen >= start) & (chosen < start + length)]
            self._places.append((in_chunk - start).to(device))
            start += length
        ends = np.cumsum([as_real(p).numel() for p in parameters])  # of each, in all joined
        self.layer = np.searchsorted(ends, chosen.numpy(), side="right").astype(np.int64)

    def read(
        self,
        gradient: list[Tensor],
        mean: list[Tensor],
        projected: NDArray[np.float32],
        followed: NDArray[np.float32],
    ) -> tuple[float, float]:
        """Norm of the noise ``gradient - mean``, and its inner product with the mean.

        Args:
            gradient: one tensor per parameter.
            mean: in chunks.
            projected: filled with the k numbers of the noise's sketch, shape (k,).
            followed: filled with the chosen coordinates of the noise, shape (c,).
        """
        device = mean[0].device
        square, along_mean = torch.zeros(2, dtype=torch.float64, device=device)
        sketch = torch.zeros(max(self._k, 1), dtype=torch.float64, device=device)
        coordinates = []
        for i, (chunk, mean_chunk) in enumerate(zip(chunks(gradient), mean, strict=True)):
            noise = chunk.to(mean_chunk.dtype) - mean_chunk
            square += _inner(noise, noise).to(device)
            along_mean += _inner(noise, mean_chunk).to(device)
            places = self._places[i].to(noise.device)
            coordinates.append(noise[places].to(device, torch.float32))
            if self._k:
                length = len(noise)
                rows = math.ceil(length / self._k)
                # Row r of k columns holds coordinates r k, r k + 1, ...: column j mod k takes j.
                # ``signed`` is the noise times s, with zeros up to whole rows.
                signed = noise.new_zeros(rows * self._k)
                signs = self._signs[:length].to(noise.device)
                torch.mul(noise, signs, out=signed[:length])
                sketch += signed.view(rows, self._k).sum(0).to(device) * self._chunk_signs[i]
        if self._k:
            projected[:] = sketch.cpu().numpy()
        followed[:] = torch.cat(coordinates).cpu().numpy()
        return math.sqrt(float(square)), float(along_mean)


def chunks(tensors: list[Tensor]) -> Iterator[Tensor]:
    """Flat pieces of the tensors, small ones joined and large ones split, in order; complex numbers
    as real pairs. A piece has at most ``CHUNK`` numbers on a CPU, and 16 times as many elsewhere.

    Example:
        >>> [len(piece) for piece in chunks([torch.ones(3), torch.ones(CHUNK + 1), torch.ones(2)])]
        [3, 65536, 1, 2]
    """
    limit = CHUNK if not tensors or tensors[0].device.type == "cpu" else 16 * CHUNK
    joined: list[Tensor] = []
    length = 0
    for tensor in tensors:
        flat = as_real(tensor).reshape(-1)
        if joined:
            alike = flat.dtype == joined[0].dtype and flat.device == joined[0].device
            if not alike or length + len(flat) > limit:  # the tensor cannot join them
                yield torch.cat(joined)
                joined, length = [], 0
        if len(flat) > limit:
            yield from flat.split(limit)
        elif len(flat):
            joined.append(flat)
            length += len(flat)
    if joined:
        yield torch.cat(joined)


def _can_keep_gradients(parameters: list[Any], batches: Iterable[Any]) -> bool:
    """Whether the gradients of all batches can be kept: the parameters lie on a CPU, the batches
    are a list, so that their number is known, and the gradients take at most ``KEPT`` bytes.
    """
    if not isinstance(batches, (list, tuple)) or any(p.device.type != "cpu" for p in parameters):
        return False
    return len(batches) * sum(p.numel() * p.element_size() for p in parameters) <= KEPT


def _inner(a: Tensor, b: Tensor) -> Tensor:
    """Inner product (0-dim) of two flat tensors, accumulated in float64, where products of float32
    numbers are exact.
    """
    wide = a.double()
    return torch.dot(wide, wide if b is a else b.double())  # a tensor with itself is converted once


def _norms_by_tensor(gradient: list[Tensor], mean: list[Tensor]) -> NDArray[np.float32]:
    """‖g - ḡ‖ within each parameter tensor, shape (tensors,). The chunks of the mean are cut again
    at the borders of the tensors.

    Args:
        gradient: g, one tensor per parameter.
        mean: ḡ, in chunks.
    """
    squares: list[float] = []
    mean_chunks, chunk, used_of_chunk = iter(mean), torch.empty(0), 0
    for tensor in gradient:
        flat = as_real(tensor).reshape(-1)
        used, square = 0, 0.0
        while used < len(flat):
            if used_of_chunk == len(chunk):
                chunk, used_of_chunk = next(mean_chunks), 0
            # As many numbers as tensor and chunk both have left.
            count = min(len(flat) - used, len(chunk) - used_of_chunk)
            mean_part = chunk[used_of_chunk : used_of_chunk + count]
            noise = flat[used : used + count].to(chunk.dtype) - mean_part
            square += float(_inner(noise, noise))
            used, used_of_chunk = used + count, used_of_chunk + count
        squares.append(square)
    return np.sqrt(np.asarray(squares, np.float64)).astype(np.float32)
