"""The papers' own models: published parameter counts, and what makes each of them what it is."""

from __future__ import annotations

import pytest
import torch

from mindgap.lab.tasks.models import AWDLSTM, ResNet18, ResNet20, TransformerXL
from mindgap.lab.tasks.models.transformer_xl import _shifted


def count(model: torch.nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def test_parameter_counts_are_the_published_ones():
    assert count(ResNet20()) / 1e6 == pytest.approx(0.27, abs=0.005)  # He et al. 2016, Table 6
    assert count(ResNet18()) / 1e6 == pytest.approx(11.17, abs=0.01)
    with torch.device("meta"):
        assert count(AWDLSTM(10_000)) / 1e6 == pytest.approx(24.2, abs=0.05)  # Merity et al. 2018, Table 1: 24M
        standard = TransformerXL(267_735, 410, 16, 10, 2100)  # Dai et al. 2019, Table 1: 151M on WikiText-103
        assert count(standard) / 1e6 == pytest.approx(151, abs=0.5)


def test_residual_networks_give_one_score_per_class():
    for model in (ResNet20(), ResNet18()):
        assert model(torch.randn(2, 3, 32, 32)).shape == (2, 10)


def test_weight_drop_changes_recurrent_weights_only_in_training():
    model = AWDLSTM(20, width=4, hidden=6, input_drop=0, hidden_drop=0, output_drop=0, word_drop=0)
    x = torch.randint(20, (2, 7))
    assert not torch.equal(model(x)[0], model(x)[0])
    before = [p.clone() for p in model.parameters()]
    model.eval()
    assert torch.equal(model(x)[0], model(x)[0])
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters()))


def test_the_state_of_awd_lstm_continues_a_text():
    model = AWDLSTM(20, width=4, hidden=6).eval()
    x = torch.randint(20, (2, 8))
    whole, _ = model(x)
    first, state = model(x[:, :5])
    rest, _ = model(x[:, 5:], state)
    assert torch.allclose(torch.cat([first, rest], 1), whole, atol=1e-5)


def test_the_relative_shift_gives_the_score_of_the_distance():
    length, reach = 3, 5
    scores = torch.arange(float(reach)).expand(1, 1, length, reach)  # column j: distance reach - 1 - j
    shifted = _shifted(scores)[0, 0]
    for i in range(length):
        for j in range(reach - length + i + 1):
            distance = (reach - length + i) - j
            assert int(shifted[i, j]) == reach - 1 - distance


def test_the_memory_of_transformer_xl_equals_the_longer_segment():
    model = TransformerXL(30, width=16, layers=1, heads=2, inner=32, memory=6).eval()
    x = torch.randint(30, (2, 10))
    whole, _ = model(x)
    _, memory = model(x[:, :6])
    rest, _ = model(x[:, 6:], memory)
    assert torch.allclose(rest, whole[:, 6:], atol=1e-5)


def test_transformer_xl_looks_at_no_later_word():
    model = TransformerXL(30, width=16, layers=2, heads=2, inner=32).eval()
    x = torch.randint(30, (1, 6))
    changed = x.clone()
    changed[0, -1] = (x[0, -1] + 1) % 30
    assert torch.allclose(model(x)[0][:, :-1], model(changed)[0][:, :-1], atol=1e-6)
