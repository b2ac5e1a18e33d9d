"""``mindgap recommend`` for a Lightning module: its ``training_step`` is the loss."""

import lightning
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Regression(lightning.LightningModule):
    """Any module of yours; a ``training_step`` that logs is called as it is."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))

    def training_step(self, batch, index):
        x, y = batch
        return F.mse_loss(self.net(x)[:, 0], y)


def problem(seed):
    x = torch.randn(2000, 8, generator=torch.Generator().manual_seed(0))
    data = TensorDataset(x, torch.sin(x.sum(1)))
    train, valid = torch.utils.data.random_split(
        data, [1800, 200], torch.Generator().manual_seed(0)
    )
    loss = lambda module, batch: module.training_step(batch, 0)  # noqa: E731
    return (Regression(), loss), DataLoader(train, 32, shuffle=True), DataLoader(valid, 200)
