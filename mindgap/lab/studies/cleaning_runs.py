"""What the studies on data hyper-cleaning share: the task of a seed, its sizes, tuned steps,
and the rows of a run.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from mindgap.base.check import one_of
from mindgap.lab.studies.bilevel_runs import (
    in_units,
    measured_rows,
    method_of,
    runner_of,
    vector_text,
)
from mindgap.lab.studies.device_runs import device_of
from mindgap.lab.studies.spec import Row, Trial
from mindgap.lab.tasks import data, problems

if TYPE_CHECKING:
    from torch import Tensor


SOURCES = ("digits", "mnist-5000", "mnist", "sentiment140", "made-up tweets")

#: sources of texts, for which the classifier is a recurrent net
TEXTS = SOURCES[-2:]


def task_of(trial: Trial) -> Any:
    """The hyper-cleaning task of a trial: a softmax classifier of images, or a recurrent net on
    texts.

    Data, splits and corruption depend on the seed, not on the method. The lab's task holds
    everything that is read of a run: accuracies, losses and the area under the weights' curve.

    Args:
        trial: with the settings of :data:`QUICK` (images) or :data:`GPU` (texts) and
            ``corruption``, the share of wrong labels. On the CPU it computes in float64, on a GPU
            in float32.
    """
    import torch

    source = one_of("data", trial["data"], SOURCES)
    if source in TEXTS:
        return _text_task(trial)
    readers = {"digits": data.digits, "mnist-5000": data.mnist_5000, "mnist": data.mnist}
    return problems.hyper_cleaning(
        readers[source](),
        data.mnist("test") if source == "mnist" else None,
        corruption=trial["corruption"],
        train=trial["train"],
        validation=trial["validation"],
        held=trial.settings.get("held", 0),
        components=trial["components"] or None,
        decay=trial["decay"],
        seed=trial.seed,
        dtype=torch.float64 if trial["device"] == "cpu" else torch.float32,
        device=trial["device"],
    )


def _text_task(trial: Trial) -> Any:
    """The task of a trial on texts: a recurrent net on its device, with the settings of
    :data:`GPU`.
    """
    from mindgap.lab.tasks.data.tweets import made_up_tweets, tweets
    from mindgap.lab.tasks.problems.recurrent_cleaning import recurrent_cleaning

    length = trial["words"]
    sizes = ("corruption", "train", "validation", "test", "hidden", "head", "decay", "start")
    texts = tweets(length) if trial["data"] == "sentiment140" else made_up_tweets(length=length)
    return recurrent_cleaning(
        texts,
        **{name: trial[name] for name in sizes},
        held=trial.settings.get("held", 0),
        seed=trial.seed,
        device=device_of(trial),
    )


def rows_of(trial: Trial, task: Any, method: Any, **how: Any) -> Iterator[Row]:
    """Run a method on a task and yield a row of counters, accuracies and losses at equal distances
    of oracle calls.

    Args:
        trial: with the settings of the task.
        task, method: what runs on what.
        how: further arguments of :func:`mindgap.lab.studies.bilevel_runs.states`, which carries the
            run out.

    Yields:
        The columns of :func:`mindgap.lab.studies.bilevel_runs.measured_rows` and, at the method's
        own lower solution, accuracies and losses on parts of the data, with ``weight_auc``, the
        area under the curve of the weights as a test for right labels. The last reading of a trial
        with the setting ``solve`` also has those of the common solve at the final x
        (:func:`solved_row`), and that of a net the accuracy of a linear model with the given
        labels.
    """
    from mindgap.measure.captured import tf32

    on_texts, has_search_part = trial["data"] in TEXTS, bool(trial.settings.get("held"))

    def measure(x: Tensor, y: Tensor) -> Row:
        """The columns of a row at weights ``x`` and the lower solution ``y``, both flat.

        Only a task with samples held for searches has a ``held_loss``, and only texts have labels
        set by hand (``manual``).
        """
        row = {
            "test_accuracy": task.accuracy(y),
            "train_accuracy": task.accuracy(y, "train"),
            "weight_auc": task.weight_auc(x),
            "validation_loss": task.validation_loss(y),
        }
        row |= {"held_loss": task.loss(y)} if has_search_part else {}
        return {**row, "manual_accuracy": task.accuracy(y, "manual")} if on_texts else row

    def at_end(x: Tensor) -> Row:
        """Further columns of the last row: of a net the linear model's accuracy, and what the
        settings ``solve`` and ``keep_x`` ask for.
        """
        row: Row = {"linear_accuracy": task.linear_accuracy(task.train[1])} if on_texts else {}
        if trial.settings.get("solve"):
            row |= solved_row(trial, task, solution(task, trial, x))
        if trial.seed < trial.settings.get("keep_x", 0):
            row["x"] = vector_text(x.cpu().numpy())
        return row

    diverged_row = {
        "test_accuracy": 0.0,
        "train_accuracy": 0.0,
        "weight_auc": 0.5,
        "validation_loss": float("inf"),
    }
    diverged_row |= {"manual_accuracy": 0.0} if on_texts else {}
    diverged_row |= {"held_loss": float("inf")} if has_search_part else {}
    with tf32(on_texts):
        yield from measured_rows(
            trial,
            task.problem(trial["batch_size"]),
            method,
            measure,
            diverged_row,
            at_end,
            runner=runner_of("graphs") if on_texts else None,
            **how,
        )


def solution(task: Any, trial: Trial, x: Tensor | str) -> Tensor:
    """Solve the lower problem at given weights, in the same way for all methods; returns its flat
    solution.

    Args:
        task: of the trial.
        trial: a net is solved by so many steps as its setting ``solve`` says; a softmax classifier
            is solved to the end.
        x: the flat weights at which the lower problem is solved, or the name of a control, whose
            weights no method has chosen.
    """
    solve_steps = (trial["solve"],) if trial["data"] in TEXTS else ()
    return task.control(x, *solve_steps) if isinstance(x, str) else task.solved(x, *solve_steps)


def solved_row(trial: Trial, task: Any, y: Tensor) -> Row:
    """The test accuracy of a lower solution ``y`` of :func:`solution`, and its loss on the samples
    held for searches, where there are some.
    """
    held_loss = {"solved_held_loss": task.loss(y)} if trial.settings.get("held") else {}
    return {"solved_accuracy": task.accuracy(y), **held_loss}


def control_rows(trial: Trial) -> Iterator[Row]:
    """The one row of a control: what the lower solution at its weights reaches.

    Of a net it also has the accuracy of a linear model with the right labels. The trial's setting
    ``control`` names the control (see :data:`CONTROL_METHODS`).
    """
    from mindgap.measure.captured import tf32

    task, on_texts = task_of(trial), trial["data"] in TEXTS
    with tf32(on_texts):
        y = solution(task, trial, trial["control"])
        row = {"step": 0, "oracle_calls": 0, "test_accuracy": task.accuracy(y)}
        linear = {"linear_accuracy": task.linear_accuracy(task.clean_labels)} if on_texts else {}
        yield {**row, **solved_row(trial, task, y), **linear}


def cleaning_method(trial: Trial, **chosen: Any) -> Any:
    """The method of a trial, with settings ``chosen`` by a search laid over its own.

    The setting ``units`` multiplies the three steps. A decay of γ makes the lower problem
    2γ-strongly convex.
    """
    return method_of(in_units({**trial.settings, **chosen, "convexity": 2 * trial["decay"]}))


#: seconds on digits, and minutes on all their pixels; a study adds the corruption
QUICK: dict[str, Any] = {
    "data": "digits",
    "train": 300,
    "validation": 300,
    "components": 16,
    "decay": 1e-2,
    "batch_size": 32,
    "oracle_calls": 400,
    "least_steps": 10,
    "readings": 8,
    "inner": 3,
    "terms": 5,
    "device": "cpu",
}
CPU: dict[str, Any] = {
    **QUICK,
    "train": 700,
    "validation": 700,
    "components": 0,
    "oracle_calls": 20_000,
    "least_steps": 20,
    "readings": 40,
}

#: Minutes on a GPU: a two-layer recurrent net on tweets; 20 batches per epoch of x or y, so that
#: 2,500 calls are the 25 published epochs of a method with five calls per step (SLIP, SOBA, SABA,
#: MA-SOBA). With decay 1e-3 perfect weights end 3.6 points above no cleaning at p = 0.2 (seed
#: 2000).
GPU: dict[str, Any] = {
    "data": "sentiment140",
    "train": 10_240,
    "validation": 10_240,
    "held": 10_240,
    "test": 16_384,
    "words": 16,
    "hidden": 64,
    "head": 64,
    "decay": 1e-3,
    "start": 1.0,
    "batch_size": 512,
    "oracle_calls": 2500,
    "least_steps": 20,
    "readings": 10,
    "inner": 3,
    "terms": 5,
    "refresh": 4,
    "lr_z": 0.1,
    "device": "cuda",
}

#: the net of the published code, with as many texts and calls as 20 minutes of a GPU allow
PAPER: dict[str, Any] = {
    **GPU,
    "train": 5120,
    "validation": 5120,
    "held": 5120,
    "test": 4096,
    "hidden": 4096,
    "head": 1024,
    "batch_size": 256,
    "oracle_calls": 360,
    "readings": 4,
}

#: The common solve at the end of a run, by scale: ``solve`` has its steps (a linear softmax is
#: solved to the end), and of seeds below ``keep_x`` the final x is kept.
SOLVED: dict[str, dict[str, Any]] = {
    "quick": {"held": 300, "solve": 1},
    "cpu": {"train": 600, "validation": 600, "held": 300, "solve": 1},
    "gpu": {"solve": 400, "keep_x": 5},
    "paper": {"solve": 400},
}

#: Controls of a cleaning task, solved as every method's x is: label -> settings.
CONTROL_METHODS: dict[str, dict[str, Any]] = {
    "no cleaning": {"key": "", "control": "none"},
    "perfect weights": {"key": "", "control": "perfect"},
    "clean validation only": {"key": "", "control": "validation"},
}

#: the methods at scales gpu (beside SLIP with shared samples) and paper
GPU_METHODS = ("SLIP", "BO-REP", "StocBio", "TTSA", "SABA", "MA-SOBA", "F²SA", "SOBA")

#: what a verdict at scale gpu is about
GPU_MODEL = "proxy: a recurrent net of 64 units on Sentiment140"
#: the published code's
PAPER_MODEL = "a recurrent net of 4,096 units on Sentiment140"
#: what a verdict at scale paper is about
WIDE_MODEL = f"{PAPER_MODEL} (word vectors of 50 dimensions)"

#: Method -> units of (lr_x, lr_y, lr_z) at scale gpu, so that one grid serves all: a normalised
#: step on x has another size than a plain one, and a step that decays starts higher. They were
#: chosen before the search.
UNITS: dict[str, list[float]] = {
    "SLIP": [1.0, 1.0, 1.0],
    "SLIP, shared samples": [1.0, 1.0, 1.0],
    "BO-REP": [1.0, 1.0, 1.0],
    "StocBio": [3e3, 1.0, 1.0],
    "AmIGO": [3e3, 1.0, 1.0],
    "SABA": [3e3, 1.0, 1.0],
    "MA-SOBA": [3e3, 1.0, 1.0],
    "VRBO": [3e3, 1.0, 1.0],
    "SVRB": [3e3, 1.0, 1.0],
    "TTSA": [3e4, 10.0, 1.0],
    "MRBO": [3e4, 10.0, 1.0],
    "SUSTAIN": [3e4, 10.0, 1.0],
    "SOBA": [3e4, 10.0, 10.0],
    "F²SA": [300.0, 10.0, 1.0],
}

#: steps before a search, in these units, and the grid of the search
GPU_STEPS = {method: {"lr_x": 1.0, "lr_y": 0.3, "units": units} for method, units in UNITS.items()}
#: a net of 4,096 units bears a third of the step on y and z; the third number of F²SA is no step
PAPER_STEPS = {
    method: {**steps, "units": [x, y / 3, z if method == "F²SA" else z / 3]}
    for (method, steps), (x, y, z) in zip(GPU_STEPS.items(), UNITS.values())
}
GPU_GRID = {"lr_x": (0.3, 1.0, 3.0), "lr_y": (0.1, 0.3, 1.0), "lr_z": (0.03, 0.1, 0.3)}

#: (lr_x, lr_y) by method, from the grid search of ``b3-hyper-cleaning`` at scale quick and p = 0.3,
#: which had 600 oracle calls then
TUNED: dict[str, tuple[float, float]] = {
    "BSA": (100.0, 10.0),
    "StocBio": (1000.0, 1.0),
    "AmIGO": (1000.0, 1.0),
    "ALSET": (1000.0, 1.0),
    "TTSA": (1000.0, 3.0),
    "F²SA": (10.0, 10.0),
    "SOBA": (1000.0, 10.0),
    "SABA": (1000.0, 1.0),
    "MA-SOBA": (100.0, 1.0),
    "BO-REP": (10.0, 1.0),
    "SLIP": (1.0, 1.0),
    "VRBO": (1000.0, 1.0),
    "MRBO": (1000.0, 3.0),
    "SUSTAIN": (100.0, 3.0),
    "SVRB": (1000.0, 10.0),
    "SRBA": (100.0, 1.0),
}
