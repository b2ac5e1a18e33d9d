"""The small training loop of ``mindgap.testing``, which the tests of our optimizers share."""

from __future__ import annotations

from mindgap.testing.loop import (
    SHAPES,
    TARGETS,
    assert_same,
    drive,
    loss_of,
    start,
    to_evaluate,
    values,
)

__all__ = [
    "SHAPES",
    "TARGETS",
    "assert_same",
    "drive",
    "loss_of",
    "start",
    "to_evaluate",
    "values",
]
