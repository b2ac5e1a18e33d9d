"""One checkpoint format for three places: damage is named, other data are refused, nothing is
executed, a cut file is computed again.

The larger run is ``python tests/hostile_files_sweep.py``.
"""

from __future__ import annotations

import pickle
import types
from pathlib import Path

import hostile_files_sweep as hostile
import pytest
import torch

from mindgap.advise import race as racing, recommend
from mindgap.base.check import RuleError
from mindgap.base.checkpoint import (
    ASIDE,
    CheckpointError,
    read_checkpoint,
    set_aside,
    write_checkpoint,
)
from mindgap.base.fingerprint import data_text, function_text
from mindgap.bilevel import SOBA, BilevelProblem, pack_state, solve, unpack_state
from mindgap.lab.studies.loop import _checked_parts

ROOT = Path(__file__).parents[1]


def regression(X, Y, weight=1.0):
    def upper(x, y, b):
        return (b[0] @ y - b[1]).square().mean()

    def lower(x, y, b):
        return weight * (b[0] @ y - b[1]).square().mean() + (x.exp() * y.square()).sum()

    d = X.shape[1]
    return BilevelProblem(
        upper, lower, torch.zeros(d), torch.zeros(d), (X, Y), (X, Y), batch_size=4
    )


X = torch.randn(12, 3, generator=torch.Generator().manual_seed(0))
Y = torch.randn(12, generator=torch.Generator().manual_seed(1))
METHOD = SOBA(lr_x=0.1, lr_y=0.1)


@pytest.mark.parametrize("kind", hostile.KINDS)
def test_one_flipped_bit_is_named_or_harmless(kind):
    found = hostile.sweep(kind, hostile.flipped, 40)
    assert not found.keys() - {"named", "harmless"}, found


@pytest.mark.parametrize("kind", hostile.KINDS)
def test_made_up_files_end_in_our_error(kind):
    found = hostile.sweep(kind, hostile.hostile, 60)
    assert not found.keys() - set(hostile.GOOD), found
    assert found["named"] > 30


@pytest.mark.parametrize("seconds", [10**400, 1e300, float("inf"), float("nan"), -1.0, "1"])
def test_a_trial_whose_seconds_are_no_time_is_named_as_damaged(seconds):
    with pytest.raises(CheckpointError, match="must hold rows, seconds and a state") as raised:
        _checked_parts({"rows": 1, "seconds": seconds, "cpu_seconds": 0, "state": {}})
    assert raised.value.reason == "damaged"


def test_made_up_study_files_are_named_or_drawn():
    found = hostile.sweep_studies(12)
    assert not found.keys() - set(hostile.GOOD), found
    assert found["named"] >= 3


@pytest.mark.parametrize(
    ("problem", "what"),
    [
        (lambda: regression(X, -Y), "upper data .*, and to the lower data"),
        (lambda: regression(X + 1, Y), "lower data"),
        (lambda: regression(X, Y, weight=2.0), "lower loss"),
    ],
)
def test_a_run_is_not_resumed_with_other_data_or_losses(problem, what, tmp_path):
    path = tmp_path / "state.ckpt"
    first = solve(regression(X, Y), METHOD, steps=5, checkpoint=path)
    with pytest.raises(RuleError, match=f"checkpoint must belong to the (upper data .*)?{what}"):
        solve(problem(), METHOD, steps=5, checkpoint=path, resume=True)
    again = solve(regression(X, Y), METHOD, steps=5, checkpoint=path, resume=True)
    assert torch.equal(first.state.y, again.state.y)
    kept = pack_state(first.state)
    with pytest.raises(RuleError, match="checkpoint must belong to the"):
        unpack_state(kept, METHOD, METHOD.oracle(problem()))


def test_a_run_is_not_resumed_from_another_start(tmp_path):
    path = tmp_path / "state.ckpt"
    problem = regression(X, Y)
    solve(problem, METHOD, steps=5, checkpoint=path)
    problem.pack_y.start += 1
    with pytest.raises(RuleError, match="checkpoint must belong to the start of y"):
        solve(problem, METHOD, steps=5, checkpoint=path, resume=True)


def test_a_cut_bilevel_checkpoint_is_named_set_aside_and_computed_again(tmp_path):
    path = tmp_path / "state.ckpt"
    first = solve(regression(X, Y), METHOD, steps=5, checkpoint=path)
    path.write_bytes(path.read_bytes()[:-7])
    with pytest.warns(RuntimeWarning, match=r"state\.ckpt\. It is now state\.ckpt\.damaged"):
        again = solve(regression(X, Y), METHOD, steps=5, checkpoint=path, resume=True)
    assert torch.equal(first.state.y, again.state.y)
    assert path.exists()
    assert path.with_name("state.ckpt" + ASIDE).exists()


