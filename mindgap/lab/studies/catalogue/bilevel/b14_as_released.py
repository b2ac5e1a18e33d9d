"""B14: what each fault of the code published with SLIP does to the ranking on data hyper-cleaning.

The faults are flags of this study, one at a time and all together; the library has none of them.

* *noise drawn anew*: a label is corrupted afresh at each access. Here the lower data are ``copies``
  copies of the training samples, each with noise of its own, so that no sample comes back with the
  same noise before all of them did.
* *noisy validation*: the upper level reads the corrupted training samples.
* *norm not squared*: the lower regulariser is c ‖w‖, which is not strongly convex.
* *gradients added up*: inner loops never set gradients to zero. BO-REP's move of y is 2.98 times
  the paper's; SLIP's is twice as long, for the second step of an iteration, and f_y and J are at
  the new y.

The faults on hyper-representation are the study ``b14-released-representation``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mindgap.base.check import one_of
from mindgap.lab.studies import cleaning_runs
from mindgap.lab.studies.bilevel_runs import tuned_methods
from mindgap.lab.studies.released_runs import ALL, FIGURES, NONE, RULE, judge
from mindgap.lab.studies.spec import Row, Scale, Source, Study, Trial

FAULTS = ("noise drawn anew", "noisy validation", "norm not squared", "gradients added up")
METHODS = ("SLIP", "BO-REP", "MA-SOBA", "SABA", "StocBio")

#: BO-REP's move of y with gradients added up, over the paper's; measured on the authors' code.
ADDED_UP = 2.98


class Faulty:
    """A hyper-cleaning task whose :meth:`problem` has some of the faults; everything else, accuracy
    and losses among it, is the task's own.

    Args:
        trial: its settings ``corruption`` (share of wrong labels) and ``copies`` are read.
        task: the task without faults.
        faults: names from :data:`FAULTS`; "gradients added up" is none of a problem and ignored.
    """

    def __init__(self, trial: Trial, task: Any, faults: set[str]) -> None:
        self._trial, self._task, self._faults = trial, task, faults

    def __getattr__(self, name: str) -> Any:
        """An attribute of the task, for every name that is not defined here."""
        return getattr(self._task, name)

    def lower(self, x: Any, y: Any, batch: Any) -> Any:
        """The lower loss g with the regulariser c ‖w‖ in the place of c ‖w‖², where c is the task's
        ``decay`` and w is ``y``, a tensor or a mapping of tensors.
        """
        import torch

        parts = y.values() if isinstance(y, dict) else [y]
        square = torch.cat([part.reshape(-1) for part in parts]).square().sum()
        norm = (square + 1e-12).sqrt()  # a little more than ‖w‖: it has a gradient at w = 0
        return self._task.lower(x, y, batch) + self._task.decay * (norm - square)

    def problem(self, batch_size: int) -> Any:
        """The bilevel problem with the faults, for minibatches of ``batch_size`` samples.

        A sample of the lower level is (inputs, label, number of the weight that it has). Copies of
        a sample share the weight of the sample itself.
        """
        import torch

        from mindgap.bilevel.data.problem import BilevelProblem
        from mindgap.bilevel.data.sample import Batches

        task, (inputs, labels) = self._task, self._task.train
        numbers = torch.arange(len(labels), device=labels.device)
        lower_data = (inputs, labels, numbers)
        lower_loss = self.lower if "norm not squared" in self._faults else task.lower
        upper_data = task.train if "noisy validation" in self._faults else task.validation
        if "noise drawn anew" in self._faults:
            noisy_labels = torch.cat(self._noisy_copies())
            copies = self._trial["copies"]
            # Copy after copy, along the axis of the samples alone.
            repeated_inputs = inputs.repeat(copies, *[1] * (inputs.dim() - 1))
            lower_data = (repeated_inputs, noisy_labels, numbers.repeat(copies))
        batches = (Batches(data, batch_size, last="drop") for data in (upper_data, lower_data))
        return BilevelProblem(task.upper, lower_loss, task.x0, task.y0, *batches)

    def _noisy_copies(self) -> list[Any]:
        """The noisy training labels of each copy: ``copies`` tensors of shape (samples,), each with
        another draw of the noise.
        """
        import torch

        from mindgap.lab.tasks.problems import corrupt

        trial = self._trial
        without_noise = Trial(trial.method, trial.seed, {**trial.settings, "corruption": 0.0})
        clean = cleaning_runs.task_of(without_noise).train[1]
        classes = int(clean.max()) + 1
        noisy_copies = []
        for copy in range(trial["copies"]):
            noise_seed = trial.seed + 1000 * (1 + copy)  # another draw than the task's own
            noisy, _ = corrupt(clean.cpu().numpy(), classes, trial["corruption"], noise_seed)
            noisy_copies.append(torch.from_numpy(noisy).to(clean.device))
        return noisy_copies


def loop(trial: Trial) -> Iterator[Row]:
    """Run one method to the budget of oracle calls with the setting ``fault``: one fault, none of
    them, or all.

    Rows are those of :func:`~mindgap.lab.studies.cleaning_runs.rows_of`: counters, accuracies,
    weights and losses at ``readings`` equal distances of calls and at the start.
    """
    fault = one_of("fault", trial["fault"], (NONE, *FAULTS, ALL))
    faults = set(FAULTS) if fault == ALL else {fault}
    overrides: dict[str, Any] = {}  # settings with which a method moves as with added-up gradients
    if "gradients added up" in faults and trial["key"] == "borep":
        overrides = {"lr_y": ADDED_UP * trial["lr_y"]}
    elif "gradients added up" in faults and trial["key"] == "slip":
        overrides = {"lr_y": 2 * trial["lr_y"], "samples": "as released"}
    method, task = cleaning_runs.cleaning_method(trial, **overrides), cleaning_runs.task_of(trial)
    budget, readings = trial["oracle_calls"], trial["readings"]
    yield from cleaning_runs.rows_of(
        trial, Faulty(trial, task, faults), method, budget=budget, readings=readings
    )


_METHODS = {
    f"{title}, {fault}": {**tuned_methods(cleaning_runs.TUNED)[title], "fault": fault}
    for fault in (NONE, *FAULTS, ALL)
    for title in METHODS
}
_MORE = {"corruption": 0.4, "copies": 8}

STUDY = Study(
    name="b14-as-released",
    claim="B14",
    title="The faults of the released code, one at a time",
    statement="The faults of the code published with SLIP (hyper-cleaning, p = 0.4) do not change "
    "SLIP's lead over the mean of the other methods.",
    ours=True,
    source=Source("slip-rebuttal-a", "Fig. 2, and the code published with it"),
    scales={
        "quick": Scale(
            {**cleaning_runs.QUICK, **_MORE, "oracle_calls": 150, "readings": 1}, seeds=3
        ),
        "gpu": Scale(
            {**cleaning_runs.GPU, **_MORE, "oracle_calls": 1000, "readings": 2},
            5,
            {label: cleaning_runs.GPU_STEPS[label.split(", ")[0]] for label in _METHODS},
        ),
    },
    methods=_METHODS,
    loop=loop,
    judge=judge,
    lengths={"gpu": "10 of 25 epochs"},
    length_of=lambda s: f"{s['oracle_calls'] / 100:.3g} of 25 epochs",
    rule=RULE,
    models={"quick": "linear softmax on digits", "gpu": cleaning_runs.GPU_MODEL},
    paper_model=cleaning_runs.PAPER_MODEL,
    figures=FIGURES,
    tuned_by="b3-hyper-cleaning",
)
