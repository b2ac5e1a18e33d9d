"""The tables of the drawn hospital, of other tools and of published cases, from the records."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from track_record import NO_CURE, Row, first, rates, read, share

#: Part of the document -> its marks.
MARKS = {
    name: (f"<!-- {name}: begin -->", f"<!-- {name}: end -->")
    for name in ("drawn", "peers", "field")
}
COLUMNS = {
    "drawn-judged-2": "second judged draw",
    "drawn-judged": "first judged draw, an earlier doctor",
    "drawn-development-2": "development draw 2, the same earlier doctor",
    "drawn-development-3": "development draw 3, the same earlier doctor",
    "drawn-development": "development draw 1, an older doctor",
}
#: The draw whose mistakes are listed and on which other tools are run.
JUDGED = "drawn-judged-2"


def drawn(folder: Path) -> str:
    """Rates of both draws, and what the judged one gets wrong."""
    parts = {name: read(folder / f"{part}.jsonl") for part, name in COLUMNS.items()}
    parts = {name: rows for name, rows in parts.items() if rows}
    kept = {name: [r for r in rows if r["kept"]] for name, rows in parts.items()}
    columns = {name: rates(rows) for name, rows in kept.items()}
    lines = [f"| | {' | '.join(columns)} |", "|---|" + "---|" * len(columns)]
    counts = [f"{len(kept[name])} of {len(rows)}" for name, rows in parts.items()]
    lines.append(f"| drafts kept (the truth shows in training) | {' | '.join(counts)} |")
    for i, (label, _) in enumerate(next(iter(columns.values()), [])):
        lines.append(f"| {label} | {' | '.join(c[i][1] for c in columns.values())} |")
    text = ["\n".join(lines)]
    rows = kept.get(COLUMNS[JUDGED], [])
    if not rows:
        text.append("\nThe second judged draw is registered and has not been run.")
        return "\n".join(text)
    wrong = [r for r in rows if first(r) != r["cause"]]
    text.append("\nWhat it gets wrong in the second judged draw:\n")
    head = [
        "| case | data and network | optimizer | answer | listed | cure helps |",
        "|---|---|---|---|---|---|",
    ]
    body = [
        f"| {r['name']} | {r['family']} | {r['optimizer']} | {first(r)} | {_listed(r)} "
        f"| {_cure(r)} |"
        for r in sorted(wrong, key=lambda r: r["name"])
    ]
    text.append("\n".join([*head, *body]))
    useless = [
        r["name"]
        for r in rows
        if r["cause"] not in (*NO_CURE, "healthy") and first(r) == r["cause"] and not r["helps"]
    ]
    if useless:
        text.append(f"\nNamed rightly, without a cure that helps: {', '.join(sorted(useless))}.")
    return "\n".join(text)


def _listed(row: Row) -> str:
    """Is the planted cause among the three that the answer lists?"""
    if row["cause"] == "healthy":
        return "–"
    return "yes" if row["verdict"] != "healthy" and row["cause"] in row["answers"][:3] else "no"


def _cure(row: Row) -> str:
    return "–" if row["cause"] == "healthy" else "yes" if row["helps"] else "no"


def peers(folder: Path) -> str:
    """Other tools and the doctor on the same cases."""
    own = {r["name"]: r for r in read(folder / f"{JUDGED}.jsonl") if r["kept"]}
    rows = [r for r in read(folder / f"peers-{JUDGED}.jsonl") if r["name"] in own]
    names = {r["name"] for r in rows}
    for peer in {r["peer"] for r in rows}:  # only cases that every tool has seen
        names &= {r["name"] for r in rows if r["peer"] == peer}
    if not rows:
        return f"Not run yet: `python benchmarks/doctor/peers.py {JUDGED}`."
    lines = [
        "| tool | calls a sick run sick | names the cause | false alarms | CPU s per case |",
        "|---|---|---|---|---|",
    ]

    def line(name: str, chosen: list[Row], flags: str, named: str) -> str:
        sick = [r for r in chosen if r["cause"] != "healthy"]
        odd = [r for r in chosen if r["cause"] == "healthy"]
        seconds = sorted(r["cpu_seconds"] for r in chosen)
        cells = [
            share(sum(bool(r[flags]) for r in sick), len(sick)),
            share(sum(bool(r[named]) for r in sick), len(sick)),
            share(sum(bool(r[flags]) for r in odd), len(odd)),
            f"{seconds[len(seconds) // 2]:.1f}" if seconds else "–",
        ]
        return f"| {name} | {' | '.join(cells)} |"

    mine = [
        {**r, "flags": r["verdict"] == "sick", "named": first(r) == r["cause"]}
        for r in own.values()
        if r["name"] in names
    ]
    lines.append(line("mindgap examine", mine, "flags", "named"))
    for peer in sorted({r["peer"] for r in rows}):
        chosen = [r for r in rows if r["peer"] == peer and r["name"] in names]
        low = {"torch-audit": ("ERROR", "WARN"), "torchtest2": ("FAIL", "WARN")}[peer]
        lines.append(line(f"{peer}, {low[0]}", chosen, "flags", "named"))
        lines.append(line(f"{peer}, {low[0]} or {low[1]}", chosen, "warns", "warn_named"))
        raised = sum("raised" in r for r in chosen)
        if raised:
            lines.append(f"| {peer}: raised an error | {raised} of {len(chosen)} cases | | | |")
    return "\n".join(lines)


def field(folder: Path) -> str:
    """Published cases: found or not, and why not."""
    from field import CHECKLIST, ROWS

    known: dict[tuple[str, str], Row] = {
        (r["source"], r["name"]): r for r in read(folder / "field.jsonl")
    }
    lines = ["| source | case | what | answer | found |", "|---|---|---|---|---|"]
    for row in ROWS:
        record: dict[str, Any] | None = known.get((row.source, row.name))
        if row.build is None:
            lines.append(
                f"| {row.source} | {row.name} | {row.what} | not rebuilt: {row.why_not} | no |"
            )
        elif record is None:
            lines.append(f"| {row.source} | {row.name} | {row.what} | not examined yet | – |")
        else:
            found = "yes" if record["found"] else "**no**"
            lines.append(f"| {row.source} | {row.name} | {row.what} | {first(record)} | {found} |")
    text = ["\n".join(lines), "\nSageMaker Debugger's rules as a checklist:\n"]
    head = ["| rule | what answers it here |", "|---|---|"]
    text.append("\n".join([*head, *(f"| {rule} | {answer} |" for rule, answer in CHECKLIST)]))
    return "\n".join(text)


def written(text: str, folder: Path) -> str:
    """The document with these three parts from the records; a part without marks stays away."""
    for name, make in (("drawn", drawn), ("peers", peers), ("field", field)):
        begin, end = MARKS[name]
        if begin in text:
            before, _, rest = text.partition(begin)
            _, _, after = rest.partition(end)
            text = f"{before}{begin}\n\n{make(folder)}\n\n{end}{after}"
    return text
