"""H1, H2, H6 and H11 at scale gpu, at a tiny size on the CPU with made-up text and images."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from references.made_up_runs import made_up, verdicts

from mindgap.lab.studies.bilevel_runs import vector_text
from mindgap.lab.studies.catalogue import find
from mindgap.lab.studies.catalogue.heavy_tails.h6_attention_noise import STATED
from mindgap.lab.studies.loop import Trial
from mindgap.lab.studies.noise_runs import noise_at_start, trained_bert
from mindgap.lab.studies.training_runs import Training
from mindgap.lab.tasks.problems import papers, word_pieces
from mindgap.measure import captured_noise

TINY = {
    "device": "cpu",
    "minibatches": 130,
    "reference": 6,
    "coordinates": 20,
    "batch": 2,
    "words": 40,
    "text_width": 8,
    "layers": 1,
    "length": 8,
    "held_out": 8,
}
H1, H2, H6, H11 = (
    "h1-gradient-noise",
    "h2-noise-drifts",
    "h6-attention-noise",
    "h11-coordinates-or-norms",
)


@pytest.fixture(autouse=True)
def measured(tmp_path, monkeypatch) -> list[Any]:
    """Data without files; returns the list of noise samples that were measured."""
    rng, calls, measure = np.random.default_rng(0), [], captured_noise.captured_noise
    pieces = rng.integers(5, 40, 1000).astype(np.int32)
    images, labels = (
        torch.tensor(rng.standard_normal((40, 3, 8, 8))).float(),
        torch.tensor(rng.integers(0, 10, 40)),
    )
    monkeypatch.setenv("MINDGAP_CACHE", str(tmp_path))
    parts = {"train": pieces, "valid": pieces[:300], "test": pieces[300:600]}
    monkeypatch.setattr(papers, "wikitext_pieces", lambda size: parts)
    monkeypatch.setattr(word_pieces, "wikitext_pieces", lambda size, **_: parts)
    monkeypatch.setattr(papers, "cifar_on", lambda device: {"train": (images, labels)})
    monkeypatch.setattr(
        captured_noise, "captured_noise", lambda *a, **k: calls.append(k) or measure(*a, **k)
    )
    return calls


def rows_of(name: str, method: str, **more: Any) -> list[dict]:
    study = find(name)
    return list(study.loop(Trial(method, 0, {**study.settings("gpu", method), **TINY, **more})))


@pytest.mark.parametrize("name", [H1, H2, H6, H11])
def test_scale_gpu_has_thousands_of_minibatches_and_names_its_proxies(name):
    study = find(name)
    assert study.scales["gpu"].seeds >= 3  # the rules of H2 and H6 ask for three
    for method in study.seeds("gpu"):
        settings = study.settings("gpu", method)
        assert settings["minibatches"] >= (10_000 if name in (H1, H6) else 20_000)
        assert settings["device"] == "cuda"
    assert all(word in study.model("gpu") for word in ("prox", "WikiText-2", "in place of"))
    assert "cannot be settled" in study.differs


def test_studies_that_need_the_same_sample_measure_it_once(measured):
    """Norms alone: the rows about them take seconds per cell."""

    def largest(name: str, method: str) -> float:
        study = find(name)
        settings = {**study.settings("gpu", method), **TINY, "batch": 1, "coordinates": 0}
        cell = {
            "attention": settings.get("attention", True),
            "gaussian": settings.get("input") == "Gaussian input",
        }
        return float(noise_at_start(Trial(method, 0, settings), "bert", **cell).norms.max())

    first = largest(H1, "BERT, batch 1, fixed, start")
    assert largest(H6, "attention, text, batch 1, fixed") == first
    assert len(measured) == 1
    cells = [f"{cell}, batch 1, {pipeline}" for cell in STATED for pipeline in ("fixed", "real")]
    assert len({largest(H6, cell) for cell in cells}) == len(measured) == 8
    assert rows_of(H6, cells[0], batch=1, coordinates=0)[-1]["largest"] > 1
    assert len(measured) == 8


def test_a_trained_bert_is_trained_once_and_its_loss_is_recorded(measured, monkeypatch):
    more = {"train_steps": 3, "train_batch": 4, "coordinates": 0, "held_out": 8}
    start = rows_of(H1, "BERT, batch 1, real, start", **more)
    rows = rows_of(H1, "BERT, batch 1, real, trained", **more)
    assert rows[-1]["validation_loss"] > 0 < rows[-1]["by_frequency"]
    assert "validation_loss" not in start[-1]
    assert rows[-2]["largest"] != start[-1]["largest"]
    monkeypatch.setattr(Training, "step", None)  # it is not trained again
    assert rows_of(H1, "BERT, batch 1, fixed, trained", **more)[-1] == rows[-1]


@pytest.mark.parametrize("cell", STATED)
def test_every_cell_of_attention_is_trained_by_the_same_steps_and_read_as_its_gate_asks(
    cell, measured, monkeypatch
):
    more = {"train_steps": 3, "train_batch": 4, "coordinates": 0, "held_out": 8, "batch": 1}
    study, step, steps = find(H6), Training.step, []
    monkeypatch.setattr(Training, "step", lambda *a: steps.append(a[-1]) or step(*a))

    def rows(method: str, scale: str) -> list[dict]:
        settings = {**study.settings(scale, method), **TINY, **more}
        return list(study.loop(Trial(method, 0, settings)))

    first = rows(f"{cell}, batch 1, real", "trained")
    assert len(steps) == 3
    assert steps[0] > steps[-1]  # Adam's step falls
    assert len(measured) == 1
    assert set(first[-1]) == {"validation_loss", "best_guess"}
    assert all(0 < value < 10 for value in first[-1].values())
    text = word_pieces.masked_text(words=40, length=8, held_out=8, reviews=False)
    guesses = {sees: text.best_guess("validation", sees=sees) for sees in (False, True)}
    assert abs(guesses[True] - guesses[False]) > 1e-3
    assert first[-1]["best_guess"] == pytest.approx(guesses["Gaussian" not in cell])
    norms = [row["norms"] for row in first if "norms" in row]
    settings = {**study.settings("gpu", f"{cell}, batch 1, real"), **TINY, **more}
    at_start = noise_at_start(Trial("", 0, settings), "bert", **network(cell))
    assert norms != [vector_text(at_start.norms / np.median(at_start.norms))]
    # The other pipeline and size are measured on the same network.
    settings = {**study.settings("trained", f"{cell}, batch 1, fixed"), **TINY, **more}
    _, loss, _ = trained_bert(Trial("", 0, settings), **network(cell))
    assert (loss, len(steps)) == (first[-1]["validation_loss"], 3)


def network(cell: str) -> dict[str, bool]:
    return {
        "attention": cell.startswith("attention"),
        "gaussian": cell.endswith("Gaussian input"),
    }


def test_the_four_trained_networks_are_four_and_controls_need_none(measured):
    more = {"train_steps": 2, "train_batch": 4, "coordinates": 0, "held_out": 8, "batch": 1}
    study = find(H6)
    settings = {**study.settings("trained", "attention, text, batch 1, real"), **TINY, **more}
    losses = {trained_bert(Trial("", 0, settings), **network(cell))[1] for cell in STATED}
    assert len(losses) == 4
    for law in ("Gaussian vectors", "stable vectors"):
        rows = list(study.loop(Trial(law, 0, {**study.settings("trained", law), **TINY})))
        assert not any("best_guess" in row for row in rows)


def test_the_best_guess_without_other_places_is_a_law_of_chance_and_the_frequencies_are_worse():
    """For every piece shown the chances of all answers sum to 1; on masked windows nobody who
    trusts the shown piece more or less does better.
    """
    from mindgap.lab.tasks.problems.word_pieces import MaskedText, masked_pieces

    words = 9
    frequency = torch.tensor([0, 0, 0, 0, 0, 0.55, 0.3, 0.1, 0.05])
    train = frequency.multinomial(50_000, True, generator=torch.Generator().manual_seed(0))
    place = torch.zeros(1, 1, dtype=torch.long)

    def chance(shown: int, answer: int) -> float:
        part = torch.tensor([[shown]]), place, torch.tensor([[answer]])
        return float(np.exp(-MaskedText(train, {"test": part}, words, 1).best_guess("test")))

    for shown in (4, 5, 6, 7, 8):
        assert sum(chance(shown, a) for a in (5, 6, 7, 8)) == pytest.approx(1.0, rel=1e-3)
    assert chance(8, 8) < chance(5, 5)  # a rare piece rather came at random
    windows = train[:20_000].view(500, 40)
    part = masked_pieces(windows, words, torch.Generator().manual_seed(1))
    other = masked_pieces(train[20_000:40_000].view(500, 40), words, torch.Generator())
    text = MaskedText(train, {"test": part, "validation": other}, words, 40)
    best = text.best_guess("test")
    assert best < text.best_guess("test", sees=False) - 0.02
    assert text.best_guess("test", sees=False) == pytest.approx(text.by_frequency())
    of_validation = text.best_guess("validation", sees=False)
    assert of_validation == pytest.approx(text.by_frequency("validation"))
    shown = part[0].take_along_dim(part[1], dim=1)
    for trust in (0.1, 0.5, 0.99):
        guess = (1 - trust) * frequency[part[2]] + trust * (shown == part[2])
        loss = torch.where(shown == 4, frequency[part[2]], guess).log().mean()
        assert best < float(-loss)


def test_images_at_gpu(measured):
    rows = rows_of(H1, "convolutional network")
    assert rows[-1]["largest"] > 1
    found = rows_of(H11, "convolutional network")
    assert found[0]["index"] == pytest.approx(found[-1]["published"])


def test_images_in_training_have_wrong_labels_anew_at_every_draw_and_those_at_the_start_none(
    measured,
):
    shares = {name: find(name).settings("gpu", "convolutional network") for name in (H1, H2, H11)}
    assert {name: s.get("wrong_labels", 0.0) for name, s in shares.items()} == {
        H1: 0.0,
        H2: 0.2,
        H11: 0.0,
    }
    images, labels = papers.cifar_on("cpu")["train"]
    problem = papers.image_network("resnet20", wrong_labels=0.5)
    generator, kept = torch.Generator().manual_seed(0), []
    for _ in range(2):
        drawn, given = problem.draw(generator, 400)
        same = (drawn[:, None] == images[None]).flatten(2).all(2).float().argmax(1)
        kept.append((labels[same] == given).float().mean().item())
    assert kept == [pytest.approx(0.55, abs=0.08)] * 2


@pytest.mark.parametrize("method", ["transformer", "convolutional network"])
def test_drift_at_gpu_starts_with_the_shared_sample_and_resumes(method, measured):
    study, more = (
        find(H2),
        {"moments": [2, 3], "train_batch": 4, "lr": 0.01, "minibatches": 32, "reference": 3},
    )
    settings = {**study.settings("gpu", method), **TINY, **more}
    noise_at_start(Trial(method, 0, settings), "bert" if method == "transformer" else "resnet20")
    whole = Trial(method, 0, settings)
    rows, saved = [], {}
    for row in study.loop(whole):
        rows.append(row)
        state = whole.take_saved()
        if state is not None:
            saved[row["step"]] = torch_copy(state())
    assert len(measured) == 1 + 3  # the control and two moments
    readings = [row for row in rows if "distance" in row]
    assert [row["step"] for row in readings] == [0, 2, 3]
    assert readings[0]["level"] != readings[2]["level"]
    again = list(study.loop(Trial(method, 0, settings, restored=saved[2])))
    assert [row for row in again if "distance" in row] == [pytest.approx(readings[2], rel=1e-6)]


H16 = "h16-noise-of-the-appendix"


@pytest.mark.parametrize("method", ["transformer", "convolutional network"])
def test_the_appendix_at_gpu_reads_norms_at_every_moment_and_one_minibatch_at_the_start(
    method, monkeypatch
):
    monkeypatch.setattr(
        papers, "AlexNet", lambda: torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, 10))
    )
    rows = rows_of(H16, method, moments=[2], train_batch=4, minibatches=40, reference=3)
    readings = [row for row in rows if "block_sum" in row]
    assert [row["step"] for row in readings] == [0, 2]
    assert ["within" in row for row in readings] == [True, False]
    assert 0 < readings[0]["within"] < 3


def appendix(*, heavier=0.0, within=1.3, text=1.5, image=1.9):
    """Two seeds with two moments; these of the image network, and the published index of both."""
    ends = {"transformer": text, "convolutional network": image}
    return made_up(
        H16,
        {
            name: [
                [
                    {"step": 0, "within": within, "block_sum": index, "heavier": 0.0},
                    {"step": 60, "block_sum": index + 0.1, "heavier": heavier},
                ]
            ]
            * 2
            for name, index in ends.items()
        },
    )


@verdicts(
    refuted=[{"heavier": 1.0}, {"within": 1.9}, {"text": 1.95}],
    undecided=[{"heavier": 0.5, "within": 1.9}],
)
def test_verdict_on_the_appendix(case, verdict):
    assert find(H16).judge(appendix(**case)).verdict == verdict


def test_the_appendix_names_its_proxies():
    assert all(
        word in find(H16).model("gpu")
        for word in ("prox", "AlexNet on CIFAR-10", "WikiText-2", "in place of")
    )
    assert "cannot be settled" in find(H16).differs


def torch_copy(state: dict[str, Any]) -> dict[str, Any]:
    """What a checkpoint file would give back."""
    import io

    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)
