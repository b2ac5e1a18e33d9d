"""Cheaper second derivatives of convolutions, of batch norm with fixed statistics, of layer norm
and of GELU, and right ones of weight norm.

torch differentiates the backward of a convolution by convolutions whose kernels are whole images,
and the backward of the others by ten to thirty passes over each activation. Here they are written
by the kernels of the first derivative, which the libraries have tuned: a Hessian product of a
ResNet20 falls from 2.8 to 2 gradients, its count of convolutions (six per layer against three).
What is kept for the backward is the same, the result equal to rounding.

Letters in this file: a layer takes the input x, the weight w and the bias b and gives y. A first
backward pass takes grad_y, the loss's derivative by y, and gives grad_x, grad_w and grad_b. The
second backward pass takes cot_x, cot_w and cot_b (None for zero), the derivatives of some number by
grad_x, grad_w and grad_b ("cotangents"), and gives that number's derivatives by grad_y, x and w.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function, forward_ad
from torch.overrides import TorchFunctionMode

aten = torch.ops.aten


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
        recurrent = any(isinstance(module, nn.RNNBase) for module in model.modules())
        if recurrent and torch.backends.cudnn.is_available():
            stack.enter_context(torch.backends.cudnn.flags(enabled=False))
        if "torch._dynamo" in sys.modules:
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        stack.enter_context(QuickSecondDerivatives())
        yield


class QuickSecondDerivatives(TorchFunctionMode):
    """Inside this block convolutions, evaluating batch norms, layer norms and GELU get the second
    derivatives of this file.

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
        self._hooks = _saving_hooks()  # others, later, mean a checkpointed part
        return super().__enter__()

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Any = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        # Inside the block torch calls this in place of each of its functions, ``func``.
        kwargs = kwargs or {}
        replacement = _REPLACEMENTS.get(func)
        if replacement is not None and _saving_hooks() == self._hooks:
            result = replacement(*args, **kwargs)
            if result is not None:
                return result
        return func(*args, **kwargs)


# What takes the place of a torch function: the same arguments, and None where torch must do it.


def _convolution(dimensions: int) -> Callable[..., Tensor | None]:
    """The replacement of ``torch.conv1d``, ``conv2d`` or ``conv3d``, by the number of spatial
    dimensions. It takes the arguments of these, and returns None where torch must do it.
    """

    def convolve(
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
    ) -> Tensor | None:
        """The convolution over ``dimensions`` of space, by ``_Convolution``; takes the arguments of
        torch's function, and gives None where torch must do it.
        """
        if isinstance(padding, str) or not _is_covered(input, weight, bias):
            return None
        if not input.ndim == weight.ndim == dimensions + 2:  # an input without a batch axis
            return None
        sizes = [_per_dimension(size, dimensions) for size in (stride, padding, dilation)]
        # These two are for transposed convolutions only.
        transposed, output_padding = False, [0] * dimensions
        geometry = (*sizes, transposed, output_padding, groups)
        return _Convolution.apply(input, weight, bias, geometry)

    return convolve


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
    """The replacement of ``F.batch_norm`` in evaluation mode; None where torch must do it."""
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
    """The replacement of ``F.layer_norm`` with a weight; None where torch must do it."""
    if weight is None or not _is_covered(input, weight, bias):
        return None
    return _LayerNorm.apply(input, weight, bias, list(normalized_shape), eps)


def _gelu(input: Tensor, *, approximate: str = "none") -> Tensor | None:
    """The replacement of ``F.gelu`` without an approximation."""
    return _Gelu.apply(input) if approximate == "none" and _is_covered(input) else None


def _weight_norm(v: Tensor, g: Tensor, dim: int = 0) -> Tensor:
    """Weight norm in torch's elementary functions: the second derivatives of its own kernel are
    wrong (torch 2.13; ``gradgradcheck`` fails).
    """
    return v * (g / torch.norm_except_dim(v, 2, dim))


_REPLACEMENTS: dict[Callable[..., Any], Callable[..., Tensor | None]] = {
    torch.conv1d: _convolution(1),
    torch.conv2d: _convolution(2),
    torch.conv3d: _convolution(3),
    F.batch_norm: _batch_norm,
    F.layer_norm: _layer_norm,
    F.gelu: _gelu,
    torch._weight_norm: _weight_norm,
}


