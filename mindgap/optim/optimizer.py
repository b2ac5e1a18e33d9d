"""The one abstract class of the optimizers: torch's contract, the policies they share, and what
they report.

A final class says which settings a group may have (``_check_group``) and what one step does to the
parameters of all groups (``_update``). Everything else that people expect of a torch optimizer
stands here once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, overload

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from mindgap.base.check import RuleError, fail, one_of
from mindgap.base.tensors import blocks, local, placed
from mindgap.optim.batch import Batch as Batch
from mindgap.optim.fused import FusedSteps, state_of
from mindgap.optim.norms import (
    QUANTILE,
    SPIKE_AFTER,
    new_window,
    push_,
    refuse_nonfinite,
    running_quantile,
    scoped_norms,
    spike_range,
    zero_redundancy_group,
)
from mindgap.optim.report import Report as Report, Spike as Spike, Tally
from mindgap.optim.settings import (
    NONFINITE,
    SPIKE_GUARDS,
    Nonfinite,
    Options as Options,
    SpikeGuard,
    check_rate,
)
from mindgap.optim.sides import judge_, judge_number_
from mindgap.optim.trial import objection
from mindgap.rules.fused.plan import FusedRecord, Outcome, Policy
from mindgap.rules.schedule import PowerSchedule as PowerSchedule
from mindgap.rules.steps import Ball as Ball, Box as Box

if TYPE_CHECKING:
    from typing_extensions import Unpack as Unpack

#: What a closure returns: a number or a tensor.
Loss = TypeVar("Loss")
#: Added to the norm before dividing a number by it, as ``torch.nn.utils.clip_grad_norm_`` does. A
#: quantile has the gradient's unit, and nothing is added: it must not matter which unit that is.
NORM_EPS = 1e-6
#: What a group holds besides settings; ``repr`` leaves it out.
_MEMORIES = {"params", "norms", "tau_norms", "evidence", "sides"}


class RuleOptimizer(Optimizer, ABC):
    """What the optimizers share. Not for direct use; ``Options`` lists the settings that all
    take.
    """

    #: Settings of a group that may be functions: they are not written into ``state_dict``.
    _functions: tuple[str, ...] = ("tau",)
    #: Whether a step needs a norm over several tensors, so that all of them must take the fused
    #: form or none.
    _joint = True

    def __init__(
        self,
        params: Any,
        defaults: dict[str, Any],
        *,
        project: Callable[[Sequence[Tensor]], None] | None = None,
        nonfinite: Nonfinite = "propagate",
        spike_guard: SpikeGuard = None,
        track: bool = False,
        maximize: bool = False,
        foreach: bool | None = None,
        fused: bool | None = None,
    ) -> None:
        """Check and keep the settings of the whole optimizer.

        Args:
            params: parameters, or groups of them with their own settings.
            defaults: the rule's settings of a group, by name.
            track: whether the rule counts clipped coordinates at every step.
            project, nonfinite, spike_guard, maximize, foreach, fused: see ``Options``.
        """
        self._nonfinite = one_of("nonfinite", nonfinite, NONFINITE)
        self._spike_guard = one_of("spike_guard", spike_guard, SPIKE_GUARDS)
        if project is not None and not callable(project):
            fail("project", "must be a function of a list of tensors", project)
        # By identity: 0 and 1 are not False and True.
        for name, value, choices in (
            ("track", track, (False, True)),
            ("maximize", maximize, (False, True)),
            ("foreach", foreach, (None, False, True)),
            ("fused", fused, (None, False, True)),
        ):
            if not any(value is choice for choice in choices):
                fail(name, f"must be one of {', '.join(map(repr, choices))}", value)
        if foreach and fused:
            fail("fused", "must not be asked for together with foreach", fused)
        if track and fused:
            fail(
                "fused",
                "must not be asked for together with track, which counts coordinates",
                fused,
            )
        self._project = project
        self._track = track
        self._fused = FusedSteps()
        # The processes over which ZeRO spreads whole parameters; None without it.
        self._everyone = zero_redundancy_group()
        self.tally = Tally()
        if not isinstance(params, Tensor):
            try:
                params = list(params)
            except TypeError:
                fail("params", "must be parameters or groups of them", params)
            if not params:
                fail("params", "must hold at least one parameter", params)
        settings = {**defaults, "maximize": maximize, "foreach": foreach, "fused": fused, "k": 0}
        try:
            super().__init__(params, settings)
        except RuleError:
            raise
        except (TypeError, ValueError, KeyError, AttributeError) as error:
            raise RuleError(
                f"params must be parameters or groups of them, got {params!r:.200}: {error}"
            ) from error

    # -- what a final class gives
    # ------------------------------------------------------------------------------

    @abstractmethod
    def _check_group(self, group: dict[str, Any]) -> None:
        """Check the settings of a group, once, when it is added."""

    @abstractmethod
    def _update(self, batches: list[Batch]) -> None:
        """Move the parameters by one step, in place; one batch per group with gradients."""

    #: Names of all states that it may keep; a ``state_dict`` with others is of another optimizer.
    _state_names: tuple[str, ...] = ()

    def _used_states(self, group: dict[str, Any]) -> tuple[str, ...]:
        """States that a step uses, where they can be looked up before it."""
        return ()

    def _counts_gradients(self, group: dict[str, Any]) -> bool:
        """Whether a step uses the number of gradients that each parameter has seen."""
        return False

    def _check_saved(self, group: dict[str, Any]) -> None:
        """Refuse settings of a ``state_dict`` that mean another algorithm."""

    def fused_record(self, group: dict[str, Any]) -> FusedRecord:
        """What the fused engine needs to know of a group for the next step (its number is
        ``group["k"] + 1``).
        """
        return FusedRecord(refusal="this optimizer has no fused form")

    # -- torch's contract
    # --------------------------------------------------------------------------------------

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters; settings it does not name are the optimizer's defaults.

        ``beta`` becomes ``momentum``, the name that schedulers look for. A group that is refused
        leaves the others as they were.
        """
        if isinstance(param_group, dict) and "beta" in param_group:
            param_group = {**param_group, "momentum": param_group["beta"]}
            del param_group["beta"]
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        try:
            self._check_group(group)
            for name, value in group.items():
                if isinstance(value, int) and abs(value) > 2**53 and name not in ("seed", "inner"):
                    group[name] = float(value)  # torch takes no larger whole numbers
            for p in group["params"]:
                if not (p.is_floating_point() or p.is_complex()):
                    fail("params", "must be floating or complex tensors", p.dtype)
                if self._joint and getattr(p, "_fsdp_flattened", False):
                    fail(
                        "params",
                        "must not be flattened by FSDP1, which hides the norm over all processes; "
                        "use fully_shard, or clip=None where there is one",
                        tuple(p.shape),
                    )
        except Exception:
            self.param_groups.pop()
            raise
        self._fused.forget()

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], Loss]) -> Loss: ...

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step with the gradients in ``p.grad``, which it only reads.

        Args:
            closure: evaluates the model again and returns the loss, as for every torch optimizer.

        Returns:
            The closure's loss, or None.
        """
        # torch wraps ``step`` of every optimizer to run hooks and to label it for the profiler, a
        # sixth of a small fused step's time. Here the wrapped form is used where there is a hook or
        # a profiler, and only there.
        if (
            self._optimizer_step_pre_hooks
            or self._optimizer_step_post_hooks
            or _global_optimizer_pre_hooks
            or _global_optimizer_post_hooks
            or torch._C._autograd._profiler_enabled()
        ):
            return self._observed_step(closure)
        return self._plain_step(closure)

    step.hooked = True  # type: ignore[attr-defined]  # tells torch not to wrap it

    def _plain_step(self, closure: Callable[[], Any] | None = None) -> Any:
        """A step without hooks: evaluates the closure, takes the fused form or else the rule's own
        update, then projects. Returns the closure's loss, or None without a closure.
        """
        loss = None
        if closure is not None:
            if not callable(closure):
                fail("closure", "must be a function", closure)
            with torch.enable_grad():
                loss = closure()
        compiling = torch.compiler.is_compiling()
        if not compiling:
            for group in self.param_groups:  # a schedule may have set anything
                if type(group["lr"]) is not float:
                    check_rate(group["lr"])
        if compiling or self._everyone is not None or not self._fused_step():
            with torch.no_grad():
                # None: the step is skipped. An empty list: no gradient in this process, whose part
                # in ZeRO's collective calls is needed all the same.
                batches = self._begin(compiling)
                if batches or (batches is not None and self._everyone is not None):
                    self._update(batches)
                    self._sample_share()
                    if self._project is not None:
                        owners = [p for batch in batches for p in batch.owners]
                        self._project_in_place(
                            [torch.view_as_real(p) if p.is_complex() else p for p in owners]
                        )
        return loss

    def _fused_step(self) -> bool:
        """Make the step in the fused form, in place, and report it. Returns False, with no step
        made, where it needs another form.
        """
        # By position, which takes less time: nonfinite, clip, guard, window, eps, quantile,
        # spike_after, judge. The engine puts window and memories in.
        policy = Policy(
            self._nonfinite,
            self._norm_clip,
            self._spike_guard,
            None,
            self._norm_eps,
            QUANTILE,
            SPIKE_AFTER,
            partial(judge_number_, self.param_groups) if self._norm_clip == "noise" else None,
        )
        try:
            outcome = self._fused.step(
                self.param_groups, self.state, self.fused_record, policy, partial(objection, self)
            )
        except RuleError as error:
            # The engine has only the norm: this error names the parameter.
            if "nonfinite='raise'" in str(error):
                refuse_nonfinite(self.param_groups)
            raise
        if outcome is None:
            return False
        self.tick()
        self._report_outcome(outcome)
        if self._project is not None and not outcome.skipped:
            owners = [p for group in self.param_groups for p in group["params"]]
            with torch.no_grad():
                self._project_in_place([p for p in owners if p.grad is not None])
        return True

    def _project_in_place(self, tensors: list[Tensor]) -> None:
        """Let the user's projection change the tensors. One that returns new tensors in their place
        changed nothing, and is refused; views of the tensors are not new.
        """
        assert self._project is not None
        returned: Any = self._project(tensors)
        if (
            isinstance(returned, (list, tuple))
            and len(returned) == len(tensors)
            and not torch.compiler.is_compiling()  # addresses are not known then
            and any(
                isinstance(new, Tensor) and new.shape == p.shape and new.data_ptr() != p.data_ptr()
                for new, p in zip(returned, tensors)
            )
        ):
            fail("project", "must change the tensors in place", f"{len(returned)} new tensors")

    def _report_outcome(self, outcome: Outcome) -> None:
        """Add what a fused step did to the report. Where the step took no norm, take one here at
        the steps of ``Tally.wants_norm``, and count clipped coordinates (``_sample_share``).
        """
        if outcome.spike is not None:
            self.tally.spikes.append(Spike(self.param_groups[0]["k"], *outcome.spike))
        self.tally.skipped += outcome.skipped
        # Kernels count skipped steps in ``outcome.skips``. New plans count them in other memory:
        # keep what was counted in the old one.
        if outcome.skips is not None and outcome.skips is not self.tally.device_skips:
            if self.tally.device_skips is not None:
                self.tally.skipped += int(self.tally.device_skips)
            self.tally.device_skips = outcome.skips
        if outcome.spikes is not None:
            self.tally.device_spikes = outcome.spikes
        if outcome.notes:
            self.tally.note(**outcome.notes)
        elif self._reports_norm and self.tally.wants_norm():
            norm = self._fused.gradient_norm()
            if norm is not None:
                self.tally.note(direction=norm)
            if not outcome.skipped:
                self._sample_share()

    _observed_step = Optimizer.profile_hook_step(_plain_step)

    def state_dict(self) -> dict[str, Any]:
        """States and settings in torch's form, without functions of the step: those belong to the
        program, not to the checkpoint.
        """
        self._fused.follow_device(self.param_groups)
        packed = super().state_dict()
        for group in packed["param_groups"]:
            for name in self._functions:
                if callable(group.get(name)):
                    del group[name]
        # A tensor among the settings: that is what every checkpoint format takes.
        packed["param_groups"][0]["report"] = self.tally.pack()
        return packed

    @torch._disable_dynamo
    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load what ``state_dict`` returned: states, settings and the report, in place. States keep
        the dtype in which they were saved, and settings that are functions of the step stay.

        A dict from an older version, or from the torch optimizer of the same name, may lack
        settings: they keep the values that this optimizer was built with.

        Raises:
            RuleError: the dict is of another algorithm; nothing is loaded then.
        """
        # Settings before loading, and the dict as ``complete`` hands it to torch.
        groups_before, completed = [dict(group) for group in self.param_groups], dict(state_dict)

        def complete(_: Any, saved_dict: dict[str, Any]) -> dict[str, Any]:
            """Refuse a dict of another algorithm, and return a copy with the settings that it
            lacks. It is the last hook before loading, so it sees what the others made of the dict.
            """
            nonlocal completed
            self._refuse_foreign(saved_dict)
            groups = []
            for present_group, saved_group in zip(groups_before, saved_dict["param_groups"]):
                lacking = present_group.keys() - saved_group.keys() - {"params"}
                if "beta" in saved_group:  # the name of momentum in older versions
                    lacking -= {"momentum"}
                groups.append({**{name: present_group[name] for name in lacking}, **saved_group})
            if len(groups) == len(saved_dict["param_groups"]):  # else torch says what differs
                saved_dict = {**saved_dict, "param_groups": groups}
            completed = saved_dict
            return saved_dict

        handle = self.register_load_state_dict_pre_hook(complete)
        try:
            super().load_state_dict(dict(state_dict))
        finally:
            handle.remove()
        self._fused.forget()
        for group, old in zip(self.param_groups, groups_before):
            group.pop("decoupled_weight_decay", None)  # torch's Adam and AdamW have it
            for name in self._functions:
                if callable(old.get(name)) and callable(group.get(name)):
                    group[name] = old[name]
        packed = self.param_groups[0].pop("report", None)
        if isinstance(packed, Tensor):
            self.tally = Tally.unpack(packed)
        # torch gives states the parameters' dtype; those that were saved in another one keep it.
        ids = [i for group in completed["param_groups"] for i in group["params"]]
        owners = [p for group in self.param_groups for p in group["params"]]
        for i, p in zip(ids, owners):
            for name, value in completed["state"].get(i, {}).items():
                state = self.state[p].get(name)
                if (
                    isinstance(value, Tensor)
                    and isinstance(state, Tensor)
                    and state.dtype != value.dtype
                ):
                    self.state[p][name] = value.to(device=state.device)

    def _refuse_foreign(self, state_dict: Mapping[str, Any]) -> None:
        """Raise ``RuleError`` for a ``state_dict`` whose states or settings are those of another
        algorithm: state names that this one does not have, or what ``_check_saved`` refuses.
        """
        for state in state_dict["state"].values():
            foreign = sorted(set(state) - set(self._state_names)) if isinstance(state, dict) else []
            if foreign:
                fail(
                    "state_dict",
                    f"must be of {type(self).__name__}: it has states of another optimizer",
                    foreign,
                )
        for group in state_dict["param_groups"]:
            self._check_saved(group)

    def __repr__(self) -> str:
        """Settings per group, without the memory of norms, and those of the whole optimizer."""
        lines = [f"{type(self).__name__} ("]
        for i, group in enumerate(self.param_groups):
            lines += ["Parameter Group " + str(i)]
            for name in sorted(group.keys() - _MEMORIES):
                lines.append(f"    {name}: {group[name]}")
        lines.append("All groups")
        settings = {
            shown: self.__dict__[name] for name, shown in self._shown if name in self.__dict__
        }
        lines += [f"    {name}: {settings[name]}" for name in sorted(settings)]
        return "\n".join([*lines, ")"])

    #: Settings of the whole optimizer that ``repr`` shows, with the arguments they are called by.
    _shown: tuple[tuple[str, str], ...] = (
        ("_norm_clip", "clip"),
        ("_clip", "clip"),
        ("_nonfinite", "nonfinite"),
        ("_project", "project"),
        ("_scope", "scope"),
        ("_spike_guard", "spike_guard"),
        ("_track", "track"),
    )

    def __getstate__(self) -> dict[str, Any]:
        """What a copy or a pickle keeps: groups, states, counts and the optimizer's settings."""
        self._fused.follow_device(self.param_groups)
        # torch's method keeps groups and states only. A copy has no fused plans and no process
        # group of ZeRO.
        names = {"tally", "_joint", *self._own_settings}
        own = {name: value for name, value in self.__dict__.items() if name in names}
        return {**super().__getstate__(), **own}

    #: Settings of the whole optimizer, which a copy or a pickle keeps.
    _own_settings = (
        "_nonfinite",
        "_spike_guard",
        "_project",
        "_track",
        "_scope",
        "_clip",
        "_norm_clip",
    )

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take over what ``__getstate__`` of this or an older version gave, in place. Settings that
        the older one did not have get their defaults; fused plans are made anew.
        """
        super().__setstate__(state)
        self._fused = FusedSteps()
        self.__dict__.setdefault("_everyone", None)
        for group in self.param_groups:
            if "beta" in group:  # the name of this setting in older versions
                group["momentum"] = group.pop("beta")
            # torch puts ``differentiable`` among the defaults of every optimizer.
            for name in self.defaults.keys() - {"differentiable"}:
                group.setdefault(name, self.defaults[name])

    # -- collecting gradients
    # ----------------------------------------------------------------------------------

    #: Threshold of the gradient's norm over all parameters: None, a number, ``"auto"``, ``"unit"``
    #: to divide the gradient by its norm, or ``"noise"`` (see ``mindgap.optim.sides``).
    _norm_clip: float | str | None = None
    #: Whether the gradient's norm is taken at every step for the report.
    _reports_norm = False
    #: Whether the rule itself clips, besides what ``_norm_clip`` does.
    _clips = False

    @torch._disable_dynamo
    def _begin(self, compiling: bool = False) -> list[Batch] | None:
        """Prepare a step: collect the gradients, apply the policies for bad ones, and count it.

        Args:
            compiling: whether torch.compile follows the step.

        Returns:
            One batch per group with gradients, with its ``k`` and ``scale`` (the factor that clips
            their norm) set. None where the step is skipped, on every process alike. An empty list,
            with the step not counted, where no parameter has a gradient.
        """
        batches = [batch for group in self.param_groups if (batch := self._collect(group)).owners]
        if not batches and self._everyone is None:
            return []
        norm = None
        if (
            self._nonfinite != "propagate"
            or self._spike_guard
            or self._norm_clip is not None
            or self._reports_norm
        ):
            # The norm of all gradients, over all processes.
            raws = [g for batch in batches for g in self._raw_grads(batch)]
            _, _, norm = scoped_norms([raws], "all", self._everyone)
            if self._nonfinite != "propagate" and not bool(torch.isfinite(norm)):
                if self._nonfinite == "raise":
                    refuse_nonfinite(self.param_groups)
                self.tally.skipped += 1
                self.tick()
                return None
        self.tick()
        for batch in batches:
            batch.k = batch.group["k"]
        if norm is not None and not self._clip_norm(norm, batches):
            return None
        for batch in batches if compiling else ():
            self._prepare(batch)
        return batches

    def _prepare(self, batch: Batch) -> None:
        """Fill the batch's fields for torch.compile (``rate``, ``started``, ``memory``, ``rows``),
        so that nothing is looked up inside its graph. Makes states that lack, and counts gradients.
        """
        batch.rate = torch.as_tensor(batch.lr, dtype=torch.float64)
        for name in self._used_states(batch.group):
            batch.started[name] = [name in self.state[owner] for owner in batch.owners]
            batch.memory[name] = self._states(batch, name)
        if self._counts_gradients(batch.group):
            batch.rows = self._counted(batch, True)

    @property
    def clips(self) -> bool:
        """Whether it clips gradients, or leaves out those that are too large."""
        return self._clips or self._norm_clip is not None or self._spike_guard is not None

    def tick(self) -> None:
        """Count the step."""
        self.tally.steps += 1
        for group in self.param_groups:
            group["k"] += 1

    @property
    def _norm_eps(self) -> float:
        """What is added to the norm before dividing the threshold by it."""
        return 0.0 if self._norm_clip == "auto" else NORM_EPS

    def _clip_norm(self, norm: Tensor, batches: list[Batch]) -> bool:
        """Turn the norm of all gradients into each batch's ``scale``, the factor on its gradients
        (None for no factor). Where a policy follows the last norms, the norm enters their window in
        the first group. With ``clip="noise"`` each batch also learns whether large gradients
        are noise (``noisy``). The report gets norm, clipping and spikes.

        Args:
            norm: 0-dim, over all processes.

        Returns:
            False where the step must be left out, because of a spike with ``spike_guard="skip"``.
        """
        # ``share``: 1 where the norm is clipped, else 0, for the report.
        head, rule, scale, share = self.param_groups[0], self._norm_clip, None, None
        threshold: Any = rule  # a number as it is; "auto" gets its quantile below
        spike, noisy = False, None
        if rule == "auto" or self._spike_guard:
            window = head["norms"] = head.get("norms", new_window(norm.device)).to(norm.device)
            if self._spike_guard:
                low, high, limit = spike_range(window)
                spike = bool(norm > limit)
            if rule == "auto":
                threshold = running_quantile(window, QUANTILE)
            if rule != "noise" or spike:  # else the judge puts the norm in
                push_(window, norm)
            if spike:
                self.tally.spikes.append(Spike(head["k"], float(norm), float(low), float(limit)))
                if self._spike_guard == "skip":
                    self.tally.skipped += 1
                    return False
                scale = (high / norm).clamp(max=1.0)
        if rule == "noise":
            if not spike:
                scale, noisy = self._judged(norm)
            share = (scale < 1.0).double()  # type: ignore[operator, union-attr]
        elif rule == "unit":
            scale = torch.where(norm == 0, torch.ones_like(norm), 1.0 / norm)
            share = torch.zeros_like(norm)
        elif rule is not None:
            factor = (threshold / (norm + self._norm_eps)).clamp(max=1.0)
            scale = factor if scale is None else torch.minimum(scale, factor)
            share = (norm > threshold).double()
        for batch in batches:
            batch.scale, batch.noisy = scale, noisy
        if rule is not None or self._reports_norm:
            self._note(direction=norm, share=share)
        return True

    def _judged(self, norm: Tensor) -> tuple[Tensor, Tensor]:
        """What ``clip="noise"`` makes of the norm of all gradients: the factor on them, and
        whether large ones are noise; 0-dim, on the norm's device, which is not waited for.
        """
        if norm.device.type != "cpu":
            return judge_(self.param_groups, norm, self._everyone)
        factor, noisy = judge_number_(self.param_groups, float(norm), self._everyone)
        return torch.tensor(factor, dtype=torch.float64), torch.tensor(noisy)

    def _collect(self, group: dict[str, Any]) -> Batch:
        """The parameters of a group that have a gradient, with their gradients, as a batch whose
        ``k`` and ``scale`` are not set yet.

        Raises:
            RuleError: a gradient is sparse.
        """
        batch = Batch(group, [], [], [], 0)
        for p in group["params"]:
            if p.grad is None:
                continue
            if p.grad.is_sparse or p.grad.layout != torch.strided:
                fail(
                    "gradients",
                    f"must be dense ({type(self).__name__} reads every coordinate)",
                    p.grad.layout,
                )
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
        """The gradients as the parameters hold them: complex, or as pieces of DTensors."""
        return [placed(p.grad, p) for p in batch.owners]  # type: ignore[arg-type]

    def _states(self, batch: Batch, name: str) -> list[Tensor]:
        """The named state of the batch's parameters, as real tensors of this process that share
        memory with the optimizer's state; made of zeros where it does not exist.
        """
        return batch.memory[name] if name in batch.memory else self._found_states(batch, name)

    @torch._disable_dynamo
    def _found_states(self, batch: Batch, name: str) -> list[Tensor]:
        """The named states, made where they lack; torch.compile does not look inside."""
        return [self._plain(self._state(p, name)) for p in batch.owners]

    def _raw_states(self, batch: Batch, name: str) -> list[Tensor]:
        """The named states as they are kept: complex, or as pieces of DTensors."""
        return [self._state(p, name) for p in batch.owners]

    def _state(self, p: Tensor, name: str) -> Tensor:
        """A parameter's named state, made of zeros where it does not exist."""
        return state_of(self.state, p, name)

    def _by_count(
        self, batch: Batch, *lists: list[Tensor]
    ) -> Iterator[tuple[Any, tuple[list[Tensor], ...]]]:
        """Walk through aligned lists in blocks of parameters that have seen equally many gradients,
        this step's included, which is counted in their state ``step``.

        Args:
            lists: each with one tensor per parameter of the batch.

        Yields:
            Pairs (k, block). k is the count, an int, or a 0-dim tensor under torch.compile, which
            would otherwise compile every step anew. A block has one list of tensors per given list.
        """
        for k, indices in self._counted(batch, False) if batch.rows is None else batch.rows:
            for block in blocks(
                *([values[i] for i in indices] for values in lists), single=batch.single
            ):
                yield k.to(block[0][0].device) if isinstance(k, Tensor) else k, block

    @torch._disable_dynamo
    def _counted(self, batch: Batch, as_tensor: bool) -> list[tuple[Any, list[int]]]:
        """Count one more gradient of each parameter in its state ``step``.

        Args:
            as_tensor: give the counts as 0-dim float64 tensors, not as ints.

        Returns:
            Pairs (count, indices of the batch's parameters that have this count).
        """
        by_count: dict[int, list[int]] = {}  # count -> indices of parameters
        for i, owner in enumerate(batch.owners):
            state = self.state[owner]
            # float32 on the host, as torch's optimizers keep it, whatever the default dtype.
            state["step"] = (
                state.get("step", torch.zeros((), dtype=torch.float32, device="cpu")) + 1
            )
            by_count.setdefault(int(state["step"]), []).append(i)
        return [
            (torch.tensor(k, dtype=torch.float64) if as_tensor else k, indices)
            for k, indices in by_count.items()
        ]

    def _started(self, batch: Batch, name: str) -> list[tuple[bool, list[int]]]:
        """Sort the batch's parameters by whether they had the named state; those that lacked it
        get zeros.

        Returns:
            Pairs (whether they had it, their indices), True first, without empty lists of indices.
        """
        had_state = batch.started[name] if name in batch.started else self._start(batch, name)
        return [
            (existed, indices)
            for existed in (True, False)
            if (indices := [i for i, had in enumerate(had_state) if had == existed])
        ]

    @torch._disable_dynamo
    def _start(self, batch: Batch, name: str) -> list[bool]:
        """Per parameter of the batch, whether it had the named state; those that lacked it get
        zeros.
        """
        had_state = [name in self.state[owner] for owner in batch.owners]
        self._states(batch, name)
        return had_state

    # -- reporting
    # ---------------------------------------------------------------------------------------------

    @torch._disable_dynamo
    def _note(self, **values: Any) -> None:
        """Hand values of this step to the report."""
        self.tally.note(**values)

    def _sample_share(self) -> None:
        """Count what this step clipped, where that needs a pass of its own."""

    def report(self, *, reset: bool = False) -> Report:
        """How often it clipped, and the norms. It waits for the device.

        Args:
            reset: start counting from zero.
        """
        report = self.tally.report()
        if report.clipped is None and report.steps and not self._clips and self._norm_clip is None:
            report = replace(report, clipped=0.0)
        if reset:
            self.tally.clear()
        return report
