"""Hyper-representation with a recurrent encoder: second derivatives, graphs against eager, and the study's rows."""

from __future__ import annotations

import pytest
import torch
from cases.derivatives import check_second_derivatives

from mindgap.bilevel import METHODS, solve
from mindgap.bilevel.graphs import CudaGraphs
from mindgap.bilevel.oracles import TorchOracle
from mindgap.bilevel.sample import Sample
from mindgap.lab.studies.catalogue import find
from mindgap.lab.studies.loop import Trial
from mindgap.lab.studies.representation_runs import representation_method
from mindgap.lab.tasks.problems.recurrent_representation import (
    made_up_pairs,
    made_up_vectors,
    recurrent_representation,
)

TINY = {"data": "made-up pairs", "tasks": [6, 3, 3], "shots": 4, "words": 5, "hidden": 3, "features": 3,
        "oracle_calls": 40, "readings": 2, "least_steps": 1, "device": "cpu"}


def tiny():
    tables = [[made_up_pairs(300, 5, seed=part)] for part in range(3)]
    return recurrent_representation(*tables, made_up_vectors(), tasks=(6, 3, 3), shots=4, hidden=3, features=3,
                                    dtype=torch.float64)


def test_second_derivatives_agree_with_finite_differences():
    oracle, token = TorchOracle(tiny().problem(2)), Sample(1)
    x, y = oracle.start
    draw = torch.Generator().manual_seed(0)
    y, z = (torch.randn(len(y), dtype=y.dtype, generator=draw) for _ in range(2))
    check_second_derivatives(oracle, x, y, z, token)


@pytest.mark.parametrize("key", ["slip", "saba", "f2sa"])
def test_graphs_walk_the_eager_trajectory(key):
    problem = tiny().problem(2)
    method = METHODS[key](lr_x=0.1, lr_y=0.5, **({"lr_z": 0.5} if key == "slip" else {}))
    a, b = (solve(problem, method, steps=6, seed=3, backend=who).state for who in (None, CudaGraphs(chunk=4)))
    torch.testing.assert_close(b.x, a.x, rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(b.y, a.y, rtol=1e-8, atol=1e-10)


def test_every_method_of_the_scale_runs_and_slip_with_shared_samples_is_no_rival():
    study = find("b1-hyper-representation")
    assert len(study.seeds("gpu")) == 10
    for method in study.seeds("gpu"):
        rows = list(study.loop(Trial(method, 0, study.settings("gpu", method, TINY))))
        assert len(rows) == 3
        assert 0 <= rows[-1]["test_accuracy"] <= 1
    assert study.model("gpu") == "a recurrent encoder on SNLI"


def test_the_penalty_of_f2sa_does_not_depend_on_the_number_of_tasks():
    study = find("b1-hyper-representation")
    method = representation_method(Trial("F²SA", 0, study.settings("gpu", "F²SA", {"lr_z": 0.1})))
    assert method.lam == pytest.approx(10.0)
    slip = representation_method(Trial("SLIP", 0, study.settings("gpu", "SLIP", {"lr_z": 0.1})))
    assert slip.lr_z == pytest.approx(0.1 * 500)
