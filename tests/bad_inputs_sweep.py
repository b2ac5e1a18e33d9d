"""Feed bad values to every public function and class of the package, with arguments that its own
example uses.

Public is what the ``__init__`` of a package offers, and what a code block of the README, the
documents or the examples imports. Everything else serves other modules of this package: its callers
are our own, and it may trust them.

Each public callable has an example that runs as a doctest. This module runs the examples, keeps the
arguments of each callable's first call, and repeats the call with one parameter at a time set to
each value of ``bad_values``, parameters that the example leaves at their defaults included::

    python tests/bad_inputs_sweep.py                  # all rooms; prints counts, and each fault
    python tests/bad_inputs_sweep.py mindgap.lab.theory mindgap.optim
"""

from __future__ import annotations

import contextlib
import copy
import doctest
import functools
import inspect
import io
import os
import pkgutil
import re
import sys
import tempfile
import types
from collections.abc import Callable, Collection, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from bad_values import bad_values, outcome

#: Rooms without public functions for a caller's own arguments, and JAX, which no alarm may
#: interrupt.
LEFT_OUT = (
    "mindgap.cli",
    "mindgap.lab.studies.catalogue",
    "mindgap.rules.fused",
    "mindgap.adapters",
    "mindgap.__main__",
    "mindgap.bilevel.backends.compiled",
    "mindgap.bilevel.backends.jax_oracle",
)
#: Methods by which our own modules call each other in loops: those of optimizers, oracles, data,
#: steps and methods.
HOOKS = (
    "fused_record",
    "loss",
    "system",
    "fetch",
    "draw",
    "direction",
    "init",
    "plan",
    "rates",
    "update",
    "prepare",
    "starts",
)
#: Callables that take more than the usual time when they are called as they should be.
SLOW = ("recommend", "solve", "survey", "examine")
#: Legal calls on large data, and races that take their 10 minutes or run eight methods.
LARGE = (
    *(
        f"{name}(rows = None)"
        for name in ("covtype", "covtype_selection", "ijcnn1", "ijcnn1_selection")
    ),
    "race(calls = None)",
    "race(methods = None)",
)
#: Errors that belong to a contract: missing or damaged files, an oracle that has answered often
#: enough.
ALLOWED_NAMES = ("DataError", "RecordError", "OutOfCalls")


def modules(packages: list[str]) -> Iterator[types.ModuleType]:
    """The modules below some packages."""
    for package in packages:
        root = import_module(package)
        yield root
        for info in pkgutil.walk_packages(getattr(root, "__path__", []), package + "."):
            if not info.name.startswith(LEFT_OUT):
                with contextlib.suppress(ImportError):
                    yield import_module(info.name)


ROOT = Path(__file__).parents[1]


@functools.cache
def public() -> frozenset[tuple[str, str]]:
    """(module, name) of every public function and class."""
    import mindgap

    things = []
    for info in pkgutil.walk_packages(mindgap.__path__, "mindgap."):
        if info.ispkg and not info.name.startswith(LEFT_OUT):
            package = import_module(info.name)
            names = (
                vars(package)["__dir__"]() if "__dir__" in vars(package) else list(vars(package))
            )
            things += [getattr(package, name) for name in names if not name.startswith("_")]
    for document in (
        ROOT / "README.md",
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "examples").glob("*.py"),
    ):
        for module, names in re.findall(
            r"from (mindgap[\w.]*) import \(?([\w, \n]+)", document.read_text("utf-8")
        ):
            with contextlib.suppress(ImportError):
                found = vars(import_module(module))
                things += [found[name] for name in re.split(r"[,\s]+", names) if name in found]
    return frozenset(
        (thing.__module__, thing.__name__)
        for thing in things
        if inspect.isfunction(thing) or inspect.isclass(thing)
    )


Call = tuple[Callable[..., Any], dict[str, Any]]


