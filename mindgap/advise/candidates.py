"""What the race tries: optimizers, and learning rates placed by what was measured.

All learning rates are named by the rate of AdamW that moves the weights as far per step. One
number, the typical gradient norm, turns that scale into the rates of SGD and of the clipped
methods.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

import mindgap.optim
from mindgap.base.check import fail, non_negative, positive
from mindgap.record.schema import grouped

#: Root mean square of AdamW's update over its learning rate, early in training.
ADAM_RMS = 0.3
#: Factor between neighbouring learning rates.
FACTOR = 10**0.5
#: Rates of AdamW with which the race begins; the first is torch's default.
RATES = (1e-3, 1e-3 / FACTOR, 1e-3 * FACTOR, 1e-2, 1e-2 * FACTOR)
#: Multiple of its own running mean at which an entry of the gradient is clipped.
COORDINATES = 3.0
#: Largest weight decay that is tried.
MOST_DECAY = 3.0
#: Momentum of all methods that have one.
BETA = 0.9


@dataclass(frozen=True)
class Scale:
    """What was measured at the start, and what the candidates take from it."""

    parameters: int  # number of trained weights d
    gradient_norm: float = math.nan  # median norm of a minibatch gradient; NaN: not measured
    #: whether the gradient noise has infinite variance; None: not measured, or cannot tell.
    heavy: bool | None = None
    #: whether a tenth of the gradient norms is far above the median.
    tailed: bool = False

    def sgd_rate(self, rate: float) -> float:
        """The rate of SGD with momentum that moves the weights as far as AdamW at ``rate``.

        Example:
            >>> round(Scale(10_000, gradient_norm=3.0).sgd_rate(1e-3), 6)
            0.001
        """
        if math.isnan(self.gradient_norm):
            return 10 * rate  # a usual ratio: SGD 0.01 to AdamW 0.001
        # AdamW's step is rate·ADAM_RMS·√d long, that of SGD with momentum lr·‖g‖/(1 - BETA).
        return rate * ADAM_RMS * math.sqrt(self.parameters) * (1 - BETA) / self.gradient_norm


@dataclass(frozen=True)
class Candidate:
    """One optimizer at one learning rate, with its weight decay and the shape of its rate."""

    family: str  # name of the optimizer and its options
    rate: float  # the equivalent rate of AdamW
    lr: float  # its own learning rate
    decay: float | None = None  # weight decay; None: the optimizer's own default
    shape: str = "trapezoid"  # one of ``training.SHAPES``

    @property
    def name(self) -> str:
        """Family and settings in words, which tell apart the candidates of a race."""
        decay = "" if self.decay is None else f" weight_decay={self.decay:.2g}"
        shape = "" if self.shape == "trapezoid" else f", {self.shape} decay of the rate"
        return f"{self.family} lr={self.lr:.2g}{decay}{shape}"

    @property
    def code(self) -> str:
        """The line to paste; ``model`` is the user's."""
        code = FAMILIES[self.family].code.format(lr=f"{self.lr:.2g}")
        if self.decay is None:
            return code
        return f"{code.removesuffix(')')}, weight_decay={self.decay:.2g})"

    def optimizer(self, model: torch.nn.Module) -> torch.optim.Optimizer:
        """A new optimizer with these settings for the model's trained weights."""
        optimizer = FAMILIES[self.family].build(model, self.lr)
        if self.decay is not None:
            # ``MuonWithAdamW`` steps by two optimizers of its own, its ``parts``.
            for part in getattr(optimizer, "parts", [optimizer]):
                for group in part.param_groups:
                    group["weight_decay"] = self.decay
        return optimizer


@dataclass(frozen=True)
class Family:
    """An optimizer with its options: how to build it, how a user writes it, and how its rate
    follows AdamW's.
    """

    build: Callable[[torch.nn.Module, float], torch.optim.Optimizer]  # from model and rate
    code: str  # as a user writes it, with ``{lr}`` in place of the rate
    like_sgd: bool = False  # its rate follows from norms (``Scale.sgd_rate``), else it is AdamW's
    #: optimizers of one kind take much the same path.
    kind: str = "AdamW"
    #: rates with which the family begins, as multiples of AdamW's best.
    multiples: tuple[float, ...] = (1.0,)
    #: the same where the gradient noise has infinite variance; empty: as elsewhere.
    multiples_heavy: tuple[float, ...] = ()
    cost: float = 1.0  # what a step of a small model takes, in steps of AdamW
    fits: Callable[[torch.nn.Module], bool] = lambda model: True  # whether it can train a model


def _weights(model: torch.nn.Module) -> list[torch.nn.Parameter]:
    """The trained weights of a model."""
    return [p for p in model.parameters() if p.requires_grad]


