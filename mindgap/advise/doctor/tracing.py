"""Cures of code that lies out of reach: a function mode computes a ``log`` with a floor, or skips a
``detach``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode


class Rewritten(TorchFunctionMode):
    """Computes some functions otherwise: how a cure reaches the user's code on a copy.

    Args:
        rules: name of a torch function -> what to call instead, with the function and its
            arguments.
    """

    def __init__(self, rules: dict[str, Callable[..., Any]]) -> None:
        super().__init__()
        self.rules = rules

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call the function, or what ``rules`` has for its name; torch calls this for every
        function inside the mode.
        """
        name = getattr(func, "__name__", "")
        if name == "__get__":  # a property such as tensor.data: its rule is "get data"
            owner = getattr(func, "__self__", None)
            name = f"get {getattr(owner, '__name__', '')}"
        replacement = self.rules.get(name)
        if replacement is None:
            return func(*args, **(kwargs or {}))
        return replacement(func, *args, **(kwargs or {}))


# What takes the place of a torch function: each one is called with that function and its arguments.


def _keep_above_zero(func: Any, x: Tensor, *args: Any, **more: Any) -> Any:
    """Call a root or a logarithm with its argument raised to 1e-6 at least."""
    return func(x.clamp_min(1e-6), *args, **more)


def _divide_above_zero(func: Any, x: Any, y: Any, *args: Any, **more: Any) -> Any:
    """Divide x by y, of which entries nearer to zero than 1e-6, of either sign, become 1e-6."""
    if isinstance(y, Tensor) and y.is_floating_point():
        y = torch.where(y.abs() < 1e-6, torch.full_like(y, 1e-6), y)
    return func(x, y, *args, **more)


def _convert_to_float32(func: Any, x: Tensor, *args: Any, **more: Any) -> Any:
    """Call a conversion (``to``, ``type``) with float32 wherever float16 is asked for."""
    args = tuple(torch.float32 if value is torch.float16 else value for value in args)
    more = {key: torch.float32 if value is torch.float16 else value for key, value in more.items()}
    return func(x, *args, **more)


def _first_argument(func: Any, x: Tensor, *args: Any, **more: Any) -> Tensor:
    """Skip the call and return its first argument."""
    return x


def _unconverted_tensor(func: Any, x: Any, *args: Any, **more: Any) -> Any:
    """Call a constructor only where its argument is no tensor yet: a new one has no graph."""
    return x if isinstance(x, Tensor) else func(x, *args, **more)


def floors() -> Rewritten:
    """``log``, ``sqrt`` and divisions keep a distance of 1e-6 from zero."""
    roots_and_logs = dict.fromkeys(("log", "log_", "sqrt", "rsqrt"), _keep_above_zero)
    divisions = dict.fromkeys(("div", "true_divide", "__truediv__", "divide"), _divide_above_zero)
    return Rewritten({**roots_and_logs, **divisions})


def single_precision() -> Rewritten:
    """Nothing is converted to float16."""
    conversions = dict.fromkeys(("to", "type"), _convert_to_float32)
    return Rewritten({"half": lambda func, x, *args, **more: x.float(), **conversions})


def no_detach() -> Rewritten:
    """``detach``, ``.data``, ``item``, NumPy and ``no_grad`` keep the graph."""
    detaching = ("detach", "get data", "item", "tolist", "numpy", "__array__")
    constructors = ("tensor", "as_tensor", "from_numpy")
    return Rewritten(
        {
            **dict.fromkeys(detaching, _first_argument),
            **dict.fromkeys(constructors, _unconverted_tensor),
            "_set_grad_enabled": lambda func, *args, **more: None,
        }
    )


def huber(bound: float) -> Rewritten:
    """Squared error grows linearly beyond a bound."""
    bounded_loss = partial(nn.functional.smooth_l1_loss, beta=max(bound, 1e-6))
    return Rewritten(
        {"mse_loss": lambda func, out, target, *args, **more: bounded_loss(out, target)}
    )


def softmax_over_classes() -> Rewritten:
    """A softmax over the batch runs over the last axis."""
    softmaxes = ("softmax", "log_softmax")
    return Rewritten(dict.fromkeys(softmaxes, lambda func, x, *args, **more: func(x, -1)))


def scores_from_probabilities() -> Rewritten:
    """A loss of scores that is given probabilities p takes log p, or logit p where there are two
    classes.
    """

    def scores_of_classes(func: Any, p: Tensor, *args: Any, **more: Any) -> Any:
        """Call the loss of several classes with log p."""
        return func(p.clamp_min(1e-9).log(), *args, **more)

    def scores_of_two(func: Any, p: Tensor, *args: Any, **more: Any) -> Any:
        """Call the loss of two classes with logit p."""
        return func(p.clamp(1e-6, 1 - 1e-6).logit(), *args, **more)

    return Rewritten(
        {"cross_entropy": scores_of_classes, "binary_cross_entropy_with_logits": scores_of_two}
    )


#: Function -> place of ``dropout_p`` among its positional arguments.
_PLACE_OF_DROPOUT = {"scaled_dot_product_attention": 4, "multi_head_attention_forward": 10}


def _without_dropout(func: Any, *args: Any, **more: Any) -> Any:
    """Call a function with 0 for its argument ``dropout_p``, which may be given by place or by
    name.
    """
    place = _PLACE_OF_DROPOUT[func.__name__]
    if len(args) > place:
        args = (*args[:place], 0.0, *args[place + 1 :])
    else:
        more = {**more, "dropout_p": 0.0}
    return func(*args, **more)


def no_dropout() -> Rewritten:
    """Dropout passes its input on, and attention drops nothing."""
    names = ("dropout", "dropout1d", "dropout2d", "dropout3d", "feature_dropout", "alpha_dropout")
    attention = dict.fromkeys(_PLACE_OF_DROPOUT, _without_dropout)
    return Rewritten({**dict.fromkeys(names, _first_argument), **attention})
