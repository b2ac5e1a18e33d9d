"""Optimizers for anybody's training loop.

``OPTIMIZERS`` lists them without importing torch; every other name imports it when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mindgap.base.lazy import lazy_names
from mindgap.optim.table import OPTIMIZERS

if TYPE_CHECKING:
    from mindgap.optim.averaging import k_weighted_average as k_weighted_average
    from mindgap.optim.averaging import k_weighted_avg_fn as k_weighted_avg_fn
    from mindgap.optim.optimizer import Ball as Ball
    from mindgap.optim.optimizer import Box as Box
    from mindgap.optim.optimizer import PowerSchedule as PowerSchedule
    from mindgap.optim.optimizer import RuleOptimizer as RuleOptimizer
    from mindgap.optim.optimizers.acclip import ACClip as ACClip
    from mindgap.optim.optimizers.adamw import AdamW as AdamW
    from mindgap.optim.optimizers.cclip import CClip as CClip
    from mindgap.optim.optimizers.gclip import GClip as GClip
    from mindgap.optim.optimizers.ingd import INGD as INGD
    from mindgap.optim.optimizers.ingd import SearchResult as SearchResult
    from mindgap.optim.optimizers.normalized_sgd import NormalizedSGD as NormalizedSGD
    from mindgap.optim.optimizers.sgd import SGD as SGD
    from mindgap.optim.optimizers.stochastic_ingd import StochasticINGD as StochasticINGD
    from mindgap.optim.report import Report as Report
    from mindgap.optim.report import Spike as Spike

_WHERE = {
    "Ball": "optimizer",
    "Box": "optimizer",
    "OPTIMIZERS": "table",
    "PowerSchedule": "optimizer",
    "Report": "report",
    "RuleOptimizer": "optimizer",
    "SearchResult": "optimizers.ingd",
    "Spike": "report",
    "k_weighted_average": "averaging",
    "k_weighted_avg_fn": "averaging",
}
_WHERE |= {entry.class_name: f"optimizers.{entry.name}" for entry in OPTIMIZERS.values()}
__getattr__, __dir__ = lazy_names(__name__, _WHERE)
__all__ = __dir__()
