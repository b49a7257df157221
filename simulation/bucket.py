"""The simulated object store: what Amazon S3 and its like promise of a bucket, and nothing more.

An object is there whole or not, and everybody sees at once what was put. What is not promised is
the answer: a request may fail before it took effect, or after, or take effect while its client
tries again. Every request is a step of the caller, before which it may be stopped, killed or
refused.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from obstore import exceptions

#: Asks for leave to make a request; returns 0 to go on, or one of those below.
Ask = Callable[[str, str], int]

#: To take effect, and not to answer.
LOST_ANSWER = -1
#: To take effect later than the client hears that there is no answer.
DELAYED = -3
#: For how many more requests of others a delayed one is under way.
_UNDER_WAY = 12


class SimulatedBucket:
    """What the real code takes for obstore's client.

    Args:
        ask: Called before each request.

    Attributes:
        removed: Name of an object that was deleted -> what it held, the first time.

    >>> bucket = SimulatedBucket(lambda request, name: 0)
    >>> bucket.put("a", b"1")
    >>> bytes(bucket.get("a").bytes()), [entry["path"] for page in bucket.list() for entry in page]
    (b'1', ['a'])
    """

    def __init__(self, ask: Ask) -> None:
        self.removed: dict[str, bytes] = {}
        self._ask = ask
        self._objects: dict[str, bytes] = {}
        self._late: list[tuple[int, Callable[[], object]]] = []
        self._requests = 0

    def put(
        self, path: str, file: bytes | Iterable[bytes], *, mode: str = "overwrite", **_: Any
    ) -> None:
        """As :func:`obstore.put`: whole, and with ``mode="create"`` only if the name is free."""
        data = file if isinstance(file, bytes) else b"".join(file)

        def effect() -> bool:
            if mode == "create" and path in self._objects:
                return False
            self._objects[path] = data
            return True

        if not self._request("put", path, effect):
            raise exceptions.AlreadyExistsError(f"status code: 412 Precondition Failed: {path}")

    def get(self, path: str) -> _Answer:
        """As :func:`obstore.get`."""
        self._request("get", path)
        if path not in self._objects:
            raise FileNotFoundError(path)
        return _Answer(self._objects[path])

    def get_range(self, path: str, *, start: int, end: int) -> builtins.bytes:
        """As :func:`obstore.get_range`."""
        data = self.get(path).bytes()
        if start >= len(data):
            raise exceptions.GenericError("status code: 416 <Code>InvalidRange</Code>")
        return data[start:end]

    def head(self, path: str) -> dict[str, Any]:
        """As :func:`obstore.head`, which says more of an object."""
        self._request("head", path)
        if path not in self._objects:
            raise FileNotFoundError(path)
        return {"size": len(self._objects[path])}

    def list(self, prefix: str | None = None, **_: Any) -> Iterator[Sequence[dict[str, Any]]]:
        """As :func:`obstore.list`, in one page: it is consistent."""
        self._request("list", prefix or "")
        under = f"{prefix}/" if prefix else ""
        names = [name for name in self._objects if name.startswith(under)]
        yield [{"path": name, "size": len(self._objects[name])} for name in names]

    def delete(self, paths: str) -> None:
        """As :func:`obstore.delete` of one object; one that is not there is no error."""

        def effect() -> bool:
            data = self._objects.pop(paths, None)
            if data is not None:
                self.removed.setdefault(paths, data)
            return True

        self._request("delete", paths, effect)

    def settle(self) -> None:
        """Let every delayed request take effect."""
        late, self._late = self._late, []
        for _, effect in late:
            effect()

    def _request(self, request: str, name: str, effect: Callable[[], bool] = bool) -> bool:
        refused = self._ask(request, name)
        self._requests += 1
        due = [late for at, late in self._late if at <= self._requests]
        self._late = [(at, late) for at, late in self._late if at > self._requests]
        for late in due:
            late()
        if refused == LOST_ANSWER:
            effect()
        elif refused == DELAYED:
            self._late.append((self._requests + _UNDER_WAY, effect))
        if refused in (LOST_ANSWER, DELAYED):
            raise exceptions.GenericError("operation timed out: kind: Timeout, source: TimedOut")
        if refused:
            raise exceptions.GenericError("status code: 503 <Code>SlowDown</Code>")
        return effect()


class _Answer:
    def __init__(self, data: builtins.bytes) -> None:
        self._data = data

    def bytes(self) -> builtins.bytes:
        """Return the content."""
        return self._data

    def stream(self, min_chunk_size: int) -> Iterator[builtins.bytes]:
        """Yield the content in chunks."""
        for start in range(0, len(self._data), min_chunk_size):
            yield self._data[start : start + min_chunk_size]
