"""A monitored run equals the unmonitored run bit for bit; probes together equal each alone;
readings are right.
"""

from __future__ import annotations

import copy
import math
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from mindgap.base.check import RuleError
from mindgap.base.objective import Objective
from mindgap.measure import monitor as module
from mindgap.measure.gradients import NonFiniteError
from mindgap.measure.monitor import Monitor
from mindgap.measure.probe import Probe, Reading
from mindgap.measure.probes.curvature import sharpness
from mindgap.measure.probes.noise import noise_sample
from mindgap.measure.probes.smoothness import local_smoothness
from mindgap.measure.table import DEFAULT_PROBES, PROBES
from mindgap.measure.watch import LoopWatch
from mindgap.record.store import read_run

DATA = torch.randn(96, 6, generator=torch.Generator().manual_seed(5)).double()
LABELS = torch.randint(0, 3, (96,), generator=torch.Generator().manual_seed(6))


def cross_entropy(model, batch):
    return F.cross_entropy(model(batch[0]), batch[1])


def build(optimizer: str = "SGD"):
    torch.manual_seed(7)
    model = nn.Sequential(
        nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 3)
    ).double()
    settings = {"SGD": {"lr": 0.1, "momentum": 0.9}, "Adam": {"lr": 0.01}}[optimizer]
    return model, getattr(torch.optim, optimizer)(model.parameters(), **settings)


def train(model, optimizer, steps: int = 12) -> None:
    """A loop that uses every global random state, clips, and leaves gradients behind."""
    data = torch.utils.data.TensorDataset(DATA, LABELS)
    loader = torch.utils.data.DataLoader(data, batch_size=16, shuffle=True)
    model.train()
    done = 0
    while done < steps:
        for batch in loader:
            optimizer.zero_grad()
            loss = cross_entropy(
                model, (batch[0] + 0.01 * np.random.randn() + 0.01 * random.random(), batch[1])
            )
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
            done += 1
            if done == steps:
                break


def fingerprint(model, optimizer) -> list:
    """Everything a run leaves behind."""
    tensors = [v.clone() for v in model.state_dict().values()]
    tensors += [p.grad.clone() for p in model.parameters()]
    for p in model.parameters():
        tensors += [v.clone() for v in optimizer.state[p].values() if isinstance(v, torch.Tensor)]
    tensors.append(torch.get_rng_state())
    return [
        *tensors,
        random.getstate(),
        np.random.get_state()[1].tolist(),
        [m.training for m in model.modules()],
    ]


def assert_same(a: list, b: list) -> None:
    assert len(a) == len(b)
    for x, y in zip(a, b):
        assert torch.equal(x, y) if isinstance(x, torch.Tensor) else x == y


def run(optimizer: str = "SGD", **options):
    random.seed(1), np.random.seed(2), torch.manual_seed(3)
    model, opt = build(optimizer)
    random.seed(1), np.random.seed(2), torch.manual_seed(3)
    readings = []
    if options:
        data = torch.utils.data.TensorDataset(DATA, LABELS)
        loader = torch.utils.data.DataLoader(data, batch_size=24, shuffle=True)
        with Monitor(opt, Objective(model, cross_entropy), loader, **options) as watching:
            train(model, opt)
        readings = watching.readings
    else:
        train(model, opt)
    return fingerprint(model, opt), readings


@pytest.mark.parametrize("optimizer", ["SGD", "Adam"])
@pytest.mark.parametrize(
    "options", [{"every": 3}, {"every": 4, "probes": list(PROBES)}, {"budget": 1.0}]
)
def test_monitored_equals_unmonitored(optimizer: str, options: dict) -> None:
    plain, _ = run(optimizer)
    watched, readings = run(optimizer, **options)
    assert_same(plain, watched)
    if "every" in options:
        assert [row["step"] for row in readings] == list(range(0, 12, options["every"]))


def without_clock(row: dict) -> dict:
    # NaN ("cannot tell") is equal to NaN here
    return {k: repr(v) for k, v in row.items() if k != "seconds"}


def test_all_probes_together_equal_each_alone() -> None:
    _, together = run(every=3, probes=list(PROBES))
    merged: list[dict] = [{} for _ in together]
    for name in PROBES:
        _, alone = run(every=3, probes=[name])
        for row, part in zip(merged, alone, strict=True):
            row.update(without_clock(part))
    assert merged == [without_clock(row) for row in together]
    assert all(any(key.startswith(name) for key in merged[0]) for name in PROBES)


