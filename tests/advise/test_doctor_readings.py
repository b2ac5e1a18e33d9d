"""What the development draw of the drawn hospital showed, one small test per mend, and the
readings of rank, denormal numbers, shuffled targets and the curvature along a step.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mindgap.advise.doctor.causes import CAUSES
from mindgap.advise.doctor.chart import Chart
from mindgap.advise.doctor.controls import Ranks, plain_network
from mindgap.advise.doctor.course import follow
from mindgap.advise.doctor.course_readings import read_growth, read_labels, read_loop, read_step
from mindgap.advise.doctor.cures import CURES
from mindgap.advise.doctor.data_readings import read_data
from mindgap.advise.doctor.model_readings import (
    read_forward,
    read_gradients,
    read_modes,
    read_start,
)
from mindgap.advise.doctor.patient import Admission, Patient
from mindgap.measure.tracing import effective_rank


def table(rows: int = 320) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(0)
    x = torch.randn(rows, 6, generator=g)
    return x, torch.tanh(x @ torch.randn(6, 1, generator=g))


def admitted(
    model: nn.Module,
    batches: list | None = None,
    loss=None,
    optimizer: torch.optim.Optimizer | None = None,
    **more: object,
) -> Patient:
    if batches is None:
        x, y = table()
        batches = list(zip(x.split(16), y.split(16)))
    made = optimizer or torch.optim.SGD(model.parameters(), lr=0.05)
    parts = {"model": model, "loss": loss or nn.MSELoss(), "train": batches, "optimizer": made}
    return Admission(lambda: {**parts, **more}, 0).fresh()


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1))


@pytest.mark.parametrize("loss", [nn.MSELoss(), F.mse_loss])
def test_a_criterion_of_torch_is_taken_as_the_loss(loss) -> None:
    patient = admitted(network(), loss=loss)
    x, y = patient.train[0]
    expected = F.mse_loss(patient.model(x), y)
    assert torch.equal(patient.value((x, y)), expected)
    assert torch.equal(patient.value({"inputs": x, "targets": y}), expected)


def test_a_recurrence_along_the_batch_is_seen() -> None:
    """The first half of a batch does not depend on the second one; the second one does."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn, self.head = nn.GRU(3, 8), nn.Linear(8, 1)  # batch_first is missing

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.rnn(x)[0][:, -1])

    g = torch.Generator().manual_seed(0)
    batches = [(torch.randn(8, 5, 3, generator=g), torch.randn(8, 1, generator=g))] * 8
    chart = Chart()
    read_modes(chart, admitted(Model(), batches))
    assert chart.has("samples_mix")


def test_an_output_of_one_unit_that_starts_at_zero_counts_as_equal() -> None:
    model = network()
    for p in model.parameters():
        nn.init.zeros_(p)
    chart = Chart()
    read_start(chart, admitted(model))
    assert chart.has("equal_weights")
    nn.init.normal_(model[0].weight)  # a last layer of zeros alone is usual
    chart = Chart()
    read_start(chart, admitted(model))
    assert not chart.has("equal_weights")


