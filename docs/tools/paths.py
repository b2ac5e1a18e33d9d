"""List the files that a reader opens to follow five calls, by tracing what each call really runs.

    python docs/tools/paths.py            # trace and write the lists into docs/house.md
    python docs/tools/paths.py monitor    # trace one path and print its functions
    python docs/tools/paths.py gpu        # the path of a CUDA step, on a machine with a GPU

A file counts if one of its functions runs below the call. Not counted: code that runs while a
module is imported; ``mindgap/base`` (argument checks, random streams: vocabulary of all rooms); and
what runs below a public name of another room, such as ``AdamW`` below ``recommend``, whose
docstring says what it does. The table also gives the number of all files that run.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "mindgap"
HOUSE = ROOT / "docs" / "house.md"
_FUNCTION = 1  # CO_OPTIMIZED: set for functions, not for modules and class bodies


def room_of(file: str) -> str:
    """The room of a file below ``mindgap/``.

    Example:
        >>> room_of("optim/fused.py"), room_of("lab/studies/run.py")
        ('optim', 'lab/studies')
    """
    parts = file.split("/")
    return "/".join(parts[:2]) if parts[0] == "lab" else parts[0]


class Walk:
    """The functions that run between entering and leaving, by file: all, and those to read.

    Args:
        rooms: whose functions are all read, public or not.
    """

    def __init__(self, *rooms: str) -> None:
        self._rooms = rooms
        self.run: dict[str, set[str]] = defaultdict(set)
        self.read: dict[str, set[str]] = defaultdict(set)
        self._public = public_names()
        self._local = threading.local()
        self._files: dict[str, str] = {}

    def __enter__(self) -> Walk:
        threading.setprofile(self._note)
        sys.setprofile(self._note)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)

    def _note(self, frame: FrameType, event: str, _: Any) -> None:
        """Keep a stack per thread of whether frames are hidden: they run, and need no reading."""
        if event not in ("call", "return"):
            return
        if not hasattr(self._local, "stack"):
            self._local.stack = [False]
        stack = self._local.stack
        if event == "return":
            if len(stack) > 1:
                stack.pop()
            return
        code, hidden = frame.f_code, stack[-1]
        file = self._file(code)
        if not file:
            stack.append(hidden or code.co_name == "_find_and_load")  # an import
            return
        room, name = room_of(file), code.co_qualname.split(".")[0]
        hidden = hidden or (room not in self._rooms and (room, name) in self._public)
        stack.append(hidden)
        if code.co_flags & _FUNCTION:
            self.run[file].add(code.co_name)
            if not hidden and room != "base":
                self.read[file].add(code.co_name)

    def _file(self, code: CodeType) -> str:
        """The file below ``mindgap/``, or nothing for a function of others."""
        name = code.co_filename
        if name not in self._files:
            path = Path(name)
            inside = path.suffix == ".py" and path.is_relative_to(PACKAGE)
            self._files[name] = path.relative_to(PACKAGE).as_posix() if inside else ""
        return self._files[name]


def public_names() -> set[tuple[str, str]]:
    """(Room, name) of all names that the rooms' ``__init__.py`` offer."""
    found: set[tuple[str, str]] = set()
    for path in PACKAGE.rglob("__init__.py"):
        room = room_of(path.relative_to(PACKAGE).as_posix())
        names = re.findall(r"\b(\w+) as \1\b", path.read_text(encoding="utf-8"))
        found.update((room, name) for name in names)
    return found


def adamw(device: str = "cpu") -> Iterator[None]:
    """A step of fused AdamW: what runs at every step, after the first."""
    import torch

    from mindgap.optim import AdamW

    model = torch.nn.Linear(20, 20, device=device)
    optimizer = AdamW(model.parameters(), lr=1e-3, fused=True)
    model(torch.ones(2, 20, device=device)).sum().backward()
    optimizer.step()
    yield
    for _ in range(3):
        optimizer.step()


def adamw_first() -> Iterator[None]:
    """Making fused AdamW and its first step."""
    import torch

    from mindgap.optim import AdamW

    model = torch.nn.Linear(20, 20)
    model(torch.ones(2, 20)).sum().backward()
    yield
    AdamW(model.parameters(), lr=1e-3, fused=True).step()


def recommendation() -> Iterator[None]:
    """``recommend`` as its guide begins."""
    import torch
    from torch import nn

    from mindgap.advise import recommend

    data = list(torch.randn(60, 32, 8))

    def problem(seed: int) -> Any:
        model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
        return (
            (model, lambda m, batch: (m(batch)[:, 0] - batch.sum(1).sin()).square().mean()),
            data[:50],
            data[50:],
        )

    yield
    recommend(problem, minutes=0.5, steps=96)


