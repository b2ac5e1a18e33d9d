"""Every public parameter of instruments, advice and base, fed with bad values: only our error
comes back.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from bad_values import faults
from torch import nn

from mindgap.advise import Estimate, Judgement, Measurements, diagnose, prescribe, summary
from mindgap.base.objective import Objective
from mindgap.base.rng import numpy_stream, stream_seed, torch_stream
from mindgap.base.source import Source
from mindgap.measure import (
    Monitor,
    drift,
    equilibrium,
    fit_relaxed_smoothness,
    goldstein_distance,
    gradient_passes,
    infinite_variance,
    local_smoothness,
    min_norm_weights,
    noise_sample,
    one_step_change,
    oscillation,
    per_sample_norms,
    running_average,
    shape_distance,
    sharpness,
    smoothness_along_ray,
    stability_threshold,
    survey,
    tail_index,
    tail_table,
    training_statistics,
    undisturbed,
    variance_growth,
    window_average,
)


def problem() -> dict[str, Any]:
    torch.manual_seed(0)
    model = nn.Linear(2, 1).double()
    objective = Objective(model, lambda m, b: m(b).square().mean())
    return {"objective": objective, "batches": list(torch.randn(3, 4, 2).double())}


def norms(size: int = 140) -> np.ndarray:
    return np.random.default_rng(0).exponential(size=size)


def monitored() -> dict[str, Any]:
    made = problem()
    optimizer = torch.optim.SGD(made["objective"].model.parameters(), lr=0.1)
    return {"optimizer": optimizer, **made, "probes": ["update"], "every": 1}


def opened(objective: Any, batches: Any, **options: Any) -> None:
    with gradient_passes(objective, batches, **options) as passes:
        list(passes.gradients())


def guarded(model: Any, batches: Any = None) -> None:
    with undisturbed(model, batches):
        pass


STEP = [torch.full((1, 2), 0.1).double(), torch.full((1,), 0.1).double()]
CALLS: dict[str, tuple[Callable, Callable[[], dict[str, Any]]]] = {
    "Objective": (Objective, lambda: {"model": nn.Linear(1, 1), "loss": lambda m, b: 0}),
    "sharpness": (sharpness, lambda: {**problem(), "tol": 1e-3}),
    "local_smoothness": (local_smoothness, lambda: {**problem(), "step": STEP}),
    "smoothness_along_ray": (smoothness_along_ray, problem),
    "noise_sample": (noise_sample, problem),
    "training_statistics": (training_statistics, problem),
    "equilibrium": (
        equilibrium,
        lambda: {"statistics": training_statistics(**problem()), "lr": 0.1, "batch_size": 4},
    ),
    "goldstein_distance": (goldstein_distance, lambda: {**problem(), "delta": 0.1, "samples": 3}),
    "per_sample_norms": (
        per_sample_norms,
        lambda: {"objective": problem()["objective"], "batch": torch.ones(3, 2).double()},
    ),
    "gradient_passes": (opened, problem),
    "undisturbed": (guarded, lambda: {"model": nn.Linear(1, 1)}),
    "survey": (survey, lambda: {**problem(), "ray_points": 3}),
    "tail_index": (tail_index, lambda: {"sample": norms(), "bootstrap": 20, "null": 20}),
    "tail_table": (tail_table, lambda: {"sample": norms()}),
    "infinite_variance": (infinite_variance, lambda: {"sample": norms()}),
    "variance_growth": (
        variance_growth,
        lambda: {"sample": norms(), "bootstrap": 20, "shuffles": 2},
    ),
    "shape_distance": (
        shape_distance,
        lambda: {"one": norms(), "other": norms(), "permutations": 20},
    ),
    "fit_relaxed_smoothness": (
        fit_relaxed_smoothness,
        lambda: {"norms": norms(), "smoothness": norms(), "repeats": 20},
    ),
    "min_norm_weights": (min_norm_weights, lambda: {"gram": np.eye(2)}),
    "stability_threshold": (stability_threshold, lambda: {"lr": 0.1}),
    "drift": (drift, lambda: {"values": norms()}),
    "oscillation": (oscillation, lambda: {"values": norms()}),
    "one_step_change": (one_step_change, lambda: {"values": norms()}),
    "running_average": (running_average, lambda: {"values": norms()}),
    "window_average": (window_average, lambda: {"values": norms(), "window": 3}),
    "Monitor": (Monitor, monitored),
    "Estimate": (Estimate, lambda: {"value": 1.0, "low": 0.5, "high": 2.0}),
    "Measurements": (Measurements, dict),
    "diagnose": (diagnose, lambda: {"given": Measurements(skipped=0.1)}),
    "prescribe": (prescribe, lambda: {"judged": [Judgement("smoothness", True, "")]}),
    "summary": (summary, lambda: {"judged": [Judgement("smoothness", True, "")]}),
    "stream_seed": (stream_seed, lambda: {"seed": 0}),
    "torch_stream": (torch_stream, lambda: {"seed": 0}),
    "numpy_stream": (numpy_stream, lambda: {"seed": 0}),
    "Source": (Source, lambda: {"paper": "thesis", "place": "(6.2)"}),
}


@pytest.mark.parametrize("name", CALLS)
def test_bad_values_end_in_our_error(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # a text is a folder to write to
    function, arguments = CALLS[name]
    # A user's own function may raise what it likes.
    leave_out = {"survey": ("finished",), "per_sample_norms": ("batch",)}.get(name, ())
    assert faults(function, arguments, leave_out=leave_out, seconds=60.0) == []


def test_public_names_are_no_modules() -> None:
    """``undisturbed`` was a function until a module of that name was imported."""
    import mindgap.measure

    assert not [
        name for name in mindgap.measure.__all__ if inspect.ismodule(getattr(mindgap.measure, name))
    ]
