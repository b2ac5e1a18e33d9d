"""What makes a figure of the report readable: lines, bands, axes, panels, rankings and titles."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from mindgap.lab.report import survey
from mindgap.lab.report.aggregate import Readings
from mindgap.lab.report.drawing import draw, methods_named
from mindgap.lab.report.figure import figure_svg, picture, view_rows
from mindgap.lab.report.headline import headline
from mindgap.lab.report.pieces import log_axes
from mindgap.record.forms import Figure
from mindgap.record.schema import End, Header, Run


def readings(method: str, rows: list[dict[str, object]], seed: int = 0) -> Readings:
    return Readings(Run(Header("s", "S1", "quick", method, seed, {}), tuple(rows), End("done")))


FIGURE = Figure("Loss", "loss", "loss")


def test_a_line_that_runs_along_another_is_broken_so_that_both_are_seen() -> None:
    curves = {"first": 1.0, "same": 1.0, "other": 2.0, "again": 1.0}
    runs = [readings(m, [{"step": i, "loss": a * i} for i in range(20)]) for m, a in curves.items()]
    drawing = draw("f", FIGURE, runs, list(curves), {"step": "step"})
    assert drawing.dashes[0] == drawing.dashes[2] == [1, 0]
    assert len({str(dash) for dash in drawing.dashes}) == 3
    lines = next(layer for layer in picture(drawing)["layer"] if layer["mark"]["type"] == "line")
    assert lines["encoding"]["strokeDash"]["scale"]["range"] == drawing.dashes


def test_named_places_have_their_names_and_methods_stand_side_by_side() -> None:
    figure = replace(FIGURE, x="place", kind="points", x_names=("Hill", "block\nsums"))
    runs = [readings(m, [{"place": 0, "loss": 1.0}, {"place": 1, "loss": 1.0}]) for m in ("a", "b")]
    drawing = draw("f", figure, runs, ["a", "b"], {})
    spec = picture(drawing)
    assert (
        spec["encoding"]["x"]["axis"]["labelExpr"] == '[["Hill"], ["block", "sums"]][datum.value]'
    )
    places = [row["x"] for row in spec["datasets"]["rows"]]
    assert len(set(places)) == 4
    assert all(abs(place - round(place)) < 0.5 for place in places)
    assert "Hill" in figure_svg(spec)
    assert log_axes(drawing) == ["y"], "named places have no logarithm"


def test_methods_can_be_the_places() -> None:
    figure = replace(FIGURE, x="method", kind="points")
    runs = [readings(m, [{"loss": 1.0}]) for m in ("SGD", "<b>")]
    drawing = draw("f", figure, runs, ["SGD", "<b>"], {})
    assert drawing.names == ("SGD", "<b>")
    assert [row["x"] for row in picture(drawing)["datasets"]["rows"]] == [0.0, 1.0]
    assert picture(drawing)["layer"][0]["encoding"]["y"]["scale"]["zero"], (
        "one height alone makes no scale"
    )


def test_a_panel_without_readings_is_left_out_and_the_rows_of_panels_are_even() -> None:
    rows = [
        {"step": i, "panel": p, **({} if p == "e" else {"loss": i})}
        for p in "abcde"
        for i in range(3)
    ]
    drawing = draw(
        "f", replace(FIGURE, facet="panel"), [readings("m", rows)], ["m"], {"step": "step"}
    )
    assert drawing.facets == ("a", "b", "c", "d")
    assert picture(drawing)["columns"] == 2


def test_a_log_axis_of_less_than_a_decade_labels_every_tick() -> None:
    rows = [{"step": i, "loss": 2 + 0.1 * i} for i in range(10)]
    drawing = draw("f", replace(FIGURE, log_y=True), [readings("m", rows)], ["m"], {"step": "step"})
    svg = figure_svg(picture(drawing))
    assert ">2.5<" in svg or ">2.2<" in svg
    wide = [{"step": i, "loss": 10.0**i} for i in range(6)]
    svg = figure_svg(
        picture(
            draw("f", replace(FIGURE, log_y=True), [readings("m", wide)], ["m"], {"step": "step"})
        )
    )
    assert ">100<" in svg
    assert ">200<" not in svg


def test_the_band_of_a_quantity_that_is_never_negative_ends_at_zero() -> None:
    values = (0.0, 9.0, 0.0)
    runs = [
        readings("m", [{"step": 0, "loss": v}, {"step": 1, "loss": v}], seed)
        for seed, v in enumerate(values)
    ]
    rows = view_rows(
        drawing := draw("f", FIGURE, runs, ["m"], {"step": "step"}), drawing.axes[0], "mean"
    )
    assert [row["lo"] for row in rows] == [0.0, 0.0]
    runs.append(readings("m", [{"step": 0, "loss": -9.0}, {"step": 1, "loss": -9.0}], 3))
    rows = view_rows(
        drawing := draw("f", FIGURE, runs, ["m"], {"step": "step"}), drawing.axes[0], "mean"
    )
    assert rows[0]["lo"] < 0


def test_a_run_with_several_readings_at_a_place_is_one_line_without_jumps() -> None:
    rows = [{"step": i // 3, "loss": float(i)} for i in range(9)]
    runs = [readings("m", rows, seed) for seed in (0, 1)]
    drawing = draw("f", Figure("Loss", "loss", "loss"), runs, ["m"], {"step": "step"})
    assert drawing.statistic == "every"
    assert [list(run.columns["x"]) for run in drawing.axes[0].runs] == [[0, 1, 2], [0, 1, 2]]


def test_a_histogram_keeps_its_shape_beside_many_others() -> None:
    """On a page of many studies a figure has a budget of 300 points."""
    rows = [{"norm": 0.1 * i, "share": float(i * (39 - i))} for i in range(40)]
    methods = [str(i) for i in range(18)]
    runs = [readings(m, rows, seed) for m in methods for seed in range(3)]
    drawing = draw("f", Figure("Norms", "share", "share", x="norm"), runs, methods, {}, 300)
    (axis,) = drawing.axes
    assert {len(series) for series in (*axis.series, *axis.runs)} == {40}


def test_a_figure_says_what_it_shows_and_greys_what_the_claim_is_not_about() -> None:
    methods = ["SLIP", *(f"other {i}" for i in range(9))]
    runs = [
        readings(m, [{"step": 0, "loss": 1.0}, {"step": 1, "loss": 0.1 * i}])
        for i, m in enumerate(methods, 1)
    ]
    figure = Figure("Loss", "loss", "loss")
    drawing = draw(
        "f",
        figure,
        runs,
        methods,
        {"step": "step"},
        accent=methods_named("SLIP against nine", methods),
    )
    assert headline(drawing) == "Loss at the end: SLIP 0.1, 9 others 0.2 to 1"
    assert drawing.colours == [0, *[None] * 9]
    assert drawing.ranked
    assert picture(drawing)["encoding"]["y"]["sort"] == methods
    right = draw("f", Figure("Right", "loss", "test accuracy"), runs, methods, {"step": "step"})
    assert (
        picture(right)["encoding"]["y"]["sort"] == methods[::-1]
    )  # the best first, where more is better


def test_a_ranking_in_panels_names_only_the_methods_of_the_panel() -> None:
    figure = Figure("Right", "loss", "test accuracy", facet="p")
    names = [f"m{i}, p = {p}" for p in (2, 4) for i in range(9)]

    def spec(methods: list[str], panel: Callable[[str], list[str]]) -> dict[str, Any]:
        runs = [
            readings(m, [{"step": 1, "loss": 0.1 * i, "p": p} for p in panel(m)])
            for i, m in enumerate(methods)
        ]
        drawing = draw("f", figure, runs, methods, {"step": "step"})
        assert drawing.ranked
        return picture(drawing)

    def shown(found: dict[str, Any]) -> tuple[str | None, bool]:
        axis = found["spec"]["encoding"]["y"]["axis"]
        return axis.get("labelExpr"), found["resolve"]["scale"].get("y") == "independent"

    def own(method: str) -> list[str]:
        return [method[-1]]

    assert shown(spec(names, own)) == ("replace(datum.label, /, [^,]*$/, '')", True)
    other = [*names[:-1], "without a comma, p = 2, 4"]  # its last part is not that of the panel
    assert shown(spec(other, own)) == (None, True)
    assert shown(spec(names[:9], lambda _: ["2", "4"])) == (
        None,
        False,
    )  # the same methods in both panels


def test_a_scatter_says_where_it_lies_or_how_closely_it_rises() -> None:
    rows = [{"x": float(i), "loss": float(i) ** 2} for i in range(1, 6)]

    def title(**more: object) -> str:
        figure = Figure("Loss", "loss", "loss", x="x", kind="points", **more)
        return headline(draw("f", figure, [readings("m", rows)], ["m"], {}))

    assert title() == "Loss: rank correlation 1.00"
    assert title(hlines={"bound": 30.0}) == "Loss: between 1 and 25"


def test_titles_keep_names_and_values_apart_and_say_what_panels_show() -> None:
    def title(
        name: str, y_label: str, rows: dict[str, list[dict[str, object]]], facet: str = ""
    ) -> str:
        runs = [readings(method, mine) for method, mine in rows.items()]
        shown = Figure(name, "loss", y_label, facet=facet)
        return headline(draw("f", shown, runs, list(rows), {"step": "step"}))

    def rows(*ends: float) -> list[dict[str, object]]:
        return [
            {"step": i, "loss": v, "where": f"p{k}"} for k, v in enumerate(ends) for i in (0, 1)
        ]

    assert title("Loss", "loss", {"clipped, step 3": rows(4.0), "step 2": rows(5.0)}) == (
        "Loss at the end: 4 (clipped, step 3), 5 (step 2)"
    )
    three = {"a": rows(1.0, 4.0), "b": rows(2.0, 3.0), "c": rows(3.0, 9.0)}
    assert (
        title("Loss", "loss", three, "where")
        == "Loss at the end, lowest per panel: 1 (a, p0), 3 (b, p1)"
    )
    assert (
        title("Right", "accuracy", three, "where")
        == "Right at the end, highest per panel: 3 (c, p0), 9 (c, p1)"
    )
    two = {name: three[name] for name in "ab"}
    assert title("Loss", "loss", two, "where") == "Loss: a below b in 1 of 2 panels"
    higher = {"a": rows(3.0, 4.0), "b": rows(2.0, 1.0)}
    assert title("Right", "accuracy", higher, "where") == "Right: a above b in 2 of 2 panels"
    same = {name: rows(1.0) for name in "abcde"}
    assert title("Distance", "distance", same) == "Distance at the end: 1 for all"


def _fields(spec: Any) -> set[str]:
    """Every column that a chart's specification names, at any depth."""
    if isinstance(spec, dict):
        named = {spec["field"]} if isinstance(spec.get("field"), str) else set[str]()
        return named.union(*map(_fields, spec.values()))
    return set[str]().union(*map(_fields, spec if isinstance(spec, list) else ()))


#: Chart of a survey -> its data, in which a column that is not drawn is not finite.
SURVEYED: dict[str, dict[str, list[float]]] = {
    "variance_growth": {
        "sizes": [4, 8],
        "running": [1.0, 1.5],
        "low": [0.5, 1.0],
        "median": [float("nan"), 1.5],
        "high": [2.0, 2.5],
    },
    "smoothness": {
        "gradient_norm": [1.0, 2.0],
        "smoothness": [0.5, 1.0],
        "noise_floor": [float("inf")] * 2,
        "loss": [3.0, 2.0],
    },
}


@pytest.mark.parametrize("name", SURVEYED)
def test_a_surveys_chart_asks_for_the_columns_that_it_draws(name: str) -> None:
    draw = next(row[4] for row in survey._FIGURES if row[0] == name)
    spec = draw(SURVEYED[name])
    rows = spec["data"]["values"]
    assert len(rows) == 2
    assert set(rows[0]) == _fields({key: spec[key] for key in spec if key != "data"})