def first_calls(module: types.ModuleType, offered: Collection[tuple[str, str]]) -> dict[str, Call]:
    """Those callables that a module defines, with the arguments of the first call that worked
    in its examples.
    """
    calls: dict[str, Call] = {}
    own = {
        name: thing
        for name, thing in list(vars(module).items())
        if (module.__name__, name) in offered
        and getattr(thing, "__module__", "") == module.__name__
        and not (
            inspect.isclass(thing)
            and (issubclass(thing, BaseException) or inspect.isabstract(thing))
        )
    }

    def recorded(
        name: str, function: Callable[..., Any], made: type | None = None
    ) -> Callable[..., Any]:
        """The function, or the ``__init__`` of the class ``made``, with its first call kept in
        ``calls``.
        """
        called = made or function
        signature = inspect.signature(called)

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            # An object that is being made cannot be copied.
            kept = copy.deepcopy((args[made is not None :], kwargs)) if name not in calls else None
            result = function(*args, **kwargs)
            if kept is not None and (made is None or type(args[0]) is made):
                bound = signature.bind(*kept[0], **kept[1])
                calls.setdefault(name, (called, dict(bound.arguments)))
            return result

        return call

    undo: list[Callable[[], None]] = []
    for name, thing in own.items():
        with contextlib.suppress(ValueError, TypeError):
            if inspect.isfunction(thing):
                setattr(module, name, recorded(name, thing))
                undo.append(functools.partial(setattr, module, name, thing))
            elif inspect.isclass(thing):
                for key, method in list(vars(thing).items()):
                    if (
                        inspect.isfunction(method)
                        and key not in HOOKS
                        and (key == "__init__" or key[0] != "_")
                    ):
                        one = (
                            recorded(name, method, thing)
                            if key == "__init__"
                            else recorded(f"{name}.{key}", method)
                        )
                        setattr(thing, key, one)
                        undo.append(functools.partial(setattr, thing, key, method))
    try:
        flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
        runner = doctest.DocTestRunner(verbose=False, optionflags=flags)
        for test in doctest.DocTestFinder(exclude_empty=True).find(module, module.__name__):
            with (
                contextlib.redirect_stdout(io.StringIO()),
                contextlib.redirect_stderr(io.StringIO()),
            ):
                runner.run(test, out=lambda text: None, clear_globs=False)
    finally:
        for back in reversed(undo):
            back()
    return calls


def sweep(
    packages: list[str],
    *,
    seconds: float = 5.0,
    only: int | None = None,
    offered: Collection[tuple[str, str]] | None = None,
) -> tuple[int, list[str], list[str]]:
    """(calls made, faults, callables without an example); ``only`` takes that many values per
    parameter.
    """
    tried, faults, silent = 0, [], []
    offered = public() if offered is None else offered
    values = list(bad_values())
    for module in modules(packages):
        calls = first_calls(module, offered)
        for name, thing in list(vars(module).items()):
            own = (
                getattr(thing, "__module__", "") == module.__name__
                and (module.__name__, name) in offered
            )
            if inspect.isfunction(thing) and own and name not in calls:
                silent.append(f"{module.__name__}.{name}")
        for name, (function, arguments) in calls.items():
            every = inspect.signature(function).parameters.values()
            settable = [p.name for p in every if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
            for parameter in [p for p in settable if p != "self"]:
                # The values move on with every parameter, so that a part of the sweep meets all of
                # them.
                chosen = (
                    values
                    if only is None
                    else [values[(tried + i) % len(values)] for i in range(only)]
                )
                for label in chosen:

                    def call(
                        function=function, arguments=arguments, parameter=parameter, label=label
                    ) -> None:
                        changed = copy.deepcopy(arguments)
                        changed[parameter] = bad_values()[label]
                        signature = inspect.signature(function)
                        bound = signature.bind_partial()
                        bound.arguments |= {
                            name: changed[name] for name in signature.parameters if name in changed
                        }
                        function(*bound.args, **bound.kwargs)

                    said = outcome(
                        call,
                        seconds=seconds * (20 if name in SLOW else 1),
                        allowed=(ModuleNotFoundError,),
                    )
                    tried += 1
                    called = callable(arguments.get(parameter)) or "Callable" in str(
                        inspect.signature(function).parameters[parameter].annotation
                    )
                    if label in ("function", "class") and called:
                        continue  # what a caller's own function raises is the caller's
                    if f"{name}({parameter} = {label})" in LARGE and said.startswith("hang"):
                        continue
                    if said not in ("accepted", "refused") and not said.startswith(ALLOWED_NAMES):
                        faults.append(f"{module.__name__}.{name}({parameter} = {label}): {said}")
    return tried, faults, silent


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)  # "abc" is a legal path
        tried, faults, silent = sweep(sys.argv[1:] or ["mindgap"])
    print("\n".join(faults))
    print(
        f"{tried} bad inputs, {len(faults)} foreign errors or hangs, {len(silent)} public "
        "functions without a call"
    )
    return bool(faults)


if __name__ == "__main__":
    raise SystemExit(main())
