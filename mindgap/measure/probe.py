"""The one interface of a probe, what a probe sees at the moment of a reading, and the probe that
reads the gradient noise, which all readings share.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import ExitStack
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from torch import Tensor

from mindgap.base.check import fail, one_of, whole
from mindgap.base.objective import Objective
from mindgap.measure.gradients import GradientPasses, gradient_passes
from mindgap.measure.hessian import HessianProduct

if TYPE_CHECKING:
    from mindgap.measure.probes.noise import NoiseSample

#: What a probe may ask for. Probes that need the same gradients share them.
NEEDS = ("gradients", "hessian", "update")


class Reading:
    """One reading: where the model stands, and what the probes share.

    Attributes:
        step: number of optimizer steps made before this one.
        objective, batches: the problem and the batches held for measuring.
        optimizer: the optimizer in use, or None.
        update: x_(k+1) - x_k, one tensor per parameter, for probes that need it; the model then
            stands at x_k.
        seed: names the random numbers of all passes.
    """

    def __init__(
        self,
        objective: Objective,
        batches: Sequence[Any],
        *,
        step: int = 0,
        optimizer: Any = None,
        update: list[Tensor] | None = None,
        seed: int = 0,
    ) -> None:
        self.objective, self.batches, self.step = objective, batches, step
        self.optimizer, self.seed = optimizer, seed
        self._update, self._stack = update, ExitStack()  # the stack holds what ``close`` frees

    @property
    def update(self) -> list[Tensor]:
        """The step's change of the parameters, one tensor each; an error in a reading before the
        step.
        """
        if self._update is None:
            fail("update", "must be declared in the probe's needs", "a moment before the step")
        return self._update

    @cached_property
    def noise(self) -> NoiseSample:
        """The gradient-noise sample: two passes, shared by all probes that need gradients."""
        from mindgap.measure.probes.noise import noise_sample

        return noise_sample(self.objective, self.batches, seed=self.seed)

    @cached_property
    def passes(self) -> GradientPasses:
        """Open gradient passes, closed by ``close``; after a step they may move the parameters."""
        return self._stack.enter_context(
            gradient_passes(
                self.objective, self.batches, seed=self.seed, move=self._update is not None
            )
        )

    @cached_property
    def hessian(self) -> HessianProduct:
        """Hessian products with their graphs kept, shared by all probes that need curvature."""
        product = HessianProduct(self.passes)
        self._stack.callback(product.close)
        return product

    def close(self) -> None:
        """Free graphs and copies."""
        self._stack.close()

    def __enter__(self) -> Reading:
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)


class Probe(ABC):
    """One quantity, read at a moment of training.

    A probe says what it ``needs`` (the monitor runs those with ``"update"`` after the step, the
    others before it), how many ``gradients`` a reading is expected to cost, and how often it runs.
    It may keep a state between readings (a warm start), which must depend on its own earlier
    readings only.

    Example:
        >>> class LossProbe(Probe):
        ...     name, needs = "loss", frozenset({"gradients"})
        ...
        ...     def read(self, at):
        ...         return {"mean": at.noise.loss}
        >>> LossProbe().every
        1
    """

    #: Prefix of the quantities' names in a row.
    name: ClassVar[str]
    #: A subset of ``NEEDS``.
    needs: ClassVar[frozenset[str]]

    def __init__(self, every: int = 1) -> None:
        """Args: every: run at every ``every``-th reading of the monitor."""
        self.every = whole("every", every, least=1)

    @abstractmethod
    def read(self, at: Reading) -> dict[str, float]:
        """Measure at the moment ``at``; quantity -> value. The monitor writes each into its row
        under ``name_quantity``.
        """

    def cost(self, batches: int) -> float:
        """How many gradients of a batch a reading is expected to cost, as long as none was timed.

        Args:
            batches: number of measuring batches.
        """
        return 2.0 * batches

    def __init_subclass__(cls, **options: Any) -> None:
        # A misspelt need is an error when the class is made.
        super().__init_subclass__(**options)
        for need in getattr(cls, "needs", ()):
            one_of("needs", need, NEEDS)


class NoiseProbe(Probe):
    """Loss, gradient norm and gradient noise over the measuring batches.

    ``gradient_norm`` is corrected for the noise left in the mean (0 where the correction exceeds
    it), ``mean_norm`` is not; ``level`` is sqrt(E||g_b - grad f||^2) of one minibatch; ``largest``
    the largest deviation over the median one.

    Example:
        >>> import torch
        >>> problem = Objective(
        ...     torch.nn.Linear(1, 1, bias=False), lambda m, b: (m.weight.sum() * b).mean()
        ... )
        >>> row = NoiseProbe().read(Reading(problem, [torch.tensor([1.0]), torch.tensor([3.0])]))
        >>> round(row["level"] ** 2, 6), row["mean_norm"], row["largest"]
        (2.0, 2.0, 1.0)
    """

    name, needs = "noise", frozenset({"gradients"})

    def read(self, at: Reading) -> dict[str, float]:
        """Loss, norm of the mean gradient with and without its bias, and level and largest
        deviation of the noise; the last is NaN where the median deviation is zero.
        """
        sample = at.noise
        median = float(np.median(sample.norms))
        return {
            "loss": sample.loss,
            "mean_norm": sample.mean_norm,
            "gradient_norm": max(0.0, sample.squared_mean) ** 0.5,
            "level": sample.variance**0.5,
            "largest": float(sample.norms.max()) / median if median else float("nan"),
        }
