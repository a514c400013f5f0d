"""What the shell offers after TAB: names and ids that the service knows, the newest first.

A service that does not answer at once offers nothing: a shell must not hang or print errors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from assay.client import Client

Offer = tuple[str, str]
#: Names that are offered, at most, of so many that are looked through.
_MOST, _SEARCHED = 50, 200
_SECONDS = 2.0


def _offers(
    found: Callable[[Client], Iterable[Offer]],
) -> Callable[[typer.Context, str], list[Offer]]:
    def complete(context: typer.Context, incomplete: str) -> list[Offer]:
        from assay.client import Client, ClientError

        url: Any = context.find_root().params.get("url")
        try:
            with Client(url, timeout=_SECONDS, retries=0) as client:
                known = islice(found(client), _SEARCHED)
                matching = (one for one in known if one[0].startswith(incomplete))
                return list(islice(matching, _MOST))
        except ClientError:
            return []

    return complete


def _experiments(client: Client) -> Iterator[Offer]:
    from assay.analysis.text import idea_title

    return ((e.id, f"{e.state}: {idea_title(e.idea.text, 50)}") for e in client.experiments.list())


experiments = _offers(_experiments)
batches = _offers(
    lambda client: ((b.id, f"{b.environment}, {b.state}") for b in client.batches.list())
)
searches = _offers(
    lambda client: (
        (s.id, f"{s.strategy} on {s.environment}, {s.state}") for s in client.searches.list()
    )
)
measurements = _offers(
    lambda client: (
        (m.id, f"{m.environment}, seed {m.seed}, {m.state}") for m in client.measurements.list()
    )
)
environments = _offers(lambda client: ((e.name, e.title) for e in client.environments.list()))
webhooks = _offers(lambda client: ((w.id, w.description or w.url) for w in client.webhooks.list()))
workers = _offers(lambda client: ((w.name, w.state) for w in client.workers.list()))


def profiles(context: typer.Context, incomplete: str) -> list[Offer]:
    """Offer the profiles of the environment that is named already, or of all."""
    named = context.params.get("env")
    known = _offers(
        lambda client: (
            (profile.name, f"{e.name}: {profile.description}")
            for e in client.environments.list()
            if named is None or e.name == str(named).partition("@")[0]
            for profile in e.profiles
        )
    )(context, incomplete)
    return list(dict(known).items())
