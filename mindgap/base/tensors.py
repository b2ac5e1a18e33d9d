"""Small operations on lists of tensors that several rooms need."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from numbers import Real
from typing import Any

import numpy as np
import torch
from torch import Tensor

#: Bytes of a block where nothing is known of the device: the temporaries of a blocked loop stay
#: below 64 MiB.
BLOCK = 2**24
#: On CUDA a block may have this share of the device's memory, and at most 512 MiB: fewer launches.
#: The share is of the whole memory, not of what is free, so that sums are taken in the same order
#: in every run.
CUDA_SHARE, CUDA_BLOCK = 256, 2**29
#: On the CPU a block and its temporaries stay in the cache: a foreach step takes two thirds of the
#: time.
CPU_BLOCK = 2**21
#: Elements summed at a stretch in a norm. One stretch of 20 million float32 squares is wrong by
#: 1e-3 (measured).
STRETCH = 2**17


def as_real(tensor: Tensor) -> Tensor:
    """A view of complex numbers as pairs of real ones, on a last axis; any other tensor itself.

    Numbers that torch conjugates only when they are read, as some gradients are, are copied.

    Example:
        >>> as_real(torch.tensor([3 + 4j]))
        tensor([[3., 4.]])
    """
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def euclidean_norm(tensors: Sequence[Tensor]) -> float:
    """The Euclidean norm of all entries, squared and summed in float64.

    Example:
        >>> euclidean_norm([torch.tensor([3.0]), torch.tensor([4j])])
        5.0
    """
    return math.sqrt(sum(float(as_real(t.detach()).double().square().sum()) for t in tensors))


def is_one_number(value: Any) -> bool:
    """Whether a value stands for one real number, finite or not: a number, or a tensor or an array
    with one entry.

    Example:
        >>> is_one_number(2), is_one_number(torch.ones(1)), is_one_number(torch.ones(2))
        (True, True, False)
    """
    if isinstance(value, Tensor):
        readable = value.layout is torch.strided and not value.is_meta
        return readable and value.numel() == 1 and not value.is_complex()
    if isinstance(value, np.ndarray):
        return value.size == 1 and value.dtype.kind in "fiub"
    return isinstance(value, Real)


def rounding(v: Tensor) -> float:
    """The relative residual of a linear system with right side v below which there is rounding
    alone: 1e-13, or a thousandth of the dtype's precision.
    """
    return max(1e-13, 1e-3 * torch.finfo(v.dtype).eps)


def binary_scale(v: Tensor) -> float:
    """The power of two next below the largest element of v, by which it can be divided without
    rounding; squares of the quotient neither vanish nor overflow. 1 for zeros, NaN and infinity.
    """
    largest = float(v.detach().abs().max())
    return 2.0 ** math.floor(math.log2(largest)) if 0.0 < largest < math.inf else 1.0


def flatten(tensors: Sequence[Tensor]) -> Tensor:
    """One flat vector of real numbers out of many tensors, in order.

    Example:
        >>> flatten([torch.ones(2), torch.zeros(1, 1)])
        tensor([1., 1., 0.])
    """
    return torch.cat([as_real(t).reshape(-1) for t in tensors])


def unflatten(vector: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """Cut a flat vector of real numbers into tensors of the shapes of ``like``, complex where these
    are: the inverse of ``flatten``. The tensors share the vector's memory, except a complex one
    that begins at an odd place, which is copied.

    Example:
        >>> [
        ...     tuple(t.shape)
        ...     for t in unflatten(torch.arange(3.0), [torch.ones(2), torch.zeros(1, 1)])
        ... ]
        [(2,), (1, 1)]
    """
    shapes = [as_real(t).shape for t in like]
    pieces = vector.split([math.prod(shape) for shape in shapes])
    views = [piece.view(shape) for piece, shape in zip(pieces, shapes, strict=True)]
    return [_as_complex(v) if t.is_complex() else v for v, t in zip(views, like)]


def _as_complex(pairs: Tensor) -> Tensor:
    """A view of pairs of real numbers as complex ones; a copy of pairs that begin at an odd place
    in memory, of which torch gives no view.
    """
    return torch.view_as_complex(pairs.clone() if pairs.storage_offset() % 2 else pairs)


def is_sharded(tensor: Tensor) -> bool:
    """Whether a tensor is a DTensor: spread over a device mesh."""
    # Asked by attribute: importing torch.distributed.tensor takes a second that most programs need
    # not pay.
    return hasattr(tensor, "device_mesh") and hasattr(tensor, "placements")


def local(tensor: Tensor) -> Tensor:
    """This process's piece of a DTensor; any other tensor itself. Shares memory with the argument.

    Example:
        >>> local(torch.ones(2))
        tensor([1., 1.])
    """
    return tensor.to_local() if is_sharded(tensor) else tensor  # type: ignore[attr-defined]


def placed(tensor: Tensor, like: Tensor) -> Tensor:
    """A tensor laid out over the device mesh as ``like`` is; the tensor itself where ``like`` is no
    DTensor. Communicates where the layouts differ.

    Example:
        >>> placed(torch.ones(2), torch.zeros(2))
        tensor([1., 1.])
    """
    if not is_sharded(like):
        return tensor
    if not is_sharded(tensor):
        from torch.distributed.tensor import distribute_tensor

        return distribute_tensor(tensor, like.device_mesh, like.placements)  # type: ignore[attr-defined]
    if tensor.placements != like.placements:  # type: ignore[attr-defined]
        return tensor.redistribute(like.device_mesh, like.placements)  # type: ignore
    return tensor


def widen(tensor: Tensor) -> Tensor:
    """The tensor in at least float32 (16-bit tensors are copied, others returned as they are)."""
    return tensor.float() if tensor.dtype in (torch.bfloat16, torch.float16) else tensor


def cut(tensor: Tensor, limit: int) -> list[Tensor]:
    """Views of a tensor with at most about ``limit`` elements each: slices of its longest axis.

    Example:
        >>> [tuple(piece.shape) for piece in cut(torch.zeros(5, 2), 4)]
        [(2, 2), (2, 2), (1, 2)]
    """
    if tensor.numel() <= limit:
        return [tensor]
    longest = max(range(tensor.dim()), key=lambda d: tensor.shape[d])
    rows = max(1, limit * tensor.shape[longest] // tensor.numel())
    return list(tensor.split(rows, dim=longest))


def blocks(
    *lists: Sequence[Tensor], limit: int | None = None, single: bool = False
) -> Iterator[tuple[list[Tensor], ...]]:
    """Walk through aligned lists of tensors in blocks of at most ``limit`` elements, as views.

    All tensors of a block (of the first list) share device and dtype. Empty tensors are left out.

    Args:
        lists: lists of equal length; tensors at one place have equal shapes.
        limit: elements of a block; None fits the device (``CPU_BLOCK``, ``CUDA_BLOCK``), counted in
            at least float32.
        single: one tensor (or piece of one) per block, for the plain loop.

    Yields:
        A block: one list of tensors per given list, all of the same length.

    Example:
        >>> [
        ...     [len(t) for t in block[0]]
        ...     for block in blocks([torch.zeros(3), torch.zeros(5)], limit=4)
        ... ]
        [[3], [4], [1]]
    """
    block: tuple[list[Tensor], ...] = tuple([] for _ in lists)  # the one that is being filled
    count, kind = 0, None  # elements of the block, and its device and dtype
    if limit is None:
        first_tensors = [tensors[0] for tensors in lists if tensors]
        block_bytes = _bytes_of_block(first_tensors[0].device) if first_tensors else BLOCK
        limit = block_bytes // max([4, *(t.element_size() for t in first_tensors)])  # float32 has 4
    for row in zip(*lists, strict=True):  # the tensors at one place of all lists
        size = row[0].numel()
        if size == 0:
            continue
        # A large tensor comes in pieces, the tensors beside it in the same ones.
        for piece in [row] if size <= limit else zip(*(cut(t, limit) for t in row), strict=True):
            piece_size, piece_kind = piece[0].numel(), (row[0].device, row[0].dtype)
            if block[0] and (single or count + piece_size > limit or piece_kind != kind):
                yield block
                block, count = tuple([] for _ in lists), 0
            for column, tensor in zip(block, piece):
                column.append(tensor)
            count, kind = count + piece_size, piece_kind
    if block[0]:
        yield block


def _bytes_of_block(device: torch.device) -> int:
    """How many bytes the tensors of a block (see ``blocks``) may have on a device."""
    if device.type == "cpu":
        return CPU_BLOCK
    if device.type != "cuda" or torch.compiler.is_compiling():
        return BLOCK
    total = torch.cuda.get_device_properties(device).total_memory
    return min(max(total // CUDA_SHARE, BLOCK), CUDA_BLOCK)


def robust_norm(tensors: Sequence[Tensor], *, wide: bool = False) -> Tensor:
    """Euclidean norm (0-dim) over all entries that neither overflows nor underflows, over all
    processes for DTensors.

    A float32 entry of 1e20 squares to infinity in float32, not in float64, where such sums are
    kept; float64 entries beyond 1e150 are scaled by the largest. Sums are taken in short stretches,
    so a norm over many millions of float32 entries keeps seven digits. Non-finite entries propagate
    (inf gives inf, NaN gives NaN). No copy larger than a block is made, and there is never a
    synchronisation with a device.

    Args:
        tensors: any shapes; floating dtypes may differ, devices too (the result lies on the first
            tensor's).
        wide: return float64 instead of the (real) dtype that the tensors promote to.

    Example:
        >>> float(robust_norm([torch.tensor([3e20, 4e20])])) == float(torch.tensor(5e20))
        True
        >>> f"{float(robust_norm([torch.tensor([3e200, 4e200], dtype=torch.float64)])):.6g}"
        '5e+200'
    """
    if not tensors:
        return torch.zeros((), dtype=torch.float64 if wide else None)
    plain_tensors = [tensor.detach() for tensor in tensors if not is_sharded(tensor)]
    by_mesh: dict[Any, list[Tensor]] = {}
    for tensor in filter(is_sharded, tensors):
        layout = (tensor.device_mesh, tensor.placements)  # type: ignore[attr-defined]
        by_mesh.setdefault(layout, []).append(local(tensor.detach()))
    norms = [_local_norm(plain_tensors)] if plain_tensors else []
    norms += [
        _mesh_norm(_local_norm(pieces), mesh, placements)
        for (mesh, placements), pieces in by_mesh.items()
    ]
    norm = norms[0]
    if len(norms) > 1:
        norm = _combine(torch.stack([n.to(norm.device) for n in norms]))
    if wide:
        return norm
    dtype = tensors[0].dtype
    for tensor in tensors[1:]:
        dtype = torch.promote_types(dtype, tensor.dtype)
    return norm.to(torch.empty(0, dtype=dtype).real.dtype if dtype.is_complex else dtype)


def _safe_scale(peak: Tensor) -> Tensor:
    """The number (0-dim) by which entries are divided so that no square overflows or vanishes: the
    largest absolute entry ``peak``; 1 where that is 0 or not finite, because the norm is then 0 or
    not finite without scaling. No branch waits for the device.
    """
    return torch.where((peak > 0) & torch.isfinite(peak), peak, torch.ones_like(peak))


def _combine(norms: Tensor) -> Tensor:
    """Norm (0-dim) of a float64 vector of norms, safe at both ends of the range."""
    scale = _safe_scale(norms.max())
    return torch.linalg.vector_norm(norms / scale) * scale


def _local_norm(tensors: Sequence[Tensor]) -> Tensor:
    """Norm (0-dim, float64) over the entries of plain tensors, none of them a DTensor. Squares are
    summed in a way that neither overflows nor vanishes.
    """
    real = [as_real(tensor) for tensor in tensors if tensor.numel()]
    if not real:
        device = tensors[0].device if tensors else None
        return torch.zeros((), dtype=torch.float64, device=device)
    on_cpu = (
        all(tensor.device.type == "cpu" for tensor in real) and not torch.compiler.is_compiling()
    )
    if on_cpu:
        # Reading a CPU scalar is free, so the fast sum is tried first and repeated only where it
        # left the range in which squares are ordinary numbers of float64 or of float32.
        norm = _stretch_norm(real, None)
        all_float64 = all(tensor.dtype == torch.float64 for tensor in real)
        least, largest = (1e-140, 1e150) if all_float64 else (1e-15, 1e18)
        if least < float(norm) < largest:
            return norm
    # Squares of narrower numbers stay within the range of float64; float64 entries are scaled.
    if all(tensor.dtype != torch.float64 for tensor in real):
        return _stretch_norm(real, torch.float64)
    return _combine(torch.stack([norm.to(real[0].device) for norm in _scaled_norms(real)]))


def _stretch_norm(tensors: Sequence[Tensor], dtype: torch.dtype | None) -> Tensor:
    """Norm (0-dim, float64) by sums over short stretches, not scaled.

    ``dtype`` is that of the sums; None: the tensors' own, in at least float32.
    """
    block_norms: list[Tensor] = []
    for (block,) in blocks(tensors):
        widened = block if dtype is not None else [widen(tensor) for tensor in block]
        pieces = widened
        if widened[0].is_cpu:
            pieces = [piece for tensor in widened for piece in cut(tensor, STRETCH)]
        norms = torch._foreach_norm(pieces, 2, dtype=dtype)
        block_norms.append(torch.linalg.vector_norm(torch.stack(norms).double()))
    if len(block_norms) == 1:
        return block_norms[0]
    device = block_norms[0].device
    return torch.linalg.vector_norm(torch.stack([norm.to(device) for norm in block_norms]))


def _scaled_norms(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Norm (0-dim) of each block of the tensors in float64; a block's entries are divided by its
    largest one before they are squared.
    """
    norms = []
    for (block,) in blocks([tensor.double() for tensor in tensors]):
        scale = _safe_scale(torch.stack(torch._foreach_norm(block, math.inf)).max())
        scaled_norms = torch._foreach_norm(torch._foreach_div(block, scale), 2)
        norms.append(torch.linalg.vector_norm(torch.stack(scaled_norms)) * scale)
    return norms


def _mesh_norm(norm: Tensor, mesh: Any, placements: Any) -> Tensor:
    """Norm (0-dim) over all processes of a device mesh, a collective call. Replicas count once.

    Args:
        norm: that of this process's piece, 0-dim.
        mesh, placements: how the DTensors lie on the processes.
    """
    from torch.distributed.tensor import DTensor, Partial, Replicate

    def reduce(value: Tensor, operation: str) -> Tensor:
        """Reduce a value by "sum" or "max" over the dimensions of ``mesh`` that the DTensor is
        sharded over; over the others it is the same everywhere.
        """
        kinds = [Partial(operation) if p.is_shard() else Replicate() for p in placements]
        return DTensor.from_local(value, mesh, kinds).full_tensor()

    scale = _safe_scale(reduce(norm, "max"))
    return reduce((norm / scale).square(), "sum").sqrt() * scale
