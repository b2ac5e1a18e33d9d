"""The types that the bilevel room shares: what a method keeps (``Values``), what an iteration gets
(``Draws``), the seams ``Oracle`` (derivatives and array operations) and ``Backend`` (iterations),
what they need of a method, and the state of a run.

A method is written against ``Oracle`` alone, so that one source runs eagerly in torch and compiled
in JAX.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypedDict, TypeVar

from torch import Tensor

from mindgap.bilevel.data.draws import Planned
from mindgap.bilevel.data.problem import BilevelProblem
from mindgap.bilevel.data.sample import Sample

if TYPE_CHECKING:
    # type checkers know by it which fields there are
    from dataclasses import replace as replace
else:

    def replace(values, /, **new):
        """``dataclasses.replace`` without a call of ``__init__``, several times as fast.

        Example:
            >>> replace(WithZ(1, 2, 3), z=4).z
            4
        """
        return with_attributes(type(values), {**vars(values), **new})


#: An array of the backend. Methods use what torch and JAX share, and are checked as if it were a
#: tensor.
Array = Tensor
#: Values or draws by name: the form in which states, checkpoints and backends hold them.
ByName = dict[str, Any]
#: A number, or a 0-d array of the backend.
Scalar = Any
Product = Callable[[Array], Array]
#: Vectors of a point, or directions at one, by name.
Point = dict[str, Array]
#: Of SAGA: ``{"rows": (batches, dim), "mean": (dim,)}``.
Table = dict[str, Array]
T = TypeVar("T")


class Memory(TypedDict):
    """Of a recursive estimator: its estimate, and the point where that belongs."""

    estimate: dict[str, Any]
    point: Point


@dataclass(frozen=True)
class Values:
    """What a method keeps from one iteration to the next: flat vectors, here those of every method.

    One that keeps more declares it in a frozen dataclass of its own.
    """

    x: Array
    y: Array
    #: of the steps on x, y and z
    x_memory: Any = field(default=None, kw_only=True)
    y_memory: Any = field(default=None, kw_only=True)
    z_memory: Any = field(default=None, kw_only=True)
    #: of torch, where one takes the steps on x
    optimizer: Any = field(default=None, kw_only=True)
    scheduler: Any = field(default=None, kw_only=True)


@dataclass(frozen=True)
class WithZ(Values):
    """z solves H z = f_y."""

    z: Array


@dataclass(frozen=True)
class WithMomentum(WithZ):
    """m is the momentum of x's direction (SLIP, BO-REP)."""

    m: Array


@dataclass(frozen=True)
class WithAverage(WithZ):
    """h is the moving average of x's direction (MA-SOBA)."""

    h: Array


@dataclass(frozen=True)
class WithStorm(Values):
    """The memory of STORM (MRBO, SUSTAIN, SVRB)."""

    storm: Memory


@dataclass(frozen=True)
class WithZStorm(WithZ):
    """z, and the memory of STORM (FSLA)."""

    storm: Memory


@dataclass(frozen=True)
class WithNesterov(WithStorm):
    """y of the iteration before and the average of y (AccBO)."""

    before: Array
    average: Array


@dataclass(frozen=True)
class WithSpider(Values):
    """The memory of SPIDER (VRBO)."""

    spider: Memory


@dataclass(frozen=True)
class WithZSpider(WithZ):
    """z, and the memory of SPIDER (SRBA)."""

    spider: Memory


@dataclass(frozen=True)
class WithPage(WithZ):
    """The estimates of PAGE, and where they belong (SPABA)."""

    page: Point
    point: Point


@dataclass(frozen=True)
class WithTables(WithZ):
    """SAGA's tables of the five quantities (SABA)."""

    g_y: Table
    Hz: Table
    Jz: Table
    f_x: Table
    f_y: Table


@dataclass(frozen=True)
class WithW(Values):
    """w follows y*(x) while y follows the minimiser of a penalised loss (penalty methods)."""

    w: Array


@dataclass(frozen=True)
class WithPenalty(WithW):
    """The penalty lam grows (F2SA)."""

    lam: Array


@dataclass(frozen=True)
class WithNodes(Values):
    """One lower variable per node of a finite difference (F2SA-p)."""

    nodes: dict[str, Array]


