"""States on disk: tensors and plain numbers only, written whole or not at all."""

from __future__ import annotations

import contextlib
import os
import re
from copy import copy
from dataclasses import fields, is_dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, cast

import torch

from mindgap.base.check import fail
from mindgap.base.checked import checked_types
from mindgap.bilevel.core.steps import TorchStep
from mindgap.bilevel.core.types import AnyMethod, ProblemOracle, State
from mindgap.bilevel.method import Method

_VERSION = 2  # 1: all slots of a level drew from one stream
_COUNTERS = ("t", "seed", "drawn", "updates", "calls")


def _fingerprint(oracle: ProblemOracle) -> dict[str, Any]:
    """What must agree for a checkpoint to belong to a problem."""
    problem = oracle.problem
    found: dict[str, Any] = {
        "x": problem.pack_x.shapes,
        "y": problem.pack_y.shapes,
        "dtype": str(problem.dtype),
    }
    for level in ("upper", "lower"):
        data = problem.data(level)
        found[level] = [data.order, data.n, data.batch_size, getattr(data, "seed", 0)]
    return found


def method_text(method: AnyMethod) -> str:
    """A method with its settings as text that is the same in every process: functions by their
    code, not by address.

    Example:
        >>> from mindgap.bilevel import SOBA
        >>> method_text(SOBA(lr_x=0.1, lr_y=0.2)) == repr(SOBA(lr_x=0.1, lr_y=0.2))
        True
        >>> one, two = (SOBA(lr_x=lambda t: 0.1 / (t + 1), lr_y=0.2) for _ in range(2))
        >>> repr(one) == repr(two), method_text(one) == method_text(two)
        (False, True)
    """
    parts = [
        f"{f.name}={_value_text(getattr(method, f.name))}" for f in fields(cast("Any", method))
    ]
    return f"{type(method).__qualname__}({', '.join(parts)})"


def _value_text(value: object) -> str:
    if isinstance(value, FunctionType):
        cells = [_value_text(c.cell_contents) for c in value.__closure__ or ()]
        inside = repr((_code_text(value.__code__), value.__defaults__, cells))
        return f"<function {value.__qualname__} {sha256(inside.encode()).hexdigest()[:16]}>"
    if isinstance(value, partial):
        arguments = [_value_text(a) for a in (*value.args, *sorted(value.keywords.items()))]
        return f"<partial {_value_text(value.func)} {arguments}>"
    if is_dataclass(value) and not isinstance(value, type):
        parts = [f"{f.name}={_value_text(getattr(value, f.name))}" for f in fields(value)]
        return f"{type(value).__name__}({', '.join(parts)})"
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))


def _code_text(code: CodeType) -> str:
    inner = [_code_text(c) if isinstance(c, CodeType) else repr(c) for c in code.co_consts]
    return repr((code.co_code, inner, code.co_names, code.co_varnames))


def check_path(name: str, path: str | Path) -> Path:
    """A file's place, as text or Path."""
    if not isinstance(path, (str, Path)) or not Path(path).name:
        fail(name, "must be the name of a file", path)
    return Path(path)


def pack_state(state: State) -> dict[str, Any]:
    """A state as tensors, numbers and texts, to be kept wherever one likes; :func:`unpack_state` is
    the inverse.

    Example:
        >>> from mindgap.bilevel import SOBA
        >>> from mindgap.bilevel.data.problem import example_problem
        >>> problem = example_problem()
        >>> method = SOBA(lr_x=0.1, lr_y=0.5)
        >>> state = method.step(method.start(problem))
        >>> again = unpack_state(pack_state(state), method, method.oracle(problem))
        >>> again.t, bool((method.step(again).y == method.step(state).y).all())
        (1, True)
    """
    if not isinstance(state, State):
        fail("state", "must be a State", type(state).__name__)
    return {
        "version": _VERSION,
        "method": method_text(state.method),
        "problem": repr(_fingerprint(state.oracle)),
        "values": _plain(state.values, state.oracle),
        **{name: copy(getattr(state, name)) for name in _COUNTERS},
    }


def save_state(path: str | Path, state: State) -> None:
    """Write a state; an earlier file stays until the new one is complete.

    Args:
        path: the file. Its folder must exist.
        state: of any method and backend.
    """
    path = check_path("path", path)
    part = path.with_name(path.name + ".part")
    try:
        torch.save(pack_state(state), part)
        os.replace(part, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            part.unlink()


def load_state(path: str | Path, method: Method, oracle: ProblemOracle) -> State:
    """Read a state back; it continues bitwise as if it had never been written.

    Args:
        path: written by :func:`save_state`.
        method: the same method with the same settings.
        oracle: derivatives of the same problem (``method.oracle(problem, seed)``).

    Raises:
        RuleError: when the file is no checkpoint, or of another method or problem.
    """
    try:
        content = torch.load(path, weights_only=True, map_location=oracle.problem.device)
    except Exception as error:
        fail("checkpoint", f"must be a readable state ({error})", str(path))
    return unpack_state(content, method, oracle)


@checked_types
def unpack_state(content: Any, method: Method, oracle: ProblemOracle) -> State:
    """The state that :func:`pack_state` took apart.

    Args:
        content: what it returned, or what became of it on the disk.
        method, oracle: as for :func:`load_state`.

    Raises:
        RuleError: when the content is no state, or of another method or problem.
    """
    if not isinstance(content, dict) or content.get("version") != _VERSION:
        found = content.get("version") if isinstance(content, dict) else type(content).__name__
        fail("checkpoint", f"must have version {_VERSION}", found)
    if not hasattr(oracle, "problem"):
        fail("oracle", "must be a method's oracle", type(oracle).__name__)
    if content["method"] != method_text(method):
        fail("checkpoint", f"must belong to {method_text(method)}", content["method"])
    if content["problem"] != repr(_fingerprint(oracle)):
        fail(
            "checkpoint", f"must belong to the problem {_fingerprint(oracle)!r}", content["problem"]
        )
    values: dict[str, Any] = {}
    for name, value in content["values"].items():
        if isinstance(method.x_step, TorchStep) and name == "optimizer":
            values[name] = method.x_step.start(content["values"]["x"])
            values[name].load_state_dict(value)
        elif isinstance(method.x_step, TorchStep) and name == "scheduler":
            values[name] = method.x_step.start_scheduler(values["optimizer"])
            values[name].load_state_dict(value)
            values["optimizer"].load_state_dict(
                content["values"]["optimizer"]
            )  # making a scheduler changes rates
        else:
            values[name] = _restored(value, oracle)
    return State(method, oracle, values, **{name: content[name] for name in _COUNTERS})


def _plain(value: Any, oracle: ProblemOracle) -> Any:
    if isinstance(value, dict):
        return {key: _plain(v, oracle) for key, v in value.items()}
    if isinstance(value, (torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler)):
        return value.state_dict()
    return oracle.to_torch(value)


def _restored(value: Any, oracle: ProblemOracle) -> Any:
    if isinstance(value, dict):
        return {key: _restored(v, oracle) for key, v in value.items()}
    return oracle.from_torch(value)
