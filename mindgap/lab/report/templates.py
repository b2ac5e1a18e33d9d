"""The page's templates and files, with everything that comes from a record escaped."""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Any

from markupsafe import Markup

from mindgap.lab.report.headline import headline
from mindgap.lab.report.words import count, plain, typeset


def asset(name: str) -> Markup:
    """A style sheet or script of the folder ``assets``; it is not escaped."""
    file = resources.files("mindgap.lab.report") / "assets" / name
    return Markup(file.read_text(encoding="utf-8"))


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
    environment.filters |= {
        "typeset": typeset,
        "measured": lambda text: typeset(text, digits=True),
        "plain": plain,
        "count": count,
        "headline": headline,
    }
    return environment.get_template(name)
