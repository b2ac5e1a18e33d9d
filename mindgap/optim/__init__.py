"""Optimizers for anybody's training loop.

``OPTIMIZERS`` lists them without importing torch; every other name imports it when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mindgap.base.lazy import lazy_names
from mindgap.optim.table import OPTIMIZERS

if TYPE_CHECKING:
    from mindgap.optim.averaging import k_weighted_average, k_weighted_avg_fn
    from mindgap.optim.optimizer import Ball, Box, PowerSchedule, RuleOptimizer
    from mindgap.optim.optimizers.acclip import ACClip
    from mindgap.optim.optimizers.adamw import AdamW
    from mindgap.optim.optimizers.cclip import CClip
    from mindgap.optim.optimizers.gclip import GClip
    from mindgap.optim.optimizers.ingd import INGD, SearchResult
    from mindgap.optim.optimizers.normalized_sgd import NormalizedSGD
    from mindgap.optim.optimizers.sgd import SGD
    from mindgap.optim.optimizers.stochastic_ingd import StochasticINGD
    from mindgap.optim.report import Report, Spike

_WHERE = {"OPTIMIZERS": "table"} | {
    entry.class_name: f"optimizers.{entry.name}" for entry in OPTIMIZERS.values()
}
__getattr__, __dir__ = lazy_names(__name__, _WHERE)
__all__ = __dir__()
