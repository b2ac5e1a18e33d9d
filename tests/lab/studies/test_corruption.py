"""Hyper-cleaning: one mask per seed, for every method, epoch and source of data; the upper
level reads true labels.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mindgap.lab.studies import cleaning_runs
from mindgap.lab.studies.catalogue import find
from mindgap.lab.studies.catalogue.bilevel import b3_mnist_levels
from mindgap.lab.studies.loop import Trial
from mindgap.lab.tasks.data import Table
from mindgap.lab.tasks.data.tweets import Tweets

CLASSES = {source: 2 if source in cleaning_runs.TEXTS else 10 for source in cleaning_runs.SOURCES}
SIZES = {
    "train": 40,
    "validation": 40,
    "test": 20,
    "held": 20,
    "components": 0,
    "words": 3,
    "hidden": 2,
    "head": 2,
    "corruption": 0.4,
    "device": "cpu",
}
CASES = [("b4-hyper-cleaning", source) for source in CLASSES]
CASES += [("b3-mnist-levels", "digits"), ("b3-mnist-levels", "mnist")]


def label_of(row, classes):
    return (7 * row + row // 3) % classes


@pytest.fixture(autouse=True)
def numbered_data(monkeypatch):
    """Every source is replaced by 200 rows that carry their own number, from which the true
    label follows.
    """
    rows = np.arange(200)
    features = np.stack([rows + 1.0, np.cos(rows), np.sin(rows)], 1)
    for name in ("digits", "mnist", "mnist_5000"):
        table = Table(features, label_of(rows, 10), name)
        monkeypatch.setattr(f"mindgap.lab.tasks.data.{name}", lambda *split, table=table: table)
    words = np.stack([rows + 1, rows % 5 + 1, 0 * rows], 1).astype(np.int32)
    vectors = np.random.default_rng(0).normal(size=(201, 4)).astype(np.float32)
    labels = label_of(rows, 2)
    texts = Tweets(words, labels, (words[:4], labels[:4]), vectors)
    for name in ("tweets", "made_up_tweets"):
        monkeypatch.setattr(f"mindgap.lab.tasks.data.tweets.{name}", lambda *_, **__: texts)


def drawn(data, level, epochs=3):
    """The samples of several epochs as a run draws them."""
    for place in range(epochs * data.batches):
        token = data.draw(0, level, place, 1)
        yield data.fetch(type(token)(int(token.which[0])))


def rows_of(inputs):
    return (inputs[:, 0].round().long() - 1).tolist()


@pytest.mark.parametrize(("name", "source"), CASES)
def test_one_mask_for_every_method_and_epoch_and_true_labels_above(name, source):
    study, classes = find(name), CLASSES[source]
    task_of = b3_mnist_levels.task_of if name == "b3-mnist-levels" else cleaning_runs.task_of
    scale = "gpu" if source in cleaning_runs.TEXTS else "cpu"
    masks = set()
    for method in study.seeds(scale):
        known = study.settings(scale, method)
        trial = Trial(
            method, 3, {**known, **{k: v for k, v in SIZES.items() if k in known}, "data": source}
        )
        task = task_of(trial)
        masks.add((tuple(task.corrupted.tolist()), tuple(task.train[1].tolist())))
        if method != "SLIP":
            continue
        problem, below, above = task.problem(10), {}, set()
        for inputs, labels, numbers in drawn(problem.lower_data, "lower"):
            for row, label, number in zip(rows_of(inputs), labels.tolist(), numbers.tolist()):
                assert below.setdefault(row, label) == label  # the same label in every epoch
                assert (label != label_of(row, classes)) == bool(task.corrupted[number])
        for inputs, labels in drawn(problem.upper_data, "upper"):
            above |= set(rows_of(inputs))
            assert labels.tolist() == [label_of(row, classes) for row in rows_of(inputs)]
        assert (len(below), len(above), below.keys() & above) == (40, 40, set())
        test = [tuple(part) for part in (task.test, getattr(task, "manual", task.test))]
        assert all(
            labels.tolist() == [label_of(row, classes) for row in rows_of(inputs)]
            for inputs, labels in test
        )
    ((mask, _),) = masks
    assert sum(mask) == round(40 * trial["corruption"])
    assert not torch.equal(task_of(Trial(method, 4, trial.settings)).corrupted, torch.tensor(mask))
