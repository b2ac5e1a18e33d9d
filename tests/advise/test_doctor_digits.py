"""A new user's rates on the digits of scikit-learn: ten times too large, and an ordinary one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from mindgap.advise import examine
from mindgap.advise.doctor import examination


@pytest.mark.parametrize(
    ("kind", "lr", "cause"),
    [("SGD", 3.0, "lr_too_large"), ("AdamW", 0.3, "lr_too_large"), ("SGD", 0.3, "")],
)
def test_rates_on_digits(kind: str, lr: float, cause: str, monkeypatch) -> None:
    datasets = pytest.importorskip("sklearn.datasets")
    monkeypatch.setattr(examination, "STEPS", 120)
    images, labels = (torch.as_tensor(a)[:960] for a in datasets.load_digits(return_X_y=True))
    batches = list(zip((images.float() / 16).split(32), labels.split(32)))

    def problem() -> tuple[Any, ...]:
        model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU())
        model.append(nn.Linear(128, 10))
        made = getattr(torch.optim, kind)(model.parameters(), lr=lr)
        return (model, nn.CrossEntropyLoss()), batches, made

    answer = examine(problem, seconds=60)
    assert answer.cause == cause, answer.sentence
    if not cause:
        assert "Keep your SGD" in answer.sentence
