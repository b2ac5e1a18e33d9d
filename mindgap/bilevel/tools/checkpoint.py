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
from mindgap.bilevel.backends.count import CountingOracle
from mindgap.bilevel.core.settings import TorchStep
from mindgap.bilevel.core.types import AnyMethod, ProblemOracle, State
from mindgap.bilevel.data.loaded import Loaded
from mindgap.bilevel.data.problem import BilevelProblem
from mindgap.bilevel.data.sample import Batches, Data
from mindgap.bilevel.method import Method

KIND = "bilevel state"
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
    own = tuple(pack.module for pack in packs if pack.module is not None)
    found = {"method": method_text(method)}
    for name, pack in zip(("x", "y"), packs, strict=True):
        found[f"start of {name}"] = f"{array_text(pack.start)} as {pack.shapes}"
    for level in ("upper", "lower"):
        found[f"{level} data"] = _data_text(problem.data(level))
    for level, loss in (("upper", problem.upper), ("lower", problem.lower)):
        found[f"{level} loss"] = function_text(loss, own)
    for name in ("project_x", "project_y"):
        projection = getattr(problem, name)
        found[name] = "None" if projection is None else function_text(projection)
    return found


def _data_text(data: Data) -> str:
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
    parts = [
        f"{f.name}={settings_text(getattr(method, f.name))}" for f in fields(cast("Any", method))
    ]
    return f"{type(method).__qualname__}({', '.join(parts)})"


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
    content = _content(state)
    return {"of": belongs_to(state.method, state.problem), **content}


def _content(state: State) -> dict[str, Any]:
    if not isinstance(state, State):
        fail("state", "must be a State", type(state).__name__)
    return {
        "values": _to_plain(state.values, state.oracle),
        **{name: copy(getattr(state, name)) for name in _COUNTERS},
    }


def save_state(path: str | Path, state: State) -> None:
    """Write a state; an earlier file stays until the new one is complete and on the disk.

    Args:
        path: the file. Its folder must exist.
        state: of any method and backend.
    """
    path, content = check_path("path", path), _content(state)
    write_checkpoint(path, KIND, content, belongs_to(state.method, state.problem))


def write_state(path: Path, state: State, of: Mapping[str, str]) -> None:
    """As :func:`save_state`, with what the state belongs to (:func:`belongs_to`) found before."""
    write_checkpoint(path, KIND, _content(state), of)


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
    return read_state(path, method, oracle, belongs_to(method, oracle.problem))


def read_state(path: Path, method: Method, oracle: ProblemOracle, of: Mapping[str, str]) -> State:
    """As :func:`load_state`, with what it must belong to (:func:`belongs_to`) found before."""
    content = read_checkpoint(path, KIND, of, oracle.problem.device)
    return _state(content, method, oracle)


def _check_parts(method: object, oracle: object) -> None:
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
    of, found = belongs_to(method, oracle.problem), content["of"]
    for name, here in of.items():
        if found.get(name) != here:
            fail("checkpoint", f"must belong to the {name} {here}", found.get(name))
    return _state(content, method, oracle)


def _state(content: Any, method: Method, oracle: ProblemOracle) -> State:
    """The state, after a look at every part: a file may be made up."""
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
    found = dict(_mapping("values", content.get("values")))
    kept = {name: found.pop(name) for name in ("optimizer", "scheduler") if name in found}
    forms = CountingOracle.of(oracle.problem)
    forms.start = oracle.problem.pack_x.start.to("meta"), oracle.problem.pack_y.start.to("meta")
    _compare("values", found, method.start_values(forms))
    values: dict[str, Any] = {name: _restore(value, oracle) for name, value in found.items()}
    if isinstance(method.x_step, TorchStep):
        values |= _optimizer(method.x_step, found["x"], kept)
    elif kept:
        fail("checkpoint", "must hold no optimizer, as the method has none", sorted(kept))
    return State(method, oracle, values, **counters)


def _optimizer(step: TorchStep, x: Tensor, kept: dict[str, Any]) -> dict[str, Any]:
    """The optimizer of the upper step and its scheduler, where they stood."""
    made: dict[str, Any] = {"optimizer": step.start(x)}
    scheduler = step.start_scheduler(made["optimizer"])
    if scheduler is not None:
        made["scheduler"] = scheduler
    if kept.keys() != made.keys():
        fail("checkpoint", f"must hold {sorted(made)} of the step on x", sorted(kept))
    try:
        for name in reversed(made):  # making a scheduler changes the rates of the optimizer
            made[name].load_state_dict(kept[name])
    except Exception as error:  # torch raises whatever the wrong field leads to
        raise RuleError(
            f"checkpoint must hold states of {step}, got {type(error).__name__}: {error}"
        ) from error
    return made


def _mapping(name: str, value: Any) -> dict[Any, Any]:
    if not isinstance(value, dict):
        fail("checkpoint", f"must hold {name} by name", type(value).__name__)
    return value


def _compare(where: str, found: Any, like: Any) -> None:
    """Refuse values that have not the names, shapes and dtypes of the method's own."""
    if isinstance(like, dict):
        found = _mapping(where, found)
        for name, part in like.items():
            if name not in found:
                fail("checkpoint", f"must hold {name!r} in its {where}", sorted(map(str, found)))
            _compare(f"{where}, {name}", found[name], part)
    elif isinstance(like, Tensor):
        form = (tuple(like.shape), like.dtype)
        got = (tuple(found.shape), found.dtype) if isinstance(found, Tensor) else type(found)
        if form != got:
            fail("checkpoint", f"must hold {where} of the form {form}", got)
    elif type(found) is not type(like):
        fail("checkpoint", f"must hold a {type(like).__name__} in its {where}", type(found))


def _to_plain(value: Any, oracle: ProblemOracle) -> Any:
    if isinstance(value, dict):
        return {key: _to_plain(v, oracle) for key, v in value.items()}
    if isinstance(value, (torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler)):
        return value.state_dict()
    return oracle.to_torch(value)


def _restore(value: Any, oracle: ProblemOracle) -> Any:
    if isinstance(value, dict):
        return {key: _restore(v, oracle) for key, v in value.items()}
    return oracle.from_torch(value)
