"""The page in a real browser: Debian's chromium, headless, from a file:// address.

Skipped, saying so, where chromium or its driver is not installed.
"""

from __future__ import annotations

import csv
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cases.report_records import NASTY, write_everything

from mindgap.lab.report import write_page
from mindgap.lab.report.load import load

RESULTS = Path(__file__).parents[3] / "results"

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(
        not (CHROMIUM and DRIVER), reason="chromium and chromium-driver are not installed"
    ),
    pytest.mark.xdist_group("browser"),
]
PATIENCE = 60.0


def _axe() -> Path | None:
    """axe-core, where a person has installed it in the checkout or for the whole machine; it is
    no part of this one.
    """
    places = [Path(__file__).parents[3] / "node_modules", Path("/usr/local/lib/node_modules")]
    places += [
        Path(folder) for folder in os.environ.get("NODE_PATH", "").split(os.pathsep) if folder
    ]
    files = [place / "axe-core" / "axe.min.js" for place in places]
    return next((file for file in files if file.exists()), None)


AXE = _axe()


def assert_happens(condition: Callable[[], Any], what: str) -> Any:
    """Ask again until the answer is true; the limit is only there to end a test that would
    never end.
    """
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        if answer := condition():
            return answer
        time.sleep(0.05)
    raise AssertionError(f"never happened: {what}")


class Page:
    """A page in the browser, and what a person can see and do there."""

    def __init__(self, driver: Any, downloads: Path) -> None:
        self.driver, self.downloads = driver, downloads

    def open(self, path: Path, *, width: int = 1280, theme: str = "light") -> None:
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        self.media("screen", theme)
        self.driver.get(path.as_uri())
        ready = "return document.documentElement.dataset.ready === 'yes'"
        assert_happens(lambda: self.js(ready), "every figure is drawn")

    def media(self, media: str, theme: str) -> None:
        features = [{"name": "prefers-color-scheme", "value": theme}]
        self.driver.execute_cdp_cmd(
            "Emulation.setEmulatedMedia", {"media": media, "features": features}
        )

    def js(self, code: str, *arguments: Any) -> Any:
        return self.driver.execute_script(code, *arguments)

    def chart(self, figure: str) -> str:
        """The drawn picture as text; it changes when what is shown changes."""
        return str(
            self.js("return document.querySelector(`#${arguments[0]} .chart`).innerHTML", figure)
        )

    def element(self, selector: str) -> Any:
        return self.driver.find_element("css selector", selector)

    def changes(self, figure: str, action: Callable[[], Any]) -> str:
        before = self.chart(figure)
        action()
        assert_happens(lambda: self.chart(figure) != before, f"{figure} is drawn anew")
        return self.chart(figure)

    def choose(self, selector: str, value: str) -> None:
        from selenium.webdriver.support.select import Select

        Select(self.element(selector)).select_by_value(value)

    def unfold(self, figure: str) -> None:
        """Show the options of a figure."""
        self.js("document.querySelector(`#${arguments[0]} .options`).open = true", figure)

    def click(self, selector: str) -> None:
        """Click where the element is; a figure that is drawn meanwhile may move it, then again."""
        from selenium.common.exceptions import ElementClickInterceptedException

        for last in (False, False, True):
            element = self.element(selector)
            self.js("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", element)
            try:
                return element.click()
            except ElementClickInterceptedException:
                if last:
                    raise
                time.sleep(0.5)

    def complaints(self) -> list[str]:
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def requests(self) -> list[str]:
        messages = (
            json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")
        )
        urls = [
            m["params"]["request"]["url"]
            for m in messages
            if m["method"] == "Network.requestWillBeSent"
        ]
        return [url for url in urls if not url.startswith(("file://", "data:", "blob:"))]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    from selenium import webdriver
    from selenium.webdriver.chrome.options import Options
    from selenium.webdriver.chrome.service import Service

    downloads = tmp_path_factory.mktemp("downloads")
    options = Options()
    options.binary_location = str(CHROMIUM)
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(str(DRIVER)))
    driver.execute_cdp_cmd(
        "Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(downloads)}
    )
    yield Page(driver, downloads)
    driver.quit()


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    write_everything(folder / "runs")
    return write_page(folder / "runs", folder / "page.html")


@pytest.fixture
def page(browser: Page, path: Path) -> Iterator[Page]:
    browser.open(path)
    browser.complaints(), browser.requests()  # forget what came before this test
    yield browser
    assert browser.complaints() == []
    assert browser.requests() == []


