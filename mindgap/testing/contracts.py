"""What people expect of a torch optimizer: one function per contract.

Each takes a record (``mindgap.testing.case``) and settings that differ from it, and raises an error
where the contract is broken, or :class:`NotApplicable` where the class does not offer what the
contract is about. All of them train on the problem of ``mindgap.testing.loop``: ``start()`` returns
its three parameters (a matrix, a number and a vector), ``drive`` takes steps on its loss.
"""

from __future__ import annotations

import copy
import io
import math
import pickle
import re
from collections.abc import Callable
from typing import Any

import torch

from mindgap.testing.case import OptimizerCase
from mindgap.testing.loop import (
    SHAPES,
    assert_same,
    closure_of,
    drive,
    loss_of,
    start,
    to_evaluate,
    values,
)

#: Arguments of the optimizer that replace the record's settings.
Changes = dict[str, Any]
#: Steps after which every parameter must have moved; some rules (RAdam's) wait for a few.
WARM = 10
#: Relative and absolute difference of float64 steps that are equal up to rounding.
ROUNDING = {"rtol": 1e-12, "atol": 1e-12}


class NotApplicable(Exception):
    """The class does not offer what a contract is about; the text says what."""


def _ask_for(case: OptimizerCase, argument: str) -> None:
    """Raise ``NotApplicable`` where the class has no such argument."""
    if not case.takes(argument):
        raise NotApplicable(f"it has no argument {argument}")


def descends(case: OptimizerCase, changes: Changes, *, maximize: bool | None = None) -> None:
    """60 steps lower the loss by more than 1.

    Args:
        case: the optimizer's record.
        changes: further arguments of the optimizer.
        maximize: handed to the optimizer unless None; with True it is given the negative loss, so
            that the loss falls all the same.
    """
    params = start()
    direction = {} if maximize is None else {"maximize": maximize}
    optimizer = case.make(params, **changes, **direction)
    before = float(loss_of(params).detach())
    drive(case, optimizer, params, steps=60, sign=-1.0 if maximize else 1.0)
    to_evaluate(optimizer)
    after = float(loss_of(params).detach())
    assert after < before - 1.0, f"the loss went from {before:.3g} to {after:.3g}"


def maximize(case: OptimizerCase, changes: Changes) -> None:
    """``maximize=True`` on the loss takes the steps of a minimiser on the negative loss."""
    _ask_for(case, "maximize")
    ascending, descending = start(), start()
    up = case.make(ascending, maximize=True, **changes)
    down = case.make(descending, **changes)
    drive(case, up, ascending, steps=15)
    drive(case, down, descending, steps=15, sign=-1.0)
    assert_same(ascending, descending, **ROUNDING)


def nan_shows(case: OptimizerCase, changes: Changes) -> None:
    """A gradient of NaN reaches the parameters, or raises an error that names it."""
    params = start()
    optimizer = case.make(params, **changes)
    try:
        drive(case, optimizer, params, loss=lambda ps: loss_of(ps) + (ps[0] * math.nan).sum())
    except Exception as error:
        if re.search(r"nan|finite|inf", str(error), re.IGNORECASE):
            return
        raise
    to_evaluate(optimizer)
    swallowed = bool(torch.isfinite(params[0]).all())
    assert not swallowed, (
        "a gradient of NaN must reach the parameters (torch.sign, for one, turns it into 0)"
    )


def gradients_are_read_only(case: OptimizerCase, changes: Changes) -> None:
    """A step leaves ``p.grad`` bit for bit as it was.

    It must do so with ``maximize`` and with weight decay too, where the class has them.
    """
    _compare_gradients_around_steps(case, changes)
    for name, value in (("maximize", True), ("weight_decay", 0.1)):
        if case.takes(name):
            _compare_gradients_around_steps(case, {**changes, name: value})


