"""The injector of signals that somebody asks for, by ``run.fire()`` or ``millrace fire``.

A call is a message in the checkpoint's mailbox. An injector takes it from there into an offset, and
an offset is durable before it is read: so a call is read in one epoch, or one turn, and what is
made again reads the same.

Source: Dataflow patent, "data injection requests".

And what asks sources beside a run, now and then, how much waits in them.
"""

from __future__ import annotations

import copy
import logging
import threading
import time
import uuid
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec

from millrace.compile.topology import Topology
from millrace.dataflow.operators import operator_of
from millrace.dataflow.triggers.signal import names_in, streams_of
from millrace.injectors.advance import Advance, Advances, Backlog
from millrace.injectors.injector import Injector
from millrace.injectors.offsets import SourceOffset, SourceOffsets
from millrace.model.computation import Computation
from millrace.model.errors import StoreError
from millrace.model.time import MAX_TIMESTAMP, Instant
from millrace.store import Mailbox, MailboxWatch, is_object_store, local_path, mailbox_at

_log = logging.getLogger("millrace")

#: How often a source is asked; one that takes long, so rarely that it is a hundredth of the time.
_EVERY_S: Final = 5.0
_SHARE: Final = 0.01


class BacklogProbe:
    """Asks in a thread of its own, so that a source that does not answer holds up nobody.

    Each source has its thread: one that hangs is not waited for by others either. Where no source
    can tell there is none.

    Args:
        sources: Injected stream -> returns what waits in its source; None if that cannot be told.
    """

    def __init__(self, sources: Mapping[str, Callable[[], Backlog | None]]) -> None:
        self._sources = dict(sources)
        self._found: dict[str, Backlog] = {}
        self._closed = threading.Event()

    def add(self, sources: Mapping[str, Callable[[], Backlog | None]]) -> None:
        """Ask these, too; before it is started."""
        self._sources |= sources

    def start(self) -> None:
        """Begin to ask."""
        for stream in self._sources:
            threading.Thread(
                target=self._follow, args=(stream,), name=f"millrace-backlog-{stream}", daemon=True
            ).start()

    def close(self) -> None:
        """Ask no more."""
        self._closed.set()

    def now(self) -> dict[str, Backlog]:
        """Return injected stream -> its source's latest known backlog; unknown ones are absent."""
        return dict(self._found)

    def ask(self, stream: str) -> None:
        """Ask a source once."""
        try:
            found = self._sources[stream]()
        except Exception as error:  # noqa: BLE001  whoever reads the source says what is wrong
            _log.debug("stream %r does not say how much waits: %s", stream, error)
            found = None
        # Another thread may look: a dict is replaced, and not changed.
        others = {name: one for name, one in self._found.items() if name != stream}
        self._found = others if found is None else others | {stream: found}

    def _follow(self, stream: str) -> None:
        while not self._closed.is_set():
            began = time.monotonic()
            self.ask(stream)
            self._closed.wait(max(_EVERY_S, (time.monotonic() - began) / _SHARE))


def asking(
    topology: Topology, offsets: Callable[[], SourceOffsets]
) -> dict[str, Callable[[], Backlog | None]]:
    """Return how injectors are asked, of those that say how much waits.

    Args:
        topology: The pipeline.
        offsets: Returns how far their processes were read.
    """

    def asks(stream: str, injector: Injector) -> Callable[[], Backlog | None]:
        # Another thread reads it, maybe now: connections are its own, as in a worker.
        injector_copy = copy.copy(injector)
        return lambda: backlog_of(injector_copy, offsets().get(stream, {}))

    sources = {one.name: one.injection and one.injection.source for one in topology.injected()}
    return {
        stream: asks(stream, source)
        for stream, source in sources.items()
        if isinstance(source, Injector) and type(source).backlog is not Injector.backlog
    }


