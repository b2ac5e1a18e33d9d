"""Estimators and monitor under unusual but legal use, against closed forms and slow
transcriptions.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from mindgap import Objective
from mindgap.base.check import RuleError
from mindgap.measure import (
    HessianProduct,
    Monitor,
    goldstein_distance,
    gradient_passes,
    infinite_variance,
    local_smoothness,
    noise_sample,
    per_sample_norms,
    sharpness,
    training_statistics,
    variance_growth,
)

F64 = torch.float64


def data(count: int, size: int = 8, dtype: torch.dtype = torch.float32) -> list[Any]:
    draw = torch.Generator().manual_seed(0)
    return [
        (
            torch.randn(size, 4, generator=draw).to(dtype),
            torch.randint(0, 3, (size,), generator=draw),
        )
        for _ in range(count)
    ]


def ce(model: Any, batch: Any) -> Tensor:
    return cross_entropy(model(batch[0]), batch[1])


def net(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))


def norm_of(model: nn.Module) -> float:
    squares = [float(p.grad.square().sum()) for p in model.parameters() if p.grad is not None]
    return math.sqrt(sum(squares))


# Estimators.


@pytest.mark.parametrize("dim", [0, 1])
def test_hessian_products_of_weight_norm_are_right_where_torch_s_are_not(dim: int) -> None:
    torch.manual_seed(0)
    layer = nn.utils.parametrizations.weight_norm(nn.Linear(4, 3), dim=dim).to(F64)
    with gradient_passes(Objective(layer, ce), data(2, 8, F64), move=True) as passes:
        product = HessianProduct(passes)
        hessian = torch.stack([product(v) for v in torch.eye(product.size, dtype=F64)])
        assert torch.allclose(hessian, hessian.T)
        direction = torch.randn(product.size, dtype=F64)
        steps = [
            part.view_as(p)
            for part, p in zip(
                direction.split([p.numel() for p in passes.parameters]), passes.parameters
            )
        ]
        gradients = []
        for scale in (1e-5, -1e-5):
            with passes.moved(steps, scale):
                means = [[g.clone() for g in item.gradient] for item in passes.gradients()]
            gradients.append(sum(torch.cat([g.flatten() for g in mean]) for mean in means) / 2)
    difference = (gradients[0] - gradients[1]) / 2e-5
    assert torch.allclose(hessian @ direction, difference, atol=1e-7)


class LateBuffers(nn.Module):
    """Makes its buffers in the first call."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.register_buffer("mask", None)

    def forward(self, x: Tensor) -> Tensor:
        if self.mask is None:
            self.mask = torch.ones(3)
            self.register_buffer("scale", torch.ones(3), persistent=False)
        return self.layer(x) * self.mask * self.scale


def test_buffers_that_the_first_call_makes_are_taken_away_again() -> None:
    model = LateBuffers()
    noise_sample(Objective(model, ce), data(3))
    assert model.mask is None
    assert not hasattr(model, "scale")
    assert sorted(model.state_dict()) == ["layer.bias", "layer.weight"]
    model(torch.ones(1, 4))  # and may be made for good


def test_a_number_in_front_of_a_batch_is_not_its_size() -> None:
    model = net()
    plain = training_statistics(Objective(model, ce), data(4), per="batch", with_sharpness=False)
    batches = [{"epoch": torch.tensor(3), "x": x, "y": y} for x, y in data(4)]
    problem = Objective(model, lambda m, b: cross_entropy(m(b["x"]), b["y"]))
    found = training_statistics(problem, batches, with_sharpness=False)
    assert (found.samples, found.noise) == (32, pytest.approx(plain.noise))


