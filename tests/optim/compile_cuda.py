"""Compiles the CUDA kernels for sm_90 on a machine without a GPU, and looks at what came out.

    python tests/optim/compile_cuda.py            every rule in float32 and bfloat16, every policy
    python tests/optim/compile_cuda.py --all
        also every combination of guard, lr in memory and alignment

Optimizers step tensors on the CPU with the CUDA engine, and every launch is compiled instead of
made. Each line gives registers, bytes spilled, and how many loads of the kernel are 16 bytes wide.
Needs Triton (pip install triton).
"""

from __future__ import annotations

import argparse
import itertools
import re
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import torch

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))

from mindgap.optim import SGD, ACClip, AdamW, CClip, GClip, NormalizedSGD, StochasticINGD, fused
from mindgap.rules.fused import cpu, cuda, cuda_rules

TYPES = {
    torch.float32: "fp32",
    torch.float64: "fp64",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.bfloat16: "bf16",
}
TARGET = ("cuda", 90, 32)
ORDERS = ((0.0, "gradient"), (0.9, "gradient"), (0.9, "momentum"))
RULES = {
    **{f"gclip {b} {o}": partial(GClip, tau=1.0, beta=b, clip=o) for b, o in ORDERS},
    **{f"gclip auto {b}": partial(GClip, tau="auto", beta=b) for b in (0.0, 0.9)},
    **{f"cclip {b} {o}": partial(CClip, tau=1.0, beta=b, clip=o) for b, o in ORDERS},
    **{f"cclip auto {b}": partial(CClip, tau="auto", beta=b) for b in (0.0, 0.9)},
    **{
        f"acclip {form} {alpha} {eps} {corrected}": partial(
            ACClip, form=form, alpha=alpha, eps=eps, bias_correction=corrected, clip=None
        )
        for form in ("first_moment", "second_moment", "algorithm")
        for alpha in (1.0, 1.5, 2.0)
        for eps in (1e-8, 0.0)
        for corrected in (False, True)
    },
    **{
        f"adamw {eps} {more}": partial(AdamW, eps=eps, **more)
        for eps in (1e-8, 0.0)
        for more in (
            {},
            {"clip": "noise"},
            {"clip": "unit", "coordinates": 3.0},
            {"amsgrad": True},
        )
    },
    **{
        f"sgd {m} {nesterov} {decay}": partial(
            SGD, momentum=m, nesterov=nesterov, weight_decay=decay
        )
        for m, nesterov in ((0.0, False), (0.9, False), (0.9, True))
        for decay in (0.0, 0.1)
    },
    "normalized": NormalizedSGD,
    **{
        f"interpolated {decay}": partial(StochasticINGD, weight_decay=decay, clip=None)
        for decay in (0.0, 0.1)
    },
}
POLICIES = [
    {"nonfinite": how, "spike_guard": guard}
    for how in ("propagate", "skip")
    for guard in (None, "clip", "skip")
]
CLIPS = (None, 1.0, "auto")
CLIPPED = {"clipped adamw": AdamW, "clipped interpolated": StochasticINGD, "clipped acclip": ACClip}


