"""H4: pre-training as BERT is pre-trained, at two depths: ACClip ends with the lowest loss and the best accuracy.

As in H3 every trial tunes its optimizer first, by the loss on validation text; the best step runs again on a network
and an order of samples of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from mindgap.lab.studies.spec import Figure, Parts, Row, Run, Source, Study, Trial, scales
from mindgap.lab.studies.training_runs import Training
from mindgap.lab.studies.tuned_runs import NEGLIGIBLE, OTHER, optimizer_of, tuned_run
from mindgap.lab.studies.verdict import (
    as_ratios,
    by_method,
    finals,
    last,
    log_ratio,
    mean_interval,
    ratio_words,
    step_words,
)

DEPTHS = ("shallow", "deep")
RIVALS = ("Adam", "GClip", "SGD with momentum")
#: Parts that can refute: three rivals and the accuracy, at each depth.
PARTS = 8


def loop(trial: Trial) -> Iterator[Row]:
    """Try every step, then run the best anew; loss and accuracy at masked places of validation and of test text."""
    import torch
    from torch.nn.functional import cross_entropy

    from mindgap.base.rng import stream_seed
    from mindgap.lab.tasks.problems.language import frequency_loss, masked_language_model

    layers = trial["depths"][DEPTHS.index(trial["depth"])]

    def start(lr: float, phase: str) -> tuple[Training, Callable[[], Row]]:
        problem = masked_language_model(
            trial["text"], words=trial["words"], width=trial["width"], layers=layers, length=trial["length"],
            validation=trial["validation"], seed=stream_seed(trial.seed, f"h4, six words, {phase}"),
        )  # fmt: skip
        optimizer = optimizer_of(trial["optimizer"], lr, problem.objective.parameters, tau=trial["tau"])
        by_frequency = frequency_loss(trial["text"], trial["words"], problem.parts["test"][2])

        def read() -> Row:
            row: Row = {"by_frequency": by_frequency}
            with torch.no_grad():
                for name, (inputs, places, answers) in problem.parts.items():
                    scores = problem.objective.model(inputs, places)
                    row[f"{name}_loss"] = float(cross_entropy(scores.flatten(0, 1), answers.flatten()))
                    row[f"{name}_accuracy"] = float((scores.argmax(dim=-1) == answers).double().mean())
            return row

        return Training(problem, optimizer, trial.torch_generator(f"h4, six words, {phase} order"), {}), read

    yield from tuned_run(trial, start, on="validation_loss")


def judge(runs: Sequence[Run]) -> Parts:
    """At each depth: ACClip's last loss against three rivals, and its accuracy against Adam's."""
    parts, losses, accuracies = Parts(), finals(runs, "test_loss"), finals(runs, "test_accuracy")
    steps = {name: step_words(group) for name, group in by_method(runs).items()}
    floor = last(runs[0], "by_frequency")
    for depth in DEPTHS:
        own = {name.split(", ", 1)[1]: name for name in losses if name.startswith(f"{depth}, ")}
        table: dict[str, dict[str, Any]]
        table = {name: {"loss": float(np.mean(losses[full])), "accuracy": float(np.mean(accuracies[full])),
                        "step": steps[full]} for name, full in own.items()}
        lines = [f"{name} {row['loss']:.4g} and {row['accuracy']:.1%} ({row['step']})"
                 for name, row in table.items()]
        parts.note(f"{depth}: " + ", ".join(lines), {depth: table})
        if min(row["loss"] for row in table.values()) >= floor:
            parts.decide_nothing(f"{depth}: nothing learnt beyond the frequencies of words, whose loss is {floor:.4g}")
        for rival in RIVALS:
            parts.below(f"{depth}: ACClip below {rival}", losses[own["ACClip"]], losses[own[rival]], NEGLIGIBLE, PARTS)
        gain = accuracies[own["ACClip"]] - accuracies[own["Adam"]]
        near, wide = mean_interval(gain), mean_interval(gain, miss=0.05 / PARTS)
        part = f"{depth}: ACClip more often right than Adam"
        parts.add(part, near.low > 0, wide.high < 0, f"{near.words(100)} points", {part: vars(near)})
        if OTHER in own:
            other = log_ratio(losses[own[OTHER]], losses[own["Adam"]])
            parts.note(f"not judged: {OTHER} against Adam, {ratio_words(other)}",
                       {f"{depth}, {OTHER}": as_ratios(other)})
    return parts


_OPTIMIZERS: dict[str, dict[str, Any]] = {"SGD with momentum": {"optimizer": "sgd", "middle": 1.7},
                                          "GClip": {"optimizer": "gclip", "middle": 1.7},
                                          "Adam": {"optimizer": "adam", "middle": 0.0025},
                                          "ACClip": {"optimizer": "acclip", "middle": 1.7},
                                          OTHER: {"optimizer": "acclip, normalized", "middle": 0.001}}
_QUICK = {"text": "prose", "words": 200, "width": 32, "depths": [1, 2], "length": 6, "validation": 256, "steps": 50,
          "every": 10, "batch": 32, "tau": 0.25, "schedule": "linear", "factors": [1 / 3, 1.0, 3.0]}

STUDY = Study(
    name="h4-masked-language-model", claim="H4", title="Does ACClip pre-train BERT better than SGD, GClip and Adam?",
    statement="Pre-training encoders to restore masked words, ACClip ends with a lower loss than SGD with "
    "momentum, GClip and Adam and restores more words than Adam, at every depth.",
    source=Source("thesis", "4.6.2, Fig. 4-3b,c, Table 4.2"),
    scales=scales(_QUICK, {"text": "wikitext-2", "words": 1000, "depths": [2, 4], "length": 16, "steps": 1500,
                  "every": 100, "batch": 32, "validation": 2048, "factors": [1 / 3, 1.0, 3.0]}, seeds=(3, 3)),
    methods={
        f"{depth}, {name}": {"depth": depth, **own}
        for depth in DEPTHS
        for name, own in _OPTIMIZERS.items()
    },
    loop=loop, judge=judge, rule="At both depths ACClip's last loss on test text is below that of Adam, of GClip "
    "and of SGD with momentum, and its accuracy above Adam's, with 95 % intervals over paired seeds. Refuted where "
    "certainly less than 0.5 % of the loss is saved or the accuracy is lower (intervals that err in one of 20 "
    "studies of eight parts). Where no optimizer gets below the loss of word frequencies, nothing is decided.",
    history=(
        "Settled before the first run, from Table 4.2 and the text on Fig. 4-3b,c.",
        "Run 1 at scale quick, 300 steps on windows of eight words: does not hold (Adam's loss 2 to 3 % below "
        "Algorithm 1's), in two minutes. Steps and windows are fewer and shorter now, for time alone; the rule "
        "was not changed, and random numbers are not used again.",
        "Changed before the first run at scale gpu: scale quick offered two steps, at whose ends every choice "
        "lies; it offers three now, with fewer and smaller steps, for time.",
    ),
    differs="Rare words in one class, no prediction of next sentences; test data are not the validation data that "
    "tuning saw. Momentum 0.9 and BERT's schedule for all. ACClip is Algorithm 1 as printed; its form over the "
    "moment does not decide.",
    models={"quick": "encoders of one and two layers on prose", "cpu": "encoders of two and four layers on WikiText-2"},
    paper_model="BERT of 6, 12 and 24 layers on Wikipedia and books",
    paper_number="validation loss at 6, 12 and 24 layers: Adam 1.907, 1.718, 1.432; ACClip 1.877, 1.615, 1.413; "
    "accuracy in %: Adam 63.45, 66.44, 70.56; ACClip 63.85, 67.16, 70.97 (Table 4.2)",
    figures=(
        Figure("Loss on test text at the chosen step", "test_loss", "loss at masked places", facet="depth",
               caption="Each optimizer at the best of its candidate steps, chosen on other random numbers."),
        Figure("Masked words that are right", "test_accuracy", "accuracy at masked places", facet="depth"),
        Figure("What tuning saw", "candidate_loss", "last loss on validation text", x="factor",
               x_label="times the step in the middle", log_x=True, log_y=True, facet="depth"),
    ),
)  # fmt: skip
