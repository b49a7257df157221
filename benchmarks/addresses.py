"""Addresses for processes that find one another on this machine."""

from __future__ import annotations

import socket


def free_addresses(count: int) -> list[str]:
    """Return so many ``host:port`` that nobody listens at."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    addresses = [f"127.0.0.1:{each.getsockname()[1]}" for each in sockets]
    for each in sockets:
        each.close()
    return addresses
