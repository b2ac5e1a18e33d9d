"""Find modules that import each other, directly or around several corners.

    python docs/tools/module_cycles.py

Every import counts: those inside functions and those for type checkers too. ``make lint`` runs it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

import grimp

ROOT = Path(__file__).parents[2]


def cycles(imports: Mapping[str, Iterable[str]]) -> list[list[str]]:
    """The groups of modules in which each reaches each other by imports, largest first.

    Args:
        imports: module -> modules that it imports.

    Example:
        >>> cycles({"a": ["b"], "b": ["c"], "c": ["b"], "d": ["d"]})
        [['b', 'c'], ['d']]
    """
    order: dict[str, int] = {}
    lowest: dict[str, int] = {}
    path: list[str] = []
    found: list[list[str]] = []

    def visit(module: str) -> None:  # Tarjan's strongly connected components
        order[module] = lowest[module] = len(order)
        path.append(module)
        for other in sorted(imports.get(module, ())):
            if other not in order:
                visit(other)
                lowest[module] = min(lowest[module], lowest[other])
            elif other in path:
                lowest[module] = min(lowest[module], order[other])
        if lowest[module] == order[module]:
            group = path[path.index(module) :]
            del path[path.index(module) :]
            if len(group) > 1 or module in imports.get(module, ()):
                found.append(sorted(group))

    sys.setrecursionlimit(max(sys.getrecursionlimit(), 10 * len(imports) + 1000))
    for module in sorted(imports):
        if module not in order:
            visit(module)
    return sorted(found, key=lambda group: (-len(group), group))


def package_imports(package: str) -> dict[str, set[str]]:
    """Module -> modules of the package that it imports anywhere in its file."""
    graph = grimp.build_graph(package, cache_dir=None)
    return {name: set(graph.find_modules_directly_imported_by(name)) for name in graph.modules}


def main() -> int:
    sys.path.insert(0, str(ROOT))
    imports = package_imports("mindgap")
    found = cycles(imports)
    for group in found:
        print(f"{len(group)} modules import each other:")
        for module in group:
            print(f"  {module} -> {', '.join(sorted(imports[module] & set(group)))}")
    print(f"{len(imports)} modules, {len(found)} cycles")
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main())
