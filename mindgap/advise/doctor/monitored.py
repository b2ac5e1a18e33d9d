"""``diagnose_run``: the doctor's table of causes on what a monitor recorded of a real run.

No cure is tried and nothing is trained, so a cause is named from the records alone: the course of
loss, gradient and learning rate, the replay of what broke (``Monitor.autopsy``), and the model, the
loss and the last batches as they are now.
"""

from __future__ import annotations

import math
import time
import warnings
from dataclasses import replace
from statistics import median_high
from types import SimpleNamespace
from typing import Any

import torch

from mindgap.advise.doctor.answer import (
    NAMED,
    Answering,
    certainty_words,
    code_of,
    evidence,
    fit_cause,
    name_of,
)
from mindgap.advise.doctor.causes import PLAIN, Cause, rank_causes
from mindgap.advise.doctor.chart import Chart, FindingName, ramp
from mindgap.advise.doctor.controls import constant_loss
from mindgap.advise.doctor.course import MODAL, Course, gradient, norm
from mindgap.advise.doctor.course_readings import read_curve, read_loop
from mindgap.advise.doctor.data_readings import read_data
from mindgap.advise.doctor.differential import LEAST_LISTED, MOST_UNNAMED
from mindgap.advise.doctor.model_readings import (
    read_forward,
    read_gradients,
    read_modes,
    read_optimizer,
    read_parameters,
    read_start,
)
from mindgap.advise.doctor.page import Examination
from mindgap.advise.doctor.patient import Patient
from mindgap.advise.training import untouched_randomness
from mindgap.base.check import fail
from mindgap.base.restoring import undisturbed
from mindgap.measure.history import History
from mindgap.measure.monitor import Monitor

#: Steps that a run needs before anything is said about it.
LEAST = 20
#: Batches of the last steps that are read.
READ = 64
#: Gain over the constant answer above which only a plain fault is named: nothing proves that
#: another cause costs anything.
GOOD = 0.3
#: Log-odds of a cause that needs a proof, at most: no cure is tried here.
MOST_UNTRIED = 3.9
#: Length of a step over the norm of the weights: above the first steps are far too long, below the
#: second too short. Chosen on the development cases of ``benchmarks/doctor``.
LONG_MOVE, SHORT_MOVE = 0.05, 5e-4
#: What the autopsy found -> the finding that the table weighs.
MECHANISMS: dict[str, FindingName] = {
    "batch": "batch_outlier",
    "sample": "sample_outlier",
    "operation": "nan_op",
    "overflow": "half_overflow",
    "recurrence": "explodes_time",
    "update": "thrown",
    "divergence": "thrown",
    "learning_rate": "thrown",
}
#: Causes that the records cannot show, because they need the first weights, validation batches, a
#: second network or the order of an epoch.
UNSEEN = {
    "init_too_large",
    "init_too_small",
    "leakage",
    "overfitting",
    "repeated_batches",
    "underfitting",
    "wrong_labels",
}
#: What follows for a run without a visible fault.
UNSEEN_WORDS = (
    "A monitor sees training only: wrong labels, leakage, overfitting, too small a model and bad "
    "first weights do not show in its records; `mindgap examine` looks for them."
)


