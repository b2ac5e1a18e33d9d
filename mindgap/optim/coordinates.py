"""What CClip and ACClip share: counting coordinates for the report."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from mindgap.base.tensors import robust_norm
from mindgap.optim.optimizer import Batch, RuleOptimizer


class CoordinateOptimizer(RuleOptimizer):
    """A rule that treats every coordinate by itself. Not for direct use."""

    _joint = False
    _reports_norm = True
    #: Under which name the share of clipped coordinates stands in the report.
    _counts_as = "coordinates"

    @contextmanager
    def _counting(self, batches: list[Batch]) -> Iterator[Callable[[list[Tensor], Tensor], None]]:
        """Collect clipped entries and norms of updates block by block, and note them at the end."""
        counts: list[Tensor] = []
        moved: list[Tensor] = []

        def count(clipped: list[Tensor], length: Tensor) -> None:
            counts.append(torch.stack([c.sum() for c in clipped]).sum())
            moved.append(length)

        yield count
        if counts:
            device = counts[0].device
            total = sum(p.numel() for batch in batches for p in batch.params)
            share: Any = torch.stack([c.to(device) for c in counts]).sum().double() / total
            update = robust_norm([n.to(device) for n in moved], wide=True)
            self._note(update=update, **{self._counts_as: share})
