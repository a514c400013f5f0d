"""Keeps credentials out of what is written down.

Two nets, since neither is enough: the values this process was given as secrets, wherever they turn
up, and everything that looks like a credential.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from urllib.parse import unquote, urlsplit

HIDDEN = "***"
#: Shorter values stand in ordinary words, and would black out half the log.
SHORTEST = 8
_SECRET_NAMES = re.compile(r"(KEY|KEYS|TOKEN|SECRET|PASSWORD|PASSPHRASE)$")
_SECRET_JSON = frozenset({"ASSAY_IMPLEMENTER_API_KEYS", "ASSAY_IMPLEMENTER_WORKERS"})
_LOOKS_SECRET: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"\basw_[A-Za-z0-9_-]{16,}"), f"asw_{HIDDEN}"),
    (re.compile(r"\bsk-[A-Za-z0-9_-]{16,}"), f"sk-{HIDDEN}"),
    (re.compile(r"\b(Bearer|Basic) +[A-Za-z0-9._~+/=-]{8,}", re.IGNORECASE), rf"\1 {HIDDEN}"),
    # Only the scheme's last character is matched: starting at each possible first one takes
    # quadratic time.
    (re.compile(r"((?<=[a-z0-9+.-])://[^\s:/@]*+):[^\s/@]++@", re.IGNORECASE), rf"\1:{HIDDEN}@"),
    (
        re.compile(r"\b(X-Amz-(?:Signature|Credential|Security-Token))=[^\s&\"']+", re.IGNORECASE),
        rf"\1={HIDDEN}",
    ),
    (re.compile(r"\b(AKIA|ASIA)[A-Z0-9]{16}\b"), rf"\1{HIDDEN}"),
)


def secrets_of(variables: Mapping[str, str]) -> set[str]:
    """Values of environment variables that are credentials, or hold some."""
    found: set[str] = set()
    for name, value in variables.items():
        upper = name.upper()
        if upper in _SECRET_JSON:
            found |= _values(value)
        elif _SECRET_NAMES.search(upper):
            found.add(value)
        elif "://" in value:
            found |= _password(value)
    return {value for value in found if len(value) >= SHORTEST}


def _values(document: str) -> set[str]:
    try:
        stored = json.loads(document)
    except ValueError:
        return {document}
    values = stored.values() if isinstance(stored, dict) else [stored]
    return {str(value) for value in values}


def _password(url: str) -> set[str]:
    try:
        password = urlsplit(url).password
    except ValueError:
        return set()
    return {password, unquote(password)} if password else set()


def redactor(secrets: Iterable[str]) -> Callable[[str], str]:
    """A function that blacks out these values, and what looks like a credential."""
    forms = {form for secret in secrets for form in (secret, json.dumps(secret)[1:-1])}
    known = "|".join(map(re.escape, sorted(forms, key=len, reverse=True)))
    exact = re.compile(known) if known else None

    def redact(text: str) -> str:
        if exact is not None:
            text = exact.sub(HIDDEN, text)
        for pattern, instead in _LOOKS_SECRET:
            text = pattern.sub(instead, text)
        return text

    return redact
