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
_NAT64 = IPv6Network("64:ff9b::/96")
#: What a service without API keys may call beside the public internet: this machine, which alone
#: can create webhooks there, and networks at home or at work. Not 169.254.0.0/16, where clouds
#: serve credentials.
_NEAR: tuple[IpNetwork, ...] = tuple(
    ip_network(each)
    for each in ("127.0.0.0/8", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "::1/128",
                 "fc00::/7")
)  # fmt: skip
#: Of a host with many addresses, so many are tried.
_MOST_TRIED = 3


class NotAllowed(Exception):
    """The address of a receiver is one that this service does not call."""


@dataclass(frozen=True)
class Policy:
    """Which addresses may be called: those of the public internet, and `networks`."""

    networks: Sequence[IpNetwork]

    @classmethod
    def of(cls, settings: ImplementerSettings) -> Policy:
        """Return the policy of a service."""
        near = () if settings.api_keys else _NEAR
        return cls((*settings.webhook_networks, *near))

    def allows(self, address: IpAddress) -> bool:
        """Whether an address may be called; one that embeds another is judged by that."""
        address = _embedded(address)
        if any(address in network for network in self.networks):
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


def _embedded(address: IpAddress) -> IpAddress:
    if isinstance(address, IPv4Address):
        return address
    if address in _NAT64:
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

    async def post(self, url: str, headers: Mapping[str, str], body: bytes) -> int:
        """Send a body and return the status of the answer, of which nothing else is read.

        Raises:
            NotAllowed: the address may not be called.
            OSError: the name has no address.
            TimeoutError: there was no answer in time.
            httpx2.TransportError: there was no connection, or no HTTP.
        """
        async with asyncio.timeout(self._seconds):
            addresses = await self._addresses(httpx2.URL(url))
            last = addresses[-1]
            for address in addresses:
                try:
                    return await self._post(httpx2.URL(url), address, headers, body)
                except httpx2.ConnectError:
                    if address is last:
                        raise
        raise AssertionError("unreachable: the last address returns or raises")

    async def _addresses(self, url: httpx2.URL) -> list[IpAddress]:
        """The addresses of a host, all of which may be called."""
        try:
            found: list[IpAddress] = [ip_address(url.host)]
        except ValueError:
            port = url.port or (443 if url.scheme == "https" else 80)
            known = await asyncio.get_running_loop().run_in_executor(
                self._resolver, _look_up, url.host, port
            )
            found = [ip_address(each) for each in dict.fromkeys(known)]
        for address in found:
            self._policy.check(address)
        return found[:_MOST_TRIED]

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
