"""What a result was computed from, as short texts that are the same in every process: data by
their bytes, functions by their code and by the values they use.
"""

from __future__ import annotations

import dis
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass
from functools import cached_property, partial
from hashlib import blake2b
from types import CodeType, FunctionType, MethodType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

#: Containers, and objects, within one another that are opened, at most.
DEEPEST, DEEPEST_OBJECT = 8, 4
#: Types of the globals and attributes whose values count.
_PLAIN = (int, float, complex, str, bytes, tuple, Tensor, np.ndarray)
#: Methods that change a container.
_CHANGES = {"append", "extend", "insert", "add", "update", "setdefault", "pop", "clear", "remove"}


def digest(*parts: bytes | memoryview) -> str:
    """A short hash of some bytes.

    Example:
        >>> digest(b"a") == digest(b"a"), digest(b"a") == digest(b"b")
        (True, False)
    """
    hasher = blake2b(digest_size=8)
    for piece in parts:
        hasher.update(piece)
    return hasher.hexdigest()


def array_text(value: Tensor | np.ndarray[Any, Any]) -> str:
    """Dtype, shape and a hash of the numbers of an array.

    Example:
        >>> array_text(torch.zeros(2)) == array_text(torch.zeros(2)), array_text(np.zeros(3))[:7]
        (True, 'float64')
    """
    if isinstance(value, Tensor):
        name, shape = str(value.dtype).removeprefix("torch."), tuple(value.shape)
        if value.layout is not torch.strided or value.is_quantized or value.is_meta:
            return f"{name} {shape} {value.layout}"
        flat = value.detach().resolve_conj().resolve_neg().contiguous().cpu().reshape(-1)
        raw: Any = flat.view(torch.uint8).numpy() if flat.numel() else np.empty(0, np.uint8)
    else:
        name, shape = str(value.dtype), value.shape
        if value.dtype.hasobject:
            return f"{name} {shape}"
        raw = np.ascontiguousarray(value).reshape(-1).view(np.uint8) if value.size else value
    return f"{name} {shape} {digest(memoryview(raw.reshape(-1)).cast('B'))}"


def data_text(data: Any) -> str:
    """A short text for data that changes with them: the type, and a hash of the bytes of all
    tensors, arrays, numbers and texts in tuples, lists and mappings. Any other data set counts by
    its type, its length and the arrays it holds.

    Example:
        >>> one, two = (torch.utils.data.TensorDataset(torch.full((3,), v)) for v in (1.0, 2.0))
        >>> data_text(one) == data_text(one), data_text(one) == data_text(two)
        (True, False)
    """
    texts = sorted(_data_parts(data, 0))
    return f"{type(data).__name__} {digest(repr(texts).encode())}"


def _data_parts(data: Any, depth: int) -> Iterator[str]:
    """One text per array, number and text that the data hold, with its place in them.

    Of any other object there is its type with its length, then the texts of those attributes that
    hold data: arrays, data sets, and what is called ``tensors`` or ``indices``.

    Args:
        depth: how many containers and objects the data stand in; too deep ones are not opened.
    """
    if isinstance(data, (Tensor, np.ndarray)):
        yield array_text(data)
    elif isinstance(data, (int, float, complex, str, bytes, type(None))):
        yield repr(data)
    elif isinstance(data, (tuple, list, Mapping)) and depth < DEEPEST:
        entries = data.items() if isinstance(data, Mapping) else enumerate(data)
        for name, entry in entries:
            yield from (f"{name!r} {text}" for text in _data_parts(entry, depth + 1))
    else:
        yield f"{type(data).__qualname__} {len(data) if hasattr(data, '__len__') else ''}"
        for name, entry in getattr(data, "__dict__", {}).items() if depth < DEEPEST_OBJECT else ():
            if isinstance(entry, (Tensor, np.ndarray, torch.utils.data.Dataset)) or name in (
                "tensors",
                "indices",
            ):
                yield from (f"{name} {text}" for text in _data_parts(entry, depth + 1))


