"""The table of probes. The command line, the documentation and the contract tests are fed from it.

Needs no torch: a class is imported when ``load`` is called.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any

from mindgap.base.source import Source


@dataclass(frozen=True)
class ProbeEntry:
    """One probe: its class, what it needs, what it says.

    Attributes:
        name: what ``Monitor(probes=[...])`` is given.
        class_name, module: where the class is.
        needs: what the probe asks of the monitor (gradients, hessian, update).
        source: where the papers have the quantity.
        statement: what it measures.

    Example:
        >>> PROBES["sharpness"].needs, str(PROBES["sharpness"].source)
        (('hessian',), 'thesis, (6.2)')
    """

    name: str
    class_name: str
    module: str
    needs: tuple[str, ...]
    source: Source
    statement: str

    def load(self) -> Any:
        """The class."""
        return getattr(import_module(self.module), self.class_name)


#: name, class, file, needs, paper, place, statement
_ROWS = (
    ("noise", "NoiseProbe", "noise", "gradients", "thesis", "4.2, Fig. 4-1",
     "loss, gradient norm less its bias, and the spread of minibatch gradients"),
    ("sharpness", "SharpnessProbe", "curvature", "hessian", "thesis", "(6.2)",
     "largest Hessian eigenvalue and the optimizer's distance to its edge of stability"),
    ("smoothness", "SmoothnessProbe", "smoothness", "gradients update", "thesis", "3.2, Fig. 3-1",
     "how fast the gradient changes along the update, on equal batches"),
    ("statistics", "StatisticsProbe", "statistics", "gradients hessian", "thesis", "(6.2), (6.10)",
     "loss, gradient norm, per-sample noise, sharpness, and the balance of (6.10)"),
    ("tails", "TailsProbe", "monitored", "gradients", "acclip", "App. H",
     "tail index of the gradient noise per coordinate, with an interval"),
    ("stationarity", "StationarityProbe", "monitored", "gradients", "thesis", "Definition 5.3.1",
     "upper bound on the smallest mean of gradients within a ball"),
    ("ergodic", "AverageProbe", "monitored", "gradients", "thesis", "6.4, Fig. 6-6",
     "running average of the loss, and its change from reading to reading"),
    ("update", "UpdateProbe", "update", "update", "thesis", "3.3.1",
     "length of the update, absolute and relative to the parameters"),
)  # fmt: skip

PROBES: dict[str, ProbeEntry] = {
    name: ProbeEntry(name, cls, f"mindgap.measure.probes.{file}", tuple(needs.split()), Source(paper, place), statement)
    for name, cls, file, needs, paper, place, statement in _ROWS
}

#: What a monitor runs unless it is told otherwise.
DEFAULT_PROBES = ("noise", "sharpness", "smoothness", "update")
