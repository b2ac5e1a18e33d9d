"""Batches as users hand them over: tensors, tuples and mappings, sample by sample."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from mindgap.base.check import RuleError


def pair(batch: Any) -> tuple[Tensor | None, Tensor | None]:
    """Inputs and targets of a batch: its first and its last tensor, with one row per sample.

    Args:
        batch: a tensor (inputs only), or a tuple, list or mapping that begins with the inputs and
            ends with the targets.

    Returns:
        (inputs, targets). None stands for an entry that is missing, is no tensor or has no axes,
        and for targets whose rows are not as many as the inputs'.

    Example:
        >>> pair((torch.ones(4, 2), torch.zeros(4)))[1].shape, pair(torch.ones(3, 2))[1]
        (torch.Size([4]), None)
    """
    if isinstance(batch, Mapping):
        batch = tuple(batch.values())
    if isinstance(batch, Tensor):
        return (batch, None) if batch.ndim else (None, None)
    if not isinstance(batch, (tuple, list)) or not batch:
        return None, None
    inputs = batch[0]
    targets = batch[-1] if len(batch) > 1 else None
    x = inputs if isinstance(inputs, Tensor) and inputs.ndim else None
    y = targets if isinstance(targets, Tensor) and targets.ndim else None
    if x is not None and y is not None and len(x) != len(y):
        y = None
    return x, y


def size(batch: Any) -> int:
    """Samples in a batch, by the length of its inputs; 0 where that is unknown."""
    x, _ = pair(batch)
    return 0 if x is None else len(x)


def rows(batch: Any, index: Any) -> Any:
    """Some samples of a batch; entries without one row per sample stay whole.

    Args:
        batch: a tensor, or a tuple, list or mapping of entries.
        index: what picks rows of a tensor: a slice, a list or a tensor of indices or booleans.

    Returns:
        A batch of the same form; a list becomes a tuple and a mapping a dict.

    Raises:
        RuleError: the batch is no tensor, mapping, tuple or list.

    Example:
        >>> rows((torch.arange(4), torch.arange(4)), [1, 3])
        (tensor([1, 3]), tensor([1, 3]))
    """
    samples = size(batch)

    def select(entry: Any) -> Any:
        """The rows ``index`` of a tensor that has as many rows as the batch has ``samples``; any
        other entry as it is.
        """
        per_sample = isinstance(entry, Tensor) and entry.ndim and len(entry) == samples
        return entry[index] if per_sample else entry

    if isinstance(batch, Tensor):
        return select(batch)
    if isinstance(batch, Mapping):
        return {key: select(entry) for key, entry in batch.items()}
    if isinstance(batch, (tuple, list)):
        return tuple(select(entry) for entry in batch)
    raise RuleError("samples of this kind of batch cannot be chosen")


def replaced(batch: Any, x: Tensor | None = None, y: Tensor | None = None) -> Any:
    """A copy of the batch with other inputs x (its first entry) or other targets y (its last one);
    None keeps them. A batch of one tensor has inputs only, so y is not used. A mapping becomes a
    dict, any other batch a tuple.
    """
    if isinstance(batch, Tensor):
        return batch if x is None else x
    is_mapping = isinstance(batch, Mapping)
    entries = list(batch.values() if is_mapping else batch)
    if x is not None:
        entries[0] = x
    if y is not None:
        entries[-1] = y
    return dict(zip(batch, entries, strict=True)) if is_mapping else tuple(entries)


def merged(batches: list[Any]) -> Any:
    """Several batches of one form as one: tensors are joined along their first axis, entry by
    entry. Where they cannot be joined, the first batch.
    """
    try:
        if isinstance(batches[0], Tensor):
            return torch.cat(batches)
        if isinstance(batches[0], Mapping):
            return {k: torch.cat([b[k] for b in batches]) for k in batches[0]}
        return tuple(torch.cat(tensors) for tensors in zip(*batches))
    except (RuntimeError, TypeError):
        return batches[0]


def tensors_in(batch: Any) -> Iterator[Tensor]:
    """Every tensor of a nested batch (tensors, numpy arrays, sequences, mappings), in order.

    Example:
        >>> [tuple(t.shape) for t in tensors_in({"x": torch.ones(2, 3), "y": [torch.zeros(2)]})]
        [(2, 3), (2,)]
    """
    for leaf in tree_leaves(plain_tree(batch)):
        if isinstance(leaf, Tensor):
            yield leaf
        elif isinstance(leaf, np.ndarray) and leaf.dtype != object:
            yield torch.from_numpy(np.ascontiguousarray(leaf))


def plain_tree(batch: Any) -> Any:
    """The batch with mappings that torch's trees do not know (Hugging Face's ``BatchEncoding``)
    as dictionaries.
    """
    if hasattr(batch, "items") and callable(batch.items) and not isinstance(batch, dict):
        return dict(batch.items())
    return batch


def map_tensors(function: Callable[[Tensor], Tensor], batch: Any) -> Any:
    """Apply a function to each tensor of a batch made of tensors, tuples, lists and dicts."""
    if isinstance(batch, Tensor):
        return function(batch)
    if isinstance(batch, dict):
        return {key: map_tensors(function, value) for key, value in batch.items()}
    if isinstance(batch, (tuple, list)):
        values = [map_tensors(function, value) for value in batch]
        return type(batch)(*values) if hasattr(batch, "_fields") else type(batch)(values)
    return batch


def arrays_to_tensors(data: Any) -> Any:
    """NumPy arrays in tuples, lists and dicts as tensors; anything else stays."""
    if isinstance(data, np.ndarray) and data.dtype.kind in "biufc":
        return torch.from_numpy(np.ascontiguousarray(data))
    if isinstance(data, dict):
        return {key: arrays_to_tensors(value) for key, value in data.items()}
    if isinstance(data, tuple):
        values = [arrays_to_tensors(value) for value in data]
        return type(data)(*values) if hasattr(data, "_fields") else tuple(values)
    if isinstance(data, list) and any(isinstance(value, np.ndarray) for value in data):
        return [arrays_to_tensors(value) for value in data]
    return data


def leading_axis(batch: Any) -> int:
    """Samples of a batch: the length of its first tensor, 0 where there is none.

    Example:
        >>> leading_axis((torch.zeros(3, 2), torch.zeros(3))), leading_axis("text")
        (3, 0)
    """
    leaves = tensor_leaves(batch)
    return leaves[0].shape[0] if leaves and leaves[0].dim() else 0


def to_device(batch: Any, device: torch.device | None) -> Any:
    """A batch with its tensors on a device (None: where they are)."""
    if device is None:
        return batch
    return map_tensors(lambda t: t.to(device, non_blocking=True), batch)


def tensor_leaves(batch: Any) -> list[Tensor]:
    """All tensors of a batch, in order."""
    if isinstance(batch, Tensor):
        return [batch]
    if not isinstance(batch, (dict, tuple, list)):
        return []
    parts = batch.values() if isinstance(batch, dict) else batch
    return [tensor for part in parts for tensor in tensor_leaves(part)]
