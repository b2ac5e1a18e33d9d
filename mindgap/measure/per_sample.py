"""Norms of the gradients of single samples, without the gradients where the layers' structure
allows it.

The gradient of a linear layer's weight for sample i is ``Σ_t b_it a_itᵀ`` (inputs a, gradients b at
the outputs, t runs over positions). Its norm needs only a and b: one backward pass that stops at
the layers' outputs serves all samples. Layers of another kind fall back to ``torch.func``, and what
that cannot trace falls back to a loop.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import tree_map

from mindgap.base.batches import plain_tree, tensors_in
from mindgap.base.check import fail, flag, one_of, whole
from mindgap.base.objective import Objective
from mindgap.base.restoring import seed_everything, undisturbed
from mindgap.measure.gradients import NonFiniteError, check_time, samples_in
from mindgap.measure.layer_norms import RULES

_BATCH_NORMS = (nn.modules.batchnorm._BatchNorm,)


@dataclass(frozen=True)
class PerSampleNorms:
    """Norms ``‖∇ loss(sample i)‖`` of one batch."""

    norms: NDArray[np.float64]  # shape (n,)
    method: (
        str  # ``"structure"``, ``"func"``, ``"loop"``, or a mixture such as ``"structure+func"``
    )
    by_structure: float  # the share of parameters whose norm came from the layers' structure


def per_sample_norms(
    objective: Objective,
    batch: Any,
    *,
    method: Literal["auto", "structure", "func", "loop"] = "auto",
    chunk: int = 64,
    check: bool = True,
    seed: int = 0,
) -> PerSampleNorms:
    """``‖∇ loss(model, {sample i})‖`` for every sample of a batch; the model is left as it was
    found.

    The loss must be a mean over samples that do not act on each other; ``check`` compares one
    sample with its own gradient, so that a model that keeps samples on another axis, or a loss that
    couples them, is noticed: ``"auto"`` then goes to ``torch.func``, ``"structure"`` raises.

    Args:
        batch: one batch; every tensor in it has the samples on its first axis.
        method: ``"structure"`` (linear, embedding, convolution, layer norm, batch norm in
            evaluation mode, parameters that are added; other parameters by ``torch.func``),
            ``"func"``, ``"loop"``, or ``"auto"``.
        chunk: samples differentiated at once by ``torch.func`` (64 is fastest on a CPU).
        check: compare the structural norm of the last sample with a gradient (skipped while dropout
            is active).
        seed: names dropout's random numbers.

    Raises:
        RuleError: batch norm in training mode (one sample has no gradient there), tensors of
            different first axes, a failed check with ``method="structure"``. NonFiniteError for a
            NaN loss.

    Example:
        >>> problem = Objective(nn.Linear(2, 1, bias=False).double(), lambda m, b: m(b).mean())
        >>> per_sample_norms(
        ...     problem, torch.tensor([[3.0, 4.0], [0.0, 1.0]]).double()
        ... ).norms.tolist()
        [5.0, 1.0]
    """
    one_of("method", method, ["auto", "structure", "func", "loop"])
    whole("chunk", chunk, least=1, most=2**31)
    flag("check", check)
    if not isinstance(objective, Objective):
        fail("objective", "must be a mindgap Objective", objective)
    size = samples_in(batch)
    axes = {int(t.shape[0]) if t.ndim else 0 for t in tensors_in(batch)}
    if axes != {size}:
        fail(
            "batch",
            "must hold tensors with the samples on their first axis",
            f"first axes {sorted(axes)}",
        )
    model = objective.model
    if any(
        isinstance(m, _BATCH_NORMS) and (m.training or not m.track_running_stats)
        for m in model.modules()
    ):
        fail(
            "model",
            "must not hold batch norm in training mode: its samples share statistics",
            "a module in training",
        )
    with (
        undisturbed(model),
        torch.inference_mode(False),
        torch.enable_grad(),
        _named_batch(objective, batch),
    ):
        seed_everything(whole("seed", seed, least=-(2**63), most=2**63 - 1))
        if method == "loop":
            return PerSampleNorms(_check_norms(_loop(objective, batch, size, None)), "loop", 0.0)
        if method == "func":
            return PerSampleNorms(*_norms_by_vmap(objective, batch, size, chunk, None), 0.0)
        squares, structural = _norms_by_structure(objective, batch, size)
        total = sum(p.numel() for p in objective.parameters)
        rest = [name for name, p in _named_parameters(objective).items() if id(p) not in structural]
        share = (
            1
            - sum(p.numel() for n, p in _named_parameters(objective).items() if n in set(rest))
            / total
        )
        label = "structure"
        if rest:
            others, how = _norms_by_vmap(objective, batch, size, chunk, rest)
            squares, label = (
                squares + torch.as_tensor(others**2),
                f"structure+{how}" if share else how,
            )
        norms = _check_norms(squares.sqrt())
        if share and check and not _random(model) and not _agrees(objective, batch, size, norms):
            if method == "structure":
                fail(
                    "loss",
                    "must be a mean over samples on the first axis that do not act on each other",
                    "another",
                )
            return PerSampleNorms(*_norms_by_vmap(objective, batch, size, chunk, None), 0.0)
        return PerSampleNorms(norms, label, share)


@contextmanager
def _named_batch(objective: Objective, batch: Any) -> Iterator[None]:
    """Say so where the loss itself cannot be computed on the batch."""
    try:
        yield
    except (TypeError, AttributeError, RuntimeError, IndexError, KeyError) as error:
        try:
            objective.value(batch)
        except type(error):
            fail("batch", f"must be what the loss takes ({error})", type(batch).__name__)
        raise


def _norms_by_structure(objective: Objective, batch: Any, size: int) -> tuple[Tensor, set[int]]:
    """Squared norms over the parameters that the layers' structure explains, and the ids of
    those parameters.
    """
    calls: list[tuple[nn.Module, Tensor, Any]] = []

    def keep(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> Any:
        if not (
            len(inputs) == 1
            and isinstance(inputs[0], Tensor)
            and isinstance(output, Tensor)
            and output.requires_grad
        ):
            calls.append((module, torch.empty(0), None))
            return None
        # A later in-place ReLU turns the output into something else, so keep its edge in the graph,
        # not the tensor; writing into a view would even move the edge, so hand on a copy of it.
        output = output.clone() if output._is_view() else output
        calls.append((module, inputs[0].detach(), torch.autograd.graph.get_gradient_edge(output)))
        return output

    handles = [m.register_forward_hook(keep) for m in objective.model.modules() if type(m) in RULES]
    try:
        loss = _check_loss(objective.value(batch))
    finally:
        for handle in handles:
            handle.remove()
    graph = _Graph(loss)
    times = Counter(id(module) for module, _, _ in calls)
    # (squares from the gradient there, edge at which to take the gradient, parameters explained)
    wanted: list[tuple[Callable[[Tensor], Tensor | None], Any, list[nn.Parameter]]] = []
    explained: set[int] = set()
    for module, entered, edge in calls:
        own = [p for p in module.parameters(recurse=False) if p.requires_grad]
        # One call and one use of each parameter in the graph: what the hook saw is all there is (no
        # tied weights).
        if (
            edge is None
            or times[id(module)] != 1
            or not own
            or any(len(graph.users(p)) != 1 for p in own)
        ):
            continue
        rule = RULES[type(module)]
        square: Callable[[Tensor], Tensor | None] = partial(rule.squares, module, entered)
        if entered.shape[:1] != (size,):
            # Positions looked up once for all samples: go on to where they are added to something
            # of each sample.
            edge = graph.sum_of(edge.node) if isinstance(module, nn.Embedding) else None
            square = partial(_looked_up, module, entered)
        if edge is not None and rule.applies(module, entered):
            wanted.append((square, edge, own))
            explained |= {id(p) for p in own}
    for p in objective.parameters:
        users = graph.users(p)
        edge = graph.sum_at(users[0]) if id(p) not in explained and len(users) == 1 else None
        if edge is not None:
            wanted.append((partial(_norm_of_added, p), edge, [p]))
    squares = torch.zeros(size, dtype=torch.float64)
    ends = (
        torch.autograd.grad(loss, [edge for _, edge, _ in wanted], allow_unused=True)
        if wanted
        else ()
    )
    explained = set()
    with torch.no_grad():
        for (square, _, own), end in zip(wanted, ends, strict=True):
            found = square(end * size) if end is not None and end.shape[:1] == (size,) else None
            if found is not None:
                squares = squares + found.to("cpu", torch.float64)
                explained |= {id(p) for p in own}
    return squares, explained


def _norm_of_added(parameter: Tensor, end: Tensor) -> Tensor | None:
    """A parameter added to something with a sample axis: its gradient for a sample is that at
    the sum, summed back.
    """
    own = tuple(
        parameter.shape[1:]
        if parameter.ndim == end.ndim and parameter.shape[0] == 1
        else parameter.shape
    )
    shape = (1,) * (end.ndim - 1 - len(own)) + own
    if len(shape) != end.ndim - 1 or any(
        p not in (1, e) for p, e in zip(shape, end.shape[1:], strict=True)
    ):
        return None
    repeated = tuple(
        i for i, (p, e) in enumerate(zip(shape, end.shape[1:], strict=True), 1) if p != e
    )
    # A scalar parameter leaves one number per sample, without a second axis.
    return (end.sum(repeated) if repeated else end).reshape(len(end), -1).square().sum(1)


def _looked_up(module: nn.Module, places: Tensor, end: Tensor) -> Tensor | None:
    """An embedding of the same places for all samples, added to something with a sample axis."""
    if end.ndim < 3 or end.shape[1:-1].numel() != places.numel():
        return None
    return RULES[nn.Embedding].squares(module, places.reshape(1, -1).expand(end.shape[0], -1), end)


class _Graph:
    """Who uses what in the graph of a loss."""

    def __init__(self, loss: Tensor) -> None:
        self._users: dict[Any, list[Any]] = {}
        self._leaves: dict[int, list[Any]] = {}
        queue, seen = [loss.grad_fn], set()
        while queue:
            node = queue.pop()
            if node is None or node in seen:
                continue
            seen.add(node)
            for following, _ in node.next_functions:
                if following is None:
                    continue
                if hasattr(following, "variable"):
                    self._leaves.setdefault(id(following.variable), []).append(node)
                else:
                    self._users.setdefault(following, []).append(node)
                    queue.append(following)

    def users(self, parameter: Tensor) -> list[Any]:
        """The nodes that use a parameter, once for every use."""
        return self._leaves.get(id(parameter), [])

    def sum_of(self, node: Any) -> Any:
        """The edge of the one sum that a node's result goes into, if that is its only use."""
        users = self._users.get(node, [])
        return self.sum_at(users[0]) if len(users) == 1 else None

    def sum_at(self, node: Any) -> Any:
        """The edge of a node that is a plain sum."""
        plain = node.name() == "AddBackward0" and node._saved_alpha == 1
        return torch.autograd.graph.GradientEdge(node, 0) if plain else None


