"""Write every example of this folder as a notebook beside it: ``make notebooks``.

``python examples/make_notebooks.py FOLDER --run NAME ...`` also runs the named ones and keeps what
they print, as in ``docs/notebooks``.
"""

from __future__ import annotations

import ast
import contextlib
import io
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


def run(made: dict, name: str) -> None:
    """Run the cells one after the other and keep what each prints."""
    scope: dict = {"__name__": name}
    number = 0
    for cell in made["cells"]:
        if cell["cell_type"] == "code":
            number += 1
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec(compile("".join(cell["source"]), f"{name}, cell {number}", "exec"), scope)
            cell["execution_count"] = number
            text = printed.getvalue().splitlines(keepends=True)
            stream = {"output_type": "stream", "name": "stdout", "text": text}
            cell["outputs"] = [stream] if text else []


def main(out: Path, names: list[str]) -> None:
    """Write all examples, or run and write those that are named."""
    for path in sorted(FOLDER.glob("*.py")):
        if path.name != Path(__file__).name and (not names or path.stem in names):
            target = out / path.with_suffix(".ipynb").name
            made = notebook(path.read_text(encoding="utf-8"))
            if names:
                sys.argv = [str(path)]
                run(made, path.stem)
            target.write_text(
                json.dumps(made, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
            )
            print(target)


if __name__ == "__main__":
    place, _, *named = [*sys.argv[1:], "", ""] if len(sys.argv) < 4 else sys.argv[1:]
    main(Path(place) if place else FOLDER, [name for name in named if name])
