"""B3, a check against a known level: hyper-cleaning of MNIST with half of the labels corrupted,
beside two controls.

At scale ``cpu``: 20,000 training and 5,000 validation images, pixels in [0, 1], a linear softmax
with 0.001 ‖W‖², weights σ(λ_i) with λ = 0 at the start, as in the code of StocBio's authors. The
controls solve the lower problem with weight 1 on the right labels and 0 on the others, and with
weight 1 on all. Scale ``quick`` takes scikit-learn's digits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from mindgap.lab.studies.bilevel_runs import counters, method_of, runner_of
from mindgap.lab.studies.cleaning_runs import PAPER_MODEL
from mindgap.lab.studies.spec import Figure, Parts, Row, Run, Scale, Source, Study, Trial
from mindgap.lab.studies.verdict import by_seed, last_values, mean_interval, means

CLEAN, NOISY = "right labels alone", "all labels"
#: One percentage point.
POINT = 0.01


def task_of(trial: Trial) -> Any:
    """The hyper-cleaning task of a trial's seed, in single precision: a linear softmax on MNIST, of
    which the test images are a table of their own, or on digits.
    """
    import torch

    from mindgap.lab.tasks.data import digits, mnist
    from mindgap.lab.tasks.problems import hyper_cleaning

    tables = [mnist(), mnist("test")] if trial["data"] == "mnist" else [digits()]
    return hyper_cleaning(
        *tables,
        corruption=trial["corruption"],
        train=trial["train"],
        validation=trial["validation"],
        decay=trial["decay"],
        seed=trial.seed,
        dtype=torch.float32,
    )


def loop(trial: Trial) -> Iterator[Row]:
    """Run one method to its budget of ``oracle_calls``, or train one control to the end.

    A method yields ``readings`` + 1 rows at equal distances of calls, with counters,
    ``test_accuracy`` and ``weight_auc`` (the area under the curve of the weights as detectors of
    right labels). A control yields one row with its ``test_accuracy``.
    """
    task = task_of(trial)
    if trial["key"] == "control":
        # A mask of the right labels, or one that is true everywhere.
        used = ~task.corrupted if trial.method == CLEAN else task.corrupted | True
        with trial.timed():
            trained = task.trained_on(used)
        yield {"step": 0, "oracle_calls": 0, "test_accuracy": task.accuracy(trained)}
        return
    method = method_of({**trial.settings, "convexity": 2 * trial["decay"]})

    def losses() -> tuple[Any, Any]:
        """The upper and the lower loss in JAX, for the compiled backend."""
        from mindgap.lab.tasks.problems.compiled import cleaning_losses

        return cleaning_losses(task)

    runner, budget = runner_of(trial["backend"], losses), trial["oracle_calls"]
    oracle = runner.oracle(task.problem(trial["batch_size"]), method, trial.seed, distributed=False)
    with trial.timed():
        state = runner.start(method, oracle, trial.seed)
    for reading in range(trial["readings"] + 1):
        while state.total_calls < budget * reading // trial["readings"]:
            with trial.timed():  # 20 iterations at a time, a few calls beyond the mark at most
                state = runner.run(state, steps=20, calls=None, seconds=None)
        x, y = (oracle.to_torch(state.values[name]) for name in "xy")
        yield {
            **counters(state),
            "test_accuracy": task.accuracy(y),
            "weight_auc": task.weight_auc(x),
        }


def judge(runs: Sequence[Run]) -> Parts:
    """Compare the methods' final ``test_accuracy`` with that of two controls, seed by seed.

    The controls are the lower problem solved with the right labels alone (:data:`CLEAN`), a level
    known from the literature, and with all labels (:data:`NOISY`).

    Returns:
        Two parts: at least two methods end within :data:`POINT` of the right labels alone, on
        average over the seeds; training on all labels is worse than that by more than a point.
    """
    accuracy = last_values(by_seed(runs), "test_accuracy")
    behind = {name: accuracy[CLEAN] - values for name, values in accuracy.items()}
    methods = [name for name in accuracy if name not in (CLEAN, NOISY)]
    gaps = [mean_interval(behind[name]) for name in methods]
    # How many methods end within a point, by the mean gap and by the lower end of its interval.
    near = sum(gap.mean <= POINT for gap in gaps)
    possibly_near = sum(gap.low <= POINT for gap in gaps)
    noisy = mean_interval(behind[NOISY])
    parts = Parts()
    parts.add(
        "two methods end within one point of the right labels alone",
        holds=near >= 2,
        refuted=possibly_near < 2,
        words=f"{CLEAN} {accuracy[CLEAN].mean():.4f}; "
        + ", ".join(f"{name} {accuracy[name].mean():.4f}" for name in methods),
        numbers={"accuracy": means(accuracy)},
    )
    parts.add(
        "training on all labels is worse by more than one point",
        holds=noisy.low > POINT,
        refuted=noisy.high <= POINT,
        words=f"{accuracy[NOISY].mean():.4f}, behind by {noisy.words(100)} points",
        numbers={"noisy_behind": noisy.triple},
    )
    return parts


_QUICK = {
    "data": "digits",
    "corruption": 0.5,
    "train": 600,
    "validation": 600,
    "decay": 0.01,
    "batch_size": 32,
    "oracle_calls": 1500,
    "readings": 10,
    "inner": 10,
    "terms": 10,
    "eta": 0.1,
    "backend": "eager",
}

STUDY = Study(
    name="b3-mnist-levels",
    claim="B3",
    title="Hyper-cleaning beside its controls, half of the labels corrupted",
    statement="With half of the labels corrupted, hyper-cleaning comes within one point of "
    "training on the right "
    "labels alone, and training on all labels does not (on MNIST at scale cpu).",
    ours=True,
    source=Source("slip-rebuttal-a", "Fig. 2, the problem"),
    scales={
        "quick": Scale(_QUICK, seeds=2),
        "cpu": Scale(
            {
                **_QUICK,
                "data": "mnist",
                "train": 20_000,
                "validation": 5000,
                "decay": 1e-3,
                "batch_size": 100,
                "oracle_calls": 16_000,
                "backend": "compiled",
            },
            seeds=3,
        ),
    },
    methods={
        CLEAN: {"key": "control"},
        NOISY: {"key": "control"},
        "SLIP": {"key": "slip", "lr_x": 3.0, "lr_y": 0.1},
        "SOBA": {"key": "soba", "lr_x": 1e4, "lr_y": 1.0},
        "SABA": {"key": "saba", "lr_x": 3000.0, "lr_y": 0.1},
        "MA-SOBA": {"key": "masoba", "lr_x": 3000.0, "lr_y": 0.1},
        "StocBio": {"key": "stocbio", "lr_x": 3000.0, "lr_y": 0.1},
    },
    loop=loop,
    judge=judge,
    rule="At least two methods end, on average over the seeds, at most one percentage point of "
    "test accuracy below training on the right labels alone; and training on all labels ends more "
    "than one point below it (95 % interval over paired seeds). Refuted where at most one method "
    "can be within one point (95 % intervals), or where training on all labels is at most one "
    "point below (95 % interval).",
    models={"quick": "linear softmax on digits", "cpu": "linear softmax on MNIST"},
    paper_model=PAPER_MODEL,
    figures=(
        Figure(
            "Test accuracy",
            "test_accuracy",
            "test accuracy",
            x="oracle_calls",
            caption="The controls are points at 0 calls: trained to the end, on the right labels "
            "and on all.",
        ),
    ),
)
