"""E4: the estimates of loss, gradient norm, noise and sharpness settle as the number of samples
grows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from mindgap.lab.studies import statistics_runs as gpu
from mindgap.lab.studies.spec import Figure, Parts, Row, Run, Scale, Source, Study, Trial, scales
from mindgap.lab.studies.training_runs import LARGE_TEXT, SMALL_TEXT, Training, text_problem
from mindgap.lab.studies.verdict import rows_by_method

QUANTITIES = ("loss", "gradient_norm", "noise", "sharpness")
#: Deviations up to this share count as none: single readings are no better (the sharpness has a
#: tolerance of 0.1 %).
NONE = 0.01


def loop(trial: Trial) -> Iterator[Row]:
    """Train a little; then read (6.2) on growing parts of N samples, in several random orders,
    against all N.
    """
    return _on_device(trial) if gpu.on_device(trial) else _run_small(trial)


def _on_device(trial: Trial) -> Iterator[Row]:
    """Minibatches as in training; the sharpness has its own, smaller N."""
    import torch

    run = gpu.statistics_run(trial, "e4")
    for _ in run.rows(lambda number: {}):
        pass
    trial.take_saved()  # rows begin after training: an interrupted trial starts again
    whole = [torch.cat(parts) for parts in zip(*run.draw(trial["samples"], "all"))]
    size = trial["batch"]
    for repeat in range(trial["orders"]):
        order = torch.randperm(len(whole[0]), generator=trial.torch_generator(f"e4 order {repeat}"))
        batches = list(zip(*(part[order.to(part.device)].split(size) for part in whole)))
        halves = [len(batches) >> k for k in range(20) if len(batches) >> k >= 2]
        found = run.statistics.read(batches, halves)
        yield from (
            {"order": repeat, "samples": f.samples, **_against(f, found[-1], QUANTITIES[:-1])}
            for f in found
        )
        sharp, vector = [], None
        for count in sorted({max(trial["sharp_m"] // size >> k, 1) for k in range(20)}):
            norm, vector = run.statistics.sharpness(
                batches[:count], tol=trial["sharp_tol"], start=vector, seed=trial.seed
            )
            sharp.append((count * size, norm))
        yield from (
            {
                "order": repeat,
                "samples": m,
                "sharpness": norm,
                "sharpness_off": norm / sharp[-1][1] - 1,
            }
            for m, norm in sharp
        )


def _against(found: Any, whole: Any, quantities: Sequence[str]) -> Row:
    """The quantities, and their relative deviations from those on all samples."""
    row: Row = {}
    for quantity in quantities:
        value = getattr(found, quantity)
        row |= {quantity: value, f"{quantity}_off": value / getattr(whole, quantity) - 1}
    return row


def _run_small(trial: Trial) -> Iterator[Row]:
    """Rows of a run at small scales: each statistic as samples are added, in several orders."""
    import torch

    from mindgap.lab.tasks.problems.training import digits_network
    from mindgap.measure.probes.statistics import training_statistics

    images = trial["source"] == "digits"
    problem = (
        digits_network(seed=trial.seed) if images else text_problem(trial.settings, trial.seed)
    )
    order, n = trial.torch_generator("order"), trial["samples"]
    optimizer = torch.optim.SGD(problem.objective.parameters, lr=0.05, momentum=0.9)
    run = Training(problem, optimizer, order, {})
    with trial.timed():
        for _ in range(trial["steps"]):
            run.advance(16)
    everything = problem.draw(order, n)
    for repeat in range(trial["orders"]):
        shuffled = torch.randperm(n, generator=order)
        batches = [_part(everything, where) for where in shuffled.split(n // trial["parts"])]
        found = training_statistics(problem.objective, batches, seed=trial.seed)
        for growth in found.growth:
            yield {
                "order": repeat,
                "samples": growth.samples,
                **_against(growth, found, QUANTITIES),
            }


def _part(batch: Any, where: Any) -> Any:
    return tuple(t[where] for t in batch) if isinstance(batch, tuple) else batch[where]


def judge(runs: Sequence[Run]) -> Parts:
    """For each quantity: its deviation from the value on all N samples, on few samples and on
    half of them.
    """
    parts = Parts()
    for name, rows in rows_by_method(runs).items():
        for quantity in QUANTITIES:
            read = [row for row in rows if f"{quantity}_off" in row]
            sizes = sorted({row["samples"] for row in read})
            off = {
                m: np.array([r[f"{quantity}_off"] for r in read if r["samples"] == m])
                for m in sizes
            }
            few, half = (float(np.sqrt(np.mean(off[m] ** 2))) for m in (sizes[0], sizes[-2]))
            bias = float(np.mean(off[sizes[0]]))
            doubt = 2 * float(np.std(off[sizes[0]])) / np.sqrt(len(off[sizes[0]]))
            part = f"{name}, {quantity.replace('_', ' ')}"
            parts.add(
                f"{part} settles",
                half <= max(few / 2, NONE),
                words=f"{few:.0%} off on {sizes[0]}, {half:.0%} on {sizes[-2]} of {sizes[-1]} "
                "samples",
                numbers={part: {"few": few, "half": half, "bias": bias}},
            )
            if quantity in ("gradient_norm", "sharpness"):
                parts.add(
                    f"{part} is not too small", bias >= -NONE - doubt, words=f"mean {bias:+.0%}"
                )
    return parts


_GPU = {"steps": 702, "every": 702, "orders": 2}
_QUICK = {"steps": 60, "samples": 512, "parts": 16, "orders": 4, "source": "digits", **SMALL_TEXT}

STUDY = Study(
    name="e4-estimates-settle",
    claim="E4",
    title="Estimates of loss, gradient norm, noise and sharpness settle",
    statement="Estimated on m of N samples, the norms of (6.2) are larger than their true values "
    "(Jensen), and all four estimates converge as m grows to N.",
    source=Source("thesis", "6.6.2, Fig. 6-8, 6-9"),
    models={
        "quick": "three convolutions on digits, one-layer transformer on prose",
        "cpu": "three convolutions on digits, two-layer transformer on prose",
        "gpu": f"proxies: {gpu.IMAGE_PROXY}, {gpu.TEXT_PROXY}",
    },
    paper_model="ResNet101 on ImageNet and Transformer-XL on WikiText-103",
    scales={
        **scales(
            _QUICK,
            {"steps": 1000, "samples": 8192, "parts": 128, "orders": 5, **LARGE_TEXT},
            seeds=(2, 5),
        ),
        "gpu": Scale(
            _GPU,
            3,
            methods={
                "convolutional network": {
                    **gpu.CLEAN_IMAGES,
                    "source": "cifar-10",
                    "samples": 44_800,
                    "sharp_m": 4096,
                    "sharp_tol": NONE / 2,
                },
                "transformer": {
                    **gpu.WIKITEXT,
                    "source": "wikitext-2",
                    "samples": 12_800,
                    "sharp_m": 640,
                    "sharp_tol": NONE / 2,
                },
            },
        ),
    },
    methods={"convolutional network": {"source": "digits"}, "transformer": {"source": "prose"}},
    loop=loop,
    judge=judge,
    rule="For each quantity the root mean squared deviation from the value on all N samples is at "
    "N/2 at most half of what it is on the smallest part, or below 1 %; and the two norms "
    "(gradient, Hessian) are not too small on average on that part, by more than 1 % and two "
    "standard errors.",
    figures=tuple(
        Figure(
            f"{title} from m samples over that from all",
            f"{column}_off",
            "relative deviation",
            x="samples",
            x_label="samples m",
            kind="points",
            log_x=True,
            hlines={"all samples": 0.0},
        )
        for title, column in (
            ("Loss", "loss"),
            ("Gradient norm", "gradient_norm"),
            ("Noise", "noise"),
            ("Sharpness", "sharpness"),
        )
    ),
)