def test_batches_that_repeat_and_batches_of_zeros_are_named() -> None:
    x, y = table()
    batches = list(zip(x.split(16), y.split(16)))
    chart = Chart()
    read_data(chart, admitted(network(), [batches[k // 4] for k in range(20)]))
    assert chart.has("batches_repeat")
    batches[3] = (batches[3][0] * 0, batches[3][1])
    chart = Chart()
    read_data(chart, admitted(network(), batches))
    assert chart.has("inputs_lost")
    assert not chart.has("batches_repeat")


def test_dictionaries_and_lists_are_shuffled_by_the_cure() -> None:
    x, y = table()
    order = y.flatten().argsort()
    x, y = x[order], y[order]
    for form in (lambda a, b: {"x": a, "y": b}, lambda a, b: [a, b]):
        patient = admitted(network(), [form(a, b) for a, b in zip(x.split(16), y.split(16))])
        known = sum(len(next(iter(_values(b)))) for b in patient.train)
        CURES["shuffle"].apply(patient, Chart(), 1.0)
        targets = torch.cat([list(_values(b))[-1] for b in patient.train]).flatten()
        assert len(targets) == known
        assert not bool((targets.diff() >= 0).all())


def _values(batch):
    return batch.values() if isinstance(batch, dict) else batch


def test_a_parameter_that_stops_moving_is_named() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    calls = 0

    def step(batch: tuple[Tensor, Tensor]) -> Tensor:
        nonlocal calls
        optimizer.zero_grad()
        value = F.mse_loss(model(batch[0]), batch[1])
        value.backward()
        calls += 1
        if calls > 3:
            model[0].weight.grad = None
        optimizer.step()
        return value

    patient = admitted(model, optimizer=optimizer, step=step)
    course = follow(patient, 80, watch=True)
    assert course.stuck_parameters == ["0.weight"]
    chart = Chart()
    chart.facts.batch_sizes = [16]
    read_loop(chart, patient, course)
    assert CAUSES["optimizer_other_parameters"].score(chart.findings) > 2


def test_rank_of_a_layer() -> None:
    g = torch.Generator().manual_seed(0)
    wide = effective_rank(torch.randn(200, 10, generator=g))
    assert wide is not None
    assert 8 < wide[0] <= 10
    assert effective_rank(torch.randn(4, 10, generator=g)) is None
    model = network()
    with torch.no_grad():
        model[0].weight.copy_(model[0].weight[:1].expand(16, 6))
    chart = Chart()
    read_forward(chart, admitted(nn.Sequential(model[0], nn.Tanh(), nn.Linear(16, 1))))
    assert chart.facts.rank < 1.01
    assert chart.has("collapsed")


class Silent(nn.Module):
    """A module that gives an empty tuple, as one does that only counts."""

    def forward(self, x: Tensor) -> tuple[()]:
        return ()


def test_a_module_that_gives_an_empty_tuple_does_not_hide_the_gradients() -> None:
    model = network()
    model.append(Silent())
    patient = admitted(model, loss=lambda m, b: F.mse_loss(m[:3](b[0] + len(m[3](b[0]))), b[1]))
    chart = Chart()
    read_gradients(chart, patient)
    assert chart.notes == []


def test_denormal_gradients_are_counted() -> None:
    chart = Chart()
    loss = lambda model, batch: 1e-41 * F.mse_loss(model(batch[0]), batch[1])  # noqa: E731
    read_gradients(chart, admitted(network(), loss=loss))
    assert chart.facts.denormal > 0.5
    assert chart.has("denormal")
    chart = Chart()
    read_gradients(chart, admitted(network()))
    assert chart.facts.denormal == 0


@pytest.mark.parametrize(("lr", "over"), [(0.01, False), (1.5, True)])
def test_curvature_along_the_step_tells_whether_it_goes_too_far(lr: float, over: bool) -> None:
    model = nn.Linear(6, 1)
    chart = Chart()
    patient = admitted(model, optimizer=torch.optim.SGD(model.parameters(), lr=lr))
    read_step(chart, patient, warm_up=2)
    assert (chart.facts.overshoot > 2) is over
    assert chart.has("overshoots") is over


def test_shuffled_targets_teach_nothing() -> None:
    patient = admitted(network())
    learned, shuffled = (plain_network(patient, 120, shuffled=s) for s in (False, True))
    assert learned is not None
    assert shuffled is not None
    assert learned < 0.5 * shuffled


@pytest.mark.parametrize(("power", "steep"), [(2, False), (4, True)])
def test_growth_of_the_loss_itself(power: int, steep: bool) -> None:
    loss = lambda model, batch: (model(batch[0]) - batch[1]).pow(power).mean()  # noqa: E731
    chart = Chart()
    read_growth(chart, admitted(network(), loss=loss))
    assert chart.has("steep") is steep


def ranks(wrong_when_sure: float) -> Ranks:
    """400 samples of two classes; the network is wrong in 30 % and sure in the first 100."""
    wrong = torch.zeros(400, dtype=torch.bool)
    wrong[: int(100 * wrong_when_sure)] = True
    wrong[100 : 100 + 120 - int(100 * wrong_when_sure)] = True
    sure = torch.linspace(0.99, 0.5, 400)
    return Ranks([wrong], [wrong.long()], [1 - sure], [sure], 2)


@pytest.mark.parametrize(("share", "found"), [(0.3, True), (0.02, False)])
def test_wrong_labels_of_two_classes_contradict_a_network_that_is_sure(
    share: float, found: bool
) -> None:
    mixed = ranks(share)
    wrong = mixed.wrong[0]
    if found:  # spread over the sure ones
        wrong[:100] = torch.arange(100) % 3 == 0
    chart = Chart()
    chart.facts.progress = 0.2
    read_labels(chart, mixed, None)
    assert chart.has("labels_disagree") is found


def test_a_graph_cut_by_numbers_and_no_grad_is_joined_by_the_cure() -> None:
    model = network()

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        with torch.no_grad():
            out = model(batch[0])
        out = torch.as_tensor(out.detach().numpy())
        return torch.tensor(F.mse_loss(out, batch[1]).item(), requires_grad=True)

    patient = admitted(model, loss=loss)
    start = follow(patient, 1).losses[0]
    patient = admitted(network(), loss=loss)
    CURES["reattach"].apply(patient, Chart(), 1.0)
    assert follow(patient, 60).losses[-1] < 0.7 * start
