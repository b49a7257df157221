"""Process: what is known of one process, or source partition, of an injector.

Source: MillWheel, "Injector and Low Watermark API" (5.2): an injector can be distributed across
multiple processes; the aggregate low watermark of those processes is the injector low watermark.
"""

from __future__ import annotations

import msgspec

from millrace.model.time import MIN_TIMESTAMP


class Process(msgspec.Struct, array_like=True, frozen=True):
    """One process of an injector, as far as it was heard of. All in microseconds.

    Attributes:
        newest_us: Latest record timestamp read from it; MIN_TIMESTAMP if none was.
        process_watermark_us: Latest low watermark that it published itself; MIN_TIMESTAMP if it
            does not.
        heard_us: Wall clock when it last delivered anything, or else was first expected.
    """

    newest_us: int = MIN_TIMESTAMP
    process_watermark_us: int = MIN_TIMESTAMP
    heard_us: int = MIN_TIMESTAMP

    def is_idle(self, idle_us: int | None, wall_time_us: int, last_epoch_us: int) -> bool:
        """Return whether the process has been silent for its time-out, and can be left out.

        One that the last epoch heard is not idle yet, however long that epoch took: what it has
        read counts in one publication first.

        Args:
            idle_us: The time-out; None: never.
            wall_time_us: What time it is.
            last_epoch_us: Clock of the last epoch that has completed.

        >>> [Process(heard_us=0).is_idle(5, 9, last_epoch_us=us) for us in (0, 1)]
        [False, True]
        """
        return (
            idle_us is not None
            and self.heard_us != MIN_TIMESTAMP
            and self.heard_us + idle_us <= wall_time_us
            and self.heard_us < last_epoch_us
        )

    def merged(self, other: Process) -> Process:
        """Return what is known from two observations; the order does not matter.

        >>> Process(newest_us=5, heard_us=1).merged(
        ...     Process(newest_us=3, process_watermark_us=2, heard_us=4)
        ... )
        Process(newest_us=5, process_watermark_us=2, heard_us=4)
        """
        return Process(
            max(self.newest_us, other.newest_us),
            max(self.process_watermark_us, other.process_watermark_us),
            max(self.heard_us, other.heard_us),
        )


#: The name of the only process of an injector that does not say which it has.
ONLY = ""
