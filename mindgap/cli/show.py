"""How the program prints: tables and bars on a terminal, tab-separated lines and silence
elsewhere.
"""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

VERDICT_STYLE = {
    "holds": "green",
    "does not hold": "red",
    "undecided": "yellow",
    "not trained": "yellow",
    "error": "red",
}


class Advance(Protocol):
    """Move a progress bar on by one, or to a share of the whole, saying what was just finished."""

    def __call__(self, text: str = "", share: float | None = None) -> None: ...


def one_line(value: object) -> str:
    r"""A text in one line without control characters: a name in a record must not steer the
    terminal.

    Example:
        >>> one_line("a\x1b[31mb\n c")
        'a\\x1b[31mb c'
    """
    text = " ".join(str(value).split())
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)


#: Columns of a terminal that the last column of a table keeps; with less room the rows become
#: blocks of lines.
LEAST = 28


def table(
    columns: Sequence[str], rows: Iterable[Sequence[object]], *, shorten: int | None = None
) -> None:
    """Print rows: for people on a terminal, one tab-separated line per row (no header) elsewhere.

    A terminal shows aligned columns where they fit. Where they do not, each row becomes a block:
    its first cell as a heading, one paragraph per further cell. Nothing is cut except in the column
    named by ``shorten``.

    Args:
        shorten: number of the column that may lose its end, so that each row stays one line.
    """
    cells = [[one_line(cell) for cell in row] for row in rows]
    if not sys.stdout.isatty():
        for row in cells:
            print("\t".join(row))
        return
    from rich.console import Console

    console = Console(highlight=False)
    for line, style in layout(columns, cells, console.width, shorten=shorten):
        console.print(line, style=style, markup=False, soft_wrap=True)


def layout(
    columns: Sequence[str], rows: Sequence[Sequence[str]], width: int, *, shorten: int | None = None
) -> Iterator[tuple[str, str]]:
    """Yield the lines of a table and the style of each: a heading and aligned columns, of which the
    last one is wrapped. Where the last column has no room, each row becomes a block of lines.

    Args:
        width: columns of the terminal.
        shorten: number of the column that may lose its end.

    Example:
        >>> [line for line, _ in layout(("name", "text"), [("a", "b c")], 40)]
        ['name  text', 'a     b c']
        >>> [line for line, _ in layout(("name", "text"), [("a", "b " * 12)], 20)]
        ['a', '  text: b b b b b b', '    b b b b b b', '']
    """
    widths = [max(cell_len(row[i]) for row in [columns, *rows]) for i in range(len(columns))]
    if shorten is not None:
        other_columns = sum(w + 2 for i, w in enumerate(widths) if i != shorten)
        # What the other columns leave, but never less than eight columns of the terminal.
        widths[shorten] = max(8, min(widths[shorten], width - other_columns))
    # Room for the last column, whose text is wrapped; two blanks stand between columns.
    room = width - sum(widths[:-1]) - 2 * (len(widths) - 1)
    if room >= min(LEAST, widths[-1]):
        yield _row(columns, widths[:-1], [columns[-1]], 0), "bold"
        for row in rows:
            cells = [
                _shortened(cell, widths[i]) if i == shorten else cell for i, cell in enumerate(row)
            ]
            style = next((VERDICT_STYLE[cell] for cell in cells if cell in VERDICT_STYLE), "")
            last_lines = _wrap(cells[-1], room)
            for number in range(len(last_lines)):
                yield _row(cells, widths[:-1], last_lines, number), style
        return
    # No room: a block of lines per row.
    for row in rows:
        style = next((VERDICT_STYLE[cell] for cell in row if cell in VERDICT_STYLE), "")
        yield row[0], f"bold {style}".strip()
        for name, cell in zip(columns[1:], row[1:]):
            if cell:
                for line in _wrap(f"{name}: {cell}" if name else cell, width - 2, indent="  "):
                    yield f"  {line}", ""
        yield "", ""


def _row(
    cells: Sequence[str], widths: Sequence[int], last_lines: Sequence[str], number: int
) -> str:
    """One line of a row: all cells on its first line, the rest of the last column below.

    Args:
        widths: of all columns but the last.
        last_lines: the wrapped text of the last column.
        number: of the line, from 0.
    """
    cells_here = cells if number == 0 else [""] * len(cells)
    padded = [cell + " " * (w - cell_len(cell)) for cell, w in zip(cells_here, widths)]
    return "  ".join([*padded, last_lines[number]]).rstrip()


