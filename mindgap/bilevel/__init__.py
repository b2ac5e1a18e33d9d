"""Stochastic bilevel methods behind one interface.

``METHODS`` lists them without importing torch; every other name imports it when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mindgap.base.lazy import lazy_names
from mindgap.bilevel.registry import METHODS

if TYPE_CHECKING:
    from mindgap.bilevel.backends.oracles import TorchOracle
    from mindgap.bilevel.core.directions import NegativeCurvature
    from mindgap.bilevel.core.schedules import Constant, Power
    from mindgap.bilevel.core.steps import AdamStep, MomentumStep, TorchStep
    from mindgap.bilevel.data.problem import BilevelProblem, Bound
    from mindgap.bilevel.data.sample import FULL, Batches, Sample, Stream
    from mindgap.bilevel.method import Method, State
    from mindgap.bilevel.methods.alset import ALSET
    from mindgap.bilevel.methods.amigo import AmIGO
    from mindgap.bilevel.methods.borep import BOREP
    from mindgap.bilevel.methods.bsa import BSA
    from mindgap.bilevel.methods.f2sa import F2SA
    from mindgap.bilevel.methods.masoba import MASOBA
    from mindgap.bilevel.methods.mrbo import MRBO
    from mindgap.bilevel.methods.saba import SABA
    from mindgap.bilevel.methods.slip import SLIP
    from mindgap.bilevel.methods.soba import SOBA
    from mindgap.bilevel.methods.srba import SRBA
    from mindgap.bilevel.methods.stocbio import StocBio
    from mindgap.bilevel.methods.sustain import SUSTAIN
    from mindgap.bilevel.methods.svrb import SVRB
    from mindgap.bilevel.methods.ttsa import TTSA
    from mindgap.bilevel.methods.vrbo import VRBO
    from mindgap.bilevel.solver import Solution, solve
    from mindgap.bilevel.tools.advice import StepAdvice, suggest_steps
    from mindgap.bilevel.tools.checkpoint import load_state, pack_state, save_state, unpack_state
    from mindgap.bilevel.tools.exact import (
        exact_hypergradient,
        hyper_objective,
        hypergradient,
        implicit_solution,
        lower_solution,
    )
    from mindgap.bilevel.tools.meta import MetaLearner, adapt, side_by_side, task_problem

_WHERE = {"METHODS": "registry"} | {
    method.class_name: f"methods.{method.module}" for method in METHODS.values()
}
__getattr__, __dir__ = lazy_names(__name__, _WHERE)
__all__ = __dir__()
