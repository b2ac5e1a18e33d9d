"""Batches of a DataLoader with workers, a sampler of its own or an iterable data set."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any

import numpy as np
import torch

from mindgap.base.check import fail, whole
from mindgap.base.rng import stream_seed
from mindgap.bilevel.data.sample import (
    Batches,
    Data,
    Sample,
    SampleOrder,
    Stream,
    position_seeds,
)


class Loaded(Stream):
    """The batches of a ``DataLoader`` as it makes them: its workers, its sampler, its (iterable)
    data set.

    Every epoch starts from a seed of its own (a function of the run's seed), so that a run can be
    repeated; the last batches are kept, because a method evaluates them at several points.

    Args:
        loader: any DataLoader.
        keep: batches in memory; a method that goes back further reads its epoch again.

    Example:
        >>> heavy = torch.utils.data.WeightedRandomSampler([0.0, 1.0, 0.0], 4)
        >>> data = Loaded(torch.utils.data.DataLoader(torch.arange(3), batch_size=2, sampler=heavy))
        >>> from mindgap.bilevel.data.sample import row
        >>> data.fetch(row(data.draw(0, "lower", 0, 1), 0)).tolist()
        [1, 1]
    """

    def __init__(self, loader: torch.utils.data.DataLoader[Any], keep: int = 64) -> None:
        if not isinstance(loader, torch.utils.data.DataLoader):
            fail("loader", "must be a DataLoader", type(loader).__name__)
        try:
            self.length = len(loader)
        except TypeError:  # an iterable data set
            self.length = 0
        super().__init__(self._read, loader.batch_size or 1, epoch=self.length or 100)
        self.loader, self.keep = loader, whole("keep", keep, least=1)
        self._kept: dict[int, Any] = {}
        self._seed, self._epoch, self._next = -1, 0, 0
        self._batches: Iterator[Any] = iter(())

    def draw(self, seed: int, level: str, start: int, count: int) -> Sample:
        """Tokens of the batches ``start .. start + count - 1``."""
        return Sample(
            stream_seed(seed, level, "loader") % 2**30 * 2**32 + np.arange(start, start + count)
        )

    def _begin(self) -> None:
        """Start the loader for the present epoch; its first batch is read under the seed, where
        samplers draw.
        """
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(position_seeds(self._seed, self._epoch, 1, "epoch")[0]))
            batches = iter(self.loader)
            self._batches = chain([next(batches)], batches)

    def _read(self, which: int) -> Any:
        if which not in self._kept:
            seed, position = divmod(which, 2**32)
            if seed != self._seed or position < self._next:  # another run, or a step back
                self._seed, self._epoch = seed, position // self.length if self.length else 0
                self._next = self._epoch * self.length
                self._begin()
            while self._next <= position:
                try:
                    batch = next(self._batches)
                except StopIteration:
                    self._epoch += 1
                    self._begin()
                    batch = next(self._batches)
                self._kept[seed * 2**32 + self._next] = batch
                self._next += 1
                if len(self._kept) > self.keep:
                    del self._kept[next(iter(self._kept))]
        return self._kept[which]


def as_data(data: Any, batch_size: int) -> Data:
    """What a problem makes of the data it is given: a DataLoader's own settings, or a partition
    of anything else.

    A DataLoader that shuffles becomes order "reshuffle" (its batches are not fixed); one that
    does not becomes the fixed partition it describes. One with workers, another sampler or an
    iterable data set is read as it is (:class:`Loaded`).

    Args:
        data: of one level.
        batch_size: samples in a minibatch, where the data do not say it themselves.

    Example:
        >>> as_data(torch.arange(6), 2).batches
        3
    """
    if isinstance(data, (Batches, Stream)):
        return data
    if isinstance(data, torch.utils.data.DataLoader):
        sampler = data.sampler
        if isinstance(sampler, torch.utils.data.RandomSampler):
            order: SampleOrder = "replacement" if sampler.replacement else "reshuffle"
        else:
            order = "partition"
        plain = isinstance(
            sampler, (torch.utils.data.RandomSampler, torch.utils.data.SequentialSampler)
        )
        iterable = isinstance(data.dataset, torch.utils.data.IterableDataset)
        if data.num_workers or not plain or iterable or data.batch_size is None:
            return Loaded(data)
        return Batches(
            data.dataset,
            data.batch_size,
            order=order,
            shuffle=False,
            last="drop" if data.drop_last else "keep",
            collate=data.collate_fn,
        )
    return Batches(data, batch_size)
