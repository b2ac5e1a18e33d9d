"""Write the tables of public names from what the packages import for type checkers.

    python docs/tools/public_names.py

A package with lazy names writes each name under ``if TYPE_CHECKING:`` and, for Python, in the
tables ``_WHERE`` (name -> module below the package) and ``_MODULES`` (modules that are names
themselves). Add a name to the imports, run this tool, and the tables follow. A test checks that
they agree.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "mindgap"


def rooms() -> dict[str, Path]:
    """Package -> its ``__init__.py``, for every package with lazy names."""
    found = {}
    for path in sorted(PACKAGE.rglob("__init__.py")):
        if "lazy_names(" in path.read_text(encoding="utf-8"):
            found[".".join(path.parent.relative_to(ROOT).parts)] = path
    return found


def imported(package: str, text: str) -> tuple[dict[str, str], tuple[str, ...]]:
    """What the block ``if TYPE_CHECKING:`` imports: name -> module, and modules."""
    where: dict[str, str] = {}
    modules: list[str] = []
    for node in _block(text).body:
        if not isinstance(node, ast.ImportFrom):
            continue
        for alias in node.names:
            if alias.asname != alias.name:
                raise ValueError(f"{package}: write 'import {alias.name} as {alias.name}'")
            if node.module == package:
                modules.append(alias.name)
            else:
                where[alias.name] = str(node.module).removeprefix(package + ".")
    return dict(sorted(where.items())), tuple(sorted(modules))


def tables(text: str) -> tuple[dict[str, str], tuple[str, ...]]:
    """What the block for Python lists: ``_WHERE`` and ``_MODULES``."""
    found = {
        node.targets[0].id: ast.literal_eval(node.value)
        for node in _block(text).orelse
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and node.targets[0].id in ("_WHERE", "_MODULES")
    }
    return found.get("_WHERE", {}), found.get("_MODULES", ())


def written(package: str, text: str) -> str:
    """The file with tables that follow from its imports; not formatted yet."""
    where, modules = imported(package, text)
    lines = "".join(f'        "{name}": "{module}",\n' for name, module in where.items())
    text = re.sub(
        r"^    _WHERE = \{.*?\}$",
        lambda _: f"    _WHERE = {{\n{lines}    }}",
        text,
        count=1,
        flags=re.MULTILINE | re.DOTALL,
    )
    listed = "".join(f'        "{name}",\n' for name in modules)
    return re.sub(
        r"^    _MODULES = \(.*?\)$",
        lambda _: f"    _MODULES = (\n{listed}    )",
        text,
        count=1,
        flags=re.MULTILINE | re.DOTALL,
    )


def _block(text: str) -> ast.If:
    for node in ast.parse(text).body:
        if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING":
            return node
    raise ValueError("no block 'if TYPE_CHECKING:'")


if __name__ == "__main__":
    for package, path in rooms().items():
        path.write_text(written(package, path.read_text(encoding="utf-8")), encoding="utf-8")
    subprocess.run(
        [sys.executable, "-m", "ruff", "format", *map(str, rooms().values())], check=True
    )
