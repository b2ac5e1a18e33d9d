"""E0 to E4, E6 and E11 at scale gpu, at a tiny size on the CPU with made-up images and packaged
prose.
"""

from __future__ import annotations

import io
import math
import pickle
from typing import Any

import pytest
import torch
from torch import nn

from mindgap.base.objective import Objective
from mindgap.lab.studies.catalogue import find
from mindgap.lab.studies.loop import Trial
from mindgap.lab.studies.run import simulate
from mindgap.lab.studies.statistics_runs import CLEAN_IMAGES, NOISY_IMAGES, WIKITEXT, statistics_run
from mindgap.lab.tasks import models
from mindgap.lab.tasks.data import device_images
from mindgap.measure import sharpness, training_statistics
from mindgap.measure.captured_statistics import CapturedStatistics

E0, E1, E2, E3, E4, E6, E11 = (
    "e0-training-statistics",
    "e1-image-network",
    "e2-language-model",
    "e3-over-fitted",
    "e4-estimates-settle",
    "e6-raw-losses",
    "e11-balance-and-edge",
)
WORDS = {
    "text": "prose",
    "words": 40,
    "width": 8,
    "heads": 2,
    "inner": 12,
    "memory": 4,
    "length": 4,
    "layers": 1,
}
TINY = {
    "device": "cpu",
    "train": 48,
    "batch": 8,
    "steps": 12,
    "every": 1,
    "sharp_tol": 0.5,
    **WORDS,
}


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Images whose class is their brightness, and a small network with batch normalisation."""
    labels = torch.arange(64) % 4
    images = (
        torch.randn(64, 3, 8, 8, generator=torch.Generator().manual_seed(0)) * 0.3
        + labels[:, None, None, None]
    )
    monkeypatch.setattr(
        device_images,
        "cifar_on",
        lambda device: dict.fromkeys(("train", "validation", "test"), (images, labels)),
    )
    for name, width in (("ResNet20", 2), ("ResNet18", 6)):
        network = nn.Sequential(
            nn.Conv2d(3, width, 3),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(36 * width, 10),
        )
        monkeypatch.setattr(
            models, name, lambda network=network: pickle.loads(pickle.dumps(network))
        )


def tiny(name: str, **more: Any) -> dict[str, Any]:
    """The tiny settings that a study has."""
    study = find(name)
    known = {n for method in study.methods for n in study.settings("gpu", method)}
    return {n: value for n, value in {**TINY, **more}.items() if n in known}


def trial_of(name: str, method: str, **more: Any) -> Trial:
    return Trial(method, 0, find(name).settings("gpu", method, tiny(name, **more)))


def test_statistics_agree_with_those_of_the_library_and_leave_the_network_as_it_was():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 3))
    batches = [(torch.randn(6, 5), torch.randint(3, (6,))) for _ in range(4)]

    def loss(m: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(m(x), y)

    loss(model, *batches[0]).backward()
    before = pickle.dumps([model.state_dict(), [p.grad for p in model.parameters()]])
    reader, objective = CapturedStatistics(model, loss), Objective(model, lambda m, b: loss(m, *b))
    found = reader.read(batches, prefixes=[2])
    library = training_statistics(objective, batches, per="batch")
    for mine, known in zip(found, library.growth[1:], strict=True):
        assert mine.samples == known.samples
        assert mine.loss == pytest.approx(known.loss)
        assert mine.gradient_norm == pytest.approx(known.gradient_norm, rel=1e-4)
        assert mine.noise == pytest.approx(known.noise, rel=1e-3)
    exact = found[-1].gradient_norm ** 2 - found[-1].noise ** 2 / found[-1].samples
    assert found[-1].gradient_square == pytest.approx(exact, rel=1e-4)
    norm, vector = reader.sharpness(batches, tol=1e-4)
    assert norm == pytest.approx(sharpness(objective, batches, tol=1e-4).norm, rel=1e-3)
    assert reader.sharpness(batches[:3], tol=1e-4, start=vector)[0] == pytest.approx(
        sharpness(objective, batches[:3], tol=1e-4).norm, rel=1e-3
    )
    assert pickle.dumps([model.state_dict(), [p.grad for p in model.parameters()]]) == before


def test_the_first_batch_alone_has_a_gradient_and_no_noise():
    model = nn.Linear(1, 1, bias=False)
    reader = CapturedStatistics(model, lambda m, x: 0.5 * (m.weight.sum() - x).square().mean())
    first, both = reader.read([(torch.zeros(2, 1),), (torch.ones(2, 1),)], prefixes=[1])
    assert first.samples == 2
    assert first.gradient_norm == pytest.approx(abs(model.weight.item()))
    assert math.isnan(first.noise)
    assert math.isnan(first.gradient_square)
    assert both.noise > 0


def test_the_unbiased_square_is_right_on_average():
    model = nn.Linear(1, 1, bias=False)
    with torch.no_grad():
        model.weight.fill_(0.5)
    reader = CapturedStatistics(model, lambda m, x: 0.5 * (m.weight.sum() - x).square().mean())
    draws = torch.Generator().manual_seed(0)
    squares = [
        reader.read([(torch.randn(3, 1, generator=draws),) for _ in range(4)])[-1].gradient_square
        for _ in range(300)
    ]
    assert sum(squares) / 300 == pytest.approx(
        0.25, abs=4 * torch.tensor(squares).std().item() / 300**0.5
    )


def test_labels_are_drawn_at_random_anew_and_images_drawn_as_the_network_trains_on_them():
    noisy = statistics_run(Trial("a", 0, {**NOISY_IMAGES, **TINY, "wrong_labels": 1.0}), "test")
    first, again = (torch.cat([y for _, y in noisy.draw(0, number)]) for number in (0, 1))
    assert not torch.equal(first.sort().values, again.sort().values)
    plain = statistics_run(Trial("a", 0, {**CLEAN_IMAGES, **TINY, "augment": False}), "test")
    every = torch.cat([x for x, _ in plain.draw(0, 0)])
    assert sorted(every.sum((1, 2, 3)).tolist()) == pytest.approx(
        sorted(plain.run.parts["train"][0].sum((1, 2, 3)).tolist()), rel=1e-4
    )
    assert [len(x) for x, _ in plain.draw(24, 0)] == [8, 8, 8]


def test_a_window_of_text_has_the_memory_of_the_words_before():
    run = statistics_run(Trial("a", 0, {**WIKITEXT, **TINY}), "test")
    batches = run.draw(16, 0)
    assert [tuple(b[0].shape) for b in batches] == [(8, 9)] * 2
    windows = batches[0][0]
    run.run.model.eval()
    _, memory = run.run.model(windows[:, :4])
    scores, _ = run.run.model(windows[:, 4:-1], memory)
    expected = nn.functional.cross_entropy(scores.flatten(0, 1), windows[:, 5:].flatten())
    assert run.statistics.loss((windows,)) == pytest.approx(float(expected.detach()))


@pytest.mark.parametrize(
    ("name", "method"),
    [
        (E1, "step drops twice"),
        (E2, "constant, two fifths"),
        (E3, "narrow: does not"),
        (E0, "transformer"),
        (E6, "transformer"),
        (E11, "convolutional network, step 0.1"),
    ],
)
def test_a_trial_goes_on_from_its_checkpoint_to_the_same_rows(name, method):
    every = {E0: 4, E11: 3}.get(name, 1)
    study, whole, saved = find(name), trial_of(name, method, every=every, m=16, sharp_m=8), []
    rows = []
    for row in study.loop(whole):
        rows.append(row)
        state = whole.take_saved()
        saved.append(pickle.loads(pickle.dumps(state())) if state else None)
    at = len(rows) // 2
    assert saved[at] is not None
    file = io.BytesIO()
    torch.save(saved[at], file)
    file.seek(0)
    restored = torch.load(file, weights_only=True)
    resumed = Trial(method, 0, whole.settings, restored=restored)
    later = list(study.loop(resumed))
    assert [_without_time(row) for row in later] == [
        pytest.approx(_without_time(row)) for row in rows[at + 1 :]
    ]


def _without_time(row: dict) -> dict:
    return {name: value for name, value in row.items() if name != "seconds"}


@pytest.mark.parametrize(
    ("name", "more", "parts"),
    [
        (E0, {"m": 16, "sharp_m": 8, "every": 6}, 8),
        (E1, {"m": 16, "sharp_m": 8}, 8),
        (E2, {"m": 16, "sharp_m": 8}, 15),
        (E3, {"every": 6}, 2),
        (E4, {"samples": 64, "sharp_m": 32, "orders": 1}, 12),
        (E6, {"m": 16, "steps": 528}, 4),
        (E11, {"m": 16, "sharp_m": 8, "every": 3}, 13),
    ],
)
def test_every_study_runs_at_scale_gpu_and_is_judged(name, more, parts):
    study = find(name)
    runs = simulate(study, "gpu", seeds=1 if name in (E4, E6) else 2, **tiny(name, **more))
    verdict = study.verdict(runs)
    assert len(verdict.parts) == parts
    assert all(
        math.isfinite(v)
        for run in runs
        for row in run.rows
        for v in row.values()
        if isinstance(v, float)
    )
    for figure in study.describe("gpu").figures:
        assert any(figure.y in row for run in runs for row in run.rows), figure.title


@pytest.mark.parametrize("name", [E0, E1, E2, E3, E4, E6, E11])
def test_scale_gpu_names_its_model_and_has_three_seeds_on_a_device(name):
    study = find(name)
    assert study.scales["gpu"].seeds >= 3
    assert any(model in study.model("gpu") for model in ("ResNet20", "Transformer-XL"))
    assert name == E3 or ("prox" in study.model("gpu") and "cannot be settled" in study.differs)
    for method in study.seeds("gpu"):
        settings = study.settings("gpu", method)
        assert settings["device"] == "cuda"
        assert settings.get("source") not in ("digits", "prose")


def test_e1_reads_gradients_at_every_row_and_the_sharpness_at_every_twelfth():
    rows = list(find(E1).loop(trial_of(E1, "a tenth of it, longer", m=16, sharp_m=16)))
    assert [row["step"] for row in rows] == list(range(41))
    assert [row["step"] for row in rows if "noise" in row] == list(range(41))
    assert [row["step"] for row in rows if "sharpness" in row] == [0, 12, 24, 36]
    assert rows[-1]["lr"] == pytest.approx(0.01)


def test_e3_over_fits_without_augmentation_and_reads_all_images():
    run = list(find(E3).loop(trial_of(E3, "wide: over-fits", steps=120, every=60)))
    assert run[-1]["train_accuracy"] > run[0]["train_accuracy"]
    assert run[-1]["gradient_norm"] < 0.3 * run[0]["gradient_norm"]


def test_the_control_of_e6_descends_on_its_fixed_samples():
    rows = list(find(E6).loop(trial_of(E6, "control: whole gradient, small step", m=16, steps=24)))
    assert [row["step"] for row in rows] == list(range(21, 25))
    assert [row["fixed"] for row in rows[:-1]] == pytest.approx(
        [row["loss"] for row in rows[1:]], rel=1e-5
    )
    assert rows[-1]["loss"] < rows[0]["loss"]
