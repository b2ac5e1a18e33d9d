"""Noise of many minibatch gradients on a GPU: forward, backward and the norm of the noise of
several minibatches in one CUDA graph.

Numbers stay on the device until the last minibatch is done, so that nothing waits for it in
between.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call, grad, grad_and_value, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from mindgap.base.check import whole
from mindgap.base.checked import check_arguments
from mindgap.base.objective import Objective
from mindgap.base.rng import torch_stream
from mindgap.measure.captured import CapturedGradient, as_found
from mindgap.measure.per_sample import ModelWithLoss

#: (generator, size) -> a minibatch of so many independent samples, as a tuple of tensors.
Draw = Callable[[torch.Generator, int], Any]
#: A group of minibatches that are taken in one pass: first their numbers, shape (size,), which are
#: the rows of the results they fill, then each part of the minibatches (inputs, targets), stacked
#: to shape (size, batch, ...).
Group = tuple[Tensor, ...]

#: Minibatches that are drawn at once.
DRAWN = 256
#: Minibatches, samples and bytes of gradients of one group, at most.
GROUP, SAMPLES, BYTES = 64, 128, 2**32
#: Parameter tensors of so many numbers are large.
LARGE = 2**18
#: The environment variable that sets the samples of a group; 1 takes one minibatch at a time.
TOGETHER = "MINDGAP_TOGETHER"


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
    together: int | None = None,
) -> HeldOutNoise:
    """Measure ‖g_b - ḡ‖ for ``minibatches`` minibatches, ḡ being the mean over ``reference`` other
    ones.

    A held-out mean adds the same ‖ḡ - ∇f‖², on average E‖n_b‖²/K, to all squared norms: 0.05 % at K
    = 2,000. Gradients are float32; sums of squares are float32 within a large parameter tensor
    and within all small ones, and float64 over these. The model is left as it was found.

    Several minibatches are taken in one pass, by ``torch.func``. The result equals that of one
    minibatch at a time to rounding, with other random numbers of dropout. Where one pass fails, a
    warning says so, and minibatches are taken one at a time.

    Args:
        objective: model and loss on one device; the loss depends on every parameter.
        draw: ``draw(generator, size)``, a minibatch of so many independent samples.
        generator: draws minibatches; of the same device.
        minibatches: M.
        reference: K.
        batch: samples in a minibatch.
        coordinates: c, how many single parameters to follow (a parameter drawn twice counts once).
        seed: names the random numbers that choose them.
        together: minibatches in one pass. By default the largest power of two with at most 64
            minibatches, 4 GiB of gradients and 128 samples, or as many samples as the environment
            variable ``MINDGAP_TOGETHER`` says; 1 for a model with buffers, convolutions or
            recurrent layers.

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
    counts = (
        whole("reference", reference, least=2),
        whole("minibatches", minibatches, least=4),
    )
    whole("batch", batch, least=1)
    if together is None:
        together = _group_size(objective, batch)
    layer, picks = _choose_coordinates(objective.parameters, coordinates, seed)

    def measure(size: int) -> tuple[Tensor, Tensor, float]:
        """Norms, coordinates (those of ``picks``) and mean loss of fresh minibatches, which
        ``draw`` gives, in groups of ``size``. ``counts`` are K, of those for the mean, and M.
        """
        for_mean, measured = (_groups(draw, generator, count, batch, size) for count in counts)
        with as_found(objective.model):
            return _measure(objective, for_mean, measured, counts, size, picks)

    results, state_at_start = None, generator.get_state()
    if whole("together", together, least=1) > 1:
        try:
            results = measure(together)
        except Exception as error:  # whatever a model does that torch.func or a graph cannot
            warnings.warn(
                f"{together} minibatches in one pass failed, so they are taken one at a time: "
                f"{type(error).__name__}: {error}",
                stacklevel=2,
            )
            generator.set_state(state_at_start)  # the same minibatches again
    norms, picked, loss = results or measure(1)
    return HeldOutNoise(
        norms=norms.double().cpu().numpy(),
        coordinates=picked.cpu().numpy(),
        coordinate_layer=layer,
        loss=loss,
        reference=reference,
    )


