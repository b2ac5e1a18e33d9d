"""Tail index, Goldstein distance and running averages as probes of a monitor.

Apart from the functions they call, because those work without torch, on records alone.
"""

from __future__ import annotations

import math

from mindgap.base.check import one_of, positive, whole
from mindgap.measure.probe import Probe, Reading
from mindgap.measure.probes.stationarity import goldstein_distance
from mindgap.measure.probes.tails import METHODS, TailMethod, tail_index


class TailsProbe(Probe):
    """Tail index of the noise along a run, from followed coordinates brought to one scale per
    layer.

    The few batches of a monitor give too few norms for a tail; the followed coordinates of all
    batches give enough. ``heavier`` is 1, 0, or NaN where the sample cannot tell.

    Args:
        every: run at every ``every``-th reading of the monitor.
        method: of ``tail_index``.

    Example:
        >>> import torch
        >>> from mindgap.base.objective import Objective
        >>> problem = Objective(torch.nn.Linear(8, 8).double(), lambda m, b: m(b).square().mean())
        >>> batches = [
        ...     torch.randn(4, 8, generator=torch.Generator().manual_seed(i)).double()
        ...     for i in range(8)
        ... ]
        >>> sorted(TailsProbe().read(Reading(problem, batches)))
        ['heavier', 'high', 'index', 'low']
    """

    name, needs = "tails", frozenset({"gradients"})

    def __init__(self, every: int = 1, *, method: TailMethod = "hill") -> None:
        super().__init__(every)
        self.method = one_of("method", method, METHODS)

    def read(self, at: Reading) -> dict[str, float]:
        """Tail index with its interval, and whether the tail is heavier than Gaussian (1, 0, or NaN
        where the sample cannot tell); all NaN of fewer than 30 coordinates.
        """
        sample = at.noise
        if sample.coordinates.size < 30:
            return dict.fromkeys(("index", "low", "high", "heavier"), math.nan)
        tail = tail_index(
            sample, self.method, of="coordinates", per_layer=True, bootstrap=50, null=50
        )
        low, high = tail.interval
        heavier = math.nan if tail.heavier is None else float(tail.heavier)
        return {"index": tail.index, "low": low, "high": high, "heavier": heavier}


class StationarityProbe(Probe):
    """Goldstein distance along a run: an upper bound on the smallest mean of gradients within
    ``delta``.

    Args:
        every: run at every ``every``-th reading of the monitor.
        delta: radius of the ball around the parameters.
        samples: gradients per reading; each costs a pass over the batches.

    Example:
        >>> import torch
        >>> from mindgap.base.objective import Objective
        >>> problem = Objective(
        ...     torch.nn.Linear(1, 1, bias=False), lambda m, b: m.weight.abs().sum()
        ... )
        >>> with torch.no_grad():
        ...     _ = problem.model.weight.fill_(0.005)
        >>> StationarityProbe(delta=0.02).read(Reading(problem, [0]))["bound"]
        0.0
    """

    name, needs = "stationarity", frozenset({"gradients"})

    def __init__(self, every: int = 1, *, delta: float = 0.01, samples: int = 8) -> None:
        super().__init__(every)
        self.delta, self.samples = positive("delta", delta), whole("samples", samples, least=1)

    def read(self, at: Reading) -> dict[str, float]:
        """The bound and the radius."""
        distance = goldstein_distance(
            at.objective, at.batches, self.delta, samples=self.samples, seed=at.seed
        )
        return {"bound": distance.bound, "delta": distance.delta}

    def cost(self, batches: int) -> float:
        # One pass over the batches per sampled point.
        return float(self.samples * batches)


class AverageProbe(Probe):
    """The loss at the readings so far: its running average, and the change since the last reading.

    Example:
        >>> import torch
        >>> from mindgap.base.objective import Objective
        >>> problem = Objective(
        ...     torch.nn.Linear(1, 1, bias=False), lambda m, b: 0 * m.weight.sum() + b.mean()
        ... )
        >>> probe = AverageProbe()
        >>> _ = probe.read(Reading(problem, [torch.tensor([1.0]), torch.tensor([1.0])]))
        >>> probe.read(Reading(problem, [torch.tensor([3.0]), torch.tensor([3.0])]))
        {'loss': 3.0, 'average': 2.0, 'change': 2.0}
    """

    name, needs = "ergodic", frozenset({"gradients"})

    def __init__(self, every: int = 1) -> None:
        super().__init__(every)
        # Number of readings, and average and last of their losses.
        self._count, self._average, self._last = 0, 0.0, math.nan

    def read(self, at: Reading) -> dict[str, float]:
        """Loss, its average over all readings, and its change since the last one, which is NaN at
        the first reading. Counts the reading.
        """
        loss = at.noise.loss
        self._count += 1
        self._average += (loss - self._average) / self._count
        change, self._last = loss - self._last, loss
        return {"loss": loss, "average": self._average, "change": change}
