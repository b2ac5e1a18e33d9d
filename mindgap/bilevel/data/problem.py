"""How a user states a bilevel problem: two losses, two variables, two sets of data.

    minimise over x   Phi(x) = f(x, y*(x)),   y*(x) = argmin_y g(x, y)

with f the mean of ``upper`` over the upper data and g the mean of ``lower`` over the lower data.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from copy import copy, deepcopy
from typing import TYPE_CHECKING, Any, Generic

import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn

from mindgap.base.bound import Bound as Bound
from mindgap.base.calls import call, loss_from
from mindgap.base.check import check_call, fail, whole
from mindgap.base.restoring import seeded
from mindgap.bilevel.data.loaded import as_data
from mindgap.bilevel.data.sample import FULL, Batch, Data, Sample, is_full, row

Loss = Callable[[Any, Any, Any], Tensor]
#: What a user hands over as x or y.
Variable = Tensor | Mapping[str, Any] | Sequence[Any] | nn.Module
if TYPE_CHECKING:
    from typing_extensions import TypeVar

    #: The forms of x and y, so that ``solution.x`` has the type of what was handed over.
    X = TypeVar("X", bound=Variable, default=Any)
    Y = TypeVar("Y", bound=Variable, default=Any)
else:
    from typing import TypeVar

    X, Y = TypeVar("X"), TypeVar("Y")


class Pack:
    """A variable as one flat vector, and back: a tensor, a dict or tuple of tensors (nested or
    not), or a module's parameters.

    Args:
        name: "x" or "y", for messages.
        value: the variable at its start.

    Example:
        >>> pack = Pack("y", {"w": torch.ones(2, 2), "b": torch.zeros(2)})
        >>> pack.start, pack.view(pack.start)["w"].shape
        (tensor([1., 1., 1., 1., 0., 0.]), torch.Size([2, 2]))
    """

    def __init__(self, name: str, value: Variable) -> None:
        if not isinstance(value, (Tensor, Mapping, tuple, list, nn.Module)):
            rule = "must be a tensor, a dict or tuple of tensors (nested or not), or a module"
            fail(name, rule, type(value).__name__)
        self.name, self.own_buffers = name, False  # ``own_buffers``: as in ``Bound``
        self.module = value if isinstance(value, nn.Module) else None
        #: the names of a flat dict's entries, or of a module's parameters
        self.keys: list[str] | None = None
        self.is_tensor = isinstance(value, Tensor)
        if isinstance(value, nn.Module):  # a dict of its trained parameters stands for it
            value = {n: p for n, p in value.named_parameters() if p.requires_grad}
        # The tensors in order; ``form`` is the structure of a nested value.
        if isinstance(value, Mapping) and all(isinstance(v, Tensor) for v in value.values()):
            self.keys, tensors = list(value), list(value.values())
        elif isinstance(value, Tensor):
            tensors = [value]
        else:
            tensors, self.form = pytree.tree_flatten(value)
        lazy = (nn.parameter.UninitializedParameter, nn.parameter.UninitializedBuffer)
        wrong = [
            type(t).__name__ for t in tensors if not isinstance(t, Tensor) or isinstance(t, lazy)
        ]
        if wrong or not tensors:
            fail(name, "must hold at least one tensor and nothing but tensors", wrong or "none")
        dtypes, devices = {str(t.dtype) for t in tensors}, {str(t.device) for t in tensors}
        if any(not t.is_floating_point() for t in tensors):
            fail(name, "must be of floating point", sorted(dtypes))
        if len(devices) > 1:
            fail(name, "must be on one device", sorted(devices))
        #: dtype of each tensor where they differ; the flat vector has the one that holds them all
        self.dtypes = [t.dtype for t in tensors] if len(dtypes) > 1 else None
        self.shapes = [tuple(t.shape) for t in tensors]
        self.sizes = [math.prod(s) for s in self.shapes]
        self.dim = sum(self.sizes)
        if self.dim == 0:
            fail(name, "must have at least one element", self.shapes)
        try:
            with torch.no_grad():
                self.start = torch.cat([t.detach().reshape(-1) for t in tensors]).clone()
        except (RuntimeError, NotImplementedError, TypeError) as error:
            fail(name, f"must hold dense tensors ({error})", [str(t.layout) for t in tensors])
        self.dtype, self.device = self.start.dtype, self.start.device

    def view(self, vector: Tensor) -> Any:
        """The flat vector in the variable's own form: views, no copies; differentiable."""
        return self.assemble(self.split(vector))

    def split(self, vector: Tensor) -> list[Tensor]:
        """The flat vector as tensors of the variable's shapes: views; refuses another vector."""
        try:  # a check beforehand would cost time at every derivative
            if self.is_tensor:
                return [vector.view(self.shapes[0])]
            return self._shape_parts(vector)
        except (AttributeError, TypeError, RuntimeError, ValueError, IndexError):
            self._check_vector(vector)
            raise

    def _check_vector(self, vector: object) -> None:
        """Raise unless ``vector`` is a flat tensor of floating point with ``dim`` numbers."""
        rule = f"must be a flat tensor of {self.dim} numbers"
        if not isinstance(vector, Tensor):
            fail("vector", rule, type(vector).__name__)
        if vector.shape != (self.dim,):
            fail("vector", rule, f"shape {tuple(vector.shape)}")
        if not vector.is_floating_point():
            fail("vector", f"{rule} of floating point", str(vector.dtype))

    def _shape_parts(self, vector: Tensor) -> list[Tensor]:
        """A flat vector as tensors of the variable's shapes and dtypes."""
        pieces = torch.split(vector, self.sizes)
        tensors = [piece.view(shape) for piece, shape in zip(pieces, self.shapes, strict=True)]
        if self.dtypes is None:
            return tensors
        return [tensor.to(dtype) for tensor, dtype in zip(tensors, self.dtypes, strict=True)]

    def leaves(self, vector: Tensor) -> list[Tensor]:
        """Like ``split``, but each tensor is a leaf that takes gradients: no step of the graph
        leads back to the flat vector.
        """
        try:
            if self.is_tensor:
                return [vector.detach().view(self.shapes[0]).requires_grad_()]
            return [v.requires_grad_() for v in self._shape_parts(vector.detach())]
        except (AttributeError, TypeError, RuntimeError, ValueError, IndexError):
            self._check_vector(vector)
            raise

    def assemble(self, parts: list[Tensor]) -> Any:
        """Tensors in the variable's own form; for a module a ``Bound`` that a loss can call."""
        value = self.tree(parts)
        if self.module is None:
            return value
        return Bound(self.module, value, own_buffers=self.own_buffers)

    def tree(self, parts: list[Any]) -> Any:
        """Tensors or arrays of any library in the variable's form; a dict of names for a module."""
        try:
            if self.is_tensor:
                return parts[0]
            if self.keys is not None:
                return dict(zip(self.keys, parts, strict=True))
            return pytree.tree_unflatten(parts, self.form)
        except (TypeError, ValueError, IndexError, KeyError) as error:
            fail("parts", f"must be a list of {len(self.shapes)} tensors ({error})", parts)

    def parts(self, value: Any) -> list[Any]:
        """The tensors (or arrays) of a value in the variable's form: the inverse of ``tree``."""
        if self.keys is not None:
            return [value[key] for key in self.keys]
        return [value] if self.is_tensor else pytree.tree_leaves(value)

    def projection(
        self,
        project: Callable[[Any], Any] | None,
        split: Callable[[Any], list[Any]],
        join: Callable[[list[Any]], Any],
    ) -> Callable[[Any], Any] | None:
        """A user's projection of the variable in its own form as one of the flat vector, which
        refuses what is not in that form.

        Args:
            project: the user's function, or None.
            split: a flat vector as parts in the variable's shapes, in the library of a backend.
            join: the inverse.
        """
        if project is None:
            return None
        name, rule = f"project_{self.name}", "must return the variable in its form, shape and dtype"
        is_flat = self.is_tensor and len(self.shapes[0]) == 1

        def projected(vector: Any) -> Any:
            """``project``, the user's function, of a flat vector; ``is_flat``: x is one itself."""
            result = value = call(name, project, vector if is_flat else self.tree(split(vector)))
            try:
                if not is_flat:
                    parts = self.parts(value)
                    shapes = [tuple(part.shape) for part in parts]
                    result = join(parts) if shapes == self.shapes else None
                if result.shape == vector.shape and result.dtype == vector.dtype:
                    return result
            except (AttributeError, TypeError, KeyError, IndexError):
                pass
            fail(name, rule, value)

        return projected

    def join(self, parts: Sequence[Tensor | None]) -> Tensor:
        """One flat vector of tensors of the variable's shapes; a missing one counts as zeros."""
        start = self.start
        if self.is_tensor:
            (tensor,) = parts
            if tensor is None:
                return torch.zeros_like(start)
            return tensor if tensor.dim() == 1 else tensor.reshape(-1)
        flat = [
            start.new_zeros(size) if part is None else part.reshape(-1)
            for part, size in zip(parts, self.sizes, strict=True)
        ]
        return torch.cat(flat).to(start.dtype)

    def with_own_module(self) -> Pack:
        """The same variable with a copy of its module; frozen parameters are shared."""
        twin = copy(self)
        if self.module is not None:
            frozen = {id(p): p for p in self.module.parameters() if not p.requires_grad}
            twin.module = deepcopy(self.module, dict(frozen))
        return twin

    def write_back(self, vector: Tensor) -> Any:
        """The variable at a flat vector, as copies; a module itself, its parameters overwritten."""
        tensors = self._shape_parts(vector.detach())
        if self.module is None:
            return self.tree([tensor.clone() for tensor in tensors])
        parameters = dict(self.module.named_parameters())
        with torch.no_grad():
            for key, tensor in zip(self.keys or [], tensors, strict=True):
                parameters[key].copy_(tensor)
        return self.module


