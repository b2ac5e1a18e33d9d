"""Captured gradients equal eager ones; augmentation shifts and mirrors as it says."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from mindgap.lab.tasks.data.device_images import augmented_batches
from mindgap.measure.captured import CapturedGradient
from mindgap.measure.captured_statistics import CapturedStatistics


def loss(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(model(x), y)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_gradients_equal_plain_backward(device):
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    model = (
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, 5))
        .to(device)
        .double()
    )
    first = torch.randn(6, 3, 8, 8, device=device).double(), torch.randint(5, (6,), device=device)
    gradient = CapturedGradient(model, loss, first)
    assert int(model[1].num_batches_tracked) == 0
    for _ in range(3):
        batch = (
            torch.randn(6, 3, 8, 8, device=device).double(),
            torch.randint(5, (6,), device=device),
        )
        value = float(gradient(*batch))
        got = [p.grad.clone() for p in model.parameters()]
        expected = loss(model, *batch)
        wanted = torch.autograd.grad(expected, list(model.parameters()))
        assert value == pytest.approx(float(expected.detach()), rel=1e-9)
        assert all(torch.allclose(a, b, rtol=1e-9, atol=1e-12) for a, b in zip(got, wanted))


def test_every_augmented_image_is_a_shifted_or_mirrored_original():
    images = torch.arange(2 * 36.0).view(2, 1, 6, 6) + 1
    seen = set()
    for seed in range(200):
        made = torch.Generator().manual_seed(seed)
        for batch, labels in augmented_batches(images, torch.arange(2), 2, made, pad=2):
            for picture, label in zip(batch, labels):
                own = F.pad(images[int(label)], (2, 2, 2, 2))
                crops = {
                    (down, across, mirrored): own[:, down : down + 6, across : across + 6].flip(-1)
                    if mirrored
                    else own[:, down : down + 6, across : across + 6]
                    for down in range(5)
                    for across in range(5)
                    for mirrored in (False, True)
                }
                matches = [key for key, crop in crops.items() if torch.equal(crop, picture)]
                assert matches
                seen.update(matches)
    assert len(seen) == 50


def test_cifar_is_decoded_once_and_goes_to_a_device(tmp_path, monkeypatch):
    import numpy as np

    from mindgap.lab.tasks import data
    from mindgap.lab.tasks.data import device_images

    calls, rng = [], np.random.default_rng(0)
    pixels = rng.integers(0, 256, (20, 3072))

    def made_up(split: str) -> data.Table:
        calls.append(split)
        return data.Table(pixels / 255.0, np.arange(20), "made up")

    monkeypatch.setenv("MINDGAP_CACHE", str(tmp_path))
    monkeypatch.setattr(device_images, "cifar10", made_up)
    for device in (torch.device("cpu"), "cpu"):
        images, labels = device_images.cifar_on(device)["train"]
    assert calls == ["train", "test"]
    assert labels.tolist() == list(range(20))
    raw = torch.tensor(pixels).view(20, 3, 32, 32).double()
    wanted = (raw - raw.mean((0, 2, 3), keepdim=True)) / raw.std((0, 2, 3), keepdim=True)
    assert torch.allclose(images.double(), wanted, atol=1e-5)


def test_a_module_that_was_in_evaluation_mode_is_in_it_after_a_reading():
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 5))
    model[1].eval()
    batches = [(torch.randn(6, 3), torch.randint(5, (6,))) for _ in range(2)]
    CapturedStatistics(model, loss).read(batches)
    assert [module.training for module in model] == [True, False, True]
