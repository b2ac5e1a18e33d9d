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
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from html import escape
from typing import Any

import torch
from torch import Tensor, nn

from mindgap.base.batches import rows, size, tensors_in
from mindgap.base.restoring import undisturbed
from mindgap.measure.recorder import Incident, Recorder, Seen, Step, leaves_range, twin
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
#: Functions that are undefined somewhere, or that overflow; others pass on what they are given.
_PASSED_ON = ("backward", "detach", "clone", "to", "float", "half", "item")

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
    loss: float  # as computed again
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
        incident: with the state to begin from.
        measuring: batches to try the weights on, where the steps hold too few.
        recall: finds a batch again by what names it.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Callable[[Any, Any], Tensor],
        optimizer: torch.optim.Optimizer,
        incident: Incident,
        measuring: list[Any],
        recall: Callable[[Any], Any] | None,
        tensors: list[Tensor],
    ) -> None:
        self.model, self.loss, self.optimizer = model, loss, optimizer
        self.incident, self.recall, self.tensors = incident, recall, tensors
        self.named = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
        self.points: list[_Point] = []
        self.batch = self._batch_at(incident.step)
        self.others = self._ordinary(measuring)
        self.disagreement = 0.0
        self.error = ""

    # Batches.

    def _batches_of(self, step: Step) -> list[tuple[Seen, Any]]:
        found = []
        for s in step.seen:
            batch = s.batch
            if batch is None and s.key is not None and self.recall is not None:
                batch = self.recall(s.key)
            if batch is None:
                return []
            if s.versions and s.versions != tuple(t._version for t in tensors_in(batch)):
                return []  # the loop has written something else into it
            found.append((s, batch))
        return found

    def _batch_at(self, number: int) -> Any:
        """The batch of a step; of several that were added up, the one with the worst loss."""
        for step in self.incident.steps:
            if step.number == number:
                found = self._batches_of(step)
                if found:
                    return max(found, key=lambda pair: _worst(float(pair[0].loss)))[1]
        return None

    def key_at(self, number: int) -> Any:
        """What names the batch of a step."""
        for step in self.incident.steps:
            if step.number == number and step.seen:
                return max(step.seen, key=lambda s: _worst(float(s.loss))).key
        return None

    def _ordinary(self, measuring: list[Any]) -> list[Any]:
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
        state = self.incident.state
        assert state is not None
        with ExitStack() as stack:
            if "torch._dynamo" in sys.modules:
                stack.enter_context(torch.compiler.set_stance("force_eager"))
            stack.enter_context(undisturbed(self.model, parameters=True))
            saved = [t.detach().clone() for t in self.tensors]
            grads = [t.grad for t in self.tensors]
            try:
                yield
            finally:
                with torch.no_grad():
                    for t, old, grad in zip(self.tensors, saved, grads, strict=True):
                        if not torch.equal(t.detach(), old):
                            t.copy_(old)
                        t.grad = grad

    def load(self) -> None:
        """The state before the first step."""
        state = self.incident.state
        assert state is not None
        with torch.no_grad():
            for t, old in zip(self.tensors, state.parameters, strict=True):
                t.copy_(old)
            for b, old in zip(self.model.buffers(), state.buffers, strict=True):
                b.copy_(old)
        for module, training in zip(self.model.modules(), state.modes, strict=True):
            module.training = training
        _set_random(state.random, self.tensors)

    def value(self, batch: Any, seen: Seen | None = None) -> Tensor:
        """The user's loss under the precision of the loop."""
        cast = seen.cast if seen is not None else self._cast()
        if cast is None:
            return self.loss(self.model, batch).reshape(-1)[0]
        with torch.autocast(cast[0], cast[1]):
            return self.loss(self.model, batch).reshape(-1)[0]

    def _cast(self) -> tuple[str, torch.dtype] | None:
        return next((s.cast for step in self.incident.steps for s in step.seen), None)

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
            found = torch.autograd.grad(value, [p for _, p in self.named], allow_unused=True)
            return math.sqrt(sum(_norm(g) ** 2 for g in found if g is not None))

    def bad(self, value: float) -> bool:
        """Whether a measure is out of its range."""
        if not math.isfinite(value):
            return True
        if self.incident.kind == "gradient":
            usual = [v for v in self.incident.history if math.isfinite(v)]
            return bool(usual) and value > JUMP * max(usual)
        return leaves_range(self.incident.history, value) > 0

    def run(self) -> None:
        """All steps up to the incident; its own update is not made."""
        state = self.incident.state
        assert state is not None
        self.load()
        self.twin = twin(self.optimizer, state.optimizer)
        for step in self.incident.steps:
            point = self._point(step)
            self.points.append(point)
            if step.number == self.incident.step:
                return
            self.move(point)

    def move(self, point: _Point) -> None:
        """Make the update of a step."""
        for group, settings in zip(self.twin.param_groups, point.step.settings):
            group.update(settings)
        before = {n: p.detach().clone() for n, p in self.named}
        self.twin.step()
        point.moved = self._moves(before)
        for p in self.tensors:
            p.grad = None

    def _point(self, step: Step) -> _Point:
        """Gradient and losses at the present weights; the gradient is left for the optimizer."""
        others = sorted(
            (self.measured(b) for b in self.others), key=lambda v: v if math.isfinite(v) else 1e308
        )
        own = self.measured(self.batch) if self.batch is not None else math.nan
        found = self._batches_of(step)
        if not found:
            raise LookupError(f"the batch of step {step.number} is no longer there")
        for p in self.tensors:
            p.grad = None
        values = []
        for seen, batch in found:
            if seen.random is not None:
                _set_random(seen.random, self.tensors)
            value = self.value(batch, seen)
            (value / len(found)).backward()
            values.append(float(value.detach()))
        loss = sum(values) / len(values)
        norms = [_norm(p.grad) if p.grad is not None else 0.0 for _, p in self.named]
        length = math.sqrt(sum(v * v for v in norms))
        point = _Point(
            step,
            loss,
            loss if self.incident.kind == "loss" else length,
            others[len(others) // 2] if others else math.nan,
            own,
            norms,
        )
        self._compare(step, loss)
        self._rescale(step, point, length)
        return point

    def _compare(self, step: Step, loss: float) -> None:
        told = step.loss
        if math.isfinite(loss) and math.isfinite(told):
            apart = abs(loss - told) / max(abs(told), 1e-12)
            self.disagreement = max(self.disagreement, apart)
        elif math.isfinite(loss) != math.isfinite(told):
            self.disagreement = math.inf

    def _rescale(self, step: Step, point: _Point, length: float) -> None:
        """Give the optimizer a gradient of the norm that it had: the loop may clip or scale."""
        if step.norms is None:
            return
        told = step.norms.tolist() if isinstance(step.norms, Tensor) else list(step.norms)
        given = math.sqrt(sum(v * v for v in told))
        if not (math.isfinite(given) and math.isfinite(length) and length > 0 and given > 0):
            return
        factor = given / length
        point.factor = factor
        if abs(factor - 1) > 1e-6:
            for p in self.tensors:
                if p.grad is not None:
                    p.grad.mul_(factor)

    def _moves(self, before: dict[str, Tensor]) -> dict[str, float]:
        lengths: dict[str, float] = {}
        sizes: dict[str, float] = {}
        for name, p in self.named:
            place = name.rpartition(".")[0] or name
            moved = _norm(p.detach() - before[name])
            lengths[place] = math.hypot(lengths.get(place, 0.0), moved)
            sizes[place] = math.hypot(sizes.get(place, 0.0), _norm(before[name]))
        return {n: v / max(sizes[n], 1e-12) for n, v in lengths.items()}

    def trace(self) -> tuple[Trace, dict[str, float]]:
        """Forward and backward pass of the incident's batch at the present weights, and the growth
        of recurrent states over time.
        """
        growth: dict[str, float] = {}
        handles = [
            m.register_forward_hook(_sequence(name, growth))
            for name, m in self.model.named_modules()
            if isinstance(m, nn.RNNBase)
        ]
        try:
            with undisturbed(self.model), torch.enable_grad():
                with traced(self.model, backward=True) as trace:
                    value = self.value(self.batch)
                trace.watch_backward()
                if value.requires_grad:
                    torch.autograd.grad(value, [p for _, p in self.named], allow_unused=True)
        finally:
            for handle in handles:
                handle.remove()
        calls: dict[str, list[float]] = {}
        for name, scale in trace.scales:
            calls.setdefault(name, []).append(scale)
        for name, scales in calls.items():
            if len(scales) >= 8:
                growth[name] = max(growth.get(name, 0.0), _growth(scales))
        return trace, growth

    def samples(self, batch: Any) -> tuple[int, ...]:
        """Few samples that explain the batch's excess; empty where it is the whole batch."""
        count = size(batch)
        holes = _rows_not_finite(batch, count)
        if holes:
            return tuple(holes) if len(holes) <= max(1, count // 8) else ()
        if not 2 <= count <= MOST_SAMPLES:
            return ()
        if _out_of_range(self, batch):
            far = [i for i in range(count) if _out_of_range(self, rows(batch, [i]))]
            if len(far) > max(1, count // 8):
                return ()
        values = []
        with undisturbed(self.model), torch.no_grad():
            self.model.eval()
            for i in range(count):
                values.append(float(self.value(rows(batch, [i]))))
        bad = [i for i, v in enumerate(values) if not math.isfinite(v)]
        if bad:
            return tuple(bad) if len(bad) <= max(1, count // 8) else ()
        middle = sorted(values)[count // 2]
        excess = [max(0.0, v - middle) for v in values]
        order = sorted(range(count), key=lambda i: -excess[i])
        few = order[: max(1, count // 8)]
        if sum(excess[i] for i in few) < FEW_EXPLAIN * sum(excess):
            return ()
        top = excess[few[0]]
        return tuple(sorted(i for i in few if excess[i] > 0.1 * top))


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
        return Autopsy(
            "",
            f"Nothing to explain: in {count} steps no number was not finite and nothing left its "
            "range.",
        )
    where = f"at step {incident.step}"
    if incident.state is None:
        why = recorder.why_not or "no state from before that step is kept"
        return _unknown(incident, f"{_shown(incident)} {where}, and it cannot be replayed: {why}")
    replay = Replay(model, loss, optimizer, incident, measuring, recall, recorder.tensors)
    if replay.batch is None:
        return _unknown(
            incident,
            f"{_shown(incident)} {where}, and its batch is not known: call objective.value(batch) "
            "or monitor.observe(loss, batch) in the loop, or give recall",
        )
    try:
        with replay.open():
            replay.run()
            found = _judge(replay)
    except Exception as error:  # of the user's code, or a batch that was dropped
        first = str(error).strip().splitlines()
        text = f"{type(error).__name__}: {first[0][:160] if first else ''}".rstrip(": ")
        return _unknown(incident, f"{_shown(incident)} {where}, and the replay ended in {text}")
    return found


def _judge(replay: Replay) -> Autopsy:
    """The mechanism that fits the replay: batch, update, operation, recurrence, divergence or
    something unseen.
    """
    incident, points = replay.incident, replay.points
    here = points[-1]
    broken = incident.at_once
    trace, growth = replay.trace()
    recurrent = max(growth, key=lambda n: growth[n], default="")
    explodes = bool(recurrent) and growth[recurrent] > GROWTH
    holes = _rows_not_finite(replay.batch, size(replay.batch))
    if holes or _not_finite(replay.batch):
        return _batch(replay, incident.step, "holds numbers that are not finite")
    factors = [p.factor for p in points[:-1]]
    if incident.kind == "gradient" and factors and here.factor > JUMP * max(factors):
        return _given(replay, max(factors))
    told = here.step.loss if incident.kind == "loss" else _told(here.step)
    if replay.bad(told) and not replay.bad(here.measure):
        return _unseen(replay, told)
    weights = any(not bool(t.isfinite().all()) for t in replay.tensors if t.is_floating_point())
    if weights or replay.bad(here.others):
        found = _update(replay, weights)
        if found is not None:
            return found
        if broken and (op := _operation(replay, trace, recurrent if explodes else "")) is not None:
            return op
        return _divergence(replay)
    if explodes and not _out_of_range(replay, replay.batch):
        return _recurrence(replay, recurrent, growth[recurrent])
    if broken and not _out_of_range(replay, replay.batch):
        op = _operation(replay, trace, "")
        if op is not None:
            return op
    early = points[0]
    if replay.bad(early.own) or _out_of_range(replay, replay.batch) or len(points) == 1:
        return _batch(replay, incident.step, "")
    op = _operation(replay, trace, "") if broken else None
    return op if op is not None else _batch(replay, incident.step, "at these weights")


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


def _told(step: Step) -> float:
    """Gradient norm that was recorded at a step; NaN where none was."""
    if step.norms is None:
        return math.nan
    told = step.norms.tolist() if isinstance(step.norms, Tensor) else list(step.norms)
    return _length(told)


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


def _update(replay: Replay, weights: bool) -> Autopsy | None:
    """An update before the incident made other batches bad as well; None where no update was
    unusual.
    """
    points = replay.points
    first = next((i for i, p in enumerate(points) if replay.bad(p.others)), len(points) - 1)
    if first == 0:
        return None if len(points) > 1 or not weights else _divergence(replay)
    point = points[first - 1]
    before = [_largest(p.moved)[1] for p in points[: first - 1]]
    layer, moved = _largest(point.moved)
    number = point.step.number
    earlier = points[: first - 1]
    usual = max((v for v in before if math.isfinite(v)), default=math.nan)
    if math.isfinite(usual) and moved < JUMP * usual:
        return None
    if not math.isfinite(usual) and moved < 0.5:
        return None
    rates = [_rate(p.step) for p in earlier]
    rate = _rate(point.step)
    tail = f"the update of step {number} moved {layer} by {_times(moved)}"
    more = {"moved": moved, "usual": usual}
    norms = [_length(p.norms) for p in earlier]
    alone = _length(point.norms)
    odd = bool(norms) and not alone <= JUMP * max(norms)
    if rates and rate > RATE_JUMP * max(rates):
        return _answer(
            replay,
            "learning_rate",
            f"the learning rate went from {max(rates):.3g} to {rate:.3g} at step {number}; {tail}",
            number,
            layer,
            findings=(_ordinary_batch(replay),),
            numbers=more,
        )
    factors = [p.factor for p in earlier]
    if factors and point.factor > JUMP * max(factors) and not odd:
        said = (
            f"{tail}: the optimizer was given {point.factor / max(factors):.3g} times the gradient "
            "of its batch"
        )
        return _answer(replay, "update", said, number, layer, (_ordinary_batch(replay),), more)
    if not norms and replay.bad(point.measure):
        odd = True
    if odd or replay.bad(point.measure):
        return _batch(replay, number, "", because=tail)
    if not norms and math.isnan(usual):
        return None
    said = f"{tail}; the updates before moved it by at most {_times(usual)}"
    return _answer(replay, "update", said, number, layer, (_ordinary_batch(replay),), more)


def _divergence(replay: Replay) -> Autopsy:
    points = replay.points
    moves = [(p.step.number, *_largest(p.moved)) for p in points if p.moved]
    grown = [m for m in moves if math.isfinite(m[2])]
    last = grown[-1] if grown else (replay.incident.step, "", math.nan)
    begin = grown[0] if grown else last
    layer = last[1]
    rates = [_rate(p.step) for p in points]
    rate = rates[-1] if rates and rates[-1] > 0 else (rates[0] if rates else math.nan)
    said = (
        f"the updates grew from step to step: {layer} moved by {_times(begin[2])} at step "
        f"{begin[0]} and by {_times(last[2])} at step {last[0]}; the learning rate ({rate:.3g}) is "
        "too large"
    )
    return _answer(replay, "divergence", said, begin[0], layer)


def _batch(replay: Replay, number: int, how: str, because: str = "") -> Autopsy:
    """The batch of a step is to blame, or samples of it."""
    batch = replay.batch if number == replay.incident.step else replay._batch_at(number)
    if number != replay.incident.step:
        replay.load()
        _advance(replay, number)
    samples: tuple[int, ...] = ()
    try:
        samples = replay.samples(batch)
    except Exception:  # a batch that cannot be cut
        samples = ()
    key = replay.key_at(number)
    name = f"the batch of step {number}" + (f" (batch {key})" if key is not None else "")
    layer = _loudest(replay, number)
    findings = []
    out = _out_of_range(replay, batch)
    if how:
        findings.append(f"It {how}.")
    elif out:
        findings.append(f"Its numbers reach {out:.3g} times those of other batches.")
    if because:
        findings.append(because[0].upper() + because[1:] + ".")
    findings.append("Other batches are ordinary at the weights before it.")
    if samples:
        word = "sample" if len(samples) == 1 else "samples"
        shown = ", ".join(map(str, samples[:5]))
        said = f"{word} {shown} of {name} {'is' if len(samples) == 1 else 'are'} to blame"
        return _answer(
            replay, "sample", said, number, layer, tuple(findings), batch=key, samples=samples
        )
    said = f"{name} is to blame"
    return _answer(replay, "batch", said, number, layer, tuple(findings), batch=key)


def _advance(replay: Replay, number: int) -> None:
    """Make the updates before a step once more (the weights stand at the first state)."""
    state = replay.incident.state
    assert state is not None
    optimizer = twin(replay.optimizer, state.optimizer)
    for step in replay.incident.steps:
        if step.number >= number:
            return
        replay._point(step)
        for group, settings in zip(optimizer.param_groups, step.settings):
            group.update(settings)
        optimizer.step()
        for p in replay.tensors:
            p.grad = None


def _operation(replay: Replay, trace: Trace, recurrent: str) -> Autopsy | None:
    """The operation that gave the first number that is not finite."""
    number = replay.incident.step
    if recurrent:
        return _recurrence(replay, recurrent, math.inf)
    name, module, half = trace.origin, trace.origin_module, trace.origin_half
    way = "gave"
    if not name:
        name, module, half = trace.undefined, trace.undefined_module, trace.undefined_half
        way = "has a derivative that is"
    if not name:
        return None
    module = module or "the loss"
    place = f"{name.strip('_')} in {module}"
    findings = (_ordinary_batch(replay), "Every weight is finite.")
    if half:
        said = f"{place} left the range of float16 at step {number}"
        return _answer(replay, "overflow", said, number, module, findings)
    what = "a number that is not finite from finite ones" if way == "gave" else "not finite"
    said = f"{place} {way} {what} at step {number}"
    return _answer(replay, "operation", said, number, module, findings)


def _recurrence(replay: Replay, layer: str, growth: float) -> Autopsy:
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
    recovered = _recovered(replay)
    tail = ""
    if recovered is not None:
        word = "step" if recovered == 1 else "steps"
        tail = f"; the loss was back in its range {recovered} {word} later"
    ordinary = ""
    if mechanism in ("update", "learning_rate") and step < incident.step:
        ordinary = f"; the batch of step {incident.step} was ordinary"
    apart = replay.disagreement
    if apart == 0:
        agreed = "The replay gives the recorded losses bit for bit."
    elif apart < 1e-3:
        agreed = f"The replay gives the recorded losses to {apart:.1g}."
    else:
        agreed = (
            "The replay does not give the recorded losses "
            f"(up to {apart:.1%} apart): something in the loop was not seen."
        )
    if incident.broke > incident.step:
        tail += f"; from step {incident.broke} on numbers are not finite"
    sentence = f"{_shown(incident)} at step {incident.step}: {said}{ordinary}{tail}."
    return Autopsy(
        mechanism,
        sentence,
        step,
        incident.step,
        layer,
        batch,
        samples,
        recovered,
        tuple(f for f in (*findings, agreed) if f),
        agreed,
        numbers or {},
    )


def _unknown(incident: Incident, why: str) -> Autopsy:
    return Autopsy("unknown", f"Cannot tell: {why[0].lower()}{why[1:]}.", -1, incident.step)


def _shown(incident: Incident) -> str:
    what = "loss" if incident.kind == "loss" else "gradient"
    if incident.at_once:
        return f"The {what} was not finite"
    return f"The {what} left its range"


def _recovered(replay: Replay) -> int | None:
    after = replay.incident.after
    history = [s.loss for s in replay.incident.steps[:-1]]
    usual = replay.incident.history if replay.incident.kind == "loss" else history
    fine = [not leaves_range(usual, v) for v in after]
    if len(fine) < 5 or not all(fine[-3:]):
        return None
    last = max((i for i, ok in enumerate(fine) if not ok), default=-1)
    return last + 2


def _ordinary_batch(replay: Replay) -> str:
    key = replay.key_at(replay.incident.step)
    name = f" (batch {key})" if key is not None else ""
    if _out_of_range(replay, replay.batch):
        return ""
    return f"The numbers of its batch{name} are in the range of the others."


def _out_of_range(replay: Replay, batch: Any) -> float:
    """How many times the numbers of a batch exceed those of the others; 0 where they do not."""
    worst = 0.0
    others = [list(tensors_in(b)) for b in replay.others]
    for i, part in enumerate(tensors_in(batch)):
        if not part.is_floating_point() or not part.numel():
            continue
        usual = [_top(b[i]) for b in others if len(b) > i and b[i].is_floating_point()]
        if usual and max(usual) > 0:
            worst = max(worst, _top(part) / max(usual))
    return worst if worst > OUT_OF_RANGE else 0.0


def _loudest(replay: Replay, number: int) -> str:
    point = next((p for p in replay.points if p.step.number == number), None)
    if point is None or not point.norms:
        return ""
    order = [v if math.isfinite(v) else math.inf for v in point.norms]
    name = replay.named[max(range(len(order)), key=order.__getitem__)][0]
    return name.rpartition(".")[0] or name


def _largest(moved: dict[str, float]) -> tuple[str, float]:
    if not moved:
        return "", math.nan
    name = max(moved, key=lambda n: moved[n] if not math.isnan(moved[n]) else math.inf)
    return name, moved[name]


def _times(value: float) -> str:
    if not math.isfinite(value):
        return "more than any number"
    return f"{value:.3g} times its norm" if value >= 1 else f"{100 * value:.2g} % of its norm"


def _rate(step: Step) -> float:
    rates = [float(g["lr"]) for g in step.settings if "lr" in g]
    return max(rates, default=math.nan)


def _length(norms: list[float]) -> float:
    return math.sqrt(sum(v * v for v in norms))


def _norm(t: Tensor) -> float:
    t = t.detach()
    t = t.coalesce().values() if t.is_sparse else t
    return float(t.abs().double().norm())


def _top(t: Tensor) -> float:
    value = float(t.detach().abs().max()) if t.numel() else 0.0
    return value if math.isfinite(value) else math.inf


def _worst(value: float) -> float:
    return value if math.isfinite(value) else math.inf


def _not_finite(batch: Any) -> bool:
    return any(
        not bool(t.isfinite().all())
        for t in tensors_in(batch)
        if t.is_floating_point() or t.is_complex()
    )


def _rows_not_finite(batch: Any, count: int) -> list[int]:
    """Samples that hold a number that is not finite."""
    found: set[int] = set()
    for t in tensors_in(batch):
        if t.is_floating_point() and t.ndim and len(t) == count and count:
            bad = ~t.detach().isfinite().reshape(count, -1).all(1)
            found |= set(bad.nonzero().flatten().tolist())
    return sorted(found)


def _set_random(state: Tensor, tensors: list[Tensor]) -> None:
    if tensors and tensors[0].is_cuda:
        torch.cuda.default_generators[tensors[0].get_device()].set_state(state)
    else:
        torch.set_rng_state(state)


def _sequence(name: str, growth: dict[str, float]) -> Callable[..., None]:
    def look(module: nn.RNNBase, inputs: Any, out: Any) -> None:
        states = out[0] if isinstance(out, tuple) else out
        if not isinstance(states, Tensor) or states.ndim != 3:
            return
        time = 1 if module.batch_first else 0
        scales = states.detach().double().abs().amax(dim=(2, 1 - time)).tolist()
        growth[name] = max(growth.get(name, 0.0), _growth(scales))

    return look


def _growth(scales: list[float]) -> float:
    """By how much a sequence of sizes grows; 0 where it is short."""
    if len(scales) < 8:
        return 0.0
    early = sorted(v for v in scales[: max(2, len(scales) // 8)] if math.isfinite(v) and v > 0)
    if not early:
        return 0.0
    late = [v if math.isfinite(v) else math.inf for v in scales]
    return max(late) / early[len(early) // 2]
