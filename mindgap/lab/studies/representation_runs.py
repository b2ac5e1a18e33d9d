"""What the studies on hyper-representation share: the tasks of a seed, their sizes, tuned
steps, the rows of a run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from mindgap.base.check import one_of
from mindgap.lab.studies.bilevel_runs import TITLES, in_units, measured_rows, method_of, runner_of
from mindgap.lab.studies.device_runs import device_of
from mindgap.lab.studies.spec import Row, Trial
from mindgap.lab.tasks import data, problems

if TYPE_CHECKING:
    from torch import Tensor

    from mindgap.lab.tasks.data import Table
    from mindgap.lab.tasks.problems import HyperRepresentation
    from mindgap.lab.tasks.problems.meta_tasks import MetaTasks

SOURCES = (
    "digits",
    "turned digits",
    "snli",
    "reviews",
    "words of snli",
    "words of reviews",
    "made-up pairs",
)

#: sources of words, for which the encoder is a recurrent net
WORDS = SOURCES[-3:]

#: meta-learners: key -> whether a task moves all parameters
META = {"maml": True, "anil": False}

#: The baselines of Fig. 1 that Table 1 has, and SLIP; MAML and ANIL, which the figure has too, run
#: at scale gpu.
METHODS = ("StocBio", "TTSA", "F²SA", "SABA", "MA-SOBA", "BO-REP", "SLIP")

#: the domain whose reviews are kept for the test
TEST_DOMAIN = "kitchen_&_housewares"


def task_of(trial: Trial) -> HyperRepresentation:
    """The hyper-representation problem of a trial: few-shot tasks and an encoder that they share.

    Splits, tasks and the encoder's start depend on the seed, not on the method.

    Args:
        trial: with the settings of :data:`QUICK` and ``data``, one of :data:`SOURCES`. Words need
            those of :data:`GPU` and have a recurrent encoder.
    """
    if one_of("data", trial["data"], SOURCES) in WORDS:
        return _recurrent_task(trial)
    return problems.hyper_representation(
        *tables_of(trial["data"], trial.seed),
        tasks=tuple(trial["tasks"]),
        ways=trial["ways"],
        shots=trial["shots"],
        hidden=trial["hidden"],
        features=trial["features"],
        decay=trial["decay"],
        seed=trial.seed,
    )


def _recurrent_task(trial: Trial) -> HyperRepresentation:
    """The problem of a trial on words, with a recurrent encoder on the trial's device."""
    from mindgap.lab.tasks.data.tweets import review_words, snli_words
    from mindgap.lab.tasks.problems import recurrent_representation as recurrent

    # Tables of training, validation and test, and the vectors of all words.
    if trial["data"] == "made-up pairs":
        tables = [[recurrent.made_up_pairs(length=trial["words"], seed=part)] for part in range(3)]
        vectors = recurrent.made_up_vectors()
    elif trial["data"] == "words of reviews":
        domains, vectors = review_words(trial["words"])
        tables = _by_domain(domains, trial.seed)
    else:
        splits, vectors = snli_words(trial["words"])
        tables = [[table] for table in splits]
    train, validation, test = tables
    return recurrent.recurrent_representation(
        train,
        validation,
        test,
        vectors,
        tasks=tuple(trial["tasks"]),
        seed=trial.seed,
        device=device_of(trial),
        precision=trial.settings.get("precision", "tf32"),
        **{name: trial[name] for name in ("ways", "shots", "hidden", "features", "decay")},
    )


def tables_of(source: str, seed: int) -> list[list[Table]]:
    """The tables (domains) of training, validation and test.

    * ``"digits"``: three parts of the images.
    * ``"turned digits"``: the images turned by 0, 90 and 180 degrees are three domains to train and
      validate on, in parts; turned by 270 degrees they are the test's, so that the test has images
      and a domain of its own.
    * ``"snli"``: SNLI's own three splits, of the training split as many pairs as are at hand.
    * ``"reviews"``: one domain is the test's; of the others four fifths are for training.

    Args:
        source: one of these four.
        seed: of the split of images and reviews.

    Returns:
        Three lists, for training, validation and test, with one table per domain.
    """
    one_of("data", source, SOURCES)
    if source == "snli":
        return [[table] for table in _text_tables(source)]
    if source == "reviews":
        return _by_domain(_text_tables(source), seed)
    train, validation, test = problems.split_table(data.digits(), (0.6, 0.2, 0.2), seed=seed)
    if source == "digits":
        return [[train], [validation], [test]]
    return [
        [_turn(train, quarters) for quarters in (0, 1, 2)],
        [_turn(validation, quarters) for quarters in (0, 1, 2)],
        [_turn(test, 3)],
    ]