def _measure(
    objective: Objective,
    for_mean: Iterator[Group],
    measured: Iterator[Group],
    counts: tuple[int, int],
    size: int,
    picks: dict[int, Tensor],
) -> tuple[Tensor, Tensor, float]:
    """Compute the mean gradient ḡ of the first groups, then read the noise g_b - ḡ of each
    minibatch of the others.

    Args:
        for_mean: the K minibatches of ḡ.
        measured: the M minibatches whose noise is read.
        counts: K and M; a minibatch of that number fills up a short group and does not count.
        size: minibatches in a group. Of one a whole backward pass is captured, of several a
            function of ``torch.func``.
        picks: place of a parameter tensor -> places in it of the coordinates to follow.

    Returns:
        Norms of the noise, shape (M,); its followed coordinates, shape (M, coordinates); mean loss.
    """
    reference, minibatches = counts
    mean = [torch.zeros_like(p) for p in objective.parameters]
    # The last row takes what fills a short group.
    norms, losses = (mean[0].new_zeros(minibatches + 1, dtype=torch.float32) for _ in range(2))
    picked = norms.new_zeros(minibatches + 1, sum(map(len, picks.values())))

    side_by_side = SideBySide(objective)

    # What is done with a group: its gradients are added to the sum in ``mean``, or its noise is
    # read. ``rows`` are the numbers of its minibatches. Of a group of one minibatch, whose
    # gradient is captured, these functions get loss and gradient; of a larger one the minibatches.
    def add_one(rows: Tensor, values: Tensor, gradients: list[Tensor]) -> None:
        """Add the gradient of a group of one minibatch to the sum in ``mean``."""
        torch._foreach_add_(mean, [g[0] for g in gradients])

    def add_several(rows: Tensor, *batches: Tensor) -> None:
        """Add the gradients of a group's minibatches to the sum in ``mean``, but not those of what
        fills it up, whose number is ``reference``.
        """
        torch._foreach_add_(mean, side_by_side.total(rows < reference, batches))

    def read(rows: Tensor, values: Tensor, gradients: list[Tensor]) -> None:
        """Write norms of the noise, losses (``values``) and followed coordinates of a group into
        the rows of ``norms``, ``losses`` and ``picked``. ``mean`` is ḡ by now.
        """
        norms.index_copy_(0, rows, distances(gradients, mean).float())
        losses.index_copy_(0, rows, values.float())
        if picks:
            parts = [
                rows_of(gradients[i]).index_select(1, places) - mean[i].flatten()[places]
                for i, places in picks.items()
            ]
            picked.index_copy_(0, rows, torch.cat(parts, dim=1).float())

    def read_several(rows: Tensor, *batches: Tensor) -> None:
        """``read`` the minibatches of a larger group, by their losses and gradients."""
        read(rows, *side_by_side.each(batches))

    def run_all(groups: Iterator[Group], one: Any, several: Any, sums: list[Tensor]) -> None:
        """Do ``one`` (with groups of one minibatch) or ``several`` with every group, on CUDA as a
        graph that the first group is captured with. ``sums`` are what it adds to; they are zero
        when the first group begins.
        """
        first = next(groups)
        run = _OneGradient(objective, one, first) if size == 1 else _Captured(several, first)
        for total in sums:  # the warm-up before the capture has added to them
            total.zero_()
        run(*first)
        for group in groups:
            run(*group)

    run_all(for_mean, add_one, add_several, mean)
    torch._foreach_div_(mean, float(reference))
    run_all(measured, read, read_several, [])
    return norms[:-1], picked[:-1], float(losses[:-1].double().mean())


def rows_of(gradients: Tensor) -> Tensor:
    """The gradients of several minibatches by one parameter, one row each. The parameter may be a
    single number, without axes.
    """
    return gradients.unsqueeze(-1).flatten(1)


def distances(gradients: list[Tensor], mean: list[Tensor]) -> Tensor:
    """‖g_b - ḡ‖ of several minibatches over all parameters, shape (minibatches,).

    Args:
        gradients: g_b, one tensor per parameter, with a leading axis of minibatches.
        mean: ḡ, one tensor per parameter.

    Example:
        >>> distances([torch.tensor([[3.0, 4.0], [0.0, 1.0]])], [torch.zeros(2)]).tolist()
        [5.0, 1.0]
    """
    pairs = [(rows_of(g), m.flatten()) for g, m in zip(gradients, mean, strict=True)]
    small = [pair for pair in pairs if len(pair[1]) < LARGE]
    pairs = [pair for pair in pairs if len(pair[1]) >= LARGE]
    if small:  # joined into one tensor, because a launch for each takes longer than its numbers
        pairs.append((torch.cat([g for g, _ in small], dim=1), torch.cat([m for _, m in small])))
    norms = [torch.linalg.vector_norm(g - m, dim=1) for g, m in pairs]
    return torch.stack(norms).double().square().sum(dim=0).sqrt()