def _shortened(cell: str, width: int) -> str:
    """A text cut to a width, with an ellipsis at its end."""
    return cell if cell_len(cell) <= width else f"{cell[: width - 1].rstrip()}…"


def _wrap(cell: str, width: int, indent: str = "") -> list[str]:
    """Lines that end between words: a name or a piece of code is never cut, even where it is
    too long.
    """
    lines = textwrap.wrap(
        cell, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
    return lines or [""]


def cell_len(text: str) -> int:
    """Columns that a text takes on a terminal."""
    from rich.cells import cell_len as columns_of

    return columns_of(text)


def point_to(page: Path, *, then: str = "") -> None:
    """Say where a page lies, as a link that a terminal opens, and the next command."""
    print(page)
    say(f"Open {page.resolve().as_uri()}" + (f"\nNext: {then}" if then else ""))


def paragraph(text: str) -> None:
    """Print prose: wrapped between words on a terminal, in one line elsewhere."""
    if not sys.stdout.isatty():
        print(text)
        return
    from rich.console import Console

    print("\n".join(_wrap(text, Console().width, indent="  " if text.startswith("- ") else "")))


def duration_words(seconds: float) -> str:
    """A time as people say it.

    Example:
        >>> duration_words(42.3), duration_words(125), duration_words(7300)
        ('42 s', '2 min 5 s', '2 h 1 min')
    """
    whole_seconds = round(seconds)
    if whole_seconds < 60:
        return f"{whole_seconds} s"
    if whole_seconds < 3600:
        return f"{whole_seconds // 60} min {whole_seconds % 60} s"
    return f"{whole_seconds // 3600} h {whole_seconds % 3600 // 60} min"


def rough_duration_words(seconds: float | None) -> str:
    """A rough time, in few letters.

    Example:
        >>> (
        ...     rough_duration_words(42.3),
        ...     rough_duration_words(130),
        ...     rough_duration_words(9000),
        ...     rough_duration_words(None),
        ... )
        ('42 s', '2 min', '2.5 h', '')
    """
    if seconds is None:
        return ""
    if seconds >= 3600:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 60:.0f} min" if seconds >= 60 else f"{seconds:.0f} s"


def say(text: str) -> None:
    """Sentences for a person, one per line: on the error stream, and only on a terminal, so that
    output stays machine-readable. Lines to copy, which begin with Open or Next, are not broken.
    """
    if not sys.stderr.isatty():
        return
    width = shutil.get_terminal_size().columns
    for line in text.split("\n"):
        is_copied = line.startswith(("Open ", "Next: "))
        print(line if is_copied else "\n".join(_wrap(line, width)) or line, file=sys.stderr)


@contextmanager
def progress(title: str, total: int) -> Iterator[Advance]:
    """Show a bar with the time left on the error stream while the body runs, and yield the function
    that moves it on (:class:`Advance`). Nothing is shown where that stream is no terminal.

    Args:
        total: steps of the whole; 0: no bar.
    """
    if not sys.stderr.isatty() or total == 0:
        yield lambda text="", share=None: None
        return
    from rich import progress as rich
    from rich.console import Console
    from rich.text import Text

    class Remaining(rich.TimeRemainingColumn):
        """The time left, from a fiftieth of the whole on: the first steps tell nothing of it."""

        def render(self, task: rich.Task) -> Text:
            early = task.completed < (task.total or 0) / 50
            return Text("-:--:--", style="progress.remaining") if early else super().render(task)

    say(title)
    bar = (
        rich.BarColumn(10),
        rich.MofNCompleteColumn(),
        rich.TimeElapsedColumn(),
        rich.TextColumn("left"),
        Remaining(),
        rich.TextColumn("{task.fields[last]}"),
    )
    with rich.Progress(*bar, console=Console(stderr=True)) as bars:
        task = bars.add_task("", total=total, last="")

        def advance(text: str = "", share: float | None = None) -> None:
            """Move the bar of ``task`` on by one or to a share, with a text behind it."""
            bars.update(
                task,
                completed=bars.tasks[0].completed + 1 if share is None else share * total,
                last=text,
            )

        yield advance
