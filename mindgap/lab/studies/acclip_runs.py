"""Sizes and figures that the studies of ACClip's choices share (H14 and H15); the tasks and the
tuning are those of H3.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mindgap.lab.studies.spec import Figure
from mindgap.lab.studies.text_runs import TRANSFORMER_XL

QUICK = {
    "text": "prose",
    "words": 100,
    "width": 16,
    "layers": 1,
    "length": 8,
    "validation": 128,
    "steps": 24,
    "every": 12,
    "batch": 16,
    "tau": 0.25,
    "schedule": "cosine",
    "factors": [1 / 3, 1.0, 3.0],
    "streams": "h14, shorter",
}

CPU = {
    "text": "ptb",
    "words": 1000,
    "width": 32,
    "layers": 3,
    "length": 16,
    "steps": 500,
    "every": 50,
    "validation": 512,
    "factors": [1 / 9, 1 / 3, 1.0, 3.0, 9.0],
}

GPU = {
    **TRANSFORMER_XL,
    "steps": 3600,
    "every": 360,
    "tau": 0.25,
    "schedule": "cosine",
    "factor": 1.0,
    "streams": "h14, Transformer-XL",
}

#: The length of training at scale gpu, beside that of BERT in the papers.
GPU_LENGTH = "3,600 of 1,000,000 steps"


def gpu_length(settings: Mapping[str, Any]) -> str:
    """The length of a record, beside that of BERT in the papers.

    Example:
        >>> gpu_length({"steps": 3600}) == GPU_LENGTH
        True
    """
    return f"{settings['steps']:,} of 1,000,000 steps"


MODELS = {
    "quick": "one-layer transformer, width 16, on prose",
    "cpu": "three-layer transformer, width 32, on Penn Treebank",
    "gpu": "proxy, six-layer Transformer-XL on Penn Treebank",
}

TUNING: dict[str, Any] = {
    "grid": {"factor": (1 / 9, 1 / 3, 1.0, 3.0, 9.0)},
    "tune_on": "validation_loss",
    "tuning_seeds": (1000,),
}

LOSS = Figure(
    "Loss on test text at the chosen step",
    "test_loss",
    "loss on test text",
    caption="Each method at the best of its candidate steps, chosen on other random numbers.",
)
