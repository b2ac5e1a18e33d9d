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

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, embedding

from mindgap.base.check import between, fail, non_negative, whole
from mindgap.base.checked import check_arguments
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
    vectors_read = embedding(words.t(), vectors)
    states = (_in_turn if weights["first"].shape[0] >= WIDE else _at_once)(weights, vectors_read)
    is_word = (words.t() != 0).to(vectors_read.dtype)
    return torch.einsum("lt,lth->th", is_word / is_word.sum(0).clamp(min=1), states)


def _at_once(weights: Weights, vectors: Tensor) -> Tensor:
    """The second layer's units after each word, from one recurrent product for both layers, the
    second one word behind the first: few kernels, for a narrow net.

    ``vectors`` are (words, texts, dimensions); the result is (words, texts, hidden).
    """
    texts, hidden = vectors.shape[1], weights["first"].shape[0]
    # The second layer is one word behind: one more step at the end, on a word of zeros.
    vectors = torch.cat([vectors, vectors.new_zeros(1, texts, vectors.shape[2])])
    inputs = vectors.reshape(-1, vectors.shape[2]) @ weights["input"] + weights["first_bias"]
    bias = weights["second_bias"].expand(len(inputs), hidden)
    inputs = torch.cat([inputs, bias], 1).view(len(vectors), texts, 2 * hidden)
    second_columns = torch.cat([torch.zeros_like(weights["second"]), weights["second"]], 1)
    joint_recurrent = torch.cat(
        [torch.cat([weights["first"], weights["between"]], 1), second_columns]
    )
    first_layer_only = torch.cat([inputs.new_ones(hidden), inputs.new_zeros(hidden)])
    state, *later_inputs = inputs.unbind(0)
    state = torch.tanh(state) * first_layer_only  # the second layer has not read anything yet
    states = []
    for inputs_of_word in later_inputs:
        state = torch.tanh(torch.addmm(inputs_of_word, state, joint_recurrent))
        states.append(state)
    return torch.stack(states)[:, :, hidden:]


def _in_turn(weights: Weights, outputs: Tensor) -> Tensor:
    """The second layer's units after each word (words, texts, hidden), one layer after the other
    and without the products with zeros of :func:`_at_once`: for a wide net, where products take
    the time.
    """
    for input_name, recurrent_name in (("input", "first"), ("between", "second")):
        inputs = (
            outputs.reshape(-1, outputs.shape[2]) @ weights[input_name]
            + weights[f"{recurrent_name}_bias"]
        ).view(*outputs.shape[:2], -1)
        state, *later_inputs = inputs.unbind(0)
        states = [torch.tanh(state)]
        for inputs_of_word in later_inputs:
            states.append(
                torch.tanh(torch.addmm(inputs_of_word, states[-1], weights[recurrent_name]))
            )
        outputs = torch.stack(states)
    return outputs


