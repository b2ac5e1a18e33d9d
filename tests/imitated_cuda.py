"""Runs tests that need a GPU on a CPU, with an imitation of CUDA. The arguments are pytest's:

    python tests/imitated_cuda.py tests/bilevel/test_bilevel_cuda.py
    python tests/imitated_cuda.py tests/optim/test_fused_cuda.py -k "not gibibytes and not little"

Tensors "on CUDA" are CPU tensors whose memory is marked. What only a GPU would show otherwise:

- tensors of two devices in one operation, a generator of the other device, an array made of a
  tensor on CUDA: errors, as there;
- whatever waits for the device is an error during a capture and under ``set_sync_debug_mode``;
- a captured step does not run: what it writes is put back, and its own memory holds NaN. A replay
  makes the operations again on the same memory, without Python;
- a copy to the CPU that does not block arrives when it is waited for;
- Triton's kernels run in Triton's interpreter on bare addresses (where Triton is installed, on
  Linux): about 10 ms per launch.

Left for a GPU: what the compilers and libraries such as cuDNN make of it, races between streams,
memory and speed, TF32, tensor subclasses and inference tensors.
"""

from __future__ import annotations

import contextlib
import ctypes
import inspect
import os
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

CUDA = torch.device("cuda", 0)
TOTAL_MEMORY = 2**34
_Generator = torch.Generator


class Marks:
    """A set of storages that keeps none of them alive."""

    def __init__(self) -> None:
        self._known: dict[int, StorageWeakRef] = {}

    def __contains__(self, storage: torch.UntypedStorage) -> bool:
        reference = self._known.get(storage._cdata)
        return reference is not None and not reference.expired()

    def add(self, storage: torch.UntypedStorage) -> None:
        self._known[storage._cdata] = StorageWeakRef(storage)
        if len(self._known) % 4096 == 0:
            self._known = {k: r for k, r in self._known.items() if not r.expired()}

    def discard(self, storage: torch.UntypedStorage) -> None:
        self._known.pop(storage._cdata, None)


ON_CUDA, PINNED = Marks(), Marks()


def storage_of(tensor: Tensor) -> torch.UntypedStorage | None:
    """The memory of a tensor; None for one that has none of its own."""
    functorch = torch._C._functorch
    while functorch.is_functorch_wrapped_tensor(tensor):
        tensor = functorch.get_unwrapped(tensor)
    try:
        return tensor.untyped_storage()
    except (NotImplementedError, RuntimeError):
        return None


def on_cuda(tensor: Tensor) -> bool:
    """Whether a tensor's memory is marked as CUDA's."""
    storage = storage_of(tensor)
    return storage is not None and storage in ON_CUDA


def tensors_in(tree: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, Tensor)]


def mark(tree: Any, cuda: bool = True) -> Any:
    """Mark the memory of all tensors of a tree as CUDA's or the CPU's; returns the tree."""
    for tensor in tensors_in(tree):
        storage = storage_of(tensor)
        if storage is not None:
            (ON_CUDA.add if cuda else ON_CUDA.discard)(storage)
    return tree


# -- streams, events, captures


class State:
    """What the imitated driver knows."""

    graph: Graph | None = None  # the one that is being captured
    sync_mode = 0
    #: Copies to the CPU that have not arrived: target and value.
    pending: ClassVar[list[tuple[Tensor, Tensor]]] = []
    factory_on_cuda = False  # whether the running call makes its tensors on CUDA
    stream: Stream


def wait(what: str) -> None:
    """The host waits for the device: copies arrive, unless waiting is an error."""
    if State.graph is not None:
        State.graph.failed = True
        raise RuntimeError(
            f"CUDA error: operation not permitted when stream is capturing (imitated: {what})"
        )
    if State.sync_mode == 2:
        raise RuntimeError(f"called a synchronizing CUDA operation (imitated: {what})")
    arrive()


def arrive() -> None:
    with _disable_current_modes(), torch._C.DisableTorchFunction(), torch.no_grad():
        for target, source in State.pending:
            target.copy_(source)
    State.pending.clear()


class Stream:
    def __init__(self, device: Any = None, priority: int = 0, **_: Any) -> None:
        self.device, self.cuda_stream, self.device_index = CUDA, 0, 0

    def wait_stream(self, other: Stream) -> None:
        assert isinstance(other, Stream)

    def wait_event(self, event: Event) -> None:
        assert isinstance(event, Event)

    def record_event(self, event: Event | None = None) -> Event:
        event = event or Event()
        event.record(self)
        return event

    def synchronize(self) -> None:
        wait("Stream.synchronize")

    def query(self) -> bool:
        return True


