"""Controls ("gates") that show that a network is trained, for studies at scale gpu without one of
their own.

They read the last row of every run: what a network must reach is a figure that needs no network, or
a published one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mindgap.lab.studies.verdict import Parts, by_method
from mindgap.record.schema import Run

#: Loss of a bigram model on Penn Treebank's test text (10,000 words).
BIGRAM_LOSS = 5.331
#: Test accuracy of ResNet20 on CIFAR-10 that SGD reaches as published (91.25 %, He et al. 2016).
RESNET20_ACCURACY = 0.91
#: What it must reach where its step is chosen by the training loss, not by validation images.
RESNET20_BY_LOSS = 0.90
#: Nats below the frequencies of word pieces at masked places.
LEARNT = 1.0
#: Loss of one who knows frequencies alone: of the ten classes of CIFAR-10, all equally frequent,
#: and of the words of WikiText-2 (10,000 words, on its test text).
CLASS_FREQUENCIES, WORD_FREQUENCIES = math.log(10), 6.207

#: Method -> the last row of each of its runs.
LastRows = Mapping[str, Sequence[Mapping[str, Any]]]


def network_gate(parts: Parts, runs: Sequence[Run]) -> None:
    """Add to ``parts`` the control that fits what the runs recorded.

    None is added where nothing fits (noise at a network's start, say).

    * A language model: every method ends below a bigram model, on average over its seeds.
    * BERT on masked pieces: every method ends 1 nat below their frequencies.
    * Questions: the best method answers more of them than the most frequent place does.
    * ResNet20 on CIFAR-10, on shifted images with right labels: the best method reaches 91 %.
    """
    last_rows: LastRows = {
        name: [run.rows[-1] for run in own_runs if run.rows]
        for name, own_runs in by_method(runs).items()
    }
    settings = runs[0].header.settings
    if _language_gate(parts, last_rows, on_treebank=settings.get("text") == "ptb"):
        return
    answered, by_place = _means(last_rows, "test_exact"), _means(last_rows, "by_place")
    if answered and by_place:
        best, without_reading = max(answered.values()), max(by_place.values())
        parts.gate(
            "more questions answered than by the most frequent place",
            best > without_reading,
            f"{best:.1%} and {without_reading:.1%}",
        )
        return
    accuracies = _means(last_rows, "test_accuracy")
    as_published = settings.get("augment", True) and not settings.get("wrong_labels")
    if accuracies and settings.get("model") == "ResNet20" and as_published:
        best, limit = max(accuracies.values()), RESNET20_ACCURACY
        parts.gate(f"the best method reaches {limit:.0%}", best >= limit, f"{best:.2%}")


def learnt_gate(
    parts: Parts,
    name: str,
    losses: Sequence[float],
    by_frequency: float,
    learnt: float = LEARNT,
) -> None:
    """Add the control that every run of a network has learnt: its loss lies ``learnt`` nats below
    that of frequencies.

    Args:
        parts: changed in place.
        name: of the network.
        losses: at the end, one per run.
        by_frequency: loss of one who knows the frequencies of words or classes alone.
        learnt: positive.
    """
    limit, worst = by_frequency - learnt, max(losses)
    parts.gate(
        f"{name}: every run ends {learnt:.2g} nat below frequencies",
        worst <= limit,
        f"loss {worst:.3f} at most, needed {limit:.3f}",
    )


def learnt_with_wrong_labels(share: float) -> float:
    """How far below the frequencies of CIFAR-10's classes a network must end that has learnt, where
    a share of the labels is drawn at random.

    The least loss is then the entropy of a label, not 0. It is the same part of the way to it as
    :data:`LEARNT` is on right labels.

    Example:
        >>> learnt_with_wrong_labels(0.0), round(learnt_with_wrong_labels(0.2), 3)
        (1.0, 0.624)
    """
    wrong = share / 10  # of each wrong class; the right one may be drawn too
    chances = [1 - 9 * wrong] + [wrong] * 9
    entropy = -sum(chance * math.log(chance) for chance in chances if chance)
    return LEARNT * (1 - entropy / CLASS_FREQUENCIES)


def _language_gate(parts: Parts, last_rows: LastRows, *, on_treebank: bool) -> bool:
    """Add the control of a language model or of BERT to ``parts``, where it fits.

    It reads losses on test text, or else on validation text.

    Args:
        parts: of the verdict.
        last_rows: of all methods.
        on_treebank: whether it is a language model on Penn Treebank.

    Returns:
        Whether all methods recorded what a control needs, so that one was added.
    """
    for column in ("test_loss", "validation_loss"):
        losses = _means(last_rows, column)
        if len(losses) < len(last_rows):  # not every method recorded it
            continue
        if on_treebank:
            # The bigram model's loss is the same in all records that have it.
            bigram = next(iter(_means(last_rows, "bigram_loss").values()), BIGRAM_LOSS)
            _all_below(parts, "every method ends below a bigram model", losses, bigram, "bigram")
            return True
        by_frequency = _means(last_rows, "by_frequency")
        if len(by_frequency) == len(last_rows):
            name = f"every method ends {LEARNT:g} nat below word frequencies"
            _all_below(parts, name, losses, min(by_frequency.values()) - LEARNT, "needed")
            return True
    return False


def _means(last_rows: LastRows, column: str) -> dict[str, float]:
    """Method -> mean of a column over its seeds, for methods all of whose seeds have it."""
    return {
        name: float(np.mean([row[column] for row in rows]))
        for name, rows in last_rows.items()
        if rows and all(column in row for row in rows)
    }


def _all_below(
    parts: Parts, name: str, losses: Mapping[str, float], limit: float, limit_name: str
) -> None:
    """Add a control to ``parts``: the loss of the worst method lies below ``limit``.

    Its words give that loss, and the limit under the name ``limit_name``.
    """
    worst = max(losses, key=lambda method: losses[method])
    parts.gate(
        name, losses[worst] < limit, f"{worst} {losses[worst]:.3f}, {limit_name} {limit:.3f}"
    )
