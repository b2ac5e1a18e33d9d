"""Follow records while they grow: what is new since the last look, in whole lines."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

from mindgap.record.schema import read_line


class Follower:
    """Reads each record from where the last look ended.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "a.jsonl"
        >>> _ = path.write_text('{"row":{"step":0}}\\n{"row":{"st')
        >>> follower = Follower()
        >>> follower.news(path), follower.news(path)
        ([('row', {'step': 0})], [])
    """

    def __init__(self) -> None:
        self._places: dict[Path, int] = {}

    def news(self, path: Path) -> list[tuple[str, Any]]:
        """The lines added since the last call, as (kind, content); none if the file does not
        exist (yet).
        """
        try:
            with path.open("rb") as file:
                file.seek(self._places.get(path, 0))
                data = file.read()
        except OSError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self._places[path] = self._places.get(path, 0) + len(whole)
        lines = []
        for raw in whole.splitlines():
            with suppress(ValueError):  # read_run names a damaged line
                lines.append(read_line(raw)[:2])
        return lines
