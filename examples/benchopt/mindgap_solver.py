"""Any of mindgap's methods as a solver of https://github.com/benchopt/benchmark_bilevel.

Copy this file into its ``benchmark_utils`` and ``mindgap_soba.py`` into its ``solvers``; a further
method is three lines (``key`` is a key of ``mindgap.bilevel.METHODS``). The benchmark hands over
losses of (inner, outer, start, batch_size); a batch of ours is the number of its first sample.
Methods that evaluate all samples at once (SRBA, VRBO without ``refresh``) cannot be run this way.
"""

import jax
import numpy as np
import torch
from benchmark_utils import constants
from benchopt import BaseSolver
from benchopt.stopping_criterion import SufficientProgressCriterion

from mindgap.bilevel import METHODS, Batches, BilevelProblem
from mindgap.bilevel.backends.compiled import JaxBackend


class MindgapSolver(BaseSolver):
    key = "soba"
    parameters = {  # noqa: RUF012
        "step_size": [0.1],
        "outer_ratio": [1.0],
        "batch_size": [64],
        "eval_freq": [128],
        "random_state": [1],
    }
    requirements = ["pip::mindgap[jax]"]  # noqa: RUF012
    stopping_criterion = SufficientProgressCriterion(
        patience=constants.PATIENCE, strategy="callback"
    )

    @staticmethod
    def get_next(stop_val):
        return stop_val + 1

    def settings(self):
        """Settings of the method; a method with more of them overrides this."""
        return {"lr_x": self.step_size / self.outer_ratio, "lr_y": self.step_size}

    def set_objective(
        self, f_inner, f_outer, n_inner_samples, n_outer_samples, inner_var0, outer_var0
    ):
        size = self.batch_size

        def loss(function):
            return lambda x, y, b: function(y, x, b[0], batch_size=size)

        starts = [
            Batches(torch.arange(0, n - n % size, size), 1, shuffle=False)
            for n in (n_outer_samples, n_inner_samples)
        ]
        losses = loss(f_outer), loss(f_inner)
        at = [torch.from_numpy(np.array(v)) for v in (outer_var0, inner_var0)]
        self.problem = BilevelProblem(*losses, *at, *starts)
        self.backend, self.method = (
            JaxBackend(*losses, chunk=self.eval_freq),
            METHODS[self.key](**self.settings()),
        )
        self.oracle = self.backend.oracle(self.problem, self.method, 0, False)
        self.run_once(2)

    def run(self, callback):
        state = self.backend.start(self.method, self.oracle, self.random_state)
        self.inner_var, self.outer_var = state.values["y"], state.values["x"]
        while callback():
            state = self.backend.run(state, self.eval_freq, None, None)
            self.inner_var, self.outer_var = jax.block_until_ready(
                (state.values["y"], state.values["x"])
            )

    def get_result(self):
        return {"inner_var": self.inner_var, "outer_var": self.outer_var}
