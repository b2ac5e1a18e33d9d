"""Transformer-XL (Dai et al. 2019): relative attention with a memory, the language model of
Fig. 4-3a of the thesis.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mindgap.base.checked import check_arguments


class RelativeAttention(nn.Module):
    """Multi-head attention with relative positions (Dai et al. 2019, section 3.3) over a memory
    and the segment.

    Args:
        width: of the vectors, divisible by ``heads``.
        heads: how many.
        dropout: on the attention weights.
    """

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.size, self.dropout = heads, width // heads, dropout
        self.query = nn.Linear(width, width, bias=False)
        self.pair = nn.Linear(width, 2 * width, bias=False)  # keys and values
        self.place = nn.Linear(width, width, bias=False)  # keys of distances
        self.out = nn.Linear(width, width, bias=False)
        self.content_bias = nn.Parameter(torch.zeros(heads, self.size))  # u of the paper
        self.place_bias = nn.Parameter(torch.zeros(heads, self.size))  # v of the paper

    def forward(self, x: Tensor, memory: Tensor, places: Tensor) -> Tensor:
        """Attention of each place to the memory and to the places up to it, by content and by
        distance.

        Args:
            x: the segment, (texts, length, width).
            memory: vectors of earlier places, (texts, earlier, width).
            places: codes of the distances from reach - 1 down to 0, (reach, width), with reach =
                earlier + length.

        Returns:
            Shape of ``x``.
        """
        batch, length, width = x.shape
        attended = torch.cat([memory, x], 1)
        reach = attended.shape[1]
        query = self.query(x).view(batch, length, self.heads, self.size)
        key, value = self.pair(attended).view(batch, reach, 2, self.heads, self.size).unbind(2)
        place_keys = self.place(places).view(reach, self.heads, self.size)
        # b text, i place that attends, j place attended to or its distance, h head, d entry of a
        # head's vector.
        content = torch.einsum("bihd,bjhd->bhij", query + self.content_bias, key)
        relative = _shift_scores(
            torch.einsum("bihd,jhd->bhij", query + self.place_bias, place_keys)
        )
        scores = (content + relative) / math.sqrt(self.size)
        # Place i of the segment is place i + reach - length of memory and segment.
        everywhere = torch.ones(length, reach, dtype=torch.bool, device=x.device)
        is_later = everywhere.triu(1 + reach - length)
        weights = scores.masked_fill(is_later, -math.inf).softmax(-1)
        weights = F.dropout(weights, self.dropout, self.training)
        mixed = torch.einsum("bhij,bjhd->bihd", weights, value).reshape(batch, length, width)
        return self.out(mixed)


def _shift_scores(scores: Tensor) -> Tensor:
    """Scores by place in place of scores by distance (Dai et al. 2019, appendix B): shape (texts,
    heads, length, reach), as ``scores``.

    Column k of ``scores`` belongs to the distance reach - 1 - k, column j of the result to place j
    of memory and segment, for the row of place i. Columns after place i are meaningless.
    """
    batch, heads, length, reach = scores.shape
    # Row i moves to the left by length - 1 - i: without an index, by one more column and a new cut
    # into rows.
    padded = F.pad(scores, (1, 0)).view(batch, heads, reach + 1, length)
    return padded[:, :, 1:].reshape(batch, heads, length, reach)


class TransformerXL(nn.Module):
    """A causal language model with relative attention and a memory of the segment before.

    Args:
        words: size of the vocabulary; input and output vectors are tied.
        width, layers, heads, inner: of the network.
        memory: positions of the segments before that attention reaches.
        dropout: on vectors and attention weights.

    Example:
        >>> model = TransformerXL(50, width=16, layers=2, heads=2, inner=32, memory=4)
        >>> scores, memory = model(torch.zeros(3, 5, dtype=torch.long))
        >>> scores.shape, len(memory), memory[0].shape
        (torch.Size([3, 5, 50]), 2, torch.Size([3, 4, 16]))
    """

    def __init__(
        self,
        words: int,
        width: int = 410,
        layers: int = 6,
        heads: int = 10,
        inner: int = 2100,
        *,
        memory: int = 150,
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        self.memory, self.dropout = memory, dropout
        self.words = nn.Embedding(words, width)
        nn.init.normal_(self.words.weight, std=0.02)
        self.attention = nn.ModuleList(
            RelativeAttention(width, heads, dropout) for _ in range(layers)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(layers))
        self.inner = nn.ModuleList(
            nn.Sequential(
                nn.Linear(width, inner), nn.ReLU(), nn.Dropout(dropout), nn.Linear(inner, width)
            )
            for _ in range(layers)
        )
        self.inner_norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(layers))
        self.bias = nn.Parameter(torch.zeros(words))
        # The frequencies of the sinusoids that code distances (Vaswani et al. 2017, 3.5).
        rates = 10000 ** -(torch.arange(0, width, 2) / width)
        self.register_buffer("rates", rates, persistent=False)

    def blank(self, batch: int) -> list[Tensor]:
        """A memory of zeros for ``batch`` texts, as long as a memory may be: every segment then has
        the same shapes.
        """
        return [
            self.bias.new_zeros(batch, self.memory, self.words.embedding_dim)
            for _ in self.attention
        ]

    def forward(self, x: Tensor, memory: list[Tensor] | None = None) -> tuple[Tensor, list[Tensor]]:
        """Scores of the next word at every position, and the memory for the next segment.

        Args:
            x: numbers of words, (texts, length).
            memory: each layer's input at earlier places, (texts, earlier, width) per layer; None
                for none.

        Returns:
            (scores (texts, length, words), the detached memory, at most ``memory`` places).
        """
        vectors = self.words(x) * math.sqrt(self.words.embedding_dim)
        vectors = F.dropout(vectors, self.dropout, self.training)
        empty = vectors[:, :0]
        memories = memory if memory is not None else [empty] * len(self.attention)
        reach = memories[0].shape[1] + x.shape[1]
        # Every distance is coded by sines and cosines of several frequencies.
        distances = torch.arange(reach - 1, -1, -1.0, device=x.device)
        angles = distances[:, None] * self.get_buffer("rates")
        places = torch.cat([angles.sin(), angles.cos()], 1)[:, : vectors.shape[2]].to(vectors.dtype)
        new_memories = []
        for attention, norm, inner, inner_norm, earlier in zip(
            self.attention, self.norms, self.inner, self.inner_norms, memories, strict=True
        ):
            # A slice [:, -0:] would keep everything.
            latest = torch.cat([earlier, vectors], 1)[:, -self.memory :] if self.memory else empty
            new_memories.append(latest.detach())
            attended = F.dropout(attention(vectors, earlier, places), self.dropout, self.training)
            vectors = norm(vectors + attended)
            vectors = inner_norm(vectors + F.dropout(inner(vectors), self.dropout, self.training))
        return F.linear(vectors, self.words.weight, self.bias), new_memories


check_arguments(__name__)
