"""Chapter 2: gradient methods on the textbook's classes."""

from mindgap.base.checked import check_package
from mindgap.lab.theory.chapter2.fig_2_1 import lmi_rate, pep_gap, pep_missing, proved_rate, quadratic_rate
from mindgap.lab.theory.chapter2.fig_2_3 import RareLargeLoss, online_regret
from mindgap.lab.theory.chapter2.quadratics import SmoothConvex, iterations, worst_gap
from mindgap.lab.theory.chapter2.table_2_1 import (
    Chain,
    gd_convex_gap,
    gd_distance,
    gd_gap_printed,
    iteration_bound,
    nesterov_convex_gap,
    nesterov_gap,
)

check_package(__name__)
