"""Chapter 5: non-differentiable, non-convex optimization."""

from mindgap.base.checked import check_package
from mindgap.lab.theory.chapter5.piecewise import PiecewiseLinear
from mindgap.lab.theory.chapter5.prop_5_3_1 import (
    directional_derivative,
    gradient_norm_bound,
    path_integral,
    stationarity_radius,
)
from mindgap.lab.theory.chapter5.thm_5_3_1 import Defeat, LipschitzClass, OutOfCalls, ValueAdversary, resisting_function
from mindgap.lab.theory.chapter5.thm_5_4_1 import (
    NonsmoothTarget,
    direction_square_bound,
    ingd_beta,
    ingd_calls_printed,
    ingd_gradient_calls,
    ingd_inner_steps,
    ingd_outer_steps,
    one_inner_step_radius,
)
from mindgap.lab.theory.chapter5.thm_5_5_1 import (
    StochasticRule,
    StochasticTarget,
    mean_direction_bound,
    mean_distance_bound,
    printed_rule,
    stochastic_rule,
    three_terms,
)
from mindgap.lab.theory.chapter5.thm_5_5_2 import (
    GradientAdversary,
    gradient_call_bound,
    plateau_function,
    separated_pair,
)

check_package(__name__)
