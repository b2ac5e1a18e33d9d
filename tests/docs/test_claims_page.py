"""The page of claims and the catalogue of studies name the same studies, each beside its own
claim.
"""

from __future__ import annotations

import re
from pathlib import Path

from mindgap.lab.studies.catalogue import catalogue

PAGE = (Path(__file__).parents[2] / "docs" / "claims.md").read_text()
ROWS = [line for line in PAGE.splitlines() if re.match(r"\| [A-Z]\d", line)]


def ids(row: str) -> set[str]:
    """The claims of a row; "H2 to H6" stands for all between."""
    cell = row.split("|")[1]
    found = set(re.findall(r"[A-Z]\d+", cell))
    for letter, first, last in re.findall(r"([A-Z])(\d+) to \1(\d+)", cell):
        found |= {f"{letter}{n}" for n in range(int(first), int(last) + 1)}
    return found


def test_every_study_stands_beside_its_claim():
    for study in catalogue().values():
        rows = [row for row in ROWS if f"`{study.name}`" in row]
        assert len(rows) == 1, study.name
        assert study.claim in ids(rows[0]), study.name


def test_the_page_names_no_study_that_does_not_exist():
    named = {name for row in ROWS for name in re.findall(r"`([a-z]\d+-[a-z0-9-]+)`", row)}
    assert named == set(catalogue())


def test_every_claim_has_exactly_one_row():
    every = [i for row in ROWS for i in ids(row)]
    assert len(every) == len(set(every))
    families = {"B": 14, "T": 5, "S": 9, "H": 19, "N": 7, "E": 12}
    assert {f: sum(i[0] == f for i in every) for f in families} == families
