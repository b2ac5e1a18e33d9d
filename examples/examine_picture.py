"""The README's first picture: a sick run and its cure, found and tried by ``mindgap examine``.

``python examples/examine_picture.py docs/pictures/examine.svg`` draws it. A layer of a network
on scikit-learn's digits is dead; the doctor finds it and tries the cure on a copy.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn


def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def problem() -> tuple[Any, ...]:
    """Model, loss, batches and the optimizer in use."""
    images, labels = (torch.as_tensor(a) for a in load_digits(return_X_y=True))
    batches = list(zip((images.float() / 16).split(32), labels.split(32)))
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    nn.init.constant_(model[0].bias, -9.0)
    return (model, loss), batches, torch.optim.SGD(model.parameters(), lr=0.1)


if __name__ == "__main__":
    from mindgap.advise import examine
    from mindgap.advise.doctor.page import standalone

    answer = examine(problem)
    print(answer)
    if sys.argv[-1].endswith(".svg"):
        Path(sys.argv[-1]).write_text(standalone(answer), encoding="utf-8")
