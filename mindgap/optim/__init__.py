"""Optimizers for anybody's training loop.

``OPTIMIZERS`` lists them without importing torch; every other name imports it when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mindgap.optim.averaging import (
        k_weighted_average as k_weighted_average,
        k_weighted_avg_fn as k_weighted_avg_fn,
    )
    from mindgap.optim.optimizer import (
        Ball as Ball,
        Box as Box,
        PowerSchedule as PowerSchedule,
        RuleOptimizer as RuleOptimizer,
    )
    from mindgap.optim.optimizers.acclip import ACClip as ACClip
    from mindgap.optim.optimizers.adamw import AdamW as AdamW
    from mindgap.optim.optimizers.cclip import CClip as CClip
    from mindgap.optim.optimizers.gclip import GClip as GClip
    from mindgap.optim.optimizers.ingd import INGD as INGD, SearchResult as SearchResult
    from mindgap.optim.optimizers.normalized_sgd import NormalizedSGD as NormalizedSGD
    from mindgap.optim.optimizers.sgd import SGD as SGD
    from mindgap.optim.optimizers.stochastic_ingd import StochasticINGD as StochasticINGD
    from mindgap.optim.report import Report as Report, Spike as Spike
    from mindgap.optim.table import OPTIMIZERS as OPTIMIZERS
else:
    from mindgap.base.names import lazy_names

    _WHERE = {
        "ACClip": "optimizers.acclip",
        "AdamW": "optimizers.adamw",
        "Ball": "optimizer",
        "Box": "optimizer",
        "CClip": "optimizers.cclip",
        "GClip": "optimizers.gclip",
        "INGD": "optimizers.ingd",
        "NormalizedSGD": "optimizers.normalized_sgd",
        "OPTIMIZERS": "table",
        "PowerSchedule": "optimizer",
        "Report": "report",
        "RuleOptimizer": "optimizer",
        "SGD": "optimizers.sgd",
        "SearchResult": "optimizers.ingd",
        "Spike": "report",
        "StochasticINGD": "optimizers.stochastic_ingd",
        "k_weighted_average": "averaging",
        "k_weighted_avg_fn": "averaging",
    }
    __getattr__, __dir__ = lazy_names(__name__, _WHERE)
    __all__ = __dir__()
