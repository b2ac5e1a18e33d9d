"""Why did a training run break? The last steps are computed again from the last state before, and
the weights and the batch are tried apart from each other.

Two questions decide. Are other batches ordinary at the weights at which it broke? If not, an update
before did it, and the replay shows which. Was the batch a bad one at the weights of some steps
before? If so, the batch did it. Where neither holds, the forward pass shows which operation gave a
number that is not finite.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from html import escape
from typing import Any

import torch
from torch import Tensor, nn

from mindgap.base.batches import rows, size, tensors_in
from mindgap.base.restoring import undisturbed
from mindgap.measure.recorder import Incident, Recorder, Seen, State, Step, leaves_range, twin
from mindgap.measure.tracing import Trace, traced

#: Updates larger than the largest before by this factor are called a jump.
JUMP = 5.0
#: A learning rate that rose by this factor is called a jump.
RATE_JUMP = 3.0
#: A batch's numbers are out of range if they exceed those of the other batches by this factor.
OUT_OF_RANGE = 5.0
#: A recurrent state that grows by this factor within one sequence explodes.
GROWTH = 1e3
#: Share of a batch's excess that few samples must explain to be named.
FEW_EXPLAIN = 0.9
#: Batches that the weights are tried on, and samples that are looked at one by one.
OTHERS, MOST_SAMPLES = 3, 512

MECHANISMS = {
    "update": "an update threw the weights away",
    "learning_rate": "the learning rate jumped",
    "divergence": "the updates grew from step to step",
    "batch": "a bad batch",
    "sample": "a bad sample within a batch",
    "operation": "an operation without a finite value",
    "overflow": "a number too large for float16",
    "recurrence": "a recurrent state that grows with every time step",
    "": "nothing to explain",
    "unknown": "cannot tell",
}


@dataclass(frozen=True)
class Autopsy:
    """What broke a run.

    Attributes:
        mechanism: a key of ``MECHANISMS``; empty where there is nothing to explain.
        step: the step at fault: of the update, or of the batch.
        seen: the step at which it showed.
        layer: the module that moved, overflowed or gave the first number that is not finite.
        batch: what names the batch at fault; None where the batch was ordinary or has no name.
        samples: samples at fault within the batch.
        recovered: steps after which the loss was back in its range; None if it was not.
        sentence: all of that in words.
        findings: what led there.
        replay: how well the replay agrees with what was recorded.
    """

    mechanism: str
    sentence: str
    step: int = -1
    seen: int = -1
    layer: str = ""
    batch: Any = None
    samples: tuple[int, ...] = ()
    recovered: int | None = None
    findings: tuple[str, ...] = ()
    replay: str = ""
    numbers: dict[str, float] = field(default_factory=dict, repr=False)

    def __str__(self) -> str:
        return "\n".join([self.sentence, *(f"- {line}" for line in self.findings)])

    def _repr_html_(self) -> str:
        items = "".join(f"<li>{escape(line)}</li>" for line in self.findings)
        return f"<p><b>{escape(self.sentence)}</b></p>" + (f"<ul>{items}</ul>" if items else "")


@dataclass
class _Point:
    """One replayed step, before its update."""

    step: Step
    measure: float  # what the incident is about: the loss, or the gradient's norm
    others: float  # the same for other batches, their median
    own: float  # the same for the batch of the incident
    norms: list[float]  # gradient of each parameter, as computed again
    factor: float = 1.0  # gradient that the optimizer was given over the one computed again
    moved: dict[str, float] = field(default_factory=dict)  # module -> update over weights


class Replay:
    """Computes the steps of an incident again, on the user's own model, and puts everything back.

    Args:
        model: the user's.
        loss: ``loss(model, batch)``, the user's own.
        optimizer: the user's; its states are copied.
        incident: what is explained.
        state: to begin from.
        measuring: batches to try the weights on, where the steps hold too few.
        recall: finds a batch again by what names it.
        tensors: parameters of the model and of the optimizer.

    Attributes:
        batch: the one of the incident; None where it is not known.
        others: ordinary batches.
        points: the steps computed again, up to the incident.
        disagreement: largest relative distance of a replayed loss from the recorded one.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Callable[[Any, Any], Tensor],
        optimizer: torch.optim.Optimizer,
        incident: Incident,
        state: State,
        measuring: list[Any],
        recall: Callable[[Any], Any] | None,
        tensors: list[Tensor],
    ) -> None:
        self.model, self.loss, self.optimizer = model, loss, optimizer
        self.incident, self.state = incident, state
        self.recall, self.tensors = recall, tensors
        self.named = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self.points: list[_Point] = []
        self.batch = self.batch_at(incident.step)
        self.others = self._ordinary(measuring)
        self.disagreement = 0.0

    # Batches.

    def _batches_of(self, step: Step) -> list[tuple[Seen, Any]]:
        """The calls of the loss in a step with their batches; empty where one batch is lost."""
        found = []
        for seen in step.seen:
            batch = seen.batch
            if batch is None and seen.key is not None and self.recall is not None:
                batch = self.recall(seen.key)
            if batch is None:
                return []
            if seen.versions and seen.versions != tuple(t._version for t in tensors_in(batch)):
                return []  # the loop has written something else into it
            found.append((seen, batch))
        return found

    def _step_at(self, number: int) -> Step | None:
        return next((step for step in self.incident.steps if step.number == number), None)

    def batch_at(self, number: int) -> Any:
        """The batch of a step; of several that were added up, the one with the worst loss."""
        step = self._step_at(number)
        found = self._batches_of(step) if step is not None else []
        return max(found, key=lambda row: _or_infinite(float(row[0].loss)))[1] if found else None

    def key_at(self, number: int) -> Any:
        """What names the batch of a step."""
        step = self._step_at(number)
        if step is None or not step.seen:
            return None
        return max(step.seen, key=lambda seen: _or_infinite(float(seen.loss))).key

    def _ordinary(self, measuring: list[Any]) -> list[Any]:
        """Batches of steps before whose losses were usual, and then measuring batches."""
        usual = [
            batch
            for step in self.incident.steps[:-1]
            if not leaves_range(self.incident.history, step.loss) or self.incident.kind != "loss"
            for _, batch in self._batches_of(step)[:1]
        ]
        chosen = usual[:: max(1, len(usual) // OTHERS)][:OTHERS]
        return [*chosen, *measuring][:OTHERS]

    # Computing.

    @contextmanager
    def open(self) -> Iterator[None]:
        """Everything is put back at the end: parameters, buffers, gradients, modes, random
        numbers.
        """
        with ExitStack() as stack:
            if "torch._dynamo" in sys.modules:
                stack.enter_context(torch.compiler.set_stance("force_eager"))
            stack.enter_context(undisturbed(self.model, parameters=True))
            saved = [tensor.detach().clone() for tensor in self.tensors]
            grads = [tensor.grad for tensor in self.tensors]
            try:
                yield
            finally:
                with torch.no_grad():
                    for tensor, old, grad in zip(self.tensors, saved, grads, strict=True):
                        if not torch.equal(tensor.detach(), old):
                            tensor.copy_(old)
                        tensor.grad = grad

    def run(self) -> None:
        """All steps up to the incident; its own update is not made."""
        self._begin()
        for step in self.incident.steps:
            self.points.append(self._point(step))
            if step.number == self.incident.step:
                return
            self.move(self.points[-1])

    def rewind_to(self, number: int) -> None:
        """Put the weights back to where they stood before a step."""
        self._begin()
        for step in self.incident.steps:
            if step.number >= number:
                return
            self.move(self._point(step))

    def _begin(self) -> None:
        """Load the state before the first step, into the model and a second optimizer."""
        state = self.state
        with torch.no_grad():
            for tensor, old in zip(self.tensors, state.parameters, strict=True):
                tensor.copy_(old)
            for buffer, old in zip(self.model.buffers(), state.buffers, strict=True):
                buffer.copy_(old)
        for module, training in zip(self.model.modules(), state.modes, strict=True):
            module.training = training
        _set_random(state.random, self.tensors)
        self.twin = twin(self.optimizer, state.optimizer)

    def _clear_gradients(self) -> None:
        for tensor in self.tensors:
            tensor.grad = None

    def value(self, batch: Any, seen: Seen | None = None) -> Tensor:
        """The user's loss under the precision of a recorded call, else of the first one."""
        if seen is None:
            calls = (call for step in self.incident.steps for call in step.seen)
            seen = next(calls, None)
        if seen is None or seen.cast is None:
            return self.loss(self.model, batch).reshape(-1)[0]
        with torch.autocast(*seen.cast):
            return self.loss(self.model, batch).reshape(-1)[0]

    def measured(self, batch: Any) -> float:
        """Loss (or gradient norm, or infinity where a gradient is not finite) of a batch at the
        present weights; nothing changes.
        """
        by_gradient = self.incident.kind == "gradient"
        with undisturbed(self.model):
            with torch.set_grad_enabled(by_gradient):
                value = self.value(batch)
            if not by_gradient:
                return float(value)
            found = torch.autograd.grad(value, list(self.named.values()), allow_unused=True)
            return _length([_norm(grad) for grad in found if grad is not None])

    def bad(self, value: float) -> bool:
        """Whether a measure is out of its range."""
        if not math.isfinite(value):
            return True
        if self.incident.kind == "gradient":
            usual = [norm for norm in self.incident.history if math.isfinite(norm)]
            return bool(usual) and value > JUMP * max(usual)
        return leaves_range(self.incident.history, value) > 0

    def move(self, point: _Point) -> None:
        """Make the update of a step."""
        for group, settings in zip(self.twin.param_groups, point.step.settings):
            group.update(settings)
        before = {name: p.detach().clone() for name, p in self.named.items()}
        self.twin.step()
        point.moved = self._moves(before)
        self._clear_gradients()

    def _moves(self, before: dict[str, Tensor]) -> dict[str, float]:
        """Module -> length of its update over the norm of its weights before."""
        lengths: dict[str, float] = {}
        sizes: dict[str, float] = {}
        for name, p in self.named.items():
            module = _module_of(name)
            moved = _norm(p.detach() - before[name])
            lengths[module] = math.hypot(lengths.get(module, 0.0), moved)
            sizes[module] = math.hypot(sizes.get(module, 0.0), _norm(before[name]))
        return {name: length / max(sizes[name], 1e-12) for name, length in lengths.items()}

    def _point(self, step: Step) -> _Point:
        """Gradient and losses at the present weights; the gradient is left for the optimizer."""
        others = sorted(map(self.measured, self.others), key=_or_infinite)
        own = self.measured(self.batch) if self.batch is not None else math.nan
        calls = self._batches_of(step)
        if not calls:
            raise LookupError(f"the batch of step {step.number} is no longer there")
        self._clear_gradients()
        losses = []
        for seen, batch in calls:
            if seen.random is not None:
                _set_random(seen.random, self.tensors)
            value = self.value(batch, seen)
            (value / len(calls)).backward()
            losses.append(float(value.detach()))
        loss = sum(losses) / len(losses)
        norms = [_norm(p.grad) if p.grad is not None else 0.0 for p in self.named.values()]
        self._compare(step.loss, loss)
        return _Point(
            step,
            measure=loss if self.incident.kind == "loss" else _length(norms),
            others=others[len(others) // 2] if others else math.nan,
            own=own,
            norms=norms,
            factor=self._rescale(step, _length(norms)),
        )

    def _compare(self, recorded: float, replayed: float) -> None:
        """Note how far a replayed loss lies from the recorded one."""
        if math.isfinite(replayed) and math.isfinite(recorded):
            apart = abs(replayed - recorded) / max(abs(recorded), 1e-12)
            self.disagreement = max(self.disagreement, apart)
        elif math.isfinite(replayed) != math.isfinite(recorded):
            self.disagreement = math.inf

    def _rescale(self, step: Step, length: float) -> float:
        """Give the optimizer a gradient of the norm that it had (the loop may clip or scale);
        returns that norm over the replayed ``length``, 1 where it is not known.
        """
        given = _recorded_norm(step)
        if not (math.isfinite(given) and math.isfinite(length) and length > 0 and given > 0):
            return 1.0
        factor = given / length
        if abs(factor - 1) > 1e-6:
            for tensor in self.tensors:
                if tensor.grad is not None:
                    tensor.grad.mul_(factor)
        return factor

    def trace(self) -> tuple[Trace, dict[str, float]]:
        """Forward and backward pass of the incident's batch at the present weights, and the growth
        of recurrent states over time.
        """
        scales: dict[str, list[list[float]]] = {}  # module -> sizes of its states, per sequence

        def keep_states(name: str, module: nn.RNNBase, inputs: Any, out: Any) -> None:
            states = out[0] if isinstance(out, tuple) else out
            if isinstance(states, Tensor) and states.ndim == 3:
                time = 1 if module.batch_first else 0
                sizes = states.detach().double().abs().amax(dim=(2, 1 - time)).tolist()
                scales.setdefault(name, []).append(sizes)

        handles = [
            module.register_forward_hook(partial(keep_states, name))
            for name, module in self.model.named_modules()
            if isinstance(module, nn.RNNBase)
        ]
        try:
            with undisturbed(self.model), torch.enable_grad():
                with traced(self.model, backward=True) as trace:
                    value = self.value(self.batch)
                trace.watch_backward()
                if value.requires_grad:
                    torch.autograd.grad(value, list(self.named.values()), allow_unused=True)
        finally:
            for handle in handles:
                handle.remove()
        calls: dict[str, list[float]] = {}  # a cell that is called once per time step
        for name, scale in trace.scales:
            calls.setdefault(name, []).append(scale)
        for name, sizes in calls.items():
            scales.setdefault(name, []).append(sizes)
        return trace, {name: max(map(_growth, rows)) for name, rows in scales.items()}

    def samples(self, batch: Any) -> tuple[int, ...]:
        """Few samples that explain the batch's excess; empty where it is the whole batch."""
        count = size(batch)
        most = max(1, count // 8)
        broken = _rows_not_finite(batch, count)
        if broken:
            return tuple(broken) if len(broken) <= most else ()
        if not 2 <= count <= MOST_SAMPLES:
            return ()
        if self.excess(batch):
            far = [i for i in range(count) if self.excess(rows(batch, [i]))]
            if len(far) > most:
                return ()
        with undisturbed(self.model), torch.no_grad():
            self.model.eval()
            values = [float(self.value(rows(batch, [i]))) for i in range(count)]
        bad = [i for i, value in enumerate(values) if not math.isfinite(value)]
        if bad:
            return tuple(bad) if len(bad) <= most else ()
        middle = sorted(values)[count // 2]
        excess = [max(0.0, value - middle) for value in values]
        few = sorted(range(count), key=lambda i: -excess[i])[:most]
        if sum(excess[i] for i in few) < FEW_EXPLAIN * sum(excess):
            return ()
        return tuple(sorted(i for i in few if excess[i] > 0.1 * excess[few[0]]))

    def excess(self, batch: Any) -> float:
        """How many times the numbers of a batch exceed those of the others; 0 where they do not."""
        worst = 0.0
        others = [list(tensors_in(other)) for other in self.others]
        for i, part in enumerate(tensors_in(batch)):
            if part.is_floating_point() and part.numel():
                alike = [other[i] for other in others if len(other) > i]
                usual = max((_top(o) for o in alike if o.is_floating_point()), default=0.0)
                worst = max(worst, _top(part) / usual if usual > 0 else 0.0)
        return worst if worst > OUT_OF_RANGE else 0.0


# Judging.


def perform(
    recorder: Recorder,
    model: nn.Module,
    loss: Callable[[Any, Any], Tensor],
    optimizer: torch.optim.Optimizer,
    measuring: list[Any],
    recall: Callable[[Any], Any] | None,
) -> Autopsy:
    """The answer of ``Monitor.autopsy``."""
    recorder.flush(final=True)
    incident = recorder.incident
    if incident is None:
        count = recorder.steps[-1].number + 1 if recorder.steps else 0
        said = f"in {count} steps no number was not finite and nothing left its range"
        return Autopsy("", f"Nothing to explain: {said}.")
    shown = f"{_shown(incident)} at step {incident.step}"
    if incident.state is None:
        why = recorder.why_not or "no state from before that step is kept"
        return _unknown(incident, f"{shown}, and it cannot be replayed: {why}")
    replay = Replay(
        model, loss, optimizer, incident, incident.state, measuring, recall, recorder.tensors
    )
    if replay.batch is None:
        return _unknown(
            incident,
            f"{shown}, and its batch is not known: call objective.value(batch) or "
            "monitor.observe(loss, batch) in the loop, or give recall",
        )
    try:
        with replay.open():
            replay.run()
            return _judge(replay)
    except Exception as error:  # of the user's code, or a batch that was dropped
        lines = str(error).strip().splitlines()
        text = f"{type(error).__name__}: {lines[0][:160] if lines else ''}".rstrip(": ")
        return _unknown(incident, f"{shown}, and the replay ended in {text}")


def _judge(replay: Replay) -> Autopsy:
    """The mechanism that fits the replay: batch, update, operation, recurrence, divergence or
    something unseen.
    """
    incident, points = replay.incident, replay.points
    here = points[-1]
    trace, growth = replay.trace()
    recurrent = max(growth, key=lambda name: growth[name], default="")
    explodes = bool(recurrent) and growth[recurrent] > GROWTH
    if _not_finite(replay.batch):
        return _batch(replay, incident.step, "holds numbers that are not finite")
    factors = [point.factor for point in points[:-1]]
    if incident.kind == "gradient" and factors and here.factor > JUMP * max(factors):
        return _given(replay, max(factors))
    told = here.step.loss if incident.kind == "loss" else _recorded_norm(here.step)
    if replay.bad(told) and not replay.bad(here.measure):
        return _unseen(replay, told)
    broken = any(not bool(t.isfinite().all()) for t in replay.tensors if t.is_floating_point())
    if broken or replay.bad(here.others):
        found = _update(replay, broken)
        if found is None and incident.at_once:
            found = _recurrence(replay, recurrent, math.inf) if explodes else None
            found = found or _operation(replay, trace)
        return found or _divergence(replay)
    ordinary = not replay.excess(replay.batch)
    if explodes and ordinary:
        return _recurrence(replay, recurrent, growth[recurrent])
    operation = _operation(replay, trace) if incident.at_once and ordinary else None
    if operation is not None:
        return operation
    always_bad = replay.bad(points[0].own) or not ordinary or len(points) == 1
    how = "" if always_bad else "is out of its range at these weights only"
    return _batch(replay, incident.step, how)


def _unseen(replay: Replay, told: float) -> Autopsy:
    """The replay is ordinary where the run was not: something changed that no step shows."""
    number = replay.incident.step
    here = replay.points[-1]
    what = "loss" if replay.incident.kind == "loss" else "gradient norm"
    if len(replay.points) < 2:
        return _unknown(replay.incident, f"the replay of step {number} gives {here.measure:.3g}")
    said = (
        f"something besides the gradients changed the weights or the optimizer's state in the "
        f"update of step {number - 1}: computed again from the kept state the {what} of step "
        f"{number} is {here.measure:.3g}, not {told:.3g}"
    )
    return _answer(replay, "update", said, number - 1, "", (_ordinary_batch(replay),))


def _recorded_norm(step: Step) -> float:
    """Gradient norm that was recorded at a step; NaN where none was."""
    if step.norms is None:
        return math.nan
    return _length(step.norms.tolist() if isinstance(step.norms, Tensor) else list(step.norms))


def _given(replay: Replay, usual: float) -> Autopsy:
    """The optimizer was given another gradient than its batch has."""
    here = replay.points[-1]
    number = here.step.number
    replay.move(here)
    layer, moved = _largest(here.moved)
    said = (
        f"the optimizer was given {here.factor / usual:.3g} times the gradient of its batch, and "
        f"the update moved {layer} by {_times(moved)}"
    )
    return _answer(replay, "update", said, number, layer, (_ordinary_batch(replay),))


def _update(replay: Replay, broken: bool) -> Autopsy | None:
    """An update before the incident made other batches bad as well; None where no update was
    unusual.

    Args:
        broken: whether a weight is not finite.
    """
    points = replay.points
    first = next((i for i, p in enumerate(points) if replay.bad(p.others)), len(points) - 1)
    if first == 0:
        return _divergence(replay) if len(points) == 1 and broken else None
    point, earlier = points[first - 1], points[: first - 1]
    layer, moved = _largest(point.moved)
    moves = [_largest(p.moved)[1] for p in earlier]
    usual = max((move for move in moves if math.isfinite(move)), default=math.nan)
    if moved < (JUMP * usual if math.isfinite(usual) else 0.5):
        return None
    number = point.step.number
    tail = f"the update of step {number} moved {layer} by {_times(moved)}"
    numbers = {"moved": moved, "usual": usual}
    findings = (_ordinary_batch(replay),)
    rate, rates = _rate(point.step), [_rate(p.step) for p in earlier]
    if rates and rate > RATE_JUMP * max(rates):
        said = (
            f"the learning rate went from {max(rates):.3g} to {rate:.3g} at step {number}; {tail}"
        )
        return _answer(replay, "learning_rate", said, number, layer, findings, numbers)
    norms = [_length(p.norms) for p in earlier]
    odd = bool(norms) and not _length(point.norms) <= JUMP * max(norms)
    factors = [p.factor for p in earlier]
    if factors and point.factor > JUMP * max(factors) and not odd:
        said = (
            f"{tail}: the optimizer was given {point.factor / max(factors):.3g} times the gradient "
            "of its batch"
        )
        return _answer(replay, "update", said, number, layer, findings, numbers)
    if odd or replay.bad(point.measure):
        return _batch(replay, number, "", because=tail)
    if not norms and math.isnan(usual):
        return None
    said = f"{tail}; the updates before moved it by at most {_times(usual)}"
    return _answer(replay, "update", said, number, layer, findings, numbers)


def _divergence(replay: Replay) -> Autopsy:
    """Updates that grow from step to step."""
    moves = [(p.step.number, *_largest(p.moved)) for p in replay.points if p.moved]
    finite = [row for row in moves if math.isfinite(row[2])]
    finite = finite or [(replay.incident.step, "", math.nan)]
    (begin, _, first), (end, layer, last) = finite[0], finite[-1]
    rates = [_rate(p.step) for p in replay.points]
    rate = rates[-1] if rates[-1] > 0 else rates[0]
    said = (
        f"the updates grew from step to step: {layer} moved by {_times(first)} at step {begin} and "
        f"by {_times(last)} at step {end}; the learning rate ({rate:.3g}) is too large"
    )
    return _answer(replay, "divergence", said, begin, layer)


def _batch(replay: Replay, number: int, how: str, because: str = "") -> Autopsy:
    """The batch of a step is to blame, or samples of it.

    Args:
        number: the step.
        how: what is wrong with the batch, where that is known.
        because: what its update did.
    """
    batch = replay.batch
    if number != replay.incident.step:
        batch = replay.batch_at(number)
        replay.rewind_to(number)
    samples: tuple[int, ...] = ()
    with suppress(Exception):  # a batch that cannot be cut
        samples = replay.samples(batch)
    key = replay.key_at(number)
    said = f"the batch of step {number}" + (f" (batch {key})" if key is not None else "")
    findings = []
    excess = replay.excess(batch)
    if how:
        findings.append(f"It {how}.")
    elif excess:
        findings.append(f"Its numbers reach {excess:.3g} times those of other batches.")
    if because:
        findings.append(because[0].upper() + because[1:] + ".")
    findings.append("Other batches are ordinary at the weights before it.")
    verb = "is"
    if samples:
        word, verb = ("sample", "is") if len(samples) == 1 else ("samples", "are")
        said = f"{word} {', '.join(map(str, samples[:5]))} of {said}"
    return _answer(
        replay,
        "sample" if samples else "batch",
        f"{said} {verb} to blame",
        number,
        _loudest(replay, number),
        tuple(findings),
        batch=key,
        samples=samples,
    )


def _operation(replay: Replay, trace: Trace) -> Autopsy | None:
    """The operation that gave the first number that is not finite; None where none did."""
    number = replay.incident.step
    if trace.origin:
        name, module, half = trace.origin, trace.origin_module, trace.origin_half
        what = "gave a number that is not finite from finite ones"
    else:
        name, module, half = trace.undefined, trace.undefined_module, trace.undefined_half
        what = "has a derivative that is not finite"
    if not name:
        return None
    module = module or "the loss"
    what = "left the range of float16" if half else what
    said = f"{name.strip('_')} in {module} {what} at step {number}"
    findings = (_ordinary_batch(replay), "Every weight is finite.")
    return _answer(replay, "overflow" if half else "operation", said, number, module, findings)


def _recurrence(replay: Replay, layer: str, growth: float) -> Autopsy:
    """A recurrent state that grows within one sequence."""
    number = replay.incident.step
    grown = f"{growth:.3g} times" if math.isfinite(growth) else "beyond every number"
    said = f"the recurrent state of {layer} grew {grown} within one sequence at step {number}"
    return _answer(replay, "recurrence", said, number, layer, (_ordinary_batch(replay),))


def _answer(
    replay: Replay,
    mechanism: str,
    said: str,
    step: int,
    layer: str,
    findings: tuple[str, ...] = (),
    numbers: dict[str, float] | None = None,
    batch: Any = None,
    samples: tuple[int, ...] = (),
) -> Autopsy:
    """The autopsy with its sentence: what was seen, the mechanism, what came later, and whether the
    replay agrees.
    """
    incident = replay.incident
    recovered = _recovered(incident)
    sentence = f"{_shown(incident)} at step {incident.step}: {said}"
    if mechanism in ("update", "learning_rate") and step < incident.step:
        sentence += f"; the batch of step {incident.step} was ordinary"
    if recovered is not None:
        word = "step" if recovered == 1 else "steps"
        sentence += f"; the loss was back in its range {recovered} {word} later"
    if incident.broke > incident.step:
        sentence += f"; from step {incident.broke} on numbers are not finite"
    agreed = _agreement(replay.disagreement)
    return Autopsy(
        mechanism,
        f"{sentence}.",
        step,
        incident.step,
        layer,
        batch,
        samples,
        recovered,
        tuple(finding for finding in (*findings, agreed) if finding),
        agreed,
        numbers or {},
    )


def _agreement(apart: float) -> str:
    """How well the replay agrees with what was recorded, from the largest relative distance."""
    if apart == 0:
        return "The replay gives the recorded losses bit for bit."
    if apart < 1e-3:
        return f"The replay gives the recorded losses to {apart:.1g}."
    return (
        "The replay does not give the recorded losses "
        f"(up to {apart:.1%} apart): something in the loop was not seen."
    )


def _unknown(incident: Incident, why: str) -> Autopsy:
    """The autopsy that finds nothing out."""
    return Autopsy("unknown", f"Cannot tell: {why[0].lower()}{why[1:]}.", -1, incident.step)


def _shown(incident: Incident) -> str:
    """How the incident showed, for the beginning of a sentence."""
    return f"The {incident.kind} {'was not finite' if incident.at_once else 'left its range'}"


def _recovered(incident: Incident) -> int | None:
    """Steps after which the loss was back in its range; None where it was not, or is not known."""
    usual = incident.history
    if incident.kind != "loss":
        usual = [step.loss for step in incident.steps[:-1]]
    fine = [not leaves_range(usual, loss) for loss in incident.after]
    if len(fine) < 5 or not all(fine[-3:]):
        return None
    last_bad = max((i for i, ok in enumerate(fine) if not ok), default=-1)
    return last_bad + 2


def _ordinary_batch(replay: Replay) -> str:
    """A sentence on the incident's batch; empty where its numbers are out of range."""
    if replay.excess(replay.batch):
        return ""
    key = replay.key_at(replay.incident.step)
    name = f" (batch {key})" if key is not None else ""
    return f"The numbers of its batch{name} are in the range of the others."


def _loudest(replay: Replay, number: int) -> str:
    """The module with the largest gradient at a replayed step; empty where it was not replayed."""
    point = next((p for p in replay.points if p.step.number == number), None)
    if point is None or not point.norms:
        return ""
    norms = dict(zip(replay.named, map(_or_infinite, point.norms), strict=True))
    return _module_of(max(norms, key=lambda name: norms[name]))


def _module_of(parameter: str) -> str:
    """The module of a parameter, by their names; a parameter of the model itself stands alone."""
    return parameter.rpartition(".")[0] or parameter


def _largest(moved: dict[str, float]) -> tuple[str, float]:
    """The module that moved farthest, and how far."""
    if not moved:
        return "", math.nan
    name = max(moved, key=lambda n: moved[n] if not math.isnan(moved[n]) else math.inf)
    return name, moved[name]


def _times(share: float) -> str:
    """A length relative to a norm, in words."""
    if not math.isfinite(share):
        return "more than any number"
    return f"{share:.3g} times its norm" if share >= 1 else f"{100 * share:.2g} % of its norm"


def _rate(step: Step) -> float:
    """The largest learning rate of a step; NaN where none is known."""
    return max((float(g["lr"]) for g in step.settings if "lr" in g), default=math.nan)


def _length(norms: list[float]) -> float:
    """The norm of a vector from those of its parts."""
    return math.sqrt(sum(norm * norm for norm in norms))


def _norm(tensor: Tensor) -> float:
    tensor = tensor.detach()
    tensor = tensor.coalesce().values() if tensor.is_sparse else tensor
    return float(tensor.abs().double().norm())


def _top(tensor: Tensor) -> float:
    """The largest size of an entry; infinity where one is not finite."""
    return _or_infinite(float(tensor.detach().abs().max()) if tensor.numel() else 0.0)


def _or_infinite(value: float) -> float:
    """The value; infinity where it is not finite."""
    return value if math.isfinite(value) else math.inf


def _not_finite(batch: Any) -> bool:
    """Whether a batch holds a number that is not finite."""
    numbers = (t for t in tensors_in(batch) if t.is_floating_point() or t.is_complex())
    return any(not bool(tensor.isfinite().all()) for tensor in numbers)


def _rows_not_finite(batch: Any, count: int) -> list[int]:
    """Samples that hold a number that is not finite, of a batch of so many."""
    found: set[int] = set()
    for tensor in tensors_in(batch):
        if tensor.is_floating_point() and tensor.ndim and len(tensor) == count and count:
            bad = ~tensor.detach().isfinite().reshape(count, -1).all(1)
            found |= set(bad.nonzero().flatten().tolist())
    return sorted(found)


def _set_random(state: Tensor, tensors: list[Tensor]) -> None:
    """Set the generator of the device that holds the tensors."""
    if tensors and tensors[0].is_cuda:
        torch.cuda.default_generators[tensors[0].get_device()].set_state(state)
    else:
        torch.set_rng_state(state)


def _growth(scales: list[float]) -> float:
    """By how much a sequence of sizes grows; 0 where it is short."""
    if len(scales) < 8:
        return 0.0
    early = sorted(v for v in scales[: max(2, len(scales) // 8)] if math.isfinite(v) and v > 0)
    return max(map(_or_infinite, scales)) / early[len(early) // 2] if early else 0.0
