"""What the studies share that compare optimizers: each is tuned alike, then its best candidate
is run again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from mindgap.base.check import fail, one_of
from mindgap.lab.studies.spec import Figure, Row, Trial
from mindgap.lab.studies.training_runs import Training, bounded_losses, step_factor
from mindgap.lab.studies.tune import best_trial, listed, search
from mindgap.record.forms import TunedTrial

if TYPE_CHECKING:
    import torch

#: A share of the loss that is no saving.
NEGLIGIBLE = 0.005
#: How the studies call ACClip with its step divided by the moment, and with step and threshold from
#: the second moment.
OTHER, SECOND = "ACClip over its moment", "ACClip over its second moment"

#: A loss that is not finite, or larger, is recorded as so many times the first.
WORST = 100.0

#: Factors around its middle step that ``mindgap tune --grid`` tries for every optimizer.
FACTORS = {"factor": (1 / 9, 1 / 3, 1.0, 3.0, 9.0)}
#: How a figure of runs at a chosen step came about.
CHOSEN = "Each optimizer at the best of its candidate steps, chosen on other random numbers."


def tuning_figure(column: str, label: str, **options: Any) -> Figure:
    """The figure of what every candidate step size ended with, at the scales where each trial tunes
    first.

    ``column`` is drawn upwards, with the text ``label``; ``options`` are further fields of the
    figure.
    """
    return Figure(
        "What tuning saw",
        column,
        label,
        x="factor",
        x_label="times the step in the middle",
        log_x=True,
        scales=("quick", "cpu"),
        **options,
    )


#: (candidate, phase) -> a network in training, and what reads it: a row without ``step`` and
#: ``lr``.
Start = Callable[[float, str], tuple[Training, Callable[[], Row]]]


def tuned_run(
    trial: Trial,
    start: Start,
    *,
    on: str = "loss",
    score: Callable[[Sequence[float]], float] | None = None,
) -> Iterator[Row]:
    """Train with every candidate, then again with the best one.

    A candidate is mostly a step size. Every candidate has the full budget. The phase ``"tuning"``
    and the phase ``"run"`` must have random numbers of their own, so that the run reported has seen
    nothing of what chose its candidate; all candidates share theirs.

    Args:
        trial: with the settings ``steps``, ``every``, ``batch``; either ``candidates`` (numbers) or
            ``middle`` and ``factors``, whose products are the candidates; and where it has one
            ``schedule`` (see :func:`~mindgap.lab.studies.training_runs.step_factor`).
        start: (candidate, phase) -> what is trained, from the random streams of the phase, and what
            reads it. Columns that end in ``loss`` are recorded as at most :data:`WORST` times what
            they are before the first step, and so are those not finite.
        on: the column by which a candidate is chosen.
        score: values of that column so far -> a number, the smaller the better; None: the last
            value.

    Yields:
        First a row per candidate, with ``candidate``, ``candidate_score``, ``candidate_loss`` (the
        last of ``on``) and, where there are factors, its ``factor``. Then the rows of the run, with
        ``step``, ``lr`` (the chosen candidate), ``score`` (of the values up to here) and the
        columns read.

    Raises:
        RuleError: the trial has fewer steps than ``every``, so that there would be no row.
    """
    restored, factors = trial.restored, trial.settings.get("factors", [])
    candidates = (
        [trial["middle"] * factor for factor in factors] if factors else trial["candidates"]
    )
    if trial["steps"] < trial["every"]:
        fail("steps", f"must be at least every = {trial['every']}", trial["steps"])
    score_of = score or itemgetter(-1)
    # Without a score only the last value counts, so a candidate is read at its end alone: after the
    # largest multiple of ``every``.
    tuning_every = trial["every"] if score else trial["steps"] // trial["every"] * trial["every"]
    last_values: dict[float, float] = {}  # candidate -> last value of ``on``

    def evaluate(settings: Mapping[str, Any]) -> float:
        """Train with one candidate; returns its score, and puts its last value into
        ``last_values``.
        """
        lr = settings["lr"]
        # The two empty mappings are checkpoints: an interrupted candidate starts again.
        *_, last_row = _train(trial, start, lr, "tuning", on, score_of, {}, {}, tuning_every)
        last_values[lr] = last_row[on]
        return float(last_row["score"])

    points = [{"lr": candidate} for candidate in candidates]
    scores = list(restored.get("scores", []))
    trials = [TunedTrial(point, known_score) for point, known_score in zip(points, scores)]
    for tried in search(listed(points), evaluate, trials):
        trials.append(tried)
        scores.append(tried.value)
        trial.save({"scores": list(scores)})
        lr = tried.settings["lr"]
        row = {
            "candidate": lr,
            "candidate_score": tried.value,
            "candidate_loss": last_values.get(lr, math.inf),  # infinite after an overflow
        }
        yield {**row, "factor": factors[len(trials) - 1]} if factors else row
    state, chosen_lr = {"scores": scores}, best_trial(trials).settings["lr"]
    yield from _train(trial, start, chosen_lr, "run", on, score_of, state, restored, trial["every"])


def optimizer_of(
    name: str,
    lr: float,
    parameters: Sequence[torch.Tensor],
    *,
    tau: float,
    eps: float | None = None,
) -> torch.optim.Optimizer:
    """The optimizer of that name with momentum 0.9, otherwise as the papers set it.

    Args:
        name: one of

            * ``"sgd"``, ``"gclip"`` (the gradient's norm is clipped), ``"cclip"`` (its coordinates
              are), whose step is that of a gradient's whole effect (see `training_runs.descent`);
            * ``"adam"``: torch's own;
            * ``"acclip"``: Algorithm 1 of the papers with their β₂ 0.99, ε 1e-5, weight decay 1e-5;
            * ``"acclip, normalized"``: its step divided by the moment;
            * ``"acclip, second moment"``: its step and threshold from the second moment, as section
              3.1 of acclip has it.
        lr: the step size.
        parameters: to be moved.
        tau: threshold of GClip. That of CClip is tau/√d in each of the d coordinates: a step
            clipped everywhere is as long with both.
        eps: ε of Adam and of ACClip in every form; None: 1e-8 and 1e-5.

    Example:
        >>> import torch
        >>> x = torch.tensor([3.0, 4.0], requires_grad=True)
        >>> x.grad = torch.tensor([300.0, 400.0])
        >>> optimizer_of("gclip", 1.0, [x], tau=2.5).step()
        >>> x.detach()
        tensor([1.5000, 2.0000])
    """
    import torch

    from mindgap.optim import ACClip, CClip, GClip

    forms: dict[str, Literal["algorithm", "first_moment", "second_moment"]] = {
        "acclip": "algorithm",
        "acclip, normalized": "first_moment",
        "acclip, second moment": "second_moment",
    }
    one_of("optimizer", name, ("sgd", "gclip", "cclip", "adam", *forms))
    if name == "sgd":  # with momentum 0.9 a gradient moves x by lr / (1 - 0.9) in all
        return torch.optim.SGD(parameters, lr=0.1 * lr, momentum=0.9)
    if name == "gclip":
        return GClip(parameters, lr=lr, tau=tau, beta=0.9, clip="momentum")
    if name == "cclip":
        level = tau / math.sqrt(sum(p.numel() for p in parameters))
        return CClip(parameters, lr=lr, tau=level, beta=0.9, clip="momentum")
    if name == "adam":
        return torch.optim.Adam(parameters, lr=lr, eps=1e-8 if eps is None else eps)
    return ACClip(
        parameters,
        lr,
        form=forms[name],
        factor=2.0 if forms[name] == "second_moment" else 1.0,
        eps=1e-5 if eps is None else eps,
        weight_decay=1e-5,
        bias_correction=False,
        clip=None,
    )


def mean_log(losses: Sequence[float]) -> float:
    """Mean of the logarithms: the height of a training curve on a logarithmic axis.

    Example:
        >>> round(mean_log([1.0, math.e**2]), 6)
        1.0
    """
    return float(np.mean([math.log(max(loss, 1e-12)) for loss in losses]))


def _train(
    trial: Trial,
    start: Start,
    lr: float,
    phase: str,
    column: str,
    score: Callable[[Sequence[float]], float],
    extra_state: Mapping[str, Any],
    restored: Mapping[str, Any],
    every: int,
) -> Iterator[Row]:
    """Train once, and yield a row every ``every`` steps, with a checkpoint offered for each.

    Args:
        trial: with the settings ``steps`` and ``batch``.
        start, lr, phase: ``start(lr, phase)`` builds what is trained and what reads it.
        column: whose values so far are scored.
        score: values so far -> the row's ``score``.
        extra_state: what a checkpoint holds beside the state of the run.
        restored: the last checkpoint, or empty.
        every: steps between two rows.
    """
    run, read_row = start(lr, phase)
    first_row = read_row()  # bounds the losses: read before any state is restored
    schedule, steps = trial.settings.get("schedule", "constant"), trial["steps"]
    history: list[float] = list(restored.get("history", []))
    for step in range(run.restore(restored) + 1, steps + 1):
        run.step(trial, step_factor(schedule, step - 1, steps))
        if step % every == 0:
            row = bounded_losses(read_row(), lambda name: WORST * first_row[name])
            history.append(row[column])
            trial.save(lambda: run.state(step, history=list(history), **extra_state))  # noqa: B023
            yield {"step": step, **row, "lr": lr, "score": score(history)}
