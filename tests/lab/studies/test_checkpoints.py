"""Every study of the catalogue that offers checkpoints goes on from any of them, to the same
records bit for bit.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mindgap.lab.studies.catalogue import find
from mindgap.lab.studies.loop import Checkpoints, Trial
from mindgap.lab.studies.run import execute, plan
from mindgap.lab.studies.spec import Study
from mindgap.record.schema import Header, Row, without_timing
from mindgap.record.store import RunWriter, read_run

B0 = {
    "lower": 64,
    "upper": 64,
    "dim_y": 4,
    "dim_x": 3,
    "oracle_calls": 150,
    "least_steps": 4,
    "readings": 4,
}
B3 = {
    "train": 60,
    "validation": 60,
    "components": 3,
    "oracle_calls": 40,
    "least_steps": 3,
    "readings": 3,
}
B1 = {
    "tasks": [6, 4, 4],
    "ways": 2,
    "shots": 3,
    "batch_size": 2,
    "oracle_calls": 40,
    "least_steps": 3,
    "readings": 3,
}
B10 = {"lower": 128, "dim_y": 4, "dim_x": 3, "steps": 12}
E0 = {"steps": 2, "every": 1, "m": 32, "part": 16}

S1 = {"steps": 3, "every": 1, "m": 8, "part": 4, "width": 4}
E1 = {"steps": 3, "every": 1, "m": 8, "part": 4, "batch": 4}
H3 = {"steps": 3, "every": 1, "batch": 4, "validation": 8, "words": 30, "width": 8}
H5 = {"steps": 3, "every": 1, "batch": 4, "held_out": 8, "words": 30, "width": 8, "pre_steps": 2}
S3 = {"steps": 3, "every": 1, "m": 8, "batch": 4, "width": 4}

H2 = {"moments": [1, 3], "minibatches": 32, "batch": 2}

#: study, method, settings that make it small
CASES: list[tuple[str, str, dict[str, Any]]] = [
    ("h7-infinite-variance", "SGD", {"replicas": 64, "steps": 20}),
    ("h7-infinite-variance", "GClip", {"replicas": 64, "steps": 20}),
    *(
        ("b0-unbounded-smoothness", method, B0)
        for method in find("b0-unbounded-smoothness").methods
    ),
    ("b1-hyper-representation", "SABA", B1),
    ("b2-hyper-representation", "SLIP", B1),
    ("b3-hyper-cleaning", "SLIP", B3),
    ("b4-hyper-cleaning", "SRBA", B3),
    ("b5-running-time", "BO-REP, p = 0.4", {**B3, "readings": 4}),
    ("b5-running-time-pairs", "BO-REP", B1),
    ("b6-epochs", "epochs of y, p = 0.2", {**B3, "epochs": 3}),
    ("b6-epochs-reviews", "SLIP, epochs of y", {**B1, "epochs": 3}),
    ("b7-one-step", "two steps, p = 0.2", {**B3, "tried": 2}),
    ("b7-one-step-representation", "two steps", {**B1, "tried": 2}),
    ("b9-tuning-cost", "SLIP", {**B3, "tried": 3}),
    ("b10-tracking", "drift 0.03, step 0.1", B10),
    ("b10-tracking", "drift 0, step 0.3", B10),
    ("e0-training-statistics", "convolutional network", E0),
    ("e1-image-network", "step drops twice", E1),
    ("e2-language-model", "cosine from the largest step", E1),
    ("e3-over-fitted", "narrow: does not", {"steps": 3, "every": 1}),
    ("e6-raw-losses", "convolutional network", {"steps": 6, "m": 8}),
    ("t4-variance-reduction", "network, SVRG", {"train": 100, "passes": 6}),
    ("n3-image-network", "SGD with momentum", {"train": 64, "epochs": 2, "every": 1}),
    ("n3-image-network", "Stochastic INGD", {"train": 64, "epochs": 2, "every": 1}),
    ("e9-compact-set", "3 layers", {"steps": 3, "copies": 2}),
    ("e9-compact-set", "batch normalisation", {"steps": 3, "copies": 2}),
    ("s1-smoothness-language-model", "clipped, step 30", S1),
    ("s2-smoothness-image-model", "SGD with momentum", S1),
    ("s3-clipping-speeds-up", "LSTM, clipped", S3),
    ("s3-clipping-speeds-up", "convolutions, momentum", S3),
    ("h2-noise-drifts", "transformer", H2),
    ("h2-noise-drifts", "convolutional network", H2),
    ("h12-images-acclip", "ACClip", {"train": 32, "steps": 3, "every": 1, "batch": 4}),
    ("h3-language-model", "ACClip", H3),
    ("h3-language-model", "CClip", H3),
    ("h4-masked-language-model", "shallow, GClip", H3),
    ("h5-question-answering", "ACClip", H5),
    ("s5-clipping-is-normalising", "clipped vs normalised", {"draws": 6}),
    ("h10-rmsprop-is-clipping", "as printed", {"draws": 6}),
    ("h8-dimension", "GClip", {"horizon": 4, "coordinates": 500, "least_runs": 5}),
    ("h8-nonconvex-exponent", "Theorem 4.4.1", {"horizons": 2, "jumps": 3}),
    ("h9-bernoulli-quadratics", "GClip", {"replicas": 10}),
    ("h9-zero-chain", "SGD", {"replicas": 4, "limit": 5}),
    ("n2-stochastic-ingd", "noise ±σ", {"runs": 4, "Delta": 0.1, "sigma": 0.01}),
]


def header_of(name: str, method: str, overrides: dict[str, Any]) -> tuple[Study, Header]:
    study = find(name)
    headers = plan(study, "quick", seeds=1, overrides=overrides).headers
    return study, next(header for header in headers if header.method == method)


def rows(folder: Path) -> list[Row]:
    (path,) = folder.glob("*.jsonl")
    return [without_timing(row) for row in read_run(path).rows]


def cut_short(study: Study, header: Header, folder: Path, after: int) -> None:
    """Run some rows with a checkpoint after each, and stop dead, as a killed process would."""
    with RunWriter(folder, header) as writer:
        trial = Trial(header.method, header.seed, header.settings)
        checkpoints = Checkpoints(writer, 0, study.loop)
        for row, _ in zip(study.loop(trial), range(after)):
            writer.row({**row, "seconds": trial.seconds})
            checkpoints.offer(trial)


@pytest.mark.parametrize(
    ("name", "method", "overrides"), CASES, ids=[f"{name}-{method}" for name, method, _ in CASES]
)
def test_a_run_cut_short_goes_on_bit_for_bit(
    name: str, method: str, overrides: dict[str, Any], tmp_path: Path
) -> None:
    study, header = header_of(name, method, overrides)
    assert execute(study, header, tmp_path / "whole").outcome == "done"
    whole = rows(tmp_path / "whole")
    assert len(whole) >= 3
    for after in sorted({1, len(whole) - 1}):
        folder = tmp_path / str(after)
        cut_short(study, header, folder, after)
        restored = Trial(header.method, header.seed, header.settings)
        with RunWriter(folder, header) as writer:
            Checkpoints(writer, 0, study.loop).restore(restored)
            assert restored.restored, "it began again from its start"
            assert 1 <= writer.position <= after
        assert execute(study, header, folder).outcome == "done"
        assert rows(folder) == whole
