"""torch's own machinery for optimizer tests (``torch.testing._internal``), with ``OptimizerInfo``
records of ours.

The wheel ships the records, inputs, error inputs and trackers; the test functions of torch's
``test_optim.py`` are not in it, so what they ask for is asked here again. An excuse stands in the
record, with its reason.
"""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from torch.nn import Parameter

warnings.filterwarnings("ignore", category=DeprecationWarning)
warnings.filterwarnings(
    "ignore", "Fail to import hypothesis", ImportWarning
)  # torch's tests would use it, ours do not
pytest.importorskip("expecttest")
from torch.optim import lr_scheduler  # noqa: E402
from torch.testing._internal.common_optimizers import (  # noqa: E402
    ErrorOptimizerInput,
    OptimizerInfo,
    OptimizerInput,
    TensorTracker,
    get_error_inputs_for_all_optims,
)
from torch.testing._internal.common_utils import TestCase  # noqa: E402

from mindgap.optim import (  # noqa: E402
    INGD,
    SGD,
    ACClip,
    AdamW,
    CClip,
    GClip,
    NormalizedSGD,
    StochasticINGD,
)

#: For every class: what it needs, and the settings that its record lists.
SETTINGS = {
    AdamW: (
        {},
        [
            {"clip": 1.0},
            {"clip": None, "weight_decay": 0.1},
            {"betas": (0.8, 0.9), "spike_guard": "skip"},
        ],
    ),
    SGD: (
        {"lr": 0.02},
        [
            {"momentum": 0.9, "clip": 1.0},
            {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1, "clip": None},
        ],
    ),
    GClip: (
        {"lr": 0.02, "tau": 1.0},
        [{"beta": 0.9}, {"beta": 0.9, "clip": "momentum"}, {"tau": "auto", "beta": 0.5}],
    ),
    CClip: ({"lr": 0.02, "tau": 0.5}, [{"beta": 0.9}, {"tau": "auto"}, {"weight_decay": 0.1}]),
    ACClip: (
        {},
        [
            {"form": "second_moment"},
            {"form": "algorithm", "lr": 0.5, "clip": None},
            {"weight_decay": 0.1},
        ],
    ),
    NormalizedSGD: (
        {"lr": 0.02},
        [{"beta": 0.9, "damping": 0.1}, {"scope": "tensor", "weight_decay": 0.1}],
    ),
    StochasticINGD: ({}, [{"clip": None}, {"weight_decay": 0.1, "beta": 0.5}]),
    INGD: ({"lr": 0.02, "epsilon": 0.01, "lipschitz": 20.0, "inner": 8}, [{"seed": 3}]),
}
#: Class -> test -> why it is left out.
EXCUSES = {
    "all": {
        "invalid param type": "RuleError, not TypeError: bad arguments have one error here",
        "Tensor lr must be 1-element": "the same rule in our words: 'lr must have one real "
        "element ...'",
    },
    "INGD": {
        "groups": "one search over one vector: all groups have the same lr",
        "fused": "the algorithm has no fused form",
    },
}


def inputs_of(cls):
    needed, more = SETTINGS[cls]
    inputs = [OptimizerInput(params=None, kwargs=dict(needed), desc="default")]
    inputs += [
        OptimizerInput(params=None, kwargs={**needed, **extra}, desc=str(extra)) for extra in more
    ]
    inputs.append(OptimizerInput(params=None, kwargs={**needed, "maximize": True}, desc="maximize"))
    return inputs


def record(cls):
    return OptimizerInfo(
        cls,
        optim_inputs_func=lambda device, dtype=None: inputs_of(cls),
        scheduler_inputs=(
            [lambda o: lr_scheduler.StepLR(o, gamma=0.9, step_size=3)],
            [
                lambda o: lr_scheduler.CosineAnnealingLR(o, T_max=4),
                lambda o: lr_scheduler.ReduceLROnPlateau(o),
            ],
            [lambda o: lr_scheduler.OneCycleLR(o, 0.01, total_steps=60)],
            [lambda o: lr_scheduler.CyclicLR(o, 0.001, 0.02, step_size_up=3)],
        ),
        supported_impls=("foreach", "fused"),
        not_og_supported_flags=("fused", "foreach", "maximize"),
        step_requires_closure=cls is INGD,
        optim_error_inputs_func=get_error_inputs_for_all_optims,
        supports_fused_on=("cpu", "cuda"),
    )


