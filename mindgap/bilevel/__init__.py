"""Stochastic bilevel methods behind one interface.

``METHODS`` lists them without importing torch; every other name imports it when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mindgap.bilevel.backends.oracles import TorchOracle as TorchOracle
    from mindgap.bilevel.core.directions import NegativeCurvature as NegativeCurvature
    from mindgap.bilevel.core.settings import (
        AdamStep as AdamStep,
        Constant as Constant,
        MomentumStep as MomentumStep,
        Power as Power,
        TorchStep as TorchStep,
    )
    from mindgap.bilevel.core.types import State as State
    from mindgap.bilevel.data.problem import BilevelProblem as BilevelProblem, Bound as Bound
    from mindgap.bilevel.data.sample import (
        FULL as FULL,
        Batches as Batches,
        Sample as Sample,
        Stream as Stream,
    )
    from mindgap.bilevel.method import Method as Method
    from mindgap.bilevel.methods.accbo import AccBO as AccBO
    from mindgap.bilevel.methods.adambo import AdamBO as AdamBO
    from mindgap.bilevel.methods.alset import ALSET as ALSET
    from mindgap.bilevel.methods.amigo import AmIGO as AmIGO
    from mindgap.bilevel.methods.bome import BOME as BOME
    from mindgap.bilevel.methods.borep import BOREP as BOREP
    from mindgap.bilevel.methods.bsa import BSA as BSA
    from mindgap.bilevel.methods.f2sa import F2SA as F2SA
    from mindgap.bilevel.methods.f2sap import F2SAp as F2SAp
    from mindgap.bilevel.methods.fsla import FSLA as FSLA
    from mindgap.bilevel.methods.masoba import MASOBA as MASOBA
    from mindgap.bilevel.methods.meha import MEHA as MEHA
    from mindgap.bilevel.methods.mrbo import MRBO as MRBO
    from mindgap.bilevel.methods.n2sba import N2SBA as N2SBA
    from mindgap.bilevel.methods.pbgd import PBGD as PBGD
    from mindgap.bilevel.methods.pzobo import PZOBO as PZOBO
    from mindgap.bilevel.methods.saba import SABA as SABA
    from mindgap.bilevel.methods.sama import SAMA as SAMA
    from mindgap.bilevel.methods.slip import SLIP as SLIP
    from mindgap.bilevel.methods.soba import SOBA as SOBA
    from mindgap.bilevel.methods.spaba import SPABA as SPABA
    from mindgap.bilevel.methods.srba import SRBA as SRBA
    from mindgap.bilevel.methods.stocbio import StocBio as StocBio
    from mindgap.bilevel.methods.sustain import SUSTAIN as SUSTAIN
    from mindgap.bilevel.methods.svrb import SVRB as SVRB
    from mindgap.bilevel.methods.ttsa import TTSA as TTSA
    from mindgap.bilevel.methods.vrbo import VRBO as VRBO
    from mindgap.bilevel.registry import METHODS as METHODS
    from mindgap.bilevel.solver import Solution as Solution, solve as solve
    from mindgap.bilevel.tools.advice import suggest_steps as suggest_steps
    from mindgap.bilevel.tools.checkpoint import (
        load_state as load_state,
        pack_state as pack_state,
        save_state as save_state,
        unpack_state as unpack_state,
    )
    from mindgap.bilevel.tools.contest import Contest as Contest, race as race
    from mindgap.bilevel.tools.exact import (
        exact_hypergradient as exact_hypergradient,
        hyper_objective as hyper_objective,
        hypergradient as hypergradient,
        implicit_solution as implicit_solution,
        lower_solution as lower_solution,
    )
    from mindgap.bilevel.tools.grid import SweptMethod as SweptMethod, sweep as sweep
    from mindgap.bilevel.tools.horizon import RacedSteps as RacedSteps, StepTrial as StepTrial
    from mindgap.bilevel.tools.meta import (
        MetaLearner as MetaLearner,
        adapt as adapt,
        side_by_side as side_by_side,
        task_problem as task_problem,
    )
    from mindgap.bilevel.tools.step_advice import StepAdvice as StepAdvice
else:
    from mindgap.base.names import lazy_names

    _WHERE = {
        "ALSET": "methods.alset",
        "AccBO": "methods.accbo",
        "AdamBO": "methods.adambo",
        "AdamStep": "core.settings",
        "AmIGO": "methods.amigo",
        "BOME": "methods.bome",
        "BOREP": "methods.borep",
        "BSA": "methods.bsa",
        "Batches": "data.sample",
        "BilevelProblem": "data.problem",
        "Bound": "data.problem",
        "Constant": "core.settings",
        "Contest": "tools.contest",
        "F2SA": "methods.f2sa",
        "F2SAp": "methods.f2sap",
        "FSLA": "methods.fsla",
        "FULL": "data.sample",
        "MASOBA": "methods.masoba",
        "MEHA": "methods.meha",
        "METHODS": "registry",
        "MRBO": "methods.mrbo",
        "MetaLearner": "tools.meta",
        "Method": "method",
        "MomentumStep": "core.settings",
        "N2SBA": "methods.n2sba",
        "NegativeCurvature": "core.directions",
        "PBGD": "methods.pbgd",
        "PZOBO": "methods.pzobo",
        "Power": "core.settings",
        "RacedSteps": "tools.horizon",
        "SABA": "methods.saba",
        "SAMA": "methods.sama",
        "SLIP": "methods.slip",
        "SOBA": "methods.soba",
        "SPABA": "methods.spaba",
        "SRBA": "methods.srba",
        "SUSTAIN": "methods.sustain",
        "SVRB": "methods.svrb",
        "Sample": "data.sample",
        "Solution": "solver",
        "State": "core.types",
        "StepAdvice": "tools.step_advice",
        "StepTrial": "tools.horizon",
        "StocBio": "methods.stocbio",
        "Stream": "data.sample",
        "SweptMethod": "tools.grid",
        "TTSA": "methods.ttsa",
        "TorchOracle": "backends.oracles",
        "TorchStep": "core.settings",
        "VRBO": "methods.vrbo",
        "adapt": "tools.meta",
        "exact_hypergradient": "tools.exact",
        "hyper_objective": "tools.exact",
        "hypergradient": "tools.exact",
        "implicit_solution": "tools.exact",
        "load_state": "tools.checkpoint",
        "lower_solution": "tools.exact",
        "pack_state": "tools.checkpoint",
        "race": "tools.contest",
        "save_state": "tools.checkpoint",
        "side_by_side": "tools.meta",
        "solve": "solver",
        "suggest_steps": "tools.advice",
        "sweep": "tools.grid",
        "task_problem": "tools.meta",
        "unpack_state": "tools.checkpoint",
    }
    __getattr__, __dir__ = lazy_names(__name__, _WHERE)
    __all__ = __dir__()
