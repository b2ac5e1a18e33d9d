"""Instruments: what a loss surface and its gradient noise are really like."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mindgap.base.lazy import lazy_names

if TYPE_CHECKING:
    from mindgap.measure.gradients import NonFiniteError as NonFiniteError
    from mindgap.measure.gradients import gradient_passes as gradient_passes
    from mindgap.measure.undisturbed import undisturbed as undisturbed

#: Public name -> module below this package that defines it.
_WHERE = {
    "NonFiniteError": "gradients",
    "gradient_passes": "gradients",
    "undisturbed": "undisturbed",
}

__getattr__, __dir__ = lazy_names(__name__, _WHERE)
