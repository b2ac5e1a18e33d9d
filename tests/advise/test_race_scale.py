"""The race compares losses by their logs, and negative losses by their size."""

from __future__ import annotations

import math

import pytest
import torch

from mindgap.advise.candidates import Scale
from mindgap.advise.race import Race
from mindgap.advise.recommendation import recommend

BATCHES = list(torch.randn(60, 16, 4, generator=torch.Generator().manual_seed(0)))


def negative_problem():
    """A loss that is negative from the first step on."""
    model = torch.nn.Linear(4, 1)
    return (
        model,
        lambda model, batch: (model(batch) - batch.sum(1, True)).square().mean() - 50.0,
    ), BATCHES


def test_negative_losses_have_a_noise_and_a_gain() -> None:
    answer = recommend(negative_problem, minutes=1, steps=96)
    low, high = answer.gain[1:]
    assert answer.about["noise"] > 0
    assert math.isfinite(low)
    assert low <= answer.gain[0] <= high
    assert answer.gain[0] < 1


def test_an_interval_of_logs_never_saves_more_than_everything() -> None:
    race = Race(negative_problem, total=48, scale=Scale(5))
    assert race.gain(0.2, 1.0, shift=-1.0) < 1
    assert race.gain(0.2, 1.0, shift=1.0) == pytest.approx(1 - 0.2 * math.e)
    race.unit = 50.0
    assert race.gain(-50.0, -40.0) == pytest.approx(0.25)
    assert race.gain(-50.0, -40.0, shift=0.2) == pytest.approx(0.0, abs=1e-12)


class Drifting(torch.nn.Module):
    """One weight that training moves away for ever: the validation loss falls for a few steps
    and then rises.
    """

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1) + 1e-6 * torch.rand(1))

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        away = (self.weight - 0.004).square().sum() + 1e-4 * batch.square().mean()
        return away if batch[0] < 0 else -self.weight.sum() * batch.mean()


def drifting_problem():
    model = Drifting()
    return (model, lambda model, batch: model(batch)), [torch.ones(2)] * 40, [-torch.ones(2)]


def test_where_all_losses_rise_a_smaller_rate_is_tried_and_the_answer_says_so() -> None:
    answer = recommend(drifting_problem, minutes=5, steps=240, measure=False)
    smallest = min(
        float(name.split("lr=")[1])
        for name in (t.name for t in answer.tried)
        if "with clipping" in name
    )
    assert smallest == pytest.approx(3e-4 / math.sqrt(10), rel=0.05)
    assert answer.about["setting"]["lr"] == pytest.approx(smallest)
    assert answer.about["full_length_runs"] <= 4
    assert answer.sentence.startswith(
        "Nothing tried trains to the end: the best run, AdamW with clipping lr=9.5e-05, "
    )
    assert "% better" not in answer.sentence
    assert any("and not at the end: try fewer steps" in note for note in answer.notes)