def _is_covered(*tensors: Tensor | None) -> bool:
    """Whether these are plain real tensors of one type on one device, a derivative by one of them
    is wanted, and neither autocast nor a torch.func transform is active. None stands for a tensor
    that the function was not given.
    """
    present = [t for t in tensors if t is not None]
    first = present[0]
    return (
        torch.is_grad_enabled()
        and any(t.requires_grad for t in present)
        and all(type(t) in (Tensor, nn.Parameter) and t.dtype == first.dtype for t in present)
        and all(t.layout == torch.strided and t.device == first.device for t in present)
        and first.is_floating_point()
        and first.numel() > 0
        and not torch.is_autocast_enabled(first.device.type)
        and not torch._C._are_functorch_transforms_active()
        and forward_ad._current_level < 0  # no forward-mode derivative is under way
    )


def _saving_hooks() -> Any:
    """The innermost hooks that see what is saved for a backward pass; None without any.

    Checkpointing sets its own: other hooks than at the block's begin mean a checkpointed part.
    Where this torch has no such function, a new object each time, so that no two are equal.
    """
    innermost_hooks = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
    return object() if innermost_hooks is None else innermost_hooks(False)


def _per_dimension(size: Any, dimensions: int) -> list[int]:
    """A stride, padding or dilation as one whole number per dimension; a single number, alone or
    in a sequence, counts for all.
    """
    sizes = [int(size)] if isinstance(size, int) else [int(each) for each in size]
    return sizes * dimensions if len(sizes) == 1 else sizes


# Sums of derivatives. Where no graph is built, what the caller made itself is overwritten.


def _add(total: Tensor | None, term: Tensor) -> Tensor:
    """total + term, written into ``total`` where no graph is built; None stands for zero."""
    if total is None:
        return term
    return total + term if torch.is_grad_enabled() else total.add_(term)


def _multiply(value: Tensor, factor: Tensor) -> Tensor:
    """value * factor, written into ``value`` where no graph is built."""
    return value * factor if torch.is_grad_enabled() else value.mul_(factor)


def _over_channels(vector: Tensor, like: Tensor) -> Tensor:
    """One number per channel in a shape that broadcasts over ``like``."""
    return vector.view(-1, *[1] * (like.ndim - 2))


class _Convolution(Function):
    """y = w * x + b; the geometry is what ``aten.convolution`` takes after the bias."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, w: Tensor, b: Tensor | None, geometry: tuple[Any, ...]
    ) -> Tensor:
        # y; geometry is what ``aten.convolution`` takes after the bias.
        ctx.save_for_backward(x, w)
        ctx.geometry, ctx.bias_shape = geometry, None if b is None else [len(b)]
        return aten.convolution(x, w, b, *geometry)

    @staticmethod
    def backward(ctx: Any, grad_y: Tensor) -> Any:
        # Derivatives by x, w and b (None where not needed), and None for the geometry. The saved
        # tensors are x and w.
        wanted = list(ctx.needs_input_grad[:3])
        grads = _ConvolutionGradient.apply(
            grad_y, *ctx.saved_tensors, ctx.geometry, ctx.bias_shape, wanted
        )
        return *grads, None


class _ConvolutionGradient(Function):
    """(grad_x, grad_w, grad_b) of grad_y, x, w. It is linear in grad_y, and in x and w apart: its
    derivative needs no new kernel, because <cot_x, grad_x> + <cot_w, grad_w> + <cot_b, grad_b> =
    <grad_y, w * cot_x + cot_w * x + cot_b>.
    """

    @staticmethod
    def forward(
        ctx: Any,
        grad_y: Tensor,
        x: Tensor,
        w: Tensor,
        geometry: tuple[Any, ...],
        bias_shape: list[int] | None,
        wanted: list[bool],
    ) -> Any:
        """grad_x, grad_w and grad_b of a convolution; None for one that ``wanted`` (three booleans)
        does not name. ``geometry`` is what ``aten.convolution`` takes after the bias.
        """
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(grad_y, x, w)
        ctx.geometry = geometry
        return aten.convolution_backward(grad_y, x, w, bias_shape, *geometry, wanted)

    @staticmethod
    def backward(ctx: Any, cot_x: Tensor | None, cot_w: Tensor | None, cot_b: Tensor | None) -> Any:
        """Derivatives by grad_y, x and w of the number whose derivatives by grad_x, grad_w and
        grad_b are cot_x, cot_w and cot_b (None for zero); None for those not needed, and for the
        other arguments of ``forward``.
        """
        grad_y, x, w = ctx.saved_tensors
        needs_grad_y, needs_x, needs_w = ctx.needs_input_grad[:3]
        by_grad_y = by_x = by_w = None

        def first_backward(x: Tensor, w: Tensor, place: int) -> Tensor:
            """What a first backward pass of ``grad_y`` gives for this input and weight: the
            gradient by the input (``place`` 0) or by the weight (``place`` 1).
            """
            wanted = [i == place for i in range(3)]
            return aten.convolution_backward(grad_y, x, w, None, *ctx.geometry, wanted)[place]

        if cot_x is not None:
            by_grad_y = aten.convolution(cot_x, w, None, *ctx.geometry) if needs_grad_y else None
            by_w = first_backward(cot_x, w, 1) if needs_w else None
        if cot_w is not None:
            by_x = first_backward(x, cot_w, 0) if needs_x else None
            if needs_grad_y:  # cot_b goes in as the bias
                by_grad_y = _add(by_grad_y, aten.convolution(x, cot_w, cot_b, *ctx.geometry))
        elif cot_b is not None and needs_grad_y:  # without cot_w no convolution has added it
            by_grad_y = _add(by_grad_y, _over_channels(cot_b, grad_y).expand_as(grad_y))
        return by_grad_y, by_x, by_w, None, None, None


class _BatchNorm(Function):
    """y = w (x - mean) s + b per channel, s = 1 / sqrt(variance + eps), mean and variance fixed."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, w: Tensor, b: Tensor, mean: Tensor, variance: Tensor, eps: float
    ) -> Tensor:
        # y for this mean and variance, one number per channel.
        ctx.save_for_backward(x, w, mean, variance)
        ctx.eps = eps
        return _normalise_batch(x, w, b, mean, variance, eps)

    @staticmethod
    def backward(ctx: Any, grad_y: Tensor) -> Any:
        # Derivatives by x, w and b (None where not needed), and None for mean, variance and eps.
        # The saved tensors are x, w, mean and variance.
        wanted = list(ctx.needs_input_grad[:3])
        grads = _BatchNormGradient.apply(grad_y, *ctx.saved_tensors, ctx.eps, wanted)
        return *grads, None, None, None


