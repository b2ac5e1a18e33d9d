"""Our docstrings say ``Example:`` where the reader of docstrings expects ``Examples:``; it then shows them as code."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object


class PluralExamples(Extension):
    """Rename the section before the docstring is parsed."""

    def on_object(self, *, obj: Object, **kwargs: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = re.sub(r"^Example:", "Examples:", obj.docstring.value, flags=re.MULTILINE)
