"""Chapter 3: relaxed smoothness and gradient clipping."""

from mindgap.base.checked import check_package
from mindgap.lab.theory.chapter3.hard_3_7_2 import ExponentialQuadratic, HyperbolicCosine, SlowFunction
from mindgap.lab.theory.chapter3.lemma_3_2_1 import Polynomial, polynomial_l0
from mindgap.lab.theory.chapter3.lemmas_3_7 import ErrorTerms, error_terms, gradient_growth_bound
from mindgap.lab.theory.chapter3.network_3_2_3 import DeepLinear
from mindgap.lab.theory.chapter3.section_3_3_1 import matching_clipped_step, normalized_step
from mindgap.lab.theory.chapter3.thm_3_4_1 import ClippedStep, clipped_gd_bound, clipped_gd_step
from mindgap.lab.theory.chapter3.thm_3_4_2 import fixed_step_lower_bound, repaired_lower_bound
from mindgap.lab.theory.chapter3.thm_3_4_3 import gd_bound, gd_step
from mindgap.lab.theory.chapter3.thm_3_4_4 import (
    StochasticClippedStep,
    clipped_sgd_bound,
    clipped_sgd_step,
    noisy_delta,
)
from mindgap.lab.theory.chapter3.thm_3_4_5 import sgd_bound, sgd_step
from mindgap.lab.theory.chapter3.toothed_slope import ToothedSlope

check_package(__name__)
