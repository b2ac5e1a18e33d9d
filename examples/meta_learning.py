"""Few-shot digits with iMAML, MAML and ANIL: 3 classes, 5 samples each, classes of the test never
seen in training.

    python examples/meta_learning.py

Tasks are drawn from the packaged digits: 0 to 6 for training, 7 to 9 for the test. Every iteration
takes 4 tasks side by side, the same ones at both levels; the upper variable is what all tasks start
from. ``imaml_by_hand`` is the same algorithm as one writes it without a library, one task after the
other.
"""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from mindgap.bilevel import (
    AdamStep,
    BilevelProblem,
    MetaLearner,
    Sample,
    adapt,
    solve,
    task_problem,
)
from mindgap.bilevel.data.problem import Pack

WAY, SHOT, TASKS, STRENGTH, LR_X, LR_Y, INNER, PRODUCTS = 3, 5, 4, 0.5, 0.003, 0.1, 5, 3


def draw_tasks(
    count: int, classes: list[int], seed: int
) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Query and support samples of ``count`` tasks: features (count, samples, 64) and labels
    (count, samples).
    """
    pixels, digits = load_digits(return_X_y=True)
    features, labels = torch.as_tensor(pixels).float() / 16, torch.as_tensor(digits)
    draw = torch.Generator().manual_seed(seed)
    parts: list[list[Tensor]] = [[], [], [], []]
    for _ in range(count):
        chosen = torch.tensor(classes)[torch.randperm(len(classes), generator=draw)[:WAY]]
        for begin, end, place in ((0, SHOT, 2), (SHOT, 3 * SHOT, 0)):
            found = []
            for c in chosen:
                rows = (labels == c).nonzero()[:, 0]
                found.append(rows[torch.randperm(len(rows), generator=draw)[begin:end]])
            parts[place].append(features[torch.cat(found)])
            parts[place + 1].append(torch.arange(WAY).repeat_interleave(end - begin))
    query_x, query_y, support_x, support_y = (torch.stack(p) for p in parts)
    return (query_x, query_y), (support_x, support_y)


torch.manual_seed(0)
MODEL = Pack("model", nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, WAY)))
BODY = 64 * 32 + 32  # parameters below the last layer


def score(parameters: Tensor, batch: tuple[Tensor, Tensor]) -> Tensor:
    return cross_entropy(MODEL.view(parameters)(batch[0]), batch[1])


def tied(x: Tensor, y: Tensor, batch: tuple[Tensor, Tensor]) -> Tensor:
    """The lower loss of iMAML: a task's parameters stay near the shared ones."""
    return score(y, batch) + 0.5 * STRENGTH * (y - x).square().sum()


def whole(x: Tensor, y: Tensor, batch: tuple[Tensor, Tensor]) -> Tensor:
    return score(y, batch)


def head(x: Tensor, y: Tensor, batch: tuple[Tensor, Tensor]) -> Tensor:
    """ANIL: a task changes the last layer only."""
    return score(torch.cat([x[:BODY], y]), batch)


#: name -> (upper loss, lower loss, start of one task, gradient, reset)
METHODS = {
    "iMAML": (whole, tied, MODEL.start, "implicit", "x"),
    "MAML": (whole, whole, MODEL.start, "unrolled", "x"),
    "ANIL": (head, head, MODEL.start[BODY:], "unrolled", (BODY, MODEL.dim)),
}


def training(name: str) -> BilevelProblem:
    """200 tasks of the digits 0 to 6."""
    upper, lower, y, _, _ = METHODS[name]
    return task_problem(
        upper, lower, MODEL.start, y, *draw_tasks(200, list(range(7)), 0), tasks=TASKS
    )


def learn(name: str, steps: int) -> Tensor:
    """The shared parameters after training."""
    gradient, reset = METHODS[name][3:]
    method = MetaLearner(
        lr_x=LR_X,
        lr_y=LR_Y,
        inner=INNER,
        products=PRODUCTS,
        gradient=gradient,
        reset=reset,
        x_step=AdamStep(),
    )
    return solve(training(name), method, steps).check().x


def accuracy(name: str, x: Tensor, tasks: int = 100) -> float:
    """Share of right answers on the query samples of new tasks, after the steps on their
    support samples.
    """
    upper, lower, y, gradient, reset = METHODS[name]
    query, support = draw_tasks(tasks, [7, 8, 9], 1)
    problem = task_problem(upper, lower, x, y, query, support, tasks=tasks)
    rows = adapt(
        problem, MetaLearner(lr_x=LR_X, lr_y=LR_Y, inner=INNER, gradient=gradient, reset=reset), x
    )
    features, labels = problem.upper_data.data
    full = torch.cat([x[:BODY].expand(tasks, -1), rows], 1) if name == "ANIL" else rows
    answers = torch.func.vmap(lambda p, a: MODEL.view(p)(a))(full, features).argmax(-1)
    return float((answers == labels).float().mean())


def imaml_by_hand(steps: int) -> Tensor:
    """iMAML without the library: Adam on x, one task after the other, in the order in which the
    problem draws them.
    """
    (query_x, query_y), (support_x, support_y) = draw_tasks(200, list(range(7)), 0)
    data = training("iMAML").upper_data
    order = [
        data.indices(Sample(which)).tolist() for which in data.draw(0, "upper", 0, steps).which
    ]
    x = MODEL.start.clone().requires_grad_()
    adam = torch.optim.Adam([x], lr=LR_X)
    for tasks in order:
        total = torch.zeros_like(x)
        for i in tasks:
            y = x.detach().clone().requires_grad_()
            for _ in range(INNER):
                (g,) = torch.autograd.grad(tied(x.detach(), y, (support_x[i], support_y[i])), y)
                y = (y - LR_Y * g).detach().requires_grad_()
            (v,) = torch.autograd.grad(score(y, (query_x[i], query_y[i])), y)
            (g,) = torch.autograd.grad(
                tied(x.detach(), y, (support_x[i], support_y[i])), y, create_graph=True
            )
            z, r, p = torch.zeros_like(v), v, v
            for _ in range(PRODUCTS):
                (hp,) = torch.autograd.grad(g, y, p, retain_graph=True)
                step = (r @ r) / (p @ hp)
                z, new = z + step * p, r - step * hp
                r, p = new, new + (new @ new) / (r @ r) * p
            total += STRENGTH * z / TASKS  # -J z, because J = -STRENGTH * identity
        x.grad = total
        adam.step()
    return x.detach()


def main(steps: int = 60) -> dict[str, float]:
    """Test accuracy of each method, of the start, and of iMAML by hand."""
    found = {f"{name}": accuracy(name, learn(name, steps)) for name in METHODS}
    found["iMAML by hand"] = accuracy("iMAML", imaml_by_hand(steps))
    found["no training"] = accuracy("iMAML", MODEL.start)
    return found


if __name__ == "__main__":
    for name, share in main().items():
        print(f"{name}: {100 * share:.1f} % of the answers right on new tasks")
