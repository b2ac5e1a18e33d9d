"""Chapter 6: training that does not converge to stationary points. ``network`` needs torch and
is loaded by itself.
"""

from mindgap.base.checked import check_package
from mindgap.lab.theory.chapter6.averages import (
    BoundedValues,
    InvariantDistribution,
    block_average,
    block_point,
    block_symbol,
    halving_map,
    invariance_defect,
    limit_weights,
    one_step_change,
    one_step_change_bound,
    quadratic_invariant,
)
from mindgap.lab.theory.chapter6.lemma_6_4_2 import Sawtooth, SteepSawtooth
from mindgap.lab.theory.chapter6.weight_decay import (
    CROSS_ENTROPY_LIPSCHITZ,
    DecayedBatchNorm,
    DecayedNetwork,
    cross_entropy,
    cross_entropy_bound,
    cross_entropy_peak,
)

check_package(__name__)