INFOS = [record(cls) for cls in SETTINGS]


def excused(info, test):
    return EXCUSES["all"].get(test) or EXCUSES.get(info.name, {}).get(test)


def all_infos(test=""):
    return pytest.mark.parametrize(
        "info", [pytest.param(i, id=i.name) for i in INFOS if not excused(i, test)]
    )


def made(info, entry, params, **changes):
    return info.optim_cls(params, **{**entry.kwargs, **changes})


def problem(dtype=torch.float64):
    weight = Parameter(torch.linspace(-1, 1, 50).reshape(10, 5).to(dtype).detach())
    bias = Parameter(torch.linspace(-0.5, 1, 10).to(dtype).detach())
    x = torch.linspace(0, 1, 5, dtype=dtype)

    def closure_of(optimizer):
        def closure():
            optimizer.zero_grad()
            loss = (weight.mv(x) + bias).square().sum() * (
                -1.0 if optimizer.param_groups[0]["maximize"] else 1.0
            )
            loss.backward()
            return loss

        return closure

    return [weight, bias], closure_of


def run(info, entry, steps, *, dtype=torch.float64, schedulers=(), **changes):
    params, closure_of = problem(dtype)
    optimizer = made(info, entry, params, **changes)
    closure = closure_of(optimizer)
    schedules = [make(optimizer) for make in schedulers]
    losses = []
    for _ in range(steps):
        losses.append(float(closure().detach()))
        optimizer.step(closure if info.step_requires_closure else None)
        for schedule in schedules:
            schedule.step(
                *([losses[-1]] if isinstance(schedule, lr_scheduler.ReduceLROnPlateau) else [])
            )
    getattr(optimizer, "eval", lambda: None)()
    losses.append(float(closure().detach()))
    return params, optimizer, losses


@all_infos()
def test_goes_in_the_right_direction(info):
    for entry in info.optim_inputs_func(device="cpu"):
        for foreach in (None, False):
            _, optimizer, losses = run(info, entry, 20, foreach=foreach)
            better = losses[-1] < losses[0]
            assert better != bool(optimizer.param_groups[0]["maximize"]), entry.desc


@all_infos()
def test_goes_in_the_right_direction_with_schedulers(info):
    for schedulers in info.scheduler_inputs:
        entry = info.optim_inputs_func(device="cpu")[0]
        _, _, losses = run(info, entry, 20, schedulers=schedulers)
        assert losses[-1] < losses[0]


@all_infos("tensor_lr")
@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_tensor_lr(info, shape):
    for entry in info.optim_inputs_func(device="cpu"):
        lr = entry.kwargs.get("lr", 1e-3 if info.name != "StochasticINGD" else 1.0)
        plain, _, _ = run(info, entry, 5, lr=lr)
        tensor, _, _ = run(info, entry, 5, lr=torch.full(shape, lr, dtype=torch.float64))
        for a, b in zip(plain, tensor):
            torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


@all_infos("fused")
@pytest.mark.parametrize(
    ("which", "dtype"),
    [
        *(("foreach", d) for d in (torch.float64, torch.float32, torch.bfloat16, torch.float16)),
        *(("fused", d) for d in (torch.float64, torch.float32)),
    ],
)
def test_forms_match_the_plain_loop(info, dtype, which):
    """As torch's test: after every step the second form is set to the first's numbers, which
    are compared.
    """
    tolerance = {
        torch.float64: 1e-9,
        torch.float32: 1e-4,
        torch.bfloat16: 1e-2,
        torch.float16: 2e-3,
    }[dtype]
    for entry in info.optim_inputs_func(device="cpu"):
        tracker = TensorTracker(assert_eq_kwargs={"rtol": tolerance, "atol": tolerance})
        for options in (
            {"foreach": False},
            {which: True},
        ):
            params, closure_of = problem(dtype)
            optimizer = made(info, entry, params, **options)
            closure = closure_of(optimizer)
            for k in range(7):
                closure()
                if k == 3:
                    params[1].grad = None
                optimizer.step()
                for p in params:
                    if options.get("foreach") is False:
                        tracker.add(p)
                    else:
                        tracker.pop_check_set(p, TestCase("assertEqual"))
            assert optimizer._fused.used == (options.get("fused") is True)
        assert tracker.all_popped()