class Event:
    def __init__(self, enable_timing: bool = False, **_: Any) -> None:
        self.recorded = False

    def record(self, stream: Stream | None = None) -> None:
        assert stream is None or isinstance(stream, Stream)
        self.recorded = True

    def synchronize(self) -> None:
        if self.recorded:
            wait("Event.synchronize")

    def query(self) -> bool:
        arrive()
        return True

    def elapsed_time(self, other: Event) -> float:
        return 1.0

    def wait(self, stream: Stream | None = None) -> None:
        pass


def _alias(tensor: Tensor) -> Tensor:
    """The same memory, whatever is later done with the tensor object."""
    return tensor.data


class Graph:
    """A CUDA graph: a list of operations on fixed memory."""

    def __new__(cls, keep_graph: bool = False) -> Graph:
        return super().__new__(cls)

    def reset(self) -> None:
        self.operations: list[Callable[[], Any]] = []

    def pool(self) -> tuple[int, int]:
        return (0, 1)

    def begin(self) -> None:
        assert State.graph is None, "a capture inside a capture"
        self.operations = []
        self.failed = False
        #: Memory that was written, as it was; memory that the capture made.
        self.before: dict[int, tuple[torch.UntypedStorage, torch.UntypedStorage]] = {}
        self.made: dict[int, tuple[torch.UntypedStorage, torch.dtype]] = {}
        State.graph = self

    def end(self) -> None:
        State.graph = None
        for storage, value in self.before.values():
            storage.copy_(value)
        for storage, dtype in self.made.values():
            if dtype is not torch.bool and storage.nbytes() % dtype.itemsize == 0:
                memory = torch.empty(0, dtype=dtype).set_(storage)
                memory.fill_(torch.nan if dtype.is_floating_point or dtype.is_complex else 123)
        self.before, self.made = {}, {}

    def replay(self) -> None:
        assert State.graph is None, "a replay inside a capture"
        with _disable_current_modes(), torch._C.DisableTorchFunction(), torch.no_grad():
            for operation in self.operations:
                operation()

    capture_begin = lambda self, *_, **__: self.begin()  # noqa: E731
    capture_end = lambda self: self.end()  # noqa: E731

    def save(self, tensor: Tensor) -> None:
        """Keep what a tensor's memory held before the capture."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self.made and key not in self.before:
            self.before[key] = (storage, storage.clone())

    def record(self, func: Any, args: Any, kwargs: Any, out: Any, inputs: list[Tensor]) -> None:
        known = {t.untyped_storage()._cdata for t in inputs}
        fixed_args, fixed_kwargs = pytree.tree_map_only(Tensor, self._fixed, (args, kwargs))
        fresh = []
        outs = pytree.tree_leaves(out)
        for place, tensor in enumerate(outs):
            if isinstance(tensor, Tensor) and tensor.untyped_storage()._cdata not in known:
                fresh.append((place, _alias(tensor)))
                storage = tensor.untyped_storage()
                self.made.setdefault(storage._cdata, (storage, tensor.dtype))
        if not fresh and not func._schema.is_mutable and "rand" not in str(func):
            return  # a view
        if str(func).startswith(("aten.empty", "aten.new_empty")):
            return

        def again() -> None:
            result = pytree.tree_leaves(func(*fixed_args, **fixed_kwargs))
            for place, tensor in fresh:
                tensor.copy_(result[place])

        self.operations.append(again)

    def _fixed(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage in ON_CUDA or storage in PINNED:
            return _alias(tensor)
        return tensor.detach().clone()  # a number of the host is built into the graph


class Capture:
    """``torch.cuda.graph``."""

    def __init__(self, cuda_graph: Graph, pool: Any = None, stream: Any = None, **_: Any) -> None:
        self.graph = cuda_graph

    def __enter__(self) -> None:
        arrive()
        self.stream = State.stream
        State.stream = Stream()
        self.graph.begin()

    def __exit__(self, kind: Any, *_: Any) -> None:
        self.graph.end()
        if self.graph.failed and kind is None:
            raise RuntimeError("CUDA error: operation failed due to an error during capture")
        if kind is None:  # a capture that breaks off leaves its stream current
            State.stream = self.stream


# -- operations

#: Those that take tensors of both devices.
_MIXED = ("aten.copy_", "aten._foreach_copy_", "aten.index.Tensor", "aten.index_put", "aten.set_")
_MIXED += ("aten._index_put_impl_", "aten.resize_", "prim.device")
#: Those that wait for the device.
_WAITING = ("aten._local_scalar_dense", "aten.nonzero", "aten.masked_select", "aten.equal.")
_WAITING += ("aten._unique", "aten.unique_", "aten.is_nonzero", "aten.repeat_interleave.Tensor")
_WAITING += ("aten.linalg_eig", "aten._linalg_eigh", "aten.bincount")


class Operations(TorchDispatchMode):
    """Marks results, refuses mixed devices, and records captures."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        inputs = [t for t in tensors_in((args, kwargs)) if _has_storage(t)]
        marked = [t.untyped_storage() in ON_CUDA for t in inputs]
        cuda, name = any(marked), str(func)
        here = [t for t, m in zip(inputs, marked) if not m and t.dim()]
        if cuda and here and not name.startswith(_MIXED) and not name.startswith("aten._foreach"):
            raise RuntimeError(
                "Expected all tensors to be on the same device, but found at least two devices, "
                f"cuda:0 and cpu! (imitated: {name}, {[tuple(t.shape) for t in here]} on cpu)"
            )
        if cuda and name.startswith(_WAITING):
            wait(name)
        indexed = cuda and name.startswith(("aten.index.Tensor", "aten.index_put"))
        if indexed and any(t.dtype is torch.bool for t in tensors_in(args[1])):
            wait(f"{name} by a mask")
        if name.startswith("aten.copy_") and len(set(marked[:2])) == 2:
            return self._copy_across(func, args, kwargs, marked)
        graph = State.graph if cuda or State.factory_on_cuda else None
        if graph is not None:
            for tensor in self._written(func, args, kwargs):
                graph.save(tensor)
        out = func(*args, **kwargs)
        if cuda or State.factory_on_cuda:
            self._mark(name, out, inputs, marked)
        if graph is not None:
            graph.record(func, args, kwargs, out, inputs)
        return out

    @staticmethod
    def _mark(name: str, out: Any, inputs: list[Tensor], marked: list[bool]) -> None:
        if name.startswith("aten._foreach") and isinstance(out, (list, tuple)):
            for tensor, is_marked in zip(out, marked):
                if is_marked:
                    mark(tensor)
            return
        known = {t.untyped_storage()._cdata for t in inputs}
        for tensor in tensors_in(out):
            if _has_storage(tensor) and tensor.untyped_storage()._cdata not in known:
                mark(tensor)

    @staticmethod
    def _written(func: Any, args: Any, kwargs: Any) -> list[Tensor]:
        written = []
        for place, argument in enumerate(func._schema.arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                value = args[place] if place < len(args) else kwargs.get(argument.name)
                written += tensors_in(value)
        return written

    @staticmethod
    def _copy_across(func: Any, args: Any, kwargs: Any, marked: list[bool]) -> Any:
        target, source = args[:2]
        free = bool(args[2] if len(args) > 2 else kwargs.get("non_blocking", False))
        host = source if marked[0] else target
        pinned = host.untyped_storage() in PINNED
        if not free:
            wait("a copy between devices that blocks")
        if State.graph is not None:
            if not pinned:
                wait("a copy between the device and memory that is not pinned")
            State.graph.save(target)
            out = func(*args, **kwargs)
            State.graph.record(func, args, kwargs, out, [target, source])
            return out
        if marked[0] or not free:
            return func(*args, **kwargs)
        State.pending.append((_alias(target), source.clone()))
        return target


def _has_storage(tensor: Tensor) -> bool:
    try:
        tensor.untyped_storage()
    except (NotImplementedError, RuntimeError):
        return False
    return True


class _Moved(torch.autograd.Function):
    """A copy on the other device; its gradient goes back."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, cuda: bool, free: bool) -> Tensor:
        ctx.cuda = cuda
        pinned = storage_of(tensor) in PINNED
        if State.graph is not None and (not free or not (pinned or not cuda)):
            wait("a copy between devices")
        if not free:
            wait("a copy between devices that blocks")
        with _disable_current_modes():
            out = tensor.clone()
            if not cuda and free:
                PINNED.add(out.untyped_storage())
                State.pending.append((_alias(out), tensor.clone()))
                _alias(out).fill_(True if out.dtype is torch.bool else 111)
        mark(out, cuda)
        if State.graph is not None:
            State.graph.made[out.untyped_storage()._cdata] = (out.untyped_storage(), out.dtype)
            source, target = _alias(tensor), _alias(out)
            State.graph.operations.append(lambda: target.copy_(source))
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return _Moved.apply(grads[0], not ctx.cuda, False), None, None


def moved(tensor: Tensor, cuda: bool, free: bool = False) -> Tensor:
    """The tensor on the device, itself where it is there."""
    if storage_of(tensor) is None or on_cuda(tensor) == cuda:
        return tensor
    return _Moved.apply(tensor, cuda, free)


def _kind(device: Any) -> str | None:
    """``"cuda"``, another device's type, or None where nothing names a device."""
    if isinstance(device, bool) or device is None:
        return None
    if isinstance(device, int):
        return "cuda"
    if isinstance(device, (str, torch.device)):
        try:
            return torch.device(device).type
        except RuntimeError:
            return None
    return None


def _getter(name: str) -> Any:
    return getattr(Tensor, name).__get__


#: Those that look at numbers of a tensor from Python without an operation.
_READING = {Tensor.tolist, Tensor.numpy, Tensor.__array__}
_LIKE = ("new_", "_like")


class Devices(TorchFunctionMode):
    """Answers where a tensor is, and moves tensors."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        answer = _ANSWERS.get(func)
        if answer is not None:
            return answer(func, args, kwargs)
        if func is Tensor.backward:
            tensor, *rest = args
            names = ("gradient", "retain_graph", "create_graph", "inputs")
            given = {**dict(zip(names, rest)), **kwargs}
            with self:
                return torch.autograd.backward(
                    tensor,
                    given.get("gradient"),
                    given.get("retain_graph"),
                    given.get("create_graph", False),
                    inputs=given.get("inputs"),
                )
        device = kwargs.get("device")
        kind = _kind(device)
        generator = kwargs.get("generator")
        name = getattr(func, "__name__", "")
        target = kind if kind in ("cpu", "cuda") else None
        first = args[0] if args and isinstance(args[0], Tensor) else None
        if target is None and first is not None and any(part in name for part in _LIKE):
            target = "cuda" if on_cuda(first) else "cpu"
        if generator is not None:
            wanted = target or ("cuda" if first is not None and on_cuda(first) else "cpu")
            found = generator.device.type
            if found != wanted:
                raise RuntimeError(
                    f"Expected a '{wanted}' device type for generator but found '{found}'"
                )
        if kind == "cuda":
            kwargs["device"] = "cpu"
        if func in (torch.tensor, torch.as_tensor, torch.asarray) and target is not None:
            if args and isinstance(args[0], Tensor):
                kwargs.pop("device")
                return moved(func(*args, **kwargs), target == "cuda")
            if target == "cuda":
                wait("torch.tensor with numbers of the host")
        explicit = target is not None and (_kind(device) is not None or "new_" in name)
        if inspect.isfunction(func):
            return func(*args, **kwargs)
        # An operation in C may make tensors where its arguments are.
        cuda = target == "cuda" if explicit else any(map(on_cuda, tensors_in((args, kwargs))))
        before, State.factory_on_cuda = State.factory_on_cuda, cuda
        try:
            out = func(*args, **kwargs)
        finally:
            State.factory_on_cuda = before
        return mark(out, cuda) if explicit else out


def _to(func: Any, args: Any, kwargs: Any) -> Any:
    tensor, *rest = args
    free = kwargs.pop("non_blocking", False)
    target: str | None = None
    others = []
    for value in rest:
        if isinstance(value, Tensor):
            target = "cuda" if on_cuda(value) else "cpu"
            others.append(value.dtype)
        elif isinstance(value, (str, torch.device)) or type(value) is int:
            target = _kind(value)
            if target not in ("cpu", "cuda"):
                others.append(value)
        else:
            others.append(value)
    if "other" in kwargs:
        other = kwargs.pop("other")
        target, kwargs["dtype"] = "cuda" if on_cuda(other) else "cpu", other.dtype
    if _kind(kwargs.get("device")) in ("cpu", "cuda"):
        target = _kind(kwargs.pop("device"))
    bools = [value for value in others if isinstance(value, bool)]
    if bools:
        free = bools[0]
        others = [v for v in others if not isinstance(v, bool)]
        if len(bools) > 1:
            kwargs["copy"] = bools[1]
    if storage_of(tensor) is None or target is None or on_cuda(tensor) == (target == "cuda"):
        return func(tensor, *others, **kwargs) if others or kwargs else tensor
    kwargs.pop("copy", None)
    tensor = func(tensor, *others, **kwargs) if others or kwargs else tensor
    return moved(tensor, target == "cuda", free)


def _read(func: Any, args: Any, kwargs: Any) -> Any:
    if on_cuda(args[0]):
        if func is not Tensor.tolist:
            raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu()")
        wait("Tensor.tolist")
    return func(*args, **kwargs)


def _pin(func: Any, args: Any, kwargs: Any) -> Tensor:
    if on_cuda(args[0]):
        raise RuntimeError("cannot pin a tensor on CUDA: only dense CPU tensors can be pinned")
    out = args[0].clone()
    PINNED.add(out.untyped_storage())
    return out


def _same_place(func: Any, args: Any, kwargs: Any) -> Any:
    out = func(*args, **kwargs)
    return mark(out, on_cuda(args[0]))


def _device_of(func: Any, args: Any, kwargs: Any) -> torch.device:
    return CUDA if on_cuda(args[0]) else func(*args)


_ANSWERS: dict[Any, Callable[..., Any]] = {
    _getter("device"): _device_of,
    _getter("is_cuda"): lambda f, a, k: on_cuda(a[0]),
    _getter("is_cpu"): lambda f, a, k: not on_cuda(a[0]) and f(*a),
    Tensor.get_device: lambda f, a, k: 0 if on_cuda(a[0]) else -1,
    Tensor.to: _to,
    Tensor.cuda: lambda f, a, k: moved(a[0], True, k.get("non_blocking", False)),
    Tensor.cpu: lambda f, a, k: moved(a[0], False),
    Tensor.pin_memory: _pin,
    Tensor.is_pinned: lambda f, a, k: storage_of(a[0]) in PINNED,
    Tensor.record_stream: lambda f, a, k: None,
    Tensor.__deepcopy__: _same_place,
    **dict.fromkeys(_READING, _read),
}


# -- the module torch.cuda


class _Meta(type(_Generator)):
    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, _Generator)


class Generator(_Generator, metaclass=_Meta):
    """A generator that says that it is CUDA's."""

    def __new__(cls, device: Any = "cpu") -> Any:
        if _kind(device) == "cuda":
            return _Generator.__new__(CudaGenerator, "cpu")
        return _Generator(device or "cpu")


class CudaGenerator(_Generator):
    device = CUDA

    def graphsafe_get_state(self) -> Any:
        twin = _Generator.__new__(CudaGenerator, "cpu")
        twin.set_state(self.get_state())
        return twin

    def graphsafe_set_state(self, state: Any) -> None:
        self.set_state(state.get_state())


class DefaultGenerator:
    """CUDA's default generator; its numbers are those of the CPU's, which imitated CUDA draws."""

    device = CUDA

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.default_generator, name)

    graphsafe_get_state = CudaGenerator.graphsafe_get_state
    graphsafe_set_state = CudaGenerator.graphsafe_set_state


