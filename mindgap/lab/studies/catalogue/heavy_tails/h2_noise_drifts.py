"""H2: the shape of the gradient noise changes while a language model is trained, and not while an
image model is.

The *shape* is the law of norm over median norm. Two shapes are compared by ``shape_distance``, the
largest difference D between their distribution functions. At the start the noise is sampled twice:
a control.

H16 reads the same noise as the appendix of acclip does: its tail after training, in the coordinates
of one minibatch, and by the estimator of Simsekli et al.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mindgap.base.rng import stream_seed, torch_stream
from mindgap.lab.studies.device_runs import device_of
from mindgap.lab.studies.noise_runs import (
    BERT_PROXY,
    IMAGES_ON_DEVICE,
    ON_DEVICE,
    RESNET_PROXY,
    device_network,
    histogram_rows,
    noise_at_start,
    noise_on_device,
    noise_side_by_side,
    number,
    of_nearly_all,
    word,
)
from mindgap.lab.studies.spec import Figure, Parts, Row, Run, Scale, Source, Study, Trial, scales
from mindgap.lab.studies.training_runs import (
    LARGE_TEXT,
    SMALL_TEXT,
    Training,
    image_problem,
    text_problem,
)
from mindgap.lab.studies.verdict import by_method
from mindgap.measure.probes.tails import tail_index

if TYPE_CHECKING:
    import torch

    from mindgap.lab.tasks.problems.training import TrainingProblem

#: A larger distance than this is a change of shape.
NEGLIGIBLE = 0.1
#: A run that keeps its shape is called drifting with at most this probability.
MISS = 0.01
#: H16: a published index below this looks heavy-tailed (H11 has the same); minibatches of the mean
#: that one is compared with; and coordinates that are read at most.
HEAVY, WITHIN, MOST = 1.8, 64, 2**20


def loop(trial: Trial) -> Iterator[Row]:
    """Train, and at every moment compare the noise with that at the start and with that at the
    moment before.
    """
    from mindgap.measure.probes.shape import shape_distance

    restored = trial.restored
    run, sample, start = _on_device(trial) if "device" in trial.settings else _on_cpu(trial)
    steps_done = run.restore(restored)
    start_norms = np.array(restored["first"] if restored else start().norms)
    norms = np.array(restored.get("earlier", start_norms))  # of the moment before
    recorded = restored.get("places", 0)  # moments
    for place, step in enumerate([0, *trial["moments"]]):
        if place < recorded - 1:
            continue
        # The last recorded moment has its row, but its histogram may be missing.
        if place >= recorded:
            for _ in range(steps_done, step):
                run.step(trial)
            steps_done, noise = step, sample()
            from_start = shape_distance(start_norms, noise, seed=trial.seed)
            from_before = shape_distance(norms, noise, seed=trial.seed) if place else from_start
            tail, norms = tail_index(noise, seed=trial.seed), noise.norms
            trial.save(
                lambda: run.state(
                    step,  # noqa: B023
                    places=place + 1,  # noqa: B023
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
                "index": min(tail.index, 1e3),
                "index_low": min(tail.interval[0], 1e3),
                "index_high": min(tail.interval[1], 1e3),
                "heavier": number(tail.heavier),
            }
            if trial.settings.get("published"):
                row |= _published_estimate(trial, run, noise, step)
            yield row
        for row in histogram_rows(norms):
            yield {**row, "moment": f"step {step}"}


def _published_estimate(trial: Trial, run: Training, sampled: Any, step: int) -> Row:
    """The estimator of Simsekli et al. on the norms and, at the start, on the coordinates of
    one minibatch's noise.
    """
    import torch

    from mindgap.measure.tail_estimators import published_block_sum_index

    row = {
        "block_sum": min(
            tail_index(sampled, "block-sum", bootstrap=20, null=20, seed=trial.seed).index, 1e3
        )
    }
    if step:
        return row
    problem, parameters = run.problem, run.problem.objective.parameters
    stream = torch_stream(trial.seed, "h16 one minibatch", device=parameters[0].device)

    def gradient() -> torch.Tensor:
        gradients = torch.autograd.grad(
            problem.objective.value(problem.draw(stream, trial["batch"])), parameters
        )
        return torch.cat([part.flatten() for part in gradients]).double()

    noise = gradient() - sum(gradient() for _ in range(WITHIN)) / WITHIN
    order = torch.randperm(len(noise), generator=trial.torch_generator("h16 order")).to(
        noise.device
    )
    values = noise[order][noise[order] != 0].cpu().numpy()[:MOST]
    return {**row, "within": published_block_sum_index(values)}


#: A network in training, its noise where it stands, and its noise at the start.
_Run = tuple[Training, Callable[[], Any], Callable[[], Any]]


def _on_cpu(trial: Trial) -> _Run:
    """The run of small scales: the noise at the start is drawn like any other."""
    build = text_problem if trial["model"] == "transformer" else image_problem
    problem = build(trial.settings, stream_seed(trial.seed, "noise along training"))
    reader = trial.torch_generator("h2 readings")

    def sample() -> Any:
        batches = problem.batches(reader, trial["minibatches"], trial["batch"])
        return noise_side_by_side(problem.objective, batches)

    run = Training(
        problem, _optimizer(trial, problem), trial.torch_generator("h2 order"), {"reader": reader}
    )
    return run, sample, sample


def _on_device(trial: Trial) -> _Run:
    """The run of scale gpu: training, a draw of noise, and the noise at the start."""

    network = (
        "bert" if trial["model"] == "transformer" else trial.settings.get("network", "resnet20")
    )
    problem = device_network(trial, network)
    reader, order = (
        torch_stream(trial.seed, f"h2 {name}", device=device_of(trial))
        for name in ("readings", "order")
    )
    run = Training(problem, _optimizer(trial, problem), order, {"reader": reader})
    drawn_early: list[Any] = []

    def sample() -> Any:
        return drawn_early.pop() if drawn_early else noise_on_device(trial, problem, reader)

    def start() -> Any:
        # Before the shared sample, which another process may be measuring meanwhile.
        drawn_early.append(sample())
        return noise_at_start(trial, network)

    return run, sample, start


def _optimizer(trial: Trial, problem: TrainingProblem) -> torch.optim.Optimizer:
    """Adam for the transformer, SGD with momentum for the image network, as in the papers."""
    import torch

    parameters = problem.objective.parameters
    if trial["model"] == "transformer":
        return torch.optim.Adam(parameters, lr=trial["lr"])
    return torch.optim.SGD(parameters, trial["lr"], momentum=0.9)


def judge(runs: Sequence[Run]) -> Parts:
    """How many seeds of each network drift, and how many keep their shape."""
    parts, answers, false_alarms = Parts(), {}, 0
    for name, group in by_method(runs).items():
        readings = [[row for row in run.rows if "distance" in row] for run in group]
        drifts = [_drifts(rows[1:], len(rows) - 1) for rows in readings]
        false_alarms += sum(_drifts(rows[:1], len(rows) - 1) == 1.0 for rows in readings)
        answers[name] = of_nearly_all(drifts)
        largest = [max(row["distance"] for row in rows[1:]) for rows in readings]
        control = float(np.median([rows[0]["distance"] for rows in readings]))
        null = float(np.median([rows[0]["null"] for rows in readings]))
        # column -> median at the start and at the end
        ends = {
            column: tuple(float(np.median([rows[i][column] for rows in readings])) for i in (0, -1))
            for column in ("spread", "index", "heavier", "loss", "level")
        }
        spans = {column: "{:.3g} to {:.3g}".format(*pair) for column, pair in ends.items()}
        drift, keep = drifts.count(1.0), drifts.count(0.0)
        parts.note(
            f"{name}: the shape moves {min(largest):.2f} to {max(largest):.2f} from the start "
            f"(two samples of the start: {control:.2f}; one shape: {null:.2f}), drifts in "
            f"{drift} and keeps in {keep} of {len(drifts)} seeds, 90 % over 50 "
            f"% quantile {spans['spread']}, Hill index {spans['index']}, noise "
            f"{spans['level']}, loss {spans['loss']}",
            {
                name: {
                    "drift": drift,
                    "keep": keep,
                    "seeds": len(drifts),
                    "largest": largest,
                    "control": control,
                    "null": null,
                    **ends,
                }
            },
        )
    if false_alarms:
        parts.decide_nothing(f"two samples of one moment are told apart in {false_alarms} runs")
    text, image = answers["transformer"], answers["convolutional network"]
    parts.add("the transformer's noise drifts", text == 1.0, text == 0.0)
    parts.add("the image network's noise keeps its shape", image == 0.0, image == 1.0)
    return parts


def _drifts(rows: Sequence[Row], moments: int) -> float:
    """1: some distance is large and no chance; 0: all are small; 1/2 in between."""
    if any(row["distance"] > NEGLIGIBLE and row["p_value"] < MISS / moments for row in rows):
        return 1.0
    return 0.0 if all(row["distance"] <= NEGLIGIBLE for row in rows) else 0.5


def judge_appendix(runs: Sequence[Run]) -> Parts:
    """Medians over the seeds: norms after training, coordinates of one minibatch, the published
    index on the way.
    """
    parts = Parts()
    medians: dict[str, dict[str, Any]] = {}
    for name, group in by_method(runs).items():
        readings = [[row for row in run.rows if "block_sum" in row] for run in group]
        indices = np.median([[row["block_sum"] for row in rows] for rows in readings], axis=0)
        numbers = {
            "heavier": float(np.median([rows[-1]["heavier"] for rows in readings])),
            "within": float(np.median([rows[0]["within"] for rows in readings])),
            "block_sum": indices.tolist(),
        }
        medians[name] = numbers
        parts.note(
            f"{name}: norms heavier than Gaussian after {readings[0][-1]['step']} steps "
            f"{word(numbers['heavier'])}; within one minibatch {numbers['within']:.2f}; norms by "
            f"the published estimator {', '.join(f'{index:.2f}' for index in indices)}",
            {name: numbers},
        )
    image, text = medians["convolutional network"], medians["transformer"]
    if image["heavier"] == 0.5:
        parts.decide_nothing("the tail of the image network's norms cannot be told")
    parts.add(
        "Fig. 6b: the image network's norms are not heavier after training",
        image["heavier"] == 0.0,
        image["heavier"] == 1.0,
    )
    parts.add("Fig. 6c: coordinates of one minibatch look heavy-tailed", image["within"] < HEAVY)
    below = [a < b for a, b in zip(text["block_sum"], image["block_sum"], strict=True)]
    parts.add(
        "Fig. 7: the transformer's index is below the image network's", all(below), not any(below)
    )
    return parts


_QUICK = {
    "model": "transformer",
    "images": "digits",
    "moments": [20, 180],
    "minibatches": 256,
    "batch": 8,
    "lr": 3e-3,
    "width": 8,
    **SMALL_TEXT,
}

_NORMS = Figure(
    "Norms of the gradient noise over their median",
    "share",
    "share of minibatches",
    x="norm",
    x_label="norm / median norm",
    facet="moment",
    caption="One panel per moment. Norms above 4 medians are not drawn.",
)

STUDY = Study(
    name="h2-noise-drifts",
    claim="H2",
    title="Whose gradient noise changes its shape during training?",
    statement="The shape of the gradient noise changes during the training of a language "
    "transformer and remains almost unchanged during that of an image network.",
    source=Source("acclip", "section 5.2, Fig. 5"),
    scales={
        **scales(
            _QUICK,
            {
                "images": "cifar10",
                "moments": [50, 200, 600, 2000],
                "minibatches": 1024,
                **LARGE_TEXT,
            },
            seeds=(3, 5),
        ),
        "gpu": Scale(
            {
                **ON_DEVICE,
                "model": "transformer",
                "moments": [200, 2000],
                "lr": 1e-4,
                "train_batch": 64,
            },
            seeds=3,
            methods={
                "transformer": {"lr": 1e-4},
                "convolutional network": {"lr": 0.1, "train_batch": 128, **IMAGES_ON_DEVICE},
            },
        ),
    },
    methods={
        "transformer": {"model": "transformer", "lr": 3e-3},
        "convolutional network": {"model": "convolutions", "lr": 0.01},
    },
    loop=loop,
    judge=judge,
    rule="Nearly all seeds (four of five, at least three seeds) of the transformer drift and "
    "nearly all of the convolutional network keep their shape; refuted where nearly all say the "
    "opposite. A run drifts when D from the start exceeds 0.1 at some later moment with p below "
    "0.01 over the number of moments, and keeps its shape when D is at most 0.1 at all of them. "
    "Two samples of the start that are told apart decide nothing.",
    models={
        "quick": "one-layer transformer on prose, three convolutions on digits",
        "cpu": "two-layer transformer on prose, three convolutions on CIFAR-10",
        "gpu": f"proxies, {BERT_PROXY} and {RESNET_PROXY}",
    },
    paper_model="BERT on Wikipedia and ResNet50 on ImageNet",
    figures=(
        Figure(
            "Distance of the noise's shape from that at the start",
            "distance",
            "largest difference of the distribution functions",
            hlines={"almost unchanged below": NEGLIGIBLE},
            caption="At step 0 two samples of the same moment are compared: what chance alone "
            "gives.",
        ),
        Figure(
            "Distance from the moment before",
            "distance_before",
            "largest difference of the distribution functions",
            hlines={"almost unchanged below": NEGLIGIBLE},
        ),
        _NORMS,
        Figure(
            "Tail index of the noise norms (Hill)",
            "index",
            "tail index",
            log_y=True,
            hlines={"infinite variance below": 2.0},
        ),
        Figure(
            "Concentration",
            "spread",
            "90 % over 50 % quantile of the norms",
            caption="Falls where the noise becomes more concentrated.",
        ),
    ),
)

_AT_START = {
    "transformer": {"model": "transformer", "lr": 3e-3, "published": True},
    "convolutional network": {"model": "convolutions", "lr": 0.01, "published": True},
}

H16_NOISE_OF_THE_APPENDIX = Study(
    name="h16-noise-of-the-appendix",
    claim="H16",
    title="Image noise as the appendix of acclip reads it",
    statement="The noise norms of an image network are concentrated after 5,000 steps too, while "
    "the coordinates of one minibatch's noise look heavy-tailed; by the published estimator "
    "BERT's noise norms have the lower index during training.",
    source=Source("acclip", "App. H, Fig. 6b, 6c and 7"),
    scales={
        **scales(
            {**_QUICK, "moments": [60], "minibatches": 200},
            {"images": "cifar10", "moments": [500, 2000], "minibatches": 1024, **LARGE_TEXT},
            seeds=(2, 5),
        ),
        "gpu": Scale(
            {**ON_DEVICE, "minibatches": 5000, "moments": [1000, 5000], "train_batch": 64},
            seeds=3,
            methods={
                "transformer": {"lr": 1e-4},
                "convolutional network": {
                    "network": "alexnet",
                    "lr": 0.01,
                    "train_batch": 128,
                    **IMAGES_ON_DEVICE,
                },
            },
        ),
    },
    methods=_AT_START,
    loop=loop,
    judge=judge_appendix,
    rule="Medians over the seeds: after the last step the image network's norms are not heavier "
    "than Gaussian (Hill's index against Gaussian samples); the published estimator gives less "
    "than 1.8 on the coordinates of one minibatch's noise at the start; on the norms it gives "
    "less for the transformer than for the image network at every moment, refuted where at none. "
    "Where the tail of the image network's norms cannot be told, nothing is decided.",
    models={
        "quick": "one-layer transformer on prose, three convolutions on digits",
        "cpu": "two-layer transformer on prose, three convolutions on CIFAR-10",
        "gpu": f"proxies, {BERT_PROXY} and AlexNet on CIFAR-10",
    },
    paper_model="AlexNet on ImageNet and BERT on Wikipedia",
    figures=(
        _NORMS,
        Figure(
            "Tail index of the noise norms (published estimator)",
            "block_sum",
            "tail index",
            hlines={"Gaussian": 2.0},
        ),
    ),
)
