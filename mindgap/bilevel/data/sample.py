"""Drawing a sample apart from evaluating on it: the data of a level, and samples of them.

A sample names data and a random seed; it can be evaluated at any number of points and gives the
same loss every time, dropout included. Samples are drawn ahead on the host, as arrays, from named
streams of one seed, so that every method and every backend that asks for the same names walks over
the same data. The sample at a position is a function of (seed, level, position) alone:
nothing is kept between calls but a cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import copy
from operator import itemgetter
from typing import Any, ClassVar, Literal, NamedTuple, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from mindgap.base.batches import (
    arrays_to_tensors,
    leading_axis,
    map_tensors,
    tensor_leaves,
    to_device,
)
from mindgap.base.calls import call, note
from mindgap.base.check import check_call, fail, flag, one_of, whole
from mindgap.base.rng import numpy_stream, stream_seed

Ints = NDArray[np.int64]
#: What a loss gets: a tensor, or tensors in tuples, lists and dicts, or whatever a dataset's
#: collate makes.
Batch = Any
SampleOrder = Literal["partition", "reshuffle", "replacement"]


class Sample(NamedTuple):
    """Names one minibatch of one level, or several with a leading axis in its arrays."""

    #: a batch id (order "partition"), an array of indices ("reshuffle", "replacement"), or the seed
    #: of a draw (:class:`Stream`)
    which: Any
    #: of the random state while a loss is evaluated; 0 where the losses draw no random numbers
    seed: Any = 0


#: All data of a level: oracles go through the data in chunks.
FULL = Sample(None, 0)


def is_full(sample: Sample) -> bool:
    """Whether a sample stands for all data of its level.

    Example:
        >>> is_full(FULL), is_full(Sample(3))
        (True, False)
    """
    return sample.which is None


def position_seeds(seed: int, start: int, count: int, *names: str | int) -> Ints:
    """Seeds of 31 bits for ``count`` draws from position ``start`` on: hashes (splitmix64) of the
    position, ``seed`` and ``names``.

    Example:
        >>> bool((position_seeds(0, 0, 5, "a")[2:] == position_seeds(0, 2, 3, "a")).all())
        True
    """
    with np.errstate(over="ignore"):
        bits = np.arange(start, start + count, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        bits += np.uint64(stream_seed(seed, *names))
        bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return ((bits ^ (bits >> np.uint64(31))) >> np.uint64(33)).astype(np.int64)  # 31 of 64 bits


#: Indices drawn at once where they are independent, and how many blocks a level keeps.
BLOCK, BLOCKS_KEPT = 4096, 5


def count_samples(name: str, data: Batch) -> tuple[Any, bool, int]:
    """(the data of the argument ``name``, arrays turned into tensors; whether they are tensors, not
    a data set; the number of samples).
    """
    try:
        data = arrays_to_tensors(data)
        leaves = tensor_leaves(data)
        lengths = sorted({t.shape[0] if t.dim() else 0 for t in leaves})
        if not leaves and hasattr(data, "__getitem__") and hasattr(data, "__len__"):
            lengths = [len(data)]
    except Exception as error:  # a container that holds itself, a length that is no number
        reason = f"{type(error).__name__}: {error}"
        fail(name, f"must be samples that can be counted ({reason})", type(data).__name__)
    if not lengths or isinstance(data, (str, bytes)):
        rule = "must be tensors, a map-style dataset, a DataLoader or a Stream"
        fail(name, rule, type(data).__name__)
    layouts = [t.layout for t in leaves if t.layout is not torch.strided]
    if layouts:
        fail(name, "must be dense tensors", layouts[0])
    if len(lengths) > 1:
        fail(name, "must have one leading axis of equal length in all its tensors", lengths)
    if not lengths[0]:
        fail(name, "must hold at least one sample", data)
    return data, bool(leaves), lengths[0]


class Batches:
    """A finite set of samples, and how minibatches are drawn from it.

    ``order`` is one of

    * ``"partition"``: the samples are cut into fixed batches once; each epoch visits every batch
      once, in a fresh random order. What SAGA needs: a batch id means the same samples for ever.
      Batches are contiguous slices. A shorter last batch is drawn as often as its share of the
      samples asks for: in an epoch that leaves it out a random full batch comes twice, so that
      every draw is of every sample equally likely.
    * ``"reshuffle"``: one endless sequence of random permutations of the indices, cut into batches;
      each index appears exactly once in each epoch.
    * ``"replacement"``: indices drawn independently.

    Args:
        data: a tensor or NumPy array, a tuple or dict of them with one leading axis, or a map-style
            dataset.
        batch_size: samples in a minibatch.
        order: see above.
        shuffle: permute the samples once before they are partitioned (data sorted by class would
            give one-class batches otherwise). Ignored by the other orders.
        seed: seed of that one permutation.
        last: what to do with the n mod batch_size samples left over by a partition: "keep" a
            shorter last batch, or "drop" them, also from full-batch evaluations (then all batches
            are equal, which compiled backends need).
        chunk: samples evaluated at once when all are asked for.
        collate: joins items of a dataset to a batch; ``torch.utils.data.default_collate`` if not
            given.

    Raises:
        RuleError: for an empty set, unequal leading axes, or a batch larger than the set.

    Example:
        >>> data = Batches(torch.arange(10), 4, shuffle=False)
        >>> data.batches, [data.fetch(Sample(i)).tolist() for i in range(data.batches)]
        (3, [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]])
        >>> sorted(int(i) for i in Batches(torch.arange(12), 4).draw(0, "lower", 0, 3).which)
        [0, 1, 2]
    """

    def __init__(
        self,
        data: Batch,
        batch_size: int = 64,
        *,
        order: SampleOrder = "partition",
        shuffle: bool = True,
        seed: int = 0,
        last: Literal["keep", "drop"] = "keep",
        chunk: int = 8192,
        collate: Callable[[list[Any]], Any] | None = None,
    ) -> None:
        whole("batch_size", batch_size, least=1)
        one_of("order", order, get_args(SampleOrder))
        one_of("last", last, ("keep", "drop"))
        flag("shuffle", shuffle)
        whole("seed", seed)
        if collate is not None and not callable(collate):
            fail("collate", "must be a function from a list of items to a batch", collate)
        self.chunk = whole("chunk", chunk, least=1)
        self.batch_size, self.order, self.seed = batch_size, order, seed
        data, self.is_tensors, self.total = count_samples("data", data)
        if not 1 <= batch_size <= self.total:
            rule = f"must lie between 1 and the number of samples, {self.total}"
            fail("batch_size", rule, batch_size)
        full_batches, left_over = divmod(self.total, batch_size)
        # Samples that are drawn from: all of them, or those of the full batches.
        self.n = self.total - left_over if last == "drop" and order == "partition" else self.total
        self.batches = full_batches + (1 if left_over and self.n == self.total else 0)
        self._collate = collate
        self.permutation: Ints | None = None
        if order == "partition" and shuffle:
            self.permutation = numpy_stream(seed, "partition").permutation(self.total)
            if self.is_tensors:
                positions = torch.from_numpy(self.permutation)
                data = map_tensors(lambda t: t[positions.to(t.device)], data)
        self.data = data
        self.device: torch.device | None = None  # minibatches are moved there; None: they stay
        self._cache: dict[tuple[int, str, int], Ints] = {}  # (seed, level, index) -> block
        self._slices: dict[int, Any] = {}  # batch id -> minibatch, as views

    def placed(self, device: torch.device) -> Batches:
        """These data, or if they lie elsewhere a copy that moves its minibatches to a device."""
        if device.type == "cpu" or (self.is_tensors and self.devices() == {device}):
            return self
        twin = copy(self)
        twin.device, twin._slices = device, {}
        return twin

    #: whether the minibatches can only be read in one order, so that all samples share a stream
    in_order: ClassVar[bool] = False

    @property
    def sample_axes(self) -> int:
        """Axes of a single sample: none for a batch id, one for an array of indices."""
        return 0 if self.order == "partition" else 1

    def devices(self) -> set[torch.device]:
        """The devices the tensors of the data are on (none for a dataset)."""
        return {t.device for t in tensor_leaves(self.data)} if self.is_tensors else set()

    @property
    def weights(self) -> NDArray[np.float64]:
        """Share of the samples in each batch of the partition (they sum to one)."""
        edges = np.minimum(np.arange(self.batches + 1) * self.batch_size, self.n)
        return np.diff(edges) / self.n

    def _block(self, seed: int, level: str, index: int) -> Ints:
        """Block ``index`` of the endless sequence: batch ids ("partition") or indices of one epoch,
        or ``BLOCK`` independent indices. At most ``BLOCKS_KEPT`` blocks are kept.
        """
        key = (seed, level, index)
        if key not in self._cache:
            if len(self._cache) >= BLOCKS_KEPT:
                self._cache.clear()
            rng = numpy_stream(seed, level, self.order, index)
            if self.order == "replacement":
                self._cache[key] = rng.integers(0, self.n, BLOCK)
            elif self.order == "reshuffle":
                self._cache[key] = rng.permutation(self.n)
            else:
                self._cache[key] = self._epoch(rng)
        return self._cache[key]

    def _epoch(self, rng: np.random.Generator) -> Ints:
        """Batch ids of one epoch of a partition; each place holds a batch with the probability of
        its share of the samples.

        A permutation gives every batch the probability 1 / batches. A shorter last batch, of share
        w, stays with the probability w * batches; else a random full batch takes its place.
        """
        order = rng.permutation(self.batches)
        left_over, last_batch = self.n % self.batch_size, self.batches - 1
        if left_over and rng.random() * self.n >= left_over * self.batches:
            order[order == last_batch] = rng.integers(last_batch)
        return order

    def draw(self, seed: int, level: str, start: int, count: int) -> Sample:
        """Samples ``start .. start + count - 1`` of this level's endless sequence, as one Sample of
        arrays with leading axis ``count``.

        Args:
            seed: seed of the run.
            level: name of the stream: "upper", "lower", or one stream per sample of an iteration.
            start: position of the first draw.
            count: how many minibatches.
        """
        per_draw = 1 if self.order == "partition" else self.batch_size
        length = {"partition": self.batches, "reshuffle": self.n, "replacement": BLOCK}[self.order]
        begin, end = start * per_draw, (start + count) * per_draw
        # The sequence is made in blocks of ``length``; take what each has between begin and end.
        parts = []
        for index in range(begin // length, -(-end // length)):
            block, offset = self._block(seed, level, index), index * length
            parts.append(block[max(begin - offset, 0) : min(end - offset, length)])
        which = np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)
        return Sample(which if self.order == "partition" else which.reshape(count, per_draw))

    def draw_independent(self, seed: int, stream: str, start: int, count: int) -> Sample:
        """The draws ``start .. start + count - 1`` of a stream, independent of all others: a
        product of derivatives on such samples has the product of the means as its mean.

        Example:
            >>> data = Batches(torch.arange(10), 4)
            >>> ids = data.draw_independent(0, "h", 0, 20_000).which
            >>> [round(float((ids == i).mean()), 2) for i in range(3)]
            [0.4, 0.4, 0.2]
        """
        whole("start", start, least=0, most=2**40)
        whole("count", count, least=0, most=2**40)
        per_draw = 1 if self.order == "partition" else self.batch_size
        hashes = position_seeds(seed, start * per_draw, count * per_draw, stream, self.order)
        picked = hashes * self.n >> 31  # numbers of 31 bits become indices below n
        if self.order == "partition":
            return Sample(picked // self.batch_size)
        return Sample(picked.reshape(count, per_draw))

    def indices(self, sample: Sample) -> Ints:
        """Indices of the data that a sample names, into the data as they were handed over."""
        if is_full(sample):
            positions = np.arange(self.n)
        elif self.order == "partition":
            begin = int(sample.which) * self.batch_size
            positions = np.arange(begin, min(begin + self.batch_size, self.n))
        else:
            return np.asarray(sample.which)
        # The partition was cut from the data in a random order, if ``shuffle`` asked for it
        return positions if self.permutation is None else self.permutation[positions]

    def fetch(self, sample: Sample, share: tuple[int, int] = (0, 1)) -> Any:
        """The minibatch a sample names; views of a partition's tensors are made once and kept.

        Args:
            sample: a sample of this level (not FULL).
            share: (rank, world): only the rank's part of the samples, for data-parallel runs.
        """
        if self.order == "partition":
            which = int(sample.which)
            if share[1] == 1 and which in self._slices:
                return self._slices[which]
            begin = which * self.batch_size
            if not 0 <= which < self.batches:
                fail("sample", f"must name a batch below {self.batches}", sample)
            batch = self._slice(*_part_of_rank(begin, min(begin + self.batch_size, self.n), share))
            if share[1] == 1 and self.is_tensors and self.device is None:
                self._slices[which] = batch  # views, made once
            return batch
        picked = np.asarray(sample.which)
        begin, end = _part_of_rank(0, len(picked), share)
        return self._pick(picked[begin:end])

    def size(self, sample: Sample) -> int:
        """How many data a sample names."""
        if is_full(sample):
            return self.n
        if self.order == "partition":
            return min(self.batch_size, self.n - int(sample.which) * self.batch_size)
        return self.batch_size

    def chunks(self, share: tuple[int, int] = (0, 1)) -> Iterator[tuple[Any, float]]:
        """This rank's samples (``share``: rank, world) in chunks, each with its weight in all."""
        begin, end = _part_of_rank(0, self.n, share)
        for start in range(begin, end, self.chunk):
            stop = min(start + self.chunk, end)
            yield self._slice(start, stop), (stop - start) / self.n

    def _slice(self, begin: int, end: int) -> Any:
        """The samples begin..end of the data, in the order of the partition, on the device."""
        if self.is_tensors:  # they were put in this order at the start
            return to_device(map_tensors(lambda t: t[begin:end], self.data), self.device)
        positions = np.arange(begin, end)
        return self._pick(positions if self.permutation is None else self.permutation[positions])

    def _pick(self, indices: Ints) -> Any:
        """The samples with these indices as one batch, on the device."""
        if self.is_tensors:
            positions = torch.from_numpy(np.ascontiguousarray(indices))
            return to_device(
                map_tensors(lambda t: t[positions.to(t.device, non_blocking=True)], self.data),
                self.device,
            )
        collate = self._collate or torch.utils.data.default_collate
        try:
            return to_device(collate([self.data[int(i)] for i in indices]), self.device)
        except Exception as error:
            note(error, f"raised by the data set, or where its samples {indices} are joined")
            raise