def diagnose_run(monitor: Monitor) -> Examination:
    """What is wrong with a run that a monitor watched, as far as its records tell.

    The same table of causes as in :func:`examine` weighs the findings, and the answer has the same
    form. Nothing is trained and no cure is tried: ``trial`` is None. Call it between two steps or
    after the loop, also after ``close``; model, gradients, optimizer and random states are left as
    found. "Healthy" is said only where the training loss is below that of the best constant answer,
    and the sentence then names what records cannot show and sends the reader to :func:`examine`.

    Args:
        monitor: a monitor whose loop calls ``objective.value``, ``objective.loss`` or
            ``monitor.observe(loss, batch)``.

    Example:
        >>> from mindgap.base.objective import Objective
        >>> model = torch.nn.Linear(4, 1)
        >>> batches = list(torch.randn(30, 16, 4, generator=torch.Generator().manual_seed(0)))
        >>> square = lambda model, x: (model(x) - x.sum(1, keepdim=True)).square().mean()
        >>> problem = Objective(model, square)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=5.0)
        >>> with Monitor(optimizer, problem, batches, ["update"], every=10) as monitor:
        ...     for batch in batches:
        ...         optimizer.zero_grad()
        ...         problem.value(batch).backward()
        ...         optimizer.step()
        >>> answer = diagnose_run(monitor)
        >>> answer.verdict, answer.cause
        ('sick', 'lr_too_large')
    """
    if not isinstance(monitor, Monitor):
        fail("monitor", "must be a mindgap.measure.Monitor", monitor)
    with untouched_randomness(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _Consultation(monitor).answer()


class _Consultation:
    """One diagnosis of a monitored run: readings, the ranking of the causes, the answer."""

    def __init__(self, monitor: Monitor) -> None:
        self.monitor = monitor
        self.chart = Chart()
        self.answering = Answering(self.chart, time.perf_counter())
        self.past: History = monitor.history()
        self.course = _course(self.past)
        self.patient = _patient(self.past, self.course)

    def answer(self) -> Examination:
        """Read what the monitor recorded, rank the causes, and return the examination: with the
        likeliest cause that the run suffers from, or without one. Cannot tell where the monitor saw
        fewer than ``LEAST`` steps or no loss.
        """
        chart, past, course = self.chart, self.past, self.course
        chart.facts.steps = past.steps
        if past.steps < LEAST:
            reason = f"the monitor saw {past.steps} calls of optimizer.step(); it takes {LEAST}"
            return self.answering.cannot_tell(reason, [], course.losses)
        if not course.losses:
            reason = (
                "the monitor saw no loss: call objective.value(batch) or monitor.observe(loss, "
                "batch) in the loop"
            )
            return self.answering.cannot_tell(reason, [], course.losses)
        self._read()
        ranked = [
            (cause, score)
            for cause, score in rank_causes(chart.findings)
            if cause.key not in UNSEEN
        ]
        for cause, score in ranked:
            if score < NAMED:
                break
            if self._shows(cause):
                return self._sick(cause, score, ranked)
        return self._without_cause(ranked)

    # Readings.

    def _read(self) -> None:
        """Read everything that the monitor recorded, and the model at its present weights or, where
        these are not finite, at the newest kept ones that are; the model is left as found.
        """
        chart, patient, course = self.chart, self.patient, self.course
        self._read_batches()
        chart.attempt("the parameters", lambda: read_parameters(chart, patient))
        chart.attempt("the optimizer", lambda: read_optimizer(chart, patient))
        with undisturbed(patient.model, parameters=True):
            if _restore_finite_weights(self.past):
                self._read_model()
            else:
                chart.notes.append("the weights are not finite and no earlier state is kept")
        chart.facts.trivial = chart.attempt("the constant answer", lambda: constant_loss(patient))
        chart.facts.start = next((x for x in course.losses if math.isfinite(x)), math.inf)
        chart.facts.progress = -1.0  # the least, unless the curve can be read
        chart.attempt("the curve", lambda: read_curve(chart, patient, course))
        chart.attempt("the autopsy", self._read_autopsy)
        chart.attempt("the loop", lambda: read_loop(chart, patient, course))
        self._read_rate()

    def _read_batches(self) -> None:
        """Read the last batches. The finding that batches repeat is deleted, because epochs repeat
        them. To findings that number a batch words are added: the number is a step's.
        """
        chart = self.chart
        chart.attempt("the data", lambda: read_data(chart, self.patient))
        chart.findings.pop("batches_repeat", None)
        numbered: tuple[FindingName, ...] = ("batch_outlier", "sample_outlier", "inputs_lost")
        for name in numbered:
            finding = chart.findings.get(name)
            if finding is not None and self.past.recent:
                # The sentence goes on before its full stop.
                text = f"{finding.sentence[:-1]} (batches are numbered by their step)."
                chart.findings[name] = replace(finding, sentence=text)

    def _read_model(self) -> None:
        """Make the readings of the model at its present weights. These are no first weights, so of
        the readings of first weights only equal ones are kept.
        """
        chart, patient = self.chart, self.patient
        chart.attempt("the forward pass", lambda: read_forward(chart, patient))
        chart.attempt("the gradients", lambda: read_gradients(chart, patient))
        chart.attempt("the modes", lambda: read_modes(chart, patient))
        weights = Chart()
        chart.attempt("the weights", lambda: read_start(weights, patient))
        equal = weights.findings.get("equal_weights")
        if equal is not None:
            chart.find(
                "equal_weights",
                1.0,
                equal.sentence.replace("start with equal weights", "have equal weights"),
            )
        if self.course.broke_at < 0:
            chart.attempt("the last gradients", self._compare_gradients)

    def _compare_gradients(self) -> None:
        """Compare the norms of the gradients that the optimizer got in the last five steps with
        those of fresh gradients of the same batches: are they added up, kept from before, or
        clipped? Decides by the median ratio of three steps or more.

        Writes the course's ``added_batches`` where the ratio is near the number of batches, and its
        ``kept_norm_share``. Finds kept gradients where the ratio is far above that number.
        """
        ratios = []  # (recorded norm over that of the fresh mean, batches of the step)
        steps = [step for step in self.past.recent if step.number in self.past.norms]
        for step in steps[-5:]:
            batches = [call.batch for call in step.calls]
            if not batches or any(batch is None for batch in batches):
                continue
            fresh = [gradient(self.patient, batch) for batch in batches]
            mean = [torch.stack(parts).mean(0) for parts in zip(*fresh, strict=True)]
            ratios.append((self.past.norms[step.number] / max(norm(mean), 1e-30), len(batches)))
        if len(ratios) < 3:
            return
        ratio, count = sorted(ratios)[len(ratios) // 2]
        least_ratio, _ = min(ratios)
        if not math.isfinite(ratio):
            return
        # Batches that are added and not averaged give their number; more than that was kept.
        if count > 1 and 0.7 * count < ratio < 1.4 * count:
            self.course.added_batches = count
        elif ratio > max(5.0, 3.0 * count) and least_ratio > 2.0 * count:
            self.chart.find(
                "zero_kept",
                0.6,
                f"The optimizer gets gradients {ratio:.3g} times as large as those of its batch.",
            )
        self.course.kept_norm_share = min(1.0, ratio)

    def _read_autopsy(self) -> None:
        """Replay what broke the run (``Monitor.autopsy``), and add its mechanism as a finding.

        A batch or sample is blamed only where its numbers are out of range as well, or where the
        run recovered from it: a run whose steps are too long breaks at some batch, too. A mechanism
        that is not known becomes a note.
        """
        chart, autopsy = self.chart, self.monitor.autopsy()
        finding = MECHANISMS.get(autopsy.mechanism)
        if finding in ("batch_outlier", "sample_outlier"):
            out_of_range = chart.has_any("batch_outlier", "sample_outlier")
            if out_of_range or autopsy.recovered is not None:
                chart.find(finding, 0.8, autopsy.sentence)
        elif finding is not None:
            chart.find(finding, 1.0, autopsy.sentence)
        elif autopsy.mechanism == "unknown":
            chart.notes.append(autopsy.sentence)

    def _read_rate(self) -> None:
        """Find steps that are far too long (``thrown``) or too short (``crawls``), by what they do
        to weights and loss. What follows from long steps is then no finding of its own.

        ``move`` is the length of a step over the norm of the weights, and ``progress`` is 1 where
        the loss has fallen from that of the constant answer to 0.
        """
        chart, course = self.chart, self.course
        progress, move = chart.facts.progress, chart.facts.move
        dead = chart.findings.get("dead")
        if dead is not None:  # they are dead now, and perhaps were not at the start: a weaker sign
            chart.findings["dead"] = replace(dead, strength=0.85 * dead.strength)
        if chart.has_any("thrown", "moves_much", "blew_up"):
            self._drop_consequences()
        if move > LONG_MOVE and progress < 0.05:
            text = f"A step moves the weights by {move:.0%} of their size, and nothing is learned."
            # Long steps alone are a weak sign, unless the loss got worse or units died.
            worse = progress < -0.05 or chart.has_any("above_start", "died")
            chart.find(
                "thrown", ramp(move, zero_at=0.03, one_at=0.1) * (1.0 if worse else 0.3), text
            )
        elif chart.has("blew_up") and not chart.has("rate_negative"):
            chart.find("thrown", 0.8, chart.findings["blew_up"].sentence)
        early, late = course.mean(0.0, 0.25), course.mean(0.75, 1.0)  # first and last quarter
        falls = math.isfinite(late) and late <= early + 0.02 * abs(early)
        if move < SHORT_MOVE and progress < GOOD and falls and not chart.has("stuck"):
            chart.find(
                "crawls",
                ramp(math.log10(max(move, 1e-12)), zero_at=-3.3, one_at=-4.0),
                f"The loss goes from {early:.3g} to {late:.3g} in {course.updates} steps.",
            )

    def _drop_consequences(self) -> None:
        """Change the findings that follow from steps that are too long: dead and saturated units
        become units that died, and findings on the signal are deleted.
        """
        findings = self.chart.findings
        for finding in (findings.pop("dead", None), findings.pop("saturated", None)):
            if finding is not None:
                self.chart.find("died", finding.strength, finding.sentence)
        for name in ("vanishes", "signal_grows", "explodes_depth", "collapsed"):
            findings.pop(name, None)

    # Causes.

    def _shows(self, cause: Cause) -> bool:
        """Whether a cause may be named: the run broke or learned little, or the cause is a fault
        whatever the loss does. A bad batch counts where the loss jumped or inputs were lost.
        """
        chart = self.chart
        if chart.facts.progress < GOOD or chart.has("broke"):
            return True
        if cause.key == "wrong_axis" and not (chart.has_any("softmax_over_batch", "broadcasts")):
            return False
        if cause.key in ("bad_batch", "bad_sample"):
            return chart.has_any("spikes", "inputs_lost")
        plain_fault = any(name in PLAIN for name in cause.signs if chart.has(name))
        # A rate that is gone at the end of a run that learned may be meant.
        return not cause.proof or (plain_fault and cause.key != "scheduler_at_zero")

    # Answers.

    def _sick(self, cause: Cause, score: float, ranked: list[tuple[Cause, float]]) -> Examination:
        """The examination that names a cause. One that needs a proof is called likely at most.

        Args:
            score: log-odds of the cause.
            ranked: every cause that the records can show with its log-odds, likeliest first.
        """
        chart = self.chart
        fitted = fit_cause(cause, chart)
        score = min(score, MOST_UNTRIED) if cause.proof else score
        sentence = (
            f"{certainty_words(score)} {name_of(fitted, chart)}; {fitted.change} (no cure was "
            "tried here; `mindgap examine` tries it on a copy)."
        )
        findings = evidence(cause, chart, ("broke", "blew_up", "stalled", "above_start"))
        others = [(other.key, s) for other, s in ranked if other is not cause and s > LEAST_LISTED]
        listed = self.answering.rank_all(cause.key, [(cause.key, score), *others], (), self.patient)
        return self.answering.examination(
            "sick",
            sentence,
            listed,
            findings,
            self.course.losses,
            code_of(fitted, chart, None),
        )

    def _without_cause(self, ranked: list[tuple[Cause, float]]) -> Examination:
        """The examination that names no cause: healthy where the training loss is clearly (by 5 %)
        below that of the best constant answer, else it cannot tell.

        Args:
            ranked: every cause that the records can show with its log-odds, likeliest first.
        """
        facts = self.chart.facts
        start, final, constant = facts.start, facts.final, facts.trivial
        unnamed = [(cause.key, min(s, MOST_UNNAMED)) for cause, s in ranked if s > LEAST_LISTED]
        listed = self.answering.rank_all("", unnamed, (), self.patient)
        fell = f"the training loss went from {start:.3g} to {final:.3g} in {self.past.steps} steps"
        if constant is None:
            reason = f"{fell}, and no constant answer can be computed to compare it with"
        elif math.isfinite(final) and final < constant - 0.05 * abs(constant):
            optimizer = type(self.patient.optimizer).__name__
            sentence = (
                f"Healthy, as far as training shows: {fell}; the best constant answer has "
                f"{constant:.3g}, and nothing in the records speaks against it. Keep your "
                f"{optimizer}. {UNSEEN_WORDS}"
            )
            return self.answering.examination("healthy", sentence, listed, [], self.course.losses)
        else:
            reason = (
                f"{fell}, not clearly below the best constant answer ({constant:.3g}), and no "
                "cause shows in the monitor's records"
            )
        return self.answering.cannot_tell(reason, listed, self.course.losses)


def _course(past: History) -> Course:
    """The course of the run as far as the monitor read it. Its losses, rates and norms may lie
    several steps apart. It broke where a weight or one of the last five losses is not finite.
    """
    losses, rates, norms = (
        [by_step[step] for step in sorted(by_step)]
        for by_step in (past.losses, past.rates, past.norms)
    )
    course = Course(losses, rates, norms, updates=past.steps)
    course.evaluating_modules = _always_evaluating(past)
    weights_finite = all(bool(p.detach().isfinite().all()) for p in past.model.parameters())
    if course.losses and not (weights_finite and all(map(math.isfinite, course.losses[-5:]))):
        not_finite = [step for step, loss in past.losses.items() if not math.isfinite(loss)]
        course.broke_at = min(not_finite, default=past.steps)
    _fill_moves(course, past)
    return course


def _fill_moves(course: Course, past: History) -> None:
    """Write into the course how far each parameter moves per step, and which ones stand still
    although they have a gradient, are in the optimizer, and the learning rate is above 0.

    The monitor reads the update of all parameters together. So each one that differs from the
    oldest kept state gets the median move of the run, and the others get 0.
    """
    moves = [move for move in past.moves.values() if math.isfinite(move)]
    if not moves:
        return
    oldest = past.states[0] if past.states else None  # none with memory=0
    first_values = {} if oldest is None else dict(zip(map(id, past.tensors), oldest.parameters))
    trained = {id(p) for group in past.optimizer.param_groups for p in group["params"]}
    # The rate is above 0 now, and steps were made since the oldest kept state.
    should_move = course.rates and course.rates[-1] > 0 and oldest and oldest.step < past.steps
    for name, p in past.model.named_parameters():
        still = id(p) in first_values and torch.equal(first_values[id(p)], p.detach())
        course.relative_moves[name] = 0.0 if still else median_high(moves)
        has_gradient = p.grad is not None and bool((p.grad.to_dense() != 0).any())
        if still and has_gradient and should_move and id(p) in trained:
            course.stuck_parameters.append(name)


def _always_evaluating(past: History) -> list[str]:
    """Modules that act otherwise in training, and were in evaluation mode in every kept state."""
    if not past.states:
        return []
    return [
        name
        for place, (name, module) in enumerate(past.model.named_modules())
        if isinstance(module, MODAL)
        and not any(state.training_modes[place] for state in past.states)
    ]


def _patient(past: History, course: Course) -> Patient:
    """The monitored run in the form that the readings take: its present model, its loss and its
    last ``READ`` different batches, numbered by their steps. Where fewer than two are kept, these
    are the monitor's own batches, numbered from 0. A rate that changed counts as a scheduler.
    """
    step_and_batch: dict[int, tuple[int, Any]] = {}  # id of a batch -> its first step, the batch
    for step in past.recent:
        for call in step.calls:
            if call.batch is not None:
                step_and_batch.setdefault(id(call.batch), (step.number, call.batch))
    chosen = list(step_and_batch.values())[-READ:]
    if len(chosen) < 2:
        chosen = list(enumerate(past.batches))
    rate_changes = len(set(course.rates)) > 1
    return Patient(
        getattr(past.model, "_orig_mod", past.model),  # of torch.compile
        past.loss,
        train=[batch for _, batch in chosen],
        valid=[],
        optimizer=past.optimizer,
        scheduler=SimpleNamespace() if rate_changes else None,
        given=frozenset({"optimizer", "step"}),
        numbers=[number for number, _ in chosen],
    )


@torch.no_grad()
def _restore_finite_weights(past: History) -> bool:
    """Where a weight of the model is not finite, write the weights and buffers of the newest kept
    state whose weights are all finite into it. Returns whether the weights are finite now.
    """
    parameters = list(past.model.parameters())
    if all(bool(p.isfinite().all()) for p in parameters):
        return True
    own_ids = set(map(id, parameters))  # ``past.tensors`` may hold others as well
    for state in reversed(past.states):
        if all(bool(value.isfinite().all()) for value in state.parameters):
            for tensor, value in zip(past.tensors, state.parameters, strict=True):
                if id(tensor) in own_ids:
                    tensor.copy_(value)
            for buffer, value in zip(past.model.buffers(), state.buffers, strict=True):
                buffer.copy_(value)
            return True
    return False