class _OneGradient(CapturedGradient):
    """A captured gradient of the one minibatch of a group, after which ``then(rows, losses,
    gradients)`` runs inside the same graph. ``_Captured`` serves groups of several.

    Args:
        then: gets the minibatch's number, its loss and its gradients, each with an axis of length 1
            for the minibatches in front.
        group: an example, of size 1.
    """

    def __init__(
        self,
        objective: Objective,
        then: Callable[[Tensor, Tensor, list[Tensor]], None],
        group: Group,
    ) -> None:
        self._then = then
        # The captured loss is called with the model and the tensors of a group: the minibatch's
        # number (_), then its parts (b), each with an axis of length 1 in front.
        super().__init__(
            objective.model, lambda m, _, *b: objective.loss(m, tuple(part[0] for part in b)), group
        )

    def _backward(self, batch: tuple[Tensor, ...]) -> Tensor:
        """Forward and backward pass of a group, then ``then``; returns the loss. The parent
        captures all of this.
        """
        value = super()._backward(batch)
        with torch.no_grad():
            gradients = [p.grad.unsqueeze(0) for p in self._parameters if p.grad is not None]
            # A group begins with its minibatches' numbers.
            self._then(batch[0], value.reshape(1), gradients)
        return value


class SideBySide:
    """Losses and gradients of several minibatches in one pass, by ``torch.func``.

    ``p.grad`` is neither read nor written, and each minibatch has random numbers of its own. The
    minibatches are tensors, or tuples of tensors, with a leading axis of minibatches.

    Example:
        >>> model = nn.Linear(1, 1, bias=False)
        >>> several = SideBySide(Objective(model, lambda m, b: m(b).mean()))
        >>> several.each(torch.tensor([[[1.0], [3.0]], [[5.0], [5.0]]]))[1]
        [tensor([[[2.]],
        <BLANKLINE>
                [[5.]]])]
    """

    def __init__(self, objective: Objective) -> None:
        model = ModelWithLoss(objective)

        def loss(parameters: dict[str, Tensor], batch: Any) -> Tensor:
            """The loss of one minibatch at these parameters by name."""
            return functional_call(model, parameters, (batch,))

        def total(parameters: dict[str, Tensor], counted: Tensor, batches: Any) -> Tensor:
            """The summed loss of those minibatches that count, at these parameters by name;
            ``counted`` holds booleans.
            """
            values = vmap(loss, in_dims=(None, 0), randomness="different")(parameters, batches)
            return (values * counted).sum()

        # By name; losses and gradients of each minibatch; gradient of the summed loss.
        self._trained = {n: p.detach() for n, p in model.named_parameters() if p.requires_grad}
        self._each = vmap(grad_and_value(loss), in_dims=(None, 0), randomness="different")
        self._total = grad(total)

    def each(self, batches: Tensor | Group) -> tuple[Tensor, list[Tensor]]:
        """The losses, shape (minibatches,), and the gradients, one tensor per parameter with a
        leading axis of minibatches.
        """
        with torch.no_grad(), sdpa_kernel(SDPBackend.MATH):  # vmap runs the others one by one
            gradients, values = self._each(self._trained, batches)
        return values, list(gradients.values())

    def total(self, counted: Tensor, batches: Tensor | Group) -> list[Tensor]:
        """The sum of the gradients of some minibatches, one tensor per parameter.

        Args:
            counted: which minibatches count, of booleans, shape (minibatches,).
        """
        with torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
            return list(self._total(self._trained, counted, batches).values())