class _BatchNormGradient(Function):
    """(grad_x, grad_w, grad_b) of grad_y, x, w: with s = 1 / sqrt(variance + eps) they are grad_x =
    w s grad_y, grad_w = s sum (x - mean) grad_y, grad_b = sum grad_y.
    """

    @staticmethod
    def forward(
        ctx: Any,
        grad_y: Tensor,
        x: Tensor,
        w: Tensor,
        mean: Tensor,
        variance: Tensor,
        eps: float,
        wanted: list[bool],
    ) -> Any:
        """grad_x, grad_w and grad_b of a batch norm with this mean and variance, one number per
        channel; None for one that ``wanted`` (three booleans) does not name.
        """
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(grad_y, x, w, mean, variance)
        ctx.eps = eps
        return _batch_norm_backward(grad_y, x, w, mean, variance, eps, wanted)

    @staticmethod
    def backward(ctx: Any, cot_x: Tensor | None, cot_w: Tensor | None, cot_b: Tensor | None) -> Any:
        """Derivatives by grad_y, x and w of the number whose derivatives by grad_x, grad_w and
        grad_b are cot_x, cot_w and cot_b (None for zero); None for those not needed, and for the
        other arguments of ``forward``.
        """
        grad_y, x, w, mean, variance = ctx.saved_tensors
        eps = ctx.eps
        needs_grad_y, needs_x, needs_w = ctx.needs_input_grad[:3]
        by_grad_y = by_x = by_w = None
        if cot_w is not None:
            if needs_grad_y:  # s (x - mean) cot_w + cot_b
                by_grad_y = _normalise_batch(x, cot_w, cot_b, mean, variance, eps)
            if needs_x:
                by_x = grad_y * _over_channels(cot_w * (variance + eps).rsqrt(), grad_y)
        if cot_x is not None:  # the same maps at mean zero: w s cot_x, and s sum grad_y cot_x
            zero = torch.zeros_like(mean)
            if needs_grad_y:
                scaled = _normalise_batch(cot_x, w, None, zero, variance, eps)
                by_grad_y = _add(by_grad_y, scaled)
            if needs_w:
                only_weight = [False, True, False]
                by_w = _batch_norm_backward(grad_y, cot_x, w, zero, variance, eps, only_weight)[1]
        if cot_w is None and cot_b is not None and needs_grad_y:
            by_grad_y = _add(by_grad_y, _over_channels(cot_b, grad_y).expand_as(grad_y))
        return by_grad_y, by_x, by_w, None, None, None, None


