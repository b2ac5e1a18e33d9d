"""Squared norms of per-sample parameter gradients by the structure of a layer: one rule per kind of
layer.

Letters: a = the layer's input, b = the gradient of ``n * loss`` at its output, both with the n
samples first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F, grad as weight_gradients

#: Numbers that one temporary array may hold (32 MB of float32), so that memory does not grow with
#: the batch.
LARGEST_ARRAY = 2**23


@dataclass(frozen=True)
class LayerRule:
    """How to square a layer's per-sample gradient norm."""

    #: whether the rule holds for this module and input (options that change the derivative do not).
    applies: Callable[[Any, Tensor], bool]
    #: (module, a, b) -> squared norms over the module's parameters that take gradients, shape (n,).
    squares: Callable[[Any, Tensor, Tensor], Tensor]


def squared_norms_of_products(a: Tensor, b: Tensor) -> Tensor:
    """``‖Σ_t b_t a_tᵀ‖²`` for each sample, shape (n,), for a of shape (n, T, p) and b of shape (n,
    T, q); t runs over positions.

    By the Gram matrices, Σ_ts (a_t·a_s)(b_t·b_s), where that is less work than the products
    themselves.

    Example:
        >>> squared_norms_of_products(
        ...     torch.tensor([[[1.0, 2.0], [0.0, 1.0]]]), torch.tensor([[[1.0], [1.0]]])
        ... )
        tensor([10.])
    """
    samples, length, inputs = a.shape
    outputs = b.shape[2]
    if length == 1:
        return a.square().sum((1, 2)) * b.square().sum((1, 2))
    # Multiplications per sample and position: of both Gram matrices, and of the products.
    by_gram = length * (inputs + outputs) < inputs * outputs
    numbers_per_sample = 2 * length * length if by_gram else inputs * outputs
    chunk = max(1, LARGEST_ARRAY // max(numbers_per_sample, 1))
    parts = []
    for some_a, some_b in zip(a.split(chunk), b.split(chunk), strict=True):
        if by_gram:
            parts.append((some_a @ some_a.mT).mul_(some_b @ some_b.mT).sum((1, 2)))
        else:
            parts.append((some_b.mT @ some_a).square().sum((1, 2)))
    return torch.cat(parts) if parts else a.new_zeros(samples)


def _merge_positions(t: Tensor) -> Tensor:
    """The tensor in shape (n, T, p) instead of (n, ..., p): all axes between samples and features
    become one of T positions.
    """
    return t.reshape(t.shape[0], -1, t.shape[-1])


def _squares_of_linear(module: nn.Linear, a: Tensor, b: Tensor) -> Tensor:
    """Squared gradient norm of weight and bias for each sample, shape (n,): of the weight
    ‖Σ_t b_t a_tᵀ‖², of the bias ‖Σ_t b_t‖², where t runs over positions.

    Args:
        a: input, shape (n, ..., inputs).
        b: gradient of n times the loss at the output, shape (n, ..., outputs).
    """
    a, b = _merge_positions(a), _merge_positions(b)
    total = b.new_zeros(b.shape[0])
    if module.weight.requires_grad:
        total = total + squared_norms_of_products(a.to(b.dtype), b)
    if module.bias is not None and module.bias.requires_grad:
        total = total + b.sum(1).square().sum(1)
    return total


def _squares_of_embedding(module: nn.Embedding, a: Tensor, b: Tensor) -> Tensor:
    """Squared gradient norm of the table for each sample, shape (n,).

    A row of the table gets the sum over the positions t that hold its token: the squared norm is
    Σ b_s·b_t over all pairs of positions with equal tokens. The token of padding gets nothing.

    Args:
        a: the tokens, shape (n, ...).
        b: gradient of n times the loss at the output, shape (n, ..., features).
    """
    tokens, b = a.reshape(a.shape[0], -1), _merge_positions(b)
    if module.padding_idx is not None:
        b = b * (tokens != module.padding_idx).unsqueeze(2)
    if tokens.shape[1] == 1:
        return b.square().sum((1, 2))
    chunk = max(1, LARGEST_ARRAY // (2 * tokens.shape[1] ** 2))
    parts = []
    for some_tokens, some_b in zip(tokens.split(chunk), b.split(chunk), strict=True):
        same_token = some_tokens.unsqueeze(1) == some_tokens.unsqueeze(2)
        parts.append(((some_b @ some_b.mT) * same_token).sum((1, 2)))
    return torch.cat(parts)


def _squares_of_convolution(module: Any, a: Tensor, b: Tensor) -> Tensor:
    """Squared gradient norm of a convolution's weight and bias for each sample, shape (n,), by each
    sample's own weight gradient, a chunk of samples at a time.

    Args:
        a: input, shape (n, channels, ...), where ``...`` are the places of the kernel.
        b: gradient of n times the loss at the output, shape (n, output channels, ...).
    """
    total = b.new_zeros(a.shape[0])
    if module.bias is not None and module.bias.requires_grad:
        total = total + b.flatten(2).sum(2).square().sum(1)
    if not module.weight.requires_grad:
        return total
    weight_gradient = _WEIGHT_GRADIENTS[type(module)]
    chunk, parts = max(1, LARGEST_ARRAY // module.weight.numel()), []
    for some_a, some_b in zip(a.split(chunk), b.split(chunk), strict=True):
        # Samples as groups of channels: one grouped convolution gives each sample's own weight
        # gradient.
        samples = len(some_a)
        gradient = weight_gradient(
            some_a.reshape(1, -1, *some_a.shape[2:]),
            (samples * module.weight.shape[0], *module.weight.shape[1:]),
            some_b.reshape(1, -1, *some_b.shape[2:]),
            stride=module.stride,
            padding=module.padding,
            dilation=module.dilation,
            groups=samples * module.groups,
        )
        parts.append(gradient.reshape(samples, -1).square().sum(1))
    return total + torch.cat(parts)


_WEIGHT_GRADIENTS: dict[type[nn.Module], Callable[..., Tensor]] = {
    nn.Conv1d: weight_gradients.conv1d_weight,
    nn.Conv2d: weight_gradients.conv2d_weight,
    nn.Conv3d: weight_gradients.conv3d_weight,
}


def _squares_of_affine(module: Any, standard: Tensor, b: Tensor, shared: tuple[int, ...]) -> Tensor:
    """Squared gradient norm of weight and bias for each sample, shape (n,), of a layer that gives
    ``weight * standard + bias``.

    Args:
        standard: the standardised input, samples first.
        b: gradient of n times the loss at the output, of the same shape.
        shared: axes over which one weight is used again; may be empty.
    """
    total = b.new_zeros(b.shape[0])
    # ``sum`` takes an empty tuple of axes for all axes, so it is not called with one.
    if module.weight.requires_grad:
        product = standard * b
        total = total + (product.sum(shared) if shared else product).flatten(1).square().sum(1)
    if module.bias is not None and module.bias.requires_grad:
        total = total + (b.sum(shared) if shared else b).flatten(1).square().sum(1)
    return total


def _squares_of_layer_norm(module: nn.LayerNorm, a: Tensor, b: Tensor) -> Tensor:
    """Squared gradient norm of weight and bias for each sample, from input ``a`` and gradient ``b``
    at the output, both of shape (n, ..., *normalized_shape).
    """
    standard = F.layer_norm(a, module.normalized_shape, None, None, module.eps)
    axes_of_positions = tuple(range(1, a.ndim - len(module.normalized_shape)))
    return _squares_of_affine(module, standard, b, axes_of_positions)


def _squares_of_batch_norm(module: Any, a: Tensor, b: Tensor) -> Tensor:
    """Squared gradient norm of weight and bias for each sample in evaluation mode, from input ``a``
    and gradient ``b`` at the output, both of shape (n, channels, ...).
    """
    standard = F.batch_norm(
        a, module.running_mean, module.running_var, None, None, False, 0.0, module.eps
    )
    return _squares_of_affine(module, standard, b, tuple(range(2, a.ndim)))


def _is_plain_convolution(module: Any, a: Tensor) -> bool:
    """Whether a convolution pads by a number of zeros and gets a batch of samples, as
    ``_squares_of_convolution`` needs.
    """
    return (
        module.padding_mode == "zeros"
        and not isinstance(module.padding, str)
        and a.ndim == len(module.kernel_size) + 2
    )


#: Exact type of module -> its rule. Subclasses may compute something else and so fall back.
RULES: dict[type[nn.Module], LayerRule] = {
    nn.Linear: LayerRule(lambda m, a: a.ndim >= 2, _squares_of_linear),
    nn.Embedding: LayerRule(
        lambda m, a: m.max_norm is None and not m.scale_grad_by_freq and not m.sparse,
        _squares_of_embedding,
    ),
    nn.Conv1d: LayerRule(_is_plain_convolution, _squares_of_convolution),
    nn.Conv2d: LayerRule(_is_plain_convolution, _squares_of_convolution),
    nn.Conv3d: LayerRule(_is_plain_convolution, _squares_of_convolution),
    nn.LayerNorm: LayerRule(lambda m, a: a.ndim > len(m.normalized_shape), _squares_of_layer_norm),
    nn.BatchNorm1d: LayerRule(lambda m, a: not m.training and a.ndim >= 2, _squares_of_batch_norm),
    nn.BatchNorm2d: LayerRule(lambda m, a: not m.training, _squares_of_batch_norm),
}
