"""Write the README's table of clipping rules from the judged table of
``docs/appendix/clipping-tables.md``.

    python docs/tools/readme.py

``tests/docs/test_readme.py`` checks that the README has today's table.
"""

from __future__ import annotations

import re
import runpy
from pathlib import Path

ROOT = Path(__file__).parents[2]
MARKS = ("<!-- clipping: begin -->", "<!-- clipping: end -->")
#: Task of the judged table -> the README's words: noise, faults, none, and signal.
TASKS = {
    "bad targets 2 %, wide": "regression, 2 % of the targets bad",
    "linear, Student t 1.4": "linear, noise of infinite variance",
    "returns, Student t 1.6": "returns, heavy-tailed",
    "twelve classes, faults": "classes, one batch in 50 scaled by 1,000",
    "physics-informed, two waves and a half": "physics-informed, no heavy tail",
    "claims, Pareto 2.7": "claims: large values are the answer",
    "three rare classes": "rare classes, weighted",
}
#: Column of the judged table -> that of the README.
COLUMNS = {
    '`clip="auto"`': '`AdamW(clip="auto")`',
    '`clip="noise"`': '`clip="noise"`',
    '`clip="unit"`': '`clip="unit"`',
    "ACClip": "`ACClip`",
    "best of five clips": "best of five fixed thresholds",
}


def judged() -> list[dict[str, str]]:
    """The rows of the judged table at lr 1e-3."""
    text = (ROOT / "docs" / "appendix" / "clipping-tables.md").read_text(encoding="utf-8")
    table = text.partition("<!-- clipping sixth try judged: begin -->")[2].partition("<!--")[0]
    head, _, *rows = [
        [cell.strip() for cell in line.strip("| ").split(" | ")]
        for line in table.splitlines()
        if line.startswith("|")
    ]
    return [dict(zip(head, row)) for row in rows]


def clipping() -> str:
    """The README's table: the chosen tasks at their full length."""
    found = judged()
    lines = [
        f"| change of the held-out loss, % | {' | '.join(COLUMNS.values())} |",
        f"| --- |{' --- |' * len(COLUMNS)}",
    ]
    for task, words in TASKS.items():
        row = max((r for r in found if r["task"] == task), key=lambda r: int(r["steps"]))
        lines.append(f"| {words} | {' | '.join(row[column] for column in COLUMNS)} |")
    return "\n".join(lines)


def written() -> str:
    """The README with today's table."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    first, last = (re.escape(mark) for mark in MARKS)
    block = f"{MARKS[0]}\n{clipping()}\n{MARKS[1]}"
    return re.sub(f"{first}.*?{last}", lambda _: block, text, flags=re.S)


if __name__ == "__main__":
    (ROOT / "README.md").write_text(written(), encoding="utf-8")
    runpy.run_path(str(Path(__file__).with_name("links.py")))[
        "main"
    ]()  # the README is in a package
