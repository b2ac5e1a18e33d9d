"""The fused rules on the CPU: Numba loops over the tensors' own memory, one launch for all tensors
of a group.

One function (``_walk``) walks over a table of chunks (tensor, start, length), so that many small
tensors cost no more than one large one and the threads share the chunks of all tensors. A rule of
``arithmetic`` is compiled into it. Threads follow ``torch.get_num_threads()``; with one thread the
loop is compiled without Numba's threading layer. Compiled code is kept on disk between processes
where that is possible.
"""

from __future__ import annotations

import hashlib
import importlib.util
import math
import os
import threading
from collections.abc import Callable
from functools import lru_cache
from types import FunctionType
from typing import Any

import numpy as np
import torch

from mindgap.rules.fused import arithmetic

#: Elements of a chunk: small enough to share out 1 M parameters among threads, large enough to hide
#: the loop's start.
CHUNK = 2**14
DTYPES = {torch.float32: np.float32, torch.float64: np.float64}

# Names that the compiler fills in: at(address, start, length, array of the dtype) is an array over
# that memory; ``rule`` is a rule of ``arithmetic``, ``sweep`` the ``_sweep_L_W`` for its lists,
# ``total`` is ``_total`` or ``_no_total``, and ``prange`` shares the chunks among threads.
at: Any = None
rule: Any = None
sweep: Any = None
total: Any = None
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


def wrong_dtype(dtype: torch.dtype, grad: torch.dtype) -> str | None:
    """Why a parameter of ``dtype`` with a gradient of dtype ``grad`` cannot be used, or None if
    they can.
    """
    if dtype in DTYPES and grad == dtype:
        return None
    return (
        f"the CPU kernels take float32 and float64, a parameter has {dtype} and its gradient {grad}"
    )


def _walk(rows, chunks, factors, n, sums):  # type: ignore[no-untyped-def]
    """Apply the rule ``sweep`` to every chunk of all tensors, in place.

    Args:
        rows: (lists, tensors), the tensors' addresses, int64.
        chunks: (chunks, 3), each row (tensor, start, length) in elements, int64.
        factors: (1, 4) or (tensors, 4), the rule's numbers w for all tensors or per tensor.
        n: the rule's numbers that do not change with norms, a tuple.
        sums: (chunks,), float64; written: each chunk's sum of squares after the rule.
    """
    for c in prange(chunks.shape[0]):
        t, start, length = chunks[c, 0], chunks[c, 1], chunks[c, 2]
        i = t % factors.shape[0]  # one row of factors for all tensors, or one per tensor
        # Numbers, not an array: else the compiler reads them again after every element it stores.
        w = (factors[i, 0], factors[i, 1], factors[i, 2], factors[i, 3])
        sweep(rows, t, start, length, w, n, factors)
        sums[c] = total(rows[0, t], start, length, factors)


def _total(address, start, length, like):  # type: ignore[no-untyped-def]
    """Sum of the squares of ``length`` elements from ``start`` on, of the tensor at ``address``, in
    float64. ``like`` is any array of the tensor's dtype.
    """
    d, square = at(address, start, length, like), 0.0
    for i in range(length):
        square += np.float64(d[i]) * np.float64(d[i])
    return square


def _no_total(address, start, length, like):  # type: ignore[no-untyped-def]
    """0 in place of ``_total``, for a rule whose sum nobody needs."""
    return 0.0


# ``_sweep_L_W`` applies a rule with L lists, of which it writes W (never the second), to one chunk
# of a tensor. They differ in nothing else; ``arithmetic`` says what the numbers w and n are.


def _sweep_1_0(rows, t, start, length, w, n, like):  # type: ignore[no-untyped-def]
    """Nothing: a rule that writes no list only sums."""


def _sweep_2_1(rows, t, start, length, w, n, like):  # type: ignore[no-untyped-def]
    """Set x to rule(x, g, w, n) for ``length`` elements of tensor t from ``start`` on, in place.

    ``rows[list, t]`` are the addresses of what the rule moves (x) and of the gradient (g); w and n
    are its two tuples of numbers; ``like`` is any array of the tensors' dtype.
    """
    x, g = at(rows[0, t], start, length, like), at(rows[1, t], start, length, like)
    for i in range(length):
        x[i] = rule(x[i], g[i], w, n)


def _sweep_3_1(rows, t, start, length, w, n, like):  # type: ignore[no-untyped-def]
    """Set x to rule(x, g, y, w, n) for ``length`` elements of tensor t from ``start`` on, in place.

    ``rows[list, t]`` are the addresses of what the rule moves (x), of the gradient (g) and of a
    list that is only read (y); w and n are its two tuples of numbers; ``like`` is any array of the
    tensors' dtype.
    """
    x, g = at(rows[0, t], start, length, like), at(rows[1, t], start, length, like)
    y = at(rows[2, t], start, length, like)
    for i in range(length):
        x[i] = rule(x[i], g[i], y[i], w, n)


