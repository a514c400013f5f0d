"""Names of models: `provider:model[@base_url]`."""

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Self
from urllib.parse import urlsplit

_MODEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@+\-]{0,199}")
_URL_START = re.compile(r"@(?=https?://)")


class Provider(StrEnum):
    """Who answers. `offline` is no model: it means the stand-ins of `assay.llm.offline`."""

    OFFLINE = "offline"
    ANTHROPIC = "anthropic"
    OPENAI = "openai"


@dataclass(frozen=True)
class ModelName:
    """A parsed name; `str()` gives it back. `base_url` is None for the provider's own address."""

    provider: Provider
    model: str
    base_url: str | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `anthropic:claude-opus-4-5`, `openai:qwen3@http://localhost:8000/v1`, `offline`.

        Raises ValueError with what is wrong and an example.
        """
        head, _, rest = text.strip().partition(":")
        try:
            provider = Provider(head)
        except ValueError:
            known = ", ".join(Provider)
            raise ValueError(
                f"{text!r} names no known provider (known: {known}). "
                "Write provider:model, for example anthropic:claude-opus-4-5 or offline."
            ) from None
        model, base_url = rest, None
        at = _URL_START.search(rest)
        if at is not None:
            model, base_url = rest[: at.start()], _checked_url(rest[at.end() :])
        if provider is Provider.OFFLINE:
            if base_url is not None:
                raise ValueError(f"{text!r}: offline takes no address.")
        elif not model:
            raise ValueError(f"{text!r} names no model. Write for example {head}:<model>.")
        if model and not _MODEL.fullmatch(model):
            raise ValueError(f"{text!r}: {model!r} is not a model's name.")
        return cls(provider, model, base_url)

    def __str__(self) -> str:
        name = f"{self.provider}:{self.model}" if self.model else str(self.provider)
        return f"{name}@{self.base_url}" if self.base_url else name


def _checked_url(url: str) -> str:
    parts = urlsplit(url)
    try:
        port_is_fine = parts.port is None or parts.port > 0
    except ValueError:
        port_is_fine = False
    if not parts.hostname or not port_is_fine or any(c.isspace() for c in url):
        raise ValueError(f"{url!r} is not an http(s) address.")
    if parts.username or parts.password:
        raise ValueError("An address must not hold a user or password: keys come from variables.")
    if parts.query or parts.fragment:
        raise ValueError(f"{url!r}: an address takes no query or fragment.")
    return url.rstrip("/")
