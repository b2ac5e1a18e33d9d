"""States on disk: tensors and plain numbers only, written whole or not at all."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

import torch

from mindgap.base.check import fail
from mindgap.bilevel.method import Method, State
from mindgap.bilevel.protocols import ProblemOracle
from mindgap.bilevel.steps import TorchStep

_VERSION = 1


def _fingerprint(oracle: ProblemOracle) -> dict[str, Any]:
    """What must agree for a checkpoint to belong to a problem."""
    problem = oracle.problem
    found: dict[str, Any] = {"x": problem.pack_x.shapes, "y": problem.pack_y.shapes, "dtype": str(problem.dtype)}
    for level in ("upper", "lower"):
        data = problem.data(level)
        found[level] = [data.order, data.n, data.batch_size, getattr(data, "seed", 0)]
    return found


def check_path(name: str, path: str | Path) -> Path:
    """A file's place, as text or Path."""
    if not isinstance(path, (str, Path)) or not Path(path).name:
        fail(name, "must be the name of a file", path)
    return Path(path)


def pack_state(state: State) -> dict[str, Any]:
    """A state as tensors, numbers and texts, to be kept wherever one likes; :func:`unpack_state` is the inverse.

    Example:
        >>> from mindgap.bilevel import SOBA, BilevelProblem
        >>> problem = BilevelProblem(
        ...     upper=lambda x, y, b: (y - b).square().mean(), lower=lambda x, y, b: (y - x * b).square().mean(),
        ...     x=torch.tensor([2.0]), y=torch.zeros(1), upper_data=torch.ones(4), lower_data=torch.ones(4),
        ...     batch_size=2)
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
        "method": repr(state.method),
        "problem": repr(_fingerprint(state.oracle)),
        "values": _plain(state.values, state.oracle),
        "t": state.t,
        "seed": state.seed,
        "drawn": dict(state.drawn),
        "updates": dict(state.updates),
        "calls": dict(state.calls),
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
    if content["method"] != repr(method):
        fail("checkpoint", f"must belong to {method!r}", content["method"])
    if content["problem"] != repr(_fingerprint(oracle)):
        fail("checkpoint", f"must belong to the problem {_fingerprint(oracle)!r}", content["problem"])
    values = {}
    for name, value in content["values"].items():
        if isinstance(method.x_step, TorchStep) and name == "optimizer":
            values[name] = method.x_step.start(content["values"]["x"])
            values[name].load_state_dict(value)
        else:
            values[name] = _restored(value, oracle)
    return State(
        method=method,
        oracle=oracle,
        values=values,
        t=content["t"],
        seed=content["seed"],
        drawn=content["drawn"],
        updates=content["updates"],
        calls=content["calls"],
    )


def _plain(value: Any, oracle: ProblemOracle) -> Any:
    if isinstance(value, dict):
        return {key: _plain(v, oracle) for key, v in value.items()}
    if isinstance(value, torch.optim.Optimizer):
        return value.state_dict()
    return oracle.to_torch(value)


def _restored(value: Any, oracle: ProblemOracle) -> Any:
    if isinstance(value, dict):
        return {key: _restored(v, oracle) for key, v in value.items()}
    return oracle.from_torch(value)
