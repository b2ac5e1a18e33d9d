"""Would the tests notice? A fixed sample of small faults, planted one at a time.

    python tests/mutants.py --jobs 2 --out build/mutants.jsonl
        the whole sample; a second call makes only the missing runs
    python tests/mutants.py --list
        the sample, without running it
    python tests/mutants.py --only optim --out build/mutants.jsonl
        one room

A mutant changes one operator, comparison, number or condition in one function. The sample holds
those with the smallest hashes of their names, so that a change elsewhere leaves it as it is. A
mutant is killed when the example in its own module or a test of its room fails. Those that change
nothing a caller could see stand in ``mutants_equivalent.txt`` with the reason.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

ROOT = Path(__file__).parents[1]
#: Room -> (where its code is, the tests that must notice).
ROOMS = {
    "optim": (("mindgap/optim",), ("tests/optim",)),
    "bilevel/methods": (("mindgap/bilevel/methods",), ("tests/bilevel",)),
    "measure/probes": (("mindgap/measure/probes",), ("tests/measure",)),
}
SAMPLE = 200
#: A mutant that loops for ever is killed by the clock.
SECONDS = 420
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


def run(mutant: Mutant, tree: Path) -> tuple[bool, str]:
    """(killed, the line that says how), in a copy of the project."""
    file = tree / mutant.file
    before = file.read_text(encoding="utf-8")
    file.write_text(mutant.source, encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"}
    environment["PYTHONDONTWRITEBYTECODE"] = "1"
    options = ["-x", "-q", "-p", "no:cacheprovider", "--no-header", "--tb=line"]
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *options, mutant.file, *ROOMS[mutant.room][1]],
            cwd=tree,
            env=environment,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return True, f"not done after {SECONDS} s"
    finally:
        file.write_text(before, encoding="utf-8")
    failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    if done.returncode not in (0, 1, 2):
        raise RuntimeError(f"pytest ended with {done.returncode}: {done.stdout[-2000:]}")
    return done.returncode != 0, (failed or ["passed" if not done.returncode else "error"])[0]


def copy_of_project(folder: Path) -> Path:
    """The files that tests read, in a folder of their own."""
    names = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    for name in names:
        if (ROOT / name).is_file() and not name.startswith("results/"):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, folder / name)
    return folder


def _state(mutant: Mutant) -> str:
    return hashlib.sha256(mutant.source.encode()).hexdigest()[:16]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--size", type=int, default=SAMPLE)
    parser.add_argument("--only", choices=sorted(ROOMS), default=None)
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--minutes", type=float, default=None, help="start no mutant after that")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "mutants.jsonl")
    options = parser.parse_args()
    chosen = [m for m in sample(options.size) if options.only in (None, m.room)]
    if options.list:
        for mutant in chosen:
            print(f"{mutant.room}  line {mutant.line}  {mutant.name}")
        return 0
    options.out.parent.mkdir(parents=True, exist_ok=True)
    known = {}
    if options.out.exists():
        for line in options.out.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            known[row["name"], row["state"]] = row
    excused = equivalent()
    todo = [m for m in chosen if (m.name, _state(m)) not in known and m.name not in excused]
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        trees: SimpleQueue[Path] = SimpleQueue()
        for i in range(options.jobs):
            trees.put(copy_of_project(Path(scratch) / str(i)))

        def one(mutant: Mutant) -> None:
            if options.minutes and time.monotonic() - begin > 60 * options.minutes:
                return
            tree = trees.get()
            start = time.monotonic()
            try:
                killed, how = run(mutant, tree)
            finally:
                trees.put(tree)
            row = {"name": mutant.name, "state": _state(mutant), "killed": killed, "how": how}
            row["seconds"] = round(time.monotonic() - start, 1)
            known[mutant.name, row["state"]] = row
            with options.out.open("a", encoding="utf-8") as out:
                out.write(json.dumps(row) + "\n")
            print("killed  " if killed else "SURVIVED", mutant.name, how, flush=True)

        with ThreadPoolExecutor(options.jobs) as pool:
            list(pool.map(one, todo))
    rows = [known[m.name, _state(m)] for m in chosen if (m.name, _state(m)) in known]
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
