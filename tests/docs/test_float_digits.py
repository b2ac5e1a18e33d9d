"""No test, doctest or document compares the last digits of a computed float: they differ
between CPUs.
"""

from __future__ import annotations

import ast
import doctest
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: A literal with more digits than this says what one machine printed, not what the formula gives.
MOST_DIGITS = 12
NUMBER = re.compile(r"(?<![\w.])\d+\.\d+(?:[eE][+-]?\d+)?")
FOLDERS = ("mindgap", "tests", "examples", "benchmarks")


def digits(text: str) -> int:
    """Significant digits of a decimal number as it is written."""
    return len(re.sub(r"[eE].*", "", text).replace(".", "").lstrip("0"))


def comparisons(source: str) -> Iterator[tuple[int, str]]:
    """(line, literal) for each long float that ``==``, ``!=`` or ``in`` compares outside a call
    such as ``approx``.
    """
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Compare) and any(
            isinstance(op, (ast.Eq, ast.NotEq, ast.In)) for op in node.ops
        ):
            todo: list[ast.AST] = [node.left, *node.comparators]
            while todo:
                part = todo.pop()
                if isinstance(part, ast.Constant) and isinstance(part.value, float):
                    literal = ast.get_source_segment(source, part) or ""
                    if digits(literal) > MOST_DIGITS:
                        yield part.lineno, literal
                elif not isinstance(part, ast.Call):
                    todo.extend(ast.iter_child_nodes(part))


def in_doctests(text: str) -> list[str]:
    """Offences of the doctests in a text, as ``line: literal``: what they compare and what they
    print.
    """
    found = []
    for example in doctest.DocTestParser().get_examples(text):
        at = example.lineno + 1
        found += [f"{at}: {literal}" for _, literal in comparisons(example.source)]
        found += [
            f"{at}: {literal}"
            for literal in NUMBER.findall(example.want)
            if digits(literal) > MOST_DIGITS
        ]
    return found


def docstrings(source: str) -> str:
    """The source without code, each docstring on its own lines, so that doctests are read where
    pytest reads them.
    """
    lines = [""] * (source.count("\n") + 1)
    for node in ast.walk(ast.parse(source)):
        if (
            isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef))
            and ast.get_docstring(node) is not None
        ):
            constant = node.body[0]
            assert isinstance(constant, ast.Expr)
            for i in range(constant.lineno - 1, constant.end_lineno or constant.lineno):
                lines[i] = source.splitlines()[i].replace('"""', "   ")
    return "\n".join(lines)


def offences(path: Path) -> list[str]:
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        return in_doctests(text)
    return [f"{line}: {literal}" for line, literal in comparisons(text)] + in_doctests(
        docstrings(text)
    )


@pytest.mark.parametrize("folder", [*FOLDERS, "docs"])
def test_no_file_compares_the_last_digits_of_a_float(folder: str) -> None:
    paths = [p for kind in ("*.py", "*.md") for p in sorted((ROOT / folder).rglob(kind))]
    assert paths
    assert {str(p.relative_to(ROOT)): found for p in paths if (found := offences(p))} == {}


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("assert f() == [0.00500000" + "0000000001]", 1),
        ("assert f() == approx(0.005000000" + "0000000001)", 0),
        ("x = 0.005000000" + "0000000001", 0),
        ("assert round(f(), 6) == 0.005", 0),
        ('def f():\n    """One.\n\n    >>> f()\n    (0.0999999999' + '9999999, 1)\n    """', 1),
        ('def f():\n    """One.\n\n    >>> f() == 0.3333333333' + '333333\n    True\n    """', 1),
        ('def f():\n    """One.\n\n    >>> round(f(), 6)\n    0.333333\n    """', 0),
    ],
)
def test_the_check_finds_what_it_is_for(tmp_path: Path, source: str, found: int) -> None:
    path = tmp_path / "example.py"
    path.write_text(source, encoding="utf-8")
    assert len(offences(path)) == found
