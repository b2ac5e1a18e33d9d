"""Second derivatives of a lower loss against finite differences."""

from __future__ import annotations

import torch


def check_second_derivatives(oracle, x, y, z, token, step=1e-5):
    """Hz and Jz of the oracle are the central differences of the two gradients along z."""
    _, hz, jz = oracle.system(x, y, z, token)
    along = (oracle.lower(x, y + step * z, token) - oracle.lower(x, y - step * z, token)) / (
        2 * step
    )
    torch.testing.assert_close(hz, along, rtol=1e-5, atol=1e-8)
    across = (oracle.lower_x(x, y + step * z, token) - oracle.lower_x(x, y - step * z, token)) / (
        2 * step
    )
    torch.testing.assert_close(jz, across, rtol=1e-5, atol=1e-8)
