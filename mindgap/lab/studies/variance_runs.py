"""Runs of SGD and SVRG at equal gradient evaluations: the loop of the study T4.

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
from mindgap.lab.studies.training_runs import unit_digits

if TYPE_CHECKING:
    from torch import Tensor


#: Passes over the data in one epoch: a gradient per sample, or the snapshot's and two per sample.
PASSES = {"sgd": 1, "svrg": 3}


def epoch(
    rule: str, gradient: Any, theta: list[Any], steps: Any, samples: int, batch: int, generator: Any
) -> list[Any]:
    """n // batch updates of all copies: θ ← θ − η(g_B(θ) − g_B(θ̃) + ∇F(θ̃)), for SGD without the
    last two terms.

    Args:
        rule: ``"sgd"`` or ``"svrg"``.
        gradient: (θ, indices) -> the gradient of the mean loss over these samples, a list like θ.
        theta: parameters, with an axis of copies in front; the snapshot θ̃ is their value now.
        steps: η, one a copy, of a shape that multiplies θ.
        samples: how many samples there are.
        batch: samples in a minibatch, drawn with replacement.
        generator: of the draws.
    """
    import torch

    snapshot = theta
    full = gradient(snapshot, torch.arange(samples)) if rule == "svrg" else []
    for _ in range(samples // batch):
        pick = torch.randint(samples, (batch,), generator=generator)
        direction = gradient(theta, pick)
        if rule == "svrg":
            direction = [
                current - at_snapshot + mean
                for current, at_snapshot, mean in zip(direction, gradient(snapshot, pick), full)
            ]
        theta = [parameter - steps * change for parameter, change in zip(theta, direction)]
    return theta


@dataclass(frozen=True)
class _Digits:
    """Digits of length 1, the first ``train`` of them to train on, and a network with weight decay;
    parameters θ have an axis of copies in front.
    """

    net: Any
    features: Tensor
    labels: Tensor
    train: int
    decay: float

    def gradient(self, theta: list[Tensor], pick: Tensor) -> list[Tensor]:
        """Of the mean loss over the picked training samples, with decay."""
        copies = len(theta[0])
        x = self.features[: self.train][pick].expand(copies, -1, -1)
        y = self.labels[: self.train][pick].expand(copies, -1)
        return [g + self.decay * t for g, t in zip(self.net.gradient(theta, x, y)[1], theta)]

    def value(self, theta: list[Tensor]) -> Tensor:
        """Mean training loss with decay, one number per copy."""
        copies = len(theta[0])
        decay = sum(t.square().sum(dim=(1, 2)) for t in theta) * self.decay / 2
        x, y = self.features[: self.train], self.labels[: self.train]
        return self.net.loss(theta, x.expand(copies, -1, -1), y.expand(copies, -1)) + decay

    def test_error(self, theta: list[Tensor]) -> float:
        """Share of the other samples that the first copy gets wrong."""
        scores = self.net.scores(theta, self.features[self.train :].unsqueeze(0))[0]
        return float((scores.argmax(dim=1) != self.labels[self.train :]).double().mean())


def _digits(trial: Trial) -> _Digits:
    """The samples in the trial's random order, and its network."""
    import torch

    from mindgap.lab.theory.chapter6.network import Network

    images, labels = unit_digits()
    order = torch.randperm(len(labels), generator=trial.torch_generator("t4 split"))
    net = Network((64, *[trial["width"]] * (trial["layers"] - 1), 10), "relu")
    return _Digits(net, images[order], labels[order], trial["train"], trial["decay"])


