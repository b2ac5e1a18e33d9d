"""One bad batch, before and after: torch's AdamW and ours with clip="auto" on small digits.

At step 30 the loss of one batch is 1,000 times too large (a forgotten division). The picture shows
the loss on digits that no batch holds, medians over three seeds::

    python examples/one_bad_batch.py docs/pictures/one-bad-batch.png
"""

import sys
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy

from mindgap.optim import AdamW

STEPS, BAD, EVERY = 300, 30, 5
images, labels = (torch.as_tensor(a) for a in load_digits(return_X_y=True))
images, held = images.float() / 16, slice(1400, None)


def train(optimizer_class, seed=0, threshold=None, **settings):
    """The held-out loss before every fifth step and at the end."""
    torch.manual_seed(seed)
    draw = torch.Generator().manual_seed(seed)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = optimizer_class(model.parameters(), lr=3e-3, **settings)
    losses = []
    for step in range(STEPS + 1):
        if step % EVERY == 0:
            with torch.no_grad():
                losses.append(float(cross_entropy(model(images[held]), labels[held])))
        batch = torch.randint(1400, (32,), generator=draw)
        loss = cross_entropy(model(images[batch]), labels[batch])
        optimizer.zero_grad()
        (1000 * loss if step == BAD else loss).backward()
        if threshold is not None:
            nn.utils.clip_grad_norm_(model.parameters(), threshold)
        optimizer.step()
    return losses


def compare(seeds=range(3)):
    """Name -> the median over seeds of the held-out loss at every step."""
    runs = {
        "torch.optim.AdamW": [train(torch.optim.AdamW, seed) for seed in seeds],
        "torch, clip_grad_norm_(1)": [train(torch.optim.AdamW, s, threshold=1.0) for s in seeds],
        'mindgap AdamW(clip="auto")': [train(AdamW, seed, clip="auto") for seed in seeds],
    }
    return {name: torch.tensor(of).median(0).values.tolist() for name, of in runs.items()}


def draw_picture(curves, out):
    """Both curves as a PNG."""
    from mindgap.lab.report import figure_png

    rows = [
        {"step": EVERY * place, "loss": loss, "optimizer": name}
        for name, losses in curves.items()
        for place, loss in enumerate(losses)
    ]
    last = {name: f"{losses[-1]:.2f}" for name, losses in curves.items()}
    ends = [
        {"step": STEPS, "loss": c[-1], "optimizer": n, "text": last[n]} for n, c in curves.items()
    ]
    x = {"field": "step", "type": "quantitative", "title": "step"}
    y = {
        "field": "loss",
        "type": "quantitative",
        "title": "held-out loss",
        "scale": {"type": "log", "domain": [0.3, 3], "nice": False},
        "axis": {"tickCount": 5, "format": "~g"},
    }
    colour = {
        "field": "optimizer",
        "type": "nominal",
        "scale": {"domain": list(curves), "range": ["#b3261e", "#868e96", "#0b5cad"]},
        "legend": {"title": None, "orient": "top-right", "labelLimit": 300},
    }
    mark = {"type": "rule", "strokeDash": [4, 4], "color": "#57606a"}
    note = {"type": "text", "align": "left", "dx": 6, "dy": -100, "color": "#57606a"}
    spec = {
        "width": 640,
        "height": 230,
        "background": "white",
        "title": {
            "text": f"One bad batch at step {BAD}: held-out loss at the end "
            f"{last['torch.optim.AdamW']} with torch's AdamW, {list(last.values())[2]} with ours",
            "anchor": "start",
        },
        "layer": [
            {
                "data": {"values": rows},
                "mark": {"type": "line", "strokeWidth": 2},
                "encoding": {"x": x, "y": y, "color": colour},
            },
            {
                "data": {"values": ends},
                "mark": {"type": "text", "align": "left", "dx": 4},
                "encoding": {"x": x, "y": y, "color": colour, "text": {"field": "text"}},
            },
            {"data": {"values": [{"step": BAD}]}, "mark": mark, "encoding": {"x": x}},
            {
                "data": {"values": [{"step": BAD, "text": "loss 1,000 times too large"}]},
                "mark": note,
                "encoding": {"x": x, "text": {"field": "text"}},
            },
        ],
        "config": {"font": "Helvetica, Arial, 'Liberation Sans', sans-serif"},
    }
    Path(out).write_bytes(figure_png(spec))


curves = compare()
for name, losses in curves.items():
    print(f"{name}: {losses[BAD // EVERY]:.3f} before the bad batch, {losses[-1]:.3f} at the end")
if sys.argv[-1].endswith(".png"):  # a notebook has arguments of its own
    draw_picture(curves, sys.argv[-1])
