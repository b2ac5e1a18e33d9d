"""Chapter 3: relaxed smoothness and gradient clipping."""

from mindgap.base.checked import check_package
from mindgap.lab.theory.chapter3.hard_functions import (
    ExponentialQuadratic,
    HyperbolicCosine,
    SlowFunction,
    ToothedSlope,
)
from mindgap.lab.theory.chapter3.section_3_2 import (
    DeepLinear,
    Polynomial,
    growth_bound,
    polynomial_l0,
)
from mindgap.lab.theory.chapter3.section_3_4 import (
    ClippedStep,
    StochasticClippedStep,
    clipped_gd_bound,
    clipped_gd_step,
    clipped_sgd_bound,
    clipped_sgd_step,
    error_terms,
    fixed_step_count,
    fixed_step_lower_bound,
    gd_bound,
    gd_step,
    gradient_growth_bound,
    matching_clipped_step,
    noisy_delta,
    sgd_bound,
    sgd_step,
)

check_package(__name__)