def test_readings_are_what_the_functions_say_at_that_point() -> None:
    """Probes before the step see x_k, those of the update see x_k and d; the loop's clipping is
    not in them.
    """
    torch.manual_seed(0)
    model = nn.Linear(6, 3).double()
    objective = Objective(model, cross_entropy)
    batches = [(DATA[:48], LABELS[:48]), (DATA[48:], LABELS[48:])]
    opt = torch.optim.SGD(model.parameters(), lr=0.5)
    watching = Monitor(opt, objective, batches, every=1)
    for _ in range(3):
        opt.zero_grad()
        cross_entropy(model, batches[0]).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
        before = [p.detach().clone() for p in model.parameters()]
        noise = noise_sample(objective, batches)
        sharp = sharpness(objective, batches, optimizer=opt, tol=1e-10)
        opt.step()
        update = [p.detach() - b for p, b in zip(model.parameters(), before)]
        with torch.no_grad():
            for p, b in zip(model.parameters(), before):
                p.copy_(b)
        smooth = local_smoothness(objective, batches, update)
        with torch.no_grad():
            for p, d in zip(model.parameters(), update):
                p.add_(d)
        row = watching.readings[-1]
        assert row["noise_level"] == noise.variance**0.5
        assert row["noise_mean_norm"] == noise.mean_norm
        assert row["sharpness_value"] == pytest.approx(sharp.value, rel=2e-2)
        assert row["sharpness_threshold"] == pytest.approx(4.0)
        assert row["smoothness_value"] == pytest.approx(smooth.value, rel=1e-9)
        assert row["update_norm"] == pytest.approx(
            0.5 * 1e-3, rel=1e-3
        )  # lr times the clipped norm
    watching.close()
    opt.step()
    assert len(watching.readings) == 3


