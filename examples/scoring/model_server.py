"""A model behind HTTP, as a team beside yours may run it: slow, now and then unavailable.

    python -m millrace_examples.scoring.model_server

It prints its address. ``POST /score`` takes features and returns a score. It answers 503 now and
then, which goes by when it is asked again, and 422 to features that no model can take. A request
has a header ``Idempotency-Key``; ``GET /asked`` says how many different ones came, and how often.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

import msgspec

#: How long the model takes, in seconds.
TAKES_S = 0.02
#: One request in so many is answered by 503 when it comes first.
_UNAVAILABLE = 50


def score(features: dict[str, Any]) -> float:
    """Return how likely a payment is a fraud; a stand-in for a model.

    Raises:
        ValueError: The amount is not above nought.
    """
    if features["amount"] <= 0:
        raise ValueError(f"an amount of {features['amount']}")
    usual = features["usual"] or 100
    return round(min(1.0, features["amount"] / usual / 10 + features["recent"] / 50), 4)


class Asked:
    """Counts requests by their key."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._times: dict[str, int] = {}

    def again(self, key: str) -> int:
        """Count a request; return how often that key had come before."""
        with self._lock:
            before = self._times.get(key, 0)
            self._times[key] = before + 1
        return before

    def counts(self) -> dict[str, int]:
        """Return how many keys and how many requests there were."""
        with self._lock:
            return {"keys": len(self._times), "requests": sum(self._times.values())}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    asked: Asked

    def do_POST(self) -> None:
        """Score one payment."""
        body = self.rfile.read(int(self.headers["Content-Length"]))
        key = self.headers.get("Idempotency-Key", "")
        time.sleep(TAKES_S)
        if self.asked.again(key) == 0 and key and int(key[-4:], 16) % _UNAVAILABLE == 0:
            self._answer(503, {"error": "busy"})
            return
        try:
            self._answer(200, {"score": score(msgspec.json.decode(body))})
        except ValueError as error:
            self._answer(422, {"error": str(error)})

    def do_GET(self) -> None:
        """Say how often the model was asked."""
        self._answer(200, self.asked.counts())

    def _answer(self, status: int, body: Any) -> None:
        data = msgspec.json.encode(body)
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Say nothing of each request."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 512

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a client that was killed."""


class ModelServer:
    """The server between ``with`` and its end, in a process of its own.

    Attributes:
        url: How to reach it.
    """

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "millrace_examples.scoring.model_server"],
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().strip()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()


def main() -> None:
    """Serve until killed."""
    handler = type("Handler", (_Handler,), {"asked": Asked()})
    with _Server(("127.0.0.1", 0), handler) as server:
        sys.stdout.write(f"http://127.0.0.1:{server.server_address[1]}\n")
        sys.stdout.flush()
        server.serve_forever()


if __name__ == "__main__":
    main()
