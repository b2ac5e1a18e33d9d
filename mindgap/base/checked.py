"""Argument checks that follow from the annotations, for every public function of a module at once.

A module ends with ``check_arguments(__name__)``, or its package with ``check_package(__name__)``.
Each public function and class then refuses an argument that its annotation excludes, before its own
code runs: a text for a ``float``, a number for a ``Callable``, NaN. Ranges are annotations too:
``Positive``, ``Count``, ``Annotated[float, Range(0, 1)]``.
"""

from __future__ import annotations

import collections.abc
import inspect
import sys
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, wraps
from numbers import Integral, Real
from typing import Annotated, Any, TypeVar

from mindgap.base.check import RuleError, between, fail, non_negative, positive, whole

#: No count in this library is larger; a larger one would only run out of memory or time.
MOST = 2**64 - 1

Test = Callable[[Any], bool]
#: ``rule(name, value)`` raises unless the value is allowed.
Rule = Callable[[str, Any], Any]


@dataclass(frozen=True)
class Range:
    """An interval of numbers, for ``Annotated[float, Range(0, 1, "()")]``."""

    low: float
    high: float
    ends: str = "[]"  # "[" or "(" and "]" or ")": whether an end belongs to it

    def __call__(self, name: str, value: Any) -> None:
        between(name, value, self.low, self.high, ends=self.ends)


@dataclass(frozen=True)
class AtLeast:
    """Whole numbers from one on, for ``Annotated[int, AtLeast(2)]``."""

    least: int

    def __call__(self, name: str, value: Any) -> None:
        if whole(name, value, least=self.least) > MOST:
            fail(name, f"must be at most {MOST:g}", value)


Positive = Annotated[float, positive]
NonNegative = Annotated[float, non_negative]
Count = Annotated[int, AtLeast(1)]
#: Strictly between 0 and 1.
Share = Annotated[float, Range(0, 1, "()")]
#: α of chapter 4: the order of a moment of the noise, 1 < α <= 2.
Order = Annotated[float, Range(1, 2, "(]")]

#: An array or tensor whose last axis is a vector: the annotation of an argument that cannot be one
#: number.
Vectors = Annotated[Any, "vectors"]

#: Entries of a long list that are tested, from its begin.
TESTED_ENTRIES = 100


def is_number(value: Any) -> bool:
    """A real number that is not NaN, and not a bool.

    Example:
        >>> is_number(2.0), is_number(float("nan")), is_number("2")
        (True, False, False)
    """
    return isinstance(value, Real) and value == value and _fits_float(value)


def _fits_float(value: Any) -> bool:
    """Not a bool, and not a whole number that floating point cannot hold."""
    return not isinstance(value, bool) and not (isinstance(value, int) and abs(value) > MOST)


def is_numeric(value: Any) -> bool:
    """A number, or an array or a tensor of real numbers.

    Example:
        >>> is_numeric(2.0), is_numeric([1.0]), is_numeric({"a": 1})
        (True, False, False)
    """
    if isinstance(value, Real):
        return _fits_float(value)
    if type(value).__module__.partition(".")[0] == "torch":
        return hasattr(value, "is_complex") and not value.is_complex()
    return hasattr(value, "dtype") and value.dtype.kind in "fiub"


def _is_count(value: Any) -> bool:
    """A whole number that the library can count to, and not a bool."""
    return isinstance(value, Integral) and not isinstance(value, bool) and abs(int(value)) <= MOST


#: What an annotation asks for: a test, and what passes it in words.
Request = tuple[Test, str]

_PLAIN: dict[Any, Request] = {
    Any: (is_numeric, "a number or an array of numbers"),
    bool: (lambda value: type(value).__name__ in ("bool", "bool_"), "True or False"),
    float: (is_number, "a number"),
    int: (_is_count, f"a whole number of at most {MOST:g}"),
    None: (lambda value: value is None, "None"),
    type(None): (lambda value: value is None, "None"),
}


#: What the rules that are functions ask for.
_RULE_WORDS: dict[Rule, str] = {
    positive: "a positive and finite number",
    non_negative: "a finite number that is zero or positive",
}


