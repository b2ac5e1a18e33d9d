"""``mindgap recommend`` on eleven small tasks: the gap to a 60-run search that varies clip and
weight decay, and the cost by the clock.

    python benchmarks/recommend_small.py --out FOLDER [--tasks NAME ...] [--runs 60] [--label after]
    python benchmarks/recommend_small.py --out FOLDER --table [--docs docs/recommend.md]

A full-length run takes about a second on one core. Every run appends one line to
``FOLDER/records.jsonl``; a second call does only what is missing. ``--label`` names the version of
the recommendation: run an older version of mindgap with ``--only recommend --label before`` to
compare. The search draws AdamW without clip, with ``clip`` 0.1, 1 or "auto", or SGD; a learning
rate; and a weight decay. Its best of seed 0, the recommendation, and AdamW at ``--rates``
run on three fresh seeds; the table shows the means. Settings of the race were tuned on the first
five tasks, and never on the others.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

FRESH_SEEDS = (101, 102, 103)
#: Rates of AdamW that run on the fresh seeds; ``--rates`` gives more.
RATES = [1e-3]
Problem = tuple[tuple[nn.Module, Callable[[Any, Any], Tensor]], list[Any], list[Any]]


def _generator(name: str) -> torch.Generator:
    return torch.Generator().manual_seed(sum(ord(c) * 31**i for i, c in enumerate(name)) % 2**31)


def _mlp(*widths: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for a, b in pairwise(widths[:-1]):
        layers += [nn.Linear(a, b), nn.Tanh()]
    return nn.Sequential(*layers, nn.Linear(widths[-2], widths[-1]))


def _square(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return (model(batch[0])[:, 0] - batch[1]).square().mean()


def _pairs(x: Tensor, y: Tensor, size: int) -> list[Any]:
    return list(zip(x.split(size), y.split(size), strict=True))


def _regression(name: str, noise: Callable[[torch.Generator, int], Tensor]) -> Problem:
    made, n = _generator(name), 6400
    x = torch.randn(n + 1000, 16, generator=made)
    clean = torch.sin(x @ torch.randn(16, 4, generator=made) / 2).sum(1)
    noisy = clean[:n] + noise(made, n)
    return (
        (_mlp(16, 64, 1), _square),
        _pairs(x[:n], noisy, 64),
        _pairs(x[n:], clean[n:], 500),
    )


def cauchy_targets(seed: int) -> Problem:
    def noise(made: torch.Generator, n: int) -> Tensor:
        bad = torch.rand(n, generator=made) < 0.02
        draws = torch.empty(n).cauchy_(generator=made)
        return torch.where(bad, 10 * draws, 0.1 * torch.randn(n, generator=made))

    return _regression("cauchy", noise)


def student_targets(seed: int) -> Problem:
    def noise(made: torch.Generator, n: int) -> Tensor:
        gauss, other = (torch.randn(n, k, generator=made) for k in (1, 3))
        return 0.5 * gauss[:, 0] / (other.square().sum(1) / 3).sqrt() ** 2

    return _regression("student", noise)


class _Factors(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Embedding(400, 12), nn.Embedding(400, 12)

    def forward(self, ids: Tensor) -> Tensor:
        return (self.left(ids[:, 0]) * self.right(ids[:, 1])).sum(1, keepdim=True)


def rare_ids(seed: int) -> Problem:
    made, n = _generator("ids"), 12800
    weights = 1 / torch.arange(1, 401).float()
    ids = torch.stack(
        [torch.multinomial(weights, n + 2000, True, generator=made) for _ in range(2)], 1
    )
    a, b = (0.5 * torch.randn(400, 4, generator=made) for _ in range(2))
    y = (a[ids[:, 0]] * b[ids[:, 1]]).sum(1) + 0.1 * torch.randn(n + 2000, generator=made)
    return (_Factors(), _square), _pairs(ids[:n], y[:n], 128), _pairs(ids[n:], y[n:], 500)


@cache
def _digits() -> tuple[Tensor, Tensor]:
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    order = torch.randperm(len(pixels), generator=_generator("digits"))
    x = torch.tensor(pixels, dtype=torch.float32) / 16
    return x[order], torch.tensor(labels)[order].long()


def autoencoder(seed: int) -> Problem:
    x, _ = _digits()
    loss = lambda model, batch: (model(batch) - batch).square().mean()  # noqa: E731
    return (_mlp(64, 48, 8, 48, 64), loss), list(x[:1408].split(64)), list(x[1408:].split(200))


def density(seed: int) -> Problem:
    """A negative log density: the loss changes its sign."""
    made = _generator("density")
    x = torch.rand(6400 + 1000, 4, generator=made)
    scale = 0.02 + 0.1 * x[:, 0]
    y = torch.sin(6 * x.sum(1)) + scale * torch.randn(len(x), generator=made)

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        out = model(batch[0])
        log_scale = out[:, 1].clamp(-6, 6)
        return (log_scale + 0.5 * ((batch[1] - out[:, 0]) / log_scale.exp()).square()).mean()

    return (_mlp(4, 64, 2), loss), _pairs(x[:6400], y[:6400], 64), _pairs(x[6400:], y[6400:], 500)


def ill_conditioned(seed: int) -> Problem:
    made = _generator("conditioned")
    x = torch.randn(6400 + 1000, 50, generator=made) * torch.logspace(-1.5, 0.5, 50)
    y = x @ torch.randn(50, generator=made) + 0.1 * torch.randn(len(x), generator=made)
    return (
        (nn.Linear(50, 1), _square),
        _pairs(x[:6400], y[:6400], 64),
        _pairs(x[6400:], y[6400:], 500),
    )


def physics(seed: int) -> Problem:
    """u'' = -25 sin(5x), u(0) = u(1) = 0 by a network; the loss needs derivatives."""

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        x = x.clone().requires_grad_()
        u = x * (1 - x) * model(x)
        (slope,) = torch.autograd.grad(u.sum(), x, create_graph=True)
        (bend,) = torch.autograd.grad(slope.sum(), x, create_graph=True)
        return (bend + 25 * torch.sin(5 * x)).square().mean()

    made = _generator("physics")
    return (
        (_mlp(1, 32, 32, 1), loss),
        list(torch.rand(60, 32, 1, generator=made)),
        [torch.linspace(0, 1, 200)[:, None]],
    )


class _Characters(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.core = nn.Embedding(20, 24), nn.GRU(24, 48, batch_first=True)
        self.head = nn.Linear(48, 20)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.core(self.table(ids))[0])


def recurrent(seed: int) -> Problem:
    """Characters of a chain whose next letter depends on the last two."""
    made = _generator("characters")
    law = torch.softmax(3 * torch.randn(20, 20, 20, generator=made), -1)
    n, text = 16 * 140, [torch.randint(0, 20, (16 * 140,), generator=made) for _ in range(2)]
    for _ in range(23):
        text.append(torch.multinomial(law[text[-2], text[-1]], 1, generator=made)[:, 0])
    ids = torch.stack(text, 1)

    def loss(model: nn.Module, batch: Tensor) -> Tensor:
        scores = model(batch[:, :-1])
        return F.cross_entropy(scores.flatten(0, 1), batch[:, 1:].flatten())

    return (_Characters(), loss), list(ids[: n - 240].split(16)), list(ids[n - 240 :].split(120))


def diffusion(seed: int) -> Problem:
    """Predict the noise that was added to points on a spiral."""
    made = _generator("spiral")
    t = torch.rand(6400 + 1000, generator=made)
    points = torch.stack([t * torch.cos(12 * t), t * torch.sin(12 * t)], 1)
    level = torch.rand(len(t), 1, generator=made)
    noise = torch.randn(len(t), 2, generator=made)
    x = torch.cat([(1 - level).sqrt() * points + level.sqrt() * noise, level], 1)
    loss = lambda model, batch: (model(batch[0]) - batch[1]).square().mean()  # noqa: E731
    return (
        (_mlp(3, 64, 64, 2), loss),
        _pairs(x[:6400], noise[:6400], 64),
        _pairs(x[6400:], noise[6400:], 500),
    )


def few_noisy_labels(seed: int) -> Problem:
    """320 digits, every fifth label wrong: weight decay and short training help."""
    x, labels = _digits()
    made = _generator("labels")
    wrong = torch.randint(0, 10, (320,), generator=made)
    y = torch.where(torch.rand(320, generator=made) < 0.2, wrong, labels[:320])
    loss = lambda model, batch: F.cross_entropy(model(batch[0]), batch[1])  # noqa: E731
    return (_mlp(64, 64, 10), loss), _pairs(x[:320], y, 32), _pairs(x[400:], labels[400:], 500)


class _Patches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enter, self.places = nn.Linear(8, 32), nn.Parameter(0.02 * torch.randn(8, 32))
        self.block = nn.TransformerEncoderLayer(32, 2, 64, dropout=0.0, batch_first=True)
        self.head = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.block(self.enter(x.view(-1, 8, 8)) + self.places).mean(1))


def attention(seed: int) -> Problem:
    x, y = _digits()
    loss = lambda model, batch: F.cross_entropy(model(batch[0]), batch[1])  # noqa: E731
    return (_Patches(), loss), _pairs(x[:1408], y[:1408], 32), _pairs(x[1408:], y[1408:], 200)


#: Name -> (factory, steps). The first five are for development, the others for judging.
TASKS: dict[str, tuple[Callable[[int], Problem], int]] = {
    "cauchy-targets": (cauchy_targets, 800),
    "rare-ids": (rare_ids, 800),
    "autoencoder": (autoencoder, 800),
    "density": (density, 800),
    "ill-conditioned": (ill_conditioned, 800),
    "physics": (physics, 600),
    "recurrent": (recurrent, 300),
    "diffusion": (diffusion, 800),
    "few-noisy-labels": (few_noisy_labels, 600),
    "student-targets": (student_targets, 800),
    "attention": (attention, 400),
}
DEVELOPMENT = (*tuple(TASKS)[:5], "few-noisy-labels")  # a rule was added after the last


def drawn(index: int) -> dict[str, Any]:
    """Setting number ``index`` of the random search."""
    from mindgap.base.rng import numpy_stream

    stream = numpy_stream(0, "small search", index)
    rate = 10 ** stream.uniform(-4, -1)
    decay = 10 ** stream.uniform(-4, 0)
    clip = [None, 0.1, 1.0, "auto"][int(stream.integers(4))]
    family = "SGD" if stream.random() < 0.25 else "AdamW"
    return {
        "family": family,
        "lr": float(f"{rate * (10 if family == 'SGD' else 1):.2g}"),
        "decay": float(f"{decay * (0.01 if family == 'SGD' else 1):.2g}"),
        "clip": clip,
    }


def _searched(setting: dict[str, Any]) -> Callable[[nn.Module], torch.optim.Optimizer]:
    import mindgap.optim

    lr, decay, clip = setting["lr"], setting["decay"], setting["clip"]
    if setting["family"] == "SGD":
        return lambda model: mindgap.optim.SGD(
            model.parameters(), lr=lr, momentum=0.9, weight_decay=decay, clip=clip, nonfinite="skip"
        )
    return lambda model: mindgap.optim.AdamW(
        model.parameters(), lr=lr, weight_decay=decay, clip=clip, nonfinite="skip"
    )


def full_run(task: str, setting: dict[str, Any], seed: int) -> float:
    """Validation loss at the end of one full-length run of a searched or recommended setting."""
    from mindgap.advise.candidates import Candidate
    from mindgap.advise.training import Progress, train_until

    factory, steps = TASKS[task]
    progress, more = Progress(), {}
    if "clip" in setting:
        make = _searched(setting)
    else:
        chosen = Candidate(**setting)
        make, more = chosen.optimizer, {"shape": chosen.shape}
    train_until(progress, factory, make, seed=seed, until=steps, total=steps, **more)
    return progress.scores[steps]


def work(job: list[Any]) -> dict[str, Any]:
    """Carry out one job and return its line."""
    kind, task, detail = job
    factory, steps = TASKS[task]
    begun = time.perf_counter()
    if kind == "search":
        line: dict[str, Any] = {"setting": drawn(detail)}
        line["loss"] = full_run(task, line["setting"], 0)
    elif kind == "final":
        line = {"loss": full_run(task, detail[0], detail[1])}
    else:
        from mindgap.advise.recommendation import recommend

        answer = recommend(factory, minutes=30, steps=steps)
        line = {"setting": answer.about["setting"], "sentence": answer.sentence}
        line |= {"steps": answer.about["full_length_runs"], "took": answer.about["seconds"]}
        line["clock"] = answer.about.get("clock_runs", math.nan)
    return {"job": job, "seconds": time.perf_counter() - begun, **line}


def read(folder: Path) -> dict[str, dict[str, Any]]:
    """Lines written so far, by job."""
    path = folder / "records.jsonl"
    lines = [json.loads(text) for text in path.read_text().splitlines()] if path.exists() else []
    return {json.dumps(line["job"]): line for line in lines}


def carry_out(jobs: list[list[Any]], folder: Path) -> None:
    """Run the jobs that have no line yet, writing each line as it comes."""
    done = read(folder)
    with (folder / "records.jsonl").open("a") as file:
        for job in jobs:
            job = json.loads(json.dumps(job))
            if json.dumps(job) not in done:
                file.write(json.dumps(work(job)) + "\n")
                file.flush()


def adamw(rate: float) -> dict[str, Any]:
    return {"family": "AdamW", "rate": rate, "lr": rate}


def chosen(task: str, done: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """What runs on fresh seeds: label -> setting."""
    found = {f"AdamW {rate:g}": adamw(rate) for rate in RATES}
    for line in done.values():  # rates that ran before
        kind, of, detail = line["job"]
        if kind == "final" and of == task and detail[0] == adamw(detail[0]["lr"]):
            found.setdefault(f"AdamW {detail[0]['lr']:g}", detail[0])
    searched = [line for line in done.values() if line["job"][:2] == ["search", task]]
    if searched:
        best = min(searched, key=lambda line: line["loss"] if line["loss"] else math.inf)
        found["search"] = best["setting"]
    for line in done.values():
        if line["job"][:2] == ["recommend", task]:
            found[line["job"][2]] = line["setting"]
    return found


def table(folder: Path) -> str:
    """One row per task: losses, gaps in per cent of AdamW's fall or loss, and the cost."""
    done = read(folder)
    labels = list(dict.fromkeys(k["job"][2] for k in done.values() if k["job"][0] == "recommend"))
    head = ["task", "AdamW 1e-3", "AdamW, best rate", "best of the search"]
    head += [f"{label}: gap to the search" for label in labels]
    rows = [[*head, "recommendation", "runs by the clock"]]
    gaps: dict[str, list[float]] = {label: [] for label in labels}
    for task in TASKS:
        mean = {}
        settings = chosen(task, done)
        for label, setting in settings.items():
            lines = [done.get(json.dumps(["final", task, [setting, s]])) for s in FRESH_SEEDS]
            if all(lines):
                mean[label] = statistics.fmean(line["loss"] for line in lines if line)
        if "search" not in mean or not labels or labels[-1] not in mean:
            continue
        plain = [(mean[k], k.split()[1]) for k in mean if k.startswith("AdamW ")]
        best = min(plain)
        # A loss that changes its sign has no percentage: there the gap is one of the fall from 1.
        unit = mean["search"] if mean["search"] > 0 else 1 - mean["search"]
        gap = {
            label: 100 * (mean[label] - mean["search"]) / unit for label in labels if label in mean
        }
        for label, value in gap.items():
            gaps[label].append(value)
        last = done[json.dumps(["recommend", task, labels[-1]])]
        rows.append(
            [
                task + ("" if task in DEVELOPMENT else " (judged)"),
                f"{mean['AdamW 0.001']:.3g}",
                f"{best[0]:.3g} (lr {best[1]})" if len(plain) > 1 else "not run",
                f"{mean['search']:.3g}",
                *(_percent(gap[label]) if label in gap else "not run" for label in labels),
                f"{last['sentence'].split(':')[0]}: {mean[labels[-1]]:.3g}",
                f"{last['clock']:.1f}",
            ]
        )
    rows.insert(1, ["---"] * len(rows[0]))
    text = "\n".join("| " + " | ".join(row) + " |" for row in rows)
    said = [
        f"{label}: median {_percent(statistics.median(g))}, worst {_percent(max(g))}"
        for label, g in gaps.items()
        if g
    ]
    return f"{text}\n\nGap to the search: {'; '.join(said)}."


