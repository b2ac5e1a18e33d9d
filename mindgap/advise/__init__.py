"""From measurements to advice: which assumption fails, what helps, and which optimizer wins on
your problem.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mindgap.base.lazy import lazy_names

if TYPE_CHECKING:
    from mindgap.advise.candidates import MuonWithAdamW
    from mindgap.advise.diagnosis import ASSUMPTIONS, Estimate, Judgement, Measurements, diagnose
    from mindgap.advise.prescription import Advice, prescribe, summary
    from mindgap.advise.recommendation import Recommendation, recommend

# Diagnosis and prescription need no torch.
__getattr__, __dir__ = lazy_names(__name__)
__all__ = __dir__()
