"""A problem for ``mindgap recommend``: a small network on scikit-learn's handwritten digits.

From this folder::

    mindgap recommend recommend_digits:problem --minutes 2
"""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split


def problem(seed):
    images, labels = load_digits(return_X_y=True)
    data = TensorDataset(torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels))
    train, valid = random_split(data, [1500, 297], torch.Generator().manual_seed(0))
    model = nn.Sequential(
        nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)
    )
    loss = lambda model, batch: F.cross_entropy(model(batch[0]), batch[1])  # noqa: E731
    return (
        (model, loss),
        DataLoader(train, batch_size=32, shuffle=True),
        DataLoader(valid, batch_size=297),
    )
