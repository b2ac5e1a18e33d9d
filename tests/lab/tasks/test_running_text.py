"""Running text: segments follow each other without a gap, and a state that is carried gives the
loss of the whole.
"""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from mindgap.lab.studies.catalogue import find
from mindgap.lab.tasks.models import AWDLSTM, TransformerXL
from mindgap.lab.tasks.problems.running_text import (
    RunningText,
    going_on,
    running_loss,
    running_text,
)

MODELS = {
    "AWD-LSTM": lambda: AWDLSTM(30, width=6, hidden=8, layers=2),
    "Transformer-XL": lambda: TransformerXL(
        30, width=8, layers=2, heads=2, inner=16, memory=6, dropout=0.0
    ),
}


def test_segments_follow_each_other_and_each_word_is_predicted_once():
    text = RunningText(torch.arange(24).reshape(2, 12), length=4)
    for short, last in ((False, 8), (True, 11)):
        pairs = list(text.segments(short=short))
        assert torch.cat([y for _, y in pairs], 1)[0].tolist() == list(range(1, last + 1))
        assert all(torch.equal(y, x + 1) for x, y in pairs)


def test_another_shift_begins_elsewhere_in_the_same_text():
    here, there = (
        running_text("prose", "train", words=30, batch=7, length=5, shift=k).rows for k in (0, 3)
    )
    assert torch.equal(here[0, 3:], there[0, :-3])


@pytest.mark.parametrize("name", MODELS)
def test_the_loss_of_segments_with_a_carried_state_is_that_of_the_whole_text(name):
    torch.manual_seed(0)
    model, text = MODELS[name]().eval(), RunningText(torch.randint(30, (3, 13)), length=4)
    carried, loss = going_on(model.blank(3))
    parts = [loss(model, x, y) for x, y in text.segments()]
    assert sum(part.item() for part in parts) / 3 == pytest.approx(
        running_loss(model, text), rel=1e-5
    )
    if name == "AWD-LSTM":  # a memory of six words is no whole text
        scores, state = model(text.rows[:, :-1])
        assert F.cross_entropy(
            scores.flatten(0, 1), text.rows[:, 1:].flatten()
        ).item() == pytest.approx(running_loss(model, text), rel=1e-5)
        assert torch.allclose(carried[0], state[0][0], atol=1e-6)
    parts[-1].backward()  # the states that were read are still there
    assert not model.training


def test_an_override_of_a_setting_of_another_network_changes_that_network_alone():
    study = find("s3-clipping-speeds-up")
    assert study.settings("gpu", "LSTM, SGD", {"steps": 7})["steps"] == 7
    assert "hidden" not in study.settings("gpu", "convolutions, SGD", {"hidden": 8})
    with pytest.raises(ValueError, match="setting"):
        study.settings("gpu", "LSTM, SGD", {"hiden": 8})
