"""What happens inside a forward pass: every torch function with the module it was called in.

A function mode sees ``relu`` or ``log`` also where the user calls them without a module.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

#: Functions whose output may be zero on every sample, by name.
RECTIFIERS = ("relu", "relu_")
#: Functions whose output saturates, and the value beyond which it counts as saturated.
SQUASHERS = {"tanh": 0.995, "tanh_": 0.995, "sigmoid": 0.99, "sigmoid_": 0.99}
#: Losses that are given scores.
_LOSSES_OF_SCORES = ("cross_entropy", "binary_cross_entropy_with_logits")
#: Functions that compute nothing.
_SILENT = ("__get__", "__set__", "isfinite", "size", "dim", "is_floating_point", "__format__")
#: Functions that write masks, in which -inf is meant.
_MASKING = ("full", "masked_fill", "masked_fill_", "triu", "fill_", "new_full")
#: Sums, by which a mask of -inf is put onto scores.
_ADDING = ("add", "__add__", "__radd__", "add_")


@dataclass
class Trace:
    """What one forward pass showed; the lists have one entry per call, in the order of calls."""

    dead: list[tuple[str, float]] = field(default_factory=list)  # module, share of dead units
    saturated: list[tuple[str, float]] = field(default_factory=list)  # module, share of values
    scales: list[tuple[str, float]] = field(default_factory=list)  # module, rms of its output
    ranks: list[tuple[str, float, int]] = field(default_factory=list)  # module, rank, units
    origin: str = ""  # the first function whose output is not finite while its inputs are
    origin_module: str = ""  # the module that called it
    origin_half: bool = False  # whether that output is float16
    functions: set[str] = field(default_factory=set)  # names of functions that were called
    half: bool = False  # whether something was computed in float16
    softmax_axes: list[tuple[str, int, int]] = field(default_factory=list)  # name, axis, dimensions
    twice: str = ""  # "softmax" or "sigmoid", where a loss of scores was given its results
    output_scores: Tensor | None = None  # what cross_entropy was given
    #: node of the backward graph, function and module; kept where ``backward`` is asked for
    nodes: list[tuple[Any, str, str]] = field(default_factory=list)
    keeps_nodes: bool = False
    undefined: str = ""  # the first function, backwards, whose derivative is not finite
    undefined_module: str = ""  # the module that called it
    undefined_half: bool = False  # whether its output's gradient is float16

    def watch_backward(self) -> None:
        """Look for the first derivative that is not finite in the backward pass that follows."""
        for node, name, module in self.nodes:
            node.register_hook(partial(self._look_at_derivatives, name, module))

    def _look_at_derivatives(self, name: str, module: str, computed: Any, given: Any) -> None:
        """Hook of a node of the backward graph: note the function in ``undefined``, if it is the
        first to compute a gradient that is not finite from finite ones.

        Args:
            name, module: the function, and the module that called it.
            computed: gradients by the function's inputs; None where one takes no gradient.
            given: gradients by the function's outputs, from which they were computed.
        """
        given_tensors = [t for t in given if isinstance(t, Tensor)]
        if self.undefined or not _all_finite(given_tensors):
            return
        if not _all_finite([t for t in computed if isinstance(t, Tensor)]):
            self.undefined, self.undefined_module = name, module
            self.undefined_half = any(t.dtype == torch.float16 for t in given_tensors)


class _TraceMode(TorchFunctionMode):
    """Looks at the result of every torch function inside the block, and notes it in a trace.

    Args:
        trace: to write into.
        modules: names of the modules that are running, the innermost last.
    """

    def __init__(self, trace: Trace, modules: list[str]) -> None:
        super().__init__()
        self.trace, self.modules = trace, modules
        self.looking = False  # whether the present call comes from looking at a result

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call the function, and look at what it gave unless the call comes from looking itself."""
        kwargs = kwargs or {}
        output = func(*args, **kwargs)
        name = getattr(func, "__name__", "")
        if self.looking or name in _SILENT:  # looking calls torch functions, too
            return output
        self.looking = True
        with suppress(Exception):  # a reading must never end the user's forward pass
            self._look(name, args, kwargs, output)
        self.looking = False
        return output

    def _look(self, name: str, args: Any, kwargs: dict[str, Any], output: Any) -> None:
        """Note in the trace what one call of a torch function shows: whether it computed in
        float16, dead and saturated units, the axis of a softmax, the scores that a loss was given,
        and the first number that is not finite.

        Args:
            name: of the function, such as ``"relu"``.
            args, kwargs: what it was called with.
            output: what it gave; only a tensor of floating-point numbers is looked at.
        """
        trace = self.trace
        trace.functions.add(name)
        if not isinstance(output, Tensor) or not output.is_floating_point():
            return
        module = self.modules[-1] if self.modules else ""
        if trace.keeps_nodes and output.grad_fn is not None:
            trace.nodes.append((output.grad_fn, name, module))
        output = output.detach()
        trace.half = trace.half or output.dtype == torch.float16
        if name in RECTIFIERS and output.ndim > 1:
            trace.dead.append((module, _share_of_units(output == 0)))
        elif name in SQUASHERS and output.ndim > 1:
            # Tanh lies in (-1, 1), the sigmoid in (0, 1): the lower border mirrors the upper one.
            high = SQUASHERS[name]
            low = -high if name.startswith("tanh") else 1 - high
            saturated = (output > high) | (output < low)
            trace.saturated.append((module, float(saturated.double().mean())))
        elif name in ("softmax", "log_softmax"):
            # Given by name or as the second argument; a negative axis counts from the end.
            axis = kwargs.get("dim", args[1] if len(args) > 1 else None)
            if isinstance(axis, int):
                trace.softmax_axes.append((name, axis % max(1, output.ndim), output.ndim))
        elif name in _LOSSES_OF_SCORES and args and isinstance(args[0], Tensor):
            self._look_at_scores(name, args[0].detach())
        if not trace.origin and output.numel() and not _all_finite([output]):
            self._look_for_origin(name, module, (args, kwargs), output)

    def _look_at_scores(self, name: str, scores: Tensor) -> None:
        """Note in the trace the scores that cross-entropy is given, and in ``twice`` whether the
        scores of a loss are probabilities already. For cross-entropy these are rows that sum to
        one (to 0.001); for its binary form numbers in [0, 1] after a sigmoid or softmax was called.

        Args:
            name: of the loss, one of ``_LOSSES_OF_SCORES``.
            scores: its first argument; classes on axis 1 for cross-entropy.
        """
        trace = self.trace
        if name == "cross_entropy":
            sums_to_one = bool((scores.sum(1) - 1).abs().max() < 1e-3)
            if bool((scores >= 0).all()) and sums_to_one:
                trace.twice = "softmax"
            trace.output_scores = scores
        elif name == "binary_cross_entropy_with_logits":
            between_0_and_1 = bool(((scores >= 0) & (scores <= 1)).all())
            if between_0_and_1 and {"sigmoid", "softmax"} & trace.functions:
                trace.twice = "sigmoid"

    def _look_for_origin(self, name: str, module: str, arguments: Any, output: Tensor) -> None:
        """Note a function whose output is not finite as the origin of the trace, if its inputs are
        finite. Inputs with -inf count as finite where the output has NaN, because -inf is meant in
        a mask. A function that writes such a mask, or adds one, is no origin.

        Args:
            name, module: the function, and the module that called it.
            arguments: positional and keyword arguments, in any nesting.
        """
        tensors = [t.detach() for t in tree_leaves(arguments) if isinstance(t, Tensor)]
        inputs = [t for t in tensors if t.is_floating_point()]
        only_masks = all(bool((t.isfinite() | (t == -torch.inf)).all()) for t in inputs)
        has_nan = bool(output.isnan().any())
        if not _all_finite(inputs) and not (only_masks and has_nan):  # it came in with the inputs
            return
        if name in _MASKING or (name in _ADDING and not has_nan):
            return
        trace = self.trace
        trace.origin, trace.origin_module = name, module
        trace.origin_half = output.dtype == torch.float16


