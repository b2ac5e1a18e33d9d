"""What people expect of a torch optimizer, for every record of ``cases.optimizers`` (torch's
own SGD among them).
"""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch
from cases.optimizer_loop import assert_same, drive, loss_of, start, to_evaluate, values
from cases.optimizers import CASES, generic


@pytest.mark.parametrize(("case", "changes"), generic("descends"))
@pytest.mark.parametrize("maximize", [False, True])
def test_descends_or_ascends(case, changes, maximize):
    params = start()
    optimizer = case.make(params, maximize=maximize, **changes)
    sign = -1.0 if maximize else 1.0
    before = float(loss_of(params).detach())
    drive(case, optimizer, params, 60, sign=sign)
    to_evaluate(optimizer)
    assert float(loss_of(params).detach()) < before - 1.0


@pytest.mark.parametrize(("case", "changes"), generic("maximize"))
def test_maximize_is_minimising_the_negative(case, changes):
    ascending, descending = start(), start()
    up = case.make(ascending, maximize=True, **changes)
    down = case.make(descending, **changes)
    drive(case, up, ascending, 15)
    drive(case, down, descending, 15, sign=-1.0)
    assert_same(ascending, descending, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("case", "changes"), generic("non_contiguous"))
def test_non_contiguous_parameters(case, changes):
    plain = start()
    zeros = [
        torch.zeros(p.shape[::-1] if p.dim() == 2 else (*p.shape, 2), dtype=p.dtype) for p in plain
    ]
    holes = [z.t() if p.dim() == 2 else z[..., 0] for z, p in zip(zeros, plain)]
    strided = [torch.nn.Parameter(hole.copy_(p.detach())) for hole, p in zip(holes, plain)]
    assert not strided[0].is_contiguous()
    assert not strided[2].is_contiguous()
    for params in (plain, strided):
        drive(case, case.make(params, **changes), params, 10)
    assert_same(plain, strided, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("case", "changes"), generic("group_at_tiny_lr"))
def test_groups_have_their_own_settings(case, changes):
    params = start()
    groups = [{"params": params[:1]}, {"params": params[1:], "lr": 1e-28}]
    optimizer = case.make(groups, **changes)
    before = values(params)
    drive(case, optimizer, params, 5)
    to_evaluate(optimizer)
    assert not torch.equal(before[0], params[0])
    if not changes.get("weight_decay"):
        assert_same(before[1:], values(params[1:]))


@pytest.mark.parametrize(("case", "changes"), generic("add_group"))
def test_group_added_in_mid_run(case, changes):
    params = start()
    optimizer = case.make(params[:2], **changes)
    drive(case, optimizer, params, 3)
    optimizer.add_param_group({"params": params[2:]})
    before = values(params)
    drive(case, optimizer, params, 3)
    to_evaluate(optimizer)
    assert all(not torch.equal(b, p) for b, p in zip(before, params))


@pytest.mark.parametrize(("case", "changes"), generic("tensor_lr"))
def test_tensor_lr_equals_float_lr(case, changes):
    floats, tensors = start(), start()
    lr = changes.get("lr", case.settings.get("lr", 1.0))
    drive(case, case.make(floats, **changes), floats, 10)
    optimizer = case.make(tensors, **{**changes, "lr": torch.tensor(lr, dtype=torch.float64)})
    drive(case, optimizer, tensors, 10)
    assert_same(floats, tensors, rtol=1e-12, atol=1e-12)


def schedulers():
    sched = torch.optim.lr_scheduler
    halve = lambda e: 0.5**e  # noqa: E731
    return {
        "LambdaLR": lambda o: sched.LambdaLR(o, halve),
        "MultiplicativeLR": lambda o: sched.MultiplicativeLR(o, lambda e: 0.9),
        "StepLR": lambda o: sched.StepLR(o, 2),
        "MultiStepLR": lambda o: sched.MultiStepLR(o, [1, 3]),
        "ConstantLR": lambda o: sched.ConstantLR(o),
        "LinearLR": lambda o: sched.LinearLR(o),
        "ExponentialLR": lambda o: sched.ExponentialLR(o, 0.8),
        "PolynomialLR": lambda o: sched.PolynomialLR(o, 4),
        "CosineAnnealingLR": lambda o: sched.CosineAnnealingLR(o, 4),
        "CosineAnnealingWarmRestarts": lambda o: sched.CosineAnnealingWarmRestarts(o, 2),
        "CyclicLR": lambda o: sched.CyclicLR(o, 0.01, 0.1, step_size_up=2),
        "OneCycleLR": lambda o: sched.OneCycleLR(o, 0.1, total_steps=9),
        "ReduceLROnPlateau": lambda o: sched.ReduceLROnPlateau(o, patience=0),
        "SequentialLR": lambda o: sched.SequentialLR(
            o, [sched.ConstantLR(o), sched.ExponentialLR(o, 0.5)], [2]
        ),
        "ChainedScheduler": lambda o: sched.ChainedScheduler(
            [sched.ConstantLR(o), sched.ExponentialLR(o, 0.5)]
        ),
        "SWALR": lambda o: torch.optim.swa_utils.SWALR(o, 0.01, anneal_epochs=2),
    }


