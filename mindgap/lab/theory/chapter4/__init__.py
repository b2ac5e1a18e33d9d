"""Chapter 4, and the first version of its paper: heavy-tailed gradient noise."""

from mindgap.base.checked import check_package
from mindgap.lab.theory.chapter4.acclip_thm_2 import (
    SmoothMoment,
    coordinate_moment,
    moment_nonconvex_bound,
    moment_nonconvex_parameters,
)
from mindgap.lab.theory.chapter4.clipping import ClippedMoments, clip_coordinates, clip_global, clipped_moments
from mindgap.lab.theory.chapter4.lemma_4_7_1 import clipped_bias_bound, clipped_second_moment_bound
from mindgap.lab.theory.chapter4.lemma_4_7_2 import (
    direction_bound,
    small_gradient_bias_bound,
    small_gradient_second_moment_bound,
)
from mindgap.lab.theory.chapter4.lemma_4_7_4 import (
    gclip_coordinate_bound,
    norm_moment_lower,
    norm_moment_upper,
    rare_jump_norm_moment,
)
from mindgap.lab.theory.chapter4.lemma_4_7_9 import ChainOracle, ZeroChain, prog
from mindgap.lab.theory.chapter4.remark_4_4_1 import sgd_iterate, stable_iterate_law
from mindgap.lab.theory.chapter4.runs import weighted_average_runs
from mindgap.lab.theory.chapter4.thm_4_4_1 import ConstantClip, gclip_nonconvex_bound, gclip_nonconvex_parameters
from mindgap.lab.theory.chapter4.thm_4_4_2 import gclip_bound, gclip_step, gclip_threshold
from mindgap.lab.theory.chapter4.thm_4_4_3 import (
    BernoulliQuadratic,
    bayes_risk,
    hardest_epsilon,
    strongly_convex_lower_bound,
    success_bound,
    success_probability,
)
from mindgap.lab.theory.chapter4.thm_4_4_4 import HardChain, nonconvex_lower_bound_steps
from mindgap.lab.theory.chapter4.thm_4_5_1 import cclip_bound, cclip_step, cclip_threshold
from mindgap.lab.theory.chapter4.worst_case import RareJump, averaged_error, mean_square_gradient

check_package(__name__)
