"""A training problem that can be built again and again, and one run of it that can stop and
continue.

The user hands over a factory. Every run builds its own model from it, so runs share nothing but the
seed: the same seed gives the same start and the same order of batches to every candidate.
"""

from __future__ import annotations

import inspect
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain, islice, pairwise
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from mindgap.base.check import fail, whole
from mindgap.base.objective import Objective
from mindgap.base.restoring import loader_generators, seed_everything, undisturbed
from mindgap.base.rng import numpy_stream, stream_seed
from mindgap.measure.gradients import fingerprint, gradient_passes

#: A run has diverged after so many losses in a row that are not finite.
LOST = 20

#: Share of a run's steps over which the weights are averaged before a rung is judged.
AVERAGED = 0.25
#: Runs up to a share 1/ONCE of the steps are evaluated once, at the averaged weights: there an
#: evaluation takes as long as many steps.
ONCE = 12
#: Steps before the time of a step is taken.
WARM = 4
#: Most validation batches read per evaluation.
MOST_VALIDATION = 32
#: Most weights along a run that are averaged.
MOST_AVERAGED = 32

Factory = Callable[..., Any]


@dataclass(frozen=True)
class Problem:
    """What one call of the factory gave."""

    objective: Objective  # the model and its loss
    train: Iterable[Any]  # batches that can be passed over again and again
    valid: (
        Iterable[Any] | None
    )  # batches to judge by; None where the factory gave none and ``train`` cannot be split
    most: int = MOST_VALIDATION  # validation batches that are read before the end of a run


@contextmanager
def untouched_randomness() -> Iterator[None]:
    """Leave the global random states of Python, numpy, torch and CUDA as they were found."""
    with undisturbed(torch.nn.Module()):
        yield