@pytest.mark.parametrize("kind", ["lists", "edges first"])
def test_samples_are_counted_also_where_the_first_tensor_does_not_show_them(kind: str) -> None:
    model, batches = net(), data(4, 6)
    expected = training_statistics(Objective(model, ce), batches, per="batch", with_sharpness=False)
    unusual: list[Any] = [(torch.zeros(2, 9), *batch) for batch in batches]
    if kind == "lists":
        unusual = [(x.tolist(), y.tolist()) for x, y in batches]
    problem = Objective(model, lambda m, b: ce(m, [torch.as_tensor(part) for part in b[-2:]]))
    found = training_statistics(problem, unusual, with_sharpness=False)
    assert (found.samples, found.noise) == (24, pytest.approx(expected.noise))


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_a_loss_that_is_a_sum_is_noticed_also_with_dropout(dropout: float) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.Dropout(dropout), nn.Linear(5, 3))
    total = Objective(model, lambda m, b: cross_entropy(m(b[0]), b[1], reduction="sum"))
    (batch,) = data(1)
    assert per_sample_norms(total, batch).method == "func"
    assert per_sample_norms(Objective(model, ce), batch).method == "structure"
    assert model.training
    with pytest.raises(RuleError, match="loss must be a mean"):
        per_sample_norms(total, batch, method="structure")


def test_one_sample_of_mean_weight_does_not_hide_the_weights_of_the_others() -> None:
    model, (x, _) = net(), data(1)[0]
    weights = torch.tensor([0.5] * 4 + [1.5] * 3 + [1.0])  # the last one has the mean weight

    def loss(model: Any, batch: Any) -> Tensor:
        return (batch[1] * model(batch[0]).square().sum(1)).sum() / batch[1].sum()

    problem = Objective(model, loss)
    expected = per_sample_norms(problem, (x, weights), method="loop").norms
    assert np.allclose(per_sample_norms(problem, (x, weights)).norms, expected, rtol=1e-4)


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.RMSprop])
def test_a_parameter_that_the_loss_does_not_use_does_not_hide_the_edge(kind: Any) -> None:
    class Unused(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = nn.Linear(4, 3), nn.Linear(2, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.used(x)

    ratios = []
    for whole in (True, False):
        torch.manual_seed(0)
        model = Unused()
        trained = model if whole else model.used
        optimizer = kind(trained.parameters(), lr=0.01)
        for batch in data(2):
            optimizer.zero_grad()
            ce(model, batch).backward()
            optimizer.step()
        reading = sharpness(Objective(trained, ce), data(2), optimizer=optimizer)
        assert reading.stability is not None
        ratios.append(reading.stability.ratio)
    assert ratios[0] == pytest.approx(ratios[1], rel=1e-3)
    model = Unused()
    one = kind([model.used.weight, *model.unused.parameters()], lr=0.1)
    one.add_param_group({"params": [model.used.bias]})
    model.used.weight.grad = torch.ones_like(model.used.weight)
    one.step()
    reading = sharpness(Objective(model, ce), data(2), optimizer=one)
    assert reading.unknown == "the optimizer has not stepped every parameter yet"


def test_the_curvature_of_a_rounded_step_is_that_of_what_rounding_left() -> None:
    layer = nn.Linear(2, 1, bias=False).to(torch.bfloat16)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[1.0, 0.0]]))
    curvatures = torch.tensor([4.0, 1.0])
    problem = Objective(
        layer, lambda m, b: 0.5 * (curvatures * m.weight.float().square()).sum() * b
    )
    # The first number is rounded away, so that only the curvature 1 is met.
    step = [torch.tensor([[1e-3, 0.5]], dtype=torch.bfloat16)]
    found = local_smoothness(problem, [torch.tensor(1.0)], step)
    assert (found.value, found.curvature) == (pytest.approx(1.0), pytest.approx(1.0))


def test_noise_below_rounding_is_not_called_noise() -> None:
    model = nn.Linear(20, 1, bias=False)
    curvatures = torch.linspace(0.1, 7, 20)
    problem = Objective(
        model,
        lambda m, b: (curvatures * m.weight.square()).sum() + 0 * m(b).mean(),
    )
    found = training_statistics(problem, [torch.randn(4, 20) for _ in range(5)])
    assert found.noise_interval[0] == found.noise == 0 < found.noise_interval[1]
    assert found.noise_interval[1] < 0.01 * found.gradient_norm


