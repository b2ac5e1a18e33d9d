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
from mindgap.lab.studies.bilevel_runs import vector_text
from mindgap.lab.studies.device_runs import device_of
from mindgap.lab.studies.spec import Row, Trial
from mindgap.lab.studies.training_runs import Training, step_factor
from mindgap.lab.theory.noise import Stable

if TYPE_CHECKING:
    from mindgap.base.objective import Objective
    from mindgap.lab.tasks.problems.training import TrainingProblem
    from mindgap.lab.tasks.problems.word_pieces import MaskedText
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

#: An infinite tail index (no power law at all) or a larger one is recorded as this.
NO_POWER_LAW = 1e3

#: ``noise_side_by_side`` takes so many minibatches at a time, and holds at most so many bytes of
#: gradients.
GROUP, MOST_BYTES = 64, 2**28


def histogram_rows(norms: np.ndarray[Any, Any]) -> Iterator[Row]:
    """The histogram of norm over median norm, in 40 bins of a tenth from 0 to 4.

    Yields:
        Per bin its middle as ``norm``, and the ``share`` of all norms that lie in it. The shares of
        norms above four medians are left out, so that the sum may be below 1.
    """
    counts, edges = np.histogram(norms / np.median(norms), bins=np.linspace(0.0, 4.0, 41))
    for count, left, right in zip(counts, edges[:-1], edges[1:], strict=True):
        yield {"norm": (left + right) / 2, "share": count / len(norms)}


def norm_rows(trial: Trial, norms: np.ndarray[Any, Any]) -> Iterator[Row]:
    """All that the studies of noise record of one sample of norms.

    Args:
        trial: its seed names the random numbers.
        norms: ‖gradient of a minibatch - mean gradient‖, one number per minibatch.

    Yields:
        First the rows of :func:`histogram_rows`. Then, per size of a part of the sample, its
        ``variance`` over that of the whole sample, in the order of drawing and in the median over
        shuffles. Then, per estimator, the tail index with its interval and what Gaussian samples
        give (``null``); an index is at most :data:`NO_POWER_LAW`. Last a row with what is judged
        and all norms over their median (as text, see :func:`vector_text`).
    """
    from mindgap.measure.probes.tails import tail_table
    from mindgap.measure.probes.variance import variance_growth

    yield from histogram_rows(norms)
    growth = variance_growth(norms, bootstrap=60, shuffles=20, seed=trial.seed)
    whole_variance = growth.running[-1]
    for size, running, median in zip(growth.sizes, growth.running, growth.median, strict=True):
        yield {
            "minibatches": int(size),
            "variance": running / whole_variance,
            "median_variance": median / whole_variance,
        }
    for place, tail in enumerate(tail_table(norms, bootstrap=100, null=100, seed=trial.seed)):
        index, low, high, null_low, null_middle, null_high = (
            min(value, NO_POWER_LAW) for value in (tail.index, *tail.interval, *tail.null)
        )
        yield {
            "estimator": tail.method,
            "place": place,
            "index": index,
            "low": low,
            "high": high,
            "null_low": null_low,
            "null_middle": null_middle,
            "null_high": null_high,
            "p_value": tail.p_value,
            f"{tail.method}_heavier": answer_number(tail.heavier),
            f"{tail.method}_index": index,
            "answer": tail.answer,
        }
    yield {
        "norms": vector_text(norms / np.median(norms)),
        "settles": answer_number(growth.settles),
        "exponent": growth.exponent,
        "exponent_low": growth.interval[0],
        "exponent_high": growth.interval[1],
        "largest": float(norms.max() / np.median(norms)),
        "largest_share": growth.largest_share,
        "answer": growth.answer,
    }


