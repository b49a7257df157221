"""Which requests the dashboard answers, and how it acts on a run."""

import asyncio
import dataclasses
import socket
import sys
import urllib.request
from typing import Any

import pytest

from millrace.dashboard import Dashboard
from millrace.dashboard import application as served
from millrace.dashboard.application import Guard
from millrace.model.errors import PipelineError

TOKEN = "a-token-of-enough-letters"
STOP = {"what": "stop", "generation": 1}
BEARER = {"authorization": f"Bearer {TOKEN}"}


@dataclasses.dataclass
class Answer:
    done: bool
    text: str
    epoch: int = 41


class Run:
    """Answers what it is asked."""

    def __init__(self, answer: Answer | None) -> None:
        self.answer = answer
        self.asked: list[tuple[str, int, str]] = []

    def __call__(
        self, mailbox: Any, what: str, generation: int, *, about: str = "", timeout_s: float
    ) -> Answer | None:
        if what != "status":
            self.asked.append((what, generation, about))
        return self.answer


def test_without_a_token_it_only_shows(page, flown):
    run = Run(Answer(True, "stopped"))
    answer = page(flown.state, ask=run).client.post("/api/act", json=STOP, headers=BEARER)

    assert answer.status_code == 403
    assert "only shows" in answer.json()["error"]
    assert run.asked == []


@pytest.mark.parametrize(
    "shown", [None, "", "Bearer", "Bearer wrong", f"Basic {TOKEN}", f"Bearer {TOKEN}x", "Bearer ü"]
)
def test_a_wrong_token_asks_nothing_of_the_run(page, flown, shown):
    run = Run(Answer(True, "stopped"))
    headers = {} if shown is None else {"authorization": shown.encode()}
    served = page(flown.state, ask=run, token=TOKEN)

    assert served.client.post("/api/act", json=STOP, headers=headers).status_code == 401
    assert run.asked == []


def test_with_the_token_the_run_is_asked_and_what_it_says_is_told(page, flown):
    run = Run(Answer(True, "stopped"))
    served = page(flown.state, ask=run, token=TOKEN)
    answer = served.client.post("/api/act", json=STOP, headers=BEARER)

    assert answer.json() == {"done": True, "said": "stopped", "epoch": 41}
    assert run.asked == [("stop", 1, "")]


@pytest.mark.parametrize(("what", "state"), [("pause", "running"), ("stop", "silent")])
def test_a_run_that_was_stopped_is_gone_at_once_and_one_that_pauses_is_not(
    page, flown, what, state
):
    served = page(flown.state, ask=Run(Answer(True, "done")), token=TOKEN)
    body = {"what": what, "generation": 1, "about": "weather"}
    assert served.client.post("/api/act", json=body, headers=BEARER).status_code == 200
    assert served.now()["state"] == state


@pytest.mark.parametrize(
    ("answer", "status", "said"),
    [(None, 504, "No run answers"), (Answer(False, "run 2 has taken over"), 409, "run 2 has")],
)
def test_what_did_not_happen_is_an_error(page, flown, answer, status, said):
    served = page(flown.state, ask=Run(answer), token=TOKEN)
    found = served.client.post("/api/act", json=STOP, headers=BEARER)

    assert found.status_code == status
    assert said in found.text


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{", b'{"what": "stop"}', b'{"what": "format", "generation": 1}']
)
def test_a_request_that_means_nothing_is_refused(page, flown, body):
    run = Run(Answer(True, "stopped"))
    served = page(flown.state, ask=run, token=TOKEN)

    assert served.client.post("/api/act", content=body, headers=BEARER).status_code == 400
    assert run.asked == []


def test_a_body_without_end_is_hung_up_on(page, flown):
    served = page(flown.state, token=TOKEN)
    answer = served.client.post("/api/act", content=b"x" * 5_000, headers=BEARER)
    assert answer.status_code == 413


