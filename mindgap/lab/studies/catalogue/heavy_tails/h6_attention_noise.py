"""H6: is it the attention or the text that makes the noise heavy-tailed? Both, each with and
without the other.

Without attention a block keeps its normalised feed-forward part with its residual connection.
Gaussian input replaces each word's vector by a fresh Gaussian one at the scale that the embedding
has at the start; the words to predict stay. Two controls run beside, norms of Gaussian and of
stable vectors.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np

from mindgap.lab.studies.noise_runs import (
    BATCHES,
    BERT_PROXY,
    CROSSED,
    HEAVIER,
    PIPELINES,
    answer_word,
    control_norms,
    fixed_design,
    index_words,
    noise_at_start,
    noise_side_by_side,
    norm_rows,
    of_nearly_all,
)
from mindgap.lab.studies.power import AnswerDesign
from mindgap.lab.studies.spec import Figure, Parts, Row, Run, Scale, Source, Study, Trial, scales
from mindgap.lab.studies.training_runs import LARGE_TEXT, SMALL_TEXT, text_problem
from mindgap.lab.studies.verdict import by_method, last, medians


def loop(trial: Trial) -> Iterator[Row]:
    """Rows about the noise norms of one cell at its start, or of the control that the setting
    ``law`` names: histogram, variance against sample size and tail index by four methods
    (:func:`norm_rows`), each row with the ``panel`` of the figure that draws it.
    """
    with trial.timed():
        norms = control_norms(trial, trial["law"]) if trial["law"] else _noise(trial)
    for row in norm_rows(trial, norms):
        yield {**row, "panel": "controls" if trial["law"] else trial["input"]}


def _noise(trial: Trial) -> Any:
    """The noise norms, one per minibatch, of the transformer with or without attention, on text or
    Gaussian input, as the settings ``attention`` and ``input`` say.
    """
    from mindgap.base.rng import stream_seed

    cell = {"attention": trial["attention"], "gaussian": trial["input"] == "Gaussian input"}
    if "device" in trial.settings:
        return noise_at_start(trial, "bert", **cell).norms
    problem = text_problem(trial.settings, stream_seed(trial.seed, "noise of attention"), **cell)
    batches = problem.batches(
        trial.torch_generator("noise of attention"), trial["minibatches"], trial["batch"]
    )
    return noise_side_by_side(problem.objective, batches).norms


def judge(runs: Sequence[Run]) -> Parts:
    """Ask of each cell (attention or not, text or Gaussian input) whether its noise norms have a
    heavier tail than Gaussian vectors, ``hill_heavier``: 1 yes, 0 no, 1/2 cannot tell.

    A cell's answer is that of nearly all seeds. Where minibatches and pipelines are crossed, at
    scale gpu, it is the median.

    Returns:
        One part per cell with the real pipeline: the answer is the papers' (:data:`STATED`).
        Inconclusive where the controls are not told apart, where the two sizes of a minibatch give
        opposite answers, and where the pipeline was fixed by design.
    """
    parts, answers, groups = Parts(), {}, by_method(runs)
    # A crossed cell is called "attention, input, batch n, pipeline".
    crossed = f"attention, text, batch {BATCHES[0]}, real" in groups
    for name, group in groups.items():
        of_seeds = [last(run, "hill_heavier") for run in group]
        answer = answers[name] = float(np.median(of_seeds)) if crossed else of_nearly_all(of_seeds)
        row = medians(group, ("hill_index", "settles", "exponent", "largest"))
        words = (
            f"heavy-tailed {answer_word(answer)}, {index_words(row['hill_index'])} (Hill), "
            f"largest norm {row['largest']:.1f} medians, "
            f"variance settles {answer_word(row['settles'])}"
        )
        numbers = {name: {"heavier": answer, "seeds": len(group), **row}}
        stated = STATED.get(name.split(", batch")[0])
        if stated is not None and not name.endswith(PIPELINES[0]):
            parts.add(name, answer == stated, answer == 1.0 - stated, words, numbers)
        else:
            parts.note(f"{name}: {words}", numbers)
    if answers["Gaussian vectors"] == 1.0 or answers["stable vectors"] != 1.0:
        parts.decide_nothing("the controls are not told apart")
    for cell in STATED if crossed else ():
        if {answers[f"{cell}, batch {batch}, real"] for batch in BATCHES} == {0.0, 1.0}:
            parts.decide_nothing(f"{cell}: the size of a minibatch decides the answer")
    reason = "" if crossed else fixed_design(groups["attention, text"][0].header.settings)
    if reason:
        parts.decide_nothing(reason)
    return parts


#: cell -> heavy-tailed (1) or not (0), as the papers state
STATED = {
    "attention, text": 1.0,
    "attention, Gaussian input": 1.0,
    "no attention, text": 1.0,
    "no attention, Gaussian input": 0.0,
}

_QUICK = {
    "minibatches": 1024,
    "batch": 8,
    "attention": True,
    "input": "text",
    "law": "",
    **SMALL_TEXT,
}

_CELLS: dict[str, dict[str, Any]] = {
    name: {"attention": name.startswith("attention"), "input": name.split(", ")[1]}
    for name in STATED
}
_CROSSED = {
    f"{name}, batch {batch}, {pipeline}": {**cell, "batch": batch, "pipeline": pipeline}
    for (name, cell), batch, pipeline in product(_CELLS.items(), BATCHES, PIPELINES)
}

STUDY = Study(
    name="h6-attention-noise",
    claim="H6",
    title="Heavy-tailed noise: from the attention or from the text?",
    statement="Attention makes heavy-tailed noise on text and on Gaussian input; without attention "
    "text makes the "
    "noise heavy-tailed and Gaussian input does not.",
    source=Source("acclip", "section 5.2, Fig. 4"),
    scales={
        **{
            name: replace(small, seeds_of=dict.fromkeys(_CROSSED, 0))
            for name, small in scales(
                _QUICK, {"minibatches": 2048, **LARGE_TEXT}, seeds=(3, 5)
            ).items()
        },
        "gpu": Scale(
            {**_QUICK, **CROSSED},
            seeds=3,
            methods={name: {**CROSSED, **cell} for name, cell in _CROSSED.items()},
            seeds_of=dict.fromkeys(_CELLS, 0),
        ),
    },
    methods={
        **_CELLS,
        **{name: _CELLS[name.split(", batch")[0]] for name in _CROSSED},
        "Gaussian vectors": {"law": "gaussian"},
        "stable vectors": {"law": "stable"},
    },
    loop=loop,
    judge=judge,
    rule="Attention on both inputs and no attention on text are heavy-tailed, no attention "
    "on Gaussian input is not: by Hill's estimator in nearly all seeds (four of five, at least "
    "three). Refuted "
    "where nearly all seeds of a cell say the opposite. Controls that come out wrong decide "
    "nothing, and neither do windows that all have one length and one number of words to predict. "
    "At scale gpu every cell has the real pipeline (drawn masks, padding, dropout) and minibatches "
    "of 1 and of 32 windows: the median answer over the seeds of each, all must say so, and where "
    "the two sizes disagree nothing is decided. The fixed pipeline is shown beside.",
    models={
        "quick": "one layer, prose",
        "cpu": "two layers, prose",
        "gpu": f"proxy, {BERT_PROXY}, with and without attention",
    },
    lengths={"gpu": "at the start, as in the paper"},
    designs={
        "gpu": AnswerDesign(
            "answers",
            false=math.inf,
            paper=1.5,
            deviation=0.0,
            unit="(tail index of the norms)",
            source="stable vectors, where the paper states heavy tails; answers measured on 40 "
            "samples of stable and 12 of Gaussian vectors",
            parts=len(STATED) * len(BATCHES),
            **HEAVIER,
        )
    },
    paper_model="BERT of twelve layers on Wikipedia",
    figures=(
        Figure(
            "Norms of the gradient noise over their median",
            "share",
            "share of minibatches",
            x="norm",
            x_label="norm / median norm",
            facet="panel",
            caption="Norms above 4 medians are not drawn.",
        ),
        Figure(
            "Empirical variance against sample size",
            "variance",
            "variance / its last value",
            x="minibatches",
            x_label="minibatches",
            log_x=True,
            log_y=True,
            facet="panel",
            caption="One order of the minibatches per seed. A finite variance levels off.",
        ),
        Figure(
            "Tail index by four estimators",
            "index",
            "tail index",
            x="place",
            kind="points",
            log_y=True,
            x_names=("Hill", "moment", "block\nsums", "stable\nquantiles"),
            facet="panel",
            hlines={"infinite variance below": 2.0},
        ),
    ),
)
