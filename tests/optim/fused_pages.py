"""The CPU kernels on tensors that end where a page without any access begins: touching one
element more is fatal.
"""

from __future__ import annotations

import ctypes
import mmap

import torch
from optim import fused_memory, fused_sequences

from mindgap.rules.fused import cpu

PAGE = mmap.PAGESIZE
_KEPT = []


def guarded(values):
    """A copy of a tensor at the end of a mapped page that is followed by a page without access
    (dense tensors only).
    """
    size = values.numel() * values.element_size()
    if size == 0:
        return values.clone()
    room = -(-size // PAGE) * PAGE
    memory = mmap.mmap(-1, room + PAGE)
    base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    if ctypes.CDLL(None, use_errno=True).mprotect(
        ctypes.c_void_p(base + room), ctypes.c_size_t(PAGE), 0
    ):
        raise OSError(ctypes.get_errno(), "mprotect")
    _KEPT.append(memory)
    flat = torch.frombuffer(memory, dtype=values.dtype, count=values.numel(), offset=room - size)
    order = sorted(range(values.dim()), key=lambda d: values.stride()[d], reverse=True)
    view = flat.view([values.shape[d] for d in order]).permute(
        [order.index(d) for d in range(values.dim())]
    )
    return view.copy_(values.detach())


def guard_everything(optimizer):
    """Move every parameter, gradient and state of an optimizer to guarded memory."""
    for group in optimizer.param_groups:
        for p in group["params"]:
            if p.is_contiguous() or p.dim() == 2:
                p.data = guarded(p.data)
            if p.grad is not None and p.grad.is_contiguous():
                p.grad = guarded(p.grad)
            for name, value in optimizer.state.get(p, {}).items():
                if isinstance(value, torch.Tensor) and value.dim() and value.is_contiguous():
                    optimizer.state[p][name] = guarded(value)


def main():
    """All rules with sizes around a vector's width, then the list of things that may happen
    between steps.
    """
    steps = 0
    for make in (*fused_memory.MAKES, *fused_sequences.MAKES.values()):
        for dtype in (torch.float32, torch.float64):
            params = [
                fused_memory.parameter((n,), "cpu", dtype, n)
                for n in (*range(1, 20), 1023, cpu.CHUNK + 3)
            ]
            params.append(fused_memory.parameter((6, 5), "cpu", dtype))
            optimizer = make(params)
            for _ in range(4):
                guard_everything(optimizer)
                optimizer.step()
                steps += optimizer._fused.used
    assert steps > 60, steps

    # The same list as without guarded memory, every step made on it.
    for cls in {type(make([torch.ones(1)])) for make in fused_memory.MAKES}:
        original = cls.step

        def step(self, closure=None, original=original):
            guard_everything(self)
            return original(self, closure)

        step.hooked = True
        cls.step = step
    # Where a check needs tensors with holes, or none of their own memory, the copies would take
    # that away.
    left_out = (
        "wrapper_subclass",
        "inference_tensors",
        "another_default_device",
        "refusals_are_reconsidered",
    )
    for name, check in fused_memory.CHECKS.items():
        if not name.endswith(left_out):
            check("cpu")
    print("all pages intact")
