"""Control connections: what a task and the driver's coordinator say to each other.

One TCP connection a task, to the driver, beside the packets. An incarnation is begun by Spark's
driver for tasks of its own making, and they have a key that was made for it: a task of an earlier
query cannot call. If a connection breaks, on either side, the incarnation is over.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import socket
import struct
import threading
import time
import traceback
from dataclasses import dataclass, field
from multiprocessing import AuthenticationError
from multiprocessing.connection import (
    Client,
    Connection,
    answer_challenge,
    deliver_challenge,
    wait,
)
from typing import Any, Final

from millrace.model.errors import MillraceError, UserCodeError, is_of_code, message_of
from millrace.runtime.realtime.messages import (
    TaskReady,
    ToDriver,
    ToTask,
    decode_to_driver,
    decode_to_task,
    encode,
)

#: Level and number of a task.
TaskKey = tuple[int, int]

_KEY_BYTES = 32
#: Connections that wait to be let in. All tasks of a query call within a moment.
_BACKLOG = 1024
#: After how long of silence the kernel asks whether the other side is there, and how often. A host
#: that is gone closes no connection: it is missed after five seconds. A process that is stopped
#: is not, as its kernel answers.
_SILENCE_S, _ASKED_S, _ASKED = 2, 1, 3
#: A caller has so long to prove that it knows the key. A task needs milliseconds.
_PROOF_S: Final = 5.0
#: So many prove it at once; the rest wait in the kernel's backlog.
_AT_ONCE: Final = 64
#: How often the log says that strangers call.
_LOGGED_S: Final = 60.0
#: How often the listener looks at the clock.
_LOOK_S: Final = 0.2
#: Of each message; the second where the first is -1, in messages of 2 GiB and more.
_LENGTH, _LONG_LENGTH = struct.Struct("!i"), struct.Struct("!Q")
#: What is read of a connection at a time.
_RECEIVED_BYTES: Final = 1 << 16

_log = logging.getLogger("millrace")


class ConnectionBroken(MillraceError):
    """A task and the driver have lost each other."""


@dataclass(frozen=True)
class Address:
    """Where tasks call, and what they prove themselves with.

    Attributes:
        host: Of the driver, as the workers know it.
        port: There.
        key: Of one launch of the query.
    """

    host: str
    port: int
    key: bytes = field(repr=False)


class ControlConnection:
    """A task's end of the connection.

    Raises:
        ConnectionBroken: The driver cannot be reached, or does not know the key.
    """

    def __init__(self, address: Address) -> None:
        self._where = f"{address.host}:{address.port}"
        try:
            self._connection = Client((address.host, address.port), authkey=address.key)
        except AuthenticationError:
            raise ConnectionBroken(
                f"the driver at {self._where} goes on without this task: it has started the query "
                "again since."
            ) from None
        except (OSError, EOFError) as error:
            raise ConnectionBroken(
                f"on host {socket.gethostname()}: the driver cannot be reached at {self._where}: "
                f"{error}. Tasks of the real-time plane call the program that has the run. Is that "
                "a name that the workers know (spark.driver.host, or start(host=)), and may they "
                "connect to any port there?"
            ) from error
        _tune(self._connection)
        self._speaks = threading.Lock()

    def say(self, message: ToDriver) -> None:
        """Send a message; any thread.

        Raises:
            ConnectionBroken: The driver is gone.
        """
        try:
            with self._speaks:
                self._connection.send_bytes(encode(message))
        except OSError as error:
            raise self._broken(error) from error

    def hear(self) -> ToTask:
        """Wait for a message; another thread may speak meanwhile.

        Raises:
            ConnectionBroken: The driver is gone, or has hung up.
        """
        try:
            message: ToTask = decode_to_task(self._connection.recv_bytes())
        except (OSError, EOFError) as error:
            raise self._broken(error) from error
        return message

    def close(self) -> None:
        """Hang up."""
        self._connection.close()

    def _broken(self, error: BaseException) -> ConnectionBroken:
        return ConnectionBroken(
            f"the driver at {self._where} has hung up ({type(error).__name__}): the incarnation is "
            "over. What was committed is safe; the driver begins another, if it is alive."
        )


class Switchboard:
    """The driver's end of all connections.

    Args:
        host: Of the driver, as the workers know it.
        bound: What to listen on; by default the host itself.
        proof_s: How long a caller has to prove that it knows the key.

    Attributes:
        stale: Whether what :meth:`listen` returned last was said before the last
            :meth:`hang_up`, by tasks of a query that is over.
        strangers: How many connections were closed because they did not prove the key in time.
    """

    def __init__(self, host: str, bound: str | None = None, *, proof_s: float = _PROOF_S) -> None:
        self.strangers = 0
        self._proof_s = proof_s
        self._logged_s: float | None = None
        self._host = host
        self._bound = bound if bound is not None else host
        self._lock = threading.Lock()
        self._connections: dict[_DriversEnd, TaskKey | None] = {}
        self._at: dict[TaskKey, _DriversEnd] = {}
        # Those of queries that are over: what they still have in their buffers is not heard.
        self._over: set[_DriversEnd] = set()
        self._query = self._listening_to = 0
        self._bell, self._rung = socket.socketpair()
        self._listener: socket.socket | None = None

    def open(self) -> Address:
        """Let the tasks of a query in, and no others any more; return where they are to call."""
        self.hang_up()
        key = os.urandom(_KEY_BYTES)
        listener = socket.create_server((self._bound, 0), backlog=_BACKLOG)
        port: int = listener.getsockname()[1]
        listener.settimeout(_LOOK_S)
        self._listener = listener
        threading.Thread(
            target=self._accept, args=(listener, key), name="millrace-connections", daemon=True
        ).start()
        return Address(self._host, port, key)

    def listen(self, timeout_s: float) -> list[tuple[TaskKey, ToDriver | None]]:
        """Return what tasks have said, in order; None of a task whose connection has broken.

        Args:
            timeout_s: How long to wait for the first.
        """
        with self._lock:
            connections = list(self._connections)
            self._listening_to = self._query
        for connection in connections:
            connection.send()
        waited: list[Any] = [self._rung, *connections]
        received: list[tuple[TaskKey, ToDriver | None]] = []
        for ready in wait(waited, timeout_s):
            if ready is self._rung:
                self._rung.recv(1024)
            elif isinstance(ready, _DriversEnd):
                received += self._hear(ready)
        return received

    @property
    def stale(self) -> bool:
        """See the class."""
        return self._listening_to != self._query

    def tell(self, where: TaskKey, message: ToTask) -> None:
        """Send a message to a task; nothing happens if it is gone, which :meth:`listen` says.

        What a task does not take at once is kept, and sent when somebody listens: the driver waits
        for no task, which may be stopped.
        """
        connection = self._at.get(where)
        if connection is not None:
            connection.send(encode(message))

    def wake(self) -> None:
        """Let :meth:`listen` return."""
        with contextlib.suppress(OSError):
            self._bell.send(b"!")

    def hang_up(self) -> None:
        """End all connections, and let nobody in any more; who listens goes on listening."""
        listener, self._listener = self._listener, None
        if listener is not None:
            # Its thread closes it: a descriptor that is closed here could be another's by then.
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
        with self._lock:
            self._at.clear()
            self._over.update(self._connections)
            self._query += 1
            for connection in self._connections:
                connection.shut()

    def close(self) -> None:
        """Hang up for good; nobody listens any more."""
        self.hang_up()
        with self._lock:
            connections, self._connections = list(self._connections), {}
        for connection in connections:
            connection.close()
        self._bell.close()
        self._rung.close()

    def _accept(self, listener: socket.socket, key: bytes) -> None:
        """Accept connections until this listener is given up; each proves the key in a thread.

        Nothing that a caller sends, or does not send, is waited for here.
        """
        callers: dict[threading.Thread, tuple[Connection[Any, Any], float]] = {}
        with listener:
            while self._listener is listener:
                now_s = time.monotonic()
                callers = {
                    caller: connection
                    for caller, connection in callers.items()
                    if caller.is_alive()
                }
                for connection, until_s in callers.values():
                    if now_s >= until_s:
                        _shut(connection)
                if len(callers) >= _AT_ONCE:
                    next(iter(callers)).join(_LOOK_S)
                    continue
                try:
                    accepted, _ = listener.accept()
                    accepted.setblocking(True)
                    connection = Connection(accepted.detach())
                    caller = threading.Thread(
                        target=self._let_in,
                        args=(listener, connection, key),
                        name="millrace-connection-proof",
                        daemon=True,
                    )
                    caller.start()
                except TimeoutError:
                    continue
                except (OSError, RuntimeError):
                    # The caller has gone, or this process has no descriptor or thread to spare.
                    time.sleep(_LOOK_S)
                    continue
                callers[caller] = connection, now_s + self._proof_s
            for connection, _ in callers.values():
                _shut(connection)

    def _let_in(
        self, listener: socket.socket, connection: Connection[Any, Any], key: bytes
    ) -> None:
        """Let a caller in if it proves the key: bytes are compared, and nothing is unpickled."""
        try:
            _tune(connection)
            deliver_challenge(connection, key)
            answer_challenge(connection, key)
        except Exception as error:  # noqa: BLE001  strangers send anything
            connection.close()
            if self._listener is listener:
                self._count_stranger(error)
            return
        with self._lock:
            if self._listener is not listener:
                connection.close()
                return
            self._connections[_DriversEnd(connection)] = None
        self.wake()

    def _count_stranger(self, error: Exception) -> None:
        now_s = time.monotonic()
        with self._lock:
            self.strangers += 1
            if self._logged_s is not None and now_s < self._logged_s + _LOGGED_S:
                return
            self._logged_s = now_s
        _log.warning(
            "a connection to the driver at %s did not prove the key of the run's tasks (%s), and "
            "was closed; %d so far. The run goes on. Does a scanner, or a task of an earlier "
            "attempt, call this port?",
            self._host,
            type(error).__name__,
            self.strangers,
        )

    def _hear(self, connection: _DriversEnd) -> list[tuple[TaskKey, ToDriver | None]]:
        try:
            messages = [decode_to_driver(data) for data in connection.receive()]
        except (OSError, EOFError):
            return self._lost(connection)
        received: list[tuple[TaskKey, ToDriver | None]] = []
        for message in messages:
            where = message.level, message.task
            with self._lock:
                if connection in self._over:
                    return []
                if isinstance(message, TaskReady) and connection in self._connections:
                    self._connections[connection] = where
                    self._at[where] = connection
                elif self._at.get(where) is not connection:
                    continue  # another task has its place
            received.append((where, message))
        return received

    def _lost(self, connection: _DriversEnd) -> list[tuple[TaskKey, ToDriver | None]]:
        connection.close()
        with self._lock:
            self._over.discard(connection)
            where = self._connections.pop(connection, None)
            if where is None or self._at.get(where) is not connection:
                return []
            del self._at[where]
        return [(where, None)]


class _DriversEnd:
    """The driver's end of one connection; it waits for nothing that the task does or does not do.

    A task that is stopped, or whose network is gone, reads nothing, and may have sent half a
    message. One thread listens to all tasks: it would wait for that one, and nobody would notice
    that it hangs.

    Args:
        connection: To a task that has proved the key; it is taken over.
    """

    def __init__(self, connection: Connection[Any, Any]) -> None:
        self._socket = socket.socket(fileno=os.dup(connection.fileno()))
        self._socket.setblocking(False)
        connection.close()
        self._received = bytearray()
        self._unsent = bytearray()
        self._sends = threading.Lock()

    def fileno(self) -> int:
        return self._socket.fileno()

    def receive(self) -> list[bytes]:
        """Return the messages that are here as a whole.

        Raises:
            OSError: The connection has broken.
            EOFError: The task has hung up, and all that it said has been returned.
        """
        with contextlib.suppress(BlockingIOError):
            while some := self._socket.recv(_RECEIVED_BYTES):
                self._received += some
                if len(some) < _RECEIVED_BYTES:
                    break
            else:
                if not (messages := self._whole()):
                    raise EOFError
                return messages
        return self._whole()

    def _whole(self) -> list[bytes]:
        """Take the whole messages out of what was received; they are framed as by a Connection."""
        messages, at, received = [], 0, self._received
        while len(received) >= at + _LENGTH.size:
            begin = at + _LENGTH.size
            (length,) = _LENGTH.unpack_from(received, at)
            if length == -1:
                begin += _LONG_LENGTH.size
                if len(received) < begin:
                    break
                (length,) = _LONG_LENGTH.unpack_from(received, at + _LENGTH.size)
            if len(received) < begin + length:
                break
            messages.append(bytes(received[begin : begin + length]))
            at = begin + length
        del received[:at]
        return messages

    def send(self, message: bytes | None = None) -> None:
        """Send a message as far as the task takes it, after what it had not taken before."""
        with self._sends:
            if message is not None:
                self._unsent += _LENGTH.pack(len(message))
                self._unsent += message
            with contextlib.suppress(OSError):  # who listens notices if it is gone
                while self._unsent:
                    del self._unsent[: self._socket.send(self._unsent)]

    def shut(self) -> None:
        """End the connection; who listens closes it."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._socket.close()