@contextlib.contextmanager
def _stream(stream: Stream | None) -> Iterator[None]:
    before = State.stream
    State.stream = stream or before
    try:
        yield
    finally:
        State.stream = before


@contextlib.contextmanager
def _device(device: Any) -> Iterator[None]:
    yield


def _set_sync_debug_mode(mode: int | str) -> None:
    State.sync_mode = {"default": 0, "warn": 1, "error": 2}.get(mode, mode)  # type: ignore


def _cuda_names() -> dict[str, Any]:
    default, rng = DefaultGenerator(), torch.default_generator
    properties = types.SimpleNamespace(
        total_memory=TOTAL_MEMORY, name="imitated", major=9, minor=0, multi_processor_count=132
    )
    State.stream = Stream()

    def set_stream(stream: Stream) -> None:
        State.stream = stream

    return {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "_lazy_init": lambda: None,
        "init": lambda: None,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "get_device_name": lambda *_: "imitated",
        "get_device_capability": lambda *_: (9, 0),
        "get_device_properties": lambda *_: properties,
        "is_bf16_supported": lambda *_: True,
        "device": _device,
        "Stream": Stream,
        "Event": Event,
        "CUDAGraph": Graph,
        "graph": Capture,
        "stream": _stream,
        "set_stream": set_stream,
        "current_stream": lambda device=None: State.stream,
        "default_stream": lambda device=None: State.stream,
        "synchronize": lambda device=None: wait("torch.cuda.synchronize"),
        "is_current_stream_capturing": lambda: State.graph is not None,
        "graph_pool_handle": lambda: (0, 1),
        "empty_cache": lambda: None,
        "memory_allocated": lambda *_: 0,
        "max_memory_allocated": lambda *_: 0,
        "memory_reserved": lambda *_: 0,
        "max_memory_reserved": lambda *_: 0,
        "reset_peak_memory_stats": lambda *_: None,
        "mem_get_info": lambda *_: (TOTAL_MEMORY // 2, TOTAL_MEMORY),
        "set_sync_debug_mode": _set_sync_debug_mode,
        "get_sync_debug_mode": lambda: State.sync_mode,
        "default_generators": (default,),
        "get_rng_state": lambda *_: rng.get_state(),
        "set_rng_state": lambda state, *_: rng.set_state(state),
        "get_rng_state_all": lambda: [rng.get_state()],
        "set_rng_state_all": lambda states: rng.set_state(states[0]),
        "manual_seed": lambda seed: rng.manual_seed(seed),
        "manual_seed_all": lambda seed: rng.manual_seed(seed),
        "initial_seed": lambda: rng.initial_seed(),
    }


# -- Triton's kernels


class Kernel:
    """A kernel in Triton's interpreter, with what ``launch`` reads of a compiled one."""

    def __init__(self, function: Any) -> None:
        self._function = function
        signature = inspect.signature(function.fn)
        annotations = function.fn.__annotations__
        self.params = [
            types.SimpleNamespace(name=n, is_constexpr="constexpr" in str(annotations.get(n)))
            for n in signature.parameters
        ]

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., Any]:
        def start(*arguments: Any, num_warps: int, **constants: Any) -> Any:
            pointers = [a for a in arguments if isinstance(a, Tensor)]
            for place, tensor in enumerate(pointers):
                if not on_cuda(tensor):
                    raise ValueError(
                        f"Pointer argument (at {place}) cannot be accessed from Triton"
                    )
            names = [p.name for p in self.params if p.is_constexpr]
            assert set(constants) == set(names), (constants, names)
            # Memory by address alone, as the driver sees it.
            kinds = [a.dtype if isinstance(a, Tensor) else type(a) for a in arguments]
            values = [a.data_ptr() if isinstance(a, Tensor) else a for a in arguments]
            self._launch(grid, kinds, [*values, *(constants[n] for n in names)])
            return Compiled(self, grid, kinds)

        return start

    def _launch(self, grid: tuple[int, ...], kinds: list[Any], values: list[Any]) -> None:
        if len(values) != len(self.params):
            raise TypeError(f"a kernel of {len(self.params)} arguments was given {len(values)}")

        def operation() -> None:
            arguments = [
                _at(value, kind) if isinstance(kind, torch.dtype) else value
                for kind, value in zip(kinds, values)
            ]
            constants = {p.name: v for p, v in zip(self.params, values) if p.is_constexpr}
            with np.errstate(all="ignore"):  # a GPU says nothing of ∞ − ∞
                self._function[grid](*arguments, **constants)

        if State.graph is not None:
            State.graph.operations.append(operation)
            return
        with _disable_current_modes(), torch._C.DisableTorchFunction(), torch.no_grad():
            operation()


