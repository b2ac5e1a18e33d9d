"""The length of an update, for watching it along a run."""

from __future__ import annotations

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
        parameters = [p.detach() for p in at.objective.parameters]
        length = sum(float(d.double().square().sum()) for d in at.update) ** 0.5
        size = sum(float(p.double().square().sum()) for p in parameters) ** 0.5
        return {"norm": length, "relative": length / size if size else float("nan")}

    def cost(self, batches: int) -> float:
        return 0.1