class InTask(Exception):
    """What a task's error looked like where it was raised; the cause of the error in the driver."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


def packed_error(error: BaseException) -> bytes:
    """Return an exception as bytes; where it is read, its cause says its traceback as text.

    >>> try:
    ...     raise ValueError("no")
    ... except ValueError as raised:
    ...     found = pickle.loads(packed_error(raised))
    >>> found, "in <module>" in str(found.__cause__)
    (ValueError('no'), True)
    """
    text = "".join(traceback.format_exception(error))
    try:
        packed = pickle.dumps(_Raised(error, text))
        pickle.loads(packed)
    except Exception:  # noqa: BLE001  what user code raises may refuse either in any way
        kind = UserCodeError if is_of_code(error) else MillraceError
        said = f"{type(error).__name__}: {message_of(error)}"
        packed = pickle.dumps(_Raised(kind(said), text))
    return packed


class _Raised:
    def __init__(self, error: BaseException, text: str) -> None:
        self._error = error
        self._text = text

    def __reduce__(self) -> tuple[Any, ...]:
        return _with_cause, (self._error, self._text)


def _with_cause(error: BaseException, text: str) -> BaseException:
    error.__cause__ = InTask(text)
    return error


def _shut(connection: Connection[Any, Any]) -> None:
    """End a connection that another thread reads or writes; that thread closes it."""
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(connection.fileno())) as ended:
        ended.shutdown(socket.SHUT_RDWR)


def _tune(connection: Connection[Any, Any]) -> None:
    """Let small messages leave at once, and let a host that is gone be noticed."""
    with socket.socket(fileno=os.dup(connection.fileno())) as tuned:
        tuned.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        tuned.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in (
            ("TCP_KEEPIDLE", _SILENCE_S),
            ("TCP_KEEPINTVL", _ASKED_S),
            ("TCP_KEEPCNT", _ASKED),
            # While something is on its way the kernel does not ask: it would send that again and
            # again, for a quarter of an hour.
            ("TCP_USER_TIMEOUT", 1000 * (_SILENCE_S + _ASKED_S * _ASKED)),
        ):
            if hasattr(socket, name):  # not on every system
                tuned.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
