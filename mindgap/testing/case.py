"""One record per optimizer: how to build it, and where it may differ and why."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Any

from mindgap.base.check import fail
from mindgap.testing.loop import drive, loss_of, start, to_evaluate

#: Learning rates that are tried where none is given, for the one that descends farthest. The
#: first is taken where all of them end in NaN.
RATES = (0.05, 0.2, 0.01, 1.0, 0.001)


@dataclass(frozen=True)
class OptimizerCase:
    """How the contracts make an optimizer, and what they know of it."""

    name: str
    build: Callable[..., Any]  # class of the optimizer
    #: arguments under which it descends on the contracts' problem
    settings: dict[str, Any]
    #: further settings that every contract is run with
    variants: dict[str, dict[str, Any]] = field(default_factory=dict)
    #: whether a step needs a closure (and may call it more than once)
    closure: bool = False
    #: how far 20 steps in bfloat16 may be from float32
    bf16_atol: float = 0.157  # derived in ``contracts.bfloat16``
    #: contract -> why it does not apply
    excuses: dict[str, str] = field(default_factory=dict)

    def make(self, params: Any, **changes: Any) -> Any:
        """The optimizer of these parameters, ready to train.

        ``changes`` are arguments that replace the record's ``settings`` or are added to them.
        """
        optimizer = self.build(params, **{**self.settings, **changes})
        if hasattr(optimizer, "train"):  # schedule-free methods refuse to step before
            optimizer.train()
        return optimizer

    def takes(self, argument: str) -> bool:
        """Whether the class has an argument of that name."""
        return argument in arguments_of(self.build)


def arguments_of(build: Callable[..., Any]) -> set[str]:
    """Names of the arguments of a class.

    Where its constructor takes ``**kwargs``, those of its base classes count too, up to the first
    one without ``**kwargs``.
    """
    classes = [base for base in getattr(build, "__mro__", (build,)) if base is not object]
    names: set[str] = set()
    for one_class in classes:
        parameters = inspect.signature(one_class).parameters
        names |= set(parameters)
        if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
            break
    return names


def load_class(name: str) -> Any:
    """The class that ``module:Class`` names.

    Raises:
        RuleError: a text of another form, or a class that cannot be imported.

    Example:
        >>> load_class("torch.optim:SGD").__name__
        'SGD'
        >>> load_class("torch.optim.SGD")
        Traceback (most recent call last):
        mindgap.base.check.RuleError: optimizer must be written module:Class, got 'torch.optim.SGD'
    """
    module, colon, class_name = name.partition(":")
    if not colon or not module or not class_name:
        fail("optimizer", "must be written module:Class", name)
    try:
        loaded = getattr(import_module(module), class_name)
    except (ImportError, AttributeError) as error:
        fail("optimizer", f"must name a class that can be imported ({error})", name)
    return loaded


def case_of(build: Any, settings: dict[str, Any] | None = None) -> OptimizerCase:
    """The record with which the contracts run on anybody's class.

    Args:
        build: the class; its first argument is the parameters.
        settings: its other arguments. A missing ``weight_decay`` is set to 0. A missing ``lr`` is
            the one of ``RATES`` that descends farthest on the contracts' problem in 60 steps. Both
            are left out where the class does not take them.

    Example:
        >>> import torch
        >>> case_of(torch.optim.SGD).settings
        {'weight_decay': 0.0, 'lr': 0.2}
    """
    step = inspect.signature(build.step).parameters
    needs_closure = "closure" in step and step["closure"].default is inspect.Parameter.empty
    all_settings = dict(settings or {})
    case = OptimizerCase(build.__name__, build, all_settings, closure=needs_closure)
    if "weight_decay" not in all_settings and case.takes("weight_decay"):
        all_settings["weight_decay"] = 0.0
    case = replace(case, settings=all_settings)
    if "lr" in all_settings or not case.takes("lr"):
        return case
    final_losses = {}
    for rate in RATES:
        params = start()
        try:
            optimizer = case.make(params, lr=rate)
            drive(case, optimizer, params, steps=60)
            to_evaluate(optimizer)
            final_losses[rate] = float(loss_of(params).detach())
        except Exception:  # what is wrong shows in the contracts
            continue
    losses = {rate: loss for rate, loss in final_losses.items() if not math.isnan(loss)}
    best_rate = min(losses, key=lambda rate: losses[rate]) if losses else RATES[0]
    return replace(case, settings={**all_settings, "lr": best_rate})
