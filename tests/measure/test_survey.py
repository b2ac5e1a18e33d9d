"""The survey: every part measured or refused with a sentence, torch-free data, the model left as found."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from mindgap.base.objective import Objective
from mindgap.measure.gradients import NonFiniteError
from mindgap.measure.overview import PARTS, _dimension, survey
from mindgap.measure.probes.noise import noise_sample
from mindgap.record.schema import from_json


def test_survey_of_a_small_network(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))
    before = {k: v.clone() for k, v in model.state_dict().items()}
    objective = Objective(model, lambda m, b: F.cross_entropy(m(b[0]), b[1]))
    batches = [(torch.randn(4, 5), torch.randint(0, 3, (4,))) for _ in range(140)]
    state = torch.get_rng_state()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    done: list[str] = []
    found = survey(objective, batches, optimizer=optimizer, finished=done.append)
    assert tuple(done) == PARTS
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    names = [f.quantity for f in found.findings]
    for name in ("loss", "gradient norm", "noise", "tail, hill", "variance", "sharpness", "Goldstein distance"):
        assert name in names
    assert not any(f.sentence.startswith("not measured") for f in found.findings)
    assert set(found.figures) == {"noise_histogram", "variance_growth", "smoothness", "spectrum", "settling"}
    assert found.figures["spectrum"]["threshold"] == pytest.approx(20.0)
    histogram = found.figures["noise_histogram"]
    widths = np.diff(histogram["edges"])
    assert np.sum(np.array(histogram["measured"]) * widths) == pytest.approx(1.0)
    path = found.write(tmp_path / "survey.json")
    read = from_json(path.read_text())
    assert read["kind"] == "survey"
    assert read["about"]["parameters"] == 75
    assert len(read["findings"]) == len(found.findings)
    json.loads(path.read_text())  # plain JSON for anybody


def test_what_cannot_be_measured_is_said() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)).train()
    objective = Objective(model, lambda m, b: F.cross_entropy(m(b[0]), b[1]))
    batches = [(torch.randn(4, 5), torch.randint(0, 3, (4,))) for _ in range(3)]
    found = survey(objective, batches, path_steps=3)
    said = {f.quantity: f.sentence for f in found.findings}
    assert said["tail"].startswith("not measured: sample must")
    assert said["variance"].startswith("not measured: sample must hold at least 128 norms")
    assert said["smoothness and gradient norm"].startswith("cannot tell: 3 readings")
    assert "from minibatches" in said["noise"]


def test_nan_is_an_error() -> None:
    objective = Objective(nn.Linear(2, 1), lambda m, b: m(b).sum() * float("nan"))
    with pytest.raises(NonFiniteError, match="loss must be finite on every batch, got nan on batch 0"):
        survey(objective, [torch.ones(1, 2), torch.ones(1, 2)])


@pytest.mark.parametrize("rank", [1, 5, 40])
def test_effective_dimension_of_known_noise(rank: int) -> None:
    """Gradients that are Gaussian in ``rank`` directions of equal size have effective dimension ``rank``."""
    generator = torch.Generator().manual_seed(0)
    basis, _ = torch.linalg.qr(torch.randn(200, rank, generator=generator))
    draws = torch.randn(400, 1, rank, generator=generator) @ basis.T
    objective = Objective(nn.Linear(200, 1, bias=False), lambda m, b: (m.weight @ b.T).mean())
    sample = noise_sample(objective, list(draws), projections=256)
    assert _dimension(sample) == pytest.approx(rank, rel=0.25)
    assert not math.isnan(sample.loss)