@dataclass(frozen=True)
class WithStart(Values):
    """Where y starts in every iteration; None if it goes on (BSA)."""

    y0: Array | None = None


class Draws:
    """The samples and rates of one iteration: those that a method's ``plan`` and ``rates`` name.

    A method with names of its own declares them in a subclass.
    """

    #: lower samples: of the steps on y and w, of Hz, J, the Neumann factors, all at once, and g_x
    y: Sample
    w: Sample
    z: Sample
    j: Sample
    h: Sample
    g: Sample
    gx: Sample
    gw: Sample
    #: upper samples: of (f_x, f_y), and of f_x where it has its own
    f: Sample
    fx: Sample
    #: large batches, the phase before the first iteration, seeds of random directions
    large: Sample
    large_f: Sample
    warm: Sample
    u: Sample
    #: random whole numbers: factors of a Neumann product, and a coin
    k: Scalar
    coin: Scalar
    #: rates: steps, weights, a penalty's growth and share, and a number of steps
    lr_x: Scalar
    lr_y: Scalar
    lr_z: Scalar
    lr_w: Scalar
    alpha: Scalar
    delta: Scalar
    weight: Scalar
    share: Scalar
    a: Scalar
    a_x: Scalar
    a_y: Scalar
    inner: Scalar = None


def with_attributes(kind: type[T], named: ByName) -> T:
    """An object of ``kind`` (values or draws) with the dict's entries as its attributes; both share
    the dict, and ``__init__`` is not called, which would take several times as long.
    """
    made = object.__new__(kind)
    object.__setattr__(made, "__dict__", named)
    return made


class Ops(Protocol):
    """Array operations beside ``+ - * @``: part of every oracle."""

    @staticmethod
    def move(x: Array, d: Array, lr: Scalar) -> Array:
        """``x - lr * d``."""

    @staticmethod
    def mix(a: Array, b: Array, weight: Scalar) -> Array:
        """``(1 - weight) * a + weight * b``."""

    @staticmethod
    def zeros_like(x: Array) -> Array:
        """Zeros in the shape of ``x``."""

    @staticmethod
    def zeros(shape: tuple[int, ...], like: Array) -> Array:
        """Zeros of a shape, in the dtype and on the device of ``like``."""

    @staticmethod
    def scalar(value: float, like: Array) -> Array:
        """A number as an array without axes."""

    @staticmethod
    def norm(x: Array) -> Array:
        """Euclidean norm."""

    @staticmethod
    def minimum(a: Array, b: float) -> Array:
        """The smaller of an array and a number."""

    @staticmethod
    def maximum(a: Array, b: float) -> Array:
        """The larger of an array and a number."""

    @staticmethod
    def where(condition: Array, a: Array, b: float) -> Array:
        """``a`` where the condition holds, else the number ``b``."""

    @staticmethod
    def eigh(a: Array) -> tuple[Array, Array]:
        """Eigenvalues and eigenvectors of a symmetric matrix."""

    @staticmethod
    def normals(seeds: Any, count: int, like: Array) -> Array:
        """One row of ``count`` standard normal numbers per seed, equal on every backend."""

    @staticmethod
    def replace_row(table: Array, index: Scalar, value: Array) -> tuple[Array, Array]:
        """``value - table[index]``, and the table with the value in that row."""

    @staticmethod
    def after(sample: Sample, vector: Array) -> Sample:
        """The sample; what reads its data starts once the vector is known."""

    def loop(
        self, body: Callable[..., Any], carry: T, inputs: tuple[Any, ...], length: Scalar = None
    ) -> T:
        """``carry = body(carry, *row)`` for each row of the inputs, or the first ``length``."""