def test_a_ball_below_the_parameters_precision_is_refused() -> None:
    model = net().to(torch.bfloat16)
    problem = Objective(model, lambda m, b: m(b.to(torch.bfloat16)).float().square().mean())
    with pytest.raises(RuleError, match=r"delta must be at least .* in the parameters' precision"):
        goldstein_distance(problem, [torch.ones(2, 4)], 1e-3)


def test_an_error_on_an_array_takes_one_line() -> None:
    with pytest.raises(RuleError) as caught:
        variance_growth(np.zeros(200))
    assert "\n" not in str(caught.value)


# The monitor.


def watched(model: nn.Module, optimizer: Any, loss: Any = ce, **options: Any) -> Monitor:
    problem = Objective(model, loss)
    monitor = Monitor(optimizer, problem, data(2), ["update"], every=1, **options)
    monitor.problem = problem  # type: ignore[attr-defined]
    return monitor


@pytest.mark.parametrize(
    ("dtype", "size"), [(torch.float16, 6e4), (torch.float32, 1e20), (torch.float64, 1e200)]
)
def test_a_large_gradient_is_finite(dtype: torch.dtype, size: float) -> None:
    layer = nn.Linear(4, 1, bias=False).to(dtype)
    optimizer = torch.optim.SGD(layer.parameters(), lr=1e-300)
    with watched(layer, optimizer, nonfinite="raise") as monitor:
        layer.weight.grad = torch.full_like(layer.weight, size)
        optimizer.step()
    assert monitor.readings[0]["loop_gradient_norm"] == pytest.approx(2 * size, rel=1e-3)
    assert not monitor.events


def test_parameters_that_are_unfrozen_later_count() -> None:
    model = net()
    model[0].requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watched(model, optimizer) as monitor:
        for step, batch in enumerate(data(4)):
            model[0].requires_grad_(step >= 2)
            optimizer.zero_grad()
            ce(model, batch).backward()
            expected = norm_of(model)
            optimizer.step()
            found = monitor.readings[-1]["loop_gradient_norm"]
            assert found == pytest.approx(expected, rel=1e-5)


def test_losses_of_an_evaluation_do_not_count_as_losses_of_training() -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    with watched(model, optimizer) as monitor:
        problem = monitor.problem
        for batch in data(20):
            optimizer.zero_grad()
            loss = problem.value(batch)
            loss.backward()
            losses.append(loss.item())
            with torch.no_grad():  # before and after the step
                problem.value((100 * batch[0], batch[1]))
            optimizer.step()
            with torch.inference_mode():
                problem.value((100 * batch[0], batch[1]))
        recorded = monitor.history().losses
    assert [row["loop_loss"] for row in monitor.readings] == pytest.approx(losses)
    assert [recorded[step] for step in range(20)] == pytest.approx(losses)


def test_the_loss_of_an_accumulated_step_is_the_mean_of_its_batches() -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batches, losses = data(40), []
    with watched(model, optimizer) as monitor:
        for step in range(20):
            optimizer.zero_grad()
            both = [monitor.problem.value(b) for b in batches[2 * step : 2 * step + 2]]
            (sum(both) / 2).backward()
            losses.append((sum(both) / 2).item())
            optimizer.step()
    assert [row["loop_loss"] for row in monitor.readings] == pytest.approx(losses)


