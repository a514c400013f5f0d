"""Where an API listens, and who can reach it there."""

from __future__ import annotations

import os
import socket
from ipaddress import ip_address

from assay.domain.errors import Conflict

NO_KEYS = (
    'lets other machines in: set ASSAY_IMPLEMENTER_API_KEYS=\'{"me": "a-long-secret"}\' first'
)


def is_loopback(host: str) -> bool:
    """Whether only this machine can connect to an address."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def bind(host: str, port: int, remedy: str) -> socket.socket:
    """Listen on an address.

    Raises:
        Conflict: the port is taken, or the address is not this machine's; with the remedy.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((host, port))
        bound.listen(128)
    except OSError as error:
        bound.close()
        why = os.strerror(error.errno or 0)
        raise Conflict(
            f"cannot listen on {host}:{port}: {why}; {remedy}", code="port_taken"
        ) from error
    return bound


def url_of(host: str, bound: socket.socket) -> str:
    """The address of an API as a URL."""
    name = f"[{host}]" if ":" in host else host
    return f"http://{name}:{bound.getsockname()[1]}"