def _normalise_batch(
    x: Tensor, w: Tensor, b: Tensor | None, mean: Tensor, variance: Tensor, eps: float
) -> Tensor:
    """w (x - mean) / sqrt(variance + eps) + b per channel: batch norm with fixed statistics."""
    return aten.native_batch_norm(x, w, b, mean, variance, False, 0.0, eps)[0]


def _batch_norm_backward(
    grad_y: Tensor,
    x: Tensor,
    w: Tensor,
    mean: Tensor,
    variance: Tensor,
    eps: float,
    wanted: list[bool],
) -> Any:
    """grad_x, grad_w and grad_b of a batch norm with fixed statistics, by grad_y; None for one that
    ``wanted`` (three booleans) does not name.
    """
    # The statistics twice: as running and as saved ones, which CUDA insists on and the CPU does not
    # read.
    return aten.native_batch_norm_backward(
        grad_y, x, w, mean, variance, mean, (variance + eps).rsqrt(), False, eps, wanted
    )


class _LayerNorm(Function):
    """y = w z + b with z = (x - mean x) s, s = 1 / sqrt(var x + eps), over the last dimensions."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, w: Tensor, b: Tensor | None, shape: list[int], eps: float
    ) -> Tensor:
        """y for a norm over the last dimensions, whose sizes are ``shape``."""
        y, mean, s = aten.native_layer_norm(x, shape, w, b, eps)
        ctx.save_for_backward(x, w, mean, s)
        ctx.shape, ctx.eps = shape, eps
        return y

    @staticmethod
    def backward(ctx: Any, grad_y: Tensor) -> Any:
        # Derivatives by x, w and b (None where not needed), and None for shape and eps. The saved
        # tensors are x, w, and the mean and s = 1 / sqrt(var x + eps) of the forward pass.
        wanted = list(ctx.needs_input_grad[:3])
        grads = _LayerNormGradient.apply(grad_y, *ctx.saved_tensors, ctx.shape, ctx.eps, wanted)
        return *grads, None, None


class _LayerNormGradient(Function):
    """(grad_x, grad_w, grad_b) of grad_y, x, w: with s = 1 / sqrt(var x + eps), z = (x - mean x) s
    and P c = c - mean c - z mean(c z) they are grad_x = s P(w grad_y), grad_w = sum z grad_y,
    grad_b = sum grad_y.

    P is symmetric, so that <cot_x, grad_x> = <s P(cot_x), w grad_y>.
    """

    @staticmethod
    def forward(
        ctx: Any,
        grad_y: Tensor,
        x: Tensor,
        w: Tensor,
        mean: Tensor,
        s: Tensor,
        shape: list[int],
        eps: float,
        wanted: list[bool],
    ) -> Any:
        """grad_x, grad_w and grad_b of a layer norm; None for one that ``wanted`` (three booleans)
        does not name. ``mean`` and s = 1 / sqrt(var x + eps) are those of the forward pass.
        """
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(grad_y, x, w, mean, s)
        ctx.shape, ctx.eps = shape, eps
        # Only shape and device of the bias count, so the weight stands for it.
        bias = w if wanted[2] else None
        return aten.native_layer_norm_backward(grad_y, x, shape, mean, s, w, bias, wanted)

    @staticmethod
    def backward(ctx: Any, cot_x: Tensor | None, cot_w: Tensor | None, cot_b: Tensor | None) -> Any:
        """Derivatives by grad_y, x and w of the number whose derivatives by grad_x, grad_w and
        grad_b are cot_x, cot_w and cot_b (None for zero); None for those not needed, and for the
        other arguments of ``forward``.
        """
        grad_y, x, w, mean, s = ctx.saved_tensors
        needs_grad_y, needs_x, needs_w = ctx.needs_input_grad[:3]
        by_grad_y = by_x = by_w = None

        def project_and_scale(c: Tensor, weight: Tensor | None) -> Tensor:
            """s P(weight c) with P(c) = c - mean c - z mean(c z), z the normalised x: grad_x of the
            first backward pass for grad_y = c.
            """
            only_input = [True, False, False]
            return aten.native_layer_norm_backward(
                c, x, ctx.shape, mean, s, weight, None, only_input
            )[0]

        if cot_w is not None:
            if needs_grad_y:
                # z cot_w + cot_b, by the kernel of the forward pass.
                by_grad_y = aten.native_layer_norm(x, ctx.shape, cot_w, cot_b, ctx.eps)[0]
            by_x = project_and_scale(grad_y, cot_w) if needs_x else None
        elif cot_b is not None and needs_grad_y:
            by_grad_y = cot_b.expand_as(grad_y).clone()  # ``_add`` may write into it
        if cot_x is not None:
            if needs_grad_y or needs_w:
                # By <cot_x, grad_x> = <s P(cot_x), w grad_y>, which is linear in grad_y and in w.
                projected = project_and_scale(cot_x, None)
                by_grad_y = _add(by_grad_y, projected * w) if needs_grad_y else None
                sample_axes = tuple(range(grad_y.ndim - len(ctx.shape)))
                if needs_w:
                    by_w = grad_y * projected
                    # ``sum`` takes an empty tuple of axes for all axes.
                    by_w = by_w.sum(sample_axes) if sample_axes else by_w
            if needs_x:
                through_x = _layer_norm_second_derivative(
                    x, s, cot_x, w * grad_y, ctx.shape, ctx.eps
                )
                by_x = through_x if by_x is None else _add(through_x, by_x)
        return by_grad_y, by_x, by_w, None, None, None, None, None


def _layer_norm_second_derivative(
    x: Tensor, s: Tensor, u: Tensor, c: Tensor, shape: list[int], eps: float
) -> Tensor:
    """Derivative of <u, s P(c)> by x: of a layer norm's grad_x, times a fixed vector u.

    Here s = 1 / sqrt(var x + eps), z = (x - mean x) s and P(c) = c - mean c - z mean(c z). With a =
    mean(u z), b = mean(c z) and q the covariance of u and c the derivative is -s^2 [z (q - 3 a b) +
    b (u - mean u) + a (c - mean c)].

    Args:
        s: of the forward pass; computed anew where a graph is built.
        u: the cotangent of grad_x.
        c: w grad_y, made by the caller, and overwritten where no graph is built.
        shape: sizes of the last dimensions, over which the norm and all means go.
    """
    last = tuple(range(-len(shape), 0))  # the dimensions of the norm

    def mean(values: Tensor) -> Tensor:
        """The mean over the dimensions of the norm, which stay as dimensions of size 1."""
        return values.mean(last, keepdim=True)

    if torch.is_grad_enabled():
        # s was saved without its graph, which a third derivative needs.
        s = (x.var(last, unbiased=False, keepdim=True) + eps).rsqrt()
    z = aten.native_layer_norm(x, shape, None, None, eps)[0]
    a, b, mean_u, mean_c = mean(u * z), mean(c * z), mean(u), mean(c)
    q, square = mean(u * c) - mean_u * mean_c, s.square()
    # The terms with u and c, then that with z, then the constant ones.
    of_u, of_c = u * (-square * b), _multiply(c, -square * a)
    derivative = _multiply(z, -square * (q - 3 * a * b))
    for term in (of_u, of_c, square * (b * mean_u + a * mean_c)):
        derivative = _add(derivative, term)
    return derivative


class _Gelu(Function):
    """y = x Phi(x), Phi the normal distribution function."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        # y = x Phi(x).
        ctx.save_for_backward(x)
        return aten.gelu(x)

    @staticmethod
    def backward(ctx: Any, grad_y: Tensor) -> Any:
        # The derivative by x, which is the one saved tensor.
        return _GeluGradient.apply(grad_y, *ctx.saved_tensors)


