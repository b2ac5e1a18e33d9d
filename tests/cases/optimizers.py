"""One record per optimizer: how to build it, what it must refuse, where it may differ and why.

The generic part of the contract is driven by these records and by one for ``torch.optim.SGD``: it
is about torch's interface, not about us. An exception stands here as an excuse with its reason,
never as an ``if`` in a test.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from mindgap.optim import OPTIMIZERS
from mindgap.testing.case import OptimizerCase as Case


@dataclass(frozen=True)
class OptimizerCase(Case):
    """A record of ``mindgap.testing``, and what our own optimizers must refuse."""

    #: (arguments that differ from ``settings``, the error's text)
    bad: tuple[tuple[dict[str, Any], str], ...] = ()
    ours: bool = True


def of_ours(name: str, settings: dict[str, Any], **more: Any) -> OptimizerCase:
    return OptimizerCase(name, OPTIMIZERS[name].load(), settings, **more)


COMMON_BAD = (
    ({"lr": -1.0}, "lr must be zero or positive, and finite, got -1.0"),
    ({"lr": float("nan")}, "lr must be a number, got nan"),
    ({"lr": torch.ones(2)}, "lr must have one real element when it is a tensor, got (2,)"),
    (
        {"nonfinite": "ignore"},
        "nonfinite must be one of 'raise', 'skip', 'propagate', got 'ignore'",
    ),
    ({"weight_decay": -0.1}, "weight_decay must be zero or positive, and finite, got -0.1"),
    (
        {"foreach": True, "fused": True},
        "fused must not be asked for together with foreach, got True",
    ),
    ({"fused": "yes"}, "fused must be one of None, False, True, got 'yes'"),
    ({"spike_guard": "stop"}, "spike_guard must be one of None, 'clip', 'skip', got 'stop'"),
)
CLIP_BAD = (
    ({"clip": 0.0}, "clip must be positive, got 0.0"),
    ({"clip": "automatic"}, "clip must be None, 'auto' or a positive number, got 'automatic'"),
)
UNIT_BAD = (
    ({"clip": 0.0}, "clip must be positive, got 0.0"),
    (
        {"clip": "automatic"},
        "clip must be None, 'auto', 'unit' or a positive number, got 'automatic'",
    ),
)
ADAMW_CLIP_BAD = (
    ({"clip": 0.0}, "clip must be positive, got 0.0"),
    (
        {"clip": "automatic"},
        "clip must be None, 'auto', 'unit', 'noise' or a positive number, got 'automatic'",
    ),
)
TRACK_BAD = (
    (
        {"fused": True, "track": True},
        "fused must not be asked for together with track, which counts coordinates, got True",
    ),
)
BETA_BAD = (
    ({"beta": 1.0}, "beta must lie in [0, 1), got 1.0"),
    ({"beta": -0.1}, "beta must lie in [0, 1), got -0.1"),
)
TAU_BAD = (
    ({"tau": 0.0}, "tau must be positive, got 0.0"),
    ({"tau": -2.0}, "tau must be positive, got -2.0"),
    ({"tau": "one"}, "tau must be a number, got 'one'"),
)
PROJECT_BAD = (({"project": 3}, "project must be a function of a list of tensors, got 3"),)
SCOPE_BAD = (({"scope": "layer"}, "scope must be one of 'all', 'group', 'tensor', got 'layer'"),)
NO_SPARSE = {"sparse_refused": "torch.optim.SGD takes sparse gradients"}

CASES = {
    case.name: case
    for case in (
        of_ours(
            "adamw",
            {"lr": 0.05, "weight_decay": 0.0},
            variants={
                "clip": {"clip": 1.0, "weight_decay": 0.1},
                "auto": {"clip": "auto", "spike_guard": "skip"},
                "unclipped": {"clip": None},
                "coordinates": {"clip": "unit", "coordinates": 3.0},
                "largest": {"amsgrad": True, "weight_decay": 0.1},
                "noise": {"clip": "noise", "weight_decay": 0.1},
            },
            bad=COMMON_BAD
            + PROJECT_BAD
            + ADAMW_CLIP_BAD
            + (
                ({"betas": (0.9, 1.0)}, "betas[1] must lie in [0, 1), got 1.0"),
                ({"betas": 0.9}, "betas must be a pair of numbers, got 0.9"),
                ({"eps": -1e-8}, "eps must be zero or positive, and finite, got -1e-08"),
                ({"coordinates": 0.0}, "coordinates must be positive and finite, got 0.0"),
                (
                    {"coordinates": 2.0, "amsgrad": True},
                    "coordinates must be None with amsgrad, got 2.0",
                ),
                ({"amsgrad": 1}, "amsgrad must be True or False, got 1"),
            ),
        ),
        of_ours(
            "sgd",
            {"lr": 0.02},
            variants={
                "momentum": {"momentum": 0.9, "clip": 1.0},
                "unclipped": {"clip": None},
                "nesterov": {
                    "momentum": 0.8,
                    "nesterov": True,
                    "clip": "auto",
                    "weight_decay": 0.01,
                },
            },
            bad=COMMON_BAD
            + PROJECT_BAD
            + CLIP_BAD
            + (
                ({"momentum": -0.1}, "momentum must be zero or positive, and finite, got -0.1"),
                ({"nesterov": True}, "nesterov needs momentum and no dampening, got True"),
            ),
            excuses={
                "huge_entries": "SGD without a number as clip takes a first step of the gradient's "
                "size"
            },
        ),
        of_ours(
            "gclip",
            {"lr": 0.05, "tau": 1.0},
            variants={
                "momentum": {"beta": 0.9},
                "momentum-first": {"beta": 0.9, "clip": "momentum"},
                "auto": {"beta": 0.9, "tau": "auto", "spike_guard": "clip"},
                "by tensor": {"scope": "tensor", "beta": 0.5},
                "decay": {"weight_decay": 0.1},
            },
            bad=COMMON_BAD
            + BETA_BAD
            + TAU_BAD
            + SCOPE_BAD
            + PROJECT_BAD
            + (
                ({"clip": "norm"}, "clip must be one of 'gradient', 'momentum', got 'norm'"),
                ({"tau": torch.ones(3)}, "tau must be a number, got tensor([1., 1., 1.])"),
            ),
        ),
        of_ours(
            "cclip",
            {"lr": 0.05, "tau": 0.5},
            variants={
                "momentum": {"beta": 0.9},
                "momentum-first": {"beta": 0.9, "clip": "momentum", "track": True},
                "auto": {"beta": 0.5, "tau": "auto"},
            },
            bad=COMMON_BAD
            + BETA_BAD
            + TAU_BAD
            + PROJECT_BAD
            + (
                (
                    {"tau": torch.ones(3)},
                    "tau must be a list with one tensor per parameter (3 of them), got (3,)",
                ),
                (
                    {"tau": [1.0]},
                    "tau must have an entry for each of the group's 3 parameters, got '1 entries'",
                ),
                (
                    {"tau": [1.0, 1.0, torch.ones(4)]},
                    "tau must have the shape of its parameter, (5,), got (4,)",
                ),
                (
                    {"tau": [1.0, 1.0, -torch.ones(5)]},
                    "tau must be positive in every coordinate, got -1.0",
                ),
            ),
        ),
        of_ours(
            "acclip",
            {"lr": 0.02, "weight_decay": 0.0},
            variants={
                "second moment": {"form": "second_moment", "spike_guard": "skip"},
                "algorithm, alpha 1.5": {
                    "lr": 0.5,
                    "form": "algorithm",
                    "alpha": 1.5,
                    "weight_decay": 0.01,
                    "clip": None,
                    "bias_correction": False,
                    "track": True,
                },
            },
            bad=COMMON_BAD
            + PROJECT_BAD
            + UNIT_BAD
            + TRACK_BAD
            + (
                (
                    {"lr": None, "form": "algorithm"},
                    "lr must be given with form='algorithm': its steps are proportional to the "
                    "gradient, so lr has the "
                    "scale of SGD's (0.1 to 10 for networks), not of AdamW's, got None",
                ),
                ({"factor": 0.0}, "factor must be positive and finite, got 0.0"),
                ({"betas": (0.9, 1.0)}, "betas[1] must lie in [0, 1), got 1.0"),
                ({"betas": (-0.1, 0.9)}, "betas[0] must lie in [0, 1), got -0.1"),
                ({"betas": 0.9}, "betas must be a pair of numbers, got 0.9"),
                ({"alpha": 0.0}, "alpha must lie in (0, 2], got 0.0"),
                ({"alpha": 2.5}, "alpha must lie in (0, 2], got 2.5"),
                ({"eps": -1e-8}, "eps must be zero or positive, and finite, got -1e-08"),
                (
                    {"form": "adam"},
                    "form must be one of 'first_moment', 'second_moment', 'algorithm', got 'adam'",
                ),
            ),
        ),
        of_ours(
            "normalized_sgd",
            {"lr": 0.05},
            variants={
                "momentum": {"beta": 0.9, "damping": 0.1},
                "momentum-first": {"beta": 0.9, "normalize": "momentum"},
            },
            bad=COMMON_BAD
            + (
                (
                    {"normalize": "norm"},
                    "normalize must be one of 'gradient', 'momentum', got 'norm'",
                ),
            )
            + BETA_BAD
            + SCOPE_BAD
            + PROJECT_BAD
            + (({"damping": -1.0}, "damping must be zero or positive, and finite, got -1.0"),),
        ),
        of_ours(
            "ingd",
            {"lr": 0.05, "epsilon": 0.02, "lipschitz": 10.0, "inner": 20},
            bad=(
                ({"lr": 0.0}, "lr must be positive and finite, got 0.0"),
                ({"epsilon": -1.0}, "epsilon must be positive and finite, got -1.0"),
                ({"lipschitz": 0.0}, "lipschitz must be positive and finite, got 0.0"),
                ({"inner": 0}, "inner must be a whole number of at least 1, got 0"),
                ({"seed": -1}, "seed must be a whole number of at least 0, got -1"),
                (
                    {"nonfinite": "ignore"},
                    "nonfinite must be one of 'raise', 'skip', 'propagate', got 'ignore'",
                ),
            ),
            closure=True,
            # a rounded f may refuse a step that float32 takes: at worst the length of a few steps
            bf16_atol=0.4,
            excuses={
                "group_at_tiny_lr": "one search over one vector: all groups have the same lr",
                "grad_scaler": "GradScaler.step takes no closure; test_ingd_and_grad_scaler shows "
                "the error",
                "no_sync": "the algorithm decides by the value of f at every inner step",
                "propagates": "moves only where f was seen to fall; the outcome says 'non-finite'",
            },
        ),
        of_ours(
            "stochastic_ingd",
            {"p": 1.0, "q": 10.0},
            variants={"decay": {"weight_decay": 0.1, "beta": 0.5, "seed": 3, "clip": None}},
            bad=COMMON_BAD
            + BETA_BAD
            + CLIP_BAD
            + (
                ({"p": -1.0}, "p must be zero or positive, and finite, got -1.0"),
                ({"p": 0.0, "q": 0.0}, "q must be positive where p is 0, got 0.0"),
                ({"seed": 0.5}, "seed must be a whole number of at least 0, got 0.5"),
            ),
        ),
        OptimizerCase(
            "torch.SGD",
            torch.optim.SGD,
            {"lr": 0.05, "momentum": 0.9},
            ours=False,
            excuses={
                **NO_SPARSE,
                "no_sync": "about our norms",
                "compile": "torch 2.13 compiles away the momentum of 0-dim parameters; without "
                "momentum it passes",
                "huge_entries": "SGD takes no norm",
                "float32_states": "torch keeps states in the parameter's dtype",
            },
        ),
    )
}


def generic(test: str) -> list[Any]:
    """Parameters of a generic test: (case, variant's settings), all that have no excuse."""
    import pytest

    return [
        pytest.param(case, changes, id=f"{case.name}{'-' + label if label else ''}")
        for case in CASES.values()
        if test not in case.excuses
        for label, changes in {"": {}, **case.variants}.items()
    ]


def own(test: str) -> list[Any]:
    """As ``generic``, for our own optimizers and without variants."""
    import pytest

    return [pytest.param(c, id=c.name) for c in CASES.values() if c.ours and test not in c.excuses]
