"""What people expect of a torch optimizer, for every record of ``cases.optimizers`` (torch's own SGD among them)."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch
from cases.optimizers import CASES, generic, own

from mindgap.base.check import RuleError
from mindgap.base.tensors import robust_norm
from mindgap.optim import OPTIMIZERS

SHAPES = [(3, 2), (), (5,)]
TARGETS = [0.5, -1.0, 2.0]


def start(dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.nn.Parameter(torch.randn(s, generator=generator, dtype=torch.float64).to(dtype)) for s in SHAPES]


def loss_of(params, used=(0, 1, 2)):
    """A smooth function with a minimum; parameters outside ``used`` do not enter."""
    parts = [((params[i] - TARGETS[i]).abs().square() + 1).sqrt().sum() * (i + 1) for i in used]
    return torch.stack([p.to(torch.float64) if not p.is_complex() else p.real for p in parts]).sum()


def drive(case, optimizer, params, steps=1, *, loss=loss_of, sign=1.0):
    """Steps of an ordinary training loop; returns the last loss."""
    value = None
    for _ in range(steps):

        def closure():
            optimizer.zero_grad()
            value = sign * loss(params)
            value.backward()
            return value

        if case.closure:
            value = optimizer.step(closure)
        else:
            value = closure()
            optimizer.step()
    return value


def values(params):
    return [p.detach().clone() for p in params]


def assert_same(first, second, **tolerance):
    for a, b in zip(first, second, strict=True):
        torch.testing.assert_close(a, b, **(tolerance or {"rtol": 0, "atol": 0}))


def finish(optimizer):
    """Put the parameters where they are to be evaluated."""
    if hasattr(optimizer, "eval"):
        optimizer.eval()


# -- generic part: torch's interface -----------------------------------------------------------------------------


@pytest.mark.parametrize(("case", "changes"), generic("descends"))
@pytest.mark.parametrize("maximize", [False, True])
def test_descends_or_ascends(case, changes, maximize):
    params = start()
    optimizer = case.make(params, maximize=maximize, **changes)
    sign = -1.0 if maximize else 1.0
    before = float(loss_of(params).detach())
    drive(case, optimizer, params, 60, sign=sign)
    finish(optimizer)
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
    zeros = [torch.zeros(p.shape[::-1] if p.dim() == 2 else (*p.shape, 2), dtype=p.dtype) for p in plain]
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
    groups = [{"params": params[:1]}, {"params": params[1:], case.step_size: 1e-28}]
    optimizer = case.make(groups, **changes)
    before = values(params)
    drive(case, optimizer, params, 5)
    finish(optimizer)
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
    finish(optimizer)
    assert all(not torch.equal(b, p) for b, p in zip(before, params))


@pytest.mark.parametrize(("case", "changes"), generic("tensor_lr"))
def test_tensor_lr_equals_float_lr(case, changes):
    floats, tensors = start(), start()
    lr = changes.get(case.step_size, case.settings.get(case.step_size, 1.0))
    drive(case, case.make(floats, **changes), floats, 10)
    optimizer = case.make(tensors, **{**changes, case.step_size: torch.tensor(lr, dtype=torch.float64)})
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
        "CyclicLR": lambda o: sched.CyclicLR(o, 0.01, 0.1, step_size_up=2, cycle_momentum=False),
        "OneCycleLR": lambda o: sched.OneCycleLR(o, 0.1, total_steps=9, cycle_momentum=False),
        "ReduceLROnPlateau": lambda o: sched.ReduceLROnPlateau(o, patience=0),
        "SequentialLR": lambda o: sched.SequentialLR(o, [sched.ConstantLR(o), sched.ExponentialLR(o, 0.5)], [2]),
        "ChainedScheduler": lambda o: sched.ChainedScheduler([sched.ConstantLR(o), sched.ExponentialLR(o, 0.5)]),
        "SWALR": lambda o: torch.optim.swa_utils.SWALR(o, 0.01, anneal_epochs=2),
    }


def test_no_scheduler_is_left_out():
    sched = torch.optim.lr_scheduler
    public = {n for n, v in vars(sched).items() if isinstance(v, type) and issubclass(v, sched.LRScheduler)}
    assert public - {"LRScheduler", "_LRScheduler"} <= set(schedulers())


@pytest.mark.parametrize("name", schedulers())
@pytest.mark.parametrize("case", [pytest.param(c, id=c.name) for c in CASES.values()])
def test_every_lr_scheduler(case, name):
    followed, by_hand, rates = start(), start(), []
    optimizer = case.make(followed)
    scheduler = schedulers()[name](optimizer)
    for _ in range(6):
        rates.append(optimizer.param_groups[0]["lr"])
        drive(case, optimizer, followed)
        scheduler.step(*([1.0] if name == "ReduceLROnPlateau" else []))
    assert len(set(rates)) > 1
    optimizer = case.make(by_hand)
    for rate in rates:
        optimizer.param_groups[0]["lr"] = rate
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
    from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

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
    assert f"Optimizer.step#{type(optimizer).__name__}.step" in {event.name for event in profile.function_events}


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


@pytest.mark.parametrize(("case", "changes"), generic("missing"))
def test_missing_gradients(case, changes):
    params = start()
    optimizer = case.make(params, **changes)
    before = values(params)
    if not case.closure:
        optimizer.step()
        assert_same(before, params)
    drive(case, optimizer, params, 3, loss=lambda ps: loss_of(ps, used=(0, 2)))
    finish(optimizer)
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
    optimizer = case.make(params, **{**changes, **({"weight_decay": 0.0} if "weight_decay" in changes else {})})
    before = values(params)
    drive(case, optimizer, params, 3, loss=lambda ps: 0.0 * loss_of(ps))
    assert_same(before, params)


@pytest.mark.parametrize(("case", "changes"), generic("bf16"))
def test_bf16_parameters(case, changes):
    narrow, wide = start(torch.bfloat16), [torch.nn.Parameter(p.detach().float()) for p in start(torch.bfloat16)]
    for params in (narrow, wide):
        optimizer = case.make(params, **changes)
        drive(case, optimizer, params, 20)
        finish(optimizer)
    # 20 steps, each rounded by at most half of bf16's spacing between 2 and 4, 2^-6/2: at most 20·2^-7 = 0.157 apart.
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
        states = [v for p in params for _, v in sorted(optimizer.state[p].items()) if isinstance(v, torch.Tensor)]
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


# Importing parts of torch's own compiler warns about torch.jit, and its guards look at the .grad of every tensor.
@pytest.mark.filterwarnings("ignore:.*grad attribute of a Tensor:UserWarning")
@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
@pytest.mark.parametrize("case", [pytest.param(c, id=c.name) for c in CASES.values() if "compile" not in c.excuses])
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

    # The first steps make states and meet a second step number; after that nothing may be compiled again.
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


# -- what is ours ------------------------------------------------------------------------------------------------


def test_every_optimizer_of_the_table_has_a_record():
    assert set(OPTIMIZERS) <= set(CASES)


@pytest.mark.parametrize(
    ("case", "changes", "text"),
    [pytest.param(c, bad, text, id=f"{c.name}-{text[:40]}") for c in CASES.values() for bad, text in c.bad],
)
def test_bad_input_names_argument_rule_and_value(case, changes, text):
    with pytest.raises(RuleError) as error:
        case.make(start(), **changes)
    assert str(error.value) == text


@pytest.mark.parametrize("case", own("empty"))
def test_empty_and_integer_parameter_lists_are_refused(case):
    with pytest.raises(RuleError, match=r"params must hold at least one parameter, got \[\]"):
        case.make([])
    with pytest.raises(RuleError, match=r"params must be floating or complex tensors, got torch.int64"):
        case.make([torch.ones(2, dtype=torch.int64)])


@pytest.mark.parametrize("case", own("rejected_group"))
def test_a_refused_group_is_not_half_added(case):
    optimizer = case.make(start())
    with pytest.raises(RuleError):
        optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(2))], "lr": -1.0})
    assert len(optimizer.param_groups) == 1


@pytest.mark.parametrize("case", own("float32_states"))
def test_states_of_16_bit_parameters_are_float32_and_survive_a_checkpoint(case):
    params = start(torch.bfloat16)
    optimizer = case.make(params, **({"beta": 0.9} if case.name in ("gclip", "cclip", "normalized_sgd") else {}))
    drive(case, optimizer, params, 3)
    kept = copy.deepcopy(optimizer.state_dict())
    optimizer.load_state_dict(kept)
    states = [v for p in params for v in optimizer.state[p].values()]
    assert states
    assert all(v.dtype == torch.float32 for v in states)
    for p, i in zip(params, kept["state"]):
        for name, value in kept["state"][i].items():
            assert torch.equal(optimizer.state[p][name], value)


@pytest.mark.parametrize("case", own("huge_entries"))
@pytest.mark.parametrize("huge", [1e20, 1e38])
def test_huge_float32_entries_do_not_overflow_the_norm(case, huge):
    params = [torch.nn.Parameter(torch.zeros(4)), torch.nn.Parameter(torch.zeros(3))]
    optimizer = case.make(params)
    slopes = [torch.tensor([huge, 1.0, -huge, 0.0]), torch.ones(3)]

    def closure():
        optimizer.zero_grad()
        value = sum((p * s).sum() for p, s in zip(params, slopes))
        value.backward()
        return value

    optimizer.step(closure)
    finish(optimizer)
    assert all(bool(torch.isfinite(p).all()) for p in params)
    assert float(params[0].detach()[0]) < 0


@pytest.mark.parametrize("case", own("nonfinite"))
@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_policies_for_gradients_that_are_not_finite(case, value):
    def broken(ps):
        return loss_of(ps) + (ps[0][0, 0] * value if spoil else 0.0)

    spoil = False
    params = start()
    optimizer = case.make(params, nonfinite="skip")
    drive(case, optimizer, params, 2, loss=broken)
    before, states = values(params), copy.deepcopy(optimizer.state_dict()["state"])
    spoil = True
    drive(case, optimizer, params, 2, loss=broken)
    assert_same(before, params)
    for i, state in states.items():
        for name, tensor in state.items():
            assert torch.equal(tensor, optimizer.state_dict()["state"][i][name])
    assert optimizer.report().skipped == 2
    assert optimizer.report().steps == 4
    spoil = False
    drive(case, optimizer, params, 1, loss=broken)
    assert not torch.equal(before[0], params[0])

    spoil = True
    params = start()
    optimizer = case.make(params, nonfinite="raise")
    before = values(params)
    with pytest.raises(RuleError, match=r"gradients must be finite \(nonfinite='raise'\), got (inf|nan)"):
        drive(case, optimizer, params, 1, loss=broken)
    assert_same(before, params)


@pytest.mark.parametrize("case", own("propagates"))
def test_by_default_nan_shows(case):
    params = start()
    optimizer = case.make(params)
    drive(case, optimizer, params, 1, loss=lambda ps: loss_of(ps) + (ps[0] * float("nan")).sum())
    finish(optimizer)
    assert not bool(torch.isfinite(params[0]).all())


@pytest.mark.parametrize("case", own("no_sync"))
def test_a_step_never_waits_for_the_device(case):
    """Tensors on torch's meta device have no values: reading one on the host raises."""
    params = [torch.nn.Parameter(torch.empty(s, device="meta")) for s in SHAPES]
    optimizer = case.make(params)
    for _ in range(3):
        for p in params:
            p.grad = torch.empty_like(p)
        optimizer.step()
    with pytest.raises((RuntimeError, NotImplementedError)):
        robust_norm([params[0]]).item()
    assert optimizer._steps == 3


