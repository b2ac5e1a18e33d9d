"""H16: image noise as the appendix of acclip reads it: its tail after training, in the coordinates
of one minibatch, and by the estimator of Simsekli et al.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mindgap.lab.studies.noise_drift_runs import NORMS, QUICK, loop
from mindgap.lab.studies.noise_runs import BERT_PROXY, IMAGES_ON_DEVICE, ON_DEVICE, answer_word
from mindgap.lab.studies.spec import Figure, Parts, Run, Scale, Source, Study, scales
from mindgap.lab.studies.training_runs import LARGE_TEXT
from mindgap.lab.studies.verdict import by_method

#: A published index below this looks heavy-tailed (H11 has the same number).
HEAVY = 1.8


def judge_appendix(runs: Sequence[Run]) -> Parts:
    """Ask whether image noise looks as in three figures of the appendix, by medians over the seeds.

    Reads the rows with ``block_sum`` (the index of the norms by the estimator of Simsekli et al.),
    taken at several steps of training: ``heavier`` of the last one (whether norms are heavier than
    Gaussian: 1 yes, 0 no, 1/2 cannot tell) and ``within`` of the first one (the same estimator's
    index over the coordinates of one minibatch).

    Returns:
        Three parts: norms of the image network are not heavier after training; its ``within`` lies
        below :data:`HEAVY`; the transformer's ``block_sum`` lies below the image network's at every
        reading (no where at none).
    """
    parts = Parts()
    medians: dict[str, dict[str, Any]] = {}  # network -> what is judged
    for name, own_runs in by_method(runs).items():
        # Per run: its readings in the order of the steps.
        readings = [[row for row in run.rows if "block_sum" in row] for run in own_runs]
        indices = np.median([[row["block_sum"] for row in rows] for rows in readings], axis=0)
        numbers = {
            "heavier": float(np.median([rows[-1]["heavier"] for rows in readings])),
            "within": float(np.median([rows[0]["within"] for rows in readings])),
            "block_sum": indices.tolist(),
        }
        medians[name] = numbers
        parts.note(
            f"{name}: norms heavier than Gaussian after {readings[0][-1]['step']} steps "
            f"{answer_word(numbers['heavier'])}; within one minibatch {numbers['within']:.2f}; "
            f"norms by the published estimator {', '.join(f'{index:.2f}' for index in indices)}",
            {name: numbers},
        )
    image, text = medians["convolutional network"], medians["transformer"]
    if image["heavier"] == 0.5:  # cannot tell
        parts.decide_nothing("the tail of the image network's norms cannot be told")
    parts.add(
        "Fig. 6b: the image network's norms are not heavier after training",
        holds=image["heavier"] == 0.0,
        refuted=image["heavier"] == 1.0,
    )
    parts.add(
        "Fig. 6c: coordinates of one minibatch look heavy-tailed", holds=image["within"] < HEAVY
    )
    below = [  # at every reading
        of_text < of_image
        for of_text, of_image in zip(text["block_sum"], image["block_sum"], strict=True)
    ]
    parts.add(
        "Fig. 7: the transformer's index is below the image network's",
        holds=all(below),
        refuted=not any(below),
    )
    return parts


H16_NOISE_OF_THE_APPENDIX = Study(
    name="h16-noise-of-the-appendix",
    claim="H16",
    title="Image noise as the appendix of acclip reads it",
    statement="The noise norms of an image network are concentrated after 5,000 steps too, while "
    "the coordinates of one minibatch's noise look heavy-tailed; by the published estimator "
    "BERT's noise norms have the lower index during training.",
    source=Source("acclip", "App. H, Fig. 6b, 6c and 7"),
    scales={
        **scales(
            {**QUICK, "moments": [60], "minibatches": 200},
            {"images": "cifar10", "moments": [500, 2000], "minibatches": 1024, **LARGE_TEXT},
            seeds=(2, 5),
        ),
        "gpu": Scale(
            {**ON_DEVICE, "minibatches": 5000, "moments": [1000, 5000], "train_batch": 64},
            seeds=3,
            methods={
                "transformer": {"lr": 1e-4},
                "convolutional network": {
                    "network": "alexnet",
                    "lr": 0.01,
                    "train_batch": 128,
                    **IMAGES_ON_DEVICE,
                },
            },
        ),
    },
    methods={
        "transformer": {"model": "transformer", "lr": 3e-3, "published": True},
        "convolutional network": {"model": "convolutions", "lr": 0.01, "published": True},
    },
    loop=loop,
    judge=judge_appendix,
    rule="Medians over the seeds: after the last step the image network's norms are not heavier "
    "than Gaussian (Hill's index against Gaussian samples); the published estimator gives less "
    "than 1.8 on the coordinates of one minibatch's noise at the start; on the norms it gives "
    "less for the transformer than for the image network at every moment, refuted where at none. "
    "Where the tail of the image network's norms cannot be told, nothing is decided.",
    models={
        "quick": "one-layer transformer on prose, three convolutions on digits",
        "cpu": "two-layer transformer on prose, three convolutions on CIFAR-10",
        "gpu": f"proxies, {BERT_PROXY} and AlexNet on CIFAR-10",
    },
    paper_model="AlexNet on ImageNet and BERT on Wikipedia",
    figures=(
        NORMS,
        Figure(
            "Tail index of the noise norms (published estimator)",
            "block_sum",
            "tail index",
            hlines={"Gaussian": 2.0},
        ),
    ),
)
