"""What to do about an assumption that fails: which optimizer or setting, why, and where the papers say so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mindgap.advise.diagnosis import Finding
from mindgap.base.source import Source


@dataclass(frozen=True)
class Advice:
    """One thing to do."""

    action: str
    why: str
    code: str
    source: Source


_ADVICE = {
    "finite variance": (
        Advice(
            "clip every coordinate at a running moment of its gradient",
            "with infinite variance E‖∇f‖² is infinite for SGD at every fixed step; clipped SGD converges",
            "ACClip(model.parameters(), lr=1e-3)",
            Source("acclip", "Thm. 1 to 3, App. A"),
        ),
        Advice(
            "or clip the norm, with a threshold near the median of the norms that the optimizer reports",
            "a larger threshold has less bias and more variance (Lemma 2)",
            "GClip(model.parameters(), lr=0.1, tau=1.0, beta=0.9)",
            Source("acclip", "Alg. 1, Lemma 2"),
        ),
    ),
    "smoothness": (
        Advice(
            "clip or normalise, and then raise the step",
            "where smoothness grows with the gradient a fixed step must fit the worst point; a clipped one adapts",
            "NormalizedSGD(model.parameters(), lr=0.1, beta=0.9)",
            Source("thesis", "Thm. 3.4.1, 3.4.2"),
        ),
    ),
    "stable step": (
        Advice(
            "lower the step, or accept that the weights oscillate and judge the run by time averages",
            "above the threshold the iterates cannot settle in a minimum, yet averages of the loss can",
            "for group in optimizer.param_groups: group['lr'] /= 2",
            Source("thesis", "6.3, 6.5.2"),
        ),
    ),
    "stationarity": (
        Advice(
            "do not wait for the gradient to vanish; lower the step to lower the loss",
            "at an invariant distribution a small enough step lowers the expected loss",
            "torch.optim.lr_scheduler.StepLR(optimizer, step_size=30, gamma=0.1)",
            Source("thesis", "Thm. 6.5.1"),
        ),
    ),
    "finite gradients": (
        Advice(
            "skip such steps and count them, and look for the layer they come from",
            "one infinite entry makes the norm infinite and the clipped gradient NaN",
            "GClip(model.parameters(), lr=0.1, tau=1.0, nonfinite='skip')",
            Source("acclip", "Alg. 1"),
        ),
    ),
}


def prescribe(findings: Sequence[Finding]) -> list[Advice]:
    """What to do, for every finding that says an assumption fails; nothing where none does.

    Example:
        >>> findings = [Finding("smoothness", True, ""), Finding("finite variance", None, "")]
        >>> [advice.code for advice in prescribe(findings)]
        ['NormalizedSGD(model.parameters(), lr=0.1, beta=0.9)']
    """
    return [advice for finding in findings if finding.fails for advice in _ADVICE[finding.assumption]]
