"""Shared by all tests: ``tests/`` on the path (for ``cases`` and ``references``), one thread, fresh seeds."""

from __future__ import annotations

import random
import signal
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

# A shell that starts the tests in the background has them ignore Ctrl-C, and every process they start inherits that;
# the tests of Ctrl-C need it as a person at a terminal has it.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _fresh_seeds() -> None:
    """Every test starts from the same random state, whatever ran before it."""
    random.seed(0)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(0)
    if "torch" in sys.modules:
        torch = sys.modules["torch"]
        torch.manual_seed(0)
        torch.set_num_threads(1)
