"""The dashboard in Chromium, over a real service with results of `toy`."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect, sync_playwright

from assay.contracts.batch import BatchBody, BatchOptions, IdeaRequest
from assay.contracts.search import SearchRequest
from tests.support.service import ServiceProcess, toy_batch, toy_ideas

pytestmark = pytest.mark.slow
HOSTILE = "<img src=x onerror=alert(1)><script>alert(2)</script> hostile"
WAIT = 60_000
_IS_TOO_WIDE = "document.documentElement.scrollWidth > innerWidth"
#: Code that is scrolled although there is room beside it.
_CUT_EARLY = """[...document.querySelectorAll(".docs article pre")]
  .filter((e) => e.scrollWidth > e.clientWidth + 1)
  .filter((e) => e.getBoundingClientRect().right <
    document.querySelector(".docs").getBoundingClientRect().right - 8)
  .map((e) => e.textContent.slice(0, 80))"""
_NAV_IS_CUT = "(n => n.scrollWidth > n.clientWidth + 1)(document.querySelector('.top nav'))"
#: What reaches beyond the window, outside of what scrolls by itself.
_BEYOND = """[...document.querySelectorAll("body *")]
  .filter((e) => e.getBoundingClientRect().right > innerWidth + 1)
  .filter((e) => !e.closest(".scroll, pre, nav"))
  .map((e) => e.outerHTML.slice(0, 120)).slice(0, 8)"""


@dataclass
class Watched:
    """A page, and what its browser complained of or asked of other hosts."""

    page: Page
    host: str
    complaints: list[str] = field(default_factory=list)
    outside: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.page.on("console", self._console)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("dialog", lambda dialog: self.complaints.append(dialog.message))
        self.page.on("request", self._request)

    def _console(self, message: object) -> None:
        if getattr(message, "type", "") in ("error", "warning"):
            self.complaints.append(str(getattr(message, "text", message)))

    def _request(self, request: object) -> None:
        address = str(getattr(request, "url", ""))
        if urlsplit(address).netloc not in (self.host, ""):
            self.outside.append(address)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    assert chromium, "these tests need Chromium: apt-get install chromium"
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(
            executable_path=chromium, args=["--no-sandbox", "--disable-background-networking"]
        )
        yield launched
        launched.close()


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    process = ServiceProcess(tmp_path_factory.mktemp("browser") / "data", sandbox="subprocess")
    process.start()
    yield process
    process.stop()


@pytest.fixture(scope="module")
def batch(service: ServiceProcess) -> BatchBody:
    """A finished batch: two results, and a hostile idea that no diff came of."""
    ideas = [*toy_ideas(2), IdeaRequest(text=HOSTILE)]
    with service.client() as client:
        made = client.batches.create(toy_batch(ideas, baseline_seeds=2))
        client.batches.wait(made.id, timeout=120)
        for experiment in client.experiments.list(batch=made.id):
            client.experiments.annotate(experiment.id, tags=["seen", "a/b"])
        return client.batches.get(made.id)


def addresses(service: ServiceProcess, batch: BatchBody) -> list[str]:
    with service.client() as client:
        ids = [experiment.id for experiment in client.experiments.list(batch=batch.id)]
    return [
        "/",
        f"/batches/{batch.id}",
        *(f"/experiments/{id_}" for id_ in ids),
        f"/compare?experiment={ids[0]}&experiment={ids[1]}",
        "/environments",
        "/environments/toy",
        "/tags?tag=seen",
        "/workers",
        "/failures",
        "/submit",
        "/start",
        "/docs/errors",
        "/docs/quickstart",
    ]


def test_code_of_the_documentation_is_cut_only_where_the_window_ends(
    browser: Browser, service: ServiceProcess
) -> None:
    page = browser.new_page(viewport={"width": 1440, "height": 900})
    page.goto(f"{service.ready['api']}/docs/quickstart")
    assert page.locator(".docs article pre").count() > 5
    assert page.evaluate(_CUT_EARLY) == []
    page.close()


@pytest.mark.parametrize("width", [390, 1440])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_page_fits_and_asks_nothing_of_others(
    browser: Browser, service: ServiceProcess, batch: BatchBody, width: int, scheme: str
) -> None:
    api = str(service.ready["api"])
    page = browser.new_page(
        viewport={"width": width, "height": 900},
        color_scheme="dark" if scheme == "dark" else "light",
    )
    watched = Watched(page, urlsplit(api).netloc)
    for path in addresses(service, batch):
        page.goto(api + path)
        page.wait_for_load_state("load")
        beyond = page.evaluate(_BEYOND) if page.evaluate(_IS_TOO_WIDE) else None
        assert beyond is None, (path, beyond)
        expect(page.locator("h1").first).to_be_visible()
        assert page.evaluate(_NAV_IS_CUT) is False, path
    assert (watched.complaints, watched.outside) == ([], [])
    page.close()


@pytest.mark.parametrize("width", [390, 1440])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_page_is_hard_to_use(
    browser: Browser, service: ServiceProcess, batch: BatchBody, width: int, scheme: str
) -> None:
    """By axe-core, for people who see little, or use a keyboard or a screen reader."""
    page = browser.new_page(
        viewport={"width": width, "height": 900},
        color_scheme="dark" if scheme == "dark" else "light",
    )
    found = []
    for path in addresses(service, batch):
        page.goto(str(service.ready["api"]) + path)
        page.wait_for_load_state("load")
        found += [
            (path, violation["id"], [node["html"][:200] for node in violation["nodes"][:3]])
            for violation in Axe().run(page).response["violations"]
            if violation["impact"] in ("serious", "critical")
        ]
    assert found == []
    page.close()


def test_a_search_is_started_steered_and_cancelled_in_the_browser(
    browser: Browser, service: ServiceProcess
) -> None:
    watched = Watched(browser.new_page(), urlsplit(str(service.ready["api"])).netloc)
    page = watched.page
    page.goto(f"{service.ready['api']}/start?profile=toy/tiny")
    page.get_by_label("Epochs", exact=True).fill("40")
    page.get_by_label("Ideas per epoch").fill("2")
    page.get_by_label("Confirm", exact=True).fill("0")
    page.get_by_role("button", name="Start the search").click()
    expect(page.locator("#head .badge")).to_have_text("running", timeout=WAIT)
    act(page, "Pause…", "Pause")
    expect(page.locator("#notes")).to_contain_text("Paused", timeout=WAIT)
    act(page, "Resume…", "Resume")
    expect(page.locator("#notes")).not_to_contain_text("Paused", timeout=WAIT)
    page.get_by_text("Extend…").click()
    page.get_by_role("spinbutton", name="Epochs").fill("41")
    page.get_by_role("button", name="Extend", exact=True).click()
    expect(page.locator("#tiles")).to_contain_text("/ 41", timeout=WAIT)
    act(page, "Cancel…", "Cancel the search")
    expect(page.locator("#head .badge")).to_have_text("cancelled", timeout=WAIT)
    assert (watched.complaints, watched.outside) == ([], [])
    page.close()


def act(page: Page, summary: str, button: str) -> None:
    """Open the question of an action, and answer it."""
    page.locator("#head").get_by_text(summary).click()
    page.locator("#head").get_by_role("button", name=button, exact=True).click()


def test_ideas_are_submitted_and_cancelled_in_the_browser(
    browser: Browser, service: ServiceProcess
) -> None:
    watched = Watched(browser.new_page(), urlsplit(str(service.ready["api"])).netloc)
    page = watched.page
    page.goto(f"{service.ready['api']}/submit?profile=toy/tiny")
    texts = [idea.text for idea in toy_ideas(4, first=200)]
    page.get_by_label("Ideas", exact=True).fill("\n---\n".join(texts))
    page.get_by_role("button", name="Check and price").click()
    expect(page.get_by_role("status")).to_contain_text("4 ideas", timeout=WAIT)
    page.get_by_role("button", name="Submit 4 ideas").click()
    page.wait_for_url("**/batches/*", timeout=WAIT)
    act(page, "Cancel…", "Cancel them")
    expect(page.locator("#head .badge")).to_have_text("cancelled", timeout=WAIT)
    assert (watched.complaints, watched.outside) == ([], [])
    page.close()


def test_a_result_is_confirmed_and_reproduced_in_the_browser(
    browser: Browser, service: ServiceProcess, batch: BatchBody
) -> None:
    assert batch.best is not None
    watched = Watched(browser.new_page(), urlsplit(str(service.ready["api"])).netloc)
    page = watched.page
    path = f"{service.ready['api']}/experiments/{batch.best.experiment}"
    page.goto(path)
    page.get_by_text("Confirm…").click()
    page.get_by_label("Fresh seeds").fill("1")
    page.get_by_role("button", name="Confirm", exact=True).click()
    page.wait_for_url("**/batches/*", timeout=WAIT)
    expect(page.locator("#head .badge")).to_have_text("finished", timeout=2 * WAIT)
    page.goto(path)
    act(page, "Reproduce…", "Reproduce")
    page.wait_for_url(lambda url: "/experiments/" in url and url != path, timeout=WAIT)
    expect(page.locator("#head .badge").first).to_have_text("succeeded", timeout=2 * WAIT)
    assert (watched.complaints, watched.outside) == ([], [])
    page.close()


def test_hostile_text_of_an_idea_is_text(
    browser: Browser, service: ServiceProcess, batch: BatchBody
) -> None:
    page = browser.new_page()
    watched = Watched(page, "")
    page.goto(f"{service.ready['api']}/batches/{batch.id}")
    expect(page.get_by_text("hostile").first).to_be_visible()
    assert page.locator("main img").count() == 0
    assert watched.complaints == []
    page.close()


def test_curves_are_drawn_beside_the_baselines(
    browser: Browser, service: ServiceProcess, batch: BatchBody
) -> None:
    assert batch.best is not None
    page = browser.new_page()
    page.goto(f"{service.ready['api']}/experiments/{batch.best.experiment}")
    expect(page.locator("#curves canvas")).to_be_visible(timeout=WAIT)
    expect(page.locator("#curves + .legend")).to_contain_text("baseline")
    page.close()


def test_curves_are_drawn_whatever_a_codebase_calls_them(
    browser: Browser, service: ServiceProcess
) -> None:
    """A name that every object of JavaScript has is no curve of the baseline."""
    edit = (
        "[Experiment] A curve of another name.\n[Code Changes] In `search.py`:\n"
        "<<<<<<< SEARCH\nLOG_EVERY = 50\n=======\nLOG_EVERY = 50\n"
        "_dumps = json.dumps\n"
        'json.dumps = lambda value: _dumps({**value, "constructor": 1.0} if "step" in value '
        "else value)\n>>>>>>> REPLACE\n[End]"
    )
    with service.client() as client:
        made = client.batches.create(toy_batch([IdeaRequest(text=edit)], baseline_seeds=2))
        client.batches.wait(made.id, timeout=120)
        (experiment,) = client.experiments.list(batch=made.id)
    page = browser.new_page()
    watched = Watched(page, "")
    page.goto(f"{service.ready['api']}/experiments/{experiment.id}")
    page.locator('[data-controls="curves"] select').select_option("constructor", timeout=WAIT)
    expect(page.locator("#curves")).to_have_attribute(
        "aria-label", "constructor by step: A curve of another name."
    )
    assert watched.complaints == []
    page.close()


def test_a_search_is_exported_as_a_file_that_opens_without_a_network(
    browser: Browser, service: ServiceProcess, batch: BatchBody, tmp_path: Path
) -> None:
    with service.client() as client:
        search = client.searches.create(
            SearchRequest(
                environment="toy", profile="tiny", strategy="random", epochs=1, batch_size=2
            )
        )
        ideas = [*toy_ideas(1, first=70), IdeaRequest(text=HOSTILE)]
        client.searches.put_epoch(search.id, 0, ideas)
        options = BatchOptions(baseline_seeds=2)
        made = client.searches.submit_epoch(search.id, 0, options)
        client.batches.wait(made.id, timeout=240)
        client.searches.finish(search.id)
    api = str(service.ready["api"])
    watched = Watched(browser.new_page(), urlsplit(api).netloc)
    watched.page.goto(f"{api}/searches/{search.id}")
    with watched.page.expect_download(timeout=WAIT * 4) as download:
        watched.page.get_by_role("link", name="Export HTML").click()
    file = tmp_path / download.value.suggested_filename
    download.value.save_as(file)
    assert file.name == f"{search.id}.html"
    assert (watched.complaints, watched.outside) == ([], [])
    watched.page.close()
    context = browser.new_context(offline=True)
    alone = Watched(context.new_page(), "")
    alone.page.goto(file.as_uri())
    expect(alone.page.get_by_role("heading", level=1)).to_be_visible()
    shown = "[...document.images].filter((i) => i.complete && i.naturalWidth > 0).length"
    assert alone.page.evaluate(shown) == alone.page.evaluate("document.images.length") > 0
    assert alone.page.evaluate("document.scripts.length") == 0
    assert (alone.complaints, alone.outside) == ([], [])
    context.close()


def test_the_theme_is_chosen_and_kept(browser: Browser, service: ServiceProcess) -> None:
    page = browser.new_page(color_scheme="light")
    page.goto(str(service.ready["api"]))
    page.get_by_role("button", name="Use the dark theme").click()
    page.reload()
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    page.close()


def test_the_first_tab_leads_to_the_content(browser: Browser, service: ServiceProcess) -> None:
    page = browser.new_page()
    page.goto(str(service.ready["api"]))
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to content"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    page.close()


def test_a_page_follows_a_batch_across_a_restart_of_the_service(
    browser: Browser, tmp_path: Path
) -> None:
    """The port stays, so that the page can find the service again."""
    service = ServiceProcess(tmp_path / "data", sandbox="subprocess")
    service.start()
    port = urlsplit(str(service.ready["api"])).port
    service.launcher = ["-c", _ON_PORT.format(port=port)]
    try:
        with service.client() as client:
            made = client.batches.create(toy_batch(toy_ideas(12), baseline_seeds=2))
        page = browser.new_page()
        page.goto(f"{service.ready['api']}/batches/{made.id}")
        expect(page.locator("#live-state")).to_have_text("live", timeout=WAIT)
        service.kill()
        expect(page.locator("#live-state")).to_have_text("reconnecting", timeout=WAIT)
        service.start()
        expect(page.locator("#head .badge")).to_have_text("finished", timeout=2 * WAIT)
        page.close()
    finally:
        service.stop()


#: `assay serve` on a given port, whatever its arguments say.
_ON_PORT = (
    "import sys; from assay.cli import main; "
    "arguments = sys.argv[1:]; arguments[arguments.index('--port') + 1] = '{port}'; "
    "main(arguments)"
)
