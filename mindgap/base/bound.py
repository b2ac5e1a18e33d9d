"""A module with other parameters put in its place, which a loss can use as it would the module."""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, KeysView, Mapping, ValuesView
from types import GeneratorType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from mindgap.base.check import fail

#: Methods of a module that hand out its own tensors or parts, not those put in their place.
_OWN = ("modules", "named_modules", "children", "named_children", "state_dict")


class Bound:
    """A module with other parameters put in its place: what a loss gets for a variable that is a
    module.

    Call it as the module, or any of its methods (``x.encode(...)``); ``parameters()``, ``[name]``
    and ``x.layer.weight`` give the tensors (for a regulariser). The module's buffers are handed
    over as copies, so that evaluating a loss changes nothing (``own_buffers=True`` hands over
    themselves). What would hand out the module's own tensors (``modules()``, ``state_dict()``) is
    refused, since a loss of these does not depend on the variable.

    Example:
        >>> layer = nn.Linear(2, 1, bias=False)
        >>> bound = Bound(layer, {"weight": torch.ones(1, 2)})
        >>> bound(torch.ones(3, 2)).flatten().tolist(), bound.weight.tolist()
        ([2.0, 2.0, 2.0], [[1.0, 1.0]])
    """

    def __init__(
        self, module: nn.Module, tensors: Mapping[str, Tensor], *, own_buffers: bool = False
    ) -> None:
        if not isinstance(module, nn.Module):
            fail("module", "must be a torch.nn.Module", module)
        if not isinstance(tensors, Mapping):
            fail("tensors", "must be a mapping of names to tensors", tensors)
        self._module = module
        self._tensors = dict(tensors)
        self._own_buffers = own_buffers

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return torch.func.functional_call(self._module, self._values(), args, kwargs)

    def __getattr__(self, name: str) -> Any:
        """An attribute of the module; a method or property is evaluated with the other parameters
        put in, and a part of the module comes as a ``Bound`` of its own.
        """
        own = self.__dict__  # what this object keeps itself
        if "_module" not in own:  # a copy that is being made
            raise AttributeError(name)
        module: nn.Module = own["_module"]
        if name in own["_tensors"]:
            return own["_tensors"][name]
        if name in module._modules or name in module._parameters:
            return self._part(module, name)
        if name in _OWN:
            rule = (
                "must be left out of a loss, as it gives the module's own tensors (parameters(), "
                "[name] and .layer.weight give those of the variable)"
            )
            fail(f"{name}()", rule, type(module).__name__)
        if isinstance(getattr(type(module), name, None), property):
            return self._evaluate(name, None)
        attribute = getattr(module, name)
        if not callable(attribute):
            return attribute
        return lambda *args, **kwargs: self._evaluate(name, (args, kwargs))

    def _evaluate(self, name: str, arguments: Any) -> Any:
        """A property of the module, or what a method returns for (args, kwargs), with the other
        parameters put in.
        """
        # ``_Named`` keeps the module as its part "module" and reads what the name stands for.
        tensors = {f"module.{key}": value for key, value in self._values().items()}
        result = torch.func.functional_call(_Named(self._module), tensors, (name, arguments))
        if any(isinstance(leaf, nn.Module) for leaf in pytree.tree_leaves(result)):
            fail(name, "must not return parts of the module in a loss", type(result).__name__)
        return iter(result) if isinstance(result, _Listed) else result

    def _part(self, module: nn.Module, name: str) -> Any:
        """A parameter that is not trained or is known by another name, or a part with the tensors
        put in that belong to it.
        """
        tensor_of = {
            id(p): self._tensors[key]
            for key, p in module.named_parameters(remove_duplicate=False)
            if key in self._tensors
        }
        part = getattr(module, name)
        if not isinstance(part, nn.Module):
            return tensor_of.get(id(part), part)
        tensors = {
            key: tensor_of[id(p)]
            for key, p in part.named_parameters(remove_duplicate=False)
            if id(p) in tensor_of
        }
        return Bound(part, tensors, own_buffers=self._own_buffers)

    def _values(self) -> dict[str, Tensor]:
        """The tensors put in, and copies of the buffers unless ``own_buffers``, by name."""
        buffers = () if self._own_buffers else self._module.named_buffers()
        return {**{name: buffer.clone() for name, buffer in buffers}, **self._tensors}

    def __getitem__(self, name: str | int) -> Any:
        """The tensor of that name; of a list or dict of layers or parameters one of these."""
        if name in self._tensors:
            return self._tensors[name]
        names = [*self._module._parameters, *self._module._modules]
        if isinstance(name, int) and hasattr(self._module, "__getitem__"):
            if -len(names) <= name < len(names):
                return self._part(self._module, names[name])
            raise IndexError(name)
        if name in names:
            return self._part(self._module, str(name))
        fail("name", f"must be one of {', '.join(map(str, self._tensors))}", name)

    def get_parameter(self, target: str) -> Tensor:
        """The tensor put in for a parameter's name."""
        tensor: Tensor = self[target]
        return tensor

    def parameters(self) -> Iterator[Tensor]:
        """The tensors put in, in the module's order."""
        return iter(self._tensors.values())

    def named_parameters(self) -> Iterator[tuple[str, Tensor]]:
        """Names and tensors put in, in the module's order."""
        return iter(self._tensors.items())


class _Listed(list[Any]):
    """What a generator yielded while the other parameters were put in."""


class _Named(nn.Module):
    """Reads a property or calls a method of ``module`` by its name, so that ``functional_call``
    can swap tensors.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module  # its tensors are "module.NAME" here

    def forward(self, name: str, arguments: Any) -> Any:
        attribute = getattr(self.module, name)
        if arguments is None:
            return attribute
        args, kwargs = arguments
        result = attribute(*args, **kwargs)
        # Views of a ModuleDict hide its layers from the check of the caller.
        lists = (GeneratorType, KeysView, ValuesView, ItemsView)
        return _Listed(result) if isinstance(result, lists) else result
