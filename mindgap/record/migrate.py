"""Records from before a change of the written form, read as if they had been written today.

Version 2 added ``wall`` to the end line: the seconds from start to end, evaluation included, from
which costs are estimated. Version 3 added a checksum to every line; the contents stayed the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Content = dict[str, Any]


def _one_to_two(kind: str, content: Content) -> Content:
    return {**content, "wall": None} if kind == "end" else content


#: Version -> what turns a line of that version into one of the next.
STEPS: dict[int, Callable[[str, Content], Content]] = {
    1: _one_to_two,
    2: lambda kind, content: content,
}


def migrate(kind: str, content: Content, version: int, target: int) -> Content:
    """A line's content as version ``target`` has it; the header's ``schema`` follows.

    Example:
        >>> migrate("end", {"outcome": "done", "seconds": 2.0, "message": ""}, 1, 2)["wall"] is None
        True
    """
    for step in range(version, target):
        content = STEPS[step](kind, content)
    return {**content, "schema": target} if kind == "header" else content
