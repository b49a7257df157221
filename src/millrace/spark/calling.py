"""Calling triggers: what the handle of a run takes, and the mailbox, on either plane."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from millrace.compile.topology import Topology
from millrace.dataflow.triggers.call import called
from millrace.injectors.calls import Calls, put_call
from millrace.model.keys import decode_key
from millrace.store import Mailbox


class Called(msgspec.Struct, frozen=True):
    """What ``millrace fire`` asks for.

    Attributes:
        name: Of the triggers.
        keys: Encoded, as hexadecimal digits; none: all.
    """

    name: str
    keys: list[str]


class Calling:
    """A run whose triggers somebody may call.

    Attributes:
        _topology: Of the pipeline.
        _mailbox: Of the checkpoint.
    """

    _topology: Topology
    _mailbox: Mailbox

    def fire(self, name: str, *keys: Any) -> None:
        """Have the triggers ``mr.OnCall(name)`` fire, for some keys or for all.

        It is durable when this returns, and is taken once, soon: by the next epoch or turn; or,
        where the run ends before, by the next run. What the run had read by then is in the panes.

        Args:
            name: Of the triggers.
            keys: Whose windows fire; without any those of all keys.

        Raises:
            PipelineError: No trigger is called so.
            CoderError: A key is none.
            StoreError: The checkpoint cannot be written.
        """
        self._survivor()._fire(name, keys)

    def _survivor(self) -> Calling:
        """Return the run that has taken over from this one; itself if none has."""
        return self

    def _fire(self, name: str, keys: Iterable[Any]) -> None:
        put_call(self._mailbox, *called(name, keys, self._topology.streams))

    def calling_acts(self) -> Mapping[str, Callable[[str], str]]:
        """Return what can be asked for from outside -> what does it, and says what it did."""

        def fire(about: str) -> str:
            asked = msgspec.json.decode(about, type=Called)
            self._fire(asked.name, [decode_key(bytes.fromhex(key)) for key in asked.keys])
            return f"{asked.name} was called"

        return {"fire": fire}


def bind_calls(topology: Topology, checkpoint: str) -> None:
    """Have the injectors of calls take those of a checkpoint, before they are sent to workers."""
    for spec in topology.injected():
        if spec.injection is not None and isinstance(spec.injection.source, Calls):
            spec.injection.source.bind(checkpoint)
