"""The monitor inside the real Lightning and Hugging Face trainers, with clipping on, against
hand computations.
"""

from __future__ import annotations

import math
import warnings
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from mindgap.adapters.watching import sample_batches
from mindgap.base.check import RuleError
from mindgap.base.tensors import flatten

DATA = torch.randn(64, 5, generator=torch.Generator().manual_seed(1))
LABELS = torch.randint(0, 3, (64,), generator=torch.Generator().manual_seed(2))


def hand_noise(loss, parameters, batches) -> tuple[float, float]:
    """(root of the variance of minibatch gradients, norm of their mean), from plain autograd."""
    gradients = [flatten(torch.autograd.grad(loss(b), parameters)).double() for b in batches]
    g = torch.stack(gradients)
    return math.sqrt(float(((g - g.mean(0)) ** 2).sum() / (len(g) - 1))), float(g.mean(0).norm())


def test_batches_are_drawn_without_touching_the_loader_or_any_random_state() -> None:
    class Counting(torch.utils.data.RandomSampler):
        drawn = 0

        def __iter__(self):
            type(self).drawn += 1
            return super().__iter__()

    data = torch.utils.data.TensorDataset(DATA, LABELS)
    loader = torch.utils.data.DataLoader(data, batch_size=16, sampler=Counting(data))
    model = nn.Linear(1, 1)
    state = torch.get_rng_state()
    batches = sample_batches(loader, model, limit=3)
    assert torch.equal(torch.get_rng_state(), state)
    assert Counting.drawn == 0
    assert [tuple(x.shape) for x, _ in batches] == [(16, 5)] * 3
    rows = torch.cat([x for x, _ in batches])
    assert len({tuple(r.tolist()) for r in rows}) == 48  # without replacement

    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter(DATA)

    with pytest.raises(
        RuleError, match="batches must be given where the training data cannot be indexed"
    ):
        sample_batches(torch.utils.data.DataLoader(Stream()), nn.Linear(1, 1))


# ---- Lightning ----


def lightning_run(tmp_path: Path, callback=None, clip: float = 1e-2):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Lightning's own: few workers, no validation
        import lightning.pytorch as pl

        class Net(pl.LightningModule):
            def __init__(self) -> None:
                super().__init__()
                self.net = nn.Sequential(
                    nn.Linear(5, 8), nn.Tanh(), nn.Dropout(0.1), nn.Linear(8, 3)
                )
                self.points: list = []
                self.clipped: list = []

            def training_step(self, batch, batch_idx):
                self.points.append([p.detach().clone() for p in self.parameters()])
                loss = F.cross_entropy(self.net(batch[0]), batch[1])
                self.log("loss", loss)
                return loss

            def on_before_zero_grad(self, optimizer) -> None:
                grads = [p.grad for p in self.parameters() if p.grad is not None]
                if grads:
                    self.clipped.append(float(flatten(grads).norm()))

            def configure_optimizers(self):
                return torch.optim.SGD(self.parameters(), lr=0.5, momentum=0.9)

        torch.manual_seed(0)
        module = Net()
        data = torch.utils.data.TensorDataset(DATA, LABELS)
        loader = torch.utils.data.DataLoader(data, batch_size=16, shuffle=True)
        trainer = pl.Trainer(
            max_epochs=2,
            gradient_clip_val=clip,
            accelerator="cpu",
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=tmp_path,
            callbacks=[callback] if callback else [],
        )
        trainer.fit(module, loader)
    return module


def at_its_point(readings, parameters, points):
    """Each of the four readings, with the parameters set to what they were at its step."""
    assert [row["step"] for row in readings] == [0, 2, 4, 6]
    for row in readings:
        with torch.no_grad():
            for p, value in zip(parameters, points[row["step"]]):
                p.copy_(value)
        yield row


def test_lightning_reads_raw_noise_although_it_clips(tmp_path: Path) -> None:
    pytest.importorskip("lightning", reason="needs the extra mindgap[lightning]")
    from mindgap.adapters.lightning import monitor_callback

    batches = [(DATA[i : i + 16], LABELS[i : i + 16]) for i in range(0, 64, 16)]

    def loss(module, batch):
        return F.cross_entropy(
            module.net[3](module.net[1](module.net[0](batch[0]))), batch[1]
        )  # no dropout

    callback = monitor_callback(
        ["noise", "sharpness", "update"], batches=batches, loss=loss, every=2
    )
    module = lightning_run(tmp_path, callback)
    parameters = list(module.parameters())
    for row in at_its_point(callback.readings, parameters, module.points):
        noise, norm = hand_noise(lambda b: loss(module, b), parameters, batches)
        assert row["noise_level"] == pytest.approx(noise, rel=1e-5)
        assert row["noise_mean_norm"] == pytest.approx(norm, rel=1e-5)
        assert row["noise_mean_norm"] > 2e-2  # while the loop's own gradients are clipped to 1e-2
        assert row["sharpness_threshold"] == pytest.approx(2 * 1.9 / 0.5)
    assert module.clipped
    assert max(module.clipped) <= 1.001e-2
    assert callback.readings[0]["update_norm"] == pytest.approx(0.5 * 1e-2, rel=1e-3)


