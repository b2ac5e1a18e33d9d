"""The table of probes. The command line, the documentation and the contract tests are fed from it.

Needs no torch: a class is imported when ``load`` is called.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from mindgap.base.names import Loadable
from mindgap.base.source import Source


@dataclass(frozen=True)
class ProbeEntry(Loadable):
    """One probe: its class, what it needs, what it says.

    Example:
        >>> PROBES["sharpness"].needs, str(PROBES["sharpness"].source)
        (('hessian',), 'thesis, (6.2)')
    """

    name: str  # what ``Monitor(probes=[...])`` is given
    #: where the class is.
    class_name: str
    module: str
    needs: tuple[str, ...]  # what the probe asks of the monitor (gradients, hessian, update)
    source: Source  # where the papers have the quantity
    statement: str  # what it measures


def _entry(
    name: str,
    file: str,
    cls: str,
    place: str,
    statement: str,
    *,
    needs: str = "gradients",
    paper: str = "thesis",
) -> ProbeEntry:
    """A row of the table of probes.

    Args:
        file: module of the class, below ``mindgap.measure``.
        cls: its name.
        place, paper: where the paper has the quantity, and which paper.
        needs: what the probe asks of the monitor, separated by spaces.
    """
    module = f"mindgap.measure.{file}"
    return ProbeEntry(name, cls, module, tuple(needs.split()), Source(paper, place), statement)


_ROWS = (
    _entry(
        "noise",
        "probe",
        "NoiseProbe",
        "4.2, Fig. 4-1",
        "loss, gradient norm less its bias, and the spread of minibatch gradients",
    ),
    _entry(
        "sharpness",
        "probes.curvature",
        "SharpnessProbe",
        "(6.2)",
        "largest Hessian eigenvalue and the optimizer's distance to its edge of stability",
        needs="hessian",
    ),
    _entry(
        "smoothness",
        "probes.smoothness",
        "SmoothnessProbe",
        "3.2, Fig. 3-1",
        "how fast the gradient changes along the update, on equal batches",
        needs="gradients update",
    ),
    _entry(
        "statistics",
        "probes.statistics",
        "StatisticsProbe",
        "(6.2), (6.10)",
        "loss, gradient norm, per-sample noise, sharpness, and the balance of (6.10)",
        needs="gradients hessian",
    ),
    _entry(
        "tails",
        "probes.monitored",
        "TailsProbe",
        "App. H",
        "tail index of the gradient noise per coordinate, with an interval",
        paper="acclip",
    ),
    _entry(
        "stationarity",
        "probes.monitored",
        "StationarityProbe",
        "Definition 5.3.1",
        "upper bound on the smallest mean of gradients within a ball",
    ),
    _entry(
        "ergodic",
        "probes.monitored",
        "AverageProbe",
        "6.4, Fig. 6-6",
        "running average of the loss, and its change from reading to reading",
    ),
    _entry(
        "update",
        "probes.update",
        "UpdateProbe",
        "3.3.1",
        "length of the update, absolute and relative to the parameters",
        needs="update",
    ),
)

#: What ``Monitor(probes=[...])`` may name, for type checkers; the keys of ``PROBES``.
ProbeName = Literal[
    "noise",
    "sharpness",
    "smoothness",
    "statistics",
    "tails",
    "stationarity",
    "ergodic",
    "update",
]
PROBES: dict[str, ProbeEntry] = {entry.name: entry for entry in _ROWS}

#: What a monitor runs by default.
DEFAULT_PROBES: tuple[ProbeName, ...] = ("noise", "sharpness", "smoothness", "update")
