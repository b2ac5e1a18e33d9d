"""The table of theorems: what is stated, where it is implemented, what was checked, how it came
out.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path

from mindgap.base.check import fail
from mindgap.base.source import Source


@dataclass(frozen=True)
class Theorem:
    """A statement of the papers that this library can run.

    Every field is text (or a :class:`~mindgap.base.source.Source`), so that the table can be
    printed without torch and without importing the code that it names.

    Example:
        >>> row = Theorem(
        ...     "Theorem 0",
        ...     "a sum",
        ...     "1 + 1 is 2",
        ...     "1 + 1 = 2",
        ...     "",
        ...     "builtins.sum",
        ...     "tests/x.py::test_sum",
        ...     "holds",
        ...     Source("thesis", "nowhere"),
        ... )
        >>> row.chapter, row.load()([1, 1])
        ('0', 2)
    """

    place: str  # where the statement stands, as the paper numbers it ("Theorem 3.4.1")
    title: str  # what it is about, in a few words
    statement: str  # the statement in one line
    formula: str  # the bound (or the identity) as plain text, in the paper's letters
    #: name of the record of constants that it needs, a public name of ``mindgap.lab.theory``; empty
    #: for a statement without constants.
    assumptions: str
    bounds: str  # dotted path of the function that computes the bound or builds the object
    checked_by: str  # the test (``tests/theory/test_x.py::test_y``) or the study that checks it
    outcome: str  # how the check came out, in words
    source: Source  # paper and place

    def __post_init__(self) -> None:
        for name in [field.name for field in fields(self) if field.name != "source"]:
            value = getattr(self, name)
            if not isinstance(value, str) or (not value and name != "assumptions"):
                fail(name, "must be a non-empty text", value)
            if "\n" in value:
                fail(name, "must be one line", value)

    @property
    def chapter(self) -> str:
        """The first number of the place: the thesis' chapter, or the theorem's number in the
        other papers.
        """
        # All but the digits becomes blanks: the numbers are left as words.
        digits = "".join(c if c.isdigit() else " " for c in self.place).split()
        return digits[0] if digits else ""

    @property
    def remarks(self) -> tuple[str, ...]:
        """What the errata say about it, made from their records.

        Example:
            >>> row = next(row for row in THEOREMS if row.place == "Section 3.3.1")
            >>> row.remarks
            ('loose (3.3.1): printed h_c/2 <= h_n <= 2h_c; h_c/2 <= h_n <= h_c',)
        """
        from mindgap.lab.theory.erratum import ERRATA

        return tuple(row.remark for row in ERRATA if row.theorem == self.place)

    @property
    def remark_kinds(self) -> tuple[str, ...]:
        """Kind and place of the errata, in short.

        Example:
            >>> next(row for row in THEOREMS if row.place == "Section 3.3.1").remark_kinds
            ('loose (3.3.1)',)
        """
        return tuple(remark.split(": printed ")[0] for remark in self.remarks)

    def load(self) -> object:
        """The function or class that ``bounds`` names; imports its module."""
        from importlib import import_module

        module, _, name = self.bounds.rpartition(".")
        return getattr(import_module(module), name)


def _read(text: str) -> tuple[Theorem, ...]:
    """The theorems in the text of ``theorems.txt``, in its order.

    The first block explains the file. Every later one is a theorem, in lines ``field: value``. Its
    code is named below ``mindgap.lab.theory``, its tests below ``tests/lab/theory``.
    """
    rows = []
    for block in text.split("\n\n")[1:]:
        row = dict(line.split(": ", 1) for line in block.strip().splitlines())
        paper, _, place = row.pop("source").partition(": ")
        # Studies are named as they are, tests by their file below the folder of tests.
        checks = [
            check if check.startswith("study") else "tests/lab/theory/" + check
            for check in row.pop("checked by").split("; ")
        ]
        row["bounds"] = f"mindgap.lab.theory.{row['bounds']}"
        row.setdefault("assumptions", "")
        rows.append(Theorem(**row, checked_by="; ".join(checks), source=Source(paper, place)))
    return tuple(rows)


#: In the thesis' order; a statement of the first version (acclip) stands with the chapter that it
#: became.
THEOREMS: tuple[Theorem, ...] = _read(
    Path(__file__).with_name("theorems.txt").read_text(encoding="utf-8")
)
