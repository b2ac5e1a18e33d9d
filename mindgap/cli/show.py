"""How the program prints: rich tables and bars on a terminal, tab-separated lines and silence elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

VERDICT_STYLE = {"holds": "green", "does not hold": "red", "inconclusive": "yellow"}


class Advance(Protocol):
    """Move a progress bar on, saying what was just finished."""

    def __call__(self, text: str = "") -> None: ...


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, title: str = "") -> None:
    """Print a table: for people on a terminal, one tab-separated line a row (no header) elsewhere."""
    if not sys.stdout.isatty():
        for row in rows:
            print("\t".join(" ".join(str(cell).split()) for cell in row))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    drawn = Table(*columns, title=title or None, title_justify="left", show_lines=False)
    for row in rows:
        drawn.add_row(*(Text(str(cell), style=VERDICT_STYLE.get(str(cell), "")) for cell in row))
    Console().print(drawn)


def say(text: str) -> None:
    """A sentence for a person: on the error stream, and only on a terminal, so that output stays machine-readable."""
    if sys.stderr.isatty():
        print(text, file=sys.stderr)


@contextmanager
def progress(title: str, total: int) -> Iterator[Advance]:
    """A bar with the time left, on the error stream; nothing when that is no terminal."""
    if not sys.stderr.isatty() or total == 0:
        yield lambda text="": None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[last]}"),
    )
    with Progress(*columns, console=Console(stderr=True)) as bars:
        task = bars.add_task(title, total=total, last="")
        yield lambda text="": bars.update(task, advance=1, last=text)
