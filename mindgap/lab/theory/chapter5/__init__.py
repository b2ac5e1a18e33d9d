"""Chapter 5: non-differentiable, non-convex optimization."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mindgap.base.lazy import lazy_names

if TYPE_CHECKING:
    from mindgap.lab.theory.chapter5.piecewise import PiecewiseLinear as PiecewiseLinear
    from mindgap.lab.theory.chapter5.prop_5_3_1 import directional_derivative as directional_derivative
    from mindgap.lab.theory.chapter5.prop_5_3_1 import gradient_norm_bound as gradient_norm_bound
    from mindgap.lab.theory.chapter5.prop_5_3_1 import path_integral as path_integral
    from mindgap.lab.theory.chapter5.prop_5_3_1 import stationarity_radius as stationarity_radius
    from mindgap.lab.theory.chapter5.thm_5_3_1 import Defeat as Defeat
    from mindgap.lab.theory.chapter5.thm_5_3_1 import LipschitzClass as LipschitzClass
    from mindgap.lab.theory.chapter5.thm_5_3_1 import OutOfCalls as OutOfCalls
    from mindgap.lab.theory.chapter5.thm_5_3_1 import ValueAdversary as ValueAdversary
    from mindgap.lab.theory.chapter5.thm_5_3_1 import resisting_function as resisting_function
    from mindgap.lab.theory.chapter5.thm_5_4_1 import NonsmoothTarget as NonsmoothTarget
    from mindgap.lab.theory.chapter5.thm_5_4_1 import direction_square_bound as direction_square_bound
    from mindgap.lab.theory.chapter5.thm_5_4_1 import ingd_beta as ingd_beta
    from mindgap.lab.theory.chapter5.thm_5_4_1 import ingd_calls_printed as ingd_calls_printed
    from mindgap.lab.theory.chapter5.thm_5_4_1 import ingd_gradient_calls as ingd_gradient_calls
    from mindgap.lab.theory.chapter5.thm_5_4_1 import ingd_inner_steps as ingd_inner_steps
    from mindgap.lab.theory.chapter5.thm_5_4_1 import ingd_outer_steps as ingd_outer_steps
    from mindgap.lab.theory.chapter5.thm_5_4_1 import one_inner_step_radius as one_inner_step_radius
    from mindgap.lab.theory.chapter5.thm_5_5_1 import StochasticRule as StochasticRule
    from mindgap.lab.theory.chapter5.thm_5_5_1 import StochasticTarget as StochasticTarget
    from mindgap.lab.theory.chapter5.thm_5_5_1 import mean_direction_bound as mean_direction_bound
    from mindgap.lab.theory.chapter5.thm_5_5_1 import mean_distance_bound as mean_distance_bound
    from mindgap.lab.theory.chapter5.thm_5_5_1 import printed_rule as printed_rule
    from mindgap.lab.theory.chapter5.thm_5_5_1 import stochastic_rule as stochastic_rule
    from mindgap.lab.theory.chapter5.thm_5_5_1 import three_terms as three_terms
    from mindgap.lab.theory.chapter5.thm_5_5_2 import GradientAdversary as GradientAdversary
    from mindgap.lab.theory.chapter5.thm_5_5_2 import gradient_call_bound as gradient_call_bound
    from mindgap.lab.theory.chapter5.thm_5_5_2 import plateau_function as plateau_function
    from mindgap.lab.theory.chapter5.thm_5_5_2 import separated_pair as separated_pair

#: Public name -> module of this package.
NAMES: dict[str, str] = {
    "PiecewiseLinear": "piecewise",
    **dict.fromkeys(("stationarity_radius", "gradient_norm_bound", "directional_derivative", "path_integral"),
                    "prop_5_3_1"),
    **dict.fromkeys(("LipschitzClass", "ValueAdversary", "Defeat", "OutOfCalls", "resisting_function"), "thm_5_3_1"),
    **dict.fromkeys(("NonsmoothTarget", "ingd_inner_steps", "ingd_outer_steps", "ingd_calls_printed",
                     "ingd_gradient_calls", "ingd_beta", "direction_square_bound", "one_inner_step_radius"),
                    "thm_5_4_1"),
    **dict.fromkeys(("StochasticTarget", "StochasticRule", "stochastic_rule", "printed_rule", "mean_direction_bound",
                     "mean_distance_bound", "three_terms"), "thm_5_5_1"),
    **dict.fromkeys(("GradientAdversary", "gradient_call_bound", "plateau_function", "separated_pair"), "thm_5_5_2"),
}

__getattr__, __dir__ = lazy_names(__name__, NAMES)
