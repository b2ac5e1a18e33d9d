"""The fused rules on CUDA: Triton kernels, one launch for all tensors of a group.

A program of a launch works on one chunk of ``BLOCK`` elements of one tensor. It finds the tensor in
a table and the tensor's address in another, so the number of launches does not grow with the number
of tensors. The formulas are those of ``arithmetic``, compiled by Triton as they stand there.

Scalars that depend on a norm never leave the device: a kernel with a single program adds up the
chunks' sums of squares (in float64: squares of float32 numbers neither overflow nor vanish there)
and writes the factor to memory, from where the next kernel takes it. Kernels are built on first
use; nothing here needs Triton to be imported.
"""

from __future__ import annotations

import importlib.util
import inspect
from functools import lru_cache
from types import FunctionType
from typing import Any

import torch

from mindgap.rules.fused import arithmetic, cuda_kernels as sources

#: Elements of a chunk and warps of a program; 2048 and more elements were half as fast on an H200.
BLOCK = 1024
WARPS = 4
#: Warps of the kernels with a single program.
SINGLE_WARPS = 32
#: Arguments of the kernels that are whole numbers.
WHOLE_NUMBERS = ("count", "entry_count", "begin", "end", "first", "last", "base")


@lru_cache(None)
def unavailable() -> str | None:
    """Why the fused form cannot be used here, or None if it can."""
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed"
    try:
        import triton
    except Exception as error:  # a broken installation must not break the optimizers
        return f"triton cannot be imported ({error})"
    if tuple(map(int, triton.__version__.split(".")[:2])) < (3, 3):
        return f"the CUDA kernels need triton 3.3, this is {triton.__version__}"
    try:
        inspect.getsource(arithmetic)
    except OSError:
        return "Triton compiles from source, and mindgap is installed without its sources"
    return None


def wrong_dtype(dtype: torch.dtype, grad: torch.dtype) -> str | None:
    """Why a parameter of ``dtype`` with a gradient of dtype ``grad`` cannot be used, or None if
    they can.
    """
    for name, kind in (("parameter", dtype), ("gradient", grad)):
        if kind not in (torch.float32, torch.bfloat16, torch.float16):
            return f"the CUDA kernels take float32, bfloat16 and float16, a {name} has {kind}"
    return None


#: Launches made before, by all that decides which compiled kernel they start: the function that
#: starts it, and its constants in order.
_RUNNERS: dict[Any, Any] = {}
#: Launches that are remembered at most; gradients that move at every step would fill the memory.
MOST_RUNNERS = 1024
#: Names of the kernels with a single program.
SINGLES = {function.__name__[1:] for function in sources.SINGLES}
#: Place of the step size's memory among the tensors of ``cuda_kernels._walk``, and of
#: ``_norm_factor``.
WALKER_RATE_PLACE, SINGLE_RATE_PLACE = 5, 7


class Tape:
    """The kernel launches of one step, written down inside a ``with`` block. They can be made again
    where a step has the same tensors and the same numbers.

    Looking up the launches of a step takes longer than making them; a step with a constant learning
    rate whose gradients did not move needs none of it.
    """

    #: The tape that runs now; None where nothing is written down.
    running: Tape | None = None

    def __init__(self) -> None:
        self.device = torch._C._cuda_getDevice()
        #: In order: functions of ``_runner``, and the arguments for them.
        self.launches: list[tuple[Any, tuple[Any, ...]]] = []
        #: Whether every launch of the step is on it: one that compiled a kernel, or went elsewhere,
        #: is not.
        self.whole = True

    def __enter__(self) -> Tape:
        """Let ``launch`` write on this tape until the block ends."""
        Tape.running = self
        return self

    def __exit__(self, *_: object) -> None:
        Tape.running = None

    def play(self) -> None:
        """Make the launches again, on the stream that is current now."""
        stream = _stream(self.device)
        for runner, arguments in self.launches:
            runner(*arguments, stream=stream)

    def fits(self) -> bool:
        """Whether it can be played here: it is whole, and its device is the current one."""
        return self.whole and torch._C._cuda_getDevice() == self.device