def test_every_figure_is_shown_without_complaint_or_request(browser: Page, path: Path) -> None:
    browser.complaints(), browser.requests()
    browser.open(path)
    charts = browser.js(
        "return [...document.querySelectorAll('.chart')].map((c) => ({"
        "marks: c.querySelectorAll('svg .mark-line path[d], svg .mark-symbol path[d]').length,"
        "width: c.querySelector('svg')?.getBoundingClientRect().width ?? 0, room: c.clientWidth,"
        "labels: c.querySelectorAll('svg .role-axis-label text').length}))"
    )
    assert len(charts) == 15
    for chart in charts:
        assert chart["marks"] >= 2
        assert 200 < chart["width"] <= chart["room"] + 1
        assert chart["labels"] >= 4
    assert browser.complaints() == []
    assert browser.requests() == []


def test_no_text_of_a_record_is_run_and_all_are_shown(page: Page) -> None:
    assert page.js("return window.ran === undefined")
    page.unfold("fig-s3-names-quick-1")
    seen = page.js("return document.body.innerText")
    for name in NASTY:
        assert name in seen
    buttons = page.js(
        "return [...document.querySelectorAll('#s3-names-quick .legend button')].map(b => "
        "b.innerText)"
    )
    assert buttons == list(NASTY)


def test_the_x_axis_can_be_switched(page: Page) -> None:
    figure = "fig-s1-plain-quick-1"
    page.unfold(figure)
    labels = page.js(
        "return [...arguments[0].options].map(o => o.text)", page.element(f"#{figure} .axis")
    )
    assert labels[0] == "step"
    assert len(labels) == 5
    for place, label in list(enumerate(labels))[1:]:
        assert label in page.changes(
            figure, lambda place=place: page.choose(f"#{figure} .axis", str(place))
        )


def test_band_and_log_axes_can_be_chosen(page: Page) -> None:
    figure = "fig-s6-more-quick-1"
    page.unfold(figure)
    pictures = [page.chart(figure)]
    for choice in ("quantiles", "every"):
        pictures.append(
            page.changes(figure, lambda choice=choice: page.choose(f"#{figure} .statistic", choice))
        )
    assert len(set(pictures)) == 3
    assert "mark-area" in pictures[0]
    assert "mark-area" not in pictures[2], "single runs have no band"
    few = page.element("#fig-s1-plain-quick-1 .statistic").get_attribute("textContent")
    assert "90 %" not in few, "three seeds have no quantiles"
    assert "mark-area" not in page.chart("fig-s1-plain-quick-1")
    page.changes(figure, lambda: page.click(f"#{figure} .log-x"))
    page.changes(figure, lambda: page.click(f"#{figure} .log-y"))
    assert page.element(f"#{figure} .log-y").is_selected()


def test_methods_are_switched_by_mouse_and_by_keyboard(page: Page) -> None:
    from selenium.webdriver.common.keys import Keys

    figure = "fig-s1-plain-quick-1"
    page.unfold(figure)
    button = f"#{figure} .legend button[data-method='1']"
    assert "var(--s1)" in page.chart(figure)
    assert "var(--s1)" not in page.changes(figure, lambda: page.click(button))
    assert page.element(button).get_attribute("aria-pressed") == "false"
    assert "GClip" not in page.element(f"#{figure} .chart").get_attribute("aria-label")
    assert "var(--s1)" in page.changes(figure, lambda: page.element(button).send_keys(Keys.SPACE))
    page.changes(figure, lambda: page.element(button).send_keys(Keys.ENTER))
    page.click(f"#{figure} .legend button[data-method='0']")
    assert_happens(
        lambda: "Every method is switched off" in page.chart(figure), "an empty figure says why"
    )
    page.click(button)
    assert_happens(lambda: "var(--s1)" in page.chart(figure), "the method is back")
    figure = "fig-s4-single-quick-1"
    page.unfold(figure)
    assert "mark-line" not in page.chart(figure), "eleven methods are ranked"
    assert "mark-line" in page.changes(figure, lambda: page.choose(f"#{figure} .view", "lines"))
    page.click(f"#{figure} .legend button[data-every='none']")
    assert_happens(lambda: "Every method is switched off" in page.chart(figure), "none is shown")
    page.click(f"#{figure} .legend button[data-method='2']")
    assert_happens(lambda: "var(--s2)" in page.chart(figure), "one of many is shown alone")
    assert "var(--s1)" not in page.chart(figure)
    page.click(f"#{figure} .legend button[data-every='all']")
    assert_happens(lambda: "var(--s1)" in page.chart(figure), "all are back")