def test_no_scheduler_is_left_out():
    sched = torch.optim.lr_scheduler
    public = {
        n
        for n, v in vars(sched).items()
        if isinstance(v, type) and issubclass(v, sched.LRScheduler)
    }
    assert public - {"LRScheduler", "_LRScheduler"} <= set(schedulers())


@pytest.mark.parametrize("name", schedulers())
@pytest.mark.parametrize("case", [pytest.param(c, id=c.name) for c in CASES.values()])
def test_every_lr_scheduler(case, name):
    followed, by_hand, rates = start(), start(), []
    optimizer = case.make(followed)
    scheduler = schedulers()[name](optimizer)
    names = [n for n in ("lr", "momentum", "betas") if n in optimizer.param_groups[0]]
    for _ in range(6):
        rates.append({n: optimizer.param_groups[0][n] for n in names})
        drive(case, optimizer, followed)
        scheduler.step(*([1.0] if name == "ReduceLROnPlateau" else []))
    assert len({rate["lr"] for rate in rates}) > 1
    assert name not in ("CyclicLR", "OneCycleLR") or rates[0] != {**rates[2], "lr": rates[0]["lr"]}
    optimizer = case.make(by_hand)
    for rate in rates:
        optimizer.param_groups[0].update(rate)
        drive(case, optimizer, by_hand)
    assert_same(followed, by_hand)


@pytest.mark.parametrize(("case", "changes"), generic("state_dict"))
def test_resuming_in_mid_run_is_bitwise(case, changes):
    params = start()
    optimizer = case.make(params, **changes)
    drive(case, optimizer, params, 7)
    file = io.BytesIO()
    torch.save({"model": values(params), "optimizer": optimizer.state_dict()}, file)
    drive(case, optimizer, params, 10)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    resumed = [torch.nn.Parameter(v) for v in saved["model"]]
    again = case.make(resumed, **changes)
    again.load_state_dict(saved["optimizer"])
    drive(case, again, resumed, 10)
    assert_same(params, resumed)


@pytest.mark.parametrize(("case", "changes"), generic("copy"))
@pytest.mark.parametrize("how", ["deepcopy", "pickle"])
def test_a_copy_goes_the_same_way_and_stands_apart(case, changes, how):
    params = start()
    optimizer = case.make(params, **changes)
    drive(case, optimizer, params, 4)
    if how == "deepcopy":
        twin_params, twin = copy.deepcopy((params, optimizer))
    else:
        twin_params, twin = pickle.loads(pickle.dumps((params, optimizer)))
    frozen = values(twin_params)
    drive(case, optimizer, params, 5)
    assert_same(frozen, twin_params)
    drive(case, twin, twin_params, 5)
    assert_same(params, twin_params)
    if case.ours:
        assert twin.report() == optimizer.report()


@pytest.mark.parametrize(("case", "changes"), generic("hooks"))
def test_hooks_run(case, changes):
    params, seen = start(), []
    optimizer = case.make(params, **changes)
    handles = [
        optimizer.register_step_pre_hook(lambda *a: seen.append("pre")),
        optimizer.register_step_post_hook(lambda *a: seen.append("post")),
        optimizer.register_state_dict_pre_hook(lambda o: seen.append("state")),
        optimizer.register_load_state_dict_post_hook(lambda o: seen.append("load")),
    ]
    drive(case, optimizer, params, 2)
    optimizer.load_state_dict(optimizer.state_dict())
    assert seen == ["pre", "post", "pre", "post", "state", "load"]
    for handle in handles:
        handle.remove()
    drive(case, optimizer, params)
    assert len(seen) == 6


@pytest.mark.parametrize("case", [pytest.param(c, id=c.name) for c in CASES.values()])
def test_global_hooks_and_the_profiler_see_a_step(case):
    from torch.optim.optimizer import (
        register_optimizer_step_post_hook,
        register_optimizer_step_pre_hook,
    )

    params, seen = start(), []
    optimizer = case.make(params)
    handles = [
        register_optimizer_step_pre_hook(lambda *a: seen.append("pre")),
        register_optimizer_step_post_hook(lambda *a: seen.append("post")),
    ]
    drive(case, optimizer, params)
    for handle in handles:
        handle.remove()
    assert seen == ["pre", "post"]
    with torch.autograd.profiler.profile() as profile:
        drive(case, optimizer, params)
    assert f"Optimizer.step#{type(optimizer).__name__}.step" in {
        event.name for event in profile.function_events
    }


@pytest.mark.parametrize(("case", "changes"), generic("closure"))
def test_closure_gives_the_loss(case, changes):
    params, calls = start(), []
    optimizer = case.make(params, **changes)

    def closure():
        optimizer.zero_grad()
        value = loss_of(params)
        value.backward()
        calls.append(float(value.detach()))
        return value

    expected = float(loss_of(params).detach())
    assert float(optimizer.step(closure).detach()) == expected
    assert calls[0] == expected
    assert len(calls) == 1 or case.closure
