"""Argument checks with one form of message: the argument's name, the rule, the value.

Every check returns the value it was given, so that a constructor reads as a list of rules.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any, NoReturn, TypeVar

T = TypeVar("T")


class RuleError(ValueError):
    """An argument broke a rule. The message names the argument, the rule and the value."""


def fail(name: str, rule: str, value: Any) -> NoReturn:
    """Raise the one error of this library for a bad argument: its name, the rule that it breaks
    ("must be positive") and its value, shortened.

    Example:
        >>> fail("lr", "must be positive", -1)
        Traceback (most recent call last):
        mindgap.base.check.RuleError: lr must be positive, got -1
    """
    try:
        text = repr(value)
    except Exception:  # the value's own fault must not hide which argument is bad
        text = f"an object of {type(value).__name__} that cannot be printed"
    raise RuleError(f"{name} {rule}, got {shortened(text)}")


def shortened(text: str) -> str:
    """A text on one line of at most 200 letters; of a longer one the first 197 and three dots."""
    text = " ".join(line.strip() for line in text.splitlines())
    return text if len(text) <= 200 else text[:197] + "..."


def error_words(error: BaseException) -> str:
    """Type and first line (at most 160 characters) of an error of somebody else's code.

    Example:
        >>> error_words(KeyError("x")), error_words(TypeError())
        ("KeyError: 'x'", 'TypeError')
    """
    try:
        text = str(error)
    except Exception:  # a fault of its own must not hide which error it is
        text = "its text cannot be printed"
    first_line = next(iter(text.strip().splitlines()), "")
    return f"{type(error).__name__}: {first_line[:160]}".rstrip(": ")


class MissingPackageError(RuleError):
    """Something needs a package that is not installed. The message says what to install."""


def missing(package: str, extra: str) -> NoReturn:
    """Raise the one error of this library for a missing package.

    Example:
        >>> missing("optuna", "tune")
        Traceback (most recent call last):
        mindgap.base.check.MissingPackageError: optuna is not installed: pip install 'mindgap[tune]'
    """
    raise MissingPackageError(f"{package} is not installed: pip install 'mindgap[{extra}]'")


def number(name: str, value: Any) -> float:
    """Check that the argument ``name`` is a real number and not NaN (a bool is no number here), and
    return it; else raise ``RuleError``.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)) or math.isnan(value):
        fail(name, "must be a number", value)
    return value


def positive(name: str, value: Any, *, finite: bool = True) -> float:
    """Check that the argument ``name`` is a number above zero, and return it; else raise
    ``RuleError``. Infinity passes only with ``finite=False``.

    Example:
        >>> positive("tau", 2.0)
        2.0
    """
    number(name, value)
    if not value > 0 or (finite and math.isinf(value)):
        fail(name, "must be positive and finite" if finite else "must be positive", value)
    return value


def non_negative(name: str, value: Any) -> float:
    """Check that the argument ``name`` is a finite number that is zero or above, and return it;
    else raise ``RuleError``.
    """
    number(name, value)
    if not value >= 0 or math.isinf(value):
        fail(name, "must be zero or positive, and finite", value)
    return value


def between(name: str, value: Any, low: float, high: float, *, ends: str = "[]") -> float:
    """Check that the argument ``name`` is a number between ``low`` and ``high``, and return it;
    else raise ``RuleError``. ``ends`` says which ends belong to the interval, as in ``"(]"``.

    Example:
        >>> between("alpha", 2.5, 0, 2, ends="(]")
        Traceback (most recent call last):
        mindgap.base.check.RuleError: alpha must lie in (0, 2], got 2.5
    """
    number(name, value)
    above = value > low if ends[0] == "(" else value >= low
    below = value < high if ends[1] == ")" else value <= high
    if not (above and below):
        fail(name, f"must lie in {ends[0]}{low:g}, {high:g}{ends[1]}", value)
    return value


def whole(name: str, value: Any, *, least: int = 0, most: int | None = None) -> int:
    """Check that the argument ``name`` is an integer not below ``least`` and not above ``most``
    (None: no limit), and return it; else raise ``RuleError``.
    """
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    if not is_whole or value < least or (most is not None and value > most):
        limit = f" and at most {most}" if most else ""
        fail(name, f"must be a whole number of at least {least}{limit}", value)
    return value


def check_call(name: str, function: Any, rule: str, *arguments: Any) -> None:
    """Check that a function can be called with these arguments alone; else raise ``RuleError``,
    which says that the argument ``name`` must be what ``rule`` says. A function that does not show
    its signature passes.

    Example:
        >>> check_call("tau", lambda: 1.0, "a function of the step", 0)
        Traceback (most recent call last):
        mindgap.base.check.RuleError: tau must be a function of the step, got <function ...
    """
    import inspect

    if not callable(function):
        fail(name, f"must be {rule}", function)
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*arguments)
    except TypeError:
        fail(name, f"must be {rule}", function)


def flag(name: str, value: Any) -> bool:
    """Check that the argument ``name`` is True or False, nothing that merely counts as one, and
    return it; else raise ``RuleError``.
    """
    if not isinstance(value, bool):
        fail(name, "must be True or False", value)
    return value


def one_of(name: str, value: T, choices: Collection[T]) -> T:
    """Check that the argument ``name`` is one of the choices, and return it; else raise
    ``RuleError``, which names the nearest choice to a misspelt text.

    Example:
        >>> one_of("scale", "quik", ["quick", "cpu"])
        Traceback (most recent call last):
        mindgap.base.check.RuleError: scale must be one of 'quick', 'cpu' (did you ...
    """
    try:
        is_choice = value in choices
    except (TypeError, ValueError, RuntimeError):  # a value that cannot be hashed, or an array
        is_choice = False
    if not is_choice:
        from difflib import get_close_matches

        try:
            nearest = get_close_matches(str(value), [str(c) for c in choices], n=1)
        except Exception:  # a value that cannot be printed
            nearest = []
        hint = f" (did you mean {nearest[0]!r}?)" if nearest else ""
        fail(name, f"must be one of {', '.join(repr(c) for c in choices)}{hint}", value)
    return value
