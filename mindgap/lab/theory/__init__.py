"""The papers' theorems as running code.

Each theorem has its assumptions as a record of constants, its step sizes and its bound as functions
of them, its hard instance where there is one, and its place. One package per chapter; one file per
section or kind of bound.

``THEOREMS`` lists them all, ``ERRATA`` what the papers misprint; both need neither torch nor numpy.
No optimizer reads this package.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mindgap.lab.theory.assumptions import BoundedNoise as BoundedNoise
    from mindgap.lab.theory.assumptions import CoordinateMoment as CoordinateMoment
    from mindgap.lab.theory.assumptions import HeavyTail as HeavyTail
    from mindgap.lab.theory.assumptions import RelaxedSmooth as RelaxedSmooth
    from mindgap.lab.theory.assumptions import StronglyConvexMoment as StronglyConvexMoment
    from mindgap.lab.theory.certificate import Certificate as Certificate
    from mindgap.lab.theory.chapter2.fig_2_1 import lmi_rate as lmi_rate
    from mindgap.lab.theory.chapter2.fig_2_1 import pep_gap as pep_gap
    from mindgap.lab.theory.chapter2.fig_2_1 import pep_missing as pep_missing
    from mindgap.lab.theory.chapter2.fig_2_1 import proved_rate as proved_rate
    from mindgap.lab.theory.chapter2.fig_2_1 import quadratic_rate as quadratic_rate
    from mindgap.lab.theory.chapter2.fig_2_3 import RareLargeLoss as RareLargeLoss
    from mindgap.lab.theory.chapter2.fig_2_3 import online_regret as online_regret
    from mindgap.lab.theory.chapter2.section_2_1 import Chain as Chain
    from mindgap.lab.theory.chapter2.section_2_1 import SmoothConvex as SmoothConvex
    from mindgap.lab.theory.chapter2.section_2_1 import gd_convex_gap as gd_convex_gap
    from mindgap.lab.theory.chapter2.section_2_1 import gd_distance as gd_distance
    from mindgap.lab.theory.chapter2.section_2_1 import gd_gap_printed as gd_gap_printed
    from mindgap.lab.theory.chapter2.section_2_1 import iteration_bound as iteration_bound
    from mindgap.lab.theory.chapter2.section_2_1 import iterations as iterations
    from mindgap.lab.theory.chapter2.section_2_1 import nesterov_convex_gap as nesterov_convex_gap
    from mindgap.lab.theory.chapter2.section_2_1 import nesterov_gap as nesterov_gap
    from mindgap.lab.theory.chapter2.section_2_1 import worst_gap as worst_gap
    from mindgap.lab.theory.chapter3.hard_functions import (
        ExponentialQuadratic as ExponentialQuadratic,
    )
    from mindgap.lab.theory.chapter3.hard_functions import HyperbolicCosine as HyperbolicCosine
    from mindgap.lab.theory.chapter3.hard_functions import SlowFunction as SlowFunction
    from mindgap.lab.theory.chapter3.hard_functions import ToothedSlope as ToothedSlope
    from mindgap.lab.theory.chapter3.section_3_2 import DeepLinear as DeepLinear
    from mindgap.lab.theory.chapter3.section_3_2 import Polynomial as Polynomial
    from mindgap.lab.theory.chapter3.section_3_2 import growth_bound as growth_bound
    from mindgap.lab.theory.chapter3.section_3_2 import growth_step as growth_step
    from mindgap.lab.theory.chapter3.section_3_2 import polynomial_l0 as polynomial_l0
    from mindgap.lab.theory.chapter3.section_3_4 import ClippedStep as ClippedStep
    from mindgap.lab.theory.chapter3.section_3_4 import ErrorTerms as ErrorTerms
    from mindgap.lab.theory.chapter3.section_3_4 import (
        StochasticClippedStep as StochasticClippedStep,
    )
    from mindgap.lab.theory.chapter3.section_3_4 import clipped_gd_bound as clipped_gd_bound
    from mindgap.lab.theory.chapter3.section_3_4 import clipped_gd_step as clipped_gd_step
    from mindgap.lab.theory.chapter3.section_3_4 import clipped_sgd_bound as clipped_sgd_bound
    from mindgap.lab.theory.chapter3.section_3_4 import clipped_sgd_step as clipped_sgd_step
    from mindgap.lab.theory.chapter3.section_3_4 import error_terms as error_terms
    from mindgap.lab.theory.chapter3.section_3_4 import fixed_step_count as fixed_step_count
    from mindgap.lab.theory.chapter3.section_3_4 import (
        fixed_step_lower_bound as fixed_step_lower_bound,
    )
    from mindgap.lab.theory.chapter3.section_3_4 import gd_bound as gd_bound
    from mindgap.lab.theory.chapter3.section_3_4 import gd_step as gd_step
    from mindgap.lab.theory.chapter3.section_3_4 import (
        gradient_growth_bound as gradient_growth_bound,
    )
    from mindgap.lab.theory.chapter3.section_3_4 import (
        matching_clipped_step as matching_clipped_step,
    )
    from mindgap.lab.theory.chapter3.section_3_4 import noisy_delta as noisy_delta
    from mindgap.lab.theory.chapter3.section_3_4 import normalized_step as normalized_step
    from mindgap.lab.theory.chapter3.section_3_4 import repaired_lower_bound as repaired_lower_bound
    from mindgap.lab.theory.chapter3.section_3_4 import sgd_bound as sgd_bound
    from mindgap.lab.theory.chapter3.section_3_4 import sgd_step as sgd_step
    from mindgap.lab.theory.chapter4.clipped_gradient import ClippedMoments as ClippedMoments
    from mindgap.lab.theory.chapter4.clipped_gradient import clip_coordinates as clip_coordinates
    from mindgap.lab.theory.chapter4.clipped_gradient import clip_global as clip_global
    from mindgap.lab.theory.chapter4.clipped_gradient import (
        clipped_bias_bound as clipped_bias_bound,
    )
    from mindgap.lab.theory.chapter4.clipped_gradient import clipped_moments as clipped_moments
    from mindgap.lab.theory.chapter4.clipped_gradient import (
        clipped_second_moment_bound as clipped_second_moment_bound,
    )
    from mindgap.lab.theory.chapter4.clipped_gradient import direction_bound as direction_bound
    from mindgap.lab.theory.chapter4.clipped_gradient import (
        gclip_coordinate_bound as gclip_coordinate_bound,
    )
    from mindgap.lab.theory.chapter4.clipped_gradient import norm_moment_lower as norm_moment_lower
    from mindgap.lab.theory.chapter4.clipped_gradient import norm_moment_upper as norm_moment_upper
    from mindgap.lab.theory.chapter4.clipped_gradient import (
        rare_jump_norm_moment as rare_jump_norm_moment,
    )
    from mindgap.lab.theory.chapter4.clipped_gradient import (
        small_gradient_bias_bound as small_gradient_bias_bound,
    )
    from mindgap.lab.theory.chapter4.clipped_gradient import (
        small_gradient_second_moment_bound as small_gradient_second_moment_bound,
    )
    from mindgap.lab.theory.chapter4.clipped_runs import RareJump as RareJump
    from mindgap.lab.theory.chapter4.clipped_runs import averaged_error as averaged_error
    from mindgap.lab.theory.chapter4.clipped_runs import (
        mean_square_gradient as mean_square_gradient,
    )
    from mindgap.lab.theory.chapter4.clipped_runs import (
        weighted_average_runs as weighted_average_runs,
    )
    from mindgap.lab.theory.chapter4.two_quadratics import BernoulliQuadratic as BernoulliQuadratic
    from mindgap.lab.theory.chapter4.two_quadratics import bayes_risk as bayes_risk
    from mindgap.lab.theory.chapter4.two_quadratics import hardest_epsilon as hardest_epsilon
    from mindgap.lab.theory.chapter4.two_quadratics import sgd_iterate as sgd_iterate
    from mindgap.lab.theory.chapter4.two_quadratics import stable_iterate_law as stable_iterate_law
    from mindgap.lab.theory.chapter4.two_quadratics import (
        strongly_convex_lower_bound as strongly_convex_lower_bound,
    )
    from mindgap.lab.theory.chapter4.two_quadratics import success_bound as success_bound
    from mindgap.lab.theory.chapter4.two_quadratics import (
        success_probability as success_probability,
    )
    from mindgap.lab.theory.chapter4.upper_bounds import ConstantClip as ConstantClip
    from mindgap.lab.theory.chapter4.upper_bounds import SmoothMoment as SmoothMoment
    from mindgap.lab.theory.chapter4.upper_bounds import cclip_bound as cclip_bound
    from mindgap.lab.theory.chapter4.upper_bounds import cclip_step as cclip_step
    from mindgap.lab.theory.chapter4.upper_bounds import cclip_threshold as cclip_threshold
    from mindgap.lab.theory.chapter4.upper_bounds import coordinate_moment as coordinate_moment
    from mindgap.lab.theory.chapter4.upper_bounds import gclip_bound as gclip_bound
    from mindgap.lab.theory.chapter4.upper_bounds import (
        gclip_nonconvex_bound as gclip_nonconvex_bound,
    )
    from mindgap.lab.theory.chapter4.upper_bounds import (
        gclip_nonconvex_parameters as gclip_nonconvex_parameters,
    )
    from mindgap.lab.theory.chapter4.upper_bounds import gclip_step as gclip_step
    from mindgap.lab.theory.chapter4.upper_bounds import gclip_threshold as gclip_threshold
    from mindgap.lab.theory.chapter4.upper_bounds import (
        moment_nonconvex_bound as moment_nonconvex_bound,
    )
    from mindgap.lab.theory.chapter4.upper_bounds import (
        moment_nonconvex_parameters as moment_nonconvex_parameters,
    )
    from mindgap.lab.theory.chapter4.zero_chain import ChainOracle as ChainOracle
    from mindgap.lab.theory.chapter4.zero_chain import HardChain as HardChain
    from mindgap.lab.theory.chapter4.zero_chain import ZeroChain as ZeroChain
    from mindgap.lab.theory.chapter4.zero_chain import noise_probability as noise_probability
    from mindgap.lab.theory.chapter4.zero_chain import (
        nonconvex_lower_bound_steps as nonconvex_lower_bound_steps,
    )
    from mindgap.lab.theory.chapter4.zero_chain import prog as prog
    from mindgap.lab.theory.chapter5.adversaries import Defeat as Defeat
    from mindgap.lab.theory.chapter5.adversaries import GradientAdversary as GradientAdversary
    from mindgap.lab.theory.chapter5.adversaries import LipschitzClass as LipschitzClass
    from mindgap.lab.theory.chapter5.adversaries import OutOfCalls as OutOfCalls
    from mindgap.lab.theory.chapter5.adversaries import ValueAdversary as ValueAdversary
    from mindgap.lab.theory.chapter5.adversaries import gradient_call_bound as gradient_call_bound
    from mindgap.lab.theory.chapter5.adversaries import plateau_function as plateau_function
    from mindgap.lab.theory.chapter5.adversaries import resisting_function as resisting_function
    from mindgap.lab.theory.chapter5.adversaries import separated_pair as separated_pair
    from mindgap.lab.theory.chapter5.ingd import NonsmoothTarget as NonsmoothTarget
    from mindgap.lab.theory.chapter5.ingd import StochasticRule as StochasticRule
    from mindgap.lab.theory.chapter5.ingd import StochasticTarget as StochasticTarget
    from mindgap.lab.theory.chapter5.ingd import deterministic_rule as deterministic_rule
    from mindgap.lab.theory.chapter5.ingd import direction_square_bound as direction_square_bound
    from mindgap.lab.theory.chapter5.ingd import ingd_beta as ingd_beta
    from mindgap.lab.theory.chapter5.ingd import ingd_calls_printed as ingd_calls_printed
    from mindgap.lab.theory.chapter5.ingd import ingd_gradient_calls as ingd_gradient_calls
    from mindgap.lab.theory.chapter5.ingd import ingd_inner_steps as ingd_inner_steps
    from mindgap.lab.theory.chapter5.ingd import ingd_outer_steps as ingd_outer_steps
    from mindgap.lab.theory.chapter5.ingd import mean_direction_bound as mean_direction_bound
    from mindgap.lab.theory.chapter5.ingd import mean_distance_bound as mean_distance_bound
    from mindgap.lab.theory.chapter5.ingd import one_inner_step_radius as one_inner_step_radius
    from mindgap.lab.theory.chapter5.ingd import printed_rule as printed_rule
    from mindgap.lab.theory.chapter5.ingd import smooth_target as smooth_target
    from mindgap.lab.theory.chapter5.ingd import stochastic_rule as stochastic_rule
    from mindgap.lab.theory.chapter5.ingd import three_terms as three_terms
    from mindgap.lab.theory.chapter5.stationarity import PiecewiseLinear as PiecewiseLinear
    from mindgap.lab.theory.chapter5.stationarity import (
        directional_derivative as directional_derivative,
    )
    from mindgap.lab.theory.chapter5.stationarity import gradient_norm_bound as gradient_norm_bound
    from mindgap.lab.theory.chapter5.stationarity import path_integral as path_integral
    from mindgap.lab.theory.chapter5.stationarity import stationarity_radius as stationarity_radius
    from mindgap.lab.theory.chapter6.averages import BoundedValues as BoundedValues
    from mindgap.lab.theory.chapter6.averages import InvariantDistribution as InvariantDistribution
    from mindgap.lab.theory.chapter6.averages import block_average as block_average
    from mindgap.lab.theory.chapter6.averages import block_point as block_point
    from mindgap.lab.theory.chapter6.averages import block_symbol as block_symbol
    from mindgap.lab.theory.chapter6.averages import halving_map as halving_map
    from mindgap.lab.theory.chapter6.averages import invariance_defect as invariance_defect
    from mindgap.lab.theory.chapter6.averages import limit_weights as limit_weights
    from mindgap.lab.theory.chapter6.averages import one_step_change as one_step_change
    from mindgap.lab.theory.chapter6.averages import one_step_change_bound as one_step_change_bound
    from mindgap.lab.theory.chapter6.averages import quadratic_invariant as quadratic_invariant
    from mindgap.lab.theory.chapter6.lemma_6_4_2 import Sawtooth as Sawtooth
    from mindgap.lab.theory.chapter6.lemma_6_4_2 import SteepSawtooth as SteepSawtooth
    from mindgap.lab.theory.chapter6.network import Network as Network
    from mindgap.lab.theory.chapter6.weight_decay import (
        CROSS_ENTROPY_LIPSCHITZ as CROSS_ENTROPY_LIPSCHITZ,
    )
    from mindgap.lab.theory.chapter6.weight_decay import DecayedBatchNorm as DecayedBatchNorm
    from mindgap.lab.theory.chapter6.weight_decay import DecayedNetwork as DecayedNetwork
    from mindgap.lab.theory.chapter6.weight_decay import cross_entropy as cross_entropy
    from mindgap.lab.theory.chapter6.weight_decay import cross_entropy_bound as cross_entropy_bound
    from mindgap.lab.theory.chapter6.weight_decay import cross_entropy_peak as cross_entropy_peak
    from mindgap.lab.theory.erratum import ERRATA as ERRATA
    from mindgap.lab.theory.erratum import Erratum as Erratum
    from mindgap.lab.theory.lifted import LiftedChain as LiftedChain
    from mindgap.lab.theory.noise import Bounded as Bounded
    from mindgap.lab.theory.noise import Gaussian as Gaussian
    from mindgap.lab.theory.noise import NoiseLaw as NoiseLaw
    from mindgap.lab.theory.noise import Stable as Stable
    from mindgap.lab.theory.noise import Student as Student
    from mindgap.lab.theory.noise import SymmetricPareto as SymmetricPareto
    from mindgap.lab.theory.noise import TwoPoint as TwoPoint
    from mindgap.lab.theory.theorem import THEOREMS as THEOREMS
    from mindgap.lab.theory.theorem import Theorem as Theorem
else:
    from mindgap.base.names import lazy_names

    _WHERE = {
        "BernoulliQuadratic": "chapter4.two_quadratics",
        "Bounded": "noise",
        "BoundedNoise": "assumptions",
        "BoundedValues": "chapter6.averages",
        "CROSS_ENTROPY_LIPSCHITZ": "chapter6.weight_decay",
        "Certificate": "certificate",
        "Chain": "chapter2.section_2_1",
        "ChainOracle": "chapter4.zero_chain",
        "ClippedMoments": "chapter4.clipped_gradient",
        "ClippedStep": "chapter3.section_3_4",
        "ConstantClip": "chapter4.upper_bounds",
        "CoordinateMoment": "assumptions",
        "DecayedBatchNorm": "chapter6.weight_decay",
        "DecayedNetwork": "chapter6.weight_decay",
        "DeepLinear": "chapter3.section_3_2",
        "Defeat": "chapter5.adversaries",
        "ERRATA": "erratum",
        "Erratum": "erratum",
        "ErrorTerms": "chapter3.section_3_4",
        "ExponentialQuadratic": "chapter3.hard_functions",
        "Gaussian": "noise",
        "GradientAdversary": "chapter5.adversaries",
        "HardChain": "chapter4.zero_chain",
        "HeavyTail": "assumptions",
        "HyperbolicCosine": "chapter3.hard_functions",
        "InvariantDistribution": "chapter6.averages",
        "LiftedChain": "lifted",
        "LipschitzClass": "chapter5.adversaries",
        "Network": "chapter6.network",
        "NoiseLaw": "noise",
        "NonsmoothTarget": "chapter5.ingd",
        "OutOfCalls": "chapter5.adversaries",
        "PiecewiseLinear": "chapter5.stationarity",
        "Polynomial": "chapter3.section_3_2",
        "RareJump": "chapter4.clipped_runs",
        "RareLargeLoss": "chapter2.fig_2_3",
        "RelaxedSmooth": "assumptions",
        "Sawtooth": "chapter6.lemma_6_4_2",
        "SlowFunction": "chapter3.hard_functions",
        "SmoothConvex": "chapter2.section_2_1",
        "SmoothMoment": "chapter4.upper_bounds",
        "Stable": "noise",
        "SteepSawtooth": "chapter6.lemma_6_4_2",
        "StochasticClippedStep": "chapter3.section_3_4",
        "StochasticRule": "chapter5.ingd",
        "StochasticTarget": "chapter5.ingd",
        "StronglyConvexMoment": "assumptions",
        "Student": "noise",
        "SymmetricPareto": "noise",
        "THEOREMS": "theorem",
        "Theorem": "theorem",
        "ToothedSlope": "chapter3.hard_functions",
        "TwoPoint": "noise",
        "ValueAdversary": "chapter5.adversaries",
        "ZeroChain": "chapter4.zero_chain",
        "averaged_error": "chapter4.clipped_runs",
        "bayes_risk": "chapter4.two_quadratics",
        "block_average": "chapter6.averages",
        "block_point": "chapter6.averages",
        "block_symbol": "chapter6.averages",
        "cclip_bound": "chapter4.upper_bounds",
        "cclip_step": "chapter4.upper_bounds",
        "cclip_threshold": "chapter4.upper_bounds",
        "clip_coordinates": "chapter4.clipped_gradient",
        "clip_global": "chapter4.clipped_gradient",
        "clipped_bias_bound": "chapter4.clipped_gradient",
        "clipped_gd_bound": "chapter3.section_3_4",
        "clipped_gd_step": "chapter3.section_3_4",
        "clipped_moments": "chapter4.clipped_gradient",
        "clipped_second_moment_bound": "chapter4.clipped_gradient",
        "clipped_sgd_bound": "chapter3.section_3_4",
        "clipped_sgd_step": "chapter3.section_3_4",
        "coordinate_moment": "chapter4.upper_bounds",
        "cross_entropy": "chapter6.weight_decay",
        "cross_entropy_bound": "chapter6.weight_decay",
        "cross_entropy_peak": "chapter6.weight_decay",
        "deterministic_rule": "chapter5.ingd",
        "direction_bound": "chapter4.clipped_gradient",
        "direction_square_bound": "chapter5.ingd",
        "directional_derivative": "chapter5.stationarity",
        "error_terms": "chapter3.section_3_4",
        "fixed_step_count": "chapter3.section_3_4",
        "fixed_step_lower_bound": "chapter3.section_3_4",
        "gclip_bound": "chapter4.upper_bounds",
        "gclip_coordinate_bound": "chapter4.clipped_gradient",
        "gclip_nonconvex_bound": "chapter4.upper_bounds",
        "gclip_nonconvex_parameters": "chapter4.upper_bounds",
        "gclip_step": "chapter4.upper_bounds",
        "gclip_threshold": "chapter4.upper_bounds",
        "gd_bound": "chapter3.section_3_4",
        "gd_convex_gap": "chapter2.section_2_1",
        "gd_distance": "chapter2.section_2_1",
        "gd_gap_printed": "chapter2.section_2_1",
        "gd_step": "chapter3.section_3_4",
        "gradient_call_bound": "chapter5.adversaries",
        "gradient_growth_bound": "chapter3.section_3_4",
        "gradient_norm_bound": "chapter5.stationarity",
        "growth_bound": "chapter3.section_3_2",
        "growth_step": "chapter3.section_3_2",
        "halving_map": "chapter6.averages",
        "hardest_epsilon": "chapter4.two_quadratics",
        "ingd_beta": "chapter5.ingd",
        "ingd_calls_printed": "chapter5.ingd",
        "ingd_gradient_calls": "chapter5.ingd",
        "ingd_inner_steps": "chapter5.ingd",
        "ingd_outer_steps": "chapter5.ingd",
        "invariance_defect": "chapter6.averages",
        "iteration_bound": "chapter2.section_2_1",
        "iterations": "chapter2.section_2_1",
        "limit_weights": "chapter6.averages",
        "lmi_rate": "chapter2.fig_2_1",
        "matching_clipped_step": "chapter3.section_3_4",
        "mean_direction_bound": "chapter5.ingd",
        "mean_distance_bound": "chapter5.ingd",
        "mean_square_gradient": "chapter4.clipped_runs",
        "moment_nonconvex_bound": "chapter4.upper_bounds",
        "moment_nonconvex_parameters": "chapter4.upper_bounds",
        "nesterov_convex_gap": "chapter2.section_2_1",
        "nesterov_gap": "chapter2.section_2_1",
        "noise_probability": "chapter4.zero_chain",
        "noisy_delta": "chapter3.section_3_4",
        "nonconvex_lower_bound_steps": "chapter4.zero_chain",
        "norm_moment_lower": "chapter4.clipped_gradient",
        "norm_moment_upper": "chapter4.clipped_gradient",
        "normalized_step": "chapter3.section_3_4",
        "one_inner_step_radius": "chapter5.ingd",
        "one_step_change": "chapter6.averages",
        "one_step_change_bound": "chapter6.averages",
        "online_regret": "chapter2.fig_2_3",
        "path_integral": "chapter5.stationarity",
        "pep_gap": "chapter2.fig_2_1",
        "pep_missing": "chapter2.fig_2_1",
        "plateau_function": "chapter5.adversaries",
        "polynomial_l0": "chapter3.section_3_2",
        "printed_rule": "chapter5.ingd",
        "prog": "chapter4.zero_chain",
        "proved_rate": "chapter2.fig_2_1",
        "quadratic_invariant": "chapter6.averages",
        "quadratic_rate": "chapter2.fig_2_1",
        "rare_jump_norm_moment": "chapter4.clipped_gradient",
        "repaired_lower_bound": "chapter3.section_3_4",
        "resisting_function": "chapter5.adversaries",
        "separated_pair": "chapter5.adversaries",
        "sgd_bound": "chapter3.section_3_4",
        "sgd_iterate": "chapter4.two_quadratics",
        "sgd_step": "chapter3.section_3_4",
        "small_gradient_bias_bound": "chapter4.clipped_gradient",
        "small_gradient_second_moment_bound": "chapter4.clipped_gradient",
        "smooth_target": "chapter5.ingd",
        "stable_iterate_law": "chapter4.two_quadratics",
        "stationarity_radius": "chapter5.stationarity",
        "stochastic_rule": "chapter5.ingd",
        "strongly_convex_lower_bound": "chapter4.two_quadratics",
        "success_bound": "chapter4.two_quadratics",
        "success_probability": "chapter4.two_quadratics",
        "three_terms": "chapter5.ingd",
        "weighted_average_runs": "chapter4.clipped_runs",
        "worst_gap": "chapter2.section_2_1",
    }
    __getattr__, __dir__ = lazy_names(__name__, _WHERE)
    __all__ = __dir__()