class _Captured:
    """A function that writes its results in place; on CUDA as one graph launch, elsewhere eagerly.

    A function that waits for the device ends in an error before it is captured.

    Args:
        function: takes the tensors of a group.
        group: an example; later groups must have its shapes.
    """

    def __init__(self, function: Callable[..., None], group: Group) -> None:
        self._function = function
        self._graph: torch.cuda.CUDAGraph | None = None
        if group[0].is_cuda:
            self._capture(group)

    def __call__(self, *group: Tensor) -> None:
        """Run the function on a group, by the graph where it was captured."""
        if self._graph is None:
            self._function(*group)
            return
        for captured, value in zip(self._inputs, group, strict=True):  # the graph reads its inputs
            captured.copy_(value)
        self._graph.replay()

    def _capture(self, group: Group) -> None:
        """Capture the function into ``_graph``, on copies of the group in ``_inputs``, after two
        calls on another stream; so the function runs twice without being asked for.
        """
        self._inputs = tuple(t.clone() for t in group)
        current, side = torch.cuda.current_stream(), torch.cuda.Stream()
        side.wait_stream(current)
        with torch.cuda.stream(side):
            self._function(*self._inputs)
            with _waiting_is_an_error():
                self._function(*self._inputs)
        current.wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                self._function(*self._inputs)  # noted, not run
        except Exception:
            # A capture that breaks off leaves its stream current and the generator of dropout in
            # it.
            torch.cuda.set_stream(current)
            fresh = torch.Generator(current.device).manual_seed(torch.cuda.initial_seed())
            torch.cuda.default_generators[current.device.index].graphsafe_set_state(
                fresh.graphsafe_get_state()
            )
            raise
        self._graph = graph


@contextmanager
def _waiting_is_an_error() -> Iterator[None]:
    """A block in which whatever waits for the CUDA device raises a RuntimeError."""
    mode = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Synchronization debug mode")
        torch.cuda.set_sync_debug_mode("error")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode(mode)


def _group_size(objective: Objective, batch: int) -> int:
    """The default number of minibatches of ``batch`` samples in one pass.

    It is the largest power of two with at most ``GROUP`` minibatches, ``BYTES`` of gradients and
    ``SAMPLES`` samples, or as many samples as the environment variable ``TOGETHER`` says. 1 for a
    model with buffers, convolutions or recurrent layers.
    """
    text = os.environ.get(TOGETHER, str(SAMPLES))
    samples = whole(TOGETHER, int(text) if text.isdecimal() else text, least=1)
    one_at_a_time = (nn.modules.conv._ConvNd, nn.RNNBase)  # slower in one pass, or impossible
    has_buffers = any(True for _ in objective.model.buffers())
    if has_buffers or any(isinstance(m, one_at_a_time) for m in objective.model.modules()):
        return 1
    gradient_bytes = sum(p.numel() * p.element_size() for p in objective.parameters)
    most = min(GROUP, samples // batch, BYTES // gradient_bytes)
    return 1 << (max(most, 1).bit_length() - 1)  # the largest power of two that is not above it


def _groups(
    draw: Draw, generator: torch.Generator, count: int, batch: int, size: int
) -> Iterator[Group]:
    """``count`` fresh minibatches of ``batch`` samples, numbered from 0, in groups of ``size``. A
    short group is filled up with its first minibatch, under the number ``count``.

    The generator advances by ``DRAWN`` minibatches at a time.
    """
    for start in range(0, count, DRAWN):
        drawn_now = min(DRAWN, count - start)
        samples = draw(generator, drawn_now * batch)
        # The axis of samples becomes one of minibatches and one of samples.
        parts = [part.unflatten(0, (drawn_now, batch)) for part in samples]
        numbers = torch.arange(start, start + drawn_now, device=parts[0].device)
        for first in range(0, drawn_now, size):
            group = [part[first : first + size] for part in (numbers, *parts)]
            missing = size - len(group[0])
            if missing:
                group = [torch.cat([g, g[:1].expand(missing, *g.shape[1:])]) for g in group]
                group[0][-missing:] = count  # ``group[0]`` are the numbers
            yield tuple(group)


def _choose_coordinates(
    parameters: list[nn.Parameter], coordinates: int, seed: int
) -> tuple[NDArray[np.int64], dict[int, Tensor]]:
    """Draw single coordinates uniformly from all parameters; one that is drawn twice counts once.

    Args:
        coordinates: how many to draw.
        seed: names the random numbers.

    Returns:
        layer: the place of the parameter tensor that each lies in, shape (coordinates drawn,).
        picks: place of a parameter tensor -> places of its chosen coordinates in the flat tensor.
    """
    ends = torch.tensor([p.numel() for p in parameters]).cumsum(0)  # of each, in all joined
    chosen = torch.randint(
        int(ends[-1]), (coordinates,), generator=torch_stream(seed, "coordinates")
    ).unique()
    layer = torch.searchsorted(ends, chosen, right=True)
    # Tensor i begins at its end less its length.
    picks = {
        i: (chosen[layer == i] - int(ends[i]) + parameters[i].numel()).to(parameters[i].device)
        for i in layer.unique().tolist()
    }
    return layer.numpy(), picks


check_arguments(__name__)