@pytest.mark.parametrize("case", own("empty_tensors"))
def test_empty_tensors_among_the_parameters(case):
    params = [*start(), torch.nn.Parameter(torch.zeros(0, 3, dtype=torch.float64))]
    optimizer = case.make(params)
    drive(case, optimizer, params, 3, loss=lambda ps: loss_of(ps) + ps[3].sum())
    assert not torch.equal(params[0], start()[0])
    assert params[3].shape == (0, 3)


def test_functions_of_the_step_stay_out_of_the_checkpoint():
    params = start()
    optimizer = CASES["gclip"].make(params, tau=lambda k: 1.0 / k)
    drive(CASES["gclip"], optimizer, params, 3)
    saved = optimizer.state_dict()
    assert "tau" not in saved["param_groups"][0]
    again = CASES["gclip"].make(start(), tau=lambda k: 1.0 / k)
    again.load_state_dict(saved)
    assert again.param_groups[0]["tau"](4) == 0.25
    assert again.param_groups[0]["k"] == 3


def test_a_schedule_that_turns_negative_is_named():
    optimizer = CASES["gclip"].make(start(), tau=lambda k: 2.0 - k)
    params = optimizer.param_groups[0]["params"]
    drive(CASES["gclip"], optimizer, params)
    with pytest.raises(RuleError, match=r"tau must be positive, got 0.0"):
        drive(CASES["gclip"], optimizer, params)


