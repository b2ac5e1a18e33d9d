"""Every optimizer on CUDA: a checkpoint resumes bitwise there and opens on the CPU; skipped without
a GPU.
"""

from __future__ import annotations

import copy
import io

import pytest
import torch
from optim.test_optimizer_properties import CASES

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def model_on(device: str) -> torch.nn.Module:
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(5, 40), torch.nn.Tanh(), torch.nn.Linear(40, 2))
    return net.to(device)


def train(model: torch.nn.Module, optimizer: torch.optim.Optimizer, first: int, last: int) -> None:
    device = next(model.parameters()).device
    for step in range(first, last):
        draw = torch.Generator().manual_seed(step)
        x = torch.randn(16, 5, generator=draw).to(device)

        def closure(x: torch.Tensor = x) -> torch.Tensor:
            optimizer.zero_grad()
            loss = (model(x) - x[:, :2]).square().mean()
            loss.backward()
            return loss

        optimizer.step(closure)


@pytest.mark.parametrize("name", CASES)
def test_a_checkpoint_of_the_device_resumes_bitwise_and_opens_elsewhere(name: str) -> None:
    model = model_on("cuda")
    optimizer = CASES[name].build(list(model.parameters()), 1.0, 1.0)
    train(model, optimizer, 0, 6)
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
    train(model, optimizer, 6, 12)
    for device in ("cuda", "cpu"):
        file.seek(0)
        content = torch.load(file, map_location="cpu", weights_only=True)
        twin = model_on(device)
        twin.load_state_dict(content["model"])
        again = CASES[name].build(list(twin.parameters()), 1.0, 1.0)
        again.load_state_dict(copy.deepcopy(content["optimizer"]))
        train(twin, again, 6, 12)
        for a, b in zip(model.parameters(), twin.parameters()):
            if device == "cuda":
                assert torch.equal(a, b)
            else:
                torch.testing.assert_close(a.cpu(), b, rtol=1e-3, atol=1e-4)
