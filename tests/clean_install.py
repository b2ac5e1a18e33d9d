"""Build the wheel, install it beside torch, numpy and pytest only, check the types of a user's
program against it, and run the library's tests there.

``make test-clean`` runs this. The clean environment links the packages that are installed already
(torch is large), so that a run takes seconds and needs no network; scipy, scikit-learn, typer,
rich, joblib, Numba and JAX are absent.

Usage: ``python tests/clean_install.py folder [all] [pytest arguments]``. Without ``all`` the files
of ``CORE`` run: every optimizer, every instrument and every bilevel method once.
"""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
import venv
import zipfile
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

ROOT = Path(__file__).parents[1]
TESTS = ROOT / "tests"
INSTALLED = ("torch", "numpy", "pytest", "pytest-xdist")
ROOMS = ("optim", "measure", "bilevel", "record")
CORE = (
    "test_optimizer_contract",
    "test_curvature",
    "test_ergodic",
    "test_monitor",
    "test_noise",
    "test_statistics",
    "test_survey",
    "test_bilevel_directions",
    "test_bilevel_identities",
    "test_bilevel_transcriptions",
    "test_record_store",
)
#: Rooms of the wheel that need an extra; the problems of ``lab.tasks`` that the bilevel tests use
#: need none.
LABORATORY = ("mindgap.lab.theory", "mindgap.lab.studies", "mindgap.lab.report", "mindgap.cli")


def needed(names: tuple[str, ...]) -> set[str]:
    """These distributions and everything that they require without an extra."""
    found: set[str] = set()
    todo = list(names)
    while todo:
        name = re.sub(r"[-_.]+", "-", todo.pop()).lower()
        if name in found:
            continue
        try:
            requires = distribution(name).requires or []
        except PackageNotFoundError:  # for another system, or another Python
            continue
        found.add(name)
        todo += [re.match(r"[\w.-]+", line)[0] for line in requires if "extra ==" not in line]  # type: ignore[index]
    return found


def link(names: set[str], site: Path) -> None:
    """Link the top-level files and folders of installed distributions into a site-packages
    folder.
    """
    for name in names:
        here = distribution(name)
        for top in {
            file.parts[0] for file in here.files or () if file.parts[0] not in ("..", "__pycache__")
        }:
            if not (site / top).exists():
                (site / top).symlink_to(Path(str(here.locate_file(top))))


def imports(path: Path) -> set[str]:
    """Modules that a test file imports when it is loaded, those of its helpers in ``tests/``
    included.
    """
    found: set[str] = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module]
        for name in names:
            helpers = [base / (name.replace(".", "/") + ".py") for base in (TESTS, path.parent)]
            for helper in filter(Path.is_file, helpers):
                found |= imports(helper)
            if not any(map(Path.is_file, helpers)):
                found.add(name)
    return found


def needs_extra(path: Path, present: set[str]) -> bool:
    """Whether a test file itself loads the laboratory or a package that is absent here.

    A file that does not must pass: what the library loads by itself is never an excuse.
    """
    local = {folder.name for folder in TESTS.iterdir()}
    known = (
        sys.stdlib_module_names | {name.replace("-", "_") for name in present} | local | {"mindgap"}
    )
    names = imports(path)
    fused = path.name.startswith("test_fused")  # about the kernels of the extra 'fast'
    return fused or any(
        name.partition(".")[0] not in known or name.startswith(LABORATORY) for name in names
    )


def build(folder: Path) -> Path:
    """A fresh environment with the wheel and what it declares; returns its Python."""
    shutil.rmtree(folder, ignore_errors=True)
    # A copy, because setuptools leaves what it built beside the sources and packs files from there
    # that are long gone.
    source = folder / "source"
    shutil.copytree(
        ROOT / "mindgap", source / "mindgap", ignore=shutil.ignore_patterns("__pycache__")
    )
    for name in ("pyproject.toml", "LICENSE", "docs/tools/package-readme.txt"):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, source / name)
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--disable-pip-version-check",
        "--no-deps",
        "--no-build-isolation",
        "--wheel-dir",
        str(folder / "wheel"),
        str(source),
    ]
    subprocess.run(command, check=True)
    venv.EnvBuilder(with_pip=False, symlinks=True).create(folder / "venv")
    (site,) = (folder / "venv" / "lib").glob("python*/site-packages")
    (wheel,) = (folder / "wheel").glob("mindgap-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    link(needed(INSTALLED), site)
    return folder / "venv" / "bin" / "python"


#: What must hold without a single test: the declared dependencies, nothing of the laboratory
#: loaded, a command that says what to install.
PROBE = """
import importlib.metadata, importlib.util, re, subprocess, sys
listed = importlib.metadata.requires("mindgap")
required = {re.match("[a-z]+", r)[0] for r in listed if "extra ==" not in r}
assert required == {"torch", "numpy"}, required
for name in ("scipy", "sklearn", "typer", "rich", "joblib", "numba", "jax"):
    assert importlib.util.find_spec(name) is None, name
import mindgap.optim, mindgap.measure, mindgap.bilevel, mindgap.advise
for room in (mindgap.optim, mindgap.measure, mindgap.bilevel):
    for name in dir(room):
        getattr(room, name)
done = subprocess.run([sys.executable, "-m", "mindgap", "list"], capture_output=True, text=True)
assert done.returncode == 2 and "pip install 'mindgap[lab]'" in done.stderr, done
"""


def main() -> int:
    folder, *words = sys.argv[1:] or [str(ROOT / "build" / "clean")]
    folder = Path(folder).resolve()
    core = words[:1] != ["all"]
    words = words if core else words[1:]
    python = build(folder)
    subprocess.run([str(python), "-c", PROBE], check=True, cwd=folder)
    types = [sys.executable, str(TESTS / "users_types.py"), str(python)]
    subprocess.run([*types, str(ROOT / "build" / "users_types")], check=True)
    contracts = ["--pyargs", "mindgap.testing", "--optimizer", "torch.optim:SGD"]
    words_of = ["-q", "-p", "no:cacheprovider", "-k", "nan or gradients or resume"]
    subprocess.run([str(python), "-m", "pytest", *contracts, *words_of], check=True, cwd=folder)
    present = needed(INSTALLED)
    files = [
        p
        for room in ROOMS
        for p in sorted((TESTS / room).glob("test_*.py"))
        if not needs_extra(p, present)
    ]
    print(f"{len(files)} files of tests need no extra")
    if core:
        files = [p for p in files if p.stem in CORE]
        assert len(files) == len(CORE)
    options = [
        "--rootdir",
        str(ROOT),
        "-c",
        str(ROOT / "pyproject.toml"),
        "-q",
        "-p",
        "no:cacheprovider",
        "-n",
        "2",
        "--dist",
        "worksteal",
    ]
    return subprocess.run(
        [str(python), "-m", "pytest", *options, *words, *map(str, files)], cwd=folder, check=False
    ).returncode


if __name__ == "__main__":
    raise SystemExit(main())
