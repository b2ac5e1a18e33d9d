"""Three causes in every answer, what the time did not suffice for, and the readings behind both."""

from __future__ import annotations

import textwrap
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mindgap.advise import examine
from mindgap.advise.doctor import examination
from mindgap.advise.doctor.causes import CAUSES
from mindgap.advise.doctor.chart import Chart
from mindgap.advise.doctor.course_readings import read_bounded_loss
from mindgap.advise.doctor.data_readings import read_data
from mindgap.advise.doctor.differential import LISTED, differential
from mindgap.advise.doctor.model_readings import read_gradients, read_modes, read_start
from mindgap.advise.doctor.page import page, standalone
from mindgap.advise.doctor.patient import Admission, Patient


def admitted(model: nn.Module, loss: Any, batches: list[Any], **more: Any) -> Patient:
    parts = {"model": model, "loss": loss, "train": batches, **more}
    return Admission(lambda: parts, 0).fresh()


def batches_of(x: Tensor, y: Tensor) -> list[tuple[Tensor, Tensor]]:
    return list(zip(x.split(16), y.split(16)))


def classify(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


SERIES = torch.randn(160, 10, 3, generator=torch.Generator().manual_seed(0))
CLASSES = (SERIES.mean((1, 2)) > 0).long()


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.RNN(3, 8, batch_first=True), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.cell(x)[0][:, -1])


class Attention(nn.Module):
    """Drops attention weights in evaluation, too."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        mixed = F.scaled_dot_product_attention(x, x, x, dropout_p=0.4)
        return self.head(mixed.mean(1))


def test_dropout_of_attention_that_stays_in_evaluation_is_seen() -> None:
    chart = Chart()
    read_modes(chart, admitted(Attention(), classify, batches_of(SERIES, CLASSES)))
    assert chart.has("dropout_active")


def test_recurrent_units_that_start_equal_and_states_that_are_saturated_are_seen() -> None:
    model = Recurrent()
    for p in model.parameters():
        nn.init.constant_(p, 0.05)
    chart = Chart()
    read_start(chart, admitted(model, classify, batches_of(SERIES, CLASSES)))
    assert chart.has("equal_weights")
    model = Recurrent()
    nn.init.constant_(model.cell.bias_ih_l0, 12.0)
    chart = Chart()
    read_gradients(chart, admitted(model, classify, batches_of(SERIES, CLASSES)))
    assert chart.has("saturated")
    chart = Chart()
    ordinary = admitted(Recurrent(), classify, batches_of(SERIES, CLASSES))
    read_start(chart, ordinary)
    read_gradients(chart, ordinary)
    assert not chart.has("equal_weights")
    assert not chart.has("saturated")


def test_embeddings_far_above_their_default_size_are_seen() -> None:
    words = torch.randint(20, (160, 4), generator=torch.Generator().manual_seed(1))

    class Ratings(nn.Module):
        def __init__(self, size: float) -> None:
            super().__init__()
            self.table = nn.Embedding(20, 2)
            self.table.weight.data.mul_(size)

        def forward(self, x: Tensor) -> Tensor:
            return self.table(x).sum(1)

    for size, found in ((1.0, False), (40.0, True)):
        chart = Chart()
        read_start(chart, admitted(Ratings(size), classify, batches_of(words, words[:, 0] % 2)))
        assert chart.has("large_weights") == found


@pytest.mark.parametrize(("loss", "found"), [(F.mse_loss, True), (F.huber_loss, False)])
def test_heavy_tails_are_borne_by_a_loss_whose_slope_is_bounded(loss: Any, found: bool) -> None:
    x = torch.randn(640, 4, generator=torch.Generator().manual_seed(2))
    y = x[:, :1] / torch.rand(640, 1, generator=torch.Generator().manual_seed(3))
    patient = admitted(nn.Linear(4, 1), loss, batches_of(x, y))
    chart = Chart()
    read_data(chart, patient)
    assert chart.has("heavy_targets")
    read_bounded_loss(chart, patient)
    assert chart.has("heavy_targets") == found


def test_every_cause_resembles_others_that_exist() -> None:
    for key, cause in CAUSES.items():
        assert cause.resembles, key
        assert set(cause.resembles) <= set(CAUSES) - {key}, key


def test_other_causes_are_listed_behind_the_one_named_if_the_training_can_have_them() -> None:
    patient = admitted(nn.Linear(3, 2), classify, batches_of(SERIES[:, 0], CLASSES), optimizer=None)
    chart = Chart()
    chart.facts.progress = 0.2
    found = differential("wrong_labels", [("wrong_labels", 5.0)], (), chart, patient)
    keys = [key for key, _ in found]
    assert keys[0] == "wrong_labels"
    assert len(keys) >= LISTED
    assert "heavy_tailed_noise" not in keys  # classes have no tails
    assert "lr_too_large" not in keys  # no optimizer was given


def problem() -> tuple[Any, ...]:
    model = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=300.0)
    return (model, classify), batches_of(SERIES[:, 0], (SERIES[:, 0, 0] > 0).long()), optimizer


def test_the_answer_lists_three_and_says_what_the_time_did_not_suffice_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(examination, "FEWEST", 20)
    answer = examine(problem, seconds=0.02)
    assert "steps, not 240" in answer.shortened
    assert "--seconds 0.06" in answer.shortened
    assert answer.shortened in str(answer)
    monkeypatch.setattr(examination, "STEPS", 60)
    answer = examine(problem, seconds=60)
    assert answer.cause == "lr_too_large"
    assert answer.shortened == ""
    assert len(answer.causes) >= LISTED
    assert len(answer.alternatives) == LISTED - 1
    assert all(words in answer._repr_html_() for words in answer.alternatives)
    drawn = standalone(answer)
    assert drawn.count("<polyline") == 2
    assert "constant answer" in drawn
    assert "prefers-color-scheme:dark" in drawn
    html = page(answer)
    assert html.index("<h1>") < html.index("<svg ") < html.index("<pre>") < html.index("<ul>")


@pytest.mark.parametrize("key", CAUSES)
def test_the_longest_answer_fits_on_a_screen(key: str) -> None:
    pytest.importorskip("typer")
    from mindgap.advise.doctor.page import Examination, Trial
    from mindgap.cli.examine import HEIGHT, screen

    cause, curve = CAUSES[key], (2.0, 1.0)
    proof = "(tried on a copy: loss at step 240 not finite → 0.123)"
    answer = Examination(
        "sick",
        f"Almost certain: {cause.name}; {cause.change} {proof}.",
        tuple((k, 0.1) for k in (key, *cause.resembles)),
        ("finding " * 19,) * 3,
        cause.code,
        Trial(key, 1.0, 2.0, 1.0, 240, True, curve),
        curve,
        (),
        1.0,
        {"shortened": "word " * 26},
    )
    lines = [part for line in screen(answer) for part in textwrap.wrap(line, 80) or [""]]
    assert len(lines) <= HEIGHT
