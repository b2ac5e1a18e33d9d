"""How long studies take: measured once, shipped with the package, so that estimates need no
earlier run.
"""

from __future__ import annotations

from functools import cache
from importlib import resources


@cache
def reference_times() -> dict[str, float]:
    """Study -> seconds of all its runs at scale quick, one after the other; the file says where and
    when.

    Example:
        >>> reference_times()["e5-cycle"] < 60
        True
    """
    text = (resources.files("mindgap.lab.studies") / "reference_times.txt").read_text(
        encoding="utf-8"
    )
    rows = (line.split() for line in text.splitlines() if not line.startswith("#"))
    return {name: float(seconds) for name, seconds in rows}
