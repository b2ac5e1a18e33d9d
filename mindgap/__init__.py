"""Find out why a PyTorch training run spikes, diverges or stalls, and fix it.

The library, from the lowest layer up (a layer imports the layers below it, never one above):

* ``record`` - the written forms of runs, surveys and studies;
* ``base`` - argument checks, random streams, tensor helpers, objectives, counters;
* ``rules`` - pure update rules on lists of tensors, and their fused kernels;
* ``optim``, ``measure``, ``bilevel`` - optimizers, instruments, bilevel methods; they never import
  each other;
* ``advise``, ``adapters`` - from measurements to advice; Lightning and Hugging Face.

The laboratory (``pip install 'mindgap[lab]'``) uses the library, never the other way round:

* ``lab.theory``, ``lab.tasks``, ``lab.studies``, ``lab.report`` - theorems, problems, studies,
  pages;
* ``cli`` - the command ``mindgap``.

Importing ``mindgap`` imports nothing heavy: ``mindgap list`` and ``mindgap report`` start without
torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mindgap.base.objective import Objective as Objective

__version__ = "0.1.0"

_WINGS = ("optim", "measure", "bilevel")

__all__ = ["Objective", "__version__", *_WINGS]


def __getattr__(name: str) -> Any:
    if name == "Objective":
        return import_module("mindgap.base.objective").Objective
    if name in _WINGS:
        return import_module(f"mindgap.{name}")
    raise AttributeError(f"module 'mindgap' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
