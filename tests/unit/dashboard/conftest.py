"""A page's server without a port, and a run to look at."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from dashboard_scene import Flights

from millrace.dashboard.application import Answers, Guard
from millrace.dashboard.pulse import Pulse
from millrace.dashboard.watcher import Watcher
from millrace.store import HardState

TOKEN = "a-token-of-enough-letters"

#: Shortly before a window ends, so that much has been made of it, and withdrawn.
NOW = 1_795_392_240_000_000


class Client:
    """Asks an application without a port."""

    def __init__(self, application: Any) -> None:
        self._application = application

    def get(self, path: str, **options: Any) -> httpx.Response:
        return asyncio.run(self._ask("GET", path, options))

    def post(self, path: str, **options: Any) -> httpx.Response:
        return asyncio.run(self._ask("POST", path, options))

    async def _ask(self, method: str, path: str, options: dict[str, Any]) -> httpx.Response:
        transport = httpx.ASGITransport(self._application)
        base = "http://127.0.0.1:8700"
        async with httpx.AsyncClient(transport=transport, base_url=base) as client:
            return await client.request(method, path, **options)


class Page:
    """What a browser is to the server, and the server."""

    def __init__(
        self, state: HardState, *, ask: Any = None, token: str | None = None, closed: bool = False
    ) -> None:
        ask = ask or (lambda *_, **__: None)
        self.watcher = Watcher(state, "s3://key:secret@bucket/runs", Pulse(state, ask))
        self.watcher.close()  # it looks when it is told to
        self.answers = Answers(state, self.watcher, ask, acts=token is not None)
        guard = Guard(self.answers.application(), token, [], closed=closed)
        self.client = Client(guard)

    def get(self, path: str, **parameters: str) -> Any:
        answer = self.client.get(path, params=parameters)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def now(self) -> Any:
        self.get("/api/now")
        self.watcher.look()
        return self.get("/api/now")

    def close(self) -> None:
        self.answers.close()


@pytest.fixture
def page() -> Iterator[Any]:
    """Return a maker of pages."""
    opened: list[Page] = []

    def make(state: HardState, **options: Any) -> Page:
        opened.append(Page(state, **options))
        return opened[-1]

    yield make
    for each in opened:
        each.close()


@pytest.fixture(scope="session")
def flown(tmp_path_factory: pytest.TempPathFactory) -> Flights:
    """Return a run in which a key holds the low watermark, and records are late; look only."""
    path = tmp_path_factory.mktemp("flown") / "ckpt"
    flights = Flights(path, epochs=9, intervals=16, now=NOW)
    flights.go_on(4)
    flights.fail()
    flights.go_on(3, held=True)
    flights.go_on(2, late=True)
    return flights


@pytest.fixture
def flights(tmp_path: Path) -> Flights:
    """Return a run that has not begun."""
    return Flights(tmp_path / "ckpt", epochs=3, intervals=4)
