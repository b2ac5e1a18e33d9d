"""Chapter 3: relaxed smoothness and gradient clipping."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mindgap.base.lazy import lazy_names

if TYPE_CHECKING:
    from mindgap.lab.theory.chapter3.hard_3_7_2 import ExponentialQuadratic as ExponentialQuadratic
    from mindgap.lab.theory.chapter3.hard_3_7_2 import HyperbolicCosine as HyperbolicCosine
    from mindgap.lab.theory.chapter3.hard_3_7_2 import SlowFunction as SlowFunction
    from mindgap.lab.theory.chapter3.lemma_3_2_1 import Polynomial as Polynomial
    from mindgap.lab.theory.chapter3.lemma_3_2_1 import polynomial_l0 as polynomial_l0
    from mindgap.lab.theory.chapter3.lemmas_3_7 import ErrorTerms as ErrorTerms
    from mindgap.lab.theory.chapter3.lemmas_3_7 import error_terms as error_terms
    from mindgap.lab.theory.chapter3.lemmas_3_7 import gradient_growth_bound as gradient_growth_bound
    from mindgap.lab.theory.chapter3.network_3_2_3 import DeepLinear as DeepLinear
    from mindgap.lab.theory.chapter3.section_3_3_1 import matching_clipped_step as matching_clipped_step
    from mindgap.lab.theory.chapter3.section_3_3_1 import normalized_step as normalized_step
    from mindgap.lab.theory.chapter3.thm_3_4_1 import ClippedStep as ClippedStep
    from mindgap.lab.theory.chapter3.thm_3_4_1 import clipped_gd_bound as clipped_gd_bound
    from mindgap.lab.theory.chapter3.thm_3_4_1 import clipped_gd_step as clipped_gd_step
    from mindgap.lab.theory.chapter3.thm_3_4_2 import fixed_step_lower_bound as fixed_step_lower_bound
    from mindgap.lab.theory.chapter3.thm_3_4_2 import repaired_lower_bound as repaired_lower_bound
    from mindgap.lab.theory.chapter3.thm_3_4_3 import gd_bound as gd_bound
    from mindgap.lab.theory.chapter3.thm_3_4_3 import gd_step as gd_step
    from mindgap.lab.theory.chapter3.thm_3_4_4 import StochasticClippedStep as StochasticClippedStep
    from mindgap.lab.theory.chapter3.thm_3_4_4 import clipped_sgd_bound as clipped_sgd_bound
    from mindgap.lab.theory.chapter3.thm_3_4_4 import clipped_sgd_step as clipped_sgd_step
    from mindgap.lab.theory.chapter3.thm_3_4_4 import noisy_delta as noisy_delta
    from mindgap.lab.theory.chapter3.thm_3_4_5 import sgd_bound as sgd_bound
    from mindgap.lab.theory.chapter3.thm_3_4_5 import sgd_step as sgd_step
    from mindgap.lab.theory.chapter3.toothed_slope import ToothedSlope as ToothedSlope

#: Public name -> module of this package.
NAMES: dict[str, str] = {
    **dict.fromkeys(("ExponentialQuadratic", "HyperbolicCosine", "SlowFunction"), "hard_3_7_2"),
    **dict.fromkeys(("Polynomial", "polynomial_l0"), "lemma_3_2_1"),
    **dict.fromkeys(("ErrorTerms", "error_terms", "gradient_growth_bound"), "lemmas_3_7"),
    "DeepLinear": "network_3_2_3",
    "ToothedSlope": "toothed_slope",
    **dict.fromkeys(("matching_clipped_step", "normalized_step"), "section_3_3_1"),
    **dict.fromkeys(("ClippedStep", "clipped_gd_bound", "clipped_gd_step"), "thm_3_4_1"),
    **dict.fromkeys(("fixed_step_lower_bound", "repaired_lower_bound"), "thm_3_4_2"),
    **dict.fromkeys(("gd_bound", "gd_step"), "thm_3_4_3"),
    **dict.fromkeys(("StochasticClippedStep", "clipped_sgd_bound", "clipped_sgd_step", "noisy_delta"), "thm_3_4_4"),
    **dict.fromkeys(("sgd_bound", "sgd_step"), "thm_3_4_5"),
}

__getattr__, __dir__ = lazy_names(__name__, NAMES)
