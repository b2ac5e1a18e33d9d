"""A public name is never hidden by a module of the same name."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

import pytest

ROOMS = [
    "mindgap.optim",
    "mindgap.measure",
    "mindgap.bilevel",
    "mindgap.advise",
    "mindgap.lab.theory",
]


@pytest.mark.parametrize("room", ROOMS)
def test_no_public_name_is_a_module(room: str) -> None:
    package = import_module(room)
    names = [name for name in package.__dir__() if not name.startswith("_")]
    scope: dict[str, object] = {}
    for name in names:
        exec(f"from {room} import {name}", scope)
    assert [name for name in names if isinstance(scope[name], ModuleType)] == []