def _compare_gradients_around_steps(case: OptimizerCase, changes: Changes) -> None:
    """Take five steps, and raise an error where one of them changes a gradient."""
    params: list[Any] = start()
    optimizer = case.make(params, **changes)
    compute = closure_of(optimizer, params)
    gradients_before: list[Any] = []

    def closure() -> Any:
        """The value of the loss; the gradients are copied once they are computed."""
        value = compute()
        gradients_before[:] = [p.grad.clone() for p in params]
        return value

    for _ in range(5):
        if case.closure:
            optimizer.step(closure)
        else:
            closure()
            optimizer.step()
        assert_same([p.grad for p in params], gradients_before)


def missing_gradients(case: OptimizerCase, changes: Changes) -> None:
    """A parameter without a gradient stays where it is, while another one moves.

    Before the first backward pass no parameter has one. Then the loss uses parameters 0 and 2 only.
    """
    params = start()
    optimizer = case.make(params, **changes)
    before = values(params)
    if not case.closure:
        optimizer.step()
        assert_same(before, params)
    drive(case, optimizer, params, steps=WARM, loss=lambda ps: loss_of(ps, used=(0, 2)))
    to_evaluate(optimizer)
    assert torch.equal(before[1], params[1])
    assert not torch.equal(before[0], params[0])


def frozen_and_thawed(case: OptimizerCase, changes: Changes) -> None:
    """A parameter frozen in mid-run stays where it is, and moves again when it is thawed."""
    params = start()
    optimizer = case.make(params, **changes)
    drive(case, optimizer, params, steps=2)
    params[0].requires_grad_(False)
    frozen = values(params)
    drive(case, optimizer, params, steps=2)
    assert torch.equal(frozen[0], params[0])
    params[0].requires_grad_(True)
    drive(case, optimizer, params, steps=WARM)
    assert not torch.equal(frozen[0], params[0])


def zero_gradients(case: OptimizerCase, changes: Changes) -> None:
    """Gradients of zero change nothing (without weight decay)."""
    params = start()
    no_decay = {"weight_decay": 0.0} if "weight_decay" in changes else {}
    optimizer = case.make(params, **{**changes, **no_decay})
    before = values(params)
    drive(case, optimizer, params, steps=3, loss=lambda ps: 0.0 * loss_of(ps))
    assert_same(before, params)


def order(case: OptimizerCase, changes: Changes) -> None:
    """Parameters handed over in the opposite order take the same steps."""
    forwards, backwards = start(), start()
    drive(case, case.make(forwards, **changes), forwards, steps=15)
    drive(case, case.make(backwards[::-1], **changes), backwards, steps=15)
    assert_same(forwards, backwards, rtol=1e-9, atol=1e-9)


def groups(case: OptimizerCase, changes: Changes) -> None:
    """Groups have their own settings: one whose learning rate is 1e-28 stays where it is."""
    _ask_for(case, "lr")
    params = start()
    two_groups = [{"params": params[:1]}, {"params": params[1:], "lr": 1e-28}]
    optimizer = case.make(two_groups, **changes)
    before = values(params)
    drive(case, optimizer, params, steps=WARM)
    to_evaluate(optimizer)
    assert not torch.equal(before[0], params[0])
    if not changes.get("weight_decay"):
        assert_same(before[1:], values(params[1:]))


def added_group(case: OptimizerCase, changes: Changes) -> None:
    """A group added in mid-run is trained, and the others go on."""
    params = start()
    optimizer = case.make(params[:2], **changes)
    drive(case, optimizer, params, steps=3)
    optimizer.add_param_group({"params": params[2:]})
    if hasattr(optimizer, "train"):  # schedule-free methods refuse to step before
        optimizer.train()
    before = values(params)
    drive(case, optimizer, params, steps=WARM)
    to_evaluate(optimizer)
    assert all(not torch.equal(b, p) for b, p in zip(before, params))


