"""The track record of the doctor, written into ``docs/doctor.md`` from the committed records."""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

BEGIN, END = "<!-- track record: begin -->", "<!-- track record: end -->"
#: Records -> their column. The second one is no longer independent: repairs came between.
PARTS = {
    "judged": "held out, first judgement",
    "judged_again": "held out, after the repairs",
    "development": "development",
}
#: Causes whose cure is not a change of the run: evaluation, split, length, another model.
NO_CURE = (
    "leakage",
    "dropout_in_evaluation",
    "overfitting",
    "underfitting",
    "repeated_batches",
)

Row = dict[str, Any]


def read(path: Path) -> list[Row]:
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def interval(k: int, n: int, z: float = 1.96) -> tuple[float, float]:
    """Wilson's 95 % interval of a share.

    Example:
        >>> [round(v, 2) for v in interval(9, 10)]
        [0.6, 0.98]
    """
    if n == 0:
        return 0.0, 1.0
    p = k / n
    middle = (p + z * z / (2 * n)) / (1 + z * z / n)
    reach = z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return max(0.0, middle - reach), min(1.0, middle + reach)


def share(k: int, n: int) -> str:
    if n == 0:
        return "–"
    low, high = interval(k, n)
    return f"{k} of {n} = {100 * k / n:.0f} % [{100 * low:.0f}, {100 * high:.0f}]"


def first(row: Row) -> str:
    """What was answered: a cause, ``healthy`` or ``cannot tell``."""
    if row["verdict"] != "sick":
        return str(row["verdict"])
    return str(row["answers"][0])


def rates(rows: list[Row]) -> list[tuple[str, str]]:
    """The rates of one part, as text."""
    sick = [r for r in rows if r["cause"] != "healthy"]
    odd = [r for r in rows if r["cause"] == "healthy"]
    hit = [r for r in sick if first(r) == r["cause"]]
    listed = [r for r in sick if r["verdict"] != "healthy" and r["cause"] in r["answers"][:3]]
    among = [r for r in listed if r["verdict"] == "sick"]
    curable = [r for r in sick if r["cause"] not in NO_CURE]
    seconds = sorted(r["cpu_seconds"] for r in rows)
    found = [
        ("planted cause named first", share(len(hit), len(sick))),
        ("planted cause among the first three", share(len(among), len(sick))),
        ("the same, also where it cannot tell and lists three", share(len(listed), len(sick))),
        ("called sick, whatever the cause", share(_count(sick, "sick"), len(sick))),
        ("false alarm on an odd but healthy run", share(_count(odd, "sick"), len(odd))),
        ("odd but healthy run called healthy", share(_count(odd, "healthy"), len(odd))),
        (
            "proposed cure helps on a copy (causes that have one)",
            share(sum(r["helps"] for r in curable), len(curable)),
        ),
    ]
    if seconds:
        found.append(
            (
                "CPU seconds per case: median, longest",
                f"{seconds[len(seconds) // 2]:.1f}, {seconds[-1]:.1f}",
            )
        )
    return found


def _count(rows: list[Row], verdict: str) -> int:
    return sum(r["verdict"] == verdict for r in rows)


def table(folder: Path) -> str:
    """Everything between the marks of the document."""
    parts = {name: read(folder / f"{part}.jsonl") for part, name in PARTS.items()}
    columns = {name: rates(rows) for name, rows in parts.items() if rows}
    lines = [f"| | {' | '.join(columns)} |", "|---|" + "---|" * len(columns)]
    for i, (label, _) in enumerate(next(iter(columns.values()), [])):
        lines.append(f"| {label} | {' | '.join(c[i][1] for c in columns.values())} |")
    text = ["\n".join(lines)]
    for name, rows in parts.items():
        wrong = [r for r in rows if first(r) != r["cause"]]
        if not wrong:
            continue
        text.append(f"\nWhat it gets wrong, {name}:\n")
        head = ["| case | planted | answer | cure helps |", "|---|---|---|---|"]
        body = [
            f"| {r['name']} | {r['cause']} | {first(r)} | {'yes' if r['helps'] else 'no'} |"
            for r in wrong
        ]
        text.append("\n".join([*head, *body]))
    rows = [r for name in ("judged", "development") for r in parts[PARTS[name]]]
    text.append(
        "\nConfusion, first judgement and development (planted cause: answers, right one first):\n"
    )
    head = ["| planted | cases | answers |", "|---|---|---|"]
    body = []
    for cause in sorted({r["cause"] for r in rows}):
        own = [r for r in rows if r["cause"] == cause]
        counts = Counter(map(first, own)).most_common()
        counts.sort(key=lambda pair: pair[0] != cause)
        words = ", ".join(f"{answer} {n}" for answer, n in counts)
        body.append(f"| {cause} | {len(own)} | {words} |")
    text.append("\n".join([*head, *body]))
    return "\n".join(text)


def written(page: Path, folder: Path) -> str:
    """The document with the table of the records."""
    before, _, later = page.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = later.partition(END)
    from drawn_record import written as rest

    return rest(f"{before}{BEGIN}\n\n{table(folder)}\n\n{END}{after}", folder)
