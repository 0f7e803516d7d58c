"""The docs' pictures of a report: its first screen and its gallery, as Chromium shows them.

`ray-adaplr demo --out runs/demo`, then `python -m benchmarks pictures runs/demo`. Needs Chromium and its driver.
"""

import argparse
import shutil
from pathlib import Path

from ray_adaplr.report.page import report_page

ROOT = Path(__file__).resolve().parents[1]
WIDTH, SCALE = 1000, 1.6  # pixels of CSS, at which figures stand in two columns, and of the picture for each
HEIGHTS = {"report": 880, "gallery": 750}


def main(words: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks pictures", description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, help="the folder of a finished run")
    parser.add_argument("--out", type=Path, default=ROOT / "docs/images", metavar="DIR")
    options = parser.parse_args(words)
    options.out.mkdir(parents=True, exist_ok=True)
    page = options.run / "report.html"
    page.write_text(report_page(options.run), encoding="utf-8")  # as today's code draws it
    take(page, options.out)


def take(page: Path, out: Path) -> None:
    """Write report.png and gallery.png."""
    from selenium import webdriver

    chrome = webdriver.ChromeOptions()
    chrome.binary_location = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))))
    for flag in ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--disable-background-networking"):
        chrome.add_argument(flag)
    browser = webdriver.Chrome(options=chrome, service=webdriver.ChromeService(shutil.which("chromedriver")))
    try:
        for name, height in HEIGHTS.items():
            view = {"width": WIDTH, "height": height, "deviceScaleFactor": SCALE, "mobile": False}
            browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", view)
            browser.get(page.resolve().as_uri())
            if name == "gallery":
                browser.execute_script("document.getElementById('gallery').scrollIntoView()")
            browser.save_screenshot(str(out / f"{name}.png"))
            print(f"written: {out / name}.png")
    finally:
        browser.quit()
