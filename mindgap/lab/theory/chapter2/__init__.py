"""Chapter 2: gradient methods on the textbook's classes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mindgap.base.lazy import lazy_names

if TYPE_CHECKING:
    from mindgap.lab.theory.chapter2.fig_2_1 import lmi_rate as lmi_rate
    from mindgap.lab.theory.chapter2.fig_2_1 import pep_gap as pep_gap
    from mindgap.lab.theory.chapter2.fig_2_1 import pep_missing as pep_missing
    from mindgap.lab.theory.chapter2.fig_2_1 import proved_rate as proved_rate
    from mindgap.lab.theory.chapter2.fig_2_1 import quadratic_rate as quadratic_rate
    from mindgap.lab.theory.chapter2.fig_2_3 import RareLargeLoss as RareLargeLoss
    from mindgap.lab.theory.chapter2.fig_2_3 import online_regret as online_regret
    from mindgap.lab.theory.chapter2.quadratics import SmoothConvex as SmoothConvex
    from mindgap.lab.theory.chapter2.quadratics import iterations as iterations
    from mindgap.lab.theory.chapter2.quadratics import worst_gap as worst_gap
    from mindgap.lab.theory.chapter2.table_2_1 import Chain as Chain
    from mindgap.lab.theory.chapter2.table_2_1 import gd_convex_gap as gd_convex_gap
    from mindgap.lab.theory.chapter2.table_2_1 import gd_distance as gd_distance
    from mindgap.lab.theory.chapter2.table_2_1 import gd_gap_printed as gd_gap_printed
    from mindgap.lab.theory.chapter2.table_2_1 import iteration_bound as iteration_bound
    from mindgap.lab.theory.chapter2.table_2_1 import nesterov_convex_gap as nesterov_convex_gap
    from mindgap.lab.theory.chapter2.table_2_1 import nesterov_gap as nesterov_gap

#: Public name -> module of this package.
NAMES: dict[str, str] = {
    **dict.fromkeys(("SmoothConvex", "worst_gap", "iterations"), "quadratics"),
    **dict.fromkeys(("gd_distance", "gd_gap_printed", "gd_convex_gap", "nesterov_gap", "nesterov_convex_gap",
                     "iteration_bound", "Chain"), "table_2_1"),
    **dict.fromkeys(("pep_missing", "quadratic_rate", "proved_rate", "lmi_rate", "pep_gap"), "fig_2_1"),
    **dict.fromkeys(("RareLargeLoss", "online_regret"), "fig_2_3"),
}

__getattr__, __dir__ = lazy_names(__name__, NAMES)
