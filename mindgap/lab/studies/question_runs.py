"""Fine-tuning of a pre-trained encoder on questions: the loop of the study H5."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

from mindgap.base.rng import stream_seed, torch_stream
from mindgap.lab.studies import bert_runs
from mindgap.lab.studies.spec import Row, Trial
from mindgap.lab.studies.training_runs import Training, step_factor
from mindgap.lab.studies.tuned_runs import optimizer_of, tuned_run

#: Step of the pre-training, as H4's Adam has it.
PRE_STEP = 0.0025


def loop(trial: Trial) -> Iterator[Row]:
    """Fine-tune a pre-trained encoder on questions.

    At scale gpu it is BERT, once (:func:`_on_device`). At small scales a small transformer is
    fine-tuned with every candidate step size, then with the best one on another encoder.
    """
    return _on_device(trial) if "device" in trial.settings else _tune_and_train(trial)


def _on_device(trial: Trial) -> Iterator[Row]:
    """The rows of one fine-tuning of BERT with the step size ``middle`` times ``factor``.

    Its encoder is that of study H4: pre-trained by Adam with seed 0, and kept in the cache. The
    settings that begin with ``pre_`` are those of the pre-training.
    """
    layers, lr, pre_lr = trial["layers"], trial["middle"] * trial["factor"], trial["pre_lr"]
    pre_training = {
        **bert_runs.PRE_TRAINING,
        **{name: trial[name] for name in bert_runs.BERT},
        "steps": trial["pre_steps"],
        "batch": trial["pre_batch"],
        "every": trial["pre_steps"],  # one row, at the end
        "held_out": trial["held_out"],
    }
    encoder = bert_runs.pre_trained_encoder(
        Trial("Adam", 0, pre_training),
        layers,
        lambda parameters: optimizer_of("adam", pre_lr, parameters, tau=1.0),
        f"h4, BERT, step {pre_lr:g}",
    )
    for row in bert_runs.question_run(
        trial,
        layers,
        encoder,
        lambda parameters: optimizer_of(trial["optimizer"], lr, parameters, tau=1.0),
        "h5, BERT",
    ):
        yield {**row, "lr": lr}


def _tune_and_train(trial: Trial) -> Iterator[Row]:
    """Rows of a run at small scales: every step size is tried, then the best one runs anew
    (:func:`tuned_run`), chosen by 1 - F1 on validation questions.
    """
    import torch

    from mindgap.lab.tasks.problems.questions import (
        SOURCES,
        best_spans,
        exact_and_f1,
        question_answering,
    )

    text, longest = SOURCES[trial["source"]]  # and the words of the longest answer

    def start(lr: float, phase: str) -> tuple[Training, Callable[[], Row]]:
        """A fresh training with step size ``lr``, and what reads its exact matches and F1.

        ``phase`` is ``"tuning"``, in which validation questions alone are read, or ``"run"``.
        """
        seed = stream_seed(trial.seed, f"h5 {phase}")
        network_sizes = {name: trial[name] for name in ("words", "width", "layers")}
        weights = pre_trained_weights(
            text,
            **network_sizes,
            length=trial["question"] + 1 + trial["passage"],
            steps=trial["pre_steps"],
            batch=trial["batch"],
            seed=seed,
        )
        problem = question_answering(
            trial["source"],
            **network_sizes,
            question=trial["question"],
            passage=trial["passage"],
            held_out=trial["held_out"],
            seed=seed,
            start=weights,
        )
        optimizer = optimizer_of(trial["optimizer"], lr, problem.objective.parameters, tau=1.0)
        # 2,000 training questions, drawn by one seed, tell which place is the most frequent.
        _, places = problem.draw(torch.Generator().manual_seed(0), 2000)
        # First and last place of answers, (different pairs, 2), and how often each occurs.
        pairs, counts = places[:, 0].unique(dim=0, return_counts=True)
        parts = ("validation",) if phase == "tuning" else tuple(problem.parts)

        def read() -> Row:
            """Exact match and F1 of each part, and as ``by_place`` the share of the last part's
            questions that the most frequent place answers: the pair (first word, last word) that
            most of the training questions drawn above have for an answer.
            """
            row: Row = {}
            with torch.no_grad():
                for name in parts:
                    inputs, answers = problem.parts[name]
                    # Scores are not finite after a step that was too large.
                    scores = torch.nan_to_num(problem.objective.model(inputs))
                    spans = best_spans(scores, after=trial["question"] + 1, longest=longest)
                    exact, f1 = exact_and_f1(spans, answers)
                    row |= {f"{name}_exact": exact, f"{name}_f1": f1, f"{name}_miss": 1 - f1}
                frequent = pairs[counts.argmax()].expand(len(answers), 2)
                row["by_place"] = exact_and_f1(frequent, answers)[0]
            return row

        return Training(problem, optimizer, trial.torch_generator(f"h5 {phase} order")), read

    yield from tuned_run(trial, start, on="validation_miss")


@lru_cache(maxsize=16)
def pre_trained_weights(
    text: str,
    words: int,
    width: int,
    layers: int,
    length: int,
    *,
    steps: int,
    batch: int,
    seed: int,
) -> dict[str, Any]:
    """The weights of a small transformer, pre-trained on masked words, by name.

    They are computed once per process for the same arguments.

    Args:
        text: name of the text.
        words: size of the vocabulary.
        width, layers: of the transformer.
        length: words of a sequence.
        steps: of Adam with the step size :data:`PRE_STEP`, scheduled as BERT's.
        batch: sequences per step.
        seed: of the start and of all draws.
    """
    import torch

    from mindgap.lab.tasks.problems.language import masked_language_model

    problem = masked_language_model(
        text, words=words, width=width, layers=layers, length=length, seed=seed
    )
    optimizer = torch.optim.Adam(problem.objective.parameters, lr=PRE_STEP)
    run = Training(problem, optimizer, torch_stream(seed, "pre-training"))
    for step in range(steps):
        run.advance(batch, step_factor("linear", step, steps))
    return problem.objective.model.state_dict()
