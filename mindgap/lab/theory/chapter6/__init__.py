"""Chapter 6: training that does not converge to stationary points."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mindgap.base.lazy import lazy_names

if TYPE_CHECKING:
    from mindgap.lab.theory.chapter6.lemma_6_4_2 import Sawtooth as Sawtooth
    from mindgap.lab.theory.chapter6.lemma_6_4_2 import SteepSawtooth as SteepSawtooth
    from mindgap.lab.theory.chapter6.lemma_6_4_5 import CROSS_ENTROPY_LIPSCHITZ as CROSS_ENTROPY_LIPSCHITZ
    from mindgap.lab.theory.chapter6.lemma_6_4_5 import cross_entropy as cross_entropy
    from mindgap.lab.theory.chapter6.lemma_6_4_5 import cross_entropy_bound as cross_entropy_bound
    from mindgap.lab.theory.chapter6.lemma_6_4_5 import cross_entropy_peak as cross_entropy_peak
    from mindgap.lab.theory.chapter6.network import Network as Network
    from mindgap.lab.theory.chapter6.thm_6_4_1 import BoundedValues as BoundedValues
    from mindgap.lab.theory.chapter6.thm_6_4_1 import one_step_change as one_step_change
    from mindgap.lab.theory.chapter6.thm_6_4_1 import one_step_change_bound as one_step_change_bound
    from mindgap.lab.theory.chapter6.thm_6_4_3 import block_average as block_average
    from mindgap.lab.theory.chapter6.thm_6_4_3 import block_point as block_point
    from mindgap.lab.theory.chapter6.thm_6_4_3 import block_symbol as block_symbol
    from mindgap.lab.theory.chapter6.thm_6_4_3 import halving_map as halving_map
    from mindgap.lab.theory.chapter6.thm_6_4_3 import invariance_defect as invariance_defect
    from mindgap.lab.theory.chapter6.thm_6_4_3 import limit_weights as limit_weights
    from mindgap.lab.theory.chapter6.thm_6_4_6 import DecayedNetwork as DecayedNetwork
    from mindgap.lab.theory.chapter6.thm_6_4_7 import DecayedBatchNorm as DecayedBatchNorm
    from mindgap.lab.theory.chapter6.thm_6_5_1 import InvariantDistribution as InvariantDistribution
    from mindgap.lab.theory.chapter6.thm_6_5_1 import quadratic_invariant as quadratic_invariant

#: Public name -> module of this package.
NAMES: dict[str, str] = {
    **dict.fromkeys(("BoundedValues", "one_step_change", "one_step_change_bound"), "thm_6_4_1"),
    **dict.fromkeys(("Sawtooth", "SteepSawtooth"), "lemma_6_4_2"),
    **dict.fromkeys(("block_symbol", "block_average", "block_point", "limit_weights", "halving_map",
                     "invariance_defect"), "thm_6_4_3"),
    **dict.fromkeys(("CROSS_ENTROPY_LIPSCHITZ", "cross_entropy", "cross_entropy_bound", "cross_entropy_peak"),
                    "lemma_6_4_5"),
    "DecayedNetwork": "thm_6_4_6",
    "DecayedBatchNorm": "thm_6_4_7",
    **dict.fromkeys(("InvariantDistribution", "quadratic_invariant"), "thm_6_5_1"),
    "Network": "network",
}

__getattr__, __dir__ = lazy_names(__name__, NAMES)
