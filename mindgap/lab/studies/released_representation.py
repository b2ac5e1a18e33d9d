"""The faults of the code published with SLIP on hyper-representation, as flags of the study B14;
the library has none of them.

They were found by running the authors' code on a tiny problem. Which methods have which fault is
part of what they do to the ranking:

* *x follows g_x*: x's direction is f_x - Jz + g_x, because the encoder's gradients of the support
  loss are never set to zero (SLIP, BO-REP, SABA).
* *y follows f_y*: y's step contains the previous query's f_y (SLIP, BO-REP, SABA).
* *J on the query*: Jz is that of the lower loss on the query batch; SLIP's also at the new y and z
  (SLIP, BO-REP, and SABA where it has no memory).
* *gradients added up*: BO-REP's move of y is 2.98 times the paper's.
* *no memory*: "SABA" has no table: it is SOBA with a constant step.
* *no implicit gradient*: StocBio moves along f_x alone.

MA-SOBA has none of them. The derivatives come from :class:`Released`, which is stepped eagerly.
"""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

from mindgap.lab.studies import representation_runs
from mindgap.lab.studies.released_runs import ALL
from mindgap.lab.studies.spec import Trial

if TYPE_CHECKING:
    from mindgap.lab.tasks.problems import HyperRepresentation


G_X, F_Y, QUERY = "x follows g_x", "y follows f_y", "J on the query"

ADDED, NO_MEMORY, NO_IMPLICIT = "gradients added up", "no memory", "no implicit gradient"

FAULTS = (G_X, F_Y, QUERY, ADDED, NO_MEMORY, NO_IMPLICIT)

#: method -> the faults that its released code has
FAULTS_OF = {
    "SLIP": (G_X, F_Y, QUERY),
    "BO-REP": (G_X, F_Y, QUERY, ADDED),
    "SABA": (G_X, F_Y, NO_MEMORY),
    "StocBio": (NO_IMPLICIT,),
    "MA-SOBA": (),
}


def released_method(trial: Trial, task: HyperRepresentation, faults: set[str]) -> Any:
    """The method of a trial with some of the faults.

    Three faults change its settings: *gradients added up* multiplies the step on y by 2.98, *J on
    the query* has SLIP draw its samples as released, and *no memory* puts SOBA in place of SABA.
    All others are in its derivatives, which come from :func:`released_oracle`.

    Args:
        trial: its setting ``key`` names the method.
        task: the hyper-representation problem.
        faults: some of :data:`FAULTS`; :data:`ALL` is among them where all are on together.

    Returns:
        A method of a class of its own, derived from the method's class.
    """
    from mindgap.bilevel.backends.trial import try_problem
    from mindgap.bilevel.core.settings import Constant

    chosen: dict[str, Any] = {}
    if ADDED in faults:
        chosen["lr_y"] = 2.98 * trial["lr_y"]
    if QUERY in faults and trial["key"] == "slip":
        chosen["samples"] = "as released"
    if NO_MEMORY in faults:
        chosen["key"] = "soba"
    method = representation_runs.representation_method(trial, **chosen)
    settings = {field.name: getattr(method, field.name) for field in fields(method) if field.init}
    if NO_MEMORY in faults:  # SOBA's steps decay by default, SABA's do not
        settings |= {name: Constant(settings[name]) for name in ("lr_x", "lr_y", "lr_z")}
        if ALL in faults:  # without its memory SABA has the fault J on the query too
            faults = faults | {QUERY}

    def oracle(self: Any, problem: Any, seed: int = 0, distributed: bool = False) -> Any:
        """The derivatives with the faults. They are tried once, and what they remember of that
        trial is cleared.
        """
        self.check_problem(problem)
        upper_first = trial["key"] == "slip"
        derivatives = released_oracle(problem, task, faults, upper_first=upper_first)
        # Where y starts anew from x in every iteration (``resets``) no loss need depend on x.
        try_problem(derivatives, seed, second_order=self.second_order, needs_x=not self.resets)
        derivatives.query = derivatives.f_y = derivatives.earlier_f_y = None
        return derivatives

    name = f"{type(method).__name__}AsReleased"
    return type(name, (type(method),), {"oracle": oracle})(**settings)


