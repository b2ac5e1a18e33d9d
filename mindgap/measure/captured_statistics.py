"""The four quantities of (6.2) on a device, one wait per reading: CUDA graphs of the gradient and
the Hessian product.

A batch is a minibatch as in training, so that batch normalisation has its usual statistics. The
noise of one sample is that of minibatches times the root of their size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from mindgap.base.check import fail
from mindgap.base.checked import checked, checked_class
from mindgap.base.rng import torch_stream
from mindgap.measure.captured import CapturedGradient, as_found, tf32
from mindgap.measure.probes.curvature import lanczos

Batch = tuple[Tensor, ...]


@dataclass(frozen=True)
class BatchStatistics:
    """What the gradients of n batches of b samples each say.

    Attributes:
        samples: m = n·b.
        loss: mean loss.
        gradient_norm: norm of the mean gradient, too large on average.
        gradient_square: unbiased estimate of the squared norm for samples that were drawn
            independently; it may be negative.
        noise: sigma of (6.2): root mean squared distance of one sample's gradient from the mean.
    """

    samples: int
    loss: float
    gradient_norm: float
    gradient_square: float
    noise: float


class _CapturedSums(CapturedGradient):
    """Computes the loss of a batch and then calls ``add(loss, parameters)``, which adds to sums in
    place; on CUDA both in one graph.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Callable[..., Tensor],
        batch: Batch,
        *,
        graph: bool,
        add: Callable[[Tensor, list[nn.Parameter]], None],
    ) -> None:
        self._add = add
        super().__init__(model, loss, batch, graph=graph)

    def _backward(self, batch: Batch) -> Tensor:
        """Forward pass of a batch, then ``add``, which differentiates; returns the loss. The parent
        captures this in place of its own backward pass.
        """
        loss = self._loss(self._model, *batch)
        self._add(loss, self._parameters)
        return loss.detach()