def _at(address: int, dtype: torch.dtype) -> Tensor:
    """A tensor of one element at an address."""
    memory = (ctypes.c_char * dtype.itemsize).from_address(address)
    return torch.frombuffer(memory, dtype=dtype, count=1)


class Compiled:
    """What Triton returns of a launch."""

    function, packed_metadata = "function", "metadata"

    def __init__(self, kernel: Kernel, grid: tuple[int, ...], kinds: list[Any]) -> None:
        self._kernel, self._grid, self._kinds = kernel, grid, kinds

    def run(self, x: int, y: int, z: int, stream: int, *rest: Any) -> None:
        function, packed, metadata, enter, leave, *values = rest
        assert (x, y, z) == (*self._grid, 1, 1)[:3], (x, y, z)
        assert (function, packed) == (self.function, self.packed_metadata)
        assert stream == 0
        assert metadata is enter is leave is None
        for kind, value in zip(self._kinds, values):
            assert isinstance(value, int if isinstance(kind, torch.dtype) else kind), (kind, value)
        self._kernel._launch(self._grid, self._kinds, values)

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        return lambda *values, stream: self.run(
            *grid, stream, self.function, self.packed_metadata, None, None, None, *values
        )


def _power(x: Any, exponent: Any) -> Any:
    """``libdevice.pow``, which Triton's interpreter does not have."""
    import triton.language as tl
    from triton.runtime.interpreter import TensorHandle

    power = exponent.handle.data if isinstance(exponent, tl.tensor) else np.float32(exponent)
    values = np.power(x.handle.data, power).astype(x.handle.data.dtype)
    return tl.tensor(TensorHandle(values, x.handle.dtype), x.type)