class FakeClock:
    """Seconds that pass only when told."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now


@pytest.mark.parametrize("budget", [0.05, 0.2])
def test_budget_is_kept_by_choosing_the_cadence(
    monkeypatch: pytest.MonkeyPatch, budget: float
) -> None:
    clock = FakeClock()
    monkeypatch.setattr(module, "time", clock)

    class Dear(Probe):
        name, needs = "dear", frozenset({"gradients"})

        def read(self, at: Reading) -> dict[str, float]:
            clock.now += 40.0 + 10 * (at.step % 3)  # what it says to cost, and more
            return {"x": 1.0}

        def cost(self, batches: int) -> float:
            return 30.0

    class Cheap(Probe):
        name, needs = "cheap", frozenset({"update"})

        def read(self, at: Reading) -> dict[str, float]:
            clock.now += 0.5
            return {"x": 1.0}

    model = nn.Linear(6, 3).double()
    opt = torch.optim.SGD(model.parameters(), lr=0.0)
    batches = [(DATA[:48], LABELS[:48]), (DATA[48:], LABELS[48:])]
    watching = Monitor(
        opt, Objective(model, cross_entropy), batches, [Dear(), Cheap()], budget=budget
    )
    worst = 0.0
    for _ in range(12_800):
        clock.now += 1.0
        opt.step()
        worst = max(worst, watching.spent - budget * watching.training)
    dear = [row["step"] for row in watching.readings if "dear_x" in row]
    cheap = [row["step"] for row in watching.readings if "cheap_x" in row]
    assert (
        worst <= 61.0
    )  # the first reading was not timed yet; a later one may cost 20 more than the one before
    assert (
        watching.spent >= 0.7 * module.PLANNED * budget * watching.training
    )  # and the budget is used
    assert len(dear) >= 3
    assert len(cheap) > len(dear)
    assert min(np.diff(cheap)) >= 10


def test_budget_and_every_together_read_at_multiples_only() -> None:
    _, readings = run(every=2, budget=1.0, probes=["update"])
    assert readings
    assert all(row["step"] % 2 == 0 for row in readings)
    assert all(row["step"] > 0 for row in readings if "update_norm" in row)


def test_a_nan_is_a_reading_with_a_sentence_and_training_goes_on() -> None:
    model = nn.Linear(6, 3).double()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)

    def loss(m, b):
        return cross_entropy(m, b) * (float("nan") if m.bias[0] > 0.5 else 1.0)

    batches = [(DATA[:48], LABELS[:48]), (DATA[48:], LABELS[48:])]
    with Monitor(opt, Objective(model, loss), batches, every=1) as watching:
        for bias in (0.0, 1.0, 0.0):
            with torch.no_grad():
                model.bias.fill_(bias)
            opt.step()
    assert "problem" not in watching.readings[0]
    assert watching.readings[1]["problem"].startswith("loss must be finite")
    assert "sharpness_value" in watching.readings[2]


def test_an_error_or_ctrl_c_inside_a_probe_leaves_the_model_as_it_was() -> None:
    class Interrupted(Probe):
        name, needs = "interrupted", frozenset({"gradients", "update"})

        def read(self, at: Reading) -> dict[str, float]:
            for item in at.passes.gradients():
                with at.passes.moved(item.gradient, 1.0):
                    raise KeyboardInterrupt
            return {}

    model, opt = build()
    train(model, opt, 3)
    other, twin = build()
    other.load_state_dict(model.state_dict())
    twin.load_state_dict(copy.deepcopy(opt.state_dict()))
    for p, q in zip(model.parameters(), other.parameters()):
        q.grad = p.grad.clone()
    state = torch.get_rng_state()
    batches = [(DATA[:48], LABELS[:48]), (DATA[48:], LABELS[48:])]
    watching = Monitor(opt, Objective(model, cross_entropy), batches, [Interrupted()], every=1)
    with pytest.raises(KeyboardInterrupt):
        opt.step()
    twin.step()  # the step itself had been made
    for a, b in zip(model.state_dict().values(), other.state_dict().values()):
        assert torch.equal(a, b)
    for p, q in zip(model.parameters(), other.parameters()):
        assert torch.equal(p.grad, q.grad)
    assert torch.equal(torch.get_rng_state(), state)
    watching.close()


def test_readings_go_to_a_record_to_tensorboard_and_to_a_function(tmp_path: Path) -> None:
    class Writer:
        def __init__(self) -> None:
            self.scalars: list = []

        def add_scalar(self, tag, value, step) -> None:
            self.scalars.append((tag, value, step))

    writer, rows = Writer(), []
    _, readings = run(
        every=6, to=[tmp_path, writer, rows.append], name="first", probes=["noise", "update"]
    )
    assert rows == readings
    (path,) = tmp_path.glob("monitor/first/*.jsonl")
    record = read_run(path)
    assert record.done
    assert record.column("noise_level") == [row["noise_level"] for row in readings]
    assert (path.parent / "study.json").exists()
    assert ("mindgap/noise/level", readings[1]["noise_level"], 6) in writer.scalars
    run(
        every=6, to=tmp_path, name="first", probes=["noise"]
    )  # a second run has a record of its own
    assert len(list(tmp_path.glob("monitor/first/*.jsonl"))) == 2


def test_real_tensorboard_reads_back_what_was_written(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # tensorboard's own deprecations
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
        from torch.utils.tensorboard import SummaryWriter

        with SummaryWriter(tmp_path) as writer:
            _, readings = run(every=6, to=writer, probes=["noise"])
        events = EventAccumulator(str(tmp_path)).Reload()
    found = [e.value for e in events.Scalars("mindgap/noise/level")]
    assert found == pytest.approx([row["noise_level"] for row in readings], rel=1e-6)


def test_bad_arguments_are_named() -> None:
    model, opt = build()
    objective = Objective(model, cross_entropy)
    good = [(DATA[:48], LABELS[:48]), (DATA[48:], LABELS[48:])]
    never = PROBES["update"].load()()
    never.every = 0
    for arguments, options, message in (
        ((opt, objective, []), {}, "batches must give at least one batch"),
        ((opt, objective, good[:1]), {}, "at least two batches to measure noise"),
        ((opt, objective, good, ["shaprness"]), {}, "did you mean 'sharpness'"),
        ((opt, objective, good, []), {}, "at least one probe"),
        ((opt, objective, good, ["noise", "noise"]), {}, "different names"),
        ((opt, objective, good), {"every": 0}, "every must be a whole number of at least 1"),
        ((opt, objective, good, [never]), {}, "every must be a whole number of at least 1"),
        ((opt, objective, good), {"budget": 0.0}, r"budget must lie in \(0, 1\]"),
        (("sgd", objective, good), {}, "must be a torch.optim.Optimizer"),
        (
            (torch.optim.SGD(nn.Linear(1, 1).parameters(), 0.1), objective, good),
            {},
            "must train a parameter",
        ),
    ):
        with pytest.raises(RuleError, match=message):
            Monitor(*arguments, **options)
    assert not opt._optimizer_step_pre_hooks


def test_table_names_the_classes_and_their_needs() -> None:
    for name, entry in PROBES.items():
        kind = entry.load()
        assert issubclass(kind, Probe)
        assert kind.name == name
        assert kind.needs == frozenset(entry.needs)
    assert set(DEFAULT_PROBES) <= set(PROBES)


def test_the_page_is_drawn_from_a_monitor_s_record(tmp_path: Path) -> None:
    pytest.importorskip(
        "vl_convert", reason="the laboratory draws the page: pip install 'mindgap[lab]'"
    )
    from mindgap.lab.report import write_page

    run(every=6, to=tmp_path / "runs", name="first", probes=["noise", "update"])
    page = write_page(tmp_path / "runs", tmp_path / "page.html").read_text()
    assert "Readings of first" in page
    assert "noise: level" in page


def test_table_and_wing_import_without_torch() -> None:
    code = (
        "import sys, mindgap.measure as m; assert m.PROBES['noise'].needs; assert 'torch' not in "
        "sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def loop(
    monitor: Monitor, optimizer: torch.optim.Optimizer, objective: Objective, factors: list[float]
) -> None:
    """One step per factor; the loss of a step is multiplied by it."""
    for i, factor in enumerate(factors):
        start = 8 * i % 88
        optimizer.zero_grad()
        (factor * objective.value((DATA[start : start + 8], LABELS[start : start + 8]))).backward()
        optimizer.step()


def watched(factors: list[float], caplog: pytest.LogCaptureFixture, **options: object) -> Monitor:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    objective = Objective(model, cross_entropy)
    batches = [(DATA[i : i + 8], LABELS[i : i + 8]) for i in range(0, 64, 8)]
    before = objective.loss
    with (
        caplog.at_level("WARNING", "mindgap.monitor"),
        Monitor(optimizer, objective, batches, **options) as monitor,
    ):
        loop(monitor, optimizer, objective, factors)
    assert objective.loss is before
    return monitor


def test_the_defaults_record_cheap_readings_and_say_what_was_skipped(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Nothing at all was recorded in 300 steps: the expensive probes kept the cheap ones
    waiting.
    """
    monitor = watched([1.0] * 100, caplog)
    rows = monitor.readings
    # Steps of a fraction of a millisecond leave no time for a row every ten steps.
    assert rows[0]["step"] == 0
    assert all(row["step"] % 10 == 0 for row in rows)
    assert all(
        {"loop_loss", "loop_gradient_norm", "loop_update_norm"} <= row.keys() for row in rows
    )
    read = {
        name
        for row in rows
        for name in DEFAULT_PROBES
        if any(key.startswith(f"{name}_") for key in row)
    }
    said = " ".join(monitor.skipped)
    assert all(name in read or name in said for name in DEFAULT_PROBES)
    assert all(
        f"{name}: not read: a reading takes about" in caplog.text for name in monitor.skipped
    )


