"""From measurements to advice: which assumption fails, what helps, and which optimizer wins on your problem."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mindgap.base.lazy import lazy_names

if TYPE_CHECKING:
    from mindgap.advise.candidates import MuonWithAdamW as MuonWithAdamW
    from mindgap.advise.diagnosis import ASSUMPTIONS as ASSUMPTIONS
    from mindgap.advise.diagnosis import Estimate as Estimate
    from mindgap.advise.diagnosis import Judgement as Judgement
    from mindgap.advise.diagnosis import Measurements as Measurements
    from mindgap.advise.diagnosis import diagnose as diagnose
    from mindgap.advise.prescription import Advice as Advice
    from mindgap.advise.prescription import prescribe as prescribe
    from mindgap.advise.prescription import summary as summary
    from mindgap.advise.recommendation import Recommendation as Recommendation
    from mindgap.advise.recommendation import recommend as recommend

#: Public name -> module below this package that defines it. Diagnosis and prescription need no torch.
_WHERE = {
    **dict.fromkeys(("ASSUMPTIONS", "Estimate", "Judgement", "Measurements", "diagnose"), "diagnosis"),
    **dict.fromkeys(("Advice", "prescribe", "summary"), "prescription"),
    **dict.fromkeys(("Recommendation", "recommend"), "recommendation"),
    "MuonWithAdamW": "candidates",
}

__getattr__, __dir__ = lazy_names(__name__, _WHERE)
__all__ = __dir__()
