"""Write ``docs/errata.md`` from the records in ``mindgap/lab/theory/errata``.

    python docs/tools/errata.py

Nothing but the records is read; every certificate is run. ``tests/lab/theory/test_errata.py``
compares page and records.
"""

from __future__ import annotations

from pathlib import Path

from mindgap.lab.theory.erratum import ERRATA, KINDS, Erratum, counts

PAGE = Path(__file__).parents[1] / "errata.md"
TITLES = {"slip": "The documents on SLIP", "4": "Chapter 4, and acclip"}


def cell(text: str) -> str:
    """A text in one cell of a table."""
    return text.replace("|", "\\|")


def shown(row: Erratum) -> str:
    """Tests and studies as code; ``(reading)`` where the text alone shows it."""
    parts = [part.strip() for part in row.shown_by.split(",")]
    return ", ".join(
        "(reading)"
        if part == "reading"
        else f"study `{part[6:]}`"
        if part.startswith("study ")
        else f"`{part}`"
        for part in parts
    )


def table(rows: list[Erratum]) -> list[str]:
    """Place, kind, printed, what holds and why, and what shows it."""
    lines = [
        "| place | kind | printed | what holds | why | shown by |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        kind = f"**{row.kind}**" if row.kind == "refuted" else row.kind
        mark = f"certificate `{row.certificate}`, " if row.certificate else ""
        parts = (row.place, kind, row.printed, row.holds, row.derivation)
        lines.append(f"| {' | '.join(cell(part) for part in parts)} | {mark}{shown(row)} |")
    return lines


def certificates() -> list[str]:
    """Every certificate with its instance and its margin."""
    lines = ["| place | counterexample | assumptions checked |", "|---|---|---|"]
    for row in ERRATA:
        if row.certificate:
            found = row.certify()
            met = "; ".join(found.assumptions)
            lines.append(f"| {cell(row.place)} | {cell(found.words())} | {cell(met)} |")
    return lines


def page() -> str:
    """The whole page."""
    kinds = ", ".join(f"{n} *{kind}*" for kind, n in counts().items())
    lines = [
        "# Where the papers disagree with themselves",
        "",
        "Written by `python docs/tools/errata.py` from the records in",
        "`mindgap/lab/theory/errata`; do not edit it by hand. Where statement and proof differ,",
        "the library implements what is proved. *thesis* is J. Zhang's thesis, *acclip* the first",
        "version of the heavy-tailed-noise paper.",
        "",
        f"{len(ERRATA)} places: {kinds}. What the words mean:",
        "",
        *(f"- *{kind}*: {meaning}." for kind, meaning in KINDS.items()),
        "",
        "`mindgap theory refute THEOREM` searches for counterexamples, printed or corrected.",
        "",
    ]
    for chapter in dict.fromkeys(row.chapter for row in ERRATA):
        lines += [f"## {TITLES.get(chapter, f'Chapter {chapter}')}", ""]
        lines += [*table([row for row in ERRATA if row.chapter == chapter]), ""]
    lines += [
        "## Certificates",
        "",
        "Each is a function in `mindgap/lab/theory/certificates` that a test runs. The",
        "counterexample meets every assumption listed beside it. A certificate beside *proof only*",
        "shows that the step fails, not the statement.",
        "",
        *certificates(),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
