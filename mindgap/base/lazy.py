"""Public names that are loaded when they are first used, so that importing a wing costs nothing."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any


def lazy_names(
    package: str, where: Mapping[str, str] | None = None
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Make the ``__getattr__`` and ``__dir__`` of a package whose names live in its modules.

    Args:
        package: the package's ``__name__``; its names are those that its block ``if
            TYPE_CHECKING:`` imports.
        where: further names -> modules below the package that define them.

    Example:
        >>> get, names = lazy_names("mindgap.base", {"RuleError": "check"})
        >>> get("RuleError").__name__, names()
        ('RuleError', ['RuleError'])
        >>> get("Nothing")
        Traceback (most recent call last):
        AttributeError: module 'mindgap.base' has no attribute 'Nothing'
    """
    found = {**listed(package), **(where or {})}

    def __getattr__(name: str) -> Any:
        if name not in found:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{package}.{found[name]}"), name)

    def __dir__() -> list[str]:
        return sorted(found)

    return __getattr__, __dir__


def listed(package: str) -> dict[str, str]:
    """Name -> module, as the block for type checkers in the package's ``__init__`` imports them."""
    tree = ast.parse(Path(sys.modules[package].__file__ or "").read_text(encoding="utf-8"))
    blocks = (
        n.body
        for n in tree.body
        if isinstance(n, ast.If) and getattr(n.test, "id", "") == "TYPE_CHECKING"
    )
    imports = (n for body in blocks for n in body if isinstance(n, ast.ImportFrom) and n.module)
    return {
        alias.name: str(node.module).removeprefix(package + ".")
        for node in imports
        for alias in node.names
        if alias.name != "*"
    }
