"""Runs of SGD and SVRG at equal gradient evaluations: the loop of the study T4.

Parameters θ are lists of tensors with an axis of *copies* in front, one per candidate step size:
all copies are trained at once.

SVRG takes the full gradient at a snapshot once per epoch and corrects every minibatch gradient by
it: an epoch costs three passes over the data where SGD's costs one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mindgap.lab.studies.resnet_runs import resnet_run
from mindgap.lab.studies.spec import Row, Trial
from mindgap.lab.studies.training_runs import step_factor, unit_digits

if TYPE_CHECKING:
    from torch import Tensor


#: Passes over the data in one epoch: a gradient per sample, or the snapshot's and two per sample.
PASSES = {"sgd": 1, "svrg": 3}


def epoch(
    rule: str, gradient: Any, theta: list[Any], rates: Any, samples: int, batch: int, generator: Any
) -> list[Any]:
    """One epoch: samples // batch updates of all copies.

    SVRG's update is θ ← θ − η(g_B(θ) − g_B(θ̃) + ∇F(θ̃)), with the mean gradient g_B over a
    minibatch B, the full gradient ∇F and the snapshot θ̃. SGD's has no last two terms.

    Args:
        rule: ``"sgd"`` or ``"svrg"``.
        gradient: (θ, indices) -> the gradient of the mean loss over these samples, a list like θ.
        theta: parameters, with an axis of copies in front; the snapshot θ̃ is their value now.
        rates: the step sizes η, one per copy, of a shape that multiplies θ.
        samples: how many samples there are.
        batch: samples in a minibatch, drawn with replacement.
        generator: of the draws; it is advanced.

    Returns:
        The new θ; the given one is not changed.
    """
    import torch

    snapshot = theta
    full_gradient = gradient(snapshot, torch.arange(samples)) if rule == "svrg" else []
    for _ in range(samples // batch):
        indices = torch.randint(samples, (batch,), generator=generator)
        direction = gradient(theta, indices)
        if rule == "svrg":
            at_snapshot = gradient(snapshot, indices)
            direction = [g - s + f for g, s, f in zip(direction, at_snapshot, full_gradient)]
        theta = [parameter - rates * change for parameter, change in zip(theta, direction)]
    return theta


@dataclass(frozen=True)
class _Digits:
    """Digits scaled to length 1, and a network with weight decay."""

    net: Any  # a ``Network`` of chapter 6
    features: Tensor  # (samples, 64)
    labels: Tensor  # (samples,)
    train: int  # the first so many samples are trained on; the others are for the test
    decay: float  # γ: the loss has the term γ/2 ‖θ‖²

    def gradient(self, theta: list[Tensor], indices: Tensor) -> list[Tensor]:
        """The gradient of the mean loss with decay over the training samples of these indices, a
        list like θ.
        """
        copies = len(theta[0])
        x = self.features[: self.train][indices].expand(copies, -1, -1)
        y = self.labels[: self.train][indices].expand(copies, -1)
        _, gradients = self.net.gradient(theta, x, y)
        return [gradient + self.decay * matrix for gradient, matrix in zip(gradients, theta)]

    def value(self, theta: list[Tensor]) -> Tensor:
        """Mean training loss with decay, one number per copy."""
        copies = len(theta[0])
        decay = sum(matrix.square().sum(dim=(1, 2)) for matrix in theta) * self.decay / 2
        x, y = self.features[: self.train], self.labels[: self.train]
        return self.net.loss(theta, x.expand(copies, -1, -1), y.expand(copies, -1)) + decay

    def test_error(self, theta: list[Tensor]) -> float:
        """Share of the other samples that the first copy gets wrong."""
        scores = self.net.scores(theta, self.features[self.train :].unsqueeze(0))[0]
        return float((scores.argmax(dim=1) != self.labels[self.train :]).double().mean())


def _digits(trial: Trial) -> _Digits:
    """The digits in the trial's random order, and its network: fully connected with ReLU, of
    ``layers`` layers and hidden layers of ``width`` units. One layer makes a convex problem.
    """
    import torch

    from mindgap.lab.theory.chapter6.network import Network

    images, labels = unit_digits()
    order = torch.randperm(len(labels), generator=trial.torch_generator("t4 split"))
    net = Network((64, *[trial["width"]] * (trial["layers"] - 1), 10), "relu")
    return _Digits(net, images[order], labels[order], trial["train"], trial["decay"])


def loop(trial: Trial) -> Iterator[Row]:
    """Train with all candidates at once (phase 0), then anew with the best one alone (phase 1).

    A candidate is a step size of the setting ``steps``, constant or with drops. Each phase has
    random streams of its own. ResNet20 trains once with a step that was tuned before.

    Yields:
        Per epoch of phase 0 ``choosing_passes`` and ``choosing_gap`` (of the best candidate so
        far). Per epoch of phase 1 ``passes`` over the data, ``gap`` (loss above its minimum, for
        more than one layer above 0), ``test_error``, and the candidate as ``lr`` and ``drops``.
    """
    if trial.settings.get("model") == "ResNet20":
        yield from _resnet(trial)
        return
    digits = _digits(trial)
    convex = trial["layers"] == 1
    lowest = float(digits.value(_minimum(digits, trial))[0]) if convex else 0.0
    candidates = [(lr, drops) for drops in (False, True) for lr in trial["steps"]]
    chosen = trial.restored.get("chosen", -1)  # number of a candidate; -1: not known yet
    passes_per_epoch, problem = PASSES[trial["rule"]], "convex" if convex else "network"
    if trial.restored.get("phase", 0) == 0:
        for state in _epochs(trial, digits, candidates, phase=0):
            gaps = _gaps(digits, state["theta"], lowest)
            chosen = int(gaps.argmin())
            trial.save({**state, "chosen": chosen})
            yield {
                "choosing_passes": state["epoch"] * passes_per_epoch,
                "choosing_gap": float(gaps[chosen]),
                "problem": problem,
            }
    lr, drops = candidates[chosen]
    for state in _epochs(trial, digits, [(lr, drops)], phase=1):
        trial.save({**state, "chosen": chosen})
        yield {
            "passes": state["epoch"] * passes_per_epoch,
            "gap": float(_gaps(digits, state["theta"], lowest)[0]),
            "test_error": digits.test_error(state["theta"]),
            "lr": lr,
            "drops": drops,
            "problem": problem,
        }


def _gaps(digits: _Digits, theta: list[Tensor], lowest: float) -> Tensor:
    """How far the losses of all copies are above the ``lowest`` possible one, (copies,).

    At least 1e-14, so that the gap has a logarithm; infinite for a copy that diverged.
    """
    return (digits.value(theta) - lowest).nan_to_num(math.inf, math.inf).clamp(min=1e-14)


def _epochs(
    trial: Trial, digits: _Digits, candidates: Sequence[tuple[float, bool]], *, phase: int
) -> Iterator[dict[str, Any]]:
    """Train one copy per candidate, from a checkpoint of the same phase if there is one.

    Args:
        trial: with ``rule``, ``passes`` over the data, ``batch``, and ``radius`` of the start.
        digits: data and network.
        candidates: (step size, whether it drops to a tenth after a half and after three quarters of
            the epochs).
        phase: 0 chooses, 1 is judged; each has a random stream of its own.

    Yields:
        After every epoch what a checkpoint needs: ``phase``, ``epoch`` (epochs done), ``theta``,
        ``generator``.
    """
    import torch

    generator = trial.torch_generator("t4 judged" if phase else "t4 choosing")
    start = digits.net.start(1, trial["radius"], generator)
    # One copy of the start per candidate.
    theta, first_epoch = [matrix.expand(len(candidates), -1, -1).clone() for matrix in start], 0
    if trial.restored.get("phase") == phase:
        theta, first_epoch = trial.restored["theta"], trial.restored["epoch"]
        generator.set_state(trial.restored["generator"])
    rule, epochs = trial["rule"], trial["passes"] // PASSES[trial["rule"]]
    for number in range(first_epoch, epochs):
        factor = step_factor("late drops", number, epochs)
        step_sizes = [lr * (factor if drops else 1.0) for lr, drops in candidates]
        rates = torch.tensor(step_sizes, dtype=torch.float64)[:, None, None]
        with trial.timed():
            theta = epoch(
                rule, digits.gradient, theta, rates, digits.train, trial["batch"], generator
            )
        yield {
            "phase": phase,
            "epoch": number + 1,
            "theta": theta,
            "generator": generator.get_state(),
        }


def _resnet(trial: Trial) -> Iterator[Row]:
    """The rows of ResNet20 with the tuned step size ``lr`` times ``factor``.

    Its gap is the loss on training images that are not augmented, whose least value is near 0.
    """
    import torch

    lr = trial["lr"] * trial["factor"]
    rows = resnet_run(
        trial,
        lambda parameters: torch.optim.SGD(
            parameters, lr=lr, weight_decay=trial.settings.get("weight_decay", 0.0)
        ),
        "t4",
        svrg=trial["rule"] == "svrg",
    )
    for row in rows:
        columns = {
            "passes": row["step"],
            "gap": max(row["train_loss"], 1e-14),
            "test_error": 1 - row["test_accuracy"],
        }
        yield {**row, **columns, "lr": lr, "drops": True, "problem": "network"}


def _minimum(digits: _Digits, trial: Trial) -> list[Tensor]:
    """θ at the minimum of the convex problem, one copy.

    It is found from zero by full gradients with Nesterov's momentum, (1 - q)/(1 + q) with q =
    √(γ/L): the loss is γ-strongly convex with the decay γ, and its gradient has a Lipschitz
    constant L of at most 1/2 + γ.
    """
    import torch

    every_sample, smoothness = torch.arange(digits.train), 0.5 + digits.decay
    ratio = (digits.decay / smoothness) ** 0.5
    start = digits.net.start(1, 1.0, trial.torch_generator("t4 minimum"))
    # Steps end at θ; gradients are taken at ``ahead``, further along the last change of θ.
    theta = ahead = [parameter.zero_() for parameter in start]
    for _ in range(math.ceil(40 / ratio)):  # (1 - q)^(40/q), what is left, is below 1e-17
        gradient = digits.gradient(ahead, every_sample)
        next_theta = [point - slope / smoothness for point, slope in zip(ahead, gradient)]
        ahead = [
            new + (1 - ratio) / (1 + ratio) * (new - old) for new, old in zip(next_theta, theta)
        ]
        theta = next_theta
    return theta