def _by_domain(domains: Sequence[Table], seed: int) -> list[list[Table]]:
    """The tables of training, validation and test, as :func:`tables_of` returns them.

    The domain :data:`TEST_DOMAIN` is the test's. Of every other one four fifths are for training
    and one fifth for validation.
    """
    test_domains = [table for table in domains if table.origin.endswith(TEST_DOMAIN)]
    split = [
        problems.split_table(table, (0.8, 0.2), seed=seed)
        for table in domains
        if not table.origin.endswith(TEST_DOMAIN)
    ]
    return [[train for train, _ in split], [validation for _, validation in split], test_domains]


def _turn(table: Table, quarters: int) -> Table:
    """A table of 8 x 8 images, each turned counter-clockwise by so many quarters of a circle."""
    images = np.rot90(table.features.reshape(-1, 8, 8), quarters, axes=(1, 2))
    origin = f"{table.origin}, turned by {90 * quarters} degrees"
    return replace(table, features=images.reshape(len(table), -1).copy(), origin=origin)


@lru_cache(maxsize=2)
def _text_tables(source: str) -> tuple[Table, ...]:
    """Tables of texts as vectors: the domains of ``"reviews"``, or else SNLI's three splits.

    They are read once per process, for reading takes longer than a run.
    """
    if source == "reviews":
        return tuple(data.review_domains().values())
    return (
        data.snli_pairs("train", rows=40_000),
        data.snli_pairs("dev"),
        data.snli_pairs("test"),
    )


def representation_method(
    trial: Trial, task: HyperRepresentation | None = None, **chosen: Any
) -> Any:
    """The method of a trial, with its steps scaled to the number n of training tasks.

    The lower loss g is the mean over the tasks, so that each task's own loss enters as an n-th. The
    settings ``lr_y`` and ``lr_z`` are steps on a task's own loss, and are multiplied by n.

    Args:
        trial: its setting ``key`` names the method.
        task: the problem, whose encoder says where the head begins; only MAML and ANIL need it, and
            make it where it is None.
        chosen: settings laid over the trial's.
    """
    settings = in_units({**trial.settings, **chosen})  # a copy
    if settings["key"] in META:
        meta = _meta(task or task_of(trial), settings["key"])
        return meta.method(settings["lr_x"], settings["lr_y"], settings["inner"])
    training_tasks = settings["tasks"][0]  # n; the others are for validation and test
    if "lr_z" in settings:
        # F²SA's penalty knows nothing of the number of tasks: it is fixed before lr_z is scaled.
        settings["lam"] = 1 / settings["lr_z"]
    for name in {"lr_y", "lr_z"} & settings.keys():
        settings[name] *= training_tasks
    # A decay of γ makes a task's own loss 2γ-strongly convex in its head, and g an n-th of that.
    return method_of({**settings, "convexity": 2 * settings["decay"] / training_tasks})


