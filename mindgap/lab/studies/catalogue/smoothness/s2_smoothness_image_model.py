"""S2: does smoothness grow with the gradient along the training of an image model?"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from mindgap.lab.studies.resnet_runs import RESNET20, SETTINGS
from mindgap.lab.studies.smoothness_runs import (
    FIGURES,
    GPU_RULE,
    PRESENT,
    PROSE,
    RULE,
    CorrelationDesign,
    judge,
    loop,
)
from mindgap.lab.studies.spec import Scale, Source, Study, scales

_DIGITS = {**PROSE, "source": "digits", "width": 8, "m": 256, "part": 256, "lr": 0.3}

S2_SMOOTHNESS_IMAGE_MODEL = Study(
    name="s2-smoothness-image-model",
    claim="S2",
    title="Does smoothness grow with the gradient? An image model",
    statement="Along the training of a convolutional network, local smoothness and gradient norm "
    "are correlated "
    "with clipping and a large step, and not for SGD with momentum nor without clipping.",
    source=Source("thesis", "Fig. 3-3"),
    scales={
        **{
            scale: replace(found, seeds_of={"not clipped, step 1": 0, "clipped, step 5": 0})
            for scale, found in scales(
                _DIGITS, {"steps": 3000, "every": 30, "m": 1792}, seeds=(3, 5)
            ).items()
        },
        "gpu": Scale(
            {
                **SETTINGS,
                "epochs": 20,
                "every": 117,
                "m": 2560,
                "part": 512,
                "tau": 0.25,
                "momentum": 0.0,
                "clip": False,
                "lr": 1.0,
            },
            5,
            methods={"SGD with momentum": {"lr": 1.0}},
            seeds_of={"not clipped, step 0.3": 0, "clipped, step 1.5": 0},
            rule=GPU_RULE.format(PRESENT)
            + " The training loss of every run ends 1.5 nat below that of class frequencies, two "
            "thirds of the way: otherwise not trained.",
        ),
    },
    methods={
        "SGD with momentum": {"clip": False, "lr": 0.3, "momentum": 0.9},
        "not clipped, step 0.3": {"clip": False, "lr": 0.3},
        "clipped, step 1.5": {"clip": True, "lr": 1.5},
        "not clipped, step 1": {"clip": False, "lr": 1.0},
        "clipped, step 5": {"clip": True, "lr": 5.0},
    },
    null_draws=4,
    loop=loop,
    judge=partial(judge, clipped=("clipped, step 1.5", "clipped, step 5"), least=PRESENT),
    rule=RULE.format(PRESENT),
    lengths={"gpu": "20 of 200 epochs, with a constant step"},
    length_of=lambda s: f"{s.get('epochs', 0)} of 200 epochs, with a constant step",
    designs={
        "gpu": CorrelationDesign(
            "correlated",
            false=0.0,
            paper=1.1,
            deviation=0.25,
            unit="in the log-log slope",
            source="the paper prints no number: slope 1.1, scatter and span 7 of the clipped runs "
            "on digits, no slope in the others; deviation as in S1",
            parts=2,
            least=PRESENT,
            readings=60,
            slope=0.0,
            false_slope=0.15,
            span=7.0,
            scatter=0.26,
            norm_memory=0.7,
        )
    },
    models={**dict.fromkeys(("quick", "cpu"), "three convolutions on digits"), "gpu": RESNET20},
    paper_model=RESNET20,
    figures=FIGURES,
)
