"""Defects that were found once: each test failed before its mend."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from cases.optimizer_loop import assert_same, drive, start, values
from cases.optimizers import generic
from torch.utils._python_dispatch import TorchDispatchMode

from mindgap.base.check import RuleError
from mindgap.optim import SGD, ACClip, AdamW, CClip, GClip, NormalizedSGD
from mindgap.optim.optimizers import cclip


@pytest.mark.parametrize(("case", "changes"), generic("tensor_lr"))
@pytest.mark.parametrize("shape", [(1,), (1, 1)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_lr_may_be_a_tensor_of_one_element_and_any_shape(case, changes, shape, dtype):
    if case.closure:
        pytest.skip("a rounded f may refuse a step")
    floats, tensors = start(dtype), start(dtype)
    lr = changes.get("lr", case.settings.get("lr", 1.0))
    drive(case, case.make(floats, **changes), floats, 6)
    optimizer = case.make(tensors, **{**changes, "lr": torch.full(shape, lr, dtype=torch.float64)})
    drive(case, optimizer, tensors, 6)
    tolerance = 1e-10 if dtype == torch.float64 else 0.02
    assert_same(floats, tensors, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("case", "changes"), generic("zero_lr"))
def test_lr_may_be_zero(case, changes):
    if case.closure:
        pytest.skip("delta is the length of a step")
    params = start()
    before = values(params)
    optimizer = case.make(params, **{**changes, "lr": 0.0})
    drive(case, optimizer, params, 3)
    assert_same(before, params)


@pytest.mark.parametrize("form", ["first_moment", "second_moment", "algorithm"])
@pytest.mark.parametrize("bias_correction", [False, True])
@pytest.mark.parametrize("foreach", [None, False])
def test_acclip_without_eps_at_a_zero_gradient(form, bias_correction, foreach):
    p = torch.nn.Parameter(torch.ones(3))
    optimizer = ACClip(
        [p],
        0.1,
        eps=0.0,
        weight_decay=0.0,
        form=form,
        bias_correction=bias_correction,
        foreach=foreach,
    )
    for _ in range(3):
        p.grad = torch.zeros(3)
        optimizer.step()
    assert torch.equal(p.detach(), torch.ones(3))
    p.grad = torch.tensor([1.0, 0.0, -1.0])
    optimizer.step()
    assert bool(torch.isfinite(p).all())
    assert float(p[1].detach()) == 1.0


@pytest.mark.parametrize("clip", [None, "auto"])
@pytest.mark.parametrize(
    "make",
    [
        lambda p, clip: ACClip(p, 0.1, alpha=2.0, weight_decay=0.0, clip=clip),
        lambda p, clip: ACClip(p, 0.1, weight_decay=0.0, form="second_moment", clip=clip),
        lambda p, clip: AdamW(p, 0.1, weight_decay=0.0, clip=clip),
    ],
)
def test_one_huge_gradient_does_not_make_the_moment_infinite(clip, make):
    p = torch.nn.Parameter(torch.zeros(2))
    optimizer = make([p], clip)
    for size in (1.0, 1e20, 1.0, 1.0):
        p.grad = torch.full((2,), size)
        optimizer.step()
    states = [v for v in optimizer.state[p].values() if isinstance(v, torch.Tensor)]
    assert all(bool(torch.isfinite(v).all()) for v in states)
    assert bool(torch.isfinite(p).all())
    before = p.detach().clone()
    for _ in range(40):
        p.grad = torch.full((2,), 1.0)
        optimizer.step()
    assert (
        clip is None or float((before - p.detach()).min()) > 1.0
    )  # 40 steps of 0.1 each, most of it


def test_the_count_of_bias_correction_goes_on_under_bfloat16():
    p = torch.nn.Parameter(torch.zeros(1))
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        for optimizer in (ACClip([p]), AdamW([p])):
            for _ in range(300):
                p.grad = torch.ones(1, dtype=torch.float32)
                optimizer.step()
            assert float(optimizer.state[p]["step"]) == 300.0
    finally:
        torch.set_default_dtype(before)


@pytest.mark.parametrize(("case", "changes"), generic("older_dicts"))
def test_state_dicts_of_older_versions_load(case, changes):
    if not case.ours:
        pytest.skip("about our keys")
    params, again = start(), start()
    first, second = case.make(params, **changes), case.make(again, **changes)
    drive(case, first, params, 3)
    saved = copy.deepcopy(first.state_dict())
    for group in saved["param_groups"]:
        for name in ("fused", "k", "foreach", "maximize", "norms", "tau_norms", "factor"):
            group.pop(name, None)
        if "momentum" in group and case.name not in ("sgd", "ingd"):
            group["beta"] = group.pop("momentum")
    with torch.no_grad():
        for p, q in zip(params, again):
            q.copy_(p)
    second.load_state_dict(saved)
    assert second.param_groups[0].get("momentum") == first.param_groups[0].get("momentum")
    assert "beta" not in second.param_groups[0]
    drive(case, second, again, 2)
    assert all(bool(torch.isfinite(p).all()) for p in again)


@pytest.mark.parametrize("kind", ["AdamW", "SGD"])
@pytest.mark.parametrize("clip", [None, 1.0])
def test_two_hundred_steps_equal_clip_grad_norm_and_torch(kind, clip):
    """The pair in float64, weight decay and a schedule included; then each loads the other's
    state dict.
    """
    ours, theirs = start(), start()
    options = {"lr": 0.03, "weight_decay": 0.05} | ({"momentum": 0.9} if kind == "SGD" else {})
    mine = {"AdamW": AdamW, "SGD": SGD}[kind](ours, clip=clip, **options)
    pair = getattr(torch.optim, kind)(theirs, **options)
    schedules = [torch.optim.lr_scheduler.CosineAnnealingLR(o, 200) for o in (mine, pair)]
    rng = np.random.default_rng(0)
    clipped = 0
    for k in range(200):
        if k == 100:
            packed = copy.deepcopy(mine.state_dict()), copy.deepcopy(pair.state_dict())
            mine.load_state_dict(packed[1])
            pair.load_state_dict({**packed[0], "param_groups": packed[1]["param_groups"]})
        for p, q in zip(ours, theirs):
            q.grad = torch.tensor(rng.standard_t(1.5, size=q.shape) * 10 ** rng.uniform(-1, 1))
            p.grad = q.grad.clone()
        before = [p.grad.clone() for p in ours]
        if clip is not None:
            clipped += float(torch.nn.utils.clip_grad_norm_(theirs, clip)) > clip
        for optimizer, schedule in zip((mine, pair), schedules):
            optimizer.step()
            schedule.step()
        assert_same(before, [p.grad for p in ours])
        assert_same(ours, theirs, rtol=1e-10, atol=1e-12)
    if clip is not None:
        assert mine.report().clipped == pytest.approx(clipped / 200)
        assert 0.1 < clipped / 200 < 1.0


def test_track_and_fused_are_refused_at_construction():
    for make in (lambda p, **o: CClip(p, 0.1, 1.0, **o), ACClip):
        with pytest.raises(RuleError, match="fused must not be asked for together with track"):
            make(start(), fused=True, track=True)


@pytest.mark.parametrize(
    "make",
    [
        lambda p, tau: GClip(p, 0.1, tau),
        lambda p, tau: CClip(p, 0.1, tau),
        lambda p, tau: GClip(p, 0.1, tau, beta=0.9),
    ],
)
@pytest.mark.parametrize(
    "value", [0.0, -1.0, "abc", None, float("nan"), torch.ones(2), torch.tensor(1)]
)
def test_functions_of_the_step_are_checked_before_anything_changes(make, value):
    params = start()
    before = values(params)
    optimizer = make(params, lambda k: value)
    for p in params:
        p.grad = torch.ones_like(p)
    with pytest.raises(RuleError, match="tau"):
        optimizer.step()
    assert_same(before, params)


def test_beta_that_is_a_function_is_refused():
    for make in (
        lambda b: GClip(start(), 0.1, 1.0, beta=b),
        lambda b: NormalizedSGD(start(), 0.1, beta=b),
    ):
        with pytest.raises(RuleError, match="beta must be a number"):
            make(lambda k: 0.9)


def test_the_window_of_a_checkpoint_follows_the_parameters_to_their_device():
    """On the device "meta", which every machine has."""
    optimizer = GClip([torch.nn.Parameter(torch.zeros(3, device="meta"))], 0.1, "auto")
    group = optimizer.param_groups[0]
    group["tau_norms"] = torch.ones(128, dtype=torch.float64)  # as torch.load leaves it on the CPU
    assert optimizer.fused_record(group).window.device.type == "meta"
    assert group["tau_norms"].device.type == "meta"


class LargestResult(TorchDispatchMode):
    """The most entries that an elementwise operation wrote."""

    most = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if func.overloadpacket.__name__ in ("abs", "gt", "mul", "clone"):
            self.most = max(self.most, result.numel())
        return result


@pytest.mark.parametrize("tau", ["auto", 1.0, torch.full((30, 50), 1.0)], ids=["auto", "1", "all"])
def test_the_sampled_share_copies_a_part_at_a_time(tau, monkeypatch):
    """With thresholds per coordinate it made three copies of the largest parameter at once."""
    monkeypatch.setattr(cclip, "ENTRIES_AT_ONCE", 200)
    p = torch.nn.Parameter(torch.zeros(30, 50))
    p.grad = torch.randn(50, 30, generator=torch.Generator().manual_seed(0)).t()
    tracked, sampled = (CClip([p], 0.0, tau=tau, track=track) for track in (True, False))
    results = LargestResult()
    count = sampled._sample_share

    def count_and_look():
        with results:
            count()

    monkeypatch.setattr(sampled, "_sample_share", count_and_look)
    for _ in range(3):
        tracked.step()
        sampled.step()
        p.grad *= 3.0
    assert 0 < results.most <= 200
    assert 0 < sampled.report().clipped == pytest.approx(tracked.report().clipped, abs=1e-6)