class Compiled:
    """Compiles each different launch once."""

    def __init__(self):
        self.seen, self.failed = {}, []

    def launch(self, name, programs, tensors, numbers, **constants):
        key = (name, *(t.dtype for t in tensors), *map(str, constants.values()))
        if key not in self.seen:
            self.seen[key] = None
            begin = time.time()
            try:
                text = self._compiled(name, tensors, numbers, constants)
            except Exception as error:
                self.failed.append(name)
                text = f"FAILED {type(error).__name__}: {str(error)[-300:]}"
            self.seen[key] = text
            flags = " ".join(
                f"{k}={v!s}" for k, v in constants.items() if k not in ("WIDE", "WINDOW", "BLOCK")
            )
            print(f"{name:24s} {text}; {flags} ({time.time() - begin:.1f} s)", flush=True)

    @staticmethod
    def _compiled(name, tensors, numbers, constants):
        import triton
        from triton.backends.compiler import GPUTarget
        from triton.compiler import ASTSource

        function = cuda.kernel(name)
        kinds = ["*" + TYPES[t.dtype] for t in tensors]
        kinds += [
            "fp32" if isinstance(n, float) else "i32" if abs(n) < 2**31 else "i64" for n in numbers
        ]
        signature = {
            **dict(zip(function.arg_names, kinds)),
            **dict.fromkeys(constants, "constexpr"),
        }
        values = {(function.arg_names.index(c),): v for c, v in constants.items()}
        aligned = {(i,): [["tt.divisibility", 16]] for i in range(len(tensors))}
        source = ASTSource(fn=function, signature=signature, constexprs=values, attrs=aligned)
        warps = cuda.SINGLE_WARPS if "WIDE" in constants else cuda.WARPS
        ptx = triton.compile(source, target=GPUTarget(*TARGET), options={"num_warps": warps}).asm[
            "ptx"
        ]
        loads = re.findall(r"ld\.global\S*", ptx)
        wide = sum(".v4.b32" in load or ".v2.b64" in load for load in loads)
        return f"{usage(ptx)}, {wide} of {len(loads)} loads 16 bytes wide"


def assembler():
    """The assembler that Triton itself takes for the target.

    Its package holds two, and from 3.9 on the older one cannot read what is compiled for sm_90.
    """
    import triton
    from triton.backends.nvidia import compiler

    try:
        return compiler.get_ptxas(TARGET[1]).path
    except (AttributeError, TypeError):  # versions with one assembler
        return str(Path(triton.__file__).parent / "backends/nvidia/bin/ptxas")


def usage(ptx):
    """Registers and spilled bytes, as the assembler of Triton's package says."""
    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as file:
        file.write(ptx)
        file.flush()
        command = [assembler(), "-v", "--gpu-name=sm_90a", "-o", "/dev/null", file.name]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    text = done.stderr
    if done.returncode:
        raise RuntimeError(f"{Path(command[0]).name} ended with {done.returncode}: {text}")
    registers, spilled = (
        re.search(r"Used (\d+) registers", text),
        re.search(r"(\d+) bytes spill stores", text),
    )
    return f"{registers and registers[1]} registers, {spilled and spilled[1]} bytes spilled"


def step(make, dtype, lr, odd=0, clip=None):
    """Two steps of an optimizer with the CUDA engine; one launch may depend on what the other
    left.
    """
    store = torch.ones(3000 + odd, dtype=dtype)[odd:]
    p = torch.nn.Parameter(store)
    p.grad = torch.ones_like(p)
    optimizer = make([p], lr=lr, **({} if clip is None else {"clip": clip}))
    optimizer.step()
    optimizer.step()


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--all", action="store_true")
    arguments = parser.parse_args()
    found = Compiled()
    fused._cpu_run, cpu.unavailable, cpu.wrong_dtype = (
        cuda_rules.run,
        cuda.unavailable,
        cuda.wrong_dtype,
    )
    fused.FusedSteps.gradient_norm = lambda self: (
        None
    )  # the norm for the report is no launch of a step
    cuda.launch = found.launch
    for make, dtype in itertools.product(RULES.values(), (torch.float32, torch.bfloat16)):
        for lr, odd, how in [(0.1, 0, "propagate")] + [
            (lr, odd, how)
            for lr in (0.1, torch.tensor(0.1))
            for odd in (0, 1)
            for how in ("propagate", "skip")
        ] * arguments.all:
            step(partial(make, nonfinite=how), dtype, lr, odd)
    for policy in POLICIES:
        for make, clip in [
            *itertools.product(CLIPPED.values(), CLIPS),
            *((CLIPPED[name], "unit") for name in ("clipped adamw", "clipped acclip")),
        ]:
            step(partial(make, **policy), torch.float32, 0.1, clip=clip)
        for name in ("gclip 0.9 gradient", "gclip auto 0.9", "gclip 0.9 momentum", "normalized"):
            step(partial(RULES[name], **policy), torch.float32, torch.tensor(0.1))
    print(
        f"{len(found.seen)} launches compiled for sm_{TARGET[1]}, {len(found.failed)} failed "
        f"{found.failed}"
    )
    sys.exit(bool(found.failed))


if __name__ == "__main__":
    main()
