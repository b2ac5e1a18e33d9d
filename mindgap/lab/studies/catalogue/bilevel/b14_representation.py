"""B14: what each fault of the code published with SLIP does to the ranking on hyper-representation,
one at a time and all together (:mod:`~mindgap.lab.studies.released_representation`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mindgap.base.check import one_of
from mindgap.lab.studies import representation_runs
from mindgap.lab.studies.released_representation import FAULTS, FAULTS_OF, released_method
from mindgap.lab.studies.released_runs import ALL, FIGURES, NONE, RULE, judge
from mindgap.lab.studies.spec import Row, Scale, Source, Study, Trial


def loop(trial: Trial) -> Iterator[Row]:
    """Run one method to the budget of oracle calls with the setting ``fault``: one fault, none of
    them, or all that the method's released code has. A fault of other methods changes nothing.

    Rows are those of :func:`~mindgap.lab.studies.representation_runs.rows_of`: counters, accuracies
    and the validation loss at ``readings`` equal distances of calls and at the start.
    """
    fault = one_of("fault", trial["fault"], (NONE, *FAULTS, ALL))
    own_faults = FAULTS_OF[trial.method.split(", ")[0]]  # a method is called "title, fault"
    faults = {*own_faults, ALL} if fault == ALL else {fault} & set(own_faults)
    task = representation_runs.task_of(trial)
    method = released_method(trial, task, faults)
    budget, readings = trial["oracle_calls"], trial["readings"]
    yield from representation_runs.rows_of(
        trial, task, method, budget=budget, readings=readings, runner=None
    )


_METHODS = {
    f"{title}, {fault}": {**representation_runs.KEYS[title], "fault": fault}
    for title, of in FAULTS_OF.items()
    for fault in (NONE, *of, *([ALL] if of else []))
}


def _steps_of_labels(steps_of_titles: Any) -> dict[str, Any]:
    """Label "title, fault" -> the steps of its title, whatever the fault."""
    return {label: steps_of_titles[label.split(", ")[0]] for label in _METHODS}


STUDY = Study(
    name="b14-released-representation",
    claim="B14",
    title="The faults of the released code, one at a time: hyper-representation",
    statement="The faults of the code published with SLIP (hyper-representation) do not change "
    "SLIP's lead over the mean of the other methods.",
    ours=True,
    source=Source("slip-rebuttal-a", "Fig. 1, and the code published with it"),
    scales={
        "quick": Scale(
            {
                **representation_runs.QUICK,
                "data": "digits",
                "tasks": [20, 1, 30],
                "oracle_calls": 60,
                "readings": 1,
            },
            3,
            _steps_of_labels(representation_runs.own_steps("digits")),
        ),
        "gpu": Scale(
            {**representation_runs.GPU, "oracle_calls": 400, "readings": 2},
            5,
            _steps_of_labels(representation_runs.GPU_STEPS),
        ),
    },
    methods=_METHODS,
    loop=loop,
    judge=judge,
    lengths={"gpu": "8 of 20 epochs"},
    length_of=lambda s: f"{s['oracle_calls'] / 50:.3g} of 20 epochs",
    rule=f"{RULE} A method without that fault enters with its run without faults.",
    models={
        "quick": "tanh encoder and linear heads on digits",
        "gpu": representation_runs.GPU_MODELS["snli"],
    },
    paper_model=representation_runs.PAPER_MODELS["snli"],
    figures=FIGURES,
    tuned_by="b1-hyper-representation",
)
