"""The example with source weights above and LoRA below: the clean source gains weight,
whichever of the two it is.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def example():
    path = Path(__file__).parents[2] / "examples" / "lora_source_weights.py"
    spec = importlib.util.spec_from_file_location("lora_source_weights", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("corrupted", [0, 1])
def test_the_clean_source_gains_weight(example, corrupted):
    problem = example.make_problem("tiny", corrupted=example.SOURCES[corrupted])
    weights, loss, _ = example.fine_tune(problem, 20)
    assert weights[1 - corrupted] > 0.55
    assert loss < float(problem.loss("upper", problem.pack_x.start, problem.pack_y.start))


def test_only_the_additions_are_trained_and_fixed_weights_stay(example):
    problem = example.make_problem("tiny", fixed="equal")
    module = problem.pack_y.module
    base = {
        name: p.clone() for name, p in module.named_parameters() if name not in problem.pack_y.keys
    }
    assert all(name.endswith((".down", ".up")) for name in problem.pack_y.keys)
    assert {p.dtype for p in base.values()} == {torch.bfloat16}
    assert problem.pack_y.dtype == torch.float32
    assert example.fine_tune(problem, 3)[0] == [0.5, 0.5]
    assert all(torch.equal(p, base[name]) for name, p in module.named_parameters() if name in base)
