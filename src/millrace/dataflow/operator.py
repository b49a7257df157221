"""Operator: the compiler's view of a computation, beyond the declarations on its class.

It is an object of its own, so that a user's class may use any name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from millrace.dataflow.columnar.chunks import Columnar
from millrace.dataflow.partials import Lift
from millrace.dataflow.side_stream import SideStream, subscriptions, with_tables
from millrace.dataflow.windowing import Windowing
from millrace.model.coder import Coder
from millrace.model.computation import Computation
from millrace.model.record import Timer

#: Called with an error, the value whose answer raised it, and that one's time. It raises the error
#: if there are no dead letters.
Refuse = Callable[[BaseException, Any, int], None]


class Operator:
    """The operator of a computation that a user wrote: there is little to say.

    Built-in computations have their own; :func:`millrace.dataflow.operators.operator_of` finds it.

    Args:
        computation: As it was added to its pipeline, or as :meth:`bound` made it.
    """

    #: How it groups by windows; None if it does not.
    windowing: Windowing | None = None

    def __init__(self, computation: Computation) -> None:
        self._computation = computation

    def settings(self) -> Mapping[str, Any]:
        """Return what else the meaning of the state depends on, by name: text and numbers.

        A checkpoint is refused to a pipeline in which one is another.
        """
        return {}

    def sides(self) -> Sequence[str]:
        """Return its inputs in the order of their sides; none if its state has no sides."""
        return ()

    def described(self) -> Sequence[str]:
        """Return lines for ``p.explain()``; none unless it is a grouping."""
        return ()

    def side_streams(self) -> Mapping[str, SideStream]:
        """Return the streams that it takes beside its inputs, and how."""
        return subscriptions(self._computation)

    def bound(self, formats: Mapping[str, Coder], *, unbounded: bool) -> Computation:
        """Return the computation as it runs, now that its inputs are known.

        Called whenever its pipeline is built, before anything runs. The other methods are called
        on the operator of the returned computation.

        Args:
            formats: Input stream -> coder.
            unbounded: Whether a source that feeds it is known to have no end.

        Raises:
            PipelineError: It cannot run on such inputs.
        """
        return with_tables(self._computation, formats)

    def lifting(self, stream: str, coder: Coder) -> Lift | str:
        """Return how senders combine records of an input on their way here, or why they do not."""
        return "it is no aggregation"

    def columnar(self, formats: Mapping[str, Coder]) -> Columnar | None:
        """Return how it works on whole bundles; None if it works key by key.

        Args:
            formats: Input stream -> coder.
        """
        return None

    def in_blocks(self, formats: Mapping[str, Coder]) -> bool:
        """Return whether many keys run at once, with the same effects as key by key.

        Args:
            formats: Input stream -> coder.
        """
        return False

    def display_tag(self, tag: Any) -> Any:
        """Return what errors and dead letters show for a timer's tag of the current key.

        Asked of the computation that runs, while user code may.
        """
        return tag

    def set_refuse(self, refuse: Refuse) -> None:
        """Take what to call with an answer that fails, if a timer answers several values.

        Called of the computation that runs, before it does. The others' answers are sent then.
        """

    def pass_timer(self, timer: Timer) -> None:
        """Go on past a timer of the current key that failed, and became a dead letter.

        Called of the computation that runs, in the place of ``process_timer``. It calls no user
        code. What else waits for the timers of a built-in computation must not wait forever.
        """
