"""Hessian-vector products that keep the graph of the first backward, within a stated memory bound.

Double backward costs a forward, a backward and a backward of both. Everything but the last does not
depend on the vector: kept over all products of one reading, a product costs about 1.3 gradients for
an MLP and 2 for a ResNet, against 2.5 and 3.6 when the graph is built anew. The price is the memory
of the graph, which ``memory`` bounds.

The second half of the file has cheaper second derivatives of convolutions, of batch norm with fixed
statistics, of layer norm and of GELU. torch differentiates the backward of a convolution by
convolutions whose kernels are whole images, and the backward of the others by ten to thirty passes
over each activation. Here they are written by the kernels of the first derivative, which the
libraries have tuned: a Hessian product of a ResNet20 falls from 2.8 to 2 gradients, its count of
convolutions (six per layer against three). What is kept for the backward is the same, the result
equal to rounding.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from inspect import signature
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function, forward_ad
from torch.overrides import TorchFunctionMode

from mindgap.base.check import fail, positive
from mindgap.base.checked import checked_types
from mindgap.base.tensors import flatten
from mindgap.measure.gradients import GradientPasses, check_time, dense

#: Bytes of retained graphs allowed unless the caller says otherwise.
DEFAULT_MEMORY = 2**31


@contextmanager
def twice_differentiable(model: nn.Module) -> Iterator[None]:
    """Switch off kernels without a double backward, choose quick ones, and restore the switches on
    leaving.

    Flash and memory-efficient attention give way to the mathematical form; cuDNN gives way to
    native recurrent layers where the model has any (only there: cuDNN convolutions are twice
    differentiable); compiled functions run eagerly; convolutions and evaluating batch norms get
    ``QuickSecondDerivatives``.

    Example:
        >>> q = torch.ones(1, 1, 2, 4, requires_grad=True)
        >>> with twice_differentiable(nn.Linear(1, 1)):
        ...     out = nn.functional.scaled_dot_product_attention(q, q, q)
        >>> (g,) = torch.autograd.grad(out.square().sum(), q, create_graph=True)
        >>> torch.autograd.grad(g.sum(), q)[0].shape
        torch.Size([1, 1, 2, 4])
    """
    from torch.nn.attention import SDPBackend, sdpa_kernel

    with ExitStack() as stack:
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        if torch.backends.cudnn.is_available() and any(
            isinstance(m, nn.RNNBase) for m in model.modules()
        ):
            stack.enter_context(torch.backends.cudnn.flags(enabled=False))
        if "torch._dynamo" in sys.modules:
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        stack.enter_context(QuickSecondDerivatives())
        yield


class HessianProduct:
    """v -> H v for H = the mean of the batches' Hessians, on flat vectors in the parameters' order.

    H v = (1/n) sum_b d/dx <grad L_b(x), v>. The graph of grad L_b is kept for as many batches as
    fit into ``memory``; the others are built again for every product. Loss and gradient come out of
    building the graphs.

    Args:
        passes: opened by ``gradient_passes``; the object is valid until that block ends.
        memory: bound in bytes on what the retained graphs hold. Tensors that several graph nodes
            share are counted once; the parameters are not counted. The graph of one batch is in
            memory at any time, whatever the bound: use smaller batches where that is too much.

    Attributes:
        loss: mean of the batches' losses.
        gradient: mean gradient, flat.
        products: products made so far.
        retained, batches: how many graphs are kept, of how many batches.
        bytes: what the kept graphs hold.

    Example:
        >>> from mindgap.base.objective import Objective
        >>> from mindgap.measure.gradients import gradient_passes
        >>> model = nn.Linear(2, 1, bias=False)
        >>> problem = Objective(model, lambda m, b: 0.5 * m(b).square().mean())
        >>> with gradient_passes(problem, [torch.eye(2)]) as passes:
        ...     HessianProduct(passes)(torch.tensor([1.0, 3.0]))
        tensor([0.5000, 1.5000])
    """

    @checked_types
    def __init__(self, passes: GradientPasses, *, memory: float = DEFAULT_MEMORY) -> None:
        positive("memory", memory, finite=False)
        self._passes = passes
        self._parameters = passes.parameters
        self._graphs: list[list[Tensor]] = []
        self.products = self.retained = self.batches = self.bytes = 0
        self.loss = 0.0
        held: set[int] = {p.untyped_storage().data_ptr() for p in passes.parameters}
        full = False
        total: Tensor | None = None
        for item, gradient, added in self._first_backward(held):
            flat = flatten([g.detach() for g in gradient])
            total = flat if total is None else total + flat
            self.loss += float(item.loss.detach())
            self.batches += 1
            full = full or (self.batches > 1 and self.bytes + added > memory)
            if not full:
                self._graphs.append(gradient)
                self.bytes += added
                self.retained += 1
        assert total is not None
        self.loss /= self.batches
        self.gradient = total / self.batches
        if self.bytes > memory:  # one batch alone is larger: nothing is kept between products
            self._graphs.clear()
            self.retained = self.bytes = 0

    @property
    def size(self) -> int:
        """Number of coordinates."""
        return self.gradient.numel()

    @property
    def lengths(self) -> list[int]:
        """Number of coordinates of each parameter tensor, in order."""
        return [p.numel() for p in self._parameters]

    def __call__(self, vector: Tensor) -> Tensor:
        """H v; ``vector`` is flat."""
        self.products += 1
        vectors = [v.view_as(p) for v, p in zip(vector.split(self.lengths), self._parameters)]
        total = torch.zeros_like(vector)
        for graph in self._graphs:
            check_time()
            total += self._differentiate(graph, vectors)
        if self.retained < self.batches:
            for item, graph, _ in self._first_backward(set()):
                if item.index >= self.retained:
                    total += self._differentiate(graph, vectors)
        return total / self.batches

    def close(self) -> None:
        """Drop the retained graphs."""
        self._graphs.clear()

    def _differentiate(self, gradient: list[Tensor], vectors: list[Tensor]) -> Tensor:
        """The derivative of <gradient, vectors>, flat."""
        pairs = [(g, v) for g, v in zip(gradient, vectors, strict=True) if g.requires_grad]
        if not pairs:  # a loss that is linear in the parameters
            return torch.zeros_like(flatten(vectors))
        outputs, cotangents = [g for g, _ in pairs], [v for _, v in pairs]
        with twice_differentiable(
            self._passes.objective.model
        ):  # a checkpointed part runs its forward again here
            found = torch.autograd.grad(
                outputs, self._parameters, cotangents, retain_graph=True, allow_unused=True
            )
        return flatten(
            [
                torch.zeros_like(p) if h is None else dense(h)
                for h, p in zip(found, self._parameters, strict=True)
            ]
        )

    def _first_backward(self, held: set[int]) -> Iterator[tuple[Any, list[Tensor], int]]:
        """(batch, its gradient with graph, bytes its graph holds beyond ``held``)."""
        added = 0

        def pack(tensor: Tensor) -> Tensor:
            nonlocal added
            for part in _owners_of_memory(tensor):
                storage = part.untyped_storage()
                if storage.data_ptr() not in held:
                    held.add(storage.data_ptr())
                    added += storage.nbytes()
            # The hook also spares the version check on running averages, which are rewound between
            # batches.
            return tensor.detach()

        source = self._passes.values()
        while True:
            # Switched around each batch, not around the loop: whoever leaves the loop early must
            # find nothing switched.
            hooks = torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)
            with hooks, twice_differentiable(self._passes.objective.model):
                item = next(source, None)
                if item is None:
                    return
                if not item.loss.requires_grad:
                    fail("loss", "must depend on a parameter that takes a gradient", "a constant")
                raw = torch.autograd.grad(
                    item.loss, self._parameters, create_graph=True, allow_unused=True
                )
            gradient = [
                torch.zeros_like(p) if g is None else dense(g)
                for g, p in zip(raw, self._parameters, strict=True)
            ]
            yield item, gradient, added
            added = 0


def _owners_of_memory(tensor: Tensor) -> list[Tensor]:
    """The tensors that own the memory of one; a sparse tensor has no storage of its own."""
    if tensor.layout == torch.strided:
        return [tensor]
    if tensor.layout == torch.sparse_coo:
        return [tensor._indices(), tensor._values()]
    return []  # compressed forms: their parts differ per layout, and they are small


# Second derivatives.

#: Number of spatial dimensions of the convolutions that are replaced.
_CONVOLUTIONS = {torch.conv1d: 1, torch.conv2d: 2, torch.conv3d: 3}
_BATCH_NORM, _LAYER_NORM = signature(F.batch_norm), signature(F.layer_norm)
_COVERED = {*_CONVOLUTIONS, F.batch_norm, F.layer_norm, F.gelu}


class QuickSecondDerivatives(TorchFunctionMode):
    """Inside this block convolutions, evaluating batch norms, layer norms and GELU get the second
    derivatives below.

    Whatever they do not cover goes to torch as it came: complex, unbatched or mixed-type inputs,
    padding given as a word, GELU by tanh, norms without weights, tensor subclasses, autocast,
    ``torch.func`` transforms, batch norm in training mode, scripted modules, and checkpointed parts
    (torch runs their forward again where no mode reaches, and both runs have to be alike).

    Example:
        >>> x, w = torch.ones(1, 1, 3), torch.ones(1, 1, 2, requires_grad=True)
        >>> with QuickSecondDerivatives():
        ...     y = F.conv1d(x, w)
        >>> type(y.grad_fn).__name__
        '_ConvolutionBackward'
        >>> (g,) = torch.autograd.grad(y.pow(2).sum(), w, create_graph=True)
        >>> torch.autograd.grad(g.sum(), w)[0]
        tensor([[[8., 8.]]])
    """

    def __enter__(self) -> QuickSecondDerivatives:
        self._hooks = _saving_hooks()
        return super().__enter__()

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Any = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func not in _COVERED or _saving_hooks() != self._hooks:
            found = None
        elif func in _CONVOLUTIONS:
            found = _convolution(_CONVOLUTIONS[func], *args, **kwargs)
        elif func is F.gelu:
            found = _gelu(*args, **kwargs)
        elif func is F.layer_norm:
            found = _layer_norm(**_LAYER_NORM.bind(*args, **kwargs).arguments)
        else:
            found = _batch_norm(**_BATCH_NORM.bind(*args, **kwargs).arguments)
        return func(*args, **kwargs) if found is None else found


def _convolution(
    dims: int,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor | None:
    """A convolution with a cheap second derivative, or None where torch's own must do."""
    if (
        isinstance(padding, str)
        or not _is_covered(input, weight, bias)
        or not input.ndim == weight.ndim == dims + 2
    ):
        return None
    sizes = [_each(n, dims) for n in (stride, padding, dilation)]
    return _Convolution.apply(input, weight, bias, (*sizes, False, [0] * dims, groups))