class _GeluGradient(Function):
    """grad_x = grad_y y'(x); the second derivative is y''(x) = (2 - x^2) phi(x), phi the normal
    density.

    grad_y y''(x) depends on no vector: it is kept beside grad_y, and a product takes two passes.
    """

    @staticmethod
    def forward(ctx: Any, grad_y: Tensor, x: Tensor) -> Tensor:
        # grad_x = grad_y y'(x); what the second derivative needs is computed now and kept.
        ctx.save_for_backward(grad_y, x, _gelu_second_derivative(grad_y, x))
        return aten.gelu_backward(grad_y, x)

    @staticmethod
    def backward(ctx: Any, cot_x: Tensor) -> Any:
        """Derivatives by grad_y and x of the number whose derivative by grad_x is cot_x: y'(x)
        cot_x and grad_y y''(x) cot_x.
        """
        grad_y, x, second_derivative = ctx.saved_tensors
        if torch.is_grad_enabled():
            # It was kept without its graph, which a third derivative needs.
            second_derivative = _gelu_second_derivative(grad_y, x)
        return aten.gelu_backward(cot_x, x), second_derivative * cot_x


def _gelu_second_derivative(grad_y: Tensor, x: Tensor) -> Tensor:
    """grad_y y''(x) with y''(x) = (2 - x^2) phi(x), phi the normal density."""
    square = x * x
    return (square * -0.5).exp() * (2.0 - square) * grad_y * (1 / math.sqrt(2 * math.pi))
