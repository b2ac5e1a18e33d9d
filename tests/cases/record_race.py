"""Two processes that create one record at the same moment, for the tests and for
``benchmarks/faults.py``.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from mindgap.record.store import read_run

WRITER = """
import sys, time
from pathlib import Path
from mindgap.record.schema import End, Header
from mindgap.record.store import RunWriter
folder, at = Path(sys.argv[1]), float(sys.argv[2])
while time.time() < at:
    pass
with RunWriter(folder, Header("study", "S1", "quick", "method", 3, {"lr": 0.1})) as writer:
    for step in range(100):
        writer.row({"step": step})
    writer.end(End("done"))
"""


def race(folder: Path) -> None:
    """Two processes create one record at the same moment: all rows are written once."""
    command = [sys.executable, "-c", WRITER, str(folder), str(time.time() + 0.5)]
    both = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    said = [process.communicate(timeout=60)[1] for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    (path,) = folder.glob("*.jsonl")
    run = read_run(path)
    assert run.done
    assert run.column("step") == list(range(100))
    assert path.read_text().count('{"end"') == 1
