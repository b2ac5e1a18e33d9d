"""H5: fine-tuning a pre-trained encoder to find answers in passages: ACClip's exact match and F1
are above Adam's.

An encoder is pre-trained as in H4, by Adam; all optimizers fine-tune that same encoder. Scales
quick and cpu have one encoder per seed, and as in H3 every trial tunes its optimizer first, by F1
on validation questions, from another encoder and order of samples. Scale gpu has one BERT for all
runs, as in the paper: the first run that needs it trains it and keeps it in the cache folder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from mindgap.base.rng import stream_seed, torch_stream
from mindgap.lab.studies import bert_runs
from mindgap.lab.studies.spec import Figure, Parts, Row, Run, Scale, Source, Study, Trial, scales
from mindgap.lab.studies.training_runs import Training, step_factor
from mindgap.lab.studies.tuned_runs import (
    CHOSEN,
    FACTORS,
    OTHER,
    SECOND,
    optimizer_of,
    tuned_run,
    tuning_figure,
)
from mindgap.lab.studies.verdict import by_method, finals, last, mean_interval, spread, step_words

#: A gain below this is none.
SMALLEST = 0.002
SCORES = {"exact": "exact match", "f1": "F1"}
#: Step of the pre-training, as H4's Adam has it.
PRE_STEP = 0.0025


def loop(trial: Trial) -> Iterator[Row]:
    """Fine-tune a pre-trained encoder; at small scales with every step, then with the best step
    on another encoder.
    """
    return _on_device(trial) if "device" in trial.settings else _tune_and_train(trial)


def _on_device(trial: Trial) -> Iterator[Row]:
    """One fine-tuning of BERT with the step ``middle`` times ``factor``."""
    layers, lr = trial["layers"], trial["middle"] * trial["factor"]
    sizes = {name: trial[name] for name in bert_runs.BERT} | {
        name: trial[f"pre_{name}"] for name in ("steps", "batch")
    }
    pre_training = Trial(
        "Adam",
        0,
        {**bert_runs.PRE_TRAINING, **sizes, "every": sizes["steps"], "held_out": trial["held_out"]},
    )
    encoder = bert_runs.pre_trained(
        pre_training,
        layers,
        lambda parameters: optimizer_of("adam", trial["pre_lr"], parameters, tau=1.0),
        f"h4, BERT, step {trial['pre_lr']:g}",
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
    """Rows of a run at small scales, after the steps were tried."""
    import torch

    from mindgap.lab.tasks.problems.questions import (
        SOURCES,
        best_spans,
        exact_and_f1,
        question_answering,
    )

    text, longest = SOURCES[trial["source"]]
    sizes = (
        trial["words"],
        trial["width"],
        trial["layers"],
        trial["question"] + 1 + trial["passage"],
    )

    def start(lr: float, phase: str) -> tuple[Training, Callable[[], Row]]:
        """A fresh training at that step, and what reads its exact matches and F1."""
        seed = stream_seed(trial.seed, f"h5 {phase}")
        problem = question_answering(
            trial["source"],
            words=trial["words"],
            width=trial["width"],
            layers=trial["layers"],
            question=trial["question"],
            passage=trial["passage"],
            held_out=trial["held_out"],
            seed=seed,
            start=pre_trained(
                text, *sizes, steps=trial["pre_steps"], batch=trial["batch"], seed=seed
            ),
        )
        optimizer = optimizer_of(trial["optimizer"], lr, problem.objective.parameters, tau=1.0)
        _, places = problem.draw(torch.Generator().manual_seed(0), 2000)
        pairs, counts = places[:, 0].unique(dim=0, return_counts=True)
        parts = ("validation",) if phase == "tuning" else tuple(problem.parts)

        def read() -> Row:
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

        return Training(problem, optimizer, trial.torch_generator(f"h5 {phase} order"), {}), read

    yield from tuned_run(trial, start, on="validation_miss")


@lru_cache(maxsize=16)
def pre_trained(
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
    """The state of an encoder after that many steps of Adam on masked words; the same for the
    same arguments.
    """
    import torch

    from mindgap.lab.tasks.problems.language import masked_language_model

    problem = masked_language_model(
        text, words=words, width=width, layers=layers, length=length, seed=seed
    )
    optimizer = torch.optim.Adam(problem.objective.parameters, lr=PRE_STEP)
    run = Training(problem, optimizer, torch_stream(seed, "pre-training"), {})
    for step in range(steps):
        run.advance(batch, step_factor("linear", step, steps))
    return problem.objective.model.state_dict()


def judge(runs: Sequence[Run]) -> Parts:
    """Gains of ACClip over Adam in exact match and F1 on test questions, over paired seeds."""
    parts, scores = Parts(), {key: finals(runs, f"test_{key}") for key in SCORES}
    for name, group in by_method(runs).items():
        table = {
            key: [float(np.mean(scores[key][name])), spread(scores[key][name])] for key in SCORES
        }
        score_words = ", ".join(
            f"{title} {100 * table[key][0]:.2f} ± {100 * table[key][1]:.2f}"
            for key, title in SCORES.items()
        )
        parts.note(
            f"{name} ({step_words(group)}): {score_words}",
            {name: {**table, "step": step_words(group)}},
        )
    by_place = float(np.mean([last(run, "by_place") for run in runs]))
    if max(np.mean(scores["exact"][name]) for name in ("Adam", "ACClip")) < 2 * by_place:
        parts.decide_nothing(f"nothing learnt: the most frequent place is right in {by_place:.1%}")
    for form in ("ACClip", *((OTHER, SECOND) if SECOND in scores["f1"] else ())):
        for key, title in SCORES.items():
            gains = scores[key][form] - scores[key]["Adam"]
            interval, corrected = (
                mean_interval(gains),
                mean_interval(gains, miss=0.05 / len(SCORES)),
            )
            part = f"{form}'s {title} above Adam's"
            parts.add(
                part,
                holds=interval.low > 0 and corrected.high >= SMALLEST,
                refuted=corrected.high < SMALLEST,
                words=f"{interval.words(100)} points",
                numbers={part: vars(interval)},
                reading="" if form == "ACClip" else "variant",
            )
    return parts


_QUICK = {
    "source": "prose",
    "words": 200,
    "width": 32,
    "layers": 1,
    "question": 2,
    "passage": 12,
    "held_out": 300,
    "pre_steps": 60,
    "steps": 60,
    "every": 30,
    "batch": 32,
    "schedule": "linear",
    "factors": [1 / 3, 1.0, 3.0],
}
_SMALL = scales(
    _QUICK,
    {
        "source": "squad",
        "words": 3000,
        "layers": 2,
        "question": 12,
        "passage": 60,
        "held_out": 800,
        "pre_steps": 1000,
        "steps": 1000,
        "every": 100,
        "batch": 16,
    },
    seeds=(3, 5),
)
#: A question, a passage and three marks fill a window of 128 word pieces.
_GPU = {
    **bert_runs.BERT,
    "layers": 6,
    "question": 24,
    "passage": 101,
    "held_out": 1024,
    "pre_steps": 4000,
    "pre_batch": 32,
    "pre_lr": 0.0003,
    "steps": 800,
    "every": 100,
    "batch": 32,
    "schedule": "linear",
    "factor": 1.0,
}
#: The middle steps at scale gpu.
_MIDDLE = {"Adam": 0.0001, "ACClip": 0.1, OTHER: 0.00003, SECOND: 0.000015}

STUDY = Study(
    name="h5-question-answering",
    claim="H5",
    title="Does ACClip fine-tune for questions better than Adam?",
    statement="Fine-tuning a pre-trained encoder to find answers in passages, ACClip reaches a "
    "higher exact match and a higher F1 than Adam.",
    source=Source("thesis", "4.6.2, Table 4.3"),
    scales={
        "quick": replace(_SMALL["quick"], seeds_of={OTHER: 0, SECOND: 0}),
        "cpu": replace(_SMALL["cpu"], seeds_of={SECOND: 0}),
        "gpu": Scale(_GPU, 5, {name: {"middle": middle} for name, middle in _MIDDLE.items()}),
    },
    grid=FACTORS,
    tune_on="validation_miss",
    tuning_seeds=(1000,),
    methods={
        "Adam": {"optimizer": "adam", "middle": 0.003},
        "ACClip": {"optimizer": "acclip", "middle": 0.3},
        OTHER: {"optimizer": "acclip, normalized", "middle": 0.003},
        SECOND: {"optimizer": "acclip, second moment", "middle": 0.0015},
    },
    loop=loop,
    judge=judge,
    rule="Exact match and F1 on test questions are higher with ACClip, by 95 % intervals over "
    "paired seeds; refuted where a gain is certainly below 0.2 points, the smallest of Table 4.3 "
    "(intervals that err in one of 20 studies of two parts). Where neither optimizer finds twice "
    "as many answers as the most frequent place, nothing is decided. At scale gpu the other forms "
    "of ACClip are judged by the same parts; the verdict is that of Algorithm 1 as printed.",
    models={
        "quick": "one-layer encoder on questions made from prose",
        "cpu": "two-layer encoder on SQuAD's dev file, split in three",
        "gpu": f"proxy, BERT (6 layers, {bert_runs.BERT_ON_TEXT}, fine-tuned on SQuAD's dev file, "
        "split in three",
    },
    paper_model="BERT of three sizes on SQuAD v1.1",
    paper_number="exact match at 6, 12 and 24 layers: Adam 76.85 ± 0.34, 81.42 ± 0.16, 83.94 ± "
    "0.19; ACClip 78.07 ± 0.24, 81.62 ± 0.18, 84.93 ± 0.29; F1: Adam 84.79, 88.61, 90.87; ACClip "
    "85.87, 88.82, 91.40 (Table 4.3)",
    figures=(
        Figure(
            "Exact match on test questions",
            "test_exact",
            "share of answers found exactly",
            caption=CHOSEN,
        ),
        Figure("F1 on test questions", "test_f1", "F1 of the words marked"),
        tuning_figure("candidate_score", "1 − F1 on validation questions"),
    ),
)