def _batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor | None:
    """Batch normalisation in evaluation mode with a cheap second derivative, or None where torch's
    own must do.
    """
    if training or running_mean is None or running_var is None or weight is None or bias is None:
        return None
    if not _is_covered(input, weight, bias, running_mean, running_var) or input.ndim < 2:
        return None
    return _BatchNorm.apply(input, weight, bias, running_mean, running_var, eps)


def _layer_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor | None:
    if weight is None or not _is_covered(input, weight, bias):
        return None
    return _LayerNorm.apply(input, weight, bias, list(normalized_shape), eps)


def _gelu(input: Tensor, *, approximate: str = "none") -> Tensor | None:
    return _Gelu.apply(input) if approximate == "none" and _is_covered(input) else None


def _is_covered(*tensors: Tensor | None) -> bool:
    """Whether these are plain real tensors of one type, a derivative is wanted, no torch.func
    transform is active.
    """
    given = [t for t in tensors if t is not None]
    first = given[0]
    return (
        torch.is_grad_enabled()
        and any(t.requires_grad for t in given)
        and all(type(t) in (Tensor, nn.Parameter) and t.dtype == first.dtype for t in given)
        and all(t.layout == torch.strided and t.device == first.device for t in given)
        and first.is_floating_point()
        and first.numel() > 0
        and not torch.is_autocast_enabled(first.device.type)
        and not torch._C._are_functorch_transforms_active()
        and forward_ad._current_level < 0
    )


