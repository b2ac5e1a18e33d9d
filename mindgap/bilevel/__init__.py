"""Stochastic bilevel methods behind one interface."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mindgap.base.lazy import lazy_names

if TYPE_CHECKING:
    from mindgap.bilevel.checkpoint import load_state, pack_state, save_state, unpack_state
    from mindgap.bilevel.exact import exact_hypergradient, hyper_objective, lower_solution
    from mindgap.bilevel.method import Method, State
    from mindgap.bilevel.methods.alset import ALSET
    from mindgap.bilevel.methods.amigo import AmIGO
    from mindgap.bilevel.methods.bo_rep import BOREP
    from mindgap.bilevel.methods.bsa import BSA
    from mindgap.bilevel.methods.f2sa import F2SA
    from mindgap.bilevel.methods.ma_soba import MASOBA
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
    from mindgap.bilevel.oracles import TorchOracle
    from mindgap.bilevel.problem import BilevelProblem, Bound
    from mindgap.bilevel.sample import FULL, Batches, Sample, Stream
    from mindgap.bilevel.schedules import Constant, Power
    from mindgap.bilevel.solver import Solution, solve
    from mindgap.bilevel.table import METHODS
    from mindgap.bilevel.upper import TorchStep

_WHERE = {
    "BilevelProblem": "problem",
    "Bound": "problem",
    "FULL": "sample",
    "Batches": "sample",
    "Sample": "sample",
    "Stream": "sample",
    "METHODS": "table",
    "Solution": "solver",
    "solve": "solver",
    "exact_hypergradient": "exact",
    "hyper_objective": "exact",
    "lower_solution": "exact",
    "load_state": "checkpoint",
    "pack_state": "checkpoint",
    "save_state": "checkpoint",
    "unpack_state": "checkpoint",
    "Method": "method",
    "State": "method",
    "TorchOracle": "oracles",
    "TorchStep": "upper",
    "Constant": "schedules",
    "Power": "schedules",
    "SLIP": "methods.slip",
    "BOREP": "methods.bo_rep",
    "BSA": "methods.bsa",
    "StocBio": "methods.stocbio",
    "AmIGO": "methods.amigo",
    "ALSET": "methods.alset",
    "TTSA": "methods.ttsa",
    "F2SA": "methods.f2sa",
    "SOBA": "methods.soba",
    "SABA": "methods.saba",
    "MASOBA": "methods.ma_soba",
    "VRBO": "methods.vrbo",
    "MRBO": "methods.mrbo",
    "SUSTAIN": "methods.sustain",
    "SVRB": "methods.svrb",
    "SRBA": "methods.srba",
}
__all__ = [
    "ALSET",
    "BOREP",
    "BSA",
    "F2SA",
    "FULL",
    "MASOBA",
    "METHODS",
    "MRBO",
    "SABA",
    "SLIP",
    "SOBA",
    "SRBA",
    "SUSTAIN",
    "SVRB",
    "TTSA",
    "VRBO",
    "AmIGO",
    "Batches",
    "BilevelProblem",
    "Bound",
    "Constant",
    "Method",
    "Power",
    "Sample",
    "Solution",
    "State",
    "StocBio",
    "Stream",
    "TorchOracle",
    "TorchStep",
    "exact_hypergradient",
    "hyper_objective",
    "load_state",
    "lower_solution",
    "pack_state",
    "save_state",
    "solve",
    "unpack_state",
]
__getattr__, __dir__ = lazy_names(__name__, _WHERE)
__all__ = __dir__()
