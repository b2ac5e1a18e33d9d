"""Every example becomes a notebook whose cells run one after the other; the page of examples
names them all.
"""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted(p for p in (ROOT / "examples").glob("*.py") if p.name != "make_notebooks.py")
#: Packages of extras that an example may need.
EXTRAS = ("lightning", "transformers")


def _maker():
    spec = importlib.util.spec_from_file_location(
        "make_notebooks", ROOT / "examples" / "make_notebooks.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
def test_the_notebook_of_an_example_runs(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for extra in EXTRAS:
        if re.search(rf"^(import|from) {extra}", path.read_text(), re.MULTILINE):
            pytest.importorskip(extra)
    monkeypatch.chdir(tmp_path)
    kernel = tmp_path / "kernel.json"
    monkeypatch.setattr(sys, "argv", ["ipykernel_launcher.py", "-f", str(kernel)])
    written = json.loads(json.dumps(_maker().notebook(path.read_text())))
    assert written["cells"][0]["cell_type"] == "markdown"
    scope: dict[str, object] = {"__name__": path.stem}
    monkeypatch.setitem(
        sys.modules, path.stem, type(sys)(path.stem)
    )  # dataclasses look their module up
    code = ["".join(cell["source"]) for cell in written["cells"] if cell["cell_type"] == "code"]
    assert len(code) >= 2
    for cell in code:
        exec(compile(cell, str(path), "exec"), scope)
    assert not (tmp_path / "-f").exists()  # an argument of the kernel is no name for a picture
    if callable(scope.get("problem")):
        problem = scope["problem"]
        assert len(problem() if problem.__code__.co_argcount == 0 else problem(0)) in (2, 3)  # type: ignore[operator]


@pytest.mark.parametrize("path", sorted((ROOT / "docs" / "notebooks").glob("*.ipynb")), ids=str)
def test_a_kept_notebook_is_that_of_its_example_and_was_run(path: Path) -> None:
    kept = json.loads(path.read_text(encoding="utf-8"))
    source = ROOT / "examples" / f"{path.stem}.py"
    made = _maker().notebook(source.read_text(encoding="utf-8"))
    hint = f"python examples/make_notebooks.py docs/notebooks --run {path.stem}"
    assert [c["source"] for c in kept["cells"]] == [c["source"] for c in made["cells"]], hint
    code = [cell for cell in kept["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    assert any(cell["outputs"] for cell in code)
    assert path.stat().st_size < 100_000


def test_the_page_of_examples_names_every_example() -> None:
    page = (ROOT / "docs" / "examples.md").read_text()
    assert [p.name for p in EXAMPLES if f"`{p.name}`" not in page] == []
