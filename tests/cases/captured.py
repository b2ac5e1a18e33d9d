"""A CUDA graph of a step, for the tests and the benchmarks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def graph_of(step: Callable[[], Any]) -> torch.cuda.CUDAGraph:
    """Capture ``step`` after three calls on a stream beside the current one."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph
