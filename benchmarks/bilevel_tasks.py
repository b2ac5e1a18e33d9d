"""Problems with a common yardstick: five that the step sizes are judged on, and others of the same
kinds that they were developed on. Each has its losses in torch and in JAX.

Phi(x) is the upper loss at one common solution of the lower level, whichever method found x: exact
where the lower level is convex, else 300 full-batch steps of Adam from the problem's own start.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch import Tensor

from mindgap.bilevel import Batches, BilevelProblem, lower_solution
from mindgap.bilevel.backends.jax_oracle import JaxOracle
from mindgap.lab.tasks.data.images import digits
from mindgap.lab.tasks.problems.cleaning import hyper_cleaning
from mindgap.lab.tasks.problems.compiled import (
    cleaning_losses,
    quadratic_losses,
    regularisation_losses,
)
from mindgap.lab.tasks.problems.quadratic import quadratic_problem
from mindgap.lab.tasks.problems.regularisation import ijcnn1_selection

JUDGED = ("quadratic", "ijcnn1", "two-layer", "convolutional", "transformer")
DEVELOPED = (
    "quadratic b",
    "ridge",
    "selection b",
    "tumours",
    "linear",
    "two-layer b",
    "convolutional b",
    "layer decay",
    "transformer b",
)
CONVEX = ("quadratic", "quadratic b", "ijcnn1", "ridge", "selection b", "tumours", "linear")
Task = tuple[BilevelProblem, Any]  # the problem, and its losses in JAX


class Torch:
    """What the nets need of an array library, in torch."""

    exp, tanh, softmax = torch.exp, torch.tanh, staticmethod(lambda a: torch.softmax(a, -1))
    softplus: Any = staticmethod(torch.nn.functional.softplus)
    pad: Any = staticmethod(lambda a: torch.nn.functional.pad(a, (0, 0, 1, 1, 1, 1)))
    concatenate: Any = staticmethod(lambda parts: torch.cat(parts, -1))
    swap: Any = staticmethod(lambda a, i, j: a.transpose(i, j))
    sigmoid: Any = staticmethod(torch.sigmoid)
    losses: Any = staticmethod(
        lambda scores, labels: torch.nn.functional.cross_entropy(scores, labels, reduction="none")
    )


def _jax_losses(scores: Any, labels: Any) -> Any:
    right = (labels[:, None] == jnp.arange(scores.shape[1])[None, :]).astype(scores.dtype)
    return jax.nn.logsumexp(scores, axis=1) - (right * scores).sum(1)


class Jax:
    """The same in JAX."""

    exp, tanh, softmax = jnp.exp, jnp.tanh, staticmethod(lambda a: jax.nn.softmax(a, -1))
    softplus: Any = staticmethod(jax.nn.softplus)
    pad: Any = staticmethod(lambda a: jnp.pad(a, ((0, 0), (1, 1), (1, 1), (0, 0))))
    concatenate: Any = staticmethod(lambda parts: jnp.concatenate(parts, -1))
    swap: Any = staticmethod(lambda a, i, j: jnp.swapaxes(a, i, j))
    sigmoid: Any = staticmethod(jax.nn.sigmoid)
    losses: Any = staticmethod(_jax_losses)


def equal_batches(problem: BilevelProblem) -> BilevelProblem:
    """The problem with its last, shorter batches left out, as the compiled backend needs it."""
    for name in ("upper_data", "lower_data"):
        data: Any = getattr(problem, name)
        setattr(problem, name, Batches(data.data, data.batch_size, shuffle=False, last="drop"))
    return problem


@cache
def noisy_digits(
    train: int, clean: int, wrong: float, seed: int = 0
) -> tuple[tuple[Tensor, Tensor, Tensor], tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Digits as (pixels, noisy labels, numbers) to train on, (pixels, labels) to validate and to
    test on.
    """
    table, draw = digits(), torch.Generator().manual_seed(seed)
    pixels = torch.as_tensor(table.features).float()
    labels = torch.as_tensor(table.labels)
    order = torch.randperm(len(labels), generator=draw)
    first, second, third = order[:train], order[train : train + clean], order[train + clean :]
    changed = torch.rand(train, generator=draw) < wrong
    other = (labels[first] + torch.randint(1, 10, (train,), generator=draw)) % 10
    noisy = torch.where(changed, other, labels[first])
    return (
        (pixels[first], noisy, torch.arange(train)),
        (pixels[second], labels[second]),
        (pixels[third], labels[third]),
    )


