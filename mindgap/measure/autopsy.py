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
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from html import escape
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from mindgap.base.batches import rows, size, tensors_in
from mindgap.base.check import error_words
from mindgap.base.restoring import undisturbed
from mindgap.measure.recorder import (
    Incident,
    LossCall,
    LossRange,
    Recorder,
    State,
    Step,
    make_twin,
)
from mindgap.measure.tracing import Trace, traced

#: Updates larger than the largest before by this factor are called a jump.
JUMP = 5.0
#: A learning rate that rose by this factor is called a jump.
RATE_JUMP = 3.0
#: A batch's numbers are out of range if they exceed those of the other batches by this factor.
OUT_OF_RANGE = 5.0
#: A recurrent state that grows by this factor within one sequence explodes.
GROWTH = 1e3
#: Share of a batch's excess loss that few samples must explain to be named.
FEW_EXPLAIN = 0.9
#: A sample is named if its excess loss is above this share of the largest one.
NAMED_EXCESS = 0.1
#: Ordinary batches that the weights are tried on.
ORDINARY_BATCHES = 3
#: Samples that are looked at one by one, at most.
MOST_SAMPLES = 512
#: An update moves a module unusually far above this share of its norm, where no other is known.
LARGE_UPDATE = 0.5
#: Relative distances below which replayed losses, and replayed gradient norms, count as the
#: recorded ones but for rounding.
SAME_LOSS, SAME_NORM = 1e-3, 1e-6
#: The least norm to divide by.
TINY = 1e-12

#: Key of a mechanism -> its name.
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
        sentence: the explanation in one sentence.
        layer: the module that moved, overflowed or gave the first number that is not finite.
        batch: what names the batch at fault; None where the batch was ordinary or has no name.
        samples: samples at fault within the batch.
        recovered: steps after which the loss was back in its range; None if it was not.
        findings: sentences on what led there.
        replay: a sentence on how well the replay agrees with what was recorded.
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

    def __str__(self) -> str:
        return "\n".join([self.sentence, *(f"- {line}" for line in self.findings)])

    def _repr_html_(self) -> str:
        """The sentence and the findings, as a notebook shows them."""
        items = "".join(f"<li>{escape(line)}</li>" for line in self.findings)
        return f"<p><b>{escape(self.sentence)}</b></p>" + (f"<ul>{items}</ul>" if items else "")


@dataclass
class _ReplayedStep:
    """What one step looks like computed again. Every *measure* is the loss, or the gradient norm
    where the incident is one of the gradient.
    """

    step: Step  # as it was recorded
    measure: float  # of the step's own batches
    ordinary_measure: float  # of the ordinary batches at the same weights, their median
    incident_measure: float  # of the incident's batch at the same weights
    norms: list[float]  # of the gradient of each parameter
    gradient_scale: float = 1.0  # recorded gradient norm over the one computed again
    #: module -> length of its update over the norm of its weights; filled when the update is made
    relative_updates: dict[str, float] = field(default_factory=dict)


class _ModuleUpdate(NamedTuple):
    """The relative update of one module."""

    module: str
    relative: float  # length of the update over the norm of the weights