def _all_finite(tensors: list[Tensor]) -> bool:
    """Whether no entry is NaN or infinite."""
    return all(bool(tensor.isfinite().all()) for tensor in tensors)


def _share_of_units(zero: Tensor) -> float:
    """Share of the units that are zero on every sample and position.

    Args:
        zero: whether each output is zero, samples first; units lie on axis 1 where there are four
            axes or more (images), else on the last axis.
    """
    # With the units first, a row holds all outputs of one.
    unit_axis = 1 if zero.ndim > 3 else zero.ndim - 1
    return float(zero.transpose(0, unit_axis).flatten(1).all(1).double().mean())


def effective_rank(values: Tensor) -> tuple[float, int] | None:
    """Participation ratio (Σ λ)² / Σ λ² of a layer's outputs, where λ are the eigenvalues of their
    covariance, and the number of units.

    1 means that all samples lie on one line; the number of units means that every direction is
    used alike.

    Args:
        values: shape (samples, ..., units), where each position counts as a sample; of four axes or
            more (samples, channels, height, width), averaged over the last two.

    Returns:
        Ratio and units. None with fewer than 16 samples, fewer than 8 or more than 1,024 units, or
        outputs that are constant or not finite.

    Example:
        >>> line = torch.arange(32.0).unsqueeze(1) * torch.ones(8)
        >>> effective_rank(line)
        (1.0, 8)
    """
    flat = values.reshape(-1, values.shape[-1]) if values.ndim < 4 else values.mean((2, 3))
    if len(flat) < 16 or not 8 <= flat.shape[1] <= 1024:
        return None
    flat = flat[:256].double()  # more samples would only take longer
    flat = flat - flat.mean(0)
    if not bool(flat.isfinite().all()) or float(flat.abs().max()) == 0:
        return None
    covariance = flat.T @ flat  # up to a factor: Σ λ is its trace, Σ λ² its sum of squares
    ratio = float(covariance.trace().square() / covariance.square().sum())
    return round(ratio, 6), flat.shape[1]


