"""The hospital: training runs whose cause of illness is known, and odd ones that are healthy.

A case is a name, a cause (a key of ``mindgap.advise.doctor.causes.CAUSES``, or ``healthy``) and a
function that builds what ``mindgap examine`` takes. The split was fixed before any threshold of the
doctor: a case is *judged* (held out) if its name's hash falls below 40 %, else it is for
*development*.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

#: Share of the cases that are kept for judging.
JUDGED = 0.4
#: Named in the hash; a redraw changes it, and the document says why.
DRAW = "first"

Build = Callable[[], dict[str, Any]]


@dataclass(frozen=True)
class Case:
    """One training run."""

    name: str
    cause: str  # the planted cause, or "healthy"
    build: Build

    @property
    def judged(self) -> bool:
        digest = hashlib.blake2b(f"{DRAW}:{self.name}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big") / 2**64 < JUDGED

    @property
    def part(self) -> str:
        return "judged" if self.judged else "development"


CASES: dict[str, Case] = {}


def case(name: str, cause: str) -> Callable[[Build], Build]:
    """Add a function to the hospital."""

    def add(build: Build) -> Build:
        assert name not in CASES, name
        CASES[name] = Case(name, cause, build)
        return build

    return add


def all_cases() -> dict[str, Case]:
    """Every case by its name."""
    import odd  # noqa: F401
    import sick_code  # noqa: F401
    import sick_data  # noqa: F401
    import sick_settings  # noqa: F401

    return CASES
