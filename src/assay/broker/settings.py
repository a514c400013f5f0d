"""Addresses of brokers."""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import quote, urlsplit, urlunsplit


@dataclass(frozen=True)
class BrokerAddress:
    """Where a broker is and who connects. Its text never shows the password."""

    url: str = field(repr=False)

    @classmethod
    def parse(cls, url: str, *, credentials: bool = True) -> BrokerAddress:
        """Check an address.

        Raises:
            ValueError: it is not a Redis address, or names credentials where it must not.
        """
        parts = urlsplit(url)
        if parts.scheme not in ("redis", "rediss") or not parts.hostname:
            raise ValueError("must look like redis://host:6379/0 (rediss:// for TLS)")
        if not parts.path.strip("/").isdigit() and parts.path.strip("/"):
            raise ValueError("ends with the number of a database, as in redis://host:6379/0")
        if not credentials and (parts.username or parts.password):
            raise ValueError(
                "must not hold credentials: a worker connects as its own user with its token"
            )
        return cls(url)

    def signed_in(self, user: str, password: str) -> BrokerAddress:
        """The same broker as a user."""
        parts = urlsplit(self.url)
        host = parts.netloc.rpartition("@")[2]
        sign_in = f"{quote(user, safe='')}:{quote(password, safe='')}"
        return BrokerAddress(urlunsplit(parts._replace(netloc=f"{sign_in}@{host}")))

    def __str__(self) -> str:
        parts = urlsplit(self.url)
        return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2], query=""))
