"""The training loop of scale gpu: what it yields, that a resumed run is the same run, and how
divergence ends.
"""

from __future__ import annotations

import pickle

import pytest
import torch
from torch import nn

from mindgap.base.rng import stream_seed, torch_stream
from mindgap.lab.studies.device_runs import device_of, device_run
from mindgap.lab.studies.loop import Trial
from mindgap.lab.studies.training_runs import step_factor

DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA")),
]


class Echo(nn.Module):
    """A recurrent network with dropout whose state goes on from batch to batch."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self.cell, self.out, self.drop = nn.RNNCell(2, 3), nn.Linear(3, 1), nn.Dropout(0.3)
        self.carried = torch.zeros(4, 3, device=device)
        self.to(device)

    def loss(self, model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        new = self.cell(x, self.carried.clone())
        with torch.no_grad():
            self.carried.copy_(new)
        return (self.out(self.drop(new)) - x.sum(1, keepdim=True)).square().mean()


def started(seed: int, device: str, restored: dict | None = None, lr: float = 0.1, **more):
    trial = Trial("sgd", seed, {"device": device}, restored=restored or {})
    torch.manual_seed(seed)
    model = Echo(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)

    def epoch(number: int):
        order = torch_stream(seed, f"order {number}", device=device)
        return [(x,) for x in torch.randn(5, 4, 2, generator=order, device=device)]

    def read() -> dict[str, float]:
        return {
            "weight": float(model.out.weight.detach().sum()),
            "validation_loss": float(model.carried.abs().sum()),
        }

    rows = device_run(
        trial,
        model,
        model.loss,
        optimizer,
        epoch,
        read,
        carried=[model.carried],
        **{"steps": 17, "every": 4, "schedule": "cosine", **more},
    )
    return trial, rows


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("stop", [1, 2, 4])
def test_a_resumed_run_is_the_same_run(device, stop):
    whole = list(started(3, device)[1])
    assert [row["step"] for row in whole] == [4, 8, 12, 16, 17]
    trial, rows = started(3, device)
    head = [next(rows) for _ in range(stop)]
    kept = pickle.loads(pickle.dumps(trial.take_saved()()))
    torch.randn(3)
    assert head + list(started(3, device, kept)[1]) == whole


def test_it_trains_as_plain_steps_do():
    trial, rows = started(1, "cpu", steps=8, every=8, schedule="drops")
    (row,) = rows
    torch.manual_seed(1)
    model = Echo("cpu")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    torch.manual_seed(stream_seed(1, "dropout"))
    losses = []
    for step in range(8):
        order = torch_stream(1, f"order {step // 5}")
        x = torch.randn(5, 4, 2, generator=order)[step % 5]
        if step % 5 == 0:
            model.carried.zero_()
        optimizer.param_groups[0]["lr"] = 0.1 * step_factor("drops", step, 8)
        optimizer.zero_grad()
        losses.append(model.loss(model, x))
        losses[-1].backward()
        optimizer.step()
    assert row["weight"] == pytest.approx(float(model.out.weight.detach().sum()), rel=1e-6)
    assert row["train_loss"] == pytest.approx(float(sum(losses).detach()) / 8, rel=1e-6)
    assert trial.seconds > 0


@pytest.mark.parametrize("device", DEVICES)
def test_a_run_that_diverges_says_so_and_ends(device):
    rows = list(started(0, device, lr=1e30, schedule="constant", steps=400)[1])
    assert rows[-1]["diverged"] is True
    assert rows[-1]["step"] < 400
    assert all("diverged" not in row for row in rows[:-1])
    assert all(0 <= row[name] <= 1e5 for row in rows for name in ("train_loss", "validation_loss"))


def test_a_missing_device_is_named():
    if torch.cuda.is_available():
        pytest.skip("there is one")
    with pytest.raises(ValueError, match="device must be cpu on this machine"):
        device_of(Trial("sgd", 0, {"device": "cuda"}))
