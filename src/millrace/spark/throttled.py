"""Holding streams back: what the handle of a run takes, and the mailbox, on either plane."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from millrace.injectors.throttle import Throttle
from millrace.model.errors import PipelineError


class Throttled:
    """A run whose streams an operator may hold back. In real time that is refused."""

    def pause(self, stream: str) -> None:
        """Read nothing more of an injected stream; what it has waits where it is.

        It returns when no epoch reads of it any more. Low watermarks wait with it. It holds as long
        as the run: the next one reads again.

        Args:
            stream: One that an :class:`~millrace.Injector` reads, such as ``mr.Kafka``.

        Raises:
            PipelineError: There is no such stream, or Spark reads it; or the run is in real time.
        """
        raise PipelineError(_REFUSED.format(stream=stream))

    def resume(self, stream: str) -> None:
        """Read an injected stream again, as it comes; see :meth:`pause`."""
        raise PipelineError(_REFUSED.format(stream=stream))

    def limit_rate(self, stream: str, records_per_second: float) -> None:
        """Read of an injected stream so many records a second on the average; see :meth:`pause`.

        An epoch reads what it would read otherwise, and those after it nothing until as much time
        has passed as the rate gives.
        """
        raise PipelineError(_REFUSED.format(stream=stream))

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


_REFUSED = (
    "stream {stream!r} cannot be held back in real time. Stop the run, or let one on epochs take "
    "over: run.update(pipeline, realtime=False)."
)
