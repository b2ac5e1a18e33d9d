"""Photograph the page of ``results/`` for ``docs/laboratory.md``, with chromium and its driver.

    python docs/tools/screenshots.py

The caption of the first picture holds the page's own counts, which ``tests/docs/test_results.py``
compares with the records: after a change of verdicts the pictures are taken again.
"""

from __future__ import annotations

import re
import shutil
import tempfile
import time
from pathlib import Path

from selenium import webdriver
from selenium.webdriver.chrome.service import Service

from mindgap.lab.report import write_page
from mindgap.record.outcomes import summary

ROOT = Path(__file__).parents[2]
#: Width and theme of the pictures: a screen, and a phone in the dark.
SCREENS = ((1280, 1000, "light"), (390, 844, "dark"))
#: The study that is shown.
STUDY = "b3-hyper-cleaning-gpu"


def photograph(page: Path) -> None:
    """Write the first screen of a page, and that of one study, in every form of SCREENS."""
    options = webdriver.ChromeOptions()
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"):
        options.add_argument(argument)
    options.binary_location = shutil.which("chromium") or ""
    driver = webdriver.Chrome(options, Service(shutil.which("chromedriver")))
    try:
        for width, height, theme in SCREENS:
            size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
            driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
            features = [{"name": "prefers-color-scheme", "value": theme}]
            driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
            driver.get(page.as_uri())
            while driver.execute_script("return document.documentElement.dataset.ready") != "yes":
                time.sleep(0.1)
            for name, place in (("first", None), ("figure", STUDY)):
                for _ in range(5 if place else 0):  # what is scrolled past is laid out only then
                    driver.execute_script(f"document.getElementById('{place}').scrollIntoView()")
                    time.sleep(1.0)
                picture = ROOT / "docs" / "pictures" / f"report-{name}-{width}.png"
                driver.save_screenshot(str(picture))
    finally:
        driver.quit()


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "index.html"
        write_page(ROOT / "results", page)
        photograph(page)
    document = ROOT / "docs" / "laboratory.md"
    text = document.read_text(encoding="utf-8")
    caption = f"![The first screen of a report. {summary(ROOT / 'results').sentence}]"
    text = re.sub(r"!\[The first screen of a report\.[^]]*\](?=\(pictures/)", caption, text)
    document.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
