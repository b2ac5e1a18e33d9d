"""What to do about an assumption that fails: which optimizer or setting, why, and where the
papers say so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mindgap.advise.diagnosis import ASSUMPTIONS, Judgement
from mindgap.base.check import fail, one_of
from mindgap.base.source import Source


@dataclass(frozen=True)
class Advice:
    """One thing to do."""

    action: str
    why: str
    code: str
    source: Source


def _adamw(settings: str) -> str:
    """Code to paste that makes our AdamW with these settings."""
    make = f"optimizer = AdamW(model.parameters(), lr=1e-3, {settings})"
    return f"from mindgap.optim import AdamW\n{make}"


#: What ``mindgap recommend`` would try first, per assumption that fails.
_ADVICE = {
    "finite variance": (
        Advice(
            "tell noise from signal, and clip only where large gradients are noise",
            "with infinite variance E‖∇f‖² is infinite for SGD at every fixed step; on four tasks "
            "with such noise that were kept for judging it ended 18 to 98 % below AdamW at the "
            "same rate, and 8 to 79 % below the best of five fixed clips (docs/clipping.md)",
            _adamw('clip="noise"'),
            Source("acclip", "Thm. 1 to 3, Alg. 1"),
        ),
    ),
    "smoothness": (
        Advice(
            "clip the gradient; with clipping a larger step is stable than without",
            "where smoothness grows with the gradient a fixed step must fit the worst point; a "
            "clipped one adapts",
            _adamw('clip="auto"'),
            Source("thesis", "Thm. 3.4.1, 3.4.2"),
        ),
    ),
    "stable step": (
        Advice(
            "halve the learning rate until the loss settles",
            "above the threshold the iterates cannot settle in a minimum; only time averages of "
            "the loss can settle",
            "for group in optimizer.param_groups: group['lr'] /= 2",
            Source("thesis", "6.3, 6.5.2"),
        ),
    ),
    "stationarity": (
        Advice(
            "do not wait for the gradient to vanish; lower the learning rate to lower the loss",
            "at an invariant distribution a small enough step lowers the expected loss",
            "scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=30)\n"
            "# and behind every epoch: scheduler.step()",
            Source("thesis", "Thm. 6.5.1"),
        ),
    ),
    "finite gradients": (
        Advice(
            "skip such steps and count them, and look for the layer they come from",
            "one infinite entry makes the norm infinite and the clipped gradient NaN",
            _adamw('nonfinite="skip"'),
            Source("acclip", "Alg. 1"),
        ),
    ),
}


def prescribe(judged: Sequence[Judgement]) -> list[Advice]:
    """What to try, for every assumption that fails; nothing where none does.

    Example:
        >>> judged = [Judgement("smoothness", True, ""), Judgement("finite variance", None, "")]
        >>> print(prescribe(judged)[0].code)
        from mindgap.optim import AdamW
        optimizer = AdamW(model.parameters(), lr=1e-3, clip="auto")
    """
    _check(judged)
    return [advice for item in judged if item.fails for advice in _ADVICE[item.assumption]]


def summary(judged: Sequence[Judgement]) -> str:
    """The diagnosis in one sentence.

    Example:
        >>> summary([Judgement("smoothness", False, "")])
        'nothing fails; keep what you have'
        >>> summary([Judgement("smoothness", True, ""), Judgement("finite variance", None, "")])
        'smoothness fails; cannot tell about finite variance'
    """
    _check(judged)
    failing = [item.assumption for item in judged if item.fails]
    unclear = [item.assumption for item in judged if item.fails is None]
    words = "nothing fails; keep what you have"
    if failing:
        words = f"{' and '.join(failing)} fail{'s' if len(failing) == 1 else ''}"
    return words + (f"; cannot tell about {', '.join(unclear)}" if unclear else "")


def _check(judged: Sequence[Judgement]) -> None:
    """Refuse what is no list of judgements, and judgements of other assumptions."""
    if not isinstance(judged, (list, tuple)) or not all(
        isinstance(item, Judgement) for item in judged
    ):
        fail("judged", "must be a list of Judgement", judged)
    for item in judged:
        one_of("assumption", item.assumption, ASSUMPTIONS)