def tensor_lr(case: OptimizerCase, changes: Changes) -> None:
    """``lr`` may be a tensor, and the steps are then those of the same number."""
    _ask_for(case, "lr")
    floats, tensors = start(), start()
    lr = changes.get("lr", case.settings.get("lr", 1.0))
    drive(case, case.make(floats, **changes), floats, steps=10)
    try:
        tensor = torch.tensor(lr, dtype=torch.float64)
        optimizer = case.make(tensors, **{**changes, "lr": tensor})
    except Exception as error:
        raise NotApplicable(f"it refuses a tensor as lr ({error})") from error
    drive(case, optimizer, tensors, steps=10)
    assert_same(floats, tensors, **ROUNDING)


def schedulers() -> dict[str, Callable[[Any], Any]]:
    """Name of a scheduler of torch -> what makes one for an optimizer, for a run of a few steps.

    Each of them changes the learning rate within its first six steps. Below, ``o`` is the optimizer
    and ``e`` the number of steps that the scheduler has counted.
    """
    sched = torch.optim.lr_scheduler
    return {
        "LambdaLR": lambda o: sched.LambdaLR(o, lambda e: 0.5**e),
        "MultiplicativeLR": lambda o: sched.MultiplicativeLR(o, lambda e: 0.9),
        "StepLR": lambda o: sched.StepLR(o, 2),
        "MultiStepLR": lambda o: sched.MultiStepLR(o, [1, 3]),
        "ConstantLR": lambda o: sched.ConstantLR(o),
        "LinearLR": lambda o: sched.LinearLR(o),
        "ExponentialLR": lambda o: sched.ExponentialLR(o, 0.8),
        "PolynomialLR": lambda o: sched.PolynomialLR(o, 4),
        "CosineAnnealingLR": lambda o: sched.CosineAnnealingLR(o, 4),
        "CosineAnnealingWarmRestarts": lambda o: sched.CosineAnnealingWarmRestarts(o, 2),
        "CyclicLR": lambda o: sched.CyclicLR(o, 0.01, 0.1, step_size_up=2),
        "OneCycleLR": lambda o: sched.OneCycleLR(o, 0.1, total_steps=9),
        "ReduceLROnPlateau": lambda o: sched.ReduceLROnPlateau(o, patience=0),
        "SequentialLR": lambda o: sched.SequentialLR(
            o, [sched.ConstantLR(o), sched.ExponentialLR(o, 0.5)], [2]
        ),
        "ChainedScheduler": lambda o: sched.ChainedScheduler(
            [sched.ConstantLR(o), sched.ExponentialLR(o, 0.5)]
        ),
        "SWALR": lambda o: torch.optim.swa_utils.SWALR(o, 0.01, anneal_epochs=2),
    }


def scheduler(case: OptimizerCase, changes: Changes, name: str = "StepLR") -> None:
    """A run that follows a scheduler equals one in which its settings are set by hand.

    All schedulers move the learning rate. CyclicLR and OneCycleLR also move the momentum (or the
    first of ``betas``).

    Args:
        case: the optimizer's record.
        changes: further arguments of the optimizer.
        name: of the scheduler, a key of :func:`schedulers`.
    """
    _ask_for(case, "lr")
    followed, by_hand = start(), start()  # parameters of the two runs
    moved_settings: list[dict[str, Any]] = []  # of each step: name -> value
    optimizer = case.make(followed, **changes)
    schedule = schedulers()[name](optimizer)
    names = [n for n in ("lr", "momentum", "betas") if n in optimizer.param_groups[0]]
    plateau_loss = [1.0] if name == "ReduceLROnPlateau" else []  # it alone is told the loss
    for _ in range(6):
        moved_settings.append({n: optimizer.param_groups[0][n] for n in names})
        drive(case, optimizer, followed)
        schedule.step(*plateau_loss)
    assert len({settings["lr"] for settings in moved_settings}) > 1
    if name in ("CyclicLR", "OneCycleLR"):  # something beside the learning rate must have moved
        first, third = moved_settings[0], moved_settings[2]
        assert first != {**third, "lr": first["lr"]}
    optimizer = case.make(by_hand, **changes)
    for settings in moved_settings:
        optimizer.param_groups[0].update(settings)
        drive(case, optimizer, by_hand)
    assert_same(followed, by_hand)