class CapturedStatistics:
    """Loss, gradient norm, noise and sharpness of a model at its point; the model is left as it was
    found.

    Matrix products and convolutions are TF32 on CUDA, sums are float32 or float64.

    Args:
        model: on the device; the graphs read its parameters in place.
        loss: ``loss(model, *batch)``, a mean over the samples of the batch.
        training: read in training mode (batch normalisation by the batch, dropout) or in evaluation
            mode.
        counts: tensors that ``loss`` adds to in place; they are zero at the start of each reading.
        graph: False runs without CUDA graphs.

    Example:
        >>> model = nn.Linear(1, 1, bias=False).double()
        >>> reader = CapturedStatistics(
        ...     model, lambda m, x: 0.5 * (m.weight.sum() - x).square().mean()
        ... )
        >>> with torch.no_grad():
        ...     _ = model.weight.fill_(0.0)
        >>> batches = [
        ...     (torch.tensor([[1.0], [3.0]]).double(),),
        ...     (torch.tensor([[3.0], [5.0]]).double(),),
        ... ]
        >>> reader.read(batches)[-1].gradient_norm, round(reader.sharpness(batches)[0], 6)
        (3.0, 1.0)

    Source: thesis, (6.2) and 6.6.2.
    """

    # ``_gradient`` and ``_hessian`` are captured passes over a batch, made when first used. The one
    # adds to ``_gradient_sum`` and ``_number_sums`` (loss, squared norm of the gradient), the other
    # adds the product with ``_vector`` to ``_product_sum``.

    def __init__(
        self,
        model: nn.Module,
        loss: Callable[..., Tensor],
        *,
        training: bool = True,
        counts: Sequence[Tensor] = (),
        graph: bool = True,
    ) -> None:
        self._model, self._loss, self._graph = model, loss, graph
        self._training, self._counts = training, list(counts)
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        #: sum of the gradients, vector of the Hessian products, sum of these products
        self._gradient_sum, self._vector, self._product_sum = (
            [torch.zeros_like(p) for p in self._parameters] for _ in range(3)
        )
        #: sums of the losses and of the gradients' squared norms
        self._number_sums = torch.zeros(2, dtype=torch.float64, device=self._parameters[0].device)
        self._gradient: _CapturedSums | None = None
        self._hessian: _CapturedSums | None = None

    def _add_gradient(self, value: Tensor, parameters: list[nn.Parameter]) -> None:
        """Add loss, gradient and squared gradient norm of a batch to the sums, in place.

        Args:
            value: loss of the batch with its graph.
        """
        gradient = torch.autograd.grad(value, parameters, materialize_grads=True)
        with torch.no_grad():
            torch._foreach_add_(self._gradient_sum, gradient)
            square = torch.stack(torch._foreach_norm(gradient)).double().square().sum()
            self._number_sums.add_(torch.stack([value.detach().double(), square]))

    def _add_product(self, value: Tensor, parameters: list[nn.Parameter]) -> None:
        """Add the product of a batch's Hessian with ``_vector`` to ``_product_sum``, in place.

        Args:
            value: loss of the batch with its graph.
        """
        gradient = torch.autograd.grad(value, parameters, create_graph=True, materialize_grads=True)
        # H v is the derivative of <gradient, v>.
        parts = [(g * v).sum() for g, v in zip(gradient, self._vector, strict=True)]
        product = torch.autograd.grad(torch.stack(parts).sum(), parameters, materialize_grads=True)
        with torch.no_grad():
            torch._foreach_add_(self._product_sum, product)

    def read(self, batches: Sequence[Batch], prefixes: Sequence[int] = ()) -> list[BatchStatistics]:
        """The statistics of the first k batches, for each k of ``prefixes`` and for all.

        The device is waited for once, at the end. ``_gradient_sum`` then holds the sum over all.

        Args:
            batches: of one shape.
            prefixes: numbers of batches; those not above 0 are left out. Of one batch alone the
                noise and the unbiased square are NaN.

        Returns:
            The statistics by growing k, all batches last.

        Raises:
            RuleError: fewer than two batches.
        """
        if len(batches) < 2:
            fail("batches", "must be at least two", len(batches))
        counts = sorted({count for count in prefixes if count > 0} | {len(batches)})
        # Per count: mean loss, mean squared norm of a batch's gradient, norm of the mean gradient.
        means = []
        with self._reading_mode():
            if self._gradient is None:
                self._gradient = _CapturedSums(
                    self._model, self._loss, batches[0], graph=self._graph, add=self._add_gradient
                )
            torch._foreach_zero_([*self._gradient_sum, self._number_sums, *self._counts])
            for count, batch in enumerate(batches, 1):
                self._gradient(*batch)
                if count in counts:
                    norms = torch.stack(torch._foreach_norm(self._gradient_sum)).double()
                    norm_of_sum = norms.square().sum().sqrt().reshape(1)
                    means.append(torch.cat([self._number_sums, norm_of_sum]) / count)
        size, numbers = len(batches[0][0]), torch.stack(means).tolist()  # the one wait
        return [_statistics(n, size, *row) for n, row in zip(counts, numbers, strict=True)]

    def gradient(self, batches: Sequence[Batch]) -> Tensor:
        """The mean gradient over at least two batches, flat."""
        self.read(batches)
        return torch.cat([part.reshape(-1) for part in self._gradient_sum]) / len(batches)

    def loss(self, batch: Batch) -> float:
        """The loss of one batch of any size."""
        with self._reading_mode(), torch.no_grad():
            return float(self._loss(self._model, *batch))

    def sharpness(
        self,
        batches: Sequence[Batch],
        *,
        tol: float = 0.02,
        most: int = 30,
        start: Tensor | None = None,
        seed: int = 0,
    ) -> tuple[float, Tensor]:
        """The largest modulus of an eigenvalue of H, the Hessian of the mean loss over the batches,
        by Lanczos.

        Args:
            batches: of one shape.
            tol: relative error that is good enough.
            most: Hessian products at most.
            start: an eigenvector found before, flat, for fewer products.
            seed: of the random start.

        Returns:
            That modulus, ‖H‖ of (6.2), and the eigenvector, flat.
        """
        sizes = [p.numel() for p in self._parameters]  # where a flat vector is cut

        def product(flat: Tensor) -> Tensor:
            """The product of the mean Hessian over ``batches`` and a flat vector."""
            with torch.no_grad():
                for vector_part, part in zip(self._vector, flat.split(sizes), strict=True):
                    vector_part.copy_(part.view_as(vector_part))
            if self._hessian is None:
                self._hessian = _CapturedSums(
                    self._model, self._loss, batches[0], graph=self._graph, add=self._add_product
                )
            torch._foreach_zero_(self._product_sum)
            for batch in batches:
                self._hessian(*batch)
            return torch.cat([part.reshape(-1) for part in self._product_sum]) / len(batches)

        # Two random vectors, or the eigenvector found before and one random vector as long as it.
        starts = torch.randn(
            2 if start is None else 1, sum(sizes), generator=torch_stream(seed, "lanczos")
        ).to(self._parameters[0])
        if start is not None:
            starts = torch.stack([start, starts[0] / starts[0].norm()])
        with self._reading_mode():
            largest = lanczos(product, starts, tol=tol, max_products=most).largest
        return abs(largest.value), largest.vector

    @contextmanager
    def _reading_mode(self) -> Iterator[None]:
        """A block with TF32 and all modules in the mode for reading; gradients, buffers and modes
        are put back afterwards.
        """
        with as_found(self._model), tf32(True), torch.enable_grad():
            self._model.train(self._training)
            yield


def _statistics(count: int, size: int, loss: float, square: float, norm: float) -> BatchStatistics:
    """The statistics of ``count`` batches of ``size`` samples. Of one batch alone the noise and the
    unbiased square are NaN.

    The variance of a batch's gradient is (square - norm²) n/(n - 1) over n batches; norm² exceeds
    the true squared norm by variance/n on average.

    Args:
        loss, square: means over the batches of the loss and of the gradient's squared norm.
        norm: of the mean gradient.
    """
    # Of a batch's gradient.
    variance = max(square - norm**2, 0.0) * count / (count - 1) if count > 1 else math.nan
    return BatchStatistics(
        samples=count * size,
        loss=loss,
        gradient_norm=norm,
        gradient_square=norm**2 - variance / count,
        noise=math.sqrt(variance * size),
    )


# Not ``BatchStatistics``: its checks would refuse the NaN of a batch alone.
checked_class(CapturedStatistics, checked)
