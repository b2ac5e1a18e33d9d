"""Networks. They know nothing of data, losses or optimizers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mindgap.base.lazy import lazy_names

if TYPE_CHECKING:
    from mindgap.lab.tasks.models.small import SmallLSTM as SmallLSTM
    from mindgap.lab.tasks.models.small import SmallTransformer as SmallTransformer
    from mindgap.lab.tasks.models.small import SpanFinder as SpanFinder
    from mindgap.lab.tasks.models.small import small_convolutional_network as small_convolutional_network

_WHERE = dict.fromkeys(("SmallLSTM", "SmallTransformer", "SpanFinder", "small_convolutional_network"), "small")

__all__ = list(_WHERE)
__getattr__, __dir__ = lazy_names(__name__, _WHERE)