@all_infos()
def test_zero_gradients_move_only_what_decay_moves(info):
    for entry in info.optim_inputs_func(device="cpu"):
        params, _ = problem()
        decay = {} if info.name == "INGD" else {"weight_decay": 0.0}
        optimizer = made(info, entry, params, **decay)
        before = [p.detach().clone() for p in params]

        def closure(optimizer=optimizer, params=params):
            for p in params:
                p.grad = torch.zeros_like(p)
            return torch.zeros(())

        for _ in range(3):
            optimizer.step(closure)
        assert all(torch.equal(a, b) for a, b in zip(before, params)), entry.desc


@all_infos()
def test_without_gradients_nothing_happens(info):
    for entry in info.optim_inputs_func(device="cpu"):
        params, _ = problem()
        before = [p.detach().clone() for p in params]
        optimizer = made(info, entry, params)
        optimizer.step((lambda: torch.zeros(())) if info.step_requires_closure else None)
        assert all(torch.equal(a, b) for a, b in zip(before, params))


@all_infos("groups")
def test_groups_with_lr_and_weight_decay(info):
    for entry in info.optim_inputs_func(device="cpu"):
        params, closure_of = problem()
        groups = [{"params": params[:1], "weight_decay": 0.05}, {"params": params[1:], "lr": 0.0}]
        optimizer = made(info, entry, groups)
        before = params[1].detach().clone()
        closure = closure_of(optimizer)
        first = float(closure().detach())
        for _ in range(20):
            closure()
            optimizer.step()
        getattr(optimizer, "eval", lambda: None)()
        assert (float(closure().detach()) < first) != bool(optimizer.param_groups[0]["maximize"])
        assert torch.equal(before, params[1])


@all_infos()
def test_older_state_dicts_load(info):
    """Flags that came later are missing there."""
    for entry in info.optim_inputs_func(device="cpu"):
        params, optimizer, _ = run(info, entry, 3)
        old = copy.deepcopy(optimizer.state_dict())
        for group in old["param_groups"]:
            for flag in info.not_og_supported_flags:
                group.pop(flag, None)
        again = made(info, entry, params)
        again.load_state_dict(old)
        assert all(
            flag in group for group in again.param_groups for flag in info.not_og_supported_flags
        )


@all_infos()
def test_named_parameters_and_hooks_survive_a_state_dict(info):
    for entry in info.optim_inputs_func(device="cpu"):
        params, closure_of = problem()
        named = list(zip(("weight", "bias"), params))
        optimizer = made(info, entry, named)
        optimizer.step(closure_of(optimizer))
        saved = optimizer.state_dict()
        assert saved["param_groups"][0]["param_names"] == ["weight", "bias"]
        other = made(info, entry, named)
        other.register_load_state_dict_pre_hook(lambda o, d: d)
        other.load_state_dict(saved)
        for p in params:
            for name, value in optimizer.state[p].items():
                if isinstance(value, torch.Tensor):
                    assert torch.equal(value, other.state[p][name])


@all_infos()
def test_errors(info):
    for error in info.optim_error_inputs_func(device="cpu", dtype=torch.float32):
        assert isinstance(error, ErrorOptimizerInput)
        given = error.optimizer_error_input
        if excused(info, given.desc):
            continue
        params = given.params if given.params is not None else [Parameter(torch.ones(1, 1))]
        kwargs = {**SETTINGS[info.optim_cls][0], **given.kwargs}
        if issubclass(error.error_type, Warning):
            with pytest.warns(error.error_type, match=error.error_regex):
                info.optim_cls(params, **kwargs)
        else:
            with pytest.raises(error.error_type, match=error.error_regex):
                info.optim_cls(params, **kwargs)
