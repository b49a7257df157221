"""Holding streams back: what the handle of a run takes, and the mailbox, on either plane."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from math import inf
from typing import Final

from millrace.injectors.throttle import Throttle
from millrace.model.errors import PipelineError

#: How long a stream that is held back may take to stand still, before who asked is told.
EFFECT_S: Final = 60.0


class Throttled:
    """A run whose streams an operator may hold back."""

    @abstractmethod
    def pause(self, stream: str) -> None:
        """Read nothing more of an injected stream; what it has waits where it is.

        It returns when no epoch, or in real time no task, reads of it any more. Low watermarks wait
        with it. It holds as long as the run: the next one reads again.

        Args:
            stream: One that an :class:`~millrace.Injector` reads, such as ``mr.Kafka``.

        Raises:
            PipelineError: There is no such stream, or Spark reads it.
        """

    @abstractmethod
    def resume(self, stream: str) -> None:
        """Read an injected stream again, as it comes; see :meth:`pause`."""

    @abstractmethod
    def limit_rate(self, stream: str, records_per_second: float) -> None:
        """Read of an injected stream so many records a second on the average; see :meth:`pause`.

        An epoch, or in real time a turn of a task, reads what it would read otherwise, and those
        after it nothing until as much time has passed as the rate gives.
        """

    def holding_acts(self, throttle: Throttle) -> Mapping[str, Callable[[str], str]]:
        """Return what can be asked for from outside -> what does it, and says what then holds."""

        def said(stream: str) -> str:
            return f"{stream}: {throttle.said().get(stream, 'read as it comes')}"

        def pause(stream: str) -> str:
            self.pause(stream)
            return said(stream)

        def resume(stream: str) -> str:
            self.resume(stream)
            return said(stream)

        def limit(about: str) -> str:
            stream, _, rate = about.rpartition("=")
            self.limit_rate(stream, float(rate))
            return said(stream)

        return {"pause": pause, "resume": resume, "rate-limit": limit}


def check_rate(stream: str, records_per_second: float) -> None:
    """Raise if that is no rate."""
    if not 0 < records_per_second < inf:
        raise PipelineError(
            f"limit_rate({stream!r}, {records_per_second!r}): expected a number of records a "
            "second above 0. To read none of it, pause it."
        )


def cannot_hold(stream: str, why: str, those: Iterable[str]) -> PipelineError:
    """Return the error of a stream that cannot be held back, with those that can."""
    return PipelineError(
        f"stream {stream!r} {why}, so it cannot be held back. Those that can: "
        f"{', '.join(those) or 'none'}."
    )