class BilevelProblem(Generic[X, Y]):
    """Two losses with their variables and data.

    Symbols: ``upper`` = f, ``lower`` = g, each ``(x, y, batch) -> scalar``, a mean over the samples
    of the batch (plus terms that no batch enters), so that a batch's gradient estimates that of the
    whole level.

    Args:
        upper: the upper loss f.
        lower: the lower loss g, to be minimised over y.
        x: upper variable at its start: a tensor, a dict, tuple or list of tensors, nested or not,
            or a module. A loss gets it back in the same form; a module as something to call
            (:class:`Bound`).
        y: lower variable at its start, likewise.
        upper_data: tensors or NumPy arrays, a map-style dataset, a DataLoader, :class:`Batches`, or
            a :class:`Stream`; minibatches are moved to the device of x and y.
        lower_data: likewise.
        batch_size: for data that do not bring their own: one number, or (upper, lower).
        project_x: function from x, in the form it was handed over (a dict of names for a module),
            to the nearest allowed x in the same form (array methods only, so that every backend can
            run it); None for the whole space. The start is projected as well.
        project_y: likewise for y.
        micro_batch: evaluate a minibatch in pieces of at most this many samples and add up their
            derivatives (gradient accumulation, for batches that do not fit into memory); None for
            all at once.

    Raises:
        RuleError: for anything that is not one of the above; x and y on different devices.

    Example:
        >>> X, t = torch.randn(20, 3), torch.randn(20)
        >>> problem = BilevelProblem(
        ...     upper=lambda x, y, b: (b[0] @ y - b[1]).square().mean(),
        ...     lower=lambda x, y, b: (
        ...         (b[0] @ y - b[1]).square().mean() + (x.exp() * y.square()).sum()
        ...     ),
        ...     x=torch.zeros(3),
        ...     y=torch.zeros(3),
        ...     upper_data=(X[:8], t[:8]),
        ...     lower_data=(X[8:], t[8:]),
        ...     batch_size=4,
        ... )
        >>> problem.dim_x, problem.dim_y, problem.lower_data.batches
        (3, 3, 3)
    """

    def __init__(
        self,
        upper: Loss,
        lower: Loss,
        x: X,
        y: Y,
        upper_data: Batch,
        lower_data: Batch,
        *,
        batch_size: int | tuple[int, int] = 64,
        project_x: Callable[[Any], Any] | None = None,
        project_y: Callable[[Any], Any] | None = None,
        micro_batch: int | None = None,
    ) -> None:
        for name, function in (("upper", upper), ("lower", lower)):
            check_call(name, function, "a function of (x, y, batch)", None, None, None)
        for name, projection in (("project_x", project_x), ("project_y", project_y)):
            if projection is not None:
                check_call(name, projection, "a function of the variable, or None", None)
        self.upper, self.lower = upper, lower
        self.pack_x, self.pack_y = Pack("x", x), Pack("y", y)
        if self.pack_x.device != self.pack_y.device:
            devices = str(self.pack_x.device), str(self.pack_y.device)
            fail("x and y", "must be on one device", devices)
        sizes = batch_size if isinstance(batch_size, tuple) else (batch_size, batch_size)
        if len(sizes) != 2:
            fail("batch_size", "must be one number, or (upper, lower)", batch_size)
        device = self.pack_x.device
        self.upper_data: Data = as_data(upper_data, sizes[0], "upper_data").placed(device)
        self.lower_data: Data = as_data(lower_data, sizes[1], "lower_data").placed(device)
        if micro_batch is not None:
            whole("micro_batch", micro_batch, least=1)
        self.project_x, self.project_y, self.micro_batch = project_x, project_y, micro_batch
        self.dim_x, self.dim_y = self.pack_x.dim, self.pack_y.dim
        try:
            self.dtype = torch.promote_types(self.pack_x.dtype, self.pack_y.dtype)
        except RuntimeError as error:
            fail("x and y", f"must have dtypes that fit together ({error})", self.pack_x.dtype)
        self.device = self.pack_x.device
        #: whether a loss draws random numbers, and needs kernels with a double backward; None until
        #: the losses have been tried
        self.needs: tuple[bool, bool] | None = None

    def data(self, level: str) -> Data:
        """The data of "upper" or "lower"."""
        return self.upper_data if level == "upper" else self.lower_data

    def view_x(self, x: Tensor) -> Any:
        """The flat x in the form it was handed over."""
        return self.pack_x.view(x)

    def view_y(self, y: Tensor) -> Any:
        """The flat y in the form it was handed over."""
        return self.pack_y.view(y)

    def evaluate(self, level: str, x: Any, y: Any, batch: Batch, sample: Sample) -> Tensor:
        """The loss of a level at x and y in the user's form, with its graph; where it draws random
        numbers, these follow from the sample's seed.
        """
        function = self.upper if level == "upper" else self.lower
        with seeded(int(sample.seed)):
            return loss_from(level, function, x, y, batch)

    def loss(self, level: str, x: Tensor, y: Tensor, sample: Sample = FULL) -> Tensor:
        """The loss of a level at flat vectors, on a sample (default: all), without a graph."""
        data, forms = self.data(level), (self.view_x(x), self.view_y(y))
        with torch.no_grad():
            batches = data.chunks() if is_full(sample) else [(data.fetch(sample), 1.0)]
            losses = [self.evaluate(level, *forms, b, sample).reshape(()) * w for b, w in batches]
            return torch.stack(losses).sum()

    def refresh_statistics(self, x: Tensor, y: Tensor, most: int = 200) -> None:
        """Set the running statistics of batch normalisation in the variables' modules in place;
        the losses leave them alone.

        The statistics become the mean over at most ``most`` minibatches of the lower level at (x,
        y), and of the upper level for layers that the lower loss does not call.
        """
        packs = (self.pack_x, self.pack_y)
        modules = [m for pack in packs if pack.module is not None for m in pack.module.modules()]
        layers = [m for m in modules if isinstance(m, nn.modules.batchnorm._BatchNorm)]
        layers = [layer for layer in layers if layer.track_running_stats and layer.training]
        momenta = [layer.momentum for layer in layers]
        for layer in layers:
            layer.reset_running_stats()
            layer.momentum = None  # a plain mean over the minibatches
        try:
            for pack in packs:
                pack.own_buffers = True
            for level in ("lower", "upper"):
                if all(int(layer.num_batches_tracked or 0) for layer in layers):
                    break  # no layer without statistics is left
                data = self.data(level)
                samples = data.draw(0, level, 0, min(data.batches, most))
                for i in range(len(samples.which)):
                    self.loss(level, x, y, row(samples, i))
        finally:
            for pack in packs:
                pack.own_buffers = False
            for layer, momentum in zip(layers, momenta, strict=True):
                layer.momentum = momentum


def example_problem() -> BilevelProblem:
    """A problem of two unknowns for examples: y*(x) = x, the upper loss is (y - 1)², and x = y = 1
    solves it.

    Example:
        >>> example_problem().dim_x
        1
    """
    return BilevelProblem(
        upper=lambda x, y, b: (y - b).square().mean(),
        lower=lambda x, y, b: (y - x * b).square().mean(),
        x=torch.tensor([2.0]),
        y=torch.zeros(1),
        upper_data=torch.ones(4),
        lower_data=torch.ones(4),
        batch_size=2,
    )