def settings_text(value: object) -> str:
    """A setting as text: functions by their code, not by address; everything else by its repr.

    Example:
        >>> one, two = (lambda t: 0.1 / (t + 1) for _ in range(2))
        >>> settings_text(0.5), settings_text(one) == settings_text(two)
        ('0.5', True)
    """
    if isinstance(value, (FunctionType, MethodType)):
        return function_text(value)
    if isinstance(value, partial):
        arguments = [settings_text(a) for a in (*value.args, *sorted(value.keywords.items()))]
        return f"<partial {settings_text(value.func)} {arguments}>"
    if is_dataclass(value) and not isinstance(value, type):
        settings = [f"{f.name}={settings_text(getattr(value, f.name))}" for f in fields(value)]
        return f"{type(value).__name__}({', '.join(settings)})"
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))


def function_text(function: Any, own: tuple[object, ...] = ()) -> str:
    """Name and hash of a function: its code, its defaults, and the values it uses from outside.

    Of the values from outside, numbers, texts, arrays, functions of the same module and modules'
    parameters count. What the function itself changes does not: a counter, a list it appends to.

    Args:
        function: any callable.
        own: modules that do not count, because the run changes them.

    Example:
        >>> def loss(weight):
        ...     return lambda x: weight * x
        >>> function_text(loss(1.0)) == function_text(loss(1.0))
        True
        >>> function_text(loss(1.0)) == function_text(loss(2.0))
        False
    """
    name = getattr(function, "__qualname__", type(function).__qualname__)
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    inside = _Text(own).describe(function)
    return f"<function {name} {digest(inside.encode('utf-8', 'replace'))}, Python {version}>"


