"""Calls of functions that a user handed over: an error is passed on with a note that says where it
was raised, and a loss must be one number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from mindgap.base.check import RuleError, fail


def note(error: BaseException, text: str) -> None:
    """Say below the message of an error where it was raised, once; Python 3.10 keeps the note and
    prints none.

    Example:
        >>> error = KeyError("a")
        >>> note(error, "raised by upper")
        >>> note(error, "raised by upper")
        >>> error.__notes__
        ['raised by upper']
    """
    notes = getattr(error, "__notes__", [])
    if text not in notes:
        error.__notes__ = [*notes, text]


@contextmanager
def noting_iteration(iteration: Callable[[], int]) -> Iterator[None]:
    """An error inside gets a note of the iteration of a run, which is asked for only then."""
    try:
        yield
    except Exception as error:
        note(error, f"at iteration {iteration()} of the run")
        raise


def call(name: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """What a user's function returns; its own error gets a note that it was raised by ``name``."""
    try:
        return function(*arguments)
    except Exception as error:
        if not isinstance(error, RuleError):
            note(error, f"raised by {name}")
        raise


def number_from(name: str, function: Callable[..., Any], *arguments: Any) -> float:
    """What a user's function returns, as a number, finite or not; anything else is refused.

    Example:
        >>> number_from("metric", lambda x: x.sum(), torch.ones(2))
        2.0
    """
    value = call(name, function, *arguments)
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        fail(name, "must return a number", value)


def loss_from(name: str, function: Callable[..., Any], x: Any, y: Any, batch: Any) -> Tensor:
    """The loss that a user's function of (x, y, batch) returns: a tensor with one element, and its
    graph. Every iteration of a run calls this, so that it looks at no more.

    Example:
        >>> loss_from("lower", lambda x, y, batch: y.square(), 0.0, torch.ones(2), None)
        Traceback (most recent call last):
        mindgap.base.check.RuleError: lower must return a tensor with one element, got (2,)
    """
    try:
        loss = function(x, y, batch)
    except Exception as error:
        if not isinstance(error, RuleError):
            note(error, f"raised by {name}")
        raise
    if isinstance(loss, Tensor) and loss.numel() == 1:
        if loss.requires_grad or loss.is_floating_point():
            return loss
        fail(name, "must be a number of floating point", loss.dtype)
    shape = tuple(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
    fail(name, "must return a tensor with one element", shape)


def check_loss(name: str, loss: Tensor) -> None:
    """Refuse a loss of one element that cannot be differentiated by a step: a complex number, a
    sparse tensor, or one without a value.
    """
    if loss.is_complex():
        fail(name, "must be a real number", loss.dtype)
    if loss.layout is not torch.strided or loss.is_meta:
        fail(name, "must be a dense tensor with a value", "meta" if loss.is_meta else loss.layout)
