"""Chapter 6: training that does not converge to stationary points. ``network`` needs torch and
is loaded by itself.
"""

from mindgap.base.checked import check_package
from mindgap.lab.theory.chapter6.averages import (
    BoundedValues,
    InvariantDistribution,
    block_average,
    halving_map,
    limit_weights,
    one_step_change,
    one_step_change_bound,
)
from mindgap.lab.theory.chapter6.lemma_6_4_2 import Sawtooth, SteepSawtooth
from mindgap.lab.theory.chapter6.weight_decay import (
    CROSS_ENTROPY_LIPSCHITZ,
    DecayedBatchNorm,
    DecayedNetwork,
    cross_entropy,
    cross_entropy_bound,
)

check_package(__name__)
