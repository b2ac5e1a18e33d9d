"""E4: the estimates of loss, gradient norm, noise and sharpness settle as the number of samples
grows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from mindgap.lab.studies import statistics_runs as gpu
from mindgap.lab.studies.bounds import BoundDesign, mean_within
from mindgap.lab.studies.spec import Figure, Parts, Row, Run, Scale, Source, Study, Trial, scales
from mindgap.lab.studies.training_runs import LARGE_TEXT, SMALL_TEXT, Training, text_problem
from mindgap.lab.studies.verdict import by_method, rows_by_method
from mindgap.record.schema import grouped

QUANTITIES = ("loss", "gradient_norm", "noise", "sharpness")
#: Deviations up to this share count as none: single readings are no better (the sharpness has a
#: tolerance of 0.1 %).
NEGLIGIBLE = 0.01
#: A smaller deviation on half of the samples counts as this at scale gpu.
SMALLEST = 1e-4
#: Parts of the rule: four that settle and two that are not too small, per network.
PARTS = 12


def loop(trial: Trial) -> Iterator[Row]:
    """Train a little, then read :data:`QUANTITIES` on growing parts of N samples, in several random
    orders.

    A row holds ``order``, the number of ``samples``, quantities read on them, and with the suffix
    ``_off`` their relative deviations from the values on all N samples of that order.
    """
    return _on_device(trial) if gpu.on_device(trial) else _run_small(trial)


def _on_device(trial: Trial) -> Iterator[Row]:
    """Train at scale gpu, then read the quantities on growing parts of N samples, in several
    orders.

    A row holds ``order``, the number of ``samples``, loss, gradient norm and noise on them, and
    with the suffix ``_off`` their relative deviations from the values on all N. Rows of their own
    hold the sharpness in the same way; its N is ``sharp_m``.
    """
    import torch

    run = gpu.statistics_run(trial, "e4")
    for _ in run.rows(lambda number: {}):
        pass
    trial.take_saved()  # rows begin after training: an interrupted trial starts again
    # Each tensor of a batch (inputs, targets) over all samples.
    samples = [torch.cat(tensors) for tensors in zip(*run.draw(trial["samples"], "all"))]
    size = trial["batch"]
    for repeat in range(trial["orders"]):
        order = torch.randperm(
            len(samples[0]), generator=trial.torch_generator(f"e4 order {repeat}")
        )
        shuffled = (tensor[order.to(tensor.device)] for tensor in samples)
        batches = list(zip(*(tensor.split(size) for tensor in shuffled)))
        # All batches, half of them, a quarter, ..., down to two.
        counts = [len(batches) >> k for k in range(20) if len(batches) >> k >= 2]
        *estimates, on_all = run.statistics.read(batches, counts)
        for estimate in (*estimates, on_all):
            yield {
                "order": repeat,
                "samples": estimate.samples,
                **_deviations(estimate, on_all, QUANTITIES[:-1]),  # without the sharpness
            }
        norms: dict[int, float] = {}  # samples -> sharpness, the norm of the Hessian
        vector = None  # each search starts from the vector that the last one found
        # Numbers of batches, each about half of the next; the last has ``sharp_m`` samples.
        for count in sorted({max(trial["sharp_m"] // size >> k, 1) for k in range(20)}):
            norms[count * size], vector = run.statistics.sharpness(
                batches[:count], tol=trial["sharp_tol"], start=vector, seed=trial.seed
            )
        for number, norm in norms.items():
            yield {
                "order": repeat,
                "samples": number,
                "sharpness": norm,
                "sharpness_off": norm / norms[max(norms)] - 1,
            }


def _deviations(estimate: Any, on_all: Any, quantities: Sequence[str]) -> Row:
    """Columns of an estimate: each quantity, and with the suffix ``_off`` its relative deviation
    from the one on all samples.

    Args:
        estimate, on_all: objects with the quantities as attributes.
        quantities: their names.
    """
    row: Row = {}
    for quantity in quantities:
        value = getattr(estimate, quantity)
        row |= {quantity: value, f"{quantity}_off": value / getattr(on_all, quantity) - 1}
    return row


def _run_small(trial: Trial) -> Iterator[Row]:
    """Train at small scales, then read the quantities on growing parts of N samples, in several
    orders.

    A row holds ``order``, the number of ``samples``, the quantities on them, and with the suffix
    ``_off`` their relative deviations from the values on all N.
    """
    import torch

    from mindgap.lab.tasks.problems.training import digits_network
    from mindgap.measure.probes.statistics import training_statistics

    if trial["source"] == "digits":
        problem = digits_network(seed=trial.seed)
    else:
        problem = text_problem(trial.settings, trial.seed)
    order, n = trial.torch_generator("order"), trial["samples"]
    # A little training: batches of 16 and a step that suits both networks.
    optimizer = torch.optim.SGD(problem.objective.parameters, lr=0.05, momentum=0.9)
    run = Training(problem, optimizer, order, {})
    with trial.timed():
        for _ in range(trial["steps"]):
            run.advance(16)
    samples = problem.draw(order, n)
    for repeat in range(trial["orders"]):
        shuffled = torch.randperm(n, generator=order)
        batches = [_select(samples, rows) for rows in shuffled.split(n // trial["parts"])]
        statistics = training_statistics(problem.objective, batches, seed=trial.seed)
        for growth in statistics.growth:
            yield {
                "order": repeat,
                "samples": growth.samples,
                **_deviations(growth, statistics, QUANTITIES),
            }


def _select(batch: Any, rows: Any) -> Any:
    """The rows with these numbers of a batch, which is a tensor or a tuple of tensors."""
    return tuple(tensor[rows] for tensor in batch) if isinstance(batch, tuple) else batch[rows]


def judge(runs: Sequence[Run]) -> Parts:
    """Ask of each network and quantity whether its estimate settles as samples are added.

    Reads ``samples`` and the relative deviations ``..._off`` of all rows.

    Returns:
        One part per network and quantity: the root mean square deviation on half of the samples is
        at most half of that on the fewest, or at most :data:`NEGLIGIBLE`. Of gradient norm and
        sharpness also: the mean deviation on the fewest samples is not below -:data:`NEGLIGIBLE` by
        more than two standard errors. At scale gpu :func:`_judge_device` says what is asked.
    """
    parts = Parts()
    if runs[0].header.scale == "gpu":
        _judge_device(parts, runs)
        return parts
    for name, rows in rows_by_method(runs).items():
        for quantity in QUANTITIES:
            column = f"{quantity}_off"
            # samples -> relative deviations
            deviations = grouped((row["samples"], row[column]) for row in rows if column in row)
            sizes = sorted(deviations)
            fewest, half, most = sizes[0], sizes[-2], sizes[-1]  # the first two may be one
            on_fewest, on_half = (
                float(np.sqrt(np.mean(np.square(deviations[size])))) for size in (fewest, half)
            )
            bias = float(np.mean(deviations[fewest]))
            error = float(np.std(deviations[fewest])) / np.sqrt(len(deviations[fewest]))
            part = f"{name}, {quantity.replace('_', ' ')}"
            parts.add(
                f"{part} settles",
                holds=on_half <= max(on_fewest / 2, NEGLIGIBLE),
                words=f"{on_fewest:.0%} off on {fewest}, {on_half:.0%} on {half} of {most} samples",
                numbers={part: {"few": on_fewest, "half": on_half, "bias": bias}},
            )
            if quantity in ("gradient_norm", "sharpness"):
                parts.add(
                    f"{part} is not too small",
                    holds=bias >= -NEGLIGIBLE - 2 * error,
                    words=f"mean {bias:+.0%}",
                )
    return parts


def _judge_device(parts: Parts, runs: Sequence[Run]) -> None:
    """Add the parts of scale gpu, by one-sided 95 % bounds of means over the seeds, and the gate
    that both networks have learnt.

    Per seed the root mean square deviation over the orders is taken: that on half of the samples
    lies below half of that on the fewest, or below :data:`NEGLIGIBLE`, by the mean log. The mean
    deviation of gradient norm and sharpness on the fewest lies above -:data:`NEGLIGIBLE`.

    Args:
        parts: changed in place.
        runs: of both networks.
    """
    for name, own_runs in by_method(runs).items():
        for quantity in QUANTITIES:
            part, few, half = f"{name}, {quantity.replace('_', ' ')}", [], []
            for run in own_runs:
                column = f"{quantity}_off"
                deviations = grouped((r["samples"], r[column]) for r in run.rows if column in r)
                sizes = sorted(deviations)
                few.append(np.array(deviations[sizes[0]]))
                half.append(np.array(deviations[sizes[-2]]))
            on_few, on_half = (
                np.array([np.sqrt(np.mean(np.square(off))) for off in offs]) for offs in (few, half)
            )
            allowed = np.maximum(on_few / 2, NEGLIGIBLE)
            mean_within(
                parts,
                f"{part} settles",
                np.log(np.maximum(on_half, SMALLEST) / allowed),
                most=0.0,
                questions=PARTS,
                logs=True,
            )
            parts.note(
                f"{part}: {on_few.mean():.1%} off on {sizes[0]}, {on_half.mean():.1%} on "
                f"{sizes[-2]} of {sizes[-1]} samples"
            )
            if quantity in ("gradient_norm", "sharpness"):
                mean_within(
                    parts,
                    f"{part} is not too small",
                    [off.mean() for off in few],
                    least=-NEGLIGIBLE,
                    questions=PARTS,
                )
        gpu.judge_learnt(parts, name, own_runs)


STUDY = Study(
    name="e4-estimates-settle",
    claim="E4",
    title="Estimates of loss, gradient norm, noise and sharpness settle",
    statement="Estimated on m of N samples, the norms of (6.2) are larger than their true values "
    "(Jensen), and all four estimates converge as m grows to N.",
    source=Source("thesis", "6.6.2, Fig. 6-8, 6-9"),
    lengths={"gpu": "6.8 of 90 epochs of images, and 2,400 steps of words"},
    designs={
        "gpu": BoundDesign(
            "bounds",
            false=0.0,
            paper=1.89,
            deviation=0.45,
            unit="in the log of the ratio of deviations, from its bound",
            source="errors of m of N samples fall like √(1/m - 1/N): to 0.08 of those on the "
            "smallest part at N/2, of the sharpness to 0.18 (images) and 0.26 (words), where the "
            "rule asks for 0.5. Norms on the smallest part are too large by 0.4 (images) and 0.6 "
            "(words, gradient), and the transformer's sharpness by 0.003. These and all deviations "
            "are those of the record at scale quick, with four orders per seed, rounded against "
            "the rule: 0.45 of the log ratios, 0.15 and 0.3 of the norms, 0.003 of the last",
            parts=PARTS,
            margins=(1.89, 1.89, 0.41, 1.89, 1.02, 0.41, 1.84, 1.84, 0.61, 1.84, 0.66, 0.013),
            deviations=(0.45, 0.45, 0.15, 0.45, 0.45, 0.15, 0.45, 0.45, 0.3, 0.45, 0.45, 0.003),
        )
    },
    models={
        "quick": "three convolutions on digits, one-layer transformer on prose",
        "cpu": "three convolutions on digits, two-layer transformer on prose",
        "gpu": f"proxies: {gpu.IMAGE_PROXY}, {gpu.TEXT_PROXY}",
    },
    paper_model="ResNet101 on ImageNet and Transformer-XL on WikiText-103",
    scales={
        **scales(
            {
                "steps": 60,
                "samples": 512,
                "parts": 16,
                "orders": 4,
                "source": "digits",
                **SMALL_TEXT,
            },
            {"steps": 1000, "samples": 8192, "parts": 128, "orders": 5, **LARGE_TEXT},
            seeds=(2, 5),
        ),
        "gpu": Scale(
            {"steps": 2400, "every": 2400, "orders": 4},
            6,
            methods={
                "convolutional network": {
                    **gpu.CLEAN_IMAGES,
                    "source": "cifar-10",
                    "samples": 44_800,
                    "sharp_m": 4096,
                    "sharp_tol": NEGLIGIBLE / 2,
                },
                "transformer": {
                    **gpu.WIKITEXT,
                    "source": "wikitext-2",
                    "samples": 12_800,
                    "sharp_m": 640,
                    "sharp_tol": NEGLIGIBLE / 2,
                },
            },
            rule="Per seed the root mean squared deviation over four orders from the value on all "
            "N samples. By one-sided 95 % bounds of means over the seeds it is for each quantity "
            "at N/2 below half of what it is on the smallest part, or below 1 % (mean log ratio), "
            "and the two norms (gradient, Hessian) are on that part less than 1 % too small: all "
            "must say so. No, with 95 % for all twelve parts together, where a mean lies on the "
            "other side. Gate: every run ends 1 nat below the frequencies of classes or words, "
            "otherwise not trained.",
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