def test_a_spike_names_step_parameter_and_range(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    monitor = watched(
        [1.0] * 40 + [1000.0] + [1.0] * 5, caplog, probes=["update"], every=10, to=tmp_path
    )
    (event,) = monitor.events
    assert event.startswith("step 40: the gradient norm ")
    assert "times the running median" in event
    assert "in 2.bias" in event or "in 2.weight" in event or "in 0.weight" in event
    assert "a rare batch is the likely cause" in event
    assert event in caplog.text
    (described,) = tmp_path.glob("monitor/*/study.json")
    assert "step 40: the gradient norm" in described.read_text()


def test_a_nan_names_the_parameters_and_the_range(caplog: pytest.LogCaptureFixture) -> None:
    monitor = watched([1.0] * 30 + [float("nan")] + [1.0] * 2, caplog, probes=["update"], every=100)
    assert monitor.events[0].startswith(
        "step 30: the gradient of 0.weight, 0.bias, 2.weight and 1 more is not finite"
    )
    assert "the gradient norms so far had median" in monitor.events[0]
    assert "batch 30" not in monitor.events[0]  # the loop gave no index


@pytest.mark.parametrize("name", ["0.weight", "2.weight", "2.bias"])
def test_a_parameter_with_nan_is_the_cause_whichever_it_is(name: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 3)).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    objective, batches = Objective(model, cross_entropy), [(DATA, LABELS)] * 2
    with Monitor(optimizer, objective, batches, probes=["update"], every=100) as monitor:
        for step in range(6):
            if step == 4:
                with torch.no_grad():
                    model.get_parameter(name).view(-1)[0] = math.nan
            optimizer.zero_grad()
            objective.value((DATA, LABELS)).backward()
            optimizer.step()
    assert "a parameter itself is no longer finite" in monitor.events[0]


