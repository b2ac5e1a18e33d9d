"""The papers' theorems as running code.

Each theorem has its assumptions as a record of constants, its step sizes and its bound as functions
of them, its hard instance where there is one, and its place. One package per chapter; one file per
section or kind of bound.

``THEOREMS`` lists them all and needs neither torch nor numpy. No optimizer reads this package.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mindgap.lab.theory.assumptions import *  # noqa: F403
    from mindgap.lab.theory.chapter2 import *  # noqa: F403
    from mindgap.lab.theory.chapter3 import *  # noqa: F403
    from mindgap.lab.theory.chapter4 import *  # noqa: F403
    from mindgap.lab.theory.chapter5 import *  # noqa: F403
    from mindgap.lab.theory.chapter6 import *  # noqa: F403
    from mindgap.lab.theory.chapter6.network import Network as Network
    from mindgap.lab.theory.noise import *  # noqa: F403
    from mindgap.lab.theory.theorem import THEOREMS as THEOREMS
    from mindgap.lab.theory.theorem import Theorem as Theorem

_NAMES = {
    "theorem": ("THEOREMS", "Theorem"),
    "assumptions": (
        "RelaxedSmooth",
        "BoundedNoise",
        "HeavyTail",
        "StronglyConvexMoment",
        "CoordinateMoment",
    ),
    "chapter6.network": ("Network",),
    "noise": (
        "NoiseLaw",
        "Gaussian",
        "Student",
        "SymmetricPareto",
        "Stable",
        "TwoPoint",
        "Bounded",
    ),
}
_CHAPTERS = ("chapter2", "chapter3", "chapter4", "chapter5", "chapter6")


def __getattr__(name: str) -> Any:
    for part in (*_NAMES, *_CHAPTERS):
        if name in _public(part):
            return getattr(import_module(f"{__name__}.{part}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _public(part: str) -> tuple[str, ...]:
    """Names of a part that belong to the package; a chapter offers what its ``__init__``
    imports.
    """
    if part in _NAMES:
        return _NAMES[part]
    here = f"{__name__}.{part}."
    return tuple(
        n
        for n, v in vars(import_module(here[:-1])).items()
        if n.isupper() or getattr(v, "__module__", "").startswith(here)
    )


def __dir__() -> list[str]:
    return sorted(name for part in (*_NAMES, *_CHAPTERS) for name in _public(part))
