"""What an optimizer tells about its steps, and how it counts without waiting for a device."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import is_
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mindgap.optim.norms import WINDOW

#: Spikes that a report lists, and numbers that ``Tally.pack`` writes before the norms.
SPIKES, NUMBERS = 64, 8
#: Thresholds that people clip at.
THRESHOLDS = (0.01, 0.05, 0.1, 0.2, 0.25, 0.3, 0.5, 1.0, 2.0, 3.0, 5.0, 10.0, 40.0, 100.0)
#: Norms count as equal within this share: ``clip_grad_norm_``, which adds 1e-6 to the norm, misses
#: even the smallest of these thresholds by no more.
EQUAL_WITHIN = 1e-4


@dataclass(frozen=True)
class Spike:
    """A gradient whose norm was far outside the running distribution."""

    step: int  # number of the step, from 1
    norm: float  # the gradient's norm
    low: float  # 0.1 quantile of the norms before it
    high: float  # the norm above which a gradient counts as a spike


@dataclass(frozen=True)
class Report:
    """What an optimizer did since it was built or its report was last reset.

    For parameters spread over several processes (DTensor, ZeRO) norms that a rule takes are those
    of the whole vector; what ``track`` adds is counted over this process's part.
    """

    steps: int  # calls of ``step`` that found a gradient
    skipped: int  # steps left out because a gradient was not finite, or was a spike
    #: share of the steps at which a norm was clipped, 0 for a rule that clips none; with
    #: ``scope="tensor"`` share of the tensors. For CClip it is the share of the coordinates in this
    #: process's part, counted at every step with ``track=True``, else at the first 8 steps, at 32,
    #: 64, 128 and at every 256th; a count stands for the steps since the count before. None before
    #: the first step.
    clipped: float | None
    #: norm over all parameters of what the rule clips or normalises (the gradient, unless the
    #: paper's order was asked for), at the last step; a fused rule that needs no norm takes one at
    #: every 32nd step.
    direction_norm: float | None
    #: norm of the last change of the parameters, without weight decay and projection; None where it
    #: would need another pass over memory and ``track`` is off.
    update_norm: float | None
    median_norm: float | None = None  # median of the last 128 direction norms
    #: quantiles of the same at 0.1, 0.5, 0.9 and 1 (the largest), by probability.
    norm_quantiles: dict[float, float] = field(default_factory=dict)
    clipped_coordinates: float | None = (
        None  # share of the coordinates that ACClip clipped; with ``track=True`` only
    )
    spikes: tuple[Spike, ...] = ()  # what ``spike_guard`` found, the last 64
    notes: tuple[str, ...] = ()  # what looks wrong, in sentences


class Tally:
    """Counts of one optimizer. Values on a device are kept as tensors and read only for a
    report.
    """

    def __init__(self) -> None:
        self.steps = 0
        self.skipped = 0
        #: Sums over the steps of the clipped shares: of steps or tensors ("share"), of coordinates
        #: counted at every step ("coordinates") or at some ("sampled"), up to ``sampled_until``. In
        #: a mapping, whose entries torch.compile can follow.
        self.sums: dict[str, Any] = {}
        self.sampled_until = 0
        #: Norms at the last step: of what is clipped ("direction") and of the step ("update").
        self.last: dict[str, Any] = {}
        #: The last direction norms, and the last spikes.
        self.norms: deque[Any] = deque(maxlen=WINDOW)
        self.spikes: deque[Any] = deque(maxlen=SPIKES)
        #: Tensors that kernels count in by themselves.
        self.device_counts: list[Tensor] = []
        self.device_skips: Tensor | None = None
        #: The last norms where a kernel keeps them, in a ring, zeros for none.
        self.device_norms: Tensor | None = None
        #: Spikes that a kernel kept: rows of step, norm, low and high, zeros for none.
        self.device_spikes: Tensor | None = None

    def wants_norm(self) -> bool:
        """Whether to take a norm for the report that the step itself does not need: until 8 norms
        are known, and at every 32nd step.
        """
        return self.steps % 32 == 0 or len(self.norms) < min(self.steps, 8)

    def wants_share(self) -> bool:
        """Whether to count clipped coordinates in a pass of its own (see ``Report.clipped``)."""
        return self.steps <= 8 or self.steps in (32, 64, 128) or self.steps % 256 == 0

    def sample(self, share: Tensor) -> None:
        """Let this step's share of clipped coordinates stand for all steps since the last sample:
        adds it as often to the sum. ``share`` is 0-dim.
        """
        value = share * (self.steps - self.sampled_until)
        self.sums["sampled"] = self.sums["sampled"] + value if "sampled" in self.sums else value
        self.sampled_until = self.steps

    def clear(self) -> None:
        """Count from zero again. Tensors in which kernels count are set to zero and go on being
        counted in.
        """
        for tensor in (
            *self.device_counts,
            self.device_skips,
            self.device_norms,
            self.device_spikes,
        ):
            if tensor is not None:
                tensor.zero_()
        self.__init__()  # type: ignore[misc]

    def note(
        self,
        *,
        share: Any = None,
        coordinates: Any = None,
        tallies: Sequence[Tensor] = (),
        norms: Tensor | None = None,
        **last: Any,
    ) -> None:
        """Add the clipped shares of a step to the sums, and remember its norms.

        Args:
            share: which share of the step's norms (or coordinates, for CClip) was clipped, a number
                or a 0-dim tensor.
            coordinates: share of the gradient's coordinates that were clipped.
            tallies: one tensor per parameter group to which a kernel itself adds the shares; the
                share of a step is their mean. They are kept, and read for a report.
            norms: a tensor in which a kernel keeps the last norms; ``direction`` then does not
                enter the list of the last norms.
            last: the norms ``direction`` and ``update`` of this step, in the forms of
                ``_as_float``.
        """
        if tallies and not (
            len(tallies) == len(self.device_counts) and all(map(is_, tallies, self.device_counts))
        ):
            # The memory is another one (new groups, a copy of the optimizer): keep what was counted
            # in the old one.
            old = [tally / len(self.device_counts) for tally in self.device_counts]
            for value, tally in zip(old, self.device_counts):
                self.sums["share"] = self.sums["share"] + value if "share" in self.sums else value
                tally.zero_()
            self.device_counts = list(tallies)
        for name, value in (("share", share), ("coordinates", coordinates)):
            if value is not None:
                self.sums[name] = self.sums[name] + value if name in self.sums else value
        if norms is not None:
            self.device_norms = norms
        elif isinstance(last.get("direction"), (float, Tensor)):
            self.norms.append(last["direction"])
        self.last.update(last)

    def report(self) -> Report:
        """The counts and norms so far, those on a device included, which it waits for; changes
        nothing.
        """
        skipped = self.skipped + (0 if self.device_skips is None else int(self.device_skips))
        steps_made = max(self.steps - skipped, 1)
        clipped_steps = self._clipped_steps()
        clipped = None if math.isnan(clipped_steps) else clipped_steps / steps_made
        if clipped is None and "sampled" in self.sums:
            clipped = float(self.sums["sampled"]) / self.sampled_until
        last = {name: _as_float(value) for name, value in self.last.items()}
        norms = self._last_norms()
        norms = norms[np.isfinite(norms)]
        levels = (0.1, 0.5, 0.9, 1.0)
        quantiles = (
            dict(zip(levels, (float(v) for v in np.quantile(norms, levels)))) if norms.size else {}
        )
        coordinates = self.sums.get("coordinates")
        return Report(
            steps=self.steps,
            skipped=skipped,
            clipped=clipped,
            direction_norm=last.get("direction"),
            update_norm=last.get("update"),
            median_norm=quantiles.get(0.5),
            norm_quantiles=quantiles,
            clipped_coordinates=None if coordinates is None else float(coordinates) / steps_made,
            spikes=(*self.spikes, *_spikes(self.device_spikes)),
            notes=clipped_before(norms),
        )

    def _clipped_steps(self) -> float:
        """Sum over the steps of the share that was clipped, so that a step clipped wholly counts 1;
        from the host and from the device, which is waited for. NaN where nothing was counted.
        """
        if "share" not in self.sums and not self.device_counts:
            return math.nan
        on_device = sum(map(float, self.device_counts)) / max(len(self.device_counts), 1)
        return float(self.sums.get("share", 0.0)) + on_device

    def _last_norms(self) -> np.ndarray:
        """The last ``WINDOW`` norms: the host's, oldest first, and behind them those kept on the
        device, in the order of the ring that the kernel writes. Waits for the device.
        """
        norms = np.array([float(n) for n in self.norms])
        if self.device_norms is not None:
            on_device = self.device_norms.detach().cpu().numpy().astype(np.float64).reshape(-1)
            norms = np.concatenate([norms, on_device[on_device > 0]])[-WINDOW:]
        return norms

    def pack(self) -> Tensor:
        """All counts as one float64 tensor on the CPU, for a checkpoint; waits for the device.

        It holds ``NUMBERS`` numbers (NaN for those not known), the last ``WINDOW`` norms, and
        ``SPIKES`` rows (step, norm, low, high), zeros where there are fewer. ``unpack`` reads it.

        Example:
            >>> tally = Tally()
            >>> tally.steps, tally.norms = 3, deque([2.0, 5.0])
            >>> Tally.unpack(tally.pack()).report() == tally.report()
            True
        """
        numbers = [  # steps, skipped, sampled until, shares (three sums), norms (two)
            float(self.steps),
            float(self.skipped + (0 if self.device_skips is None else int(self.device_skips))),
            float(self.sampled_until),
            self._clipped_steps(),
            *(float(self.sums.get(name, math.nan)) for name in ("sampled", "coordinates")),
            *(_as_float(self.last.get(name, math.nan)) for name in ("direction", "update")),
        ]
        norms = self._last_norms()
        spikes = [*self.spikes, *_spikes(self.device_spikes)][-SPIKES:]
        rows = [[s.step, s.norm, s.low, s.high] for s in spikes]
        rows += [[0.0] * 4] * (SPIKES - len(rows))
        # NaN stands for a norm that was not seen: a norm may be zero.
        blank = [math.nan] * (WINDOW - len(norms))
        everything = [*numbers, *norms.tolist(), *blank, *(x for row in rows for x in row)]
        return torch.tensor(everything, dtype=torch.float64, device="cpu")

    @classmethod
    def unpack(cls, packed: Tensor) -> Tally:
        """The counts that ``pack`` wrote, in a new tally: ``NUMBERS`` numbers, ``WINDOW`` norms
        (NaN for none), and ``SPIKES`` rows (step, norm, low, high). An empty tally where the tensor
        has another size.
        """
        tally, values = cls(), packed.detach().cpu().double().reshape(-1).tolist()
        if len(values) != NUMBERS + WINDOW + 4 * SPIKES:
            return tally
        tally.steps, tally.skipped, tally.sampled_until = (int(v) for v in values[:3])
        for name, value in zip(("share", "sampled", "coordinates"), values[3:6]):
            if not math.isnan(value):
                tally.sums[name] = value
        for name, value in zip(("direction", "update"), values[6:NUMBERS]):
            if not math.isnan(value):
                tally.last[name] = value
        norms, spike_numbers = values[NUMBERS : NUMBERS + WINDOW], values[NUMBERS + WINDOW :]
        tally.norms.extend(norm for norm in norms if not math.isnan(norm))
        for step, norm, low, high in zip(*(spike_numbers[i::4] for i in range(4))):
            if step > 0:
                tally.spikes.append(Spike(int(step), norm, low, high))
        return tally


def clipped_before(norms: np.ndarray) -> tuple[str, ...]:
    """A warning, as a tuple of one sentence, where it seems that something else clips the gradients
    before the optimizer; else an empty tuple.

    Clipped norms pile up at the threshold, which is mostly a round number. The sentence comes if
    the largest norm is such a number (of ``THRESHOLDS``) and at least 3 norms and 5 % of them are
    equal to it.

    Args:
        norms: the last norms, in any order.

    Example:
        >>> clipped_before(np.array([0.4, 1.0, 1.0, 0.999999, 1.0]))[0][:69]
        'Something clips the gradients at 1 before this optimizer: 4 of the la'
        >>> clipped_before(np.array([0.4, 1.0, 0.9, 0.7]))
        ()
    """
    if not norms.size:
        return ()
    top = float(norms.max())
    level = next((c for c in THRESHOLDS if abs(top / c - 1.0) <= EQUAL_WITHIN), None)
    piled = int((norms >= top * (1.0 - EQUAL_WITHIN)).sum())
    if level is None or piled < max(3.0, 0.05 * norms.size):
        return ()
    return (
        f"Something clips the gradients at {level:g} before this optimizer: {piled} of the last "
        f"{norms.size} norms are {level:g} and none is larger. Its own clipping and spike_guard "
        "see clipped gradients only. Leave one of the two out (Hugging Face: max_grad_norm=0).",
    )


def _spikes(table: Tensor | None) -> list[Spike]:
    """Spikes from a kernel's table, sorted by step; none for None.

    Args:
        table: rows (step, norm, low, high), zeros in those that are not filled yet.
    """
    rows = [] if table is None else sorted(row for row in table.tolist() if row[0] > 0)
    return [Spike(int(step), *numbers) for step, *numbers in rows]


def _as_float(value: Any) -> float:
    """A noted norm as a number; waits for the device.

    Args:
        value: a number, a tensor with one element, or a list of pairs (factors, norms), one per
            group: their products are the norms of the groups' parts.
    """
    if isinstance(value, (Tensor, float)):
        return float(value)
    pairs = (
        [torch.as_tensor(x, dtype=torch.float64, device="cpu").detach().numpy() for x in pair]
        for pair in value
    )
    return math.sqrt(sum(float(((factors * norms) ** 2).sum()) for factors, norms in pairs))