@cache
def _request(hint: Any) -> Request | None:
    """What a type annotation asks for: a function that tests a value, and what passes the test in
    words. None where it asks for nothing that can be tested.
    """
    # Of ``list[int]``: list and (int,). Without brackets: None and ().
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated and callable(args[1]):  # an entry of a list, or one kind of several
        return _ranged_request(args[1])
    if origin is Annotated:  # ``Vectors``
        return (
            lambda value: is_numeric(value) and getattr(value, "ndim", 0) > 0,
            "an array of one axis or more",
        )
    if hint in _PLAIN:
        return _PLAIN[hint]
    if origin in (types.UnionType, typing.Union):
        return _union_request(args)
    if origin is collections.abc.Callable:
        return callable, "a function"
    base = origin or hint
    if not isinstance(base, type):
        return None
    if getattr(base, "_is_protocol", False):  # ``isinstance`` may refuse these
        return _protocol_request(base)
    if base is tuple and len(set(args)) > 1 and Ellipsis not in args:  # entries of several kinds
        return _record_request(args)
    if base in (tuple, list, collections.abc.Sequence):
        return _sequence_request(base, args)
    # By name, so that neither package is imported here.
    if (base.__module__, base.__name__) == ("numpy", "ndarray"):
        return (
            lambda value: type(value).__module__ == "numpy" and is_numeric(value),
            "an array of numbers",
        )
    if (base.__module__, base.__name__) == ("torch", "Tensor"):
        return (
            lambda value: isinstance(value, base) and is_numeric(value),
            "a tensor of real numbers",
        )
    return lambda value: isinstance(value, base), f"a {base.__name__}"


def _ranged_request(rule: Rule) -> Request:
    """The request that a value passes the rule of an annotation such as ``Positive``."""

    def fits(value: Any) -> bool:
        """Whether the rule lets a value pass."""
        try:
            rule("value", value)
        except RuleError:
            return False
        return True

    if isinstance(rule, Range):
        words = f"a number in {rule.ends[0]}{rule.low:g}, {rule.high:g}{rule.ends[1]}"
    elif isinstance(rule, AtLeast):
        words = f"a whole number of at least {rule.least}"
    else:
        words = _RULE_WORDS.get(rule, "a value that its rule allows")
    return fits, words


def _union_request(hints: tuple[Any, ...]) -> Request | None:
    """The request that a value fits one of several annotations; None where one of them asks for
    nothing, so that everything passes.
    """
    requests = [request for hint in hints if (request := _request(hint)) is not None]
    if len(requests) < len(hints):
        return None
    words = " or ".join(words for _, words in requests)
    return lambda value: any(test(value) for test, _ in requests), words


def _protocol_request(base: type) -> Request | None:
    """The request that a value is no class and has all public attributes and methods of the
    protocol ``base``; None for a protocol without any.
    """
    kinds = [kind for kind in base.__mro__ if getattr(kind, "_is_protocol", False)]
    names = {
        name for kind in kinds for name in (*vars(kind), *vars(kind).get("__annotations__", ()))
    }
    members = sorted(name for name in names if not name.startswith("_"))

    def has_all(value: Any) -> bool:
        """Whether a value is no class and has every name of ``members``."""
        return not isinstance(value, type) and all(hasattr(value, name) for name in members)

    if not members:
        return None
    return has_all, f"a {base.__name__} (with {', '.join(members)})"


def _record_request(hints: tuple[Any, ...]) -> Request:
    """The request that a value is a tuple or list with as many entries as ``hints``, each of which
    fits its own annotation.
    """
    requests = [_request(hint) for hint in hints]

    def fits(value: Any) -> bool:
        """Whether a value is a tuple or list whose entries pass ``requests``, one each; a request
        of None lets every entry pass.
        """
        return (
            isinstance(value, (tuple, list))
            and len(value) == len(requests)
            and all(request is None or request[0](entry) for request, entry in zip(requests, value))
        )

    words = ", ".join("anything" if part is None else part[1] for part in requests)
    return fits, f"a tuple of {len(requests)} entries ({words})"


def _sequence_request(base: type, hints: tuple[Any, ...]) -> Request:
    """The request that a value is a sequence whose entries all fit one annotation. Of a long one
    the first ``TESTED_ENTRIES`` entries are tested.

    Args:
        base: ``tuple``, ``list`` or ``collections.abc.Sequence``.
        hints: its arguments: the entries' annotation, or for a tuple of fixed length the same
            annotation for each entry.
    """
    entry_request = _request(hints[0]) if hints else None
    kinds = (tuple, list) if base is tuple else (list, tuple, range)
    length = len(hints) if base is tuple and Ellipsis not in hints else 0  # 0: any length

    def fits(value: Any) -> bool:
        """Whether a value is of these ``kinds`` and this ``length``, and its first entries pass
        ``entry_request``; a request of None lets every entry pass.
        """
        if not isinstance(value, kinds) or (length and len(value) != length):
            return False
        return entry_request is None or all(
            entry_request[0](each) for each in value[:TESTED_ENTRIES]
        )

    words = f"a {base.__name__.lower()}"
    return fits, words if entry_request is None else f"{words}, each entry {entry_request[1]}"