def _percent(value: float) -> str:
    return f"{value:+.1f} %".replace("-", "−")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tasks", nargs="*", default=list(TASKS))
    parser.add_argument("--runs", type=int, default=60)
    parser.add_argument("--rates", type=float, nargs="*", default=RATES)
    parser.add_argument("--label", default="recommend")
    parser.add_argument("--only", nargs="*", default=["search", "recommend", "final"])
    parser.add_argument("--table", action="store_true", help="only print the table")
    parser.add_argument("--docs", type=Path, help="with --table: the page to write it into")
    words = parser.parse_args()
    words.out.mkdir(parents=True, exist_ok=True)
    RATES[:] = words.rates
    torch.set_num_threads(1)
    for task in () if words.table else words.tasks:
        if "recommend" in words.only:
            carry_out([["recommend", task, words.label]], words.out)
        if "search" in words.only:
            carry_out([["search", task, index] for index in range(words.runs)], words.out)
        if "final" in words.only:
            settings = chosen(task, read(words.out)).values()
            carry_out([["final", task, [s, k]] for s in settings for k in FRESH_SEEDS], words.out)
    text = table(words.out)
    print(text)
    if words.docs:
        begin, end = "<!-- recommend-small: begin -->", "<!-- recommend-small: end -->"
        page = words.docs.read_text(encoding="utf-8")
        head, _, rest = page.partition(begin)
        words.docs.write_text(f"{head}{begin}\n\n{text}\n\n{end}{rest.partition(end)[2]}", "utf-8")


if __name__ == "__main__":
    main()
