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

    before = trial.restored
    run, sample, start = _on_device(trial) if "device" in trial.settings else _on_cpu(trial)
    done = run.restore(before)
    first = np.array(before["first"] if before else start().norms)
    earlier = np.array(before.get("earlier", first))
    for place, step in enumerate([0, *trial["moments"]]):
        if place < before.get("places", 0) - 1:
            continue
        # Else its row is recorded, and only its histogram may be missing.
        if place >= before.get("places", 0):
            for _ in range(done, step):
                run.step(trial)
            done, found = step, sample()
            moved = shape_distance(first, found, seed=trial.seed)
            previous = shape_distance(earlier, found, seed=trial.seed) if place else moved
            tail, earlier = tail_index(found, seed=trial.seed), found.norms
            trial.save(
                lambda: run.state(
                    step,  # noqa: B023
                    places=place + 1,  # noqa: B023
                    first=first.tolist(),
                    earlier=earlier.tolist(),  # noqa: B023
                )
            )
            yield {
                "step": step,
                "loss": found.loss,
                "level": found.variance**0.5,
                "distance": moved.distance,
                "p_value": moved.p_value,
                "null": moved.null[1],
                "null_high": moved.null[2],
                "distance_before": previous.distance,
                "p_before": previous.p_value,
                "spread": float(np.quantile(found.norms, 0.9) / np.median(found.norms)),
                "index": min(tail.index, 1e3),
                "index_low": min(tail.interval[0], 1e3),
                "index_high": min(tail.interval[1], 1e3),
                "heavier": number(tail.heavier),
                **(
                    _published_estimate(trial, run, found, step)
                    if trial.settings.get("published")
                    else {}
                ),
            }
        for row in histogram_rows(earlier):
            yield {**row, "moment": f"step {step}"}


def _published_estimate(trial: Trial, run: Training, found: Any, step: int) -> Row:
    """The estimator of Simsekli et al. on the norms and, at the start, on the coordinates of
    one minibatch's noise.
    """
    import torch

    from mindgap.measure.tail_estimators import published_block_sum_index

    row = {
        "block_sum": min(
            tail_index(found, "block-sum", bootstrap=20, null=20, seed=trial.seed).index, 1e3
        )
    }
    if step:
        return row
    problem, parameters = run.problem, run.problem.objective.parameters
    stream = torch_stream(trial.seed, "h16 one minibatch", device=parameters[0].device)

    def gradient() -> torch.Tensor:
        found = torch.autograd.grad(
            problem.objective.value(problem.draw(stream, trial["batch"])), parameters
        )
        return torch.cat([g.flatten() for g in found]).double()

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
    ahead: list[Any] = []

    def sample() -> Any:
        return ahead.pop() if ahead else noise_on_device(trial, problem, reader)

    def start() -> Any:
        # Before the shared sample, which another process may be measuring meanwhile.
        ahead.append(sample())
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
    parts, answers, fooled = Parts(), {}, 0
    for name, group in by_method(runs).items():
        readings = [[row for row in run.rows if "distance" in row] for run in group]
        said = [_drifts(rows[1:], len(rows) - 1) for rows in readings]
        fooled += sum(_drifts(rows[:1], len(rows) - 1) == 1.0 for rows in readings)
        answers[name] = of_nearly_all(said)
        largest = [max(row["distance"] for row in rows[1:]) for rows in readings]
        control, middle = (
            float(np.median([rows[0][c] for rows in readings])) for c in ("distance", "null")
        )
        ends = {
            c: tuple(float(np.median([rows[i][c] for rows in readings])) for i in (0, -1))
            for c in ("spread", "index", "heavier", "loss", "level")
        }
        said_of = {c: "{:.3g} to {:.3g}".format(*pair) for c, pair in ends.items()}
        parts.note(
            f"{name}: the shape moves {min(largest):.2f} to {max(largest):.2f} from the start "
            f"(two samples of the start: {control:.2f}; one shape: {middle:.2f}), drifts in "
            f"{said.count(1.0)} and keeps in {said.count(0.0)} of {len(said)} seeds, 90 % over 50 "
            f"% quantile {said_of['spread']}, Hill index {said_of['index']}, noise "
            f"{said_of['level']}, loss {said_of['loss']}",
            {
                name: {
                    "drift": said.count(1.0),
                    "keep": said.count(0.0),
                    "seeds": len(said),
                    "largest": largest,
                    "control": control,
                    "null": middle,
                    **ends,
                }
            },
        )
    if fooled:
        parts.decide_nothing(f"two samples of one moment are told apart in {fooled} runs")
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
    middle: dict[str, dict[str, Any]] = {}
    for name, group in by_method(runs).items():
        readings = [[row for row in run.rows if "block_sum" in row] for run in group]
        one = middle[name] = {
            "heavier": float(np.median([rows[-1]["heavier"] for rows in readings])),
            "within": float(np.median([rows[0]["within"] for rows in readings])),
            "block_sum": [
                float(np.median(column))
                for column in zip(*([r["block_sum"] for r in rows] for rows in readings))
            ],
        }
        last = readings[0][-1]["step"]
        parts.note(
            f"{name}: norms heavier than Gaussian after {last} steps {word(one['heavier'])}; "
            f"within one minibatch {one['within']:.2f}; norms by the published estimator "
            + ", ".join(f"{v:.2f}" for v in one["block_sum"]),
            {name: one},
        )
    image, text = middle["convolutional network"], middle["transformer"]
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
        Figure(
            "Norms of the gradient noise over their median",
            "share",
            "share of minibatches",
            x="norm",
            x_label="norm / median norm",
            facet="moment",
            caption="One panel per moment. Norms above 4 medians are not drawn.",
        ),
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
        Figure(
            "Norms of the gradient noise over their median",
            "share",
            "share of minibatches",
            x="norm",
            x_label="norm / median norm",
            facet="moment",
            caption="One panel per moment. Norms above 4 medians are not drawn.",
        ),
        Figure(
            "Tail index of the noise norms (published estimator)",
            "block_sum",
            "tail index",
            hlines={"Gaussian": 2.0},
        ),
    ),
)
