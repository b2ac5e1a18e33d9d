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
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

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


@dataclass(frozen=True)
class PerSampleNorms:
    """Norms ``‖∇ loss(sample i)‖`` of one batch."""

    norms: NDArray[np.float64]  # shape (n,)
    #: ``"structure"``, ``"func"``, ``"loop"``, or a mixture such as ``"structure+func"``
    method: str
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

    The loss must be a mean over samples that do not act on each other; ``check`` compares the first
    and the last sample with their own gradients, so that a model that keeps samples on another
    axis, or a loss that couples them or is a sum, is noticed: ``"auto"`` then goes to
    ``torch.func``, ``"structure"`` raises.

    Args:
        batch: one batch; every tensor in it has the samples on its first axis.
        method: ``"structure"`` (linear, embedding, convolution, layer norm, batch norm in
            evaluation mode, parameters that are added; other parameters by ``torch.func``),
            ``"func"``, ``"loop"``, or ``"auto"``.
        chunk: samples differentiated at once by ``torch.func`` (64 is fastest on a CPU).
        check: compare the structural norms of two samples with gradients (in evaluation mode,
            where dropout is active).
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
    size = _count_samples(objective, batch)
    with (
        undisturbed(objective.model),
        torch.inference_mode(False),
        torch.enable_grad(),
        _name_batch_in_errors(objective, batch),
    ):
        seed_everything(whole("seed", seed, least=-(2**63), most=2**63 - 1))
        named = _named_parameters(objective)
        if method == "loop":
            return PerSampleNorms(
                _check_norms(_norms_by_loop(objective, batch, size, named)), "loop", 0.0
            )
        if method == "func":
            return PerSampleNorms(*_norms_by_vmap(objective, batch, size, chunk, named), 0.0)
        squares, explained = _squares_by_structure(objective, batch, size)
        # What the structure does not explain goes to ``torch.func``.
        others = {name: p for name, p in named.items() if id(p) not in explained}
        total = sum(p.numel() for p in objective.parameters)
        share = 1 - sum(p.numel() for p in others.values()) / total  # explained by structure
        label = "structure"
        if others:
            norms_of_others, label = _norms_by_vmap(objective, batch, size, chunk, others)
            squares = squares + torch.as_tensor(norms_of_others**2)
            label = f"structure+{label}" if share else label  # ``label`` is "func" or "loop" here
        norms = _check_norms(squares.sqrt())
        if share > 0 and check and not _two_norms_agree(objective, batch, size, norms):
            if method == "structure":
                rule = "must be a mean over samples on the first axis that do not act on each other"
                fail("loss", rule, "another")
            return PerSampleNorms(*_norms_by_vmap(objective, batch, size, chunk, named), 0.0)
        return PerSampleNorms(norms, label, share)


def _count_samples(objective: Objective, batch: Any) -> int:
    """The number of samples in the batch. An error where single samples have no gradient of their
    own, because the tensors differ in their first axis or batch norm uses the batch's statistics.
    """
    if not isinstance(objective, Objective):
        fail("objective", "must be a mindgap Objective", objective)
    size = samples_in(batch)
    axes = {int(t.shape[0]) if t.ndim else 0 for t in tensors_in(batch)}
    if axes != {size}:
        rule = "must hold tensors with the samples on their first axis"
        fail("batch", rule, f"first axes {sorted(axes)}")
    for module in objective.model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and (
            module.training or not module.track_running_stats
        ):
            rule = "must not hold batch norm in training mode: its samples share statistics"
            fail("model", rule, "a module in training")
    return size


@contextmanager
def _name_batch_in_errors(objective: Objective, batch: Any) -> Iterator[None]:
    """A block whose error becomes a ``RuleError`` on the batch, if the loss itself, called once
    more on the batch, raises an error of the same kind; else the error stays as it is.
    """
    try:
        yield
    except (TypeError, AttributeError, RuntimeError, IndexError, KeyError) as error:
        try:
            objective.value(batch)  # whether the whole batch fails alike
        except type(error):
            fail("batch", f"must be what the loss takes ({error})", type(batch).__name__)
        raise


class _Call(NamedTuple):
    """One call of a module that has a rule."""

    module: nn.Module
    input: Tensor  # without its graph; empty where the call is not an ordinary one
    output_edge: Any  # place of the output in the graph; None where the call is not an ordinary one


class _Term(NamedTuple):
    """Squared norms over some parameters, from the gradient at one place of the graph."""

    #: gradient at the place -> squared norms, shape (n,); None where the gradient's shape is wrong
    squares: Callable[[Tensor], Tensor | None]
    edge: Any  # the place, a ``GradientEdge``
    parameters: list[nn.Parameter]


