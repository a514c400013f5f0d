"""Take the pictures of the dashboard that README.md and docs/dashboard.md show.

They come from a real service:
`python -m scripts.screenshots --api http://127.0.0.1:8000`: of the latest search with a result
and of its best experiment. Needs Chromium and playwright.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from playwright.sync_api import sync_playwright

from assay.client import Client
from assay.contracts.search import SearchBody

IMAGES = Path(__file__).resolve().parent.parent / "docs" / "images"
WIDTH = 1280


def take(api: str, folder: Path, search: str | None) -> None:
    """Write `search.png` and `experiment.png`."""
    with Client(api) as client:
        shown = client.searches.get(search) if search else next(filter(best_of, all_of(client)))
    pages = {
        "search.png": (f"{api}/searches/{shown.id}", 1010),
        "experiment.png": (f"{api}/experiments/{best_of(shown)}", 1240),
    }
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=chromium, args=["--no-sandbox", "--disable-background-networking"]
        )
        for name, (address, height) in pages.items():
            page = browser.new_page(
                viewport={"width": WIDTH, "height": height}, color_scheme="light"
            )
            page.goto(address)
            page.wait_for_selector(".uplot canvas")
            page.screenshot(path=folder / name)
        browser.close()


def all_of(client: Client) -> list[SearchBody]:
    return list(client.searches.list())


def best_of(search: SearchBody) -> str | None:
    """The experiment that set the best result of a search."""
    reached = [epoch for epoch in search.best if epoch.metric == epoch.best_so_far]
    return next((epoch.experiment for epoch in reversed(reached) if epoch.experiment), None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--api", default="http://127.0.0.1:8000")
    parser.add_argument("--search", help="Another search than the latest.")
    parser.add_argument("--out", type=Path, default=IMAGES)
    given = parser.parse_args()
    take(given.api.rstrip("/"), given.out, given.search)


if __name__ == "__main__":
    main()