def control_norms(trial: Trial, law: str) -> np.ndarray[Any, Any]:
    """Norms of made-up noise: vectors of 100 independent numbers of a known law.

    Args:
        trial: how many vectors its setting ``minibatches`` says.
        law: ``"gaussian"``, or ``"stable"`` for symmetric stable numbers of index 1.5 (acclip,
            Fig. 2 b and e).

    Returns:
        Shape (minibatches,).
    """
    rng, shape = trial.numpy_generator("control"), (trial["minibatches"], 100)
    if one_of("law", law, ("gaussian", "stable")) == "gaussian":
        return np.linalg.norm(rng.standard_normal(shape), axis=1)
    return np.linalg.norm(Stable(index=1.5).unit_sample(rng, shape), axis=1)


def noise_side_by_side(
    objective: Objective, batches: Sequence[Any], *, coordinates: int = 0, seed: int = 0
) -> NoiseSample:
    """What ``noise_sample`` measures, :data:`GROUP` minibatches at a time by ``torch.func``.

    It is for networks so small that a call costs more than its arithmetic, without dropout and
    without buffers. The numbers are equal up to rounding, but other coordinates are followed.
    Gradients that take more than :data:`MOST_BYTES` together are left to ``noise_sample``.

    Args:
        objective: model and loss.
        batches: minibatches of one shape, each a tensor or a tuple of tensors.
        coordinates: of how many random parameters the noise is kept.
        seed: chooses these parameters.

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

    # In the row of all parameters, tensor i ends before place ``ends[i]``.
    ends = torch.tensor([p.numel() for p in objective.parameters]).cumsum(0)
    if len(batches) * int(ends[-1]) > MOST_BYTES // 4:  # 4 bytes per float32
        return noise_sample(objective, batches, seed=seed, projections=0, coordinates=coordinates)

    side_by_side, pieces, losses = SideBySide(objective), [], []
    for start in range(0, len(batches), GROUP):
        group = batches[start : start + GROUP]
        # A batch is a tensor, or a tuple of tensors such as (images, labels).
        stacked = (
            torch.stack(list(group))
            if torch.is_tensor(group[0])
            else tuple(map(torch.stack, zip(*group)))
        )
        group_losses, gradients = side_by_side.each(stacked)
        pieces.append(torch.cat([g.flatten(1) for g in gradients], dim=1))  # (minibatch, parameter)
        losses.append(group_losses)
    # In double precision, piece by piece, so that no copy of all gradients is held.
    mean = torch.stack([piece.double().sum(dim=0) for piece in pieces]).sum(dim=0) / len(batches)
    order = torch.randperm(int(ends[-1]), generator=torch_stream(seed, "coordinates"))
    followed = order[:coordinates].sort().values
    readings = []  # of each piece: norms, products with the mean, followed coordinates
    for piece in pieces:
        noise = piece.double() - mean
        readings.append((noise.norm(dim=1), noise @ mean, noise[:, followed].float()))
    norms, dots, followed_noise = (torch.cat(parts).numpy() for parts in zip(*readings))
    return NoiseSample(
        norms,
        dots,
        projections=np.zeros((len(norms), 0), np.float32),
        coordinates=followed_noise,
        coordinate_layer=torch.searchsorted(ends, followed, right=True).numpy(),
        layer_norms=None,
        mean_norm=float(mean.norm()),
        batch_size=samples_in(batches[0]),
        left_out=0,
        loss=float(torch.cat(losses).double().mean()),
    )


def answer_number(answer: bool | None) -> float:
    """An answer as a number: yes (True) 1, no (False) 0, cannot tell (None) 1/2.

    Example:
        >>> answer_number(True), answer_number(False), answer_number(None)
        (1.0, 0.0, 0.5)
    """
    return 0.5 if answer is None else float(answer)


def answer_word(answer: float) -> str:
    """The answer that :func:`answer_number` wrote, in words.

    Example:
        >>> answer_word(1.0), answer_word(0.0), answer_word(0.5)
        ('yes', 'no', 'cannot tell')
    """
    return {1.0: "yes", 0.0: "no"}.get(answer, "cannot tell")


def index_words(index: float) -> str:
    """A recorded tail index in words. :data:`NO_POWER_LAW` stands for none, not for a thousand.

    Example:
        >>> index_words(40.3), index_words(NO_POWER_LAW)
        ('index 40.3', 'no power law')
    """
    return "no power law" if index >= NO_POWER_LAW else f"index {index:.1f}"


def of_nearly_all(answers: Sequence[float]) -> float:
    """The answer that at least four in five seeds give.

    Answers are 1 (yes), 0 (no) and 1/2 (cannot tell). 1/2 is returned if neither yes nor no has so
    many, or if there are fewer than three seeds.

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
    for answer in (1.0, 0.0):
        if answers.count(answer) / len(answers) >= NEARLY_ALL:
            return answer
    return 0.5