def test_lightning_run_is_the_same_with_the_monitor(tmp_path: Path) -> None:
    pytest.importorskip("lightning", reason="needs the extra mindgap[lightning]")
    from mindgap.adapters.lightning import monitor_callback

    plain = lightning_run(tmp_path)
    callback = monitor_callback(every=3)  # batches and training_step from the trainer itself
    watched = lightning_run(tmp_path, callback)
    assert len(callback.readings) == 3
    assert "smoothness_value" in callback.readings[0]
    for a, b in zip(plain.state_dict().values(), watched.state_dict().values(), strict=True):
        assert torch.equal(a, b)
    assert "log" not in watched.__dict__


# ---- Hugging Face ----


def trainer_run(tmp_path: Path, callback=None, clip: float = 1e-2):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # transformers' own deprecations
        from transformers import Trainer, TrainerCallback, TrainingArguments

        class Net(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.net = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))

            def forward(self, x, labels):
                scores = self.net(x)
                return {"loss": F.cross_entropy(scores, labels), "logits": scores}

        class Data(torch.utils.data.Dataset):
            def __len__(self) -> int:
                return 64

            def __getitem__(self, i):
                return {"x": DATA[i], "labels": LABELS[i]}

        class Watch(TrainerCallback):
            def __init__(self) -> None:
                self.points, self.clipped = [], []

            def on_step_begin(self, args, state, control, model=None, **given) -> None:
                self.points.append([p.detach().clone() for p in model.parameters()])

            def on_pre_optimizer_step(self, args, state, control, model=None, **given) -> None:
                self.clipped.append(float(flatten([p.grad for p in model.parameters()]).norm()))

        torch.manual_seed(0)
        model, watch = Net(), Watch()
        arguments = TrainingArguments(
            output_dir=str(tmp_path),
            num_train_epochs=2,
            per_device_train_batch_size=16,
            max_grad_norm=clip,
            learning_rate=0.5,
            lr_scheduler_type="constant",
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
            use_cpu=True,
            logging_strategy="no",
            seed=3,
            dataloader_pin_memory=False,
        )
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        trainer = Trainer(
            model=model,
            args=arguments,
            train_dataset=Data(),
            optimizers=(optimizer, None),
            callbacks=[watch, *([callback] if callback else [])],
        )
        trainer.train()
    return model, watch


def test_trainer_reads_raw_noise_although_it_clips(tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="needs the extra mindgap[transformers]")
    pytest.importorskip("accelerate", reason="needs the extra mindgap[transformers]")
    from mindgap.adapters.transformers import monitor_callback

    batches = [{"x": DATA[i : i + 16], "labels": LABELS[i : i + 16]} for i in range(0, 64, 16)]
    callback = monitor_callback(["noise", "sharpness", "update"], batches=batches, every=2)
    model, watch = trainer_run(tmp_path, callback)
    parameters = list(model.parameters())
    for row in at_its_point(callback.readings, parameters, watch.points):
        noise, norm = hand_noise(lambda b: model(**b)["loss"], parameters, batches)
        assert row["noise_level"] == pytest.approx(noise, rel=1e-5)
        assert row["noise_mean_norm"] == pytest.approx(norm, rel=1e-5)
        assert row["noise_mean_norm"] > 2e-2
        assert row["sharpness_threshold"] == pytest.approx(2 / 0.5)
        assert row["update_norm"] == pytest.approx(0.5 * 1e-2, rel=1e-3)
    assert len(watch.clipped) == 8
    assert max(watch.clipped) <= 1.001e-2


