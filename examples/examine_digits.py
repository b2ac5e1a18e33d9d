"""What is wrong with this training run? ``mindgap examine examine_digits:problem`` says it.

Forty per cent of the labels are wrong, which no curve shows: the loss falls and settles. Run the
file for the same answer from Python; a notebook shows the curve before and after.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn


def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def problem() -> tuple[Any, ...]:
    """Model, loss, batches and the optimizer in use."""
    images, labels = (torch.as_tensor(a) for a in load_digits(return_X_y=True))
    draw = torch.Generator().manual_seed(0)
    wrong = torch.rand(len(labels), generator=draw) < 0.4
    labels = torch.where(wrong, torch.randint(10, labels.shape, generator=draw), labels)
    order = torch.randperm(len(labels), generator=draw)
    batches = list(zip((images.float() / 16)[order].split(32), labels[order].split(32)))
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    return (model, loss), batches, torch.optim.SGD(model.parameters(), lr=0.3)


if __name__ == "__main__":
    from mindgap.advise import examine

    print(examine(problem))
