"""Named random streams hashed from one seed.

Two methods of one comparison ask for the same names and so see the same data order, the same
initial point and the same noise, whatever else they draw. ``stream_seed`` needs only the standard
library.
"""

from __future__ import annotations

import hashlib
from numbers import Integral
from typing import TYPE_CHECKING, Any

from mindgap.base.check import RuleError, fail

if TYPE_CHECKING:
    import numpy as np
    import torch


def stream_seed(seed: int, *names: str | int) -> int:
    """A 63-bit seed for the stream of that name (several ``names`` together make one).

    It is a hash of seed and names, stable over machines, Python versions and processes (BLAKE2, not
    ``hash``).

    Example:
        >>> stream_seed(0, "data") == stream_seed(0, "data")
        True
        >>> stream_seed(0, "data") == stream_seed(0, "noise")
        False
    """
    if isinstance(seed, bool) or not isinstance(seed, Integral):
        fail("seed", "must be a whole number", seed)
    # The separator keeps ("a", "b") apart from ("ab",); the type keeps 1 apart from "1".
    text = "\x1f".join([str(int(seed)), *(f"{type(n).__name__}:{n}" for n in names)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def torch_stream(seed: int, *names: str | int, device: Any = "cpu") -> torch.Generator:
    """A torch generator for the stream of that name.

    Example:
        >>> import torch
        >>> a, b = torch_stream(0, "noise"), torch_stream(0, "noise")
        >>> bool((torch.randn(3, generator=a) == torch.randn(3, generator=b)).all())
        True
    """
    import torch

    number = stream_seed(seed, *names)
    try:
        return torch.Generator(device=device).manual_seed(number)
    except (RuntimeError, TypeError, ValueError) as error:
        raise RuleError(
            f"device must be one that torch knows here, got {device!r}: {error}"
        ) from error


def numpy_stream(seed: int, *names: str | int) -> np.random.Generator:
    """A numpy generator for the stream of that name."""
    import numpy as np

    return np.random.Generator(np.random.PCG64(stream_seed(seed, *names)))
