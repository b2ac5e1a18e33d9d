"""A problem for ``mindgap measure``: a small network on scikit-learn's handwritten digits.

From this folder::

    mindgap measure measure_digits:problem -o survey.html
    mindgap advise survey.json
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

from mindgap import Objective


def problem() -> tuple[Objective, list[tuple[torch.Tensor, torch.Tensor]], torch.optim.Optimizer]:
    """The network at its initialisation, 200 minibatches of 8 images, and the optimizer whose
    step is judged.
    """
    torch.manual_seed(0)
    images, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)
    model = nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10))
    batches = [(x[i : i + 8], y[i : i + 8]) for i in range(0, 1600, 8)]
    objective = Objective(model, lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]))
    return objective, batches, torch.optim.SGD(model.parameters(), lr=0.1)
