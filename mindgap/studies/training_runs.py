"""What the studies of clipping in training share: the two problems, and gradient descent with and without clipping."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mindgap.base.check import one_of

if TYPE_CHECKING:
    import torch

    from mindgap.tasks.problems.training import TrainingProblem


def training_problem(settings: Mapping[str, Any], seed: int) -> TrainingProblem:
    """The problem of a trial's settings: ``source`` is ``"prose"`` (an LSTM) or ``"digits"`` (convolutions); ``width``.

    Example:
        >>> training_problem({"source": "digits", "width": 4}, seed=0).samples
        1797
    """
    from mindgap.tasks.problems.training import digits_network, prose_lstm

    one_of("source", settings["source"], ("prose", "digits"))
    return (prose_lstm if settings["source"] == "prose" else digits_network)(width=settings["width"], seed=seed)


def descent(settings: Mapping[str, Any], lr: float, parameters: Sequence[torch.Tensor]) -> torch.optim.Optimizer:
    """Minibatch descent with step ``lr``: ``clip`` says whether the gradient's norm is clipped at ``tau``.

    ``momentum`` is heavy-ball momentum, for the unclipped form only. The step is that of a gradient's whole effect: a
    gradient moves x by ``lr`` in the end, as without momentum; ``torch.optim.SGD`` calls lr·(1 − momentum) the step.

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

    if settings["clip"]:
        return GClip(parameters, lr=lr, tau=settings["tau"])
    return torch.optim.SGD(parameters, lr=lr * (1 - settings["momentum"]), momentum=settings["momentum"])
