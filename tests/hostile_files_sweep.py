"""Damaged and made-up files of every kind: each is named or harmless, none is executed.

    python tests/hostile_files_sweep.py [FILES PER KIND]

The suite runs a small part of it (``tests/test_checkpoint_files.py``).
"""

from __future__ import annotations

import copy
import json
import math
import pickle
import random
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Any
from zlib import crc32

import torch
from torch import nn

from mindgap.advise.candidates import Scale
from mindgap.advise.race import Race
from mindgap.advise.training import Progress
from mindgap.base.check import RuleError
from mindgap.base.checkpoint import ASIDE, MAGIC
from mindgap.bilevel import SLIP, AdamStep, load_state, save_state
from mindgap.bilevel.data.problem import example_problem
from mindgap.lab.report.load import load
from mindgap.lab.report.page import write_page
from mindgap.lab.studies.catalogue import find
from mindgap.lab.studies.loop import SUFFIX, Checkpoints, Trial
from mindgap.lab.studies.run import execute, judge_and_write, judge_folder, plan, run_all
from mindgap.record.forms import MethodTuning, TunedTrial, Tuning, write_form
from mindgap.record.schema import RecordError, Row, without_timing
from mindgap.record.store import RunWriter, read_run

sys.path.insert(0, str(Path(__file__).parent))
from references.made_up_runs import toy_study

#: What a use of a file gave: numbers to compare, and the text that names trouble.
Use = Callable[[Path], tuple[Any, str]]
EXECUTED = Path(tempfile.gettempdir()) / "mindgap-hostile-file-was-executed"


class Planted:
    """Unpickling this leaves a file behind."""

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (EXECUTED,)


def plain(value: Any) -> Any:
    """A value with tensors as lists, to compare."""
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, dict):
        return {key: plain(part) for key, part in value.items()}
    return [plain(part) for part in value] if isinstance(value, (list, tuple)) else value


def bilevel(folder: Path) -> tuple[Path, Use]:
    """A state of a bilevel method; used by two more iterations."""
    problem = example_problem()
    method = SLIP(lr_x=0.1, lr_y=0.5, lr_z=0.5, y_step=AdamStep())
    state = method.start(problem, seed=0)
    for _ in range(3):
        state = method.step(state)
    path = folder / "state.ckpt"
    save_state(path, state)

    def use(changed: Path) -> tuple[Any, str]:
        found = load_state(changed, method, method.oracle(problem))
        for _ in range(2):
            found = method.step(found)
        return plain({**found.values, "t": found.t, "calls": found.calls}), ""

    return path, use


def walk(trial: Trial) -> Iterator[Row]:
    """A random walk that offers a checkpoint for every row."""
    rng = trial.numpy_generator("noise")
    place = torch.zeros(3)
    if trial.restored:
        rng.bit_generator.state = trial.restored["rng"]
        place = trial.restored["place"]
    for step in range(trial.restored.get("step", 0), trial["steps"]):
        place = place + torch.from_numpy(rng.standard_normal(3)).float()
        trial.save({"step": step + 1, "place": place, "rng": rng.bit_generator.state})
        yield {"step": step, "place": place.tolist()}


def trial(folder: Path) -> tuple[Path, Use]:
    """A checkpoint of a trial of the laboratory; used by running it to its end."""
    study = toy_study("walk", walk, {"steps": 5}, {"plain": {}})
    (header, *_) = plan(study, "quick", seeds=1).headers
    with RunWriter(folder, header) as writer:
        begun = Trial(header.method, header.seed, header.settings)
        checkpoints = Checkpoints(writer, 0, study.loop)
        for row, _ in zip(study.loop(begun), range(3)):
            writer.row({**row, "seconds": 0.0})
            checkpoints.offer(begun)
    path = writer.path.with_suffix(SUFFIX)
    recorded = writer.path.read_bytes()

    def use(changed: Path) -> tuple[Any, str]:
        writer.path.write_bytes(recorded)
        end = execute(study, header, folder)
        rows = [without_timing(row) for row in read_run(writer.path).rows]
        return rows if end.outcome == "done" else end.outcome, end.message

    return path, use


