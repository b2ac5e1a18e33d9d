"""E2: training a language model, the loss settles and the gradient norm does not go to zero."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from mindgap.lab.studies import statistics_runs as gpu
from mindgap.lab.studies.never_at_rest_runs import (
    NO_LOWER,
    READINGS,
    RULE,
    figures,
    late_levels,
    level,
    loop,
    more_at_a_smaller_step,
    shared_parts,
)
from mindgap.lab.studies.spec import Parts, Run, Scale, Source, Study, scales
from mindgap.lab.studies.verdict import by_seed

COSINE = "cosine from the largest step"

CONSTANT = ("constant, a fifth of it", "constant, two fifths", "constant, the largest step")


def judge_language(runs: Sequence[Run]) -> Parts:
    """Judge E2 from levels of the gradient norm, means over a stretch of a run's rows.

    Returns:
        The parts that E1 and E2 share (:func:`shared_parts`), then by 95 % intervals over seeds:
        for every method, the norm of the last quarter is no lower than that of the second one; for
        each pair of neighbours in :data:`CONSTANT`, norm, noise and sharpness are larger at the
        smaller step.
    """
    parts, runs_of = shared_parts(runs, schedule=COSINE, periods={}), by_seed(runs)
    late_norms = {
        name: late_levels(own_runs, "gradient_square") for name, own_runs in runs_of.items()
    }
    for name, own_runs in runs_of.items():
        earlier_norms = [level(run, "gradient_square", 0.25, 0.5) for run in own_runs]
        parts.ratio(
            f"{name}: the norm does not decrease", late_norms[name], earlier_norms, NO_LOWER
        )
    for small, large in pairwise(CONSTANT):
        parts.ratio(
            f"{small}: a larger norm than {large}", late_norms[small], late_norms[large], 1.0
        )
        more_at_a_smaller_step(parts, runs_of, small, large)
    return parts


E2_LANGUAGE_MODEL = Study(
    name="e2-language-model",
    claim="E2",
    title="The loss settles, the gradient norm does not: words",
    statement="Training a language model, the loss settles while the gradient norm does not go to "
    "zero and does "
    "not even decrease, and the noise grows; a smaller step gives a larger gradient norm.",
    source=Source("thesis", "6.2.2, Fig. 6-4"),
    scales={
        **scales(
            {
                "source": "prose",
                "words": 200,
                "width": 16,
                "layers": 1,
                "length": 8,
                "steps": 180,
                "every": 30,
                "sharp_every": 6,
                "batch": 16,
                "m": 128,
                "part": 64,
                "lr": 0.01,
                "factor": 1.0,
                "stretch": 1.0,
                "schedule": "constant",
            },
            {
                "source": "wikitext-2",
                "words": 2000,
                "width": 32,
                "layers": 2,
                "length": 16,
                "steps": 3000,
                "every": 250,
                "sharp_every": 12,
                "m": 512,
                "lr": 0.003,
            },
            seeds=(3, 4),
        ),
        "gpu": Scale(
            {
                **gpu.WIKITEXT,
                **READINGS,
                "source": "wikitext-2",
                "steps": 1800,
                "every": 150,
                "m": 2560,
                "sharp_m": 160,
            },
            3,
        ),
    },
    methods={
        COSINE: {"schedule": "cosine"},
        **{name: {"factor": factor} for name, factor in zip(CONSTANT, (0.2, 0.4, 1.0))},
    },
    loop=loop,
    judge=judge_language,
    rule=RULE
    + "The late norm is no lower than in the second quarter, for all runs, and norm, noise and "
    "sharpness are larger at each smaller constant step.",
    models={
        "quick": "one-layer transformer on prose",
        "cpu": "two-layer transformer on WikiText-2",
        "gpu": f"proxy: {gpu.TEXT_PROXY}",
    },
    paper_model="Transformer-XL on WikiText-103",
    figures=figures("Adam on a cosine schedule, and with three constant steps."),
)
