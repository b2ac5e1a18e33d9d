"""Contexts in which a loss is evaluated: kernels with a double backward, random numbers from a
seed.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator

import numpy as np
import torch


@contextlib.contextmanager
def double_backward_kernels() -> Iterator[None]:
    """Kernels that can be differentiated twice: cuDNN's recurrent nets and fused attention off
    inside, restored after.

    Example:
        >>> before = torch.backends.cudnn.enabled
        >>> with double_backward_kernels():
        ...     torch.backends.cudnn.enabled
        False
        >>> torch.backends.cudnn.enabled == before
        True
    """
    from torch.nn.attention import SDPBackend, sdpa_kernel

    with torch.backends.cudnn.flags(enabled=False), sdpa_kernel(SDPBackend.MATH):
        yield


@contextlib.contextmanager
def random_state(device: torch.device, seed: int) -> Iterator[None]:
    """Torch's, NumPy's and Python's global random numbers from a seed inside, as they were after.

    Example:
        >>> def draw():
        ...     with random_state(torch.device("cpu"), 7):
        ...         return torch.rand(1).item(), np.random.rand(), random.random()
        >>> draw() == draw()
        True
    """
    of_numpy, of_python = np.random.get_state(), random.getstate()
    try:
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            torch.manual_seed(seed)
            np.random.seed(seed % 2**32)
            random.seed(seed)
            yield
    finally:
        np.random.set_state(of_numpy)
        random.setstate(of_python)
