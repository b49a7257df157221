"""The dashboard's server: a port, and a thread that answers at it."""

from __future__ import annotations

import ipaddress
import socket
import threading
from collections.abc import Callable
from typing import Any, Final

from millrace.dashboard.pulse import Pulse, RunQuery
from millrace.dashboard.watcher import Watcher
from millrace.model.errors import PipelineError
from millrace.store import HardState

#: Of a token that is shorter, all can be tried.
_TOKEN_MIN: Final = 16
#: Connections at once; a page takes one or two for as long as it is open. More are refused.
_AT_ONCE: Final = 64


class Dashboard:
    """Serves the page of one checkpoint, until it is closed.

    ``run.dashboard()`` and ``millrace dashboard`` make one. Use it as a context manager, or call
    :meth:`close`.

    Args:
        state: The checkpoint.
        location: Where it is, for people.
        ask: Asks its run for something.
        port: Where it is served; 0 for any port that is free.
        host: The interface. On another than loopback it takes a token.
        token: Who shows it may act on the run; without one the page only shows.
        alive: Given a generation, returns whether that run goes on; None if it is not one of this
            process.

    Attributes:
        port: The one that was taken.
        url: Where the page is.

    Raises:
        PipelineError: The port is in use, the token is too short, there is none though others can
            ask, or Starlette and uvicorn are not installed.
    """

    def __init__(
        self,
        state: HardState,
        location: str,
        ask: RunQuery,
        *,
        port: int = 0,
        host: str = "127.0.0.1",
        token: str | None = None,
        alive: Callable[[int], bool | None] = lambda _: None,
    ) -> None:
        try:
            import uvicorn

            from millrace.dashboard.application import Answers, Guard
        except ImportError as missing:
            raise PipelineError(
                f"the dashboard needs {missing.name}, which is not installed. "
                "pip install 'millrace-spark[dashboard]'"
            ) from missing
        closed = not _loopback(host)
        _check(token, host, closed=closed)
        self._socket = _taken(host, port)
        self.port: int = self._socket.getsockname()[1]
        self.url = f"http://{f'[{host}]' if ':' in host else host}:{self.port}/"
        self._watcher = Watcher(state, location, Pulse(state, ask, alive))
        self._answers = Answers(state, self._watcher, ask, acts=token is not None)
        guard = Guard(self._answers.application(), token, [host], closed=closed)
        self._server = uvicorn.Server(
            uvicorn.Config(
                guard, log_config=None, log_level="warning", access_log=False,
                lifespan="off", ws="none", limit_concurrency=_AT_ONCE, timeout_keep_alive=10,
                server_header=False, timeout_graceful_shutdown=1,
            )
        )  # fmt: skip
        self._thread = threading.Thread(
            target=self._serve, name="millrace-dashboard-server", daemon=True
        )
        self._thread.start()

    def wait(self, timeout: float | None = None) -> None:
        """Wait until it is closed, or for so many seconds."""
        self._thread.join(timeout)

    def close(self) -> None:
        """Answer no more."""
        self._watcher.close()
        self._answers.close()
        self._server.should_exit = True
        self._thread.join(5)
        self._socket.close()

    def __enter__(self) -> Dashboard:
        return self

    def __exit__(self, *raised: Any) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Dashboard at {self.url}>"

    def _serve(self) -> None:
        self._server.run(sockets=[self._socket])


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _check(token: str | None, host: str, *, closed: bool) -> None:
    if token is None and closed:
        raise PipelineError(
            f"a dashboard at {host!r} can be asked by other hosts, for the state of any key: it "
            "takes a token. Give one, or leave the host out and come through a tunnel: "
            "ssh -L 8700:localhost:8700 ..."
        )
    if token is not None and len(token) < _TOKEN_MIN:
        raise PipelineError(
            f"a dashboard's token has at least {_TOKEN_MIN} characters, this one {len(token)}. "
            'python -c "import secrets; print(secrets.token_urlsafe())" makes one.'
        )


def _taken(host: str, port: int) -> socket.socket:
    """Return a socket that has the port, so that one in use is found before anything is served."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        taken = socket.socket(family, socket.SOCK_STREAM)
    except (OSError, OverflowError) as refused:
        raise _refused(host, port, refused) from refused
    try:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind((host, port))
        taken.listen(128)
    except (OSError, OverflowError) as refused:
        taken.close()
        raise _refused(host, port, refused) from refused
    return taken


def _refused(host: str, port: int, refused: Exception) -> PipelineError:
    why = refused.strerror if isinstance(refused, OSError) and refused.strerror else refused
    return PipelineError(
        f"no dashboard can be served at {host}:{port}: {why}. Does another dashboard, or program, "
        "have the port? Give another one, or 0 for any that is free."
    )
