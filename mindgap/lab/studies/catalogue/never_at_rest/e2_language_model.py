"""E2: training a language model, the loss settles and the gradient norm does not go to zero."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from mindgap.lab.studies import statistics_runs as gpu
from mindgap.lab.studies.bounds import BoundDesign
from mindgap.lab.studies.never_at_rest_runs import (
    GPU_RULE,
    NO_LOWER,
    NO_LOWER_ON_DEVICE,
    READINGS,
    RULE,
    add_ratio,
    figures,
    loop,
    more_at_a_smaller_step,
    norm_levels,
    shared_parts,
)
from mindgap.lab.studies.spec import Parts, Run, Scale, Source, Study, scales
from mindgap.lab.studies.verdict import by_seed

COSINE = "cosine from the largest step"

CONSTANT = ("constant, a fifth of it", "constant, two fifths", "constant, the largest step")
#: Parts of the rule.
PARTS = 11
_RULE = (
    "The late norm is no lower than in the second quarter, for all runs, and norm, noise and "
    "sharpness are larger at each smaller constant step."
)
_ON_DEVICE = (
    " Noise and sharpness at smaller steps are shown and do not decide: of a language model the "
    "thesis says it of the norm alone."
)


def judge_language(runs: Sequence[Run]) -> Parts:
    """Judge E2 from levels of the gradient norm, means over a stretch of a run's rows.

    Returns:
        The parts that E1 and E2 share (:func:`shared_parts`), then by 95 % intervals over seeds:
        for every method, the norm of the last quarter is no lower than that of the second one; for
        each pair of neighbours in :data:`CONSTANT`, norm, noise and sharpness are larger at the
        smaller step. At scale gpu the intervals are those of :func:`add_ratio`, and noise and
        sharpness at smaller steps are variants.
    """
    on_device = runs[0].header.scale == "gpu"
    questions, no_lower = (PARTS, NO_LOWER_ON_DEVICE) if on_device else (0, NO_LOWER)
    parts = shared_parts(runs, schedule=COSINE, periods={}, questions=questions)
    runs_of = by_seed(runs)
    late_norms = {name: norm_levels(own_runs, 0.75, 1.0) for name, own_runs in runs_of.items()}
    for name, own_runs in runs_of.items():
        earlier_norms = norm_levels(own_runs, 0.25, 0.5)
        add_ratio(
            parts,
            f"{name}: the norm does not decrease",
            late_norms[name],
            earlier_norms,
            no_lower,
            questions,
        )
    for small, large in pairwise(CONSTANT):
        part = f"{small}: a larger norm than {large}"
        add_ratio(parts, part, late_norms[small], late_norms[large], 1.0, questions)
        reading = "variant" if on_device else ""
        more_at_a_smaller_step(parts, runs_of, small, large, questions, reading)
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
                "steps": 3960,
                "every": 330,
                "m": 2560,
                "sharp_m": 160,
            },
            8,
            rule=GPU_RULE + _RULE + _ON_DEVICE,
        ),
    },
    methods={
        COSINE: {"schedule": "cosine"},
        **{name: {"factor": factor} for name, factor in zip(CONSTANT, (0.2, 0.4, 1.0))},
    },
    loop=loop,
    judge=judge_language,
    rule=RULE + _RULE,
    lengths={"gpu": "3,960 steps, 4.9 passes over the text"},
    designs={
        "gpu": BoundDesign(
            "bounds",
            false=0.0,
            paper=0.22,
            deviation=0.15,
            unit="in the log of late over earlier norm, from its bound",
            source="Fig. 6-4 is printed without numbers: the norm neither falls nor grows and "
            "stays as at the start, the noise of the scheduled run grows by half, and a smaller "
            "step has 1.4 times the norm. Deviations of late over earlier norms are those of the "
            "only language model at scale gpu, S1's with step 30, 0.15; all others those at scale "
            "quick: 0.4 of the share of the start, 0.13 of its noise, and 0.25 of the norm between "
            "two steps",
            parts=PARTS,
            margins=(0.22,) * 4 + (2.3,) * 4 + (0.4,) + (0.35,) * 2,
            deviations=(0.15,) * 4 + (0.4,) * 4 + (0.13,) + (0.25,) * 2,
            gaps=(0.0,) * 4 + (2.3,) * 4 + (0.0,) * 3,
        )
    },
    models={
        "quick": "one-layer transformer on prose",
        "cpu": "two-layer transformer on WikiText-2",
        "gpu": f"proxy: {gpu.TEXT_PROXY}",
    },
    paper_model="Transformer-XL on WikiText-103",
    figures=figures("Adam on a cosine schedule, and with three constant steps."),
)
