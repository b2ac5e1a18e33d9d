"""Pages of the API reference, written when the site is built: one per room, one entry per
public name.
"""

from __future__ import annotations

import inspect
import re
from html import unescape
from importlib import import_module
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files
from mkdocs.utils import get_relative_url

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


#: Elements whose text is left as it is: no formulas in them, and no links to the glossary.
PLAIN = ("code", "pre", "script", "h1", "h2", "h3")
NO_LINKS = (*PLAIN, "a", "h4", "table", "title", "svg")


def on_page_content(html: str, page: Any, config: Any, files: Files) -> str:
    """Set the formulas outside code (x^2, a_k and <= as a book prints them), and link the terms of
    the glossary where a page uses them first.
    """
    html = re.sub(r"<th([^>]*)></th>", r"<td\1></td>", html)  # a corner names no column
    source = page.file.src_uri
    if source == "glossary.md":
        return re.sub(r"<dt><strong>(.*?)</strong>", _with_anchor, html)
    if source in WITH_FORMULAS:
        from mindgap.lab.report.words import typeset

        html = _outside(html, PLAIN, lambda part: str(typeset(unescape(part))))
    if source.startswith("api/"):
        return html
    glossary = files.get_file_from_path("glossary.md")
    assert glossary is not None
    return link_terms(html, get_relative_url(glossary.url, page.url))


def _outside(html: str, elements: tuple[str, ...], change: Any) -> str:
    """The page with its text changed, except within some elements."""
    inside, parts = 0, []
    for part in re.split(r"(<[^>]+>)", html):
        if part.startswith("<"):
            name = re.match(r"</?(\w+)", part)
            if name and name[1] in elements and not part.endswith("/>"):
                inside += -1 if part.startswith("</") else 1
            parts.append(part)
        else:
            parts.append(part if inside or not part.strip() else change(part))
    return "".join(parts)


def glossary_terms() -> dict[str, str]:
    """Term as written in the glossary -> its anchor there."""
    text = (Path(__file__).parent / "glossary.md").read_text(encoding="utf-8")
    entries = re.findall(r"^\*\*(.+?)\*\*\n:", text, re.M)
    return {name.strip(): _anchor(entry) for entry in entries for name in entry.split(", ")}


def _anchor(entry: str) -> str:
    return "term-" + re.sub(r"\W+", "-", entry.lower()).strip("-")


def _with_anchor(found: re.Match[str]) -> str:
    return f'<dt id="{_anchor(unescape(found[1]))}"><strong>{found[1]}</strong>'


def link_terms(html: str, glossary: str) -> str:
    """Link every term of the glossary where the page's running text has it first.

    Args:
        html: the page's content.
        glossary: the glossary's address as seen from the page.
    """
    left = {term.lower(): anchor for term, anchor in glossary_terms().items() if "(" not in term}
    words = sorted(left, key=len, reverse=True)
    pattern = re.compile(r"(?<![\w-])(" + "|".join(map(re.escape, words)) + r")(?![\w-])", re.I)

    def link(found: re.Match[str]) -> str:
        anchor = left.pop(found[1].lower(), None)
        return found[0] if anchor is None else f'<a href="{glossary}#{anchor}">{found[0]}</a>'

    return _outside(html, NO_LINKS, lambda part: pattern.sub(link, part))


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