def _saving_hooks() -> Any:
    """The hooks that see what is saved for a backward; checkpointing works by setting its own."""
    top = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
    return (
        object() if top is None else top(False)
    )  # unknown: never twice the same, so that torch does everything


def _each(number: Any, dims: int) -> list[int]:
    """One size per dimension, of a number or of a sequence."""
    numbers = [int(number)] if isinstance(number, int) else [int(n) for n in number]
    return numbers * dims if len(numbers) == 1 else numbers


def _sum(fresh: Tensor | None, more: Tensor) -> Tensor:
    """Their sum; ``fresh`` was made by the caller and may be overwritten where no graph is
    built.
    """
    if fresh is None:
        return more
    return fresh + more if torch.is_grad_enabled() else fresh.add_(more)


def _scale(fresh: Tensor, factor: Tensor) -> Tensor:
    """Their product, by the same rule."""
    return fresh * factor if torch.is_grad_enabled() else fresh.mul_(factor)


def _channels(vector: Tensor, like: Tensor) -> Tensor:
    """One number per channel in a shape that broadcasts over ``like``."""
    return vector.view(-1, *[1] * (like.ndim - 2))


class _Convolution(Function):
    """y = w * x + b; the geometry is what ``aten.convolution`` takes after the bias."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, w: Tensor, b: Tensor | None, geometry: tuple[Any, ...]
    ) -> Tensor:
        ctx.save_for_backward(x, w)
        ctx.geometry, ctx.bias = geometry, None if b is None else [len(b)]
        return torch.ops.aten.convolution(x, w, b, *geometry)

    @staticmethod
    def backward(ctx: Any, gy: Tensor) -> Any:
        x, w = ctx.saved_tensors
        return *_ConvolutionGradient.apply(
            gy, x, w, ctx.geometry, ctx.bias, list(ctx.needs_input_grad[:3])
        ), None


class _ConvolutionGradient(Function):
    """(gx, gw, gb) of gy, x, w. It is linear in gy, and in x and w apart: its derivative needs no
    new kernel.

    With ux, uw, ub the cotangents of gx, gw, gb: <ux, gx> + <uw, gw> + <ub, gb> = <gy, w * ux + uw
    * x + ub>.
    """

    @staticmethod
    def forward(
        ctx: Any,
        gy: Tensor,
        x: Tensor,
        w: Tensor,
        geometry: tuple[Any, ...],
        bias: list[int] | None,
        want: list[bool],
    ) -> Any:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(gy, x, w)
        ctx.geometry = geometry
        return torch.ops.aten.convolution_backward(gy, x, w, bias, *geometry, want)

    @staticmethod
    def backward(ctx: Any, ux: Tensor | None, uw: Tensor | None, ub: Tensor | None) -> Any:
        """Cotangents of gy, x and w from those of gx, gw and gb (ux, uw, ub; None: zero)."""
        gy, x, w = ctx.saved_tensors
        geometry, aten = ctx.geometry, torch.ops.aten
        to_gy, to_x, to_w = ctx.needs_input_grad[:3]
        dgy = dx = dw = None
        if ux is not None:
            dgy = aten.convolution(ux, w, None, *geometry) if to_gy else None
            dw = (
                aten.convolution_backward(gy, ux, w, None, *geometry, [False, True, False])[1]
                if to_w
                else None
            )
        if uw is not None:
            dgy = _sum(dgy, aten.convolution(x, uw, ub, *geometry)) if to_gy else None
            dx = (
                aten.convolution_backward(gy, x, uw, None, *geometry, [True, False, False])[0]
                if to_x
                else None
            )
        elif ub is not None and to_gy:
            dgy = _sum(dgy, _channels(ub, gy).expand_as(gy))
        return dgy, dx, dw, None, None, None


class _BatchNorm(Function):
    """y = w (x - m) / sqrt(v + eps) + b per channel, with m and v fixed."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, w: Tensor, b: Tensor, m: Tensor, v: Tensor, eps: float
    ) -> Tensor:
        ctx.save_for_backward(x, w, m, v)
        ctx.eps = eps
        return torch.ops.aten.native_batch_norm(x, w, b, m, v, False, 0.0, eps)[0]

    @staticmethod
    def backward(ctx: Any, gy: Tensor) -> Any:
        x, w, m, v = ctx.saved_tensors
        return (
            *_BatchNormGradient.apply(gy, x, w, m, v, ctx.eps, list(ctx.needs_input_grad[:3])),
            None,
            None,
            None,
        )