class Stream:
    """Fresh samples from a distribution (general expectation): a function from a seed to a batch.

    Args:
        sample: ``sample(seed) -> batch``; equal seeds must give equal batches.
        batch_size: samples in a batch (for the epoch counters).
        epoch: minibatches that count as one epoch.

    Example:
        >>> data = Stream(
        ...     lambda seed: torch.randn(2, generator=torch.Generator().manual_seed(seed)),
        ...     batch_size=2,
        ... )
        >>> sample = Sample(int(data.draw(0, "lower", 0, 1).which[0]))
        >>> bool((data.fetch(sample) == data.fetch(sample)).all())
        True
    """

    order = "stream"
    sample_axes = 0
    in_order: ClassVar[bool] = False

    def __init__(
        self, sample: Callable[[int], Any], batch_size: int = 1, *, epoch: int = 100
    ) -> None:
        check_call("sample", sample, "a function from a seed to a batch", 0)
        self.sample = sample
        self.batch_size = whole("batch_size", batch_size, least=1)
        self.batches = whole("epoch", epoch, least=1)
        self.n = self.batches * batch_size  # samples that count as one epoch
        self.device: torch.device | None = None  # batches are moved there; None: they stay

    def placed(self, device: torch.device) -> Stream:
        """These data for variables on a device, to which batches are moved."""
        if device.type == "cpu":
            return self
        twin = copy(self)
        twin.device = device
        return twin

    def draw(self, seed: int, level: str, start: int, count: int) -> Sample:
        """Samples of the draws ``start .. start + count - 1``."""
        return Sample(position_seeds(seed, start, count, level, "stream"))

    def draw_independent(self, seed: int, stream: str, start: int, count: int) -> Sample:
        """Samples of the draws ``start .. start + count - 1``, independent of each other."""
        return self.draw(seed, stream, start, count)

    def fetch(self, sample: Sample, share: tuple[int, int] = (0, 1)) -> Any:
        """The batch of a sample; the rank's part of it where ``share`` is (rank, world)."""
        batch = call("the function of a Stream", self.sample, int(sample.which))
        batch = to_device(batch, self.device)
        if share[1] == 1:
            return batch
        begin, end = _part_of_rank(0, self.batch_size, share)
        return map_tensors(lambda t: t[begin:end], batch)

    def size(self, sample: Sample) -> int:
        """How many data a sample names."""
        return self.batch_size

    def chunks(self, share: tuple[int, int] = (0, 1)) -> Iterator[tuple[Any, float]]:
        """Refused: what is drawn has no full batch."""
        drawn = "a Stream (a DataLoader with a sampler of its own is one)"
        fail("data", "must be a finite set of samples where all of them are asked for", drawn)


