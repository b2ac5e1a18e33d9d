"""From measurements to advice: which assumption fails, what helps, and which optimizer wins on
your problem.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mindgap.advise.candidates import MuonWithAdamW as MuonWithAdamW
    from mindgap.advise.diagnosis import (
        ASSUMPTIONS as ASSUMPTIONS,
        Estimate as Estimate,
        Judgement as Judgement,
        Measurements as Measurements,
        diagnose as diagnose,
    )
    from mindgap.advise.doctor.examination import examine as examine
    from mindgap.advise.doctor.monitored import diagnose_run as diagnose_run
    from mindgap.advise.doctor.page import Examination as Examination
    from mindgap.advise.prescription import (
        Advice as Advice,
        prescribe as prescribe,
        summary as summary,
    )
    from mindgap.advise.recommendation import (
        Recommendation as Recommendation,
        recommend as recommend,
    )
else:
    from mindgap.base.names import lazy_names

    _WHERE = {
        "ASSUMPTIONS": "diagnosis",
        "Advice": "prescription",
        "Estimate": "diagnosis",
        "Examination": "doctor.page",
        "Judgement": "diagnosis",
        "Measurements": "diagnosis",
        "MuonWithAdamW": "candidates",
        "Recommendation": "recommendation",
        "diagnose": "diagnosis",
        "diagnose_run": "doctor.monitored",
        "examine": "doctor.examination",
        "prescribe": "prescription",
        "recommend": "recommendation",
        "summary": "prescription",
    }
    __getattr__, __dir__ = lazy_names(__name__, _WHERE)
    __all__ = __dir__()
