"""What a method is: a frozen dataclass of settings with at most five hooks.

=========== ===================================================== =================
hook        returns                                               if left out
=========== ===================================================== =================
``init``    the values before the first iteration                 z, m, h are zero
``plan``    the samples of each iteration                         (must be written)
``rates``   the numbers of iteration t                            the rate settings
``update``  the values after one iteration                        (must be written)
``prepare`` the values after a phase before the first iteration   nothing changes
=========== ===================================================== =================

Four nouns are enough to read any of them. A **sample** names what a derivative is taken on: a
minibatch of one level, several of them, or all data (``FULL``), and a random seed. The **plan**
names the samples of each iteration. The **draws** ``s`` are those samples, drawn, with the rates of
the iteration: ``s.f``, ``s.lr_x``. The **oracle** gives derivatives on samples, and the array
operations beyond ``+ - * @`` that torch and JAX write differently.

What a method keeps it declares as fields of ``Values``, so that a type checker knows ``v.z`` and
``s.lr_y`` and refuses a name that is misspelt. ``update(v, s, oracle, kind)`` is pure: it returns
``replace(v, y=...)``; no method keeps anything between steps.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar, cast, get_args

import torch

from mindgap.base.check import fail, flag, whole
from mindgap.bilevel.backends.count import table_bytes
from mindgap.bilevel.backends.oracles import TorchOracle
from mindgap.bilevel.backends.trial import try_problem
from mindgap.bilevel.core.settings import (
    MemoryStep,
    Rate,
    TorchStep,
    XStep,
    YStep,
    check_settings,
    lower_step,
    rate,
    rates_of,
    step_size,
    upper_step,
    with_equal_rates,
)
from mindgap.bilevel.core.types import (
    Array,
    ByName,
    Draws,
    Oracle,
    ProblemOracle,
    Scalar,
    State,
    Values,
    WithZ,
    advance,
    replace,
    with_attributes,
)
from mindgap.bilevel.data.draws import SamplePlan, draw_chunk, draw_start
from mindgap.bilevel.data.problem import BilevelProblem
from mindgap.bilevel.data.sample import Sample

if TYPE_CHECKING:
    from typing_extensions import Self, TypeVar as DefaultVar

    from mindgap.bilevel.tools.step_advice import StepAdvice

    V = DefaultVar("V", bound=Values, default=Any)
    S = DefaultVar("S", bound=Draws, default=Any)
else:
    V, S = TypeVar("V"), TypeVar("S")
Z = TypeVar("Z", bound=WithZ)


@dataclass(frozen=True, kw_only=True)
class Method(ABC, Generic[V, S]):
    """One bilevel method. Subclasses are frozen dataclasses of settings, one file each:
    ``Method[the values it keeps, the draws it reads]``.

    Args:
        lr_x, lr_y: steps on x and on y; every method has them.
        x_step: the step on x, which lr_x multiplies: "plain", "normalised", "clipped",
            ``AdamStep(...)``, ``MomentumStep(...)`` or ``TorchStep(...)``.

    Class attributes:
        second_order: whether Hessian products of the lower level are needed.
        resets: whether y starts anew from x in every iteration (then no loss has to depend on x).
        fixed_batches: whether a batch must always mean the same samples.
        tables: what the method keeps beside vectors, in words; empty for most.
        copies: how many times the tables are in memory at once.
    """

    lr_x: Rate = rate()
    lr_y: Rate = rate()
    x_step: XStep = upper_step()
    second_order: ClassVar[bool] = True
    inverts = property(lambda self: self.second_order)  # whether H^-1 f_y is what it follows
    resets: ClassVar[bool] = False
    fixed_batches: ClassVar[bool] = False
    tables: ClassVar[str] = ""
    copies: ClassVar[int] = 1
    _values_type: ClassVar[type[Any]] = Values  # what ``Method[values, draws]`` names first

    def __init_subclass__(cls, **settings: Any) -> None:
        """Set ``_values_type`` to the first class in the brackets of ``Method[values, draws]``."""
        super().__init_subclass__(**settings)
        for base in cls.__dict__.get("__orig_bases__", ()):
            classes = [argument for argument in get_args(base) if isinstance(argument, type)]
            cls._values_type = classes[0] if classes else cls._values_type

    def __post_init__(self) -> None:
        check_settings(self)

    # The hooks.

    def init(self, oracle: Oracle) -> V:
        """The values before the first iteration: x and y at their start, and zeros for z, m and h
        if the method keeps them. (No derivative is called.)
        """
        x, y = oracle.start
        kept, shaped_as = [f.name for f in fields(self._values_type)], {"z": y, "m": x, "h": x}
        zeros = {name: oracle.zeros_like(v) for name, v in shaped_as.items() if name in kept}
        return cast("V", self._values_type(x, y, **zeros))

    @abstractmethod
    def plan(self) -> SamplePlan:
        """The samples of each iteration."""

    def rates(self, t: Scalar) -> dict[str, Any]:
        """Step sizes and weights of iteration t, a number or an array: those made by ``rate()``."""
        return rates_of(self, t)

    @abstractmethod
    def update(self, v: V, s: S, oracle: Oracle, kind: str) -> V:
        """One iteration: the next values from the present ones and the draws."""

    def prepare(self, v: V, s: S, oracle: Oracle) -> V:
        """The values after a phase before the first iteration, such as a warm start."""
        return v

    # For use in ``update``.

    def move_x(self, oracle: Oracle, v: V, d: Array, lr: Scalar) -> V:
        """The values with x after one step of ``x_step`` along d, projected.

        ``lr`` multiplies the step, but a ``TorchStep`` has a rate of its own; its optimizer and
        scheduler make a step in place.
        """
        memory = v.x_memory  # of Adam or momentum; None for other steps
        if isinstance(self.x_step, TorchStep):
            x = self.x_step(v.x, d, v.optimizer)
            if v.scheduler is not None:
                v.scheduler.step()
        elif isinstance(self.x_step, str):
            x = oracle.move(v.x, d, step_size(oracle, self.x_step, d, lr))
        else:
            d, memory = self.x_step.direction(oracle, memory, d, v.x)
            x = oracle.move(v.x, d, lr)
        x = x if oracle.project_x is None else oracle.project_x(x)
        return replace(v, x=x) if memory is None else replace(v, x=x, x_memory=memory)

    # For use by everybody.

    def without_rates(self) -> Self:
        """This method with all rates alike: what a compiled iteration depends on, since rates are
        handed to it as numbers.

        Example:
            >>> from mindgap.bilevel import SLIP
            >>> a, b = (SLIP(lr_x=lr, lr_y=0.1, lr_z=0.1) for lr in (0.1, 0.2))
            >>> a == b, a.without_rates() == b.without_rates()
            (False, True)
        """
        return cast("Self", with_equal_rates(self))

    @classmethod
    def adapt_settings(cls, settings: dict[str, Any], advice: StepAdvice) -> dict[str, Any]:
        """The settings that ``suggest_steps`` proposes, changed where steps have another scale."""
        return settings

    def check_problem(self, problem: BilevelProblem) -> None:
        """Refuse a problem this method cannot run on.

        Raises:
            RuleError: batches that are not fixed where they must be, no finite data where all
                samples are needed, tables that do not fit.
        """
        if not isinstance(problem, BilevelProblem):
            fail("problem", "must be a BilevelProblem", type(problem).__name__)
        name = type(self).__name__
        if self.inverts and problem.project_y is not None:
            rule = (
                f"must be None for {name}: where the constraint is active, H^-1 f_y is not the "
                "derivative of y*(x) (use a method of first derivatives, such as F2SA)"
            )
            fail("project_y", rule, problem.project_y)
        for level in ("upper", "lower"):
            data = problem.data(level)
            if self.fixed_batches and data.order != "partition":
                rule = (
                    f"must be a fixed partition for {name} (a batch id must always mean the same "
                    "samples; a shuffled loader does not do that)"
                )
                fail(f"{level}_data", rule, f"order {data.order!r}")
            if data.order == "stream" and self.plan().all_samples:
                fail(f"{level}_data", f"must be a finite set of samples for {name}", "a Stream")
        if self.tables:
            needed_bytes = self.copies * table_bytes(self, problem)
            limit = getattr(self, "memory_limit", None)
            limit = free_bytes(problem.device) if limit is None else limit
            if needed_bytes > limit:
                size = f"{needed_bytes / 2**30:.3g} GiB ({needed_bytes} bytes)"
                fail("memory_limit", f"must hold the {self.tables} of {name}: {size}", limit)

    def oracle(
        self, problem: BilevelProblem, seed: int = 0, distributed: bool = False
    ) -> TorchOracle:
        """Derivatives of a problem in torch, after a look at whether this method can run on it."""
        self.check_problem(problem)
        whole("seed", seed)
        flag("distributed", distributed)
        oracle = TorchOracle(problem, distributed=distributed)
        try_problem(oracle, seed, second_order=self.second_order, needs_x=not self.resets)
        return oracle

    def start(self, problem: BilevelProblem, seed: int = 0, *, distributed: bool = False) -> State:
        """Check the problem, set up the values and run the phase before the first iteration.

        Args:
            problem: what to solve.
            seed: seed of all draws.
            distributed: average derivatives over the ranks of torch.distributed.
        """
        return self.start_with(self.oracle(problem, seed, distributed), seed)

    def start_values(self, oracle: Oracle) -> ByName:
        """All values before the first iteration, with the memories of the steps; no None."""
        values = {name: v for name, v in vars(self.init(oracle)).items() if v is not None}
        if isinstance(self.x_step, MemoryStep):
            values["x_memory"] = self.x_step.init(oracle, values["x"])
        return values

    def prepared_values(self, values: ByName, draws: ByName, oracle: Oracle) -> ByName:
        """The values by name after ``prepare``, with the rates of iteration 0."""
        s = cast("S", with_attributes(Draws, {**draws, **self.rates(0)}))
        return vars(self.prepare(with_attributes(self._values_type, values), s, oracle))

    def next_values(self, values: ByName, draws: ByName, oracle: Oracle, kind: str) -> ByName:
        """The values after one ``update``, from values and draws by name, as backends hold them."""
        s = cast("S", with_attributes(Draws, draws))
        return vars(self.update(with_attributes(self._values_type, values), s, oracle, kind))

    def _with_optimizer(self, values: ByName) -> ByName:
        """The values with the optimizer and the scheduler of ``x_step`` if it is a TorchStep."""
        if isinstance(self.x_step, TorchStep):
            return {**values, **self.x_step.start(values["x"])}
        return values

    def start_with(self, oracle: ProblemOracle, seed: int) -> State:
        """The state before the first iteration, with the derivatives of a given backend."""
        values = self._with_optimizer(self.start_values(oracle))
        draws, drawn = draw_start(self, oracle, seed)
        values = self.prepared_values(values, draws, oracle)
        updates = {"x": 0, "y": self.plan().warm.lower_steps}
        return State(self, oracle, values, 0, seed, drawn, updates, oracle.start_calls(self, draws))

    def take_over(self, state: State, oracle: ProblemOracle | None = None) -> State:
        """A state of this method that goes on where another run stopped: other steps, another
        method, or backend.

        x and y stay, and so does every value that both methods have (z, m, tables). Draws and
        counters go on. With another class of method the count of iterations starts again at 0, so
        that its first iterations are its own.

        Args:
            state: where to go on; it stays usable.
            oracle: derivatives for this method; those of the state, after a look at the problem, if
                not given.
        """
        if not isinstance(state, State):
            fail("state", "must be a State", type(state).__name__)
        if oracle is None:
            oracle = self.oracle(state.problem, state.seed)
        sizes = oracle.problem.dim_x, oracle.problem.dim_y
        old_sizes = state.problem.dim_x, state.problem.dim_y
        if sizes != old_sizes:
            fail("state", f"must be of a problem with {sizes} unknowns", old_sizes)
        fresh = self.start_values(oracle)
        values = self._with_optimizer(_carry_over(state.values, fresh, state.oracle, oracle))
        t = state.t if type(self) is type(state.method) else 0
        counters = dict(state.drawn), dict(state.updates), dict(state.calls)
        return State(self, oracle, values, t, state.seed, *counters)

    def step(self, state: State, draws: ByName | None = None) -> State:
        """The state after one iteration; the state before is used up.

        Args:
            state: of the eager backend.
            draws: samples and rates by name, instead of those of the state's seed (for replays).

        Example:
            >>> from mindgap.bilevel import SOBA
            >>> from mindgap.bilevel.data.problem import example_problem
            >>> problem = example_problem()
            >>> state = SOBA(lr_x=0.1, lr_y=0.5).start(problem, seed=0)
            >>> for _ in range(400):
            ...     state = state.method.step(state)
            >>> state.t, abs(float(state.x) - 1) < 0.05
            (400, True)
        """
        if not isinstance(state, State):
            fail("state", "must be a State", type(state).__name__)
        oracle, drawn = state.oracle, state.drawn
        if not isinstance(oracle, TorchOracle):
            rule = "must be of the eager backend to be stepped one by one"
            fail("state", rule, type(oracle).__name__)
        if draws is None:
            chunk = draw_chunk(self, oracle, state.seed, state.t, 1, drawn)
            ((kind, draws),) = chunk.steps()
            drawn = chunk.drawn
        else:
            kind = self.plan().at(state.t)[0].kind
        values = self.next_values(state.values, draws, oracle, kind)
        return advance(state, values, 1, drawn, oracle.take_calls())


@dataclass(frozen=True, kw_only=True)
class LowerStepMethod(Method[V, S]):
    """A method whose steps on y, and on z where it has one, are a user's choice.

    Args:
        y_step: "plain", ``AdamStep(...)`` or ``MomentumStep(...)``.
    """

    y_step: YStep = lower_step()

    def move_y(
        self, oracle: Oracle, y: Array, d: Array, lr: Scalar, memory: Any = None
    ) -> tuple[Array, Any]:
        """y after one ``y_step`` along d, projected, and the step's memory (None if plain)."""
        if not isinstance(self.y_step, str):
            d, memory = self.y_step.direction(oracle, memory, d, y)
        return oracle.move_y(y, d, lr), memory

    def move_yz(self, oracle: Oracle, v: Z, s: Draws, d_y: Array, d_z: Array) -> Z:
        """The values with y and z after one lower step each along their directions, with the
        memories of Adam or momentum where ``y_step`` keeps one.
        """
        y, y_memory = self.move_y(oracle, v.y, d_y, s.lr_y, v.y_memory)
        if isinstance(self.y_step, str):
            return replace(v, y=y, z=oracle.move(v.z, d_z, s.lr_z))
        d_z, z_memory = self.y_step.direction(oracle, v.z_memory, d_z, v.z)
        z = oracle.move(v.z, d_z, s.lr_z)
        return replace(v, y=y, z=z, y_memory=y_memory, z_memory=z_memory)

    def descend(self, oracle: Oracle, v: V, samples: Sample, lr: Scalar) -> V:
        """The values with y after one lower step per sample at the fixed x."""

        def step(carry: tuple[Array, Any], sample: Sample) -> tuple[Array, Any]:
            # y and the memory of its steps after one ``y_step``
            y, memory = carry
            return self.move_y(oracle, y, oracle.lower(v.x, y, sample), lr, memory)

        y, memory = oracle.loop(step, (v.y, v.y_memory), (samples,))
        return replace(v, y=y) if memory is None else replace(v, y=y, y_memory=memory)

    def start_values(self, oracle: Oracle) -> ByName:
        """All values before the first iteration, with the memories of the steps on y and z."""
        values = super().start_values(oracle)
        if isinstance(self.y_step, MemoryStep):
            for name in ("y", "z") if "z" in values else ("y",):
                values[f"{name}_memory"] = self.y_step.init(oracle, values[name])
        return values


def _carry_over(
    old: ByName, fresh: ByName, old_oracle: ProblemOracle, new_oracle: ProblemOracle
) -> ByName:
    """The fresh values, with those of the old state in the place of equal names and shapes."""
    values = dict(fresh)
    for name, value in fresh.items():
        old_value: Any = old.get(name)
        if isinstance(value, dict) and isinstance(old_value, dict):
            values[name] = _carry_over(old_value, value, old_oracle, new_oracle)
        elif not isinstance(value, dict) and getattr(old_value, "shape", None) == value.shape:
            tensor = old_oracle.to_torch(old_value)
            values[name] = new_oracle.from_torch(tensor.to(new_oracle.to_torch(value)))
    return values


def free_bytes(device: torch.device) -> int:
    """Memory that is free for tables: on the GPU, or of the machine."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):  # the system does not say: assume 8 GiB
        return 8 * 2**30
