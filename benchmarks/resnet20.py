"""ResNet20 on CIFAR-10 at the thesis' own scale: test accuracy of several optimizers, 100 epochs, on one GPU.

    MINDGAP_DATA=DATA python benchmarks/resnet20.py --out FOLDER --processes 6 --epochs 100 --runs sgd:0 ingd:0 adam:0

Every run writes ``FOLDER/<optimizer>-<seed>.jsonl`` as it goes, one line per reading. A finished run is not repeated.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

BATCH = 128


def optimizer_of(name: str, parameters: list[Any], seed: int) -> Any:
    """The settings of the thesis, 5.6 (SGD, Adam, Stochastic INGD) and 3.5 (clipping); ACClip at AdamW's usual rate."""
    import torch

    from mindgap.optim import ACClip, GClip, StochasticINGD

    name, _, rate = name.partition("@")
    given = {"lr": float(rate)} if rate else {}
    if name == "sgd":
        return torch.optim.SGD(parameters, **{"lr": 0.1, **given}, momentum=0.9, weight_decay=5e-4)
    if name == "adam":
        return torch.optim.Adam(parameters, **{"lr": 1e-3, **given}, eps=1e-3, weight_decay=1e-6)
    if name == "ingd":
        return StochasticINGD(parameters, beta=0.9, p=1.0, q=10.0, weight_decay=5e-4, seed=seed, **given)
    if name == "gclip":
        return GClip(parameters, **{"lr": 1.0, **given}, tau=1.0, beta=0.9, weight_decay=5e-4)
    return ACClip(parameters, **{"lr": 1e-3, **given}, weight_decay=1e-2)


def decode(out: Path) -> None:
    """Decode the images once for all processes."""
    import torch

    from mindgap.lab.tasks.captured import cifar_on

    if not (out / "cifar.pt").exists():
        torch.save(cifar_on("cpu"), out / "cifar.pt")


def one_run(name: str, seed: int, epochs: int, out: Path, small: bool) -> None:
    """Train once; write a reading every few epochs."""
    import torch
    import torch.nn.functional as F

    from mindgap.base.rng import torch_stream
    from mindgap.lab.tasks.captured import CapturedGradient, accuracy_and_loss, augmented_batches
    from mindgap.lab.tasks.models import ResNet20

    path = out / f"{name}-{seed}.jsonl"
    if path.exists() and '"done": true' in path.read_text():
        return
    device = "cuda" if torch.cuda.is_available() else "cpu"
    parts = torch.load(out / "cifar.pt", map_location=device)
    if small:
        parts = {part: (x[:512], y[:512]) for part, (x, y) in parts.items()}
    torch.manual_seed(seed)
    model = ResNet20().to(device)
    optimizer = optimizer_of(name, list(model.parameters()), seed)
    first = optimizer.param_groups[0]["lr"]
    order = torch_stream(seed, "order", device=device)
    images, labels = parts["train"]
    gradient = CapturedGradient(
        model, lambda m, x, y: F.cross_entropy(m(x), y), (images[:BATCH], labels[:BATCH]), autocast=torch.bfloat16
    )
    begun = time.perf_counter()
    with path.open("w") as file:
        for epoch in range(1, epochs + 1):
            drops = sum(epoch > share * epochs for share in (0.5, 0.75))
            if not name.startswith("adam"):
                optimizer.param_groups[0]["lr"] = first * 0.1**drops
            losses = []
            for x, y in augmented_batches(images, labels, BATCH, order):
                losses.append(gradient(x, y).clone())
                optimizer.step()
            if epoch % 5 == 0 or epoch == epochs:
                if name.startswith("ingd"):
                    optimizer.eval()
                row = {"epoch": epoch, "train_loss": float(torch.stack(losses).mean())}
                for part in ("validation", "test"):
                    row[f"{part}_accuracy"], row[f"{part}_loss"] = accuracy_and_loss(model, *parts[part])
                if name.startswith("ingd"):
                    optimizer.train()
                row["seconds"] = time.perf_counter() - begun
                file.write(json.dumps({**row, "done": epoch == epochs}) + "\n")
                file.flush()


def main() -> None:
    import torch.multiprocessing as processes

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--processes", type=int, default=6)
    parser.add_argument("--small", action="store_true", help="512 images, to try the command")
    parser.add_argument("--runs", nargs="+", default=["sgd:0", "ingd:0", "adam:0"])
    words = parser.parse_args()
    words.out.mkdir(parents=True, exist_ok=True)
    decode(words.out)
    pairs = [run.split(":") for run in words.runs]
    jobs = [(name, int(seed), words.epochs, words.out, words.small) for name, seed in pairs]
    with processes.get_context("spawn").Pool(words.processes, maxtasksperchild=1) as pool:
        pool.starmap(one_run, jobs, chunksize=1)
    for path in sorted(words.out.glob("*.jsonl")):
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        if rows:
            last = rows[-1]
            print(f"{path.stem}: epoch {last['epoch']}, test {last['test_accuracy']:.2%}, {last['seconds']:.0f} s")


if __name__ == "__main__":
    main()
