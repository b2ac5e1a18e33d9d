"""``examine``: train for a short time, find the cause, try the cure, answer in one sentence.

The thresholds (the two numbers of a ``ramp``: strength 0 at the first, 1 at the second) were chosen
on the development cases of ``benchmarks/doctor``.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

import torch

from mindgap.advise.doctor.answer import (
    NAMED,
    Answering,
    certainty_words,
    code_of,
    evidence,
    fit_cause,
    loss_words,
    name_of,
)
from mindgap.advise.doctor.causes import Cause, rank_causes
from mindgap.advise.doctor.chart import Chart, FindingName, ramp
from mindgap.advise.doctor.controls import constant_loss, cross_ranks, plain_network
from mindgap.advise.doctor.course import Course, follow, held_out_loss
from mindgap.advise.doctor.course_readings import (
    progress,
    read_bounded_loss,
    read_break,
    read_curve,
    read_end,
    read_error,
    read_labels,
    read_loop,
    read_step,
)
from mindgap.advise.doctor.cure_trials import CureTrials
from mindgap.advise.doctor.data_readings import read_data
from mindgap.advise.doctor.differential import LEAST_LISTED, MOST_UNNAMED, Ranked
from mindgap.advise.doctor.further import READINGS
from mindgap.advise.doctor.model_readings import (
    layers,
    read_forward,
    read_gradients,
    read_modes,
    read_optimizer,
    read_parameters,
    read_start,
    unregistered,
    weight_of,
)
from mindgap.advise.doctor.page import Examination, Trial
from mindgap.advise.doctor.patient import Admission, BatchesError, Patient
from mindgap.advise.training import Factory, untouched_randomness
from mindgap.base.batches import pair
from mindgap.base.check import RuleError, error_words, fail, positive, whole

#: Steps of one run, at most.
STEPS = 240
#: Steps of one run, at least; of a slow one, whose steps take more than a tenth of a second.
FEWEST, FEWEST_SLOW = 80, 20
#: Share of the time that the first run may take.
FIRST = 0.2
#: Log-odds above which findings alone name a cause clearly.
CLEAR = 2.5
#: Log-odds that a cure adds to its cause if it helps, and that a cause loses if none does.
PROVEN, UNPROVEN = 2.0, 1.5
#: Cures that are tried at most.
MOST_TRIED = 4
#: Progress (1: from the constant answer's loss to 0) by which a plain network may be ahead of a
#: healthy run; below which it has learned nothing; and below which the user's run has.
BEHIND, LEARNED_NOTHING, LEARNED_LITTLE = 0.45, 0.03, 0.05


def examine(
    problem: Factory,
    *,
    seconds: float = 20.0,
    seed: int = 0,
    told: Callable[[str, float], Any] | None = None,
) -> Examination:
    """Find out what is wrong with a training run, and prove it by trying the cure on a copy.

    Args:
        problem: function that builds the training afresh, with or without a parameter ``seed``. It
            returns ``((model, loss), batches)``, and behind them, in any order, what you have of:
            validation batches, your optimizer, your scheduler (stepped once per batch) and your own
            ``step(batch)``, which trains on one batch and returns the loss. Or a mapping with the
            names ``model``, ``loss``, ``train``, ``valid``, ``optimizer``, ``scheduler``, ``step``.
            Mistakes of a loop are seen only if ``step`` is given. Without an optimizer AdamW at
            1e-3 is used, and the learning rate is not judged.
        seconds: aim to be done within this time. Where other programs take the processor away,
            the time of the processor counts, and the clock may show up to three times as much;
            what was left out is said in ``shortened``.
        seed: names all random numbers.
        told: called with what is being done and the share of the time that is gone.

    Raises:
        RuleError: ``problem`` does not return what is described above.

    Example:
        >>> def problem():
        ...     model = torch.nn.Linear(4, 1)
        ...     batches = list(torch.randn(30, 16, 4, generator=torch.Generator().manual_seed(0)))
        ...     loss = lambda model, x: (model(x) - x.sum(1, keepdim=True)).square().mean()
        ...     return (model, loss), batches, torch.optim.SGD(model.parameters(), lr=5.0)
        >>> answer = examine(problem, seconds=5)
        >>> answer.verdict, answer.cause
        ('sick', 'lr_too_large')
    """
    positive("seconds", seconds)
    whole("seed", seed)
    if told is not None and not callable(told):
        fail("told", "must be a function or None", told)
    with untouched_randomness(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of trials and probes; readings say what matters
        return _Doctor(problem, seconds, seed, told or (lambda text, share: None)).answer()


class _Clock:
    """Seconds of work: on a busy machine the processor's, but at least a third of the wall's."""

    def __init__(self) -> None:
        self._wall, self._processor = time.perf_counter(), time.process_time()

    def elapsed(self) -> float:
        """Seconds of work since the clock was made."""
        wall = time.perf_counter() - self._wall
        return max(min(wall, time.process_time() - self._processor), wall / 3)

    def share(self) -> float:
        """Processor seconds per second of the wall clock, at most 1."""
        wall = time.perf_counter() - self._wall
        return min(1.0, (time.process_time() - self._processor) / max(wall, 1e-9))


class _CannotTell(Exception):
    """Ends an examination early: the user's code fails, or there is nothing to train."""

    def __init__(self, reason: str, losses: Sequence[float] = (), *, raised: bool = True) -> None:
        super().__init__(reason)
        self.reason = reason
        self.losses = losses  # of the training up to here
        self.raised = raised  # whether the user's code raised an error


