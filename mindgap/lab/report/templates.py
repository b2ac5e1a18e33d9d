"""The page's templates and files, with everything that comes from a record escaped."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from markupsafe import Markup

from mindgap.lab.report.headline import headline
from mindgap.lab.report.words import count, plain, typeset
from mindgap.record.schema import RecordError
from mindgap.record.store import write_atomically


def asset(name: str) -> Markup:
    """A style sheet or script of the folder ``assets``; it is not escaped."""
    folder = resources.files("mindgap.lab.report") / "assets"
    return Markup((folder / name).read_text(encoding="utf-8"))


def write_drawn(draw: Callable[[Any], str], content: Any, source: Path, out: Path) -> Path:
    """Write the page that ``draw`` makes of a file's content; an interrupted call leaves no
    half-written file.

    Args:
        draw: takes the content, returns the page.
        content: what was read.
        source: the file it was read from, which an error names.
        out: where the page goes.

    Raises:
        RecordError: the content cannot be drawn; a file may be made up, so that any of its fields
            may be anything.
    """
    try:
        page = draw(content)
    except Exception as error:
        raise RecordError(
            f"{source} must be whole, got a field that cannot be drawn "
            f"({type(error).__name__}: {error})"
        ) from error
    write_atomically(Path(out), page)
    return Path(out)


@cache
def template(name: str) -> Any:
    """A template by name; every value in it is escaped unless it is :class:`~markupsafe.Markup`."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("mindgap.lab.report", "assets"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {  # by the names that the templates use
        "typeset": typeset,
        "measured": lambda text: typeset(text, digits=True),
        "plain": plain,
        "count": count,
        "headline": headline,
    }
    return environment.get_template(name)