def backlog_of(injector: Injector, offsets: Mapping[str, SourceOffset]) -> Backlog | None:
    """Return what waits in all processes of an injector; None if one cannot tell.

    Args:
        injector: Is asked for its processes, and what waits in each.
        offsets: Process -> where it stands; one that is not there was not read at all.
    """
    found = []
    for process in injector.processes():
        advances = Advances.of(offsets.get(process, SourceOffset(0)).offset)
        backlog = injector.backlog(process, advances.start)
        if backlog is None:
            return None
        if backlog.records is not None:
            backlog = backlog._replace(records=max(0, backlog.records - advances.rows))
        found.append(backlog)
    return Backlog.together(found) if found else None


#: The one process, by which a completed epoch knows how far calls were read.
_PROCESS: Final = "millrace-calls"
#: Calls that one advance takes: an offset names the keys of all of them.
_MOST: Final = 100
#: How often is asked whether somebody has rung, where the mailbox is in an object store and that is
#: a request. A directory is listed whenever the engine asks: that costs microseconds.
_FAR_S: Final = 2.0


class _Call(msgspec.Struct):
    """What somebody asks for.

    Attributes:
        keys: To fire, encoded, in hexadecimal.
        by: Unlike that of any other call: an object store tells two writers of a name apart by
            what they wrote.
    """

    keys: list[str]
    by: str


_encode = msgspec.json.Encoder().encode


class SignalInjector(Injector):
    """Brings the keys that were called for, encoded; and promises the end of time.

    An offset is the number of the last call, and the keys of those since the offset before. Of the
    messages the last stays in the mailbox, so that the next has a higher number.

    >>> import tempfile
    >>> from millrace.store import LocalHardState
    >>> folder = tempfile.mkdtemp()
    >>> mailbox = LocalHardState.create_or_open(folder, pipeline="p").mailbox
    >>> put_call(mailbox, "look.calls", [b"sa", b"sb"])
    >>> calls = SignalInjector("look.calls")
    >>> calls.bind(folder)
    >>> first = calls.advance("calls", None)
    >>> [key for key, _ in calls.read("calls", None, first.offset)]
    [b'sa', b'sb']
    >>> calls.advance("calls", first.offset).offset == first.offset
    True

    Args:
        stream: That it is injected as.
    """

    schema = "key binary, at long"

    def __init__(self, stream: str) -> None:
        self._stream = stream
        self._location = ""
        self._due_s = 0.0
        self._mailbox: Mailbox | None = None
        self._watch: MailboxWatch | None = None
        self._found = 0

    def bind(self, location: str) -> None:
        """Take calls from the checkpoint at a path or URL from now on; without one there are none.

        Before it is sent to another process.
        """
        self._location = location if is_object_store(location) else str(local_path(location))
        self._mailbox, self._watch, self._due_s = None, None, 0.0

    def processes(self) -> list[str]:
        """Return the one there is."""
        return [_PROCESS]

    def advance(self, process: str, offset: Any) -> Advance:
        """Return the calls since, if it is time to look again; or that there are none."""
        offset = [0, []] if offset is None else offset
        now_s = time.monotonic()
        if self._location and now_s >= self._due_s:
            try:
                offset = self._looked(offset)
            except (StoreError, OSError) as error:
                _log.warning("calls of %r cannot be read, and wait: %s", self._stream, error)
            if self._mailbox is None or self._mailbox.far:
                self._due_s = now_s + _FAR_S
        return Advance(offset, low_watermark=MAX_TIMESTAMP)

    def until_now(self, process: str, before: Instant | None = None) -> list[Advance]:
        """Return that there are none: nobody can ask a batch for anything."""
        return [Advance([0, []], low_watermark=MAX_TIMESTAMP)]

    def read(self, process: str, start: Any, end: Any) -> Iterator[tuple[bytes, int]]:
        """Yield the keys, and a time which means nothing."""
        for key in end[1]:
            yield bytes.fromhex(key), 0

    def _looked(self, offset: list[Any]) -> list[Any]:
        if self._mailbox is None:
            self._mailbox = mailbox_at(self._location)
            self._watch = MailboxWatch(self._mailbox) if self._mailbox.far else None
        # What was found has perhaps not been taken: then it is asked for again.
        if self._watch is not None and offset[0] >= self._found and not self._watch.due():
            return offset
        numbers = calls_in(self._mailbox, self._stream)
        last, keys = offset[0], list[str]()
        # What an offset names is durable when another is asked for.
        old = [_name(self._stream, number) for number in numbers if number < last]
        if old:
            self._mailbox.remove(old)
        found = last
        for number in [number for number in numbers if number > last][:_MOST]:
            data = self._mailbox.read(_name(self._stream, number))
            if data is None:
                break
            keys += msgspec.json.decode(data, type=_Call).keys
            found = number
        self._found = found
        if self._watch is not None and (not numbers or found >= numbers[-1]):
            self._watch.looked()
        return [found, keys] if found > last else offset

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_mailbox": None, "_watch": None, "_due_s": 0.0}

    def __repr__(self) -> str:
        return f"SignalInjector({self._stream!r})"


