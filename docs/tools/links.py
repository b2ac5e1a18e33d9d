"""Write what needs the project's address: the README for a package index, and the citation.

    python docs/tools/links.py

The address stands in one place, ``[project.urls]`` of ``pyproject.toml``. The README of a checkout
keeps relative links, which every host of repositories shows; ``docs/tools/package-readme.txt`` is
the same text with absolute ones, which a package index needs.
"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PICTURES = (".png", ".svg")


def address() -> str:
    """Where the project lives, by ``pyproject.toml``; without a slash at its end."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    found = re.search(r'^Repository = "(.*?)/?"$', text, re.M)
    assert found, "pyproject.toml has no Repository in [project.urls]"
    return found[1]


def absolute(text: str) -> str:
    """A text of the checkout's root with absolute links in place of relative ones.

    Example:
        >>> absolute("[a](docs/a.md#b) ![p](docs/p.png) [c](#cite) [d](https://x)").count("://")
        3
    """

    def link(match: re.Match[str]) -> str:
        target = match[1]
        if re.match(r"(https?:|#|mailto:)", target):
            return match[0]
        kind = "raw" if target.partition("#")[0].endswith(PICTURES) else "blob"
        return f"]({address()}/{kind}/main/{target})"

    return re.sub(r"\]\(([^)\s]+)\)", link, text)


def package_page() -> str:
    """The README for a package index."""
    return absolute((ROOT / "README.md").read_text(encoding="utf-8"))


def version() -> str:
    text = (ROOT / "mindgap" / "__init__.py").read_text(encoding="utf-8")
    found = re.search(r'^__version__ = "(.*?)"$', text, re.M)
    assert found
    return found[1]


def released() -> str:
    """The day of the newest version, by ``CHANGELOG.md``."""
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    found = re.search(rf"^## \[{re.escape(version())}\] - (\d{{4}}-\d\d-\d\d)$", text, re.M)
    assert found, f"CHANGELOG.md has no section on {version()}"
    return found[1]


def citation() -> str:
    """``CITATION.cff``."""
    return f"""cff-version: 1.2.0
message: If you use this software, please cite it as below, and the papers whose methods you use.
title: "mindgap: robust optimizers, instruments and bilevel methods for PyTorch"
type: software
authors:
  - name: The mindgap authors
version: {version()}
date-released: "{released()}"
license: MIT
repository-code: "{address()}"
keywords:
  - optimization
  - gradient clipping
  - heavy tails
  - bilevel optimization
  - pytorch
"""


def main() -> None:
    (ROOT / "docs" / "tools" / "package-readme.txt").write_text(package_page(), encoding="utf-8")
    (ROOT / "CITATION.cff").write_text(citation(), encoding="utf-8")


if __name__ == "__main__":
    main()
