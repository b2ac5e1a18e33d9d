"""H2, H6 and H12: the loops run small, and every verdict can come out each way."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from references.made_up_runs import made_up, verdicts

from mindgap.lab.studies.catalogue import find
from mindgap.lab.studies.loop import Trial
from mindgap.record.schema import content_hash

sys.path.insert(0, str(Path(__file__).parents[2]))
import recompute_verdicts

H2, H6, H12 = "h2-noise-drifts", "h6-attention-noise", "h12-images-acclip"


def moments(kind: str, control: float = 0.06) -> list[dict]:
    """The readings of a run: two samples of the start, then three moments."""
    row = {
        "spread": 1.3,
        "index": 5.0,
        "heavier": 0.0,
        "loss": 1.0,
        "level": 1.0,
        "null": 0.06,
        "p_value": 0.5,
    }
    later = {
        "drifts": (0.3, 0.002),
        "keeps": (0.07, 0.4),
        "small but sure": (0.09, 0.002),
        "chance": (0.12, 0.02),
    }
    distance, p_value = later[kind]
    start = {**row, "distance": control, "p_value": 0.002 if control > 0.1 else 0.5}
    return [
        {"norm": 1.0, "share": 0.5},
        start,
        {**row, "distance": 0.05},
        {**row, "distance": 0.05},
        {**row, "distance": distance, "p_value": p_value},
    ]


@pytest.mark.parametrize(
    ("text", "image", "verdict"),
    [
        (["drifts"] * 3, ["keeps"] * 3, "holds"),
        (["drifts"] * 3, ["small but sure"] * 3, "holds"),
        (["drifts"] * 4 + ["keeps"], ["keeps"] * 5, "holds"),
        (["keeps"] * 3, ["keeps"] * 3, "does not hold"),
        (["drifts"] * 3, ["drifts"] * 3, "does not hold"),
        (["keeps"] * 3, ["drifts"] * 3, "does not hold"),
        (["drifts", "drifts", "keeps"], ["keeps"] * 3, "inconclusive"),
        (["drifts"] * 3, ["keeps", "chance", "keeps"], "inconclusive"),
        (["drifts"] * 2, ["keeps"] * 2, "inconclusive"),
    ],
)
def test_verdict_on_drift(text, image, verdict):
    kinds = {"transformer": text, "convolutional network": image}
    runs = made_up(
        H2, {method: [moments(kind) for kind in seeds] for method, seeds in kinds.items()}
    )
    found = find(H2).judge(runs)
    assert found.verdict == verdict
    assert found.numbers["transformer"]["drift"] == text.count("drifts")


def test_a_control_that_drifts_decides_nothing():
    runs = made_up(
        H2,
        {
            "transformer": [moments("drifts"), moments("drifts", 0.2), moments("drifts")],
            "convolutional network": [moments("keeps")] * 3,
        },
    )
    found = find(H2).judge(runs)
    assert found.verdict == "inconclusive"
    assert "two samples of one moment are told apart in 1 runs" in found.measured


@pytest.mark.parametrize("method", ["transformer", "convolutional network"])
def test_the_drift_loop_reads_every_moment(method):
    study = find(H2)
    settings = {**study.settings("quick", method), "moments": [1, 2], "minibatches": 40, "batch": 2}
    rows = list(study.loop(Trial(method, 0, settings)))
    columns = {name for row in rows for name in row}
    assert {f.y for f in study.figures} | {f.x for f in study.figures} | {"moment"} <= columns
    readings = [row for row in rows if "distance" in row]
    assert [row["step"] for row in readings] == [0, 1, 2]
    assert (
        readings[0]["distance"] == readings[0]["distance_before"]
    )  # both are the start's first sample
    start = settings["words"] if method == "transformer" else 10
    assert readings[0]["loss"] == pytest.approx(np.log(start), rel=0.1)
    assert all(np.isfinite(v) for row in rows for v in row.values() if isinstance(v, float))


def test_a_network_that_stands_still_keeps_its_shape():
    """With a step of zero all moments are one: the whole chain from noise to verdict says so."""
    study, method = find(H2), "convolutional network"
    settings = {**study.settings("quick", method), "moments": [1, 2], "minibatches": 200, "lr": 0.0}
    readings = [row for row in study.loop(Trial(method, 0, settings)) if "distance" in row]
    assert all(row["p_value"] > 0.005 for row in readings)
    assert readings[0]["level"] == pytest.approx(readings[2]["level"], rel=0.1)


STATED = {
    "attention, text": 1.0,
    "attention, Gaussian input": 1.0,
    "no attention, text": 1.0,
    "no attention, Gaussian input": 0.0,
    "Gaussian vectors": 0.0,
    "stable vectors": 1.0,
}


@verdicts(
    refuted=[
        {"attention, text": 0.0},
        {"attention, Gaussian input": 0.0},
        {"no attention, text": 0.0},
        {"no attention, Gaussian input": 1.0},
    ],
    undecided=[
        {"no attention, Gaussian input": 0.5},
        {"stable vectors": 0.0, "attention, text": 0.0},
        {"Gaussian vectors": 1.0},
    ],
)
def test_verdict_on_attention(case, verdict):
    rest = {"hill_index": 5.0, "settles": 1.0, "exponent": 0.0, "largest": 3.0}
    ends = {
        name: [{"hill_heavier": heavy, **rest}] * 3 for name, heavy in {**STATED, **case}.items()
    }
    law = [name for name in ends if name.endswith("vectors")]
    cells = [name for name in find(H6).seeds("gpu") if name not in law]
    crossed = {name: ends[name.split(", batch")[0]] for name in cells}
    runs = made_up(H6, {**crossed, **{name: ends[name] for name in law}}, scale="gpu")
    assert find(H6).judge(runs).verdict == verdict
    # a toy whose windows all have one length decides nothing
    assert find(H6).judge(made_up(H6, ends)).verdict == "inconclusive"


@pytest.mark.parametrize(
    ("cell", "verdict"),
    [
        ("attention, text, batch 1, fixed", "holds"),
        ("attention, text, batch 1, real", "inconclusive"),
    ],
)
def test_the_fixed_pipeline_decides_nothing_and_sizes_that_disagree_neither(cell, verdict):
    rest = {"hill_index": 5.0, "settles": 1.0, "exponent": 0.0, "largest": 3.0}
    ends = {
        name: [{"hill_heavier": STATED[name.split(", batch")[0]], **rest}] * 3
        for name in find(H6).seeds("gpu")
    }
    ends[cell] = [{"hill_heavier": 0.0, **rest}] * 3
    assert find(H6).judge(made_up(H6, ends, scale="gpu")).verdict == verdict


#: Losses over the best guess of trained networks that pass their gates.
LEARNT = {
    "attention, text": -3.0,
    "attention, Gaussian input": 0.02,
    "no attention, text": 0.05,
    "no attention, Gaussian input": 0.0,
}


def trained(answers=(), losses=(), single=()):
    """Runs at scale trained.

    Args:
        answers: cell -> its answer in all seeds, where it is not the papers'.
        losses: cell -> the loss of its last seed over the best guess, where it passes in the rest.
        single: method -> its answer, where it is not that of its cell.
    """
    rest, ends = {"hill_index": 5.0, "settles": 1.0, "exponent": 0.0, "largest": 3.0}, {}
    for name in find(H6).seeds("trained"):
        cell = name.split(", batch")[0]
        heavy = dict(single).get(name, {**STATED, **dict(answers)}[cell])
        above = LEARNT.get(cell)
        ends[name] = [[{"hill_heavier": heavy, **rest}] for _ in range(3)]
        for seed in range(3) if above is not None else ():
            over = dict(losses).get(cell, above) if seed == 2 else above
            ends[name][seed].append({"validation_loss": 6.0 + over, "best_guess": 6.0})
    return made_up(H6, ends, scale="trained")


UNTRAINED = "no attention, text"
SIZES = {f"{UNTRAINED}, batch 32, real": 0.0}
REFUTING = {"attention, text": 0.0}


@pytest.mark.parametrize(
    ("runs", "verdict"),
    [
        (trained(), "holds"),
        *(
            (trained({cell: 1 - heavy}), "does not hold")
            for cell, heavy in list(STATED.items())[:4]
        ),
        (trained({UNTRAINED: 0.5}), "inconclusive"),
        (trained({"stable vectors": 0.0}), "inconclusive"),
        (trained(single=SIZES), "inconclusive"),
        *((trained(losses={cell: 0.2}), "not trained") for cell in LEARNT),
        (trained(losses={"attention, text": -0.9}), "not trained"),
        (trained(losses={UNTRAINED: np.nan}), "not trained"),
        # What an untrained network says decides nothing.
        (trained({UNTRAINED: 0.0}, {UNTRAINED: 0.2}), "not trained"),
        (trained(losses={UNTRAINED: 0.2}, single=SIZES), "not trained"),
        (trained({"stable vectors": 0.0, **REFUTING}, {UNTRAINED: 0.2}), "not trained"),
        (trained(REFUTING, {UNTRAINED: 0.2}, SIZES), "does not hold"),
    ],
)
def test_verdict_on_trained_attention(runs, verdict):
    study = find(H6)
    found = study.verdict(runs)
    assert found.verdict == verdict
    assert ("failed" in found.gate) == (verdict == "not trained")
    assert found.length == study.lengths["trained"]
    records = [{"header": asdict(run.header), "rows": run.rows} for run in runs]
    assert recompute_verdicts.noise(records) == verdict


def test_a_cell_whose_network_is_not_trained_is_said_to_be_and_stays_open():
    found = find(H6).verdict(trained({UNTRAINED: 0.0, **REFUTING}, {UNTRAINED: 0.2}))
    assert found.verdict == "does not hold"
    cells = [f"{UNTRAINED}, batch {batch}, real" for batch in (1, 32)]
    assert [found.parts[cell] for cell in cells] == ["open", "open"]
    assert f"{cells[0]}: open (not trained, heavy-tailed no" in found.measured
    assert f"{UNTRAINED}: not trained (loss at masked places 6.20 at most" in found.measured
    gates = [gate.partition(":")[0] for gate in found.gate.split("; ")]
    assert gates == [cell for cell in LEARNT if cell != UNTRAINED]


def test_the_registered_rule_of_the_start_is_not_touched_by_that_of_trained_networks():
    study = find(H6)
    assert content_hash(study.registered_content("gpu")) == "1062a0cd2930"
    assert study.registered_content("trained")["rule"] != study.rule == study.describe("gpu").rule
    assert study.describe("trained").rule == study.registered_content("trained")["rule"]
    settings = [study.registered_content(scale)["settings"] for scale in ("gpu", "trained")]
    assert settings[0].keys() == settings[1].keys()
    for name, own in settings[0].items():
        assert {**own, "state": "trained"} == settings[1][name]


def test_two_seeds_say_nothing_about_attention():
    rest = {"hill_index": 5.0, "settles": 1.0, "exponent": 0.0, "largest": 3.0}
    rows = {name: [{"hill_heavier": heavy, **rest}] * 2 for name, heavy in STATED.items()}
    assert find(H6).judge(made_up(H6, rows)).verdict == "inconclusive"


@pytest.mark.parametrize(
    "method", ["attention, text", "no attention, Gaussian input", "stable vectors"]
)
def test_the_attention_loop_yields_what_the_verdict_and_the_figures_need(method):
    study = find(H6)
    settings = {**study.settings("quick", method), "minibatches": 130, "batch": 2}
    rows = list(study.loop(Trial(method, 0, settings)))
    columns = {name for row in rows for name in row}
    needed = {"hill_heavier", "settles", "largest", "panel"}
    assert needed | {f.y for f in study.figures} | {f.x for f in study.figures} <= columns
    assert {row["panel"] for row in rows} == {
        "controls" if "vectors" in method else method.split(", ")[1]
    }


@pytest.mark.parametrize("attention", [True, False])
def test_only_attention_looks_back(attention):
    """Another first word changes the scores of the later places through the attention, and
    through nothing else.
    """
    import torch

    from mindgap.lab.tasks.models import SmallTransformer

    torch.manual_seed(0)
    model = SmallTransformer(words=20, width=8, heads=2, length=4, attention=attention)
    scores = model(torch.tensor([[1, 2, 3, 4], [5, 2, 3, 4]]))
    assert torch.equal(scores[0, 1:], scores[1, 1:]) is not attention
    assert not torch.equal(scores[0, 0], scores[1, 0])


def test_gaussian_input_has_the_scale_of_the_embedding_and_keeps_the_words_to_predict():
    import torch

    from mindgap.lab.tasks.problems.training import prose_transformer

    draws = [
        prose_transformer(gaussian=g, seed=1).draw(torch.Generator().manual_seed(3), 400)
        for g in (False, True)
    ]
    vectors, targets = draws[1]
    assert torch.equal(targets, draws[0][:, 1:])
    count = vectors.numel()
    assert abs(float(vectors.mean())) < 4 * 0.02 / count**0.5
    assert abs(float(vectors.var()) / 0.02**2 - 1) < 4 * (2 / count) ** 0.5
    table = prose_transformer(seed=1).objective.model.words.weight
    assert float(vectors.std()) == pytest.approx(float(table.detach().std()), rel=0.02)


def accuracies(acclip: float, sgd: float, spread: float) -> list:
    """Six seeds: Adam at 0.9, the others above it by these, with a spread over the seeds."""
    wobble = spread * np.array([-1.0, 1.0, -0.5, 0.5, 0.2, -0.2])
    means = {
        "SGD with momentum": 0.9 + sgd,
        "Adam": 0.9,
        "ACClip": 0.9 + acclip,
        "ACClip, normalised": 0.5,
    }
    return made_up(
        H12,
        {
            m: [
                {"test_accuracy": a + w * (m == "ACClip"), "lr": 0.1, "train_loss": 0.3}
                for w in wobble
            ]
            for m, a in means.items()
        },
    )


@pytest.mark.parametrize(
    ("acclip", "sgd", "spread", "verdict"),
    [
        (0.02, 0.04, 0.002, "holds"),
        (0.02, 0.04, 0.05, "inconclusive"),
        (-0.02, 0.04, 0.002, "does not hold"),  # below Adam
        (0.04, 0.02, 0.002, "does not hold"),  # above SGD
        (
            0.002,
            0.04,
            0.0005,
            "does not hold",
        ),  # above Adam, and certainly by less than half a point
        (0.0, 0.04, 0.02, "inconclusive"),
    ],
)
def test_verdict_on_images(acclip, sgd, spread, verdict):
    found = find(H12).judge(accuracies(acclip, sgd, spread))
    assert found.verdict == verdict
    assert (
        found.numbers["ACClip"]["ends"] == 6
    )  # 0.1 is the first of its list, and the middle of none
    assert found.numbers["SGD with momentum"]["ends"] == 0


def test_one_seed_says_nothing_about_images():
    runs = [run for run in accuracies(0.02, 0.04, 0.001) if run.header.seed == 0]
    assert find(H12).judge(runs).verdict == "inconclusive"


def test_images_are_tuned_on_the_validation_part_with_as_many_candidates_each():
    study = find(H12)
    counts = set()
    for method in study.seeds("quick"):
        settings = {
            **study.settings("quick", method),
            "train": 64,
            "steps": 4,
            "every": 2,
            "batch": 4,
            "width": 4,
        }
        rows = list(study.loop(Trial(method, 0, settings)))
        tried, final = rows[: len(settings["candidates"])], rows[len(settings["candidates"]) :]
        counts.add(len(tried))
        steps = np.array(settings["candidates"])
        assert np.all(np.abs(steps[1:] / steps[:-1] - 10**0.5) < 0.3)  # three or three and a third
        best = min(tried, key=lambda row: row["candidate_score"])
        assert [row["step"] for row in final] == [2, 4]
        assert {row["lr"] for row in final} == {best["candidate"]}
        assert all(0 <= row["test_accuracy"] <= 1 for row in final)
        assert not any("test" in name for row in tried for name in row)
    assert counts == {5}


def test_a_choice_is_by_accuracy_and_ties_are_by_loss():
    study, method = find(H12), "SGD with momentum"
    settings = {
        **study.settings("quick", method),
        "candidates": [1e6, 1e-9, 0.1],
        "train": 500,
        "steps": 40,
        "every": 40,
    }
    rows = list(study.loop(Trial(method, 0, settings)))
    worst, still, moved = (row["candidate_score"] for row in rows[:3])
    assert all(np.isfinite([worst, still, moved]))
    assert min(still, worst) > 0.7  # one in ten by chance
    assert rows[-1]["lr"] == rows[np.argmin([worst, still, moved])]["candidate"]
    assert rows[-1]["validation_error"] == pytest.approx(
        1 - rows[-1]["validation_accuracy"], abs=2e-4
    )


def test_colour_images_are_split_like_digits_and_another_start_keeps_the_split(monkeypatch):
    import torch

    from mindgap.lab.studies.training_runs import image_problem
    from mindgap.lab.tasks.data import Table
    from mindgap.lab.tasks.problems import training

    rng = np.random.default_rng(0)
    table = Table(rng.random((40, 3072)), rng.integers(0, 10, 40), "made up")
    monkeypatch.setattr(training, "_cifar", lambda: table)
    settings = {"images": "cifar10", "width": 2, "train": 20, "validation": 12}
    first, second = (image_problem(settings, seed=3, start=start) for start in (3, 4))
    assert {name: tuple(images.shape) for name, (images, _) in first.parts.items()} == {
        "train": (20, 3, 32, 32),
        "validation": (12, 3, 32, 32),
        "test": (8, 3, 32, 32),
    }
    assert all(torch.equal(first.parts[name][0], second.parts[name][0]) for name in first.parts)
    assert not torch.equal(first.objective.parameters[0], second.objective.parameters[0])
    assert torch.equal(
        image_problem(settings, seed=3).objective.parameters[0], first.objective.parameters[0]
    )
    pixels = np.concatenate([images.numpy().ravel() for images, _ in first.parts.values()])
    assert pixels.mean() == pytest.approx(0.0, abs=1e-5)
    assert pixels.std() == pytest.approx(1.0, rel=1e-3)
    assert first.objective.value(first.draw(torch.Generator().manual_seed(0), 5)).isfinite()
