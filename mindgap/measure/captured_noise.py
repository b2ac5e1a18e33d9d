"""Noise of many minibatch gradients on a GPU: forward, backward and the norm of the noise in one
CUDA graph.

Numbers stay on the device until the last minibatch is done, so that nothing waits for it in
between.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from mindgap.base.check import whole
from mindgap.base.checked import check_arguments
from mindgap.base.objective import Objective
from mindgap.base.rng import torch_stream
from mindgap.measure.captured import CapturedGradient

#: (generator, size) -> a minibatch of so many independent samples, as a tuple of tensors.
Draw = Callable[[torch.Generator, int], Any]

#: Minibatches that are drawn at once.
DRAWN = 256


@dataclass(frozen=True)
class HeldOutNoise:
    """Noise n_b = g_b - ḡ of M minibatches, with ḡ the mean gradient of other minibatches."""

    norms: NDArray[np.float64]  # ‖n_b‖, shape (M,)
    coordinates: NDArray[np.float32]  # n_b at c fixed random parameters, shape (M, c)
    coordinate_layer: NDArray[np.int64]  # which parameter tensor each of them belongs to
    loss: float  # mean loss over the minibatches
    reference: int  # K, the number of minibatches in ḡ

    @property
    def variance(self) -> float:
        """The mean of ‖n_b‖² over 1 + 1/K: unbiased for E‖g_b - ∇f‖² of one minibatch."""
        return float(np.mean(self.norms**2) / (1 + 1 / self.reference))


class _ReadGradient(CapturedGradient):
    """A captured gradient after which ``then(loss, gradients)`` runs inside the same graph."""

    def __init__(
        self,
        model: nn.Module,
        loss: Callable[..., Tensor],
        batch: tuple[Tensor, ...],
        then: Callable[[Tensor, list[Tensor]], None],
    ) -> None:
        self._then = then
        super().__init__(model, loss, batch)

    def _backward(self, batch: tuple[Tensor, ...]) -> Tensor:
        value = super()._backward(batch)
        with torch.no_grad():
            self._then(value, [p.grad for p in self._parameters if p.grad is not None])
        return value


def captured_noise(
    objective: Objective,
    draw: Draw,
    generator: torch.Generator,
    *,
    minibatches: int,
    reference: int,
    batch: int,
    coordinates: int = 0,
    seed: int = 0,
) -> HeldOutNoise:
    """Measure ‖g_b - ḡ‖ for ``minibatches`` minibatches, ḡ being the mean over ``reference`` other
    ones.

    A held-out mean adds the same ‖ḡ - ∇f‖², on average E‖n_b‖²/K, to all squared norms: 0.05 % at K
    = 2,000. Gradients are float32; sums of squares are float32 within a parameter tensor and
    float64 over the tensors. The model is left as it was found.

    Args:
        objective: model and loss on one device; the loss depends on every parameter.
        draw: ``draw(generator, size)``, a minibatch of so many independent samples.
        generator: draws minibatches; of the same device.
        minibatches: M.
        reference: K.
        batch: samples in a minibatch.
        coordinates: c, how many single parameters to follow (a parameter drawn twice counts once).
        seed: names the random numbers that choose them.

    Example:
        >>> noise = captured_noise(
        ...     Objective(nn.Linear(1, 1, bias=False), lambda m, b: (m.weight * b[0]).mean()),
        ...     lambda g, n: (torch.randn(n, 1, generator=g),),
        ...     torch.Generator().manual_seed(0),
        ...     minibatches=200,
        ...     reference=50,
        ...     batch=4,
        ... )
        >>> abs(noise.variance - 1 / 4) < 0.1  # of a mean of four numbers of variance 1
        True

    Source: thesis, section 4.2 and Fig. 4-1; acclip, section 2 and Fig. 2.
    """
    model, parameters = objective.model, objective.parameters
    device = parameters[0].device
    kept = [(p, p.grad) for p in parameters], [(b, b.clone()) for b in model.buffers()]
    mean = [torch.zeros_like(p) for p in parameters]
    norms, losses = (
        torch.zeros(whole("minibatches", minibatches, least=4), device=device) for _ in range(2)
    )
    layer, picks = _chosen(parameters, coordinates, seed)
    picked = torch.zeros(minibatches, len(layer), device=device)
    place = torch.zeros(1, dtype=torch.long, device=device)

    def add(value: Tensor, gradient: list[Tensor]) -> None:
        torch._foreach_add_(mean, gradient)

    def read(value: Tensor, gradient: list[Tensor]) -> None:
        noise = torch._foreach_sub(gradient, mean)
        norm = torch.stack(torch._foreach_norm(noise)).double().square().sum().sqrt()
        norms.index_copy_(0, place, norm.float().unsqueeze(0))
        losses.index_copy_(0, place, value.float().reshape(1))
        if len(layer):
            parts = [noise[i].reshape(-1).index_select(0, inside) for i, inside in picks.items()]
            picked.index_copy_(0, place, torch.cat(parts).unsqueeze(0))
        place.add_(1)

    whole("reference", reference, least=2)
    _replay(objective, _minibatches(draw, generator, reference, batch), add, mean)
    torch._foreach_div_(mean, float(reference))
    _replay(objective, _minibatches(draw, generator, minibatches, batch), read, [place])
    for p, gradient in kept[0]:
        p.grad = gradient
    for buffer, value in kept[1]:
        buffer.copy_(value)
    return HeldOutNoise(
        norms.double().cpu().numpy(),
        picked.cpu().numpy(),
        layer,
        float(losses.double().mean()),
        reference,
    )


def _replay(
    objective: Objective,
    minibatches: Iterator[tuple[Any, ...]],
    then: Callable[[Tensor, list[Tensor]], None],
    sums: list[Tensor],
) -> None:
    """Run ``then`` after the gradient of each minibatch; ``sums`` are zero at the start."""
    first = next(minibatches)
    gradient = _ReadGradient(objective.model, lambda m, *b: objective.loss(m, b), first, then)
    torch._foreach_zero_(sums)  # the warm-up before the capture has added to them
    gradient(*first)
    for minibatch in minibatches:
        gradient(*minibatch)


def _minibatches(
    draw: Draw, generator: torch.Generator, count: int, size: int
) -> Iterator[tuple[Any, ...]]:
    """``count`` fresh minibatches of ``size`` samples, drawn ``DRAWN`` at a time."""
    for start in range(0, count, DRAWN):
        drawn = draw(generator, min(DRAWN, count - start) * size)
        yield from zip(*(part.split(size) for part in drawn), strict=True)


def _chosen(
    parameters: list[nn.Parameter], coordinates: int, seed: int
) -> tuple[NDArray[np.int64], dict[int, Tensor]]:
    """The tensor of each chosen coordinate, and tensor -> chosen places in it."""
    ends = torch.tensor([p.numel() for p in parameters]).cumsum(0)
    chosen = torch.randint(
        int(ends[-1]), (coordinates,), generator=torch_stream(seed, "coordinates")
    ).unique()
    layer = torch.searchsorted(ends, chosen, right=True)
    picks = {
        i: (chosen[layer == i] - int(ends[i]) + parameters[i].numel()).to(parameters[i].device)
        for i in layer.unique().tolist()
    }
    return layer.numpy(), picks


check_arguments(__name__)
