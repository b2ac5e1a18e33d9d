"""What this library's optimizers promise beyond torch's interface: clear errors, policies, no
waiting, INGD's ways.
"""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
from cases.optimizer_loop import SHAPES, assert_same, drive, loss_of, start, to_evaluate, values
from cases.optimizers import CASES, generic, own

from mindgap import optim
from mindgap.base.check import RuleError
from mindgap.base.tensors import robust_norm
from mindgap.optim import OPTIMIZERS
from mindgap.testing import contracts


def test_every_optimizer_of_the_table_has_a_record():
    assert set(OPTIMIZERS) <= set(CASES)


@pytest.mark.parametrize(
    ("case", "changes", "text"),
    [
        pytest.param(c, bad, text, id=f"{c.name}-{text[:40]}")
        for c in CASES.values()
        for bad, text in c.bad
    ],
)
def test_bad_input_names_argument_rule_and_value(case, changes, text):
    with pytest.raises(RuleError) as error:
        case.make(start(), **changes)
    assert str(error.value) == text


@pytest.mark.parametrize("case", own("empty"))
def test_empty_and_integer_parameter_lists_are_refused(case):
    with pytest.raises(RuleError, match=r"params must hold at least one parameter, got \[\]"):
        case.make([])
    with pytest.raises(
        RuleError, match=r"params must be floating or complex tensors, got torch.int64"
    ):
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
    optimizer = case.make(params, **case.variants.get("momentum", {}))
    drive(case, optimizer, params, 3)
    kept = copy.deepcopy(optimizer.state_dict())
    optimizer.load_state_dict(kept)
    states = [v for p in params for v in optimizer.state[p].values()]
    assert states, "no state was kept: give the record a variant named 'momentum' that keeps one"
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
    to_evaluate(optimizer)
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
    with pytest.raises(
        RuleError, match=r"gradients must be finite \(nonfinite='raise'\): that of parameter 0"
    ):
        drive(case, optimizer, params, 1, loss=broken)
    assert_same(before, params)


@pytest.mark.parametrize("case", own("propagates"))
def test_by_default_nan_shows(case):
    contracts.nan_shows(case, {})


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
    assert optimizer.tally.steps == 3


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


@pytest.mark.parametrize(
    "form", [{}, {"foreach": True}, {"foreach": False}], ids=["default", "foreach", "loop"]
)
@pytest.mark.parametrize(("case", "changes"), [p for p in generic("report") if "torch" not in p.id])
def test_every_report_has_steps_share_and_norms_after_20_steps(case, changes, form):
    params = start()
    optimizer = case.make(params, **{**changes, **form})
    assert optimizer.report().clipped is None
    drive(case, optimizer, params, 20)
    report = optimizer.report()
    assert report.steps == 20
    assert 0.0 <= report.clipped <= 1.0
    assert 0.0 < report.direction_norm < math.inf
    assert 0.0 < report.median_norm < math.inf


@pytest.mark.parametrize(
    "form", [{}, {"foreach": True}, {"foreach": False}], ids=["default", "foreach", "loop"]
)
@pytest.mark.parametrize(
    "settings",
    [
        {"tau": 1.0},
        {"tau": 0.3, "beta": 0.9, "clip": "momentum"},
        {"tau": "auto", "beta": 0.9},
        {"tau": "auto"},
        {"tau": [1.0, torch.full((), 0.5), torch.full((5,), 2.0)]},
        {"tau": lambda k: 1.0 / k, "beta": 0.5},
    ],
    ids=["number", "momentum", "auto", "auto, no momentum", "tensors", "function"],
)
def test_cclip_counts_the_same_coordinates_with_and_without_track(settings, form):
    """At the steps that are counted: 1 to 8 and 32, which stands for 9 to 32."""
    shares = {}
    for track in (True, False):
        draw, params = np.random.default_rng(0), start()
        optimizer = optim.CClip(params, 0.1, track=track, **settings, **form)
        for k in range(1, 40):
            for p in params:
                p.grad = torch.tensor(draw.standard_t(1.5, size=tuple(p.shape)))
            optimizer.step()
            shares[track, k] = optimizer.report().clipped
    assert shares[True, 39] > 0.01
    for k in range(1, 9):
        assert shares[False, k] == pytest.approx(shares[True, k], abs=1e-12)
    each = {k: k * shares[True, k] - (k - 1) * shares.get((True, k - 1), 0.0) for k in range(1, 40)}
    expected = sum(each[k] for k in range(1, 9)) + 24 * each[32]
    assert shares[False, 39] == pytest.approx(expected / 32, abs=1e-12)


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
    with pytest.raises(RuleError, match=r"lr must be 0.05 in all groups"):
        CASES["ingd"].make([{"params": params[:1]}, {"params": params[1:], "lr": 0.1}])


def test_ingd_says_that_a_gradient_of_any_group_was_not_finite():
    still, p = torch.zeros(1, requires_grad=True), torch.ones(1, requires_grad=True)
    optimizer = CASES["ingd"].make([{"params": [still]}, {"params": [p]}], nonfinite="skip")

    def closure():
        optimizer.zero_grad()
        loss = (p * float("nan")).sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    assert optimizer.result().outcome == "non-finite"
    assert p.item() == 1.0


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


@pytest.mark.parametrize("foreach", [None, True])
@pytest.mark.parametrize(
    "name", ["AdamW", "SGD", "ACClip", "CClip", "GClip", "NormalizedSGD", "StochasticINGD"]
)
def test_reports_are_filled_by_default(name, foreach):
    """Rules that need no norm themselves take one now and then for the report."""
    needs = {"GClip": (0.1, 1.0), "CClip": (0.1, 1.0), "SGD": (0.1,), "NormalizedSGD": (0.1,)}.get(
        name, ()
    )
    p = torch.nn.Parameter(torch.zeros(50))
    optimizer = getattr(optim, name)([p], *needs, foreach=foreach)
    draw, norms = torch.Generator().manual_seed(0), []
    for _ in range(96):
        p.grad = torch.randn(50, generator=draw)
        norms.append(float(p.grad.norm()))
        optimizer.step()
    report = optimizer.report()
    assert report.steps == 96
    assert report.direction_norm == pytest.approx(norms[-1], rel=1e-5)
    assert report.median_norm == pytest.approx(float(np.median(norms)), rel=0.1)
