"""A service for benchmarks: answers each request over HTTP after so long, in a process of its own.

It is as small as a server can be, so that what is measured is who asks it: no framework, one
process, connections that stay open.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import Self

_ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Type: text/plain\r\n\r\nok"


class _Connection(asyncio.Protocol):
    """Answers requests without a body, in their order."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._begun = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Answer each whole request after a while."""
        *requests, self._begun = (self._begun + data).split(b"\r\n\r\n")
        for _ in requests:
            asyncio.get_running_loop().call_later(self._seconds, self._answer)

    def _answer(self) -> None:
        if not self._transport.is_closing():
            self._transport.write(_ANSWER)


class HttpService:
    """The service between ``with`` and its end.

    Args:
        seconds: How long it takes to answer.

    Attributes:
        url: How to reach it.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.http_service", str(self._seconds)],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().strip()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()


async def _serve(seconds: float) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Connection(seconds), "127.0.0.1", 0, backlog=1024)
    port = server.sockets[0].getsockname()[1]
    sys.stdout.write(f"http://127.0.0.1:{port}/\n")
    sys.stdout.flush()
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_serve(float(sys.argv[1])))
