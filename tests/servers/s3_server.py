"""An S3 server of the tests' own, and a proxy before it that fails as it is told.

The server is S3Proxy over a directory: a process that checks signatures, has conditional puts, and
keeps what it was given when it is killed and started again. pytest loads this file as a plugin.
"""

from __future__ import annotations

import http.client
import os
import secrets
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from store_server import StoreServer, set_environment

ROOT = Path(__file__).resolve().parents[2]
JAR = ROOT / ".s3" / "s3proxy-4.1.0-jar-with-dependencies.jar"
BUCKET = "checkpoints"


class S3Server(StoreServer):
    """S3Proxy, with one bucket."""

    def __init__(self) -> None:
        if not JAR.exists():
            subprocess.run([sys.executable, str(ROOT / "scripts" / "jars.py")], check=True)
        super().__init__("S3Proxy")
        (self.home / "data" / BUCKET).mkdir(parents=True)
        self.key, self.secret = secrets.token_hex(8), secrets.token_hex(16)
        self._settings = self.home / "s3proxy.conf"
        self._settings.touch(0o600)
        self._settings.write_text(
            "s3proxy.authorization=aws-v2-or-v4\n"
            f"s3proxy.endpoint=http://127.0.0.1:{self.port}\n"
            f"s3proxy.identity={self.key}\n"
            f"s3proxy.credential={self.secret}\n"
            "jclouds.provider=filesystem-nio2\n"
            f"jclouds.filesystem.basedir={self.home / 'data'}\n"
        )
        self.start()

    def environment(self, port: int | None = None) -> dict[str, str]:
        """What a client needs in its environment; ``port`` is that of a proxy."""
        return {
            "AWS_ACCESS_KEY_ID": self.key,
            "AWS_SECRET_ACCESS_KEY": self.secret,
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port or self.port}",
            "AWS_REGION": "us-east-1",
            "AWS_ALLOW_HTTP": "true",
        }

    def command(self) -> list[str]:
        home = os.environ.get("JAVA_HOME")
        return [
            f"{home}/bin/java" if home else "java",
            "-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
            "-cp", str(JAR), "org.gaul.s3proxy.Main", "--properties", str(self._settings),
        ]  # fmt: skip


Fault = Callable[[str, str], str | None]
"""From method and path of a request to what befalls it, or None:

``"500"``, ``"503"`` and the like: answered with that status, not handed on.
``"late 500"``: handed on, and then answered with that status.
``"drop"``, ``"late drop"``: the connection is closed without an answer, before or after.
``"hold"``, ``"late hold"``: no answer until the proxy is released, before or after; then dropped.
``"late 200"``: handed on, and answered with success whatever came of it.
``"late cut"``: handed on, and the connection is closed in the middle of the answer.
"""


def no_fault(_method: str, _path: str) -> None:
    """Let all requests be handed on."""


class FaultyProxy:
    """An HTTP proxy before a server; ``fault`` decides what happens to each request."""

    def __init__(self, upstream: int) -> None:
        self.upstream = upstream
        self.fault: Fault = no_fault
        self.requests: list[tuple[str, str]] = []
        self._released = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self.port: int = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def once(self, fault: str, method: str = "PUT", path: str = "") -> None:
        """Let the next request of a method, whose path contains ``path``, meet a fault."""
        left = [fault]

        def decide(found: str, at: str) -> str | None:
            return left.pop() if left and found == method and path in at else None

        self.fault = decide

    def count(self, *methods: str) -> int:
        """How many requests there were."""
        return sum(method in methods for method, _ in self.requests)

    def close(self) -> None:
        """Answer nothing any more."""
        self._released.set()
        self._server.shutdown()
        self._server.server_close()

    def _handler(proxy) -> type[BaseHTTPRequestHandler]:  # noqa: N805
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_any(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                proxy.requests.append((self.command, self.path))
                fault = proxy.fault(self.command, self.path) or ""
                late, kind = fault.startswith("late "), fault.removeprefix("late ")
                answer = self.hand_on(body) if late or not fault else None
                if kind == "hold":
                    proxy._released.wait(60)
                if kind in ("hold", "drop"):
                    self.close_connection = True
                    return
                cut = kind == "cut"
                if kind and not cut:
                    content = b"<Error><Code>Injected</Code></Error>"
                    answer = (int(kind), [("ETag", '"injected"')], content)
                assert answer is not None
                status, headers, content = answer
                self.send_response_only(status)
                for name, value in headers:
                    if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                        self.send_header(name, value)
                length = dict(headers).get("Content-Length") if self.command == "HEAD" else None
                self.send_header("Content-Length", length or str(len(content)))
                self.end_headers()
                if cut:
                    content, self.close_connection = content[: len(content) // 2], True
                self.wfile.write(content)

            def hand_on(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
                upstream = http.client.HTTPConnection("127.0.0.1", proxy.upstream, timeout=60)
                try:
                    upstream.putrequest(
                        self.command, self.path, skip_host=True, skip_accept_encoding=True
                    )
                    for name, value in self.headers.items():
                        upstream.putheader(name, value)
                    upstream.endheaders(body)
                    answer = upstream.getresponse()
                    return answer.status, answer.getheaders(), answer.read()
                except OSError:
                    return 502, [], b"<Error><Code>NoUpstream</Code></Error>"
                finally:
                    upstream.close()

            do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = handle_any  # noqa: N815

            def log_message(self, format: str, *arguments: object) -> None:
                pass

        return Handler


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    """The server of the test session, up and running at the beginning of each test."""
    server = S3Server()
    try:
        yield server
    finally:
        server.close()


@pytest.fixture
def s3(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of an unused prefix of the server; how to reach it is in the environment."""
    set_environment(monkeypatch, "AWS_", s3_server.environment())
    return f"s3://{BUCKET}/{secrets.token_hex(4)}"


@pytest.fixture
def faulty(s3: str, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyProxy]:
    """A proxy before the server, to which the environment leads."""
    proxy = FaultyProxy(s3_server.port)
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{proxy.port}")
    yield proxy
    proxy.close()
