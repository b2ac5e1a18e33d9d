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
far longer than without it. Every test runs once without a fault before, to learn which lines it
runs and how long it takes; one that fails there is left out and named. A mutant is then shown to
the tests that run its line, short ones first, and the test that fails must pass again without it.
Mutants that change nothing a caller could see stand in ``mutants_equivalent.txt`` with the reason.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import importlib
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
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
    #: A test that notices runs one of these lines; None where the fault acts on import.
    reach: range | None = None

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


def _reach(tree: ast.Module, node: ast.AST) -> range | None:
    """The lines of the statement that holds a node; of the whole function where the node is the
    default of an argument; None where it is in no function.
    """
    line, end = node.lineno, node.end_lineno  # type: ignore[attr-defined]
    inner: Any = None
    function = False
    for found in ast.walk(tree):  # the outer ones first
        if isinstance(found, ast.stmt) and found.lineno <= line and end <= (found.end_lineno or 0):
            inner = found
            if isinstance(found, (ast.FunctionDef, ast.AsyncFunctionDef)):
                function = True
    if not function:
        return None
    if isinstance(inner, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return range(inner.body[0].lineno, inner.end_lineno + 1)
    body = getattr(inner, "body", None)
    last = max(inner.lineno, body[0].lineno - 1) if body else inner.end_lineno
    return range(inner.lineno, last + 1)


def mutants_of(file: Path, room: str, root: Path = ROOT) -> Iterator[Mutant]:
    """Every mutant of one file."""
    source = file.read_text(encoding="utf-8")
    seen: dict[str, int] = {}
    place = file.relative_to(root).as_posix()
    tree = ast.parse(source)
    for where, node in _visited(tree):
        for change, new in _changes(node):
            kind = f"{place}::{where}::{change}"
            seen[kind] = seen.get(kind, 0) + 1
            name = f"{kind}::{seen[kind]}"
            faulty, reach = _replaced(source, node, new), _reach(tree, node)
            yield Mutant(room, place, name, node.lineno, faulty, reach)  # type: ignore[attr-defined]


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
class Passing:
    """A test that passes without a fault."""

    name: str
    seconds: float
    lines: dict[str, frozenset[int]]  # file -> lines that it runs

    @property
    def file(self) -> str:
        return self.name.split("::")[0]


def room_tests(room: str, root: Path = ROOT) -> list[str]:
    """The room's test files."""
    return [
        file.relative_to(root).as_posix()
        for folder in ROOMS[room][1]
        for file in sorted((root / folder).rglob("test_*.py"))
    ]


def chosen_tests(mutant: Mutant, tests: list[Passing], cap: float = math.inf) -> list[Passing]:
    """The tests that may notice, short ones first: those that run the line; every test of the room
    where the fault acts on import. The list ends when its tests take ``cap`` seconds.
    """
    lines = set(mutant.reach or ())
    found = [
        test
        for test in tests
        if mutant.reach is None or lines & test.lines.get(mutant.file, frozenset())
    ]
    found.sort(key=lambda test: (test.file != mutant.file, test.seconds))
    spent, kept = 0.0, []
    for test in found:
        spent += test.seconds
        if spent > cap and kept:
            break
        kept.append(test)
    return kept


def _environment(tree: Path, **more: str) -> dict[str, str]:
    own = [str(tree), str(tree / "tests"), os.environ.get("PYTHONPATH", "")]
    return {**more, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, own))}


def _warm() -> None:
    """Load what every test needs, once per worker: a run is then a copy of the worker."""
    warnings.simplefilter("ignore")
    for name in ("torch", "numpy", "scipy.stats", "sklearn.linear_model", "numba", "jax", "pytest"):
        with suppress(ImportError):
            importlib.import_module(name)


def _pytest(tree: Path, words: list[str], limit: float, **more: str) -> tuple[int | None, str]:
    """(status, output) of pytest in a copy of this process; None after ``limit`` seconds."""
    with tempfile.TemporaryFile("w+") as output:
        child = os.fork()
        if not child:  # pragma: no cover - another process
            status = 99
            try:
                os.setsid()
                os.chdir(tree)
                os.environ.update(_environment(tree, **more))
                sys.path[:0] = [str(tree), str(tree / "tests")]
                for stream in (1, 2):
                    os.dup2(output.fileno(), stream)
                warnings.resetwarnings()
                import pytest

                options = ["-q", "-p", "no:cacheprovider", "-p", "mutants_reach", "--no-header"]
                status = int(pytest.main([*options, "-rfE", *words]))
                sys.stdout.flush()
            finally:
                os._exit(status)
        end, status = time.monotonic() + limit, None
        while status is None and time.monotonic() < end:
            done, code = os.waitpid(child, os.WNOHANG)
            if done:
                status = os.waitstatus_to_exitcode(code)
            else:
                time.sleep(0.05)
        with suppress(ProcessLookupError):  # and what the tests left running
            os.killpg(child, signal.SIGKILL)
        if status is None:
            os.waitpid(child, 0)
        output.seek(0)
        return status, output.read()


