"""S3: clipping speeds training up, for a language model and for an image model; every optimizer tuned alike.

What is judged was settled before the first run. Every trial tunes its optimizer first: as many candidate steps as any
other, from one list for all optimizers of a problem, each with the full budget of steps, on a network and an order of
samples that the run reported does not see. The threshold is the thesis' 0.25 and is not tuned. With
momentum 0.9 the step is counted as a gradient's whole effect, ten times what torch calls it: the best steps of all
optimizers lie within one list. The best candidate is then run anew, so that the spread over the seeds has the luck of
the tuning in it.

Speed is the mean over the readings of log training loss: the height of the training curve on a logarithmic axis, by
which a candidate is chosen as well. Fig. 3-4 draws such curves; the thesis finds clipping "fastest" in both tasks,
against plain SGD and, for images, against SGD with momentum. A gain that is certainly below 2 % counts as none.

*Differs from the paper.* An LSTM of one layer on 1000 words of English prose for AWD-LSTM on Penn Treebank, three
convolutions on digits for ResNet20 on CIFAR-10, no schedule, no weight decay. Its curves of validation are not drawn.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from mindgap.base.source import Source
from mindgap.lab.studies.loop import Trial
from mindgap.lab.studies.spec import Figure, Scale, Study
from mindgap.lab.studies.training_runs import Training, descent, training_problem
from mindgap.lab.studies.tuned_runs import mean_log, tuned_run
from mindgap.lab.studies.verdict import by_method, last, mean_interval
from mindgap.record.schema import Row, Run, Verdict

#: Less than this share of the loss saved is no speed-up.
NEGLIGIBLE = 0.02


def loop(trial: Trial) -> Iterator[Row]:
    """Try every candidate step, then run the best one anew; readings of the loss on m samples."""
    import torch

    from mindgap.base.rng import stream_seed

    def start(lr: float, phase: str) -> tuple[Training, Callable[[], Row]]:
        problem = training_problem(trial.settings, stream_seed(trial.seed, f"clipping {phase}"))
        optimizer = descent(trial.settings, lr, problem.objective.parameters)
        samples = problem.draw(trial.torch(f"clipping {phase} readings"), trial["m"])

        def read() -> Row:
            with torch.no_grad():
                return {"loss": float(problem.objective.value(samples))}

        return Training(problem, optimizer, trial.torch(f"clipping {phase} order"), {}), read

    yield from tuned_run(trial, start, score=mean_log)


def judge(runs: Sequence[Run]) -> Verdict:
    """In every comparison the clipped curve lies below the other, with a 95 % interval over paired seeds.

    Compared are the heights of the curves (mean log loss) of clipped and plain SGD on both problems, and of clipped SGD
    and SGD with momentum on images. *Does not hold* when some interval lies above a saving of 2 %: no gain, or a loss.
    """
    groups = {name: {run.header.seed: run for run in group} for name, group in by_method(runs).items()}
    numbers, holds, refuted, parts = {}, True, False, []
    for name, rival in PAIRS:
        seeds = sorted(groups[name].keys() & groups[rival].keys())
        gaps = np.array([last(groups[name][s], "score") - last(groups[rival][s], "score") for s in seeds])
        gap = mean_interval(gaps)
        none = gap.low > math.log1p(-NEGLIGIBLE)
        holds &= gap.high < 0 and not none
        ratio, low, high = (math.exp(min(v, 700.0)) for v in (gap.mean, gap.low, gap.high))
        refuted |= none
        steps = {m: float(np.median([last(run, "lr") for run in groups[m].values()])) for m in (name, rival)}
        ends = {m: float(np.median([last(run, "loss") for run in groups[m].values()])) for m in (name, rival)}
        numbers[f"{name} / {rival}"] = {"ratio": ratio, "low": low, "high": high, "seeds": len(gaps), "lr": steps,
                                        "loss": ends}
        parts.append(
            f"{name} (step {steps[name]:g}, last loss {ends[name]:.3g}) against {rival.split(', ')[1]} (step "
            f"{steps[rival]:g}, {ends[rival]:.3g}): curve at {ratio:.3f} of its height "
            f"[{low:.3f}, {high:.3f}]"
        )
    verdict = "does not hold" if refuted else "holds" if holds else "inconclusive"
    return Verdict(verdict, "; ".join(parts), numbers)


#: clipped -> rival
PAIRS = (("LSTM, clipped", "LSTM, SGD"), ("convolutions, clipped", "convolutions, SGD"),
         ("convolutions, clipped", "convolutions, momentum"))  # fmt: skip

_OPTIMIZERS: dict[str, dict[str, Any]] = {
    "clipped": {"clip": True}, "SGD": {"clip": False}, "momentum": {"clip": False, "momentum": 0.9},
}  # fmt: skip
_PROSE = {"source": "prose", "width": 32, "candidates": [1.0, 3.0, 10.0, 30.0, 100.0]}
_DIGITS = {"source": "digits", "width": 8, "candidates": [0.1, 0.3, 1.0, 3.0, 10.0]}
_QUICK = {"steps": 100, "every": 10, "batch": 16, "m": 128, "tau": 0.25, "momentum": 0.0}

STUDIES = (
    Study(
        name="s3-clipping-speeds-up",
        claim="S3",
        title="Does clipping speed training up?",
        statement="With clipping the training loss falls fastest: for a language model against SGD, for an image model "
        "against SGD with and without momentum, each at its best step.",
        source=Source("thesis", "Fig. 3-4"),
        scales={
            "quick": Scale(_QUICK, seeds=4),
            "cpu": Scale({**_QUICK, "steps": 1000, "every": 50, "m": 1024}, seeds=5),
        },
        methods={
            **{f"LSTM, {name}": {**_PROSE, **_OPTIMIZERS[name]} for name in ("clipped", "SGD")},
            **{f"convolutions, {name}": {**_DIGITS, **own} for name, own in _OPTIMIZERS.items()},
        },
        loop=loop,
        judge=judge,
        figures=(
            Figure("Training loss at the chosen step", "loss", "training loss", log_y=True, facet="source",
                   caption="Each optimizer at the best of five candidate steps, chosen on other random numbers."),
            Figure("What tuning saw", "candidate_score", "mean log training loss", x="candidate", x_label="step size",
                   log_x=True, facet="source", caption="The same candidates and budgets for all optimizers of a "
                   "problem; lower is faster."),
        ),
    ),
)  # fmt: skip