class Oracle(Ops, Protocol):
    """Derivatives of both levels at flat vectors on a sample, and array operations.

    One sign convention: H = d2g/dy2, J = d2g/dxdy (maps y-space to x-space), z* = +H^-1 f_y, grad
    Phi = f_x - J z*.
    """

    #: projections of the flat x and y, where the problem has them
    project_x: Product | None
    project_y: Product | None

    @property
    def start(self) -> tuple[Array, Array]:
        """x and y at the start, flat."""

    @abstractmethod
    def batches(self, level: str) -> int:
        """Minibatches per epoch of a level."""

    @abstractmethod
    def weight(self, level: str, sample: Sample) -> float:
        """Share of the level's data in the sample's batch."""

    @abstractmethod
    def first(self, level: str, variable: str, x: Array, y: Array, sample: Sample) -> Array:
        """One first derivative: of "lower" or "upper", in "x" or "y"."""

    @abstractmethod
    def second(
        self, x: Array, y: Array, z: Array, sample: Sample, names: tuple[str, ...]
    ) -> tuple[Array, ...]:
        """Those of g_y, Hz and Jz that are named, in this order."""

    @abstractmethod
    def upper(self, x: Array, y: Array, sample: Sample) -> tuple[Array, Array]:
        """f_x and f_y."""

    def lower(self, x: Array, y: Array, sample: Sample) -> Array:
        """g_y."""
        return self.first("lower", "y", x, y, sample)

    def lower_x(self, x: Array, y: Array, sample: Sample) -> Array:
        """g_x."""
        return self.first("lower", "x", x, y, sample)

    def upper_x(self, x: Array, y: Array, sample: Sample) -> Array:
        """f_x alone."""
        return self.first("upper", "x", x, y, sample)

    def upper_y(self, x: Array, y: Array, sample: Sample) -> Array:
        """f_y alone."""
        return self.first("upper", "y", x, y, sample)

    def system(self, x: Array, y: Array, z: Array, sample: Sample) -> tuple[Array, ...]:
        """g_y, Hz and Jz."""
        return self.second(x, y, z, sample, ("g_y", "Hz", "Jz"))

    def hessian(self, x: Array, y: Array, z: Array, sample: Sample) -> Array:
        """Hz."""
        return self.second(x, y, z, sample, ("Hz",))[0]

    def mixed(self, x: Array, y: Array, z: Array, sample: Sample) -> Array:
        """Jz."""
        return self.second(x, y, z, sample, ("Jz",))[0]

    @abstractmethod
    def dense(self, x: Array, y: Array, sample: Sample) -> tuple[Array, Array, Array]:
        """g_y, H and J as matrices."""

    def operator(self, x: Array, y: Array, sample: Sample) -> tuple[Product, Product]:
        """The maps v -> Hv and v -> Jv at one point on one sample; they may share a graph."""
        return (lambda v: self.hessian(x, y, v, sample)), (lambda v: self.mixed(x, y, v, sample))

    def residuals(
        self, x: Array, y: Array, z: Array, lower: Sample, upper: Sample, gradient: bool = True
    ) -> tuple[Any, Array, Array]:
        """g_y (None if ``gradient`` is False), Hz - f_y and f_x - Jz.

        All three vanish together exactly at (x, y*(x), z*(x)) with grad Phi(x) = 0 (SOBA, Dagreou
        et al. 2022).
        """
        names = ("g_y", "Hz", "Jz") if gradient else ("Hz", "Jz")
        *g_y, hz, jz = self.second(x, y, z, lower, names)
        f_x, f_y = self.upper(x, y, upper)
        return g_y[0] if gradient else None, hz - f_y, f_x - jz

    def move_y(self, y: Array, d: Array, lr: Scalar) -> Array:
        """``y - lr d``, projected if the problem says so."""
        y = self.move(y, d, lr)
        return y if self.project_y is None else self.project_y(y)


class ProblemOracle(Oracle, Protocol):
    """An oracle of a whole problem: what ``solve`` and checkpoints need beside derivatives."""

    problem: BilevelProblem
    #: whether samples carry a seed because a loss draws random numbers
    seeded: bool

    @abstractmethod
    def start_calls(self, method: AnyMethod, draws: ByName) -> dict[str, int]:
        """Oracle calls of the phase before the first iteration, which has just run."""

    @abstractmethod
    def value(self, level: str, x: Array, y: Array) -> float:
        """The loss of a level over all data; it is not counted."""

    @abstractmethod
    def to_torch(self, vector: Array) -> Tensor:
        """An array of this backend as a tensor."""

    @abstractmethod
    def from_torch(self, vector: Tensor) -> Array:
        """A tensor as an array of this backend."""


