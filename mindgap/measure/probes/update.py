"""The length of an update, for watching it along a run."""

from __future__ import annotations

from mindgap.base.tensors import euclidean_norm
from mindgap.measure.probe import Probe, Reading


class UpdateProbe(Probe):
    """Length of the update, absolute and relative: it spikes before loss and gradient do.

    Example:
        >>> import torch
        >>> from mindgap.base.objective import Objective
        >>> probe = UpdateProbe()
        >>> model = torch.nn.Linear(1, 1, bias=False)
        >>> with torch.no_grad():
        ...     _ = model.weight.fill_(2.0)
        >>> problem = Objective(model, lambda m, b: m.weight.sum())
        >>> probe.read(Reading(problem, [0], update=[torch.full((1, 1), 0.5)]))
        {'norm': 0.5, 'relative': 0.25}
    """

    name, needs = "update", frozenset({"update"})

    def read(self, at: Reading) -> dict[str, float]:
        """Norm of the update, and that norm over the parameters' (NaN where they are zero)."""
        length, size = euclidean_norm(at.update), euclidean_norm(at.objective.parameters)
        return {"norm": length, "relative": length / size if size else float("nan")}

    def cost(self, batches: int) -> float:
        """A tenth of a batch gradient: nothing is differentiated."""
        return 0.1
