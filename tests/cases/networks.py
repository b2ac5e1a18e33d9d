"""Small networks whose second derivatives need care: recurrent, attentive, with normalisation."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn


class Recurrent(nn.Module):
    def __init__(self, inputs: int, width: int, classes: int) -> None:
        super().__init__()
        self.cell, self.out = nn.LSTM(inputs, width, batch_first=True), nn.Linear(width, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.cell(x)[0][:, -1])


class Attentive(nn.Module):
    def __init__(self, inputs: int, width: int, classes: int) -> None:
        super().__init__()
        self.mix, self.out = nn.Linear(inputs, 3 * width), nn.Linear(width, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.mix(x).unsqueeze(1).chunk(3, dim=-1)
        return self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True)[:, 0, -1])
