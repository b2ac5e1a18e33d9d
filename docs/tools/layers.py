"""Draw ``docs/pictures/layers.svg``: the packages of mindgap by layer, with the imports that the
code really has.

    python docs/tools/layers.py

An arrow from A to B: some module of A imports some module of B. The layers are those of the import
contract in ``pyproject.toml``. A test checks that the picture is up to date.
"""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]
PICTURE = ROOT / "docs" / "pictures" / "layers.svg"
LIBRARY = (
    ("record",),
    ("base",),
    ("rules",),
    ("optim", "measure", "bilevel", "testing"),
    ("advise", "adapters"),
)
LABORATORY = (("lab.theory",), ("lab.tasks",), ("lab.studies", "lab.report"), ("cli",))
PACKAGES = {name for layer in (*LIBRARY, *LABORATORY) for name in layer}
WIDTH, HEIGHT, GAP = 148, 44, 40


def package(module: str) -> str:
    """The package that a module belongs to, as the picture names it; empty for mindgap's own
    front door.
    """
    parts = [part for part in module.split(".")[1:] if not part.startswith("__")]
    name = ".".join(parts[:2] if parts[:1] == ["lab"] else parts[:1])
    return name if name in PACKAGES else ""


def imports() -> set[tuple[str, str]]:
    """Every (importing package, imported package), imports inside functions included."""
    found: set[tuple[str, str]] = set()
    for path in sorted((ROOT / "mindgap").rglob("*.py")):
        here = package(".".join(path.relative_to(ROOT).with_suffix("").parts))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = []
            if isinstance(node, ast.ImportFrom) and not node.level and node.module:
                names = [node.module]
            elif isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            for name in names:
                there = package(name) if name.startswith("mindgap.") else ""
                if here and there and here != there:
                    found.add((here, there))
    return found


def places() -> dict[str, tuple[int, int]]:
    """Package -> left upper corner of its box: the library on the left, the laboratory on the
    right.
    """
    found = {}
    for column, layers in enumerate((LIBRARY, LABORATORY)):
        wide = max(len(layer) for layer in layers)
        left = 30 + column * (3 * (WIDTH + 20) + 60)
        for floor, layer in enumerate(layers):
            y = 60 + (len(LIBRARY) - 1 - floor) * (HEIGHT + GAP)
            start = left + (wide - len(layer)) * (WIDTH + 20) // 2
            found.update({name: (start + n * (WIDTH + 20), y) for n, name in enumerate(layer)})
    return found


def draw() -> str:
    """The picture."""
    where = places()
    arrows = []
    for here, there in sorted(imports()):
        (x1, y1), (x2, y2) = where[here], where[there]
        across = here.startswith(("lab", "cli")) and not there.startswith(("lab", "cli"))
        start = (x1, y1 + HEIGHT // 2) if across else (x1 + WIDTH // 2, y1 + HEIGHT)
        end = (x2 + WIDTH, y2 + HEIGHT // 2) if across else (x2 + WIDTH // 2, y2)
        kind = "across" if across else "down"
        arrows.append(f'<path class="{kind}" d="M{start[0]} {start[1]} L{end[0]} {end[1]}"/>')
    boxes = []
    for name, (x, y) in where.items():
        boxes.append(
            f'<g><rect x="{x}" y="{y}" width="{WIDTH}" height="{HEIGHT}" rx="6"/>'
            f'<text x="{x + WIDTH // 2}" y="{y + 27}" class="name">{name}</text></g>'
        )
    wide = max(x for x, _ in where.values()) + WIDTH + 30
    high = max(y for _, y in where.values()) + HEIGHT + 30
    style = (
        "text{font:13px sans-serif;text-anchor:middle;fill:#333}.name{font-weight:600;fill:#111}"
        "rect{fill:#fff;stroke:#0b5cad}path{fill:none;marker-end:url(#a)}.down{stroke:#0b5cad;opacity:.55}"
        ".across{stroke:#c2410c;opacity:.35}"
    )
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}" role="img" '
            'aria-label="Packages of mindgap by layer; every arrow points to a package that is '
            'imported">',
            f"<style>{style}</style>",
            '<defs><marker id="a" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
            'markerHeight="7" '
            'markerUnits="userSpaceOnUse" orient="auto"><path d="M0 0L8 4L0 8z" '
            'style="fill:#555;marker-end:none"/>'
            "</marker></defs>",
            f'<rect width="{wide}" height="{high}" style="fill:#fafafa;stroke:none"/>',
            f'<text x="{30 + 3 * (WIDTH + 20) // 2}" y="36" class="name">library</text>',
            f'<text x="{90 + 3 * (WIDTH + 20) + WIDTH}" y="36" class="name">laboratory</text>',
            *arrows,
            *boxes,
            "</svg>",
            "",
        ]
    )


def problems() -> list[str]:
    """Imports that point upwards or between packages of one layer: none, or the contract is
    broken.
    """
    order = {name: floor for floor, layer in enumerate((*LIBRARY, *LABORATORY)) for name in layer}
    return [f"{here} imports {there}" for here, there in imports() if order[there] >= order[here]]


if __name__ == "__main__":
    PICTURE.write_text(draw(), encoding="utf-8")
    print(
        f"{PICTURE.relative_to(ROOT)}: {len(imports())} pairs of packages; "
        f"{problems() or 'no import upwards'}"
    )
