"""Write down what a study will do before it does it.

``mindgap register STUDY --scale S`` writes rule, sizes, seeds, search space and power into
``registered.json``, named by a hash. ``mindgap run`` and ``mindgap tune`` write that hash into
their records, and a verdict says whether its records carry the hash of today's study.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mindgap.base.check import one_of
from mindgap.record.forms import Registration, read_form, write_form
from mindgap.record.schema import Run, content_hash
from mindgap.record.store import REGISTERED_FILE

if TYPE_CHECKING:
    from mindgap.lab.studies.spec import Study


def content_of(study: Study, scale: str) -> dict[str, Any]:
    """What decides a verdict beside the numbers: changing any of it changes the hash."""
    here = study.at(one_of("scale", scale, study.scales))
    design = study.designs.get(scale)
    return {
        "study": study.name,
        "claim": study.claim,
        "scale": scale,
        "statement": study.statement,
        "rule": study.rule,
        "length": study.lengths.get(scale, ""),
        "settings": {method: here.settings(scale, method) for method in here.methods},
        "seeds": here.seeds(scale),
        "tuned_by": study.tuned_by or study.name,
        "tune_on": study.tune_on,
        "grid": {name: list(values) for name, values in here.grid.items()},
        "tuning_seeds": list(here.tuning_seeds),
        "design": asdict(design) if design else {},
    }


def hash_of(study: Study, scale: str) -> str:
    """Twelve hexadecimal digits that depend on rule, sizes, seeds, search space and design."""
    return content_hash(content_of(study, scale))


def register(study: Study, scale: str, out: Path) -> Registration:
    """Write ``registered.json`` into the folder of records of a study.

    Args:
        study: what will run.
        scale: one of its scales.
        out: the folder of records.

    Raises:
        RuleError: unknown scale.
    """
    from mindgap.lab.studies.run import now, versions

    found = Registration(
        study.name,
        scale,
        content_of(study, scale),
        hash_of(study, scale),
        study.power(scale),
        versions(),
        now(),
    )
    folder = out / study.name / scale
    folder.mkdir(parents=True, exist_ok=True)
    write_form(folder / REGISTERED_FILE, found)
    return found


def registered_hash(folder: Path) -> str:
    """The hash that was written down in a folder of records; empty where there is none."""
    path = folder / REGISTERED_FILE
    return read_form(Registration, path).hash if path.exists() else ""


def registered_words(study: Study, scale: str, runs: Sequence[Run]) -> str:
    """Whether the runs carry the hash of today's rule and sizes; empty for a study without a
    design.
    """
    found = {run.header.registered for run in runs}
    if found == {""}:
        return "not registered before the runs" if scale in study.designs else ""
    if found == {hash_of(study, scale)}:
        return f"registered before the runs ({found.pop()})"
    others = ", ".join(sorted(name or "none" for name in found))
    return f"rule or sizes have changed since the runs, whose records carry the hash {others}"
