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
from typing import Any

import numpy as np

from mindgap.lab.studies.resnet_runs import GRID, RESNET20, SETTINGS, resnet_run
from mindgap.lab.studies.spec import Figure, Parts, Row, Run, Scale, Source, Study, Trial, scales
from mindgap.lab.studies.verdict import by_method, last, mean_interval

#: A gap that is lower by less than this factor is no gain.
MARGIN = 1.1
#: Each end of an interval errs with half of this probability.
MISS = 0.1
#: Passes over the data in one epoch: a gradient per sample, or the snapshot's and two per sample.
PASSES = {"sgd": 1, "svrg": 3}


def epoch(
    rule: str, gradient: Any, theta: list[Any], steps: Any, n: int, batch: int, generator: Any
) -> list[Any]:
    """n // batch updates of all copies: θ ← θ − η(g_B(θ) − g_B(θ̃) + ∇F(θ̃)), for SGD without the
    last two terms.

    Args:
        rule: ``"sgd"`` or ``"svrg"``.
        gradient: (θ, indices) -> the gradient of the mean loss over these samples, a list like θ.
        theta: parameters, with an axis of copies in front; the snapshot θ̃ is their value now.
        steps: η, one a copy, of a shape that multiplies θ.
        n: how many samples there are.
        batch: samples in a minibatch, drawn with replacement.
        generator: of the draws.
    """
    import torch

    snapshot = theta
    full = gradient(snapshot, torch.arange(n)) if rule == "svrg" else []
    for _ in range(n // batch):
        pick = torch.randint(n, (batch,), generator=generator)
        direction = gradient(theta, pick)
        if rule == "svrg":
            direction = [g - s + f for g, s, f in zip(direction, gradient(snapshot, pick), full)]
        theta = [t - steps * d for t, d in zip(theta, direction)]
    return theta


def loop(trial: Trial) -> Iterator[Row]:
    """All candidates at once on streams of their own, then the chosen one alone; a reading per
    epoch.
    """
    import torch

    if trial.settings.get("model") == "ResNet20":
        yield from _resnet(trial)
        return

    from mindgap.lab.tasks.data import digits
    from mindgap.lab.theory.chapter6.network import Network

    data, n, gamma = digits(), trial["train"], trial["decay"]
    order = torch.randperm(len(data.labels), generator=trial.torch_generator("t4 split"))
    x = torch.from_numpy(data.features)[order]
    x, y = x / x.norm(dim=1, keepdim=True), torch.from_numpy(data.labels)[order]
    net = Network((64, *[trial["width"]] * (trial["layers"] - 1), 10), "relu")

    def gradient(theta: list[Any], pick: Any) -> list[Any]:
        copies = len(theta[0])
        found = net.gradient(
            theta, x[:n][pick].expand(copies, -1, -1), y[:n][pick].expand(copies, -1)
        )[1]
        return [g + gamma * t for g, t in zip(found, theta)]

    def value(theta: list[Any]) -> Any:
        copies = len(theta[0])
        decay = sum(t.square().sum(dim=(1, 2)) for t in theta) * gamma / 2
        return net.loss(theta, x[:n].expand(copies, -1, -1), y[:n].expand(copies, -1)) + decay

    least = float(value(_minimum(net, gradient, trial))[0]) if trial["layers"] == 1 else 0.0
    candidates = [(lr, drops) for drops in (False, True) for lr in trial["steps"]]
    cost = PASSES[trial["rule"]]
    epochs, before = trial["passes"] // cost, trial.restored
    chosen = before.get("chosen", -1)
    for phase in ("choosing", "judged")[before.get("phase", 0) :]:
        choosing = phase == "choosing"
        tried = candidates if choosing else [candidates[chosen]]
        generator = trial.torch_generator(f"t4 {phase}")
        start = net.start(1, trial["radius"], generator)
        theta = [t.expand(len(tried), -1, -1).clone() for t in start]
        first = 0
        if before and before["phase"] == ("choosing", "judged").index(phase):
            theta, first = before["theta"], before["epoch"]
            generator.set_state(before["generator"])
        for k in range(first, epochs):
            shares = [
                0.1 ** (sum(k >= s * epochs for s in (0.5, 0.75)) if drops else 0)
                for _, drops in tried
            ]
            steps = torch.tensor(
                [lr * share for (lr, _), share in zip(tried, shares)], dtype=torch.float64
            )
            with trial.timed():
                theta = epoch(
                    trial["rule"],
                    gradient,
                    theta,
                    steps[:, None, None],
                    n,
                    trial["batch"],
                    generator,
                )
            gap = (value(theta) - least).nan_to_num(math.inf, math.inf).clamp(min=1e-14)
            if choosing:
                chosen = int(gap.argmin())
                row: Row = {"choosing_passes": (k + 1) * cost, "choosing_gap": float(gap[chosen])}
            else:
                missed = net.scores(theta, x[n:].unsqueeze(0))[0].argmax(dim=1) != y[n:]
                row = {
                    "passes": (k + 1) * cost,
                    "gap": float(gap[0]),
                    "test_error": float(missed.double().mean()),
                    "lr": tried[0][0],
                    "drops": tried[0][1],
                }
            trial.save(
                lambda: {
                    "phase": 1 - choosing,  # noqa: B023
                    "epoch": k + 1,  # noqa: B023
                    "theta": theta,  # noqa: B023
                    "chosen": chosen,  # noqa: B023
                    "generator": generator.get_state(),  # noqa: B023
                }
            )
            yield {**row, "problem": "network" if trial["layers"] > 1 else "convex"}


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
        found = {
            "passes": row["step"],
            "gap": max(row["train_loss"], 1e-14),
            "test_error": 1 - row["test_accuracy"],
        }
        yield {**row, **found, "lr": lr, "drops": True, "problem": "network"}


def _minimum(net: Any, gradient: Any, trial: Trial) -> list[Any]:
    """The minimum of the convex problem, by full gradients with Nesterov's momentum; L is at
    most 1/2 + γ.
    """
    import torch

    pick, gamma = torch.arange(trial["train"]), trial["decay"]
    q = (gamma / (0.5 + gamma)) ** 0.5
    theta = ahead = [t.zero_() for t in net.start(1, 1.0, trial.torch_generator("t4 minimum"))]
    for _ in range(math.ceil(40 / q)):  # (1 - q)^(40/q) is below 1e-17
        moved = [a - g / (0.5 + gamma) for a, g in zip(ahead, gradient(ahead, pick))]
        ahead = [m + (1 - q) / (1 + q) * (m - t) for m, t in zip(moved, theta)]
        theta = moved
    return theta


def judge(runs: Sequence[Run]) -> Parts:
    """The gain, the log of SGD's final gap over SVRG's, in the mean over paired seeds: of
    network and control.
    """
    parts, groups = Parts(), by_method(runs)
    gains = {}
    for problem in ("network", "convex"):
        ends = {
            rule: [last(run, "gap") for run in groups[f"{problem}, {rule}"]]
            for rule in ("SGD", "SVRG")
        }
        gain = gains[problem] = mean_interval(np.log(ends["SGD"]) - np.log(ends["SVRG"]), miss=MISS)
        errors = {
            r: float(np.mean([last(run, "test_error") for run in groups[f"{problem}, {r}"]]))
            for r in ends
        }
        middle = {rule: float(np.median(values)) for rule, values in ends.items()}
        parts.note(
            f"{problem}: SGD's gap is {_factor(gain.mean)} times SVRG's ({_factor(gain.low)} to "
            f"{_factor(gain.high)}; medians {middle['SGD']:.2g} and {middle['SVRG']:.2g}; test "
            f"errors {errors['SGD']:.1%} and {errors['SVRG']:.1%})",
            {problem: {"log_gain": vars(gain), "gap": middle, "test_error": errors}},
        )
    if gains["convex"].low <= 0:
        parts.decide_nothing("SVRG gains nothing on the convex control, where it ought to")
    network, none = gains["network"], gains["network"].high < math.log(MARGIN)
    parts.add("no gain on the network", none, network.low > 0 and not none)
    return parts


def _factor(logarithm: float) -> str:
    return f"{np.exp(logarithm):.3g}"  # infinite where one seed says nothing


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