def streams_called(computation: type[Computation] | Computation) -> list[str]:
    """Return the streams of the calls that the trigger of a grouping waits for."""
    how = None if isinstance(computation, type) else operator_of(computation).windowing
    names = () if how is None else names_in(how.trigger)
    return [stream for name in names for stream in streams_of(name)]


def put_call(mailbox: Mailbox, stream: str, keys: Iterable[bytes]) -> None:
    """Call for keys, encoded; it is durable when this returns.

    Args:
        mailbox: Of the run's checkpoint.
        stream: That the calls are injected as.
        keys: To fire; one that is empty where the stream is for every key.
    """
    data = _encode(_Call([key.hex() for key in keys], uuid.uuid4().hex))
    number = max(calls_in(mailbox, stream), default=0) + 1
    while not mailbox.put(_name(stream, number), data):
        number += 1
    try:
        mailbox.ring()
    except StoreError as error:
        _log.info("a call for %r is looked for within a minute: %s", stream, error)


def calls_in(mailbox: Mailbox, stream: str) -> list[int]:
    """Return the numbers of the calls that are in a mailbox, ascending.

    Args:
        mailbox: Of the run's checkpoint.
        stream: That the calls are injected as.
    """
    prefix = _prefix(stream)
    return [int(name.removeprefix(prefix)) for name in mailbox.names() if name.startswith(prefix)]


def reserve_numbers(mailbox: Mailbox, source_offsets: SourceOffsets) -> None:
    """Give a copy's mailbox the last call of each stream, which asks for nothing any more.

    So the numbers of new calls go on where the copy's offsets stand.

    Args:
        mailbox: Of the copy; it has no calls.
        source_offsets: As far as injectors have read by the epoch that the copy is of.
    """
    for stream, advances in _streams_read(source_offsets):
        number, _keys = advances.last or [0, []]
        _silence(mailbox, stream, number)


def forget_calls(mailbox: Mailbox, source_offsets: SourceOffsets) -> None:
    """Let a checkpoint that goes back to an earlier epoch read no call again.

    What was not read before is read then.

    Args:
        mailbox: Of the checkpoint.
        source_offsets: As far as injectors have read before it goes back.
    """
    for stream, advances in _streams_read(source_offsets):
        number, _keys = advances.start or [0, []]
        _silence(mailbox, stream, number)
        old = [other for other in calls_in(mailbox, stream) if other < number]
        mailbox.remove(_name(stream, other) for other in old)


def _silence(mailbox: Mailbox, stream: str, number: int) -> None:
    """Keep the number of the last call that was read, without what it asked for."""
    if number:
        mailbox.replace(_name(stream, number), _encode(_Call([], "")))


def _streams_read(source_offsets: SourceOffsets) -> Iterator[tuple[str, Advances]]:
    """Yield the streams of calls, and how far each was read."""
    for stream, offsets in source_offsets.items():
        if _PROCESS in offsets:
            yield stream, Advances.of(offsets[_PROCESS].offset)


def _prefix(stream: str) -> str:
    # Letters sort behind the digits that requests begin with, of which old ones are removed.
    return f"call-{zlib.crc32(stream.encode()):08x}-"


def _name(stream: str, number: int) -> str:
    return f"{_prefix(stream)}{number:012d}"
