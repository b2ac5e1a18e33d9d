"""Training where a network cannot over-fit: the loop and the parts of a rule that E1 and E2 share.

At every reading loss, gradient norm and noise of (6.2) are estimated on m fresh samples
(``training_statistics``). The square of the norm without its bias may come out negative: it is
averaged over a quarter of the readings before its root is taken. *Late* is the last quarter of a
run.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mindgap.base.rng import stream_seed
from mindgap.lab.studies.bounds import mean_within
from mindgap.lab.studies.spec import Figure, Parts, Row, Run, Trial
from mindgap.lab.studies.statistics_runs import judge_learnt, on_device, statistics_run
from mindgap.lab.studies.training_runs import (
    FITTED,
    STAYS,
    ZERO,
    Training,
    adam_or_sgd,
    has_settled,
    join_batches,
)
from mindgap.lab.studies.verdict import Values, by_method

if TYPE_CHECKING:
    import torch

    from mindgap.lab.tasks.problems import TrainingProblem


#: Sources of images; the others are texts.
IMAGES = ("digits", "cifar-10")

#: A norm at this share of another or more is no lower; the second number is that of scale gpu,
#: where it is the bound that a mean must clear with 95 %.
NO_LOWER, NO_LOWER_ON_DEVICE = 0.9, 0.8

#: A norm below this share of that at the start counts as it.
SMALLEST = ZERO / 10


def loop(trial: Trial) -> Iterator[Row]:
    """Train on a schedule; at every reading the quantities of (6.2) on m fresh samples.

    At scale gpu the rows come from :func:`_on_device`, else from :func:`_run_small`. The columns of
    both include ``loss``, ``noise``, ``gradient_square``, ``gradient_norm``, ``lr``, ``seconds``,
    and at some rows ``sharpness``; of images also ``accuracy``.
    """
    return _on_device(trial) if on_device(trial) else _run_small(trial)


def _on_device(trial: Trial) -> Iterator[Row]:
    """Rows of a run at scale gpu.

    Their loss is the mean over the steps since the row before, as the thesis plots it (6.3). At the
    start it is that of the samples.
    """
    run = statistics_run(trial, "never at rest")

    def read(number: int) -> Row:
        """The columns of row ``number``: the learning rate, at some rows also the gradient and its
        noise, at fewer the sharpness.
        """
        row: Row = {"lr": run.optimizer.param_groups[0]["lr"]}
        if number % trial["read_every"] == 0:
            batches = run.draw(trial["m"], number)
            row |= run.gradients(batches)
            if number % trial["sharp_every"] == 0:
                row |= run.sharpness(batches)
        return row

    for row in run.rows(read, at_start=True):
        loss = row.pop("train_loss", row.get("sample_loss"))
        yield {**row, "loss": loss, "seconds": trial.seconds}


def _run_small(trial: Trial) -> Iterator[Row]:
    """Rows of a run at small scales, all read on fresh samples.

    The samples of a reading are drawn in batches of ``part`` samples each, ``m`` in all.
    """
    import torch

    from mindgap.measure import sharpness, training_statistics

    problem, optimizer = _small_network(trial)
    objective, reader = problem.objective, trial.torch_generator("never at rest, floor, readings")
    number = trial["m"] // trial["part"]  # of batches per reading

    def read(step: int) -> Row:
        """The columns of a step's row, at step 0 on eight times as many samples; advances the
        reader.
        """
        # The start is read once, and every later norm is compared with it.
        batches = problem.batches(reader, number if step else 8 * number, trial["part"])
        statistics = training_statistics(
            objective, batches, growth=False, with_sharpness=False, seed=trial.seed
        )
        # Unbiased: the noise of a mean over n samples adds σ²/n to its squared norm.
        square = statistics.gradient_norm**2 - statistics.noise**2 / statistics.samples
        row: Row = {
            "seconds": trial.seconds,
            "loss": statistics.loss,
            "noise": statistics.noise,
            "gradient_square": square,
            "gradient_norm": math.sqrt(max(square, 0.0)),
            "lr": optimizer.param_groups[0]["lr"],
        }
        if step // trial["every"] % trial["sharp_every"] == 0:  # rows are counted, not steps
            # As many batches as at every reading, joined: one graph costs less than several.
            one_batch = [join_batches(batches[:number])]
            row["sharpness"] = sharpness(objective, one_batch, tol=1e-2, seed=trial.seed).norm
        if trial["source"] in IMAGES:
            with torch.no_grad():
                accuracies = [
                    (objective.model(x).argmax(dim=1) == y).double().mean() for x, y in batches
                ]
            row["accuracy"] = float(torch.stack(accuracies).mean())
        return row

    order = trial.torch_generator("never at rest, floor, order")
    run = Training(problem, optimizer, order, {"reader": reader})
    steps = round(trial["steps"] * trial["stretch"])
    return run.rows(trial, read, steps=steps, schedule=trial["schedule"], at_start=True)


def _small_network(trial: Trial) -> tuple[TrainingProblem, torch.optim.Optimizer]:
    """A network on augmented images with SGD, or a language model with Adam, by the setting
    ``source`` of the trial; the step size is ``lr`` times ``factor``.
    """
    from mindgap.lab.tasks import problems

    seed = stream_seed(trial.seed, "never at rest, floor")
    source, lr = trial["source"], trial["lr"] * trial["factor"]
    if source not in IMAGES:
        sizes = {name: trial[name] for name in ("words", "width", "layers", "length")}
        problem = problems.language_model(source, **sizes, seed=seed)
        return problem, adam_or_sgd("adam", problem.objective.parameters, lr)
    problem = problems.augmented_network(
        source,
        width=trial["width"],
        shift=trial["shift"],
        flip=source == "cifar-10",
        wrong_labels=trial["wrong_labels"],
        seed=seed,
    )
    parameters = problem.objective.parameters
    return problem, adam_or_sgd("sgd", parameters, lr, momentum=0.9, weight_decay=1e-4)


def level(run: Run, column: str, start: float, end: float) -> float:
    """The mean of a column over a part of a run.

    Args:
        run: its first row, at the start of training, is left out.
        column: of ``gradient_square`` the root of the mean is returned, 0 where that is negative.
        start, end: shares of the rows that have the column, from 0 to 1; at least one row counts.
    """
    values = run.column(column)[1:]
    first = min(round(start * len(values)), len(values) - 1)
    after_last = max(round(end * len(values)), first + 1)
    mean = float(np.mean(values[first:after_last]))
    return math.sqrt(max(mean, 0.0)) if column == "gradient_square" else mean


def late_levels(runs: Sequence[Run], column: str) -> list[float]:
    """The :func:`level` of a column in the last quarter of each of the runs."""
    return [level(run, column, 0.75, 1.0) for run in runs]


def norm_levels(runs: Sequence[Run], start: float, end: float) -> list[float]:
    """The :func:`level` of the gradient norm over a part of each of the runs, at least
    :data:`SMALLEST` times the norm at the start, so that a norm that noise hides in one run does
    not decide alone.
    """
    return [
        max(level(run, "gradient_square", start, end), SMALLEST * run.column("gradient_norm")[0])
        for run in runs
    ]


def add_ratio(
    parts: Parts,
    name: str,
    upper: Values,
    lower: Values,
    least: float,
    questions: int,
    reading: str = "",
) -> None:
    """Add the part: ``upper`` lies above ``least`` times ``lower``, by the mean log of their ratio
    over paired seeds.

    Args:
        parts: changed in place.
        name: of the part.
        upper, lower: positive values, one per seed; below 1e-12 they count as 1e-12.
        least: a positive factor.
        questions: 0 at small scales: yes and no by :meth:`Parts.ratio`. At scale gpu the number of
            parts: yes by a one-sided 95 % bound, no corrected for that number.
        reading: of the statement that the part is about, at scale gpu.
    """
    if not questions:
        parts.ratio(name, upper, lower, least)
        return
    logs = np.log(np.maximum(upper, 1e-12)) - np.log(np.maximum(lower, 1e-12))
    mean_within(
        parts,
        name,
        logs,
        least=math.log(least),
        questions=questions,
        logs=True,
        reading=reading,
    )


def shared_parts(
    runs: Sequence[Run], schedule: str, periods: Mapping[str, int], questions: int
) -> Parts:
    """Judge what E1 and E2 share: gradient norms stay, and noise grows.

    The whole verdict is inconclusive where the loss of a method has not settled, or where its
    network knows the share ``FITTED`` of its images or more. At scale gpu a gate per method asks
    whether its network has learnt.

    Args:
        runs: of all methods.
        schedule: name of the method whose noise must grow.
        periods: method -> periods of constant step, each of which must settle; else one.
        questions: see :func:`add_ratio`.
    """
    parts = Parts()
    for name, own_runs in by_method(runs).items():
        # Without the row of the start.
        mean_loss = np.mean([run.column("loss")[1:] for run in own_runs], axis=0)
        settled = all(map(has_settled, np.array_split(mean_loss, periods.get(name, 1))))
        if not settled:
            parts.decide_nothing(f"{name}: the loss has not settled")
        with_accuracy = [run for run in own_runs if run.column("accuracy")]
        accuracy = max(late_levels(with_accuracy, "accuracy"), default=0.0)
        if accuracy >= FITTED:
            parts.decide_nothing(f"{name}: the network over-fits")
        _judge_norm(parts, name, own_runs, {"settled": settled, "accuracy": accuracy}, questions)
        if questions:
            judge_learnt(parts, name, own_runs, late_levels(own_runs, "loss"))
        if name == schedule:
            at_start = [run.column("noise")[0] for run in own_runs]
            late_noise = late_levels(own_runs, "noise")
            add_ratio(parts, f"{name}: noise grows", late_noise, at_start, 1.0, questions)
    return parts


def _judge_norm(
    parts: Parts,
    name: str,
    own_runs: Sequence[Run],
    numbers: dict[str, Any],
    questions: int,
) -> None:
    """Add a part: in every run of a method the late gradient norm is at least a tenth (``STAYS``)
    of that at the start.

    It is refuted where the median of these shares is a hundredth (``ZERO``) or less. At scale gpu
    bounds of the mean log of the shares are compared with the same two numbers.

    Args:
        parts: of the verdict.
        name: of the method.
        own_runs: its runs.
        numbers: further numbers that the verdict keeps beside.
        questions: see :func:`add_ratio`.
    """
    late_norms = norm_levels(own_runs, 0.75, 1.0)
    start_norms = [max(run.column("gradient_norm")[0], 1e-12) for run in own_runs]
    shares = [late / start for late, start in zip(late_norms, start_norms)]
    loss, norm = float(np.median(late_levels(own_runs, "loss"))), float(np.median(late_norms))
    part = f"{name}: the gradient norm stays"
    if questions:
        mean_within(
            parts,
            part,
            np.log(np.maximum(shares, 1e-12)),
            least=math.log(STAYS),
            gap=math.log(STAYS / ZERO),
            questions=questions,
            logs=True,
        )
        parts.note("", {f"{part}, levels": {"loss": loss, "norm": norm, **numbers}})
        return
    parts.add(
        part,
        holds=min(shares) >= STAYS,
        refuted=float(np.median(shares)) <= ZERO,
        words=f"loss {loss:.3g}, norm {norm:.2g}, {min(shares):.2g} to {max(shares):.2g} of the "
        "start",
        numbers={part: {"loss": loss, "norm": norm, "shares": shares, **numbers}},
    )


def more_at_a_smaller_step(
    parts: Parts,
    groups: Mapping[str, Sequence[Run]],
    small: str,
    large: str,
    questions: int,
    reading: str = "",
) -> None:
    """Add two parts (thesis, 6.2.1): noise and sharpness are larger at the smaller step size, late
    in the runs.

    Args:
        parts: of the verdict.
        groups: method -> its runs.
        small, large: the methods with the smaller and with the larger step size.
        questions, reading: see :func:`add_ratio`.
    """
    for column in ("noise", "sharpness"):
        at_small, at_large = (late_levels(groups[name], column) for name in (small, large))
        name = f"{small}: larger {column} than {large}"
        add_ratio(parts, name, at_small, at_large, 1.0, questions, reading)


def figures(caption: str) -> tuple[Figure, ...]:
    """Loss, gradient norm, noise and sharpness along training; ``caption`` is that of the loss."""
    return (
        Figure("Loss", "loss", "training loss", caption=caption),
        Figure(
            "Gradient norm",
            "gradient_norm",
            "‖∇L_S(θ)‖, bias removed",
            log_y=True,
            caption="Estimated on m fresh samples at every reading; 0 where noise hides it.",
        ),
        Figure("Noise", "noise", "σ of one sample's gradient", log_y=True),
        Figure("Sharpness", "sharpness", "‖∇²L_S(θ)‖", log_y=True),
    )


RULE = (
    "Late, the mean loss is within a tenth of the quarter before (with drops: in every period of "
    "constant step) and no image network knows 99.9 % of its samples, else nothing is decided. "
    "The late gradient norm is a tenth of that at the start or more, for every seed (refuted: a "
    "hundredth or less in the median). The noise of the scheduled run grows. No lower means that "
    "the 95 % interval of the ratio over paired seeds lies above 0.9 (below: refuted). "
)

GPU_RULE = (
    "All bounds are of means of logs over the seeds: yes where the one-sided 95 % bound says so, "
    "for every part; no where the opposite is sure with 95 % for all parts together. Late means in "
    "the last quarter of a run; a norm below a thousandth of that at the start counts as a "
    "thousandth. The gradient norm of every method is late more than a tenth of "
    "that at the start (no: less than a hundredth). The noise of the scheduled run grows. No lower "
    "means more than 0.8 of the other norm. A mean loss that is late not within a tenth of the "
    "quarter before (with drops: in every period of constant step), or an image network that knows "
    "99.9 % of its samples, decides nothing. Gate: every run's late loss lies 1 nat below that of "
    "frequencies of classes or words, otherwise not trained. "
)

#: Rows every twelfth of a run, with gradient and noise; of every twelfth row the sharpness.
READINGS = {"factor": 1.0, "stretch": 1.0, "read_every": 1, "sharp_every": 12}