def monitor() -> Iterator[None]:
    """``Monitor`` around forty steps, with the probes that it chooses itself."""
    import torch
    from torch.nn.functional import cross_entropy

    from mindgap.measure import Monitor

    model = torch.nn.Linear(20, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batches = [(torch.randn(8, 20), torch.randint(0, 2, (8,))) for _ in range(40)]

    def loss(model: Any, batch: Any) -> Any:
        return cross_entropy(model(batch[0]), batch[1])

    yield
    with Monitor(optimizer, (model, loss), batches[:4], every=10):
        for batch in batches:
            optimizer.zero_grad()
            loss(model, batch).backward()
            optimizer.step()


def _quadratic() -> tuple[Any, Any, Any]:
    import torch

    from mindgap.bilevel import BilevelProblem

    def upper(x: Any, y: Any, batch: Any) -> Any:
        return ((batch @ y) ** 2).mean() + (x**2).sum()

    def lower(x: Any, y: Any, batch: Any) -> Any:
        return ((batch @ y - x.sum()) ** 2).mean() + (y**2).sum()

    data = torch.randn(64, 4)
    problem = BilevelProblem(
        upper, lower, x=torch.zeros(3), y=torch.zeros(4), upper_data=data, lower_data=data
    )
    return problem, upper, lower


def slip() -> Iterator[None]:
    """``solve`` with SLIP in eager torch."""
    from mindgap.bilevel import SLIP, solve

    problem, _, _ = _quadratic()
    yield
    solve(problem, SLIP(lr_x=0.1, lr_y=0.1, lr_z=0.1), steps=20)


def slip_compiled() -> Iterator[None]:
    """``solve`` with SLIP compiled by JAX."""
    from mindgap.bilevel import SLIP, solve
    from mindgap.bilevel.backends.compiled import JaxBackend

    problem, upper, lower = _quadratic()
    yield
    solve(
        problem,
        SLIP(lr_x=0.1, lr_y=0.1, lr_z=0.1),
        steps=20,
        backend=JaxBackend(upper, lower),
    )


def run_and_report() -> Iterator[None]:
    """``mindgap run e5-cycle``, then ``mindgap report``."""
    from mindgap.cli import main

    with tempfile.TemporaryDirectory() as folder:
        yield
        page = ["-o", f"{folder}/page.html"]
        for words in (["run", "e5-cycle", "--out", folder], ["report", folder, *page]):
            sys.argv = ["mindgap", *words]
            try:
                main()
            except SystemExit as ended:
                if ended.code:
                    raise


#: Name -> what is called, its rooms, title, most files to open.
PATHS: dict[str, tuple[Callable[[], Iterator[None]], tuple[str, ...], str, int]] = {
    "adamw": (adamw, ("optim", "rules"), "AdamW, fused, a step on a CPU", 8),
    "first": (adamw_first, ("optim", "rules"), "AdamW, fused, made and first step", 10),
    "gpu": (lambda: adamw("cuda"), ("optim", "rules"), "AdamW, fused, a step on CUDA", 10),
    "recommend": (recommendation, ("advise",), "`recommend`", 15),
    "monitor": (monitor, ("measure",), "`Monitor`", 10),
    "slip": (slip, ("bilevel",), "SLIP, eager", 12),
    "compiled": (slip_compiled, ("bilevel",), "SLIP, compiled", 12),
    "run": (
        run_and_report,
        ("cli", "lab/studies", "lab/report", "record"),
        "`mindgap run e5-cycle` and `report`",
        30,
    ),
}


@contextmanager
def _quiet() -> Iterator[None]:
    """Nothing of what the traced commands print."""
    before = sys.argv, sys.stdout
    with open("/dev/null", "w", encoding="utf-8") as nowhere:
        sys.stdout = nowhere
        try:
            yield
        finally:
            sys.argv, sys.stdout = before


def trace(name: str) -> Walk:
    """What one path runs."""
    call, rooms, _, _ = PATHS[name]
    walk, path = Walk(*rooms), call()
    with _quiet():
        next(path)
        with walk:
            next(path, None)
    return walk


def main(names: list[str]) -> None:
    """Print the functions of the named paths, or write the table of all into the document."""
    if names:
        for name in names:
            walk = trace(name)
            print(f"{PATHS[name][2]}: {len(walk.read)} files to open, {len(walk.run)} run")
            for file in sorted(walk.read, key=lambda f: (-len(walk.read[f]), f)):
                print(f"  {file}: {', '.join(sorted(walk.read[file]))}")
            print(json.dumps({name: [sorted(walk.read), sorted(walk.run)]}))
        return
    text = HOUSE.read_text(encoding="utf-8")
    rows = [row for name in PATHS if (row := _row(name, text))]
    head = (
        "| call | most | to open | run | files to open, below `mindgap/` |\n|---|---|---|---|---|"
    )
    HOUSE.write_text(
        re.sub(
            r"(<!-- paths -->\n).*?(<!-- end of paths -->)",
            lambda m: m[1] + "\n".join([head, *rows, ""]) + m[2],
            text,
            flags=re.DOTALL,
        ),
        encoding="utf-8",
    )


def _row(name: str, text: str) -> str:
    """The line of a path; where this machine has no GPU, that of CUDA stays as it is."""
    _, _, title, most = PATHS[name]
    if name == "gpu":
        import torch

        if not torch.cuda.is_available():
            return next((line for line in text.splitlines() if line.startswith(f"| {title} ")), "")
    walk = trace(name)
    files = ", ".join(f"`{file.removesuffix('.py')}`" for file in sorted(walk.read))
    return f"| {title} | {most} | {len(walk.read)} | {len(walk.run)} | {files} |"


if __name__ == "__main__":
    main(sys.argv[1:])
