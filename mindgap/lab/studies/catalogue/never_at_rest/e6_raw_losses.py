"""E6: along training with a constant step the loss of every iteration oscillates, its time average
is smooth.

A running average smooths noise, a walk and single peaks alike, and fails only on swings as long as
the record: whether the raw loss oscillates decides. Gradient descent on the fixed samples with a
small step is the control: where that oscillates too, the rule would find oscillation anywhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from mindgap.lab.studies import statistics_runs as gpu
from mindgap.lab.studies.bounds import OneFalseDesign
from mindgap.lab.studies.spec import Figure, Parts, Row, Run, Scale, Source, Study, Trial, scales
from mindgap.lab.studies.training_runs import Training, has_settled
from mindgap.lab.studies.verdict import by_method

#: A loss oscillates where its trend is below RATIO times its oscillation and less than PATH_RATIO
#: of its way leads on; an average is smooth where it keeps at most SMOOTH of the oscillation.
RATIO, PATH_RATIO, SMOOTH = 1.0, 0.1, 0.2
#: At scale gpu a series that changes by more than this share from its first quarter to its last one
#: has not settled.
CHANGE = 0.01
CONTROL = "control: whole gradient, small step"
#: Column -> what it is called.
SERIES = {"loss": "minibatch", "fixed": "fixed samples"}


def loop(trial: Trial) -> Iterator[Row]:
    """Train with a constant step, and yield a row per step in the last half of the run.

    At scale gpu there are rows in the last sixth alone.

    A row holds ``loss`` (of the step's minibatch), ``fixed`` (loss on fixed samples) and
    ``average``, the mean of ``loss`` over the rows so far. The control steps on the fixed samples
    themselves.
    """
    return _on_device(trial) if gpu.on_device(trial) else _run_small(trial)


def _on_device(trial: Trial) -> Iterator[Row]:
    """Train at scale gpu; a row per step of the last sixth holds ``loss`` (of the step's
    minibatch), ``fixed`` (loss on fixed samples, after the step) and ``average``, the mean of
    ``loss`` over the rows so far. With the ``rule`` "whole gradient" the minibatch is the fixed
    samples: the control.
    """
    import torch

    run = gpu.statistics_run(trial, "e6")
    burn_in = trial["steps"] * 5 // 6  # the thesis shows the last 50 of 300 epochs
    fixed_samples = tuple(torch.cat(parts) for parts in zip(*run.draw(trial["m"], "fixed")))
    run.kept["average"] = 0.0

    def read(number: int) -> Row:
        """The loss on the fixed samples, in the last sixth of the run alone."""
        return {"fixed": run.statistics.loss(fixed_samples)} if number >= burn_in else {}

    # The batches of an epoch; None: minibatches of the training data.
    epoch = (lambda number: [fixed_samples]) if trial["rule"] == "whole gradient" else None
    for row in run.rows(read, epoch=epoch):
        step, loss = row["step"], row["train_loss"]
        if step > burn_in:
            run.kept["average"] += (loss - run.kept["average"]) / (step - burn_in)
            yield {
                "step": step,
                "loss": loss,
                "fixed": row["fixed"],
                "average": run.kept["average"],
            }


def _run_small(trial: Trial) -> Iterator[Row]:
    """Train at small scales; a row per step of the last half holds ``loss`` (of the step's
    minibatch), ``fixed`` (loss on fixed samples), both before the step, and ``average``, the mean
    of ``loss`` over the rows so far. With a ``batch`` of 0 the minibatch is the fixed samples: the
    control.
    """
    import torch

    from mindgap.base.rng import stream_seed
    from mindgap.lab.tasks.problems.training import digits_network, prose_transformer

    seed = stream_seed(trial.seed, "e6, twice as wide")
    if trial["source"] == "digits":
        problem = digits_network(width=trial["width"], seed=seed)
    else:
        problem = prose_transformer(
            words=trial["words"], width=trial["width"], layers=1, length=8, seed=seed
        )
    objective, order = problem.objective, trial.torch_generator("e6 order, twice as wide")
    fixed = problem.draw(trial.torch_generator("e6 fixed, twice as wide"), trial["m"])
    optimizer = torch.optim.SGD(objective.parameters, lr=trial["lr"], momentum=trial["momentum"])
    run, burn_in = Training(problem, optimizer, order, {}), trial["steps"] // 2
    average = trial.restored.get("average", 0.0)
    for step in range(run.restore(trial.restored) + 1, trial["steps"] + 1):
        batch = problem.draw(order, trial["batch"]) if trial["batch"] else fixed
        with trial.timed():
            optimizer.zero_grad()
            value = objective.value(batch)
            value.backward()
        loss = fixed_loss = float(value.detach())  # of the control they are the same loss
        if step > burn_in and trial["batch"]:
            with torch.no_grad():
                fixed_loss = float(objective.value(fixed))
        with trial.timed():
            optimizer.step()
        if step > burn_in:
            average += (loss - average) / (step - burn_in)
            trial.save(lambda: run.state(step, average=average))  # noqa: B023
            yield {"step": step, "loss": loss, "fixed": fixed_loss, "average": average}


def shape_of(values: Any) -> dict[str, float]:
    """What is judged of a series of losses, one per step.

    Returns:
        ``oscillation``, the size of the swings; ``ratio``, the trend over it; ``path_ratio``, the
        share of the way that leads on; ``left``, the oscillation that the running average keeps:
        that of its last three quarters over that of the series.

    Example:
        >>> noise = np.random.default_rng(0).standard_normal(1000)
        >>> shape = shape_of(noise)
        >>> shape["ratio"] < 1, shape["path_ratio"] < 0.1, shape["left"] < 0.2
        (True, True, True)
        >>> shape_of(np.cumsum(noise))["ratio"] < 1  # a walk moves on more than it moves around
        False
        >>> shape_of(np.sin(np.arange(1000) / 111))[
        ...     "left"
        ... ] < 0.2  # nor is a swing so long averaged away
        False
    """
    from mindgap.measure import oscillation, running_average

    raw, averages = oscillation(values), running_average(values)
    averaged = oscillation(averages[len(averages) // 4 :])
    return {
        "ratio": raw.ratio,
        "path_ratio": raw.path_ratio,
        "oscillation": raw.oscillation,
        "left": averaged.oscillation / raw.oscillation if raw.oscillation else 1.0,
    }


def judge(runs: Sequence[Run]) -> Parts:
    """Ask of each network and series of :data:`SERIES` (columns ``loss`` and ``fixed``) whether the
    raw loss oscillates while its running average is smooth.

    A seed's loss oscillates where its trend is below :data:`RATIO` times its oscillation and less
    than :data:`PATH_RATIO` of its way leads on. Its average is smooth where it keeps at most
    :data:`SMOOTH` of the oscillation.

    Returns:
        One part per network and series: yes where all seeds do as stated, no where none does.
        Inconclusive where a network has not settled or the control oscillates in any seed. At scale
        gpu the median answer of the seeds decides (:func:`_median_answer`), and a gate asks whether
        the networks have learnt.
    """
    parts, on_device = Parts(), runs[0].header.scale == "gpu"
    for name, own_runs in by_method(runs).items():
        control = name == CONTROL
        if not control and not all(has_settled(run.column("loss")) for run in own_runs):
            parts.decide_nothing(f"{name} has not settled")
        if on_device and not control:
            losses = [run.column("loss") for run in own_runs]
            gpu.judge_learnt(
                parts,
                name,
                own_runs,
                [float(np.mean(values[-(len(values) // 4) :])) for values in losses],
            )
        for column, title in SERIES.items():
            if control and column == "fixed":  # its batch is the fixed samples
                continue
            shapes = [shape_of(run.column(column)) for run in own_runs]
            oscillates = np.array(
                [shape["ratio"] < RATIO and shape["path_ratio"] < PATH_RATIO for shape in shapes]
            )
            smooth = np.array([shape["left"] <= SMOOTH for shape in shapes])
            medians = {key: float(np.median([shape[key] for shape in shapes])) for key in shapes[0]}
            words = (
                f"the trend is {medians['ratio']:.2g} times the oscillation, "
                f"{medians['path_ratio']:.1%} of the way leads on, the running average keeps "
                f"{medians['left']:.0%} of the oscillation; of {len(own_runs)} seeds "
                f"{oscillates.sum()} oscillate and {smooth.sum()} have a smooth average"
            )
            numbers = {
                f"{name}, {title}": {
                    **medians,
                    "oscillates": int(oscillates.sum()),
                    "smooth": int(smooth.sum()),
                }
            }
            if control:
                parts.note(f"{name}: {words}", numbers)
                if oscillates.any():
                    parts.decide_nothing("the control oscillates")
            else:
                as_stated = oscillates & smooth
                holds, refuted = bool(as_stated.all()), not as_stated.any()
                if on_device:
                    median = _median_answer([run.column(column) for run in own_runs], as_stated)
                    holds, refuted = median == 1.0, median == 0.0
                parts.add(
                    f"{name}, {title}",
                    holds=holds,
                    refuted=refuted,
                    words=words,
                    numbers=numbers,
                )
    return parts


def _median_answer(series: Sequence[Any], as_stated: np.ndarray) -> float:
    """The median over the seeds of 1 (as stated), 0 (not) and 1/2: not, and it has not settled.

    It has where the means of its first and its last quarter differ by at most :data:`CHANGE`, so
    that a run too short for a statement about the end of long ones does not refute it.

    Args:
        series: losses of each run, one per step.
        as_stated: whether each of them oscillates and has a smooth average.
    """
    answers = []
    for values, stated in zip(series, as_stated, strict=True):
        quarter = len(values) // 4
        first, last = np.mean(values[:quarter]), np.mean(values[-quarter:])
        settled = abs(last - first) <= CHANGE * first
        answers.append(1.0 if stated else 0.0 if settled else 0.5)
    return float(np.median(answers))


STUDY = Study(
    name="e6-raw-losses",
    claim="E6",
    title="The loss of each step oscillates, its running average is smooth",
    statement="With a constant step the loss of every iteration oscillates, and only its time "
    "average is smooth.",
    source=Source("thesis", "6.3, Fig. 6-6"),
    scales={
        **scales(
            {
                "steps": 300,
                "batch": 16,
                "m": 128,
                "lr": 0.05,
                "momentum": 0.9,
                "width": 2,
                "words": 200,
                "source": "digits",
            },
            {"steps": 20000, "m": 256, "lr": 0.01, "words": 1000},
            seeds=(2, 3),
        ),
        # One row per step; the control descends on the fixed samples, which are one batch.
        "gpu": Scale(
            {"steps": 6000, "every": 1, "m": 512, "rule": "minibatch"},
            5,
            methods={
                "convolutional network": {**gpu.NOISY_IMAGES, "source": "cifar-10"},
                "transformer": {**gpu.WIKITEXT, "source": "wikitext-2", "m": 80},
                CONTROL: {
                    **gpu.NOISY_IMAGES,
                    "source": "cifar-10",
                    "rule": "whole gradient",
                    "lr": 0.01,
                    "momentum": 0.0,
                    "steps": 2000,
                },
            },
            rule="The median answer over the seeds is yes for both networks, for the minibatch's "
            "loss and for the loss on fixed samples in the last sixth of a run (no where a median "
            "is no). A seed's answer is yes where the series moves around its trend line by more "
            "than the trend moves (ratio below 1), at least nine tenths of its way lead back, and "
            "the running average, without its first quarter, moves around its own trend line by "
            "at most a fifth of that. Otherwise it is no, and open where the means of the first "
            "and of the last quarter of the series differ by more than 1 %: it has not settled. A "
            "control that oscillates in any seed, or a loss that changes by more than a tenth "
            "between the last two quarters, decides nothing. Gate: the mean loss of every run's "
            "last quarter of these steps lies 0.62 nat below the frequencies of classes (43 % of "
            "the way to the least loss that a fifth of random labels allows, as 1 nat is on right "
            "labels) or 1 nat below those of words, otherwise not trained.",
        ),
    },
    methods={
        "convolutional network": {"source": "digits"},
        "transformer": {"source": "prose", "m": 64, "width": 16},
        CONTROL: {"source": "digits", "batch": 0, "momentum": 0.0},
    },
    loop=loop,
    judge=judge,
    rule="Both the minibatch's loss and the loss on fixed samples oscillate in the last half of "
    "every run, and their running averages are smooth. Oscillates: it moves around its trend line "
    "by more than the trend moves (ratio below 1), and at least nine tenths of its way lead back. "
    "Smooth: without its first quarter, the running average moves around its own trend line by at "
    "most a fifth of that. Refuted where no seed of a network shows it. A loss that has not "
    "settled, or a control that oscillates, decides nothing.",
    lengths={"gpu": "17 of 300 epochs of images, and 6,000 steps of words"},
    designs={
        "gpu": OneFalseDesign(
            "answers",
            false=1.5,
            paper=0.0,
            deviation=0.0,
            unit="(trend over oscillation)",
            source="losses that swing around a level with a correlation of 0.9 from step to step, "
            "as a momentum of 0.9 leaves it; where the claim is false one series falls by 1.5 "
            "times its oscillation, and by more than 1 %. Of 1,000 series of 1,000 steps of each "
            "law 960 and 158 are as stated, as they leave them at one-sided 95 %; the others are "
            "no, and open",
            parts=2 * len(SERIES),
            yes_if_true=0.95,
            no_if_true=0.045,
            yes_if_false=0.18,
            no_if_false=0.0,
        )
    },
    models={
        **dict.fromkeys(
            ("quick", "cpu"), "three convolutions, width 2, on digits; a one-layer transformer"
        ),
        "gpu": f"proxies: {gpu.NOISY_PROXY}, {gpu.TEXT_PROXY}",
    },
    paper_model="ResNet101 on ImageNet and Transformer-XL on WikiText-103",
    figures=(
        Figure("Loss of every iteration", "loss", "minibatch loss", kind="path"),
        Figure(
            "Loss on fixed samples after every iteration",
            "fixed",
            "loss on fixed samples",
            kind="path",
        ),
        Figure(
            "Running average of the minibatch losses",
            "average",
            "running average",
            kind="path",
            caption="Averaged from where the record begins.",
        ),
    ),
)
