"""Problems with known answers or known data. A problem chooses no algorithm."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mindgap.base.lazy import lazy_names

if TYPE_CHECKING:
    from mindgap.tasks.problems.quadratic import Quadratic as Quadratic
    from mindgap.tasks.problems.quadratic import quadratic_problem as quadratic_problem

_WHERE = {
    "Quadratic": "quadratic",
    "quadratic_problem": "quadratic",
}

__getattr__, __dir__ = lazy_names(__name__, _WHERE)
