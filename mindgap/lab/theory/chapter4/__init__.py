"""Chapter 4, and the first version of its paper: heavy-tailed gradient noise."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mindgap.base.lazy import lazy_names

if TYPE_CHECKING:
    from mindgap.lab.theory.chapter4.acclip_thm_2 import SmoothMoment as SmoothMoment
    from mindgap.lab.theory.chapter4.acclip_thm_2 import coordinate_moment as coordinate_moment
    from mindgap.lab.theory.chapter4.acclip_thm_2 import moment_nonconvex_bound as moment_nonconvex_bound
    from mindgap.lab.theory.chapter4.acclip_thm_2 import moment_nonconvex_parameters as moment_nonconvex_parameters
    from mindgap.lab.theory.chapter4.clipping import ClippedMoments as ClippedMoments
    from mindgap.lab.theory.chapter4.clipping import clip_coordinates as clip_coordinates
    from mindgap.lab.theory.chapter4.clipping import clip_global as clip_global
    from mindgap.lab.theory.chapter4.clipping import clipped_moments as clipped_moments
    from mindgap.lab.theory.chapter4.lemma_4_7_1 import clipped_bias_bound as clipped_bias_bound
    from mindgap.lab.theory.chapter4.lemma_4_7_1 import clipped_second_moment_bound as clipped_second_moment_bound
    from mindgap.lab.theory.chapter4.lemma_4_7_2 import direction_bound as direction_bound
    from mindgap.lab.theory.chapter4.lemma_4_7_2 import small_gradient_bias_bound as small_gradient_bias_bound
    from mindgap.lab.theory.chapter4.lemma_4_7_2 import (
        small_gradient_second_moment_bound as small_gradient_second_moment_bound,
    )
    from mindgap.lab.theory.chapter4.lemma_4_7_4 import gclip_coordinate_bound as gclip_coordinate_bound
    from mindgap.lab.theory.chapter4.lemma_4_7_4 import norm_moment_lower as norm_moment_lower
    from mindgap.lab.theory.chapter4.lemma_4_7_4 import norm_moment_upper as norm_moment_upper
    from mindgap.lab.theory.chapter4.lemma_4_7_4 import rare_jump_norm_moment as rare_jump_norm_moment
    from mindgap.lab.theory.chapter4.lemma_4_7_9 import ChainOracle as ChainOracle
    from mindgap.lab.theory.chapter4.lemma_4_7_9 import ZeroChain as ZeroChain
    from mindgap.lab.theory.chapter4.lemma_4_7_9 import prog as prog
    from mindgap.lab.theory.chapter4.remark_4_4_1 import sgd_iterate as sgd_iterate
    from mindgap.lab.theory.chapter4.remark_4_4_1 import stable_iterate_law as stable_iterate_law
    from mindgap.lab.theory.chapter4.runs import weighted_average_runs as weighted_average_runs
    from mindgap.lab.theory.chapter4.thm_4_4_1 import ConstantClip as ConstantClip
    from mindgap.lab.theory.chapter4.thm_4_4_1 import gclip_nonconvex_bound as gclip_nonconvex_bound
    from mindgap.lab.theory.chapter4.thm_4_4_1 import gclip_nonconvex_parameters as gclip_nonconvex_parameters
    from mindgap.lab.theory.chapter4.thm_4_4_2 import gclip_bound as gclip_bound
    from mindgap.lab.theory.chapter4.thm_4_4_2 import gclip_step as gclip_step
    from mindgap.lab.theory.chapter4.thm_4_4_2 import gclip_threshold as gclip_threshold
    from mindgap.lab.theory.chapter4.thm_4_4_3 import BernoulliQuadratic as BernoulliQuadratic
    from mindgap.lab.theory.chapter4.thm_4_4_3 import bayes_risk as bayes_risk
    from mindgap.lab.theory.chapter4.thm_4_4_3 import hardest_epsilon as hardest_epsilon
    from mindgap.lab.theory.chapter4.thm_4_4_3 import strongly_convex_lower_bound as strongly_convex_lower_bound
    from mindgap.lab.theory.chapter4.thm_4_4_3 import success_bound as success_bound
    from mindgap.lab.theory.chapter4.thm_4_4_3 import success_probability as success_probability
    from mindgap.lab.theory.chapter4.thm_4_4_4 import HardChain as HardChain
    from mindgap.lab.theory.chapter4.thm_4_4_4 import nonconvex_lower_bound_steps as nonconvex_lower_bound_steps
    from mindgap.lab.theory.chapter4.thm_4_5_1 import cclip_bound as cclip_bound
    from mindgap.lab.theory.chapter4.thm_4_5_1 import cclip_step as cclip_step
    from mindgap.lab.theory.chapter4.thm_4_5_1 import cclip_threshold as cclip_threshold
    from mindgap.lab.theory.chapter4.worst_case import RareJump as RareJump
    from mindgap.lab.theory.chapter4.worst_case import averaged_error as averaged_error
    from mindgap.lab.theory.chapter4.worst_case import mean_square_gradient as mean_square_gradient

_MODULES: dict[str, tuple[str, ...]] = {
    "acclip_thm_2": ("SmoothMoment", "coordinate_moment", "moment_nonconvex_bound", "moment_nonconvex_parameters"),
    "clipping": ("ClippedMoments", "clip_coordinates", "clip_global", "clipped_moments"),
    "lemma_4_7_1": ("clipped_bias_bound", "clipped_second_moment_bound"),
    "lemma_4_7_2": ("direction_bound", "small_gradient_bias_bound", "small_gradient_second_moment_bound"),
    "lemma_4_7_4": ("gclip_coordinate_bound", "norm_moment_lower", "norm_moment_upper", "rare_jump_norm_moment"),
    "lemma_4_7_9": ("ChainOracle", "ZeroChain", "prog"),
    "remark_4_4_1": ("sgd_iterate", "stable_iterate_law"),
    "runs": ("weighted_average_runs",),
    "thm_4_4_1": ("ConstantClip", "gclip_nonconvex_bound", "gclip_nonconvex_parameters"),
    "thm_4_4_2": ("gclip_bound", "gclip_step", "gclip_threshold"),
    "thm_4_4_3": (
        "BernoulliQuadratic", "bayes_risk", "hardest_epsilon", "strongly_convex_lower_bound", "success_bound",
        "success_probability",
    ),
    "thm_4_4_4": ("HardChain", "nonconvex_lower_bound_steps"),
    "thm_4_5_1": ("cclip_bound", "cclip_step", "cclip_threshold"),
    "worst_case": ("RareJump", "averaged_error", "mean_square_gradient"),
}

#: Public name -> module of this package.
NAMES: dict[str, str] = {name: module for module, names in _MODULES.items() for name in names}

__getattr__, __dir__ = lazy_names(__name__, NAMES)
