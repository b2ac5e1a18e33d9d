"""What a user sets: rates as functions of the iteration, the steps that they multiply, and fields
of a method that say their rule once (:class:`~mindgap.bilevel.method.Method` checks them all).

lr_x: Rate = rate(exponent=0.5)      # a number c means c / (1 + t)^0.5
inner: int = count(10)               # a whole number of at least 1, by default 10
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import MISSING, Field, dataclass, field, fields, replace
from functools import cache, lru_cache
from typing import Any, Literal, TypeVar, cast, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mindgap.base import check
from mindgap.base.calls import call
from mindgap.base.check import check_call, fail
from mindgap.bilevel.core.types import Array, Ops, Scalar

#: One iteration, or an array of them.
Times = int | NDArray[np.int64]


@dataclass(frozen=True)
class Power:
    """``c / (t + shift) ** exponent``.

    Example:
        >>> Power(1.0, 0.5)(3)
        0.5
        >>> Power(2.0, 1.0)(np.arange(3)).round(4).tolist()
        [2.0, 1.0, 0.6667]
    """

    c: float
    exponent: float
    shift: float = 1.0

    def __post_init__(self) -> None:
        check.positive("c", self.c)
        check.non_negative("exponent", self.exponent)
        check.positive("shift", self.shift)

    def __call__(self, t: Times) -> Any:
        return self.c / (t + self.shift) ** self.exponent


@dataclass(frozen=True)
class Constant:
    """The same number at every iteration.

    Example:
        >>> Constant(0.1)(7)
        0.1
    """

    c: float

    def __post_init__(self) -> None:
        check.non_negative("c", self.c)

    def __call__(self, t: Times) -> Any:
        return self.c


def storm_weight(c: float, eta: Callable[[Any], Any], t: Times) -> Any:
    """STORM's weight from the steps ``eta``: ``a_0 = 1`` and ``a_{t+1} = min(1, c * eta_t ** 2)``.

    Example:
        >>> [round(storm_weight(0.5, Power(1.0, 1 / 3), t), 6) for t in (0, 1, 8)]
        [1.0, 0.5, 0.125]
    """
    t_before = np.maximum(np.asarray(t) - 1, 0)
    weight = np.where(np.asarray(t) == 0, 1.0, np.minimum(1.0, c * eta(t_before) ** 2))
    return weight if np.ndim(weight) else float(weight)


@dataclass(frozen=True)
class Product:
    """A number times a schedule.

    Example:
        >>> Product(2.0, Power(1.0, 0.5))(3)
        1.0
    """

    c: float
    schedule: Callable[[Any], Any]

    def __call__(self, t: Times) -> Any:
        return self.c * self.schedule(t)


@dataclass(frozen=True)
class PerStep:
    """A user's function of one iteration, made to accept arrays.

    Example:
        >>> PerStep(lambda t: 1.0 if t < 2 else 0.5)(np.arange(3)).tolist()
        [1.0, 1.0, 0.5]
    """

    function: Callable[[int], float]
    name: str = "rate"

    def _value_at(self, t: int) -> float:
        """The function's value at one iteration, a number that is zero or positive."""
        try:
            value = float(self.function(t))
        except Exception as error:
            fail(self.name, f"must return a number at iteration {t} ({error})", self.function)
        return check.non_negative(f"{self.name}({t})", value)

    def __call__(self, t: Times) -> Any:
        if np.ndim(t) == 0:
            return self._value_at(int(np.asarray(t)))
        # One value per iteration, in the shape of t
        return np.array([self._value_at(int(i)) for i in np.ravel(t)]).reshape(np.shape(t))


#: A number, or a function of the iteration.
Rate = float | Power | Constant | Product | Callable[[Any], Any]


def as_schedule(name: str, rate: Rate, exponent: float = 0.0) -> Callable[[Any], Any]:
    """A number becomes ``number / (1 + t) ** exponent``; a function of the iteration is taken as it
    is.

    Raises:
        RuleError: for a number that is not positive and finite, or something that is neither.

    Example:
        >>> as_schedule("lr", 1.0, 0.5)(3), as_schedule("lr", lambda t: 2.0 * t)(3)
        (0.5, 6.0)
    """
    if isinstance(rate, (Power, Constant, Product, PerStep)):
        return rate
    if callable(rate):
        return PerStep(rate, name)
    if isinstance(rate, bool) or not isinstance(rate, (int, float)):
        fail(name, "must be a positive number or a function of the iteration", rate)
    check.positive(name, rate)
    return Power(float(rate), exponent) if exponent else Constant(float(rate))


