"""Run the contracts of ``mindgap.testing`` over whole packages of optimizers, and write the tables
of ``docs/contracts.md``.

    python docs/tools/contract_table.py run torch.optim pytorch_optimizer schedulefree --to FILE
    python docs/tools/contract_table.py write FILE ...

``run`` appends one JSON line per class to FILE, and leaves out classes that are there already.
"""

from __future__ import annotations

import argparse
import datetime
import inspect
import json
import re
import signal
import warnings
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
DOCUMENT = ROOT / "docs" / "contracts.md"
#: Seconds for all contracts of one class.
LIMIT = 240
SIGNS = {"kept": "+", "not offered": "·", "broken": "**✗**"}
#: Distribution of a module, where the names differ.
DISTRIBUTIONS = {"torch.optim": "torch", "pytorch_optimizer": "pytorch-optimizer"}


def classes(package: str) -> dict[str, Any]:
    """Name -> class, for every optimizer that a package offers."""
    import torch

    found = {
        name: kind
        for name, kind in vars(import_module(package)).items()
        if inspect.isclass(kind) and issubclass(kind, torch.optim.Optimizer)
    }
    return {name: kind for name, kind in found.items() if kind is not torch.optim.Optimizer}


def _stop(*_: Any) -> None:
    raise TimeoutError(f"more than {LIMIT} s")


def run(packages: list[str], file: Path, shard: slice = slice(None)) -> None:
    """Append the outcomes of every class to a file of JSON lines."""
    from mindgap.testing.case import case_of
    from mindgap.testing.contracts import outcomes
    from mindgap.testing.loop import drive, start

    warnings.simplefilter("ignore")
    signal.signal(signal.SIGALRM, _stop)
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    done = {(row["package"], row["name"]) for row in map(json.loads, lines)}
    for package in packages:
        for name, kind in sorted(classes(package).items())[shard]:
            if (package, name) in done:
                continue
            row: dict[str, Any] = {"package": package, "name": name}
            row["version"] = version(DISTRIBUTIONS.get(package, package))
            row["date"] = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
            signal.alarm(LIMIT)
            try:
                case = case_of(kind)
                params = start()
                drive(case, case.make(params), params)
                row["settings"] = {k: v for k, v in case.settings.items() if v is not None}
                row["outcomes"] = outcomes(case)
            except Exception as error:
                words = (str(error).strip().splitlines() or [""])[0]
                row["unbuilt"] = f"{type(error).__name__}: {words}"
            finally:
                signal.alarm(0)
            with file.open("a", encoding="utf-8") as out:
                out.write(json.dumps(row) + "\n")
            broken = [k for k, v in row.get("outcomes", {}).items() if v.startswith("broken")]
            print(package, name, row.get("unbuilt") or broken or "all kept", flush=True)


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown: a section per package, with one row per class and one column per contract."""
    from mindgap.testing.contracts import CONTRACTS

    parts = []
    for package in dict.fromkeys(row["package"] for row in rows):
        mine = sorted((r for r in rows if r["package"] == package), key=lambda r: r["name"])
        ran = [row for row in mine if "outcomes" in row]
        clean = [r for r in ran if not any(v.startswith("broken") for v in r["outcomes"].values())]
        dates = sorted({row["date"] for row in mine})
        parts += [
            f"### {package} {mine[0]['version']}",
            "",
            f"{len(clean)} of {len(ran)} classes keep every contract that applies to them"
            f" ({', '.join(dates)}).",
            "",
            "| class | lr | " + " | ".join(CONTRACTS) + " |",
            "|---|---|" + "---|" * len(CONTRACTS),
        ]
        for row in ran:
            cells = [SIGNS[row["outcomes"][name].partition(":")[0]] for name in CONTRACTS]
            rate = row["settings"].get("lr", "")
            parts.append(f"| {row['name']} | {rate} | " + " | ".join(cells) + " |")
        left = [row for row in mine if "outcomes" not in row]
        if left:
            listed = "; ".join(f"{r['name']} ({_plain(r['unbuilt'])})" for r in left)
            parts += [
                "",
                f"Not run, because a step on the contracts' problem ends in an error: {listed}.",
            ]
        parts.append("")
    return "\n".join(parts)


def _plain(text: str) -> str:
    return re.sub(r"[|<>]", "", text)[:90]


def write(files: list[Path]) -> None:
    """Put the tables between the marks of the document."""
    lines = [line for file in files for line in file.read_text(encoding="utf-8").splitlines()]
    begin, end = "<!-- tables: begin -->\n", "<!-- tables: end -->"
    head, _, rest = DOCUMENT.read_text(encoding="utf-8").partition(begin)
    _, found, tail = rest.partition(end)
    if not found:
        raise SystemExit(f"{DOCUMENT} has no place for the tables")
    text = table([json.loads(line) for line in lines])
    DOCUMENT.write_text(head + begin + text + end + tail, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    running = commands.add_parser("run")
    running.add_argument("packages", nargs="+")
    running.add_argument("--shard", default="0/1", help="I/N: every N-th class from the I-th on")
    running.add_argument("--to", type=Path, required=True)
    writing = commands.add_parser("write")
    writing.add_argument("files", nargs="+", type=Path)
    words = parser.parse_args()
    if words.command == "run":
        first, _, every = words.shard.partition("/")
        run(words.packages, words.to, slice(int(first), None, int(every)))
    else:
        write(words.files)


if __name__ == "__main__":
    main()