def resumes_bitwise(case: OptimizerCase, changes: Changes) -> None:
    """A run saved and loaded in mid-run goes on bit for bit.

    It is loaded by ``torch.load(weights_only=True)`` into new parameters and a new optimizer.
    """
    params = start()
    optimizer = case.make(params, **changes)
    drive(case, optimizer, params, steps=7)
    file = io.BytesIO()
    torch.save({"model": values(params), "optimizer": optimizer.state_dict()}, file)
    drive(case, optimizer, params, steps=10)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    resumed: list[Any] = [torch.nn.Parameter(v) for v in saved["model"]]
    resumed_optimizer = case.make(resumed, **changes)
    resumed_optimizer.load_state_dict(saved["optimizer"])
    drive(case, resumed_optimizer, resumed, steps=10)
    assert_same(params, resumed)


def copies(case: OptimizerCase, changes: Changes, how: str = "deepcopy") -> tuple[Any, Any]:
    """A copy takes the same steps, and stays where it is while the original takes them.

    Args:
        case: the optimizer's record.
        changes: further arguments of the optimizer.
        how: ``"deepcopy"``, or ``"pickle"`` for a copy by pickling.

    Returns:
        The original optimizer and its copy.
    """
    params = start()
    optimizer = case.make(params, **changes)
    drive(case, optimizer, params, steps=4)
    if how == "deepcopy":
        twin_params, twin = copy.deepcopy((params, optimizer))
    else:
        twin_params, twin = pickle.loads(pickle.dumps((params, optimizer)))
    twin_before = values(twin_params)
    drive(case, optimizer, params, steps=5)
    assert_same(twin_before, twin_params)
    drive(case, twin, twin_params, steps=5)
    assert_same(params, twin_params)
    return optimizer, twin


def hooks(case: OptimizerCase, changes: Changes) -> None:
    """Hooks before and after a step, and around ``state_dict``, run once each.

    After their removal they run no more.
    """
    params = start()
    called: list[str] = []
    optimizer = case.make(params, **changes)
    handles = [
        optimizer.register_step_pre_hook(lambda *a: called.append("pre")),
        optimizer.register_step_post_hook(lambda *a: called.append("post")),
        optimizer.register_state_dict_pre_hook(lambda o: called.append("state")),
        optimizer.register_load_state_dict_post_hook(lambda o: called.append("load")),
    ]
    drive(case, optimizer, params, steps=2)
    optimizer.load_state_dict(optimizer.state_dict())
    assert called == ["pre", "post", "pre", "post", "state", "load"]
    for handle in handles:
        handle.remove()
    drive(case, optimizer, params)
    assert len(called) == 6  # nothing was added


def closure_gives_the_loss(case: OptimizerCase, changes: Changes) -> None:
    """``step(closure)`` returns what the closure returned, and calls it with gradients on."""
    params = start()
    calls: list[float] = []
    optimizer = case.make(params, **changes)
    compute = closure_of(optimizer, params)

    def closure() -> Any:
        """The value of the loss with its gradients computed; it is noted in ``calls``."""
        value = compute()
        calls.append(float(value.detach()))
        return value

    expected = float(loss_of(params).detach())
    assert float(optimizer.step(closure).detach()) == expected
    assert calls[0] == expected
    assert len(calls) == 1 or case.closure  # only a method that needs a closure may call it again


