"""Networks small enough for a study of seconds: convolutions for images, a transformer and an
LSTM for words.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mindgap.base.check import fail, whole
from mindgap.base.checked import Count, check_arguments


def small_convolutional_network(
    width: Count = 16, classes: int = 10, *, channels: int = 1, side: int = 8
) -> nn.Sequential:
    """Three 3x3 convolutions with ReLU (no normalisation) and a linear layer, for images of
    (channels, side, side).

    Args:
        width: channels after the first convolution; twice as many after the others.
        classes: of the images.
        channels: 1 for grey, 3 for colours.
        side: rows and columns of an image, a multiple of 4.

    Example:
        >>> small_convolutional_network()(torch.zeros(2, 1, 8, 8)).shape
        torch.Size([2, 10])
        >>> small_convolutional_network(4, channels=3, side=32)(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 10])
    """
    if whole("side", side, least=4) % 4:
        fail("side", "must be a multiple of 4", side)
    return nn.Sequential(
        nn.Conv2d(channels, width, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(width, 2 * width, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(2 * width, 2 * width, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(2 * width * (side // 4) ** 2, classes),
    )


class SmallTransformer(nn.Module):
    """Pre-norm layers of attention and a feed-forward part of four times the width; learned
    positions.

    Args:
        words: size of the vocabulary.
        width: of every layer; divisible by ``heads``.
        layers: how many.
        heads: of the attention.
        length: longest sequence.
        causal: True: a place sees those before it (a language model); False: all places (an
            encoder, as BERT is).
        attention: False leaves the attention out of every layer; what stays is the feed-forward
            part.
        embedding: False leaves the table of words out; the network then takes vectors in place of
            words.

    Example:
        >>> SmallTransformer(words=50, width=8, heads=2)(torch.zeros(3, 5, dtype=torch.long)).shape
        torch.Size([3, 5, 50])
        >>> plain = SmallTransformer(words=50, width=8, heads=2, attention=False, embedding=False)
        >>> plain(torch.zeros(3, 5, 8)).shape
        torch.Size([3, 5, 50])
    """

    #: Standard deviation of a number in the tables of words and places at the start.
    START = 0.02

    def __init__(
        self,
        words: int,
        width: int = 32,
        layers: int = 2,
        heads: int = 4,
        length: int = 64,
        *,
        causal: bool = True,
        attention: bool = True,
        embedding: bool = True,
    ) -> None:
        super().__init__()
        if width % heads:
            fail("width", f"must be divisible by heads={heads}", width)
        self.heads = heads
        self.words = nn.Embedding(words, width) if embedding else None
        self.places = nn.Embedding(length, width)  # learned positions
        for table in (self.words, self.places):
            if table is not None:
                nn.init.normal_(table.weight, std=self.START)
        self.layers = nn.ModuleList(_Layer(width, heads, attention, causal) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.out = nn.Linear(width, words)

    def features(self, tokens: Tensor) -> Tensor:
        """The last layer's normalised output at every place, (n, T, width).

        Args:
            tokens: words (n, T), or vectors (n, T, width) without the table of words.
        """
        vectors = tokens if self.words is None else self.words(tokens)
        x = vectors + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        for layer in self.layers:
            x = layer(x)
        return self.norm(x)

    def forward(self, tokens: Tensor, places: Tensor | None = None) -> Tensor:
        """Scores of the words (of the next one, where the attention is causal) at every place, (n,
        T, words), or at some ``places`` (n, k) of each sequence only, (n, k, words). ``tokens`` are
        those of :meth:`features`.
        """
        x = self.features(tokens)
        return self.out(x if places is None else x.take_along_dim(places.unsqueeze(-1), dim=1))


class SpanFinder(nn.Module):
    """An encoder with two scores at every place: that the answer begins there, and that it ends
    there.

    Args:
        encoder: a :class:`SmallTransformer` that is not causal, mostly one that was pre-trained.

    Example:
        >>> encoder = SmallTransformer(words=50, width=8, heads=2, causal=False)
        >>> SpanFinder(encoder)(torch.zeros(3, 5, dtype=torch.long)).shape
        torch.Size([3, 5, 2])
    """

    def __init__(self, encoder: SmallTransformer) -> None:
        super().__init__()
        self.encoder = encoder
        (width,) = encoder.norm.normalized_shape  # of the encoder's vectors
        self.ends = nn.Linear(width, 2)
        encoder.out.requires_grad_(False)  # of words, which are not asked for here

    def forward(self, tokens: Tensor) -> Tensor:
        """Both scores at every place of sequences of words: (n, T) -> (n, T, 2)."""
        return self.ends(self.encoder.features(tokens))


class SmallLSTM(nn.Module):
    """One layer of LSTM between an embedding and its transpose: input and output share one table,
    as in AWD-LSTM.

    Args:
        words: size of the vocabulary.
        width: of the embedding and of the layer.

    Example:
        >>> SmallLSTM(words=50, width=8)(torch.zeros(3, 5, dtype=torch.long)).shape
        torch.Size([3, 5, 50])
    """

    def __init__(self, words: int, width: int = 32) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)  # word vectors, and the weights of the scores
        nn.init.uniform_(self.words.weight, -0.1, 0.1)
        self.recurrent = nn.LSTM(width, width, batch_first=True)
        self.bias = nn.Parameter(torch.zeros(words))  # of the scores

    def forward(self, tokens: Tensor) -> Tensor:
        """Scores of the next word at every place: (n, T) -> (n, T, words)."""
        return F.linear(self.recurrent(self.words(tokens))[0], self.words.weight, self.bias)


class _Layer(nn.Module):
    """One layer of :class:`SmallTransformer`: attention and a feed-forward part, each on the
    normalised input and added to it.

    Args:
        width: of the vectors.
        heads: of the attention.
        attention: False leaves the attention out.
        causal: whether a place sees only itself and those before it.
    """

    def __init__(self, width: int, heads: int, attention: bool, causal: bool) -> None:
        super().__init__()
        self.heads, self.attention, self.causal = heads, attention, causal
        # In this order: a seed gives the layers' weights one after the other.
        if attention:
            self.before = nn.LayerNorm(width)  # before the attention
        self.between = nn.LayerNorm(width)  # before the feed-forward part
        if attention:
            self.queries_keys_values = nn.Linear(width, 3 * width)
            self.mix = nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """The layer's output for vectors (texts, places, width), in the same shape."""
        if self.attention:
            parts = self.queries_keys_values(self.before(x)).chunk(3, dim=-1)
            query, key, value = (  # each (texts, heads, places, width/heads)
                projected.unflatten(-1, (self.heads, -1)).transpose(1, 2) for projected in parts
            )
            mixed = F.scaled_dot_product_attention(query, key, value, is_causal=self.causal)
            x = x + self.mix(mixed.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.between(x))))


check_arguments(__name__)
