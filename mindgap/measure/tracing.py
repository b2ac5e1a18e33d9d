"""What happens inside a forward pass: every torch function with the module it was called in.

A function mode sees ``relu`` or ``log`` also where the user calls them without a module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

#: Functions whose output is zero or saturates, by name.
RECTIFIERS = ("relu", "relu_")
SQUASHERS = {"tanh": 0.995, "tanh_": 0.995, "sigmoid": 0.99, "sigmoid_": 0.99}
#: Functions that only pass on what they are given.
_SILENT = ("__get__", "__set__", "isfinite", "size", "dim", "is_floating_point", "__format__")


@dataclass
class Trace:
    """What one forward pass showed."""

    dead: list[tuple[str, float]] = field(default_factory=list)  # module, share of dead units
    saturated: list[tuple[str, float]] = field(default_factory=list)
    scales: list[tuple[str, float]] = field(default_factory=list)  # module, rms of its output
    ranks: list[tuple[str, float, int]] = field(default_factory=list)  # module, rank, units
    origin: str = ""  # the first function whose output is not finite while its inputs are
    origin_module: str = ""
    origin_half: bool = False
    functions: set[str] = field(default_factory=set)  # names of functions that were called
    half: bool = False  # something was computed in float16
    softmax_axes: list[tuple[str, int, int]] = field(default_factory=list)  # name, axis, dimensions
    twice: str = ""  # a loss of scores that was given probabilities
    output_scores: Tensor | None = None  # what cross_entropy was given
    output_targets: Tensor | None = None
    #: node of the backward graph, function and module; kept where ``backward`` is asked for
    nodes: list[tuple[Any, str, str]] = field(default_factory=list)
    keeps_nodes: bool = False
    undefined: str = ""  # the first function, backwards, whose derivative is not finite
    undefined_module: str = ""
    undefined_half: bool = False

    def watch_backward(self) -> None:
        """Look for the first derivative that is not finite in the backward pass that follows."""
        for node, name, where in self.nodes:
            node.register_hook(self._looked(name, where))

    def _looked(self, name: str, where: str) -> Callable[..., None]:
        def look(made: Any, given: Any) -> None:
            if self.undefined:
                return
            tensors = [t for t in given if isinstance(t, Tensor)]
            if all(bool(t.isfinite().all()) for t in tensors) and not all(
                bool(t.isfinite().all()) for t in made if isinstance(t, Tensor)
            ):
                self.undefined, self.undefined_module = name, where
                self.undefined_half = any(t.dtype == torch.float16 for t in tensors)

        return look


class _Watch(TorchFunctionMode):
    def __init__(self, trace: Trace, place: list[str]) -> None:
        super().__init__()
        self.trace, self.place, self.inside = trace, place, False

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        name = getattr(func, "__name__", "")
        if self.inside or name in _SILENT:
            return out
        self.inside = True
        try:
            self._look(name, args, kwargs, out)
        except Exception:  # a reading must never end the user's forward pass
            pass
        finally:
            self.inside = False
        return out

    def _look(self, name: str, args: Any, kwargs: Any, out: Any) -> None:
        """Note what the result of one torch function shows: dead or saturated units, softmax
        applied twice, the first number that is not finite.
        """
        trace = self.trace
        trace.functions.add(name)
        if not isinstance(out, Tensor) or not out.is_floating_point():
            return
        where = self.place[-1] if self.place else ""
        if trace.keeps_nodes and out.grad_fn is not None:
            trace.nodes.append((out.grad_fn, name, where))
        out = out.detach()
        if out.dtype == torch.float16:
            trace.half = True
        if name in RECTIFIERS and out.ndim > 1:
            trace.dead.append((where, _share_of_units(out == 0)))
        elif name in SQUASHERS and out.ndim > 1:
            high = SQUASHERS[name]
            low = -high if name.startswith("tanh") else 1 - high
            trace.saturated.append((where, float(((out > high) | (out < low)).double().mean())))
        elif name == "cross_entropy" and isinstance(args[0], Tensor):
            scores = args[0].detach()
            sums = scores.sum(1)
            if bool((scores >= 0).all()) and bool((sums - 1).abs().max() < 1e-3):
                trace.twice = "softmax"
            trace.output_scores = scores
            given = args[1] if len(args) > 1 else kwargs.get("target")
            trace.output_targets = given.detach() if isinstance(given, Tensor) else None
        elif name == "binary_cross_entropy_with_logits" and isinstance(args[0], Tensor):
            scores = args[0].detach()
            inside = bool(((scores >= 0) & (scores <= 1)).all())
            if inside and {"sigmoid", "softmax"} & trace.functions:
                trace.twice = "sigmoid"
        elif name in ("softmax", "log_softmax"):
            axis = kwargs.get("dim", args[1] if len(args) > 1 else None)
            if isinstance(axis, int):
                trace.softmax_axes.append((name, axis % max(1, out.ndim), out.ndim))
        if not trace.origin and out.numel() and not bool(out.isfinite().all()):
            given = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
            floats = [t.detach() for t in given if t.is_floating_point()]
            masks = all(bool((t.isfinite() | (t == -torch.inf)).all()) for t in floats)
            if all(bool(t.isfinite().all()) for t in floats) or (masks and bool(out.isnan().any())):
                if name in ("full", "masked_fill", "masked_fill_", "triu", "fill_", "new_full"):
                    return  # a mask of -inf is meant
                if name in ("add", "__add__", "__radd__", "add_") and not bool(out.isnan().any()):
                    return
                trace.origin, trace.origin_module = name, where
                trace.origin_half = out.dtype == torch.float16


def _share_of_units(zero: Tensor) -> float:
    axis = 1 if zero.ndim >= 3 and zero.ndim != 3 else zero.ndim - 1
    others = [i for i in range(zero.ndim) if i != axis]
    return float(zero.all(dim=others[0] if len(others) == 1 else others).double().mean())


def effective_rank(values: Tensor) -> tuple[float, int] | None:
    """Participation ratio of the variances of a layer's outputs, and the number of units.

    1 means that all samples lie on one line; the number of units that every direction is used.
    None with fewer than 16 samples or 8 units.

    Example:
        >>> line = torch.arange(32.0).unsqueeze(1) * torch.ones(8)
        >>> effective_rank(line)
        (1.0, 8)
    """
    flat = values.reshape(-1, values.shape[-1]) if values.ndim < 4 else values.mean((2, 3))
    if len(flat) < 16 or flat.shape[1] < 8 or flat.shape[1] > 1024:
        return None
    flat = flat[:256].double()
    flat = flat - flat.mean(0)
    if not bool(flat.isfinite().all()) or float(flat.abs().max()) == 0:
        return None
    gram = flat.T @ flat
    return round(float(gram.trace().square() / gram.square().sum()), 6), flat.shape[1]


@contextmanager
def traced(model: nn.Module, *, backward: bool = False) -> Iterator[Trace]:
    """Collect a :class:`Trace` of everything inside the block.

    Args:
        backward: also keep the nodes of the graph, for :meth:`Trace.watch_backward`.
    """
    trace, place, handles = Trace(keeps_nodes=backward), [], []

    def enter(name: str) -> Callable[..., None]:
        return lambda module, inputs: place.append(name)

    def leave(name: str, leaf: bool) -> Callable[..., None]:
        def done(module: nn.Module, inputs: Any, out: Any) -> None:
            if place:
                place.pop()
            first = out[0] if isinstance(out, tuple) and out else out
            if leaf and isinstance(first, Tensor) and first.is_floating_point():
                value = first.detach().double().square().mean().sqrt()
                trace.scales.append((name, float(value)))
                if isinstance(module, (nn.Linear, nn.Conv1d, nn.Conv2d)):
                    rank = effective_rank(first.detach())
                    if rank is not None:
                        trace.ranks.append((name, *rank))

        return done

    for name, module in model.named_modules():
        leaf = not any(True for _ in module.children())
        handles.append(module.register_forward_pre_hook(enter(name)))
        handles.append(module.register_forward_hook(leave(name, leaf)))
    try:
        with _Watch(trace, place):
            yield trace
    finally:
        for handle in handles:
            handle.remove()