Rule = Callable[[str, Any], Any]
M = TypeVar("M")


def setting(rule: Rule, default: Any = MISSING, **metadata: Any) -> Any:
    """A dataclass field whose metadata hold its rule.

    Args:
        rule: function of (name, value) that raises for a bad value.
        default: of the field; None, where it is the default, passes the rule.
        metadata: what else is kept beside the rule.
    """

    def or_none(name: str, value: Any) -> Any:
        # The rule, which None passes
        return None if value is None else rule(name, value)

    metadata["rule"] = or_none if default is None else rule
    return field(default=default, metadata=metadata)


def _refuse_huge(name: str, value: object) -> object:
    """The value; refused if it is a finite number that arithmetic in float32 turns to infinity."""
    if isinstance(value, (int, float)) and 1e29 < value < math.inf:
        fail(name, "must be below 1e29", value)
    return value


def rate(
    default: Any = MISSING, *, exponent: float = 0.0, like: str = "", zero: bool = False
) -> Any:
    """A field for a step size or weight, which is a number or a function of the iteration;
    ``Method.rates`` evaluates it.

    Args:
        default: its value if not given; None takes that of another rate (with ``like``), or there
            is no such number.
        exponent: a number c means c / (1 + t)^exponent.
        like: the other rate's name.
        zero: whether 0 is allowed.
    """

    def rule(name: str, value: object) -> None:
        # A schedule is called once, so that a bad one is refused at once
        if not (zero and isinstance(value, (int, float)) and value == 0):
            _refuse_huge(name, value)
            as_schedule(name, cast("Rate", value), exponent)(0)

    return setting(rule, default, exponent=exponent, like=like)


def positive(default: Any = MISSING, *, finite: bool = True, host: bool = False) -> Any:
    """A field for a number above zero, infinite only without ``finite``.

    With ``host`` only ``Method.rates`` reads it, so that no compiled code depends on it.
    """

    def rule(name: str, value: object) -> object:
        return check.positive(name, _refuse_huge(name, value), finite=finite)

    return setting(rule, default, host=host)


def non_negative(default: Any = MISSING) -> Any:
    """A field for a number that is zero or above."""
    return setting(lambda name, value: check.non_negative(name, _refuse_huge(name, value)), default)


def within(low: float, high: float, ends: str, default: Any = MISSING) -> Any:
    """A field for a number in an interval whose brackets are ``ends``, such as "[)"."""
    return setting(lambda name, value: check.between(name, value, low, high, ends=ends), default)


def check_count(name: str, value: object, *, least: int = 1, most: int = 10**7) -> int:
    """``value``, refused unless it is a whole number from ``least`` to ``most``."""
    number = check.whole(name, value, least=least)
    return number if number <= most else fail(name, f"must be at most {most}", value)


def count(default: Any = MISSING, *, least: int = 1, most: int = 10**7) -> Any:
    """A field for a whole number from ``least`` to ``most``."""
    return setting(lambda name, value: check_count(name, value, least=least, most=most), default)


def choice(*choices: str) -> Any:
    """A field for one of some words, by default the first."""
    return setting(lambda name, value: check.one_of(name, value, choices), choices[0])


def flag(default: bool) -> Any:
    """A field for True or False."""
    return setting(check.flag, default)


@cache
def _rate_fields(kind: type[Any]) -> tuple[Field[Any], ...]:
    """The fields of a method's class that :func:`rate` made."""
    return tuple(f for f in fields(kind) if "exponent" in f.metadata)


@cache
def _rules(kind: type[Any]) -> dict[str, Rule]:
    """Field -> rule; a class that gives a field another default keeps the rule of its base."""
    rules = {}
    for base in reversed(kind.__mro__):
        for f in base.__dict__.get("__dataclass_fields__", {}).values():
            if "rule" in f.metadata:
                rules[f.name] = f.metadata["rule"]
    return rules


def check_settings(method: object) -> None:
    """Check every field of a method by its own rule, which raises for a bad value."""
    for name, rule in _rules(type(method)).items():  # type: ignore[arg-type]
        rule(name, getattr(method, name))