def _drawn(shapes: dict[str, tuple[int, ...]], seed: int = 0) -> dict[str, Tensor]:
    """Weights at their start, of variance 1 / fan-in; biases are zero."""
    draw = torch.Generator().manual_seed(seed)
    return {
        name: torch.zeros(shape)
        if name.startswith("b")
        else torch.randn(shape, generator=draw) / math.sqrt(shape[0])
        for name, shape in shapes.items()
    }


def two_layer(lib: Any, y: Any, pixels: Any) -> Any:
    return lib.tanh(pixels @ y["w1"] + y["b1"]) @ y["w2"] + y["b2"]


def _convolved(lib: Any, images: Any, weights: Any, bias: Any) -> Any:
    """3 x 3 convolution as a product with patches, softplus, mean over 2 x 2."""
    side = images.shape[1]
    wide = lib.pad(images)
    patches = lib.concatenate(
        [wide[:, i : i + side, j : j + side] for i in range(3) for j in range(3)]
    )
    found = lib.softplus(patches @ weights + bias)
    return found.reshape(-1, side // 2, 2, side // 2, 2, found.shape[-1]).mean((2, 4))


def two_layer_soft(lib: Any, y: Any, pixels: Any) -> Any:
    return lib.softplus(pixels @ y["w1"] + y["b1"]) @ y["w2"] + y["b2"]


def convolutional(lib: Any, y: Any, pixels: Any) -> Any:
    images = _convolved(lib, pixels.reshape(-1, 8, 8, 1), y["w1"], y["b1"])
    images = _convolved(lib, images, y["w2"], y["b2"])
    return images.reshape(-1, y["w3"].shape[0]) @ y["w3"] + y["b3"]


def _normed(h: Any) -> Any:
    """h, centred and of a size below 1. The 1 below the root keeps the curvature finite where decay
    makes h small: with 1e-5 the lower level started at a curvature of 3,000, and no point of a grid
    was better than the start.
    """
    centred = h - h.mean(-1)[..., None]
    return centred / ((centred**2).mean(-1)[..., None] + 1.0) ** 0.5


def reader(lib: Any, y: Any, pixels: Any, heads: int = 2) -> Any:
    """A transformer of two layers that reads a digit row by row."""
    h = pixels.reshape(-1, 8, 8) @ y["w_rows"] + y["places"]
    n, length, width = h.shape
    for block in "12":
        parts = (_normed(h) @ y[f"w_in{block}"]).reshape(n, length, 3, heads, width // heads)
        q, k, v = (lib.swap(parts[:, :, i], 1, 2) for i in range(3))
        seen = lib.softmax(q @ lib.swap(k, 2, 3) / math.sqrt(width // heads)) @ v
        h = h + lib.swap(seen, 1, 2).reshape(n, length, width) @ y[f"w_out{block}"]
        h = h + lib.softplus(_normed(h) @ y[f"w_wide{block}"]) @ y[f"w_narrow{block}"]
    return h.mean(1) @ y["w_head"] + y["b_head"]


def cleaning(
    scores: Callable[..., Any],
    y: dict[str, Tensor],
    data: tuple[int, int, float, int] = (700, 500, 0.4, 0),
    batch: int = 50,
) -> Task:
    """Hyper-cleaning of 700 digits with 40 % of the labels wrong, a weight per training digit."""
    train, clean, _ = noisy_digits(*data)

    def pair(lib: Any) -> tuple[Callable[..., Any], Callable[..., Any]]:
        def lower(x: Any, y: Any, batch: Any) -> Any:
            losses = lib.losses(scores(lib, y, batch[0]), batch[1])
            squares = sum((v**2).sum() for v in y.values())
            return (lib.sigmoid(x[batch[2]]) * losses).mean() + 1e-3 * squares

        def upper(x: Any, y: Any, batch: Any) -> Any:
            return lib.losses(scores(lib, y, batch[0]), batch[1]).mean()

        return upper, lower

    start = torch.zeros(data[0])
    return BilevelProblem(*pair(Torch), start, y, clean, train, batch_size=batch), pair(Jax)


def decay(
    scores: Callable[..., Any],
    y: dict[str, Tensor],
    layer: dict[str, int],
    data: tuple[Any, Any],
    batch: int,
) -> Task:
    """One decay per layer; x is its logarithm."""
    train, clean = data

    def pair(lib: Any) -> tuple[Callable[..., Any], Callable[..., Any]]:
        def upper(x: Any, y: Any, batch: Any) -> Any:
            return lib.losses(scores(lib, y, batch[0]), batch[1]).mean()

        def lower(x: Any, y: Any, batch: Any) -> Any:
            strength = lib.exp(x)
            decay = sum(strength[layer[name]] * (v**2).sum() for name, v in y.items())
            return upper(x, y, batch) + 0.5 * decay

        return upper, lower

    start = torch.full((max(layer.values()) + 1,), -3.5)
    lower_data = train[0], train[1]
    problem = BilevelProblem(*pair(Torch), start, y, clean, lower_data, batch_size=batch)
    return problem, pair(Jax)


def transformer(width: int, data: tuple[int, int, float, int], batch: int, seed: int) -> Task:
    """One decay per layer of a small transformer that learns digits; the decays start too strong,
    and the lower level starts solved.
    """
    shapes: dict[str, tuple[int, ...]] = {"w_rows": (8, width), "places": (8, width)}
    layer = {"w_rows": 0, "places": 0}
    for i, block in enumerate("12"):
        shapes |= {
            f"w_in{block}": (width, 3 * width),
            f"w_out{block}": (width, width),
            f"w_wide{block}": (width, 2 * width),
            f"w_narrow{block}": (2 * width, width),
        }
        layer |= {f"w_in{block}": 1 + 2 * i, f"w_out{block}": 1 + 2 * i}
        layer |= {f"w_wide{block}": 2 + 2 * i, f"w_narrow{block}": 2 + 2 * i}
    shapes |= {"w_head": (width, 10), "b_head": (10,)}
    layer |= {"w_head": 5, "b_head": 5}
    train, clean, _ = noisy_digits(*data)
    task = decay(reader, _drawn(shapes, seed), layer, (train, clean), batch)
    start = task[0].pack_x.start
    task[0].pack_y.start = torch.from_numpy(np.array(trained(task, start[None])[0]))
    return task


def layer_decay() -> Task:
    """One decay per tensor of a net with one hidden layer, 120 digits, 20 % mislabelled."""
    train, clean, _ = noisy_digits(120, 600, 0.2, seed=2)
    y = _drawn({"w1": (64, 24), "b1": (24,), "w2": (24, 10), "b2": (10,)}, seed=3)
    return decay(two_layer, y, {"w1": 0, "b1": 1, "w2": 2, "b2": 3}, (train, clean), 40)


def tumours() -> Task:
    """Logistic regression with a decay per feature on scikit-learn's 569 tumours, 30 features, a
    tenth of the labels wrong; start as for ijcnn1.
    """
    from sklearn.datasets import load_breast_cancer

    features, labels = load_breast_cancer(return_X_y=True)
    features = (features - features.mean(0)) / features.std(0)
    order = np.random.default_rng(0).permutation(len(labels))
    draw = torch.Generator().manual_seed(0)
    wrong = torch.rand(len(labels), generator=draw) < 0.1
    a = torch.as_tensor(features[order]).float()
    t = torch.as_tensor(2.0 * labels[order] - 1.0).float()
    t = torch.where(wrong, -t, t)

    def pair(lib: Any) -> tuple[Callable[..., Any], Callable[..., Any]]:
        def upper(x: Any, y: Any, b: Any) -> Any:
            return lib.softplus(-b[1] * (b[0] @ y)).mean()

        def lower(x: Any, y: Any, b: Any) -> Any:
            return upper(x, y, b) + 0.5 * (lib.exp(x) * y**2).sum()

        return upper, lower

    x, y = torch.rand(30, generator=draw).log(), torch.randn(30, generator=draw)
    parts = (a[:256], t[:256]), (a[256:512], t[256:512])
    return BilevelProblem(*pair(Torch), x, y, *parts, batch_size=32), pair(Jax)


def ridge() -> Task:
    """Ridge regression with one penalty per feature, 640 / 320 samples, 20 unequal features."""
    draw = torch.Generator().manual_seed(0)
    features = torch.randn(960, 20, generator=draw) * torch.logspace(0, 1, 20) / 5
    targets = features[:, :5].sum(1) + 2 * torch.randn(960, generator=draw)

    def upper(x: Any, y: Any, b: Any) -> Any:
        return ((b[0] @ y - b[1]) ** 2).mean()

    def lower(x: Any, y: Any, b: Any) -> Any:
        return upper(x, y, b) + (2.0**x * y**2).sum()

    data = (features[:320], targets[:320]), (features[320:], targets[320:])
    start = torch.full((20,), 2.0)
    problem = BilevelProblem(upper, lower, start, torch.zeros(20), *data, batch_size=32)
    return problem, (upper, lower)


@lru_cache(maxsize=16)
def make(name: str) -> Task:
    """A problem by its name, and its losses in JAX."""
    if name == "quadratic":
        task = quadratic_problem(lower=4096, upper=1024, dim_y=50, dim_x=10)
        return task.problem(), quadratic_losses()
    if name == "ijcnn1":
        selection = ijcnn1_selection(dtype=torch.float32)
        return equal_batches(selection.problem()), regularisation_losses(selection)
    if name == "two-layer":
        y = _drawn({"w1": (64, 32), "b1": (32,), "w2": (32, 10), "b2": (10,)})
        return cleaning(two_layer, y)
    if name == "convolutional":
        shapes = {"w1": (9, 8), "b1": (8,), "w2": (72, 16), "b2": (16,)}
        return cleaning(convolutional, _drawn({**shapes, "w3": (64, 10), "b3": (10,)}))
    if name == "transformer":
        return transformer(10, (1000, 400, 0.0, 1), 50, seed=0)
    if name == "quadratic b":
        task = quadratic_problem(lower=2048, upper=512, dim_y=30, dim_x=6, seed=5)
        return task.problem(), quadratic_losses()
    if name == "selection b":
        selection = ijcnn1_selection(source="synthetic", rows=4000, seed=5, dtype=torch.float32)
        return equal_batches(selection.problem()), regularisation_losses(selection)
    if name == "tumours":
        return tumours()
    if name == "two-layer b":
        y = _drawn({"w1": (64, 20), "b1": (20,), "w2": (20, 10), "b2": (10,)}, 11)
        return cleaning(two_layer_soft, y, (600, 440, 0.3, 4), 40)
    if name == "convolutional b":
        shapes = {"w1": (9, 6), "b1": (6,), "w2": (54, 12), "b2": (12,), "w3": (48, 10)}
        return cleaning(convolutional, _drawn({**shapes, "b3": (10,)}, 12), (500, 500, 0.5, 5), 50)
    if name == "transformer b":
        return transformer(8, (1000, 480, 0.0, 6), 40, seed=13)
    if name == "ridge":
        return ridge()
    if name == "linear":
        hyper = hyper_cleaning(digits(), corruption=0.5, dtype=torch.float32)
        return equal_batches(hyper.problem(32)), cleaning_losses(hyper)
    return layer_decay()


def trained(task: Task, xs: Tensor, steps: int = 300) -> Any:
    """The lower level over all samples at several x by Adam, from the problem's start."""
    problem, losses = task
    oracle = JaxOracle(problem, *losses)
    y0 = oracle.from_torch(problem.pack_y.start)
    key = (id(problem), steps, len(xs))
    if key not in _SOLVERS:

        def one(x: Any, arrays: Any, y0: Any) -> Any:
            inside = oracle.with_arrays(arrays)
            slope = jax.grad(lambda y: inside.loss("lower", x, y))

            def body(t: Any, carry: Any) -> Any:
                y, m, v = carry
                g = slope(y)
                m, v = 0.9 * m + 0.1 * g, 0.99 * v + 0.01 * g * g
                rate = 0.01 * (1.0 + jnp.cos(jnp.pi * t / steps))
                size = jnp.sqrt(v / (1 - 0.99 ** (t + 1.0))) + 1e-8
                return y - rate * (m / (1 - 0.9 ** (t + 1.0))) / size, m, v

            return jax.lax.fori_loop(0, steps, body, (y0, 0.0 * y0, 0.0 * y0))[0]

        _SOLVERS[key] = jax.jit(jax.vmap(one, (0, None, None)))
    return _SOLVERS[key](jnp.asarray(xs.numpy()), oracle.arrays, y0)


_SOLVERS: dict[Any, Any] = {}


def phi(name: str, xs: Tensor) -> list[float]:
    """The upper loss over all samples at the common solution of the lower level, for several x."""
    task = make(name)
    problem, found = task[0], []
    good = xs.isfinite().all(1)
    ys = None
    if name not in CONVEX:
        ys = torch.from_numpy(np.array(trained(task, torch.where(good[:, None], xs, 0.0))))
    for i, x in enumerate(xs):
        try:
            y = lower_solution(problem, x, tol=1e-4) if ys is None else ys[i]
            value = float(problem.loss("upper", x, y)) if bool(good[i]) else math.inf
        except RuntimeError:
            value = math.inf
        found.append(value if math.isfinite(value) else math.inf)
    return found
