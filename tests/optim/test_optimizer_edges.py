"""What the optimizers do exactly at a limit, and the numbers that their documents name."""

from __future__ import annotations

import inspect
from collections import deque
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from mindgap.base.check import RuleError
from mindgap.optim import (
    INGD,
    SGD,
    ACClip,
    AdamW,
    CClip,
    GClip,
    StochasticINGD,
    fused,
    norms,
    trial,
)
from mindgap.optim.averaging import k_weighted_avg_fn
from mindgap.optim.report import Spike, Tally, clipped_before
from mindgap.optim.settings import bias_corrected
from mindgap.rules.fused.plan import Outcome


def parameter(size: int = 4) -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.zeros(size))


def test_the_window_holds_128_norms_and_a_spike_needs_20() -> None:
    assert (norms.WINDOW, norms.SPIKE_AFTER) == (128, 20)
    window = norms.new_window(torch.device("cpu"))
    for size in (1000.0, *[1.0] * 127):
        norms.push_(window, torch.tensor(size))
    assert float(norms.running_quantile(window, 1.0)) == 1000
    norms.push_(window, torch.tensor(1.0))
    assert float(norms.running_quantile(window, 1.0)) == 1
    for seen, known in ((19, False), (20, True)):
        window = norms.new_window(torch.device("cpu"))
        for _ in range(seen):
            norms.push_(window, torch.tensor(1.0))
        assert bool(norms.spike_range(window)[2].isfinite()) == known


@pytest.mark.parametrize(
    "usual", [0.01, 0.05, 0.1, 0.2, 0.25, 0.3, 0.5, 1.0, 2.0, 3.0, 5.0, 10.0, 40.0, 100.0]
)
def test_clipping_before_the_optimizer_is_noticed_at_every_usual_threshold(usual: float) -> None:
    assert f"at {usual:g} before" in clipped_before(usual * np.array([0.4, 1.0, 1.0, 1.0]))[0]
    assert clipped_before(1.07 * usual * np.array([0.4, 1.0, 1.0, 1.0])) == ()


def test_a_spike_at_the_first_step_outlives_a_checkpoint() -> None:
    tally = Tally()
    tally.steps, tally.spikes = 2, deque([Spike(1, 9.0, 1.0, 2.0), Spike(2, 8.0, 1.0, 2.0)])
    assert [spike.step for spike in Tally.unpack(tally.pack()).report().spikes] == [1, 2]


def test_a_skipped_step_leaves_the_version_of_the_parameters() -> None:
    for form in ({}, {"foreach": True}):
        p = parameter()
        optimizer = AdamW([p], clip=None, spike_guard="skip", **form)
        for _ in range(21):
            p.grad = torch.ones(4)
            optimizer.step()
        before = p._version
        p.grad = torch.full((4,), 1e6)
        optimizer.step()
        assert optimizer.report().skipped == 1
        assert p._version == before
        p.grad = torch.ones(4)
        optimizer.step()
        assert p._version > before


def test_the_trial_covers_a_part_of_a_chunk_and_odd_lengths() -> None:
    from mindgap.rules.fused import cuda

    assert any(size > cuda.BLOCK and size % cuda.BLOCK % 2 for size in trial.SIZES)
    assert any(size % cuda.BLOCK == 0 for size in trial.SIZES)


def test_the_warning_about_a_kernel_points_at_the_line_of_the_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def failing(jobs: object, policy: object) -> None:
        raise RuntimeError("no kernel image is available")

    monkeypatch.setattr(trial, "TRIED", {"cpu"})
    monkeypatch.setattr(trial, "_FOUND", {})
    monkeypatch.setattr(fused, "_cpu_run", failing)
    p = parameter()
    optimizer = AdamW([p], clip=None)
    p.grad = torch.ones(4)
    with pytest.warns(UserWarning, match="the foreach form is used") as seen:
        optimizer.step()
    code = inspect.currentframe().f_code  # type: ignore[union-attr]
    assert seen[0].filename == code.co_filename
    first = code.co_firstlineno
    assert first < seen[0].lineno < first + 25