class Replay:
    """Computes the steps of an incident again, on the user's own model, and puts everything back.

    Args:
        recorder: knows the user's model and optimizer; the optimizer's states are copied.
        loss: ``loss(model, batch)``, the user's own.
        incident: what is explained.
        state: to begin from.
        measuring_batches: to try the weights on, where the steps hold too few.
        recall: finds a batch again by what names it.

    Attributes:
        batch: the one of the incident; None where it is not known.
        ordinary_batches: batches that were not unusual in the run.
        replayed: the steps computed again, up to the incident.
        trained: the parameters that take gradients, by name.
        disagreement: largest relative distance of a replayed loss from the recorded one.
    """

    def __init__(
        self,
        recorder: Recorder,
        loss: Callable[[Any, Any], Tensor],
        incident: Incident,
        state: State,
        measuring_batches: list[Any],
        recall: Callable[[Any], Any] | None,
    ) -> None:
        self.model, self.optimizer = recorder.model, recorder.optimizer
        self.tensors = recorder.tensors  # parameters of the model and of the optimizer
        self.loss, self.recall, self.incident, self.state = loss, recall, incident, state
        self.trained = {name: p for name, p in self.model.named_parameters() if p.requires_grad}
        self.replayed: list[_ReplayedStep] = []
        self._steps_by_number = {step.number: step for step in incident.steps}
        self.batch = self.batch_at(incident.step)
        self.ordinary_batches = self._choose_ordinary(measuring_batches)
        self.disagreement = 0.0

    # Batches.

    def _calls_of(self, step: Step) -> list[tuple[LossCall, Any]]:
        """The calls of the loss in a step, each with its batch. Empty where the step cannot be
        computed again, because one of its batches is lost or was overwritten since.
        """
        calls = []
        for call in step.calls:
            batch = call.batch
            if batch is None and call.key is not None and self.recall is not None:
                batch = self.recall(call.key)
            if batch is None:
                return []
            # Other versions than at the call: a tensor of the batch was overwritten since. None
            # were noted for tensors of inference mode, because they have none.
            if call.versions and call.versions != tuple(t._version for t in tensors_in(batch)):
                return []
            calls.append((call, batch))
        return calls

    def batch_at(self, number: int) -> Any:
        """The batch of the step of this number; None where it is lost. Of several batches it is the
        one with the largest loss, where a loss that is not finite counts as infinite.
        """
        step = self._steps_by_number.get(number)
        calls = self._calls_of(step) if step is not None else []
        if not calls:
            return None
        _, batch = max(calls, key=lambda pair: _or_infinite(float(pair[0].loss)))
        return batch

    def key_at(self, number: int) -> Any:
        """What names the batch that ``batch_at`` gives; None where it has no name."""
        step = self._steps_by_number.get(number)
        if step is None or not step.calls:
            return None
        return max(step.calls, key=lambda call: _or_infinite(float(call.loss))).key

    def _choose_ordinary(self, measuring_batches: list[Any]) -> list[Any]:
        """At most ``ORDINARY_BATCHES`` batches that were not unusual: the first ones of steps
        before the incident, spread evenly over them, then measuring batches. Where the incident is
        one of the loss, only steps of usual losses count.
        """
        usual_range, of_loss = LossRange(self.incident.history), self.incident.kind == "loss"
        usual_batches = []
        for step in self.incident.steps[:-1]:
            if not (of_loss and usual_range.excess(step.loss)):
                usual_batches += [batch for _, batch in self._calls_of(step)[:1]]
        # Every ``spacing``-th of them.
        spacing = max(1, len(usual_batches) // ORDINARY_BATCHES)
        return [*usual_batches[::spacing][:ORDINARY_BATCHES], *measuring_batches][:ORDINARY_BATCHES]

    # Computing.

    @contextmanager
    def open(self) -> Iterator[None]:
        """A block that may move the model. At its end parameters (also those that only the
        optimizer has), buffers, gradients, modes and random numbers are put back.
        """
        with ExitStack() as stack:
            # A compiled model would compile again for other shapes; where this module was never
            # imported nothing is compiled.
            if "torch._dynamo" in sys.modules:
                stack.enter_context(torch.compiler.set_stance("force_eager"))
            stack.enter_context(undisturbed(self.model, parameters=True))
            before = [(tensor, tensor.detach().clone(), tensor.grad) for tensor in self.tensors]
            try:
                yield
            finally:
                with torch.no_grad():
                    for tensor, value, grad in before:
                        if not torch.equal(tensor.detach(), value):
                            tensor.copy_(value)
                        tensor.grad = grad

    def run(self) -> None:
        """Load the state and compute all steps again, up to the incident, into ``replayed``. The
        update of the incident's own step is not made, so that the model stands before it.
        """
        self._load_state()
        for step in self.incident.steps:
            self.replayed.append(self._replay(step))
            if step.number == self.incident.step:
                return
            self.make_update(self.replayed[-1])

    def rewind_to(self, number: int) -> None:
        """Put the weights to where they stood before the step of this number, by loading the state
        and making the updates of the steps before it again; ``replayed`` stays.
        """
        self._load_state()
        for step in self.incident.steps:
            if step.number >= number:
                return
            self.make_update(self._replay(step))

    def _load_state(self) -> None:
        """Load the state before the first step: weights, buffers and modes into the model, the
        random state into torch's generator, and the optimizer's own state into ``self.twin``, a
        second optimizer over the same weights.
        """
        state = self.state
        with torch.no_grad():
            for tensor, saved in zip(self.tensors, state.parameters, strict=True):
                tensor.copy_(saved)
            for buffer, saved in zip(self.model.buffers(), state.buffers, strict=True):
                buffer.copy_(saved)
        for module, training in zip(self.model.modules(), state.training_modes, strict=True):
            module.training = training
        _set_random(state.random_state, self.tensors)
        self.twin = make_twin(self.optimizer, state.optimizer)

    def _clear_gradients(self) -> None:
        """Take ``grad`` away from all parameters, so that ``backward`` begins at zero."""
        for tensor in self.tensors:
            tensor.grad = None

    def loss_of(self, batch: Any, call: LossCall | None = None) -> Tensor:
        """The user's loss of a batch with its graph, a scalar; of several entries the first.

        Args:
            call: whose autocast precision to use; by default the first recorded call's.
        """
        if call is None:
            call = next((call for step in self.incident.steps for call in step.calls), None)
        autocast = call.autocast if call is not None else None
        with torch.autocast(*autocast) if autocast is not None else nullcontext():
            return self.loss(self.model, batch).reshape(-1)[0]

    def measure(self, batch: Any) -> float:
        """Loss of a batch at the present weights, or its gradient norm where the incident is one of
        the gradient. The model and its gradients are left as they are.
        """
        needs_gradient = self.incident.kind == "gradient"
        with undisturbed(self.model):
            with torch.set_grad_enabled(needs_gradient):
                loss = self.loss_of(batch)
            if not needs_gradient:
                return float(loss)
            gradients = torch.autograd.grad(loss, list(self.trained.values()), allow_unused=True)
            return _joint_norm([_norm(gradient) for gradient in gradients if gradient is not None])

    def out_of_range(self, measure: float) -> bool:
        """Whether a loss (or a gradient norm, where the incident is one of the gradient) is not
        finite or exceeds what was usual before the incident: for a loss the range of
        ``LossRange``, for a norm ``JUMP`` times the largest.
        """
        if not math.isfinite(measure):
            return True
        if self.incident.kind == "gradient":
            usual = [norm for norm in self.incident.history if math.isfinite(norm)]
            return bool(usual) and measure > JUMP * max(usual)
        return LossRange(self.incident.history).excess(measure) > 0

    def make_update(self, replayed: _ReplayedStep) -> None:
        """Let the second optimizer step with the gradients in ``grad`` and the recorded settings,
        note in ``replayed`` how far modules moved, and clear the gradients.
        """
        for group, settings in zip(self.twin.param_groups, replayed.step.settings):
            group.update(settings)
        before = {name: p.detach().clone() for name, p in self.trained.items()}
        self.twin.step()
        replayed.relative_updates = self._relative_updates(before)
        self._clear_gradients()

    def _relative_updates(self, before: dict[str, Tensor]) -> dict[str, float]:
        """Module -> length of its update over the norm of its weights before the update.

        Args:
            before: name of a trained parameter -> its value before the update.
        """
        updates: dict[str, float] = {}
        weights: dict[str, float] = {}
        for name, p in self.trained.items():
            module = _module_of(name)
            update = _norm(p.detach() - before[name])
            updates[module] = math.hypot(updates.get(module, 0.0), update)
            weights[module] = math.hypot(weights.get(module, 0.0), _norm(before[name]))
        return {module: norm / max(weights[module], TINY) for module, norm in updates.items()}

    def _replay(self, step: Step) -> _ReplayedStep:
        """Compute loss and gradient of a step again at the present weights, and measure there the
        ordinary batches and the incident's, too. The gradient, scaled to the recorded norm, is left
        in ``grad`` for ``make_update``; ``disagreement`` grows where the losses differ.

        Raises:
            LookupError: a batch of the step is lost.
        """
        ordinary = sorted(map(self.measure, self.ordinary_batches), key=_or_infinite)
        of_incident = self.measure(self.batch) if self.batch is not None else math.nan
        calls = self._calls_of(step)
        if not calls:
            raise LookupError(f"the batch of step {step.number} is no longer there")
        self._clear_gradients()
        losses = []
        for call, batch in calls:
            if call.random_state is not None:  # the loss draws random numbers: the same ones again
                _set_random(call.random_state, self.tensors)
            loss = self.loss_of(batch, call)
            (loss / len(calls)).backward()  # gradients of the mean over the calls add up
            losses.append(float(loss.detach()))
        mean_loss = sum(losses) / len(losses)
        norms = [_norm(p.grad) if p.grad is not None else 0.0 for p in self.trained.values()]
        self._note_disagreement(step.loss, mean_loss)
        return _ReplayedStep(
            step,
            measure=mean_loss if self.incident.kind == "loss" else _joint_norm(norms),
            ordinary_measure=ordinary[len(ordinary) // 2] if ordinary else math.nan,
            incident_measure=of_incident,
            norms=norms,
            gradient_scale=self._scale_gradients(step, _joint_norm(norms)),
        )

    def _note_disagreement(self, recorded: float, replayed: float) -> None:
        """Raise ``disagreement`` to the relative distance of a replayed loss from the recorded one,
        where that is larger; to infinity where only one of the two is finite.
        """
        if math.isfinite(replayed) and math.isfinite(recorded):
            distance = abs(replayed - recorded) / max(abs(recorded), TINY)
            self.disagreement = max(self.disagreement, distance)
        elif math.isfinite(replayed) != math.isfinite(recorded):
            self.disagreement = math.inf

    def _scale_gradients(self, step: Step, replayed_norm: float) -> float:
        """Scale the gradients in ``grad`` to the norm that the optimizer was given in this step,
        because the loop may have clipped or scaled them.

        Returns:
            The recorded norm over the replayed one; 1 where one of them is unknown, zero or not
            finite.
        """
        recorded = _recorded_norm(step)
        if not all(math.isfinite(norm) and norm > 0 for norm in (recorded, replayed_norm)):
            return 1.0
        factor = recorded / replayed_norm
        if abs(factor - 1) > SAME_NORM:  # less is rounding
            for tensor in self.tensors:
                if tensor.grad is not None:
                    tensor.grad.mul_(factor)
        return factor

    def trace_passes(self) -> tuple[Trace, dict[str, float]]:
        """Trace forward and backward pass of the incident's batch at the present weights.

        Returns:
            What they showed, and module -> by what factor its state grew within one sequence, at
            most. Recurrent layers count, and modules called several times, as a cell is.
        """
        #: module -> for each sequence the largest entry of the state at every time step
        state_sizes: dict[str, list[list[float]]] = {}

        def keep_states(name: str, module: nn.RNNBase, inputs: Any, out: Any) -> None:
            """Hook after a recurrent layer: note the size of its state at every time step in
            ``state_sizes``.
            """
            states = out[0] if isinstance(out, tuple) else out
            if isinstance(states, Tensor) and states.ndim == 3:
                # The largest modulus over features (axis 2) and over the sequences of the batch,
                # which lie on the one of the first two axes that is not time.
                time_axis = 1 if module.batch_first else 0
                sizes = states.detach().double().abs().amax(dim=(2, 1 - time_axis)).tolist()
                state_sizes.setdefault(name, []).append(sizes)

        handles = [
            module.register_forward_hook(partial(keep_states, name))
            for name, module in self.model.named_modules()
            if isinstance(module, nn.RNNBase)
        ]
        try:
            with undisturbed(self.model), torch.enable_grad():
                with traced(self.model, backward=True) as trace:
                    loss = self.loss_of(self.batch)
                trace.watch_backward()
                if loss.requires_grad:
                    torch.autograd.grad(loss, list(self.trained.values()), allow_unused=True)
        finally:
            for handle in handles:
                handle.remove()
        # A cell is called once at each time step: its calls in order, by the root mean square of
        # the output, are a sequence of states, too.
        sizes_by_call: dict[str, list[float]] = {}
        for name, size_of_output in trace.scales:
            sizes_by_call.setdefault(name, []).append(size_of_output)
        for name, sizes in sizes_by_call.items():
            state_sizes.setdefault(name, []).append(sizes)
        return trace, {name: max(map(_growth, each)) for name, each in state_sizes.items()}

    def samples_at_fault(self, batch: Any) -> tuple[int, ...]:
        """Places of the few samples that explain a bad batch; empty where too many would have to be
        named. Few are at most an eighth of the samples, or a single one.

        Samples with numbers that are not finite are named in a batch of any size, also of one
        sample. Where there are none, the samples with the largest losses at the present weights are
        named, in batches of 2 to ``MOST_SAMPLES``, unless too many are out of range.
        """
        count = size(batch)
        most = max(1, count // 8)
        not_finite = _rows_not_finite(batch, count)
        if not_finite:
            return tuple(not_finite) if len(not_finite) <= most else ()
        if not 2 <= count <= MOST_SAMPLES:
            return ()
        if self.times_others(batch):  # else no sample is out of range
            out_of_range = sum(self.times_others(rows(batch, [i])) > 0 for i in range(count))
            if out_of_range > most:
                return ()
        with undisturbed(self.model), torch.no_grad():
            self.model.eval()  # without dropout, and with batch norm's running statistics
            losses = [float(self.loss_of(rows(batch, [i]))) for i in range(count)]
        return _samples_that_explain(losses, most)

    def times_others(self, batch: Any) -> float:
        """How many times larger the numbers of a batch are than those of the ordinary batches; 0
        where it is at most ``OUT_OF_RANGE`` times. Compared are the largest moduli of tensors in
        the same place; tensors of integers do not count.
        """
        largest_ratio = 0.0
        ordinary = [list(tensors_in(other)) for other in self.ordinary_batches]
        for i, tensor in enumerate(tensors_in(batch)):
            if tensor.is_floating_point():
                same_place = [tensors[i] for tensors in ordinary if len(tensors) > i]
                entries = [_largest_entry(t) for t in same_place if t.is_floating_point()]
                usual = max(entries, default=0.0)
                if usual > 0:
                    largest_ratio = max(largest_ratio, _largest_entry(tensor) / usual)
        return largest_ratio if largest_ratio > OUT_OF_RANGE else 0.0


# Judging.


def perform(
    recorder: Recorder,
    loss: Callable[[Any, Any], Tensor],
    measuring_batches: list[Any],
    recall: Callable[[Any], Any] | None,
) -> Autopsy:
    """The answer of ``Monitor.autopsy``: read the losses that wait, replay the recorder's worst
    incident and judge it. An error of the user's code becomes the answer "cannot tell".

    Args:
        recorder: of the run; ``flush`` closes its open incident.
        loss: ``loss(model, batch)``, the user's own.
        measuring_batches: to try the weights on, where the recorded steps hold too few.
        recall: finds a batch again by what names it; None where the loop gave no such function.
    """
    recorder.flush(final=True)
    incident = recorder.incident
    if incident is None:
        count = recorder.steps[-1].number + 1 if recorder.steps else 0  # they are numbered from 0
        healthy = f"in {count} steps no number was not finite and nothing left its range"
        return Autopsy("", f"Nothing to explain: {healthy}.")
    beginning = f"{_symptom(incident)} at step {incident.step}"
    if incident.state is None:
        reason = recorder.why_no_state or "no state from before that step is kept"
        return _cannot_tell(incident, f"{beginning}, and it cannot be replayed: {reason}")
    replay = Replay(recorder, loss, incident, incident.state, measuring_batches, recall)
    if replay.batch is None:
        return _cannot_tell(
            incident,
            f"{beginning}, and its batch is not known: call objective.value(batch) or "
            "monitor.observe(loss, batch) in the loop, or give recall",
        )
    try:
        with replay.open():
            replay.run()
            return _judge(replay)
    except Exception as error:  # of the user's code, or a batch that was dropped
        return _cannot_tell(incident, f"{beginning}, and the replay ended in {error_words(error)}")


def _judge(replay: Replay) -> Autopsy:
    """The autopsy of a replayed incident: the first mechanism that fits.

    In order: a batch with numbers that are not finite; a gradient that the loop scaled; a change
    that no recorded step shows; an update before, where other batches are bad as well at the
    present weights; a recurrent state; an operation; else the batch.
    """
    incident, last_replayed = replay.incident, replay.replayed[-1]
    trace, growth = replay.trace_passes()
    recurrent = max(growth, key=lambda name: growth[name], default="")
    explodes = bool(recurrent) and growth[recurrent] > GROWTH
    if _has_not_finite(replay.batch):
        return _blame_batch(replay, incident.step, "holds numbers that are not finite")
    earlier_scales = [replayed.gradient_scale for replayed in replay.replayed[:-1]]
    if (
        incident.kind == "gradient"
        and earlier_scales
        and last_replayed.gradient_scale > JUMP * max(earlier_scales)
    ):
        return _blame_scaled_gradient(replay, max(earlier_scales))
    # The replay must be as bad as the run was, else it is no replay of what happened.
    recorded = (
        last_replayed.step.loss if incident.kind == "loss" else _recorded_norm(last_replayed.step)
    )
    if replay.out_of_range(recorded) and not replay.out_of_range(last_replayed.measure):
        return _blame_unseen_change(replay, recorded)
    weights_broken = any(
        not bool(tensor.isfinite().all()) for tensor in replay.tensors if tensor.is_floating_point()
    )
    # Where other batches are bad at these weights, too, something before has broken the weights.
    if weights_broken or replay.out_of_range(last_replayed.ordinary_measure):
        answer = _blame_update(replay, weights_broken)
        if answer is None and incident.at_once:
            if explodes:
                return _blame_recurrence(replay, recurrent, math.inf)
            answer = _blame_operation(replay, trace)
        return answer or _blame_divergence(replay)
    numbers_ordinary = not replay.times_others(replay.batch)
    if explodes and numbers_ordinary:
        return _blame_recurrence(replay, recurrent, growth[recurrent])
    if incident.at_once and numbers_ordinary:
        answer = _blame_operation(replay, trace)
        if answer is not None:
            return answer
    # Was the batch bad at the weights of some steps before, as well?
    bad_from_the_start = replay.out_of_range(replay.replayed[0].incident_measure)
    if bad_from_the_start or not numbers_ordinary or len(replay.replayed) == 1:
        return _blame_batch(replay, incident.step, "")
    return _blame_batch(replay, incident.step, "is out of its range at these weights only")


def _blame_unseen_change(replay: Replay, recorded: float) -> Autopsy:
    """The answer where the replay is ordinary and the run was not: something changed the weights or
    the optimizer that no recorded step shows. With one step replayed the answer is "cannot tell".

    Args:
        recorded: the loss or gradient norm of the incident's step in the run.
    """
    number, last_replayed = replay.incident.step, replay.replayed[-1]
    quantity = "loss" if replay.incident.kind == "loss" else "gradient norm"
    if len(replay.replayed) < 2:
        return _cannot_tell(
            replay.incident, f"the replay of step {number} gives {last_replayed.measure:.3g}"
        )
    sentence = (
        "something besides the gradients changed the weights or the optimizer's state in the "
        f"update of step {number - 1}: computed again from the kept state the {quantity} of step "
        f"{number} is {last_replayed.measure:.3g}, not {recorded:.3g}"
    )
    return _answer(replay, "update", sentence, number - 1, "", (_range_sentence(replay),))


def _recorded_norm(step: Step) -> float:
    """Norm over all parameters of the gradient that was recorded at a step; NaN where none was."""
    return math.nan if step.norms is None else _joint_norm(step.norms.tolist())


def _blame_scaled_gradient(replay: Replay, usual_scale: float) -> Autopsy:
    """The answer where the optimizer was given another gradient than its batch has, because the
    loop scaled it. Makes the incident's update on the model, to say how far it moved a module.

    Args:
        usual_scale: largest recorded gradient norm over the replayed one, of the steps before.
    """
    last_replayed = replay.replayed[-1]
    replay.make_update(last_replayed)
    update = _farthest_update(last_replayed)
    sentence = (
        f"the optimizer was given {last_replayed.gradient_scale / usual_scale:.3g} times the "
        f"gradient of its batch, and the update moved {update.module} by "
        f"{_norm_share(update.relative)}"
    )
    findings = (_range_sentence(replay),)
    return _answer(replay, "update", sentence, last_replayed.step.number, update.module, findings)


def _blame_update(replay: Replay, weights_broken: bool) -> Autopsy | None:
    """The answer that blames the update after which other batches were bad as well, with the first
    cause that fits: a jump of the learning rate, a gradient that the loop scaled up, the step's
    batch, the update itself. None where that update was not unusual, or where none came before
    (then "divergence", if the only step has a weight that is not finite).

    Args:
        weights_broken: whether a weight is not finite.
    """
    replayed = replay.replayed
    # The first step at whose weights ordinary batches were bad, or else the incident's own; the
    # update before it is suspect.
    bad_places = (
        i for i, each in enumerate(replayed) if replay.out_of_range(each.ordinary_measure)
    )
    first_bad = next(bad_places, len(replayed) - 1)
    if first_bad == 0:  # no recorded update came before
        only_step = len(replayed) == 1
        return _blame_divergence(replay) if only_step and weights_broken else None
    suspect, earlier = replayed[first_bad - 1], replayed[: first_bad - 1]
    update = _farthest_update(suspect)
    earlier_updates = [_farthest_update(each).relative for each in earlier]
    largest_before = max(filter(math.isfinite, earlier_updates), default=math.nan)
    unusual_from = JUMP * largest_before if math.isfinite(largest_before) else LARGE_UPDATE
    if update.relative < unusual_from:  # an update of NaN is not below, so it counts as unusual
        return None
    number = suspect.step.number
    moved = f"the update of step {number} moved {update.module} by {_norm_share(update.relative)}"

    def answer(mechanism: str, sentence: str) -> Autopsy:
        """The autopsy that blames the suspect update, of step ``number``, by this sentence."""
        findings = (_range_sentence(replay),)
        return _answer(replay, mechanism, sentence, number, update.module, findings)

    rate = _largest_rate(suspect.step)
    earlier_rates = [_largest_rate(each.step) for each in earlier]
    if earlier_rates and rate > RATE_JUMP * max(earlier_rates):
        jump = f"the learning rate went from {max(earlier_rates):.3g} to {rate:.3g}"
        return answer("learning_rate", f"{jump} at step {number}; {moved}")
    norms = [_joint_norm(each.norms) for each in earlier]
    # Written with "not", so that a norm of NaN counts as large.
    has_large_gradient = bool(norms) and not _joint_norm(suspect.norms) <= JUMP * max(norms)
    scales = [each.gradient_scale for each in earlier]
    if scales and suspect.gradient_scale > JUMP * max(scales) and not has_large_gradient:
        times = f"{suspect.gradient_scale / max(scales):.3g} times"
        return answer(
            "update", f"{moved}: the optimizer was given {times} the gradient of its batch"
        )
    if has_large_gradient or replay.out_of_range(suspect.measure):
        return _blame_batch(replay, number, "", consequence=moved)
    if not norms and math.isnan(largest_before):  # no step before to compare the update with
        return None
    at_most = f"the updates before moved it by at most {_norm_share(largest_before)}"
    return answer("update", f"{moved}; {at_most}")


def _blame_divergence(replay: Replay) -> Autopsy:
    """The answer that the updates grew from step to step, because the learning rate is too large.
    The sentence compares the first and the last update that are finite, of the module that moved
    farthest in the last.
    """
    finite = [each for each in replay.replayed if math.isfinite(_farthest_update(each).relative)]
    module = _farthest_update(finite[-1]).module if finite else ""
    updates = [each.relative_updates[module] for each in finite] or [math.nan]
    steps = [each.step.number for each in finite] or [replay.incident.step]
    rates = [_largest_rate(each.step) for each in replay.replayed]
    rate = rates[-1] if rates[-1] > 0 else rates[0]  # it may not be known, or have fallen to zero
    sentence = (
        f"the updates grew from step to step: {module} moved by {_norm_share(updates[0])} at step "
        f"{steps[0]} and by {_norm_share(updates[-1])} at step {steps[-1]}; the learning rate "
        f"({rate:.3g}) is too large"
    )
    return _answer(replay, "divergence", sentence, steps[0], module)


def _blame_batch(replay: Replay, number: int, fault: str, consequence: str = "") -> Autopsy:
    """The answer that blames the batch of a step, or a few samples of it. The weights of the model
    are put to where they stood before that step.

    Args:
        number: of the step.
        fault: what is wrong with the batch, a sentence that begins behind "It"; empty where that is
            not known.
        consequence: what its update did, where that showed the fault; else empty.
    """
    batch = replay.batch
    if number != replay.incident.step:  # the model stands before the incident's step
        batch = replay.batch_at(number)
        replay.rewind_to(number)
    samples: tuple[int, ...] = ()
    with suppress(Exception):  # a batch that cannot be cut
        samples = replay.samples_at_fault(batch)
    key = replay.key_at(number)
    blamed, verb = f"the batch of step {number}{_name_in_brackets(key)}", "is"
    if samples:
        word, verb = ("sample", "is") if len(samples) == 1 else ("samples", "are")
        blamed = f"{word} {', '.join(map(str, samples[:5]))} of {blamed}"
    findings = []
    times_others = replay.times_others(batch)
    if fault:
        findings.append(f"It {fault}.")
    elif times_others:
        findings.append(f"Its numbers reach {times_others:.3g} times those of other batches.")
    if consequence:
        findings.append(consequence[0].upper() + consequence[1:] + ".")
    findings.append("Other batches are ordinary at the weights before it.")
    return _answer(
        replay,
        "sample" if samples else "batch",
        f"{blamed} {verb} to blame",
        number,
        _module_of_largest_gradient(replay, number),
        tuple(findings),
        batch=key,
        samples=samples,
    )


def _blame_operation(replay: Replay, trace: Trace) -> Autopsy | None:
    """The answer that blames the operation that gave the first number that is not finite, or else
    the one whose derivative is not finite; None where the trace knows neither. An operation in
    float16 is called an overflow.

    Args:
        trace: of the incident's batch.
    """
    number = replay.incident.step
    if trace.origin:
        name, module, in_float16 = trace.origin, trace.origin_module, trace.origin_half
        deed = "gave a number that is not finite from finite ones"
    else:
        name, module, in_float16 = trace.undefined, trace.undefined_module, trace.undefined_half
        deed = "has a derivative that is not finite"
    if not name:
        return None
    module = module or "the loss"
    mechanism = "operation"
    if in_float16:
        mechanism, deed = "overflow", "left the range of float16"
    sentence = f"{name.strip('_')} in {module} {deed} at step {number}"
    findings = (_range_sentence(replay), "Every weight is finite.")
    return _answer(replay, mechanism, sentence, number, module, findings)


def _blame_recurrence(replay: Replay, module: str, growth: float) -> Autopsy:
    """The answer that the state of a recurrent module grew within one sequence.

    Args:
        module: its name.
        growth: the factor; infinite where the state left the range of numbers.
    """
    number = replay.incident.step
    times = f"{growth:.3g} times" if math.isfinite(growth) else "beyond every number"
    sentence = f"the recurrent state of {module} grew {times} within one sequence at step {number}"
    return _answer(replay, "recurrence", sentence, number, module, (_range_sentence(replay),))


def _answer(
    replay: Replay,
    mechanism: str,
    explanation: str,
    step: int,
    layer: str,
    findings: tuple[str, ...] = (),
    batch: Any = None,
    samples: tuple[int, ...] = (),
) -> Autopsy:
    """The autopsy with its sentence: what was seen, the explanation, what came later. To the
    findings it adds how well the replay agrees; empty ones are left out.

    Args:
        mechanism: a key of ``MECHANISMS``.
        explanation: the middle of the sentence, without a full stop.
        step, layer, batch, samples: as in ``Autopsy``.
    """
    incident = replay.incident
    recovered = _steps_to_recovery(incident)
    sentence = f"{_symptom(incident)} at step {incident.step}: {explanation}"
    # Whoever reads of the step at which it showed would suspect the batch of that step.
    if mechanism in ("update", "learning_rate") and step < incident.step:
        sentence += f"; the batch of step {incident.step} was ordinary"
    if recovered is not None:
        unit = "step" if recovered == 1 else "steps"
        sentence += f"; the loss was back in its range {recovered} {unit} later"
    if incident.first_not_finite > incident.step:
        sentence += f"; from step {incident.first_not_finite} on numbers are not finite"
    agreement = _agreement_in_words(replay.disagreement)
    return Autopsy(
        mechanism=mechanism,
        sentence=f"{sentence}.",
        step=step,
        seen=incident.step,
        layer=layer,
        batch=batch,
        samples=samples,
        recovered=recovered,
        findings=tuple(finding for finding in (*findings, agreement) if finding),
        replay=agreement,
    )


def _agreement_in_words(distance: float) -> str:
    """How well the replay agrees with what was recorded, in words.

    Args:
        distance: the largest relative distance of a loss; infinite where only one is finite.
    """
    if distance == 0:
        return "The replay gives the recorded losses bit for bit."
    if distance < SAME_LOSS:
        return f"The replay gives the recorded losses to {distance:.1g}."
    return (
        "The replay does not give the recorded losses "
        f"(up to {distance:.1%} apart): something in the loop was not seen."
    )


def _cannot_tell(incident: Incident, reason: str) -> Autopsy:
    """The autopsy that names no mechanism, and why."""
    sentence = f"Cannot tell: {reason[0].lower()}{reason[1:]}."
    return Autopsy("unknown", sentence, seen=incident.step)


def _symptom(incident: Incident) -> str:
    """What was seen of the incident, for the beginning of a sentence."""
    return f"The {incident.kind} {'was not finite' if incident.at_once else 'left its range'}"


def _steps_to_recovery(incident: Incident) -> int | None:
    """Steps after the incident until the loss was back in its range. None where it was not, because
    fewer than five losses are known or one of the last three was unusual.
    """
    usual = incident.history
    if incident.kind != "loss":  # the history is one of gradient norms
        usual = [step.loss for step in incident.steps[:-1]]
    usual_range = LossRange(usual)
    ordinary = [not usual_range.excess(loss) for loss in incident.losses_after]
    if len(ordinary) < 5 or not all(ordinary[-3:]):
        return None
    last_bad = max((i for i, is_ordinary in enumerate(ordinary) if not is_ordinary), default=-1)
    return last_bad + 2  # place i is i + 1 steps after the incident, and the next one was ordinary


def _range_sentence(replay: Replay) -> str:
    """A sentence that the incident's batch has numbers in range; empty where they are not."""
    if replay.times_others(replay.batch):
        return ""
    name = _name_in_brackets(replay.key_at(replay.incident.step))
    return f"The numbers of its batch{name} are in the range of the others."


def _name_in_brackets(key: Any) -> str:
    """The name of a batch in brackets, such as " (batch 7)"; empty where the key is None."""
    return "" if key is None else f" (batch {key})"


def _module_of_largest_gradient(replay: Replay, number: int) -> str:
    """Name of the module with the largest gradient of a parameter at the step of this number; empty
    where the step was not replayed.
    """
    replayed = next((each for each in replay.replayed if each.step.number == number), None)
    if replayed is None or not replayed.norms:
        return ""
    norms = dict(zip(replay.trained, map(_or_infinite, replayed.norms), strict=True))
    return _module_of(max(norms, key=lambda name: norms[name]))


def _module_of(parameter: str) -> str:
    """The name of a parameter's module; a parameter of the model itself keeps its own name."""
    return parameter.rpartition(".")[0] or parameter


def _farthest_update(replayed: _ReplayedStep) -> _ModuleUpdate:
    """The largest relative update of a step, where one that is not finite counts as the largest; a
    relative update of NaN and an empty module where no update was made.
    """
    updates = [_ModuleUpdate(*each) for each in replayed.relative_updates.items()]
    return max(updates, key=lambda u: _or_infinite(u.relative), default=_ModuleUpdate("", math.nan))


def _norm_share(relative: float) -> str:
    """The length of an update over the norm of the weights, in words."""
    if relative < 1:
        return f"{100 * relative:.2g} % of its norm"
    return f"{relative:.3g} times its norm" if math.isfinite(relative) else "more than any number"


def _largest_rate(step: Step) -> float:
    """The largest learning rate of a step; NaN where none is known."""
    return max((float(group["lr"]) for group in step.settings if "lr" in group), default=math.nan)


def _joint_norm(norms: list[float]) -> float:
    """The Euclidean norm of a vector from those of its parts."""
    return math.sqrt(sum(norm * norm for norm in norms))


def _norm(tensor: Tensor) -> float:
    """The Euclidean norm in float64; a sparse tensor counts with its values."""
    tensor = tensor.detach()
    tensor = tensor.coalesce().values() if tensor.is_sparse else tensor
    return float(tensor.abs().double().norm())


def _largest_entry(tensor: Tensor) -> float:
    """The largest modulus; infinity where one is not finite, 0 of an empty tensor."""
    return _or_infinite(float(tensor.detach().abs().max()) if tensor.numel() else 0.0)


def _or_infinite(value: float) -> float:
    """The value; infinity where it is not finite, so that NaN sorts last."""
    return value if math.isfinite(value) else math.inf


def _has_not_finite(batch: Any) -> bool:
    """Whether a batch holds a number that is NaN or infinite."""
    inexact = (t for t in tensors_in(batch) if t.is_floating_point() or t.is_complex())
    return any(not bool(tensor.isfinite().all()) for tensor in inexact)


def _rows_not_finite(batch: Any, count: int) -> list[int]:
    """Places of the samples that hold a number that is not finite, growing. Tensors whose first
    axis is not one of ``count`` samples are left out.
    """
    broken = torch.zeros(count, dtype=torch.bool)
    for tensor in tensors_in(batch):
        if tensor.is_floating_point() and tensor.ndim and len(tensor) == count and count:
            broken |= ~tensor.detach().isfinite().reshape(count, -1).all(1).cpu()
    return broken.nonzero().flatten().tolist()


def _samples_that_explain(losses: list[float], most: int) -> tuple[int, ...]:
    """Places of the samples that explain a large loss: those whose losses are not finite; else
    those with the largest losses, if ``most`` of them make up ``FEW_EXPLAIN`` of all that exceeds
    the median. Empty where more than ``most`` are needed.

    Args:
        losses: one per sample.
    """
    not_finite = [i for i, loss in enumerate(losses) if not math.isfinite(loss)]
    if not_finite:
        return tuple(not_finite) if len(not_finite) <= most else ()
    median = sorted(losses)[len(losses) // 2]
    excess = [max(0.0, loss - median) for loss in losses]
    largest = sorted(range(len(losses)), key=lambda i: -excess[i])[:most]
    if sum(excess[i] for i in largest) < FEW_EXPLAIN * sum(excess):
        return ()
    return tuple(sorted(i for i in largest if excess[i] > NAMED_EXCESS * excess[largest[0]]))


def _set_random(state: Tensor, tensors: list[Tensor]) -> None:
    """Set the state of torch's generator for the device that holds the first of ``tensors``."""
    if tensors and tensors[0].is_cuda:
        torch.cuda.default_generators[tensors[0].get_device()].set_state(state)
    else:
        torch.set_rng_state(state)


def _growth(sizes: list[float]) -> float:
    """Largest size of a recurrent state over the median of its first sizes, an eighth of them. 0
    where the sequence has fewer than eight time steps, or no finite size above 0 at its begin.

    Args:
        sizes: one per time step.
    """
    if len(sizes) < 8:
        return 0.0
    first_eighth = sizes[: max(2, len(sizes) // 8)]
    usable = sorted(size for size in first_eighth if math.isfinite(size) and size > 0)
    if not usable:
        return 0.0
    return max(map(_or_infinite, sizes)) / usable[len(usable) // 2]