def _squares_by_structure(objective: Objective, batch: Any, size: int) -> tuple[Tensor, set[int]]:
    """Squared gradient norms of the samples over the parameters that the structure of the model
    explains: those of layers with a rule, and those that are added to something.

    Args:
        size: number of samples in the batch.

    Returns:
        The squared norms, shape (size,), and the ids of the parameters they cover.
    """
    loss, calls = _loss_with_calls(objective, batch)
    graph = _Graph(loss)
    terms = _terms_of_layers(calls, graph, size)
    of_layers = {id(p) for term in terms for p in term.parameters}
    for p in objective.parameters:
        users = graph.users(p)
        if id(p) in of_layers or len(users) != 1:  # explained already, or used more than once
            continue
        edge = graph.sum_at(users[0])  # of the sum that the parameter is a term of
        if edge is not None:
            terms.append(_Term(partial(_squares_of_added, p), edge, [p]))
    squares = torch.zeros(size, dtype=torch.float64)
    explained: set[int] = set()
    if not terms:
        return squares, explained
    gradients = torch.autograd.grad(loss, [term.edge for term in terms], allow_unused=True)
    with torch.no_grad():
        for term, gradient in zip(terms, gradients, strict=True):
            if gradient is None or gradient.shape[:1] != (size,):
                continue
            # The loss is a mean: a sample's own gradient is ``size`` times its part of it.
            term_squares = term.squares(gradient * size)
            if term_squares is not None:
                squares = squares + term_squares.to("cpu", torch.float64)
                explained |= {id(p) for p in term.parameters}
    return squares, explained


