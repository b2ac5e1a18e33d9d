"""What methods without Hessian products share that keep a second lower variable w beside y."""

from __future__ import annotations

from typing import ClassVar

from mindgap.bilevel.core.types import Draws, Oracle, WithW
from mindgap.bilevel.method import Method


class PenaltyMethod(Method[WithW, Draws]):
    """w follows y*(x) and starts where y does; the lower level at w enters as a penalty."""

    second_order: ClassVar[bool] = False

    def init(self, oracle: Oracle) -> WithW:
        x, y = oracle.start
        return WithW(x, y, y)
