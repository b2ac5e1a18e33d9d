"""The controls of a tutorial over several seeds, as the table of its page.

    python benchmarks/tutorials.py hyper-cleaning --seeds 5

The code is that of the page itself: its first block of Python, whose ``run(seed)`` returns one
number per row.
"""

from __future__ import annotations

import argparse
import re
import time
import warnings
from pathlib import Path
from statistics import mean
from typing import Any

PAGES = Path(__file__).parents[1] / "docs" / "tutorials"


def main() -> None:
    """Print one row per control: the mean over the seeds, then every seed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("page", choices=("hyper-cleaning", "layer-decay", "few-shot"))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first", type=int, default=0)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    text = (PAGES / f"{given.page}.md").read_text(encoding="utf-8")
    found = re.search(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert found is not None
    scope: dict[str, Any] = {"__name__": "__seeds__"}
    exec(compile(found[1], f"{given.page}.md", "exec"), scope)
    rows: dict[str, list[float]] = {}
    begin = time.process_time()
    for seed in range(given.first, given.first + given.seeds):
        for name, value in scope["run"](seed).items():
            rows.setdefault(name, []).append(value)
    for name, values in rows.items():
        print(f"| {name} | {mean(values):.3f} | {', '.join(f'{v:.3f}' for v in values)} |")
    print(f"{(time.process_time() - begin) / given.seeds:.0f} s of processor time per seed")


if __name__ == "__main__":
    main()
