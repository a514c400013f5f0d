"""How long a search's page of 800 ideas takes in Chromium until it can be used."""

from __future__ import annotations

import random
import shutil
import statistics
import time
from dataclasses import dataclass

from playwright.sync_api import Browser, sync_playwright

#: Seconds until the page of a search can be used, at most.
LIMIT = 2.0
#: Of which figures are given. Each opens another search, in a browser that has no cache of it.
PAGES = 20


@dataclass(frozen=True)
class Opened:
    """Seconds until the chart of a search is drawn, and until the answer was there alone."""

    p50: float
    worst: float
    answer_p50: float

    def __str__(self) -> str:
        ratio = self.p50 / self.answer_p50
        return (
            f"{self.p50:.2f} s, at worst {self.worst:.2f} s, {ratio:.2f} times the answer alone "
            f"({self.answer_p50:.2f} s)"
        )


def opened(api_url: str, key: str, searches: int) -> Opened:
    """Open pages of searches, of `searches` that there are, and wait until each can be used."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        raise SystemExit("this part needs Chromium: apt-get install chromium")
    dice, pages, answers = random.Random(0), list[float](), list[float]()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for _ in range(PAGES):
            path = f"{api_url}/searches/srch_00{dice.randrange(searches):024}"
            seconds, answer = _open(browser, path, key)
            pages.append(seconds)
            answers.append(answer)
        browser.close()
    return Opened(statistics.median(pages), max(pages), statistics.median(answers))


def _open(browser: Browser, path: str, key: str) -> tuple[float, float]:
    """Seconds until the chart is drawn, after which nothing is loaded, and of the answer."""
    context = browser.new_context(extra_http_headers={"Authorization": f"Bearer {key}"})
    page = context.new_page()
    began = time.monotonic()
    page.goto(path, wait_until="load")
    page.locator("#hill canvas").wait_for(state="visible")
    seconds = time.monotonic() - began
    timing = "performance.getEntriesByType('navigation')[0].responseEnd"
    answer = float(page.evaluate(timing)) / 1000
    context.close()
    return seconds, answer