@pytest.mark.parametrize("host", ["127.0.0.1:8700", "localhost", "[::1]:8700", "10.1.2.3:80"])
def test_it_is_asked_for_by_address_or_as_localhost(page, flown, host):
    assert page(flown.state).client.get("/", headers={"host": host}).status_code == 200


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example:8700", "", "127.0.0.1.x"])
def test_a_name_that_was_made_to_mean_this_host_is_refused(page, flown, host):
    served = page(flown.state).client
    for path in ("/", "/api/now", "/api/key?computation=Delays&key=JFK"):
        assert served.get(path, headers={"host": host}).status_code == 421


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:9999"},
        {"sec-fetch-site": "cross-site"},
    ],
)
def test_pages_of_other_sites_may_not_ask(page, flown, headers):
    run = Run(Answer(True, "stopped"))
    served = page(flown.state, ask=run, token=TOKEN).client

    assert served.get("/api/now", headers=headers).status_code == 403
    assert served.post("/api/act", json=STOP, headers={**BEARER, **headers}).status_code == 403
    assert run.asked == []


def test_the_page_of_its_own_site_may(page, flown):
    served = page(flown.state).client
    headers = {"origin": "http://127.0.0.1:8700", "sec-fetch-site": "same-origin"}
    assert served.get("/api/now", headers=headers).status_code == 200


def test_where_others_can_ask_the_token_is_needed_to_read(page, flown):
    served = page(flown.state, token=TOKEN, closed=True).client

    assert served.get("/").status_code == 200, "the page asks for it, and says nothing"
    assert served.get("/api/now").status_code == 401
    assert served.get("/api/events").status_code == 401
    assert served.get("/api/now", headers=BEARER).status_code == 200


def test_a_browser_runs_nothing_but_the_page_s_own_scripts(page, flown):
    for path in ("/", "/api/now", "/main.js", "/nothing"):
        headers = page(flown.state).client.get(path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "script-src 'self';" in policy
        assert "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"


def test_the_page_names_no_other_host(page, flown):
    served = page(flown.state).client
    text = served.get("/").text
    assert "://" not in text
    assert "style=" not in text
    assert "<script>" not in text


def test_who_never_reads_is_hung_up_on(monkeypatch):
    monkeypatch.setattr(served, "_SEND_TIMEOUT_S", 0.01)

    async def application(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        raise AssertionError("it must not get on")

    async def never(*_: Any) -> None:
        await asyncio.Event().wait()

    scope = {
        "type": "http", "path": "/", "method": "GET", "headers": [(b"host", b"localhost")],
    }  # fmt: skip
    with pytest.raises(TimeoutError):
        asyncio.run(Guard(application, None, [], closed=False)(scope, never, never))


def test_a_port_in_use_is_refused_before_anything_is_served(flown):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(PipelineError, match=f"no dashboard can be served at 127.0.0.1:{port}"):
            Dashboard(flown.state, "ckpt", Run(None), port=port)


def test_a_host_that_is_not_here_is_refused(flown):
    with pytest.raises(PipelineError, match=r"no dashboard can be served at 192\.0\.2\.1:0"):
        Dashboard(flown.state, "ckpt", Run(None), host="192.0.2.1", token=TOKEN)


def test_others_than_loopback_take_a_token(flown):
    with pytest.raises(PipelineError, match=r"can be asked by other hosts.* takes a token"):
        Dashboard(flown.state, "ckpt", Run(None), host="0.0.0.0")


def test_a_token_that_can_be_tried_is_refused(flown):
    with pytest.raises(PipelineError, match="at least 16 characters, this one 6"):
        Dashboard(flown.state, "ckpt", Run(None), token="secret")


def test_without_its_packages_it_says_what_to_install(flown, monkeypatch):
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    needed = r"needs uvicorn.*pip install 'millrace-spark\[dashboard\]'"
    with pytest.raises(PipelineError, match=needed):
        Dashboard(flown.state, "ckpt", Run(None))


def test_a_client_that_asks_and_never_reads_holds_nobody_up(flown):
    with Dashboard(flown.state, "ckpt", Run(None)) as served, socket.socket() as silent:
        silent.connect(("127.0.0.1", served.port))
        silent.sendall(b"GET /api/events HTTP/1.1\r\nhost: localhost\r\n\r\n")
        with urllib.request.urlopen(f"{served.url}api/now", timeout=60) as answer:
            assert answer.status == 200
