"""The tables of the benchmarks in the documents are those of the records."""

from __future__ import annotations

import hashlib
import importlib
import json
import math
import statistics
import sys
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
RECORDS = ROOT / "benchmarks" / "records"


def script(name: str) -> ModuleType:
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(ROOT / "benchmarks"))


@pytest.fixture(scope="module")
def drop_in() -> ModuleType:
    return script("drop_in")


@pytest.mark.parametrize("page", ["docs/appendix/optimizer-tables.md"])
def test_the_page_has_the_table_of_the_records(drop_in: ModuleType, page: str) -> None:
    text = (ROOT / page).read_text()
    assert "<!-- drop_in: end -->" in text
    assert drop_in.written(ROOT / page, RECORDS) == text, (
        f"run python benchmarks/drop_in.py --table benchmarks/records --docs {page}"
    )


@pytest.mark.parametrize("name", ["spikes", "gclip_tries"])
def test_the_page_on_optimizers_has_the_smaller_tables(drop_in: ModuleType, name: str) -> None:
    page = ROOT / "docs" / "appendix" / "optimizer-tables.md"
    assert f"<!-- {name}: end -->" in page.read_text()
    assert drop_in.with_table(page, name, script(name).table(RECORDS)) == page.read_text(), (
        f"run python benchmarks/{name}.py --table benchmarks/records --docs {page}"
    )


def test_every_optimizer_at_its_defaults_passes_the_spike() -> None:
    spikes = script("spikes")
    losses = script("kept_runs").read(RECORDS, "spikes")
    limit = sum(losses[spikes.REFERENCE, seed, True] for seed in spikes.SEEDS)
    for name in spikes.DEFAULTS:
        calm, spiked = (sum(losses[name, seed, s] for seed in spikes.SEEDS) for s in (False, True))
        assert spiked <= 1.02 * max(calm, limit), name


def test_the_page_on_recommend_has_the_tables_of_the_records() -> None:
    page, records = ROOT / "docs" / "recommend.md", RECORDS / "recommend" / "records.jsonl"
    assert script("recommend").written(page, records) == page.read_text(encoding="utf-8"), (
        "run python benchmarks/recommend.py benchmarks/records/recommend/records.jsonl --table "
        "--docs docs/recommend.md"
    )


def test_the_page_on_recommend_has_the_figures_of_the_fifth_judging() -> None:
    """Those of the registered rule, for the former race and for the one that it refused."""
    page = (ROOT / "docs" / "recommend.md").read_text(encoding="utf-8")
    recommend = script("recommend")
    done = recommend.read(RECORDS / "recommend" / "records.jsonl")
    found = [row for row in recommend.rows(done) if row.task in recommend.SPLITS["judge5"]]
    races = (recommend.FULL, recommend.FIFTH, recommend.REPAIRED)
    gaps = {race: [row.gap(race) for row in found] for race in races}
    lines = {
        "(i) gaps above 15 %": [str(sum(gap > 15 for gap in gaps[race])) for race in races],
        "(ii) median gap": [f"+{statistics.median(gaps[race]):.1f} %" for race in races],
        "(iii) mean of log(1 + gap)": [
            f"{statistics.fmean(math.log1p(max(gap, 0) / 100) for gap in gaps[race]):.3f}"
            for race in races
        ],
        "(iv) most runs by its own count": [
            f"{max(row.modes[race][2]['said'] for row in found):.2f}" for race in races
        ],
    }
    for name, values in lines.items():
        assert f"| {' | '.join([name, *values])} |" in page.replace("**", ""), (name, values)


def test_the_page_on_recommend_has_the_figures_of_the_sixth_judging() -> None:
    """Those of the registered rule: gaps where something can train, costs and verdicts anywhere."""
    page = (ROOT / "docs" / "recommend.md").read_text(encoding="utf-8")
    recommend = script("recommend")
    done = recommend.read(RECORDS / "recommend" / "records.jsonl")
    found = [row for row in recommend.rows(done) if row.task in recommend.SPLITS["judge6"]]
    races, live = (recommend.FULL, recommend.SIXTH), recommend._live(found)
    assert [len(found), len(live)] == [11, 10]  # one task is refused with an error
    gaps = {race: [row.gap(race) for row in live] for race in races}
    fresh = {race: [row.gap(race, fresh=True) for row in live] for race in races}
    verdicts = [recommend.verdicts(done, race, ["judge6"]) for race in races]
    lines = {
        "(i) gaps above 15 %": [str(sum(gap > 15 for gap in gaps[race])) for race in races],
        "(ii) median gap": [f"+{statistics.median(gaps[race]):.1f} %" for race in races],
        "(iii) most runs by its own count": [
            f"{max(row.modes[race][2]['said'] for row in found):.2f}" for race in races
        ],
        '(iv) wrong "nothing trains", of 10': [str(counts[1]) for counts in verdicts],
        '(iv) right "nothing trains", of 2': [str(counts[4]) for counts in verdicts],
        "median gap on fresh seeds": [f"+{statistics.median(fresh[race]):.1f} %" for race in races],
    }
    for name, values in lines.items():
        assert f"| {' | '.join([name, *values])} |" in page, (name, values)


