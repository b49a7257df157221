"""A client for benchmarks: asks a service over HTTP/1.1, and is as small as a client can be.

What is measured with it is who makes the calls: aiohttp takes four times as much CPU for each.
:func:`load` has nothing around its connections, not even a coroutine: what it reaches is what the
service does.
"""

from __future__ import annotations

import asyncio
import time
from urllib.parse import urlsplit

_HEAD = b"Content-Length: "


def _request(url: str) -> tuple[str, int, bytes]:
    """Return host, port, and the bytes that ask for a URL."""
    parts = urlsplit(url)
    assert parts.hostname is not None
    assert parts.port is not None
    asked = f"GET {parts.path or '/'} HTTP/1.1\r\nHost: {parts.netloc}\r\n\r\n"
    return parts.hostname, parts.port, asked.encode()


def _body(data: bytes) -> bytes | None:
    """Return the body of a response; None if it has not all come."""
    head, end, body = data.partition(b"\r\n\r\n")
    if not end:
        return None
    start = head.index(_HEAD) + len(_HEAD)
    stop = head.find(b"\r", start)
    length = int(head[start : None if stop < 0 else stop])
    return body if len(body) >= length else None


class _Connection(asyncio.Protocol):
    """Asks one thing at a time."""

    def __init__(self) -> None:
        self._begun = b""
        self.answer: asyncio.Future[bytes] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        """Hand on a whole response."""
        self._begun += data
        body = _body(self._begun)
        if body is not None:
            self._begun = b""
            if self.answer is not None and not self.answer.done():
                self.answer.set_result(body)

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail who waits."""
        if self.answer is not None and not self.answer.done():
            self.answer.set_exception(exc or ConnectionError("the service has hung up"))


class HttpClient:
    """Connections to a service, each opened when all others are busy, and kept."""

    def __init__(self) -> None:
        self._free: list[_Connection] = []
        self._all: list[_Connection] = []
        self._asked: dict[str, tuple[str, int, bytes]] = {}

    async def get(self, url: str) -> str:
        """Return what the service answers."""
        request = self._asked.get(url)
        if request is None:
            request = self._asked[url] = _request(url)
        host, port, asked = request
        loop = asyncio.get_running_loop()
        if self._free:
            connection = self._free.pop()
        else:
            _, connection = await loop.create_connection(_Connection, host, port)
            self._all.append(connection)
        connection.answer = loop.create_future()
        connection.transport.write(asked)
        body = await connection.answer
        self._free.append(connection)
        return body.decode()

    async def close(self) -> None:
        """Close all connections."""
        for connection in self._all:
            connection.transport.close()


class _Load(asyncio.Protocol):
    """Asks again as soon as it is answered."""

    def __init__(self, asked: bytes, numbers: list[int], done: asyncio.Future[None]) -> None:
        self._asked = asked
        self._numbers = numbers
        self._done = done

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask first."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._ask()

    def data_received(self, data: bytes) -> None:
        """Take an answer, which comes in one piece: it is short."""
        self._numbers[1] -= 1
        if not self._numbers[1]:
            self._done.set_result(None)
        self._ask()

    def _ask(self) -> None:
        if self._numbers[0]:
            self._numbers[0] -= 1
            self._transport.write(self._asked)


async def load(url: str, requests: int, connections: int) -> tuple[float, float]:
    """Ask a service so often over so many connections at once.

    Returns:
        How long that took, and the CPU time of this process, in seconds.
    """
    host, port, asked = _request(url)
    loop = asyncio.get_running_loop()
    done, left = loop.create_future(), [requests, requests]
    began, cpu_s = time.monotonic(), time.process_time()
    for _ in range(connections):
        await loop.create_connection(lambda: _Load(asked, left, done), host, port)
    await done
    return time.monotonic() - began, time.process_time() - cpu_s
