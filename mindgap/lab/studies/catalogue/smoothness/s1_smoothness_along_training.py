"""S1 and S2: local smoothness against gradient norm along training, with clipping and a large step and without.

What is judged was settled before a smoothness was read, from the thesis alone. It speaks of a "strong positive
correlation" with clipping and a large step, and of one "much weaker" in the other panels of Fig. 3-2 and 3-3; for the
image network it says that the correlation is present and not. No numbers are given, so the customary words for
correlations are used: strong from 0.5, present from 0.3, weak below 0.3, all of Spearman's rank correlation.

Settings. The language model has the thesis' own: steps 30 and 2, threshold 0.25. Those of its image network (ResNet20
with normalisation) do not train ours, which has none; so the step without clipping and that with momentum are the best
of 0.01, 0.03, ..., 100 by training loss in runs with random numbers of their own (0.3 and, with momentum
0.9, 0.03 of torch's or 0.3 of a gradient's whole effect), and the step with clipping is five times the one without, as
in the thesis.

*Differs from the paper.* An LSTM of one layer on 1000 words of English prose for AWD-LSTM on Penn Treebank, three
convolutions on digits for ResNet20 on CIFAR-10, no schedule, no weight decay. Gradient and smoothness are those of the
mean loss over the same samples at every reading and at every point of a step: the released code takes different random
chunks, which alone makes a correlation when clipping is on (docs/measure.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from mindgap.base.source import Source
from mindgap.lab.studies.loop import Trial
from mindgap.lab.studies.spec import Figure, Scale, Study
from mindgap.lab.studies.training_runs import Training, descent, training_problem
from mindgap.lab.studies.verdict import by_method
from mindgap.record.schema import Row, Run, Verdict

STRONG, PRESENT = 0.5, 0.3


def loop(trial: Trial) -> Iterator[Row]:
    """Train, and at every reading measure how fast the gradient changes along the step just made."""
    from mindgap.base.rng import stream_seed
    from mindgap.measure.probes.smoothness import local_smoothness

    problem = training_problem(trial.settings, stream_seed(trial.seed, "smoothness along training"))
    parameters = problem.objective.parameters
    optimizer = descent(trial.settings, trial["lr"], parameters)
    run = Training(problem, optimizer, trial.torch("smoothness order"), {})
    batches = problem.batches(trial.torch("smoothness samples"), trial["m"] // trial["part"], trial["part"])
    for step in range(run.restore(trial.restored) + 1, trial["steps"] + 1):
        here = [p.detach().clone() for p in parameters]
        run.step(trial)
        if step % trial["every"] == 0:
            there = [p.detach().clone() for p in parameters]
            _move(parameters, here)
            found = local_smoothness(problem.objective, batches, [b - a for a, b in zip(here, there, strict=True)])
            _move(parameters, there)
            trial.save(lambda: run.state(step))  # noqa: B023
            yield {"step": step, "loss": found.loss, "gradient_norm": found.gradient_norm, "smoothness": found.value,
                   "curvature": found.curvature, "noise_floor": found.noise_floor, "length": found.displacement}


def _move(parameters: Sequence[Any], values: Sequence[Any]) -> None:
    for parameter, value in zip(parameters, values, strict=True):
        parameter.detach().copy_(value)


def judge(runs: Sequence[Run], clipped: str, least: float) -> Verdict:
    """The run of ``clipped`` has a correlation of at least ``least``, all others have one below 0.3.

    Medians of rank correlations over the seeds. A correlation counts as there when, besides, more than half of the
    seeds show growth by slope and rank with their intervals; a method decides nothing when half of its seeds or more do
    not allow a conclusion (gradient norms that span less than a factor 3, or intervals too wide). *Does not hold* when
    the clipped run is below 0.3, or another is at ``least`` or above with growth shown; *inconclusive* in between.
    """
    from mindgap.measure.relaxed_smoothness import fit_relaxed_smoothness

    numbers, there, weak = {}, {}, {}
    for name, group in by_method(runs).items():
        fits = [fit_relaxed_smoothness(run.column("gradient_norm"), run.column("smoothness")) for run in group]
        rank = float(np.median([f.rank for f in fits]))
        grow, refused = (sum(f.grows is answer for f in fits) for answer in (True, None))
        numbers[name] = {
            "rank": rank, "rank_low": float(np.median([f.rank_interval[0] for f in fits])),
            "rank_high": float(np.median([f.rank_interval[1] for f in fits])),
            "slope": float(np.median([f.slope for f in fits])), "span": float(np.median([f.span for f in fits])),
            "grow": grow, "refused": refused, "seeds": len(fits),
        }  # fmt: skip
        there[name] = rank >= least and 2 * grow > len(fits)
        weak[name] = rank < PRESENT and 2 * refused < len(fits)
    measured = "; ".join(
        f"{name}: rank correlation {v['rank']:.2f} [{v['rank_low']:.2f}, {v['rank_high']:.2f}], slope "
        f"{v['slope']:.2f}, gradient norms span a factor {v['span']:.1f}, growth shown in {v['grow']} of {v['seeds']} "
        f"seeds" + (f", cannot tell in {v['refused']}" if v["refused"] else "")
        for name, v in numbers.items()
    )
    others = [name for name in numbers if name != clipped]
    if there[clipped] and all(weak[name] for name in others):
        return Verdict("holds", measured, numbers)
    refuted = weak[clipped] or any(there[name] for name in others)
    return Verdict("does not hold" if refuted else "inconclusive", measured, numbers)


def _judge(clipped: str, least: float) -> Callable[[Sequence[Run]], Verdict]:
    rule = partial(judge, clipped=clipped, least=least)
    rule.__doc__ = (judge.__doc__ or "").replace("``clipped``", f"“{clipped}”").replace("``least``", f"{least:g}")
    return rule


_PROSE = {"source": "prose", "width": 32, "steps": 150, "every": 5, "batch": 16, "m": 128, "part": 64, "tau": 0.25,
          "momentum": 0.0, "clip": False, "lr": 2.0}  # fmt: skip
_DIGITS = {**_PROSE, "source": "digits", "width": 8, "m": 512, "part": 256, "lr": 0.3}

_FIGURES = (
    Figure("Smoothness against gradient norm", "smoothness", "local smoothness", x="gradient_norm", kind="points",
           x_label="‖∇f‖", log_x=True, log_y=True, facet="method",
           caption="A dot a reading, all seeds. (L0, L1)-smoothness allows the dots to rise to the right."),
    Figure("Smoothness along training", "smoothness", "local smoothness", log_y=True),
    Figure("Training loss at the readings", "loss", "loss"),
)  # fmt: skip

STUDIES = (
    Study(
        name="s1-smoothness-language-model",
        claim="S1",
        title="Does smoothness grow with the gradient? A language model",
        statement="Along the training of an LSTM, local smoothness and gradient norm are strongly correlated with "
        "clipping and step 30, and much less without clipping or at step 2.",
        source=Source("thesis", "Fig. 3-1, 3-2"),
        scales={
            "quick": Scale(_PROSE, seeds=3),
            "cpu": Scale({**_PROSE, "steps": 2000, "every": 20, "m": 512}, seeds=3),
        },
        methods={
            "clipped, step 30": {"clip": True, "lr": 30.0},
            "not clipped, step 2": {"clip": False, "lr": 2.0},
            "clipped, step 2": {"clip": True, "lr": 2.0},
        },
        loop=loop,
        judge=_judge("clipped, step 30", STRONG),
        figures=_FIGURES,
    ),
    Study(
        name="s2-smoothness-image-model",
        claim="S2",
        title="Does smoothness grow with the gradient? An image model",
        statement="Along the training of a convolutional network, local smoothness and gradient norm are correlated "
        "with clipping and a large step, and not for SGD with momentum nor without clipping.",
        source=Source("thesis", "Fig. 3-3"),
        scales={
            "quick": Scale(_DIGITS, seeds=3),
            "cpu": Scale({**_DIGITS, "steps": 3000, "every": 30, "m": 1792}, seeds=5),
        },
        methods={
            "SGD with momentum": {"clip": False, "lr": 0.3, "momentum": 0.9},
            "not clipped, step 0.3": {"clip": False, "lr": 0.3},
            "clipped, step 1.5": {"clip": True, "lr": 1.5},
        },
        loop=loop,
        judge=_judge("clipped, step 1.5", PRESENT),
        figures=_FIGURES,
    ),
)
