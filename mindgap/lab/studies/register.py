"""Write down what a study will do before it does it.

``mindgap register STUDY --scale S`` writes rule, sizes, seeds, search space and power into
``registered.json``, named by a hash. ``mindgap run`` and ``mindgap tune`` write that hash into
their records, and a verdict says whether its records carry the hash of today's study.
"""

from __future__ import annotations

from pathlib import Path

from mindgap.lab.studies.run import now, versions
from mindgap.lab.studies.spec import Study
from mindgap.record.forms import Registration, write_form
from mindgap.record.schema import content_hash
from mindgap.record.store import REGISTERED_FILE


def register(study: Study, scale: str, out: Path) -> Registration:
    """Write ``registered.json`` into the folder of records of a study; returns what it holds.

    Args:
        study: what will run.
        scale: one of its scales.
        out: the folder of records.

    Raises:
        RuleError: unknown scale.
    """
    content = study.registered_content(scale)
    registration = Registration(
        study.name, scale, content, content_hash(content), study.power(scale), versions(), now()
    )
    folder = out / study.name / scale
    folder.mkdir(parents=True, exist_ok=True)
    write_form(folder / REGISTERED_FILE, registration)
    return registration
