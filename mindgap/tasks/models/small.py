"""Networks small enough for a study of seconds: convolutions for 8x8 images, a transformer and an LSTM for words."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mindgap.base.check import fail, whole


def small_convolutional_network(width: int = 16, classes: int = 10) -> nn.Module:
    """Three 3x3 convolutions with ReLU (no normalisation) and a linear layer, for images of shape (1, 8, 8).

    Example:
        >>> small_convolutional_network()(torch.zeros(2, 1, 8, 8)).shape
        torch.Size([2, 10])
    """
    whole("width", width, least=1)
    return nn.Sequential(
        nn.Conv2d(1, width, 3, padding=1), nn.ReLU(),
        nn.Conv2d(width, 2 * width, 3, stride=2, padding=1), nn.ReLU(),
        nn.Conv2d(2 * width, 2 * width, 3, stride=2, padding=1), nn.ReLU(),
        nn.Flatten(), nn.Linear(8 * width, classes),
    )  # fmt: skip


class SmallTransformer(nn.Module):
    """Pre-norm layers of causal attention and a feed-forward part of four times the width; learned positions.

    Args:
        words: size of the vocabulary.
        width: of every layer; divisible by ``heads``.
        layers: how many.
        heads: of the attention.
        length: longest sequence.

    Example:
        >>> SmallTransformer(words=50, width=8, heads=2)(torch.zeros(3, 5, dtype=torch.long)).shape
        torch.Size([3, 5, 50])
    """

    def __init__(self, words: int, width: int = 32, layers: int = 2, heads: int = 4, length: int = 64) -> None:
        super().__init__()
        if width % heads:
            fail("width", f"must be divisible by heads={heads}", width)
        self.heads = heads
        self.words = nn.Embedding(words, width)
        self.places = nn.Embedding(length, width)
        for table in (self.words, self.places):
            nn.init.normal_(table.weight, std=0.02)
        self.layers = nn.ModuleList(_Layer(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.out = nn.Linear(width, words)

    def forward(self, tokens: Tensor) -> Tensor:
        """Scores of the next word at every place: (n, T) -> (n, T, words)."""
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        for layer in self.layers:
            x = layer(x)
        return self.out(self.norm(x))


class SmallLSTM(nn.Module):
    """One layer of LSTM between an embedding and its transpose: input and output share one table, as in AWD-LSTM.

    Args:
        words: size of the vocabulary.
        width: of the embedding and of the layer.

    Example:
        >>> SmallLSTM(words=50, width=8)(torch.zeros(3, 5, dtype=torch.long)).shape
        torch.Size([3, 5, 50])
    """

    def __init__(self, words: int, width: int = 32) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        nn.init.uniform_(self.words.weight, -0.1, 0.1)
        self.recurrent = nn.LSTM(width, width, batch_first=True)
        self.bias = nn.Parameter(torch.zeros(words))

    def forward(self, tokens: Tensor) -> Tensor:
        """Scores of the next word at every place: (n, T) -> (n, T, words)."""
        return F.linear(self.recurrent(self.words(tokens))[0], self.words.weight, self.bias)


class _Layer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.queries_keys_values, self.mix = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.queries_keys_values(self.before(x)).chunk(3, dim=-1)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.mix(mixed.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.between(x))))