def _install_kernels() -> None:
    from mindgap.rules.fused import cuda

    if cuda.unavailable() is not None:
        return
    cuda._names()["libdevice"] = types.SimpleNamespace(pow=_power)
    plain = cuda.kernel.__wrapped__
    kernels: dict[str, Kernel] = {}

    def kernel(name: str) -> Kernel:
        if name not in kernels:
            kernels[name] = Kernel(plain(name))
        return kernels[name]

    cuda.kernel = kernel


def install() -> None:
    """Imitate CUDA in this process, for good."""
    assert "triton" not in sys.modules, "Triton reads this when it is imported"
    os.environ["TRITON_INTERPRET"] = "1"
    for name, value in _cuda_names().items():
        setattr(torch.cuda, name, value)
    torch._C._cuda_getDevice = lambda: 0
    torch._C._cuda_getCurrentRawStream = lambda device: 0
    torch.Generator = Generator  # type: ignore[misc]
    _let_python_through()
    _map_autocast()
    _install_kernels()
    Devices().__enter__()
    from mindgap.base import checked

    # An error of torch passes through frames of this file, which are nobody's own function.
    checked.OWN_PACKAGES.add(__name__.partition(".")[0])
    Operations().__enter__()


def _let_python_through() -> None:
    """Let torch's functions that are written in Python run below ``Devices``, not beside it."""
    import torch.nn.init

    for module in (torch.autograd, torch.functional, torch.nn.functional, torch.nn.init):
        for suffix in ("", "_unary", "_variadic"):
            if hasattr(module, f"has_torch_function{suffix}"):
                setattr(module, f"has_torch_function{suffix}", lambda *_: False)
    plain = torch.autograd.graph._engine_run_backward

    def engine(outputs: Any, *args: Any, **kwargs: Any) -> Any:
        before, State.factory_on_cuda = State.factory_on_cuda, any(map(on_cuda, outputs))
        try:
            return plain(outputs, *args, **kwargs)
        finally:
            State.factory_on_cuda = before

    torch.autograd.graph._engine_run_backward = engine
    torch.autograd._engine_run_backward = engine  # type: ignore[attr-defined]
    torch.backends.cudnn.is_acceptable = lambda tensor: False  # type: ignore[assignment]


def _map_autocast() -> None:
    plain = torch.autocast.__init__

    def init(self: Any, device_type: str, *args: Any, **kwargs: Any) -> None:
        plain(self, "cpu" if device_type == "cuda" else device_type, *args, **kwargs)

    torch.autocast.__init__ = init  # type: ignore[method-assign]
    enabled, dtype = torch.is_autocast_enabled, torch.get_autocast_dtype
    torch.is_autocast_enabled = lambda kind="cpu": enabled("cpu")  # type: ignore
    torch.get_autocast_dtype = lambda kind: dtype("cpu")  # type: ignore


class Plugin:
    """Starts the imitation before tests are collected."""

    def pytest_configure(self) -> None:
        install()
        from optim import fused_checks, fused_memory

        fused_checks.STEPS = 6
        for name in ("check_wrapper_subclass", "check_inference_tensors"):  # left for a GPU
            fused_memory.CHECKS.pop(name)


def main() -> int:
    import pytest

    root = Path(__file__).parents[1]
    sys.path[:0] = [str(root), str(root / "tests")]
    return pytest.main(["-p", "no:cacheprovider", *sys.argv[1:]], plugins=[Plugin()])


if __name__ == "__main__":
    sys.exit(main())