class _Names(dict[str, Any]):
    """The names that a module's annotations may use, those that it imports for type checkers
    only included.
    """

    def __missing__(self, name: str) -> Any:
        """What a name stands for that is not among a module's globals: a builtin, NumPy, torch or
        its tensors; for any other name ``object``, which everything is.
        """
        builtins = sys.modules["builtins"].__dict__
        if name in builtins:
            return builtins[name]
        if name == "np":
            return sys.modules.get("numpy")
        if name in ("Tensor", "torch"):
            import torch

            return torch.Tensor if name == "Tensor" else torch
        return object


def _named_rule(hint: Any) -> Rule | None:
    """The rule of an annotation, a function (name, value) that raises ``RuleError`` unless the
    value is allowed; None where nothing can be tested.

    ``Annotated[float, rule]`` gives its own rule, and ``Annotated[...] | None`` lets None pass too.
    Any other annotation gives the test of its ``_request``.
    """
    args = typing.get_args(hint)  # what stands in the annotation's brackets
    if typing.get_origin(hint) is Annotated and callable(args[1]):
        return args[1]
    # ``Annotated[...] | None``
    if len(args) == 2 and args[1] is type(None) and typing.get_origin(args[0]) is Annotated:
        rule_of_range = _named_rule(args[0])
        if rule_of_range is None:
            return None
        return lambda name, value: value is None or rule_of_range(name, value)
    request = _request(hint)
    if request is None or request[1] == "a object":  # ``object``, or a name that is not known here
        return None
    test, wanted = request
    # ``fail`` raises, so that the rule's value does not matter.
    return lambda name, value: test(value) or fail(name, f"must be {wanted}", value)


def _accepts_any(hint: Any) -> bool:
    """Whether an annotation is ``Any``, or a union or a sequence of it."""
    containers = (types.UnionType, typing.Union, list, tuple, collections.abc.Sequence)
    return hint is Any or (
        typing.get_origin(hint) in containers and any(map(_accepts_any, typing.get_args(hint)))
    )


def _rules(function: Callable[..., Any], numeric: bool) -> dict[str, Rule]:
    """Parameter name -> its rule, a function (name, value) that raises unless the value is allowed;
    for every parameter whose annotation can be tested.

    Args:
        numeric: whether ``Any`` asks for a number or an array; else it asks for nothing.
    """
    # A decorator such as torch.no_grad leaves a function whose globals are not its module's.
    names = _Names(getattr(inspect.unwrap(function), "__globals__", {}))
    rules = {}
    for name, hint in function.__annotations__.items():
        try:
            # A text where the module postpones its annotations.
            annotation = eval(hint, {}, names) if isinstance(hint, str) else hint
            rule = _named_rule(annotation) if numeric or not _accepts_any(annotation) else None
        except (TypeError, AttributeError, NameError):  # an annotation that means nothing here
            rule = None
        if name != "return" and rule is not None:
            rules[name] = rule
    return rules


#: Packages whose frames in a traceback do not belong to a caller. The tests' imitation of CUDA adds
#: itself, which stands between torch and everybody.
OWN_PACKAGES = {"builtins", "numpy", "torch", "scipy", "mindgap", "fractions", "statistics"}


def _is_own_error(error: Exception) -> bool:
    """Whether an error arose in our code or in numpy, torch or scipy, and not in a caller's
    function. A class of error of our own says what is wrong already and does not count.
    """
    frame, names = error.__traceback__, [type(error).__module__]
    while frame is not None:
        names.append(frame.tb_frame.f_globals.get("__name__", ""))
        frame = frame.tb_next
    return type(error).__module__.partition(".")[0] != "mindgap" and all(
        n.partition(".")[0] in OWN_PACKAGES for n in names
    )


F = TypeVar("F", bound=Callable[..., Any])


