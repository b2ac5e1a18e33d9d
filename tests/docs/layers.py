"""The picture of the layers in docs/house.md, drawn from the real import graph.

``python tests/docs/layers.py`` writes it anew; a test compares.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "house.md"
BEGIN, END = "<!-- layers: begin -->\n```text\n", "```\n<!-- layers: end -->"
#: From the top down; rooms of one line never import each other.
LAYERS = (("cli",), ("lab.studies", "lab.report"), ("lab.tasks",), ("lab.theory",), ("advise", "adapters"),
          ("optim", "measure", "bilevel"), ("rules",), ("base",), ("record",))


def edges() -> dict[str, set[str]]:
    """Room -> rooms that it imports."""
    import grimp

    graph = grimp.build_graph("mindgap", cache_dir=None)
    rooms = [room for layer in LAYERS for room in layer]

    def room_of(module: str) -> str | None:
        return next((room for room in rooms if f"{module}.".startswith(f"mindgap.{room}.")), None)

    found: dict[str, set[str]] = {room: set() for room in rooms}
    for module in graph.modules:
        source = room_of(module)
        for target in graph.find_modules_directly_imported_by(module):
            room = room_of(target)
            if source is not None and room is not None and room != source:
                found[source].add(room)
    return found


def picture() -> str:
    """One line per room, layers apart, with the rooms below that it uses."""
    uses = edges()
    order = [room for layer in LAYERS for room in layer]
    lines = []
    for layer in LAYERS:
        if layer == ("advise", "adapters"):
            lines.append("---- above: the laboratory; below: the library ----")
        for room in layer:
            below = ", ".join(sorted(uses[room], key=order.index)) or "(nothing)"
            lines.append(f"{room:<12} uses  {below}")
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def written() -> str:
    """The picture that the page shows."""
    found = re.search(re.escape(BEGIN) + r"(.*?)" + re.escape(END), PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    return found[1]


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    text = PAGE.read_text(encoding="utf-8").replace(BEGIN + written() + END, BEGIN + picture() + END)
    PAGE.write_text(text, encoding="utf-8")