def _matrices(model: torch.nn.Module) -> list[torch.nn.Parameter]:
    """The trained matrices inside the network: neither embeddings nor the last layer, as Muon's
    authors ask for.
    """
    kinds = (torch.nn.Linear, torch.nn.MultiheadAttention)
    layers = [module for module in model.modules() if isinstance(module, kinds)]
    parameters = [p for layer in layers[:-1] for p in layer.parameters(recurse=False)]
    matrices = [p for p in parameters if p.ndim == 2 and p.requires_grad]
    return list(dict.fromkeys(matrices))  # a shared matrix once


def _fused(weights: list[torch.nn.Parameter]) -> bool | None:
    """The argument ``fused`` of torch's optimizers: True where the fused kernels take these
    weights, else None, which leaves it to torch. The steps are the same up to rounding, and on
    small models they take half the time.
    """
    fits = all(w.is_floating_point() and w.device.type in ("cpu", "cuda") for w in weights)
    return True if weights and fits else None


#: Coefficients of Muon's iteration, its number, its momentum and the smallest norm it divides by.
_QUINTIC = (3.4445, -4.7750, 2.0315)
_ITERATIONS = 5
_MUON_BETA = 0.95
_LEAST_NORM = 1e-7


def _orthogonalize(stack: Tensor) -> Tensor:
    """The matrices of a stack with their singular values moved near 1 by Newton and Schulz's
    iteration; singular vectors stay.

    Args:
        stack: shape (matrices, rows, columns), with no more rows than columns.
    """
    a, b, c = _QUINTIC
    x = stack / torch.linalg.matrix_norm(stack, keepdim=True).clamp_min(_LEAST_NORM)
    for _ in range(_ITERATIONS):  # x ← a x + (b xxᵀ + c (xxᵀ)²) x
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x


