"""AWD-LSTM (Merity, Keskar, Socher 2018): the language model of Fig. 3-1 and 3-2 of the thesis."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mindgap.base.checked import check_arguments

#: Hidden values and cells of every layer, each (1, batch, units).
State = list[tuple[Tensor, Tensor]]


def locked_dropout(x: Tensor, p: float, training: bool) -> Tensor:
    """Variational dropout: features of a sequence are set to zero at all positions at once, and
    the others divided by 1 - p.

    Args:
        x: batch x time x features.
        p: probability of zero.
        training: False returns ``x`` unchanged.
    """
    if not training or p == 0:
        return x
    mask = x.new_empty(x.shape[0], 1, x.shape[2]).bernoulli_(1 - p) / (1 - p)
    return x * mask


class AWDLSTM(nn.Module):
    """Three LSTM layers with weight drop, variational and embedding dropout, and tied weights.

    Args:
        words: size of the vocabulary.
        width: of the word vectors.
        hidden: of the LSTM layers but the last, which has ``width``.
        layers: number of LSTM layers.
        weight_drop: share of the recurrent weights set to zero per forward pass.
        input_drop, hidden_drop, output_drop: variational dropout before the first, between and
            after the last layer.
        word_drop: share of the words whose vector is zero for a whole pass.

    Example:
        >>> model = AWDLSTM(words=10_000)
        >>> sum(p.numel() for p in model.parameters())
        24221600
        >>> scores, state = AWDLSTM(50, width=6, hidden=8)(torch.zeros(2, 5, dtype=torch.long))
        >>> scores.shape, len(state)
        (torch.Size([2, 5, 50]), 3)
    """

    def __init__(
        self,
        words: int,
        width: int = 400,
        hidden: int = 1150,
        layers: int = 3,
        *,
        weight_drop: float = 0.5,
        input_drop: float = 0.4,
        hidden_drop: float = 0.25,
        output_drop: float = 0.4,
        word_drop: float = 0.1,
    ) -> None:
        super().__init__()
        # Shares set to zero; ``forward`` takes them apart in this order.
        self.drops = (input_drop, hidden_drop, output_drop, weight_drop, word_drop)
        self.words = nn.Embedding(words, width)  # word vectors, and the weights of the scores
        nn.init.uniform_(self.words.weight, -0.1, 0.1)
        # Layer k maps sizes[k] numbers to sizes[k + 1]; the last gives vectors as wide as a word's.
        sizes = [width, *[hidden] * (layers - 1), width]
        self.layers = nn.ModuleList(
            nn.LSTM(sizes[k], sizes[k + 1], batch_first=True) for k in range(layers)
        )
        self.bias = nn.Parameter(torch.zeros(words))  # of the scores

    def blank(self, batch: int) -> State:
        """The state at the beginning of ``batch`` texts: zeros."""
        sizes = (layer.hidden_size for layer in self.layers if isinstance(layer, nn.LSTM))
        return [(self.bias.new_zeros(1, batch, n), self.bias.new_zeros(1, batch, n)) for n in sizes]

    def forward(self, x: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """Scores of the next word at every position, and the detached state to continue from.

        Args:
            x: numbers of words, (batch, time).
            state: where the text goes on from; None for its beginning.

        Returns:
            (scores (batch, time, words), state).
        """
        input_drop, hidden_drop, output_drop, weight_drop, word_drop = self.drops
        table = self.words.weight
        if self.training and word_drop:
            kept_words = table.new_empty(len(table), 1).bernoulli_(1 - word_drop)
            table = table * (kept_words / (1 - word_drop))
        output = locked_dropout(F.embedding(x, table), input_drop, self.training)
        new_state: State = []
        states = self.blank(len(x)) if state is None else state
        for number, (layer, layer_state) in enumerate(zip(self.layers, states, strict=True)):
            weights: dict[str, Tensor] = dict(layer.named_parameters())
            weights["weight_hh_l0"] = F.dropout(weights["weight_hh_l0"], weight_drop, self.training)
            # Not layer(output): nn.LSTM moves its weights to another place at each call with
            # dropped weights, which a CUDA graph cannot follow, and cuDNN gives no gradient in
            # evaluation mode. No dropout acts inside this call.
            # The last arguments: has_biases, num_layers, dropout, train, bidirectional, batch_first
            output, hidden, cell = torch.lstm(
                output, layer_state, list(weights.values()), True, 1, 0.0, True, False, True
            )
            new_state.append((hidden.detach(), cell.detach()))
            drop = output_drop if number == len(self.layers) - 1 else hidden_drop
            output = locked_dropout(output, drop, self.training)
        return F.linear(output, self.words.weight, self.bias), new_state


check_arguments(__name__)