def test_the_searches_of_ingd_take_48_l_squared_over_epsilon_squared_steps() -> None:
    optimizer = INGD([parameter()], lr=0.1, epsilon=0.5, lipschitz=2.0)
    assert optimizer.param_groups[0]["inner"] == 48 * 16


def test_a_whole_number_that_torch_does_not_take_becomes_a_float_and_a_seed_stays() -> None:
    group = SGD([parameter()], 0.1, weight_decay=2**54).param_groups[0]
    assert isinstance(group["weight_decay"], float)
    optimizer = INGD([parameter()], lr=0.1, epsilon=0.5, lipschitz=2.0, inner=3, seed=2**54)
    assert optimizer.param_groups[0]["seed"] == 2**54
    assert isinstance(optimizer.param_groups[0]["seed"], int)


def test_a_tensor_setting_has_one_floating_element() -> None:
    AdamW([parameter()], weight_decay=torch.tensor(0.1))
    for bad in (torch.tensor(1), torch.tensor([0.1, 0.1]), torch.tensor([1, 2])):
        with pytest.raises(RuleError, match="weight_decay"):
            AdamW([parameter()], weight_decay=bad)


def test_a_threshold_that_follows_a_quantile_serves_a_single_number() -> None:
    p = torch.nn.Parameter(torch.tensor(1.0))
    for form in ({"foreach": True}, {"foreach": False}, {}):
        optimizer = GClip([p], 0.1, "auto", beta=0.5, **form)
        p.grad = torch.tensor(1.0)
        optimizer.step()
    assert float(p.detach()) < 1.0


@pytest.mark.parametrize("count", [float("nan"), float("inf"), -1.0])
def test_a_count_of_iterates_that_is_no_number_is_refused(count: float) -> None:
    with pytest.raises(RuleError, match="count must"):
        k_weighted_avg_fn(torch.zeros(1), torch.ones(1), torch.tensor(count))


def test_windows_of_several_tensors_have_their_own_quantiles() -> None:
    windows = torch.stack([norms.new_window("cpu"), norms.new_window("cpu")])
    for norm in range(1, 20):
        for row, scale in enumerate((1.0, 100.0)):
            norms.push_(windows[row], torch.tensor(scale * norm))
    assert norms.running_quantile(windows, 0.5).tolist() == [10.0, 1000.0]


def test_the_twin_of_a_trial_begins_at_the_first_step() -> None:
    p = parameter()
    optimizer = AdamW([p])
    for _ in range(3):
        p.grad = torch.ones(4)
        optimizer.step()
    twin = trial._twin(optimizer, optimizer.param_groups[0], [parameter()], fused=True)
    assert (optimizer.param_groups[0]["k"], twin.param_groups[0]["k"]) == (3, 0)
    assert (twin.param_groups[0]["fused"], twin.param_groups[0]["foreach"]) == (True, None)
    twin = trial._twin(optimizer, optimizer.param_groups[0], [parameter()], fused=False)
    assert (twin.param_groups[0]["fused"], twin.param_groups[0]["foreach"]) == (None, True)


def test_the_reported_update_of_two_groups_is_that_of_one_where_float32_ends() -> None:
    found = []
    for cut in (False, True):
        params = [parameter(4), parameter(9)]
        groups = [{"params": [p]} for p in params] if cut else params
        optimizer = StochasticINGD(groups, 1.0, clip=None, foreach=True)
        for p in params:
            p.grad = torch.full_like(p, 3e38)
        optimizer.step()
        found.append(optimizer.report().update_norm)
    assert found[1] == pytest.approx(found[0], rel=1e-5)


@pytest.mark.parametrize("beta", [0.0, 0.9])
@pytest.mark.parametrize("clip", ["gradient", "momentum"])
def test_a_spike_is_clipped_before_a_threshold_that_lets_it_pass(beta: float, clip: str) -> None:
    moved = []
    for form in ({"fused": True}, {"foreach": True}):
        p = parameter()
        optimizer = GClip([p], 0.1, 1e9, beta=beta, clip=clip, spike_guard="clip", **form)
        for size in (*[1.0] * 21, 1e6):
            before = p.detach().clone()
            p.grad = torch.full((4,), size)
            optimizer.step()
        moved.append(float((p.detach() - before).norm()))
    assert moved[1] == pytest.approx(moved[0], rel=1e-5)
    assert moved[1] < 1.0


