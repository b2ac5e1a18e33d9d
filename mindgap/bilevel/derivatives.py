"""What a backend's derivatives must offer to the methods: one small abstract class."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from mindgap.bilevel.sample import Sample


class Derivatives(ABC):
    """Derivatives of both levels at flat vectors, on the samples of a token.

    One sign convention: H = d2g/dy2, J = d2g/dxdy (maps y-space to x-space), z* = +H^-1 f_y, grad Phi = f_x - J z*.
    """

    @abstractmethod
    def lower(self, x: Any, y: Any, token: Sample) -> Any:
        """g_y."""

    @abstractmethod
    def lower_x(self, x: Any, y: Any, token: Sample) -> Any:
        """g_x."""

    @abstractmethod
    def upper(self, x: Any, y: Any, token: Sample) -> tuple[Any, Any]:
        """f_x and f_y."""

    @abstractmethod
    def system(self, x: Any, y: Any, z: Any, token: Sample) -> tuple[Any, Any, Any]:
        """g_y, Hz and Jz."""

    @abstractmethod
    def products(self, x: Any, y: Any, z: Any, token: Sample) -> tuple[Any, Any]:
        """Hz and Jz."""

    @abstractmethod
    def hessian(self, x: Any, y: Any, z: Any, token: Sample) -> Any:
        """Hz."""

    @abstractmethod
    def mixed(self, x: Any, y: Any, z: Any, token: Sample) -> Any:
        """Jz."""

    @abstractmethod
    def dense(self, x: Any, y: Any, token: Sample) -> tuple[Any, Any, Any]:
        """g_y, H and J as matrices."""

    def operator(self, x: Any, y: Any, token: Sample) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
        """The maps v -> Hv and v -> Jv at one point on one sample; a backend keeps what the products share."""
        return (lambda v: self.hessian(x, y, v, token)), (lambda v: self.mixed(x, y, v, token))

    def residuals(
        self, x: Any, y: Any, z: Any, lower: Sample, upper: Sample, gradient: bool = True
    ) -> tuple[Any, Any, Any]:
        """g_y (None if ``gradient`` is False), Hz - f_y and f_x - Jz; a backend may have a cheaper way to them."""
        if gradient:
            g_y, hz, jz = self.system(x, y, z, lower)
        else:
            g_y, (hz, jz) = None, self.products(x, y, z, lower)
        f_x, f_y = self.upper(x, y, upper)
        return g_y, hz - f_y, f_x - jz
