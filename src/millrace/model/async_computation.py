"""AsyncComputation: the class a user derives from where a record needs a call to a service.

Source: Flink, "Asynchronous I/O for External Data Access"; docs/design/2026-11-28-calls.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from millrace.model.calls import BatchPolicy, CallPolicy
from millrace.model.computation import Computation
from millrace.model.record import Produced, Record


class AsyncComputation(Computation[Produced]):
    """A computation that calls a service for its records, and lets other keys go on meanwhile.

    It has three parts. ``request`` reads state, ``call`` asks the service, and ``process_response``
    writes state and produces::

        class Score(mr.AsyncComputation):
            inputs = {"payments": mr.by("card")}
            outputs = {"scored": Scored}
            calls = mr.CallPolicy(concurrency=200, timeout="2 s", retries=3)
            spent = mr.CombiningState(int, sum)

            def request(self, record):
                return {"payment": record.value, "spent": self.spent.get()}

            async def call(self, request, call):
                return await self.service.score(request, key=call.id)

            def process_response(self, record, response):
                self.spent.add(record.value.amount)
                self.produce("scored", Scored(record.value, response))

    The low watermark waits for what is in flight. After a failure a call may be made again, with
    the same ``call.id``; its effect on state, productions and sinks counts once. It has no timers:
    those belong to the computation behind it.

    Attributes:
        calls: How calls are made.
        batch: How requests are gathered for one call; None: each has a call of its own. Then
            ``call`` gets a list of requests and returns as many responses.
        setup: A method that is called once in a process; what it returns is the first argument of
            each ``call``. None: there is none.
    """

    calls: ClassVar[CallPolicy] = CallPolicy()
    batch: ClassVar[BatchPolicy | None] = None
    setup: ClassVar[Callable[..., Any] | None] = None

    #: Whether a request may read what the responses before it have written.
    _reads_state: ClassVar[bool] = True

    def request(self, record: Record) -> Any:
        """Return what to ask the service for a record of the current key.

        Called once for each record, in order of arrival within a key, and again after a failure
        before its response. It reads state and changes nothing: writing cells, productions, timers,
        holds and counters are refused. With ``order="key"`` the records of the key before this one
        have their responses.

        Returns:
            The request; None if no call is needed: then ``process_response`` gets None.
        """
        return record.value

    def call(self, *request: Any) -> Any:
        """Ask the service, with an ``async def``; a plain function is called in a thread.

        It has no state and produces nothing. It may be called again for a request.

        Args:
            request: What ``setup`` made, if there is one; the request; and a
                :class:`~millrace.model.calls.CallAttempt`, if the method takes one more argument.
        """
        raise NotImplementedError(f"{type(self).__name__} has no call")

    def process_response(self, record: Record, response: Any) -> None:
        """Take the response to the call of a record.

        Called once for each record: with what the call returned, or None if it needed none. Where
        ``calls`` says ``order="none"``, in order of return, else of arrival within the key.
        """
        raise NotImplementedError(f"{type(self).__name__} has no process_response")
