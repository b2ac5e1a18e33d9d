"""Find out why a PyTorch training run spikes, diverges or stalls, and fix it.

The library, from the lowest layer up (a layer imports the layers below it, never one above):

* ``record`` - the written forms of runs, surveys and studies;
* ``base`` - argument checks, random streams, tensor helpers, objectives, counters;
* ``rules`` - pure update rules on lists of tensors, and their fused kernels;
* ``optim``, ``measure``, ``bilevel`` - optimizers, instruments, bilevel methods; they never import
  each other;
* ``testing`` - contracts of torch optimizers, for anybody's class;
* ``advise``, ``adapters`` - from measurements to advice; Lightning and Hugging Face.

The laboratory (``pip install 'mindgap[lab]'``) uses the library, never the other way round:

* ``lab.theory``, ``lab.tasks``, ``lab.studies``, ``lab.report`` - theorems, problems, studies,
  pages;
* ``cli`` - the command ``mindgap``.

Importing ``mindgap`` imports nothing heavy: ``mindgap list`` and ``mindgap report`` start without
torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

__version__ = "0.2.0"

if TYPE_CHECKING:
    from mindgap import (
        adapters as adapters,
        advise as advise,
        base as base,
        bilevel as bilevel,
        lab as lab,
        measure as measure,
        optim as optim,
        record as record,
        rules as rules,
    )
    from mindgap.base.objective import Objective as Objective
else:
    from mindgap.base.names import lazy_names

    _MODULES = (
        "adapters",
        "advise",
        "base",
        "bilevel",
        "lab",
        "measure",
        "optim",
        "record",
        "rules",
    )
    _WHERE = {
        "Objective": "base.objective",
    }
    __getattr__, __dir__ = lazy_names(__name__, _WHERE, _MODULES)
    __all__ = ["__version__", *__dir__()]
