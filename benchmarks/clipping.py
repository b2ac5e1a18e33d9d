"""Candidates for ``clip="auto"`` on tasks whose noise is known: all models of a task in one
program.

    python benchmarks/clipping.py --out benchmarks/records/clipping [--device cuda] [--jobs 4]
    python benchmarks/clipping.py --table benchmarks/records/clipping \\
        --docs docs/clipping.md docs/appendix/clipping-tables.md

Five learning rates, three seeds, 200 steps and the task's own length; warm-up over a twentieth,
then cosine. One JSON line per task, length and candidate; a second call makes what is missing.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parent))
from clipping_rules import Candidate, candidates
from clipping_tasks import TASKS as EARLIER, Batch, Params, Task
from clipping_tasks_fifth import FIFTH
from clipping_tasks_sixth import SIXTH

TASKS = EARLIER | FIFTH | SIXTH
RATES = (3e-4, 1e-3, 3e-3, 1e-2, 3e-2)
SEEDS = (0, 1, 2)
SHORT = 200
DECAY = 0.01


def as_params(flat: Tensor, task: Task) -> Params:
    out, at = {}, 0
    for name, shape in task.shapes.items():
        size = math.prod(shape)
        out[name] = flat[at : at + size].view(shape)
        at += size
    return out


def stacked(batches: list[Batch], device: str) -> Batch:
    return tuple(torch.stack(parts).to(device) for parts in zip(*batches))


def train(
    task: Task,
    chosen: list[Candidate],
    steps: int,
    device: str,
    rates: tuple[float, ...] = RATES,
    seeds: tuple[int, ...] = SEEDS,
) -> dict[str, list[list[float]]]:
    """Candidate -> held-out loss per rate and seed, at the end."""
    streams = [torch.Generator().manual_seed(1000 + seed) for seed in seeds]
    worlds = [task.world(g) for g in streams]
    starts = [
        torch.cat([v.reshape(-1) for v in task.init(torch.Generator().manual_seed(seed)).values()])
        for seed in seeds
    ]
    sizes = [math.prod(shape) for shape in task.shapes.values()]
    count = len(chosen)
    start = torch.stack(starts).to(device)[:, None, None]
    theta = start.expand(-1, count, len(rates), -1).clone()
    lr = torch.tensor(rates, device=device)[None, :, None]

    def loss(flat: Tensor, *batch: Tensor) -> Tensor:
        return task.loss(as_params(flat, task), batch)

    inner = torch.func.vmap(
        torch.func.grad(loss), in_dims=(0,) + (None,) * len(task.draw(worlds[0], streams[0]))
    )
    gradient = torch.func.vmap(inner)
    warm = max(1, steps // 20)
    for k in range(1, steps + 1):
        batch = stacked([task.draw(w, g) for w, g in zip(worlds, streams)], device)
        flat = theta.reshape(len(seeds), count * len(rates), -1)
        g = gradient(flat, *batch).view_as(theta)
        factor = min(k / warm, 0.5 + 0.5 * math.cos(math.pi * (k - 1) / steps))
        for i, candidate in enumerate(chosen):
            step = candidate.update(g[:, i], k, sizes)
            theta[:, i] = theta[:, i] * (1 - factor * lr * DECAY) - factor * lr * step
    score = task.score or task.loss

    def held(flat: Tensor, *batch: Tensor) -> Tensor:
        return score(as_params(flat, task), batch)

    draws = [torch.Generator().manual_seed(5000 + seed) for seed in seeds]
    batch = stacked([task.held_out(w, g) for w, g in zip(worlds, draws)], device)
    measure = torch.func.vmap(torch.func.vmap(held, in_dims=(0,) + (None,) * len(batch)))
    with torch.no_grad():
        losses = measure(theta.reshape(len(seeds), count * len(rates), -1), *batch).view(
            len(seeds), count, len(rates)
        )
    return {c.name: losses[:, i].T.cpu().double().tolist() for i, c in enumerate(chosen)}


def work(job: tuple[str, int, list[str], str, str, tuple[float, ...]]) -> str:
    name, steps, names, device, out, rates = job
    torch.set_num_threads(1)
    task = TASKS[name]
    chosen = [c for c in candidates() if c.name in names]
    begin = time.monotonic()
    losses = train(task, chosen, steps, device, rates)
    seconds = time.monotonic() - begin
    with Path(out).open("a", encoding="utf-8") as file:
        for candidate, table in losses.items():
            row = {"task": name, "steps": steps, "candidate": candidate, "losses": table}
            file.write(json.dumps(row) + "\n")
    return f"{name}, {steps} steps, {len(chosen)} candidates: {seconds:.0f} s"


def load(folder: Path) -> dict[tuple[str, int, str], list[list[float]]]:
    rows: dict[tuple[str, int, str], list[list[float]]] = {}
    for file in sorted(folder.glob("*.jsonl")):
        for line in file.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            rows[row["task"], row["steps"], row["candidate"]] = row["losses"]
    return rows


def middle(values: list[float]) -> float:
    good = [v if math.isfinite(v) else math.inf for v in values]
    return statistics.median(good)


#: Candidates of the table in the guide, and what they are called there.
SHOWN = {
    "auto 0.9": '`clip="auto"`',
    "unit": '`clip="unit"`',
    "coordinates 3": "unit, coordinates at 3τ",
    "coordinates 3, coordinate": "the same, signal kept",
    "ACClip": "ACClip",
    "ACClip unit": "ACClip, unit",
    "AdaGC": "AdaGC",
    "ZClip": "ZClip",
    "AutoClip": "AutoClip",
}


def change(new: float, old: float) -> str:
    """A change in percent.

    Example:
        >>> change(0.5, 1.0), change(math.inf, 1.0)
        ('−50.0', 'diverges')
    """
    if not math.isfinite(new):
        return "diverges"
    return (
        f"{100 * (new / old - 1):+.1f}".replace("-0.0", "0.0")
        .replace("+0.0", "0.0")
        .replace("-", "−")
    )


#: Columns of the tables of the second and third try: the tail index of the norms as the switch.
SECOND = {
    "auto 0.9": '`clip="auto"`',
    "unit": '`clip="unit"`',
    "tail": "tail index",
    "switch": "switch",
    "switch 3": "switch below 3",
    "switch, coordinates 3": "switch, coordinates at 3τ",
    "switch, coordinates 1": "switch, coordinates at τ",
    "ACClip tail": "ACClip, tail index",
    "ACClip switch": "ACClip, switch",
}
#: Columns of the table of the networks.
NETWORKS = {
    "clip 0.1": "clip 0.1",
    "clip 1": "clip 1",
    "auto 0.9": '`clip="auto"`',
    "unit": '`clip="unit"`',
    "coordinates 3": "unit, coordinates at 3τ",
    "tail": "tail index",
    "switch": "switch",
    "ACClip": "ACClip",
    "ACClip unit": "ACClip, unit",
}


def markdown(
    folder: Path,
    split: str,
    tuned: bool,
    shown: dict[str, str] = SHOWN,
    lengths: tuple[str, ...] = ("short", "own"),
) -> str:
    """Median held-out loss over the seeds: AdamW's, and the change in percent of the best of five
    fixed clips and of the candidates, at lr 1e-3 or each at its best rate."""
    rows = load(folder)
    at = RATES.index(1e-3)

    def loss(losses: list[list[float]]) -> float:
        return min(map(middle, losses)) if tuned else middle(losses[at])

    head = ("task", "tail", "steps", "torch AdamW", "best of five clips", *shown.values())
    lines = [head, ("---",) * len(head)]
    for name, task in TASKS.items():
        for steps in (SHORT if length == "short" else task.steps for length in lengths):
            here = {c: loss(v) for (t, s, c), v in rows.items() if (t, s) == (name, steps)}
            if task.split != split or "AdamW" not in here or any(c not in here for c in shown):
                continue
            best = min(v for c, v in here.items() if c.startswith("clip "))
            changes = [change(v, here["AdamW"]) for v in (best, *(here[c] for c in shown))]
            name_of = name.removeprefix("judge: ")
            lines.append((name_of, task.tail, str(steps), f"{here['AdamW']:.3g}", *changes))
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def paired(mine: list[float], theirs: list[float]) -> float:
    """The median over the seeds of the ratio of two losses."""
    return middle([a / b for a, b in zip(mine, theirs)])


def best_clip(here: dict[str, list[list[float]]], tuned: bool) -> float:
    """The lowest median loss of the five fixed clips, at lr 1e-3 or at the best rate."""
    at = RATES.index(1e-3)
    return min(
        min(map(middle, v)) if tuned else middle(v[at])
        for c, v in here.items()
        if c.startswith("clip ")
    )


def default(folder: Path) -> str:
    """Per development task and length: ``clip="auto"`` at lr 1e-3 against torch's AdamW, seed
    by seed, and against the best of five fixed clips."""
    rows, at = load(folder), RATES.index(1e-3)
    head = (
        "task",
        "tail",
        "steps",
        "torch AdamW",
        "against AdamW, paired",
        "against the best clip",
    )
    lines = [head, ("---",) * len(head)]
    for name, task in TASKS.items():
        for steps in (SHORT, task.steps) if task.split == "develop" else ():
            here = {c: v for (t, s, c), v in rows.items() if (t, s) == (name, steps)}
            mine, theirs = here["auto 0.9"][at], here["AdamW"][at]
            cells = change(paired(mine, theirs), 1.0), change(middle(mine), best_clip(here, False))
            lines.append((name, task.tail, str(steps), f"{middle(theirs):.3g}", *cells))
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


#: What the summary compares, and what it is called there.
COMPARED = {
    "auto 0.9": '`AdamW(clip="auto")`',
    "unit": '`AdamW(clip="unit")`',
    "coordinates 3": "the same, coordinates at 3τ",
    "tail": "AdamW, tail index",
    "switch": "AdamW, switch",
    "switch 3": "AdamW, switch below 3",
    "switch, square": "AdamW, switch, square",
    "switch, coordinates 3": "AdamW, switch, coordinates at 3τ",
    "switch, coordinates 1": "AdamW, switch, coordinates at τ",
    "ACClip": "`ACClip`, its default",
    "ACClip unit": '`ACClip(clip="unit")`',
    "ACClip tail": "ACClip, tail index",
    "ACClip switch": "ACClip, switch",
    "ACClip switch, square": "ACClip, switch, square",
}


def summary(folder: Path) -> str:
    """Per candidate its worst case against AdamW and against the best of five clips, and where it
    is 30 % below the latter; at lr 1e-3 unless said."""
    rows, at = load(folder), RATES.index(1e-3)
    head = (
        "rule",
        "worst against AdamW, development",
        "worst against the best clip, noise, full length",
        "30 % below the best clip, lr 1e-3",
        "the same, best rates",
        "worst against AdamW, judging",
    )
    lines = [head, ("---",) * len(head)]
    for candidate, shown in COMPARED.items():
        against: dict[str, list[tuple[float, str]]] = {"develop": [], "judge": []}
        clips, ahead = [], {False: [], True: []}
        for name, task in TASKS.items():
            label = name.removeprefix("judge: ")
            for steps in (SHORT, task.steps):
                here = {c: v for (t, s, c), v in rows.items() if (t, s) == (name, steps)}
                if candidate not in here:
                    continue
                mine = here[candidate]
                ratio = paired(mine[at], here["AdamW"][at])
                against[task.split].append((ratio, f"{label}, {steps}"))
                if task.split == "develop" and steps == task.steps:
                    gap = middle(mine[at]) / best_clip(here, False)
                    clips += [(gap, label)] if task.tail == "noise" else []
                    tuned = min(map(middle, mine)) / best_clip(here, True)
                    for kind, value in ((False, gap), (True, tuned)):
                        ahead[kind] += [f"{label} {change(value, 1.0)}"] if value <= 0.7 else []
        if not clips:
            continue
        cells = []
        for found, total in (
            (against["develop"], 2 * sum(t.split == "develop" for t in TASKS.values())),
            (clips, sum(t.split == "develop" and t.tail == "noise" for t in TASKS.values())),
            (against["judge"], 2 * sum(t.split == "judge" for t in TASKS.values())),
        ):
            if not found:
                cells.append("–")
                continue
            worst, where = max(found)
            part = "" if len(found) == total else f"; {len(found)} of {total} run"
            cells.append(f"{change(worst, 1.0)} ({where}{part})")
        listed = ["; ".join(ahead[kind]) or "none" for kind in (False, True)]
        lines.append((shown, *cells[:2], *listed, cells[2]))
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


#: Rules whose steps follow the gradient's scale: columns of their table.
SCALED = {
    "SGD": "no clipping",
    "SGD 0.5": "0.5 quantile",
    "SGD 0.25": "0.25 quantile",
    "SGD 0.1": "0.1 quantile",
    "SGD unit": "unit gradient",
    "SGD tail": "tail index",
}


def scaled(folder: Path) -> str:
    """SGD with momentum 0.9 at full length, each at the best of its five rates: the loss with the
    0.9 quantile, and the change in percent of the other rules against it."""
    rows = load(folder)
    head = ("task", "tail", "set", "SGD, 0.9 quantile", *SCALED.values())
    lines = [head, ("---",) * len(head)]
    for name, task in TASKS.items():
        here = {
            c: min(map(middle, v))
            for (t, s, c), v in rows.items()
            if (t, s) == (name, task.steps) and c.startswith("SGD")
        }
        if "SGD 0.9" not in here or any(c not in here for c in SCALED):
            continue
        base = here["SGD 0.9"]
        cells = (change(here[c], base) for c in SCALED)
        label = name.removeprefix("judge: ")
        lines.append((label, task.tail, task.split, f"{base:.3g}", *cells))
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


#: Columns of the table of the fourth try.
FOURTH = {
    "auto 0.9": '`clip="auto"`',
    "unit": '`clip="unit"`',
    "sides": "sides, p = 0",
    "sides 1": "sides, p = 1",
    "ACClip": "ACClip",
    "ACClip sides 2": "ACClip, sides, p = 2",
}
#: Columns of the table of the fifth try.
FIFTH_TRY = {
    "weighed 2, either": "p = 2",
    "auto 0.9": '`clip="auto"`',
    "unit": '`clip="unit"`',
    "ACClip": "ACClip",
    "weighed": "p = 1, AdamW's step",
    "weighed, either": "p = 1",
}


#: Columns of the table of the sixth try.
SIXTH_TRY = {
    "weighed 2, growth 2": '`clip="noise"`',
    "auto 0.9": '`clip="auto"`',
    "unit": '`clip="unit"`',
    "ACClip": "ACClip",
}
AtOneRate = dict[tuple[str, int], dict[str, list[float]]]


def at_one_rate(*files: Path) -> AtOneRate:
    """The losses of files with one rate, per seed: (task, steps) -> candidate -> losses."""
    found: AtOneRate = {}
    for file in files:
        for row in map(json.loads, file.read_text(encoding="utf-8").splitlines()):
            here = found.setdefault((row["task"], row["steps"]), {})
            here[row["candidate"]] = row["losses"][0]
    return found


def one_try(
    found: AtOneRate,
    splits: tuple[str, ...],
    shown: dict[str, str],
    judged: str,
    said: str,
    folder: Path,
) -> str:
    """One try at lr 1e-3: the median of three paired changes against AdamW (of five fixed clips
    the best one's), and the candidate ``judged`` against the best of these clips as the rules were
    registered, by medians (its column is called ``said``). What did not run beside it is from the
    records of five rates in ``folder``."""
    there: AtOneRate = {}
    for (name, steps, candidate), losses in load(folder).items():
        there.setdefault((name, steps), {})[candidate] = losses[RATES.index(1e-3)]
    head = ("task", "tail", "steps", "torch AdamW", "best of five clips", *shown.values())
    lines = [(*head, f"{said} against the best clip"), ("---",) * (len(head) + 1)]
    for (name, steps), here in sorted(
        found.items(), key=lambda x: (list(TASKS).index(x[0][0]), x[0][1])
    ):
        if TASKS[name].split not in splits or judged not in here:
            continue
        other = there.get((name, steps), {})
        source = here if "clip 1" in here else other
        clips = [middle(v) for c, v in source.items() if c.startswith("clip ")]
        pairs = [paired(v, source["AdamW"]) for c, v in source.items() if c.startswith("clip ")]
        cells = [change(min(pairs), 1.0) if pairs else "–"]
        for candidate in shown:
            run = here if candidate in here else other
            known = candidate in run
            cells.append(change(paired(run[candidate], run["AdamW"]), 1.0) if known else "–")
        cells.append(change(middle(here[judged]), min(clips)) if clips else "–")
        label = name.partition(": ")[2] or name
        lines.append((label, TASKS[name].tail, str(steps), f"{middle(here['AdamW']):.3g}", *cells))
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def in_short(found: AtOneRate, shown: dict[str, str], judged: str) -> str:
    """Per candidate, on the development tasks and on those of the split ``judged``: its worst case
    against AdamW; its worst cases against the best of five clips at full length, by what large
    gradients are; and where noise is their reason and it is 30 % below the best clip."""
    head = ("rule", "tasks", "worst against AdamW", "against the best clip: noise", "faults")
    lines = [(*head, "signal, or none", "30 % below the best clip, noise")]
    lines.append(("---",) * len(lines[0]))
    for candidate, said in shown.items():
        for judging in (False, True):
            against: list[tuple[float, str]] = []
            clips: dict[str, list[tuple[float, str]]] = {"noise": [], "fault": [], "other": []}
            names = set()
            for (name, steps), here in found.items():
                task, label = TASKS[name], name.partition(": ")[2] or name
                if (task.split == judged) != judging or candidate not in here:
                    continue
                names.add(name)
                against.append((paired(here[candidate], here["AdamW"]), f"{label}, {steps}"))
                if steps == task.steps:
                    best = min(middle(v) for c, v in here.items() if c.startswith("clip "))
                    kind = task.tail if task.tail in clips else "other"
                    clips[kind].append((middle(here[candidate]) / best, label))
            cells = [
                f"{change(*max(cases)[:1], 1.0)} ({max(cases)[1]})" if cases else "–"
                for cases in (against, *clips.values())
            ]
            ahead = [f"{label} {change(x, 1.0)}" for x, label in clips["noise"] if x <= 0.7]
            tasks = f"{'judging' if judging else 'development'}, {len(names)}"
            lines.append((said, tasks, *cells, "; ".join(ahead) or "none"))
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def networks_fifth(file: Path) -> str:
    """Per network and length: AdamW's median held-out loss at lr 1e-3, and what the rule of the
    fifth try and a second run of AdamW change, paired by seed."""
    losses: dict[tuple[str, int, str], dict[int, float]] = {}
    for row in map(json.loads, file.read_text(encoding="utf-8").splitlines()):
        key = row["task"], row["steps"], row["candidate"]
        losses.setdefault(key, {})[row["seed"]] = row["loss"]
    said = '`clip="noise"`, percent, median and each seed'
    head = ("network", "steps", "torch AdamW", said, "AdamW again, percent")
    lines = [head, ("---",) * len(head)]
    for name, steps in sorted({key[:2] for key in losses}):
        base = losses[name, steps, "AdamW"]
        cells = []
        for candidate in ("weighed 2, either", "AdamW again"):
            mine = losses[name, steps, candidate]
            parts = [100 * (mine[seed] / base[seed] - 1) for seed in sorted(mine)]
            shown = f"{statistics.median(parts):+.2f} ({', '.join(f'{x:+.2f}' for x in parts)})"
            cells.append(shown.replace("-", "−").replace("+0.00", "0").replace("−0.00", "0"))
        lines.append((name, str(steps), f"{statistics.median(base.values()):.3f}", *cells))
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def networks(folder: Path) -> str:
    """Per network, length and rate: AdamW's median held-out loss, and the median over the seeds of
    each candidate's change in percent, seed by seed."""
    losses: dict[tuple[str, int, float, str], dict[int, float]] = {}
    for file in sorted(folder.glob("*.jsonl")):
        for row in map(json.loads, file.read_text(encoding="utf-8").splitlines()):
            key = row["task"], row["steps"], row["lr"], row["candidate"]
            losses.setdefault(key, {})[row["seed"]] = row["loss"]
    head = ("network", "steps", "lr", "seeds", "torch AdamW", *NETWORKS.values())
    lines = [head, ("---",) * len(head)]
    for name, steps, lr in sorted({key[:3] for key in losses}):
        base = losses[name, steps, lr, "AdamW"]
        cells = []
        for candidate in NETWORKS:
            found = losses.get((name, steps, lr, candidate), {})
            ratios = [found[seed] / base[seed] for seed in found if seed in base]
            cells.append(change(statistics.median(ratios), 1.0) if ratios else "–")
        loss = f"{statistics.median(base.values()):.3f}"
        lines.append((name, str(steps), f"{lr:g}", str(len(base)), loss, *cells))
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def tables(folder: Path) -> dict[str, str]:
    """Mark in the guide -> its table."""
    made = {"networks": networks(folder.parent / "clipping_networks")}
    made |= {"default": default(folder), "summary": summary(folder), "scaled": scaled(folder)}
    records = folder.parent
    fourth = at_one_rate(records / "clipping_fourth.jsonl")
    fifth = at_one_rate(records / "clipping_fifth.jsonl")
    sixth = at_one_rate(records / "clipping_fifth.jsonl", records / "clipping_sixth.jsonl")
    earlier = ("develop", "develop 4", "judge")
    made["fourth try"] = one_try(fourth, earlier, FOURTH, "sides 1", "p = 1", folder)
    made["fourth try judged"] = one_try(fourth, ("final",), FOURTH, "sides 1", "p = 1", folder)
    rule = ("weighed 2, either", "p = 2", folder)
    made["fifth try judged"] = one_try(fifth, ("fifth",), FIFTH_TRY, *rule)
    made["fifth try, networks"] = networks_fifth(records / "clipping_networks_fifth.jsonl")
    rule = ("weighed 2, growth 2", '`clip="noise"`', folder)
    developed = (*earlier, "final", "fifth", "develop 6")
    made["sixth try in short"] = in_short(sixth, SIXTH_TRY, "sixth")
    made["sixth try"] = one_try(sixth, developed, SIXTH_TRY, *rule)
    made["sixth try judged"] = one_try(sixth, ("sixth",), SIXTH_TRY, *rule)
    advice = folder.parent / "clipping_advice.jsonl"
    if advice.exists():
        made["advice"] = __import__("clipping_advice").table(advice)
    for name, tuned in (("at 1e-3", False), ("at the best rate", True)):
        made[name] = markdown(folder, "develop", tuned)
        made[f"judged {name}"] = markdown(folder, "judge", tuned)
        made[f"second try {name}"] = markdown(folder, "develop", tuned, SECOND, ("own",))
        made[f"second try judged {name}"] = markdown(
            folder, "judge", tuned, {c: w for c, w in SECOND.items() if "switch" not in c}, ("own",)
        )
    return made


def documents(folder: Path, pages: list[Path]) -> list[str]:
    """The pages with their tables written anew, between their marks; each mark is in one page."""
    texts = [page.read_text(encoding="utf-8") for page in pages]
    for name, table in tables(folder).items():
        begin, end = f"<!-- clipping {name}: begin -->", f"<!-- clipping {name}: end -->"
        places = [i for i, text in enumerate(texts) if begin in text]
        if len(places) != 1:
            raise SystemExit(f"{len(places)} pages have the mark {begin}")
        before, _, rest = texts[places[0]].partition(begin)
        texts[places[0]] = f"{before}{begin}\n\n{table}\n\n{end}{rest.partition(end)[2]}"
    return texts


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path)
    parser.add_argument("--table", type=Path)
    parser.add_argument("--docs", type=Path, nargs="+")
    parser.add_argument("--split", default="develop")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--tasks", default="")
    parser.add_argument("--candidates", default="")
    parser.add_argument("--lengths", default="short,own")
    parser.add_argument("--rates", default=",".join(map(str, RATES)))
    parser.add_argument("--tiny", type=int, default=0)
    options = parser.parse_args()
    if options.table:
        if options.docs:
            for page, text in zip(options.docs, documents(options.table, options.docs)):
                page.write_text(text, encoding="utf-8")
        else:
            print(markdown(options.table, options.split, tuned=False))
            print(markdown(options.table, options.split, tuned=True))
        return
    options.out.mkdir(parents=True, exist_ok=True)
    known, rates = load(options.out), tuple(map(float, options.rates.split(",")))
    jobs = []
    for name, task in TASKS.items():
        if task.split != options.split or (options.tasks and name not in options.tasks.split(";")):
            continue
        for length in options.lengths.split(","):
            steps = options.tiny or (SHORT if length == "short" else task.steps)
            names = [
                c.name
                for c in candidates()
                if (name, steps, c.name) not in known
                and (not options.candidates or c.name in options.candidates.split(";"))
            ]
            if names:
                file = options.out / f"{''.join(ch for ch in name if ch.isalnum())}-{steps}.jsonl"
                jobs.append((name, steps, names, options.device, str(file), rates))
    jobs.sort(key=lambda job: -job[1])
    if options.jobs == 1:
        for job in jobs:
            print(work(job), flush=True)
    else:
        with ProcessPoolExecutor(options.jobs) as pool:
            for said in pool.map(work, jobs):
                print(said, flush=True)


if __name__ == "__main__":
    main()