class AnyMethod(Planned, Protocol):
    """What draws, backends and states need of a :class:`~mindgap.bilevel.method.Method`."""

    def __hash__(self) -> int:
        """Of its settings: what is counted or compiled for a method is kept by it."""

    @property
    def x_step(self) -> Any:
        """The step on x."""

    def without_rates(self) -> Any:
        """The method with all rates alike: what a compiled iteration depends on."""

    def start_values(self, oracle: Oracle) -> ByName:
        """All values before the first iteration, with the memories of the steps."""

    def prepared_values(self, values: ByName, draws: ByName, oracle: Oracle) -> ByName:
        """The values after a phase before the first iteration."""

    def next_values(self, values: ByName, draws: ByName, oracle: Oracle, kind: str) -> ByName:
        """The values after one iteration."""

    def check_problem(self, problem: BilevelProblem) -> None:
        """Refuse a problem this method cannot run on."""

    def oracle(
        self, problem: BilevelProblem, seed: int = 0, distributed: bool = False
    ) -> ProblemOracle:
        """Derivatives of a problem in torch, after a look at the problem."""

    def start_with(self, oracle: ProblemOracle, seed: int) -> State:
        """The state before the first iteration."""

    def step(self, state: State, draws: ByName | None = None) -> State:
        """One iteration of a state."""


@dataclass(frozen=True)
class State:
    """Where a run stands. ``method.step`` uses up the state it takes and returns the next."""

    method: AnyMethod  # the method that made it
    oracle: ProblemOracle  # derivatives of the problem, shared by the states of a run
    values: ByName  # flat vectors: x, y and the method's own (z, m, tables ...)
    t: int  # iterations done
    seed: int  # seed of the run; every draw is a function of it and of the position
    drawn: dict[str, int]  # draws made so far from each stream
    updates: dict[str, int]  # steps taken on "x" and on "y" (warm start included)
    calls: dict[str, int] = field(default_factory=dict)  # oracle calls so far, by quantity

    @property
    def x(self) -> Array:
        """The upper variable, flat."""
        return self.values["x"]  # type: ignore[no-any-return]

    @property
    def y(self) -> Array:
        """The lower variable, flat."""
        return self.values["y"]  # type: ignore[no-any-return]

    @property
    def problem(self) -> BilevelProblem:
        """The problem that is solved."""
        return self.oracle.problem

    @property
    def total_calls(self) -> int:
        """Oracle calls of all kinds so far."""
        return sum(self.calls.values())

    @property
    def x_epochs(self) -> float:
        """Steps on x in passes over the upper data."""
        return self.updates["x"] / self.problem.upper_data.batches

    @property
    def y_epochs(self) -> float:
        """Steps on y in passes over the lower data."""
        return self.updates["y"] / self.problem.lower_data.batches


def advance(
    state: State, values: ByName, steps: int, drawn: dict[str, int], calls: Mapping[str, int]
) -> State:
    """The state after ``steps`` further iterations that ended in ``values``: its counters moved on,
    ``drawn`` replaced, and the oracle calls added.
    """
    lower = state.method.plan().lower_steps(state.t, state.t + steps)
    total = dict(state.calls)
    for name, count in calls.items():
        total[name] = total.get(name, 0) + count
    updates = {"x": state.updates["x"] + steps, "y": state.updates["y"] + lower}
    return replace(
        state, values=values, t=state.t + steps, drawn=drawn, updates=updates, calls=total
    )


class Backend(Protocol):
    """Runs many iterations of a method; what is written here holds for torch."""

    #: iterations between looks at the numbers
    check_every: int

    def oracle(
        self, problem: BilevelProblem, method: AnyMethod, seed: int, distributed: bool
    ) -> ProblemOracle:
        """Derivatives of the problem, after a look at whether this backend can run it."""

    def start(self, method: AnyMethod, oracle: ProblemOracle, seed: int) -> State:
        """The state before the first iteration."""
        return method.start_with(oracle, seed)

    def norm(self, vector: Array) -> float:
        """Euclidean norm as a number (waits for the device)."""
        return float(vector.norm())

    def run(
        self,
        state: State,
        steps: int,
        calls: int | None,
        seconds: float | None,
        *,
        keep: bool = True,
    ) -> State:
        """The state after at most ``steps`` iterations, fewer where a budget of oracle ``calls`` or
        ``seconds`` is reached or x or y is seen to be no number; ``state`` is emptied unless
        ``keep``.
        """