def test_hovering_shows_the_values(page: Page) -> None:
    from selenium.webdriver.common.action_chains import ActionChains

    for figure, words in (("fig-s6-more-quick-1", "seeds)"), ("fig-s2-kinds-quick-1", "seed ")):
        chart = page.element(f"#{figure} .chart svg")
        page.js("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", chart)
        if figure.endswith("kinds-quick-1"):
            chart = page.element(f"#{figure} .chart svg .mark-symbol path")
        ActionChains(page.driver).move_to_element(chart).perform()
        tip = assert_happens(
            lambda: page.js("return document.querySelector('.vg-tooltip.visible')?.innerText"),
            "a tooltip appears",
        )
        assert words in tip
        assert "GClip" in tip or "SGD" in tip
        ActionChains(page.driver).move_to_element(page.element("h1")).perform()


def test_figures_and_numbers_can_be_saved(page: Page) -> None:
    figure = "fig-s3-names-quick-1"
    page.unfold(figure)
    page.changes(figure, lambda: page.choose(f"#{figure} .statistic", "value"))
    for kind in ("png", "svg", "csv"):
        page.js("arguments[0].click()", page.element(f"#{figure} button[data-save='{kind}']"))
    stem = page.downloads / figure.removeprefix("fig-")
    for kind in ("png", "svg", "csv"):
        assert_happens(lambda kind=kind: stem.with_suffix(f".{kind}").exists(), f"{kind} is saved")
    assert stem.with_suffix(".png").read_bytes()[:4] == b"\x89PNG"
    picture = stem.with_suffix(".svg").read_text(encoding="utf-8")
    assert picture.startswith("<svg")
    assert "var(--" not in picture, "a saved picture stands by itself"
    with stem.with_suffix(".csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == [
        "method",
        "panel",
        "seed",
        "step",
        "mean",
        "sd",
        "q10",
        "q50",
        "q90",
        "n",
    ]
    assert {row["method"] for row in rows} == set(NASTY)
    assert {row["n"] for row in rows} == {"3"}
    assert all(float(row["q10"]) <= float(row["q50"]) <= float(row["q90"]) for row in rows)


def test_numbers_and_settings_unfold(page: Page) -> None:
    for details in page.driver.find_elements("css selector", "#s1-plain-quick details"):
        if details.find_element("css selector", "summary").is_displayed():
            page.js("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", details)
            details.find_element("css selector", "summary").click()
    ends = page.element("#fig-s1-plain-quick-1 .ends tbody").text
    assert "SGD" in ends
    assert "±" in ends
    assert "mindgap run s1-plain --seeds 3" in page.element("#s1-plain-quick").text


def test_searching_the_verdicts(page: Page) -> None:
    page.element("#filters input").send_keys("does not hold")
    shown = [
        row
        for row in page.driver.find_elements("css selector", "#verdicts tbody tr")
        if row.is_displayed()
    ]
    assert len(shown) == 1
    assert page.element("#found").text == "1 shown"
    sections = page.driver.find_elements("css selector", "section.study")
    assert [s.get_attribute("id") for s in sections if s.is_displayed()] == ["s2-kinds-quick"]
    assert shown[0].text.startswith("does not hold")


def test_verdicts_are_filtered_by_what_they_are(page: Page) -> None:
    offered = page.js(
        "return [...document.querySelectorAll('#filters select')].map(s => s.dataset.filter)"
    )
    assert "verdict" in offered
    page.choose("#filters [data-filter=verdict]", "holds")
    marks = (
        "return [...document.querySelectorAll('#verdicts tbody tr')].filter(r => !r.hidden)"
        ".map(r => r.querySelector('.mark').textContent)"
    )
    assert_happens(lambda: set(page.js(marks)) == {"holds"}, "the others are hidden")
    assert page.element("#found").text == f"{len(page.js(marks))} shown"
    page.choose("#filters [data-filter=verdict]", "")
    assert_happens(lambda: page.element("#found").text == "", "all are shown")


def test_a_ranking_offers_only_what_it_answers(page: Page) -> None:
    figure = "fig-s4-single-quick-1"
    page.unfold(figure)
    controls = (
        "return [...document.querySelectorAll(`#${arguments[0]} .controls label`)]"
        ".filter(l => l.getClientRects().length).map(l => l.firstElementChild.className)"
    )
    assert page.js(controls, figure) == ["view"]
    page.changes(figure, lambda: page.choose(f"#{figure} .view", "lines"))
    assert {"view", "log-x", "log-y"} <= set(page.js(controls, figure))