class _Whole(nn.Module):
    """Model and loss as one module, so that any use of the model inside the loss sees the
    replaced parameters.
    """

    def __init__(self, objective: Objective) -> None:
        super().__init__()
        self.model = objective.model
        self.loss = objective.loss

    def forward(self, batch: Any) -> Tensor:
        return self.loss(self.model, batch).reshape(())


def _named_parameters(objective: Objective) -> dict[str, nn.Parameter]:
    return {f"model.{name}": p for name, p in objective.model.named_parameters() if p.requires_grad}


def _norms_by_vmap(
    objective: Objective, batch: Any, size: int, chunk: int, names: list[str] | None
) -> tuple[NDArray[np.float64], str]:
    """Norms over some parameters by ``vmap(grad)``, in chunks of samples; by a loop where that
    cannot be traced.
    """
    whole_model = _Whole(objective)
    free = {
        name: p.detach()
        for name, p in _named_parameters(objective).items()
        if names is None or name in set(names)
    }

    def value(parameters: dict[str, Tensor], sample: Any) -> Tensor:
        alone = _map_batch(sample, lambda t: t.unsqueeze(0))
        return functional_call(whole_model, parameters, (alone,))

    def square(parameters: dict[str, Tensor], sample: Any) -> Tensor:
        return torch.stack(
            [g.abs().square().sum() for g in grad(value)(parameters, sample).values()]
        ).sum()

    found = []
    try:
        for start in range(0, size, chunk):
            check_time()
            piece = _map_batch(batch, lambda t, start=start: t[start : start + chunk])  # type: ignore[misc]
            with sdpa_kernel(
                SDPBackend.MATH
            ):  # vmap runs the other attention kernels sample by sample
                found.append(
                    vmap(square, in_dims=(None, 0), randomness="different")(free, piece)
                    .detach()
                    .cpu()
                )
        return _check_norms(torch.cat(found).double().sqrt()), "func"
    except RuntimeError as error:
        if isinstance(error, torch.OutOfMemoryError):
            raise
        return _check_norms(_loop(objective, batch, size, list(free))), "loop"


