"""Gradients of every kind, for every record of ``cases.optimizers``: missing, zero, complex, 16
bits, scaled.
"""

from __future__ import annotations

import pytest
import torch
from cases.optimizers import CASES, generic, own

from mindgap.base.check import RuleError
from mindgap.testing import contracts


@pytest.mark.parametrize(("case", "changes"), generic("missing"))
def test_missing_gradients(case, changes):
    contracts.missing_gradients(case, changes)


@pytest.mark.parametrize(("case", "changes"), generic("frozen"))
def test_layer_frozen_and_thawed(case, changes):
    contracts.frozen_and_thawed(case, changes)


@pytest.mark.parametrize(("case", "changes"), generic("zero"))
def test_zero_gradients_change_nothing(case, changes):
    contracts.zero_gradients(case, changes)


@pytest.mark.parametrize(("case", "changes"), generic("bf16"))
def test_bf16_parameters(case, changes):
    contracts.bfloat16(case, changes)


@pytest.mark.parametrize(("case", "changes"), generic("complex"))
def test_complex_parameters_equal_pairs_of_real_ones(case, changes):
    contracts.complex_numbers(case, changes)


@pytest.mark.parametrize(("case", "changes"), generic("foreach"))
def test_foreach_equals_the_plain_loop(case, changes):
    contracts.foreach(case, changes)


@pytest.mark.parametrize(("case", "changes"), generic("gradients"))
def test_step_leaves_gradients_bitwise_as_they_were(case, changes):
    contracts.gradients_are_read_only(case, changes)


@pytest.mark.parametrize(("case", "changes"), generic("grad_scaler"))
def test_grad_scaler(case, changes):
    contracts.grad_scaler(case, changes)


# Importing parts of torch's own compiler warns about torch.jit, and its guards look at the .grad of
# every tensor.
@pytest.mark.filterwarnings("ignore:.*grad attribute of a Tensor:UserWarning")
@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
@pytest.mark.parametrize(
    "case", [pytest.param(c, id=c.name) for c in CASES.values() if "compile" not in c.excuses]
)
def test_under_torch_compile(case):
    contracts.compiles(case, {})


@pytest.mark.parametrize("case", own("sparse_refused"))
def test_sparse_gradients_give_one_clear_error(case):
    weight = torch.nn.Parameter(torch.ones(4, 2))
    optimizer = case.make([weight])

    def closure():
        optimizer.zero_grad()
        value = torch.nn.functional.embedding(torch.tensor([1]), weight, sparse=True).sum()
        value.backward()
        return value

    with pytest.raises(RuleError, match=r"gradients must be dense .* got torch.sparse_coo"):
        optimizer.step(closure)


# -- what is ours
# ------------------------------------------------------------------------------------------------
