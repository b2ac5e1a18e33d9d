"""The examples of ``mindgap recommend`` work as written: DataLoader, Lightning module, Hugging
Face model.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from mindgap.advise import recommend

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize(
    ("name", "needs"),
    [
        ("recommend_digits", "sklearn"),
        ("recommend_lightning", "lightning"),
        ("recommend_huggingface", "transformers"),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_the_example_gets_an_answer(name, needs):
    pytest.importorskip(needs)
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    answer = recommend(module.problem, minutes=10, steps=96)
    assert answer.about["loss"] <= answer.about["baseline_loss"]
