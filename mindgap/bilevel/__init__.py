"""Stochastic bilevel methods behind one interface."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mindgap.base.lazy import lazy_names

if TYPE_CHECKING:
    from mindgap.bilevel.problem import BilevelProblem, Bound
    from mindgap.bilevel.sample import FULL, Batches, Sample, Stream

__all__ = ["FULL", "Batches", "BilevelProblem", "Bound", "Sample", "Stream"]

_WHERE = {
    "BilevelProblem": "problem",
    "Bound": "problem",
    "FULL": "sample",
    "Batches": "sample",
    "Sample": "sample",
    "Stream": "sample",
}
__getattr__, __dir__ = lazy_names(__name__, _WHERE)