def test_the_tasks_that_judge_recommend_are_those_that_were_registered() -> None:
    registered = json.loads((RECORDS / "recommend" / "split.json").read_text())["sha256"]
    names = ("judged", "again", "third", "fourth", "fifth", "sixth")
    judging = {f"recommend_{name}.py" for name in names}
    assert set(registered) == {"recommend_tasks.py", *judging}
    for name, checksum in registered.items():
        assert hashlib.sha256((ROOT / "benchmarks" / name).read_bytes()).hexdigest() == checksum


def test_the_search_of_recommend_leaves_no_part_of_the_rates_out() -> None:
    drawn = [script("recommend").drawn(index) for index in range(60)]
    for index in range(3):
        rates = sorted(math.log10(s["lr"]) for s in drawn[index::3])
        assert max(b - a for a, b in pairwise(rates)) < 0.35
    assert {s["shape"] for s in drawn} == {"linear", "trapezoid"}
    assert sum(s["clip"] is not None for s in drawn) >= 20
    assert 0.0 in {s["weight_decay"] for s in drawn}


def test_the_table_names_the_runs_that_are_missing(drop_in: ModuleType, tmp_path: Path) -> None:
    lines = (RECORDS / "drop_in.jsonl").read_text().splitlines()
    assert "24 are missing (24 of *spike*)" in drop_in.table(RECORDS)
    (tmp_path / "drop_in.jsonl").write_text(
        "\n".join(x for x in lines if '"fault": "labels"' not in x)
    )
    assert "117 of *labels*" in drop_in.table(tmp_path)


def test_cells_say_what_the_losses_are(drop_in: ModuleType) -> None:
    assert drop_in.relative(1.05, 1.0) == "**+5.0 %**"
    assert drop_in.relative(0.99, 1.0) == "−1.0 %"
    assert drop_in.relative(drop_in.average([1.0, math.nan]), 1.0) == "**diverges**"
    assert drop_in.relative(drop_in.average([]), 1.0) == ""


def test_the_pages_on_clipping_have_the_tables_of_the_records() -> None:
    pages = [ROOT / "docs" / "clipping.md", ROOT / "docs" / "appendix" / "clipping-tables.md"]
    written = script("clipping").documents(RECORDS / "clipping", pages)
    assert written == [page.read_text(encoding="utf-8") for page in pages], (
        "run python benchmarks/clipping.py --table benchmarks/records/clipping --docs "
        "docs/clipping.md docs/appendix/clipping-tables.md"
    )


def test_advise_prescribes_clipping_only_where_it_lowered_the_loss() -> None:
    advice = script("clipping_advice")
    tasks = script("clipping").TASKS
    losses = advice.records(RECORDS)
    rows = advice.read(RECORDS / "clipping_advice.jsonl")
    assert len(rows) == 3 * len(tasks)
    prescribed = {name for (name, _), row in rows.items() if row["prescribed"]}
    assert prescribed
    assert all(advice.effect(losses, name) < 0 for name in prescribed)
    # There are tasks on which it would have cost.
    assert max(advice.effect(losses, name) for name in tasks) > 4


def test_tasks_of_clipping_are_judged_apart_and_their_noise_is_what_they_say() -> None:
    """Both halves have noise and signal; a model of each task gets a finite gradient everywhere."""
    import torch

    tasks = script("clipping_tasks").TASKS
    as_params = script("clipping").as_params
    for split in ("develop", "judge", "final"):
        tails = [task.tail for task in tasks.values() if task.split == split]
        assert min(tails.count("noise"), tails.count("signal")) >= 2
    for task in tasks.values():
        stream = torch.Generator().manual_seed(0)
        world = task.world(stream)
        start = torch.cat([v.reshape(-1) for v in task.init(stream).values()]).requires_grad_()
        loss = task.loss(as_params(start, task), task.draw(world, stream))
        (gradient,) = torch.autograd.grad(loss, start)
        assert gradient.isfinite().all(), task.name
        score = (task.score or task.loss)(as_params(start, task), task.held_out(world, stream))
        assert math.isfinite(score.item()), task.name


def test_a_unit_gradient_is_what_a_tiny_threshold_gives() -> None:
    import torch

    rules = script("clipping_rules")
    g = torch.randn(2, 3, 50, generator=torch.Generator().manual_seed(0))
    unit, tiny = rules.whole(g, {}, 1, [50]), rules.fixed(1e-3)(g, {}, 1, [50])
    assert torch.allclose(unit * 1e-3, tiny, rtol=1e-5)
    state: dict = {}
    for k in range(1, 200):
        rules.quantile(0.9)(g * (1 + k % 7), state, k, [50])
    assert state["window"].shape[-1] == rules.WINDOW
