"""The fused rules on the CPU: Numba loops over the tensors' own memory, one launch for all tensors of a group.

A launch walks over a table of chunks (tensor, start, length), so that many small tensors cost no more than one large
one and the chunks of all tensors are shared out among the threads. Threads follow ``torch.get_num_threads()``; with
one thread the loop is compiled without Numba's threading layer. Compiled code is cached on disk between processes.

The functions ``_...`` below are plain Python. They are compiled with the formulas of ``arithmetic`` on first use.
"""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
from collections.abc import Callable
from functools import lru_cache
from types import FunctionType
from typing import Any

import numpy as np
import torch

from mindgap.rules.fused import arithmetic
from mindgap.rules.fused.arithmetic import adaptive, blend, held, magnitude, moved, power, root

#: Elements of a chunk: small enough to share out 1 M parameters among threads, large enough to hide the loop's start.
CHUNK = 2**14
DTYPES = {torch.float32: np.float32, torch.float64: np.float64}

at: Any = None  # (address, start, length, array of the dtype) -> array over that memory; filled in by the compiler
prange: Any = range


@lru_cache(None)
def unavailable() -> str | None:
    """Why the fused form cannot be used here, or None if it can.

    Example:
        >>> unavailable() is None or "numba" in unavailable()
        True
    """
    if importlib.util.find_spec("numba") is None:
        return "numba is not installed (pip install 'mindgap[fast]')"
    try:
        import numba  # noqa: F401
    except Exception as error:  # a broken installation must not break the optimizers
        return f"numba cannot be imported ({error})"
    return None


# Every kernel has the arguments (addresses[list, tensor], chunks[chunk, (tensor, start, length)], hyper, sums[chunk]).


def _square_sum(addresses, chunks, hyper, sums):  # type: ignore[no-untyped-def]
    for c in prange(chunks.shape[0]):
        d = at(addresses[0, chunks[c, 0]], chunks[c, 1], chunks[c, 2], hyper)
        total = 0.0
        for i in range(d.size):
            value = np.float64(d[i])
            total += value * value
        sums[c] = total


def _average_sum(addresses, chunks, hyper, sums):  # type: ignore[no-untyped-def]
    beta, rest = hyper[0], hyper[1]
    for c in prange(chunks.shape[0]):
        t, start, length = chunks[c, 0], chunks[c, 1], chunks[c, 2]
        m, g = at(addresses[0, t], start, length, hyper), at(addresses[1, t], start, length, hyper)
        for i in range(m.size):
            m[i] = blend(m[i], g[i], beta, rest)
        total = 0.0
        for i in range(m.size):
            value = np.float64(m[i])
            total += value * value
        sums[c] = total


def _average_decay_sum(addresses, chunks, hyper, sums):  # type: ignore[no-untyped-def]
    beta, rest, decay = hyper[0], hyper[1], hyper[2]
    for c in prange(chunks.shape[0]):
        t, start, length = chunks[c, 0], chunks[c, 1], chunks[c, 2]
        m, g = at(addresses[0, t], start, length, hyper), at(addresses[1, t], start, length, hyper)
        y = at(addresses[2, t], start, length, hyper)
        for i in range(m.size):
            m[i] = blend(m[i], g[i] + decay * y[i], beta, rest)
        total = 0.0
        for i in range(m.size):
            value = np.float64(m[i])
            total += value * value
        sums[c] = total


def _scaled_step(addresses, chunks, hyper, sums):  # type: ignore[no-untyped-def]
    keep = hyper[0]
    for c in prange(chunks.shape[0]):
        t, start, length = chunks[c, 0], chunks[c, 1], chunks[c, 2]
        scale = hyper[1 + t]
        p, d = at(addresses[0, t], start, length, hyper), at(addresses[1, t], start, length, hyper)
        for i in range(p.size):
            p[i] = moved(p[i], d[i], scale, keep)


def _average_step(addresses, chunks, hyper, sums):  # type: ignore[no-untyped-def]
    beta, lr, keep = hyper[0], hyper[1], hyper[2]
    for c in prange(chunks.shape[0]):
        t, start, length = chunks[c, 0], chunks[c, 1], chunks[c, 2]
        rest = hyper[3 + t]
        p, m = at(addresses[0, t], start, length, hyper), at(addresses[1, t], start, length, hyper)
        g = at(addresses[2, t], start, length, hyper)
        for i in range(p.size):
            m[i] = blend(m[i], g[i], beta, rest)
            p[i] = moved(p[i], m[i], lr, keep)


