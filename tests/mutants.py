"""Would the tests notice? A fixed sample of small faults, planted one at a time.

    python tests/mutants.py --jobs 2 --out build/mutants.jsonl
        the whole sample; a second call makes only the missing runs
    python tests/mutants.py --list
        the sample, without running it
    python tests/mutants.py --only optim --out build/mutants.jsonl
        one room

A mutant changes one operator, comparison, number or condition in one function. The sample holds
those with the smallest hashes of their names, so that a change elsewhere leaves it as it is. A
mutant is killed when the example in its own module or a test of its room fails, or when they take
far longer than without it. Every test runs once without a fault before; one that fails there is
left out and named. Mutants that change nothing a caller could see stand in
``mutants_equivalent.txt`` with the reason.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

ROOT = Path(__file__).parents[1]
#: Room -> (where its code is, the tests that must notice).
ROOMS = {
    "optim": (("mindgap/optim",), ("tests/optim",)),
    "bilevel/methods": (("mindgap/bilevel/methods",), ("tests/bilevel",)),
    "measure/probes": (("mindgap/measure/probes",), ("tests/measure",)),
}
SAMPLE = 200
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.Pow: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
}
COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}


@dataclass(frozen=True)
class Mutant:
    """One planted fault."""

    room: str
    file: str
    #: file, function, what is changed and the how-manyth of its kind: stays when other code moves
    name: str
    line: int
    source: str  # of the whole file, with the fault

    @property
    def rank(self) -> str:
        return hashlib.sha256(self.name.encode()).hexdigest()


def _changes(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """(what is changed, the node that takes its place)."""
    if isinstance(node, (ast.BinOp, ast.AugAssign)) and type(node.op) in ARITHMETIC:
        new = ARITHMETIC[type(node.op)]
        fields = {**dict(ast.iter_fields(node)), "op": new()}
        yield f"{type(node.op).__name__} to {new.__name__}", type(node)(**fields)
    elif isinstance(node, ast.Compare) and type(node.ops[0]) in COMPARISONS:
        new_op = COMPARISONS[type(node.ops[0])]
        ops = [new_op(), *node.ops[1:]]
        yield (
            f"{type(node.ops[0]).__name__} to {new_op.__name__}",
            ast.Compare(left=node.left, ops=ops, comparators=node.comparators),
        )
    elif isinstance(node, ast.BoolOp):
        other = ast.Or if isinstance(node.op, ast.And) else ast.And
        yield (
            f"{type(node.op).__name__} to {other.__name__}",
            ast.BoolOp(op=other(), values=node.values),
        )
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.Not, ast.USub)):
        yield f"drop {type(node.op).__name__}", node.operand
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield f"{node.value} to {not node.value}", ast.Constant(value=not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
        new_value = node.value + 1 if isinstance(node.value, int) else node.value * 1.5 or 0.5
        yield f"{node.value} to {new_value}", ast.Constant(value=new_value)
    elif isinstance(node, ast.IfExp):
        yield (
            "swap branches",
            ast.IfExp(test=node.test, body=node.orelse, orelse=node.body),
        )


def _visited(tree: ast.Module) -> Iterator[tuple[str, ast.AST]]:
    """(qualified name of the function, node), without annotations, messages and type checking."""

    def visit(node: ast.AST, where: str) -> Iterator[tuple[str, ast.AST]]:
        if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING":
            return
        if isinstance(node, (ast.Raise, ast.JoinedStr, ast.Import, ast.ImportFrom)):
            return
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "fail":
            return
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            where = f"{where}.{node.name}".lstrip(".")
        yield where, node
        for field, value in ast.iter_fields(node):
            if field in ("annotation", "returns", "decorator_list"):
                continue
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from visit(child, where)

    yield from visit(tree, "")


def _replaced(source: str, node: ast.AST, new: ast.AST) -> str:
    """The source with the text of one node exchanged."""
    lines = source.encode().split(b"\n")
    start, end = node.lineno - 1, node.end_lineno - 1  # type: ignore[attr-defined,operator]
    head = b"\n".join([*lines[:start], lines[start][: node.col_offset]])  # type: ignore[attr-defined]
    tail = b"\n".join([lines[end][node.end_col_offset :], *lines[end + 1 :]])  # type: ignore[attr-defined]
    text = ast.unparse(ast.fix_missing_locations(new))
    if isinstance(new, ast.expr):
        text = f"({text})"
    return (head + text.encode() + tail).decode()


def mutants_of(file: Path, room: str, root: Path = ROOT) -> Iterator[Mutant]:
    """Every mutant of one file."""
    source = file.read_text(encoding="utf-8")
    seen: dict[str, int] = {}
    place = file.relative_to(root).as_posix()
    for where, node in _visited(ast.parse(source)):
        for change, new in _changes(node):
            kind = f"{place}::{where}::{change}"
            seen[kind] = seen.get(kind, 0) + 1
            name = f"{kind}::{seen[kind]}"
            yield Mutant(room, place, name, node.lineno, _replaced(source, node, new))  # type: ignore[attr-defined]


def sample(size: int = SAMPLE, root: Path = ROOT) -> list[Mutant]:
    """The fixed sample: the mutants whose names have the smallest hashes."""
    found = [
        mutant
        for room, (folders, _) in ROOMS.items()
        for folder in folders
        for file in sorted((root / folder).rglob("*.py"))
        if file.name != "__init__.py"
        for mutant in mutants_of(file, room, root)
    ]
    return sorted(found, key=lambda mutant: mutant.rank)[:size]


def equivalent() -> dict[str, str]:
    """Name -> reason of the mutants that change nothing a caller could see."""
    text = (ROOT / "tests" / "mutants_equivalent.txt").read_text(encoding="utf-8")
    rows = [line.split(" | ", 1) for line in text.splitlines() if line and line[0] != "#"]
    return dict(rows)


@dataclass(frozen=True)
class Baseline:
    """What the tests do without a fault: how long each file takes, and what fails already."""

    seconds: dict[str, float]
    failed: dict[str, list[str]]

    def limit(self, files: list[str]) -> float:
        """A run that takes three times as long as without the fault, and two minutes more, will
        not end.
        """
        return 120.0 + 3.0 * sum(self.seconds.get(file, 0.0) for file in files)


def _pytest(tree: Path, words: list[str], limit: float) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = os.pathsep.join(
        [str(tree), *filter(None, [os.environ.get("PYTHONPATH")])]
    )
    options = ["-q", "-p", "no:cacheprovider", "--no-header", "-rfE"]
    return subprocess.run(
        [sys.executable, "-m", "pytest", *options, *words],
        cwd=tree,
        env=environment,
        capture_output=True,
        text=True,
        timeout=limit,
        check=False,
    )


def _failures(text: str) -> list[str]:
    """The tests that failed or could not be loaded, by the summary at the end."""
    found = [line for line in text.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    return [line.split(" ", 1)[1].split(" - ", 1)[0] for line in found]


def room_tests(room: str, root: Path = ROOT) -> list[str]:
    """The room's test files."""
    return [
        file.relative_to(root).as_posix()
        for folder in ROOMS[room][1]
        for file in sorted((root / folder).rglob("test_*.py"))
    ]


