"""Templates, the filters they use, and the headers of a page."""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime
from decimal import Decimal
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from fastapi import Request
from fastapi.responses import HTMLResponse
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from assay.analysis.standing import standing
from assay.analysis.text import (
    clean,
    format_effect,
    format_multiple,
    format_number,
    format_result_seconds,
    format_seconds,
    format_verdict,
    idea_title,
)
from assay.domain.failure_codes import Blame, read_code, rules_for
from assay.domain.states import FailureStage

STATIC = Path(__file__).parent / "static"
#: Nothing is loaded from elsewhere, and no script or style stands in the page itself, so that
#: text of a model can at worst look odd.
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    )
)
#: Who is to blame, in words.
WHOSE = {
    Blame.IDEA: "the idea or its code",
    Blame.ENVIRONMENT: "the environment",
    Blame.HOST: "a worker or its host",
    Blame.SERVICE: "Assay or a provider",
    Blame.SETTINGS: "your settings",
    Blame.NOBODY: "nobody",
    Blame.UNCLEAR: "unclear: the host or the code",
}
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    # With `no-referrer` a browser sends `Origin: null` with a form, which is refused.
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}


def render(request: Request, template: str, status: int = 200, **values: Any) -> HTMLResponse:
    """Return a template as a page. `values` are what it shows."""
    context = request.app.state.context
    text = (
        _templates()
        .get_template(template)
        .render(
            path=request.url.path,
            version=metadata.version("assay"),
            has_keys=bool(context.settings.api_keys),
            **{"owner": None, **values},
        )
    )
    return HTMLResponse(text, status, HEADERS)


@cache
def asset(name: str) -> str:
    """Return the address of a static file. It changes with the file, so browsers may keep it."""
    digest = hashlib.sha256((STATIC / name).read_bytes()).hexdigest()[:12]
    return f"/static/{name}?v={digest}"


@cache
def _templates() -> Environment:
    found = Environment(
        loader=PackageLoader("services.implementer.pages"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters.update(
        ago=ago,
        blame=blame,
        clean=clean,
        data=data,
        dollars=dollars,
        effect=format_effect,
        gibibytes=gibibytes,
        multiple=format_multiple,
        number=format_number,
        plural=plural,
        query=query,
        result_seconds=format_result_seconds,
        seconds=format_seconds,
        standing=standing,
        short=short,
        time=time,
        title=idea_title,
        verdict=format_verdict,
    )
    found.globals["asset"] = asset
    return found


def data(value: Any) -> Markup:
    """Return JSON for a `<script type="application/json">`. No text in it can end the element."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    for mark in "<>&":
        text = text.replace(mark, f"\\u{ord(mark):04x}")
    return Markup(text)


def short(identity: str) -> str:
    """Return the kind and the last six characters of an id, enough to tell it from others."""
    kind, _, rest = identity.partition("_")
    return f"{kind}_…{rest[-6:]}" if len(rest) > 8 else identity


def ago(at: datetime | None) -> Markup:
    """Return how long ago something was, with the time itself in a tooltip."""
    if at is None:
        return Markup("–")
    passed = (datetime.now(UTC) - at).total_seconds()
    said = "just now" if passed < 10 else f"{_span(passed)} ago"
    return Markup('<time datetime="{0}" title="{0}">{1}</time>').format(time(at), said)


def _span(seconds: float) -> str:
    for size, unit in ((86400.0, "d"), (3600.0, "h"), (60.0, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def time(at: datetime) -> str:
    """Return a time as RFC 3339 in UTC, without fractions."""
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def dollars(amount: str | Decimal | None) -> str:
    """Return `$1.24`, or more digits of what is less than a cent."""
    if amount is None:
        return "price unknown"
    value = Decimal(amount)
    if not value:
        return "$0"
    return f"${value:,.2f}" if value >= Decimal("0.01") else f"${value:.2g}"


def gibibytes(size: int) -> str:
    """Return a size in GiB."""
    return f"{size / 2**30:.3g} GiB"


def plural(number: int, noun: str, nouns: str | None = None) -> str:
    """Return `1 idea` or `2 ideas`."""
    return f"{number:,} {noun if number == 1 else nouns or noun + 's'}"


def query(parameters: dict[str, Any]) -> str:
    """Return the query part of an address; parameters without a value are left out."""
    given = {name: value for name, value in parameters.items() if value not in (None, "")}
    return f"?{urlencode(given, doseq=True)}" if given else ""


def blame(code: str, stage: str) -> str:
    """Return who has to change something before this failure can end differently."""
    return WHOSE[rules_for(read_code(code), FailureStage(stage)).blame]
