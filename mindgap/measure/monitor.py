"""Probes on a schedule in somebody's training loop. The monitored run stays identical, bit for
bit.
"""

from __future__ import annotations

import logging
import math
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

import torch
from torch import Tensor, is_autocast_enabled

from mindgap.base.check import between, fail, one_of, positive, whole
from mindgap.base.objective import Objective
from mindgap.base.restoring import first_batches, undisturbed
from mindgap.base.tensors import robust_norm
from mindgap.measure.gradients import NonFiniteError, reason
from mindgap.measure.probe import Probe, Reading
from mindgap.measure.recorder import LOOK, SPACING, Recorder, settings_of, versions_of
from mindgap.measure.sinks import CallSink, as_sinks
from mindgap.measure.table import DEFAULT_PROBES, PROBES, ProbeName
from mindgap.measure.watch import LoopWatch
from mindgap.record.schema import Row

if TYPE_CHECKING:
    from mindgap.measure.autopsy import Autopsy
    from mindgap.measure.history import History

LOG = logging.getLogger("mindgap.monitor")
#: Share of the training time that the monitor may take by default.
BUDGET = 0.03
#: Parts of the budget for gradient norms, for states and for rows; probes get the rest.
NORMS, STATES, ROWS = 0.25, 0.15, 0.1
#: The share of a budget that the monitor fills by its own clock. The rest is for what it costs the
#: loop besides: data and code must come back to the caches (0.6 to 1 times its own time was seen).
PLANNED = 0.5
#: Part of the budget that is left for readings where what every step costs takes the rest of it.
LEAST = 0.2
#: Rows, states and probes are considered every ten steps, or every ``SHORT`` seconds in a loop of
#: shorter steps, but at least every ``ROUNDS`` times ten steps.
SHORT, ROUNDS = 0.05, 5
#: Under a budget there is a row every ten steps, and a group of probes reads at most there.
LEAST_SPACING = 10


@dataclass
class _Group:
    """Probes with the same needs: they run together, and their cost is known together."""

    needs: frozenset[str]
    probes: list[Probe]
    spent: float = 0.0  # seconds so far
    cost: float = -1.0  # seconds of the last reading; -1 before the first
    readings: int = 0

    def due(self) -> list[Probe]:
        """The probes to read next."""
        return [p for p in self.probes if self.readings % p.every == 0]

    @property
    def names(self) -> str:
        return ", ".join(p.name for p in self.probes)


