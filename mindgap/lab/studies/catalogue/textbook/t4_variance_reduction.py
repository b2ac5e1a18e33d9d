"""T4: variance reduction against SGD on a deep network, at equal gradient evaluations.

SVRG takes the full gradient at a snapshot once per epoch and corrects every minibatch gradient by
it: an epoch costs three passes over the data where SGD's costs one. Both rules get the same
candidates (eight steps, each constant and with two drops by ten) and choose by the final training
loss of runs with a start and a data order of their own. The measure is the gap to the least
possible value. The control is a softmax regression with so much weight decay that theory promises
SVRG a gain. At scale gpu the network is ResNet20, with two drops and a step that ``mindgap tune
--grid`` chooses for all seeds; the control is that of scale cpu.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from mindgap.lab.studies.resnet_runs import GRID, RESNET20, SETTINGS, resnet_run
from mindgap.lab.studies.spec import Figure, Parts, Row, Run, Scale, Source, Study, Trial, scales
from mindgap.lab.studies.training_runs import unit_digits
from mindgap.lab.studies.verdict import by_method, last, mean_interval

if TYPE_CHECKING:
    from torch import Tensor

#: A gap that is lower by less than this factor is no gain.
MARGIN = 1.1
#: Each end of an interval errs with half of this probability.
MISS = 0.1
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
                gradient_ - at_snapshot + full_
                for gradient_, at_snapshot, full_ in zip(direction, gradient(snapshot, pick), full)
            ]
        theta = [parameter - steps * direction_ for parameter, direction_ in zip(theta, direction)]
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
    q = (digits.decay / smoothness) ** 0.5
    start = digits.net.start(1, 1.0, trial.torch_generator("t4 minimum"))
    theta = ahead = [parameter.zero_() for parameter in start]
    for _ in range(math.ceil(40 / q)):  # (1 - q)^(40/q) is below 1e-17
        moved = [
            ahead_ - gradient / smoothness
            for ahead_, gradient in zip(ahead, digits.gradient(ahead, every_sample))
        ]
        ahead = [
            moved_ + (1 - q) / (1 + q) * (moved_ - parameter)
            for moved_, parameter in zip(moved, theta)
        ]
        theta = moved
    return theta


def judge(runs: Sequence[Run]) -> Parts:
    """The gain, the log of SGD's final gap over SVRG's, in the mean over paired seeds: of
    network and control.
    """
    parts, groups = Parts(), by_method(runs)
    gains = {}
    for problem in ("network", "convex"):
        final_gaps = {
            rule: [last(run, "gap") for run in groups[f"{problem}, {rule}"]]
            for rule in ("SGD", "SVRG")
        }
        gain = gains[problem] = mean_interval(
            np.log(final_gaps["SGD"]) - np.log(final_gaps["SVRG"]), miss=MISS
        )
        errors = {
            rule_: float(
                np.mean([last(run, "test_error") for run in groups[f"{problem}, {rule_}"]])
            )
            for rule_ in final_gaps
        }
        median_gaps = {rule: float(np.median(values)) for rule, values in final_gaps.items()}
        parts.note(
            f"{problem}: SGD's gap is {_factor(gain.mean)} times SVRG's ({_factor(gain.low)} to "
            f"{_factor(gain.high)}; medians {median_gaps['SGD']:.2g} and "
            f"{median_gaps['SVRG']:.2g}; test errors {errors['SGD']:.1%} and {errors['SVRG']:.1%})",
            {problem: {"log_gain": vars(gain), "gap": median_gaps, "test_error": errors}},
        )
    if gains["convex"].low <= 0:
        parts.decide_nothing("SVRG gains nothing on the convex control, where it ought to")
    gain_of_network, no_gain = gains["network"], gains["network"].high < math.log(MARGIN)
    parts.add("no gain on the network", no_gain, gain_of_network.low > 0 and not no_gain)
    return parts


def _factor(logarithm: float) -> str:
    """A logarithm as a factor, in words; infinite where one seed has no interval."""
    return f"{np.exp(logarithm):.3g}"


_QUICK = {
    "train": 600,
    "batch": 20,
    "passes": 18,
    "width": 32,
    "layers": 3,
    "radius": 1.0,
    "decay": 0.0,
    "steps": [0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0],
    "rule": "sgd",
}
_CPU = {"train": 1000, "passes": 150, "width": 64, "layers": 4, "batch": 10}
_CONVEX = {"layers": 1, "decay": 0.05}
_CONTROL = {"convex, SGD": {"rule": "sgd", **_CONVEX}, "convex, SVRG": {"rule": "svrg", **_CONVEX}}

STUDY = Study(
    name="t4-variance-reduction",
    claim="T4",
    title="Variance reduction gains nothing on a deep network",
    statement="Variance reduction (SVRG) does not accelerate the training of a deep network; on a "
    "convex problem of the same data it does.",
    source=Source("thesis", "2.2, Fig. 2-2"),
    scales={
        **scales(_QUICK, _CPU, seeds=(3, 10)),
        "gpu": Scale(
            {
                **SETTINGS,
                "epochs": 30,
                "every": 3,
                "schedule": "late drops",
                "lr": 0.3,
                "rule": "sgd",
            },
            seeds=4,
            methods={
                name: {
                    **_QUICK,
                    **_CPU,
                    "model": "softmax regression",
                    "device": "cpu",
                    "factor": None,
                    **own,
                }
                for name, own in _CONTROL.items()
            },
        ),
    },
    methods={"network, SGD": {"rule": "sgd"}, "network, SVRG": {"rule": "svrg"}, **_CONTROL},
    loop=loop,
    judge=judge,
    rule="The upper end of a 90 % interval for the network's gain over paired seeds lies below a "
    "factor 1.1; refuted where the lower end lies above 1 and the gain may exceed 1.1. A control "
    "without a gain decides nothing.",
    models={
        "quick": "three layers, width 32, on digits",
        "cpu": "four layers, width 64, on digits",
        "gpu": RESNET20,
    },
    grid=GRID,
    tune_on="gap",
    tuning_seeds=(1000,),
    paper_model="large networks on CIFAR-10 and ImageNet",
    figures=(
        Figure(
            "Training loss above its least value",
            "gap",
            "F - min F",
            x="passes",
            facet="problem",
            log_y=True,
            x_label="gradient evaluations / samples",
            caption="Equal work for both rules: an epoch of SVRG costs three passes, one of SGD "
            "costs one.",
        ),
        Figure(
            "Test error",
            "test_error",
            "share of the held-out digits missed",
            x="passes",
            facet="problem",
            x_label="gradient evaluations / samples",
        ),
    ),
)
