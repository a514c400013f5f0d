"""Rules for every test: which tier it is in, how many examples Hypothesis draws, bubblewrap.

`make test` leaves out tests marked `slow`; `make test-all` runs everything, with the Hypothesis
profile `long`.
"""

from __future__ import annotations

import pytest
from hypothesis import settings

from tests.support.needs import require_bubblewrap

#: The default tier needs no server and no root, so a test that does is in the long one.
NEED_SERVERS = ("postgres", "docker")
#: Fixtures that start one.
SERVERS = {"redis", "s3_url"}

# The same few examples on every run; `--hypothesis-profile long` draws others each time.
settings.register_profile("quick", max_examples=15, deadline=None, derandomize=True)
settings.register_profile("long", max_examples=200, deadline=None, print_blob=True)
settings.load_profile("quick")


@pytest.hookimpl(tryfirst=True)  # before `-m` selects by marker
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests that need a server as slow."""
    for item in items:
        fixtures = getattr(item, "fixturenames", ())
        if any(item.get_closest_marker(n) for n in NEED_SERVERS) or not SERVERS.isdisjoint(
            fixtures
        ):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(autouse=True)
def _require_bubblewrap(request: pytest.FixtureRequest) -> None:
    """Require bubblewrap for tests marked so; in CI they fail without it."""
    if request.node.get_closest_marker("bubblewrap") is not None:
        require_bubblewrap()