def test_skips_and_spikes_that_a_device_counts_enter_the_report(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    p = parameter()
    optimizer = AdamW([p], nonfinite="skip")
    first, second, spikes = torch.tensor(2), torch.tensor(5), torch.zeros(3, 4)
    for outcome in (Outcome(skips=first), Outcome(skips=first), Outcome(skips=second)):
        monkeypatch.setattr(optimizer._fused, "step", lambda *a, outcome=outcome: outcome)
        assert optimizer._fused_step()
    assert optimizer.report().skipped == 7
    monkeypatch.setattr(optimizer._fused, "step", lambda *a: Outcome(spikes=spikes))
    assert optimizer._fused_step()
    assert optimizer.tally.device_spikes is spikes


def test_norms_by_tensor_are_left_to_the_plain_form_on_cuda(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("mindgap.rules.fused.cuda.unavailable", lambda: None)
    monkeypatch.setattr("mindgap.optim.fused.obstacle", lambda *a: None)
    monkeypatch.setattr("mindgap.rules.fused.cuda.wrong_dtype", lambda *a: None)
    p = SimpleNamespace(grad=parameter(), device=torch.device("cuda"), dtype=torch.float32)
    for name in ("is_sharded", "local"):
        monkeypatch.setattr(
            f"mindgap.optim.fused.{name}", lambda t, name=name: name == "local" and t
        )
    by_tensor = SimpleNamespace(scope="tensor", counts=False, states=())
    by_group = SimpleNamespace(scope="group", counts=False, states=())
    assert "over all parameters or over a group" in fused._obstacle_and_tensors(p, {}, by_tensor)[0]
    assert fused._obstacle_and_tensors(p, {}, by_group)[0] is None


def test_a_search_of_ingd_goes_on_where_float32_ends() -> None:
    p = parameter()
    optimizer = INGD([p], lr=0.1, epsilon=1.0, lipschitz=1.0)

    def closure() -> torch.Tensor:
        p.grad = torch.full((4,), 3e38)
        return p.sum().detach()

    optimizer.step(closure)
    assert optimizer.param_groups[0]["norm"] == pytest.approx(6e38, rel=1e-6)
    assert optimizer.param_groups[0]["outcome"] != "non-finite"


def test_thresholds_of_a_step_are_not_read_because_that_waits_for_a_device() -> None:
    p = parameter()
    optimizer = CClip([p], 0.1, lambda k: torch.tensor([1.0, 1.0, 1.0, 0.0 if k > 1 else 1.0]))
    for _ in range(2):
        p.grad = torch.full((4,), 5.0)
        optimizer.step()
    assert p.tolist() == pytest.approx([-0.2, -0.2, -0.2, -0.1])


def test_one_average_is_corrected_by_a_count_that_is_a_tensor() -> None:
    (found,) = bias_corrected([torch.full((3,), 0.19)], 0.9, torch.tensor(2.0))
    assert found.tolist() == pytest.approx([1.0, 1.0, 1.0])


@pytest.mark.parametrize("clip", [None, 0.1])
def test_acclip_without_a_correction_clips_the_norm_first_in_every_form(clip: float | None) -> None:
    ends = []
    for form in ({"fused": True}, {"foreach": True}):
        p = parameter()
        optimizer = ACClip([p], 0.1, form="algorithm", bias_correction=False, clip=clip, **form)
        for k in range(5):
            p.grad = torch.tensor([1.0, -2.0, 3.0, 0.5]) * (k + 1)
            optimizer.step()
        ends.append(p.tolist())
    assert ends[1] == pytest.approx(ends[0], rel=1e-5)


def test_a_coordinate_at_its_threshold_is_not_counted_as_clipped() -> None:
    p = parameter()
    optimizer = ACClip([p], 0.1, form="algorithm", clip=None, track=True, foreach=True)
    for _ in range(3):
        p.grad = torch.full((4,), 1.0)
        optimizer.step()
    assert optimizer.report().clipped_coordinates == 0
