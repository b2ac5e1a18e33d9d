"""Chapter 6: training that does not converge to stationary points."""

from __future__ import annotations

from mindgap.base.lazy import lazy_names

#: Public name -> module of this package.
NAMES: dict[str, str] = {}

__getattr__, __dir__ = lazy_names(__name__, NAMES)