def test_paper_waits_for_every_figure_and_keeps_every_label(browser: Page, tmp_path: Path) -> None:
    for name in ("b6-epochs", "h3-language-model"):
        shutil.copytree(RESULTS / name, tmp_path / "runs" / name)
    path = write_page(tmp_path / "runs", tmp_path / "page.html")
    size = {"width": 1280, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.media("screen", "light")
    browser.driver.get(path.as_uri())
    assert_happens(lambda: browser.js("return document.querySelector('.chart svg')"), "it begins")
    browser.js(  # the page's own listener came first: this one sees what goes to the printer
        "window.addEventListener('beforeprint', () => { window.atPrint = ["
        "document.querySelectorAll('.chart[data-drawn=yes]').length,"
        "document.querySelectorAll('.chart').length] })"
    )
    browser.driver.execute_cdp_cmd("Page.printToPDF", {})
    drawn, charts = browser.js("return window.atPrint")
    assert drawn == charts > 5
    browser.media("print", "light")
    labels = "return [...document.querySelectorAll('#verdicts tr:last-child td')].map("
    shown = browser.js(f"{labels}t => t.getClientRects().length)")
    assert shown == [1] * 5
    browser.media("screen", "light")


def test_lines_carry_their_names_and_pointing_at_one_fades_the_others(page: Page) -> None:
    from selenium.webdriver.common.action_chains import ActionChains

    figure = "fig-s1-plain-quick-1"
    names = [text.text for text in page.driver.find_elements("css selector", f"#{figure} text.end")]
    assert sorted(names) == ["GClip", "SGD"]
    page.unfold(figure)
    button = page.element(f"#{figure} .legend button[data-method='1']")
    page.js("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", button)
    ActionChains(page.driver).move_to_element(button).perform()
    faint = (
        "return [...document.querySelectorAll(`#${arguments[0]} .mark-line path`)]"
        ".some(p => p.getAttribute('opacity') === '0.12')"
    )
    assert_happens(lambda: page.js(faint, figure), "the other line fades")
    ActionChains(page.driver).move_to_element(page.element("h1")).perform()
    assert_happens(lambda: not page.js(faint, figure), "all lines are back")


def test_the_first_screen_says_the_findings_and_leads_to_every_claim(page: Page) -> None:
    said = page.element("#findings").text
    assert "8 studies:" in said
    assert "1 does not hold" in said
    rows = [
        row.text.split("\n")[0]
        for row in page.driver.find_elements("css selector", "#verdicts tbody tr")
    ]
    assert rows[0].startswith("does not hold")
    links = page.js(
        "return [...document.querySelectorAll('#contents a')].map(a => a.getAttribute('href'))"
    )
    assert links == [
        f"#{s.get_attribute('id')}"
        for s in page.driver.find_elements("css selector", "section.study")
    ]
    assert (
        page.js("return [...document.querySelectorAll('.perma')].map(a => a.getAttribute('href'))")
        == links
    )


def test_the_chart_takes_most_of_its_card(page: Page) -> None:
    shares = page.js(
        "return [...document.querySelectorAll('.figure')].filter(f => "
        "f.querySelector('svg')).map(f => "
        "f.querySelector('.chart').getBoundingClientRect().height / "
        "f.getBoundingClientRect().height)"
    )
    assert min(shares) > 0.5


def test_a_claim_links_to_its_figures(page: Page) -> None:
    page.click("#verdicts a[href='#s4-single-quick']")
    assert_happens(
        lambda: page.js("return location.hash") == "#s4-single-quick", "the address names the study"
    )
    assert_happens(
        lambda: (
            abs(
                page.js(
                    "return document.getElementById('s4-single-quick').getBoundingClientRect().top"
                )
            )
            < 60
        ),
        "the study is in sight",
    )


def test_dark_and_light_by_system_and_by_choice(browser: Page, path: Path) -> None:
    both = (
        "const line = document.querySelector('#fig-s1-plain-quick-1 .mark-line path');"
        "return [getComputedStyle(document.body).backgroundColor, line && "
        "getComputedStyle(line).stroke]"
    )

    def becomes(colours: list[str], what: str) -> None:  # a busy browser draws later
        assert_happens(lambda: browser.js(both) == colours, what)

    browser.open(path, theme="light")
    light = browser.js(both)
    assert light[0] == "rgb(255, 255, 255)"
    browser.media("screen", "dark")
    assert_happens(
        lambda: all(a and a != b for a, b in zip(browser.js(both), light)),
        "the system's choice is dark",
    )
    dark = browser.js(both)
    browser.choose("#theme select", "light")
    becomes(light, "the reader's choice is light")
    browser.choose("#theme select", "dark")
    browser.media("screen", "light")
    becomes(dark, "the reader's choice is dark")
    browser.media("print", "light")
    becomes(light, "paper is white")
    seen = "return (document.querySelector(arguments[0])?.getClientRects().length ?? 0) > 0"
    for selector, on_paper in (
        ("#fig-s1-plain-quick-1 .controls", False),
        ("#fig-s1-plain-quick-1 text.end", True),
        ("#fig-s2-kinds-quick-3 .legend", True),
    ):
        assert_happens(
            lambda s=selector, p=on_paper: browser.js(seen, s) == p,
            f"{selector} on paper: {on_paper}",
        )


@pytest.mark.parametrize("width", [390, 768, 1280])
def test_nothing_is_cut_off_on_any_screen(browser: Page, path: Path, width: int) -> None:
    browser.open(path, width=width)
    assert browser.js("return document.documentElement.scrollWidth") <= width
    wide = browser.js(
        "return [...document.querySelectorAll('.chart')].filter((c) => {"
        "const s = c.querySelector('svg'); return !s || s.getBoundingClientRect().right > "
        "innerWidth + 1"
        "}).map((c) => c.parentElement.id)"
    )
    assert wide == []
    cut = browser.js(
        "return [...document.querySelectorAll('.chart svg')].flatMap((s) => {"
        "const room = s.getBoundingClientRect(); return [...s.querySelectorAll('text')].filter((t) "
        "=> {"
        "const r = t.getBoundingClientRect(); return r.width && (r.right > room.right + 2 || "
        "r.left < room.left - 2)"
        "}).map((t) => t.textContent)})"
    )
    assert cut == []


def test_on_a_phone_findings_take_the_whole_width(browser: Page, path: Path) -> None:
    browser.open(path, width=390)
    shares = browser.js(
        "return [...document.querySelectorAll('#verdicts tbody tr')].map((r) => "
        "r.children[2].getBoundingClientRect().width / r.getBoundingClientRect().width)"
    )
    assert min(shares) > 0.85
    labels = browser.js(
        "return [...document.querySelectorAll('#verdicts tbody tr:first-child td')].filter("
        "t => t.getClientRects().length).map(t => t.dataset.label)"
    )
    assert labels == ["Verdict", "Claim", "Finding", "Measured on", "Measured"]


@pytest.mark.skipif(
    AXE is None, reason="axe-core is not installed (npm install --no-save axe-core)"
)
@pytest.mark.parametrize(
    ("width", "theme"), [(1280, "light"), (1280, "dark"), (390, "light"), (390, "dark")]
)
def test_axe_finds_nothing_serious(browser: Page, path: Path, width: int, theme: str) -> None:
    assert AXE is not None
    browser.open(path, width=width, theme=theme)
    for details in browser.driver.find_elements("css selector", "details"):
        browser.js("arguments[0].open = true", details)
    browser.js(AXE.read_text(encoding="utf-8"))
    browser.driver.set_script_timeout(PATIENCE)
    found = browser.driver.execute_async_script("axe.run().then(arguments[0])")
    assert len(found["passes"]) > 20, "it has looked"
    listed = [
        (v["id"], v["impact"], v["nodes"][0]["html"][:120])
        for v in found["violations"]
        if v["impact"] in ("serious", "critical")
    ]
    assert listed == []


def test_the_demo_shows_every_figure(browser: Page, tmp_path: Path) -> None:
    """From the committed records of the demo's studies; running them anew takes a minute."""
    from mindgap.cli.studies import DEMO

    for name in DEMO:
        shutil.copytree(RESULTS / name, tmp_path / "runs" / name)
    page = write_page(tmp_path / "runs", tmp_path / "page.html")
    browser.complaints(), browser.requests()
    browser.open(page)
    # one more for each search
    figures = sum(
        len(s.description.figures) + bool(s.tuning.methods) for s in load(tmp_path / "runs")
    )
    assert browser.js("return document.querySelectorAll('.chart[data-drawn=yes]').length") > 0
    browser.js("document.querySelectorAll('details.scale').forEach(d => { d.open = true })")
    missing = "return document.querySelectorAll('.chart:not([data-drawn=yes])').length"
    assert_happens(lambda: browser.js(missing) == 0, "unfolded scales are drawn")
    drawn = browser.js(
        "return document.querySelectorAll('.chart[data-drawn=yes] svg .mark-group').length"
    )
    charts = browser.js("return document.querySelectorAll('.chart[data-drawn=yes]').length")
    assert charts == figures
    assert drawn >= figures
    assert browser.complaints() == []
    assert browser.requests() == []