@dataclass(frozen=True)
class _Named:
    """The cause that the answer names."""

    cause: Cause
    score: float  # log-odds
    trial: Trial | None


class _Doctor:
    """One examination: readings, the first run, controls, trials of cures, the answer."""

    def __init__(
        self, problem: Factory, seconds: float, seed: int, report: Callable[[str, float], Any]
    ) -> None:
        self.begun_at = time.perf_counter()
        self.clock = _Clock()
        self.seconds = seconds
        self.admission = Admission(problem, seed)
        self.chart = Chart()
        self.report = report
        self.steps = STEPS  # of every run; fewer where steps are slow (``_first_run``)
        self.untried_cures = 0  # for which no time was left
        self.failed: list[Trial] = []  # trials of cures that did not help
        self.refuted: set[str] = set()  # causes that these trials speak against

    def time_left(self) -> float:
        """Seconds of work that remain; below zero where they are used up."""
        return self.seconds - self.clock.elapsed()

    def say(self, text: str) -> None:
        """Tell the caller what is being done, with the share of the time that is gone."""
        self.report(text, min(1.0, 1 - self.time_left() / self.seconds))

    def answer(self) -> Examination:
        """Read what shows before training, train as the user does, compare with a plain network,
        and judge. Returns the examination, also where the user's code fails.
        """
        try:
            self.say("reading the start")
            first = self._build_first_copy()
            self._check_loss(first)
            self._read_start(first)
            self.say("training as you do")
            trained, course = self._first_run()
            self._read_first_run(trained, course)
            self.chart.attempt(
                "the comparison with a plain network", self._compare_with_plain_network
            )
        except _CannotTell as stop:
            self.chart.facts.raised = stop.raised
            return self._answering().cannot_tell(stop.reason, [], stop.losses)
        return self._judge(trained, course)

    # The start.

    def _build_first_copy(self) -> Patient:
        """Build the user's training once and return it. Its first weights become a fact, and the
        clock starts anew afterwards.

        Raises:
            _CannotTell: the user's function raises an error, or there is nothing to train.
        """
        first = self._fresh_copy("your function")
        if not first.named_parameters and not list(unregistered(first.model)):
            raise _CannotTell("your model has no parameters to train", raised=False)
        self.clock = _Clock()  # torch's own imports and the user's data are not ours
        self.chart.facts.first_state = {
            name: value.detach().clone() for name, value in first.model.state_dict().items()
        }
        return first

    def _fresh_copy(self, subject: str = "your function, called again,") -> Patient:
        """Build the user's training and return it.

        Args:
            subject: of the reason's sentence where the user's function raises.

        Raises:
            _CannotTell: the user's function raises an error.
        """
        try:
            return self.admission.fresh()
        except RuleError:
            raise
        except BatchesError as error:
            raise _CannotTell(f"your batches '{error.name}' raise {error}") from error
        except (Exception, SystemExit) as error:  # the user's own code
            raise _CannotTell(f"{subject} raises {error_words(error)}") from error

    def _check_loss(self, first: Patient) -> None:
        """Call the loss on the first batch and on the validation batches. An error on the first
        batch that a reading explains becomes a finding.

        Raises:
            _CannotTell: the loss raises any other error.
        """
        try:
            with torch.no_grad():
                first.value(first.train[0])
        except RuleError:
            raise
        except (Exception, SystemExit) as error:
            read_error(self.chart, Course(error=error))
            if not self.chart.findings:
                reason = f"the loss raises {error_words(error)} on the first batch"
                raise _CannotTell(reason) from error
        if "valid" in first.given and first.valid:
            try:
                valid_loss = held_out_loss(first)
            except RuleError:
                raise
            except (Exception, SystemExit) as error:
                reason = f"the loss raises {error_words(error)} on your validation batches"
                raise _CannotTell(reason) from error
            if math.isfinite(valid_loss):
                return
            train_loss = self.chart.attempt(
                "the first loss", lambda: held_out_loss(first, first.train)
            )
            if train_loss is not None and math.isfinite(train_loss):
                reason = (
                    "before training the loss on your validation batches is not finite, and on "
                    f"your training batches it is {train_loss:.3g}"
                )
                raise _CannotTell(reason, raised=False)

    def _read_start(self, first: Patient) -> None:
        """Make all readings that need no training, also those of causes with a file of their own,
        and note the loss of the best constant answer as the fact ``trivial``.
        """
        chart = self.chart
        readings: dict[str, Callable[[Chart, Patient], None]] = {
            "the data": read_data,
            "the parameters": read_parameters,
            "the first weights": read_start,
            "the optimizer": read_optimizer,
            "the forward pass": read_forward,
            "the gradients": read_gradients,
            "the modes": read_modes,
            "the slope of the loss": read_bounded_loss,
        }
        for subject, read in readings.items():
            chart.attempt(subject, partial(read, chart, first))
        for cause_key, module in READINGS.items():
            chart.attempt(cause_key, partial(_read_with, module, chart, first))
        chart.facts.trivial = chart.attempt("the constant answer", lambda: constant_loss(first))

    # The first run.

    def _first_run(self) -> tuple[Patient, Course]:
        """Train as the user does, for as many steps as a fifth of the time allows, and return the
        trained copy and its course. The number of steps becomes ``self.steps``, the length of every
        later run, and a fact. It follows from the time of four steps after two others.

        Raises:
            _CannotTell: the user's function raises an error when it is called again.
        """
        warming_up = self._fresh_copy()
        follow(warming_up, 2)  # libraries are loaded, kernels compiled
        timed = warming_up if warming_up.step is None else self._fresh_copy()
        clock = _Clock()
        follow(timed, 4)
        seconds_per_step = clock.elapsed() / 4
        affordable = int(FIRST * self.seconds / max(seconds_per_step, 1e-6))
        fewest = FEWEST if seconds_per_step < 0.1 else FEWEST_SLOW
        self.steps = max(fewest, min(STEPS, affordable))
        self.chart.facts.steps = self.steps
        trained = self._fresh_copy()
        return trained, follow(trained, self.steps, watch=True)

    def _read_first_run(self, trained: Patient, course: Course) -> None:
        """Make all readings that need the first run. After an error of the user's code these are
        only those of the loop and the step.

        Raises:
            _CannotTell: the user's code raised an error that no reading explains.
        """
        chart = self.chart
        if course.error is not None:
            read_error(chart, course)
            if not chart.has_any("no_graph", "batch_of_one", "labels_outside"):
                reason = f"your code raises {error_words(course.error)} at step {course.error_step}"
                if isinstance(course.error, RuleError):  # what it returns breaks a rule of ours
                    reason = f"{course.error}, at step {course.error_step}"
                raise _CannotTell(reason, course.losses)
        self._check_returned_losses(trained, course)
        # The least progress that there is, unless ``read_curve`` notes another one.
        chart.facts.start, chart.facts.progress = _first_loss(course), -1.0
        if course.error is None:
            chart.attempt("the curve", lambda: read_curve(chart, trained, course))
        chart.attempt("the loop", lambda: read_loop(chart, trained, course))
        if course.error is None:
            chart.attempt("the end of the run", lambda: read_end(chart, trained, course))
            ranks = chart.attempt("the labels", lambda: cross_ranks(trained, min(200, self.steps)))
            if ranks is not None:
                chart.attempt("the labels", lambda: read_labels(chart, *ranks))
        if course.broke_at >= 0:
            chart.attempt("the break", lambda: read_break(chart, self.admission.fresh(), course))
        chart.attempt("the step", lambda: read_step(chart, self.admission.fresh()))

    def _check_returned_losses(self, trained: Patient, course: Course) -> None:
        """Refuse losses that the user's own step returns and that are never finite, where the
        user's loss is: they say nothing about the training.

        Raises:
            _CannotTell: no loss that the step returned is finite, and the loss on the first batch
                is.
        """
        if trained.step is None or any(map(math.isfinite, course.losses)):
            return
        batch = trained.train[:1]
        loss = self.chart.attempt("the loss after training", lambda: held_out_loss(trained, batch))
        if course.losses and loss is not None and math.isfinite(loss):
            reason = (
                f"your step returns {course.losses[0]:g} where your loss is {loss:.3g}; let it "
                "return the loss of its batch or None"
            )
            raise _CannotTell(reason, course.losses, raised=False)

    # Controls.

    def _compare_with_plain_network(self) -> None:
        """Train a plain network on the same samples, without the bad batches, and note its loss as
        the fact ``control`` and its lead in progress as the fact ``behind``.

        Where it learns nothing either, the targets are looked at: are they shifted, or do they not
        follow from the inputs? Where it is ahead, the user's model is: has its loss settled, and is
        it narrow?
        """
        chart = self.chart
        patient = self.admission.fresh()
        bad_batches = set(chart.facts.bad_batches)
        patient.train = [batch for i, batch in enumerate(patient.train) if i not in bad_batches]
        steps = min(300, max(60, self.steps))  # as long as the user's run, within bounds
        plain_loss = chart.attempt("the plain network", lambda: plain_network(patient, steps))
        chart.facts.control = plain_loss
        if plain_loss is None or chart.facts.trivial is None:
            return
        plain_progress = progress(chart, plain_loss)
        # Where one of these explains that nothing is learned, the targets are not doubted.
        explained = chart.has_any(
            "softmax_over_batch", "broadcasts", "no_graph", "half_overflow", "nan_op"
        )
        both_learned_nothing = (
            plain_progress < LEARNED_NOTHING and chart.facts.progress < LEARNED_LITTLE
        )
        if both_learned_nothing and not explained:
            if self._targets_are_shifted(patient, steps, plain_loss):
                return
            self._compare_with_shuffled_targets(patient, steps, plain_loss)
        chart.facts.behind = plain_progress - chart.facts.progress
        if chart.facts.behind > 0.1:
            chart.find(
                "control_better",
                ramp(chart.facts.behind, zero_at=0.1, one_at=0.3),
                f"A plain network with 128 units reaches {plain_loss:.3g} on the same samples.",
            )
            self._read_settling(plain_loss)
            self._read_width(patient)

    def _targets_are_shifted(self, patient: Patient, steps: int, plain_loss: float) -> bool:
        """Whether a plain network learns once the targets are shifted by one sample, forwards or
        back. If so, that becomes a finding, and the shift a fact.

        Args:
            steps: of each training.
            plain_loss: loss of the plain network without a shift.
        """
        chart = self.chart
        for shift in (1, -1):
            train_shifted = partial(plain_network, patient, steps, shift=shift)
            shifted = chart.attempt("shifted targets", train_shifted)
            if shifted is not None and progress(chart, shifted) > 0.1:
                neighbour = "next" if shift < 0 else "previous"
                text = (
                    f"Targets fit the inputs of the {neighbour} sample: a plain network reaches "
                    f"{shifted:.3g} with them moved, {plain_loss:.3g} without."
                )
                chart.facts.shift = shift
                chart.find("shift_found", 1.0, text)
                return True
        return False

    def _compare_with_shuffled_targets(
        self, patient: Patient, steps: int, plain_loss: float
    ) -> None:
        """Add the finding that the targets do not follow from the inputs. Its sentence also says
        what a plain network reaches on shuffled targets, which becomes the fact ``shuffled``.

        Args:
            plain_loss: loss of a plain network on the targets as they are.
        """
        chart = self.chart
        text = (
            f"A plain network reaches {plain_loss:.3g} on held-out data; a constant answer has "
            f"{chart.facts.trivial:.3g}: the targets do not follow from the inputs"
        )
        shuffled = chart.attempt(
            "shuffled targets", lambda: plain_network(patient, steps, shuffled=True)
        )
        if shuffled is not None:
            chart.facts.shuffled = shuffled
            text += f"; with shuffled targets it reaches {shuffled:.3g}"
        chart.find(
            "labels_carry_nothing",
            ramp(progress(chart, plain_loss), zero_at=0.03, one_at=0.015),
            f"{text}.",
        )

    def _read_settling(self, plain_loss: float) -> None:
        """Find a training loss that has stopped falling above what a plain network reaches: its
        fall from the third to the last quarter is small beside what is left to fall.
        """
        third_quarter, last_quarter = self.chart.facts.late_means
        fall = (third_quarter - last_quarter) / max(last_quarter - plain_loss, 1e-12)
        if last_quarter > plain_loss and math.isfinite(fall):
            self.chart.find(
                "settled",
                ramp(fall, zero_at=0.15, one_at=0.05),
                f"The training loss has settled: {third_quarter:.3g}, then {last_quarter:.3g}.",
            )

    def _read_width(self, patient: Patient) -> None:
        """Find a model without a hidden layer or with one of at most four units. The width of the
        narrowest layer becomes a fact; it is 0 without a hidden layer.
        """
        chart, model = self.chart, patient.model
        widths = [len(weight_of(module)) for _, module in layers(model)]
        outputs = chart.facts.output[-1] if chart.facts.output else 0
        if outputs in widths:
            widths.remove(outputs)  # the last layer, wherever it is declared
        widths += [m.hidden_size for m in model.modules() if isinstance(m, torch.nn.RNNBase)]
        chart.facts.narrowest = min(widths, default=0)
        targets = pair(patient.train[0])[1]  # without targets a narrow layer is meant
        if targets is not None and (not widths or min(widths) <= 4):
            narrowness = "no hidden layer" if not widths else f"a layer of {min(widths)} units"
            count = sum(p.numel() for p in model.parameters())
            chart.find("few_units", 1.0, f"The model has {narrowness} ({count} weights).")

    # The judgement.

    def _judge(self, trained: Patient, course: Course) -> Examination:
        """Try learning rates, unless the findings name a cause clearly, and then cures. Returns the
        examination with the cause that a cure proves; where none does and the run is sick, with the
        clearest one; else without a cause.

        Args:
            trained: the user's training after the first run.
            course: of the first run.
        """
        chart = self.chart
        trials = CureTrials(self.admission, chart, trained, self.steps, self.time_left)
        if course.error is None:
            self.say("trying learning rates")
            scores = (  # of causes other than too small a model and overfitting, the highest first
                score
                for cause, score in rank_causes(chart.findings)
                if cause.key not in ("underfitting", "overfitting")
            )
            if next(scores, -math.inf) < CLEAR:
                trials.compare_learning_rates(course)
                trials.compare_clipping()
        self.say("trying cures")
        named = self._prove_a_cause(trials)
        self.untried_cures = trials.untried_cures
        if named is None and self._is_sick():
            named = self._clearest_unproven()
        ranked = self._rank_all(named, trained)
        if named is not None:
            return self._sick(named, ranked, course)
        return self._without_cause(trained, ranked, course)

    def _prove_a_cause(self, trials: CureTrials) -> _Named | None:
        """Try the cures of the likeliest causes, ``MOST_TRIED`` at most, one after the other.

        Returns the first cause whose cure helps, cannot be tried or need not help; None where none
        is left. Failed trials are appended to ``self.failed``, their causes to ``self.refuted``.
        """
        chart = self.chart
        tried = 0
        for cause, score in rank_causes(chart.findings):
            if score < NAMED or tried >= MOST_TRIED:
                break
            if cause.key == "wrong_axis" and self._mixes_on_purpose():
                continue
            fitted = fit_cause(cause, chart)
            trial = None
            if fitted.cure:
                trial = trials.try_cure(fitted)
                tried += 1
            if trial is None:
                # A cure that cannot be applied refutes a cause that the findings name weakly.
                if cause.proof and fitted.cure and score < 2:
                    self.refuted.add(cause.key)
                    continue
                return _Named(fitted, score, None)
            if trial.helps:
                return _Named(fitted, score + PROVEN, trial)
            self.failed.append(trial)
            # Tensors of another model in the optimizer are a fault whatever the loss does.
            foreign = cause.key == "optimizer_other_parameters" and chart.has("foreign")
            if not fitted.proof or foreign:
                return _Named(fitted, score, None)
            self.refuted.add(cause.key)
        return None

    def _mixes_on_purpose(self) -> bool:
        """Whether samples depend on each other, nothing else is odd, and the model learns."""
        chart = self.chart
        fault = chart.has_any("softmax_over_batch", "broadcasts")
        return not fault and chart.facts.progress > 0.3

    def _is_sick(self) -> bool:
        """Whether the run learned next to nothing, broke, or is far behind a plain network."""
        chart = self.chart
        behind = chart.findings.get("control_better")
        far_behind = behind is not None and behind.strength > 0.3
        return far_behind or chart.facts.progress < LEARNED_LITTLE or chart.has("broke")

    def _clearest_unproven(self) -> _Named | None:
        """The cause that the findings name most clearly, where no cure helped: one whose cure
        failed or that has none. Its score is lowered. None where no cause is clear.
        """
        for cause, score in rank_causes(self.chart.findings):
            if score > CLEAR and (cause.key in self.refuted or not cause.cure):
                failed = next((trial for trial in self.failed if trial.cause == cause.key), None)
                # At most 0.5 above the border, so that it is called possible and no more.
                return _Named(cause, min(score, CLEAR + 0.5) - UNPROVEN, failed)
        return None

    def _rank_all(self, named: _Named | None, trained: Patient) -> Ranked:
        """The named cause, then all others that remain possible, likeliest first, as (key,
        log-odds). Where no cause is named, the log-odds are at most ``MOST_UNNAMED``.
        """
        key = "" if named is None else named.cause.key
        ranked = [] if named is None else [(key, named.score)]
        for cause, score in rank_causes(self.chart.findings):
            if score > LEAST_LISTED and cause.key != key:
                ranked.append((cause.key, score if key else min(score, MOST_UNNAMED)))
        return self._answering().rank_all(key, ranked, self.refuted, trained)

    # Answers.

    def _sick(self, named: _Named, ranked: Ranked, course: Course) -> Examination:
        """The examination that names a cause, with its signs, its change and what the trial on a
        copy gave.

        Args:
            ranked: (key, log-odds) of every cause to list.
            course: of the first run, whose losses are drawn.
        """
        cause, trial, chart = named.cause, named.trial, self.chart
        change, proof = cause.change, ""
        if trial is not None:
            before, after = loss_words(trial.before), loss_words(trial.after)
            outcome = "tried on a copy" if trial.helps else "alone, this did not help on a copy"
            if cause.cure == "inner":  # ``fit_inner_targets`` leaves outliers out
                outcome += ", judged without the outliers"
            proof = f" ({outcome}: loss at step {trial.steps} {before} → {after})"
            if cause.cure in ("slower", "faster"):
                lr = chart.facts.lr
                change = f"{change} from {lr:.3g} to {lr * trial.variant:.3g}"
        sentence = f"{certainty_words(named.score)} {name_of(cause, chart)}; {change}{proof}."
        # What the curve shows is listed behind the signs of the cause.
        curve: list[FindingName] = ["broke", "blew_up"]
        if not chart.has_any("broke", "blew_up"):
            curve.append("stalled")
        curve.append("above_start")
        signs = evidence(cause, chart, curve)
        return self._answering().examination(
            "sick",
            sentence,
            ranked,
            signs,
            course.losses,
            code_of(cause, chart, trial),
            trial,
        )

    def _without_cause(self, trained: Patient, ranked: Ranked, course: Course) -> Examination:
        """The examination that names no cause. It is healthy where the loss fell clearly below that
        of the best constant answer and not far behind a plain network. Where no constant answer is
        known, it is healthy where the loss fell clearly below its start. Else it cannot tell.
        """
        facts = self.chart.facts
        start, final, constant = facts.start, facts.final, facts.trivial
        fell = f"the loss fell from {start:.3g} to {final:.3g} in {self.steps} steps"
        if course.held_out_error:
            reason = f"in evaluation mode the loss raises {course.held_out_error}"
            return self._answering().cannot_tell(reason, ranked, course.losses)
        if constant is None:
            if math.isfinite(final) and final < start - 0.05 * abs(start):
                reason = f"{fell} (no constant answer to compare with)"
                return self._healthy(reason, trained, ranked, course)
            reason = f"the loss does not fall ({start:.3g} to {final:.3g}) and no cause fits"
        elif not (math.isfinite(final) and final < constant - 0.02 * abs(constant)):
            reason = (
                f"the loss ends at {final:.3g}, not below the best constant answer "
                f"({constant:.3g}), and no cause that was tried explains it"
            )
        # Without an optimizer of the user's the distance may be due to the one made here.
        elif facts.behind > BEHIND and "optimizer" in trained.given:
            reason = (
                f"the loss fell to {final:.3g} and a plain network with 128 units reaches "
                f"{facts.control:.3g} on the same samples, and no cause that was tried explains "
                "it"
            )
        else:
            reason = f"{fell}; the best constant answer has {constant:.3g}"
            return self._healthy(reason, trained, ranked, course)
        return self._answering().cannot_tell(reason, ranked, course.losses)

    def _healthy(
        self, reason: str, trained: Patient, ranked: Ranked, course: Course
    ) -> Examination:
        """The examination of a run that learns, with the reason to think so, and the advice to keep
        the user's optimizer where they gave one.
        """
        optimizer = f"your {type(trained.optimizer).__name__}"
        advised = optimizer if "optimizer" in trained.given else "what you have"
        sentence = f"Healthy: {reason}, and nothing speaks against it. Keep {advised}."
        return self._answering().examination("healthy", sentence, ranked, [], course.losses)

    def _answering(self) -> Answering:
        """Note among the facts which cures failed and what was left out, and return the maker of
        the answer.
        """
        facts = self.chart.facts
        facts.refused = [(t.cause, t.variant, t.before, t.after) for t in self.failed]
        facts.shortened = self._shortened()
        return Answering(self.chart, self.begun_at)

    def _shortened(self) -> str:
        """What the time did not suffice for, why, and how to give more, in words; empty where
        nothing was left out.
        """
        missing = []
        if self.steps < STEPS:
            missing.append(f"runs have {self.steps} steps, not {STEPS}")
        if self.untried_cures:
            missing.append("cures are left untried")
        if not missing:
            return ""
        share = self.clock.share()  # of a core that this program had
        reason = f"{self.seconds:g} s are short for this model"
        if share < 0.7:
            reason = f"The machine is busy ({share:.0%} of a core was free)"
        return f"{reason}: {' and '.join(missing)}. --seconds {3 * self.seconds:g} gives more time."


def _read_with(module: str, chart: Chart, patient: Patient) -> None:
    """Call the ``read`` of a cause that has a file of its own."""
    import_module(module).read(chart, patient)


def _first_loss(course: Course) -> float:
    """The held-out loss before training; where it is not finite, the first finite training loss."""
    if course.held_out_losses and math.isfinite(course.held_out_losses[0][1]):
        return course.held_out_losses[0][1]
    return next((loss for loss in course.losses if math.isfinite(loss)), math.inf)
