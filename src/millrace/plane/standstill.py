"""Whether the thread that runs a task is at a standstill: seen from outside, at no cost to it.

Another thread looks at its stack, now and then. Python makes one frame object of a call, so where
Millrace's own frames, and the first of other code, are the same objects at the same instructions as
before, nothing was done in between: the thread is in one call that has not returned. Code that is
not Millrace's may loop there as it likes.

What lets no other thread run cannot be looked at: then nobody answers.

Source: Streaming Engine, 5 ("user code ... is visible").
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import CodeType, FrameType
from typing import Final, NamedTuple

from millrace.plane.probe import Probe
from millrace.plane.stuck import call_in, given_to

_OURS: Final = f"{Path(__file__).parents[1]}/"
#: It waits for a child, whose calls have a limit of their own.
_PROBING: Final = Probe._died.__code__


class Sight(NamedTuple):
    """What was seen of a thread.

    Attributes:
        moves: How often it was seen to have moved. As long as this is the same, it has not.
        given: The record or timer of the user's hook that it is in, in words; "" if in none.
        place: The function and line where it is: of code that is not Millrace's, if it is in any.
    """

    moves: int
    given: str
    place: str


class Standstill:
    """Looks at one thread.

    Args:
        thread: Its identity.
        work: The code within which it is at work.
        waits: Code in which it waits for work.
        frames: Returns thread -> the frame that it is in.
    """

    def __init__(
        self,
        thread: int,
        work: CodeType,
        waits: frozenset[CodeType],
        frames: Callable[[], Mapping[int, FrameType]] = sys._current_frames,
    ) -> None:
        self._thread = thread
        self._work = work
        self._waits = waits
        self._frames = frames
        self._seen: list[tuple[FrameType, int]] = []
        self._moves = 0

    def look(self) -> Sight | None:
        """Look at the thread; return None if it waits for work, or for who takes what it made."""
        leaf = self._frames().get(self._thread)
        stack = list[FrameType]()
        frame = leaf
        while frame is not None and frame.f_code is not self._work:
            stack.append(frame)
            frame = frame.f_back
        if frame is None or leaf is None or any(one.f_code in self._waits for one in stack):
            self.forget()
            return None
        stack.append(frame)
        seen, probing = list[tuple[FrameType, int]](), False
        place = leaf
        for one in reversed(stack):
            probing |= one.f_code is _PROBING
            if not one.f_code.co_filename.startswith(_OURS):
                seen.append((one, -1))
                place = one
                break
            seen.append((one, one.f_lasti))
        if probing or not _same(seen, self._seen):
            self._moves += 1
        self._seen = seen
        call = call_in(leaf)
        return Sight(
            self._moves,
            "" if call is None else given_to(call),
            f"{place.f_code.co_name} ({place.f_code.co_filename}:{place.f_lineno})",
        )

    def forget(self) -> None:
        """Keep nothing of what was seen, nor what calls were given."""
        self._seen = []


def _same(seen: list[tuple[FrameType, int]], before: list[tuple[FrameType, int]]) -> bool:
    return len(seen) == len(before) and all(
        one is other and at == then for (one, at), (other, then) in zip(seen, before, strict=True)
    )