def test_the_scale_that_is_left_to_a_fused_optimizer_is_taken_out() -> None:
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
    with watched(model, optimizer) as monitor:
        for step, batch in enumerate(data(4)):
            optimizer.zero_grad()
            scaler.scale(monitor.problem.value(batch)).backward()
            expected = norm_of(model) / scaler.get_scale()
            if step == 2:  # an overflow: the scaler skips the step
                model[0].weight.grad[0, 0] = math.inf
                expected = 0.0
            scaler.step(optimizer)
            scaler.update()
            found = monitor.readings[-1]["loop_gradient_norm"]
            assert found == pytest.approx(expected, rel=1e-5)
    assert not monitor.events


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("kind", ["LBFGS", "SGD"])
def test_the_gradient_of_a_closure_is_that_of_its_own_step(kind: str, named: bool) -> None:
    model = net()
    optimizer = getattr(torch.optim, kind)(model.parameters(), lr=0.1)
    with watched(model, optimizer) as monitor:
        for batch in data(4):
            first: list[tuple[float, float]] = []

            def closure(batch: Any = batch, first: Any = first) -> Tensor:
                optimizer.zero_grad()
                loss = monitor.problem.value(batch)
                loss.backward()
                first.append((loss.item(), norm_of(model)))
                return loss

            optimizer.step(**{"closure": closure}) if named else optimizer.step(closure)
            row = monitor.readings[-1]
            assert (row["loop_loss"], row["loop_gradient_norm"]) == pytest.approx(first[0])


def test_a_closure_whose_gradient_is_not_finite_stops_before_the_step() -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = model[0].weight.detach().clone()

    def closure() -> Tensor:
        loss = ce(model, data(1)[0]) * math.nan
        loss.backward()
        return loss

    with (
        pytest.raises(RuleError, match=r"step 0: the gradient of .* is not finite"),
        watched(model, optimizer, nonfinite="raise"),
    ):
        optimizer.step(closure)
    assert torch.equal(model[0].weight, before)


# What is said.


def test_a_variance_that_one_minibatch_makes_has_not_settled() -> None:
    norms = np.append(1 + 0.01 * np.random.default_rng(0).random(499), 1e6)
    assert variance_growth(norms).settles is None


def test_an_exponent_lies_in_its_own_interval() -> None:
    for seed in range(3):
        found = variance_growth(np.random.default_rng(seed).exponential(size=500), bootstrap=40)
        assert found.interval[0] <= found.exponent <= found.interval[1]


def test_no_power_law_is_no_index_above_infinity() -> None:
    assert infinite_variance(np.ones(500)).answer == (
        "the variance is finite: no power law is seen"
    )


@pytest.mark.parametrize("kind", ["fused", "evaluated"])
def test_an_autopsy_replays_a_fused_loss_scale_and_leaves_evaluations_out(kind: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 3))
    problem = Objective(model, ce)
    fused = kind == "fused"
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=fused)
    scaler = torch.amp.GradScaler("cpu", enabled=fused)
    batches = data(60)
    with Monitor(optimizer, problem, batches[:4], ["update"], every=10) as monitor:
        for step, batch in enumerate(batches):
            optimizer.param_groups[0]["lr"] = 3.0 if step == 41 else 1e-3
            optimizer.zero_grad()
            scaler.scale(problem.value(batch)).backward()
            scaler.step(optimizer)
            scaler.update()
            if not fused:
                with torch.no_grad():
                    problem.value((50 * batch[0], batch[1]))
    answer = monitor.autopsy()
    assert (answer.mechanism, answer.step) == ("learning_rate", 41)
    assert answer.replay == "The replay gives the recorded losses bit for bit."


def test_a_probe_that_fits_the_budget_is_not_said_to_exceed_it() -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Monitor(optimizer, Objective(model, ce), data(2), ["update"], budget=1.0) as monitor:
        for batch in data(3):
            optimizer.zero_grad()
            monitor._objective.value(batch).backward()
            optimizer.step()
        monitor._begun_at -= 100  # the training took long
        assert monitor.skipped == {"update": "none was due yet in 3 steps; give every"}


def test_a_loss_that_switches_the_mode_finds_the_first_one_at_every_batch() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)).to(F64)

    def switching(model: Any, batch: Any) -> Tensor:
        loss = ce(model, batch)
        model.eval()
        return loss

    found = noise_sample(Objective(model, switching), data(4, 8, F64))
    assert model.training
    assert np.allclose(found.norms, noise_sample(Objective(model, ce), data(4, 8, F64)).norms)
