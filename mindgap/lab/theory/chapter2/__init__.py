"""Chapter 2: gradient methods on the textbook's classes."""

from mindgap.base.checked import check_package
from mindgap.lab.theory.chapter2.fig_2_1 import (
    lmi_rate,
    pep_gap,
    pep_missing,
    proved_rate,
    quadratic_rate,
)
from mindgap.lab.theory.chapter2.fig_2_3 import RareLargeLoss, online_regret
from mindgap.lab.theory.chapter2.section_2_1 import (
    Chain,
    SmoothConvex,
    gd_convex_gap,
    gd_gap_printed,
    iteration_bound,
    iterations,
    nesterov_convex_gap,
    nesterov_gap,
    worst_gap,
)

check_package(__name__)
