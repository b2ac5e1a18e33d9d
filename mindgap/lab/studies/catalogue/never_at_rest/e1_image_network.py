"""E1: where an image network cannot over-fit its data the loss settles and the gradient norm does
not go to zero.
"""

from __future__ import annotations

from collections.abc import Sequence

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

DROPS, FULL, LONG = "step drops twice", "constant step", "a tenth of it, longer"


def judge_images(runs: Sequence[Run]) -> Parts:
    """Judge E1 from levels of the gradient norm, means over a stretch of a run's rows.

    Returns:
        The parts that E1 and E2 share (:func:`shared_parts`), then four by 95 % intervals over
        seeds: the last quarter of the longer runs has no lower norm than their stretch up to where
        the other runs end; the smaller step has the larger norm, noise and sharpness.
    """
    parts, runs_of = shared_parts(runs, schedule=DROPS, periods={DROPS: 3}), by_seed(runs)
    common_end = 0.3  # the share of the longer runs at which the other runs end
    late_norms = {
        name: late_levels(own_runs, "gradient_square") for name, own_runs in runs_of.items()
    }
    earlier_norms = [
        level(run, "gradient_square", 0.75 * common_end, common_end) for run in runs_of[LONG]
    ]
    parts.ratio(
        "longer training does not lower the norm", late_norms[LONG], earlier_norms, NO_LOWER
    )
    parts.ratio("a smaller step gives a larger norm", late_norms[LONG], late_norms[FULL], 1.0)
    more_at_a_smaller_step(parts, runs_of, LONG, FULL)
    return parts


E1_IMAGE_NETWORK = Study(
    name="e1-image-network",
    claim="E1",
    title="The loss settles, the gradient norm does not: images",
    statement="Training an image network that does not over-fit, the loss settles while the "
    "gradient norm does not go to zero and the noise grows, with dropping and with constant steps "
    "and however long; a smaller step gives a larger gradient norm.",
    source=Source("thesis", "6.2, 6.2.1, Fig. 6-1 to 6-3"),
    scales={
        **scales(
            {
                "source": "digits",
                "width": 4,
                "shift": 1,
                "wrong_labels": 0.2,
                "steps": 120,
                "every": 12,
                "sharp_every": 5,
                "batch": 32,
                "m": 128,
                "part": 64,
                "lr": 0.05,
                "factor": 1.0,
                "stretch": 1.0,
                "schedule": "constant",
            },
            {
                "source": "cifar-10",
                "width": 8,
                "shift": 4,
                "wrong_labels": 0.0,
                "steps": 6000,
                "every": 500,
                "sharp_every": 12,
                "m": 1024,
                "lr": 0.02,
            },
            seeds=(3, 3),
        ),
        "gpu": Scale(
            {
                **gpu.NOISY_IMAGES,
                **READINGS,
                "source": "cifar-10",
                "steps": 3504,
                "every": 292,
                "m": 22_400,
                "sharp_m": 2048,
            },
            3,
        ),
    },
    methods={DROPS: {"schedule": "drops"}, FULL: {}, LONG: {"factor": 0.1, "stretch": 10 / 3}},
    loop=loop,
    judge=judge_images,
    rule=RULE
    + "A tenth of the step, trained 10/3 as long: its late norm is no lower than where the others "
    "end, and norm, noise and sharpness are larger than those of the full step.",
    models={
        "quick": "three convolutions, width 4, on shifted digits",
        "cpu": "three convolutions, width 8, on CIFAR-10 shifted and flipped",
        "gpu": f"proxy: {gpu.NOISY_PROXY}",
    },
    paper_model="ResNet101 on ImageNet",
    figures=figures(
        "The schedule drops by ten after each third; the run with a tenth of the step goes on."
    ),
)
