"""Feed every public parameter bad values; only ``RuleError`` may come back.

A room's test lists its public callables with arguments that work, and asserts that nothing foreign
is raised::

    from bad_values import faults, parameters

    CALLS = {"tail_index": (tail_index, lambda: {"sample": np.ones(50)})}


    @pytest.mark.parametrize("name", CALLS)
    def test_bad_values_end_in_our_error(name):
        function, arguments = CALLS[name]
        assert faults(function, arguments) == []

A call that accepts a value is fine (0 is a legal seed). A call that raises anything but
``RuleError``, or that does not end within the time limit, is a fault.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Collection, Mapping
from typing import Any

from mindgap.base.alarm import time_limit
from mindgap.base.check import RuleError


class Awkward:
    """An object of an unknown class, which no function expects."""

    def __repr__(self) -> str:
        return "Awkward()"


def bad_values() -> dict[str, Any]:
    """About 20 values by name, made anew at each call: wrong type, sign, size, shape, or not
    finite.
    """
    import numpy as np
    import torch

    return {
        "None": None,
        "True": True,
        "text": "abc",
        "no text": "",
        "bytes": b"abc",
        "minus one": -1,
        "zero": 0,
        "huge whole number": 10**30,
        "minus 1.5": -1.5,
        "half": 0.5,
        "nan": float("nan"),
        "inf": float("inf"),
        "complex": 1j,
        "empty list": [],
        "list of texts": ["a", "b"],
        "three numbers": (1.0, float("nan"), -1.0),
        "dict": {"a": 1},
        "object": Awkward(),
        "function": lambda *arguments: "abc",
        "class": int,
        "nan array": np.array([1.0, np.nan]),
        "empty array": np.array([]),
        "integer tensor": torch.tensor([1, 2]),
        "nan tensor": torch.tensor(float("nan")),
    }


class TimeIsUp(BaseException):
    """A call ran past its limit; no ``except Exception`` catches it."""


def parameters(function: Callable[..., Any], *, leave_out: Collection[str] = ()) -> list[str]:
    """Names of the parameters that a caller may set by name (or, for ``*args``, not at all)."""
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    found = inspect.signature(function).parameters.items()
    return [
        n
        for n, p in found
        if p.kind not in kinds and n not in ("self", "cls") and n not in leave_out
    ]


def outcome(
    call: Callable[[], Any], *, seconds: float = 60.0, allowed: tuple[type[BaseException], ...] = ()
) -> str:
    """``"accepted"``, ``"refused"`` (our error), ``"hang"``, or the foreign error in words."""
    try:
        with warnings.catch_warnings(), time_limit(seconds, TimeIsUp()):
            warnings.simplefilter("ignore")
            call()
    except (RuleError, *allowed):
        return "refused"
    except TimeIsUp:
        return f"hang: not done after {seconds:g} s"
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:150]}"
    return "accepted"


def trials(
    function: Callable[..., Any],
    arguments: Callable[[], Mapping[str, Any]],
    *,
    leave_out: Collection[str] = (),
    values: Callable[[], Mapping[str, Any]] = bad_values,
    after: Callable[[Any], Any] | None = None,
    seconds: float = 60.0,
    allowed: tuple[type[BaseException], ...] = (),
) -> dict[tuple[str, str], str]:
    """Outcome of each (parameter, bad value).

    Args:
        function: a public function or class.
        arguments: makes arguments that work, anew for each call (a call may change them).
        leave_out: parameters not to touch, such as a user's function.
        values: makes the bad values.
        after: what to do with the result, such as a step of an optimizer: values must be refused by
            then.
        seconds: time limit per call.
        allowed: further errors that are part of the contract, such as the one for a missing
            package.
    """
    outcomes = {}
    for name in parameters(function, leave_out=leave_out):
        for label in values():

            def call(name: str = name, label: str = label) -> None:
                result = function(**{**arguments(), name: values()[label]})
                if after is not None:
                    after(result)

            outcomes[name, label] = outcome(call, seconds=seconds, allowed=allowed)
    return outcomes


def faults(
    function: Callable[..., Any], arguments: Callable[[], Mapping[str, Any]], **options: Any
) -> list[str]:
    """What went wrong, one line per (parameter, bad value); the options are those of ``trials``."""
    said = trials(function, arguments, **options).items()
    return [
        f"{name} = {label}: {text}"
        for (name, label), text in said
        if text not in ("accepted", "refused")
    ]
