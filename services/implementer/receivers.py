"""Which addresses webhooks may call, and one request to such an address.

Whoever may create a webhook chooses where this process connects to. Without a policy they could
reach what only this network reaches: databases, administration pages, the credentials that clouds
serve at 169.254.169.254. So a name is resolved here, all of its addresses are checked, and the
connection goes to one that was checked: a name that resolves differently a moment later gains
nothing. Redirects are not followed, proxies of the environment are not used, and nothing of an
answer but its status is read or shown.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from ipaddress import (
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_address,
    ip_network,
)
from urllib.parse import urlsplit

import httpx2

from assay.domain.errors import InvalidInput
from services.implementer.settings import ImplementerSettings

IpAddress = IPv4Address | IPv6Address
IpNetwork = IPv4Network | IPv6Network


def _networks(*texts: str) -> tuple[IpNetwork, ...]:
    return tuple(ip_network(each) for each in texts)


#: Their last 32 bits are an IPv4 address: NAT64, SIIT, and IPv4-compatible addresses.
_EMBEDDING = _networks("64:ff9b::/96", "::ffff:0:0:0/96", "::/96")
#: What a service without API keys may call beside the public internet: this machine, which alone
#: can create webhooks there, and networks at home or at work. Not 169.254.0.0/16, where clouds
#: serve credentials.
_NEAR = _networks("127.0.0.0/8", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "::1/128",
                  "fc00::/7")  # fmt: skip
#: What is called only if an operator names it, though `is_global` or `_NEAR` holds it.
_NEVER = _networks(
    "168.63.129.16/32",  # Azure serves its machines there
    "192.0.0.0/24",  # Oracle's cloud serves credentials at 192.0.0.192
    "fd00:ec2::/32",  # AWS does at fd00:ec2::254
    "fd20:ce::254/128",  # Google does
    "64:ff9b:1::/48",  # of translators to IPv4 in one's own network
    "fec0::/10",  # private networks, before fc00::/7 was
    "5f00::/16",  # of one operator's routers
    "3fff::/20",  # of documentation
)
#: Of a host with many addresses, so many are tried.
_MOST_TRIED = 3


class NotAllowed(Exception):
    """The address of a receiver is one that this service does not call."""


@dataclass(frozen=True)
class Policy:
    """Which addresses may be called: those of the public internet, `near` and `named` networks.

    `named` by an operator, who may name any; of `near` ones, those where clouds serve credentials
    stay closed.
    """

    named: Sequence[IpNetwork]
    near: Sequence[IpNetwork] = ()

    @classmethod
    def of(cls, settings: ImplementerSettings) -> Policy:
        """Return the policy of a service."""
        return cls(settings.webhook_networks, () if settings.api_keys else _NEAR)

    def allows(self, address: IpAddress) -> bool:
        """Whether an address may be called; one that embeds another is judged by that."""
        address = _embedded(address)
        if _is_in(address, self.named):
            return True
        if _is_in(address, _NEVER):
            return False
        if _is_in(address, self.near):
            return True
        return address.is_global and not address.is_multicast

    def check(self, address: IpAddress) -> None:
        """Raise NotAllowed if an address may not be called."""
        if not self.allows(address):
            raise NotAllowed(
                f"{address} is not a public address; an operator allows its network with "
                "ASSAY_IMPLEMENTER_WEBHOOK_NETWORKS"
            )

    def check_url(self, url: str) -> None:
        """Refuse a webhook whose host is an address that may not be called.

        A name is looked up when a delivery is sent: what it resolves to may change.

        Raises:
            InvalidInput: it may not be called.
        """
        try:
            address = ip_address(urlsplit(url).hostname or "")
        except ValueError:
            return
        try:
            self.check(address)
        except NotAllowed as refused:
            raise InvalidInput.field("/url", str(refused), "address_not_allowed") from None


def _is_in(address: IpAddress, networks: Sequence[IpNetwork]) -> bool:
    return any(address in network for network in networks)


def _embedded(address: IpAddress) -> IpAddress:
    if isinstance(address, IPv4Address):
        return address
    if address.is_loopback or address.is_unspecified:
        return address
    if _is_in(address, _EMBEDDING):
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour or address


class Caller:
    """Sends requests to receivers. `resolver`: threads that look names up."""

    def __init__(self, policy: Policy, seconds: float, resolver: Executor) -> None:
        self._policy = policy
        self._seconds = seconds
        self._resolver = resolver
        # Each request has a connection of its own: one that is kept open is closed by a receiver
        # at the moment it is used again, and events are too few to gain by it.
        self._client = httpx2.AsyncClient(
            trust_env=False,
            follow_redirects=False,
            verify=ssl.create_default_context(),
            timeout=seconds,
            limits=httpx2.Limits(max_keepalive_connections=0),
        )

    async def aclose(self) -> None:
        """Close connections."""
        await self._client.aclose()

    async def post(
        self,
        url: str,
        addresses: asyncio.Future[list[IpAddress]],
        headers: Mapping[str, str],
        body: bytes,
    ) -> int:
        """Send a body and return the status of the answer, of which nothing else is read.

        `addresses`: a `look_up` of this address, which goes on if it is not done in time.

        Raises:
            NotAllowed: the address may not be called.
            OSError: the name has no address.
            TimeoutError: there was no answer in time.
            httpx2.TransportError: there was no connection, or no HTTP.
        """
        async with asyncio.timeout(self._seconds):
            found = await asyncio.shield(addresses)
            for address in found:
                self._policy.check(address)
            tried = found[:_MOST_TRIED]
            last = tried[-1]
            for address in tried:
                try:
                    return await self._post(httpx2.URL(url), address, headers, body)
                except httpx2.ConnectError:
                    if address is last:
                        raise
        raise AssertionError("unreachable: the last address returns or raises")

    async def look_up(self, url: str) -> list[IpAddress]:
        """Return the addresses of a host. It takes as long as the names of this machine take.

        Raises:
            OSError: the name has no address.
        """
        parts = httpx2.URL(url)
        try:
            return [ip_address(parts.host)]
        except ValueError:
            port = parts.port or (443 if parts.scheme == "https" else 80)
            known = await asyncio.get_running_loop().run_in_executor(
                self._resolver, _look_up, parts.host, port
            )
            return [ip_address(each) for each in dict.fromkeys(known)]

    async def _post(
        self, url: httpx2.URL, address: IpAddress, headers: Mapping[str, str], body: bytes
    ) -> int:
        host = url.netloc.decode()
        request = self._client.build_request(
            "POST",
            url.copy_with(host=str(address)),
            content=body,
            headers={**headers, "Host": host},
            # The certificate is checked for the name, not for the address.
            extensions={"sni_hostname": url.host},
        )
        response = await self._client.send(request, stream=True)
        await response.aclose()
        return response.status_code


def _look_up(host: str, port: int) -> list[str]:
    """Raises OSError: the name has no address."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    # Without the zone of a link-local address, which `ip_address` reads but no policy allows.
    return [str(sockaddr[0]).partition("%")[0] for *_, sockaddr in found]
