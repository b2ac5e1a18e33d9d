"""Shared by the studies that train a network: steps with checkpoints, a test whether a loss has
settled, schedules of the step, and the two problems and descent rules of the studies on clipping.

All of them take one step by :meth:`Training.advance`: forward and backward pass of a fresh
minibatch, one launch on a GPU, and the optimizer's step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from mindgap.base.check import one_of
from mindgap.lab.studies.spec import Row, Trial
from mindgap.lab.tasks import problems

if TYPE_CHECKING:
    import torch

    from mindgap.lab.tasks.problems.training import TrainingProblem

#: Two quarters whose means differ by at most this share of the first have the same level.
SETTLED = 0.1

#: A gradient norm below ZERO times that at the start has gone to zero, above STAYS times it stays.
#: A network that is right on the share FITTED of its training data or more is over-fitted.
ZERO, STAYS, FITTED = 0.01, 0.1, 0.999


@dataclass
class Training:
    """A network in training, and what a checkpoint must keep of it."""

    problem: TrainingProblem  # the network with its loss and data
    optimizer: torch.optim.Optimizer  # what moves it
    order: torch.Generator  # draws the minibatches
    #: name -> further streams of a study that go on from where they are (of its readings, say).
    others: Mapping[str, torch.Generator] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._rates = [group["lr"] for group in self.optimizer.param_groups]  # before any schedule
        self._gradient: Any = None  # a ``CapturedGradient``, from the first step on

    def restore(self, saved: Mapping[str, Any]) -> int:
        """Load what :meth:`state` saved, into model, optimizer and random streams.

        Args:
            saved: the saved state; one without a model is a fresh start and changes nothing.

        Returns:
            The number of steps done, 0 on a fresh start.
        """
        if "model" not in saved:
            return 0
        self.problem.objective.model.load_state_dict(saved["model"])
        self.optimizer.load_state_dict(saved["optimizer"])
        self.order.set_state(saved["order"])
        for name, stream in self.others.items():
            stream.set_state(saved[name])
        return int(saved["step"])

    def state(self, step: int, **more: Any) -> dict[str, Any]:
        """What :meth:`restore` needs to go on after ``step`` steps; a study adds ``more``."""
        streams = {
            name: stream.get_state()
            for name, stream in {"order": self.order, **self.others}.items()
        }
        model, optimizer = self.problem.objective.model.state_dict(), self.optimizer.state_dict()
        return {"step": step, "model": model, "optimizer": optimizer, **streams, **more}

    def recapture(self) -> None:
        """Capture forward and backward pass anew at the next step.

        A capture draws dropout. Where a run seeds it at certain steps, a resumed run draws the same
        as an uninterrupted one only if both capture there.
        """
        self._gradient = None

    def step(self, trial: Trial, factor: float | None = None) -> None:
        """Take one step on a fresh minibatch; its time counts as the trial's.

        Args:
            trial: the minibatch has as many samples as its setting ``train_batch``, or else
                ``batch`` says.
            factor: multiplies the step sizes that the optimizer was made with; None leaves those
                that it has.
        """
        from mindgap.measure.captured import tf32

        with trial.timed(), tf32(self.order.device.type == "cuda"):
            self.advance(trial.settings.get("train_batch") or trial["batch"], factor)

    def advance(self, size: int, factor: float | None = None) -> None:
        """Take one step on a fresh minibatch; nothing waits for the device.

        Args:
            size: samples of the minibatch.
            factor: multiplies the step sizes that the optimizer was made with; None leaves those
                that it has.
        """
        from mindgap.measure.captured import CapturedGradient

        objective, sample = self.problem.objective, self.problem.draw(self.order, size)
        # The captured gradient takes a tuple of tensors, the objective a batch as it was drawn.
        single_tensor = not isinstance(sample, tuple)
        batch = (sample,) if single_tensor else sample
        if self._gradient is None:
            self._gradient = CapturedGradient(
                objective.model,
                lambda m, *b: objective.loss(m, b[0] if single_tensor else b),
                batch,
            )
        if factor is not None:
            scale_rates(self.optimizer, self._rates, factor)
        self._gradient(*batch)
        self.optimizer.step()

    def rows(
        self,
        trial: Trial,
        read: Callable[[int], Row],
        *,
        steps: int | None = None,
        schedule: str = "constant",
        at_start: bool = False,
    ) -> Iterator[Row]:
        """Train, and yield a row every ``every`` steps of the trial, with a checkpoint offered for
        each.

        Args:
            trial: with the settings ``steps``, ``every`` and those of :meth:`step`.
            read: step -> a row without it, of the network as it stands.
            steps: how many, where they are not the trial's.
            schedule: of the step size (:func:`step_factor`).
            at_start: begin with a row of step 0, unless the trial was restored.
        """
        steps = steps or trial["steps"]
        steps_done = self.restore(trial.restored)
        first_step = 0 if at_start and not trial.restored else steps_done + 1
        for step in range(first_step, steps + 1):
            if step:  # step 0 is the start: nothing is trained before its row
                self.step(trial, step_factor(schedule, step - 1, steps))
            if step % trial["every"] == 0:
                row = {"step": step, **read(step)}
                trial.save(lambda: self.state(step))  # noqa: B023
                yield row


def scale_rates(optimizer: torch.optim.Optimizer, rates: Sequence[float], factor: float) -> None:
    """Set the step size of every group of parameters in place.

    Args:
        optimizer: whose groups are changed.
        rates: the step size of each group before any schedule.
        factor: by which each is multiplied.
    """
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate * factor


def bounded_losses(row: Mapping[str, Any], bound: Callable[[str], float]) -> dict[str, Any]:
    """A copy of a row in which losses have an upper bound.

    Losses are the columns whose name ends in ``loss``. The bound of each is ``bound(name)``; it
    also replaces a loss that is not finite (-∞ included).

    Example:
        >>> bounded_losses({"a_loss": math.nan, "b_loss": 2.0, "c": math.inf}, lambda name: 9.0)
        {'a_loss': 9.0, 'b_loss': 2.0, 'c': inf}
    """

    def bounded(name: str, loss: float) -> float:
        """The loss, or its bound where it is larger or not finite."""
        return min(loss, bound(name)) if math.isfinite(loss) else bound(name)

    return {
        name: bounded(name, value) if name.endswith("loss") else value
        for name, value in row.items()
    }


def join_batches(batches: Sequence[Any]) -> Any:
    """Join batches into one.

    Each is a tensor or a tuple of tensors with a leading axis of samples, and so is the result. If
    all have one size, the mean loss over its samples is the mean of theirs.

    Example:
        >>> import torch
        >>> (
        ...     join_batches([torch.zeros(2, 3), torch.ones(2, 3)]).shape,
        ...     join_batches([(torch.zeros(2), torch.ones(2))] * 2)[1],
        ... )
        (torch.Size([4, 3]), tensor([1., 1., 1., 1.]))
    """
    import torch

    return (
        torch.cat(list(batches))
        if torch.is_tensor(batches[0])
        else tuple(map(torch.cat, zip(*batches)))
    )


def has_settled(losses: Sequence[float] | np.ndarray) -> bool:
    """Whether the mean loss of the last quarter is within a tenth of that of the quarter before.

    A single loss has not settled.

    Example:
        >>> has_settled([4.0, 2.0, 1.0, 1.05]), has_settled([4.0, 3.0, 2.0, 1.0])
        (True, False)
    """
    length = max(len(losses) // 4, 1)
    last_quarter = float(np.mean(losses[-length:]))
    quarter_before = float(np.mean(losses[-2 * length : -length]))  # NaN for a single loss
    return abs(last_quarter - quarter_before) <= SETTLED * quarter_before


def step_factor(schedule: str, step: int, steps: int) -> float:
    """The factor on the step size after ``step`` of ``steps`` steps, by a named schedule.

    * ``"constant"``: 1.
    * ``"drops"``: a tenth after every third of the run (thesis, 6.2: after 30 and 60 of 90 epochs).
    * ``"late drops"``: a tenth after a half and again after three quarters (thesis, 5.6: after 50
      and 75 of 100 epochs).
    * ``"cosine"``: half a cosine from 1 to 0, as Transformer-XL is trained.
    * ``"linear"``: up over the first tenth of the run, then down to 0, as BERT is trained.

    Example:
        >>> [round(step_factor("drops", k, 9), 2) for k in (0, 3, 8)], step_factor("cosine", 2, 4)
        ([1.0, 0.1, 0.01], 0.5)
        >>> [round(step_factor("linear", k, 20), 2) for k in (0, 1, 2, 11, 19)]
        [0.5, 1.0, 1.0, 0.5, 0.06]
    """
    one_of("schedule", schedule, ("constant", "drops", "late drops", "cosine", "linear"))
    if schedule == "drops":
        return float(0.1 ** (3 * step // steps))
    if schedule == "late drops":
        return float(0.1 ** sum(step >= share * steps for share in (0.5, 0.75)))
    if schedule == "cosine":
        return 0.5 * (1 + math.cos(math.pi * step / steps))
    if schedule == "linear":
        warm_up = max(steps // 10, 1)
        if steps > warm_up:
            return min((step + 1) / warm_up, (steps - step) / (steps - warm_up))
    return 1.0


def training_problem(settings: Mapping[str, Any], seed: int) -> TrainingProblem:
    """A small network of a trial's settings, with its data.

    Args:
        settings: ``source`` is ``"prose"`` (an LSTM) or ``"digits"`` (convolutions), ``width`` that
            of the network.
        seed: of the network's start and of the split.

    Example:
        >>> training_problem({"source": "digits", "width": 4}, seed=0).samples
        1797
    """
    one_of("source", settings["source"], ("prose", "digits"))
    build = problems.prose_lstm if settings["source"] == "prose" else problems.digits_network
    return build(width=settings["width"], seed=seed)


def unit_digits(limit: int | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """scikit-learn's images of digits scaled to length 1, (N, 64), and their labels (N,): the first
    ``limit`` of them, or all 1,797.

    Example:
        >>> images, labels = unit_digits(5)
        >>> images.shape, labels.tolist(), bool(abs(images[0].norm() - 1) < 1e-9)
        (torch.Size([5, 64]), [0, 1, 2, 3, 4], True)
    """
    import torch

    from mindgap.lab.tasks.data import digits

    table = digits().part(slice(limit))
    images = torch.from_numpy(table.features)
    return images / images.norm(dim=1, keepdim=True), torch.from_numpy(table.labels)


#: The transformer on prose of scale quick, and that of larger scales.
SMALL_TEXT = {"words": 200, "text_width": 16, "layers": 1, "length": 8}
LARGE_TEXT = {"words": 1000, "text_width": 32, "layers": 2, "length": 16}


def text_problem(settings: Mapping[str, Any], seed: int, **more: bool) -> TrainingProblem:
    """The transformer on prose of the settings ``words``, ``text_width``, ``layers`` and
    ``length``; ``more`` are further arguments of ``prose_transformer``.

    Example:
        >>> len(text_problem(SMALL_TEXT, seed=0).objective.model.layers)
        1
    """
    words, width, layers, length = (settings[name] for name in SMALL_TEXT)
    return problems.prose_transformer(
        words=words, width=width, layers=layers, length=length, seed=seed, **more
    )


def digits_or_prose(settings: Mapping[str, Any], seed: int) -> TrainingProblem:
    """The problem of the setting ``source``: convolutions for ``"digits"``, else
    :func:`text_problem`.

    The convolutions have the setting ``width``, where there is one.

    Example:
        >>> digits_or_prose({"source": "digits"}, seed=0).samples
        1797
    """
    if settings["source"] != "digits":
        return text_problem(settings, seed)
    own_width = {"width": settings["width"]} if "width" in settings else {}
    return problems.digits_network(seed=seed, **own_width)


def image_problem(
    settings: Mapping[str, Any], seed: int, start: int | None = None
) -> TrainingProblem:
    """A convolutional network on images, with its data.

    Args:
        settings: ``images`` is ``"digits"`` or ``"cifar10"``, ``width`` that of the network. Where
            data are held out, ``train`` and ``validation`` are numbers of samples.
        seed: of the split, and of the network's start.
        start: seed of the network's start, where that is another.

    Example:
        >>> image_problem(
        ...     {"images": "digits", "width": 4, "train": 500, "validation": 300}, seed=0
        ... ).samples
        500
    """
    one_of("images", settings["images"], ("digits", "cifar10"))
    sizes = {name: settings[name] for name in ("train", "validation") if name in settings}
    on_digits = settings["images"] == "digits"
    build = problems.digits_network if on_digits else problems.cifar_network
    return build(width=settings["width"], seed=seed, start=start, **sizes)


def adam_or_sgd(
    name: str,
    parameters: Sequence[torch.Tensor],
    lr: float,
    *,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
) -> torch.optim.Optimizer:
    """torch's Adam where ``name`` is ``"adam"``, else its SGD, with ``momentum`` and
    ``weight_decay``.
    """
    import torch

    if name == "adam":
        return torch.optim.Adam(parameters, lr=lr)
    return torch.optim.SGD(parameters, lr=lr, momentum=momentum, weight_decay=weight_decay)


def descent(
    settings: Mapping[str, Any], lr: float, parameters: Sequence[torch.Tensor]
) -> torch.optim.Optimizer:
    """Minibatch descent, with or without clipping of the gradient's norm.

    Args:
        settings: ``clip`` says whether the norm is clipped at ``tau``; ``momentum`` is heavy-ball
            momentum, of the unclipped form only. ``weight_decay`` may be missing.
        lr: how far one gradient moves x over all later steps, as without momentum. The lr of
            ``torch.optim.SGD`` is lr·(1 - momentum), therefore.
        parameters: to be moved.

    Example:
        >>> import torch
        >>> x = torch.tensor([3.0, 4.0], requires_grad=True)
        >>> x.grad = torch.tensor([3.0, 4.0])
        >>> descent({"clip": True, "tau": 0.5}, 2.0, [x]).step()
        >>> x.detach()
        tensor([2.4000, 3.2000])
    """
    import torch

    from mindgap.optim import GClip

    decay = settings.get("weight_decay", 0.0)
    if settings["clip"]:
        return GClip(parameters, lr=lr, tau=settings["tau"], weight_decay=decay)
    return torch.optim.SGD(
        parameters,
        lr=lr * (1 - settings["momentum"]),
        momentum=settings["momentum"],
        weight_decay=decay,
    )