def test_after_a_nan_there_is_one_line_and_not_one_per_step(
    caplog: pytest.LogCaptureFixture,
) -> None:
    monitor = watched([1.0] * 30 + [float("nan")] + [1.0] * 300, caplog, probes=["update"])
    assert len(monitor.events) == 1
    assert caplog.text.count("is not finite") == 1


def test_the_updates_are_blamed_where_they_threw_the_weights_away() -> None:
    """Adam's update does not see the gradient's size: no gradient norm shows what happened."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    objective = Objective(model, cross_entropy)
    data = DATA.float()
    with Monitor(optimizer, objective, [(data, LABELS)] * 2, ["update"], every=1000) as monitor:
        for step in range(30):
            if step == 25:
                optimizer.param_groups[0]["lr"] = 1e20
            optimizer.zero_grad()
            objective.value((data, LABELS)).backward()
            optimizer.step()
    (event,) = monitor.events
    assert "the updates before are the likely cause: they took the largest parameter" in event


def test_gradients_that_are_not_finite_now_and_then_get_few_lines() -> None:
    model = nn.Linear(1, 1, bias=False)
    watch = LoopWatch(model)
    told = []
    for step in range(400):
        model.weight.grad = torch.full((1, 1), math.nan if step % 2 else 1.0)
        told += watch.before_step()
    assert len(told) == 5
    assert "this began for the 100th time" in told[-1]


@pytest.mark.parametrize("error", [MemoryError("no memory"), RuntimeError("CUDA out of memory")])
def test_a_probe_that_raises_is_noted_once_and_the_training_goes_on(error: Exception) -> None:
    class Broken(Probe):
        name, needs = "broken", frozenset({"gradients"})

        def read(self, at: Reading) -> dict[str, float]:
            raise error

    model, optimizer = build()
    batches = [(DATA[:48], LABELS[:48]), (DATA[48:], LABELS[48:])]
    with Monitor(
        optimizer, Objective(model, cross_entropy), batches, [Broken(), "noise"], every=2
    ) as monitor:
        train(model, optimizer, 10)
    assert len(monitor.readings) >= 5
    (event,) = monitor.events
    assert event.startswith("step 0: the probe broken raised an error and will not be read again: ")
    assert all("noise_level" in row for row in monitor.readings)
    assert monitor.skipped == {"broken": f"{type(error).__name__}: {error}"}


def test_a_disk_that_is_full_does_not_end_the_training(tmp_path: Path) -> None:
    model, optimizer = build()
    batches = [(DATA[:48], LABELS[:48]), (DATA[48:], LABELS[48:])]
    monitor = Monitor(
        optimizer, Objective(model, cross_entropy), batches, ["noise"], every=1, to=tmp_path
    )

    def full(row: object) -> None:
        raise OSError(28, "No space left on device", "readings.jsonl")

    monitor._sinks[0].write = full
    train(model, optimizer, 3)
    monitor.close()
    assert len(monitor.readings) == 3
    assert monitor.events == [
        "step 0: nothing more is written to readings.jsonl: OSError: [Errno 28] No space left on "
        "device: 'readings.jsonl'"
    ]


def test_nonfinite_raise_stops_before_the_step_and_names_the_parameter(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with pytest.raises(
        NonFiniteError, match=r"step 3: the gradient of 0\.weight, 0\.bias, 2\.weight and 1 more"
    ):
        watched(
            [1.0, 1.0, 1.0, float("inf")], caplog, probes=["update"], every=1, nonfinite="raise"
        )
