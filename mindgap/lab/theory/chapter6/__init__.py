"""Chapter 6: training that does not converge to stationary points. ``network`` needs torch and is loaded by itself."""

from mindgap.base.checked import check_package
from mindgap.lab.theory.chapter6.lemma_6_4_2 import Sawtooth, SteepSawtooth
from mindgap.lab.theory.chapter6.lemma_6_4_5 import (
    CROSS_ENTROPY_LIPSCHITZ,
    cross_entropy,
    cross_entropy_bound,
    cross_entropy_peak,
)
from mindgap.lab.theory.chapter6.thm_6_4_1 import BoundedValues, one_step_change, one_step_change_bound
from mindgap.lab.theory.chapter6.thm_6_4_3 import (
    block_average,
    block_point,
    block_symbol,
    halving_map,
    invariance_defect,
    limit_weights,
)
from mindgap.lab.theory.chapter6.thm_6_4_6 import DecayedNetwork
from mindgap.lab.theory.chapter6.thm_6_4_7 import DecayedBatchNorm
from mindgap.lab.theory.chapter6.thm_6_5_1 import InvariantDistribution, quadratic_invariant

check_package(__name__)
