"""The documentation site: it builds offline without a warning, and its reference has every
public name.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytest.importorskip("mkdocs")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built once, about ten seconds: the strict build is the check for broken links and files
    without a place.
    """
    out = tmp_path_factory.mktemp("site")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "NO_MKDOCS_2_WARNING": "1"}
    command = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "--quiet",
        "--site-dir",
        str(out),
    ]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return out


def test_the_reference_has_every_public_name(site: Path) -> None:
    spec = importlib.util.spec_from_file_location("site_hooks", ROOT / "docs" / "site_hooks.py")
    hooks = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hooks)
    rooms = {package for _, packages in hooks.PAGES.values() for package in packages}
    assert rooms >= {
        "mindgap.optim",
        "mindgap.measure",
        "mindgap.bilevel",
        "mindgap.advise",
        "mindgap.lab.theory",
    }
    for page, (_, packages) in hooks.PAGES.items():
        ids = set(
            re.findall(r'id="([^"]+)"', (site / "api" / f"{page}.html").read_text(encoding="utf-8"))
        )
        for package in packages:
            names = hooks.public_names(package)
            assert names, package
            assert [path for path in names.values() if path not in ids] == [], package


def test_the_site_loads_nothing_from_the_network(site: Path) -> None:
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        loads = re.findall(r'<(?:script|img)[^>]*src="(https?:[^"]+)"', text)
        loads += re.findall(
            r'<link[^>]*rel="(?:stylesheet|preconnect)"[^>]*href="(https?:[^"]+)"', text
        )
        assert loads == [], page.name


def test_formulas_are_set_and_no_mark_of_another_markup_is_left(site: Path) -> None:
    errata = (site / "errata.html").read_text(encoding="utf-8")
    assert "<sup>2k</sup>" in errata
    assert "x<sub>0</sub>" in errata or "x₀" in errata
    for page in (site / "api").glob("*.html"):
        text = re.sub(r"<(code|pre)\b.*?</\1>", "", page.read_text(encoding="utf-8"), flags=re.S)
        assert not re.search(r"\w::\s*</p>", text), page.name


def test_terms_are_linked_where_a_page_uses_them_first(site: Path) -> None:
    anchors = re.findall(r'<dt id="(term-[^"]+)"', (site / "glossary.html").read_text("utf-8"))
    assert "term-slip" in anchors
    bilevel = (site / "bilevel.html").read_text(encoding="utf-8")
    linked = re.findall(r'<a href="glossary\.html#(term-[^"]+)"', bilevel)
    assert "term-slip" in linked
    assert len(linked) == len(set(linked))
    assert set(linked) <= set(anchors)
    start = (site / "start" / "researcher.html").read_text(encoding="utf-8")
    assert 'href="../glossary.html#term-' in start


def test_the_reference_shows_types(site: Path) -> None:
    page = (site / "api" / "optim.html").read_text(encoding="utf-8")
    assert re.search(r'class="n">clip</span><span class="p">:</span>', page)


def test_searching_works_from_a_file(site: Path) -> None:
    assert (
        (site / "search" / "search_index.js").read_text(encoding="utf-8").startswith("var __index")
    )
    index = (site / "index.html").read_text(encoding="utf-8")
    assert 'src="assets/iframe-worker.js"' in index


def test_every_reader_has_a_page_to_start_from() -> None:
    nav = (ROOT / "mkdocs.yml").read_text().partition("\nnav:")[2]
    for reader in ("engineer", "researcher", "contributor"):
        assert f": start/{reader}.md" in nav
        text = (ROOT / "docs" / "start" / f"{reader}.md").read_text()
        assert len(text.split()) < 250


def test_the_order_is_that_of_a_reader() -> None:
    order = [
        "index.md",
        "measure.md",
        "optimizers.md",
        "recommend.md",
        "bilevel.md",
        "laboratory.md",
        "theory.md",
    ]
    nav = (ROOT / "mkdocs.yml").read_text().partition("\nnav:")[2]
    places = [nav.index(f": {page}\n") for page in order]
    assert places == sorted(places)


def test_comments_at_fields_are_on_the_site(site: Path) -> None:
    text = (site / "api" / "measure.html").read_text(encoding="utf-8")
    assert "Largest eigenvalue." in text  # behind the field
    assert "interval for the norm, from the unbiased square" in text.lower()  # above it
