"""Gradient passes: repeatable, and the model left exactly as it was found whatever happens."""

from __future__ import annotations

import random
import signal

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from mindgap.base.check import RuleError
from mindgap.base.objective import Objective
from mindgap.base.restoring import undisturbed
from mindgap.measure.gradients import NonFiniteError, gradient_passes, passes_mean


def network(seed: int = 0) -> nn.Module:
    """Everything that can be disturbed: batch norm, dropout, spectral norm's vectors, a frozen
    parameter, p.grad.
    """
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.utils.parametrizations.spectral_norm(nn.Linear(3, 5)),
        nn.BatchNorm1d(5),
        nn.Dropout(0.4),
        nn.Linear(5, 1),
    ).double()
    model[3].bias.requires_grad_(False)
    model[2].eval()
    model[2].train()
    for p in model.parameters():
        p.grad = torch.randn_like(p)
    return model


def loss(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    return (model(batch[0])[:, 0] - batch[1]).square().mean()


def batches(count: int = 4, size: int = 6) -> list[tuple[torch.Tensor, torch.Tensor]]:
    g = torch.Generator().manual_seed(1)
    return [
        (
            torch.randn(size, 3, generator=g, dtype=torch.float64),
            torch.randn(size, generator=g, dtype=torch.float64),
        )
        for _ in range(count)
    ]


def photograph(model: nn.Module) -> dict[str, object]:
    """All state that must survive, as comparable bytes."""
    return {
        "values": {k: v.numpy().tobytes() for k, v in model.state_dict().items()},
        "gradients": [
            None if p.grad is None else (id(p.grad), p.grad.numpy().tobytes())
            for p in model.parameters()
        ],
        "modes": [m.training for m in model.modules()],
        "torch": torch.get_rng_state().numpy().tobytes(),
        "numpy": str(np.random.get_state()),
        "python": random.getstate(),
    }


def gradients_of(passes) -> list[torch.Tensor]:
    return [torch.cat([g.reshape(-1) for g in item.gradient]) for item in passes.gradients()]


def test_every_pass_repeats_the_gradients_bit_for_bit_and_leaves_no_trace():
    model = network()
    before = photograph(model)
    with gradient_passes(Objective(model, loss), batches(), train=True) as passes:
        first, second = gradients_of(passes), gradients_of(passes)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert len(first) == 4
    assert not torch.equal(first[0], first[1])
    assert photograph(model) == before


def test_gradients_and_their_mean_equal_autograd():
    model = network().eval()
    data = batches()
    expected = []
    for batch in data:
        g = torch.autograd.grad(
            loss(model, batch), [p for p in model.parameters() if p.requires_grad]
        )
        expected.append(torch.cat([t.reshape(-1) for t in g]))
    with gradient_passes(Objective(model, loss), data) as passes:
        found = gradients_of(passes)
        mean = torch.cat([t.reshape(-1) for t in passes_mean(passes)])
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(mean, torch.stack(expected).mean(0), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("end", [RuntimeError, KeyboardInterrupt])
def test_an_error_or_ctrl_c_leaves_the_model_as_it_was(end):
    model, data, calls = network(), batches(), []
    before = photograph(model)

    def failing(model, batch):
        value = loss(model, batch)
        calls.append(1)
        if len(calls) == 3:
            if end is KeyboardInterrupt:
                signal.raise_signal(signal.SIGINT)
            raise end("stop")
        return value

    def measure():
        with gradient_passes(Objective(model, failing), data, train=True, move=True) as passes:
            direction = [torch.ones_like(p) for p in passes.parameters]
            with passes.moved(direction, 0.5):
                passes_mean(passes)

    with pytest.raises(end):
        measure()
    assert len(calls) == 3
    assert photograph(model) == before


def test_ctrl_c_during_the_restoration_waits_for_it():
    model = network()
    before = photograph(model)

    def measure():
        with undisturbed(model, parameters=True) as guard:
            with torch.no_grad():
                model[0].bias.add_(1.0)
            rewind = guard.rewind_buffers

            def interrupted(**options):
                signal.raise_signal(signal.SIGINT)
                rewind(**options)

            guard.rewind_buffers = interrupted
            model(batches()[0][0])

    with pytest.raises(KeyboardInterrupt):
        measure()
    assert photograph(model) == before


def test_moved_parameters_return_bit_for_bit():
    model = network()
    before = photograph(model)
    with gradient_passes(Objective(model, loss), batches(), train=False, move=True) as passes:
        here = passes_mean(passes)
        with passes.moved([torch.full_like(p, 0.1) for p in passes.parameters]):
            there = passes_mean(passes)
        again = passes_mean(passes)
    assert all(torch.equal(a, b) for a, b in zip(here, again, strict=True))
    assert not torch.equal(here[0], there[0])
    assert photograph(model) == before
    with (
        pytest.raises(RuleError, match="move must be True"),
        gradient_passes(Objective(model, loss), batches()) as passes,
        passes.moved([torch.zeros_like(p) for p in passes.parameters]),
    ):
        pass


@pytest.mark.parametrize("own_generator", [False, True])
def test_a_shuffling_data_loader_repeats_its_order_and_is_left_where_it_stood(own_generator):
    x, y = torch.randn(12, 3).double(), torch.randn(12).double()
    generator = torch.Generator().manual_seed(5) if own_generator else None
    loader = DataLoader(TensorDataset(x, y), batch_size=4, shuffle=True, generator=generator)
    model = network()
    before = (
        photograph(model),
        None if generator is None else generator.get_state().numpy().tobytes(),
    )
    with gradient_passes(Objective(model, loss), loader) as passes:
        first, second = gradients_of(passes), gradients_of(passes)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert (
        photograph(model),
        None if generator is None else generator.get_state().numpy().tobytes(),
    ) == before


class Shuffling:
    """A loader with an order of its own that no random state explains."""

    def __init__(self, data):
        self.data, self.turn = data, 0

    def __iter__(self):
        self.turn += 1
        return iter(
            self.data[self.turn % len(self.data) :] + self.data[: self.turn % len(self.data)]
        )


class Growing:
    def __init__(self, data):
        self.data, self.turn = data, 1

    def __iter__(self):
        self.turn += 1
        return iter(self.data[: self.turn])


@pytest.mark.parametrize("loader", [Shuffling, Growing])
def test_a_loader_that_changes_between_passes_is_an_error(loader):
    model = network()
    before = photograph(model)
    with gradient_passes(Objective(model, loss), loader(batches())) as passes:
        passes_mean(passes)
        with pytest.raises(RuleError, match="batches must be the same in every pass"):
            passes_mean(passes)
    assert photograph(model) == before


class Shrinking(Growing):
    def __iter__(self):
        self.turn -= 1
        return iter(self.data[: 3 + self.turn])


def test_a_shorter_second_pass_is_an_error():
    with gradient_passes(Objective(network(), loss), Shrinking(batches())) as passes:
        passes_mean(passes)
        with pytest.raises(
            RuleError, match="must give the same 3 batches in every pass, got '2 batches'"
        ):
            passes_mean(passes)


def scalar_problem(value):
    return Objective(nn.Linear(2, 1), lambda model, batch: value(model, batch))


@pytest.mark.parametrize(
    ("objective", "data", "message"),
    [
        (
            scalar_problem(lambda m, b: m(b).mean()),
            [],
            r"batches must give at least one batch, got \[\]",
        ),
        (
            scalar_problem(lambda m, b: m(b).mean()),
            iter([torch.ones(1, 2)]),
            "batches must allow more than one pass",
        ),
        (
            scalar_problem(lambda m, b: m(b).mean()),
            3,
            "batches must be an iterable of batches, got 3",
        ),
        (
            scalar_problem(lambda m, b: b.mean()),
            [torch.ones(1, 2)],
            "loss must depend on a parameter",
        ),
        (
            scalar_problem(lambda m, b: m(b)),
            [torch.ones(3, 2)],
            "loss must return a tensor with one element",
        ),
        (
            Objective(nn.ReLU(), lambda m, b: m(b).mean()),
            [torch.ones(1)],
            "model must have a parameter",
        ),
        ("model", [torch.ones(1)], "objective must be a mindgap Objective, got 'model'"),
    ],
)
def test_bad_input_gets_one_clear_error(objective, data, message):
    with pytest.raises(RuleError, match=message), gradient_passes(objective, data) as passes:
        passes_mean(passes)


def test_nan_losses_and_infinite_gradients_are_named_with_their_batch():
    problem = scalar_problem(lambda m, b: (m(b) * (float("nan") if b.sum() > 2 else 1.0)).mean())
    with (
        pytest.raises(
            NonFiniteError, match="loss must be finite on every batch, got nan on batch 1"
        ),
        gradient_passes(problem, [torch.ones(1, 2), 2 * torch.ones(1, 2)]) as passes,
    ):
        passes_mean(passes)
    problem = scalar_problem(lambda m, b: (m.weight * 0).norm() + (m.weight * 0).abs().sqrt().sum())
    with (
        pytest.raises(
            NonFiniteError, match="gradient must be finite, got NaN or infinity on batch 0"
        ),
        gradient_passes(problem, [torch.ones(1, 2)]) as passes,
    ):
        passes_mean(passes)


def test_a_batch_on_another_device_is_named():
    problem = Objective(nn.Linear(2, 1, device="meta"), lambda m, b: m(b).mean())
    with (
        pytest.raises(
            RuleError, match="batches must lie on the model's device meta, got a batch on cpu"
        ),
        gradient_passes(problem, [torch.ones(1, 2)]) as passes,
    ):
        passes_mean(passes)


def test_unused_parameters_get_zero_and_no_grad_callers_get_gradients():
    model = nn.ModuleDict({"used": nn.Linear(2, 1), "idle": nn.Linear(2, 1)})
    with (
        torch.no_grad(),
        gradient_passes(
            Objective(model, lambda m, b: m["used"](b).mean()), [torch.ones(1, 2)]
        ) as p,
    ):
        mean = passes_mean(p)
    assert [bool(g.any()) for g in mean] == [True, True, False, False]
    problem, data = scalar_problem(lambda m, b: m(b).mean()), [torch.ones(1, 2)]
    with torch.inference_mode(), gradient_passes(problem, data) as p:
        assert torch.equal(passes_mean(p)[0], torch.ones(1, 2))


def test_a_loss_that_writes_into_parameters_is_an_error_and_one_that_calls_backward_does_no_harm():
    def writes(model, batch):
        with torch.no_grad():
            model.weight.mul_(0.5)
        return model(batch).mean()

    with (
        pytest.raises(RuleError, match="loss must not write into the model's parameters"),
        gradient_passes(scalar_problem(writes), [torch.ones(1, 2)]) as passes,
    ):
        passes_mean(passes)
    model = nn.Linear(2, 1)
    model.weight.grad = torch.full((1, 2), 7.0)

    def backward(model, batch):
        model(batch).mean().backward()
        return model(batch).mean()

    with gradient_passes(Objective(model, backward), [torch.ones(1, 2)]) as passes:
        mean = passes_mean(passes)
    assert torch.equal(model.weight.grad, torch.full((1, 2), 7.0))
    assert model.bias.grad is None
    assert torch.equal(mean[0], torch.ones(1, 2))


def test_buffers_are_rewound_before_every_batch():
    """Spectral norm turns its vectors in training mode; each batch must still see the vectors
    as found.
    """
    model = network()
    data = batches(1) * 3
    with gradient_passes(Objective(model, loss), data, train=True, seed=3) as passes:
        model[2].eval()  # without dropout the three equal batches must give equal gradients
        found = gradients_of(passes)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])
