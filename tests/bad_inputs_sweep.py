"""Feed bad values to every public function and class of the package, with arguments that its own example uses.

Each public callable has an example that runs as a doctest. This module runs the examples, keeps the arguments of each
callable's first call, and repeats the call with one argument at a time replaced by each value of ``bad_values``::

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
import sys
import tempfile
import types
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from bad_values import bad_values, outcome

#: Rooms without public functions for a caller's own arguments, and JAX, which no alarm may interrupt.
LEFT_OUT = ("mindgap.cli", "mindgap.lab.studies.catalogue", "mindgap.rules.fused", "mindgap.adapters",
            "mindgap.__main__", "mindgap.bilevel.compiled", "mindgap.bilevel.jax_oracle")
#: Errors that belong to a contract: a missing package, and missing or damaged files.
#: Legal calls on large data.
LARGE = tuple(f"{name}(rows = None)" for name in ("covtype", "covtype_selection", "ijcnn1", "ijcnn1_selection"))
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


Call = tuple[Callable[..., Any], dict[str, Any]]


def first_calls(module: types.ModuleType) -> dict[str, Call]:
    """Public callables that a module defines, with the arguments of the first call that worked in its examples."""
    calls: dict[str, Call] = {}
    own = {
        name: thing for name, thing in vars(module).items()
        if not name.startswith("_") and callable(thing) and getattr(thing, "__module__", "") == module.__name__
        and not (inspect.isclass(thing) and (issubclass(thing, BaseException) or inspect.isabstract(thing)))
    }

    def recorded(name: str, function: Callable[..., Any], signature: inspect.Signature) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            kept = copy.deepcopy((args, kwargs)) if name not in calls else None
            result = function(*args, **kwargs)
            if kept is not None:
                bound = signature.bind(*kept[0], **kept[1])
                calls.setdefault(name, (function, dict(bound.arguments)))
            return result

        return call

    undo: list[Callable[[], None]] = []
    for name, thing in own.items():
        with contextlib.suppress(ValueError, TypeError):
            if inspect.isfunction(thing):
                setattr(module, name, recorded(name, thing, inspect.signature(thing)))
                undo.append(functools.partial(setattr, module, name, thing))
            elif inspect.isclass(thing):
                for key, method in list(vars(thing).items()):
                    if inspect.isfunction(method) and (key == "__init__" or not key.startswith("_")):
                        setattr(thing, key, recorded(f"{name}.{key}", method, inspect.signature(method)))
                        undo.append(functools.partial(setattr, thing, key, method))
    try:
        flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
        runner = doctest.DocTestRunner(verbose=False, optionflags=flags)
        for test in doctest.DocTestFinder(exclude_empty=True).find(module, module.__name__):
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                runner.run(test, out=lambda text: None, clear_globs=False)
    finally:
        for back in reversed(undo):
            back()
    return calls


def sweep(packages: list[str], *, seconds: float = 5.0, only: int | None = None) -> tuple[int, list[str], list[str]]:
    """(calls made, faults, callables without an example); ``only`` takes that many values per parameter."""
    tried, faults, silent = 0, [], []
    values = list(bad_values())
    for module in modules(packages):
        calls = first_calls(module)
        for name, thing in vars(module).items():
            if (inspect.isfunction(thing) and not name.startswith("_") and thing.__module__ == module.__name__
                    and name not in calls):
                silent.append(f"{module.__name__}.{name}")
        for name, (function, arguments) in calls.items():
            for parameter in [p for p in arguments if p != "self"]:
                # The values move on with every parameter, so that a part of the sweep meets all of them.
                chosen = values if only is None else [values[(tried + i) % len(values)] for i in range(only)]
                for label in chosen:

                    def call(function=function, arguments=arguments, parameter=parameter, label=label) -> None:
                        changed = copy.deepcopy(arguments)
                        changed[parameter] = bad_values()[label]
                        inside = changed.pop("self", None)
                        starred = [p.name for p in inspect.signature(function).parameters.values()
                                   if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
                        if any(p in changed for p in starred):
                            return
                        function(**changed) if inside is None else function(inside, **changed)

                    said = outcome(call, seconds=seconds, allowed=(ModuleNotFoundError,))
                    tried += 1
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
    print(f"{tried} bad inputs, {len(faults)} foreign errors or hangs, {len(silent)} public functions without a call")
    return bool(faults)


if __name__ == "__main__":
    raise SystemExit(main())
