"""The array operations of :class:`~mindgap.bilevel.core.types.Ops` in eager torch."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from mindgap.bilevel.core.types import Ops, Scalar
from mindgap.bilevel.data.sample import Sample, row

T = TypeVar("T")


class TorchOps(Ops):
    """Array operations of eager torch.

    Example:
        >>> ops = TorchOps()
        >>> ops.move(torch.ones(2), torch.ones(2), 0.5)
        tensor([0.5000, 0.5000])
        >>> ops.loop(lambda c, i: c + i, 0.0, (np.array([1.0, 2.0, 4.0]),), length=2)
        3.0
    """

    maximum: Callable[..., Tensor] = staticmethod(lambda a, b: torch.clamp(a, min=b))
    minimum: Callable[..., Tensor] = staticmethod(lambda a, b: torch.clamp(a, max=b))
    norm: Callable[..., Tensor] = staticmethod(torch.linalg.vector_norm)
    where: Any = staticmethod(torch.where)
    zeros_like: Callable[..., Tensor] = staticmethod(torch.zeros_like)

    @staticmethod
    def eigh(a: Tensor) -> tuple[Tensor, Tensor]:
        try:
            values, vectors = torch.linalg.eigh(a)
        except torch.linalg.LinAlgError:  # NaN or infinity inside: the result is NaN, as in JAX
            return a.new_full(a.shape[:1], torch.nan), torch.full_like(a, torch.nan)
        return values, vectors

    @staticmethod
    def move(x: Tensor, d: Tensor, lr: Scalar) -> Tensor:
        if isinstance(lr, Tensor):
            return torch.addcmul(x, d, lr, value=-1)
        return torch.sub(x, d, alpha=lr)

    @staticmethod
    def mix(a: Tensor, b: Tensor, weight: Scalar) -> Tensor:
        return torch.lerp(a, b, weight)

    @staticmethod
    def zeros(shape: tuple[int, ...], like: Tensor) -> Tensor:
        """Zeros of a shape, in the dtype and on the device of ``like``."""
        return torch.zeros(shape, dtype=like.dtype, device=like.device)

    @staticmethod
    def scalar(value: float, like: Tensor) -> Tensor:
        return torch.tensor(value, dtype=like.dtype, device=like.device)

    @staticmethod
    def normals(seeds: Any, count: int, like: Tensor) -> Tensor:
        each = torch.as_tensor(seeds, device=like.device)[:, None]
        place = torch.arange(2 * count, device=like.device)
        unit: Tensor = (
            scramble(scramble(each, 2**32 - 1) + place, 2**32 - 1).to(like.dtype) + 0.5
        ) / 2.0**32
        return (-2.0 * unit[:, :count].log()).sqrt() * (2.0 * torch.pi * unit[:, count:]).cos()

    @staticmethod
    def replace_row(table: Tensor, index: Scalar, value: Tensor) -> tuple[Tensor, Tensor]:
        """``value - table[index]``, and the table with the value there. It writes in place: a table
        belongs to the state that is stepped."""
        row = table[int(index)]
        change = value - row
        row.copy_(value)
        return change, table

    @staticmethod
    def after(sample: Sample, vector: Tensor) -> Sample:
        return sample

    def loop(
        self, body: Callable[..., Any], carry: T, inputs: tuple[Any, ...], length: Scalar = None
    ) -> T:
        """``for each row of the inputs: carry = body(carry, *row)``, the first ``length`` rows
        where it is given.
        """
        if length is None:
            first = inputs[0]
            length = len(first.which) if isinstance(first, Sample) else len(first)
        for i in range(length):
            carry = body(carry, *(_item(a, i) for a in inputs))
        return carry


#: Iterations between two looks at whether x and y are numbers.
LOOK = 16


def are_numbers(*vectors: Tensor) -> bool:
    """Whether no element is NaN or infinite (a sum of large elements may overflow: then they are
    looked at one by one).

    Example:
        >>> are_numbers(torch.ones(2)), are_numbers(torch.ones(2), torch.tensor([0.0, torch.nan]))
        (True, False)
    """
    if all(math.isfinite(float(v.sum())) for v in vectors):
        return True
    return all(bool(v.isfinite().all()) for v in vectors)


def scramble(bits: Any, mask: Any) -> Any:
    """Hash of whole numbers to 32 bits (the finaliser of MurmurHash3), for arrays of any library.

    ``mask`` is 2^32 - 1 in the type that the arithmetic shall have.

    Example:
        >>> scramble(np.array([1, 2]), 2**32 - 1).tolist()
        [1364076727, 821347078]
    """
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        bits = ((bits ^ (bits >> shift)) * type(mask)(factor)) & mask
    return bits ^ (bits >> 16)


def _item(a: Any, i: int) -> Any:
    if isinstance(a, Sample):
        return row(a, i)
    if isinstance(a, np.ndarray):
        return a[i].item()
    return a[i]
