"""What was written down of a study before its runs, and whether records carry it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

from mindgap.base.check import one_of
from mindgap.record.forms import Registration, read_form
from mindgap.record.schema import Run, content_hash
from mindgap.record.store import REGISTERED_FILE


class Registrable(Protocol):
    """What this module reads of a study (``mindgap.lab.studies.spec.Study``, which uses it)."""

    @property
    def name(self) -> str: ...
    @property
    def claim(self) -> str: ...
    @property
    def statement(self) -> str: ...
    @property
    def rule(self) -> str: ...
    @property
    def tuned_by(self) -> str: ...
    @property
    def tune_on(self) -> str: ...
    @property
    def scales(self) -> Mapping[str, Any]: ...
    @property
    def lengths(self) -> Mapping[str, str]: ...
    @property
    def designs(self) -> Mapping[str, Any]: ...
    def at(self, scale: str) -> Any:
        """The study as it is at one scale."""


def content_of(study: Registrable, scale: str) -> dict[str, Any]:
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


def hash_of(study: Registrable, scale: str) -> str:
    """Twelve hexadecimal digits that depend on rule, sizes, seeds, search space and design."""
    return content_hash(content_of(study, scale))


def registered_hash(folder: Path) -> str:
    """The hash that was written down in a folder of records; empty where there is none."""
    path = folder / REGISTERED_FILE
    return read_form(Registration, path).hash if path.exists() else ""


def registered_words(study: Registrable, scale: str, runs: Sequence[Run]) -> str:
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