def regression(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    return (model(batch) - batch.sum(1, keepdim=True)).square().mean()


def factory(seed: int) -> Any:
    batches = list(torch.randn(8, 4, 3, generator=torch.Generator().manual_seed(5)))
    return (nn.Sequential(nn.Linear(3, 2), nn.Tanh(), nn.Linear(2, 1)), regression), batches


def race(folder: Path) -> tuple[Path, Use]:
    """A piece of a race; used as the race does."""
    told: list[str] = []
    scale = Scale(11, gradient_norm=1.0)
    running = Race(factory, 48, scale, folder=folder, told=lambda text, _: told.append(text))
    entry = running.entries[1]
    running._advance(entry, 0, running.rungs[0])
    path = running._piece_path(entry, 0, running.rungs[0])

    def use(changed: Path) -> tuple[Any, str]:
        entry.runs.clear()
        told.clear()
        running._advance(entry, 0, running.rungs[0])
        times = dict.fromkeys(("seconds", "stepping", "beside", "per_step"), 0)
        fields = plain({**vars(entry.runs[0]), **times})
        assert isinstance(entry.runs[0], Progress)
        return fields, " ".join(told[1:])

    return path, use


def studies(folder: Path) -> tuple[Path, Use]:
    """The files of a finished study; used by drawing its page and by judging it again."""
    study = find("e5-cycle")
    item = plan(study, "quick", seeds=2)
    run_all([item], folder)
    write_form(item.folder(folder) / "tuning.json", TUNING)
    judge_and_write(item, folder)
    page = folder / "page.html"

    def use(changed: Path) -> tuple[Any, str]:
        write_page(folder, page)
        load(folder)
        _, _, verdict = judge_folder(item.folder(folder))
        return "", page.read_text(encoding="utf-8") + verdict.measured

    return item.folder(folder) / "study.json", use


TUNING = Tuning(
    "e5-cycle",
    "quick",
    "loss",
    {"lr": [0.1, 1.0]},
    2,
    (0,),
    {"m": MethodTuning({"lr": 0.1}, 1.0, 2.0, (TunedTrial({"lr": 0.1}, 1.0),))},
)


def hostile_json(data: bytes, rng: random.Random) -> bytes:
    """A form or a record with parts replaced, its checksums right again."""
    if rng.random() < 0.15:
        cut = data[: rng.randrange(len(data))]
        return rng.choice([cut, b"null", b"[]", b"[" * 50_000, rng.randbytes(50), data + b"x"])
    if not data.startswith(b'{"header"'):
        content = tampered(json.loads(data), rng)
        if isinstance(content, dict) and rng.random() < 0.8:
            content.pop("sum", None)
        return json.dumps(content).encode()
    lines = data.splitlines()
    number = rng.randrange(len(lines))
    content = json.loads(lines[number])
    content.pop("sum")
    changed = tampered(content, rng) if rng.random() < 0.5 else content
    for kind in content if isinstance(content, dict) else ():
        if isinstance(changed, dict) and isinstance(content[kind], dict):
            changed = {kind: tampered(content[kind], rng)}
    text = json.dumps(changed, separators=(",", ":")).encode()[:-1]
    lines[number] = text + f',"sum":"{crc32(text):08x}"}}'.encode()
    return b"\n".join(lines) + b"\n"


def sweep_studies(count: int, seed: int = 0) -> Counter[str]:
    """How many changed files of a study were taken in which way."""
    found: Counter[str] = Counter()
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        top = Path(folder)
        first, use = studies(top)
        use(first)
        files = sorted(p for p in first.parent.iterdir() if p.suffix in (".json", ".jsonl"))
        for _ in range(count):
            path = rng.choice(files)
            data = path.read_bytes()
            path.write_bytes(hostile_json(data, rng))
            try:
                _, text = use(path)
                found["named" if path.name in text else "drawn"] += 1
            except (RuleError, RecordError) as error:
                found["named" if path.name in str(error) else f"not named: {error}"] += 1
            except Exception as error:
                trace = traceback.extract_tb(error.__traceback__)[-1]
                place = f"{Path(trace.filename).name}:{trace.lineno}"
                found[f"foreign: {type(error).__name__}: {error} ({place}, {path.suffix})"] += 1
            path.write_bytes(data)
    return found


KINDS = {"bilevel": bilevel, "trial": trial, "race": race}


def flipped(data: bytes, rng: random.Random) -> bytes:
    """One bit is another."""
    place = rng.randrange(8 * len(data))
    changed = bytearray(data)
    changed[place // 8] ^= 1 << place % 8
    return bytes(changed)


def signed(header: Any, arrays: bytes) -> bytes:
    """A whole checkpoint with a checksum that fits, as somebody who knows the format writes it."""
    text = json.dumps(header).encode() if not isinstance(header, bytes) else header
    text += b" " * (-(len(MAGIC) + 48 + len(text)) % 64)
    sizes = len(text).to_bytes(8, "little") + len(arrays).to_bytes(8, "little")
    return MAGIC + sizes + blake2b(sizes + text + arrays, digest_size=32).digest() + text + arrays


def opened(data: bytes) -> tuple[Any, bytes]:
    begin = len(MAGIC) + 48
    length = int.from_bytes(data[len(MAGIC) : len(MAGIC) + 8], "little")
    return json.loads(data[begin : begin + length]), data[begin + length :]


NASTY: list[Any] = [
    None, True, -1, 0, 1, 2**63, 10**400, 1e308, math.nan, math.inf, "", "x", "cuda:99", "float32",
    "../../etc/passwd", "\ud800", [], [[]], {}, {"tensor": 0}, {"tensor": -1}, {"tensor": 10**9},
    {"list": None}, {"list": {}}, {"dict": [[1]]}, {"dict": [[{"list": []}, 1]]}, {"tuple": [1, 2]},
    {"ordered": [], "versions": 3}, {"pickle": "gASV"}, [1, 2, 3], {"x": {"y": {}}}, "0" * 10_000,
]  # fmt: skip


def places(tree: Any, way: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to every part of a tree of lists and mappings."""
    if way:
        yield way
    if isinstance(tree, (dict, list)):
        for key in tree if isinstance(tree, dict) else range(len(tree)):
            yield from places(tree[key], (*way, key))


def tampered(tree: Any, rng: random.Random) -> Any:
    """The tree with up to three parts replaced, removed or doubled."""
    tree = copy.deepcopy(tree)
    for _ in range(rng.randint(1, 3)):
        way = rng.choice(list(places(tree)) or [()])
        if not way:
            return rng.choice(NASTY)
        parent = tree
        for key in way[:-1]:
            parent = parent[key]
        action = rng.random()
        if action < 0.2:
            del parent[way[-1]]
        elif action < 0.3 and isinstance(parent, list):
            parent.append(copy.deepcopy(parent[way[-1]]))
        elif action < 0.4 and isinstance(parent, dict):
            parent[str(rng.choice(NASTY))[:20]] = parent.pop(way[-1])
        else:
            parent[way[-1]] = copy.deepcopy(rng.choice(NASTY))
    return tree


def hostile(data: bytes, rng: random.Random) -> tuple[bytes, bool]:
    """A file somebody made up, and whether its checksum fits (then it may hold any numbers)."""
    kind = rng.randrange(12)
    header, arrays = opened(data)
    if kind == 0:
        return data[: rng.randrange(len(data))], False
    if kind == 1:
        return data + rng.randbytes(rng.randint(1, 100)), False
    if kind == 2:
        return rng.randbytes(rng.randint(0, 4000)), False
    if kind == 3:
        return pickle.dumps(Planted()), False
    if kind == 4:
        return MAGIC + rng.randbytes(rng.randint(0, 400)), False
    if kind == 5:
        text = rng.choice([b"[" * 100_000, b'{"kind":' * 5000, b"null", b"\xff\xfe", b'{"of":{}}'])
        return signed(text, arrays), True
    if kind == 6:
        at = rng.randrange(len(data))
        part = rng.randbytes(rng.randint(1, 64))
        changed = data[:at] + part + data[at + len(part) :]
        return changed, False
    if kind == 7:
        return signed(header, arrays[: rng.randrange(len(arrays) + 1)]), True
    return signed(tampered(header, rng), arrays), True


def judged(path: Path, use: Use, right: Any, forged: bool) -> str:
    """How a file was taken: "harmless", "named", "forged" (a made-up file with a good checksum
    and other numbers), or the fault.
    """
    try:
        found, text = use(path)
    except (RuleError, RecordError) as error:
        return "named" if path.name in str(error) or forged else f"not named: {error}"
    except Exception as error:
        return f"foreign: {type(error).__name__}: {error}"
    if path.name in text:
        return "named" if repr(found) in (repr(right), "'failed'") else "named, but other numbers"
    if repr(found) == repr(right):
        return "harmless"
    return "forged" if forged else "other numbers, and nothing said"


GOOD = ("harmless", "named", "forged", "drawn")


def sweep(kind: str, change: Callable[[bytes, random.Random], Any], count: int) -> Counter[str]:
    """How many changed files of a kind were taken in which way."""
    found: Counter[str] = Counter()
    rng = random.Random(f"{kind} {count}")
    with tempfile.TemporaryDirectory() as folder:
        path, use = KINDS[kind](Path(folder))
        data = path.read_bytes()
        right, text = use(path)
        assert text == "", text
        for _ in range(count):
            changed = change(data, rng)
            content, forged = changed if isinstance(changed, tuple) else (changed, False)
            path.write_bytes(content)
            found[judged(path, use, right, forged)] += 1
            path.with_name(path.name + ASIDE).unlink(missing_ok=True)
    assert not EXECUTED.exists(), "a planted file was executed"
    return found


if __name__ == "__main__":
    number = int(sys.argv[1]) if len(sys.argv) > 1 else 400
    EXECUTED.unlink(missing_ok=True)
    wrong = 0
    for name in KINDS:
        for what, change in (("one bit flipped", flipped), ("made up", hostile)):
            ways = sweep(name, change, number)
            wrong += sum(n for way, n in ways.items() if way not in GOOD)
            print(f"{name}, {what}: {dict(ways)}", flush=True)
    ways = sweep_studies(number)
    wrong += sum(n for way, n in ways.items() if way not in GOOD)
    print(f"study files, made up: {dict(ways)}", flush=True)
    sys.exit(wrong > 0)