def _loop(objective: Objective, batch: Any, size: int, names: list[str] | None) -> Tensor:
    """Norms by one backward pass per sample: slow, and right for whatever autograd can
    differentiate.
    """
    parameters = [
        p for name, p in _named_parameters(objective).items() if names is None or name in set(names)
    ]
    norms = torch.zeros(size, dtype=torch.float64)
    for i in range(size):
        check_time()
        value = _check_loss(objective.value(_map_batch(batch, lambda t, i=i: t[i : i + 1])))  # type: ignore[misc]
        gradient = torch.autograd.grad(value, parameters, allow_unused=True)
        norms[i] = sum(float(g.double().abs().square().sum()) for g in gradient if g is not None)
    return norms.sqrt()


def _agrees(objective: Objective, batch: Any, size: int, norms: NDArray[np.float64]) -> bool:
    alone = _map_batch(batch, lambda t: t[size - 1 :])
    truth = float(_loop(objective, alone, 1, None)[0])
    # Single precision in another order of summation; a wrong axis or a coupled loss is wrong by far
    # more.
    return abs(truth - norms[-1]) <= 1e-3 * max(truth, float(np.median(norms)))


def _map_batch(batch: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The batch with every tensor and numpy array changed."""

    def leaf(value: Any) -> Any:
        return change(torch.as_tensor(value)) if isinstance(value, (Tensor, np.ndarray)) else value

    return tree_map(leaf, plain_tree(batch))


def _random(model: nn.Module) -> bool:
    """Whether dropout of any kind is active, so that two evaluations of one sample differ."""
    drops = (nn.modules.dropout._DropoutNd, nn.RReLU)
    hidden = any(m.training and getattr(m, "dropout", 0.0) not in (0, 0.0) for m in model.modules())
    return hidden or any(
        m.training and isinstance(m, drops) and getattr(m, "p", 1) > 0 for m in model.modules()
    )


def _check_loss(loss: Tensor) -> Tensor:
    if not bool(loss.isfinite()):
        raise NonFiniteError(f"loss must be finite, got {float(loss.detach())}")
    return loss


def _check_norms(norms: Tensor) -> NDArray[np.float64]:
    values = norms.detach().double().cpu().numpy()
    if not np.isfinite(values).all():
        raise NonFiniteError(
            "gradient must be finite, got NaN or infinity for sample "
            f"{int(np.argmin(np.isfinite(values)))}"
        )
    return values