def fixed_design(settings: Mapping[str, Any]) -> str:
    """Why a sample of noise of a language model decides nothing, as a sentence.

    Empty where it was measured with the real pipeline: drawn masks, padding and dropout.

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
    """A network with its data on the trial's device, at the same start for every study of noise.

    Args:
        trial: its seed decides the start; it has the sizes of BERT.
        network: ``"bert"``, ``"resnet20"`` or ``"alexnet"``.
        attention: False takes the attention out of BERT.
        gaussian: give BERT random vectors in place of those of the word pieces.
        real: BERT with drawn masks, padding and dropout.
    """
    from mindgap.lab.tasks.problems.papers import image_network, masked_bert

    device, seed = device_of(trial), stream_seed(trial.seed, "noise on a device")
    if network != "bert":
        wrong_labels = trial.settings.get("wrong_labels", 0.0)
        return image_network(network, device, wrong_labels=wrong_labels, seed=seed)
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
    """The noise of the network where it stands.

    Matrix products are TF32: each factor is rounded by at most one part in 1,000; sums and
    gradients stay float32. All minibatches are rounded alike, and by far less than their norms
    differ.

    Args:
        trial: the noise of ``minibatches`` minibatches is measured, around the mean gradient of
            ``reference`` other ones, each of ``batch`` samples.
        problem: network, loss and data.
        generator: draws the minibatches, and is advanced.
        coordinates: of how many random parameters the noise is kept.
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
    """The noise of a network, measured once per machine because several studies need it.

    The network stands at its start and reads data of the fixed pipeline, unless the settings
    ``state`` ("trained") and ``pipeline`` ("real") say otherwise. The sample is kept in the cache
    folder (see :func:`_once_per_machine`).

    Args:
        trial: with the settings of :data:`ON_DEVICE`.
        network, attention, gaussian: as :func:`device_network` takes them.
    """
    import torch

    from mindgap.measure.captured_noise import HeldOutNoise

    trained = trial.settings.get("state", "start") == "trained"
    cell = {
        "network": network,
        "attention": attention,
        "gaussian": gaussian,
        **{name: trial[name] for name in ON_DEVICE},
        "pipeline": trial.settings.get("pipeline", "fixed"),
        "trained": {name: trial[name] for name in TRAINING} if trained else False,
    }
    if trial.settings.get("wrong_labels"):  # samples without them keep their names
        cell["wrong_labels"] = trial["wrong_labels"]

    def make() -> Mapping[str, Any]:
        """Measure the noise; returns the fields of ``HeldOutNoise`` by name."""
        problem = device_network(
            trial, network, attention=attention, gaussian=gaussian, real=cell["pipeline"] == "real"
        )
        if trained:
            weights, _, _ = trained_bert(trial, attention=attention, gaussian=gaussian)
            problem.objective.model.load_state_dict(weights)
        torch.manual_seed(stream_seed(trial.seed, "dropout"))
        generator = torch_stream(trial.seed, "noise at the start", device=device_of(trial))
        # Study H11 reads coordinates of the papers' own networks only.
        followed = trial["coordinates"] if attention and not gaussian else 0
        return vars(noise_on_device(trial, problem, generator, coordinates=followed))

    arrays = _once_per_machine(trial, "noise", cell, make)
    loss, reference = float(arrays.pop("loss")), int(arrays.pop("reference"))
    return HeldOutNoise(**arrays, loss=loss, reference=reference)


