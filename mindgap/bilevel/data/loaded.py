"""Batches of a DataLoader with workers, a sampler of its own or an iterable data set."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any, ClassVar

import numpy as np
import torch

from mindgap.base.batches import leading_axis
from mindgap.base.check import fail, whole
from mindgap.base.rng import stream_seed
from mindgap.bilevel.data.sample import (
    Batches,
    Data,
    Sample,
    SampleOrder,
    Stream,
    count_samples,
    position_seeds,
)

#: Positions of a run: a sample's number is that of its run times this, plus the position.
_POSITIONS = 2**32
#: Returned by an iterator that has no further batch; a batch may be anything else.
_END = object()


class Loaded(Stream):
    """The batches of a ``DataLoader`` as it makes them: its workers, its sampler, its (iterable)
    data set.

    Every epoch starts from a seed of its own (a function of the run's seed), so that a run can be
    repeated; the last batches are kept, because a method evaluates them at several points. A batch
    that is shorter than the others is left out of some epochs, so that each sample counts as much
    as any other. All samples of a method read one after the other from the same epoch.

    ``batches`` is the loader's length; where that is not known, 100 until the first epoch has been
    read to its end, and its length from then on.

    Args:
        loader: any DataLoader.
        keep: batches in memory; a method that goes back further reads its epoch again, once: then
            as many are kept as it needs.

    Example:
        >>> heavy = torch.utils.data.WeightedRandomSampler([0.0, 1.0, 0.0], 4)
        >>> data = Loaded(torch.utils.data.DataLoader(torch.arange(3), batch_size=2, sampler=heavy))
        >>> from mindgap.bilevel.data.sample import row
        >>> data.fetch(row(data.draw(0, "lower", 0, 1), 0)).tolist()
        [1, 1]
    """

    in_order: ClassVar[bool] = True

    def __init__(self, loader: torch.utils.data.DataLoader[Any], keep: int = 64) -> None:
        if not isinstance(loader, torch.utils.data.DataLoader):
            fail("loader", "must be a DataLoader", type(loader).__name__)
        iterable = isinstance(loader.dataset, torch.utils.data.IterableDataset)
        # An iterable data set may state a length, but only reading it to its end tells.
        self.length = 0 if iterable else len(loader)  # batches of an epoch; 0: not known
        super().__init__(self._read, loader.batch_size or 1, epoch=self.length or 100)
        self.loader, self.keep = loader, whole("keep", keep, least=1)
        #: samples of a shorter last batch, where that is known beforehand
        self._short_size = 0
        if not iterable and loader.batch_size is not None and not loader.drop_last:
            self._short_size = len(loader.sampler) % loader.batch_size  # type: ignore[arg-type]
        self._kept: dict[int, Any] = {}  # number of a sample -> batch
        self._seed, self._next = -1, 0  # of the present run; position of the next batch to be read
        self._starts: list[int] = []  # position of the first batch of each epoch
        self._batches: Iterator[Any] = iter(())  # of the present epoch, from ``_next`` on

    def placed(self, device: torch.device) -> Stream:
        """These data, or a copy that reads the loader by itself and moves batches to a device."""
        if device.type == "cpu":
            return self
        twin = Loaded(self.loader, self.keep)
        twin.device = device
        return twin

    def draw(self, seed: int, level: str, start: int, count: int) -> Sample:
        """Samples of the batches ``start .. start + count - 1``: each names run and position."""
        # The upper 30 bits name the run, the lower 32 the position, so that both fit into an int64.
        run = stream_seed(seed, level, "loader") % 2**30
        return Sample(run * _POSITIONS + np.arange(start, start + count))

    def _is_left_out(self, epoch: int, number: int, size: int) -> bool:
        """Whether batch ``number`` of an epoch, of only ``size`` samples, is left out there: one of
        half the usual size is in every second epoch, on average.
        """
        position = epoch * 2**20 + number  # no epoch has a million batches
        chance = int(position_seeds(self._seed, position, 1, "short batch")[0]) / 2**31
        return chance >= size / self.batch_size

    def _epoch(self, epoch: int) -> Iterator[Any]:
        """Yield the batches of an epoch; the first is read under the epoch's seed, where samplers
        draw. Its end sets ``batches`` and ``n`` where the length was not known.
        """
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(position_seeds(self._seed, epoch, 1, "epoch")[0]))
            batches = iter(self.loader)
            first_batch = next(batches, _END)
        if first_batch is _END:
            fail("data", "must hold at least one batch", "a loader that ends at once")
        yielded, left_out = 0, None
        for number, batch in enumerate(chain([first_batch], batches)):
            size = leading_axis(batch)  # 0 for a batch without tensors
            is_short = self.loader.batch_size is not None and 0 < size < self.batch_size
            if is_short and self._is_left_out(epoch, number, size):
                left_out = batch
                continue
            yielded += 1
            yield batch
        if not yielded:  # an epoch of one short batch
            yielded = 1
            yield left_out
        if not self.length:
            self.batches, self.n = yielded, yielded * self.batch_size

    def _begin(self, position: int) -> None:
        """Start to read the last epoch that begins at or before a position: sets ``_batches`` to an
        iterator of it and ``_next`` to its first position, and drops later epochs of ``_starts``.
        """
        while self._starts[-1] <= position and self.length:  # skip epochs without reading them
            epoch, length = len(self._starts) - 1, self.length
            size = self._short_size
            if size and length > 1 and self._is_left_out(epoch, length - 1, size):
                length -= 1  # this epoch goes without its short batch
            self._starts.append(self._starts[-1] + length)
        epoch = max(i for i, start in enumerate(self._starts) if start <= position)
        del self._starts[epoch + 1 :]
        self._next = self._starts[epoch]
        self._batches = self._epoch(epoch)

    def _read(self, which: int) -> Any:
        """The batch with a sample's number (run and position); reads on, or from the start of an
        epoch, and keeps the last ``keep`` batches.
        """
        if which not in self._kept:
            run, position = divmod(which, _POSITIONS)
            if run != self._seed:
                self._seed, self._starts = run, [0]
                self._begin(position)
            elif position < self._next:  # a step back
                self.keep = max(self.keep, 2 * (self._next - position))
                self._begin(position)
            while self._next <= position:
                batch = next(self._batches, _END)
                if batch is _END:
                    self._starts.append(self._next)
                    self._batches = self._epoch(len(self._starts) - 1)
                    continue
                self._kept[run * _POSITIONS + self._next] = batch
                self._next += 1
                while len(self._kept) > self.keep:
                    del self._kept[next(iter(self._kept))]
        return self._kept[which]


def as_data(data: Any, batch_size: int, name: str = "data") -> Data:
    """The data of one level as ``Batches`` or a ``Stream``.

    A DataLoader that shuffles becomes order "reshuffle" (its batches are not fixed); one that does
    not becomes the fixed partition it describes. One with workers, another sampler or an iterable
    data set is read as it is (:class:`Loaded`). Other data become a fixed partition.

    Args:
        data: of one level.
        batch_size: samples in a minibatch, where the data do not say it themselves.
        name: of the argument, for messages.

    Example:
        >>> as_data(torch.arange(6), 2).batches
        3
    """
    if isinstance(data, (Batches, Stream)):
        return data
    if isinstance(data, torch.utils.data.DataLoader):
        sampler = data.sampler
        order: SampleOrder = "partition"
        if isinstance(sampler, torch.utils.data.RandomSampler):
            order = "replacement" if sampler.replacement else "reshuffle"
        elif not isinstance(sampler, torch.utils.data.SequentialSampler):
            return Loaded(data)
        iterable = isinstance(data.dataset, torch.utils.data.IterableDataset)
        if data.num_workers or iterable or data.batch_size is None:
            return Loaded(data)
        return Batches(
            data.dataset,
            data.batch_size,
            order=order,
            shuffle=False,
            last="drop" if data.drop_last else "keep",
            collate=data.collate_fn,
        )
    count_samples(name, data)  # a refusal names the argument
    return Batches(data, batch_size)
