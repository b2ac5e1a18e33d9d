"""Chapter 5: non-differentiable, non-convex optimization."""

from mindgap.base.checked import check_package
from mindgap.lab.theory.chapter5.adversaries import (
    Defeat,
    GradientAdversary,
    LipschitzClass,
    OutOfCalls,
    ValueAdversary,
    gradient_call_bound,
    plateau_function,
    resisting_function,
    separated_pair,
)
from mindgap.lab.theory.chapter5.ingd import (
    NonsmoothTarget,
    StochasticRule,
    StochasticTarget,
    deterministic_rule,
    direction_square_bound,
    ingd_calls_printed,
    ingd_gradient_calls,
    ingd_inner_steps,
    ingd_outer_steps,
    mean_direction_bound,
    one_inner_step_radius,
    smooth_target,
    stochastic_rule,
)
from mindgap.lab.theory.chapter5.stationarity import (
    PiecewiseLinear,
    directional_derivative,
    path_integral,
    stationarity_radius,
)

check_package(__name__)