def standardised(vectors: np.ndarray, words: np.ndarray) -> np.ndarray:
    """Word vectors with mean 0 and deviation 1 in each dimension over the given word numbers (0:
    none).

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
    """:func:`recurrent_code`, then two tanh layers and a linear one, ``head0`` to ``head2``:
    (texts, classes).
    """
    features = recurrent_code(weights, vectors, words)
    for number in range(2):
        features = torch.tanh(
            torch.addmm(weights[f"head{number}_bias"], features, weights[f"head{number}"])
        )
    return torch.addmm(weights["head2_bias"], features, weights["head2"])


def recurrent_start(
    shapes: Mapping[str, tuple[int, int]],
    seed: int,
    name: str,
    dtype: torch.dtype,
    device: torch.device,
) -> dict[str, Tensor]:
    """Uniform weights of variance 1/inputs (``first`` and ``second``, which are recurrent, a third
    of it); biases zero.

    Args:
        shapes: name -> (inputs, outputs); ``input`` and ``between`` share their biases with
            ``first`` and ``second``.
        seed, name: of the stream.
        dtype, device: of the weights, which are drawn on the CPU in double precision.
    """
    generator = numpy_stream(seed, name, "start")
    start = {}
    for name, (rows, columns) in shapes.items():
        variance = (1 / 3 if name in ("first", "second") else 1.0) / rows
        weights = torch.empty(rows * columns, dtype=dtype)
        # A hundred million numbers at once would take ten times as long.
        for chunk in weights.split(1 << 16):
            chunk.copy_(
                torch.from_numpy(generator.uniform(-1, 1, len(chunk))).mul_(math.sqrt(3 * variance))
            )
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
        """λ at the start."""
        return self.vectors.new_full((len(self.corrupted),), self.start)

    def lower(self, x: Tensor, y: Weights, batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        """g on a batch of (words, labels, numbers of the texts)."""
        words, labels, samples = batch
        losses = cross_entropy(recurrent_logits(y, self.vectors, words), labels, reduction="none")
        norm = torch.cat([value.reshape(-1) for value in y.values()]).square().sum()
        return (torch.sigmoid(x.index_select(0, samples)) * losses).mean() + self.decay * norm

    def upper(self, x: Tensor, y: Weights, batch: Texts) -> Tensor:
        """f on a batch of (words, labels)."""
        words, labels = batch
        return cross_entropy(recurrent_logits(y, self.vectors, words), labels)

    def problem(self, batch_size: int = 64) -> BilevelProblem:
        """The task as a bilevel problem with fixed batches of equal size; texts left over are
        dropped.
        """
        words, labels = self.train
        numbers = torch.arange(len(labels), device=labels.device)
        upper_data = Batches(self.validation, batch_size, last="drop", chunk=CHUNK // 2)
        lower_data = Batches((words, labels, numbers), batch_size, last="drop", chunk=CHUNK // 2)
        return BilevelProblem(self.upper, self.lower, self.x0, self.y0, upper_data, lower_data)

    def scores(self, y: Tensor, inputs: Tensor) -> Tensor:
        weights = Pack("y", self.y0).view(y)
        with torch.no_grad():
            return torch.cat(
                [recurrent_logits(weights, self.vectors, part) for part in inputs.split(CHUNK)]
            )

    def minimiser(self, weights: Tensor, samples: Texts | None = None, *limits: int) -> Tensor:
        """The net after so many steps of Adam (``limits``; by default ``SOLVE_STEPS``) on mean_i
        weights_i ℓ_i + c ‖w‖² from its start, flat. The loss is not convex: this solve stands for
        its minimiser.

        On CUDA forward and backward pass are one launch. The order of the texts is the same in
        every call.
        """
        from mindgap.measure.captured import CapturedGradient

        net = torch.nn.ParameterDict({name: value.clone() for name, value in self.y0.items()})
        (words, labels), (steps,) = samples or self.train, limits or (SOLVE_STEPS,)
        size = min(SOLVE_BATCH, len(labels))

        def loss(
            net: torch.nn.ParameterDict, words: Tensor, labels: Tensor, weights: Tensor
        ) -> Tensor:
            """The weighted mean loss of a batch, with decay."""
            weights_of_net = dict(net.items())
            logits = recurrent_logits(weights_of_net, self.vectors, words)
            losses = cross_entropy(logits, labels, reduction="none")
            norm = (
                torch.cat([value.reshape(-1) for value in weights_of_net.values()]).square().sum()
            )
            return (weights * losses).mean() + self.decay * norm

        def batches() -> Iterator[Tensor]:
            """Rows of batches, epoch after epoch, in an order that is the same in every call."""
            generator = numpy_stream(0, "recurrent cleaning", "common solve")
            while True:
                order = torch.from_numpy(generator.permutation(len(labels))).to(words.device)
                yield from order[: len(labels) - len(labels) % size].split(size)

        batch_rows = batches()
        first_rows = next(batch_rows)
        gradient = CapturedGradient(
            net, loss, (words[first_rows], labels[first_rows], weights[first_rows].detach())
        )
        adam = torch.optim.Adam(net.values(), SOLVE_RATE, fused=words.is_cuda)
        for step in range(whole("steps", steps, least=1)):
            adam.param_groups[0]["lr"] = SOLVE_RATE * 0.5 * (1 + math.cos(math.pi * step / steps))
            rows = first_rows if step == 0 else next(batch_rows)
            gradient(words[rows], labels[rows], weights[rows])
            adam.step()
        return torch.cat([net[name].detach().reshape(-1) for name in self.y0])

    @property
    def clean_labels(self) -> Tensor:
        """The right labels of the training texts."""
        return torch.where(self.corrupted, 1 - self.train[1], self.train[1])

    def linear_accuracy(self, labels: Tensor, split: str = "test") -> float:
        """Accuracy of logistic regression on the mean word vector.

        A net that is not above it, with the same labels, has hardly learned.

        Args:
            labels: of the training texts, as they are given or clean.
            split: on which the accuracy is read.
        """

        def mean_vectors(words: Tensor) -> Tensor:
            """(texts, dimensions and a constant)."""
            is_word = (words != 0).to(self.vectors.dtype)
            total = embedding(words, self.vectors).sum(1)  # the vector of no word is zero
            mean = total / is_word.sum(1, keepdim=True).clamp(min=1)
            return torch.cat([mean, mean.new_ones(len(mean), 1)], 1)

        features = mean_vectors(self.train[0])
        y = lbfgs(
            lambda y: cross_entropy(features @ y, labels) + 1e-4 * y.square().sum(),
            features.new_zeros(features.shape[1], 2),
            max_iter=200,
        )
        words, right_labels = self.part(split)
        return float(((mean_vectors(words) @ y).argmax(1) == right_labels).double().mean())


def recurrent_cleaning(
    tweets: Tweets,
    *,
    corruption: float = 0.4,
    train: int = 20_480,
    validation: int = 20_480,
    test: int = 16_384,
    held: int = 0,
    hidden: int = 128,
    head: int = 64,
    decay: float = 1e-3,
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
    between("corruption", corruption, 0, 1)
    non_negative("decay", decay)
    sizes = [
        whole(name, number, least=2) // 2
        for name, number in (("train", train), ("validation", validation), ("test", test))
    ]
    sizes.append(whole("held", held) // 2)
    generator = numpy_stream(seed, "recurrent cleaning", "split")
    classes = [generator.permutation(np.flatnonzero(tweets.labels == label)) for label in (0, 1)]
    if sum(sizes) > min(map(len, classes)):
        fail(
            "train + validation + test + held",
            f"must be at most {2 * min(map(len, classes))}",
            2 * sum(sizes),
        )
    ends = np.cumsum(sizes)
    parts = [
        generator.permutation(np.concatenate([rows[end - size : end] for rows in classes]))
        for size, end in zip(sizes, ends)
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
        return torch.from_numpy(words).to(target), torch.from_numpy(labels).to(target)

    labels, mask = corrupt(tweets.labels[parts[0]], 2, corruption, seed)
    held_out_texts = [texts(tweets.words[rows], tweets.labels[rows]) for rows in parts[1:]]
    return RecurrentCleaning(
        texts(tweets.words[parts[0]], labels),
        held_out_texts[0],
        held_out_texts[1],
        texts(*tweets.manual),
        torch.from_numpy(mask).to(target),
        torch.from_numpy(standardised(tweets.vectors, tweets.words[parts[0]])).to(target, dtype),
        decay,
        start,
        weights,
        held_out_texts[2],
    )


check_arguments(__name__)
