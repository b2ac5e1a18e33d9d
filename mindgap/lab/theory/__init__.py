"""The papers' theorems as running code.

For each theorem: its assumptions as a record of constants, the step sizes as a function of them, the bound as a
function, the hard instance where there is one, and its place. One package a chapter, one file a theorem::

    theory/chapter3/thm_3_4_1.py        theory/chapter4/lemma_4_7_9.py

``THEOREMS`` lists them all and needs neither torch nor numpy. An optimizer never reads this package.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mindgap.base.lazy import lazy_names
from mindgap.lab.theory import chapter2, chapter3, chapter4, chapter5, chapter6

if TYPE_CHECKING:
    from mindgap.lab.theory.assumptions import BoundedNoise as BoundedNoise
    from mindgap.lab.theory.assumptions import CoordinateMoment as CoordinateMoment
    from mindgap.lab.theory.assumptions import HeavyTail as HeavyTail
    from mindgap.lab.theory.assumptions import RelaxedSmooth as RelaxedSmooth
    from mindgap.lab.theory.assumptions import StronglyConvexMoment as StronglyConvexMoment
    from mindgap.lab.theory.chapter2 import *  # noqa: F403
    from mindgap.lab.theory.chapter3 import *  # noqa: F403
    from mindgap.lab.theory.chapter4 import *  # noqa: F403
    from mindgap.lab.theory.chapter5 import *  # noqa: F403
    from mindgap.lab.theory.chapter6 import *  # noqa: F403
    from mindgap.lab.theory.noise import Bounded as Bounded
    from mindgap.lab.theory.noise import Gaussian as Gaussian
    from mindgap.lab.theory.noise import NoiseLaw as NoiseLaw
    from mindgap.lab.theory.noise import Stable as Stable
    from mindgap.lab.theory.noise import Student as Student
    from mindgap.lab.theory.noise import SymmetricPareto as SymmetricPareto
    from mindgap.lab.theory.noise import TwoPoint as TwoPoint
    from mindgap.lab.theory.table import THEOREMS as THEOREMS
    from mindgap.lab.theory.theorem import Theorem as Theorem

_WHERE = {
    "THEOREMS": "table",
    "Theorem": "theorem",
    **dict.fromkeys(("RelaxedSmooth", "BoundedNoise", "HeavyTail", "StronglyConvexMoment", "CoordinateMoment"),
                    "assumptions"),
    **dict.fromkeys(("NoiseLaw", "Gaussian", "Student", "SymmetricPareto", "Stable", "TwoPoint", "Bounded"), "noise"),
    # A chapter's package resolves its own names, so that chapters can grow apart.
    **{name: c.__name__.rpartition(".")[2] for c in (chapter2, chapter3, chapter4, chapter5, chapter6)
       for name in c.NAMES},
}

__getattr__, __dir__ = lazy_names(__name__, _WHERE)
__all__ = __dir__()
