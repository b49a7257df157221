"""Keys: the injector of computations that are given keys, and begin by themselves.

Source: MillWheel, "Streams" (4.3): computations without inputs are fed by timers alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from millrace.injectors.advance import Advance
from millrace.injectors.injector import Injector
from millrace.model.errors import CoderError, PipelineError
from millrace.model.keys import encode_key
from millrace.model.time import MAX_TIMESTAMP, Instant

#: More keys than these are data: an offset names all of them.
LARGEST: Final = 1_000


class Keys(Injector):
    """Brings each key once, encoded, and promises the end of time.

    An offset is the list of the keys that were brought. So keys that are new in the list begin when
    the pipeline is started with it again; those that are gone have begun.

    >>> keys = Keys("Beat", ["b", "a"])
    >>> first = keys.advance("keys", None)
    >>> [key for key, _ in Keys("Beat", ["c", "a"]).read("keys", None, first.offset)]
    [b'sa', b'sb']
    >>> more = Keys("Beat", ["c", "a"]).advance("keys", first.offset)
    >>> [key for key, _ in keys.read("keys", first.offset, more.offset)]
    [b'sc']

    Args:
        computation: Whose they are, for messages.
        keys: Whatever can be keys.

    Raises:
        PipelineError: They are none, too many, or one of them cannot be a key.
    """

    schema = "key binary, at long"

    def __init__(self, computation: str, keys: Iterable[Any]) -> None:
        where = f"p.add({computation}, keys="
        if isinstance(keys, str | bytes) or not isinstance(keys, Iterable):
            raise PipelineError(f"{where}{keys!r}): expected the keys as a list, [{keys!r}].")
        try:
            self._keys = sorted({encode_key(key) for key in keys})
        except CoderError as refused:
            raise PipelineError(f"{where}...): {refused}") from None
        if not 1 <= len(self._keys) <= LARGEST:
            raise PipelineError(
                f"{where}...): these are {len(self._keys):,} keys, and expected were 1 to "
                f"{LARGEST:,}. More are data: inject them as a stream, and set the first timers in "
                "process_record."
            )

    def processes(self) -> list[str]:
        """Return the one there is."""
        return ["keys"]

    def advance(self, process: str, offset: Any) -> Advance:
        """Return all that were and are to be brought."""
        brought = {*(offset or ()), *(key.hex() for key in self._keys)}
        return Advance(sorted(brought), low_watermark=MAX_TIMESTAMP)

    def until_now(self, process: str, before: Instant | None = None) -> list[Advance]:
        """Return all that is to be brought, at whatever time it was written."""
        return [self.advance(process, None)]

    def read(self, process: str, start: Any, end: Any) -> Iterator[tuple[bytes, int]]:
        """Yield the keys that are new, and a time which means nothing."""
        before = set(start or ())
        for key in end:
            if key not in before:
                yield bytes.fromhex(key), 0

    def __repr__(self) -> str:
        return f"Keys({len(self._keys)})"