def non_contiguous(case: OptimizerCase, changes: Changes) -> None:
    """Parameters that are not contiguous in memory take the steps of contiguous ones.

    The matrix is a transposed one, the others are every second entry of a larger tensor.
    """
    plain = start()
    strided: list[Any] = []
    for p in plain:
        if p.dim() == 2:
            view = torch.zeros(p.shape[::-1], dtype=p.dtype).t()
        else:
            view = torch.zeros((*p.shape, 2), dtype=p.dtype)[..., 0]
        strided.append(torch.nn.Parameter(view.copy_(p.detach())))
    assert not strided[0].is_contiguous()
    assert not strided[2].is_contiguous()
    for params in (plain, strided):
        drive(case, case.make(params, **changes), params, steps=10)
    assert_same(plain, strided, **ROUNDING)


def bfloat16(case: OptimizerCase, changes: Changes) -> None:
    """20 steps in bfloat16 stay near those in float32, and the parameters keep their dtype.

    Near means within the record's ``bf16_atol``; both begin at the same values.
    """
    narrow = start(torch.bfloat16)
    wide: list[Any] = [torch.nn.Parameter(p.detach().float()) for p in start(torch.bfloat16)]
    for params in (narrow, wide):
        optimizer = case.make(params, **changes)
        drive(case, optimizer, params, steps=20)
        to_evaluate(optimizer)
    # 20 steps, each rounded by at most half of bf16's spacing between 2 and 4, 2^-6/2: at most
    # 20·2^-7 = 0.157 apart.
    assert_same([p.float() for p in narrow], wide, rtol=0, atol=case.bf16_atol)
    assert all(p.dtype == torch.bfloat16 for p in narrow)
    assert not torch.equal(narrow[0], start(torch.bfloat16)[0])


def complex_numbers(case: OptimizerCase, changes: Changes) -> None:
    """Complex parameters take the steps of real ones that hold (real, imaginary) pairs.

    With a closure both compute their gradients themselves. Without one each gradient of the
    complex parameters is copied to the pairs.
    """
    generator = torch.Generator().manual_seed(0)
    first_values = [
        torch.randn(shape, generator=generator, dtype=torch.complex128) for shape in SHAPES
    ]
    complexes: list[Any] = [torch.nn.Parameter(value.clone()) for value in first_values]
    trial: list[Any] = [torch.nn.Parameter(value.clone()) for value in first_values]  # one step
    pairs: list[Any] = [
        torch.nn.Parameter(torch.view_as_real(value).clone()) for value in first_values
    ]
    try:
        drive(case, case.make(trial, **changes), trial)
    except Exception as error:
        if "complex" not in str(error).lower():
            raise
        raise NotApplicable(f"it refuses complex parameters ({error})") from error
    if case.closure:
        drive(case, case.make(complexes, **changes), complexes, steps=8)
        drive(
            case,
            case.make(pairs, **changes),
            pairs,
            steps=8,
            loss=lambda ps: loss_of([torch.view_as_complex(p) for p in ps]),
        )
    else:
        optimizer, optimizer_of_pairs = case.make(complexes, **changes), case.make(pairs, **changes)
        for _ in range(8):
            drive(case, optimizer, complexes)
            for value, p in zip(complexes, pairs):
                p.grad = torch.view_as_real(value.grad).clone()
            optimizer_of_pairs.step()
    assert_same([torch.view_as_real(value) for value in complexes], pairs, **ROUNDING)


def foreach(case: OptimizerCase, changes: Changes) -> None:
    """``foreach`` True, False and None (the class chooses) take the same steps.

    Parameter 2 is frozen in mid-run, so that states of different ages meet. Parameters and states
    are compared with those of False, the plain loop.
    """
    _ask_for(case, "foreach")
    ends = {}  # value of ``foreach`` -> final parameters and states
    for choice in (None, True, False):
        params = start()
        optimizer = case.make(params, foreach=choice, **changes)
        drive(case, optimizer, params, steps=3)
        params[2].requires_grad_(False)
        drive(case, optimizer, params, steps=2, loss=lambda ps: loss_of(ps, used=(0, 1)))
        params[2].requires_grad_(True)
        drive(case, optimizer, params, steps=2)
        states = [
            value
            for p in params
            for _, value in sorted(optimizer.state[p].items())
            if isinstance(value, torch.Tensor)
        ]
        ends[choice] = values(params) + states
    assert_same(ends[None], ends[False], **ROUNDING)
    assert_same(ends[True], ends[False], **ROUNDING)