class _BatchNormGradient(Function):
    """(gx, gw, gb) of gy, x, w: with s = 1 / sqrt(v + eps), gx = w s gy, gw = s sum (x - m) gy,
    gb = sum gy.
    """

    @staticmethod
    def forward(
        ctx: Any,
        gy: Tensor,
        x: Tensor,
        w: Tensor,
        m: Tensor,
        v: Tensor,
        eps: float,
        want: list[bool],
    ) -> Any:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(gy, x, w, m, v)
        ctx.eps = eps
        return _batch_norm_backward(gy, x, w, m, v, eps, want)

    @staticmethod
    def backward(ctx: Any, ux: Tensor | None, uw: Tensor | None, ub: Tensor | None) -> Any:
        """Cotangents of gy, x and w from those of gx, gw and gb (ux, uw, ub; None: zero)."""
        gy, x, w, m, v = ctx.saved_tensors
        eps, aten = ctx.eps, torch.ops.aten
        to_gy, to_x, to_w = ctx.needs_input_grad[:3]
        dgy = dx = dw = None
        if uw is not None:
            dgy = aten.native_batch_norm(x, uw, ub, m, v, False, 0.0, eps)[0] if to_gy else None
            dx = gy * _channels(uw * (v + eps).rsqrt(), gy) if to_x else None
        if ux is not None:  # the same maps at mean zero: w s ux, and s sum gy ux
            zero = torch.zeros_like(m)
            dgy = (
                _sum(dgy, aten.native_batch_norm(ux, w, None, zero, v, False, 0.0, eps)[0])
                if to_gy
                else None
            )
            if to_w:
                dw = _batch_norm_backward(gy, ux, w, zero, v, eps, [False, True, False])[1]
        if uw is None and ub is not None and to_gy:
            dgy = _sum(dgy, _channels(ub, gy).expand_as(gy))
        return dgy, dx, dw, None, None, None, None


