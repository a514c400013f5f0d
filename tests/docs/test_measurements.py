"""The pages show the figures that are stored."""

from __future__ import annotations

import re
import subprocess
import sys

from scripts.measurements import STALE, calibrated
from tests.docs.reading import GUIDES, ROOT


def test_the_pages_show_what_is_stored() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "scripts.measurements", "--check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_page_says_when_its_figures_are_of_an_earlier_version() -> None:
    """Where the block is, `--check` above demands the note once an environment has changed."""
    measured = calibrated(ROOT / "environments", ROOT / "benchmarks" / "results")
    for page in (*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("environments/*/*.md")):
        names = re.findall(r"<!--= (\S+)", page.read_text())
        if {name.partition(".")[0] for name in names} & set(measured):
            assert STALE in names, f"{page} shows what `make calibrate` measured: add {STALE}"


def test_a_figure_is_where_markdown_shows_it() -> None:
    """A line that begins with a comment is HTML to Markdown; code shows a comment as it is."""
    for page in GUIDES:
        text = page.read_text()
        assert not re.findall(r"^<!--= .*<!--/-->", text, re.MULTILINE), page
        assert not re.findall(r"`<!--", text), page