def build(factory: Factory, seed: int) -> Problem:
    """Call the factory for one seed and check what it returns.

    Args:
        factory: ``factory(seed)`` or ``factory()``; returns ``(objective, train)`` or ``(objective,
            train, valid)``. ``objective`` is an :class:`~mindgap.Objective`, or a pair ``(model,
            loss)``. The global random states are seeded before the call. Without ``valid`` the last
            tenth of a list of batches is held out.
        seed: names the start.

    Raises:
        RuleError: the factory returns something else, batches that can be read only once, or no
            batch.

    Example:
        >>> batches = list(torch.randn(20, 8, 4))
        >>> def factory():
        ...     return (
        ...         torch.nn.Linear(4, 1),
        ...         lambda model, batch: model(batch).square().mean(),
        ...     ), batches
        >>> problem = build(factory, seed=0)
        >>> len(problem.train), len(problem.valid)
        (18, 2)
    """
    if not callable(factory):
        fail(
            "problem",
            "must be a function that builds (objective, train) or (objective, train, valid)",
            factory,
        )
    seed_everything(stream_seed(seed, "start"))
    objective, train, third = problem_parts("problem", call_factory(factory, seed))
    valid = None if isinstance(third, torch.optim.Optimizer) else third
    for name, batches in (("train", train), ("valid", valid)):
        if batches is None and name == "valid":
            continue
        if not isinstance(batches, Iterable) or isinstance(batches, Iterator):
            fail(
                name,
                "must be batches that can be read more than once (a list or a DataLoader)",
                type(batches).__name__,
            )
    if valid is None and _is_list(train) and len(train) >= 4:
        held_out = max(1, len(train) // 10)
        train, valid = train[: len(train) - held_out], train[len(train) - held_out :]
    try:
        iterator = iter(train)
    except TypeError as error:
        if "non-iterator" not in str(error):  # an error of the batches themselves
            raise
        fail("train", "must be batches that can be iterated over", train)
    if not any(True for _ in islice(iterator, 1)):
        fail("train", "must hold at least one batch", train)
    return Problem(objective, train, valid)


class Bench:
    """Builds the problem once per seed, and puts it back to its start before every run.

    A problem that does not come back (a model that keeps more than weights, buffers and
    attributes, a loss that counts its calls) is built anew for every run.

    Args:
        factory: see :func:`build`.
        most: validation batches that are read before the end of a run.

    Example:
        >>> loss = lambda model, batch: model(batch).square().mean()
        >>> bench = Bench(lambda: ((torch.nn.Linear(1, 1), loss), [torch.ones(1, 1)]))
        >>> bench.problem(0).objective.model is bench.problem(0).objective.model
        True
    """

    def __init__(self, factory: Factory, most: int = MOST_VALIDATION) -> None:
        self.factory, self.most = factory, most
        self._kept: dict[int, tuple[Problem, _Start]] = {}  # seed -> problem, what puts it back
        #: whether a problem comes back to its start; None: not tried yet.
        self._trusted: bool | None = None

    def problem(self, seed: int) -> Problem:
        """The problem of a seed at its start, which is the same object at every call where it
        comes back to its start.
        """
        if seed in self._kept:
            problem, start = self._kept[seed]
            start.restore()
            if self._trusted is None:  # the first return tells whether the start comes back
                self._trusted = start.gives_the_same_loss()
                start.restore()
            if self._trusted:
                return replace(problem, most=self.most)
            self._kept.clear()
        problem = build(self.factory, seed)
        if self._trusted is not False:  # it is, or nobody has tried
            try:
                self._kept[seed] = (problem, _Start(problem, seed))
            except Exception:  # weights without a shape yet, a loss that the first batch breaks
                self._trusted = False
                problem = build(self.factory, seed)
        return replace(problem, most=self.most)


class _Start:
    """What a model is before its first step, and its first loss."""

    def __init__(self, problem: Problem, seed: int) -> None:
        self._problem, self._seed = problem, seed
        model = problem.objective.model
        # Pairs (what a step may change, its copy): modules' attributes, dicts and lists in these.
        self._attributes = [(vars(module), dict(vars(module))) for module in model.modules()]
        values = [value for _, attributes in self._attributes for value in attributes.values()]
        self._dicts = [(value, dict(value)) for value in values if isinstance(value, dict)]
        self._lists = [(value, list(value)) for value in values if type(value) is list]
        tensors = [*model.parameters(), *model.buffers()]
        self._tensors = [(t, t.detach().clone(), t.requires_grad) for t in tensors]
        self._batch = next(iter(problem.train))
        self._loss = self._first_loss()
        self.restore()

    def _first_loss(self) -> Tensor:
        """The loss of the first batch before any step, with the first step's random numbers."""
        seed_everything(stream_seed(self._seed, "steps", 0))
        return self._problem.objective.value(self._batch).detach().clone()

    def gives_the_same_loss(self) -> bool:
        """Whether the first loss is what it was, to the last bit."""
        return bool(torch.equal(self._first_loss(), self._loss))

    def restore(self) -> None:
        """Put attributes, dicts, lists, parameters and buffers back, and remove the gradients."""
        for mapping, copied in (*self._attributes, *self._dicts):
            mapping.clear()
            mapping.update(copied)
        for items, copied_items in self._lists:
            items[:] = copied_items
        with torch.no_grad():
            for tensor, value, needs_gradient in self._tensors:
                if tensor.is_leaf:
                    tensor.requires_grad_(needs_gradient)
                tensor.copy_(value)
                tensor.grad = None


def problem_at_start(source: Factory | Bench, seed: int) -> Problem:
    """The problem of a seed at its start, from a bench or built anew."""
    return source.problem(seed) if isinstance(source, Bench) else build(source, seed)


def call_factory(factory: Factory, seed: int) -> Any:
    """Call the user's function, with the seed if it has a parameter of that name, and return what
    it returns.

    Raises:
        RuleError: it needs other arguments, or the seed has more than 64 bits with its sign.

    Example:
        >>> call_factory(lambda seed: seed + 1, 4), call_factory(lambda: 7, 4)
        (5, 7)
    """
    try:
        signature = inspect.signature(factory)
    except (TypeError, ValueError):  # some callables show no signature
        return factory()
    whole("seed", seed, least=-(2**63), most=2**63 - 1)
    named = {"seed": seed} if "seed" in signature.parameters else {}
    try:
        signature.bind(**named)
    except TypeError:
        fail("problem", "must be a function of nothing, or of a seed", f"parameters {signature}")
    return factory(**named)


def problem_parts(name: str, returned: Any) -> tuple[Objective, Any, Any]:
    """The objective, the batches, and the third part (None if there is none) of what a user's
    function returned.

    Raises:
        RuleError: it is neither two nor three things, or the first is no objective; ``name`` is the
            argument to name.

    Example:
        >>> returned = (torch.nn.Linear(1, 1), max), [1, 2]
        >>> objective, batches, third = problem_parts("problem", returned)
        >>> type(objective).__name__, batches, third
        ('Objective', [1, 2], None)
    """
    if not isinstance(returned, tuple) or len(returned) not in (2, 3):
        fail(
            name,
            "must return (objective, batches), and as a third part validation batches or an "
            "optimizer",
            type(returned).__name__,
        )
    objective, batches, third = (*returned, None)[:3]
    if isinstance(objective, tuple) and len(objective) == 2:
        objective = Objective(*objective)
    if not isinstance(objective, Objective):
        fail(name, "must return an Objective or (model, loss) first", type(objective).__name__)
    return objective, batches, third


def _is_list(batches: Any) -> bool:
    """Whether the batches have a length and are indexed: else they are a loader."""
    return isinstance(batches, (list, tuple, Tensor))


def batches_from(train: Iterable[Any], seed: int, position: int) -> Iterator[Any]:
    """The endless stream of training batches of a seed, from batch number ``position`` on.

    A list is shuffled anew per epoch. A loader shuffles itself, after its generators were seeded
    for the epoch.
    """
    epoch, skip = 0, position  # batches left to pass over
    while True:
        if _is_list(train):
            n = len(train)  # type: ignore[arg-type]
            epoch, skip = epoch + skip // n, skip % n  # whole epochs are passed over undrawn
            order = numpy_stream(seed, "order", epoch).permutation(n)
            yield from (train[int(i)] for i in order[skip:])  # type: ignore[index]
            skip = 0
        else:
            state = torch.get_rng_state()
            seed_everything(stream_seed(seed, "epoch", epoch))
            for generator in loader_generators(train):
                generator.manual_seed(stream_seed(seed, "loader", epoch))
            iterator = iter(train)
            first = list(islice(iterator, 1))  # a sampler draws its seed at the first batch
            torch.set_rng_state(state)
            count = 0  # batches of this epoch; stays 0 where the loader gives none
            for count, batch in enumerate(chain(first, iterator), 1):
                if count > skip:
                    yield batch
            skip = max(0, skip - count)
        epoch += 1


@dataclass
class Progress:
    """Where one run stands."""

    steps: int = 0  # steps done
    #: step -> validation loss there (``inf``: diverged), the better of the last weights and their
    #: average, early in the run that of the average.
    scores: dict[int, float] = field(default_factory=dict)
    #: pairs (step, mean training loss since the pair before).
    curve: list[tuple[int, float]] = field(default_factory=list)
    state: dict[str, Any] | None = (
        None  # weights and optimizer states to continue from; None before the first step
    )
    seconds: float = 0.0  # time spent in steps and evaluations
    #: time by ``work_clock`` in steps and in everything else, and per step of the first piece.
    stepping: float = 0.0
    beside: float = 0.0
    per_step: float = 0.0
    #: the scores by the validation batches that are read before the end of a run.
    along: dict[int, float] = field(default_factory=dict)

    @property
    def diverged(self) -> bool:
        """Whether the loss was infinite where the run was judged last."""
        return bool(self.scores) and math.isinf(self.scores[max(self.scores)])


#: Shape of the learning rate after its warm-up -> the share of the steps over which it falls.
SHAPES = {"trapezoid": 0.5, "linear": 1.0}


def schedule(step: int, total: int, shape: str = "trapezoid") -> float:
    """Factor on the learning rate: linear warm-up over 2 % of the steps, then flat to half and
    linear to zero (``"trapezoid"``), or linear to zero from the start (``"linear"``).

    Example:
        >>> [round(schedule(step, 100), 2) for step in (0, 1, 2, 49, 75, 99, 150)]
        [0.5, 1.0, 1.0, 1.0, 0.5, 0.02, 0.0]
        >>> [round(schedule(step, 100, "linear"), 2) for step in (0, 10, 75)]
        [0.5, 0.9, 0.25]
    """
    warm = (step + 1) / max(1, total // 50)
    return max(0.0, min(warm, (total - step) / (SHAPES[shape] * total), 1.0))


def work_clock(model: torch.nn.Module) -> Callable[[], float]:
    """The clock that says what work costs: CPU time of this process, which other programs on the
    machine hardly move, for a model on the CPU, and else the time of day.
    """
    on_cpu = all(p.device.type == "cpu" for p in model.parameters())
    return time.process_time if on_cpu else time.perf_counter


def train_until(
    progress: Progress,
    factory: Factory | Bench,
    make_optimizer: Callable[[torch.nn.Module], torch.optim.Optimizer],
    *,
    seed: int,
    until: int,
    total: int,
    shape: str = "trapezoid",
) -> None:
    """Train one run from where it stands to step ``until``, evaluate it there, and write the
    outcome into ``progress``. A run that diverged counts as having done all these steps.

    Diverged means: the validation loss is not finite, or the training loss was not finite for 20
    steps in a row. Single bad batches do not end a run: an optimizer may survive them.

    Args:
        total: steps of a full run, over which the learning rate rises and falls.
        shape: of the learning rate, a key of ``SHAPES``.
    """
    wall_start, cpu_start = time.perf_counter(), time.process_time()
    problem = problem_at_start(factory, seed)
    model = problem.objective.model
    clock = work_clock(model)
    work_start = cpu_start if clock is time.process_time else wall_start
    optimizer = make_optimizer(model)
    rates = [group["lr"] for group in optimizer.param_groups]
    if progress.state is not None:
        model.load_state_dict(progress.state["model"])
        optimizer.load_state_dict(progress.state["optimizer"])
    modes = _Modes(model)
    seed_everything(stream_seed(seed, "steps", progress.steps))
    # The weights are averaged over the last quarter of the steps that are made here, of which
    # ``MOST_AVERAGED`` at most are taken; the last step always is.
    average, average_from = _Average(), until - math.ceil(AVERAGED * (until - progress.steps))
    average_every = math.ceil((until - average_from) / MOST_AVERAGED)
    losses: list[Tensor] = []  # since the last point of the curve
    not_finite = 0  # losses in a row, up to there
    report_every = max(1, total // 100)  # steps per point of the curve
    batches = batches_from(problem.train, seed, progress.steps)
    is_first_piece, step_ends = not progress.steps, [clock()]
    while progress.steps < until and not_finite < LOST:
        batch = next(batches)
        factor = schedule(progress.steps, total, shape)
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate * factor
        optimizer.zero_grad(set_to_none=True)
        loss = _loss_with_gradients(problem.objective, batch)
        optimizer.step()
        losses.append(loss.detach())
        progress.steps += 1
        step_ends.append(clock())
        if progress.steps > average_from and (until - progress.steps) % average_every == 0:
            average.add(model)
        if len(losses) == report_every or progress.steps == until:
            values = torch.stack(losses).double()
            finite = values[values.isfinite()]
            progress.curve.append(
                (progress.steps, float(finite.mean()) if len(finite) else math.inf)
            )
            losses = []
            not_finite = _trailing_not_finite(values) + (0 if len(finite) else not_finite)
    score = along = math.inf
    if not_finite >= LOST:
        progress.steps, progress.state = until, None
    else:
        if is_first_piece and until > WARM:
            progress.per_step = _per_step(step_ends[WARM:], clock)
        # The state is taken before the averages are tried: evaluation must not change the run.
        progress.state = {
            "model": _copy_tree(model.state_dict()),
            "optimizer": _copy_tree(optimizer.state_dict()),
        }
        if until == total:  # the end: more batches, of which the first are those of the rungs
            valid_losses = evaluate(problem, progress, modes, MOST_VALIDATION)
            score, along = _mean(valid_losses), _mean(valid_losses[: problem.most])
        else:
            if until > total / ONCE:  # the last weights first, then their average in their place
                score = _mean(evaluate(problem, progress, modes, problem.most))
            average.swap_in(model)
            along = score = min(score, _mean(evaluate(problem, progress, modes, problem.most)))
    progress.scores[until], progress.along[until] = score, along
    stepping = step_ends[-1] - step_ends[0]
    progress.stepping += stepping
    progress.beside += clock() - work_start - stepping
    progress.seconds += time.perf_counter() - wall_start


def _trailing_not_finite(values: Tensor) -> int:
    """How many values at the end are not finite.

    Example:
        >>> _trailing_not_finite(torch.tensor([math.nan, 1.0, math.inf, math.nan]))
        2
    """
    finite = values.isfinite().nonzero()
    return len(values) - (int(finite[-1]) + 1 if len(finite) else 0)


def timed_steps(
    bench: Bench,
    make_optimizer: Callable[[torch.nn.Module], torch.optim.Optimizer],
    seed: int,
    n: int,
) -> list[float]:
    """Seconds of each of the first ``n`` training steps."""
    problem = bench.problem(seed)
    optimizer = make_optimizer(problem.objective.model)
    _Modes(problem.objective.model)  # training mode
    seed_everything(stream_seed(seed, "steps", 0))
    seconds = []
    for batch in islice(batches_from(problem.train, seed, 0), n):
        start = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        loss = _loss_with_gradients(problem.objective, batch)
        optimizer.step()
        float(loss.detach())  # waits for a GPU
        seconds.append(time.perf_counter() - start)
    return seconds


def _loss_with_gradients(objective: Objective, batch: Any) -> Tensor:
    """The loss on a training batch, whose gradients are added to ``p.grad`` of the parameters.

    Raises:
        RuleError: the loss does not depend on any parameter.
    """
    loss = objective.value(batch)
    if not loss.requires_grad:
        fail("loss", "must depend on a parameter that takes a gradient", "a constant in training")
    loss.backward()
    return loss


def _per_step(ends: list[float], clock: Callable[[], float]) -> float:
    """Seconds per step from the times at which steps ended: that of the fastest tenth, which
    other programs on the machine slow down least; on a GPU, whose steps end later than the calls,
    the mean.
    """
    if clock is not time.process_time:
        return (ends[-1] - ends[0]) / (len(ends) - 1)
    return sorted(after - before for before, after in pairwise(ends))[(len(ends) - 1) // 10]


class _Modes:
    """The training mode of every module, as the factory left it.

    Batch normalisation that the user froze stays in evaluation mode. A model that is in evaluation
    mode as a whole (``from_pretrained`` returns such ones) is put into training mode.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        if not model.training:
            model.train()
        self._kept = [(module, module.training) for module in model.modules()]  # mode in training

    def restore(self) -> None:
        """Set every module to its mode in training."""
        for module, training in self._kept:
            module.training = training


def evaluate(problem: Problem, progress: Progress, modes: _Modes, most: int) -> list[float]:
    """Losses of the first ``most`` validation batches; without validation batches one number, the
    mean of the finite training losses over the last fifth of the curve.
    """
    if problem.valid is None:
        recent = [loss for _, loss in progress.curve[-max(1, len(progress.curve) // 5) :]]
        recent = [loss for loss in recent if math.isfinite(loss)]
        return [sum(recent) / len(recent)] if recent else []
    batches = list(islice(iter(problem.valid), most))
    problem.objective.model.eval()
    try:
        values = [_value(problem.objective, batch) for batch in batches]
    finally:
        modes.restore()
    return torch.stack(values).double().tolist() if values else []


def _mean(losses: Sequence[float]) -> float:
    """The mean; ``inf`` where there is no loss or one is not finite."""
    if not losses or not all(map(math.isfinite, losses)):
        return math.inf
    return math.fsum(losses) / len(losses)


def _value(objective: Objective, batch: Any) -> Tensor:
    """The loss of a batch without a graph; with one where the loss itself needs derivatives."""
    try:
        with torch.no_grad():
            return objective.value(batch).detach()
    except RuntimeError:
        with torch.enable_grad():
            return objective.value(batch).detach()


def start_loss(factory: Factory | Bench, seed: int) -> float:
    """Validation loss before the first step; NaN where there are no validation batches."""
    problem = problem_at_start(factory, seed)
    modes = _Modes(problem.objective.model)
    if problem.valid is None:
        return math.nan
    return _mean(evaluate(problem, Progress(), modes, problem.most))


def at_chance(problem: Problem, run: Progress, fall: float) -> bool:
    """Whether the model that a run has trained says the same whatever its input; False where that
    cannot be tried. The weights of the run stay in the problem's model.

    Args:
        fall: of the loss since the start.
    """
    if run.state is None:
        return False
    try:
        problem.objective.model.load_state_dict(run.state["model"])
        return ignores_inputs(problem, fall)
    except Exception:  # a loss that does not take other inputs tells nothing
        return False


def ignores_inputs(problem: Problem, fall: float) -> bool:
    """Whether the model says the same whatever its input, the first tensor of a batch.

    Then its validation loss stays where it is when the inputs are dealt anew to the rest of the
    batches. But so does a loss without pairs, such as one of two samples or of the inputs alone,
    whatever its model does. There everything that the model returns must be the same in all rows,
    or, where the loss does not call the model itself, the loss must also stay when one input takes
    the place of all others in its batch.

    Args:
        problem: with the trained model.
        fall: fall of the loss since the start; a change below a hundredth of it is none.

    Example:
        >>> loss = lambda model, batch: model(batch[0]).square().mean() + 0 * batch[1].mean()
        >>> batches = [(torch.randn(8, 2), torch.randn(8)) for _ in range(3)]
        >>> ignores_inputs(Problem(Objective(torch.nn.Linear(2, 1), loss), [], batches), 0.1)
        False
    """
    batches = list(islice(iter(problem.valid or ()), MOST_VALIDATION))
    if not batches or not all(map(_is_pair, batches)):
        return False
    model = problem.objective.model
    modes = _Modes(model)

    def losses(of_batches: list[Any]) -> Tensor:
        """Loss per batch."""
        seed_everything(stream_seed(0, "dealt"))  # the same noise in the loss every time
        values = evaluate(replace(problem, valid=of_batches), Progress(), modes, MOST_VALIDATION)
        return torch.tensor(values, dtype=torch.float64)

    def change(changed_batches: list[Any]) -> float:
        """Mean distance of the losses per batch from those of the batches as they are."""
        return float((losses(changed_batches) - own_losses).abs().mean())

    own_losses, negligible = losses(batches), 0.01 * abs(fall)
    if not abs(float((losses(_with_dealt_inputs(batches)) - own_losses).mean())) <= negligible:
        return False
    rolled = [_with_inputs(batch, batch[0].roll(1, 0)) for batch in batches]
    # Whole rows in another order change no loss but by rounding and by noise of the loss itself.
    noise = change([_with_rolled_rows(batch) for batch in batches])
    # Clearly more than the noise, or, where there is none, more than rounding.
    if change(rolled) > max(10 * noise, 0.01 * negligible):
        return True  # the loss has pairs: it moves in every batch, but not on the whole
    outputs_are_equal = _rows_are_equal(model, lambda: losses(batches))
    if outputs_are_equal:  # empty where the loss does not call the model itself
        return all(outputs_are_equal)
    # Three rows apart: one alone may happen to fit all the others.
    same_inputs = [[_with_one_input(batch, at) for batch in batches] for at in (0.0, 0.3, 0.7)]
    return all(change(changed) <= max(negligible, 2 * noise) for changed in same_inputs)


def _is_pair(batch: Any) -> bool:
    """Whether a batch begins with two tensors of equally many rows, more than one."""
    return (
        isinstance(batch, (tuple, list))
        and len(batch) >= 2
        and all(isinstance(t, Tensor) and t.ndim for t in batch[:2])
        and len(batch[0]) == len(batch[1]) > 1
    )


def _with_inputs(batch: Any, inputs: Tensor) -> Any:
    """A batch with other inputs."""
    return type(batch)([inputs, *batch[1:]])


def _with_rolled_rows(batch: Any) -> Any:
    """A batch with its rows in another order, in which all tensors of a row stay together."""
    fits = [isinstance(t, Tensor) and t.ndim and len(t) == len(batch[0]) for t in batch]
    return type(batch)([t.roll(1, 0) if fit else t for t, fit in zip(batch, fits, strict=True)])


def _with_dealt_inputs(batches: list[Any]) -> list[Any]:
    """Every batch with the inputs of another one in random order: in batches that are sorted by
    class an input of the same batch would fit as well as its own. Where the shapes of two samples
    differ, a batch gets its own inputs in random order.
    """
    stream, dealt = numpy_stream(0, "dealt"), []
    for batch, other in zip(batches, stream.permutation(len(batches)), strict=True):
        own, donor = batch[0], batches[int(other)][0]
        donor = donor if donor.shape[1:] == own.shape[1:] else own
        rows = torch.from_numpy(stream.permutation(len(donor))).roll(1).to(own.device)
        # A donor with fewer samples gives some of them again.
        dealt.append(_with_inputs(batch, donor[rows[torch.arange(len(own)) % len(donor)]]))
    return dealt


def _with_one_input(batch: Any, share: float) -> Any:
    """A batch in which one input, at this share of the rows, takes the place of all."""
    row = int(share * len(batch[0]))
    return _with_inputs(batch, batch[0][row : row + 1].expand_as(batch[0]).clone())


def _rows_are_equal(model: torch.nn.Module, use: Callable[[], Any]) -> list[bool]:
    """Call ``use``, and return of every tensor that the model gave meanwhile whether its rows are
    equal, up to a thousandth of its largest entry.
    """
    equal = []  # per tensor that the model gave

    def note_equality(module: torch.nn.Module, inputs: Any, outputs: Any) -> None:
        """Hook after the model: append to ``equal`` whether its outputs have equal rows."""
        for t in tree_leaves(outputs):
            if isinstance(t, Tensor) and t.ndim and len(t) > 1 and t.is_floating_point():
                t = t.detach()
                equal.append(bool((t - t[:1]).abs().max() <= 1e-3 * t.abs().max()))

    handle = model.register_forward_hook(note_equality)
    try:
        use()
    finally:
        handle.remove()
    return equal


class _Average:
    """Running mean of the floating-point weights and buffers of a model, in float32 at least."""

    def __init__(self) -> None:
        self._count = 0
        self._means: dict[str, Tensor] = {}

    def add(self, model: torch.nn.Module) -> None:
        """Take the model's present weights and buffers into the mean."""
        self._count += 1
        for name, value in model.state_dict().items():
            if value.is_floating_point():
                dtype = torch.promote_types(value.dtype, torch.float32)
                if name not in self._means:
                    self._means[name] = torch.zeros_like(value, dtype=dtype)
                # The share 1/n of the n-th value keeps the plain mean of all.
                self._means[name].lerp_(value.to(dtype), 1 / self._count)

    def swap_in(self, model: torch.nn.Module) -> None:
        """Give the model the mean weights and buffers."""
        state = model.state_dict()
        state.update({name: mean.to(state[name].dtype) for name, mean in self._means.items()})
        model.load_state_dict(state)


def _copy_tree(tree: Any) -> Any:
    """A nested state with copies of its tensors."""
    return torch.utils._pytree.tree_map(
        lambda x: x.detach().clone() if isinstance(x, Tensor) else x, tree
    )


def check_starts(factory: Factory | Bench, seed: int) -> list[str]:
    """Build the problem three times and look at its first batches: notes for the answer, or one
    clear error.

    Raises:
        RuleError: what ``gradient_passes`` refuses (no parameter, a batch on another device, a loss
            that is not finite), or no parameter has a gradient.
    """
    # A bench puts one build back to its start: a second build comes from the user's own factory.
    user_factory = factory.factory if isinstance(factory, Bench) else factory
    loss, *checksums = _fingerprint_of_start(problem_at_start(factory, seed))
    _, *checksums_of_other_seed = _fingerprint_of_start(problem_at_start(factory, seed + 1))
    loss_again, *_ = _fingerprint_of_start(build(user_factory, seed))
    if not math.isclose(loss, loss_again, rel_tol=1e-4, abs_tol=1e-12):
        return [
            "Two builds with the same seed start at different losses: data or weights ignore the "
            "seed."
        ]
    if checksums == checksums_of_other_seed:
        return [
            "Every seed starts at the same weights and data: the intervals cover the order of "
            "batches only."
        ]
    return []


def _fingerprint_of_start(problem: Problem) -> tuple[float, int, int]:
    """The loss of the first batch, and checksums of the weights and of the batch."""
    batch = next(iter(problem.train))
    weights = fingerprint(list(problem.objective.model.parameters()))
    with gradient_passes(problem.objective, [batch]) as passes:
        item = next(passes.gradients())
        if not any(bool(g.any()) for g in item.gradient):
            fail(
                "problem",
                "must have a loss that depends on the parameters (every gradient is zero at the "
                "start: a dead network trains with no optimizer)",
                float(item.loss),
            )
        return float(item.loss), weights, fingerprint(batch)
