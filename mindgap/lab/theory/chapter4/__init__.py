"""Chapter 4, and the first version of its paper: heavy-tailed gradient noise."""

from mindgap.base.checked import check_package
from mindgap.lab.theory.chapter4.clipped_gradient import (
    ClippedMoments,
    clip_coordinates,
    clip_global,
    clipped_bias_bound,
    clipped_moments,
    clipped_second_moment_bound,
    direction_bound,
    gclip_coordinate_bound,
    norm_moment_upper,
    small_gradient_bias_bound,
    small_gradient_second_moment_bound,
)
from mindgap.lab.theory.chapter4.clipped_runs import (
    RareJump,
    averaged_error,
    mean_square_gradient,
    weighted_average_runs,
)
from mindgap.lab.theory.chapter4.two_quadratics import (
    BernoulliQuadratic,
    bayes_risk,
    hardest_epsilon,
    stable_iterate_law,
    strongly_convex_lower_bound,
    success_bound,
)
from mindgap.lab.theory.chapter4.upper_bounds import (
    ConstantClip,
    SmoothMoment,
    cclip_bound,
    cclip_threshold,
    coordinate_moment,
    gclip_bound,
    gclip_nonconvex_bound,
    gclip_nonconvex_parameters,
    gclip_step,
    gclip_threshold,
    moment_nonconvex_bound,
    moment_nonconvex_parameters,
)
from mindgap.lab.theory.chapter4.zero_chain import (
    ChainOracle,
    HardChain,
    ZeroChain,
    noise_probability,
    nonconvex_lower_bound_steps,
    prog,
)

check_package(__name__)
