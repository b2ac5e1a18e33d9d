"""Optimization where the textbook's assumptions fail.

The house, from the ground up (a floor uses the floors below it, never one above):

* ``record`` - the written form of a run;
* ``base`` - tensors, randomness, checks, sources, objectives, counts;
* ``rules`` - pure update maps on lists of tensors, and their fused kernels;
* ``optim``, ``measure``, ``bilevel``, ``theory`` - four wings that do not know each other;
* ``tasks``, ``advise``, ``adapters`` - problems to solve, what to do about yours, other people's trainers;
* ``studies`` and ``report`` - make records, make pages;
* ``cli`` - the command ``mindgap``.

Importing ``mindgap`` imports nothing heavy: ``mindgap list`` and ``mindgap report`` start without torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mindgap.base.objective import Objective as Objective

__version__ = "0.1.0"

_WINGS = ("optim", "measure", "bilevel", "theory")

__all__ = ["Objective", "__version__", *_WINGS]


def __getattr__(name: str) -> Any:
    if name == "Objective":
        return import_module("mindgap.base.objective").Objective
    if name in _WINGS:
        return import_module(f"mindgap.{name}")
    raise AttributeError(f"module 'mindgap' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
