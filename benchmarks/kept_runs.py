"""A benchmark of many small runs: makes the missing ones, keeps one line per run, writes the
table into pages.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from drop_in import with_table

Key = tuple[Any, ...]


def read(folder: Path, name: str) -> dict[Key, float]:
    """The losses in ``folder/name.jsonl``; a key holds the other fields of a line in their
    order.
    """
    file = folder / f"{name}.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    return {
        tuple(value for field, value in row.items() if field != "loss"): row["loss"] for row in rows
    }


def main(
    words: str | None,
    name: str,
    fields: tuple[str, ...],
    keys: Iterable[Key],
    train: Callable[..., float],
    table: Callable[[Path], str],
) -> None:
    """The command line of such a benchmark.

    Args:
        words: its help text.
        name: of its records and of its table's marks.
        fields: what the parts of a key are called.
        keys: one per run.
        train: makes one run and returns its loss.
        table: the table of the records in a folder.
    """
    parser = argparse.ArgumentParser(
        description=words, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("out"))
    parser.add_argument("--table", type=Path, help="print the table of the records in this folder")
    parser.add_argument(
        "--docs", type=Path, nargs="+", default=[], help="with --table: pages to write it into"
    )
    args = parser.parse_args()
    if args.table is None:
        torch.set_num_threads(1)
        args.out.mkdir(parents=True, exist_ok=True)
        known = read(args.out, name)
        with (args.out / f"{name}.jsonl").open("a") as file:
            for key in keys:
                if key not in known:
                    file.write(json.dumps({**dict(zip(fields, key)), "loss": train(*key)}) + "\n")
                    file.flush()
    print(table(args.table or args.out))
    for path in args.docs:
        path.write_text(with_table(path, name, table(args.table or args.out)))
