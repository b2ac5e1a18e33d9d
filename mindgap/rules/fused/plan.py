"""What a fused step knows between steps: which tensors, where they lie, and how they are cut into chunks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import is_, itemgetter
from typing import Any

import numpy as np
import torch
from torch import Tensor

_POINTER: Any = torch._C.TensorBase.data_ptr


def _at(tensors: Sequence[Any], pointers: list[int]) -> bool:
    """Whether all tensors lie at these addresses."""
    return list(map(_POINTER, tensors)) == pointers


def same_memory_order(first: Tensor, second: Tensor) -> bool:
    """Whether walking through both tensors' memory visits the same elements, without holes.

    Example:
        >>> a = torch.zeros(2, 3)
        >>> same_memory_order(a.t(), torch.ones(3, 2)), same_memory_order(a.t(), a.clone().t())
        (False, True)
        >>> same_memory_order(a[:, :2], a[:, :2])
        False
    """
    if first.is_contiguous() and second.is_contiguous():
        return True
    if first.stride() != second.stride() or first.shape != second.shape:
        return False
    order = sorted(range(first.dim()), key=lambda d: first.stride()[d], reverse=True)
    return first.permute(order).is_contiguous()


@lru_cache(64)
def chunk_table(sizes: tuple[int, ...], chunk: int) -> np.ndarray:
    """Rows (tensor, start, length), at most ``chunk`` elements each.

    Example:
        >>> chunk_table((5, 0, 2), 4).tolist()
        [[0, 0, 4], [0, 4, 1], [2, 0, 2]]
    """
    parts = []
    for i, size in enumerate(sizes):
        starts = np.arange(0, size, chunk, dtype=np.int64)
        parts.append(np.stack([np.full_like(starts, i), starts, np.minimum(size - starts, chunk)], axis=1))
    return np.concatenate(parts) if parts else np.zeros((0, 3), dtype=np.int64)


class Plan:
    """The tensors of one group that share device and dtypes, and where they lie.

    Args:
        owners: the parameters, whose ``grad`` is read anew at every step.
        grads: their gradients now.
        states: name -> one tensor a parameter.
        homes: for each parameter the dict in which the optimizer keeps these states, so that a replaced one is seen.
    """

    def __init__(
        self, owners: list[Tensor], grads: list[Tensor], states: dict[str, list[Tensor]], homes: list[dict[str, Any]]
    ) -> None:
        self.owners, self.states, self.homes = owners, states, homes
        self.device, self.dtype, self.grad_dtype = owners[0].device, owners[0].dtype, grads[0].dtype
        self.sizes = tuple(p.numel() for p in owners)
        self.total = sum(self.sizes)
        self._lay = ([p.data_ptr() for p in owners], [p.stride() for p in owners])
        self._grads = ([g.data_ptr() for g in grads], [g.stride() for g in grads])
        self._fixed = {name: [t.data_ptr() for t in tensors] for name, tensors in states.items()}
        self._rows: dict[tuple[str, ...], Any] = {}
        #: How often gradients were found at other addresses.
        self.moves = 0
        #: Whether the plan is kept for further steps (plans over the pieces of DTensors are not).
        self.lasting = True
        #: Room for what an engine wants to keep with the plan (device tables, buffers).
        self.kept: dict[Any, Any] = {}

    def fresh(self) -> bool:
        """Whether the plan still describes the tensors; follows gradients that moved.

        Runs at every step for every tensor, so it walks through them in C (``map``) and not in Python.
        """
        grads = [p.grad for p in self.owners]
        try:
            for name, tensors in self.states.items():
                if not all(map(is_, map(itemgetter(name), self.homes), tensors)):
                    return False
            if not _at(self.owners, self._lay[0]):
                return False
            still = _at(grads, self._grads[0])
        except (TypeError, KeyError, RuntimeError):  # a gradient or a state is missing
            return False
        if not still:
            if any(g is None for g in grads):
                return False
            pointers = list(map(_POINTER, grads))
            strides = [g.stride() for g in grads]  # type: ignore[union-attr]
            if strides != self._grads[1] or any(g.dtype is not self.grad_dtype for g in grads):  # type: ignore[union-attr]
                return False
            self._grads = (pointers, strides)
            self.moves += 1
            self._rows.clear()
        return True

    def addresses(self, names: tuple[str, ...]) -> np.ndarray:
        """One row of addresses for each named list: ``param``, ``grad`` or a state."""
        rows = self._rows.get(names)
        if rows is None:
            known = {"param": self._lay[0], "grad": self._grads[0], **self._fixed}
            rows = self._rows[names] = np.array([known[name] for name in names], dtype=np.int64)
        return rows

    def tensors(self, name: str) -> list[Tensor]:
        """The tensors of a named list."""
        if name == "param":
            return self.owners
        if name == "grad":
            return [p.grad for p in self.owners]  # type: ignore[misc]
        return self.states[name]


@dataclass(frozen=True)
class Job:
    """One plan with the numbers of its group for one step.

    Attributes:
        plan: the tensors.
        lr: η, a number or a 0-dim tensor.
        decay: weight decay.
        sign: −1 to ascend.
        beta: weight of the memory.
        numbers: what else the rule needs.
    """

    plan: Plan
    lr: Any
    decay: float
    sign: float
    beta: float
    numbers: dict[str, Any]
