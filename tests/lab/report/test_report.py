"""The report: statistics against numpy and closed forms, thinning, and a page whose structure
and texts are sound.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import subprocess
import sys
from base64 import b64decode
from collections import Counter
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from cases.report_records import NASTY, figure, write_everything, write_study

from mindgap.lab.report.aggregate import (
    MOST_PLACES,
    Readings,
    Series,
    end_values,
    over_seeds,
    thin,
    thin_points,
)
from mindgap.lab.report.drawing import draw
from mindgap.lab.report.figure import figure_png, figure_svg, picture
from mindgap.lab.report.load import load, load_study
from mindgap.lab.report.page import draw_all, render, write_page
from mindgap.lab.report.pieces import Answered, decisive, evidence
from mindgap.record.schema import End, RecordError
from mindgap.record.store import RunWriter, read_run


def unpacked_data(page: str) -> dict:
    """The numbers that a page holds."""
    packed = page.partition('id="mg-data">')[2].partition("</script>")[0]
    return json.loads(gzip.decompress(b64decode(packed)))


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("report")
    write_everything(folder / "runs")
    return write_page(folder / "runs", folder / "page.html").read_text(encoding="utf-8")


def test_a_verdict_shows_the_parts_that_decide_it_with_their_numbers() -> None:
    measured = (
        "not clipped, weak: open (0.43; 1 of 3); clipped, weak: open (0.47); as printed, fast: no; "
        "seen (a; b)"
    )
    parts, notes = evidence(
        {"clipped, weak": "open", "fast": "no", "not clipped, weak": "open"}, measured
    )
    assert [part.name for part in parts] == [
        "not clipped, weak",
        "clipped, weak",
        "as printed, fast",
    ]
    assert [part.words for part in parts] == ["0.43; 1 of 3", "0.47", ""]
    assert notes == ["seen (a; b)"]
    assert decisive("does not hold", parts, notes) == ["as printed, fast: no"]
    assert (
        decisive("inconclusive", parts, notes)[0] == "seen (a; b)"
    )  # a part is refuted: the notes say what is open
    many = [Answered(f"part {i}", "yes", "") for i in range(8)]
    assert decisive("holds", many, []) == [
        "part 0: yes",
        "part 1: yes",
        "part 2: yes",
        "and 5 more",
    ]


def test_an_unclosed_bracket_of_a_verdict_keeps_its_last_letter() -> None:
    parts, notes = evidence({"a": "yes"}, "a: yes (12 of 30")
    assert [part.words for part in parts] == ["12 of 30"]
    assert notes == []


# ---- statistics
# --------------------------------------------------------------------------------------------------


def test_statistics_over_seeds_are_numpys() -> None:
    rng = np.random.default_rng(0)
    x, values = np.arange(50.0), rng.standard_normal((7, 50))
    table = over_seeds([(x, y) for y in values])
    np.testing.assert_allclose(table["mean"], values.mean(0), rtol=1e-12)
    np.testing.assert_allclose(table["sd"], values.std(0, ddof=1), rtol=1e-12)
    for name, q in (("q10", 0.1), ("q50", 0.5), ("q90", 0.9)):
        np.testing.assert_allclose(table[name], np.quantile(values, q, axis=0), rtol=1e-12)
    assert (table["n"] == 7).all()


def test_a_run_that_stopped_early_is_not_counted_beyond_its_end() -> None:
    full, stopped = (np.arange(4.0), np.ones(4)), (np.arange(2.0), np.full(2, 3.0))
    table = over_seeds([full, stopped])
    assert table["mean"].tolist() == [2, 2]
    assert table["n"].tolist() == [2, 2]
    ends = end_values([full, stopped])
    assert (ends["mean"], ends["n"], ends["first"], ends["last"]) == (2.0, 2.0, 1.0, 3.0)


def test_every_last_value_is_that_of_the_records_where_seeds_end_apart(tmp_path: Path) -> None:
    """Seeds of one method stop after other numbers of steps and oracle calls; each has one vote
    in the last values.
    """
    folder = write_study(tmp_path / "runs", seeds=5)
    for path in folder.glob("GClip-*.jsonl"):
        run = read_run(path)
        path.unlink()
        with RunWriter(folder, run.header) as writer:
            for row in run.rows[: 40 - 7 * run.header.seed]:
                writer.row(row)
            writer.end(End("done"))
    text = write_page(tmp_path / "runs", tmp_path / "page.html").read_text(encoding="utf-8")
    data = unpacked_data(text)
    records = [read_run(path) for path in folder.glob("*.jsonl")]
    compared = 0
    for shown in data["figures"]:
        y = {"Loss": "loss", "Norm": "norm"}[shown["title"]]
        for axis in shown["axes"]:
            if axis["name"] == "seconds":
                continue  # made up in no order
            for series in axis["series"]:
                runs = [
                    run for run in records if run.header.method == shown["methods"][series["m"]]
                ]
                last = np.array([run.rows[-1][y] for run in runs])
                places = [
                    run.rows[-1][axis["name"]] for run in runs if axis["name"] in run.rows[-1]
                ]
                ends = series["ends"]
                want = {
                    "mean": last.mean(),
                    "sd": last.std(ddof=1),
                    "n": 5,
                    "first": min(places),
                    "last": max(places),
                    **{f"q{q}": np.quantile(last, q / 100) for q in (10, 50, 90)},
                }
                assert ends == pytest.approx(want, rel=1e-5)
                assert max(series["x"]) <= min(places), "the curve stops where the first seed ends"
                assert set(series["n"]) == {5}
                compared += 1
    assert compared >= 4


def test_runs_read_at_different_places_are_interpolated_exactly_where_linear() -> None:
    rng = np.random.default_rng(1)
    runs = []
    for slope in (1.0, 2.0, 6.0):
        x = np.sort(rng.uniform(0, 10, 300))
        runs.append((x, slope * x))
    table = over_seeds(runs)
    assert len(table["x"]) <= MOST_PLACES < 900
    inside = table["n"] == 3
    assert inside.sum() > 0.8 * MOST_PLACES
    np.testing.assert_allclose(table["mean"][inside], 3 * table["x"][inside], rtol=1e-12)
    np.testing.assert_allclose(table["q50"][inside], 2 * table["x"][inside], rtol=1e-12)


def test_a_value_that_is_not_finite_stops_the_mean_and_counts_as_largest() -> None:
    x = np.zeros(1)
    table = over_seeds([(x, np.array([v])) for v in (1.0, 2.0, 3.0, np.inf, np.nan)])
    assert np.isnan(table["mean"][0])
    assert table["q50"][0] == 3.0
    assert np.isnan(table["q90"][0])


def test_several_readings_at_one_place_give_a_run_one_vote() -> None:
    table = over_seeds([(np.zeros(3), np.array([1.0, 2.0, 3.0])), (np.zeros(1), np.array([6.0]))])
    assert table["mean"].tolist() == [4.0]


@pytest.mark.parametrize("log_x", [False, True])
def test_thinning_keeps_the_extremes_of_every_bucket(log_x: bool) -> None:
    y = np.random.default_rng(2).standard_normal(5000)
    x = np.arange(1.0, 5001.0)
    thinned = thin(Series("m", "", {"x": x, "y": y}), 40, log_x=log_x)
    assert len(thinned) <= 4 * 40 + 2
    edges = np.geomspace(1, 5000, 41) if log_x else np.linspace(1, 5000, 41)
    for low, high in pairwise(edges):
        there, kept = (
            y[(x >= low) & (x < high)],
            thinned.columns["y"][_in(thinned.columns["x"], low, high)],
        )
        if len(there):
            assert kept.min() == there.min()
            assert kept.max() == there.max()


def _in(x: np.ndarray, low: float, high: float) -> np.ndarray:
    return (x >= low) & (x < high)


def test_thinning_a_scatter_keeps_its_outline() -> None:
    rng = np.random.default_rng(3)
    columns = {"x": rng.standard_normal(20_000), "y": rng.standard_normal(20_000)}
    thinned = thin_points(Series("m", "", columns), 400)
    assert len(thinned) <= 650
    for name in ("x", "y"):
        assert thinned.columns[name].min() == columns[name].min()
        assert thinned.columns[name].max() == columns[name].max()


# ---- reading
# --------------------------------------------------------------------------------------------------


def test_records_of_other_settings_are_counted_not_drawn(tmp_path: Path) -> None:
    folder = write_study(tmp_path / "runs", seeds=2)
    write_study(tmp_path / "more", seeds=3)
    for path in (tmp_path / "more").glob("*/*/*-2-*.jsonl"):
        path.rename(folder / path.name)
    study = load_study(folder)
    assert (len(study.runs), study.others) == (4, 2)
    page = write_page(tmp_path / "runs", tmp_path / "page.html").read_text(encoding="utf-8")
    assert "2 further records of other settings" in page


def test_a_damaged_record_is_named_with_its_line_and_the_others_are_drawn(tmp_path: Path) -> None:
    write_everything(tmp_path)
    broken = next(study for study in load(tmp_path) if study.name == "s5-broken")
    assert len(broken.runs) == 5
    assert re.fullmatch(r"GClip-2-[0-9a-f]+\.jsonl:6: damaged line: '{oops'", broken.problems[0])
    assert [run.header.seed for run in broken.failed] == [0]
    assert [run.header.seed for run in broken.unfinished] == [1]


def test_a_folder_without_records_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="RUNS must hold records"):
        write_page(tmp_path, tmp_path / "page.html")
    assert list(tmp_path.iterdir()) == []


# ---- figures
# --------------------------------------------------------------------------------------------------


def test_every_specification_is_valid_vega_lite_and_becomes_a_picture(tmp_path: Path) -> None:
    altair = pytest.importorskip("altair")
    write_everything(tmp_path)
    drawings = [d for group in draw_all(load(tmp_path)) for d in group if not d.empty]
    kinds = {d.kind for d in drawings}
    assert kinds == {"lines", "points", "path"}
    for drawing in drawings[:8]:
        spec = picture(drawing)
        assert len(spec["datasets"]["rows"]) > 4
        altair.Chart.from_dict(spec)  # validates against the schema
    png = figure_png(picture(drawings[0]))
    width, height = int.from_bytes(png[16:20], "big"), int.from_bytes(png[20:24], "big")
    assert width > 1000
    assert height > 500
    assert "the optimum" in figure_svg(picture(drawings[0]))


def test_axes_offered_are_those_the_rows_have(tmp_path: Path) -> None:
    study = load_study(write_study(tmp_path))
    axes = dict(study.description.axes)
    lines = draw(
        "f",
        study.description.figures[1],
        [Readings(run) for run in study.runs],
        study.methods,
        axes,
    )
    assert [axis.name for axis in lines.axes] == [
        "oracle_calls",
        "step",
        "x_epoch",
        "y_epoch",
        "seconds",
    ]
    odd = draw(
        "f",
        figure("t", "norm", x="loss"),
        [Readings(run) for run in study.runs],
        study.methods,
        axes,
    )
    assert [axis.name for axis in odd.axes] == ["loss"]
    missing = draw(
        "f",
        figure("t", "norm"),
        [Readings(run) for run in study.runs],
        study.methods,
        {"step": "step", "never": "never"},
    )
    assert [axis.name for axis in missing.axes] == ["step"]


def test_a_large_sweep_stays_within_the_budget_of_points(tmp_path: Path) -> None:
    write_study(tmp_path, methods=tuple(f"m{i}" for i in range(40)), seeds=2, rows=120)
    studies = load(tmp_path)
    text = render(studies, draw_all(studies))
    data = unpacked_data(text)
    for shown in data["figures"]:
        for axis in shown["axes"]:
            assert sum(len(s["x"]) for s in axis["series"]) <= 7000


# ---- the page
# --------------------------------------------------------------------------------------------------


class Elements(HTMLParser):
    """The elements of a page with their attributes, and the texts outside scripts."""

    def __init__(self) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.names: dict[int, str] = {}
        self._open: list[int] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attributes)))
        if tag in ("button", "label", "a", "summary", "h1", "h2", "h3", "h4"):
            self._open.append(len(self.elements) - 1)

    def handle_endtag(self, tag: str) -> None:
        if self._open and self.elements[self._open[-1]][0] == tag:
            self._open.pop()

    def handle_data(self, data: str) -> None:
        self.texts.append(data)
        for place in self._open:
            self.names[place] = self.names.get(place, "") + data


@pytest.fixture(scope="module")
def elements(page: str) -> Elements:
    parser = Elements()
    parser.feed(page)
    return parser


def test_awkward_names_are_shown_as_text_and_never_become_elements(elements: Elements) -> None:
    assert Counter(tag for tag, _ in elements.elements)["script"] == 3
    assert "b" not in {tag for tag, _ in elements.elements}
    for name in NASTY:
        assert any(name in text for text in elements.texts)
    for message in ("lr <b>burst</b>", "damaged line: '{oops'"):
        assert any(message in text for text in elements.texts)


def test_the_page_asks_for_nothing(elements: Elements) -> None:
    for tag, attributes in elements.elements:
        for name in ("src", "href", "action", "srcset"):
            assert (attributes.get(name) or "#").startswith(("#", "data:")), (tag, attributes)


def test_the_structure_serves_a_screen_reader(elements: Elements) -> None:
    kinds = [tag for tag, _ in elements.elements]
    attributes = dict(elements.elements)
    assert attributes["html"]["lang"] == "en"
    assert kinds.count("h1") == kinds.count("main") == 1
    levels = [int(tag[1]) for tag in kinds if re.fullmatch(r"h[1-6]", tag)]
    assert all(b - a <= 1 for a, b in pairwise(levels)), "a heading level is skipped"
    ids = Counter(a["id"] for _, a in elements.elements if "id" in a)
    assert max(ids.values()) == 1
    targets = [a["href"][1:] for tag, a in elements.elements if tag == "a" and a.get("href")]  # type: ignore[index]
    assert targets
    assert set(targets) <= set(ids)
    for place, (tag, a) in enumerate(elements.elements):
        if tag == "button":
            assert a.get("type") == "button"
            assert a.get("aria-label") or elements.names.get(place, "").strip()
        if tag == "select":
            assert a.get("aria-label") or elements.elements[place - 1][0] == "label"
        if a.get("role") in ("img", "region"):
            assert a.get("aria-label")
        if tag == "th":
            assert a.get("scope") in ("row", "col")


def test_the_verdict_table_has_every_column_and_links_to_every_study(elements: Elements) -> None:
    labels = [a["data-label"] for tag, a in elements.elements if tag == "td" and "data-label" in a]
    assert Counter(labels) == dict.fromkeys(
        ("Verdict", "Claim", "Finding", "Measured on", "Measured"), 8
    )
    anchors = {a["href"] for tag, a in elements.elements if tag == "a"}
    studies = [a for tag, a in elements.elements if a.get("class") == "study"]
    sections = {f"#{a['id']}" for a in studies}
    assert sections <= anchors
    assert len(sections) == 8


def test_settings_versions_machine_and_command_stand_under_every_study(page: str) -> None:
    assert page.count("<pre>mindgap run s1-plain --seeds 3</pre>") == 1
    assert page.count("<p>mindgap 0, torch 2</p>") == 8
    assert page.count("<p>cores 2, system Linux</p>") == 8


def test_drawing_a_page_needs_no_torch(tmp_path: Path) -> None:
    write_study(tmp_path / "runs", rows=5)
    program = (
        "import sys; from pathlib import Path; from mindgap.lab.report import write_page;"
        f"write_page(Path({str(tmp_path / 'runs')!r}), Path({str(tmp_path / 'p.html')!r}));"
        "print(sorted({'torch', 'pandas', 'mindgap.lab.studies'} & set(sys.modules)))"
    )
    root = str(Path(__file__).parents[3])
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": root},
    )
    assert done.stdout.strip() == "[]", done.stderr


def test_the_page_is_written_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_study(tmp_path / "runs", rows=5)
    out = tmp_path / "site" / "page.html"
    write_page(tmp_path / "runs", out)
    before = out.read_bytes()
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        write_page(tmp_path / "runs", out)
    assert out.read_bytes() == before
    assert [path.name for path in out.parent.iterdir()] == ["page.html"]