def order(mutant: Mutant, baseline: Baseline, root: Path = ROOT) -> list[str]:
    """The room's test files, those that name what is changed first, short ones before long ones."""
    function = mutant.name.split("::")[1]
    words = {word for word in function.split(".") if not word.startswith("_")}
    words |= {Path(mutant.file).stem}

    def key(file: str) -> tuple[bool, float]:
        named = set(re.findall(r"\w+", (root / file).read_text(encoding="utf-8")))
        return not named & words, baseline.seconds.get(file, 0.0)

    return sorted(room_tests(mutant.room, root), key=key)


def run(mutant: Mutant, tree: Path, baseline: Baseline) -> tuple[bool, str]:
    """(killed, the line that says how), in a copy of the project."""
    file = tree / mutant.file
    before = file.read_text(encoding="utf-8")
    files = [mutant.file, *order(mutant, baseline, tree)]
    already = [test for one in files for test in baseline.failed.get(one, [])]
    broken = {test for test in already if "::" not in test}  # files that cannot be loaded at all
    words = [one for one in files if one not in broken]
    words += [f"--deselect={test}" for test in already if test not in broken]
    limit = baseline.limit(files)
    _write(file, mutant.source)
    try:
        done = _pytest(tree, ["-x", "--tb=line", *words], limit)
    except subprocess.TimeoutExpired:
        return True, f"not done after {limit:.0f} s"
    finally:
        _write(file, before)
    failed = _failures(done.stdout)
    if done.returncode not in (0, 1, 2):
        raise RuntimeError(f"pytest ended with {done.returncode}: {done.stdout[-2000:]}")
    return done.returncode != 0, (failed or ["passed" if not done.returncode else "error"])[0]


def _write(file: Path, text: str) -> None:
    """Write a module and drop what Python compiled of it: two versions may share length and
    second.
    """
    file.write_text(text, encoding="utf-8")
    for compiled in (file.parent / "__pycache__").glob(f"{file.stem}.*.pyc"):
        compiled.unlink()


def first_run(file: str, tree: Path) -> tuple[float, list[str]]:
    """(seconds, tests that fail) of one file without a fault."""
    begin = time.monotonic()
    try:
        done = _pytest(tree, ["--tb=no", file], 1200)
    except subprocess.TimeoutExpired:
        return 1200.0, [file]
    failed = _failures(done.stdout)
    if done.returncode not in (0, 1, 5) and not failed:
        failed = [file]
    return time.monotonic() - begin, failed


