"""Chunk sizes and warps of the CUDA kernels, timed on the BERT-base set: how they were chosen.

    python benchmarks/optim_tuning.py [--singles]

``--singles`` times only the kernels with a single program, which add up the sums of the chunks.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import torch
from optim import OURS, bandwidth, bert_shapes, timed

from mindgap.rules.fused import cuda, cuda_rules


def main() -> None:
    speed = bandwidth("cuda")
    params = [torch.nn.Parameter(torch.randn(s, device="cuda") * 0.02) for s in bert_shapes()]
    for p in params:
        p.grad = torch.randn_like(p) * 1e-3
    total = sum(p.numel() for p in params)
    print(f"copy bandwidth {speed / 1e9:.0f} GB/s; ms per step (times its byte limit)")
    chunks = ((512, 2), (512, 4), (1024, 2), (1024, 4), (1024, 8), (2048, 4), (2048, 8), (4096, 8))
    for block, warps in () if "--singles" in sys.argv else chunks:
        cuda.BLOCK, cuda.WARPS = block, warps
        cells = []
        for name in ("ACClip", "CClip", "GClip", "GClip momentum", "StochasticINGD"):
            make, size = OURS[name]
            optimizer = make(params)
            for _ in range(3):
                optimizer.step()
            best = min(timed(optimizer.step, "cuda", 20) for _ in range(5))
            cells.append(f"{name} {best * 1e3:.3f} ({best / (size * total / speed):.2f})")
        print(f"{block:5d} elements, {warps} warps: " + ", ".join(cells), flush=True)
    cuda.BLOCK, cuda.WARPS = 1024, 4
    for wide, warps in ((4096, 8), (4096, 16), (8192, 16), (8192, 32), (16384, 32), (32768, 32)):
        cuda_rules.WIDE, cuda.SINGLE_WARPS = wide, warps
        cells = []
        for name in ("GClip", "GClip gradient", "GClip guard", "AdamW clip", "NormalizedSGD"):
            optimizer = OURS[name][0](params)
            for _ in range(3):
                optimizer.step()
            cells.append(
                f"{name} {min(timed(optimizer.step, 'cuda', 20) for _ in range(5)) * 1e3:.3f}"
            )
        print(f"single program of width {wide}, {warps} warps: " + ", ".join(cells), flush=True)


if __name__ == "__main__":
    main()