class Monitor:
    """Watches a training loop through its optimizer's hooks.

    The loop's own gradient norm (and its loss, where the loop calls ``objective.value``,
    ``objective.loss`` or ``observe``) is read at every step. A spike or a number that is not finite
    becomes a sentence with the step, the parameter, the running range and a likely cause (and the
    batch, where ``observe`` is told its index), in ``events``, in the log ``mindgap.monitor``, and
    on the page.

    Probes run on a schedule: before a step, with the model at x_k, those of noise and curvature;
    those that need the update run after it, with the model put back to x_k meanwhile. They use the
    measuring batches given here, so that what they read is raw, whatever the loop clips, scales or
    accumulates. Probes that need the same gradients share them. Parameters, buffers, gradients,
    module modes, optimizer state and every random state are left as found. A probe that raises an
    error (out of memory, a loss without a second derivative) is not read again; one sentence in
    ``events`` says so, and the training goes on.

    The last steps and two states are kept in bounded memory. After a NaN or a spike ``autopsy()``
    computes them again and names step, layer, batch and mechanism.

    Args:
        optimizer: the loop's optimizer; its step hooks are used.
        objective: model and loss, or the pair of them; the model is the one the optimizer trains.
        batches: at least two batches to measure on; the first ``limit`` are drawn once and held.
        probes: names out of ``PROBES``, or probes.
        every: read every N steps. If only ``every`` is given, no time budget applies.
        budget: share of the training time that the monitor may take, states and gradient norms
            included; 0.03 where neither is given. Probes with different needs get equal parts. A
            row with the cheap readings comes every ten steps, or less often in a loop whose steps
            take less than about a millisecond. What did not fit into the budget is said at the
            end, in ``skipped``.
        to: where readings go: a folder (a record that ``mindgap report`` draws), a
            ``SummaryWriter``, a function of a row, or a list of these. They are kept in
            ``readings`` in any case.
        limit: batches held.
        name: names the run in a record.
        seed: names the random numbers of measuring.
        nonfinite: ``"note"`` writes a sentence about a gradient that is not finite, ``"raise"``
            stops before the step with an error that names the parameter (on a GPU it waits for the
            device at every step).
        memory: bytes that the kept states and batches may take together; a tenth of the memory of
            the machine (or of the GPU) by default. 0 keeps none, and ``autopsy`` cannot replay.
        recall: finds a batch again by what ``observe`` was told of it, such as its index, so that
            ``autopsy`` needs no batches in memory.

    Attributes:
        readings: the rows so far: ``step``, ``seconds`` of training, ``lr``, ``loop_loss``,
            ``loop_gradient_norm``, and ``probe_quantity`` -> number. A reading that met a NaN has
            ``problem`` with the sentence instead of the quantities; a step with something unusual
            has ``event``.
        events: the sentences so far.
        skipped: probes that did not fit into the budget, or that raised an error -> why.
        spent, training: seconds of measuring and of training.

    Example:
        >>> model = torch.nn.Linear(2, 1)
        >>> data = torch.randn(8, 2)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> problem = Objective(model, lambda m, b: m(b).square().mean())
        >>> with Monitor(
        ...     optimizer, problem, [data[:4], data[4:]], probes=["noise", "update"], every=2
        ... ) as monitor:
        ...     for _ in range(4):
        ...         optimizer.zero_grad()
        ...         problem.value(data).backward()
        ...         optimizer.step()
        >>> [row["step"] for row in monitor.readings], "noise_level" in monitor.readings[0]
        ([0, 2], True)
    """

    def __init__(
        self,
        optimizer: Any,
        objective: Objective | tuple[torch.nn.Module, Callable[[Any, Any], Tensor]],
        batches: Iterable[Any],
        probes: Sequence[ProbeName | Probe] = DEFAULT_PROBES,
        *,
        every: int | None = None,
        budget: float | None = None,
        to: Any = None,
        limit: int = 16,
        name: str = "run",
        seed: int = 0,
        nonfinite: Literal["note", "raise"] = "note",
        memory: float | None = None,
        recall: Callable[[Any], Any] | None = None,
    ) -> None:
        self._optimizer = unwrapped(optimizer)
        objective = _checked_objective(objective, self._optimizer)
        if every is not None:
            whole("every", every, least=1)
        if budget is None and every is None:
            budget = BUDGET
        self._budget = None if budget is None else between("budget", budget, 0, 1, ends="(]")
        self._every = every
        self._objective, self._seed = objective, seed
        self._groups = _group_probes(probes)
        self._batches = first_batches(
            objective.model, batches, whole("limit", limit, least=1, most=2**31)
        )
        if len(self._batches) < 2 and any(
            "gradients" in g.needs and "update" not in g.needs for g in self._groups
        ):
            fail("batches", "must give at least two batches to measure noise", len(self._batches))
        settings = {
            "every": every or 0,
            "budget": self._budget or 0.0,
            "batches": len(self._batches),
        }
        self._sinks = [] if to is None else as_sinks(to, name, settings, seed)
        self.readings: list[Row] = []
        self._moves: dict[int, float] = {}  # step of a row -> its update over the parameters
        self.step = 0
        self._paid = 0.0  # seconds of measuring beside what every step costs
        self._per_step = 0.0  # seconds that every step costs: the middle of the samples
        self._samples: deque[float] = deque(maxlen=9)
        self._timing, self._sample = False, 0.0
        self._quick = False  # whether a call of the loss is noted in the quickest way
        self._row: Row = {}
        self._waiting: list[_Group] = []
        self._before: list[Tensor] = []
        self._begin = time.perf_counter()
        self._cuda = any(p.is_cuda for p in objective.parameters)
        self._watch = LoopWatch(objective.model, one_of("nonfinite", nonfinite, ("note", "raise")))
        self.events: list[str] = []
        self._stopped: dict[str, str] = {}
        if memory is not None and (not isinstance(memory, (int, float)) or memory != 0):
            positive("memory", memory)
        if recall is not None and not callable(recall):
            fail("recall", "must be a function that finds a batch by its name", recall)
        self._recorder = Recorder(objective.model, self._optimizer, memory)
        if memory == 0:
            self._recorder.why_not = "memory=0 keeps no state"
        self._recall = recall
        self._period = 1  # steps between two readings of the gradient norms
        self._round = SPACING  # steps after which rows, states and probes are considered
        self._pace = math.inf  # seconds per step, of the quickest round lately
        self._lap = time.perf_counter(), 0
        self._wake = 0  # the next step at which something may be due
        self._settings = settings_of(self._optimizer.param_groups)
        self._kind = self._recorder.kind
        self._norms_read = 0
        self._norms_spent = self._state_spent = self._state_cost = 0.0
        self._row_spent = self._row_cost = 0.0
        self._measuring = False
        self._own_loss, objective.loss = objective.loss, self._note_loss
        self._hooks = [
            self._optimizer.register_step_pre_hook(self._before_step),
            self._optimizer.register_step_post_hook(self._after_step),
        ]

    def _note_loss(self, model: Any, batch: Any) -> Tensor:
        """The objective's loss; the loop's own calls are noted."""
        if not self._quick or is_autocast_enabled(self._kind):
            return self._note_slowly(model, batch)
        value = self._own_loss(model, batch)
        if type(value) is Tensor:
            self._recorder.log.append((value.detach(), batch, versions_of(batch), None, None))
        else:
            self._recorder.see(value, batch)
        return value

    def _note_slowly(self, model: Any, batch: Any) -> Any:
        """The same for every kind of call, with a look at the clock."""
        if self._measuring:
            return self._own_loss(model, batch)
        recorder = self._recorder
        quick = recorder.quick and not recorder.inside
        begin, random, cast = time.perf_counter(), None, None
        if quick:
            random, cast = recorder.random() if recorder.draws else None, recorder.cast()
        else:
            recorder.begin()
        taken = time.perf_counter() - begin
        value = self._own_loss(model, batch)
        begin = time.perf_counter()
        if quick and type(value) is Tensor:
            recorder.log.append((value.detach(), batch, versions_of(batch), random, cast))
        else:
            recorder.see(value, batch)
        taken += time.perf_counter() - begin
        if self._timing:
            self._sample += taken
        else:
            self._paid += taken
        return value

    @property
    def measuring(self) -> bool:
        """Whether the present call of the model is the monitor's own."""
        return self._measuring

    def observe(self, loss: Any, batch: Any = None, name: Any = None) -> None:
        """Tell the loss of the present batch, and the batch or its index, where the loop does not
        call ``objective.value``.

        Args:
            loss: a number or a tensor.
            batch: the batch, which ``autopsy`` then uses, or its index.
            name: the batch's index, where ``batch`` is the batch itself.
        """
        if batch is None or isinstance(batch, (int, str)):
            batch, name = None, batch if name is None else name
        begin = time.perf_counter()
        self._recorder.see(loss, batch, name)
        self._paid += time.perf_counter() - begin

    def autopsy(self) -> Autopsy:
        """Why the run broke: step, layer, batch and mechanism.

        The last steps before the first number that was not finite, or before the largest spike, are
        computed again from the last state that was kept, on the model itself; everything is put
        back as it was. Call it between two steps of the loop, or after the loop, also after
        ``close``. It takes about as long as four times the steps it replays.

        Returns:
            An answer with ``sentence``, ``mechanism``, ``step``, ``layer``, ``batch``, ``samples``.

        Example:
            >>> model = torch.nn.Linear(2, 1)
            >>> problem = Objective(model, lambda m, b: (m(b) - 1).square().mean())
            >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            >>> data = torch.ones(4, 2)
            >>> with Monitor(optimizer, problem, [data, data], ["update"], every=9) as monitor:
            ...     for step in range(30):
            ...         optimizer.zero_grad()
            ...         problem.value(data * float("nan") if step == 25 else data).backward()
            ...         optimizer.step()
            >>> monitor.autopsy().mechanism, monitor.autopsy().step
            ('batch', 25)
        """
        from mindgap.measure.autopsy import perform

        held, self._measuring = self._measuring, True
        self._quick = False
        try:
            self._note(self._watch.flush())
            self._heed()
            return perform(
                self._recorder,
                self._objective.model,
                self._own_loss,
                self._optimizer,
                self._batches,
                self._recall,
            )
        finally:
            self._measuring = held

    def history(self) -> History:
        """What was recorded up to now: losses, gradient norms, rates, relative updates, the last
        steps and the kept states. ``mindgap.advise.diagnose_run`` draws conclusions from it.

        Example:
            >>> model = torch.nn.Linear(2, 1)
            >>> problem = Objective(model, lambda m, b: m(b).square().mean())
            >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            >>> data = torch.ones(4, 2)
            >>> with Monitor(optimizer, problem, [data, data], ["update"], every=2) as monitor:
            ...     for _ in range(4):
            ...         optimizer.zero_grad()
            ...         problem.value(data).backward()
            ...         optimizer.step()
            >>> sorted(monitor.history().losses), sorted(monitor.history().moves)
            ([0, 1, 2, 3], [0, 2])
        """
        from mindgap.measure.history import history_of

        self._note(self._watch.flush())
        self._heed()
        self._recorder.flush()
        return history_of(
            self._recorder,
            self._own_loss,
            self._batches,
            self.readings,
            steps=self.step,
            moves=dict(self._moves),
        )

    @property
    def skipped(self) -> dict[str, str]:
        """Probes without a reading so far, and those that raised an error -> why."""
        if self._budget is None or not self.step:
            return dict(self._stopped)
        said = (
            "a reading takes about {:.2g} s, and the budget allowed {:.2g} s in {} steps; raise "
            "budget or give every"
        )
        allowed = self._allowed() / max(1, len(self._groups))
        return dict(self._stopped) | {
            group.names: said.format(self._expected_cost(group), allowed, self.step)
            for group in self._groups
            if not group.readings and group.probes
        }

    @property
    def spent(self) -> float:
        """Seconds of measuring."""
        return self._paid + self._per_step * self.step

    @property
    def training(self) -> float:
        """Seconds since the start that were not spent on measuring."""
        return time.perf_counter() - self._begin - self.spent

    def close(self, problem: str = "") -> None:
        """Detach from the optimizer and finish the records."""
        if self._hooks:
            self._note(self._watch.flush())
            for names, why in self.skipped.items():
                if names not in self._stopped:
                    LOG.warning("%s: not read: %s", names, why)
            self._objective.loss = self._own_loss
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        for sink in self._sinks:
            sink.close(problem)
        self._sinks = []

    def __enter__(self) -> Monitor:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        self.close("" if error is None else f"{type(error).__name__}: {error}")

    def _before_step(self, optimizer: Any, *_: Any) -> None:
        """Before an optimizer's step: read norms when they are due, note events, and begin a row
        when one is due.
        """
        step, recorder = self.step, self._recorder
        begin = time.perf_counter() if self._timing or step >= self._wake else 0.0
        groups, settings = self._optimizer.param_groups, self._settings
        one = groups[0]
        if (
            len(groups) > 1
            or one.get("lr") is not settings[0].get("lr")
            or one.get("weight_decay") is not settings[0].get("weight_decay")
        ):
            self._settings = settings = settings_of(groups, settings)
        self._quick = False
        recorder.inside = True
        if step < self._wake:  # nothing is due: this is what most steps cost
            recorder.log.append((step, settings, None))
            if self._timing:
                self._take_sample(time.perf_counter() - begin)
            return
        events: list[str] = []
        norms = None
        if step % self._period == 0:
            if (told := recorder.told) is not None:
                self._watch.observe(*told)
            events = self._watch.before_step(step)
            norms = self._watch.norms
            self._norms_spent += time.perf_counter() - begin
            self._norms_read += 1
        recorder.log.append((step, settings, norms))
        if step % self._round == 0:
            events += self._watch.flush(spare=1 if self._cuda else 0)
            self._choose_periods()
        self._wake = step + self._steps_to_next(step)
        self._timing, self._sample = True, 0.0
        self._heed()
        self._note(events)
        chosen = self._chosen()
        due = self._row_is_due() and self._affords(self._row_spent, self._row_cost, ROWS)
        self._paid += time.perf_counter() - begin
        if chosen or events or due:
            self._begin_row(chosen, events)

    def _begin_row(self, chosen: list[_Group], events: list[str]) -> None:
        """Write the loop's own numbers and the probes that need no update into a new row."""
        self._row_begun = time.perf_counter(), self._spent_on_probes()
        watch = self._watch
        with self._clock():
            self._row = {"step": self.step, "seconds": round(self.training, 6)}
            rates = {float(g["lr"]) for g in self._optimizer.param_groups if "lr" in g}
            if len(rates) == 1:
                self._row["lr"] = rates.pop()
            self._row["loop_gradient_norm"] = watch.gradient_norm
            if events:
                self._row["event"] = "; ".join(events)
            if not math.isnan(watch.loss):
                self._row["loop_loss"] = watch.loss
            self._before = [p.detach().clone() for p in self._objective.parameters]
            self._read([g for g in chosen if "update" not in g.needs], None)
            self._waiting = [g for g in chosen if "update" in g.needs]

    def _after_step(self, optimizer: Any, *_: Any) -> None:
        """After an optimizer's step: finish the row, where one was begun, and keep a state."""
        recorder = self._recorder
        recorder.inside = False
        if self._row:
            self._finish_row()
        self.step = step = self.step + 1
        if step % self._round == 0:
            self._keep_state()
        self._quick = recorder.quick and not (self._timing or recorder.draws)

    def _finish_row(self) -> None:
        """Write the update and the probes that wait for it into the row, and hand the row out."""
        waiting, before = self._waiting, self._before
        self._waiting, self._before = [], []
        parameters = self._objective.parameters
        with self._clock(), torch.no_grad():
            update = [p.detach() - b for p, b in zip(parameters, before, strict=True)]
            length, size = float(robust_norm(update)), float(robust_norm(before))
            relative = length / size if size else math.nan
            self._watch.note_update(relative)
            self._moves[self.step] = relative
            self._row["loop_update_norm"] = length
            if waiting:
                with undisturbed(self._objective.model, parameters=True):
                    for p, b in zip(parameters, before, strict=True):
                        p.copy_(b)
                    self._read(waiting, update)
        row, self._row = self._row, {}
        self.readings.append(row)
        self._tell("write", row)
        begun, probes_before = self._row_begun
        on_probes = self._spent_on_probes() - probes_before
        self._row_cost = max(0.0, time.perf_counter() - begun - on_probes)
        self._row_spent += self._row_cost

    def _spent_on_probes(self) -> float:
        """Seconds of all readings of probes."""
        return sum(group.spent for group in self._groups)

    def _keep_state(self) -> None:
        """A copy of the state every few steps, where the budget allows it."""
        recorder = self._recorder
        if recorder.why_not:
            return
        if not self._affords(self._state_spent, self._state_cost, STATES):
            return
        with self._clock():
            begin = time.perf_counter()
            recorder.flush()
            recorder.keep_state(self.step)
            if self._cuda:
                torch.cuda.synchronize()
            self._state_cost = time.perf_counter() - begin
            self._state_spent += self._state_cost

    def _heed(self) -> None:
        """Hand the recorder what the watch has read."""
        for step, norm in self._watch.take_read():
            self._recorder.note_gradient(step, norm)
        if self._recorder.waits >= LOOK:
            self._recorder.flush()

    def _take_sample(self, taken: float) -> None:
        """What a step costs at which nothing is due; the hook after the step takes a third of the
        one before it.
        """
        self._timing = False
        self._samples.append(self._sample + 4 / 3 * taken)
        self._per_step = sorted(self._samples)[len(self._samples) // 2]

    def _allowed(self) -> float:
        """Seconds that may be spent beside what every step costs, up to now."""
        if self._budget is None:
            return math.inf
        planned = PLANNED * self._budget * self.training
        parts = self._norms_spent + self._state_spent + self._row_spent + self._spent_on_probes()
        return max(planned - (self.spent - parts), LEAST * planned)

    def _choose_periods(self) -> None:
        """Read the gradient norms at every step, or less often where that costs too much; consider
        the rest every ten steps, or less often where steps are short.
        """
        if self._budget is None or not self.step:
            return
        now, (then, step) = time.perf_counter(), self._lap
        if self.step > step:
            self._lap = now, self.step
            self._pace = min((now - then) / (self.step - step), 1.1 * self._pace)
        self._round = SPACING * max(1, min(ROUNDS, round(SHORT / (SPACING * self._pace))))
        if self._watch.raises:
            return
        share = NORMS * self._allowed() / self.step
        cost = self._norms_spent / max(1, self._norms_read)
        self._period = min(10 * SPACING, max(1, math.ceil(cost / max(share, 1e-12))))

    def _steps_to_next(self, step: int) -> int:
        """Steps until something may be due again."""
        wait = min(self._period - step % self._period, self._round - step % self._round)
        if self._every is not None:
            wait = min(wait, self._every - step % self._every)
        return wait

    def _affords(self, spent: float, cost: float, part: float) -> bool:
        """Whether something fits into its part of the budget; always where none applies."""
        if self._budget is None or not self.step:
            return True
        return spent + cost <= part * self._allowed()

    def _note(self, events: list[str]) -> None:
        """Keep, log and hand out sentences on what was unusual."""
        for sentence in events:
            self.events.append(sentence)
            LOG.warning(sentence)
            self._tell("event", sentence)

    def _tell(self, verb: str, what: Any) -> None:
        """Hand a row or a sentence to every sink. A file that cannot be written (a full disk) does
        not end the training; what the user's own function raises is the user's will.
        """
        for sink in list(self._sinks):
            try:
                getattr(sink, verb)(what)
            except OSError as error:
                if isinstance(sink, CallSink):
                    raise
                self._sinks.remove(sink)
                where = error.filename or type(sink).__name__
                said = f"step {self.step}: nothing more is written to {where}: {reason(error)}"
                self._note([said])

    def _row_is_due(self) -> bool:
        """Whether a row comes at this step, where the budget allows it."""
        return self.step % (self._every or LEAST_SPACING) == 0

    def _read(self, groups: list[_Group], update: list[Tensor] | None) -> None:
        """Read the probes of these groups into the row; those that raise an error are stopped."""
        if not groups or "problem" in self._row:
            return
        failed: dict[str, list[Probe]] = {}
        try:
            self._read_groups(groups, update, failed)
        except Exception as error:  # of what the probes share: opening and closing the passes
            failed.setdefault(reason(error), []).extend(p for g in groups for p in g.probes)
        finally:
            self._measuring = False
        for why, probes in failed.items():
            self._stop(probes, why)

    def _read_groups(
        self, groups: list[_Group], update: list[Tensor] | None, failed: dict[str, list[Probe]]
    ) -> None:
        """Read the probes of these groups into the row; those that fail are added to ``failed``
        under their reason.
        """
        with ExitStack() as stack:
            if "torch._dynamo" in sys.modules:
                # Other batch shapes would make a compiled model compile again, and the run another
                # run.
                stack.enter_context(torch.compiler.set_stance("force_eager"))
            reading = Reading(
                self._objective,
                self._batches,
                step=self.step,
                optimizer=self._optimizer,
                update=update,
                seed=self._seed,
            )
            at = stack.enter_context(reading)
            self._measuring = True
            for group in groups:
                begin = time.perf_counter()
                for probe in group.due():
                    try:
                        found = probe.read(at)
                        self._row |= {
                            f"{probe.name}_{key}": float(value) for key, value in found.items()
                        }
                    except NonFiniteError as problem:
                        self._row["problem"] = str(problem)
                        break
                    except Exception as error:
                        failed.setdefault(reason(error), []).append(probe)
                if self._cuda:
                    torch.cuda.synchronize()
                group.readings += 1
                group.cost = time.perf_counter() - begin
                group.spent += group.cost
                if "problem" in self._row:
                    return

    def _stop(self, probes: list[Probe], why: str) -> None:
        """Read these probes no more, and say so once."""
        names = ", ".join(p.name for p in probes)
        self._stopped[names] = why
        for group in self._groups:
            group.probes = [p for p in group.probes if p not in probes]
        self._groups = [g for g in self._groups if g.probes]
        word = "probe" if len(probes) == 1 else "probes"
        said = f"step {self.step}: the {word} {names} raised an error and will not be read again: "
        self._note([said + why])

    def _chosen(self) -> list[_Group]:
        """The groups to read at this step."""
        if self._every is not None and self.step % self._every:
            return []
        if self._budget is None:
            return self._groups
        if self.step == 0 or not self._row_is_due():
            return []
        left = PLANNED * self._budget * self.training - self.spent
        if left <= 0:
            return []
        # Each group saves for its own readings, so that an expensive one does not keep the cheap
        # ones waiting.
        allowed = self._allowed() / max(1, len(self._groups))
        chosen = []
        for group in sorted(self._groups, key=lambda g: g.spent):
            expected = self._expected_cost(group)
            if group.spent + expected <= allowed and expected <= left:
                chosen.append(group)
                left -= expected
        return chosen

    def _expected_cost(self, group: _Group) -> float:
        """Seconds of the next reading: those of the last, or a guess before the first."""
        if group.cost >= 0:
            return group.cost
        gradients = sum(p.cost(len(self._batches)) for p in group.probes)
        return 1.5 * gradients * self.training / self.step  # a step is at least one gradient

    @contextmanager
    def _clock(self) -> Iterator[None]:
        """Add the block's time to ``spent``; what the device still has to do for training is
        not charged to it.
        """
        if self._cuda:
            torch.cuda.synchronize()
        begin = time.perf_counter()
        try:
            yield
        finally:
            if self._cuda:
                torch.cuda.synchronize()
            self._paid += time.perf_counter() - begin


def unwrapped(optimizer: Any) -> Any:
    """The torch optimizer inside what Accelerate or Lightning wrap around it.

    Example:
        >>> inner = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
        >>> unwrapped(inner) is inner
        True
    """
    found = optimizer
    while not isinstance(found, torch.optim.Optimizer) or (
        type(found).__name__ == "AcceleratedOptimizer"
    ):
        inner = getattr(found, "optimizer", None)
        if inner is None or inner is found:
            fail("optimizer", "must be a torch.optim.Optimizer", optimizer)
        found = inner
    return found


def _checked_objective(
    objective: Objective | tuple[torch.nn.Module, Callable[[Any, Any], Tensor]],
    optimizer: torch.optim.Optimizer,
) -> Objective:
    """The objective, also of a pair (model, loss); one that the optimizer does not train is
    refused.
    """
    if isinstance(objective, tuple) and len(objective) == 2:
        objective = Objective(*objective)
    if not isinstance(objective, Objective):
        fail("objective", "must be a mindgap Objective", objective)
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    if not held & {id(p) for p in objective.parameters}:
        rule = "must train a parameter of the objective's model"
        fail("optimizer", rule, type(optimizer).__name__)
    if any(p.is_meta for p in objective.parameters):
        fail("model", "must hold numbers", "parameters on the meta device")
    return objective


def _group_probes(probes: Sequence[ProbeName | Probe]) -> list[_Group]:
    """The probes, made from their names, in groups that need the same of a reading."""
    if isinstance(probes, (str, Probe)):
        probes = [cast("ProbeName | Probe", probes)]
    if not isinstance(probes, (list, tuple)):
        fail("probes", "must be names of probes, or probes", probes)
    made: list[Probe] = []
    for probe in probes:
        if isinstance(probe, str):
            made.append(PROBES[one_of("probes", probe, PROBES)].load()())
        elif isinstance(probe, Probe):
            made.append(probe)
        else:
            fail("probes", "must be names of probes, or probes", probe)
    if not made:
        fail("probes", "must name at least one probe", probes)
    names = [p.name for p in made]
    if len(set(names)) < len(names):
        fail("probes", "must have different names", names)
    groups: dict[frozenset[str], list[Probe]] = {}
    for probe in made:
        whole("every", probe.every, least=1)
        groups.setdefault(probe.needs, []).append(probe)
    return [_Group(needs, members) for needs, members in groups.items()]
