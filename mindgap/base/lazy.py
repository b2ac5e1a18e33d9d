"""Public names that are loaded when they are first used, so that importing a wing costs nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy_names(package: str, where: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Make the ``__getattr__`` and ``__dir__`` of a package whose names live in its modules.

    Args:
        package: the package's ``__name__``.
        where: public name -> module below the package that defines it.

    Example:
        >>> get, names = lazy_names("mindgap.base", {"RuleError": "check"})
        >>> get("RuleError").__name__, names()
        ('RuleError', ['RuleError'])
        >>> get("Nothing")
        Traceback (most recent call last):
        AttributeError: module 'mindgap.base' has no attribute 'Nothing'
    """

    def __getattr__(name: str) -> Any:
        if name not in where:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{package}.{where[name]}"), name)

    def __dir__() -> list[str]:
        return sorted(where)

    return __getattr__, __dir__
