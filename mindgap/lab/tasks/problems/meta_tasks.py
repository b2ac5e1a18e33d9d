"""MAML and ANIL on the tasks of hyper-representation: every task starts from shared parameters and
takes a few steps.

x is the encoder and one head, in this order. ANIL's tasks move the head alone, MAML's all of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from mindgap.base.checked import check_arguments
from mindgap.bilevel.data.problem import BilevelProblem, Pack
from mindgap.bilevel.data.sample import Sample
from mindgap.bilevel.tools.meta import MetaLearner, adapt, task_problem
from mindgap.lab.tasks.problems.representation import HyperRepresentation

Examples = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class MetaTasks:
    """The training tasks of hyper-representation for
    :class:`~mindgap.bilevel.tools.meta.MetaLearner`.

    Args:
        task: tasks and encoder.
        whole: True for MAML, whose tasks move all parameters; False for ANIL, whose tasks move the
            head.

    Example:
        >>> from mindgap.lab.tasks.data import digits
        >>> from mindgap.lab.tasks.problems import hyper_representation
        >>> task = hyper_representation(
        ...     [digits()], [digits()], [digits()], tasks=(6, 1, 1), ways=3, shots=4
        ... )
        >>> [MetaTasks(task, whole).problem(2).pack_y.shapes for whole in (True, False)]
        [[(2, 1203)], [(2, 27)]]
    """

    task: HyperRepresentation
    whole: bool

    @cached_property
    def pack(self) -> Pack:
        """Encoder and head as one vector."""
        return Pack("x", {**self.task.x0, "head": self.task.y0[0]})

    @property
    def body(self) -> int:
        """How many parameters the encoder has; they come before the head's in x."""
        return self.pack.dim - self.task.y0[0].numel()

    def method(self, lr_x: float, lr_y: float, inner: int) -> MetaLearner:
        """MAML or ANIL, its hypergradient the derivative through all steps of the tasks.

        Args:
            lr_x: step of the shared parameters.
            lr_y: step of a task.
            inner: steps of a task, from all of x (MAML) or from the head in x (ANIL).
        """
        # A task starts from all of x, or from the head's entries of it.
        reset: Literal["x"] | tuple[int, int] = "x" if self.whole else (self.body, self.pack.dim)
        return MetaLearner(lr_x=lr_x, lr_y=lr_y, inner=inner, gradient="unrolled", reset=reset)

    def logits(self, x: Tensor, y: Tensor, inputs: Tensor) -> Tensor:
        """Scores (examples, ways) of one task's inputs with its own parameters y: encoder and head
        (MAML), or the head alone beside the encoder in x (ANIL).
        """
        weights = self.pack.view(y if self.whole else torch.cat([x[: self.body], y]))
        return self.task.encode(weights, inputs) @ weights["head"]

    def upper(self, x: Tensor, y: Tensor, batch: Examples) -> Tensor:
        """Loss of one task on query examples (inputs, labels)."""
        inputs, labels = batch
        return cross_entropy(self.logits(x, y, inputs), labels)

    def lower(self, x: Tensor, y: Tensor, batch: Examples) -> Tensor:
        """Loss of one task on support examples, with c times the squared norm of its head."""
        head = y[-self.task.y0[0].numel() :]  # y ends with the head, or is the head
        return self.upper(x, y, batch) + self.task.decay * head.square().sum()

    def problem(self, tasks: int) -> BilevelProblem:
        """The bilevel problem whose upper data are the query examples of the training tasks, and
        whose lower data their support examples.

        Args:
            tasks: per minibatch, the same at both levels.
        """
        start = self.pack.start
        return task_problem(
            self.upper,
            self.lower,
            start,
            start if self.whole else start[self.body :],
            self.task.train.query,
            self.task.train.support,
            tasks=tasks,
        )

    def accuracy(self, x: Tensor, method: MetaLearner) -> float:
        """Share of the training tasks' query examples that are classified rightly after each
        task's own steps.

        Args:
            x: encoder and head as one vector.
            method: takes the steps.
        """
        problem = self.problem(len(self.task.train))
        adapted = adapt(problem, method, x)
        inputs, labels = problem.upper_data.fetch(Sample(0))  # one batch holds all tasks
        # x is the same for all tasks; parameters and inputs are each task's own.
        with torch.no_grad():
            scores = torch.func.vmap(self.logits, in_dims=(None, 0, 0))(x, adapted, inputs)
        return float((scores.argmax(-1) == labels).double().mean())


check_arguments(__name__)
