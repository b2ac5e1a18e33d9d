"""When an optimizer takes the fused form, and the plans it keeps for it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mindgap.base.check import fail
from mindgap.base.tensors import is_sharded, local
from mindgap.rules.fused.plan import Job, Plan, same_memory_order

if TYPE_CHECKING:
    from mindgap.optim.optimizer import RuleOptimizer

#: Kinds of settings that cannot change while they stay the same object, as tensors and functions of the step can.
_LASTING = (float, int, str, tuple, type(None))
_NARROW = (torch.bfloat16, torch.float16)


class FusedSteps:
    """Decides at each step whether the fused form can be used, and uses it.

    ``fused=None`` uses it wherever it can and says nothing where it cannot; ``fused=True`` raises there, with the
    reason. Plans are kept between steps and made anew only when tensors, states or groups changed.
    """

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Drop all plans: tensors, states or groups changed."""
        self._plans: list[tuple[dict[str, Any], Plan]] | None = None
        self._absent: list[Tensor] = []
        self._refusal: str | None = None
        self._lasting = True
        self._tape: Any = None
        self._taped: Any = None

    def step(self, optimizer: RuleOptimizer) -> bool:
        """Make one step in the fused form; False where the optimizer must make it itself."""
        wanted = False
        for group in optimizer.param_groups:
            if group["fused"]:
                wanted = True
            elif group["fused"] is False or group["foreach"] is not None:
                return False
        reason = self._refusal or self._unfit(optimizer)
        if reason is None and not self._current():
            reason = self._build(optimizer)
        if reason is not None:
            if wanted:
                fail("fused", f"cannot be True here: {reason}", True)
            return False
        if not self._plans:
            return False
        self._run(optimizer)
        return True

    @staticmethod
    def _unfit(optimizer: RuleOptimizer) -> str | None:
        for group in optimizer.param_groups:
            reason = optimizer._fused_refusal(group)
            if reason is not None:
                return reason
        return None

    def _current(self) -> bool:
        if self._plans is None:
            return False
        for p in self._absent:
            if p.grad is not None:
                return False
        return all(plan.fresh() for _, plan in self._plans)

    def _build(self, optimizer: RuleOptimizer) -> str | None:
        """Make the plans; returns why that is impossible for good. No plans without a reason: not at this step."""
        self.follow_device(optimizer)
        self.forget()
        plans: list[tuple[dict[str, Any], Plan]] = []
        keep = True
        for group in optimizer.param_groups:
            owners = [p for p in group["params"] if p.grad is not None]
            self._absent += [p for p in group["params"] if p.grad is None]
            names = optimizer._fused_states(group)
            by_kind: dict[Any, tuple[list[Tensor], ...]] = {}
            for p in owners:
                grad = p.grad
                assert grad is not None
                if p.is_complex() or grad.layout != torch.strided:
                    return self._refuse("a parameter is complex or its gradient is not dense")
                if "x" in names and "x" not in optimizer.state.get(p, {}):
                    return None  # the first gradient of a parameter starts its states, outside the kernels
                plain, plain_grad = p, grad
                if is_sharded(p):
                    if optimizer._joint:
                        return self._refuse("norms over a device mesh are taken by collectives")
                    plain, plain_grad, keep = local(p), local(optimizer._placed(grad, p)), False
                states = [local(optimizer._state(p, name)) for name in names]
                why = _unsuitable(plain, plain_grad, states)
                if why is not None:
                    return self._refuse(why)
                kind = (plain.device, plain.dtype, plain_grad.dtype)
                lists = by_kind.setdefault(kind, ([], [], [], *([] for _ in names)))
                for where, value in zip(lists, (p, plain, plain_grad, *states)):
                    where.append(value)
            for whole, plain_list, grads, *state_lists in by_kind.values():
                homes = [optimizer.state[p] for p in whole] if names else []
                plans.append((group, Plan(plain_list, grads, dict(zip(names, state_lists)), homes)))
        if optimizer._joint and len({plan.device for _, plan in plans}) > 1:
            return self._refuse("the parameters lie on several devices")
        self._plans = plans
        self._lasting = keep
        for _, plan in plans:
            plan.lasting = keep
        return None

    def _refuse(self, reason: str) -> str:
        """Remember a reason that will not go away."""
        self._refusal = reason
        return reason

    def _run(self, optimizer: RuleOptimizer) -> None:
        assert self._plans is not None
        optimizer._tick()
        settings = self._settings(optimizer)
        same = self._tape is not None and settings is not None and settings == self._taped[0]
        if not (same and self._again(optimizer)) and not self._anew(optimizer, self._plans, settings):
            return
        if optimizer._project is not None:
            with torch.no_grad():
                everything = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
                optimizer._project(everything)
        if not self._lasting:
            self._plans = None

    def _settings(self, optimizer: RuleOptimizer) -> list[Any] | None:
        """All that a step depends on besides memory and the step number; None where it may change unseen."""
        assert self._plans is not None
        if optimizer._nonfinite == "raise" or not self._lasting:
            return None
        values: list[Any] = [optimizer._nonfinite]
        for group, plan in self._plans:
            values.append(plan.moves)
            values += [group.get(name) for name in optimizer.defaults if name != "k"]
        for value in values:
            if not isinstance(value, _LASTING):
                return None
        return values

    def _again(self, optimizer: RuleOptimizer) -> bool:
        """Make the launches of the last step once more; False where they do not fit this one."""
        assert self._plans is not None
        _, counted, notes, skips = self._taped
        if not self._tape.fits() or not all(counted(plan, group["k"]) for group, plan in self._plans):
            return False
        self._tape.play()
        optimizer._device_skips = skips
        optimizer._note(**notes)
        return True

    def _anew(
        self, optimizer: RuleOptimizer, plans: list[tuple[dict[str, Any], Plan]], settings: list[Any] | None
    ) -> bool:
        """Make the step from the groups' settings; False where gradients that are not finite stop it."""
        by_engine: dict[str, list[Job]] = {}
        for group, plan in plans:
            betas = group.get("betas")
            job = Job(
                plan,
                group["lr"],
                group["weight_decay"],
                -1.0 if group["maximize"] else 1.0,
                betas[0] if betas else group["beta"],
                optimizer._fused_numbers(group),
            )
            by_engine.setdefault(plan.device.type, []).append(job)
        self._tape = None
        if settings is None or set(by_engine) != {"cuda"}:
            if optimizer._nonfinite != "propagate" and not self._go(optimizer, by_engine):
                return False
            for kind, jobs in by_engine.items():
                optimizer._note(**optimizer._fused_update(_engine(kind), jobs))
            return True
        from mindgap.rules.fused import cuda, cuda_rules

        with cuda.Tape() as tape:
            if optimizer._nonfinite != "propagate":
                self._go(optimizer, by_engine)
            notes = optimizer._fused_update(cuda_rules, by_engine["cuda"])
        optimizer._note(**notes)
        self._tape, self._taped = tape, (settings, cuda_rules.counted, notes, optimizer._device_skips)
        return True

    def follow_device(self, optimizer: RuleOptimizer) -> None:
        """Take over step numbers that run on the device, where graph replays advance them (waits for it)."""
        for _, plan in self._plans or ():
            if "cuda" in plan.kept:
                from mindgap.rules.fused import cuda_rules

                k = cuda_rules.device_step(plan)
                if k is not None:
                    for group in optimizer.param_groups:
                        group["k"] = k

    @staticmethod
    def _go(optimizer: RuleOptimizer, by_engine: dict[str, list[Job]]) -> bool:
        """Follow the policy for gradients that are not finite; False where the step is to be left out."""
        if optimizer._nonfinite == "skip" and set(by_engine) == {"cuda"}:
            # Nobody waits: the kernels read the flag and leave everything as it is where it is 0.
            flag, skips = _engine("cuda").guard(by_engine["cuda"])
            for job in by_engine["cuda"]:
                job.numbers["flag"] = flag
            optimizer._device_skips = skips
            return True
        norm = math.hypot(*(float(_engine(kind).square_norm(jobs)) for kind, jobs in by_engine.items()))
        if math.isfinite(norm):
            return True
        if optimizer._nonfinite == "raise":
            optimizer._steps -= 1
            for group in optimizer.param_groups:
                group["k"] -= 1
            fail("gradients", "must be finite (nonfinite='raise')", norm)
        optimizer._skipped += 1
        return False


def _engine(kind: str) -> Any:
    if kind == "cpu":
        from mindgap.rules.fused import cpu_rules

        return cpu_rules
    from mindgap.rules.fused import cuda_rules

    return cuda_rules


def _unsuitable(p: Tensor, grad: Tensor, states: list[Tensor]) -> str | None:
    """Why a parameter cannot take the fused form; None if it can."""
    kind = p.device.type
    if kind == "cpu":
        from mindgap.rules.fused import cpu

        why = cpu.unavailable()
        if why is not None:
            return why
        if p.dtype not in cpu.DTYPES or grad.dtype != p.dtype:
            return f"the CPU kernels take float32 and float64, a parameter has {p.dtype}"
    elif kind == "cuda":
        from mindgap.rules.fused import cuda

        why = cuda.unavailable()
        if why is not None:
            return why
        if p.dtype not in (torch.float32, *_NARROW):
            return f"the CUDA kernels take float32, bfloat16 and float16, a parameter has {p.dtype}"
    else:
        return f"there are no kernels for the device {kind}"
    if not all(same_memory_order(p, t) for t in (grad, *states)):
        return f"a parameter of shape {tuple(p.shape)} has holes in memory, or its gradient lies in another order"
    return None