def _sweep_3_2(rows, t, start, length, w, n, like):  # type: ignore[no-untyped-def]
    """Set (x, a) to rule(x, g, a, w, n) for ``length`` elements of tensor t from ``start`` on, in
    place.

    ``rows[list, t]`` are the addresses of what the rule moves (x), of the gradient (g) and of a
    state (a); w and n are its two tuples of numbers; ``like`` is any array of the tensors' dtype.
    """
    x, g = at(rows[0, t], start, length, like), at(rows[1, t], start, length, like)
    a = at(rows[2, t], start, length, like)
    for i in range(length):
        x[i], a[i] = rule(x[i], g[i], a[i], w, n)


def _sweep_4_3(rows, t, start, length, w, n, like):  # type: ignore[no-untyped-def]
    """Set (x, a, b) to rule(x, g, a, b, w, n) for ``length`` elements of tensor t from ``start``
    on, in place.

    ``rows[list, t]`` are the addresses of what the rule moves (x), of the gradient (g) and of two
    states (a, b); w and n are its two tuples of numbers; ``like`` is any array of the tensors'
    dtype.
    """
    x, g = at(rows[0, t], start, length, like), at(rows[1, t], start, length, like)
    a, b = at(rows[2, t], start, length, like), at(rows[3, t], start, length, like)
    for i in range(length):
        x[i], a[i], b[i] = rule(x[i], g[i], a[i], b[i], w, n)


def _sweep_5_4(rows, t, start, length, w, n, like):  # type: ignore[no-untyped-def]
    """Set (x, a, b, c) to rule(x, g, a, b, c, w, n) for ``length`` elements of tensor t from
    ``start`` on, in place.

    ``rows[list, t]`` are the addresses of what the rule moves (x), of the gradient (g) and of three
    states (a, b, c); w and n are its two tuples of numbers; ``like`` is any array of the tensors'
    dtype.
    """
    x, g = at(rows[0, t], start, length, like), at(rows[1, t], start, length, like)
    a, b = at(rows[2, t], start, length, like), at(rows[3, t], start, length, like)
    c = at(rows[4, t], start, length, like)
    for i in range(length):
        x[i], a[i], b[i], c[i] = rule(x[i], g[i], a[i], b[i], c[i], w, n)


def _push_below(window, bound, norm, q):  # type: ignore[no-untyped-def]
    """What ``push_below`` does, for Numba to compile: unless the window's q-quantile is below the
    bound, drop the window's oldest norm, append the new one and return True.
    """
    count = above = 0
    for i in range(window.shape[0]):
        count += window[i] > 0.0
        above += window[i] >= bound
    # The quantile has rank ⌈q·(count+1)⌉: it is below the bound if no more than the norms behind
    # that rank reach it.
    if above <= count - min(math.ceil(q * (count + 1)), count):
        return False
    for i in range(window.shape[0] - 1):
        window[i] = window[i + 1]
    window[-1] = norm if 0.0 < norm < np.inf else 0.0
    return True


def push_below(window: np.ndarray, bound: float, norm: float, q: float) -> bool:
    """Let a norm enter a window, in place of the oldest one, if the window's quantile is not below
    a bound. Else the window stays.

    Most norms are below their quantile, and this is faster to see than the quantile. NumPy's calls
    would take 5 % of a step of 1 M parameters, because the tensors push their code out of the
    cache.

    Args:
        window: the last norms in float64, oldest first, zeros for none; written.
        bound: what the quantile is compared with.
        norm: what enters, as 0 where it is not finite.
        q: level of the quantile, see ``window_quantiles``.

    Returns:
        Whether the quantile is not below the bound, so that the norm has entered.

    Example:
        >>> window = np.array([0.0, 3.0, 1.0, 2.0])
        >>> push_below(window, 2.1, 2.1, 0.5), push_below(window, 2.0, 1.5, 0.5), window.tolist()
        (False, True, [3.0, 1.0, 2.0, 1.5])
    """
    return _call("window", False, (window, bound, norm, q))


SWEEPS = {
    (1, 0): _sweep_1_0,
    (2, 1): _sweep_2_1,
    (3, 1): _sweep_3_1,
    (3, 2): _sweep_3_2,
    (4, 3): _sweep_4_3,
    (5, 4): _sweep_5_4,
}


@lru_cache(None)
def _digest() -> str:
    """A short hash of the formulas' file, source or bytecode, in a folder or in a zip. It stands in
    kernels' names, because Numba's disk cache would only notice a change of this file.
    """
    loader: Any = arithmetic.__loader__
    return hashlib.sha256(loader.get_data(arithmetic.__file__)).hexdigest()[:12]


def _inline(function: Any, names: dict[str, Any], **options: Any) -> Any:
    """A copy of a Python function with the globals ``names``, which Numba inlines into its
    callers; ``options`` are further ones of ``numba.njit``.
    """
    import numba

    copy = FunctionType(function.__code__, names, function.__name__)
    return numba.njit(copy, error_model="numpy", inline="always", **options)