def released_oracle(
    problem: Any, task: HyperRepresentation, faults: set[str], *, upper_first: bool
) -> Any:
    """The derivatives of a problem, with some of the faults.

    They are for eager runs, because they remember the query batch of the iteration before.

    Args:
        problem: of the task.
        task: its losses.
        faults: some of :data:`FAULTS`.
        upper_first: whether the method asks for f_y before the g_y of the same iteration, as SLIP
            does. The f_y of the iteration before is then the last but one that was asked for.

    Returns:
        A ``TorchOracle``. f is the upper loss (on query examples), g the lower one (on support
        examples), H = g_yy and J = g_xy.
    """
    from mindgap.base.count import OracleCount
    from mindgap.bilevel.backends.oracles import TorchOracle
    from mindgap.bilevel.data.problem import BilevelProblem

    # The same losses with the data of the two levels exchanged: its lower loss is on queries.
    exchanged = BilevelProblem(
        task.upper, task.lower, task.x0, task.y0, problem.lower_data, problem.upper_data
    )

    class Released(TorchOracle):
        """The derivatives of the library, with the faults; a ``token`` names a batch."""

        query: Any = None  # the query batch of the last call of ``upper``
        f_y: Any = None  # of the last call of ``upper``
        earlier_f_y: Any = None  # of the call of ``upper`` before that

        def upper(self, x: Any, y: Any, token: Any) -> Any:
            """f_x and f_y, which later calls remember."""
            f_x, f_y = super().upper(x, y, token)
            self.query, self.earlier_f_y, self.f_y = token, self.f_y, f_y
            return f_x, f_y

        def lower(self, x: Any, y: Any, token: Any) -> Any:
            """g_y, with the f_y of the iteration before where that fault is on. Where the method
            asks for f_y first, the last one known is that of this iteration.
            """
            f_y = self.earlier_f_y if upper_first else self.f_y
            return self._with_f_y(super().lower(x, y, token), f_y)

        def system(self, x: Any, y: Any, z: Any, token: Any) -> Any:
            """g_y, Hz and Jz on one batch, with the faults of g_y and Jz."""
            g_y, hz, jz = super().system(x, y, z, token)
            return self._with_f_y(g_y, self.f_y), hz, self._without_g_x(x, y, token, jz)

        def mixed(self, x: Any, y: Any, z: Any, token: Any) -> Any:
            """Jz: on the query batch, zero, or with g_x taken off, as the faults say.

            A product on the query batch is counted here, because another oracle computes it.
            """
            if QUERY in faults:
                self.calls.add("Jz")
                query_jz = TorchOracle(exchanged).mixed(x, y, z, self.query)
                return self._without_g_x(x, y, token, query_jz)
            jz = super().mixed(x, y, z, token)
            return 0 * jz if NO_IMPLICIT in faults else self._without_g_x(x, y, token, jz)

        def residuals(
            self, x: Any, y: Any, z: Any, lower: Any, upper: Any, gradient: bool = True
        ) -> Any:
            """g_y (None without ``gradient``), the residual Hz - f_y of the linear system, and the
            direction f_x - Jz of x; ``lower`` and ``upper`` name the batches of both levels.
            """
            # In this order: ``lower`` adds the f_y of an earlier call of ``upper``.
            g_y = self.lower(x, y, lower) if gradient else None
            hz, (f_x, f_y) = self.hessian(x, y, z, lower), self.upper(x, y, upper)
            return g_y, hz - f_y, f_x - self.mixed(x, y, z, lower)

        def _with_f_y(self, g_y: Any, f_y: Any) -> Any:
            """g_y with a remembered f_y added, where that fault is on and there is one."""
            return g_y + f_y if F_Y in faults and f_y is not None else g_y

        def _without_g_x(self, x: Any, y: Any, token: Any, jz: Any) -> Any:
            """Jz less g_x where that fault is on, else Jz.

            The released code has g_x for nothing: it is not counted as an oracle call.
            """
            if G_X not in faults:
                return jz
            counted_calls, self.calls = self.calls, OracleCount()
            g_x = self.lower_x(x, y, token)
            self.calls = counted_calls
            return jz - g_x

    return Released(problem)