def trained_bert(
    trial: Trial, *, attention: bool = True, gaussian: bool = False
) -> tuple[dict[str, Any], float, float]:
    """BERT after ``train_steps`` steps of Adam with the real pipeline, trained once per machine.

    Args:
        trial: with the settings of :data:`CROSSED`.
        attention, gaussian: as :func:`device_network` takes them.

    Returns:
        Its weights by name, its loss at masked places of validation text (of Gaussian vectors in
        place of that text), and the loss on the same text of a guess from the frequencies of word
        pieces alone.
    """
    import torch

    from mindgap.lab.tasks.problems.papers import START
    from mindgap.lab.tasks.problems.word_pieces import masked_reading

    sizes = ("device", "words", "text_width", "layers", "length")
    cell = {name: trial[name] for name in (*TRAINING, *sizes)}
    cell |= {"attention": attention, "gaussian": gaussian}

    def make() -> Mapping[str, Any]:
        """Train; returns the weights by name, and the two losses as ``_loss`` and ``_floor``."""
        problem = device_network(trial, "bert", attention=attention, gaussian=gaussian, real=True)
        model, device = problem.objective.model, device_of(trial)
        optimizer = torch.optim.Adam(model.parameters(), lr=trial["train_lr"])
        steps = trial["train_steps"]
        torch.manual_seed(stream_seed(trial.seed, "dropout in training"))
        order = torch_stream(trial.seed, "training of BERT", device=device)
        run = Training(problem, optimizer, order)
        for step in range(steps):
            run.step(trial, step_factor("linear", step, steps))
        text = _held_out(trial)
        weights = {name: value.cpu().numpy() for name, value in model.state_dict().items()}
        inputs, places, answers = text.parts["validation"]
        if gaussian:
            vectors = torch_stream(0, "Gaussian input of validation", device=device)
            size = (*inputs.shape, trial["text_width"])
            inputs = START * torch.randn(size, generator=vectors, device=device)
        loss, _ = masked_reading(model, (inputs, places, answers))
        # No weight's name begins with an underscore.
        return {**weights, "_loss": loss, "_floor": text.by_frequency("validation")}

    arrays = _once_per_machine(trial, "bert", cell, make)
    loss, by_frequency = (float(arrays.pop(name)) for name in ("_loss", "_floor"))
    return {name: torch.as_tensor(array) for name, array in arrays.items()}, loss, by_frequency


def best_guess(trial: Trial, *, gaussian: bool = False) -> float:
    """The loss at masked places of validation text of the best guess without other places.

    It sees what stands in the place itself, or nothing with ``gaussian`` input. The settings are
    those of :func:`trained_bert`.
    """
    return _held_out(trial).best_guess("validation", sees=not gaussian)


def _held_out(trial: Trial) -> MaskedText:
    """The text that a trained BERT is read on, of the sizes in the trial's settings."""
    from mindgap.lab.tasks.problems.word_pieces import masked_text

    sizes = {name: trial[name] for name in ("words", "length", "held_out")}
    return masked_text(device_of(trial), **sizes, reviews=False)


def _once_per_machine(
    trial: Trial, kind: str, cell: Mapping[str, Any], make: Callable[[], Mapping[str, Any]]
) -> dict[str, Any]:
    """Arrays from the cache folder; where they are missing they are made and kept there.

    The file's name holds a hash of the settings, the seed, the version of torch and the code of the
    modules that measure, so that arrays of other code are never read.

    Args:
        trial: its seed enters the name.
        kind: the beginning of the file's name.
        cell: all settings that the arrays depend on.
        make: computes name -> array.
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