def _compile_called(function: Any, names: dict[str, Any], name: str, fastmath: Any) -> Any:
    """A copy of a Python function that Numba compiles on its own, for kernels to call.

    Args:
        function: the Python function.
        names: its globals.
        name: what its name gets at the end. The name must be unique, because code from disk is
            linked by name within a process.
        fastmath: LLVM's flags of permitted changes of arithmetic.
    """
    import numba

    copy = FunctionType(function.__code__, names, f"{function.__name__}_{name}")
    copy.__qualname__ = copy.__name__
    # Kernels call it, Python does not: what Python would need takes a fifth of the time to compile.
    inner: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    return numba.njit(copy, error_model="numpy", fastmath=fastmath, **inner)


@lru_cache(None)
def _namespace() -> dict[str, Any]:
    """The kernels' globals, for Numba to inline: the formulas of ``arithmetic``, and ``at(address,
    start, length, like)``, an array over memory in the dtype of the array ``like``.
    """
    import numba
    from numba import types
    from numba.extending import intrinsic

    @intrinsic
    def pointer_to(typing_context: Any, address: Any, like: Any) -> Any:
        # In Numba's form: the types, and a function that writes LLVM's cast of a whole number to a
        # pointer to elements of the array ``like``.
        signature = types.CPointer(like.dtype)(types.int64, like)

        def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            return builder.inttoptr(args[0], context.get_value_type(sig.return_type))

        return signature, code

    # ``address`` is that of the tensor's first element, and ``start`` counts elements.
    @numba.njit(inline="always")
    def at(address: Any, start: Any, length: Any, like: Any) -> Any:
        return numba.carray(pointer_to(address + start * like.itemsize, like), length)  # type: ignore[call-arg]

    names: dict[str, Any] = {"__name__": __name__, "np": np, "at": at, "math": arithmetic.math}
    for name in ("select", "magnitude", "root", "power"):
        names[name] = _inline(getattr(arithmetic, name), names)
    for function in arithmetic.FORMULAS:
        names[function.__name__] = _inline(function, names)
    return names


@lru_cache(None)
def compiled(name: str, parallel: bool, cache: bool) -> Callable[..., Any]:
    """A rule's kernel, compiled when it is first called with a dtype.

    Args:
        name: key of ``arithmetic.RULES``, or ``"window"`` for ``push_below``.
        parallel: whether its threads share the chunks.
        cache: whether Numba keeps the code on disk.

    Returns:
        A function of the arguments of ``_walk``, or of ``_push_below``.
    """
    import numba

    if name == "window":
        return numba.njit(_push_below, error_model="numpy", nogil=True, cache=cache)
    rule = arithmetic.RULES[name]
    names = {**_namespace(), "prange": numba.prange if parallel else range}
    for called, meaning in rule.uses.items():
        names[called] = names[meaning.__name__]
    if rule.function is not None:
        names["rule"] = _inline(rule.function, names)
    unique_name = f"{name}_{'parallel' if parallel else 'serial'}_{_digest()}"
    names["sweep"] = _compile_called(
        SWEEPS[rule.lists, rule.outputs], names, unique_name, {"contract"}
    )
    # Sums may be taken in any order; NaN and infinities keep their meaning.
    flags = {"reassoc", "contract"}
    names["total"] = (
        _compile_called(_total, names, unique_name, flags)
        if rule.sums
        else _inline(_no_total, names)
    )
    function = FunctionType(_walk.__code__, names, unique_name)
    function.__qualname__ = unique_name
    return numba.njit(function, error_model="numpy", parallel=parallel, nogil=True, cache=cache)


#: Numba's own threading layer cannot be entered twice at a time.
_ONE_AT_A_TIME = threading.Lock()


def _renew_lock() -> None:
    """Set a new lock in a forked child: the parent's may be held by a thread that does not exist
    there.
    """
    global _ONE_AT_A_TIME
    _ONE_AT_A_TIME = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)


def launch(name: str, *arguments: Any) -> None:
    """Run a rule over all chunks of tensors, on as many threads as torch uses; writes to the
    tensors' memory and to ``sums``.

    Args:
        name: key of ``arithmetic.RULES``.
        arguments: those of ``_walk``. Addresses (int64, one row per list of the rule); chunks
            (int64, rows (tensor, start, length)); the numbers w (one row of four for all tensors,
            or one per tensor) and n (a tuple), in the tensors' dtype; sums (float64, one entry per
            chunk).
    """
    threads = torch.get_num_threads()
    if threads == 1 or arguments[1].shape[0] == 1:  # one chunk
        _call(name, False, arguments)
        return
    import numba

    with _ONE_AT_A_TIME:
        numba.set_num_threads(min(threads, numba.config.NUMBA_NUM_THREADS))  # type: ignore[attr-defined]
        _call(name, True, arguments)


_CACHED = {"disk": True}


def _call(name: str, parallel: bool, arguments: tuple[Any, ...]) -> Any:
    """Call a compiled kernel (arguments as in ``compiled``) and return what it returns. Numba's
    disk cache is used until it first fails in this process, which is noted in ``_CACHED``.
    """
    if _CACHED["disk"]:
        try:
            return compiled(name, parallel, True)(*arguments)
        except Exception:
            # The folder cannot be written, the disk is full, a file is damaged: nothing ran yet.
            _CACHED["disk"] = False
    return compiled(name, parallel, False)(*arguments)
