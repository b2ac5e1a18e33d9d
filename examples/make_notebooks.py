"""Write every example of this folder as a notebook beside it: ``make notebooks``."""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path

FOLDER = Path(__file__).parent


def notebook(source: str) -> dict:
    """The docstring becomes a cell of text, the imports one cell of code, everything after them
    one cell per block.
    """
    tree = ast.parse(source)
    lines = source.splitlines()
    text = ast.get_docstring(tree) or ""
    body = tree.body[1:] if text else tree.body
    cells = [("markdown", text.replace("::\n", ":\n"))]
    imports = [n for n in body if isinstance(n, (ast.Import, ast.ImportFrom))]
    for group in [imports, *([n] for n in body if n not in imports)]:
        if group:
            first = min(
                [group[0].lineno, *(d.lineno for d in getattr(group[0], "decorator_list", []))]
            )
            cells.append(("code", "\n".join(lines[first - 1 : group[-1].end_lineno])))
    made = []
    for number, (kind, content) in enumerate(cells):
        cell = {
            "cell_type": kind,
            "id": f"cell-{number}",
            "metadata": {},
            "source": content.splitlines(keepends=True),
        }
        made.append({**cell, "execution_count": None, "outputs": []} if kind == "code" else cell)
    kernel = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    return {"cells": made, "metadata": kernel, "nbformat": 4, "nbformat_minor": 5}


def main(out: Path) -> None:
    for path in sorted(FOLDER.glob("*.py")):
        if path.name != Path(__file__).name:
            target = out / path.with_suffix(".ipynb").name
            made = notebook(path.read_text(encoding="utf-8"))
            target.write_text(
                json.dumps(made, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
            )
            print(target)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