Data = Batches | Stream


def pieces(batch: Batch, most: int) -> Iterator[tuple[Any, float]]:
    """A minibatch in pieces of at most ``most`` samples, each with its share of the samples.

    Example:
        >>> [(piece.tolist(), round(share, 2)) for piece, share in pieces(torch.arange(3), 2)]
        [([0, 1], 0.67), ([2], 0.33)]
    """
    size = leading_axis(batch) or fail("micro_batch", "must be None without tensors", most)
    for begin in range(0, size, most):
        piece = slice(begin, min(begin + most, size))
        yield map_tensors(itemgetter(piece), batch), (piece.stop - begin) / size


def _part_of_rank(begin: int, end: int, share: tuple[int, int]) -> tuple[int, int]:
    """Begin and end of one rank's part of begin..end, ``share`` being (rank, world).

    Parts are contiguous and differ by at most one sample.
    """
    rank, world = share
    if world == 1:
        return begin, end
    length = end - begin
    return begin + length * rank // world, begin + length * (rank + 1) // world


def on_arrays(sample: Sample, change: Callable[[Any], Any]) -> Sample:
    """A sample with ``change`` applied to ``which``, and to ``seed`` where that is an array.

    Example:
        >>> on_arrays(Sample(np.arange(5)), itemgetter(slice(1, 3)))
        Sample(which=array([1, 2]), seed=0)
    """
    seed = sample.seed
    return Sample(change(sample.which), seed if isinstance(seed, int) else change(seed))


def row(sample: Sample, index: int | Sequence[int]) -> Sample:
    """The sample at ``index`` of an array of samples.

    Example:
        >>> row(Sample(np.array([4, 7]), np.array([1, 2])), 1)
        Sample(which=7, seed=2)
    """

    def entry(array: Any) -> Any:
        """A number as Python's, or a row of an array with more axes."""
        return array[index].item() if np.ndim(array[index]) == 0 else array[index]

    return on_arrays(sample, entry)