def _held_step(addresses, chunks, hyper, sums):  # type: ignore[no-untyped-def]
    lr, keep, tau = hyper[0], hyper[1], hyper[2]
    for c in prange(chunks.shape[0]):
        t, start, length = chunks[c, 0], chunks[c, 1], chunks[c, 2]
        p, g = at(addresses[0, t], start, length, hyper), at(addresses[1, t], start, length, hyper)
        for i in range(p.size):
            p[i] = moved(p[i], held(g[i], tau), lr, keep)


def _average_held_step(addresses, chunks, hyper, sums):  # type: ignore[no-untyped-def]
    lr, keep, tau, beta, rest = hyper[0], hyper[1], hyper[2], hyper[3], hyper[4]
    for c in prange(chunks.shape[0]):
        t, start, length = chunks[c, 0], chunks[c, 1], chunks[c, 2]
        p, m = at(addresses[0, t], start, length, hyper), at(addresses[1, t], start, length, hyper)
        g = at(addresses[2, t], start, length, hyper)
        for i in range(p.size):
            m[i] = blend(m[i], g[i], beta, rest)
            p[i] = moved(p[i], held(m[i], tau), lr, keep)


def _held_average_step(addresses, chunks, hyper, sums):  # type: ignore[no-untyped-def]
    lr, keep, tau, beta, rest = hyper[0], hyper[1], hyper[2], hyper[3], hyper[4]
    for c in prange(chunks.shape[0]):
        t, start, length = chunks[c, 0], chunks[c, 1], chunks[c, 2]
        p, m = at(addresses[0, t], start, length, hyper), at(addresses[1, t], start, length, hyper)
        g = at(addresses[2, t], start, length, hyper)
        for i in range(p.size):
            m[i] = blend(m[i], held(g[i], tau), beta, rest)
            p[i] = moved(p[i], m[i], lr, keep)


def _interpolate(addresses, chunks, hyper, sums):  # type: ignore[no-untyped-def]
    eta, part = hyper[0], hyper[1]
    for c in prange(chunks.shape[0]):
        t, start, length = chunks[c, 0], chunks[c, 1], chunks[c, 2]
        p, x = at(addresses[0, t], start, length, hyper), at(addresses[1, t], start, length, hyper)
        m = at(addresses[2, t], start, length, hyper)
        for i in range(p.size):
            step = eta * m[i]
            p[i] = x[i] - part * step
            x[i] = x[i] - step


def _adaptive_first(addresses, chunks, hyper, sums):  # type: ignore[no-untyped-def]
    lr, keep, beta1, rest1, beta2, rest2 = hyper[0], hyper[1], hyper[2], hyper[3], hyper[4], hyper[5]
    eps, one, normalized = hyper[6], hyper[7], hyper[10]
    for c in prange(chunks.shape[0]):
        t, start, length = chunks[c, 0], chunks[c, 1], chunks[c, 2]
        p, g = at(addresses[0, t], start, length, hyper), at(addresses[1, t], start, length, hyper)
        m, v = at(addresses[2, t], start, length, hyper), at(addresses[3, t], start, length, hyper)
        for i in range(p.size):
            m[i] = blend(m[i], g[i], beta1, rest1)
            v[i] = blend(v[i], magnitude(g[i]), beta2, rest2)
            step = adaptive(m[i], v[i], eps, one)
            if normalized == one:
                step = step / (v[i] + eps)
            p[i] = moved(p[i], step, lr, keep)


def _adaptive_second(addresses, chunks, hyper, sums):  # type: ignore[no-untyped-def]
    lr, keep, beta1, rest1, beta2, rest2 = hyper[0], hyper[1], hyper[2], hyper[3], hyper[4], hyper[5]
    eps, one, normalized = hyper[6], hyper[7], hyper[10]
    for c in prange(chunks.shape[0]):
        t, start, length = chunks[c, 0], chunks[c, 1], chunks[c, 2]
        p, g = at(addresses[0, t], start, length, hyper), at(addresses[1, t], start, length, hyper)
        m, v = at(addresses[2, t], start, length, hyper), at(addresses[3, t], start, length, hyper)
        for i in range(p.size):
            m[i] = blend(m[i], g[i], beta1, rest1)
            v[i] = blend(v[i], g[i] * g[i], beta2, rest2)
            tau = root(v[i])
            step = adaptive(m[i], tau, eps, one)
            if normalized == one:
                step = step / (tau + eps)
            p[i] = moved(p[i], step, lr, keep)