class _Muon(torch.optim.Optimizer):
    """Muon for matrices, with ``torch.optim.Muon``'s rule (``match_rms_adamw``, Nesterov).

    Matrices of one shape are handled together. The iteration runs in bfloat16 on CUDA, where that
    is fast, and in the matrices' own type elsewhere.
    """

    def __init__(self, matrices: list[torch.nn.Parameter], lr: float, weight_decay: float) -> None:
        super().__init__(matrices, {"lr": lr, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Move every matrix that has a gradient; returns the loss of the closure, if one is
        given.
        """
        loss = None if closure is None else closure()
        for group in self.param_groups:
            # Matrices of one shape, but for a transposition, are handled together.
            alike = grouped(
                ((*sorted(matrix.shape), matrix.device, matrix.dtype), matrix)
                for matrix in group["params"]
                if matrix.grad is not None
            )
            for matrices in alike.values():
                self._move(matrices, group["lr"], group["weight_decay"])
        return loss

    def _move(self, matrices: list[torch.nn.Parameter], lr: float, decay: float) -> None:
        """Move matrices of one shape, some of them perhaps transposed, which are handled with no
        more rows than columns.
        """
        updates = []
        for matrix in matrices:
            assert matrix.grad is not None
            state = self.state[matrix]
            if "momentum_buffer" not in state:
                state["momentum_buffer"] = torch.zeros_like(matrix.grad)
            buffer = state["momentum_buffer"].lerp_(matrix.grad, 1 - _MUON_BETA)
            update = matrix.grad.lerp(buffer, _MUON_BETA)  # Nesterov's look ahead
            updates.append(update.mT if update.shape[0] > update.shape[1] else update)
        stack = torch.stack(updates)
        stack = _orthogonalize(stack.bfloat16() if stack.is_cuda else stack).to(stack.dtype)
        scale = 0.2 * math.sqrt(max(matrices[0].shape))  # torch's ``match_rms_adamw``
        for matrix, update in zip(matrices, stack, strict=True):
            matrix.mul_(1 - lr * decay)
            update = update.mT if matrix.shape[0] > matrix.shape[1] else update
            matrix.add_(update, alpha=-lr * scale)


class MuonWithAdamW(torch.optim.Optimizer):
    """Muon for the matrices inside the network and AdamW for everything else, as one optimizer.

    Args:
        model: whose weights to train.
        lr: learning rate of both (Muon's is scaled to move the weights as far as AdamW's).
        weight_decay: decoupled weight decay of both.
    """

    def __init__(self, model: torch.nn.Module, lr: float, weight_decay: float = 0.01) -> None:
        if not isinstance(model, torch.nn.Module):
            fail("model", "must be a torch.nn.Module", model)
        positive("lr", lr)
        non_negative("weight_decay", weight_decay)
        matrices = _matrices(model)
        if not matrices:
            fail(
                "model",
                "must have a linear layer besides its last one, with a matrix to train",
                type(model).__name__,
            )
        ids = {id(p) for p in matrices}
        rest = [p for p in _weights(model) if id(p) not in ids]
        self.parts: list[torch.optim.Optimizer] = [
            _Muon(matrices, lr=lr, weight_decay=weight_decay),
            torch.optim.AdamW(rest, lr=lr, weight_decay=weight_decay, fused=_fused(rest)),
        ]
        super().__init__([{"params": matrices}, {"params": rest}], {"lr": lr})

    def step(self, closure: Any = None) -> Any:
        """One step of both, at the learning rates in ``param_groups``; returns the loss of the
        closure, if one is given.
        """
        loss = None if closure is None else closure()
        for part, group in zip(self.parts, self.param_groups, strict=True):
            part.param_groups[0]["lr"] = group["lr"]  # a scheduler changes the outer groups only
            part.step()
        return loss

    def state_dict(self) -> dict[str, Any]:
        """The states of both."""
        return {"parts": [part.state_dict() for part in self.parts]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from the states of both."""
        for part, state in zip(self.parts, state_dict["parts"], strict=True):
            part.load_state_dict(state)


_PARAMS = "model.parameters()"
FAMILIES: dict[str, Family] = {
    "AdamW": Family(
        lambda model, lr: torch.optim.AdamW(_weights(model), lr=lr, fused=_fused(_weights(model))),
        f"torch.optim.AdamW({_PARAMS}, lr={{lr}})",
    ),
    "AdamW with unit gradients": Family(
        lambda model, lr: mindgap.optim.AdamW(
            _weights(model), lr=lr, clip="unit", nonfinite="skip"
        ),
        f'mindgap.optim.AdamW({_PARAMS}, lr={{lr}}, clip="unit", nonfinite="skip")',
    ),
    "AdamW with clipped coordinates": Family(
        lambda model, lr: mindgap.optim.AdamW(
            _weights(model), lr=lr, clip="unit", coordinates=COORDINATES, nonfinite="skip"
        ),
        f'mindgap.optim.AdamW({_PARAMS}, lr={{lr}}, clip="unit", coordinates={COORDINATES:g}, '
        'nonfinite="skip")',
        multiples=(),
        multiples_heavy=(1.0,),
    ),
    "ACClip": Family(
        lambda model, lr: mindgap.optim.ACClip(_weights(model), lr=lr, nonfinite="skip"),
        f'mindgap.optim.ACClip({_PARAMS}, lr={{lr}}, nonfinite="skip")',
        kind="ACClip",
    ),
    "SGD": Family(
        lambda model, lr: torch.optim.SGD(
            _weights(model), lr=lr, momentum=BETA, fused=_fused(_weights(model))
        ),
        f"torch.optim.SGD({_PARAMS}, lr={{lr}}, momentum=0.9)",
        like_sgd=True,
        kind="SGD",
        multiples=(FACTOR, FACTOR**2),
    ),
    "Muon": Family(
        MuonWithAdamW,
        "mindgap.advise.MuonWithAdamW(model, lr={lr})",
        kind="Muon",
        cost=1.5,
        fits=lambda model: bool(_matrices(model)),
    ),
}
#: What a user most likely has today.
BASELINE = Candidate("AdamW", 1e-3, 1e-3)


def candidate(family: str, rate: float, scale: Scale) -> Candidate:
    """One family at AdamW's ``rate``, turned into its own and rounded to two digits."""
    lr = scale.sgd_rate(rate) if FAMILIES[family].like_sgd else rate
    return Candidate(family, rate, float(f"{lr:.2g}"))


def other_candidates(model: torch.nn.Module, scale: Scale, best: float) -> list[Candidate]:
    """The settings of all other families that fit the model, at multiples of AdamW's rate
    ``best``. Clipping of coordinates is among them only where the noise has infinite variance.

    Example:
        >>> scale = Scale(4, gradient_norm=1.0)
        >>> names = [c.name for c in other_candidates(torch.nn.Linear(3, 1), scale, 1e-2)]
        >>> names[0], any("Muon" in name for name in names)
        ('AdamW with unit gradients lr=0.01', False)
    """
    return [
        candidate(name, best * factor, scale)
        for name, family in FAMILIES.items()
        if name != BASELINE.family and family.fits(model)
        # ``or``: where a family has no rates of its own for heavy noise, the usual ones hold.
        for factor in ((family.multiples_heavy if scale.heavy else ()) or family.multiples)
    ]


def with_decay(setting: Candidate, total: int, strength: float = 3.0) -> Candidate:
    """The setting with a weight decay that, in ``total`` steps, takes the share 1 - exp(-strength)
    off a weight that gets no gradient: 95 %, or, with a strength of 1.5, 78 %.

    Example:
        >>> with_decay(BASELINE, 10_000).decay
        0.4
    """
    # The mean of the schedule's factor is about 0.75.
    decay = min(MOST_DECAY, strength / (0.75 * total * setting.lr))
    return replace(setting, decay=float(f"{decay:.2g}"))
