"""The guide's table of probes is the library's."""

from __future__ import annotations

import re
from pathlib import Path

from mindgap.measure.table import PROBES

GUIDE = (Path(__file__).parents[2] / "docs" / "measure.md").read_text()


def test_table_of_probes_is_the_program_s() -> None:
    inside = re.search(r"<!-- probes: begin -->\n(.*?)<!-- probes: end -->", GUIDE, re.DOTALL)
    assert inside is not None
    rows = [
        f"| `{e.name}` | {', '.join(e.needs)} | {e.statement} | {e.source} |"
        for e in PROBES.values()
    ]
    assert inside[1].strip().splitlines()[2:] == rows
