"""T4, N3, E3 and E6: the pieces are exact, the loops run small, and every verdict can come out
each way.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from references.made_up_runs import made_up, verdicts

from mindgap.base.check import RuleError
from mindgap.base.rng import stream_seed, torch_stream
from mindgap.lab.studies.catalogue import find
from mindgap.lab.studies.loop import Trial
from mindgap.lab.studies.variance_runs import epoch
from mindgap.lab.tasks.problems import digits_network
from mindgap.optim import StochasticINGD
from mindgap.record.schema import End, Header, Run


def least_squares(n: int = 12):
    g = torch.Generator().manual_seed(4)
    a, b = (
        torch.randn(n, 3, generator=g, dtype=torch.float64),
        torch.randn(n, generator=g, dtype=torch.float64),
    )

    def gradient(theta, pick):
        rest = theta[0][:, 0] @ a[pick].T - b[pick]  # (copies, samples)
        return [(rest @ a[pick]).unsqueeze(1) / len(pick)]

    return a, b, gradient


@pytest.mark.parametrize("rule", ["sgd", "svrg"])
def test_an_epoch_is_the_written_update(rule):
    """Against a loop over samples: two copies with their own steps, the same minibatches."""
    a, b, gradient = least_squares()
    start = torch.tensor([[[1.0, -1.0, 2.0]], [[0.5, 0.0, -3.0]]], dtype=torch.float64)
    steps = torch.tensor([0.1, 0.02], dtype=torch.float64)
    found = epoch(
        rule, gradient, [start], steps[:, None, None], 12, 4, torch.Generator().manual_seed(7)
    )[0]
    for copy, eta in enumerate(steps):
        draws = torch.Generator().manual_seed(7)
        w = snapshot = start[copy, 0]
        full = sum(a[i] * (a[i] @ snapshot - b[i]) for i in range(12)) / 12
        for _ in range(3):
            pick = torch.randint(12, (4,), generator=draws)
            g = sum(a[i] * (a[i] @ w - b[i]) for i in pick) / 4
            if rule == "svrg":
                g = g - sum(a[i] * (a[i] @ snapshot - b[i]) for i in pick) / 4 + full
            w = w - eta * g
        torch.testing.assert_close(found[copy, 0], w, rtol=1e-12, atol=0)


def test_held_out_digits_are_held_out():
    problem = digits_network(width=1, seed=3, train=100, validation=50)
    parts = [images for images, _ in problem.parts.values()]
    assert [len(images) for images in parts] == [100, 50, 1647]
    whole = digits_network(width=1, seed=3).parts["train"][0]
    together = torch.cat(parts).flatten(1)
    assert torch.equal(together.sort(dim=0).values, whole.flatten(1).sort(dim=0).values)
    train = {tuple(image.flatten().tolist()) for image in parts[0]}
    drawn, _ = problem.draw(torch.Generator().manual_seed(0), 400)
    assert {tuple(image.flatten().tolist()) for image in drawn} <= train
    assert not torch.equal(parts[0], digits_network(width=1, seed=4, train=100).parts["train"][0])
    with pytest.raises(
        RuleError, match="train must leave room for validation=1000 in 1797 samples, got 900"
    ):
        digits_network(width=1, train=900, validation=1000)


@verdicts(
    refuted=[{"network": [1.5, 1.6, 1.6]}],
    undecided=[{"network": [0.5, 1.0, 2.5]}, {"convex": [0.9, 1.0, 1.1]}],
)
def test_verdict_on_variance_reduction(case, verdict):
    """SGD's gap over SVRG's, one per seed."""
    ends = {}
    for problem, gains in {"network": [0.9, 1.0, 0.95], "convex": [9.0, 10.0, 9.5], **case}.items():
        ends[f"{problem}, SGD"] = [{"gap": gain, "test_error": 0.1} for gain in gains]
        ends[f"{problem}, SVRG"] = [{"gap": 1.0, "test_error": 0.1} for _ in gains]
    assert (
        find("t4-variance-reduction").judge(made_up("t4-variance-reduction", ends)).verdict
        == verdict
    )


LEVELS = (1.0, 4.0, 16.0, 64.0)


def _paired(study):
    """Four seeds of very different levels, at each of which methods differ by the same factor or
    number.
    """
    scale, methods = "quick", find(study).seeds("quick")
    ends = {}
    for place, method in enumerate(methods, 1):
        ends[method] = [
            {
                "gap": level * (10.0 if method == "convex, SGD" else 1.0),
                "test_error": 0.1,
                "factor": 1.0,
                "validation_accuracy": 0.9,
                "validation_loss": 1.0,
                "test_accuracy": level / 100 + place / 1000,
                "test_loss": level * (1 + place / 100),
                "step_length": level * (1 + place / 100),
                "step": 1,
                "lr": 1.0,
                "gradient_norm": level * (1 + place / 100),
            }
            for level in LEVELS
        ]
    return made_up(study, ends, scale)


@pytest.mark.parametrize(
    "study",
    [
        "t4-variance-reduction",
        "n3-image-network",
        "h15-steps-and-thresholds",
        "b0-unbounded-smoothness",
    ],
)
def test_methods_are_paired_by_seed_where_each_lost_another_one(study):
    runs = _paired(study)
    methods = list(dict.fromkeys(run.header.method for run in runs))
    lost = {methods[0]: 0, methods[1]: 3}
    left = [run for run in runs if run.header.seed != lost.get(run.header.method)]
    common = [run for run in runs if run.header.seed in (1, 2)]
    judge = find(study).judge
    answers = [{part.name: part.answer for part in judge(some).asked} for some in (left, common)]
    assert answers[0] == answers[1]


def test_variance_reduction_gains_on_the_convex_control():
    study = find("t4-variance-reduction")
    gaps = {}
    for rule in ("SGD", "SVRG"):
        method = f"convex, {rule}"
        settings = {
            **study.settings("quick", method),
            "train": 200,
            "passes": 18,
            "steps": [0.1, 1.0],
        }
        rows = list(study.loop(Trial(method, 0, settings)))
        assert [row["passes"] for row in rows if "gap" in row][-1] == 18
        gaps[rule] = rows[-1]["gap"]
    assert 1e-14 <= gaps["SVRG"] < gaps["SGD"] / 3


@pytest.mark.parametrize(
    ("sgd", "adam", "verdict"),
    [
        ([0.950, 0.952, 0.948], [0.90, 0.91, 0.90], "holds"),
        ([0.990, 0.991, 0.989], [0.90, 0.91, 0.90], "does not hold"),
        ([0.910, 0.911, 0.909], [0.90, 0.91, 0.90], "does not hold"),
        ([0.950, 0.952, 0.948], [0.97, 0.98, 0.97], "does not hold"),
        ([0.950, 0.952, 0.948], [0.93, 0.97, 0.95], "inconclusive"),
        ([0.930, 0.970, 0.950], [0.90, 0.91, 0.90], "inconclusive"),
    ],
)
def test_verdict_on_the_image_network(sgd, adam, verdict):
    def rows(accuracies):
        return [
            {"factor": 1.0, "test_accuracy": a, "validation_accuracy": 0.9, "validation_loss": 1.0}
            for a in accuracies
        ]

    ends = {"SGD with momentum": rows(sgd), "Adam": rows(adam), "Stochastic INGD": rows([0.95] * 3)}
    assert find("n3-image-network").judge(made_up("n3-image-network", ends)).verdict == verdict


def test_the_image_network_is_chosen_on_validation_data_and_read_at_x():
    study = find("n3-image-network")
    picked = {"validation_accuracy": 0.9, "validation_loss": 0.2, "test_accuracy": 0.7}
    others = [
        {**picked, "validation_loss": 0.3, "test_accuracy": 0.99},
        {**picked, "validation_accuracy": 0.8, "validation_loss": 0.1, "test_accuracy": 0.98},
    ]
    rows = tuple({**row, "factor": float(i)} for i, row in enumerate([*others, picked]))
    runs = [
        Run(Header(study.name, "N3", "quick", m, 0, {}), rows, End("done")) for m in study.methods
    ]
    assert study.judge(runs).numbers["accuracy"] == dict.fromkeys(study.methods, 0.7)
    settings = {**study.settings("quick", "Stochastic INGD"), "train": 64, "epochs": 1, "every": 1}
    found = list(study.loop(Trial("Stochastic INGD", 0, settings)))
    assert [row["factor"] for row in found] == [1.0, 1 / 3, 3.0]
    problem = digits_network(width=4, seed=stream_seed(0, "n3, 500"), train=64, validation=300)
    optimizer = StochasticINGD(
        problem.objective.parameters, weight_decay=5e-4, clip=None, seed=0
    )  # β, p, q as in 5.6
    order = torch_stream(0, "n3 order, 500")
    for _ in range(2):
        optimizer.zero_grad()
        problem.objective.value(problem.draw(order, 32)).backward()
        optimizer.step()
    at_y = float(problem.objective.value(problem.parts["test"]).detach())
    optimizer.eval()
    at_x = float(problem.objective.value(problem.parts["test"]).detach())
    assert found[0]["test_loss"] == pytest.approx(at_x, rel=1e-6)
    assert at_y != pytest.approx(at_x, rel=1e-6)


def over_fitting(
    wide: float, narrow: float, right: float = 1.0, narrow_right: float = 0.9
) -> list[Run]:
    study = find("e3-over-fitted")
    ends = {"wide: over-fits": (wide, right), "narrow: does not": (narrow, narrow_right)}
    return [
        Run(
            Header(study.name, "E3", "quick", method, seed, {}),
            tuple({"gradient_norm": g, "train_accuracy": accuracy} for g in (1.0, share)),
            End("done"),
        )
        for method, (share, accuracy) in ends.items()
        for seed in range(2)
    ]


@pytest.mark.parametrize(
    ("arguments", "verdict"),
    [
        ((0.001, 0.8), "holds"),
        ((0.3, 0.8), "does not hold"),
        ((0.001, 0.002), "does not hold"),
        ((0.03, 0.8), "inconclusive"),
        ((0.001, 0.8, 0.97), "inconclusive"),
        ((0.001, 0.8, 1.0, 1.0), "inconclusive"),
    ],
)
def test_verdict_on_over_fitting(arguments, verdict):
    assert find("e3-over-fitted").judge(over_fitting(*arguments)).verdict == verdict


def test_the_gradient_norm_is_that_of_all_training_data():
    study = find("e3-over-fitted")
    settings = {**study.settings("quick", "narrow: does not"), "steps": 2, "every": 1}
    rows = list(study.loop(Trial("narrow: does not", 0, settings)))
    assert [row["step"] for row in rows] == [0, 1, 2]
    problem = digits_network(width=1, seed=stream_seed(0, "e3"), train=settings["train"])
    problem.objective.value(problem.parts["train"]).backward()
    squares = [float(p.grad.double().square().sum()) for p in problem.objective.parameters]
    assert rows[0]["gradient_norm"] == pytest.approx(sum(squares) ** 0.5)


RNG = np.random.default_rng(1)
NOISE, WALK = 2 + 0.1 * RNG.standard_normal(400), 2 + 0.01 * np.cumsum(RNG.standard_normal(400))
FALL, SWING = np.linspace(2, 1.9, 400), 2 + 0.1 * np.sin(np.arange(400) / 44) + NOISE / 10


@pytest.mark.parametrize(
    ("series", "control", "verdict"),
    [
        ((NOISE, NOISE), FALL, "holds"),
        ((NOISE, WALK), FALL, "does not hold"),
        ((FALL, FALL), FALL, "does not hold"),
        ((NOISE, SWING), FALL, "does not hold"),  # it oscillates, and its average is not smooth
        ((NOISE, NOISE), NOISE, "inconclusive"),
        ((NOISE * np.linspace(2, 1, 400), NOISE), FALL, "inconclusive"),
    ],
)
def test_verdict_on_raw_losses(series, control, verdict):
    study = find("e6-raw-losses")
    runs = []
    for method in study.methods:
        loss, fixed = (control, control) if method.startswith("control") else series
        rows = tuple({"loss": float(a), "fixed": float(b)} for a, b in zip(loss, fixed))
        runs.append(Run(Header(study.name, "E6", "quick", method, 0, {}), rows, End("done")))
    assert study.judge(runs).verdict == verdict


def test_raw_losses_are_read_before_the_step_and_averaged():
    study = find("e6-raw-losses")
    method = next(m for m in study.methods if m.startswith("control"))
    rows = list(
        study.loop(Trial(method, 0, {**study.settings("quick", method), "steps": 8, "m": 16}))
    )
    assert [row["step"] for row in rows] == [5, 6, 7, 8]
    assert all(row["loss"] == row["fixed"] for row in rows)
    assert rows[-1]["average"] == pytest.approx(np.mean([row["loss"] for row in rows]))
    method = "convolutional network"
    rows = list(
        study.loop(Trial(method, 0, {**study.settings("quick", method), "steps": 8, "m": 16}))
    )
    assert all(row["loss"] != row["fixed"] for row in rows)
