"""The pages show the figures that are stored."""

from __future__ import annotations

import re
import subprocess
import sys

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


def test_a_figure_is_where_markdown_shows_it() -> None:
    """A line that begins with a comment is HTML to Markdown; code shows a comment as it is."""
    for page in GUIDES:
        text = page.read_text()
        assert not re.findall(r"^<!--= .*<!--/-->", text, re.MULTILINE), page
        assert not re.findall(r"`<!--", text), page
