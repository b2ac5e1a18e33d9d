"""N3, H12, S7 and T5 at scale gpu, on the CPU with a few made-up images: tuned, run, resumed,
judged.
"""

from __future__ import annotations

import math
import pickle
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from references.made_up_runs import made_up, verdicts
from torch import nn

from mindgap.base.check import RuleError
from mindgap.lab.studies.catalogue import find
from mindgap.lab.studies.control_variate import ControlVariate
from mindgap.lab.studies.loop import Trial
from mindgap.lab.studies.run import execute, plan, simulate
from mindgap.lab.studies.tune import tune
from mindgap.lab.tasks import models
from mindgap.lab.tasks.data import device_images
from mindgap.record.store import RunWriter, read_run

TINY = {"device": "cpu", "train": 48, "batch": 16, "epochs": 2, "every": 1}


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Images whose class is their brightness, and a small network with batch normalisation."""
    stream = torch.Generator().manual_seed(0)
    labels = torch.arange(64) % 4
    images = torch.randn(64, 3, 8, 8, generator=stream) * 0.3 + labels[:, None, None, None]
    monkeypatch.setattr(
        device_images,
        "cifar_on",
        lambda device: dict.fromkeys(("train", "validation", "test"), (images, labels)),
    )
    network = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 10)
    )
    monkeypatch.setattr(models, "ResNet20", lambda: pickle.loads(pickle.dumps(network)))


def test_n3_at_scale_gpu_gives_the_rows_that_its_rule_reads():
    runs = simulate(find("n3-image-network"), "gpu", seeds=2, **TINY)
    assert [(r.header.method, r.header.seed) for r in runs][::2] == [
        ("SGD with momentum", 0),
        ("Adam", 0),
        ("Stochastic INGD", 0),
    ]
    row = runs[0].rows[-1]
    assert (row["step"], row["factor"], row["panel"]) == (2, 1.0, "the tuned step")
    assert row["validation_error"] == pytest.approx(1 - row["validation_accuracy"], abs=1e-3)
    verdict = find("n3-image-network").verdict(runs)
    assert verdict.measured.startswith("ResNet20 on CIFAR-10: test accuracy")
    assert list(verdict.parts) == [
        "Stochastic INGD matches SGD, in points",
        "Stochastic INGD beats Adam",
    ]
    assert "SGD reaches 91%: failed" in verdict.gate
    assert verdict.verdict == "not trained"  # after two epochs of made-up images
    assert verdict.length == "2 of 100 epochs"
    trained = [
        replace(run, rows=(*run.rows[:-1], {**run.rows[-1], "test_accuracy": good}))
        for run, good in zip(runs, (0.92, 0.921, 0.88, 0.881, 0.8, 0.801), strict=True)
    ]
    assert find("n3-image-network").verdict(trained).verdict == "does not hold"


def test_n3_steps_fall_at_a_half_and_at_three_quarters():
    methods = find("n3-image-network").settings
    assert [methods("gpu", name)["schedule"] for name in find("n3-image-network").methods] == [
        "late drops",
        "constant",
        "late drops",
    ]


def test_h12_at_scale_gpu_has_a_gate_and_names_the_proxy():
    study = find("h12-images-acclip")
    runs = simulate(study, "gpu", seeds=2, factor=3.0, **TINY)
    steps = {"SGD with momentum": 0.3, "Adam": 0.003, "ACClip": 3.0}
    assert {r.header.method: r.rows[-1]["lr"] for r in runs} == pytest.approx(steps)
    verdict = study.verdict(runs)
    assert verdict.model == "proxy: ResNet20 on CIFAR-10, in place of ResNet50 on ImageNet"
    assert (verdict.verdict, "SGD reaches 91%: failed" in verdict.gate) == ("not trained", True)
    further = ["ACClip, normalised", "ACClip, second moment"]
    assert study.only("gpu", further).seeds("gpu") == dict.fromkeys(further, 5)
    trained = [
        replace(run, rows=(*run.rows[:-1], {**run.rows[-1], "test_accuracy": good}))
        for run, good in zip(runs, (0.92, 0.921, 0.88, 0.881, 0.9, 0.901), strict=True)
    ]
    assert study.verdict(trained).verdict == "holds"


S7, T5 = "s7-clipping-generalises", "t5-momentum-in-practice"


@pytest.mark.parametrize("name", [S7, T5])
def test_s7_and_t5_at_scale_gpu_give_the_rows_that_their_rules_read(name: str):
    study = find(name)
    runs = simulate(study, "gpu", seeds=2, factor=0.1, **TINY)
    assert len(runs) == 4
    assert len({run.rows[-1]["train_loss"] for run in runs if run.header.seed == 0}) == 2
    assert "ResNet20 on CIFAR-10" in study.verdict(runs).model
    assert study.grid
    assert not study.model("gpu").startswith("toy")


def accuracies(
    name: str, first: float, second: float, spread: float = 0.001, scale: str = "gpu"
) -> list:
    """Four seeds of the two methods, in the order of the study."""
    wobble = [-spread, spread, -spread / 2, spread / 2]
    values = zip(find(name).methods, (first, second), strict=True)
    return made_up(
        name,
        {
            m: [{"test_accuracy": a + (i and w), "lr": 1.0} for w in wobble]
            for i, (m, a) in enumerate(values)
        },
        scale,
    )


@verdicts(
    holds=[{}, {"second": 0.915}],
    refuted=[{"second": 0.93}, {"first": 0.95}],
    undecided=[{"spread": 0.05}],
)
def test_verdict_on_momentum(case, verdict):
    assert (
        find(T5).judge(accuracies(T5, **{"first": 0.91, "second": 0.91, **case})).verdict == verdict
    )


@pytest.mark.parametrize(
    ("case", "printed", "corrected"),
    [
        ({}, "does not hold", "holds"),
        ({"first": 0.955, "second": 0.956}, "holds", "holds"),
        ({"second": 0.89}, "does not hold", "does not hold"),
        ({"first": 0.955, "second": 0.955, "spread": 0.05}, "inconclusive", "inconclusive"),
        ({"scale": "quick"}, "holds", "holds"),  # the printed figure is about ResNet20
    ],
)
def test_verdict_on_the_accuracy_of_clipping(case, printed, corrected):
    verdict = find(S7).verdict(accuracies(S7, **{"first": 0.91, "second": 0.91, **case}))
    assert (verdict.as_printed, verdict.as_corrected) == (printed, corrected)


def test_a_grid_over_factors_chooses_on_validation_images(tmp_path: Path):
    study = find("n3-image-network")
    few = replace(
        study,
        grid={"factor": (0.1, 1.0)},
        methods={"Adam": study.methods["Adam"]},
        scales={"gpu": replace(study.scales["gpu"], methods={})},
    )
    found = tune(few, "gpu", tmp_path, grid=True, overrides=TINY)
    assert found.metric == "validation_error"
    assert len(found.methods["Adam"].trials) > 2
    with pytest.raises(
        RuleError, match="scale must be one at which a method has the settings factor"
    ):
        tune(study, "quick", tmp_path, grid=True)


@pytest.mark.parametrize("method", ["Adam", "Stochastic INGD"])
def test_a_run_goes_on_from_its_checkpoint_to_the_same_rows(method: str):
    study = find("n3-image-network")
    settings = study.settings("gpu", method, {**TINY, "epochs": 4})
    whole = list(study.loop(Trial(method, 0, settings)))
    trial = Trial(method, 0, settings)
    rows = study.loop(trial)
    head = [next(rows), next(rows)]
    kept = pickle.loads(pickle.dumps(trial.take_saved()()))
    assert head + list(study.loop(Trial(method, 0, settings, restored=kept))) == whole


def test_a_run_on_a_gpu_begins_after_its_last_checkpoint_whatever_rows_followed(tmp_path: Path):
    """A GPU does not repeat its last bits: rows after the last checkpoint are made anew, not
    compared.
    """

    def loop(trial: Trial):
        for step in range(trial.restored.get("step", 0), 3):
            yield {"step": step, "loss": next(numbers)}

    study = replace(find("n3-image-network"), loop=loop)
    numbers = iter([1.0, 2.0, 3.0])
    for device, end in (("cuda", "done"), ("cpu", "failed")):
        numbers = iter([1.0, 2.0, 3.0])
        header = plan(study, "gpu", seeds=1, overrides={"device": device}).headers[0]
        with RunWriter(tmp_path, header) as writer:
            writer.row({"step": 0, "loss": 1.5})
            writer.row({"step": 1, "loss": 2.5})
        assert execute(study, header, tmp_path).outcome == end
        if end == "done":
            assert [row["loss"] for row in read_run(writer.path).rows] == [1.0, 2.0, 3.0]


def test_s3_at_scale_gpu_measures_the_height_of_the_training_curve_and_goes_on_with_it():
    study, method = find("s3-clipping-speeds-up"), "convolutions, clipped"
    images = replace(study.scales["gpu"], seeds_of={"LSTM, clipped": 0, "LSTM, SGD": 0})
    runs = simulate(replace(study, scales={"gpu": images}), "gpu", seeds=2, **TINY)
    assert {r.header.method for r in runs} == {
        method,
        "convolutions, SGD",
        "convolutions, momentum",
    }
    settings = study.settings("gpu", method, {**TINY, "epochs": 3})
    whole = list(study.loop(Trial(method, 0, settings)))
    logs = [math.log(row["loss"]) for row in whole]
    assert whole[-1]["score"] == pytest.approx(sum(logs) / 3)
    trial = Trial(method, 0, settings)
    head = [next(study.loop(trial))]
    kept = pickle.loads(pickle.dumps(trial.take_saved()()))
    assert head + list(study.loop(Trial(method, 0, settings, restored=kept))) == whole
    verdict = study.verdict(runs)
    assert verdict.model == "AWD-LSTM on Penn Treebank and ResNet20 on CIFAR-10"
    assert len(verdict.parts) == 2  # of the parts about images


def test_t4_at_scale_gpu_compares_at_equal_passes_and_keeps_its_control(tmp_path: Path):
    study = find("t4-variance-reduction")
    small = {"epochs": 6, "every": 3, "device": "cpu", "batch": 16, "train": 48}
    for rule, readings in (("SGD", [3, 6]), ("SVRG", [3, 6])):
        rows = list(study.loop(Trial(rule, 0, study.settings("gpu", f"network, {rule}", small))))
        assert [row["passes"] for row in rows] == readings
        assert rows[-1]["gap"] == rows[-1]["train_loss"]
    control = study.settings("gpu", "convex, SVRG")
    assert {
        name: control[name] for name in study.settings("cpu", "convex, SVRG")
    } == study.settings("cpu", "convex, SVRG")
    assert control["model"] != "ResNet20"
    few = replace(study, grid={"factor": (0.3, 1.0)})
    assert list(tune(few, "gpu", tmp_path, grid=True, overrides=small).methods) == [
        "network, SGD",
        "network, SVRG",
    ]


def test_a_corrected_gradient_is_that_of_svrg():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double()
    batches = [(torch.randn(5, 3).double(),) for _ in range(3)]

    def loss(m: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return (m(x) - 1).square().mean()

    def gradient(m: nn.Module, batch: tuple[torch.Tensor]) -> list[torch.Tensor]:
        return list(torch.autograd.grad(loss(m, *batch), list(m.parameters())))

    control = ControlVariate(model, loss)
    control.refresh(batches)
    there = [gradient(model, batch) for batch in batches]
    with torch.no_grad():
        for p in model.parameters():
            p += 0.1
    value = control.loss(model, *batches[1])
    value.backward()
    assert float(value.detach()) == pytest.approx(float(loss(model, *batches[1]).detach()))
    for k, (p, g) in enumerate(zip(model.parameters(), gradient(model, batches[1]))):
        assert torch.allclose(p.grad, g - there[1][k] + sum(t[k] for t in there) / 3)


def _corrected_twice():
    """A control variate whose snapshot lies apart from its model; the model's trained parameters,
    the loss, a batch, and the constant that the correction adds to the gradient.
    """
    stream = torch.Generator().manual_seed(1)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1), nn.Linear(2, 2))
    model[0].bias.requires_grad_(False)  # and the last layer is never used
    batches = [(torch.randn(5, 3, generator=stream),) for _ in range(3)]

    def loss(m: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return (m[:3](x) - 1).square().mean()

    trained = [p for p in model.parameters() if p.requires_grad]

    def gradient(batch: tuple[torch.Tensor]) -> list[torch.Tensor]:
        return list(
            torch.autograd.grad(
                loss(model, *batch), trained, allow_unused=True, materialize_grads=True
            )
        )

    control = ControlVariate(model, loss)
    control.refresh(batches)
    there = [gradient(batch) for batch in batches]
    corrections = [sum(column) / 3 - column[0] for column in zip(*there)]
    with torch.no_grad():
        for p in trained:
            p += 0.1 * torch.randn(p.shape, generator=stream)
    return control, model, trained, loss, batches, corrections


#: Name -> what is made of a loss before ``backward``; it is linear in the loss.
LINEAR_USES = {
    "plain": lambda loss: loss(),
    "scaled up": lambda loss: 65536.0 * loss(),
    "the mean of two": lambda loss: loss() / 2 + loss() / 2,
    "negated": lambda loss: -loss(),
    "not used": lambda loss: 0.0 * loss(),
    "in double": lambda loss: 3.0 * loss().double(),
}


@pytest.mark.parametrize("name", LINEAR_USES)
def test_svrgs_correction_goes_with_what_is_made_of_the_loss(name):
    control, model, trained, loss, batches, corrections = _corrected_twice()
    LINEAR_USES[name](lambda: control.loss(model, *batches[0])).backward()

    def with_line() -> (
        torch.Tensor
    ):  # the same loss, plus the line that has the correction as slope
        line = sum((c * p).sum() for c, p in zip(corrections, trained))
        return loss(model, *batches[0]) + line

    expected = torch.autograd.grad(LINEAR_USES[name](with_line), trained)
    for p, g in zip(trained, expected):
        torch.testing.assert_close(p.grad, g)


def test_svrgs_loss_has_a_second_backward_pass_and_second_derivatives():
    control, model, trained, loss, batches, corrections = _corrected_twice()
    value = control.loss(model, *batches[0])
    value.backward(retain_graph=True)
    once = [p.grad.clone() for p in trained]
    value.backward()
    for p, g in zip(trained, once):
        torch.testing.assert_close(p.grad, 2 * g)

    def curved(value: torch.Tensor) -> list[torch.Tensor]:
        """The gradient of ‖∇(value²)‖², which has second derivatives of the value."""
        first = torch.autograd.grad(
            value.square(), trained, create_graph=True, materialize_grads=True
        )
        norm = sum(g.square().sum() for g in first)
        return torch.autograd.grad(norm, trained, materialize_grads=True)

    ours = curved(control.loss(model, *batches[0]))
    base = [p.detach().clone() for p in trained]
    line = sum((c * (p - b)).sum() for c, p, b in zip(corrections, trained, base))
    expected = curved(loss(model, *batches[0]) + line)
    for a, b in zip(ours, expected):
        torch.testing.assert_close(a, b)


def test_svrgs_loss_is_the_loss_alone_without_autograd():
    control, model, _, loss, batches, _ = _corrected_twice()
    with torch.no_grad():
        assert torch.equal(control.loss(model, *batches[0]), loss(model, *batches[0]))


def test_svrg_refuses_what_it_cannot_correct():
    model, x = nn.Linear(2, 3), torch.ones(4, 2)
    control = ControlVariate(model, lambda m, x: m(x).mean(0))
    with pytest.raises(RuleError, match="batches must be given to refresh before loss is called"):
        control.loss(model, x)
    with pytest.raises(RuleError, match=r"batches must hold at least one batch, got \[\]"):
        control.refresh([])
    control = ControlVariate(model, lambda m, x: m(x).mean(0)[: 1 if m is not model else 3])
    control.refresh([(x,)])
    with pytest.raises(RuleError, match=r"loss must return a tensor with one element, got \(3,\)"):
        control.loss(model, x)
    with pytest.raises(RuleError, match=r"model must train .*\(3, 2\), \(3,\)\], got \[\(1, 2\)"):
        control.loss(nn.Linear(2, 1), x)


def test_s2_at_scale_gpu_reads_smoothness_along_the_steps_and_leaves_training_as_it_was():
    study, method = find("s2-smoothness-image-model"), "clipped, step 5"
    assert list(study.seeds("gpu")) == ["SGD with momentum", "not clipped, step 1", method]
    assert method not in study.seeds("quick")
    settings = study.settings("gpu", method, {**TINY, "every": 2, "m": 32, "part": 16})
    rows = list(study.loop(Trial(method, 0, settings)))
    assert [row["step"] for row in rows] == [2, 4, 6]
    assert all(row["smoothness"] > 0 and row["length"] > 0 for row in rows)
    rare = list(study.loop(Trial(method, 0, {**settings, "every": 6})))
    assert rare[-1]["validation_loss"] == rows[-1]["validation_loss"]
