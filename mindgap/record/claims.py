"""The order of claims, the same on the page and in every command; standard library only."""

from __future__ import annotations

import re

#: Letter of a claim -> what the group is about, in the order in which everything is listed.
GROUPS = {
    "B": "bilevel",
    "S": "smoothness",
    "H": "heavy tails",
    "N": "kinks",
    "E": "never at rest",
    "T": "textbook",
}


def natural(text: str) -> list[tuple[int, int | str]]:
    """Sort key under which e5 comes before e10.

    Example:
        >>> sorted(["e10-b", "e5-a"], key=natural)
        ['e5-a', 'e10-b']
    """
    return [
        (0, int(part)) if part.isdigit() else (1, part) for part in re.split(r"(\d+)", text) if part
    ]


def claim_order(claim: str, name: str = "") -> tuple[int, list[tuple[int, int | str]]]:
    """Sort key of a claim and its study: by group, then B3 before B10.

    Example:
        >>> sorted(["H11", "T1", "H2", "B10", "B3"], key=claim_order)
        ['B3', 'B10', 'H2', 'H11', 'T1']
    """
    letters = list(GROUPS)
    place = letters.index(claim[0]) if claim[:1] in GROUPS else len(letters)
    return place, natural(f"{claim} {name}")
