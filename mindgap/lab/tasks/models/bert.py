"""BERT (Devlin et al. 2019) from a random start: the encoder of Fig. 4-2 and Table 4.3, with and
without attention.

Written here and not taken from ``transformers``: the studies leave the attention out, feed vectors
in place of words and run on machines that have torch only. With the same weights both give the same
numbers (``make test-extras``).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mindgap.base.check import fail
from mindgap.base.checked import check_arguments


class _Block(nn.Module):
    """Attention and a feed-forward part, each followed by the sum with its input and a
    normalisation.

    Args:
        width: of the vectors, divisible by ``heads``.
        heads: of the attention.
        inner: width of the feed-forward part.
        dropout: on attention weights and after each of the two parts.
        attention: False leaves the attention out.
    """

    def __init__(self, width: int, heads: int, inner: int, dropout: float, attention: bool) -> None:
        super().__init__()
        self.heads, self.drop = heads, dropout
        # ``mixed`` and ``norm1`` follow the attention, ``up``, ``down`` and ``norm2`` are the
        # feed-forward part.
        self.triple = nn.Linear(width, 3 * width) if attention else None  # queries, keys, values
        if attention:
            self.mixed = nn.Linear(width, width)
            self.norm1 = nn.LayerNorm(width, eps=1e-12)
        self.up, self.down = nn.Linear(width, inner), nn.Linear(inner, width)
        self.norm2 = nn.LayerNorm(width, eps=1e-12)

    def forward(self, x: Tensor, visible: Tensor | None, places: Tensor | None = None) -> Tensor:
        """The block's output for vectors (texts, places, width), in the same shape.

        Args:
            x: the vectors.
            visible: True where a place may be attended to, (texts, 1, 1, places); None for
                everywhere.
            places: with attention, where to compute the output, as in :meth:`Bert.forward`; None
                for everywhere.
        """
        if self.triple is not None:
            texts, length, width = x.shape
            parts = self.triple(x).view(texts, length, 3, self.heads, -1)
            query, key, value = parts.permute(2, 0, 3, 1, 4)  # (texts, heads, places, width/heads)
            drop = self.drop if self.training else 0.0
            mixed = F.scaled_dot_product_attention(
                query, key, value, attn_mask=visible, dropout_p=drop
            )
            mixed = mixed.transpose(1, 2).reshape(texts, length, width)
            x, mixed = _vectors_at(x, places), _vectors_at(mixed, places)
            x = self.norm1(x + F.dropout(self.mixed(mixed), self.drop, self.training))
        # The feed-forward part.
        y = self.down(F.gelu(self.up(x)))
        return self.norm2(x + F.dropout(y, self.drop, self.training))


class Bert(nn.Module):
    """The encoder: words, places and parts are added, then blocks of attention and a feed-forward
    network.

    Args:
        words: size of the vocabulary (30,522 in the paper).
        width, layers, heads, inner: of the network; BERT-base has 768, 12, 12 and 3,072.
        length: longest sequence.
        dropout: after the embeddings, on attention weights and after each half of a block.
        attention: False leaves the attention out of every block; what stays is the feed-forward
            part.
        embedding: False leaves the table of words out; the network then takes vectors in place of
            words.

    Example:
        >>> Bert(words=50, width=8, layers=2, heads=2, inner=16)(
        ...     torch.zeros(3, 5, dtype=torch.long)
        ... ).shape
        torch.Size([3, 5, 8])
    """

    def __init__(
        self,
        words: int = 30_522,
        width: int = 768,
        layers: int = 12,
        heads: int = 12,
        inner: int = 3072,
        length: int = 512,
        dropout: float = 0.1,
        *,
        attention: bool = True,
        embedding: bool = True,
    ) -> None:
        super().__init__()
        if width % heads:
            fail("width", f"must be divisible by heads={heads}", width)
        self.words = nn.Embedding(words, width) if embedding else None
        # Parts are 0 and 1, such as question and passage.
        self.places, self.parts = nn.Embedding(length, width), nn.Embedding(2, width)
        self.norm, self.drop = nn.LayerNorm(width, eps=1e-12), dropout
        self.blocks = nn.ModuleList(
            _Block(width, heads, inner, dropout, attention) for _ in range(layers)
        )
        self.apply(_start)

    def forward(
        self,
        tokens: Tensor,
        parts: Tensor | None = None,
        visible: Tensor | None = None,
        places: Tensor | None = None,
    ) -> Tensor:
        """Features of every place, (n, T, width), or of some ``places`` only. Behind the last
        attention nothing is computed for the other places.

        Args:
            tokens: words (n, T), or vectors (n, T, width) without the table of words.
            parts: 0 or 1 per place (question or passage); all 0 by default.
            visible: True where a place may be attended to, (n, T); all by default.
            places: (n, k) within each text, or (k,) counted over all texts on end; the result is
                then (n, k, width) or (k, width). None for all.
        """
        x = tokens if self.words is None else self.words(tokens)
        part_vectors = self.parts.weight[0] if parts is None else self.parts(parts)
        x = x + self.places.weight[: x.shape[1]] + part_vectors
        # Behind the last block with attention no place looks at another: the rest may be dropped.
        attending = [block for block in self.blocks if block.triple is not None]
        if not attending:
            x = _vectors_at(x, places)
        x = F.dropout(self.norm(x), self.drop, self.training)
        mask = None if visible is None else visible[:, None, None, :]
        for block in self.blocks:
            x = block(x, mask, places if block in attending[-1:] else None)
        return x


class MaskedBert(nn.Module):
    """BERT with the head that restores masked words; its output vectors are the input's (Devlin et
    al., 3.1).

    Args: those of :class:`Bert`.

    Example:
        >>> model = MaskedBert(words=50, width=8, layers=1, heads=2, inner=16)
        >>> model(torch.zeros(3, 5, dtype=torch.long), torch.tensor([[0, 4]] * 3)).shape
        torch.Size([3, 2, 50])
    """

    def __init__(
        self, words: int = 30_522, width: int = 768, **settings: int | float | bool
    ) -> None:
        super().__init__()
        self.encoder = Bert(words, width, **settings)  # type: ignore[arg-type]
        self.dense, self.norm = nn.Linear(width, width), nn.LayerNorm(width, eps=1e-12)
        self.bias = nn.Parameter(torch.zeros(words))
        # Without a table of words there are no input vectors to score with.
        has_table = self.encoder.words is not None
        self.out = None if has_table else nn.Linear(width, words, bias=False).apply(_start)
        self.dense.apply(_start)

    def forward(
        self, tokens: Tensor, places: Tensor | None = None, visible: Tensor | None = None
    ) -> Tensor:
        """Scores of the words at every place, (n, T, words), or at some places only.

        Args:
            tokens: words (n, T), or vectors (n, T, width) without the table of words.
            places: (n, k) within each text, or (k,) counted over all texts on end; the scores are
                then (n, k, words) or (k, words). None for all.
            visible: True where a place may be attended to, (n, T); all by default.
        """
        x = self.encoder(tokens, visible=visible, places=places)
        x = self.norm(F.gelu(self.dense(x)))
        table = self.encoder.words if self.out is None else self.out
        return F.linear(x, table.weight, self.bias)  # type: ignore[union-attr]


class QuestionBert(nn.Module):
    """BERT with the head that marks the answer's first and last word in a passage (Devlin et al.,
    4.2).

    Args: those of :class:`Bert`.

    Example:
        >>> model = QuestionBert(words=50, width=8, layers=1, heads=2, inner=16)
        >>> model(torch.zeros(3, 5, dtype=torch.long)).shape
        torch.Size([3, 5, 2])
    """

    def __init__(
        self, words: int = 30_522, width: int = 768, **settings: int | float | bool
    ) -> None:
        super().__init__()
        self.encoder = Bert(words, width, **settings)  # type: ignore[arg-type]
        self.out = nn.Linear(width, 2).apply(_start)

    def forward(
        self, tokens: Tensor, parts: Tensor | None = None, visible: Tensor | None = None
    ) -> Tensor:
        """Scores of every place as the first and as the last word of the answer: (n, T, 2). The
        arguments are those of :meth:`Bert.forward`.
        """
        return self.out(self.encoder(tokens, parts, visible))


def _vectors_at(x: Tensor, places: Tensor | None) -> Tensor:
    """Vectors at some places.

    Args:
        x: all vectors, (n, T, width).
        places: (n, k) within each text, or (k,) counted over all texts on end; None for all.

    Returns:
        (n, k, width), (k, width), or ``x``.
    """
    if places is None:
        return x
    if places.dim() == 1:
        x = x.flatten(0, 1)
    return x.take_along_dim(places.unsqueeze(-1), dim=-2)


@torch.no_grad()
def _start(module: nn.Module) -> None:
    """Overwrite a module's weights from N(0, 0.02²) and its bias with zero, as the paper's code has
    it; modules without a table or a product stay as they are.
    """
    if isinstance(module, (nn.Linear, nn.Embedding)):
        module.weight.normal_(0.0, 0.02)
    if isinstance(module, nn.Linear) and module.bias is not None:
        module.bias.zero_()


check_arguments(__name__)
