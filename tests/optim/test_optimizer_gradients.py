"""Gradients of every kind, for every record of ``cases.optimizers``: missing, zero, complex, 16
bits, scaled.
"""

from __future__ import annotations

import pytest
import torch
from cases.optimizer_loop import SHAPES, assert_same, drive, loss_of, start, to_evaluate, values
from cases.optimizers import CASES, generic, own

from mindgap.base.check import RuleError


@pytest.mark.parametrize(("case", "changes"), generic("missing"))
def test_missing_gradients(case, changes):
    params = start()
    optimizer = case.make(params, **changes)
    before = values(params)
    if not case.closure:
        optimizer.step()
        assert_same(before, params)
    drive(case, optimizer, params, 3, loss=lambda ps: loss_of(ps, used=(0, 2)))
    to_evaluate(optimizer)
    assert torch.equal(before[1], params[1])
    assert not torch.equal(before[0], params[0])


@pytest.mark.parametrize(("case", "changes"), generic("frozen"))
def test_layer_frozen_and_thawed(case, changes):
    params = start()
    optimizer = case.make(params, **changes)
    drive(case, optimizer, params, 2)
    params[0].requires_grad_(False)
    frozen = values(params)
    drive(case, optimizer, params, 2)
    assert torch.equal(frozen[0], params[0])
    params[0].requires_grad_(True)
    drive(case, optimizer, params, 2)
    assert not torch.equal(frozen[0], params[0])


@pytest.mark.parametrize(("case", "changes"), generic("zero"))
def test_zero_gradients_change_nothing(case, changes):
    params = start()
    optimizer = case.make(
        params, **{**changes, **({"weight_decay": 0.0} if "weight_decay" in changes else {})}
    )
    before = values(params)
    drive(case, optimizer, params, 3, loss=lambda ps: 0.0 * loss_of(ps))
    assert_same(before, params)


@pytest.mark.parametrize(("case", "changes"), generic("bf16"))
def test_bf16_parameters(case, changes):
    narrow, wide = (
        start(torch.bfloat16),
        [torch.nn.Parameter(p.detach().float()) for p in start(torch.bfloat16)],
    )
    for params in (narrow, wide):
        optimizer = case.make(params, **changes)
        drive(case, optimizer, params, 20)
        to_evaluate(optimizer)
    # 20 steps, each rounded by at most half of bf16's spacing between 2 and 4, 2^-6/2: at most
    # 20·2^-7 = 0.157 apart.
    assert_same([p.float() for p in narrow], wide, rtol=0, atol=case.bf16_atol)
    assert all(p.dtype == torch.bfloat16 for p in narrow)
    assert not torch.equal(narrow[0], start(torch.bfloat16)[0])


@pytest.mark.parametrize(("case", "changes"), generic("complex"))
def test_complex_parameters_equal_pairs_of_real_ones(case, changes):
    generator = torch.Generator().manual_seed(0)
    begin = [torch.randn(s, generator=generator, dtype=torch.complex128) for s in SHAPES]
    complexes = [torch.nn.Parameter(z.clone()) for z in begin]
    pairs = [torch.nn.Parameter(torch.view_as_real(z).clone()) for z in begin]
    if case.closure:
        drive(case, case.make(complexes, **changes), complexes, 8)
        joined = lambda ps: loss_of([torch.view_as_complex(p) for p in ps])  # noqa: E731
        drive(case, case.make(pairs, **changes), pairs, 8, loss=joined)
    else:
        first, second = case.make(complexes, **changes), case.make(pairs, **changes)
        for _ in range(8):
            drive(case, first, complexes)
            for z, p in zip(complexes, pairs):
                p.grad = torch.view_as_real(z.grad).clone()
            second.step()
    assert_same([torch.view_as_real(z) for z in complexes], pairs, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("case", "changes"), generic("foreach"))
def test_foreach_equals_the_plain_loop(case, changes):
    runs = []
    for foreach in (None, True, False):
        params = start()
        optimizer = case.make(params, foreach=foreach, **changes)
        drive(case, optimizer, params, 3)
        params[2].requires_grad_(False)
        drive(case, optimizer, params, 2, loss=lambda ps: loss_of(ps, used=(0, 1)))
        params[2].requires_grad_(True)
        drive(case, optimizer, params, 2)
        states = [
            v
            for p in params
            for _, v in sorted(optimizer.state[p].items())
            if isinstance(v, torch.Tensor)
        ]
        runs.append(values(params) + states)
    assert_same(runs[0], runs[2], rtol=1e-12, atol=1e-12)
    assert_same(runs[1], runs[2], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("case", "changes"), generic("gradients"))
def test_step_leaves_gradients_bitwise_as_they_were(case, changes):
    params, left = start(), []
    optimizer = case.make(params, **changes)
    for _ in range(5):

        def closure():
            optimizer.zero_grad()
            value = loss_of(params)
            value.backward()
            left[:] = [p.grad.clone() for p in params]
            return value

        optimizer.step(closure)
        assert_same([p.grad for p in params], left)


@pytest.mark.parametrize(("case", "changes"), generic("grad_scaler"))
def test_grad_scaler(case, changes):
    scaled, plain = start(torch.float32), start(torch.float32)
    optimizer, other = case.make(scaled, **changes), case.make(plain, **changes)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    for step in range(6):
        optimizer.zero_grad()
        scaler.scale(loss_of(scaled)).backward()
        if step == 3:
            scaled[0].grad[0, 0] = float("inf")
            before = values(scaled)
        scaler.step(optimizer)
        scaler.update()
        if step == 3:
            assert_same(before, scaled)
        else:
            drive(case, other, plain)
    assert_same(scaled, plain, rtol=1e-5, atol=1e-6)


# Importing parts of torch's own compiler warns about torch.jit, and its guards look at the .grad of
# every tensor.
@pytest.mark.filterwarnings("ignore:.*grad attribute of a Tensor:UserWarning")
@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
@pytest.mark.parametrize(
    "case", [pytest.param(c, id=c.name) for c in CASES.values() if "compile" not in c.excuses]
)
def test_under_torch_compile(case):
    eager, compiled = start(), start()
    first, second = case.make(eager), case.make(compiled)
    torch._dynamo.reset()

    def closure():
        second.zero_grad(set_to_none=False)
        value = loss_of(compiled)
        value.backward()
        return value.detach()

    @torch.compile(backend="eager")
    def step():
        second.step(closure) if case.closure else second.step()

    # The first steps make states and meet a second step number; after that nothing may be compiled
    # again.
    with torch._dynamo.config.patch(recompile_limit=4, fail_on_recompile_limit_hit=True):
        for _ in range(8):
            drive(case, first, eager)
            if not case.closure:
                closure()
            step()
    assert_same(eager, compiled, rtol=1e-10, atol=1e-12)


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