def _failures(text: str) -> list[str]:
    """The tests that failed or could not be loaded, by the summary at the end."""
    found = [line for line in text.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    return [line.split(" ", 1)[1].split(" - ", 1)[0] for line in found]


def _selected(
    tree: Path, tests: list[Passing], limit: float, *words: str
) -> tuple[int | None, str]:
    files = list(dict.fromkeys(test.file for test in tests))
    with tempfile.NamedTemporaryFile("w", suffix=".json") as names:
        json.dump([test.name for test in tests], names)
        names.flush()
        return _pytest(tree, ["-x", "--tb=line", *files], limit, MUTANTS_ORDER=names.name)


def run(mutant: Mutant, tree: Path, tests: list[Passing]) -> tuple[bool, str]:
    """(killed, how), in a copy of the project."""
    if not tests:
        return False, "no test runs the line"
    file = tree / mutant.file
    before = file.read_text(encoding="utf-8")
    # Well above what the tests take without the fault, on a machine that may be busy.
    limit = 120.0 + 4.0 * sum(test.seconds for test in tests)
    while True:
        _write(file, mutant.source)
        try:
            status, text = _selected(tree, tests, limit)
        finally:
            _write(file, before)
        if status is None:
            return True, f"not done after {limit:.0f} s"
        if status == 0:
            return False, f"passed by {len(tests)} tests"
        failed = _failures(text)
        if status not in (1, 2) and status >= 0:
            return True, f"pytest ended with {status}: {text[-200:]!r}"
        if status < 0 or not failed or failed[0].split("::")[0] == failed[0]:
            return True, (failed or [f"ended with {status}"])[0]
        # The failure counts if the same test passes without the fault.
        again = [test for test in tests if test.name.startswith(failed[0])]
        if again and _selected(tree, again, limit)[0] == 0:
            return True, failed[0]
        tests = [test for test in tests if test not in again]
        if not again or not tests:
            return False, f"fails without the fault: {failed[0]}"


def _write(file: Path, text: str) -> None:
    """Write a module and drop what Python compiled of it: two versions may share length and
    second.
    """
    file.write_text(text, encoding="utf-8")
    for compiled in (file.parent / "__pycache__").glob(f"{file.stem}.*.pyc"):
        compiled.unlink()


def first_run(file: str, tree: Path, folders: list[str]) -> tuple[list[dict[str, Any]], str]:
    """(one row per test, what went wrong) of one file without a fault."""
    with tempfile.NamedTemporaryFile("r", suffix=".jsonl") as out:
        told = json.dumps({"out": out.name, "folders": folders, "root": str(tree)})
        status, text = _pytest(tree, ["--tb=no", file], 1200, MUTANTS_REACH=told)
        rows = [json.loads(line) for line in out]
    bad = _failures(text)
    if status not in (0, 1, 5) and not bad:
        bad = [f"{file}: pytest ended with {status}: {text[-500:]}"]
    return rows, "\n".join(bad)


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
            shutil.copy2(ROOT / name, folder / name)
    # No mutant changes the compiled kernels: one copy of the project compiles them for all.
    (folder.parent / "kernels").mkdir(exist_ok=True)
    (folder / "mindgap/rules/fused/__pycache__").symlink_to(folder.parent / "kernels")
    return folder


def _state(mutant: Mutant) -> str:
    """Changes with the faulty function, or with the statement outside of all functions; a record
    stays good when other code of the file moves.
    """
    inner: ast.AST | None = None
    for found in ast.walk(ast.parse(mutant.source)):  # the outer ones first
        if isinstance(found, ast.stmt) and found.lineno <= mutant.line <= (found.end_lineno or 0):
            inner = found
            if isinstance(found, (ast.FunctionDef, ast.AsyncFunctionDef)):
                break
    text = "" if inner is None else ast.dump(inner)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _tests_state(room: str) -> str:
    """Changes with the room's code and tests: then a survivor is tried again, and the tests run
    once more without a fault.
    """
    found = hashlib.sha256()
    for folder in (*ROOMS[room][0], *ROOMS[room][1]):
        for file in sorted((ROOT / folder).rglob("*.py")):
            found.update(file.read_bytes())
    return found.hexdigest()[:16]


class Worker:
    """The copy of the project of this process."""

    tree: Path

    @classmethod
    def begin(cls, scratch: str) -> None:
        cls.tree = copy_of_project(Path(tempfile.mkdtemp(dir=scratch)))
        _warm()

    @classmethod
    def plain(cls, file: str, room: str) -> tuple[str, str, list[dict[str, Any]], str]:
        return file, room, *first_run(file, cls.tree, list(ROOMS[room][0]))

    @classmethod
    def one(
        cls, mutant: Mutant, tests: list[Passing], end: float
    ) -> tuple[Mutant, bool, str, float]:
        begin = time.monotonic()
        if begin > end:
            return mutant, False, "", 0.0
        return mutant, *run(mutant, cls.tree, tests), time.monotonic() - begin


def _rows(files: list[Path]) -> Iterator[dict[str, Any]]:
    for file in files:
        for line in file.read_text(encoding="utf-8").splitlines() if file.exists() else ():
            with suppress(json.JSONDecodeError):  # the last line of a run that was killed
                yield json.loads(line)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--size", type=int, default=SAMPLE)
    parser.add_argument("--only", choices=sorted(ROOMS), default=None)
    parser.add_argument("--match", default="", help="only mutants whose names contain this")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--minutes", type=float, default=1e6, help="start no mutant after that")
    parser.add_argument("--cap", type=float, default=math.inf, help="seconds of tests per mutant")
    parser.add_argument("--known", type=Path, nargs="*", default=[], help="earlier records")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "mutants.jsonl")
    parser.add_argument("--reach", type=Path, nargs="*", default=[], help="earlier runs of tests")
    options = parser.parse_args()
    end = time.monotonic() + 60 * options.minutes
    chosen = [m for m in sample(options.size) if options.only in (None, m.room)]
    chosen = [m for m in chosen if options.match in m.name]
    if options.list:
        for mutant in chosen:
            print(f"{mutant.room}  line {mutant.line}  {mutant.name}")
        return 0
    options.out.parent.mkdir(parents=True, exist_ok=True)
    states = {room: _tests_state(room) for room in ROOMS}
    known = {
        (row["name"], row["state"]): row
        for row in _rows([*options.known, options.out])
        if "killed" in row
    }
    excused = equivalent()

    def decided(mutant: Mutant) -> bool:
        row = known.get((mutant.name, _state(mutant)), {})
        return bool(row) and (row["killed"] or row.get("tests") == states[mutant.room])

    todo = [m for m in chosen if not decided(m) and m.name not in excused]
    reach = options.out.with_suffix(".reach.jsonl")
    tests: dict[str, list[Passing]] = {room: [] for room in ROOMS}
    seen: set[str] = set()

    def take(row: dict[str, Any]) -> None:
        seen.add(row["file"])
        for one in row["rows"]:
            if one["passed"]:
                lines = {file: frozenset(found) for file, found in one["lines"].items()}
                tests[row["room"]].append(Passing(one["test"], one["seconds"], lines))

    for row in _rows([*options.reach, reach]):
        if row["state"] == states[row["room"]] and row["file"] not in seen:
            take(row)
    first = [(file, room) for room in {m.room: 0 for m in todo} for file in room_tests(room)]
    first += [(file, room) for file, room in {m.file: m.room for m in todo}.items()]
    slow = Counter(line.split("::")[0] for line in (ROOT / "tests" / "slow.txt").open())
    first.sort(key=lambda work: -slow[work[0]])  # the long files first

    def write(file: Path, row: dict[str, Any]) -> None:
        with file.open("a", encoding="utf-8") as out:
            out.write(json.dumps(row) + "\n")

    with (
        tempfile.TemporaryDirectory() as scratch,
        ProcessPoolExecutor(
            options.jobs, get_context("fork"), Worker.begin, initargs=(scratch,)
        ) as pool,
    ):
        plain = [pool.submit(Worker.plain, *work) for work in first if work[0] not in seen]
        for done in as_completed(plain):
            file, room, rows, wrong = done.result()
            row = {"file": file, "room": room, "state": states[room], "rows": rows}
            write(reach, row)
            take(row)
            if wrong:
                print("left out, it fails without a fault:", wrong, flush=True)
        print(f"{sum(map(len, tests.values()))} tests run without a fault", flush=True)
        runs = [
            pool.submit(Worker.one, m, chosen_tests(m, tests[m.room], options.cap), end)
            for m in todo
        ]
        for ended in as_completed(runs):
            mutant, killed, how, seconds = ended.result()
            if not how:
                continue
            found = {"name": mutant.name, "state": _state(mutant), "killed": killed, "how": how}
            found |= {"tests": states[mutant.room], "seconds": round(seconds, 1)}
            known[mutant.name, _state(mutant)] = found
            write(options.out, found)
            print("killed  " if killed else "SURVIVED", mutant.name, how, flush=True)
    rows = [known[m.name, _state(m)] for m in chosen if decided(m) and m.name not in excused]
    count = sum(row["killed"] for row in rows)
    same = sum(m.name in excused for m in chosen)
    missing = len(chosen) - len(rows) - same
    print(
        f"{count} of {len(rows)} mutants killed ({count / max(1, len(rows)):.0%}), "
        f"{same} equivalent, {missing} not run"
    )
    return 0 if count == len(rows) and not missing else 1


if __name__ == "__main__":
    sys.exit(main())
