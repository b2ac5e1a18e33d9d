"""Language models at scale gpu: Transformer-XL or AWD-LSTM on running text, trained by the loop of
`device_runs`; and the comparison of optimizers on text at every scale."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from mindgap.base.check import one_of
from mindgap.base.rng import stream_seed
from mindgap.lab.studies.device_runs import device_of, device_run
from mindgap.lab.studies.spec import Parts, Row, Run, Trial
from mindgap.lab.studies.training_runs import Training
from mindgap.lab.studies.tuned_runs import tuned_run
from mindgap.lab.studies.verdict import by_method, finals, means, step_words
from mindgap.lab.tasks import problems

if TYPE_CHECKING:
    import torch

    from mindgap.lab.tasks.problems.running_text import RunningText

#: Network -> its settings, and their names in its constructor.
SIZES = {
    "transformer-xl": ("width", "layers", "heads", "inner", "memory"),
    "awd-lstm": ("width", "hidden", "layers"),
}

#: Six layers, about as wide as the 16-layer model for WikiText-103 of Dai et al. (410 and 2100, no
#: multiples of 8, which matrix products in bf16 want): 18.4 million parameters.
TRANSFORMER_XL: dict[str, Any] = {
    "network": "transformer-xl",
    "text": "ptb",
    "words": 10_000,
    "width": 400,
    "layers": 6,
    "heads": 10,
    "inner": 2000,
    "memory": 64,
    "length": 64,
    "batch": 40,
    "device": "cuda",
    "graph": True,
}
#: As Merity et al. train it on Penn Treebank, without their two penalties on activations: 24.2
#: million parameters. Its kernels fill the GPU from several processes; a graph of cuDNN's LSTM
#: would gain little.
AWD_LSTM: dict[str, Any] = {
    "network": "awd-lstm",
    "text": "ptb",
    "words": 10_000,
    "width": 400,
    "hidden": 1150,
    "layers": 3,
    "length": 70,
    "batch": 80,
    "device": "cuda",
    "graph": False,
}


@dataclass(frozen=True)
class LanguageRun:
    """A language model with its texts on the device of a trial."""

    trial: Trial  # with the settings of :data:`TRANSFORMER_XL` or :data:`AWD_LSTM`
    model: Any  # in training mode
    texts: Mapping[str, RunningText]  # ``"train"``, ``"validation"`` and ``"test"``

    def held_out(self, *parts: str) -> Row:
        """Columns ``<part>_loss``, the mean loss per word on each of these parts of the text."""
        return {
            f"{part}_loss": problems.running_loss(self.model, self.texts[part]) for part in parts
        }

    def rows(
        self,
        optimizer: torch.optim.Optimizer,
        read: Callable[[], Row],
        schedule: str = "constant",
        kept: dict[str, Any] | None = None,
        at_start: bool = False,
    ) -> Iterator[Row]:
        """Train for the trial's ``steps`` by :func:`~mindgap.lab.studies.device_runs.device_run`,
        which explains the other arguments.

        The state goes on from segment to segment. On CUDA the transformer computes in bf16 and the
        LSTM in TF32: the LSTM of cuDNN would take float16 under autocast.
        """
        from mindgap.measure.captured import tf32

        trial, train = self.trial, self.texts["train"]
        # Weights that are dropped at every pass cannot lie in one piece, which cuDNN warns about.
        warnings.filterwarnings(
            "ignore", message="RNN module weights are not part of single contiguous chunk"
        )
        carried, loss = problems.going_on(self.model.blank(len(train.rows)))
        with tf32(True):
            yield from device_run(
                trial,
                self.model,
                loss,
                optimizer,
                lambda number: train.segments(),  # the same in every epoch: the text in its order
                read,
                steps=trial["steps"],
                every=trial["every"],
                schedule=schedule,
                bfloat16=trial["network"] == "transformer-xl",
                carried=carried,
                kept=kept,
                graph=trial["graph"],
                at_start=at_start,
            )


def language_run(trial: Trial, stream: str) -> LanguageRun:
    """The model and the texts of a trial, on its device.

    Args:
        trial: with the settings of :data:`TRANSFORMER_XL` or :data:`AWD_LSTM`.
        stream: where the training text begins and the network's start are drawn from random streams
            that are named after it.

    Example:
        >>> small = {
        ...     "text": "prose",
        ...     "words": 50,
        ...     "width": 8,
        ...     "heads": 2,
        ...     "inner": 16,
        ...     "batch": 4,
        ...     "device": "cpu",
        ... }
        >>> run = language_run(Trial("sgd", 0, {**TRANSFORMER_XL, **small}), "example")
        >>> sorted(run.texts), run.texts["train"].rows.shape[0]
        (['test', 'train', 'validation'], 4)
    """
    from mindgap.lab.tasks.models import AWDLSTM, TransformerXL
    from mindgap.lab.tasks.problems.running_text import PARTS, running_text
    from mindgap.lab.tasks.problems.training import seeded_network

    network, device = one_of("network", trial["network"], SIZES), device_of(trial)
    model_class: Any = TransformerXL if network == "transformer-xl" else AWDLSTM
    options = {name: trial[name] for name in SIZES[network]}
    model = seeded_network(
        lambda: model_class(trial["words"], **options), trial.seed, f"{stream} network"
    ).to(device)
    # Words by which the training text begins later (modulo what is left over).
    shifts = {"train": int(trial.numpy_generator(f"{stream} text").integers(1_000_000))}
    sizes = {name: trial[name] for name in ("words", "batch", "length")}
    texts = {
        part: running_text(trial["text"], part, **sizes, device=device, shift=shifts.get(part, 0))
        for part in PARTS
    }
    return LanguageRun(trial, model, texts)


def note_losses(parts: Parts, runs: Sequence[Run]) -> dict[str, np.ndarray]:
    """Add a note to ``parts``: each method's mean last loss on test text and the step sizes chosen.

    Returns:
        Method -> its last losses on test text, one per seed that all methods have.
    """
    losses = finals(runs, "test_loss")
    words = [
        f"{name} {np.mean(losses[name]):.4g} ({step_words(own_runs)})"
        for name, own_runs in by_method(runs).items()
    ]
    parts.note(f"loss on test text: {', '.join(words)}", {"loss": means(losses)})
    return losses


def text_optimizer_run(
    trial: Trial,
    build: Callable[[float, Sequence[torch.Tensor]], torch.optim.Optimizer],
    watch: Callable[[torch.optim.Optimizer], Callable[[], Row]] | None = None,
) -> Iterator[Row]:
    """Train a language model by one optimizer, with readings on validation and test text.

    With the setting ``device`` the network of :func:`language_run` is trained once, with the step
    size ``middle`` times ``factor``. Without it a small transformer is trained with every candidate
    step size; the one with the least loss on validation text then runs anew (see
    :func:`~mindgap.lab.studies.tuned_runs.tuned_run`).

    Args:
        trial: with the settings of either, and ``streams``, the name of the random streams.
        build: (step size, parameters) -> optimizer.
        watch: optimizer -> what returns further columns of a row; None: there are none.

    Yields:
        Rows with the losses and ``lr``; the last one of a run on a device also has
        ``bigram_loss``, that of a bigram model on test text.
    """
    import torch

    from mindgap.lab.tasks.problems.language import language_model
    from mindgap.lab.tasks.problems.running_text import bigram_loss

    if "device" in trial.settings:
        run, lr = language_run(trial, trial["streams"]), trial["middle"] * trial["factor"]
        optimizer = build(lr, list(run.model.parameters()))
        # Without ``watch`` it is ``dict``, which makes an empty row.
        watched_columns = watch(optimizer) if watch else dict
        for row in run.rows(
            optimizer,
            lambda: {**run.held_out("validation", "test"), **watched_columns()},
            trial["schedule"],
        ):
            at_end = row["step"] == trial["steps"]
            bigram = {"bigram_loss": bigram_loss(trial["text"], trial["words"])} if at_end else {}
            yield {**row, **bigram, "lr": lr}
        return

    def start(lr: float, phase: str) -> tuple[Training, Callable[[], Row]]:
        """A fresh training with step size ``lr``, and what reads its losses.

        ``phase`` is ``"tuning"``, in which validation text alone is read, or ``"run"``.
        """
        problem = language_model(
            trial["text"],
            words=trial["words"],
            width=trial["width"],
            layers=trial["layers"],
            length=trial["length"],
            validation=trial["validation"],
            seed=stream_seed(trial.seed, f"{trial['streams']} {phase}"),
        )
        optimizer = build(lr, problem.objective.parameters)
        watched_columns = watch(optimizer) if watch else dict
        parts = ("validation",) if phase == "tuning" else ("validation", "test")

        def read() -> Row:
            """Losses of the parts, and what ``watch`` adds."""
            with torch.no_grad():
                losses = {
                    f"{name}_loss": float(problem.objective.value(problem.parts[name]))
                    for name in parts
                }
            return {**losses, **watched_columns()}

        return Training(
            problem, optimizer, trial.torch_generator(f"{trial['streams']} {phase} order"), {}
        ), read

    yield from tuned_run(trial, start, on="validation_loss")
