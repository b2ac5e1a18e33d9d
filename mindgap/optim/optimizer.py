"""The one abstract class of the optimizers: torch's contract, the policies they share, and what they report.

A final class says which settings a group may have (``_check_group``) and what one step does to the parameters of all
groups (``_update``). Everything else that people expect of a torch optimizer stands here once.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from mindgap.base.check import fail, non_negative, one_of, positive
from mindgap.base.tensors import local, placed, robust_norm
from mindgap.optim.fused import FusedSteps, state_of
from mindgap.rules.fused.plan import FusedRecord
from mindgap.rules.project import Ball as Ball
from mindgap.rules.project import Box as Box
from mindgap.rules.schedule import PowerSchedule as PowerSchedule
from mindgap.rules.schedule import value_at

NONFINITE = ("raise", "skip", "propagate")
SCOPES = ("all", "group", "tensor")


@dataclass(frozen=True)
class Report:
    """What an optimizer did since it was built or its report was last reset.

    Attributes:
        steps: calls of ``step`` that found a gradient.
        skipped: steps left out because a gradient was not finite.
        clipped: share of the steps at which the direction was clipped; with ``scope="tensor"`` share of the tensors,
            for coordinate-wise rules share of the coordinates. None where the rule does not clip or, for
            coordinate-wise rules, without ``track=True``.
        direction_norm: norm over all parameters of what the rule clips or normalises, at the last step (for
            coordinate-wise rules with ``track=True`` only).
        update_norm: norm of the last change of the parameters, without weight decay and projection; None where it
            would need another pass over memory and ``track`` is off.

    For parameters spread over several processes (DTensor) norms that a rule takes are those of the whole vector; what
    ``track`` adds is counted over this process's part.
    """

    steps: int
    skipped: int
    clipped: float | None
    direction_norm: float | None
    update_norm: float | None


@dataclass
class Batch:
    """The parameters of one group that have a gradient, as plain real tensors of this process."""

    group: dict[str, Any]
    owners: list[Tensor]
    params: list[Tensor]
    grads: list[Tensor]
    k: int

    @property
    def sign(self) -> float:
        return -1.0 if self.group["maximize"] else 1.0

    @property
    def single(self) -> bool:
        """Whether the plain loop was asked for."""
        return self.group["foreach"] is False


class RuleOptimizer(Optimizer, ABC):
    """What the six optimizers share. Not for direct use.

    Non-finite gradients (``nonfinite=``):
        * ``"propagate"`` (default): nothing is looked at, as in ``torch.optim``. A NaN spreads and shows in the loss.
          It is the default because the other two look at every gradient: another pass over memory for the
          coordinate-wise rules and, on a device, a wait for it at every step.
        * ``"skip"``: the step changes neither parameters nor states; ``report().skipped`` counts it. The step number
          k advances.
        * ``"raise"``: one error, before anything is changed.
    """

    #: Settings of a group that may be functions: they are not written into ``state_dict``.
    _functions: tuple[str, ...] = ("tau",)

    def __init__(
        self,
        params: Any,
        defaults: dict[str, Any],
        *,
        maximize: bool,
        foreach: bool | None,
        fused: bool | None,
        nonfinite: str,
        project: Callable[[Sequence[Tensor]], None] | None,
        track: bool,
    ) -> None:
        self._nonfinite = one_of("nonfinite", nonfinite, NONFINITE)
        if project is not None and not callable(project):
            fail("project", "must be a function of a list of tensors", project)
        if foreach and fused:
            fail("fused", "must not be asked for together with foreach", fused)
        self._project = project
        self._track = bool(track)
        self._fused = FusedSteps()
        self._clear_tally()
        if not isinstance(params, Tensor):
            params = list(params)
            if not params:
                fail("params", "must hold at least one parameter", params)
        super().__init__(params, {**defaults, "maximize": maximize, "foreach": foreach, "fused": fused, "k": 0})

    # -- what a final class gives ------------------------------------------------------------------------------

    @abstractmethod
    def _check_group(self, group: dict[str, Any]) -> None:
        """Check the settings of a group, once, when it is added."""

    @abstractmethod
    def _update(self, batches: list[Batch]) -> None:
        """Move the parameters by one step."""

    def fused_record(self, group: dict[str, Any]) -> FusedRecord:
        """What the fused engine needs to know of a group for the next step (its number is ``group["k"] + 1``)."""
        return FusedRecord(refusal="this optimizer has no fused form")

    # -- torch's contract --------------------------------------------------------------------------------------

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters; settings it does not name are the optimizer's defaults."""
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        try:
            self._check_group(group)
            for p in group["params"]:
                if not (p.is_floating_point() or p.is_complex()):
                    fail("params", "must be floating or complex tensors", p.dtype)
        except Exception:
            self.param_groups.pop()
            raise
        self._fused.forget()

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step with the gradients in ``p.grad``, which it only reads.

        Args:
            closure: evaluates the model again and returns the loss, as for every torch optimizer.

        Returns:
            The closure's loss, or None.
        """
        if self._watched():
            return self._observed_step(closure)
        return self._plain_step(closure)

    # torch wraps ``step`` of every optimizer to run hooks and to label it for the profiler, a sixth of a small fused
    # step's time. Here the wrapped form is used where there is a hook or a profiler, and only there.
    step.hooked = True  # type: ignore[attr-defined]

    def _watched(self) -> bool:
        return bool(
            self._optimizer_step_pre_hooks
            or self._optimizer_step_post_hooks
            or _global_optimizer_pre_hooks
            or _global_optimizer_post_hooks
            or torch._C._autograd._profiler_enabled()
        )

    def _plain_step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if torch.compiler.is_compiling() or not self._fused_step():
            with torch.no_grad():
                batches = self._begin()
                if batches:
                    self._update(batches)
                    self._projected(batches)
        return loss

    def _fused_step(self) -> bool:
        """Make the step in the fused form; False where it has to be made in another."""
        outcome = self._fused.step(self.param_groups, self.state, self.fused_record, self._nonfinite)
        if outcome is None:
            return False
        self._tick()
        self._skipped += outcome.skipped
        self._device_skips: Tensor | None = outcome.skips if outcome.skips is not None else self._device_skips
        self._note(**outcome.notes)
        if self._project is not None and not outcome.skipped:
            with torch.no_grad():
                self._project([p for group in self.param_groups for p in group["params"] if p.grad is not None])
        return True

    _observed_step = Optimizer.profile_hook_step(_plain_step)

    def state_dict(self) -> dict[str, Any]:
        """As torch's, without functions of the step: those belong to the program, not to the checkpoint."""
        self._fused.follow_device(self.param_groups)
        packed = super().state_dict()
        for group in packed["param_groups"]:
            for name in self._functions:
                if callable(group.get(name)):
                    del group[name]
        return packed

    @torch._disable_dynamo
    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """As torch's; float32 states of 16-bit parameters stay float32, functions of the step stay as they are."""
        functions = [{n: g[n] for n in self._functions if n in g} for g in self.param_groups]
        super().load_state_dict(dict(state_dict))
        self._fused.forget()
        for group, kept in zip(self.param_groups, functions):
            for name, value in kept.items():
                group.setdefault(name, value)
        ids = [i for group in state_dict["param_groups"] for i in group["params"]]
        owners = [p for group in self.param_groups for p in group["params"]]
        for i, p in zip(ids, owners):
            for name, value in state_dict["state"].get(i, {}).items():
                mine = self.state[p].get(name)
                if isinstance(value, Tensor) and isinstance(mine, Tensor) and mine.dtype != value.dtype:
                    self.state[p][name] = value.to(device=mine.device)

    def __getstate__(self) -> dict[str, Any]:
        own = {n: v for n, v in self.__dict__.items() if n.startswith("_") and n in self._kept_attributes()}
        return {**super().__getstate__(), **own}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._fused = FusedSteps()
        if "_clipped" not in self.__dict__:
            self._clear_tally()

    def _kept_attributes(self) -> tuple[str, ...]:
        """Own attributes that a copy or a pickle keeps (torch's keeps only groups and states)."""
        settings = ("_nonfinite", "_project", "_track", "_scope", "_clip")
        return (*settings, "_steps", "_skipped", "_clipped", "_last", "_tallies", "_device_skips")

    # -- collecting gradients ----------------------------------------------------------------------------------

    @torch._disable_dynamo
    def _begin(self) -> list[Batch]:
        """Collect the gradients, count the step, follow the policy for gradients that are not finite."""
        batches = [batch for group in self.param_groups if (batch := self._collect(group)).owners]
        if not batches:
            return []
        if self._nonfinite != "propagate":
            norm = robust_norm([g for batch in batches for g in self._raw_grads(batch)], wide=True)
            if not bool(torch.isfinite(norm)):
                if self._nonfinite == "raise":
                    fail("gradients", "must be finite (nonfinite='raise')", float(norm))
                self._skipped += 1
                batches = []
        self._tick()
        for batch in batches:
            batch.k = batch.group["k"]
        return batches

    def _tick(self) -> None:
        """Count the step."""
        self._steps += 1
        for group in self.param_groups:
            group["k"] += 1

    def _collect(self, group: dict[str, Any]) -> Batch:
        batch = Batch(group, [], [], [], 0)
        for p in group["params"]:
            if p.grad is None:
                continue
            if p.grad.is_sparse or p.grad.layout != torch.strided:
                fail("gradients", f"must be dense ({type(self).__name__} reads every coordinate)", p.grad.layout)
            batch.owners.append(p)
            batch.params.append(self._plain(p))
            batch.grads.append(self._plain(placed(p.grad, p)))
        return batch

    @staticmethod
    def _plain(tensor: Tensor) -> Tensor:
        """Memory of this process as real numbers; shares memory with the argument."""
        tensor = local(tensor)
        return torch.view_as_real(tensor) if tensor.is_complex() else tensor

    def _raw_grads(self, batch: Batch) -> list[Tensor]:
        return [placed(p.grad, p) for p in batch.owners]  # type: ignore[arg-type]

    def _states(self, batch: Batch, name: str) -> list[Tensor]:
        """The named state of the batch's parameters, made of zeros where it does not exist, as plain real tensors."""
        return [self._plain(self._state(p, name)) for p in batch.owners]

    def _raw_states(self, batch: Batch, name: str) -> list[Tensor]:
        return [self._state(p, name) for p in batch.owners]

    def _state(self, p: Tensor, name: str) -> Tensor:
        return state_of(self.state, p, name)

    def _projected(self, batches: list[Batch]) -> None:
        if self._project is not None:
            self._project([torch.view_as_real(p) if p.is_complex() else p for b in batches for p in b.owners])

    # -- reporting ---------------------------------------------------------------------------------------------

    def _clear_tally(self) -> None:
        self._steps = 0
        self._skipped = 0
        # In a mapping: torch.compile can follow its entries, but not every version an attribute of an optimizer.
        self._clipped: dict[str, Any] = {}
        for tally in (*getattr(self, "_tallies", ()), getattr(self, "_device_skips", None)):
            if tally is not None:
                tally.zero_()
        self._tallies: list[Tensor] = []
        self._device_skips = None
        self._last: dict[str, Any] = {}

    def _note(self, *, share: Any = None, tallies: Sequence[Tensor] = (), **last: Any) -> None:
        """Add the share of this step that was clipped and remember the last norms, all on the device.

        ``tallies`` count in device memory by themselves; they are only looked up for a report.
        """
        for tally in tallies:
            if not any(tally is known for known in self._tallies):
                self._tallies.append(tally)
        if share is not None:
            self._clipped["share"] = self._clipped["share"] + share if self._clipped else share
        self._last.update(last)

    def _note_coordinates(
        self, batches: list[Batch], counts: list[Tensor], seen: list[Tensor], moved: list[Tensor]
    ) -> None:
        """Note one step of a coordinate-wise rule: clipped entries, norms of directions and of updates, by block."""
        if not counts:
            return
        device = counts[0].device
        total = sum(p.numel() for batch in batches for p in batch.params)
        self._note(
            share=torch.stack([c.to(device) for c in counts]).sum().double() / total,
            direction=robust_norm([n.to(device) for n in seen], wide=True),
            update=robust_norm([n.to(device) for n in moved], wide=True),
        )

    def report(self, *, reset: bool = False) -> Report:
        """How often it clipped, and the last norms. Waits for the device here, and only here.

        Args:
            reset: start counting anew.

        Returns:
            A ``Report``.
        """
        skipped = self._skipped + (0 if self._device_skips is None else int(self._device_skips))
        done = self._steps - skipped
        counted = [float(self._clipped["share"])] if self._clipped else []
        counted += [sum(float(tally) for tally in self._tallies) / len(self._tallies)] if self._tallies else []
        clipped = sum(counted) / max(done, 1) if counted else None
        last = {name: _as_float(value) for name, value in self._last.items()}
        answer = Report(self._steps, skipped, clipped, last.get("direction"), last.get("update"))
        if reset:
            self._clear_tally()
        return answer


def _as_float(value: Any) -> float:
    """A norm that was kept as a tensor, or as products (factor, norm) over groups."""
    if isinstance(value, (Tensor, float)):
        return float(value)
    on_host = [(np.asarray(_host(s), dtype=np.float64), np.asarray(_host(n), dtype=np.float64)) for s, n in value]
    return math.sqrt(sum(float(((s * n) ** 2).sum()) for s, n in on_host))


def _host(value: Any) -> Any:
    return value.detach().cpu().numpy() if isinstance(value, Tensor) else value


def check_lr(name: str, lr: Any) -> None:
    """A positive number, or a tensor with one element."""
    if isinstance(lr, Tensor):
        if lr.numel() != 1:
            fail(name, "must have one element when it is a tensor", tuple(lr.shape))
        lr = float(lr)
    positive(name, lr)


def check_common(group: dict[str, Any]) -> None:
    """The settings that every first-order rule here has."""
    check_lr("lr", group["lr"])
    non_negative("weight_decay", group["weight_decay"])


def positive_at(name: str, value: Any, k: int) -> Any:
    """The value of a setting at step k, checked where that needs no device."""
    value = value_at(value, k)
    if not isinstance(value, Tensor):
        positive(name, value, finite=False)
    return value