@lru_cache(maxsize=1024)
def with_equal_rates(method: M) -> M:
    """A method whose rates, and what only ``rates`` reads, are all 1 (None stays None)."""
    rates: dict[str, Any] = {
        f.name: 1.0
        for f in fields(method)  # type: ignore[arg-type]
        if ("exponent" in f.metadata or f.metadata.get("host"))
        and getattr(method, f.name) is not None
    }
    return replace(method, **rates)  # type: ignore[type-var]


def rates_of(method: object, t: Times) -> dict[str, Any]:
    """The rates of iteration t (a number, or an array of them), by name.

    One that is None takes the value of the rate it is ``like``, or is left out.
    """
    rates = {}
    for f in _rate_fields(type(method)):  # type: ignore[arg-type]
        value = getattr(method, f.name)
        if value is None and f.metadata["like"]:
            value = getattr(method, f.metadata["like"])
        if isinstance(value, (int, float)) and value == 0:  # a schedule must be positive
            rates[f.name] = 0.0
        elif value is not None:
            rates[f.name] = as_schedule(f.name, value, f.metadata["exponent"])(t)
    return rates


PlainStep = Literal["plain", "normalised", "clipped"]


#: Keeps the quotient by a norm finite, as published with SLIP.
TINY_NORM = 1e-10


def step_size(ops: Ops, step: str, d: Array, lr: Scalar) -> Scalar:
    """The factor of the direction d in a step on x.

    It is lr for a "plain" step, lr / ||d|| for a "normalised" one and lr min(1, 1 / ||d||) for a
    "clipped" one, with ``TINY_NORM`` added to the norm of d over all of x.
    """
    if step == "plain":
        return lr
    if step == "normalised":
        return lr / (ops.norm(d) + TINY_NORM)
    return lr * ops.minimum(1.0 / (ops.norm(d) + TINY_NORM), 1.0)


@dataclass(frozen=True)
class AdamStep:
    """Adam's direction as a step on x, y or z, on every backend; the method's own rate multiplies
    it.

    Args:
        beta1, beta2: decay of the first and second moment, in [0, 1).
        eps: added to the root of the second moment.
        weight_decay: decoupled, as in AdamW: the direction gets ``weight_decay * value``.

    Example:
        >>> from mindgap.bilevel.backends.oracles import TorchOps
        >>> step, ops, x = AdamStep(), TorchOps(), torch.zeros(2)
        >>> d, _ = step.direction(ops, step.init(ops, x), torch.tensor([4.0, -0.1]), x)
        >>> [round(float(v), 3) for v in d]
        [1.0, -1.0]

    Source: Kingma, Ba 2015; Loshchilov, Hutter 2019.
    """

    beta1: float = within(0, 1, "[)", 0.9)
    beta2: float = within(0, 1, "[)", 0.999)
    eps: float = positive(1e-8)
    weight_decay: float = non_negative(0.0)

    def __post_init__(self) -> None:
        check_settings(self)

    def init(self, ops: Ops, value: Array) -> dict[str, Array]:
        """The memory before the first step: the moments m and s, and the count k of steps."""
        return {"m": ops.zeros_like(value), "s": ops.zeros_like(value), "k": ops.scalar(0.0, value)}

    def direction(
        self, ops: Ops, memory: dict[str, Array], d: Array, value: Array
    ) -> tuple[Array, dict[str, Array]]:
        """The direction to move along from ``value``, and the memory after: m, s and the count k.

        ``d`` is the present direction; m and s average it and its square.
        """
        m = ops.mix(memory["m"], d, 1.0 - self.beta1)
        s = ops.mix(memory["s"], d * d, 1.0 - self.beta2)
        k = memory["k"] + 1.0
        direction = (m / (1.0 - self.beta1**k)) / ((s / (1.0 - self.beta2**k)) ** 0.5 + self.eps)
        if self.weight_decay:
            direction = direction + self.weight_decay * value
        return direction, {"m": m, "s": s, "k": k}


