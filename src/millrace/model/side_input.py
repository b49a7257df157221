"""SideInput: a small table, filled by a stream, that every key of a computation can look into."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, Generic, TypeVar

from millrace.model.errors import PipelineError
from millrace.model.state import StateDescriptor
from millrace.model.stream import KeyExtractor, by, by_key

T = TypeVar("T")

#: Bytes of a table in each key interval. What is larger is a stream to be joined, and no table.
_LIMIT: Final = 64 << 20


class SideInput(StateDescriptor, Mapping[Any, T], Generic[T]):
    """A mapping from key to row, of a slowly changing stream; the same for all keys. Read only.

    Declared on a computation's class, as a cell is. Each row of the stream goes to every key
    interval, and stands from its timestamp until the next of its key; a row that is None ends the
    one before. A retraction takes an equal row back. A row must not be changed in place.

    With ``waits=True`` a record is kept until the low watermark of the computation, which is that
    of its inputs and that of this stream, has passed its timestamp. Then it sees the rows that
    stand at its time, whatever came first; records and timers of a key come in order of event time.
    A late record does not wait, and sees the table as it stands at the low watermark, and so does
    a timer of the wall clock. With ``waits=False`` the stream holds nothing, and a record sees the
    newest rows that are here.

    In a batch all rows are there before the first record.

    Args:
        stream: The stream of rows, by name; it is no other input of the computation.
        key: A row's key in the table: a field, or a function of the row, as :func:`millrace.by`
            takes them. By default the key that the stream has.
        waits: Whether records wait for the rows of their time.
        limit: How many bytes the table may have in a key interval, keys left out, with the rows
            before the low watermark left out that others have replaced. A row beyond is refused.

    Source: docs/design/2026-11-22-side-inputs.md; Dataflow's side inputs.

    >>> import millrace as mr
    >>> class Convert(mr.Computation):
    ...     inputs = {"sales": mr.by("shop")}
    ...     outputs = {"euros": float}
    ...     rates = mr.SideInput("rates", "currency")
    ...
    ...     def process_record(self, record):
    ...         rate = self.rates[record.value["currency"]]
    ...         self.produce("euros", record.value["amount"] * rate["euros"])
    >>> p = mr.Pipeline("convert")
    >>> sales, rates = p.inject("sales", format=dict), p.inject("rates", format=dict)
    >>> p.add(Convert)
    >>> with mr.testing.Harness(p) as h:
    ...     h.inject("sales", [({"shop": "a", "amount": 10, "currency": "USD"}, 15)])
    ...     h.inject(
    ...         "rates", [({"currency": "USD", "euros": e}, at) for e, at in ((0.9, 0), (0.8, 20))]
    ...     )
    ...     for stream in ("sales", "rates"):
    ...         h.advance_watermark(stream, 30)
    ...     [output.value for output in h.outputs("euros")]
    [9.0]
    """

    __hash__ = StateDescriptor.__hash__

    def __init__(
        self,
        stream: str,
        key: str | Callable[[Any], Any] | KeyExtractor | None = None,
        *,
        waits: bool = True,
        limit: int = _LIMIT,
    ) -> None:
        super().__init__(Any)  # the stream's format says more, when the pipeline is built
        if not isinstance(stream, str) or not stream:
            raise PipelineError(
                f'SideInput({stream!r}): expected the name of a stream, such as "rates". A table '
                "that does not change is a dict in an attribute of the class, or "
                "stream.lookup(table)."
            )
        if type(limit) is not int or limit < 1:
            raise PipelineError(
                f"SideInput({stream!r}, limit={limit!r}): expected how many bytes the table may "
                "have in a key interval, an int above zero."
            )
        self.stream = stream
        self.extractor = (
            by_key() if key is None else key if isinstance(key, KeyExtractor) else by(key)
        )
        self.waits = waits
        self.limit = limit
        #: How a row is kept, and read again; set when the pipeline is built.
        self.forms: tuple[Callable[[Any], Any], Callable[[Any], Any]] = (_as_is, _as_is)

    def __repr__(self) -> str:
        return f"SideInput({self.stream!r}, {self.extractor!r}, waits={self.waits})"

    def __getitem__(self, key: Any) -> T:
        """Return the row of a key; KeyError if there is none."""
        self._outside()

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the keys that have a row, in the order of their encoding."""
        self._outside()

    def __len__(self) -> int:
        """Return how many keys have a row; reads them all."""
        self._outside()

    def __eq__(self, other: object) -> bool:
        return self is other


def _as_is(row: Any) -> Any:
    return row