def _adaptive_any(addresses, chunks, hyper, sums):  # type: ignore[no-untyped-def]
    lr, keep, beta1, rest1, beta2, rest2 = hyper[0], hyper[1], hyper[2], hyper[3], hyper[4], hyper[5]
    eps, one, alpha, inverse, normalized = hyper[6], hyper[7], hyper[8], hyper[9], hyper[10]
    for c in prange(chunks.shape[0]):
        t, start, length = chunks[c, 0], chunks[c, 1], chunks[c, 2]
        p, g = at(addresses[0, t], start, length, hyper), at(addresses[1, t], start, length, hyper)
        m, v = at(addresses[2, t], start, length, hyper), at(addresses[3, t], start, length, hyper)
        for i in range(p.size):
            m[i] = blend(m[i], g[i], beta1, rest1)
            v[i] = blend(v[i], power(magnitude(g[i]), alpha), beta2, rest2)
            tau = power(v[i], inverse)
            step = adaptive(m[i], tau, eps, one)
            if normalized == one:
                step = step / (tau + eps)
            p[i] = moved(p[i], step, lr, keep)


KERNELS: dict[str, Callable[..., None]] = {
    "square_sum": _square_sum,
    "average_sum": _average_sum,
    "average_decay_sum": _average_decay_sum,
    "scaled_step": _scaled_step,
    "average_step": _average_step,
    "held_step": _held_step,
    "average_held_step": _average_held_step,
    "held_average_step": _held_average_step,
    "interpolate": _interpolate,
    "adaptive_first": _adaptive_first,
    "adaptive_second": _adaptive_second,
    "adaptive_any": _adaptive_any,
}


@lru_cache(None)
def _digest() -> str:
    """Changes with the formulas: Numba's disk cache would only notice a change of this file."""
    return hashlib.sha256(inspect.getsource(arithmetic).encode()).hexdigest()[:12]


@lru_cache(None)
def _namespace() -> dict[str, Any]:
    """The formulas and the memory access, compiled for use inside the kernels."""
    import numba
    from numba import types
    from numba.extending import intrinsic

    @intrinsic
    def pointer_to(typing_context: Any, address: Any, like: Any) -> Any:
        signature = types.CPointer(like.dtype)(types.int64, like)

        def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            return builder.inttoptr(args[0], context.get_value_type(sig.return_type))

        return signature, code

    @numba.njit(inline="always")
    def at(address: Any, start: Any, length: Any, like: Any) -> Any:
        return numba.carray(pointer_to(address + start * like.itemsize, like), length)  # type: ignore[call-arg]

    names: dict[str, Any] = {"__name__": __name__, "np": np, "at": at, "math": arithmetic.math}
    for name in ("select", "magnitude", "root", "power", "blend", "held", "adaptive", "moved"):
        function = FunctionType(getattr(arithmetic, name).__code__, names, name)
        names[name] = numba.njit(function, error_model="numpy", inline="always")
    return names


@lru_cache(None)
def compiled(name: str, parallel: bool) -> Callable[..., None]:
    """A kernel, compiled when it is first called with a dtype."""
    import numba

    names = {**_namespace(), "prange": numba.prange if parallel else range}
    source = KERNELS[name]
    function = FunctionType(source.__code__, names, source.__name__)
    function.__qualname__ = f"{source.__name__}_{'parallel' if parallel else 'serial'}_{_digest()}"
    # Sums may be taken in any order; NaN and infinities keep their meaning.
    fast = {"reassoc", "contract"} if name.endswith("_sum") else {"contract"}
    return numba.njit(function, error_model="numpy", fastmath=fast, parallel=parallel, nogil=True, cache=True)


def launch(name: str, addresses: np.ndarray, chunks: np.ndarray, hyper: np.ndarray, sums: np.ndarray) -> None:
    """Run a kernel over all chunks.

    Args:
        name: key of ``KERNELS``.
        addresses: int64, one row for each list of tensors the kernel names.
        chunks: int64, rows (tensor, start, length).
        hyper: the kernel's numbers, in the tensors' dtype.
        sums: float64, one entry a chunk, written by the kernels that sum.
    """
    threads = torch.get_num_threads()
    if threads > 1 and chunks.shape[0] > 1:
        import numba

        numba.set_num_threads(min(threads, numba.config.NUMBA_NUM_THREADS))  # type: ignore[attr-defined]
        compiled(name, True)(addresses, chunks, hyper, sums)
    else:
        compiled(name, False)(addresses, chunks, hyper, sums)