def grad_scaler(case: OptimizerCase, changes: Changes) -> None:
    """``torch.amp.GradScaler`` changes no step, and leaves one with an infinite gradient out.

    Of six steps the fourth gets an infinite gradient. The run without a scaler takes the other
    five, in float32, so that both are equal up to its rounding.
    """
    if case.closure:
        raise NotApplicable("GradScaler.step takes no closure")
    scaled, plain = start(torch.float32), start(torch.float32)
    scaled_optimizer, plain_optimizer = case.make(scaled, **changes), case.make(plain, **changes)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    for step in range(6):
        scaled_optimizer.zero_grad()
        scaler.scale(loss_of(scaled)).backward()
        if step == 3:
            scaled[0].grad[0, 0] = float("inf")
            before = values(scaled)
        scaler.step(scaled_optimizer)
        scaler.update()
        if step == 3:
            assert_same(before, scaled)
        else:
            drive(case, plain_optimizer, plain)
    assert_same(scaled, plain, rtol=1e-5, atol=1e-6)


def compiles(case: OptimizerCase, changes: Changes) -> None:
    """``torch.compile`` of the step gives the eager steps, and compiles no graph per step.

    Resets the caches of ``torch.compile``.
    """
    eager, compiled = start(), start()
    eager_optimizer, optimizer = case.make(eager, **changes), case.make(compiled, **changes)
    torch._dynamo.reset()

    def closure() -> Any:
        """The loss at the compiled run's parameters, whose gradients are computed in place."""
        optimizer.zero_grad(set_to_none=False)
        value = loss_of(compiled)
        value.backward()
        return value.detach()

    @torch.compile(backend="eager")
    def step() -> None:
        optimizer.step(closure) if case.closure else optimizer.step()

    # The first steps make states and meet a second step number; after that nothing may be compiled
    # again.
    # A graph for each of the eight steps would be more than the limit.
    with torch._dynamo.config.patch(recompile_limit=4, fail_on_recompile_limit_hit=True):
        for _ in range(8):
            drive(case, eager_optimizer, eager)
            if not case.closure:
                closure()
            step()
    assert_same(eager, compiled, rtol=1e-10, atol=1e-12)


#: Every contract by name, as the table of docs/contracts.md and ``excuses`` call it.
CONTRACTS: dict[str, Callable[[OptimizerCase, Changes], Any]] = {
    "descends": descends,
    "maximize": maximize,
    "nan": nan_shows,
    "gradients": gradients_are_read_only,
    "missing": missing_gradients,
    "frozen": frozen_and_thawed,
    "zero": zero_gradients,
    "order": order,
    "groups": groups,
    "added group": added_group,
    "tensor lr": tensor_lr,
    "scheduler": scheduler,
    "resume": resumes_bitwise,
    "copy": copies,
    "hooks": hooks,
    "closure": closure_gives_the_loss,
    "strides": non_contiguous,
    "bfloat16": bfloat16,
    "complex": complex_numbers,
    "foreach": foreach,
    "scaler": grad_scaler,
    "compile": compiles,
}


def outcomes(case: OptimizerCase) -> dict[str, str]:
    """Run every contract on a class.

    Returns:
        Contract -> ``"kept"``, ``"not offered: <reason>"`` or ``"broken: <error>"``.
    """
    outcome_of = {}
    for name, contract in CONTRACTS.items():
        try:
            contract(case, {})
            outcome_of[name] = "kept"
        except NotApplicable as reason:
            outcome_of[name] = f"not offered: {reason}"
        except Exception as error:
            first_line = next(iter(str(error).strip().splitlines()), "")
            outcome_of[name] = f"broken: {type(error).__name__}: {first_line}"
    return outcome_of
