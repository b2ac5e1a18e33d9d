"""The code of a cause: what was tried on a copy, in a form that can be pasted."""

from __future__ import annotations

import ast
import builtins
import math

import pytest
import torch
from torch import nn

from mindgap.advise import examine
from mindgap.advise.doctor.answer import code_of
from mindgap.advise.doctor.causes import CAUSES, CODE_OF_CASE
from mindgap.advise.doctor.chart import Chart
from mindgap.advise.doctor.page import Trial

#: What a training program has, and names that the code's comment says to fill in.
KNOWN = {"torch", "model", "optimizer", "loss", "inputs", "targets", "outputs", "scores", "x"}
FILLED_IN = {
    "missing_normalisation": {"block"},
    "vanishing_gradients": {"linear", "width"},
    "unregistered_parameters": {"self"},
    "dropout_in_evaluation": {"self"},
    "not_shuffled": {"data", "batch_size"},
    "repeated_batches": {"data"},
    "batch_norm_of_one": {"channels"},
}


def trial_of(key: str, variant: float) -> Trial:
    return Trial(key, variant, 2.0, 1.0, 10, True, ())


@pytest.mark.parametrize("key", CAUSES)
def test_code_parses_and_uses_names_that_a_training_program_has(key):
    cases = {0.1, 1.0, 5.0} if any(k == key for k, _ in CODE_OF_CASE) else {0.1}
    for variant in cases:
        tree = ast.parse(code_of(CAUSES[key], Chart(), trial_of(key, variant)))
        used = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)}
        made = {
            n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
        }
        made |= {
            a.asname or a.name
            for n in ast.walk(tree)
            if isinstance(n, (ast.Import, ast.ImportFrom))
            for a in n.names
        }
        made |= {n.arg for n in ast.walk(tree) if isinstance(n, ast.arg)}
        made |= {n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)}
        unknown = used - made - KNOWN - set(dir(builtins)) - FILLED_IN.get(key, set())
        assert not unknown


def test_a_rate_that_is_too_small_is_raised_also_where_no_cure_was_tried():
    assert "group['lr'] *= 10" in code_of(CAUSES["lr_too_small"], Chart(), None)
    assert "group['lr'] *= 0.1" in code_of(CAUSES["lr_too_large"], Chart(), None)


@pytest.mark.parametrize(("variant", "limit"), [(-1.0, 3.0), (1.0, 1.0)])
def test_clipping_is_printed_with_the_threshold_that_was_tried(variant, limit):
    chart = Chart()
    chart.facts.unclipped_norm = 3.0
    code = code_of(CAUSES["smoothness_grows"], chart, trial_of("smoothness_grows", variant))
    assert f"clip_grad_norm_(model.parameters(), {limit:g})" in code


def outliers():
    """A regression with a few huge targets, which the squared error follows."""
    torch.manual_seed(0)
    x = torch.randn(640, 6)
    y = x.sum(1, keepdim=True).sin() + 0.02 * torch.randn(640, 1)
    y += (torch.rand(640, 1) < 0.05) * 30.0 * torch.distributions.Cauchy(0.0, 1.0).sample((640, 1))
    batches = list(zip(x.split(32), y.split(32), strict=True))
    model = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    return (model, nn.functional.mse_loss), batches[:16], optimizer, batches[16:]


def test_the_code_for_heavy_tails_is_the_cure_that_was_tried():
    answer = examine(outliers)
    assert answer.causes[0][0] == "heavy_tailed_noise"
    assert answer.trial is not None
    assert ("SmoothL1Loss" in answer.code) == (answer.trial.variant > 1)
    assert "clip_grad_norm_" in answer.code
    assert math.isfinite(answer.trial.after)


def sigmoid_twice():
    """Probabilities handed to a loss of scores."""
    torch.manual_seed(0)
    x = torch.randn(640, 6)
    y = (x.sum(1, keepdim=True) > 0).float()
    model = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 1), nn.Sigmoid())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return (
        (model, nn.BCEWithLogitsLoss()),
        list(zip(x.split(32), y.split(32), strict=True)),
        optimizer,
    )


def test_a_second_sigmoid_gets_the_binary_loss_of_scores():
    answer = examine(sigmoid_twice)
    assert answer.causes[0][0] == "softmax_twice"
    assert "binary_cross_entropy_with_logits" in answer.code