class _Text:
    """The long text behind a function's hash. Each function's code enters once: at a second call
    its name stands for it.

    Args:
        own: modules that do not count, because the run changes them.
    """

    def __init__(self, own: tuple[object, ...]) -> None:
        self._own = {id(module) for module in own}
        self._seen: set[int] = set()  # ids of the code objects that were met

    def describe(self, value: Any, is_constant: bool = True, depth: int = 0) -> str:
        """One value as text, by its kind; of a value of no kind below only the type counts. Code
        that is met is noted in ``_seen``.

        Args:
            is_constant: whether nothing changes a list, set or mapping, so that it is opened.
            depth: how many values led here; beyond ``DEEPEST`` the text is "...".
        """
        if depth > DEEPEST or id(value) in self._own:
            return "..."
        if isinstance(value, (bool, int, float, complex, str, bytes, type(None))):
            return repr(value)
        if isinstance(value, (Tensor, np.ndarray)):
            return array_text(value)
        if isinstance(value, CodeType):
            return self._code(value)
        if isinstance(value, FunctionType):
            return self._function(value, depth)
        if isinstance(value, MethodType):
            # With the attributes of its object, but for those that the method itself stores to.
            code = getattr(value.__func__, "__code__", None)
            changed = set() if code is None else _stored_names(code, "ATTR")
            owner = self._object(value.__self__, changed, depth)
            return f"{self.describe(value.__func__, is_constant, depth + 1)} of {owner}"
        if isinstance(value, partial):
            inner = (value.func, value.args, sorted(value.keywords.items()))
            return f"partial {self.describe(inner, True, depth + 1)}"
        if isinstance(value, nn.Module):
            weights = [f"{n} {array_text(p)}" for n, p in value.named_parameters()]
            call = self.describe(type(value).forward, True, depth + 1)
            return f"{type(value).__qualname__} {weights} {call}"
        if isinstance(value, (frozenset, set)) and (is_constant or isinstance(value, frozenset)):
            # Sorted, because a set has no order.
            return f"set {sorted(self.describe(entry, is_constant, depth + 1) for entry in value)}"
        if isinstance(value, tuple) or (isinstance(value, list) and is_constant):
            return f"{[self.describe(entry, is_constant, depth + 1) for entry in value]}"
        if isinstance(value, Mapping) and is_constant:
            return f"{[self.describe(item, is_constant, depth + 1) for item in value.items()]}"
        if is_dataclass(value) and not isinstance(value, type):
            return self._object(value, set(), depth)
        # An object that is called like a function.
        method = None if isinstance(value, type) else vars(type(value)).get("__call__")
        if isinstance(method, FunctionType):
            owner = self._object(value, _stored_names(method.__code__, "ATTR"), depth)
            return f"{owner} {self.describe(method, is_constant, depth + 1)}"
        kind = value if isinstance(value, type) else type(value)
        return f"{kind.__module__}.{kind.__qualname__}"

    def _function(self, value: FunctionType, depth: int) -> str:
        """A function as text: its code and the values from outside that it reads and never stores
        to. These are defaults, closure, and globals that are plain or functions of its module. At
        the second call with the same code it is only the name.

        Args:
            depth: how many values led here.
        """
        code = value.__code__
        if id(code) in self._seen:
            return value.__qualname__
        self._seen.add(id(code))
        names = {name for nested in _nested_codes(code) for name in nested.co_names}
        # Containers count with their entries only where the code looks as if it changed none.
        is_constant = not (names & _CHANGES) and not _stored_names(code, "SUBSCR")
        outside: list[tuple[str, Any]] = [
            ("defaults", value.__defaults__),
            ("defaults by name", value.__kwdefaults__),
        ]
        # Variables of the closure, but for those that the function stores to.
        changed = _stored_names(code, "DEREF")
        for name, cell in zip(code.co_freevars, value.__closure__ or (), strict=True):
            if name not in changed:
                with suppress(ValueError):  # a cell that is not filled yet
                    outside.append((name, cell.cell_contents))
        # Globals in the same way.
        changed = _stored_names(code, "GLOBAL")
        for name in sorted(names - changed):
            global_value = value.__globals__.get(name)
            # By type first: a module that loads itself when it is used must not be asked anything.
            if isinstance(global_value, _PLAIN) or (
                isinstance(global_value, FunctionType)
                and global_value.__module__ == value.__module__
            ):
                outside.append((name, global_value))
        texts = [
            f"{name} = {self.describe(used, is_constant, depth + 1)}" for name, used in outside
        ]
        return f"{self._code(code)} {texts}"

    def _code(self, code: CodeType) -> str:
        """Code as text: its instructions, constants and names."""
        inner = [self.describe(constant) for constant in code.co_consts]
        return repr((code.co_code, inner, code.co_names, code.co_varnames))

    def _object(self, value: Any, changed: set[str], depth: int) -> str:
        """An object as text: its type, and those of its attributes that are plain values or
        functions. Left out are the names in ``changed``, which a call stores to, and cached
        properties.
        """
        kind = type(value)
        if isinstance(value, (nn.Module, type)):
            return self.describe(value, True, depth + 1)
        names = (
            [f.name for f in fields(value)]
            if is_dataclass(value)
            else [*getattr(value, "__dict__", {})]
        )
        attributes = []
        for name in sorted(names):
            attribute = getattr(value, name, None)
            # A cached property has its value among the attributes only after its first use.
            skipped = name in changed or isinstance(getattr(kind, name, None), cached_property)
            if not skipped and isinstance(attribute, (*_PLAIN, FunctionType)):
                attributes.append(f"{name} = {self.describe(attribute, True, depth + 1)}")
        return f"{kind.__module__}.{kind.__qualname__} {attributes}"


def _nested_codes(code: CodeType) -> Iterator[CodeType]:
    """A code object, and all that are nested in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _nested_codes(constant)


def _stored_names(code: CodeType, kind: str) -> set[str]:
    """Names that the code, or code nested in it, stores to.

    Args:
        kind: ``"GLOBAL"`` variables, ``"DEREF"`` (of a closure), ``"ATTR"`` (attributes), or
            ``"SUBSCR"`` (entries of containers, which have no names: one text stands for all).
    """
    return {
        str(step.argval)
        for nested in _nested_codes(code)
        for step in dis.get_instructions(nested)
        if step.opname == f"STORE_{kind}"
    }