def test_trainer_run_is_the_same_with_the_monitor(tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="needs the extra mindgap[transformers]")
    pytest.importorskip("accelerate", reason="needs the extra mindgap[transformers]")
    from mindgap.adapters.transformers import monitor_callback

    plain, _ = trainer_run(tmp_path)
    callback = monitor_callback(every=3)
    watched, _ = trainer_run(tmp_path, callback)
    assert len(callback.readings) == 3
    assert "smoothness_value" in callback.readings[0]
    for a, b in zip(plain.state_dict().values(), watched.state_dict().values(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("which", ["lightning", "transformers"])
def test_a_nan_is_explained_under_a_trainer(
    which: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The callbacks hand the trainer's batches to the monitor: sample 20 is not finite."""
    pytest.importorskip(which, reason=f"needs the extra mindgap[{which}]")
    from importlib import import_module

    data = DATA.clone()
    data[20] = float("nan")
    monkeypatch.setitem(globals(), "DATA", data)
    adapter = import_module(f"mindgap.adapters.{which}")
    clean = [(DATA[i : i + 16], LABELS[i : i + 16]) for i in (32, 48)]
    if which == "transformers":
        clean = [{"x": x, "labels": y} for x, y in clean]
    callback = adapter.monitor_callback(["update"], batches=clean, every=100)
    run = lightning_run if which == "lightning" else trainer_run
    run(tmp_path, callback)
    answer = callback.monitor.autopsy()
    assert answer.mechanism == "sample", answer
    assert 0 <= answer.step < 4
    assert len(answer.samples) == 1


def test_two_clippings_are_warned_of():
    from types import SimpleNamespace

    from mindgap.adapters.watching import warn_of_two_clippings
    from mindgap.optim import SGD, AdamW, GClip

    def warned(optimizer, value):
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            warn_of_two_clippings(optimizer, "max_grad_norm", value, "0")
        return [str(w.message) for w in seen]

    params = [torch.zeros(1, requires_grad=True)]
    (text,) = warned(SimpleNamespace(optimizer=AdamW(params)), 1.0)
    assert text.endswith("sees clipped ones only: set max_grad_norm=0.")
    assert warned(GClip(params, 0.1, 1.0), 1.0)
    assert warned(SGD(params, clip=None, spike_guard="skip"), 0.5)
    for optimizer, value in (
        (AdamW(params), 0),
        (AdamW(params), None),
        (SGD(params, clip=None), 1.0),
        (torch.optim.AdamW(params), 1.0),
    ):
        assert warned(optimizer, value) == []


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_the_callback_of_the_trainer_looks_at_max_grad_norm(value) -> None:
    pytest.importorskip("transformers", reason="needs the extra mindgap[transformers]")
    from types import SimpleNamespace

    from mindgap.adapters.transformers import monitor_callback
    from mindgap.optim import AdamW

    model = nn.Linear(5, 3)
    batches = [{"x": DATA[:16]}, {"x": DATA[16:32]}]
    callback = monitor_callback(["noise"], batches=batches, loss=lambda m, b: m(b["x"]).sum())
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        callback.on_train_begin(
            SimpleNamespace(max_grad_norm=value, device="cpu"),
            SimpleNamespace(is_world_process_zero=True),
            None,
            optimizer=AdamW(model.parameters()),
            model=model,
            train_dataloader=None,
        )
        callback.on_train_end(None, None, None)
    assert any("max_grad_norm" in str(w.message) for w in seen) == bool(value)


@pytest.mark.parametrize("half", [False, True])
def test_lightning_s_factors_for_the_backward_pass_are_not_in_the_loss(half: bool) -> None:
    """On a stand-in for the trainer, which calls the hooks as Lightning 2 does."""
    from types import SimpleNamespace

    from mindgap.adapters.lightning import _Events

    torch.manual_seed(0)
    model = nn.Linear(5, 3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10) if half else None
    trainer = SimpleNamespace(
        accumulate_grad_batches=2, precision_plugin=SimpleNamespace(scaler=scaler)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    batches = [(DATA[i : i + 16], LABELS[i : i + 16]) for i in range(0, 64, 16)]

    def loss_of(m, b):
        return F.cross_entropy(m(b[0]), b[1])

    events = _Events(0, ["update"], batches, loss_of, 8, None, {"every": 1})
    events.begin_watching(optimizer, model, None, None, None, True)
    losses, norms = [], []

    def backward(number: int) -> None:
        events.on_train_batch_start(trainer, model, batches[number], number)
        loss = loss_of(model, batches[number])
        losses.append(loss.item())
        loss = loss / 2
        loss = loss if scaler is None else scaler.scale(loss)
        events.on_before_backward(trainer, model, loss)
        loss.backward()

    for number in (0, 2):
        optimizer.zero_grad()
        backward(number)

        def closure(number: int = number) -> None:
            backward(number + 1)
            norms.append(float(flatten([p.grad for p in model.parameters()]).norm()))

        if scaler is None:
            optimizer.step(closure)
        else:
            closure()
            norms[-1] /= scaler.get_scale()
            scaler.step(optimizer)
            scaler.update()
    events.end_watching()
    assert [row["loop_loss"] for row in events.readings] == pytest.approx(
        [(losses[0] + losses[1]) / 2, (losses[2] + losses[3]) / 2], rel=1e-5
    )
    found = [row["loop_gradient_norm"] for row in events.readings]
    assert found == pytest.approx(norms, rel=1e-5)
