"""The race does not depend on where the loss has its zero, and says so when losses rise."""

from __future__ import annotations

import math

import torch

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


def shifted(by: float):
    """The same problem with a constant added to the loss."""

    def problem(seed):
        torch.manual_seed(seed)
        model = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Tanh(), torch.nn.Linear(6, 1))

        def loss(model, batch):
            return (model(batch) - batch.sum(1, True).sin()).square().mean() + by

        return (model.double(), loss), [b.double() for b in BATCHES]

    return problem


def test_a_constant_added_to_the_loss_changes_neither_the_choice_nor_what_is_compared() -> None:
    """Rules were relative to the loss, and a loss that changed its sign gave a gain of NaN."""
    answers = [recommend(shifted(by), minutes=5, steps=96, measure=False) for by in (0.0, -0.3, 99)]
    for other in answers[1:]:
        assert other.decision.setting == answers[0].decision.setting
        assert [(t.name, t.steps) for t in other.tried] == [
            (t.name, t.steps) for t in answers[0].tried
        ]
        assert all(math.isfinite(value) for value in other.gain)
        assert "nan" not in other.sentence
    changes_sign = answers[1].decision
    assert changes_sign.start > 0 > changes_sign.loss
    assert changes_sign.relative_to == "fall"


class Drifting(torch.nn.Module):
    """One weight that training moves away for ever: the validation loss falls for a few steps
    and then rises.
    """

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1) + 1e-6 * torch.rand(1))

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        away = (self.weight - 2e-4).square().sum() + 1e-10 * batch.square().mean()
        return away if batch[0] < 0 else -self.weight.sum() * batch.mean()


def drifting_problem():
    model = Drifting()
    return (model, lambda model, batch: model(batch)), [torch.ones(2)] * 40, [-torch.ones(2)]


def test_where_all_losses_rise_a_smaller_rate_is_tried_and_the_answer_says_so() -> None:
    answer = recommend(drifting_problem, minutes=5, steps=240, measure=False)
    rates = [float(t.name.split("lr=")[1].split()[0].strip(",")) for t in answer.tried]
    assert min(rates) <= 1e-4
    assert answer.about["full_length_runs"] <= 5
    assert answer.sentence.startswith("Nothing tried trains to the end: the best run, AdamW ")
    assert answer.decision.setting in answer.sentence
    assert answer.code
    assert "% better" not in answer.sentence
    assert any("and not at the end: try fewer steps" in note for note in answer.notes)
