"""Seconds of ``examine`` on a large model, healthy and with a learning rate that is too large.

    python benchmarks/doctor/sizes.py cpu 1m FILE       # 1.07 M parameters, one thread
    python benchmarks/doctor/sizes.py cuda 100m FILE    # a transformer of 103 M parameters

Each run appends two lines of JSON to FILE.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mindgap.advise import examine

Batch = tuple[Tensor, Tensor]


class Language(nn.Module):
    """Eleven layers of width 768 over 16,000 symbols."""

    def __init__(self) -> None:
        super().__init__()
        self.emb = nn.Embedding(16000, 768)
        self.pos = nn.Parameter(0.02 * torch.randn(128, 768))
        layer = nn.TransformerEncoderLayer(
            768, 12, 3072, dropout=0.0, batch_first=True, norm_first=True
        )
        self.body = nn.TransformerEncoder(layer, 11, enable_nested_tensor=False)
        self.head = nn.Linear(768, 16000)

    def forward(self, x: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], device=x.device)
        h = self.body(self.emb(x) + self.pos[: x.shape[1]], mask=mask, is_causal=True)
        return self.head(h)


def classify(model: nn.Module, batch: Batch) -> Tensor:
    return F.cross_entropy(model(batch[0]).flatten(0, -2), batch[1].flatten())


def symbols(device: str) -> list[Batch]:
    """Chains that step on by one of two distances per symbol."""
    g = torch.Generator().manual_seed(0)
    step = torch.randint(1, 50, (16000,), generator=g)
    now, rows = torch.randint(2000, (320,), generator=g), []
    for _ in range(65):
        rows.append(now)
        now = (now + step[now] * torch.randint(1, 3, now.shape, generator=g)) % 2000
    return [(c[:, :-1], c[:, 1:]) for c in torch.stack(rows, 1).to(device).split(8)]


def vectors(device: str) -> list[Batch]:
    g = torch.Generator().manual_seed(0)
    x = torch.randn(2000, 784, generator=g)
    y = (x @ torch.randn(784, 10, generator=g)).argmax(1)
    return list(zip(x.to(device).split(32), y.to(device).split(32)))


def made(size: str, device: str) -> nn.Module:
    with torch.device(device):
        if size == "100m":
            return Language()
        return nn.Sequential(
            nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 256), nn.ReLU(), nn.Linear(256, 10)
        )


def main(device: str, size: str, path: str) -> None:
    torch.set_num_threads(1)
    batches = symbols(device) if size == "100m" else vectors(device)
    kind: Any = torch.optim.AdamW if size == "100m" else torch.optim.SGD
    for lr in (3e-4, 0.3) if size == "100m" else (0.1, 100.0):

        def problem(lr: float = lr) -> tuple[Any, ...]:
            model = made(size, device)
            return (model, classify), batches, kind(model.parameters(), lr=lr)

        count = sum(p.numel() for p in made(size, device).parameters())
        begun = time.perf_counter(), time.process_time()
        answer = examine(problem)
        row = {
            "parameters": count,
            "device": device,
            "lr": lr,
            "wall": round(time.perf_counter() - begun[0], 1),
            "cpu": round(time.process_time() - begun[1], 1),
            "steps": answer.facts.get("steps"),
            "verdict": answer.verdict,
            "sentence": answer.sentence,
            "shortened": answer.shortened,
            "notes": list(answer.notes),
            "load": os.getloadavg()[0],
        }
        with open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        print(row, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:4])
