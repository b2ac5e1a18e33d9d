"""T4: variance reduction against SGD on a deep network, at equal gradient evaluations.

Both rules get the same candidates (eight steps, each constant and with two drops by ten) and
choose by the final training loss of runs with a start and a data order of their own. The measure
is the gap to the least possible value. The control is a softmax regression with so much weight
decay that theory promises SVRG a gain. At scale gpu the network is ResNet20, with two drops and a
step that ``mindgap tune --grid`` chooses for all seeds; the control is that of scale cpu.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from mindgap.lab.studies.resnet_runs import GRID, RESNET20, SETTINGS
from mindgap.lab.studies.spec import Figure, Parts, Run, Scale, Source, Study, scales
from mindgap.lab.studies.variance_runs import loop
from mindgap.lab.studies.verdict import ONE_SIDED, by_seed, last, mean_interval

#: A gap that is lower by less than this factor is no gain.
MARGIN = 1.1


def judge(runs: Sequence[Run]) -> Parts:
    """Ask whether variance reduction gains nothing on a network.

    A gain is the log of SGD's last ``gap`` (training loss above the least possible value) over
    SVRG's, in the mean over paired seeds, with a 90 % interval.

    Returns:
        One part: yes where the gain on the network lies below the log of :data:`MARGIN`, no where
        it lies above 0 and not below that. Nothing is decided where SVRG gains nothing on the
        convex control.
    """
    parts = Parts()
    gains = {}  # problem -> interval of the gain
    for problem in ("network", "convex"):
        runs_of = by_seed(run for run in runs if run.header.method.startswith(problem))
        final_gaps = {  # rule -> one gap per seed
            rule: [last(run, "gap") for run in runs_of[f"{problem}, {rule}"]]
            for rule in ("SGD", "SVRG")
        }
        logs = np.log(final_gaps["SGD"]) - np.log(final_gaps["SVRG"])
        gain = gains[problem] = mean_interval(logs, miss=ONE_SIDED)
        errors = {
            rule: float(np.mean([last(run, "test_error") for run in runs_of[f"{problem}, {rule}"]]))
            for rule in final_gaps
        }
        median_gaps = {rule: float(np.median(values)) for rule, values in final_gaps.items()}
        parts.note(
            f"{problem}: SGD's gap is {_factor(gain.mean)} times SVRG's ({_factor(gain.low)} to "
            f"{_factor(gain.high)}; medians {median_gaps['SGD']:.2g} and "
            f"{median_gaps['SVRG']:.2g}; test errors {errors['SGD']:.1%} and {errors['SVRG']:.1%})",
            {problem: {"log_gain": vars(gain), "gap": median_gaps, "test_error": errors}},
        )
    if gains["convex"].low <= 0:
        parts.decide_nothing("SVRG gains nothing on the convex control, where it ought to")
    no_gain = gains["network"].high < math.log(MARGIN)
    parts.add(
        "no gain on the network", holds=no_gain, refuted=gains["network"].low > 0 and not no_gain
    )
    return parts


def _factor(logarithm: float) -> str:
    """The factor with this logarithm, in words; "inf" or "0" at an end of the unbounded interval
    that a single seed has.
    """
    return f"{np.exp(logarithm):.3g}"


_QUICK = {
    "train": 600,
    "batch": 20,
    "passes": 18,
    "width": 32,
    "layers": 3,
    "radius": 1.0,
    "decay": 0.0,
    "steps": [0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0],
    "rule": "sgd",
}

_CPU = {"train": 1000, "passes": 150, "width": 64, "layers": 4, "batch": 10}

_CONVEX = {"layers": 1, "decay": 0.05}

_CONTROL = {"convex, SGD": {"rule": "sgd", **_CONVEX}, "convex, SVRG": {"rule": "svrg", **_CONVEX}}

STUDY = Study(
    name="t4-variance-reduction",
    claim="T4",
    title="Variance reduction gains nothing on a deep network",
    statement="Variance reduction (SVRG) does not accelerate the training of a deep network; on a "
    "convex problem of the same data it does.",
    source=Source("thesis", "2.2, Fig. 2-2"),
    scales={
        **scales(_QUICK, _CPU, seeds=(3, 10)),
        "gpu": Scale(
            {
                **SETTINGS,
                "epochs": 30,
                "every": 3,
                "schedule": "late drops",
                "lr": 0.3,
                "rule": "sgd",
            },
            seeds=4,
            methods={
                name: {
                    **_QUICK,
                    **_CPU,
                    "model": "softmax regression",
                    "device": "cpu",
                    "factor": None,
                    **own,
                }
                for name, own in _CONTROL.items()
            },
        ),
    },
    methods={"network, SGD": {"rule": "sgd"}, "network, SVRG": {"rule": "svrg"}, **_CONTROL},
    loop=loop,
    judge=judge,
    rule="The upper end of a 90 % interval for the network's gain over paired seeds lies below a "
    "factor 1.1; refuted where the lower end lies above 1 and the gain may exceed 1.1. A control "
    "without a gain decides nothing.",
    models={
        "quick": "three layers, width 32, on digits",
        "cpu": "four layers, width 64, on digits",
        "gpu": RESNET20,
    },
    grid=GRID,
    tune_on="gap",
    tuning_seeds=(1000,),
    paper_model="large networks on CIFAR-10 and ImageNet",
    figures=(
        Figure(
            "Training loss above its least value",
            "gap",
            "F - min F",
            x="passes",
            facet="problem",
            log_y=True,
            x_label="gradient evaluations / samples",
            caption="Equal work for both rules: an epoch of SVRG costs three passes, one of SGD "
            "costs one.",
        ),
        Figure(
            "Test error",
            "test_error",
            "share of the held-out digits missed",
            x="passes",
            facet="problem",
            x_label="gradient evaluations / samples",
        ),
    ),
)
