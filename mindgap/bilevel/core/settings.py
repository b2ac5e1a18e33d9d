"""Settings of a method: each field says its rule once, and :class:`~mindgap.bilevel.method.Method`
checks them all.

lr_x: Rate = rate(exponent=0.5)      # a number c means c / (1 + t)^0.5
inner: int = count(10)               # a whole number of at least 1, by default 10
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import MISSING, Field, field, fields, replace
from functools import cache, lru_cache
from typing import Any, TypeVar, cast

from mindgap.base import check
from mindgap.base.check import fail
from mindgap.bilevel.core.schedules import Rate, Times, as_schedule

Rule = Callable[[str, Any], Any]
M = TypeVar("M")


def setting(rule: Rule, default: Any = MISSING, **more: Any) -> Any:
    """A field with a rule ``(name, value)`` that raises for a bad value; None passes where it
    is the default.
    """
    checked = (
        (lambda name, value: None if value is None else rule(name, value))
        if default is None
        else rule
    )
    if default is MISSING:
        return field(metadata={"rule": checked, **more})
    return field(default=default, metadata={"rule": checked, **more})


def _ordinary(name: str, value: object) -> object:
    """Refuse finite numbers that arithmetic in float32 turns to infinity."""
    if isinstance(value, (int, float)) and 1e29 < value < math.inf:
        fail(name, "must be below 1e29", value)
    return value


def rate(
    default: Any = MISSING, *, exponent: float = 0.0, like: str = "", zero: bool = False
) -> Any:
    """A step size or weight: a number, or a function of the iteration; one of the numbers of
    ``Method.rates``.

    Args:
        default: its value if not given; None takes that of another rate (with ``like``), or there
            is no such number.
        exponent: a number c means c / (1 + t)^exponent.
        like: the other rate's name.
        zero: whether 0 is allowed.
    """

    def rule(name: str, value: object) -> None:
        if not (zero and isinstance(value, (int, float)) and value == 0):
            _ordinary(name, value)
            as_schedule(name, cast("Rate", value), exponent)(0)

    return setting(rule, default, exponent=exponent, like=like)


def positive(default: Any = MISSING, *, finite: bool = True, host: bool = False) -> Any:
    """A number above zero; ``host`` where only ``Method.rates`` reads it."""
    return setting(
        lambda name, value: check.positive(name, _ordinary(name, value), finite=finite),
        default,
        host=host,
    )


def non_negative(default: Any = MISSING) -> Any:
    """A number that is zero or above."""
    return setting(lambda name, value: check.non_negative(name, _ordinary(name, value)), default)


def within(low: float, high: float, ends: str, default: Any = MISSING) -> Any:
    """A number in an interval."""
    return setting(lambda name, value: check.between(name, value, low, high, ends=ends), default)


def check_count(name: str, value: object, *, least: int = 1, most: int = 10**7) -> int:
    """A whole number between two ends."""
    number = check.whole(name, value, least=least)
    return number if number <= most else fail(name, f"must be at most {most}", value)


def count(default: Any = MISSING, *, least: int = 1, most: int = 10**7) -> Any:
    """A whole number."""
    return setting(lambda name, value: check_count(name, value, least=least, most=most), default)


def choice(*choices: str) -> Any:
    """One of some words, by default the first."""
    return setting(lambda name, value: one_of_texts(name, value, choices), choices[0])


def one_of_texts(name: str, value: object, choices: tuple[str, ...]) -> str:
    """One of some words; anything that is no text is refused too (an array has no truth value
    to compare by).
    """
    return check.one_of(name, value if isinstance(value, str) else repr(value), choices)


def check_flag(name: str, value: object) -> None:
    """True or False, nothing else."""
    if not isinstance(value, bool):
        fail(name, "must be True or False", value)


def flag(default: bool) -> Any:
    """True or False."""
    return setting(check_flag, default)


@cache
def _fields(kind: type[Any]) -> tuple[tuple[Field[Any], ...], tuple[Field[Any], ...]]:
    """All fields of a method's class, and those that are rates."""
    every = fields(kind)
    return every, tuple(f for f in every if "exponent" in f.metadata)


def check_settings(method: object) -> None:
    """Check every field of a method by its own rule."""
    for f in _fields(type(method))[0]:  # type: ignore[arg-type]
        if "rule" in f.metadata:
            f.metadata["rule"](f.name, getattr(method, f.name))


@lru_cache(maxsize=1024)
def alike_rates(method: M) -> M:
    """A method whose rates, and what only ``rates`` reads, are all 1 (those that are None stay
    so).
    """
    known = _fields(type(method))[0]  # type: ignore[arg-type]
    names = [f.name for f in known if "exponent" in f.metadata or f.metadata.get("host")]
    return replace(
        method,  # type: ignore[type-var]
        **{name: 1.0 for name in names if getattr(method, name) is not None},
    )


def rates_of(method: object, t: Times) -> dict[str, Any]:
    """The rates of iteration t (a number, or an array of them), by name."""
    found = {}
    for f in _fields(type(method))[1]:  # type: ignore[arg-type]
        value = getattr(method, f.name)
        if value is None:
            if not f.metadata["like"]:
                continue
            value = getattr(method, f.metadata["like"])
        zero = isinstance(value, (int, float)) and value == 0
        found[f.name] = 0.0 if zero else as_schedule(f.name, value, f.metadata["exponent"])(t)
    return found
