"""Public names that are loaded when they are first used, so that importing a package costs nothing.

A package writes each public name twice, as plain data: imported under ``if TYPE_CHECKING:`` for
type checkers and editors, and in the table ``_WHERE`` for Python. ``docs/tools/public_names.py``
writes the table from the imports, and a test checks that both agree.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


class Loadable:
    """A row of a table that names a class by its module, so that the table imports no torch."""

    module: str
    class_name: str

    def load(self) -> Any:
        """The class; its module is imported now."""
        return getattr(import_module(self.module), self.class_name)


def lazy_names(
    package: str, module_of: Mapping[str, str], modules: tuple[str, ...] = ()
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Make the ``__getattr__`` and ``__dir__`` (PEP 562) of a package whose names live in its
    modules.

    Args:
        package: the package's ``__name__``.
        module_of: public name -> module that defines it, below the package or with its whole path
            (``mindgap.base.check``).
        modules: modules of the package that are public names themselves.

    Example:
        >>> get, names = lazy_names("mindgap.base", {"RuleError": "check"}, ("rng",))
        >>> get("RuleError").__name__, get("rng").__name__, names()
        ('RuleError', 'mindgap.base.rng', ['RuleError', 'rng'])
        >>> get("Nothing")
        Traceback (most recent call last):
        AttributeError: module 'mindgap.base' has no attribute 'Nothing'
    """

    def __getattr__(name: str) -> Any:
        """What a public name stands for, whose module is imported now. Python calls this for a
        name that the package does not have yet.
        """
        if name in module_of:
            module = module_of[name]
            whole_path = module if module.startswith("mindgap.") else f"{package}.{module}"
            return getattr(import_module(whole_path), name)
        if name in modules:
            return import_module(f"{package}.{name}")
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        """All public names, loaded or not."""
        return sorted((*module_of, *modules))

    return __getattr__, __dir__