def checked_types(function: F, numeric: bool = False) -> F:
    """The function with its arguments checked against its annotations, and nothing else changed.

    Args:
        numeric: whether ``Any`` means a number or an array of numbers, as in the formulas of the
            theory.

    Example:
        >>> @checked_types
        ... def half(x: float) -> float:
        ...     return x / 2
        >>> half("a")
        Traceback (most recent call last):
        mindgap.base.check.RuleError: x must be a number, got 'a'
    """
    order = list(inspect.signature(function).parameters)  # names, for arguments without one
    rules = cache(lambda: _rules(function, numeric))

    def call(*args: Any, **kwargs: Any) -> Any:
        """Check the arguments by ``rules``, then call the function; ``order`` names those that come
        without a name.
        """
        # Parameter name -> rule; made at the first call, when all names of annotations exist.
        rules_by_name = rules()
        for name, value in (*zip(order, args), *kwargs.items()):
            if name in rules_by_name:
                rules_by_name[name](name, value)
        return function(*args, **kwargs)

    return typing.cast("F", _under_name_of(function, call))


C = TypeVar("C", bound=type)


def checked_class(kind: C, check: Callable[..., Any] = checked_types) -> C:
    """The class, changed in place: its constructor and its public methods are wrapped by ``check``.
    As a decorator it stands above ``@dataclass``.
    """
    for key, method in list(vars(kind).items()):
        if inspect.isfunction(method) and (key == "__init__" or not key.startswith("_")):
            setattr(kind, key, check(method))
    return kind


def _under_name_of(function: Callable[..., Any], call: Any) -> Callable[..., Any]:
    """A copy of ``call``, which wraps ``function``, with the name, docstring and globals of
    ``function``: only then doctest takes it for a function of that module.
    """
    twin = types.FunctionType(
        call.__code__,
        getattr(function, "__globals__", {}),
        function.__name__,
        None,  # defaults: ``call`` takes any arguments
        call.__closure__,
    )
    return wraps(function)(twin)


def checked(function: Callable[..., Any]) -> Callable[..., Any]:
    """``checked_types``, and a ``RuleError`` for what goes wrong inside a formula.

    Numbers with which the formula overflows or divides by zero, arrays whose shapes do not fit and
    functions that return something else than numbers end in ``RuleError`` too. An error inside a
    caller's own function stays as it is.

    Example:
        >>> checked(lambda x: 1 / x)(0.0)
        Traceback (most recent call last):
        mindgap.base.check.RuleError: arguments must fit together in <lambda> (float division by ...
    """
    inner = checked_types(function, numeric=True)
    caught: tuple[type[Exception], ...] = (ArithmeticError, ValueError, IndexError, RuntimeError)
    if "Callable" in str(function.__annotations__):  # what the caller's function returns may be odd
        caught = (*caught, TypeError, AttributeError)

    def call(*args: Any, **kwargs: Any) -> Any:
        """Call ``inner``, the function with checked arguments; an error of the kinds in ``caught``
        that arose in our own code (``_is_ours``) becomes a ``RuleError``, which ``_refuse`` raises.
        """
        try:
            return inner(*args, **kwargs)
        except _RuleError:
            raise
        except caught as error:
            if not _is_ours(error):
                raise
            _refuse(
                "arguments", f"must fit together in {function.__name__} ({error})", (args, kwargs)
            )

    # ``call`` will see the globals of ``function``, so it takes these names of this module from
    # here.
    _refuse, _RuleError, _is_ours = fail, RuleError, _is_own_error
    return _under_name_of(function, call)


def check_arguments(module: str) -> dict[str, Callable[..., Any]]:
    """Replace the public functions of a module by ``checked`` ones, and wrap the methods of its
    public classes; the module calls it at its end.

    Args:
        module: the module's name.

    Returns:
        The replaced functions by name.
    """
    space, functions = vars(sys.modules[module]), {}
    for name, member in list(space.items()):
        if name.startswith("_") or getattr(member, "__module__", None) != module:
            continue
        if inspect.isfunction(member):
            space[name] = functions[name] = checked(member)
        elif inspect.isclass(member) and not issubclass(member, BaseException):
            checked_class(member, checked)
    return functions


def check_package(package: str) -> None:
    """``check_arguments`` for every module of a package that its ``__init__`` has imported, and for
    the names that the package itself took from them; call it at the end of ``__init__``.

    Modules that import functions from each other keep the unchecked ones, which cost nothing.
    """
    space = vars(sys.modules[package])
    for module in [name for name in sys.modules if name.startswith(package + ".")]:
        functions = check_arguments(module)
        space.update({name: functions[name] for name in functions if name in space})
