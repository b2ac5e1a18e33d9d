"""What the callbacks of all trainers share: a ``Monitor`` that lives as long as one training
run.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from importlib import import_module
from typing import Any

import torch

from mindgap.base.check import fail, missing, whole
from mindgap.base.objective import Objective
from mindgap.base.restoring import seed_everything, undisturbed
from mindgap.base.rng import torch_stream
from mindgap.measure.monitor import Monitor
from mindgap.optim.optimizer import RuleOptimizer


def warn_of_two_clippings(optimizer: Any, argument: str, value: Any, off: str) -> None:
    """Warn where a trainer clips the gradients before one of our optimizers that clips them too.

    Args:
        optimizer: as the trainer has it, perhaps wrapped by Accelerate.
        argument: name of the trainer's argument that clips.
        value: of that argument; None and 0 clip nothing.
        off: the value to set instead, as the warning prints it.

    Example:
        >>> import warnings
        >>> from mindgap.optim import AdamW
        >>> with warnings.catch_warnings(record=True) as seen:
        ...     warnings.simplefilter("always")
        ...     warn_of_two_clippings(AdamW([torch.zeros(1)]), "max_grad_norm", 1.0, "0")
        >>> str(seen[0].message)[:61]
        'max_grad_norm=1.0 clips the gradients before AdamW, which cli'
    """
    torch_optimizer = getattr(optimizer, "optimizer", optimizer)  # Accelerate wraps it
    if value and isinstance(torch_optimizer, RuleOptimizer) and torch_optimizer.clips:
        name = type(torch_optimizer).__name__
        warnings.warn(
            f"{argument}={value} clips the gradients before {name}, which clips "
            f"them too and so sees clipped ones only: set {argument}={off}.",
            stacklevel=2,
        )


class Watched:
    """What the callbacks of all trainers share: their ``monitor``, once training has begun.

    Args:
        probes, batches, loss, limit, to, options: as the trainers' ``monitor_callback`` takes them;
            ``batches`` and ``loss`` are None where the user gave none.

    Example:
        >>> model = torch.nn.Linear(1, 1)
        >>> loader = torch.utils.data.DataLoader(torch.ones(8, 1), batch_size=2)
        >>> watched = Watched(
        ...     ["noise"], None, lambda m, b: m(b).square().mean(), 4, None, {"every": 1}
        ... )
        >>> watched.begin_watching(
        ...     torch.optim.SGD(model.parameters(), 0.1), model, None, loader, lambda b: b, True
        ... )
        >>> watched.end_watching()
        >>> watched.readings
        []
    """

    def __init__(
        self,
        probes: Sequence[Any],
        batches: Iterable[Any] | None,
        loss: Callable[[Any, Any], Any] | None,
        limit: int,
        to: Any,
        options: dict[str, Any],
    ) -> None:
        super().__init__()
        self._probes, self._batches, self._own_loss = probes, batches, loss
        self._limit, self._to, self._options = limit, to, options
        self.monitor: Monitor | None = None  # until training begins

    @property
    def readings(self) -> list[dict[str, Any]]:
        """The rows so far."""
        return self.monitor.readings if self.monitor is not None else []

    def begin_watching(
        self,
        optimizer: Any,
        model: Any,
        loss: Any,
        loader: Any,
        to_device: Callable[[Any], Any],
        writes: bool,
    ) -> None:
        """Set :attr:`monitor` to a new monitor; batches are drawn where the user gave none.

        Args:
            optimizer: that trains the model.
            model: to be measured.
            loss: the trainer's own ``loss(model, batch)``, used where the user gave none.
            loader: of the training data, from which batches are drawn.
            to_device: brings a drawn batch to the model's device.
            writes: whether this process writes readings.
        """
        batches = self._batches
        if batches is None:
            seed = self._options.get("seed", 0)
            drawn = sample_batches(loader, model, limit=self._limit, seed=seed)
            batches = [to_device(batch) for batch in drawn]
        self.monitor = Monitor(
            optimizer,
            Objective(model, self._own_loss or loss),
            batches,
            self._probes,
            to=self._to if writes else None,
            limit=self._limit,
            **self._options,
        )

    def end_watching(self, error: BaseException | None = None) -> None:
        """Close the monitor, where there is one, with what ended the training if an error did."""
        if self.monitor is not None:
            self.monitor.close("" if error is None else f"{type(error).__name__}: {error}")


@cache
def callback_class(events: type[Watched], package: str, base: str, extra: str) -> Any:
    """The class of a trainer's callback, made when it is first needed: importing a trainer takes
    seconds.

    The class also becomes ``MonitorCallback`` of the module of ``events``, so that it can be
    pickled.

    Args:
        events: the methods that the trainer calls.
        package: that defines the trainer's base class of callbacks.
        base: name of that base class.
        extra: of mindgap that installs the package.

    Raises:
        MissingPackageError: the package is not installed.
    """
    try:
        parent = getattr(import_module(package), base)
    except ImportError:
        missing(extra, extra)
    module = import_module(events.__module__)
    callback = type("MonitorCallback", (events, parent), {"__module__": module.__name__})
    module.MonitorCallback = callback  # type: ignore[attr-defined]  # found again when a callback is pickled
    return callback


def sample_batches(
    loader: Any, model: torch.nn.Module, *, limit: int = 8, seed: int = 0
) -> list[Any]:
    """Random batches of a loader's data set, collated as the loader does.

    A trainer's loader may keep an epoch, a sampler state or a count of its iterations; none of them
    is touched, because the data set is indexed directly. Random transforms and collators draw from
    a seeded state, and every global random state stands afterwards as before.

    Args:
        loader: a ``DataLoader``, or what Accelerate wraps around one, over a data set with a length
            and an index.
        model: whose random and module state is protected meanwhile.
        limit: batches drawn at most, without replacement; a short last one is left out.
        seed: of the draw and of random transforms.

    Raises:
        RuleError: a data set that is empty or can only be iterated: give ``batches`` yourself.

    Example:
        >>> data = torch.utils.data.TensorDataset(torch.arange(10.0))
        >>> loader = torch.utils.data.DataLoader(data, batch_size=4, shuffle=True)
        >>> [len(batch[0]) for batch in sample_batches(loader, torch.nn.Linear(1, 1))]
        [4, 4]
    """
    whole("limit", limit, least=1)
    loader = getattr(loader, "base_dataloader", loader)  # Accelerate wraps it
    dataset: Any = getattr(loader, "dataset", None)
    if not (hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")):
        fail(
            "batches",
            "must be given where the training data cannot be indexed",
            type(dataset).__name__,
        )
    sampler = getattr(loader, "batch_sampler", None)
    # A loader with a batch sampler has no size of its own; one with neither hands out single
    # samples.
    size = getattr(loader, "batch_size", None) or getattr(sampler, "batch_size", None) or 1
    shuffled = torch.randperm(
        len(dataset), generator=torch_stream(seed, "measuring batches")
    ).tolist()
    size = min(size, len(shuffled))
    starts = range(0, len(shuffled) - size + 1, size)[:limit] if size else ()
    batches = []
    with undisturbed(model):
        for start in starts:
            seed_everything(seed + start)
            batches.append(loader.collate_fn([dataset[i] for i in shuffled[start : start + size]]))
    if not batches:
        fail("batches", "must give at least one batch", "an empty data set")
    return batches
