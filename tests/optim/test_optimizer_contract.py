"""What people expect of a torch optimizer, for every record of ``cases.optimizers`` (torch's
own SGD among them).
"""

from __future__ import annotations

import pytest
import torch
from cases.optimizer_loop import drive, start
from cases.optimizers import CASES, generic

from mindgap.testing import contracts


@pytest.mark.parametrize(("case", "changes"), generic("descends"))
@pytest.mark.parametrize("maximize", [False, True])
def test_descends_or_ascends(case, changes, maximize):
    contracts.descends(case, changes, maximize=maximize)


@pytest.mark.parametrize(("case", "changes"), generic("maximize"))
def test_maximize_is_minimising_the_negative(case, changes):
    contracts.maximize(case, changes)


@pytest.mark.parametrize(("case", "changes"), generic("non_contiguous"))
def test_non_contiguous_parameters(case, changes):
    contracts.non_contiguous(case, changes)


@pytest.mark.parametrize(("case", "changes"), generic("group_at_tiny_lr"))
def test_groups_have_their_own_settings(case, changes):
    contracts.groups(case, changes)


@pytest.mark.parametrize(("case", "changes"), generic("add_group"))
def test_group_added_in_mid_run(case, changes):
    contracts.added_group(case, changes)


@pytest.mark.parametrize(("case", "changes"), generic("tensor_lr"))
def test_tensor_lr_equals_float_lr(case, changes):
    contracts.tensor_lr(case, changes)


def test_no_scheduler_is_left_out():
    sched = torch.optim.lr_scheduler
    public = {
        n
        for n, v in vars(sched).items()
        if isinstance(v, type) and issubclass(v, sched.LRScheduler)
    }
    assert public - {"LRScheduler", "_LRScheduler"} <= set(contracts.schedulers())


@pytest.mark.parametrize("name", contracts.schedulers())
@pytest.mark.parametrize("case", [pytest.param(c, id=c.name) for c in CASES.values()])
def test_every_lr_scheduler(case, name):
    contracts.scheduler(case, {}, name)


@pytest.mark.parametrize(("case", "changes"), generic("state_dict"))
def test_resuming_in_mid_run_is_bitwise(case, changes):
    contracts.resumes_bitwise(case, changes)


@pytest.mark.parametrize(("case", "changes"), generic("copy"))
@pytest.mark.parametrize("how", ["deepcopy", "pickle"])
def test_a_copy_goes_the_same_way_and_stands_apart(case, changes, how):
    optimizer, twin = contracts.copies(case, changes, how)
    if case.ours:
        assert twin.report() == optimizer.report()


@pytest.mark.parametrize(("case", "changes"), generic("hooks"))
def test_hooks_run(case, changes):
    contracts.hooks(case, changes)


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
    contracts.closure_gives_the_loss(case, changes)
