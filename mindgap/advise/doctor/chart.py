"""The chart: findings with their strength, facts that cures need, and notes on what failed."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from mindgap.base.check import error_words

if TYPE_CHECKING:
    from torch import Tensor

    from mindgap.measure.tracing import Trace

T = TypeVar("T")

#: What a reading can find. The table of causes weighs these names.
FindingName = Literal[
    "above_start",
    "added",
    "all_frozen",
    "batch_of_one",
    "batch_outlier",
    "batches_repeat",
    "blew_up",
    "broadcasts",
    "broke",
    "clipping_helps",
    "collapsed",
    "constant_large",
    "control_better",
    "crawls",
    "cut",
    "dead",
    "denormal",
    "died",
    "dropout_active",
    "equal_weights",
    "evaluates",
    "explodes_depth",
    "explodes_time",
    "extreme_momentum",
    "faster_helps",
    "feature_not_finite",
    "few_units",
    "foreign",
    "frozen",
    "gradient_not_finite",
    "half_overflow",
    "heavy_targets",
    "huge_gradient",
    "inputs_lost",
    "labels_carry_nothing",
    "labels_disagree",
    "labels_outside",
    "large_decay",
    "large_weights",
    "left_out",
    "loss_is_sum",
    "loss_trains",
    "moves_little",
    "moves_much",
    "nan_op",
    "never_steps",
    "no_graph",
    "no_warmup_sign",
    "overfits",
    "overshoots",
    "probabilities_as_scores",
    "rate_gone",
    "rate_negative",
    "residual",
    "sample_outlier",
    "samples_mix",
    "saturated",
    "settled",
    "shared_samples",
    "shift_found",
    "shrinks",
    "signal_grows",
    "slower_helps",
    "small_weights",
    "softmax_over_batch",
    "sorted",
    "spikes",
    "stalled",
    "steep",
    "stuck",
    "targets_are_inputs",
    "targets_equal",
    "thrown",
    "tight",
    "unregistered",
    "unscaled",
    "vanishes",
    "vanishes_time",
    "warmup_helps",
    "zero_gradient",
    "zero_kept",
]


@dataclass(frozen=True)
class Finding:
    """One thing that was seen."""

    name: FindingName
    strength: float  # between 0 (absent) and 1
    sentence: str  # with its number and its place


class AnswerFacts:
    """Numbers that ``Examination.facts`` keeps, where a reading noted them.

    A fact that no reading noted has the value given here, which speaks for no cause, and is not in
    ``vars`` (class attributes stand for it).
    """

    start: float = math.inf  # held-out loss before training
    final: float = math.inf  # held-out loss after it
    trivial: float | None = None  # held-out loss of the best constant answer
    control: float | None = None  # held-out loss of a plain network on the same samples
    shuffled: float = math.nan  # that of a plain network on shuffled targets
    progress: float = -1.0  # fall of the loss below the constant answer, over that one's size
    behind: float = 0.0  # progress of the plain network less that of the user's model
    steps: int = 40  # of a run
    suspects: Sequence[Tensor] = ()  # per batch, which labels a network holds for wrong
    shared: Sequence[bool] = ()  # which validation samples are training samples, too
    bad_samples: Sequence[tuple[int, int]] = ()  # (batch, sample), both from 0
    bad_batches: Sequence[int] = ()
    #: share of labels that contradict a network, and their mean place among its other answers
    #: (with two or three classes the share where it is sure)
    label_rank: tuple[float, float] = (0.0, 0.0)
    order_ratio: float = 1.0  # spread of targets between batches over that of a random order
    steepening: float = math.nan  # power of the gradient norm by which smoothness grows
    growth: float = 1.0  # of the signal from the first module to the largest output
    rank: float = math.nan  # directions that a layer's outputs use, the least of all layers
    denormal: float = 0.0  # share of gradient entries below the smallest normal number
    overshoot: float = 0.0  # length of a step over the distance to the lowest point of its line
    raised: bool = False  # the user's code raised an error
    depth_ratio: float = 1.0  # size of the first layer's gradient over the last layer's
    time_ratio: float = 1.0  # gradient by the first elements of a sequence over that by the last
    saturated: float = 0.0  # share of saturated values, the largest of all layers
    dead: float = 0.0  # share of units that are zero on every sample, the largest of all layers
    shrunk: float = 1.0  # norm that clipping leaves, as a share
    move: float = math.nan  # update over weights, the median of all parameters
    refused: Sequence[tuple[str, float, float, float]] = ()  # cause, variant, loss before, after
    shortened: str = ""  # what the time did not suffice for


class Facts(AnswerFacts):
    """Everything that readings note for each other and for cures."""

    batch_sizes: Sequence[int] = ()  # samples of each training batch
    batch_numbers: Sequence[int] = ()  # the user's number of each training batch
    tail_index: float = math.inf  # of the targets
    #: (place, tensor) that torch does not see
    unregistered_tensors: Sequence[tuple[str, Tensor]] = ()
    left_out: Sequence[str] = ()  # parameters that the optimizer does not hold
    cut: Collection[str] = ()  # parameters without a gradient
    weight_sizes: Mapping[str, float] | None = None  # layer -> size of its first weights
    first_state: Mapping[str, Tensor] | None = None  # the model's, before training
    lr: float = 1e-3
    momentum: Literal["momentum", "betas"] = "momentum"  # what the optimizer calls it
    trace: Trace | None = None  # of one forward pass before training
    normalised: bool = False  # the model has norm layers
    output: Sequence[int] = ()  # shape of the model's output
    losses: Sequence[float] = ()  # training losses
    #: mean training losses of the third and of the last quarter of the run
    late_means: tuple[float, float] = (0.0, 0.0)
    spike: float | None = None  # the largest loss, where it came back
    added_batches: int = 1  # batches per update whose gradients were added and not averaged
    unclipped_norm: float = 1.0  # median gradient norm before clipping
    huber_bound: float = 1.0  # error beyond which Huber's loss, tried as a cure, grows linearly
    rate_rises: bool = (
        False  # under the scheduler the learning rate ends above three times its start
    )
    best_step: int = 0  # step of the lowest validation loss
    lowest_valid: float = math.nan  # that loss
    last_valid: float = math.nan  # the validation loss at the end
    suspects_valid: Sequence[Tensor] = ()  # as ``suspects``, of the validation batches
    shift: int = 0  # samples by which the targets are shifted; 0: not known to be
    narrowest: float = math.inf  # units of the narrowest hidden layer
    loss_growth: float = 0.0  # power of its slope by which the loss bends

    def for_answer(self) -> dict[str, Any]:
        """The noted facts that an answer keeps."""
        return {k: v for k, v in vars(self).items() if k in AnswerFacts.__annotations__}


@dataclass
class Chart:
    """Everything that is known about a patient."""

    findings: dict[FindingName, Finding] = field(default_factory=dict)  # weighed by the causes
    facts: Facts = field(default_factory=Facts)  # for other readings, cures and the answer
    notes: list[str] = field(default_factory=list)  # what could not be read, and why

    def find(self, name: FindingName, strength: float, sentence: str) -> None:
        """Add a finding, with its strength cut to [0, 1]. One of strength 0 or below is not added.
        Where the name is there already, the stronger finding stays.

        Args:
            sentence: what was seen, with its number and its place, as the user will read it.
        """
        strength = min(1.0, max(0.0, float(strength)))
        present = self.findings.get(name)
        if strength > 0 and (present is None or present.strength < strength):
            self.findings[name] = Finding(name, strength, sentence)

    def has(self, name: FindingName) -> bool:
        """Whether a reading found this."""
        return name in self.findings

    def has_any(self, *names: FindingName) -> bool:
        """Whether a reading found one of these."""
        return any(name in self.findings for name in names)

    def attempt(self, subject: str, reading: Callable[[], T]) -> T | None:
        """Call a reading and return what it returns. Where it raises an error, append a note that
        the subject could not be read, and return None.
        """
        try:
            return reading()
        except (Exception, SystemExit) as error:
            self.notes.append(f"{subject} could not be read ({error_words(error)[:120]})")
            return None


def ramp(value: float, zero_at: float, one_at: float) -> float:
    """A strength between 0 and 1 that changes linearly with a value from ``zero_at`` to ``one_at``
    and is constant outside. ``zero_at`` may be the larger one: then small values are strong.

    Example:
        >>> ramp(5, 0, 10), ramp(1, 4, 2)
        (0.5, 1.0)
    """
    return min(1.0, max(0.0, (value - zero_at) / (one_at - zero_at)))
