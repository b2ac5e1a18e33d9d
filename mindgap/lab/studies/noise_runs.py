"""What the studies of gradient noise share: rows about a sample of noise norms, controls, and
answers as numbers.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mindgap.base.check import one_of
from mindgap.base.rng import stream_seed, torch_stream
from mindgap.lab.studies.bilevel_runs import kept_vector
from mindgap.lab.studies.device_runs import device_of
from mindgap.lab.studies.spec import Row, Trial
from mindgap.lab.studies.training_runs import Training, step_factor
from mindgap.lab.theory.noise import Stable

if TYPE_CHECKING:
    from mindgap.base.objective import Objective
    from mindgap.lab.tasks.problems.training import TrainingProblem
    from mindgap.measure.captured_noise import HeldOutNoise
    from mindgap.measure.probes.noise import NoiseSample

#: Scale gpu, for every study of noise: 20,000 minibatches around the mean of 2,000 others, and the
#: BERT that is measured. A minibatch has about as many terms of the loss for both networks: 40
#: masked word pieces, 32 images.
ON_DEVICE = {
    "device": "cuda",
    "minibatches": 20_000,
    "reference": 2000,
    "coordinates": 2048,
    "batch": 4,
    "words": 8192,
    "text_width": 512,
    "layers": 6,
    "length": 64,
}
IMAGES_ON_DEVICE = {"batch": 32}

#: Minibatch, pipeline and state crossed: 10,000 minibatches per cell. A trained network has seen
#: 6,000 batches of 128 windows, 20 passes over the text.
CROSSED = {
    **ON_DEVICE,
    "minibatches": 10_000,
    "coordinates": 0,
    "pipeline": "real",
    "state": "start",
    "train_steps": 6000,
    "train_batch": 128,
    "train_lr": 3e-4,
    "held_out": 1024,
}
#: Settings that say how BERT was trained.
TRAINING = ("train_steps", "train_batch", "train_lr")
BATCHES, PIPELINES, STATES = (1, 32), ("fixed", "real"), ("start", "trained")

#: Of 40 samples of 10,000 norms each. Vectors of 100 stable numbers of index 1.5: all heavier than
#: Gaussian, variance not settled in 35 and open in 5. Gaussian vectors over a root of chi-square
#: with 3 degrees (index 3, a finite variance): all heavier, settled in 35 and open in 5; with 5
#: degrees and Gaussian vectors (12 samples each): heavier and not heavier, settled in all.
UNSETTLED = {"yes_if_true": 35 / 40, "no_if_true": 0.0, "yes_if_false": 0.0, "no_if_false": 35 / 40}
HEAVIER = {"yes_if_true": 1.0, "no_if_true": 0.0, "yes_if_false": 0.0, "no_if_false": 1.0}

#: The models of scale gpu, and why they are not the paper's.
BERT_PROXY = "BERT (6 layers, width 512, random start, 8,192 word pieces) on WikiText-2"
RESNET_PROXY = "ResNet20 on CIFAR-10"

#: What is said of records whose design fixes what makes noise vary.
FIXED_DESIGN = (
    "exactly ten masks per window, a batch of four, no padding and no dropout fix what makes the "
    "noise vary: with the same estimator a tiny BERT has a Hill index of 19.8 there, 7.7 with "
    "batches of one and drawn masks, 6.1 with short sequences and 5.1 after 400 steps, so that the "
    "design decides the answer"
)
#: The same of the toys at small scales.
FIXED_TOY = (
    "windows of one length, a word predicted at every place and no dropout fix what makes the "
    "noise vary: the design of the toy decides the answer"
)

#: Answers of *nearly all* seeds: four of five.
NEARLY_ALL = 0.8


def histogram_rows(norms: np.ndarray[Any, Any]) -> Iterator[Row]:
    """The histogram of norm over median norm in steps of a tenth, up to four medians."""
    counts, edges = np.histogram(norms / np.median(norms), bins=np.linspace(0.0, 4.0, 41))
    for count, left, right in zip(counts, edges, edges[1:], strict=False):
        yield {"norm": (left + right) / 2, "share": count / len(norms)}


def norm_rows(trial: Trial, norms: np.ndarray[Any, Any]) -> Iterator[Row]:
    """Histogram of the norms, variance against sample size (over that of all), tail index by four
    methods; a last row with what is judged and all norms over their median (:func:`kept_vector`).
    """
    from mindgap.measure.probes.tails import tail_table
    from mindgap.measure.probes.variance import variance_growth

    yield from histogram_rows(norms)
    growth = variance_growth(norms, bootstrap=60, shuffles=20, seed=trial.seed)
    for size, running, middle in zip(growth.sizes, growth.running, growth.median, strict=True):
        final = growth.running[-1]
        yield {
            "minibatches": int(size),
            "variance": running / final,
            "median_variance": middle / final,
        }
    for place, tail in enumerate(tail_table(norms, bootstrap=100, null=100, seed=trial.seed)):
        # An infinite index (no power law at all) is drawn at 1000.
        low, high, index, *null = (min(v, 1e3) for v in (*tail.interval, tail.index, *tail.null))
        yield {
            "estimator": tail.method,
            "place": place,
            "index": index,
            "low": low,
            "high": high,
            "null_low": null[0],
            "null_middle": null[1],
            "null_high": null[2],
            "p_value": tail.p_value,
            f"{tail.method}_heavier": number(tail.heavier),
            f"{tail.method}_index": index,
            "answer": tail.answer,
        }
    yield {
        "norms": kept_vector(norms / np.median(norms)),
        "settles": number(growth.settles),
        "exponent": growth.exponent,
        "exponent_low": growth.interval[0],
        "exponent_high": growth.interval[1],
        "largest": float(norms.max() / np.median(norms)),
        "largest_share": growth.largest_share,
        "answer": growth.answer,
    }


def control_norms(trial: Trial, law: str) -> np.ndarray[Any, Any]:
    """Norms of the trial's ``minibatches`` vectors of 100 independent numbers, ``"gaussian"`` or
    symmetric stable of index 1.5 (acclip, Fig. 2 b and e)."""
    rng, shape = trial.numpy_generator("control"), (trial["minibatches"], 100)
    if one_of("law", law, ("gaussian", "stable")) == "gaussian":
        return np.linalg.norm(rng.standard_normal(shape), axis=1)
    return np.linalg.norm(Stable(index=1.5).unit_sample(rng, shape), axis=1)


def noise_side_by_side(
    objective: Objective, batches: Sequence[Any], *, coordinates: int = 0, seed: int = 0
) -> NoiseSample:
    """What ``noise_sample`` measures, 64 minibatches at a time by ``torch.func``: equal to
    rounding, other coordinates.

    For networks so small that a call costs more than its arithmetic, without dropout and without
    buffers. Where the gradients take more than 256 MiB together, ``noise_sample`` measures them.

    Example:
        >>> import torch
        >>> from mindgap.base.objective import Objective
        >>> problem = Objective(torch.nn.Linear(1, 1, bias=False), lambda m, b: m(b).mean())
        >>> sample = noise_side_by_side(problem, [torch.ones(1, 1), torch.full((1, 1), 3.0)])
        >>> sample.norms.tolist(), sample.mean_norm, sample.variance
        ([1.0, 1.0], 2.0, 2.0)
    """
    import torch

    from mindgap.measure.captured_noise import SideBySide
    from mindgap.measure.gradients import samples_in
    from mindgap.measure.probes.noise import NoiseSample, noise_sample

    ends = torch.tensor([p.numel() for p in objective.parameters]).cumsum(0)
    if 4 * len(batches) * int(ends[-1]) > 2**28:
        return noise_sample(objective, batches, seed=seed, projections=0, coordinates=coordinates)

    side_by_side, pieces, losses = SideBySide(objective), [], []
    for start in range(0, len(batches), 64):
        group = batches[start : start + 64]
        stacked = (
            torch.stack(list(group))
            if torch.is_tensor(group[0])
            else tuple(map(torch.stack, zip(*group)))
        )
        values, gradients = side_by_side.each(stacked)
        pieces.append(torch.cat([g.flatten(1) for g in gradients], dim=1))  # (minibatch, parameter)
        losses.append(values)
    mean = torch.stack([piece.double().sum(dim=0) for piece in pieces]).sum(dim=0) / len(batches)
    chosen = (
        torch.randperm(int(ends[-1]), generator=torch_stream(seed, "coordinates"))[:coordinates]
        .sort()
        .values
    )
    of_pieces = []
    for piece in pieces:
        noise = piece.double() - mean
        of_pieces.append((noise.norm(dim=1), noise @ mean, noise[:, chosen].float()))
    norms, dots, picked = (torch.cat(parts).numpy() for parts in zip(*of_pieces))
    return NoiseSample(
        norms,
        dots,
        projections=np.zeros((len(norms), 0), np.float32),
        coordinates=picked,
        coordinate_layer=torch.searchsorted(ends, chosen, right=True).numpy(),
        layer_norms=None,
        mean_norm=float(mean.norm()),
        batch_size=samples_in(batches[0]),
        left_out=0,
        loss=float(torch.cat(losses).double().mean()),
    )


def number(answer: bool | None) -> float:
    """Yes 1, no 0, cannot tell 1/2.

    Example:
        >>> number(True), number(False), number(None)
        (1.0, 0.0, 0.5)
    """
    return 0.5 if answer is None else float(answer)


def word(answer: float) -> str:
    """The answer that :func:`number` wrote, in words.

    Example:
        >>> word(1.0), word(0.0), word(0.5)
        ('yes', 'no', 'cannot tell')
    """
    return "yes" if answer == 1.0 else "no" if answer == 0.0 else "cannot tell"


def of_nearly_all(answers: Sequence[float]) -> float:
    """The answer, yes (1) or no (0), of at least four in five seeds; 1/2 if there is none, or if
    there are fewer than three seeds.

    Example:
        >>> (
        ...     of_nearly_all([1.0, 1.0, 1.0, 1.0, 0.0]),
        ...     of_nearly_all([1.0, 1.0, 0.0]),
        ...     of_nearly_all([1.0, 1.0]),
        ... )
        (1.0, 0.5, 0.5)
    """
    if len(answers) < 3:
        return 0.5
    shares = {answer: float(np.mean([a == answer for a in answers])) for answer in (1.0, 0.0)}
    return next((answer for answer, share in shares.items() if share >= NEARLY_ALL), 0.5)


def fixed_design(settings: Mapping[str, Any]) -> str:
    """Why a sample of noise of a language model decides nothing; empty where it was measured with
    the real pipeline: drawn masks, padding and dropout.

    Example:
        >>> fixed_design({"pipeline": "real"}), fixed_design({})[:22]
        ('', 'windows of one length,')
    """
    if settings.get("pipeline", "fixed") == "real":
        return ""
    return FIXED_DESIGN if "device" in settings else FIXED_TOY


def device_network(
    trial: Trial,
    network: str,
    *,
    attention: bool = True,
    gaussian: bool = False,
    real: bool = False,
) -> TrainingProblem:
    """``"bert"``, ``"resnet20"`` or ``"alexnet"`` on the trial's device, at the same start for
    every study of noise; ``real``: BERT with drawn masks, padding and dropout.
    """
    from mindgap.lab.tasks.problems.papers import image_network, masked_bert

    device, seed = device_of(trial), stream_seed(trial.seed, "noise on a device")
    if network != "bert":
        return image_network(network, device, seed=seed)
    return masked_bert(
        device,
        words=trial["words"],
        width=trial["text_width"],
        layers=trial["layers"],
        length=trial["length"],
        attention=attention,
        gaussian=gaussian,
        real=real,
        seed=seed,
    )


def noise_on_device(
    trial: Trial, problem: TrainingProblem, generator: Any, *, coordinates: int = 0
) -> HeldOutNoise:
    """The noise of the network where it stands, on the trial's ``minibatches`` around the mean of
    ``reference`` others.

    Matrix products are TF32: each factor is rounded by at most one part in 1,000; sums and
    gradients stay float32. The minibatches of all cells are rounded alike, and by far less than
    their norms differ.
    """
    from mindgap.measure.captured import tf32
    from mindgap.measure.captured_noise import captured_noise

    with tf32(True):
        return captured_noise(
            problem.objective,
            problem.draw,
            generator,
            minibatches=trial["minibatches"],
            reference=trial["reference"],
            batch=trial["batch"],
            coordinates=coordinates,
            seed=trial.seed,
        )


def noise_at_start(
    trial: Trial, network: str, *, attention: bool = True, gaussian: bool = False
) -> HeldOutNoise:
    """The noise of a network, measured once per machine: several studies need the same sample.

    At its start with the fixed pipeline, or as the settings ``pipeline`` and ``state`` say. The
    file's name is made from the settings, the seed, the version of torch and the code, so that a
    sample of other code is never read.
    """
    import torch

    from mindgap.measure.captured_noise import HeldOutNoise

    settings = trial.settings
    cell = {
        "network": network,
        "attention": attention,
        "gaussian": gaussian,
        **{name: trial[name] for name in ON_DEVICE},
        "pipeline": settings.get("pipeline", "fixed"),
        "trained": settings.get("state", "start") == "trained"
        and {name: trial[name] for name in TRAINING},
    }

    def make() -> Mapping[str, Any]:
        problem = device_network(
            trial, network, attention=attention, gaussian=gaussian, real=cell["pipeline"] == "real"
        )
        if cell["trained"]:
            problem.objective.model.load_state_dict(trained_bert(trial)[0])
        torch.manual_seed(stream_seed(trial.seed, "dropout"))
        generator = torch_stream(trial.seed, "noise at the start", device=device_of(trial))
        # H11 reads them of the papers' networks.
        followed = trial["coordinates"] if attention and not gaussian else 0
        return vars(noise_on_device(trial, problem, generator, coordinates=followed))

    arrays = _once_per_machine(trial, "noise", cell, make)
    loss, reference = float(arrays.pop("loss")), int(arrays.pop("reference"))
    return HeldOutNoise(**arrays, loss=loss, reference=reference)


def trained_bert(trial: Trial) -> tuple[dict[str, Any], float, float]:
    """BERT after ``train_steps`` steps of Adam with the real pipeline, trained once per machine.

    Returns:
        Its weights, its loss at masked places of validation text, and the loss of one who knows
        the frequencies of pieces alone.
    """
    import torch

    from mindgap.lab.tasks.problems.word_pieces import masked_reading, masked_text

    sizes = ("device", "words", "text_width", "layers", "length")
    cell = {name: trial[name] for name in (*TRAINING, *sizes)}

    def make() -> Mapping[str, Any]:
        problem, device = device_network(trial, "bert", real=True), device_of(trial)
        model = problem.objective.model
        optimizer = torch.optim.Adam(model.parameters(), lr=trial["train_lr"])
        steps, sizes = trial["train_steps"], ("words", "length", "held_out")
        torch.manual_seed(stream_seed(trial.seed, "dropout in training"))
        order = torch_stream(trial.seed, "training of BERT", device=device)
        run = Training(problem, optimizer, order, {})
        for step in range(steps):
            run.step(trial, step_factor("linear", step, steps))
        text = masked_text(device, **{name: trial[name] for name in sizes}, reviews=False)
        weights = {name: value.cpu().numpy() for name, value in model.state_dict().items()}
        loss, _ = masked_reading(model, text.parts["validation"])
        return {**weights, "_loss": loss, "_floor": text.by_frequency()}

    arrays = _once_per_machine(trial, "bert", cell, make)
    loss, floor = (float(arrays.pop(name)) for name in ("_loss", "_floor"))
    return {name: torch.as_tensor(array) for name, array in arrays.items()}, loss, floor


def _once_per_machine(
    trial: Trial, kind: str, cell: Mapping[str, Any], make: Callable[[], Mapping[str, Any]]
) -> dict[str, Any]:
    """Arrays from the cache folder, or made and kept there under a name that says settings, seed,
    version of torch and code.
    """
    import torch

    from mindgap.lab.tasks.data import device_images
    from mindgap.lab.tasks.data.prepared import prepared
    from mindgap.lab.tasks.models import alexnet, bert, resnet
    from mindgap.lab.tasks.problems import papers, word_pieces
    from mindgap.measure import captured, captured_noise

    cell = {**cell, "seed": trial.seed, "torch": torch.__version__}
    modules = (captured, captured_noise, device_images, alexnet, bert, resnet, papers, word_pieces)
    code = [Path(str(module.__file__)).read_text() for module in modules]
    name = hashlib.sha256(json.dumps([cell, code]).encode()).hexdigest()[:16]
    return prepared(f"{kind}-{name}", make)