def loop(trial: Trial) -> Iterator[Row]:
    """All candidates at once on streams of their own, then the chosen one alone; a reading per
    epoch.
    """
    if trial.settings.get("model") == "ResNet20":
        yield from _resnet(trial)
        return
    digits = _digits(trial)
    convex = trial["layers"] == 1
    lowest = float(digits.value(_minimum(digits, trial))[0]) if convex else 0.0
    candidates = [(lr, drops) for drops in (False, True) for lr in trial["steps"]]
    chosen = trial.restored.get("chosen", -1)
    cost, problem = PASSES[trial["rule"]], "convex" if convex else "network"
    if trial.restored.get("phase", 0) == 0:
        for state in _epochs(trial, digits, candidates, phase=0):
            gaps = _gaps(digits, state["theta"], lowest)
            chosen = int(gaps.argmin())
            trial.save({**state, "chosen": chosen})
            row = {"choosing_passes": state["epoch"] * cost, "choosing_gap": float(gaps[chosen])}
            yield {**row, "problem": problem}
    lr, drops = candidates[chosen]
    for state in _epochs(trial, digits, [(lr, drops)], phase=1):
        trial.save({**state, "chosen": chosen})
        yield {
            "passes": state["epoch"] * cost,
            "gap": float(_gaps(digits, state["theta"], lowest)[0]),
            "test_error": digits.test_error(state["theta"]),
            "lr": lr,
            "drops": drops,
            "problem": problem,
        }


def _gaps(digits: _Digits, theta: list[Tensor], lowest: float) -> Tensor:
    """How far the losses of all copies are above the least possible one."""
    return (digits.value(theta) - lowest).nan_to_num(math.inf, math.inf).clamp(min=1e-14)


def _epochs(
    trial: Trial, digits: _Digits, candidates: Sequence[tuple[float, bool]], *, phase: int
) -> Iterator[dict[str, Any]]:
    """Train one copy per candidate (step, whether it drops); phase 0 chooses, phase 1 is judged,
    each with a random stream of its own.

    Yields:
        After every epoch what a checkpoint needs: ``phase``, ``epoch``, ``theta``, ``generator``.
    """
    import torch

    generator = trial.torch_generator(f"t4 {('choosing', 'judged')[phase]}")
    start = digits.net.start(1, trial["radius"], generator)
    theta, first_epoch = (
        [parameter.expand(len(candidates), -1, -1).clone() for parameter in start],
        0,
    )
    if trial.restored.get("phase") == phase:
        theta, first_epoch = trial.restored["theta"], trial.restored["epoch"]
        generator.set_state(trial.restored["generator"])
    rule, epochs = trial["rule"], trial["passes"] // PASSES[trial["rule"]]
    for number in range(first_epoch, epochs):
        dropped = 0.1 ** sum(number >= share * epochs for share in (0.5, 0.75))
        rates = [lr * (dropped if drops else 1.0) for lr, drops in candidates]
        steps = torch.tensor(rates, dtype=torch.float64)[:, None, None]
        with trial.timed():
            theta = epoch(
                rule, digits.gradient, theta, steps, digits.train, trial["batch"], generator
            )
        state = {"phase": phase, "epoch": number + 1, "theta": theta}
        yield {**state, "generator": generator.get_state()}


def _resnet(trial: Trial) -> Iterator[Row]:
    """ResNet20 with the tuned step; its gap is the loss on unchanged training images, whose
    least value is near 0.
    """
    import torch

    lr = trial["lr"] * trial["factor"]
    rows = resnet_run(
        trial,
        lambda parameters: torch.optim.SGD(parameters, lr=lr),
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
    """The minimum of the convex problem, by full gradients with Nesterov's momentum; L is at
    most 1/2 + γ.
    """
    import torch

    every_sample, smoothness = torch.arange(digits.train), 0.5 + digits.decay
    ratio = (digits.decay / smoothness) ** 0.5
    start = digits.net.start(1, 1.0, trial.torch_generator("t4 minimum"))
    theta = ahead = [parameter.zero_() for parameter in start]
    for _ in range(math.ceil(40 / ratio)):  # (1 - q)^(40/q) is below 1e-17
        next_theta = [
            leading - gradient / smoothness
            for leading, gradient in zip(ahead, digits.gradient(ahead, every_sample))
        ]
        ahead = [
            new + (1 - ratio) / (1 + ratio) * (new - parameter)
            for new, parameter in zip(next_theta, theta)
        ]
        theta = next_theta
    return theta
