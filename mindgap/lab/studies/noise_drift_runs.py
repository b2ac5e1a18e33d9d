"""Training with noise read at several moments: what H2 and H16 share.

The *shape* of a noise is the law of norm over median norm. Two shapes are compared by
``shape_distance``, the largest difference D between their distribution functions. At the start the
noise is sampled twice: a control.

A *moment* is a number of training steps after which the noise is sampled; the first one is 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mindgap.base.rng import stream_seed, torch_stream
from mindgap.lab.studies.device_runs import device_of
from mindgap.lab.studies.gates import (
    CLASS_FREQUENCIES,
    LEARNT,
    learnt_gate,
    learnt_with_wrong_labels,
)
from mindgap.lab.studies.noise_runs import (
    IMAGES_ON_DEVICE,
    NO_POWER_LAW,
    answer_number,
    device_network,
    histogram_rows,
    noise_at_start,
    noise_on_device,
    noise_side_by_side,
)
from mindgap.lab.studies.spec import Figure, Parts, Row, Run, Trial
from mindgap.lab.studies.training_runs import (
    SMALL_TEXT,
    Training,
    adam_or_sgd,
    image_problem,
    step_factor,
    text_problem,
)
from mindgap.lab.studies.verdict import by_method, last
from mindgap.measure.probes.tails import tail_index

if TYPE_CHECKING:
    import torch

    from mindgap.lab.tasks.problems.training import TrainingProblem


#: The noise of one minibatch is its gradient less the mean gradient of so many others, and at most
#: so many of its coordinates enter the published estimator.
OTHERS, MOST = 64, 2**20


def loop(trial: Trial) -> Iterator[Row]:
    """Train, and at every moment compare the noise with that at the start and with that at the
    moment before.

    Yields:
        Per moment one row of the comparison, then the rows of the histogram of its norms, which
        name the ``moment``. Distances and p-values at the first moment compare two samples at the
        start. Indices of a tail are at most :data:`~mindgap.lab.studies.noise_runs.NO_POWER_LAW`.
        At scale gpu a row also has ``by_frequency``, the loss of one who knows the frequencies of
        word pieces or classes alone.

    The setting ``schedule`` is that of the step (:func:`step_factor`) up to the last moment;
    without it the step is constant.
    """
    from mindgap.measure.probes.shape import shape_distance

    restored, schedule = trial.restored, trial.settings.get("schedule")
    by_frequency = _by_frequency(trial)
    run, sample_now, sample_at_start = _set_up(trial)
    steps_done = run.restore(restored)
    # (minibatches,)
    start_norms = np.array(restored["first"] if restored else sample_at_start().norms)
    norms = np.array(restored.get("earlier", start_norms))  # of the moment before
    recorded = restored.get("moments", 0)  # how many moments have their row
    for moment, step in enumerate([0, *trial["moments"]]):
        if moment < recorded - 1:
            continue
        # The last recorded moment has its row, but its histogram may be missing.
        if moment >= recorded:
            _seed_dropout(trial, f"before step {step}")
            run.recapture()
            for done in range(steps_done, step):
                run.step(
                    trial, step_factor(schedule, done, trial["moments"][-1]) if schedule else None
                )
            _seed_dropout(trial, f"of the noise at step {step}")
            steps_done, noise = step, sample_now()
            from_start = shape_distance(start_norms, noise, seed=trial.seed)
            # Of a comparison ``null`` is the distance that two samples of one shape would have: its
            # 5 % quantile, median and 95 % quantile. There is no moment before the first.
            from_before = shape_distance(norms, noise, seed=trial.seed) if moment else from_start
            tail, norms = tail_index(noise, seed=trial.seed), noise.norms
            trial.save(
                lambda: run.state(
                    step,  # noqa: B023
                    moments=moment + 1,  # noqa: B023
                    first=start_norms.tolist(),
                    earlier=norms.tolist(),  # noqa: B023
                )
            )
            row: Row = {
                "step": step,
                "loss": noise.loss,
                "level": noise.variance**0.5,
                "distance": from_start.distance,
                "p_value": from_start.p_value,
                "null": from_start.null[1],
                "null_high": from_start.null[2],
                "distance_before": from_before.distance,
                "p_before": from_before.p_value,
                "spread": float(np.quantile(norms, 0.9) / np.median(norms)),
                "index": min(tail.index, NO_POWER_LAW),
                "index_low": min(tail.interval[0], NO_POWER_LAW),
                "index_high": min(tail.interval[1], NO_POWER_LAW),
                "heavier": answer_number(tail.heavier),
                **by_frequency,
            }
            if trial.settings.get("published"):
                row |= _published_estimate(trial, run, noise, step)
            yield row
        for row in histogram_rows(norms):
            yield {**row, "moment": f"step {step}"}


def _seed_dropout(trial: Trial, part: str) -> None:
    """Where the pipeline is the real one, seed the generators that dropout draws from.

    Every ``part`` of a run has a stream of its own, so that a resumed run draws the same.
    """
    if trial.settings.get("pipeline") == "real":
        import torch

        torch.manual_seed(stream_seed(trial.seed, f"dropout {part}"))


def _by_frequency(trial: Trial) -> Row:
    """The column ``by_frequency`` of a trial at scale gpu; no column at other scales."""
    if "device" not in trial.settings:
        return {}
    if trial["model"] != "transformer":
        return {"by_frequency": CLASS_FREQUENCIES}
    from mindgap.lab.tasks.problems.word_pieces import masked_text

    sizes = {name: trial[name] for name in ("words", "length", "held_out")}
    text = masked_text(device_of(trial), **sizes, reviews=False)
    return {"by_frequency": text.by_frequency()}


def judge_learnt(parts: Parts, runs: Sequence[Run]) -> None:
    """Add the gate of scale gpu: at the last moment the mean loss of the sampled minibatches lies
    1 nat below that of frequencies, in every run of every network; with wrong labels
    :func:`~mindgap.lab.studies.gates.learnt_with_wrong_labels`.
    """
    for name, own_runs in by_method(runs).items():
        losses = [last(run, "loss") for run in own_runs]
        wrong = own_runs[0].header.settings.get("wrong_labels", 0.0)
        learnt = learnt_with_wrong_labels(wrong) if wrong else LEARNT
        by_frequency = min(last(run, "by_frequency") for run in own_runs)
        learnt_gate(parts, name, losses, by_frequency, learnt)


def _published_estimate(trial: Trial, run: Training, sampled: Any, step: int) -> Row:
    """Tail indices by block sums, the estimator that Simsekli et al. used.

    Args:
        trial: names the random streams; ``batch`` is the size of a minibatch.
        run: the network in training.
        sampled: the noise of many minibatches at this moment (a sample with ``norms``).
        step: the moment.

    Returns:
        ``block_sum``, by the form of this library (at most 2) on the sampled norms; at step 0 also
        ``within``, by the form as published on the coordinates of one minibatch's noise.
    """
    import torch

    from mindgap.measure.tail_estimators import published_block_sum_index

    row = {
        "block_sum": tail_index(sampled, "block-sum", bootstrap=20, null=20, seed=trial.seed).index
    }
    if step:
        return row
    _seed_dropout(trial, "of one minibatch")
    problem, parameters = run.problem, run.problem.objective.parameters
    stream = torch_stream(trial.seed, "h16 one minibatch", device=parameters[0].device)

    def gradient() -> torch.Tensor:
        """The gradient of the next minibatch of the stream, as one vector in float64."""
        loss = problem.objective.value(problem.draw(stream, trial["batch"]))
        gradients = torch.autograd.grad(loss, parameters)
        return torch.cat([part.flatten() for part in gradients]).double()

    # Of one minibatch, around the mean gradient of others.
    noise = gradient() - sum(gradient() for _ in range(OTHERS)) / OTHERS
    order = torch.randperm(len(noise), generator=trial.torch_generator("h16 order"))
    shuffled = noise[order.to(noise.device)]
    coordinates = shuffled[shuffled != 0].cpu().numpy()[:MOST]
    return {**row, "within": published_block_sum_index(coordinates)}


def _set_up(trial: Trial) -> tuple[Training, Callable[[], Any], Callable[[], Any]]:
    """A network in training, and what samples its noise.

    With the setting ``device`` (scale gpu) it is BERT for the ``model`` "transformer", else the
    setting ``network``, and processes of one machine share the noise at its start. Without it the
    network is small, and the noise at its start is sampled like any other.

    Returns:
        The training; what samples the noise where the network stands; and what samples the noise
        at the start, or reads it from the cache. Both return a sample with ``norms``.
    """
    on_text, on_device = trial["model"] == "transformer", "device" in trial.settings
    network = "bert" if on_text else trial.settings.get("network", "resnet20")
    if on_device:
        real = trial.settings.get("pipeline") == "real"
        problem = device_network(trial, network, real=real)
    else:
        build: Callable[..., TrainingProblem] = text_problem if on_text else image_problem
        problem = build(trial.settings, stream_seed(trial.seed, "noise along training"))
    reader, order = (
        torch_stream(trial.seed, f"h2 {name}", device=trial.settings.get("device", "cpu"))
        for name in ("readings", "order")
    )
    # As in the papers: Adam for the transformer, SGD with momentum for the image network.
    optimizer = adam_or_sgd(
        "adam" if on_text else "sgd", problem.objective.parameters, trial["lr"], momentum=0.9
    )
    run = Training(problem, optimizer, order, {"reader": reader})
    if not on_device:

        def sample_small() -> Any:
            """The noise on fresh minibatches, where the network stands."""
            batches = problem.batches(reader, trial["minibatches"], trial["batch"])
            return noise_side_by_side(problem.objective, batches)

        return run, sample_small, sample_small
    drawn_early: list[Any] = []  # at most one sample, of the network at its start

    def sample_now() -> Any:
        """The noise where the network stands; the first time that of :func:`sample_at_start`."""
        return drawn_early.pop() if drawn_early else noise_on_device(trial, problem, reader)

    def sample_at_start() -> Any:
        """The noise at the start, from the cache of this machine.

        The first sample of this run is drawn before and kept for :func:`sample_now`, because
        another process may be measuring the shared one meanwhile.
        """
        _seed_dropout(trial, "of the noise at the start")
        drawn_early.append(sample_now())
        return noise_at_start(trial, network)

    return run, sample_now, sample_at_start


#: A fifth of the labels is drawn at random, anew at every draw, so that the image network cannot
#: know its images by heart, as those of the papers do not know ImageNet.
IMAGES_IN_TRAINING = {**IMAGES_ON_DEVICE, "wrong_labels": 0.2}

#: BERT at scale gpu as H1 and H6 train it, with which it learns (validation loss 3.2 against 6.6 of
#: frequencies): drawn masks, padding and dropout, 6,000 steps of 128 windows on a schedule with a
#: warm-up. Without these the design would decide the noise (``FIXED_DESIGN`` in ``noise_runs``).
BERT_IN_TRAINING = {
    "pipeline": "real",
    "schedule": "linear",
    "lr": 3e-4,
    "train_batch": 128,
    "held_out": 1024,
}

QUICK = {
    "model": "transformer",
    "images": "digits",
    "moments": [20, 180],
    "minibatches": 256,
    "batch": 8,
    "lr": 3e-3,
    "width": 8,
    **SMALL_TEXT,
}

NORMS = Figure(
    "Norms of the gradient noise over their median",
    "share",
    "share of minibatches",
    x="norm",
    x_label="norm / median norm",
    facet="moment",
    caption="One panel per moment. Norms above 4 medians are not drawn.",
)
