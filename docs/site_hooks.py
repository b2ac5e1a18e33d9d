"""Pages of the API reference, written when the site is built: one per room, one entry per
public name.
"""

from __future__ import annotations

import inspect
import re
from html import unescape
from importlib import import_module
from typing import Any

from mkdocs.structure.files import File, Files

#: Page -> title, and the packages whose public names it documents.
PAGES = {
    "mindgap": ("mindgap", ("mindgap",)),
    "optim": ("mindgap.optim", ("mindgap.optim",)),
    "measure": ("mindgap.measure", ("mindgap.measure",)),
    "advise": (
        "mindgap.advise and adapters",
        ("mindgap.advise", "mindgap.adapters.lightning", "mindgap.adapters.transformers"),
    ),
    "bilevel": ("mindgap.bilevel", ("mindgap.bilevel",)),
    "record": (
        "mindgap.record",
        ("mindgap.record.schema", "mindgap.record.store", "mindgap.record.forms"),
    ),
    "lab": (
        "mindgap.lab",
        (
            "mindgap.lab.theory",
            "mindgap.lab.report",
            "mindgap.lab.studies.spec",
            "mindgap.lab.studies.run",
            "mindgap.lab.tasks.problems",
            "mindgap.lab.tasks.data",
        ),
    ),
}


def public_names(package: str) -> dict[str, str]:
    """Public name -> where it is defined, for what a package offers itself (not what it imports
    from elsewhere).
    """
    module = import_module(package)
    found = {}
    for name in sorted(n for n in dir(module) if not n.startswith("_") and n != "annotations"):
        value = getattr(module, name)
        home = getattr(value, "__module__", None) or package
        if inspect.ismodule(value) or not str(home).startswith("mindgap"):
            continue
        if not (inspect.isclass(value) or inspect.isroutine(value)):
            home = _home(module, name)
        if hasattr(module, "__path__") or home == package:
            found[name] = f"{home}.{name}"
    return found


def _home(module: Any, name: str) -> str:
    """The module in which a constant stands: the first below the package that has the same
    object under that name.
    """
    import sys

    where = getattr(module, "_WHERE", {})
    if name in where:
        return f"{module.__name__}.{where[name]}"
    value = getattr(module, name)
    inside = [m for m in sorted(sys.modules) if m.startswith(f"{module.__name__}.")]
    for place in inside:
        if vars(sys.modules[place]).get(name) is value:
            return place
    return str(module.__name__)


#: Pages whose text has formulas in letters: they are set with exponents, subscripts and signs.
WITH_FORMULAS = ("errata.md", "theory.md", "reproduction.md", "claims.md", "bilevel.md")


def on_page_content(html: str, page: Any, config: Any, files: Files) -> str:
    """Set the formulas outside code: x^2, a_k and <= as a book prints them."""
    html = re.sub(r"<th([^>]*)></th>", r"<td\1></td>", html)  # a corner names no column
    if page.file.src_uri not in WITH_FORMULAS:
        return html
    from mindgap.lab.report.words import typeset

    inside, parts = 0, []
    for part in re.split(r"(<[^>]+>)", html):
        if part.startswith("<"):
            name = re.match(r"</?(\w+)", part)
            if name and name[1] in ("code", "pre", "script", "h1", "h2", "h3"):
                inside += -1 if part.startswith("</") else 1
            parts.append(part)
        else:
            parts.append(part if inside or not part.strip() else str(typeset(unescape(part))))
    return "".join(parts)


def on_post_page(output: str, page: Any, config: Any) -> str:
    """Name the theme's search for a screen reader."""
    return output.replace('role="dialog"', 'role="dialog" aria-label="Search"', 1)


def on_files(files: Files, config: Any) -> Files:
    """Add the generated pages."""
    for page, (title, packages) in PAGES.items():
        lines = [f"# {title}\n"]
        for package in packages:
            names = public_names(package)
            if len(packages) > 1 and names:
                lines.append(f"## {package}\n")
            lines += [f"::: {path}\n" for path in names.values()]
        files.append(File.generated(config, f"api/{page}.md", content="\n".join(lines)))
    return files
