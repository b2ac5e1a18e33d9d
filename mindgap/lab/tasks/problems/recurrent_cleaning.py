"""Data hyper-cleaning with a recurrent classifier: the problem of the SLIP paper's Fig. 2, on
texts.

    lower   g(λ, w) = mean_i σ(λ_i) ℓ(w; a_i, ỹ_i) + c ‖w‖²
        over training texts with corrupted labels ỹ
    upper   f(λ, w) = mean_j ℓ(w; a_j, y_j)                        over clean validation texts

with ℓ the cross-entropy of a two-layer tanh RNN over frozen word vectors, its mean over the words,
and three layers on top. Word vectors are standardised: GloVe's have a common part that is longer
than what tells two words apart, and with it, or with the maximum over the words, 100 steps of SGD
leave the loss at log 2. g is *not convex* in w: c ‖w‖² bounds its Hessian from below only where the
loss is flat.

The net is written with plain products so that it can be differentiated twice on a GPU (cuDNN's
cannot).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, embedding

from mindgap.base.check import fail, whole
from mindgap.base.checked import NonNegative, Range, check_arguments
from mindgap.base.rng import numpy_stream
from mindgap.bilevel.data.problem import BilevelProblem, Pack
from mindgap.bilevel.data.sample import Batches
from mindgap.lab.tasks.data.tweets import Tweets
from mindgap.lab.tasks.problems.cleaning import CleaningTask, corrupt
from mindgap.lab.tasks.problems.softmax import lbfgs

Weights = Mapping[str, Tensor]
#: Texts: word numbers (texts, words) and labels (texts,).
Texts = tuple[Tensor, Tensor]

#: Texts that a measure reads at once.
CHUNK = 8192

#: The common solve of the lower problem: Adam from the net's start, steps of a batch each, a rate
#: that falls to zero along a cosine. Every method's x is judged by it.
SOLVE_STEPS, SOLVE_BATCH, SOLVE_RATE = 400, 512, 3e-3

#: Units per layer from which on the products take the time, and not the number of kernels.
WIDE = 512


def recurrent_code(weights: Weights, vectors: Tensor, words: Tensor) -> Tensor:
    """Two tanh layers over the words, and the mean over the words of each unit of the second:
    (texts, hidden).

    Args:
        weights: ``input`` (dimensions, hidden), ``first``, ``between``, ``second`` (hidden, hidden)
            and the biases ``first_bias`` and ``second_bias``.
        vectors: (vocabulary, dimensions); row 0 is that of no word.
        words: (texts, length) numbers, 0 at the end of a short text; words after the end do not
            count.
    """
    vectors_read = embedding(words.t(), vectors)  # (length, texts, dimensions)
    second_layer = _layers_in_turn if weights["first"].shape[0] >= WIDE else _layers_at_once
    states = second_layer(weights, vectors_read)
    is_word = (words.t() != 0).to(vectors_read.dtype)
    # l: place in the text, t: text, h: unit
    return torch.einsum("lt,lth->th", is_word / is_word.sum(0).clamp(min=1), states)


def _layers_at_once(weights: Weights, vectors: Tensor) -> Tensor:
    """The second layer's outputs after each word, for a narrow net: one recurrent product serves
    both layers, the second one word behind the first, so that few kernels run.

    Its twin for a wide net, with the same results, is :func:`_layers_in_turn`.

    Args:
        weights: those of :func:`recurrent_code`.
        vectors: (words, texts, dimensions).

    Returns:
        (words, texts, hidden).
    """
    texts, hidden = vectors.shape[1], weights["first"].shape[0]
    # The second layer is one word behind: one more step at the end, on a word of zeros.
    vectors = torch.cat([vectors, vectors.new_zeros(1, texts, vectors.shape[2])])
    inputs = vectors.reshape(-1, vectors.shape[2]) @ weights["input"] + weights["first_bias"]
    bias = weights["second_bias"].expand(len(inputs), hidden)
    inputs = torch.cat([inputs, bias], 1).view(len(vectors), texts, 2 * hidden)
    # [[first, between], [0, second]], which a state (first layer, second layer) is multiplied by.
    from_first = torch.cat([weights["first"], weights["between"]], 1)
    from_second = torch.cat([torch.zeros_like(weights["second"]), weights["second"]], 1)
    joint_recurrent = torch.cat([from_first, from_second])
    # 1 for the units of the first layer, 0 for those of the second.
    first_layer_only = torch.cat([inputs.new_ones(hidden), inputs.new_zeros(hidden)])
    first_input, *later_inputs = inputs.unbind(0)
    state = torch.tanh(first_input) * first_layer_only  # the second layer has no input yet
    states = []
    for word_inputs in later_inputs:
        state = torch.tanh(torch.addmm(word_inputs, state, joint_recurrent))
        states.append(state)
    return torch.stack(states)[:, :, hidden:]


def _layers_in_turn(weights: Weights, vectors: Tensor) -> Tensor:
    """The second layer's outputs after each word, for a wide net, where products take the time: one
    layer after the other, without the products with zeros of its twin :func:`_layers_at_once`.

    Args:
        weights: those of :func:`recurrent_code`.
        vectors: (words, texts, dimensions).

    Returns:
        (words, texts, hidden).
    """
    outputs = vectors  # of the layer before
    for input_name, recurrent_name in (("input", "first"), ("between", "second")):
        products = outputs.reshape(-1, outputs.shape[2]) @ weights[input_name]
        inputs = (products + weights[f"{recurrent_name}_bias"]).view(*outputs.shape[:2], -1)
        first_input, *later_inputs = inputs.unbind(0)
        states = [torch.tanh(first_input)]
        for word_inputs in later_inputs:
            argument = torch.addmm(word_inputs, states[-1], weights[recurrent_name])
            states.append(torch.tanh(argument))
        outputs = torch.stack(states)
    return outputs


def standardised(vectors: np.ndarray, words: np.ndarray) -> np.ndarray:
    """Word vectors with mean 0 and deviation 1 in each dimension over the words of some texts.

    Args:
        vectors: (vocabulary, dimensions); row 0 is that of no word, and zero in the result.
        words: word numbers of the texts, of any shape, each counted as often as it stands; 0 is
            skipped.

    Returns:
        Shape of ``vectors``.

    Example:
        >>> standardised(np.array([[0.0], [1.0], [3.0]]), np.array([[1, 2], [2, 0], [1, 0]]))
        array([[ 0.],
               [-1.],
               [ 1.]])
    """
    vectors_used = vectors[words[words != 0]]
    scaled = (vectors - vectors_used.mean(0)) / np.maximum(vectors_used.std(0), 1e-6)
    scaled[0] = 0.0
    return scaled


def recurrent_logits(weights: Weights, vectors: Tensor, words: Tensor) -> Tensor:
    """Scores of the classes, (texts, classes): :func:`recurrent_code`, then two tanh layers and a
    linear one.

    Args:
        weights: those of :func:`recurrent_code`, and ``head0`` to ``head2`` with their biases
            ``head0_bias`` to ``head2_bias``.
        vectors: (vocabulary, dimensions).
        words: (texts, length) numbers.
    """
    features = recurrent_code(weights, vectors, words)
    for name in ("head0", "head1"):
        features = torch.tanh(torch.addmm(weights[f"{name}_bias"], features, weights[name]))
    return torch.addmm(weights["head2_bias"], features, weights["head2"])


def recurrent_start(
    shapes: Mapping[str, tuple[int, int]],
    seed: int,
    stream: str,
    dtype: torch.dtype,
    device: torch.device,
) -> dict[str, Tensor]:
    """Uniform weights of variance 1/inputs (``first`` and ``second``, which are recurrent, a third
    of it); biases zero.

    Args:
        shapes: name -> (inputs, outputs); ``input`` and ``between`` share their biases with
            ``first`` and ``second``.
        seed, stream: seed and name of the random stream.
        dtype, device: of the weights, which are drawn on the CPU in double precision.
    """
    generator = numpy_stream(seed, stream, "start")
    start = {}
    for name, (rows, columns) in shapes.items():
        variance = (1 / 3 if name in ("first", "second") else 1.0) / rows
        weights = torch.empty(rows * columns, dtype=dtype)
        # A hundred million numbers at once would take ten times as long. Uniform numbers on (-1, 1)
        # have the variance 1/3.
        for chunk in weights.split(1 << 16):
            uniform = torch.from_numpy(generator.uniform(-1, 1, len(chunk)))
            chunk.copy_(uniform.mul_(math.sqrt(3 * variance)))
        start[name] = weights.view(rows, columns).to(device)
        if name not in ("input", "between"):
            start[f"{name}_bias"] = torch.zeros(columns, dtype=dtype, device=device)
    return start


@dataclass(frozen=True)
class RecurrentCleaning(CleaningTask):
    """Training texts with corrupted labels, clean validation texts, test texts, and a net at its
    start.

    x is λ (one entry per training text), y are the weights of the net.

    Args:
        train: word numbers and corrupted labels.
        validation, test: with clean labels; the test texts come from the same rows.
        manual: texts labelled by people.
        corrupted: mask, True where the training label was changed.
        vectors: standardised word vectors; they are not learned.
        decay: c, weight of ‖w‖².
        start: λ at the start, the same for all texts.
        y0: weights at the start.
        held: clean texts that neither level trains on: what a search of settings looks at.

    Example:
        >>> from mindgap.lab.tasks.data.tweets import made_up_tweets
        >>> task = recurrent_cleaning(
        ...     made_up_tweets(), corruption=0.4, train=600, validation=600, test=200, hidden=4
        ... )
        >>> int(task.corrupted.sum()), task.problem().dim_x, task.problem().dim_y
        (240, 600, 4698)
        >>> task.weight_auc(torch.where(task.corrupted, -1.0, 1.0))
        1.0
    """

    train: Texts
    validation: Texts
    test: Texts
    manual: Texts
    corrupted: Tensor
    vectors: Tensor
    decay: float
    start: float
    y0: dict[str, Tensor]
    held: Texts

    @property
    def x0(self) -> Tensor:
        return self.vectors.new_full((len(self.corrupted),), self.start)

    def lower(self, x: Tensor, y: Weights, batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        """g on a batch of (words, labels, numbers of the texts) at λ = x and the net's weights
        y.
        """
        words, labels, samples = batch
        return self._weighted_loss(y, words, labels, torch.sigmoid(x.index_select(0, samples)))

    def _weighted_loss(self, y: Weights, words: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
        """mean_i weights_i ℓ_i + c ‖w‖² of texts at the net's weights y."""
        losses = cross_entropy(recurrent_logits(y, self.vectors, words), labels, reduction="none")
        flat = torch.cat([value.reshape(-1) for value in y.values()])
        return (weights * losses).mean() + self.decay * flat.square().sum()

    def upper(self, x: Tensor, y: Weights, batch: Texts) -> Tensor:
        """f on a batch of (words, labels) at the net's weights y; it does not depend on x."""
        words, labels = batch
        return cross_entropy(recurrent_logits(y, self.vectors, words), labels)

    def problem(self, batch_size: int = 64) -> BilevelProblem:
        """The task as a bilevel problem with fixed batches of ``batch_size`` texts at both levels;
        texts left over are dropped. All texts are read in chunks of CHUNK / 2 where a whole level
        is asked for.
        """
        words, labels = self.train
        numbers = torch.arange(len(labels), device=labels.device)
        upper_data = Batches(self.validation, batch_size, last="drop", chunk=CHUNK // 2)
        lower_data = Batches((words, labels, numbers), batch_size, last="drop", chunk=CHUNK // 2)
        return BilevelProblem(self.upper, self.lower, self.x0, self.y0, upper_data, lower_data)

    @torch.no_grad()
    def scores(self, y: Tensor, inputs: Tensor) -> Tensor:
        """Scores (texts, classes) of word numbers at the net's flat weights y, without a gradient;
        ``CHUNK`` texts are read at once.
        """
        weights = Pack("y", self.y0).view(y)
        parts = inputs.split(CHUNK)
        return torch.cat([recurrent_logits(weights, self.vectors, words) for words in parts])

    def minimiser(self, weights: Tensor, samples: Texts | None = None, *limits: int) -> Tensor:
        """The net's weights, flat, after Adam on mean_i weights_i ℓ_i + c ‖w‖² from its start.

        The loss is not convex: this solve stands for its minimiser. On CUDA a CUDA graph runs
        forward and backward pass. The order of the texts is the same in every call.

        Args:
            weights: one per text, zero or positive.
            samples: word numbers and labels; the training texts where none are given.
            limits: the number of steps, at most one number; by default ``SOLVE_STEPS``.
        """
        from mindgap.measure.captured import CapturedGradient

        net = torch.nn.ParameterDict({name: value.clone() for name, value in self.y0.items()})
        # ``limits`` holds the number of steps, or nothing.
        (words, labels), (steps,) = samples or self.train, limits or (SOLVE_STEPS,)
        size = min(SOLVE_BATCH, len(labels))

        def loss(
            net: torch.nn.ParameterDict, words: Tensor, labels: Tensor, weights: Tensor
        ) -> Tensor:
            """The lower loss of a batch, with weights of its texts, for the net that
            ``CapturedGradient`` hands on; it holds the net's weights by name.
            """
            return self._weighted_loss(dict(net.items()), words, labels, weights)

        def batches() -> Iterator[Tensor]:
            """Yield the rows of batches of ``size`` of the texts solved on (``words``, ``labels``),
            epoch after epoch without end, each in a new order. The orders are the same in every
            call; texts left over at an epoch's end are dropped.
            """
            generator = numpy_stream(0, "recurrent cleaning", "common solve")
            while True:
                order = torch.from_numpy(generator.permutation(len(labels))).to(words.device)
                yield from order[: len(labels) - len(labels) % size].split(size)

        batch_rows = batches()
        rows = next(batch_rows)
        gradient = CapturedGradient(net, loss, (words[rows], labels[rows], weights[rows].detach()))
        adam = torch.optim.Adam(net.values(), SOLVE_RATE, fused=words.is_cuda)
        for step in range(whole("steps", steps, least=1)):
            adam.param_groups[0]["lr"] = SOLVE_RATE * 0.5 * (1 + math.cos(math.pi * step / steps))
            gradient(words[rows], labels[rows], weights[rows])  # fills the parameters' ``grad``
            adam.step()
            rows = next(batch_rows)
        return torch.cat([net[name].detach().reshape(-1) for name in self.y0])

    @property
    def clean_labels(self) -> Tensor:
        """The right labels of the training texts."""
        return torch.where(self.corrupted, 1 - self.train[1], self.train[1])

    def linear_accuracy(self, labels: Tensor) -> float:
        """Test accuracy of logistic regression on the mean word vector, with a slight decay.

        A net that is not above it, with the same labels, has hardly learned.

        Args:
            labels: of the training texts, as they are given or clean.
        """

        def mean_vectors(words: Tensor) -> Tensor:
            """The mean word vector of each text and a 1, (texts, dimensions + 1)."""
            total = embedding(words, self.vectors).sum(1)  # the vector of no word is zero
            mean = total / (words != 0).sum(1, keepdim=True).clamp(min=1).to(total.dtype)
            return torch.cat([mean, mean.new_ones(len(mean), 1)], 1)

        features = mean_vectors(self.train[0])
        y = lbfgs(
            lambda y: cross_entropy(features @ y, labels) + 1e-4 * y.square().sum(),
            features.new_zeros(features.shape[1], 2),
            max_iter=200,
        )
        words, right_labels = self.test
        return float(((mean_vectors(words) @ y).argmax(1) == right_labels).double().mean())


def recurrent_cleaning(
    tweets: Tweets,
    *,
    corruption: Annotated[float, Range(0, 1)] = 0.4,
    train: int = 20_480,
    validation: int = 20_480,
    test: int = 16_384,
    held: int = 0,
    hidden: int = 128,
    head: int = 64,
    decay: NonNegative = 1e-3,
    start: float = 1.0,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    device: str | torch.device = "cpu",
) -> RecurrentCleaning:
    """Split texts with equally many of each class in every part, and corrupt the training labels,
    once.

    Args:
        tweets: the texts.
        corruption: p, share of training labels that are changed.
        train, validation, test: texts of each part, half of them positive.
        held: texts of a fourth part, for the search of settings.
        hidden: units of each recurrent layer.
        head: units of the two tanh layers on top.
        decay: c, weight of the squared norm of the weights.
        start: λ at the start.
        seed: of the split, the corruption and the weights at the start.
        dtype, device: of the tensors.

    Raises:
        RuleError: for a share outside [0, 1], or parts that do not fit.

    *Differs from the code published with SLIP*: see the history and differences of the study; label
    noise is drawn once instead of at each access, validation labels are clean, and the regulariser
    is the squared norm.
    """
    # How many texts of each of the two classes a part has.
    sizes = [
        whole(name, number, least=2) // 2
        for name, number in (("train", train), ("validation", validation), ("test", test))
    ]
    sizes.append(whole("held", held) // 2)
    generator = numpy_stream(seed, "recurrent cleaning", "split")
    class_rows = [generator.permutation(np.flatnonzero(tweets.labels == label)) for label in (0, 1)]
    most = 2 * min(map(len, class_rows))
    if 2 * sum(sizes) > most:
        fail("train + validation + test + held", f"must be at most {most}", 2 * sum(sizes))
    # Each part takes the next ``size`` rows of both classes, in random order.
    train_rows, *other_parts = [
        generator.permutation(np.concatenate([rows[end - size : end] for rows in class_rows]))
        for size, end in zip(sizes, np.cumsum(sizes))
    ]
    target, dimensions = torch.device(device), tweets.vectors.shape[1]
    shapes = {
        "input": (dimensions, hidden),
        **dict.fromkeys(("first", "between", "second"), (hidden, hidden)),
        "head0": (hidden, head),
        "head1": (head, head),
        "head2": (head, 2),
    }
    weights = recurrent_start(shapes, seed, "recurrent cleaning", dtype, target)

    def texts(words: np.ndarray, labels: np.ndarray) -> Texts:
        """Word numbers and labels as tensors on the device ``target``."""
        return torch.from_numpy(words).to(target), torch.from_numpy(labels).to(target)

    train_words = tweets.words[train_rows]
    labels, mask = corrupt(tweets.labels[train_rows], 2, corruption, seed)
    clean_validation, clean_test, clean_held = (
        texts(tweets.words[rows], tweets.labels[rows]) for rows in other_parts
    )
    return RecurrentCleaning(
        train=texts(train_words, labels),
        validation=clean_validation,
        test=clean_test,
        manual=texts(*tweets.manual),
        corrupted=torch.from_numpy(mask).to(target),
        vectors=torch.from_numpy(standardised(tweets.vectors, train_words)).to(target, dtype),
        decay=decay,
        start=start,
        y0=weights,
        held=clean_held,
    )


check_arguments(__name__)