def test_a_race_goes_on_after_a_cut_piece_and_executes_no_planted_one(tmp_path, monkeypatch):
    own, runs, told, most = racing.train_until, [], [], 1000

    def trained(*args, **more):
        if len(runs) == most:
            raise KeyboardInterrupt
        runs.append(more["until"])
        own(*args, **more)

    def answer(folder):
        return recommend(
            hostile.factory,
            minutes=5,
            steps=96,
            measure=False,
            folder=folder,
            told=lambda text, _: told.append(text),
        )

    monkeypatch.setattr(racing, "train_until", trained)
    right = answer(tmp_path / "right")
    needed, most = len(runs), 6
    runs.clear()
    with pytest.raises(KeyboardInterrupt):
        answer(tmp_path)
    cut, planted, *kept = sorted((tmp_path / "pieces").glob("*.piece"))
    assert len(kept) == 4
    cut.write_bytes(cut.read_bytes()[:200])
    hostile.EXECUTED.unlink(missing_ok=True)
    planted.write_bytes(pickle.dumps(hostile.Planted()))
    runs.clear()
    most = 1000
    again = answer(tmp_path)
    assert not hostile.EXECUTED.exists()
    assert again.sentence == right.sentence
    assert [(t.name, t.loss) for t in again.tried] == [(t.name, t.loss) for t in right.tried]
    for piece in (cut, planted):
        assert any(f"{piece.name}: now {piece.name}{ASIDE}" in text for text in told)
    assert len(runs) == needed - len(kept)


def test_a_race_is_not_continued_with_other_data(tmp_path):
    def other(seed):
        pair, batches = hostile.factory(seed)
        return pair, [-batch for batch in batches]

    running = racing.Race(hostile.factory, 48, racing.Scale(11, 1.0), folder=tmp_path)
    running._advance(running.entries[0], 0, running.rungs[0])
    changed = racing.Race(other, 48, racing.Scale(11, 1.0), folder=tmp_path)
    with pytest.raises(RuleError, match="checkpoint must belong to the training data"):
        changed._advance(changed.entries[0], 0, changed.rungs[0])


def test_content_comes_back_as_it_was(tmp_path):
    network = torch.nn.BatchNorm1d(3)
    content = {
        "numbers": [1, -0.0, 2**127, float("inf"), True, None, "é", (1, (2,))],
        3: {True: torch.tensor(2.5, dtype=torch.bfloat16)},
        "channels last": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        "empty": torch.empty(0, 3),
        "complex": torch.randn(3, dtype=torch.complex64),
        "state": network.state_dict(),
    }
    path = tmp_path / "a.ckpt"
    write_checkpoint(path, "test", content, {})
    found = read_checkpoint(path, "test", {})
    assert hostile.plain(found) == hostile.plain(content)
    assert repr(found["numbers"]) == repr(content["numbers"])
    assert found["channels last"].stride() == content["channels last"].stride()
    assert found[3][True].dtype is torch.bfloat16
    assert found["state"]._metadata == content["state"]._metadata
    with pytest.raises(CheckpointError, match=r"got object at content\['a'\]\[0\]"):
        write_checkpoint(path, "test", {"a": [object()]}, {})
    assert hostile.plain(read_checkpoint(path, "test", {})) == hostile.plain(content)
    assert [p.name for p in tmp_path.iterdir()] == ["a.ckpt"]
    assert set_aside(path).name == "a.ckpt.damaged"
    path.write_bytes(b"PK old form of torch.save")
    with pytest.raises(CheckpointError, match="older forms are not read") as caught:
        read_checkpoint(path, "test", {})
    assert caught.value.reason == "foreign"


def test_a_checkpoint_of_another_machines_device_is_refused_and_stays(tmp_path):
    path = tmp_path / "a.ckpt"
    write_checkpoint(path, "test", torch.ones(2), {})
    header, arrays = hostile.opened(path.read_bytes())
    header["arrays"][0]["device"] = "cuda:99"
    path.write_bytes(hostile.signed(header, arrays))
    with pytest.raises(CheckpointError, match="must be of a device of this machine") as caught:
        read_checkpoint(path, "test", {})
    assert caught.value.reason == "other"
    assert read_checkpoint(path, "test", {}, torch.device("cpu")).tolist() == [1.0, 1.0]


def test_nothing_of_ours_is_unpickled_from_a_file():
    """Worker processes of one program talk through pipes, and the contract tests pickle what they
    made themselves; everything else reads our own format.
    """
    testing = ROOT / "mindgap" / "testing"
    for path in set((ROOT / "mindgap").rglob("*.py")) - set(testing.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        assert "torch.load(" not in text, path
        assert "weights_only" not in text, path
        if path.name != "processes.py":
            assert "import pickle" not in text, path


def test_a_counter_in_a_loss_does_not_change_its_name():
    calls, count = [], 0

    def loss(x):
        nonlocal count
        count += 1
        calls.append(x)
        return x

    before = function_text(loss)
    loss(1.0)
    assert function_text(loss) == before


def test_functions_of_other_values_have_other_names():
    def scaled(weight, table):
        return lambda x: weight * x + table["a"]

    first = function_text(scaled(1.0, {"a": 1}))
    assert first == function_text(scaled(1.0, {"a": 1}))
    assert first != function_text(scaled(2.0, {"a": 1}))
    assert first != function_text(scaled(1.0, {"a": 2}))
    assert data_text([torch.ones(2)]) != data_text([torch.zeros(2)])


def test_a_module_that_loads_itself_is_not_asked_for_anything(monkeypatch):
    """Its ``__getattr__`` ended a run with a checkpoint in an ImportError."""

    def load(name):
        raise ImportError(f"a package for {name} is missing")

    module = types.ModuleType("lazy")
    module.__getattr__ = load
    monkeypatch.setitem(globals(), "lazy", module)

    def loss(x):
        return lazy.score(x)  # noqa: F821

    assert function_text(loss) == function_text(loss)