@dataclass(frozen=True)
class MomentumStep:
    """Heavy-ball momentum as torch's SGD has it, ``m <- beta m + d``, on every backend.

    Args:
        beta: in [0, 1).
        weight_decay: added to the direction before the momentum.

    Example:
        >>> from mindgap.bilevel.backends.oracles import TorchOps
        >>> step = MomentumStep(beta=0.5)
        >>> step.direction(TorchOps(), {"m": torch.ones(1)}, torch.ones(1), torch.zeros(1))[0]
        tensor([1.5000])
    """

    beta: float = within(0, 1, "[)", 0.9)
    weight_decay: float = non_negative(0.0)

    def __post_init__(self) -> None:
        check_settings(self)

    def init(self, ops: Ops, value: Array) -> dict[str, Array]:
        """The memory before the first step: the momentum m."""
        return {"m": ops.zeros_like(value)}

    def direction(
        self, ops: Ops, memory: dict[str, Array], d: Array, value: Array
    ) -> tuple[Array, dict[str, Array]]:
        """The direction to move along from ``value``, m, and the memory after."""
        if self.weight_decay:
            d = d + self.weight_decay * value
        m = self.beta * memory["m"] + d
        return m, {"m": m}


class TorchStep:
    """Any ``torch.optim`` optimizer as the upper step (torch only; its state travels with the
    method's state).

    Args:
        optimizer: the class.
        scheduler: makes a learning-rate scheduler of the optimizer; it steps once per step on x.
        settings: the optimizer's keyword arguments. The method's ``lr_x`` is not used.

    Example:
        >>> TorchStep(torch.optim.Adam, lr=0.1)
        TorchStep(Adam, lr=0.1)
    """

    def __init__(
        self,
        optimizer: type[torch.optim.Optimizer],
        *,
        scheduler: Callable[[torch.optim.Optimizer], torch.optim.lr_scheduler.LRScheduler]
        | None = None,
        **settings: Any,
    ) -> None:
        if scheduler is not None and not callable(scheduler):
            fail("scheduler", "must be a function from an optimizer to a scheduler", scheduler)
        self.scheduler = scheduler
        if not (isinstance(optimizer, type) and issubclass(optimizer, torch.optim.Optimizer)):
            fail("optimizer", "must be a torch.optim.Optimizer class", optimizer)
        self.optimizer = optimizer
        self.settings = settings

    def __repr__(self) -> str:
        settings = (f"{name}={value!r}" for name, value in self.settings.items())
        return f"TorchStep({', '.join([self.optimizer.__name__, *settings])})"

    def start(self, x: Tensor) -> dict[str, Any]:
        """The values "optimizer", made for a copy of x, and "scheduler" where there is one."""
        try:
            optimizer = self.optimizer([torch.nn.Parameter(x.detach().clone())], **self.settings)
        except (TypeError, ValueError, NotImplementedError) as error:
            fail("x_step", f"must be an optimizer that takes its settings ({error})", self)
        rule = "something whose step() takes no arguments"
        check_call("x_step", optimizer.step, rule)  # a scheduler changes its signature
        scheduler = None if self.scheduler is None else call("scheduler", self.scheduler, optimizer)
        if scheduler is not None:
            check_call("scheduler", getattr(scheduler, "step", None), rule)
        values = {"optimizer": optimizer, "scheduler": scheduler}
        return {name: value for name, value in values.items() if value is not None}

    def __call__(self, x: Tensor, d: Tensor, optimizer: torch.optim.Optimizer) -> Tensor:
        """x after one step of the optimizer, with d as gradient; the optimizer's state moves on."""
        parameter: Tensor = optimizer.param_groups[0]["params"][0]
        with torch.no_grad():
            parameter.copy_(x)
            parameter.grad = d.detach().clone()
            optimizer.step()
            return parameter.detach().clone()


MemoryStep = AdamStep | MomentumStep
XStep = PlainStep | AdamStep | MomentumStep | TorchStep
YStep = Literal["plain"] | AdamStep | MomentumStep


def upper_step(default: XStep = "plain") -> Any:
    """A field for the step on x; its rule refuses what is no ``XStep``."""

    def rule(name: str, value: object) -> None:
        if not isinstance(value, (TorchStep, AdamStep, MomentumStep)):
            check.one_of(name, value, get_args(PlainStep))

    return setting(rule, default)


def lower_step() -> Any:
    """A field for the steps on y and z, "plain" by default; refuses what is no ``YStep``."""

    def rule(name: str, value: object) -> None:
        if not isinstance(value, MemoryStep):
            check.one_of(name, value, ("plain",))

    return setting(rule, "plain")