def launch(
    name: str, programs: int, tensors: tuple[Any, ...], numbers: tuple[Any, ...], **constants: Any
) -> None:
    """Launch a kernel on the current stream, and write the launch down on the running ``Tape``,
    from which a step can be repeated.

    Triton looks at every argument of every call to find the compiled variant, which takes longer
    than a small step. The variant depends on nothing but the constants, the tensors' addresses and
    the device, so it is looked up by those here and then started directly. A launch that is not
    known yet goes through Triton, is remembered, and makes the tape incomplete.

    Args:
        name: key of ``arithmetic.RULES``, or a kernel with a single program (``SINGLES``).
        programs: how many programs run, one per chunk.
        tensors: the kernel's first arguments, in its order.
        numbers: the arguments behind them.
        constants: the last ones, by name, which are compiled in.
    """
    device, tape = tensors[0].device.index, Tape.running
    addresses = tuple([t.data_ptr() for t in tensors])
    # The dtype of a step size in device memory is the only one that neither name nor constants
    # tell.
    rate_dtype = None
    if constants.get("LR_AT"):
        place = SINGLE_RATE_PLACE if name in SINGLES else WALKER_RATE_PLACE
        rate_dtype = tensors[place].dtype
    warps = SINGLE_WARPS if "WIDE" in constants else WARPS
    key = (name, programs, warps, device, addresses, rate_dtype, *constants.values())
    prepared = _RUNNERS.get(key)
    if prepared is not None:
        runner, constants_in_order = prepared
        arguments = (*addresses, *numbers, *constants_in_order)
        runner(*arguments, stream=_stream(device))
        if tape is not None:
            tape.launches.append((runner, arguments))
            tape.whole &= device == tape.device
        return
    if tape is not None:
        tape.whole = False
    function = kernel(name)
    compiled = function[(programs,)](*tensors, *numbers, **constants, num_warps=warps)
    if compiled is not None:  # Triton's interpreter compiles nothing
        if len(_RUNNERS) > MOST_RUNNERS:
            _RUNNERS.clear()
        _RUNNERS[key] = (
            _runner(compiled, programs),
            [constants[p.name] for p in function.params if p.is_constexpr],
        )


def _runner(compiled: Any, programs: int) -> Any:
    """A function that starts a compiled kernel: called with the kernel's arguments in order, then
    ``stream=``. It skips Triton's own launch code, unless a launch hook is set there or Triton is
    not of version 3.
    """
    import triton

    public = compiled[(programs, 1, 1)]
    # None of these names is promised by Triton: where one is missing, its public way is taken.
    hooks = getattr(getattr(triton, "knobs", None), "runtime", None)
    if not triton.__version__.startswith("3.") or getattr(
        getattr(hooks, "launch_enter_hook", None), "calls", None
    ):
        return public
    start, function, packed = compiled.run, compiled.function, compiled.packed_metadata

    def direct(*arguments: Any, stream: int) -> None:
        """Triton's own launcher, without launch metadata and without hooks before and behind."""
        start(programs, 1, 1, stream, function, packed, None, None, None, *arguments)

    return direct


def _stream(device: int) -> int:
    """The handle of the stream that is current on a device."""
    return torch._C._cuda_getCurrentRawStream(device)


def _take_over(function: Any, names: dict[str, Any]) -> Any:
    """Hand a copy of a Python function, with the globals ``names``, to Triton to compile.

    Of its annotations only those with ``constexpr`` are kept: these arguments are compiled in.
    Whole numbers (``WHOLE_NUMBERS``) are not, and Triton must not look at their values either: it
    would compile a kernel anew for 1 and for multiples of 16.
    """
    import triton

    clone = FunctionType(function.__code__, names, function.__name__)
    clone.__module__ = __name__
    clone.__annotations__ = {
        k: v for k, v in function.__annotations__.items() if "constexpr" in str(v)
    }
    arguments = inspect.signature(clone).parameters
    return triton.jit(clone, do_not_specialize=[a for a in WHOLE_NUMBERS if a in arguments])


@lru_cache(None)
def _names() -> dict[str, Any]:
    """The globals of every kernel, by name: Triton's language, primitives and helpers of
    ``cuda_kernels`` (without the underscore) and formulas of ``arithmetic``, compiled by Triton.
    """
    import triton.language as language

    names: dict[str, Any] = {"__name__": __name__, "tl": language, "Number": language.tensor}
    try:
        from triton.language.extra import libdevice

        names["libdevice"] = libdevice
    except (
        ImportError
    ):  # pragma: no cover - a stripped Triton: only powers other than 1 and 2 need it
        pass
    for function in (*sources.PRIMITIVES, *sources.HELPERS):
        names[function.__name__[1:]] = _take_over(function, names)
    for formula in arithmetic.FORMULAS:
        names[formula.__name__] = _take_over(formula, names)
    return names


@lru_cache(None)
def kernel(name: str) -> Any:
    """A kernel for Triton to launch; Triton compiles it when it is first launched.

    Args:
        name: a kernel with a single program (``SINGLES``), or a key of ``arithmetic.RULES``, which
            gives ``_walk`` with that rule compiled in.
    """
    for function in sources.SINGLES:
        if function.__name__ == f"_{name}":
            return _take_over(function, _names())
    rule = arithmetic.RULES[name]
    names = {
        **_names(),
        **{called: _names()[meaning.__name__] for called, meaning in rule.uses.items()},
    }
    if rule.function is not None:
        names["rule"] = _take_over(rule.function, names)
    names["part"] = _take_over(sources._part, names)
    return _take_over(sources._walk, names)