def _batch_norm_backward(
    gy: Tensor, x: Tensor, w: Tensor, m: Tensor, v: Tensor, eps: float, want: list[bool]
) -> Any:
    """The gradients that ``want`` names: of input, weight and bias."""
    # The statistics twice: as running and as saved ones, which CUDA insists on and the CPU does not
    # read.
    return torch.ops.aten.native_batch_norm_backward(
        gy, x, w, m, v, m, (v + eps).rsqrt(), False, eps, want
    )


class _LayerNorm(Function):
    """y = w z + b with z = (x - mean x) s, s = 1 / sqrt(var x + eps), over the last dimensions."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, w: Tensor, b: Tensor | None, shape: list[int], eps: float
    ) -> Tensor:
        y, m, s = torch.ops.aten.native_layer_norm(x, shape, w, b, eps)
        ctx.save_for_backward(x, w, m, s)
        ctx.shape, ctx.eps = shape, eps
        return y

    @staticmethod
    def backward(ctx: Any, gy: Tensor) -> Any:
        want = list(ctx.needs_input_grad[:3])
        return (
            *_LayerNormGradient.apply(gy, *ctx.saved_tensors, ctx.shape, ctx.eps, want),
            None,
            None,
        )


class _LayerNormGradient(Function):
    """(gx, gw, gb) of gy, x, w: with P c = c - mean c - z mean(c z), gx = s P(w gy), gw = sum z gy,
    gb = sum gy.

    P is symmetric, so that <ux, gx> = <s P(ux), w gy>. In x it is s n (q - a b) with a = mean(ux
    z), b = mean(w gy z) and q the covariance of ux and w gy; its gradient is -s^2 [z (q - 3 a b) +
    b (ux - mean) + a (w gy - mean)].
    """

    @staticmethod
    def forward(
        ctx: Any,
        gy: Tensor,
        x: Tensor,
        w: Tensor,
        m: Tensor,
        s: Tensor,
        shape: list[int],
        eps: float,
        want: list[bool],
    ) -> Any:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(gy, x, w, m, s)
        ctx.shape, ctx.eps = shape, eps
        # The bias only says that its gradient is wanted, and where.
        return torch.ops.aten.native_layer_norm_backward(
            gy, x, shape, m, s, w, w if want[2] else None, want
        )

    @staticmethod
    def backward(ctx: Any, ux: Tensor | None, uw: Tensor | None, ub: Tensor | None) -> Any:
        """Cotangents of gy, x and w from those of gx, gw and gb (ux, uw, ub; None: zero)."""
        gy, x, w, m, s = ctx.saved_tensors
        shape, eps, aten = ctx.shape, ctx.eps, torch.ops.aten
        last, first = tuple(range(-len(shape), 0)), tuple(range(gy.ndim - len(shape)))
        to_gy, to_x, to_w = ctx.needs_input_grad[:3]
        only_input = [True, False, False]
        dgy = dx = dw = None
        if uw is not None:
            dgy = aten.native_layer_norm(x, shape, uw, ub, eps)[0] if to_gy else None
            dx = (
                aten.native_layer_norm_backward(gy, x, shape, m, s, uw, None, only_input)[0]
                if to_x
                else None
            )
        elif ub is not None and to_gy:
            dgy = ub.expand_as(gy).clone()
        if ux is not None:
            if to_gy or to_w:
                moved = aten.native_layer_norm_backward(ux, x, shape, m, s, None, None, only_input)[
                    0
                ]  # s P(ux)
                dgy = _sum(dgy, moved * w) if to_gy else None
                dw = ((gy * moved).sum(first) if first else gy * moved) if to_w else None
            if to_x:
                if (
                    torch.is_grad_enabled()
                ):  # s was saved as a number; whoever differentiates once more needs its graph
                    s = (x.var(last, unbiased=False, keepdim=True) + eps).rsqrt()
                z, c = aten.native_layer_norm(x, shape, None, None, eps)[0], w * gy
                a, b = (ux * z).mean(last, keepdim=True), (c * z).mean(last, keepdim=True)
                ux_mean, c_mean = ux.mean(last, keepdim=True), c.mean(last, keepdim=True)
                q, ss = (ux * c).mean(last, keepdim=True) - ux_mean * c_mean, s.square()
                parts = ux * (-ss * b), _scale(c, -ss * a), ss * (b * ux_mean + a * c_mean)
                bent = _scale(z, -ss * (q - 3 * a * b))
                for part in (*parts, *(() if dx is None else (dx,))):
                    bent = _sum(bent, part)
                dx = bent
        return dgy, dx, dw, None, None, None, None, None


class _Gelu(Function):
    """y = x Phi(x), Phi the normal distribution function."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return torch.ops.aten.gelu(x)

    @staticmethod
    def backward(ctx: Any, gy: Tensor) -> Any:
        return _GeluGradient.apply(gy, *ctx.saved_tensors)


class _GeluGradient(Function):
    """gx = gy y'(x); the second derivative is y''(x) = (2 - x^2) phi(x), phi the normal density.

    gy y''(x) depends on no vector: it is kept beside gy, and a product takes two passes.
    """

    @staticmethod
    def forward(ctx: Any, gy: Tensor, x: Tensor) -> Tensor:
        ctx.save_for_backward(gy, x, _bent(gy, x))
        return torch.ops.aten.gelu_backward(gy, x)

    @staticmethod
    def backward(ctx: Any, u: Tensor) -> Any:
        gy, x, bent = ctx.saved_tensors
        if (
            torch.is_grad_enabled()
        ):  # it was kept as a number; whoever differentiates once more needs its graph
            bent = _bent(gy, x)
        return torch.ops.aten.gelu_backward(u, x), bent * u


def _bent(gy: Tensor, x: Tensor) -> Tensor:
    """gy y''(x)."""
    square = x * x
    return (square * -0.5).exp() * (2.0 - square) * gy * (1 / math.sqrt(2 * math.pi))