def copy_of_project(folder: Path) -> Path:
    """The files that tests read, in a folder of their own."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    names = listed.stdout.splitlines()
    if listed.returncode:  # a copy without its history
        names = [file.relative_to(ROOT).as_posix() for file in ROOT.rglob("*")]
        hidden = (".git/", ".gpu/", ".venv/", "build/", "demo/", "runs/")
        names = [n for n in names if not n.startswith(hidden) and "__pycache__" not in n]
    for name in names:
        if (ROOT / name).is_file() and not name.startswith("results/"):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, folder / name)
    return folder


def _state(mutant: Mutant) -> str:
    return hashlib.sha256(mutant.source.encode()).hexdigest()[:16]


def _tests_state(room: str) -> str:
    """Changes with the room's tests and the code: a survivor is tried again, a baseline run
    again.
    """
    found = hashlib.sha256()
    for folder in (*ROOMS[room][1], "mindgap"):
        for file in sorted((ROOT / folder).rglob("*.py")):
            found.update(file.read_bytes())
    return found.hexdigest()[:16]


class Trees:
    """Copies of the project; each is used by one run at a time."""

    def __init__(self, count: int, scratch: Path) -> None:
        self._free: SimpleQueue[Path] = SimpleQueue()
        for i in range(count):
            self._free.put(copy_of_project(scratch / str(i)))

    @contextmanager
    def one(self) -> Iterator[Path]:
        tree = self._free.get()
        try:
            yield tree
        finally:
            self._free.put(tree)


def _rows(files: list[Path]) -> list[dict[str, Any]]:
    found = []
    for file in files:
        for line in file.read_text(encoding="utf-8").splitlines() if file.exists() else ():
            try:
                found.append(json.loads(line))
            except json.JSONDecodeError:  # the last line of a run that was killed
                continue
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--size", type=int, default=SAMPLE)
    parser.add_argument("--only", choices=sorted(ROOMS), default=None)
    parser.add_argument("--match", default="", help="only mutants whose names contain this")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--minutes", type=float, default=None, help="start no mutant after that")
    parser.add_argument("--known", type=Path, nargs="*", default=[], help="earlier records")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "mutants.jsonl")
    options = parser.parse_args()
    begin = time.monotonic()
    chosen = [m for m in sample(options.size) if options.only in (None, m.room)]
    chosen = [m for m in chosen if options.match in m.name]
    if options.list:
        for mutant in chosen:
            print(f"{mutant.room}  line {mutant.line}  {mutant.name}")
        return 0
    options.out.parent.mkdir(parents=True, exist_ok=True)
    states = {room: _tests_state(room) for room in ROOMS}
    known: dict[tuple[str, str], dict[str, Any]] = {}
    baseline = Baseline({}, {})
    for row in _rows([*options.known, options.out]):
        if "baseline" in row and row["tests"] == states[row["room"]]:
            baseline.seconds[row["baseline"]] = row["seconds"]
            baseline.failed[row["baseline"]] = row["failed"]
        elif "killed" in row:
            known[row["name"], row["state"]] = row
    excused = equivalent()

    def decided(mutant: Mutant) -> bool:
        row = known.get((mutant.name, _state(mutant)), {})
        return bool(row) and (row["killed"] or row.get("tests") == states[mutant.room])

    todo = [m for m in chosen if not decided(m) and m.name not in excused]
    first = [(file, room) for room in {m.room: 0 for m in todo} for file in room_tests(room)]
    first += [(file, room) for file, room in {m.file: m.room for m in todo}.items()]

    def write(row: dict[str, Any]) -> None:
        with options.out.open("a", encoding="utf-8") as out:
            out.write(json.dumps(row) + "\n")

    def late() -> bool:
        return bool(options.minutes) and time.monotonic() - begin > 60 * options.minutes

    with tempfile.TemporaryDirectory() as scratch:
        trees = Trees(options.jobs, Path(scratch))

        def plain(work: tuple[str, str]) -> None:
            file, room = work
            with trees.one() as tree:
                seconds, failed = first_run(file, tree)
            baseline.seconds[file], baseline.failed[file] = round(seconds, 1), failed
            row = {"baseline": file, "room": room, "tests": states[room]}
            write({**row, "seconds": round(seconds, 1), "failed": failed})
            for test in failed:
                print("left out, it fails without a fault:", test, flush=True)

        def one(mutant: Mutant) -> None:
            if late():
                return
            start = time.monotonic()
            with trees.one() as tree:
                killed, how = run(mutant, tree, baseline)
            row = {"name": mutant.name, "state": _state(mutant), "killed": killed, "how": how}
            row |= {"tests": states[mutant.room], "seconds": round(time.monotonic() - start, 1)}
            known[mutant.name, _state(mutant)] = row
            write(row)
            print("killed  " if killed else "SURVIVED", mutant.name, how, flush=True)

        with ThreadPoolExecutor(options.jobs) as pool:
            list(pool.map(plain, [work for work in first if work[0] not in baseline.seconds]))
            list(pool.map(one, todo))
    rows = [known[m.name, _state(m)] for m in chosen if decided(m) and m.name not in excused]
    killed = sum(row["killed"] for row in rows)
    same = sum(m.name in excused for m in chosen)
    missing = len(chosen) - len(rows) - same
    print(
        f"{killed} of {len(rows)} mutants killed ({killed / max(1, len(rows)):.0%}), "
        f"{same} equivalent, {missing} not run"
    )
    return 0 if killed == len(rows) and not missing else 1


if __name__ == "__main__":
    sys.exit(main())
