"""States on disk: tensors and plain numbers only, written whole or not at all, and read only by the
problem and method that wrote them.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from dataclasses import fields
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from mindgap.base.check import RuleError, fail, whole
from mindgap.base.checked import checked_types
from mindgap.base.checkpoint import read_checkpoint, write_checkpoint
from mindgap.base.fingerprint import array_text, data_text, function_text, settings_text
from mindgap.bilevel.backends.count import value_shapes
from mindgap.bilevel.core.settings import TorchStep
from mindgap.bilevel.core.types import AnyMethod, ProblemOracle, State
from mindgap.bilevel.data.loaded import Loaded
from mindgap.bilevel.data.problem import BilevelProblem
from mindgap.bilevel.data.sample import Batches, Data
from mindgap.bilevel.method import Method

KIND = "bilevel state"
Rows = list[dict[str, float]]  # of a history
_COUNTERS = ("t", "seed", "drawn", "updates", "calls")


def belongs_to(method: AnyMethod, problem: BilevelProblem) -> dict[str, str]:
    """What must agree for a checkpoint to belong to a method and a problem: data, starts, settings
    and the code of the losses, each as a text that is the same in every process.

    Data in tensors are known by their bytes, data sets by their type, their length and the arrays
    they hold, streams by the code that draws.

    Example:
        >>> from mindgap.bilevel import SOBA
        >>> from mindgap.bilevel.data.problem import example_problem
        >>> list(belongs_to(SOBA(lr_x=0.1, lr_y=0.5), example_problem()))
        ['method', 'start of x', 'start of y', 'upper data', 'lower data', 'upper loss', ...]
    """
    packs = (problem.pack_x, problem.pack_y)
    modules = tuple(pack.module for pack in packs if pack.module is not None)
    texts = {"method": method_text(method)}
    for name, pack in zip(("x", "y"), packs, strict=True):
        texts[f"start of {name}"] = f"{array_text(pack.start)} as {pack.shapes}"
    for level in ("upper", "lower"):
        texts[f"{level} data"] = _data_text(problem.data(level))
    for level, loss in (("upper", problem.upper), ("lower", problem.lower)):
        texts[f"{level} loss"] = function_text(loss, modules)
    for name in ("project_x", "project_y"):
        projection = getattr(problem, name)
        texts[name] = "None" if projection is None else function_text(projection)
    return texts


def _data_text(data: Data) -> str:
    """The data of a level as text: how they are drawn, and what they hold."""
    form = f"order {data.order}, n {data.n}, batch_size {data.batch_size}"
    if isinstance(data, Batches):
        return f"{form}, seed {data.seed}, {data_text(data.data)}"
    if isinstance(data, Loaded):
        return f"{form}, {data_text(data.loader.dataset)}"
    return f"{form}, {function_text(data.sample)}"


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
    settings = [
        f"{f.name}={settings_text(getattr(method, f.name))}" for f in fields(cast("Any", method))
    ]
    return f"{type(method).__qualname__}({', '.join(settings)})"


def check_path(name: str, path: str | Path) -> Path:
    """``path`` as a Path; refuses what names no file (``name`` is for the message)."""
    if not isinstance(path, (str, Path)) or not Path(path).name or Path(path).is_dir():
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
    content = _content(state)
    return {"of": belongs_to(state.method, state.problem), **content}


def _content(state: State) -> dict[str, Any]:
    """Values and counters of a state, as tensors and numbers."""
    if not isinstance(state, State):
        fail("state", "must be a State", type(state).__name__)
    return {
        "values": _to_plain(state.values, state.oracle),
        **{name: copy(getattr(state, name)) for name in _COUNTERS},
    }


def save_state(path: str | Path, state: State) -> None:
    """Write a state; an earlier file stays until the new one is complete and on the disk.

    Args:
        path: the file; its folder is made where it is missing.
        state: of any method and backend.
    """
    path, content = check_path("path", path), _content(state)
    write_checkpoint(path, KIND, content, belongs_to(state.method, state.problem))


def write_run(path: Path, state: State, rows: Rows, belongs: Mapping[str, str]) -> None:
    """Write state and history of a run, with what they belong to, as :func:`belongs_to` gave it."""
    write_checkpoint(path, KIND, {**_content(state), "history": rows}, belongs)


def load_state(path: str | Path, method: Method, oracle: ProblemOracle) -> State:
    """Read a state back; it continues bitwise as if it had never been written.

    Args:
        path: written by :func:`save_state`.
        method: the same method with the same settings.
        oracle: derivatives of the same problem (``method.oracle(problem, seed)``).

    Raises:
        CheckpointError: a RuleError; the file is no checkpoint, is damaged, or belongs to another
            method, other data, another start or other losses (the message says which).
    """
    path = check_path("checkpoint", path)
    _check_parts(method, oracle)
    return read_run(path, method, oracle, belongs_to(method, oracle.problem))[0]


def read_run(
    path: Path, method: Method, oracle: ProblemOracle, belongs: Mapping[str, str]
) -> tuple[State, Rows]:
    """The state and the history rows in a file, which must state the texts ``belongs`` of
    :func:`belongs_to`.
    """
    content = read_checkpoint(path, KIND, belongs, oracle.problem.device)
    state, rows = _state(content, method, oracle), content.get("history", [])
    if not isinstance(rows, list):
        fail("checkpoint", "must hold a list of rows as history", type(rows).__name__)
    for row in rows:
        for name, number in _mapping("columns of the history", row).items():
            if not (isinstance(name, str) and isinstance(number, (int, float))):
                fail("checkpoint", "must have numbers by name in its history", {name: number})
    return state, rows


def _check_parts(method: object, oracle: object) -> None:
    """Raise unless ``method`` is a Method and ``oracle`` belongs to a problem."""
    if not isinstance(method, Method):
        fail("method", "must be a Method", type(method).__name__)
    if not isinstance(getattr(oracle, "problem", None), BilevelProblem):
        fail("oracle", "must be a method's oracle", type(oracle).__name__)


@checked_types
def unpack_state(content: Any, method: Method, oracle: ProblemOracle) -> State:
    """The state that :func:`pack_state` took apart.

    Args:
        content: what it returned, or what became of it on the disk.
        method, oracle: as for :func:`load_state`.

    Raises:
        RuleError: when the content is no state, or of another method or problem.
    """
    _check_parts(method, oracle)
    if not isinstance(content, dict) or not isinstance(content.get("of"), dict):
        fail("checkpoint", "must be what pack_state returned", type(content).__name__)
    expected, stated = belongs_to(method, oracle.problem), content["of"]
    for name, text in expected.items():
        if stated.get(name) != text:
            fail("checkpoint", f"must belong to the {name} {text}", stated.get(name))
    return _state(content, method, oracle)


def _state(content: Any, method: Method, oracle: ProblemOracle) -> State:
    """The state from values and counters as ``_content`` gives them; RuleError for a part that is
    wrong, since a file may be made up.
    """
    content = _mapping("content", content)
    counters = {name: content.get(name) for name in _COUNTERS}
    for name in ("t", "seed"):
        whole(f"checkpoint's {name}", counters[name])
    for name in ("drawn", "updates", "calls"):
        for key, number in _mapping(name, counters[name]).items():
            if not isinstance(key, str):
                fail("checkpoint", f"must have texts as names of {name}", key)
            whole(f"checkpoint's {name} of {key}", number)
    if counters["updates"].keys() != {"x", "y"}:
        fail("checkpoint", "must count the updates of x and y", sorted(counters["updates"]))
    plain_values = dict(_mapping("values", content.get("values")))
    optimizer_states = {
        name: plain_values.pop(name) for name in ("optimizer", "scheduler") if name in plain_values
    }
    _check_form("values", plain_values, value_shapes(method, oracle.problem))
    values: dict[str, Any] = {name: _restore(value, oracle) for name, value in plain_values.items()}
    if isinstance(method.x_step, TorchStep):
        values |= _optimizer(method.x_step, plain_values["x"], optimizer_states)
    elif optimizer_states:
        rule = "must hold no optimizer, as the method has none"
        fail("checkpoint", rule, sorted(optimizer_states))
    return State(method, oracle, values, **counters)


def _optimizer(step: TorchStep, x: Tensor, saved_states: dict[str, Any]) -> dict[str, Any]:
    """The values "optimizer" and "scheduler" (if any) of the step on x, in their saved states."""
    restored = step.start(x)
    if saved_states.keys() != restored.keys():
        fail("checkpoint", f"must hold {sorted(restored)} of the step on x", sorted(saved_states))
    try:
        for name in reversed(restored):  # making a scheduler changes the rates of the optimizer
            restored[name].load_state_dict(saved_states[name])
    except Exception as error:  # torch raises whatever the wrong field leads to
        raise RuleError(
            f"checkpoint must hold states of {step}, got {type(error).__name__}: {error}"
        ) from error
    return restored


def _mapping(name: str, value: Any) -> dict[Any, Any]:
    """``value``, refused where it is no dict; ``name`` is for the message."""
    if not isinstance(value, dict):
        fail("checkpoint", f"must hold {name} by name", type(value).__name__)
    return value


def _check_form(place: str, value: Any, own: Any) -> None:
    """Raise unless a value from a file has the names, shapes and dtypes of ``own``, the method's;
    ``place`` names it in messages.
    """
    if isinstance(own, dict):
        value = _mapping(place, value)
        for name, expected in own.items():
            if name not in value:
                fail("checkpoint", f"must hold {name!r} in its {place}", sorted(map(str, value)))
            _check_form(f"{place}, {name}", value[name], expected)
    elif isinstance(own, Tensor):
        form = (tuple(own.shape), own.dtype)
        got = (tuple(value.shape), value.dtype) if isinstance(value, Tensor) else type(value)
        if form != got:
            fail("checkpoint", f"must hold {place} of the form {form}", got)
    elif type(value) is not type(own):
        fail("checkpoint", f"must hold a {type(own).__name__} in its {place}", type(value))


def _to_plain(value: Any, oracle: ProblemOracle) -> Any:
    """Values with tensors in the place of arrays, and state dicts in the place of optimizers."""
    if isinstance(value, dict):
        return {key: _to_plain(v, oracle) for key, v in value.items()}
    if isinstance(value, (torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler)):
        return value.state_dict()
    return oracle.to_torch(value)


def _restore(value: Any, oracle: ProblemOracle) -> Any:
    """Values with a backend's arrays in the place of tensors."""
    if isinstance(value, dict):
        return {key: _restore(v, oracle) for key, v in value.items()}
    return oracle.from_torch(value)