def rows_of(trial: Trial, task: HyperRepresentation, method: Any, **how: Any) -> Iterator[Row]:
    """Run a method on the tasks and yield a row of counters, accuracies and the validation tasks'
    loss at equal distances of oracle calls.

    Args:
        trial: with the settings of the problem.
        task, method: what runs on what.
        how: further arguments of :func:`mindgap.lab.studies.bilevel_runs.states`, which carries the
            run out.

    Yields:
        The columns of :func:`mindgap.lab.studies.bilevel_runs.measured_rows` and those below.

    *Training accuracy*: the method's own heads on the query sets of the training tasks (of MAML and
    ANIL: what each task has after its steps). *Test accuracy* and the validation loss: new heads,
    trained to the end on the support sets of tasks kept for testing.
    """
    from mindgap.measure.captured import tf32

    key = trial.settings.get("key", "")
    meta = _meta(task, key) if key in META else None

    def measure(x: Tensor, y: Tensor) -> Row:
        """The columns of a row at flat x and y.

        x is the encoder and y all heads; of a meta-learner x is the encoder with a head after it,
        and y what its tasks' steps make of that.
        """
        encoder = x if meta is None else x[: meta.body]  # ``body``: entries of the encoder
        loss, accuracy = task.adapted(encoder, "validation")
        return {
            "test_accuracy": task.adapted(encoder, "test")[1],
            "train_accuracy": task.accuracy(x, y) if meta is None else meta.accuracy(x, method),
            "validation_loss": loss,
            "validation_accuracy": accuracy,
        }

    by_guessing = 1 / task.ways
    diverged_row = {
        "test_accuracy": by_guessing,
        "train_accuracy": by_guessing,
        "validation_accuracy": by_guessing,
        "validation_loss": float("inf"),
    }
    on_words = trial["data"] in WORDS
    # All have as many examples per oracle call: a few examples of every task, or for a meta-learner
    # a few whole tasks.
    examples_per_task = trial["ways"] * trial["shots"]
    whole_tasks = max(1, trial["tasks"][0] * trial["batch_size"] // examples_per_task)
    problem = task.problem(trial["batch_size"]) if meta is None else meta.problem(whole_tasks)
    # A recurrent encoder runs in CUDA graphs, all else eagerly; a caller may have said otherwise.
    how.setdefault("runner", runner_of("graphs") if on_words and meta is None else None)
    with tf32(on_words):
        yield from measured_rows(trial, problem, method, measure, diverged_row, **how)


def _meta(task: HyperRepresentation, key: str) -> MetaTasks:
    """The tasks of a problem as the meta-learner of that key (of :data:`META`) sees them."""
    from mindgap.lab.tasks.problems.meta_tasks import MetaTasks

    return MetaTasks(task, META[key])


def own_steps(source: str) -> dict[str, dict[str, float]]:
    """Method -> its tuned steps ``lr_x`` and ``lr_y`` on a source of data.

    Example:
        >>> sorted(own_steps("digits")["SLIP"])
        ['lr_x', 'lr_y']
    """
    return {method: {"lr_x": lr_x, "lr_y": lr_y} for method, (lr_x, lr_y) in TUNED[source].items()}


#: seconds on digits, minutes on texts; a study adds the data
QUICK: dict[str, Any] = {
    "tasks": [40, 20, 40],
    "ways": 5,
    "shots": 5,
    "hidden": 16,
    "features": 4,
    "decay": 1e-2,
    "batch_size": 5,
    "oracle_calls": 500,
    "least_steps": 20,
    "readings": 4,
    "inner": 5,
    "terms": 5,
}
#: 500 tasks of 20 + 20 examples, 2 of the labels each, and 20 epochs (of the methods that take one
#: step below), as published; 1000 examples per oracle call (published: 400), so that an epoch has
#: 10 steps (published: 25)
CPU: dict[str, Any] = {
    **QUICK,
    "tasks": [500, 100, 100],
    "ways": 2,
    "shots": 10,
    "hidden": 32,
    "decay": 1e-1,
    "batch_size": 2,
    "oracle_calls": 1000,
    "readings": 10,
}

#: As CPU, with a two-layer recurrent encoder over the words: minutes on a GPU. A review's first 24
#: words are read.
GPU: dict[str, Any] = {
    **CPU,
    "data": "words of snli",
    "words": 16,
    "hidden": 64,
    "features": 16,
    "lr_z": 0.3,
    "oracle_calls": 800,
    "readings": 8,
    "device": "cuda",
}
GPU_REVIEWS: dict[str, Any] = {**GPU, "data": "words of reviews", "words": 24}
GPU_SIZES = {"snli": GPU, "reviews": GPU_REVIEWS}
#: for a study that needs no validation tasks: each costs time at every reading
TASKS = {"tasks": [500, 1, 100]}

#: The encoder of the published code, with as many calls as a few minutes of a GPU allow. It has
#: 117.7 million weights
#: (118.7 with word vectors of 300 dimensions). 500 pairs per call (published: 400), 20 steps per
#: epoch (25). Heads of 4,096 features need more decay than those of 16.
PAPER: dict[str, Any] = {
    **GPU,
    "hidden": 4096,
    "features": 4096,
    "decay": 6.4,
    "batch_size": 1,
    "oracle_calls": 240,
    "readings": 4,
}

#: data -> what a verdict at scale gpu is about
GPU_MODELS = {
    "snli": "proxy: a recurrent encoder of 64 units on SNLI",
    "reviews": "proxy: a recurrent encoder of 64 units on the Amazon reviews",
}
#: the same with the size of the published code
PAPER_MODELS = {
    source: name.removeprefix("proxy: ").replace("64", "4,096")
    for source, name in GPU_MODELS.items()
}
#: what a verdict at scale paper is about
SHORT_PAPER_MODELS = {
    source: f"{name} (word vectors of 50 dimensions, linear heads, short runs)"
    for source, name in PAPER_MODELS.items()
}

#: SLIP with one lower sample per iteration: it stands beside SLIP and is no rival of it.
SHARED = "SLIP, shared samples"

#: Method -> units of (lr_x, lr_y, lr_z) at scale gpu, as in ``cleaning_runs``; those of lr_x were
#: set by 30 short runs of all methods on 200 tasks (32 units, seed 2000), before the search
UNITS: dict[str, list[float]] = {
    "SLIP": [0.1, 1.0, 1.0],
    SHARED: [0.1, 1.0, 1.0],
    "BO-REP": [0.1, 1.0, 1.0],
    "StocBio": [1.0, 1.0, 1.0],
    "F²SA": [0.1, 1.0, 1.0],
    "SABA": [3.0, 1.0, 1.0],
    "MA-SOBA": [10.0, 1.0, 1.0],
    "TTSA": [5.0, 3.0, 1.0],
    "SOBA": [5.0, 1.0, 1.0],
    "MAML": [10.0, 1.0, 1.0],
    "ANIL": [10.0, 1.0, 1.0],
}
GPU_STEPS = {method: {"lr_x": 1.0, "lr_y": 0.3, "units": units} for method, units in UNITS.items()}
GPU_GRID = {"lr_x": (0.3, 1.0, 3.0), "lr_y": (0.1, 0.3, 1.0), "lr_z": (0.1, 0.3, 1.0)}

#: The units at scale paper, for the same grid. The heads' curvature, decay included, is about 21 at
#: the start (0.7 at scale gpu), which gives those of y and z; those of x come from 24 short runs
#: (seed 2000), before the search.
PAPER_UNITS: dict[str, list[float]] = {
    "SLIP": [0.2, 1 / 32, 1 / 32],
    "BO-REP": [0.2, 1 / 32, 1 / 32],
    "StocBio": [5.0, 1 / 32, 1 / 32],
    "F²SA": [30.0, 1 / 32, 1.0],
    "SABA": [3.0, 1 / 32, 1 / 32],
    "MA-SOBA": [10.0, 1 / 32, 1 / 32],
    "TTSA": [20.0, 3 / 32, 1 / 32],
    "SOBA": [50.0, 1 / 32, 1 / 32],
}
PAPER_STEPS = {
    method: {"lr_x": 1.0, "lr_y": 0.3, "units": units} for method, units in PAPER_UNITS.items()
}

#: methods that run at scale gpu, SOBA at scale paper as well
FURTHER: Mapping[str, Mapping[str, Any]] = {
    "SOBA": {"key": "soba"},
    "MAML": {"key": "maml"},
    "ANIL": {"key": "anil"},
    SHARED: {"key": "slip", "samples": "shared"},
}

#: data -> method -> (lr_x, lr_y), from the grid search of ``b1-hyper-representation`` (digits,
#: snli) and of ``b2-hyper-representation`` (turned digits, reviews). Ends of the grid occur: an
#: earlier one, with lr_y from 0.3 to 3 in finer steps, had StocBio at 0.3 and SABA, BO-REP and SLIP
#: at 1 on digits, with nearly the same losses. F²SA hardly learns with any of the steps (its
#: penalty multiplies the noise of two samples); on turned digits it is best at rest. On texts ends
#: occur as well: BO-REP and SLIP at the smallest lr_x on reviews. A first search there had one
#: tuning seed and gave SLIP lr_y = 2 on SNLI, with which its own heads never came to rest (the loss
#: is that of new heads); after a run of the studies all methods were searched again with two, as at
#: scale quick.
TUNED: dict[str, dict[str, tuple[float, float]]] = {
    "digits": {
        "StocBio": (10.0, 0.2),
        "TTSA": (2.0, 2.0),
        "F²SA": (10.0, 0.2),
        "SABA": (0.5, 2.0),
        "MA-SOBA": (0.5, 2.0),
        "BO-REP": (0.1, 2.0),
        "SLIP": (0.1, 2.0),
    },
    "turned digits": {
        "StocBio": (0.5, 2.0),
        "TTSA": (10.0, 0.6),
        "F²SA": (0.02, 0.2),
        "SABA": (2.0, 0.2),
        "MA-SOBA": (2.0, 2.0),
        "BO-REP": (0.1, 0.6),
        "SLIP": (0.1, 0.6),
    },
    "snli": {
        "StocBio": (2.0, 0.2),
        "TTSA": (10.0, 0.2),
        "F²SA": (0.1, 0.2),
        "SABA": (0.5, 0.6),
        "MA-SOBA": (2.0, 0.2),
        "BO-REP": (0.1, 0.2),
        "SLIP": (0.1, 0.2),
    },
    "reviews": {
        "StocBio": (2.0, 0.6),
        "TTSA": (10.0, 0.2),
        "F²SA": (0.02, 0.2),
        "SABA": (2.0, 0.6),
        "MA-SOBA": (0.1, 0.6),
        "BO-REP": (0.02, 0.2),
        "SLIP": (0.02, 0.2),
    },
}

KEYS: Mapping[str, Mapping[str, Any]] = {method: {"key": TITLES[method]} for method in METHODS}
#: the methods of B5 and B6
EIGHT = {**KEYS, "SOBA": FURTHER["SOBA"]}