@contextmanager
def traced(model: nn.Module, *, backward: bool = False) -> Iterator[Trace]:
    """Collect a :class:`Trace` of everything inside the block, by a function mode and by hooks of
    the model's modules, which are removed at its end.

    Args:
        backward: also keep the nodes of the graph, for :meth:`Trace.watch_backward`.
    """
    # ``running``: names of the modules that run, the innermost last.
    trace, running, handles = Trace(keeps_nodes=backward), [], []

    def enter(name: str, module: nn.Module, inputs: Any) -> None:
        """Hook before a module: it joins ``running`` as the innermost one."""
        running.append(name)

    def leave(name: str, is_leaf: bool, module: nn.Module, inputs: Any, output: Any) -> None:
        """Hook after a module: it leaves ``running``. Of one without children (``is_leaf``) note
        the scale (and rank) of its output in the trace.
        """
        if running:
            running.pop()
        first = output[0] if isinstance(output, tuple) and output else output
        if is_leaf and isinstance(first, Tensor) and first.is_floating_point():
            rms = first.detach().double().square().mean().sqrt()
            trace.scales.append((name, float(rms)))
            if isinstance(module, (nn.Linear, nn.Conv1d, nn.Conv2d)):
                rank = effective_rank(first.detach())
                if rank is not None:
                    trace.ranks.append((name, *rank))

    for name, module in model.named_modules():
        is_leaf = next(module.children(), None) is None
        handles.append(module.register_forward_pre_hook(partial(enter, name)))
        handles.append(module.register_forward_hook(partial(leave, name, is_leaf)))
    try:
        with _TraceMode(trace, running):
            yield trace
    finally:
        for handle in handles:
            handle.remove()