def test_reports_count_and_reset():
    params = start()
    optimizer = CASES["gclip"].make(params, tau=1e-3)
    drive(CASES["gclip"], optimizer, params, 4)
    report = optimizer.report(reset=True)
    assert (report.steps, report.skipped, report.clipped) == (4, 0, 1.0)
    assert report.update_norm == pytest.approx(0.05 * 1e-3, rel=1e-12)
    assert optimizer.report().steps == 0


def test_ingd_needs_a_closure_and_says_why():
    optimizer = CASES["ingd"].make(start())
    with pytest.raises(RuleError, match=r"closure must be given .*GradScaler.* got None"):
        optimizer.step()


def test_ingd_and_grad_scaler():
    optimizer = CASES["ingd"].make(start(torch.float32))
    with pytest.raises(RuntimeError, match="Closure use is not currently supported"):
        torch.amp.GradScaler("cpu").step(optimizer, closure=lambda: None)


def test_ingd_groups_share_one_search():
    params = start()
    with pytest.raises(RuleError, match=r"delta must be 0.05 in all groups"):
        CASES["ingd"].make([{"params": params[:1]}, {"params": params[1:], "lr": 0.1}])


def test_stochastic_ingd_evaluates_at_x_and_returns_to_y_bit_for_bit():
    params = start()
    optimizer = CASES["stochastic_ingd"].make(params)
    drive(CASES["stochastic_ingd"], optimizer, params, 3)
    y, x = values(params), [optimizer.state[p]["x"].clone() for p in params]
    optimizer.eval()
    optimizer.eval()
    assert_same(params, x)
    with pytest.raises(RuleError, match=r"step must come after train\(\)"):
        optimizer.step()
    saved = copy.deepcopy(optimizer.state_dict())
    optimizer.train()
    assert_same(params, y)
    other = [torch.nn.Parameter(v) for v in x]
    twin = CASES["stochastic_ingd"].make(other)
    twin.load_state_dict(saved)
    twin.train()
    assert_same(other, y)
    drive(CASES["stochastic_ingd"], optimizer, params, 3)
    drive(CASES["stochastic_ingd"], twin, other, 3)
    assert_same(params, other)
