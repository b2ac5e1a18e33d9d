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
from torch import Tensor, is_autocast_enabled, is_grad_enabled

from mindgap.base.check import between, fail, non_negative, one_of, whole
from mindgap.base.objective import Objective
from mindgap.base.restoring import first_batches, undisturbed
from mindgap.base.tensors import is_one_number, robust_norm
from mindgap.measure.gradients import NonFiniteError, reason
from mindgap.measure.probe import Probe, Reading
from mindgap.measure.recorder import (
    LOOK,
    SPACING,
    LoggedCall,
    LoggedStep,
    Recorder,
    settings_of,
    versions_of,
)
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
#: A round is the time between two moments at which rows, states and probes are considered: ten
#: steps, or as many tens as take ``SHORT`` seconds in a loop of short steps, at most ``ROUNDS``.
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

    def due_probes(self) -> list[Probe]:
        """The probes that run at the group's next reading: each at every ``every``-th."""
        return [p for p in self.probes if self.readings % p.every == 0]

    @property
    def names(self) -> str:
        """The probes' names in one text, for a sentence."""
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

    # Fields that many methods use: ``_groups``, the probes by their needs; ``_watch`` and
    # ``_recorder``, which read and keep every step; ``_row``, the row that is being written between
    # the two hooks of a step (empty: none); ``_next_due``, the next step at which something may be
    # due; ``_measuring``, whether a call of the loss is our own, and ``_notes_quickly``, whether
    # one of the loop may be noted in the quickest way; ``_samples_this_step``, whether the step is
    # timed as a sample of what every step costs; ``_*_seconds``, what was spent on what.

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
        objective = _as_objective(objective, self._optimizer)
        if every is not None:
            whole("every", every, least=1)
        if budget is None and every is None:
            budget = BUDGET
        self._budget = None if budget is None else between("budget", budget, 0, 1, ends="(]")
        self._objective, self._every, self._seed = objective, every, seed
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
        self.step = 0
        self.readings: list[Row] = []
        self._relative_updates: dict[int, float] = {}  # step -> length of update over parameters
        # The costs so far. What every step costs is sampled at a step at which nothing is due.
        self._begun_at = time.perf_counter()
        self._seconds_per_step = 0.0  # what every step costs: the median of the samples
        self._step_seconds: deque[float] = deque(maxlen=9)  # the samples
        #: whether the present step gives a sample, and the seconds of noting its loss so far
        self._samples_this_step, self._sampled_seconds = False, 0.0
        self._other_seconds = 0.0  # of measuring beside what every step costs, in all
        # Parts of these: of reading gradient norms (and how often), of keeping states and of
        # writing rows, in all and the last time.
        self._norm_seconds, self._norms_read = 0.0, 0
        self._state_seconds = self._last_state_seconds = 0.0
        self._row_seconds = self._last_row_seconds = 0.0
        # The row that is being written, between the two hooks of a step; empty where none is. With
        # it the probes that need the update, and the parameters before the step.
        self._row: Row = {}
        self._row_begun_at = self._probe_seconds_before_row = 0.0
        self._groups_after_step: list[_Group] = []
        self._parameters_before: list[Tensor] = []
        self._on_cuda = any(p.is_cuda for p in objective.parameters)
        self._watch = LoopWatch(objective.model, one_of("nonfinite", nonfinite, ("note", "raise")))
        self.events: list[str] = []
        self._stopped_probes: dict[str, str] = {}  # names of probes that raised an error -> why
        if recall is not None and not callable(recall):
            fail("recall", "must be a function that finds a batch by its name", recall)
        recorder = Recorder(objective.model, self._optimizer, memory)
        if memory is not None and non_negative("memory", memory) == 0:
            recorder.why_no_state = "memory=0 keeps no state"
        self._recorder, self._recall, self._device_type = recorder, recall, recorder.device_type
        # Steps between two readings of the gradient norms, and between the begins of two rounds.
        self._norm_period, self._round_steps = 1, SPACING
        self._seconds_per_quick_step = math.inf  # seconds per step, of the quickest round lately
        self._round_begun = time.perf_counter(), 0  # moment and step of the present round's begin
        self._next_due = 0  # the next step at which something may be due
        self._settings = settings_of(self._optimizer.param_groups)
        # Whether a call of the loss is noted in the quickest way, and whether it is our own call.
        self._notes_quickly = self._measuring = False
        self._own_loss, objective.loss = objective.loss, self._note_loss
        self._hooks = [
            self._optimizer.register_step_pre_hook(self._before_step),
            self._optimizer.register_step_post_hook(self._after_step),
        ]

    def _note_loss(self, model: Any, batch: Any) -> Tensor:
        """The objective's loss, in whose place the objective calls this method while the monitor is
        open. A call by the loop is noted in the recorder's log, unless gradients are off, because
        then the loop evaluates. The quickest way is taken where it is enough: gradients are on,
        autocast is off, the loss draws no random numbers, and the monitor neither measures nor
        samples its own cost (``_notes_quickly`` stands for the last three).
        """
        if (
            not self._notes_quickly
            or is_autocast_enabled(self._device_type)
            or not is_grad_enabled()
        ):
            return self._note_slowly(model, batch)
        loss = self._own_loss(model, batch)
        if type(loss) is Tensor:
            versions = versions_of(batch)
            self._recorder.log.append(LoggedCall(loss.detach(), batch, versions, None, None))
        else:
            self._recorder.after_loss(loss, batch)
        return loss

    def _note_slowly(self, model: Any, batch: Any) -> Any:
        """The objective's loss. A call by the loop (not by the monitor) is noted with its random
        state and precision, as an entry of the recorder's log where that may take one, and the
        seconds that noting takes are counted as measuring.
        """
        if self._measuring or not is_grad_enabled():
            return self._own_loss(model, batch)
        recorder = self._recorder
        to_log = recorder.takes_log_entries and not recorder.in_optimizer_step
        begun_at = time.perf_counter()
        random_state = autocast = None
        if to_log:
            random_state = recorder.random_state() if recorder.loss_draws_random else None
            autocast = recorder.autocast()
        else:
            recorder.before_loss()
        seconds = time.perf_counter() - begun_at
        loss = self._own_loss(model, batch)
        begun_at = time.perf_counter()
        if to_log and type(loss) is Tensor:
            versions = versions_of(batch)
            recorder.log.append(LoggedCall(loss.detach(), batch, versions, random_state, autocast))
        else:
            recorder.after_loss(loss, batch)
        seconds += time.perf_counter() - begun_at
        # A sample stands for what every step costs, so its seconds do not count apart.
        if self._samples_this_step:
            self._sampled_seconds += seconds
        else:
            self._other_seconds += seconds
        return loss

    @property
    def measuring(self) -> bool:
        """Whether the present call of the model is the monitor's own."""
        return self._measuring

    def observe(self, loss: Any, batch: Any = None, name: Any = None) -> None:
        """Tell the loss of the present batch, and the batch or its index, where the loop does not
        call ``objective.value``.

        Args:
            loss: a number, or a tensor with one element.
            batch: the batch, which ``autopsy`` then uses, or its index.
            name: the batch's index, where ``batch`` is the batch itself.

        Raises:
            RuleError: the loss is no single number.
        """
        if not is_one_number(loss):
            fail("loss", "must be a number or a tensor with one element", loss)
        if batch is None or isinstance(batch, (int, str)):  # no batch, but perhaps its index
            name = batch if name is None else name
            batch = None
        begun_at = time.perf_counter()
        self._recorder.after_loss(loss, batch, name)
        self._other_seconds += time.perf_counter() - begun_at

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

        was_measuring, self._measuring = self._measuring, True
        self._notes_quickly = False  # calls of the loss from here on are our own
        try:
            self._publish_events(self._watch.flush())
            self._pass_norms_on()
            return perform(self._recorder, self._own_loss, self._batches, self._recall)
        finally:
            self._measuring = was_measuring

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

        self._publish_events(self._watch.flush())
        self._pass_norms_on()
        self._recorder.flush()
        return history_of(
            self._recorder,
            self._own_loss,
            self._batches,
            self.readings,
            steps=self.step,
            moves=dict(self._relative_updates),
        )

    @property
    def skipped(self) -> dict[str, str]:
        """Probes without a reading so far, and those that raised an error -> why."""
        if self._budget is None or not self.step:
            return dict(self._stopped_probes)
        allowed = self._allowed_seconds() / max(1, len(self._groups))
        why = dict(self._stopped_probes)
        for group in self._groups:
            expected = self._expected_cost(group)
            if group.readings:
                continue
            why[group.names] = (
                f"a reading takes about {expected:.2g} s, and the budget allowed {allowed:.2g} s "
                f"in {self.step} steps; raise budget or give every"
            )
            if expected <= allowed:  # since the last step at which probes were considered
                why[group.names] = f"none was due yet in {self.step} steps; give every"
        return why

    @property
    def spent(self) -> float:
        """Seconds of measuring."""
        return self._other_seconds + self._seconds_per_step * self.step

    @property
    def training(self) -> float:
        """Seconds since the start that were not spent on measuring."""
        return time.perf_counter() - self._begun_at - self.spent

    def close(self, problem: str = "") -> None:
        """Detach from the optimizer, give the objective its own loss back, warn of probes without a
        reading, and finish the records; a second call does nothing.

        Args:
            problem: why the run ended, where that was an error.
        """
        if self._hooks:
            self._publish_events(self._watch.flush())
            for names, why in self.skipped.items():
                if names not in self._stopped_probes:
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

    def _before_step(
        self, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """Hook before an optimizer's step: note the step in the recorder's log, with the settings
        of the optimizer's groups, and do what is due. Most steps take the quick way, where nothing
        is due and no clock is read.

        Args:
            optimizer: that makes the step.
            args, kwargs: that ``step`` was called with.

        Returns:
            Other arguments of ``step``, where a closure computes gradients that are to be read.
        """
        step, recorder = self.step, self._recorder
        reads_clock = self._samples_this_step or step >= self._next_due
        begun_at = time.perf_counter() if reads_clock else 0.0
        groups, settings = self._optimizer.param_groups, self._settings
        first_group = groups[0]
        if (
            len(groups) > 1
            or first_group.get("lr") is not settings[0].get("lr")
            or first_group.get("weight_decay") is not settings[0].get("weight_decay")
        ):  # a schedule may have changed them; other objects show that more quickly than values
            self._settings = settings = settings_of(groups, settings)
        self._notes_quickly = False  # until ``_after_step``: the optimizer may call the loss itself
        recorder.in_optimizer_step = True
        if step < self._next_due:  # nothing is due: this is what most steps cost
            recorder.log.append(LoggedStep(step, settings, None))
            if self._samples_this_step:
                self._sample_step_cost(time.perf_counter() - begun_at)
            return None
        closure = next((a for a in (*args[1:], kwargs.get("closure")) if callable(a)), None)
        self._do_what_is_due(settings, begun_at, closure)
        if closure is None or step % self._norm_period:
            return None
        reading = self._reading_closure(closure)
        return (
            tuple(reading if value is closure else value for value in args),
            {name: reading if value is closure else value for name, value in kwargs.items()},
        )

    def _reading_closure(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        """The closure of an optimizer's step; after its first call the loss and the gradients,
        which did not exist before, are read, and go into the row that was begun.
        """
        was_called = False

        def call() -> Any:
            """Call the closure, and read once."""
            nonlocal was_called
            loss = closure()
            if not was_called:
                was_called, begun_at = True, time.perf_counter()
                newest_loss = self._recorder.newest_loss(of_present_step=True) or (
                    (loss, None) if is_one_number(loss) else None
                )
                if newest_loss is not None:
                    self._watch.observe(*newest_loss)
                events = self._watch.before_step(self.step, self._optimizer)
                self._publish_events(events)
                if self._row:
                    self._write_watched(events)
                seconds = time.perf_counter() - begun_at
                self._norm_seconds += seconds
                self._other_seconds += seconds
                self._norms_read += 1
            return loss

        return call

    def _write_watched(self, events: list[str]) -> None:
        """Write what the watch read last, and the events, into the row."""
        self._row["loop_gradient_norm"] = self._watch.gradient_norm
        if events:
            self._row["event"] = "; ".join(events)
        if not math.isnan(self._watch.loss):
            self._row["loop_loss"] = self._watch.loss

    def _do_what_is_due(
        self, settings: list[dict[str, Any]], begun_at: float, closure: Any
    ) -> None:
        """Before a step: note it in the log, read gradient norms, publish events and begin a row,
        each when it is due. Set the step at which something is due next, and have what the
        following step costs sampled.

        Args:
            settings: of the optimizer's groups.
            begun_at: moment at which the hook began.
            closure: that will compute the gradients; None where they are there.
        """
        step, recorder = self.step, self._recorder
        events: list[str] = []
        norms = None
        if step % self._norm_period == 0 and closure is None:
            newest_loss = recorder.newest_loss()
            if newest_loss is not None:
                self._watch.observe(*newest_loss)
            events = self._watch.before_step(step, self._optimizer)
            norms = self._watch.norms
            self._norm_seconds += time.perf_counter() - begun_at
            self._norms_read += 1
        recorder.log.append(LoggedStep(step, settings, norms))
        if step % self._round_steps == 0:
            # A GPU may still compute the newest norms, so they are left waiting.
            events += self._watch.flush(spare=1 if self._on_cuda else 0)
            self._choose_periods()
        self._next_due = step + self._steps_until_due(step)
        # The next step gives a sample, whose seconds begin with noting its loss.
        self._samples_this_step, self._sampled_seconds = True, 0.0
        self._pass_norms_on()
        self._publish_events(events)
        groups_to_read = self._groups_to_read()
        row_is_due = self._row_is_due() and self._fits_share(
            self._row_seconds, self._last_row_seconds, ROWS
        )
        self._other_seconds += time.perf_counter() - begun_at
        if groups_to_read or events or row_is_due:
            self._begin_row(groups_to_read, events)

    def _begin_row(self, groups: list[_Group], events: list[str]) -> None:
        """Before a step: write the loop's own numbers, and the readings of those ``groups`` that
        need no update, into a new row, ``_row``. A copy of the parameters and the other groups are
        kept for ``_finish_row``.

        Args:
            groups: the probes to read at this step.
            events: sentences on what was unusual at this step.
        """
        self._row_begun_at = time.perf_counter()
        self._probe_seconds_before_row = self._probe_seconds()
        with self._charge_time():
            self._row = {"step": self.step, "seconds": round(self.training, 6)}
            rates = {float(g["lr"]) for g in self._optimizer.param_groups if "lr" in g}
            if len(rates) == 1:  # groups with different rates have none to write
                self._row["lr"] = rates.pop()
            self._write_watched(events)
            self._parameters_before = [p.detach().clone() for p in self._objective.parameters]
            self._read_probes([g for g in groups if "update" not in g.needs], None)
            self._groups_after_step = [g for g in groups if "update" in g.needs]

    def _after_step(self, optimizer: Any, *_: Any) -> None:
        """Hook after an optimizer's step: finish the row, where one was begun, count the step, keep
        a state at the end of a round, and decide how calls of the loss are noted until the next
        step.
        """
        recorder = self._recorder
        recorder.in_optimizer_step = False
        if self._row:
            self._finish_row()
        self.step = step = self.step + 1
        if step % self._round_steps == 0:
            self._keep_state()
        self._notes_quickly = recorder.takes_log_entries and not (
            self._samples_this_step or recorder.loss_draws_random
        )

    def _finish_row(self) -> None:
        """After a step: complete the row with the length of the update and with the probes that
        need the update, keep it in ``readings`` and hand it to the sinks. While these probes read,
        the model is put back to the parameters before the step.
        """
        groups, parameters_before = self._groups_after_step, self._parameters_before
        self._groups_after_step, self._parameters_before = [], []
        parameters = self._objective.parameters
        with self._charge_time(), torch.no_grad():
            update = [
                p.detach() - before for p, before in zip(parameters, parameters_before, strict=True)
            ]
            length, norm = float(robust_norm(update)), float(robust_norm(parameters_before))
            relative = length / norm if norm else math.nan
            self._watch.note_update(relative)
            self._relative_updates[self.step] = relative
            self._row["loop_update_norm"] = length
            if groups:
                with undisturbed(self._objective.model, parameters=True):
                    for p, before in zip(parameters, parameters_before, strict=True):
                        p.copy_(before)
                    self._read_probes(groups, update)
        row, self._row = self._row, {}
        self.readings.append(row)
        self._hand_to_sinks("write", row)
        # What the row took without its probes.
        on_probes = self._probe_seconds() - self._probe_seconds_before_row
        self._last_row_seconds = max(0.0, time.perf_counter() - self._row_begun_at - on_probes)
        self._row_seconds += self._last_row_seconds

    def _probe_seconds(self) -> float:
        """Seconds of all readings of probes."""
        return sum(group.spent for group in self._groups)

    def _keep_state(self) -> None:
        """Let the recorder copy the state, unless it keeps none or the budget forbids it."""
        recorder = self._recorder
        fits = self._fits_share(self._state_seconds, self._last_state_seconds, STATES)
        if recorder.why_no_state or not fits:
            return
        with self._charge_time():
            begun_at = time.perf_counter()
            recorder.flush()
            recorder.keep_state(self.step)
            if self._on_cuda:
                torch.cuda.synchronize()
            self._last_state_seconds = time.perf_counter() - begun_at
            self._state_seconds += self._last_state_seconds

    def _pass_norms_on(self) -> None:
        """Hand the gradient norms that the watch has read to the recorder, and let the recorder
        look at the losses of its last steps, if ``LOOK`` steps or more wait for that.
        """
        for step, norm in self._watch.pop_norms_read():
            self._recorder.note_gradient(step, norm)
        if self._recorder.unread_steps >= LOOK:
            self._recorder.flush()

    def _sample_step_cost(self, hook_seconds: float) -> None:
        """Add a sample of what a step costs at which nothing is due: the seconds of noting its loss
        and of both hooks. ``_seconds_per_step`` becomes the median of the last samples.

        Args:
            hook_seconds: of the hook before the step; the one after it takes a third of that.
        """
        self._samples_this_step = False
        # Measured: 0.35 to 0.38 with one parameter group, 0.15 with four, 0.5 µs in all. A third of
        # this share or three times it moves the counted cost by less than two equal runs differ.
        self._step_seconds.append(self._sampled_seconds + 4 / 3 * hook_seconds)
        self._seconds_per_step = sorted(self._step_seconds)[len(self._step_seconds) // 2]

    def _allowed_seconds(self) -> float:
        """Seconds that norms, states, rows and probes may have taken together up to now: the
        planned share of the budget less what every step costs, but at least ``LEAST`` of it.
        """
        if self._budget is None:
            return math.inf
        planned = PLANNED * self._budget * self.training
        parts = self._norm_seconds + self._state_seconds + self._row_seconds + self._probe_seconds()
        # Beside these parts there is what every step costs, and the rest of the hooks.
        return max(planned - (self.spent - parts), LEAST * planned)

    def _choose_periods(self) -> None:
        """Set ``_round_steps`` and ``_norm_period`` from the costs so far; under no budget both
        stay.

        A round is ten steps, or more where steps are short. Gradient norms are read at every step.
        Where that would cost more than their part of the budget they are read less often, at least
        once in 100 steps, unless a number that is not finite shall raise.
        """
        if self._budget is None or not self.step:
            return
        moment, (begun_at, first_step) = time.perf_counter(), self._round_begun
        if self.step > first_step:
            self._round_begun = moment, self.step
            # The quickest round is forgotten by a tenth at each later one: a loop may slow down.
            self._seconds_per_quick_step = min(
                (moment - begun_at) / (self.step - first_step), 1.1 * self._seconds_per_quick_step
            )
        # Tens of steps that take ``SHORT`` seconds together.
        tens = round(SHORT / (SPACING * self._seconds_per_quick_step))
        self._round_steps = SPACING * min(ROUNDS, max(1, tens))
        if self._watch.raises:
            return
        allowed_per_step = NORMS * self._allowed_seconds() / self.step
        seconds_per_reading = self._norm_seconds / max(1, self._norms_read)
        # One reading in so many steps costs what these steps allow.
        period = math.ceil(seconds_per_reading / max(allowed_per_step, 1e-12))
        self._norm_period = min(10 * SPACING, max(1, period))

    def _steps_until_due(self, step: int) -> int:
        """Steps from this one until gradient norms, a round or a reading may be due again."""
        steps = min(
            self._norm_period - step % self._norm_period,
            self._round_steps - step % self._round_steps,
        )
        if self._every is not None:
            steps = min(steps, self._every - step % self._every)
        return steps

    def _fits_share(self, spent: float, cost: float, share: float) -> bool:
        """Whether something may be done once more within its share of the budget. Always True at
        step 0, and where no budget applies.

        Args:
            spent: seconds that it took so far.
            cost: seconds that it takes once more.
            share: of ``_allowed_seconds``.
        """
        if self._budget is None or not self.step:
            return True
        return spent + cost <= share * self._allowed_seconds()

    def _publish_events(self, events: list[str]) -> None:
        """Keep, log and hand out sentences on what was unusual."""
        for sentence in events:
            self.events.append(sentence)
            LOG.warning(sentence)
            self._hand_to_sinks("event", sentence)

    def _hand_to_sinks(self, method: str, item: Any) -> None:
        """Hand a row or a sentence to every sink. A sink whose file cannot be written (a full disk)
        is dropped with a sentence, and the training goes on; an error of the user's own function
        ends it.

        Args:
            method: of the sink, ``"write"`` for a row or ``"event"`` for a sentence.
            item: the row or the sentence.
        """
        for sink in list(self._sinks):
            try:
                getattr(sink, method)(item)
            except OSError as error:
                if isinstance(sink, CallSink):  # the user's own function
                    raise
                self._sinks.remove(sink)
                target = error.filename or type(sink).__name__
                sentence = f"step {self.step}: nothing more is written to {target}: {reason(error)}"
                self._publish_events([sentence])

    def _row_is_due(self) -> bool:
        """Whether a row comes at this step, where the budget allows it."""
        return self.step % (self._every or LEAST_SPACING) == 0

    def _read_probes(self, groups: list[_Group], update: list[Tensor] | None) -> None:
        """Read the due probes of these groups into the row, unless a number that is not finite was
        met in it before. Probes that raise an error are not read again.

        Args:
            update: the step's change of the parameters, one tensor each; None before the step.
        """
        if not groups or "problem" in self._row:
            return
        failed: dict[str, list[Probe]] = {}  # reason -> probes that raised an error
        try:
            self._read_groups(groups, update, failed)
        except Exception as error:  # in what the probes share: opening and closing the passes
            failed.setdefault(reason(error), []).extend(p for g in groups for p in g.probes)
        finally:
            self._measuring = False
        for reason_text, probes in failed.items():
            self._stop_reading(probes, reason_text)

    def _read_groups(
        self, groups: list[_Group], update: list[Tensor] | None, failed: dict[str, list[Probe]]
    ) -> None:
        """Read the due probes of these groups into the row, and time each group. At a number that
        is not finite the row gets ``problem``, and no further probe is read.

        Args:
            update: the step's change of the parameters, one tensor each; None before the step.
            failed: reason -> probes; those that raise another error are added.
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
            stack.enter_context(reading)  # frees graphs and copies at the end
            self._measuring = True
            for group in groups:
                begun_at = time.perf_counter()
                for probe in group.due_probes():
                    try:
                        quantities = probe.read(reading)
                        self._row |= {
                            f"{probe.name}_{key}": float(value) for key, value in quantities.items()
                        }
                    except NonFiniteError as error:
                        self._row["problem"] = str(error)
                        break
                    except Exception as error:
                        failed.setdefault(reason(error), []).append(probe)
                if self._on_cuda:
                    torch.cuda.synchronize()
                group.readings += 1
                group.cost = time.perf_counter() - begun_at
                group.spent += group.cost
                if "problem" in self._row:
                    return

    def _stop_reading(self, probes: list[Probe], reason_text: str) -> None:
        """Read these probes no more, and say so once."""
        names = ", ".join(p.name for p in probes)
        self._stopped_probes[names] = reason_text
        for group in self._groups:
            group.probes = [p for p in group.probes if p not in probes]
        self._groups = [g for g in self._groups if g.probes]
        word = "probe" if len(probes) == 1 else "probes"
        beginning = (
            f"step {self.step}: the {word} {names} raised an error and will not be read again: "
        )
        self._publish_events([beginning + reason_text])

    def _groups_to_read(self) -> list[_Group]:
        """The groups to read at this step. Without a budget these are all groups at every
        ``every``-th step. With one these are the groups that fit into it, those that took the least
        so far first, and none at step 0, where no cost is known.
        """
        if not self._row_is_due():
            return []
        if self._budget is None:
            return self._groups
        if self.step == 0:
            return []
        seconds_left = PLANNED * self._budget * self.training - self.spent
        if seconds_left <= 0:
            return []
        # Each group saves for its own readings, so that an expensive one does not keep the cheap
        # ones waiting.
        allowed_per_group = self._allowed_seconds() / max(1, len(self._groups))
        chosen = []
        for group in sorted(self._groups, key=lambda g: g.spent):
            expected = self._expected_cost(group)
            if group.spent + expected <= allowed_per_group and expected <= seconds_left:
                chosen.append(group)
                seconds_left -= expected
        return chosen

    def _expected_cost(self, group: _Group) -> float:
        """Seconds of a group's next reading: those of the last one. Before the first it is a guess:
        half as much again as its gradients would take at a whole training step each.
        """
        if group.cost >= 0:
            return group.cost
        gradients = sum(p.cost(len(self._batches)) for p in group.probes)
        return 1.5 * gradients * self.training / self.step

    @contextmanager
    def _charge_time(self) -> Iterator[None]:
        """A block whose seconds are counted as measuring, in ``_other_seconds``. A GPU is waited
        for before and after, so that work queued by the training does not count.
        """
        if self._on_cuda:
            torch.cuda.synchronize()
        begun_at = time.perf_counter()
        try:
            yield
        finally:
            if self._on_cuda:
                torch.cuda.synchronize()
            self._other_seconds += time.perf_counter() - begun_at


def unwrapped(optimizer: Any) -> Any:
    """The torch optimizer inside what Accelerate or Lightning wrap around it.

    Example:
        >>> inner = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
        >>> unwrapped(inner) is inner
        True
    """
    candidate = optimizer
    while not isinstance(candidate, torch.optim.Optimizer) or (
        type(candidate).__name__ == "AcceleratedOptimizer"
    ):
        inner = getattr(candidate, "optimizer", None)
        if inner is None or inner is candidate:
            fail("optimizer", "must be a torch.optim.Optimizer", optimizer)
        candidate = inner
    return candidate


def _as_objective(
    objective: Objective | tuple[torch.nn.Module, Callable[[Any, Any], Tensor]],
    optimizer: torch.optim.Optimizer,
) -> Objective:
    """The objective, made of a pair (model, loss) where one is given. An error where the optimizer
    trains no parameter of it, or where its parameters lie on the meta device.
    """
    if isinstance(objective, tuple) and len(objective) == 2:
        objective = Objective(*objective)
    if not isinstance(objective, Objective):
        fail("objective", "must be a mindgap Objective", objective)
    trained = {id(p) for group in optimizer.param_groups for p in group["params"]}
    if not trained & {id(p) for p in objective.parameters}:
        rule = "must train a parameter of the objective's model"
        fail("optimizer", rule, type(optimizer).__name__)
    if any(p.is_meta for p in objective.parameters):
        fail("model", "must hold numbers", "parameters on the meta device")
    return objective


def _group_probes(probes: Sequence[ProbeName | Probe]) -> list[_Group]:
    """The probes in groups that need the same of a reading; an error where two have one name.

    Args:
        probes: names, of which probes with default settings are made, or probes; or one of these.
    """
    if isinstance(probes, (str, Probe)):
        probes = [cast("ProbeName | Probe", probes)]
    if not isinstance(probes, (list, tuple)):
        fail("probes", "must be names of probes, or probes", probes)
    chosen: list[Probe] = []
    for probe in probes:
        if isinstance(probe, str):
            # ``load`` gives the class.
            chosen.append(PROBES[one_of("probes", probe, PROBES)].load()())
        elif isinstance(probe, Probe):
            whole("every", probe.every, least=1)
            chosen.append(probe)
        else:
            fail("probes", "must be names of probes, or probes", probe)
    if not chosen:
        fail("probes", "must name at least one probe", probes)
    names = [p.name for p in chosen]
    if len(set(names)) < len(names):
        fail("probes", "must have different names", names)
    groups: dict[frozenset[str], list[Probe]] = {}
    for probe in chosen:
        groups.setdefault(probe.needs, []).append(probe)
    return [_Group(needs, members) for needs, members in groups.items()]
