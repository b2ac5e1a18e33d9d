"""How the site reads our docstrings: ``Example:`` as a section of code, and comments at fields
as their description.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from griffe import Docstring, Extension, Object


def comment_at(lines: list[str], first: int, last: int) -> str:
    """The comment behind the field that ends on line ``last``, or the ``#:`` lines above line
    ``first`` (from 1).
    """
    behind = re.search(r"  # (.*)", lines[last - 1])
    if behind:
        return behind[1]
    above: list[str] = []
    while first > 1 and (found := re.match(r"\s*#: (.*)", lines[first - 2])):
        above.insert(0, found[1])
        first -= 1
    return " ".join(above)


class PluralExamples(Extension):
    """Rename the section before the docstring is parsed; describe the fields of records by
    their comments.
    """

    def on_object(self, *, obj: Object, **kwargs: Any) -> None:
        if obj.docstring is not None:
            text = re.sub(r"^Example:", "Examples:", obj.docstring.value, flags=re.MULTILINE)
            # Two colons announce an indented block in one markup; in Markdown one is enough.
            obj.docstring.value = re.sub(r"::$", ":", text, flags=re.MULTILINE)
        elif (
            obj.is_attribute
            and obj.parent is not None
            and obj.parent.is_class
            and obj.lineno
            and obj.endlineno
        ):
            lines = Path(str(obj.filepath)).read_text(encoding="utf-8").splitlines()
            if text := comment_at(lines, obj.lineno, obj.endlineno):
                obj.docstring = Docstring(
                    text[0].upper() + text[1:].removesuffix(".") + ".", parent=obj
                )