def _loss_with_calls(objective: Objective, batch: Any) -> tuple[Tensor, list[_Call]]:
    """The loss of a batch with its graph, and the calls of modules that have a rule in ``RULES``,
    in order.
    """
    calls: list[_Call] = []

    def note_call(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> Any:
        """Hook after a module: note the call in ``calls``, without input and edge where it has
        several inputs or no gradient.

        Returns:
            What takes the place of the output; None for the output itself.
        """
        one_input = len(inputs) == 1 and isinstance(inputs[0], Tensor)
        if not (one_input and isinstance(output, Tensor) and output.requires_grad):
            calls.append(_Call(module, torch.empty(0), None))
            return None
        # A later in-place ReLU turns the output into something else, so keep its edge in the graph,
        # not the tensor; writing into a view would even move the edge, so hand on a copy of it.
        output = output.clone() if output._is_view() else output
        edge = torch.autograd.graph.get_gradient_edge(output)
        calls.append(_Call(module, inputs[0].detach(), edge))
        return output

    modules = [module for module in objective.model.modules() if type(module) in RULES]
    handles = [module.register_forward_hook(note_call) for module in modules]
    try:
        return _check_loss(objective.value(batch)), calls
    finally:
        for handle in handles:
            handle.remove()


def _terms_of_layers(calls: list[_Call], graph: _Graph, size: int) -> list[_Term]:
    """A term for each layer whose rule applies. The layer must be called once, and each of its
    parameters be used once in the graph (no tied weights), so that the call is all there is.

    Args:
        calls: of modules that have a rule.
        size: number of samples in the batch.
    """
    times_called = Counter(id(call.module) for call in calls)
    terms = []
    for module, module_input, edge in calls:
        trained = [p for p in module.parameters(recurse=False) if p.requires_grad]
        used_once = all(len(graph.users(p)) == 1 for p in trained)
        if edge is None or not trained or not used_once or times_called[id(module)] != 1:
            continue
        rule = RULES[type(module)]
        squares: Callable[[Tensor], Tensor | None] = partial(rule.squares, module, module_input)
        if module_input.shape[:1] != (size,):
            # Positions looked up once for all samples: go on to where they are added to something
            # of each sample.
            edge = graph.sum_of(edge.node) if isinstance(module, nn.Embedding) else None
            squares = partial(_squares_of_looked_up, module, module_input)
        if edge is not None and rule.applies(module, module_input):
            terms.append(_Term(squares, edge, trained))
    return terms


def _squares_of_added(parameter: Tensor, gradient: Tensor) -> Tensor | None:
    """Squared norms for a parameter that is added to something with a sample axis. Its gradient
    for a sample is that of the sum, added up over the axes along which the parameter was repeated.

    Args:
        gradient: of the sum, samples first.

    Returns:
        Shape (samples,). None where the parameter has an axis of several samples of its own, or
        does not broadcast to the sum.
    """
    axes = gradient.ndim - 1  # without that of samples
    has_sample_axis = parameter.ndim == gradient.ndim and parameter.shape[0] == 1
    shape = tuple(parameter.shape[1:] if has_sample_axis else parameter.shape)
    if len(shape) > axes:
        return None
    # Sizes of the parameter and of the sum along each axis behind that of samples.
    sizes = list(zip((1,) * (axes - len(shape)) + shape, gradient.shape[1:], strict=True))
    if any(own not in (1, full) for own, full in sizes):
        return None
    repeated = tuple(axis for axis, (own, full) in enumerate(sizes, 1) if own != full)
    # A scalar parameter leaves one number per sample, without a second axis.
    per_sample = gradient.sum(repeated) if repeated else gradient
    return per_sample.reshape(len(gradient), -1).square().sum(1)


def _squares_of_looked_up(module: nn.Module, places: Tensor, gradient: Tensor) -> Tensor | None:
    """Squared norms for an embedding that looks up the same entries for all samples, such as
    positions, and is added to something with a sample axis.

    Args:
        module: the embedding.
        places: which entries of its table are looked up, once for all samples.
        gradient: of the sum, shape (samples, ..., features).

    Returns:
        Shape (samples,); None where the gradient has not one position for each place.
    """
    if gradient.ndim < 3 or gradient.shape[1:-1].numel() != places.numel():
        return None
    repeated = places.reshape(1, -1).expand(gradient.shape[0], -1)  # the same for each sample
    return RULES[nn.Embedding].squares(module, repeated, gradient)


class _Graph:
    """Which nodes of a loss's graph use the result of another node, or a parameter."""

    def __init__(self, loss: Tensor) -> None:
        self._users: dict[Any, list[Any]] = {}  # node -> nodes that use its result
        self._users_of_leaves: dict[int, list[Any]] = {}  # id of a parameter -> nodes that use it
        to_visit, visited = [loss.grad_fn], set()
        while to_visit:
            node = to_visit.pop()
            if node is None or node in visited:
                continue
            visited.add(node)
            for source, _ in node.next_functions:  # nodes whose results this one used
                if source is None:
                    continue
                if hasattr(source, "variable"):  # a leaf: it stands for a parameter
                    self._users_of_leaves.setdefault(id(source.variable), []).append(node)
                else:
                    self._users.setdefault(source, []).append(node)
                    to_visit.append(source)

    def users(self, parameter: Tensor) -> list[Any]:
        """The nodes that use a parameter, once for every use."""
        return self._users_of_leaves.get(id(parameter), [])

    def sum_of(self, node: Any) -> Any:
        """The edge of the plain sum ``a + b`` that uses a node's result; None where something else
        uses it, or several nodes do.
        """
        users = self._users.get(node, [])
        return self.sum_at(users[0]) if len(users) == 1 else None

    def sum_at(self, node: Any) -> Any:
        """The edge of a node that is a plain sum ``a + b``; None for any other node."""
        plain = node.name() == "AddBackward0" and node._saved_alpha == 1
        return torch.autograd.graph.GradientEdge(node, 0) if plain else None


class ModelWithLoss(nn.Module):
    """Model and loss as one module, batch -> loss, so that ``functional_call`` replaces the
    parameters (``model.`` before their names) wherever the loss uses them.
    """

    def __init__(self, objective: Objective) -> None:
        super().__init__()
        self.model, self.loss = objective.model, objective.loss

    def forward(self, batch: Any) -> Tensor:
        # The loss of a batch, 0-dim.
        return self.loss(self.model, batch).reshape(())


def _named_parameters(objective: Objective) -> dict[str, nn.Parameter]:
    """Parameters that take gradients, by their names in ``ModelWithLoss``."""
    named = objective.model.named_parameters()
    return {f"model.{name}": p for name, p in named if p.requires_grad}


def _norms_by_vmap(
    objective: Objective, batch: Any, size: int, chunk: int, named: dict[str, nn.Parameter]
) -> tuple[NDArray[np.float64], str]:
    """Gradient norms of the samples over the ``named`` parameters by ``vmap(grad)``, in chunks of
    samples; by ``_norms_by_loop`` where that cannot be traced.

    Args:
        size: number of samples in the batch.
        chunk: samples at once.
        named: by their names in ``ModelWithLoss``.

    Returns:
        The norms, shape (size,), and ``"func"`` or ``"loop"``.
    """
    module = ModelWithLoss(objective)
    detached = {name: p.detach() for name, p in named.items()}

    def loss_of_sample(parameters: dict[str, Tensor], sample: Any) -> Tensor:
        """The loss of a sample without the axis of samples, at these parameters by name."""
        batch_of_one = _map_batch(sample, lambda t: t.unsqueeze(0))
        return functional_call(module, parameters, (batch_of_one,))

    def squared_norm(parameters: dict[str, Tensor], sample: Any) -> Tensor:
        """The squared norm of that loss's gradient by these parameters."""
        gradients = grad(loss_of_sample)(parameters, sample).values()
        return torch.stack([g.abs().square().sum() for g in gradients]).sum()

    squared_norms = vmap(squared_norm, in_dims=(None, 0), randomness="different")
    parts = []
    try:
        for start in range(0, size, chunk):
            check_time()
            part = _samples(batch, start, start + chunk)
            with sdpa_kernel(SDPBackend.MATH):  # vmap runs the others sample by sample
                parts.append(squared_norms(detached, part).detach().cpu())
        return _check_norms(torch.cat(parts).double().sqrt()), "func"
    except RuntimeError as error:  # what vmap cannot trace
        if isinstance(error, torch.OutOfMemoryError):
            raise
        return _check_norms(_norms_by_loop(objective, batch, size, named)), "loop"


def _norms_by_loop(
    objective: Objective, batch: Any, size: int, named: dict[str, nn.Parameter]
) -> Tensor:
    """Gradient norms of the samples over the ``named`` parameters, shape (size,), by one backward
    pass per sample: slow, and right for whatever autograd can differentiate.
    """
    parameters = list(named.values())
    norms = torch.zeros(size, dtype=torch.float64)
    for i in range(size):
        check_time()
        loss = _check_loss(objective.value(_samples(batch, i, i + 1)))
        gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
        norms[i] = sum(float(g.double().abs().square().sum()) for g in gradients if g is not None)
    return norms.sqrt()


def _two_norms_agree(
    objective: Objective, batch: Any, size: int, norms: NDArray[np.float64]
) -> bool:
    """Whether the first and the last of the norms are those of these samples' own gradients, up to
    0.1 % for single precision in another order of summation. A wrong axis or a coupled loss is
    wrong by far more. A loss that weights samples by their lengths agrees on one of mean length, so
    that one sample is not enough.

    Where dropout is active the norms are not used: those that the structure gives in evaluation
    mode are compared.
    """
    named, random = _named_parameters(objective), _is_random(objective.model)
    # cuDNN has no gradient of recurrent layers in evaluation mode.
    cudnn = torch.backends.cudnn.flags(enabled=False) if random else nullcontext()
    with undisturbed(objective.model), cudnn:
        if random:
            objective.model.eval()
            squares, explained = _squares_by_structure(objective, batch, size)
            norms = squares.sqrt().numpy()
            named = {name: p for name, p in named.items() if id(p) in explained}
        for i in {0, size - 1}:
            exact = float(_norms_by_loop(objective, _samples(batch, i, i + 1), 1, named))
            if not abs(exact - norms[i]) <= 1e-3 * max(exact, float(np.median(norms))):
                return False
    return True


def _samples(batch: Any, begin: int, end: int) -> Any:
    """The samples of a batch from place ``begin`` up to, and without, place ``end``."""
    return _map_batch(batch, lambda tensor: tensor[begin:end])


def _map_batch(batch: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The batch with ``change`` applied to every tensor, and to every numpy array as a tensor."""

    def change_leaf(value: Any) -> Any:
        """One entry of the batch changed; what is neither tensor nor array stays as it is."""
        return change(torch.as_tensor(value)) if isinstance(value, (Tensor, np.ndarray)) else value

    return tree_map(change_leaf, plain_tree(batch))


def _is_random(model: nn.Module) -> bool:
    """Whether dropout of any kind is active in training mode, so that two evaluations of one sample
    differ. An attribute ``dropout`` other than zero (attention, recurrent layers) counts as
    dropout.
    """
    kinds = (nn.modules.dropout._DropoutNd, nn.RReLU)
    return any(
        # RReLU has no p.
        (isinstance(module, kinds) and getattr(module, "p", 1) > 0)
        or getattr(module, "dropout", 0.0) != 0
        for module in model.modules()
        if module.training
    )


def _check_loss(loss: Tensor) -> Tensor:
    """The loss; an error where it is not finite."""
    if not bool(loss.isfinite()):
        raise NonFiniteError(f"loss must be finite, got {float(loss.detach())}")
    return loss


def _check_norms(norms: Tensor) -> NDArray[np.float64]:
    """The norms as a numpy array; an error that names the first sample without a finite norm."""
    values = norms.detach().double().cpu().numpy()
    if not np.isfinite(values).all():
        raise NonFiniteError(
            "gradient must be finite, got NaN or infinity for sample "
            f"{int(np.argmin(np.isfinite(values)))}"
        )
    return values
