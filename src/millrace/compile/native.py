"""Whether Spark can key an injected stream by itself, as far as the pipeline says.

A key that is one column is encoded and hashed in the JVM. Anything else that has to be done before
the first shuffle needs Python there.
"""

from __future__ import annotations

from millrace.compile.topology import Edge, StreamSpec, Topology
from millrace.model.stream import ByFields


def python_reason(topology: Topology, stream: StreamSpec) -> str | None:
    """Return why an injected stream needs Python before the first shuffle; None if nothing says so.

    That the columns are there and have the right types only its source can tell.

    >>> from millrace import Pipeline
    >>> p = Pipeline("scores")
    >>> p.inject("scores").filter(bool).to("paid")
    Stream('paid')
    >>> p.sink("paid", print)
    >>> topology = p.build()
    >>> python_reason(topology, topology.streams["scores"])
    "a filter reads 'scores'"
    """
    if stream.name == topology.again:
        return None  # its records are sent as those of other streams, by whoever reads them
    if stream.steps:
        kind = stream.steps[0].kind
        # A step that only names a stream, or makes one of several.
        own = {"to": "another stream is made of", "assign": "windows are assigned to"}
        return f"{own.get(kind, f'a {kind} reads')} {stream.name!r}"
    if not stream.edges:
        return f"nobody reads {stream.name!r}"
    for edge in stream.edges:
        if edge.computation is None:
            return f"a sink takes {stream.name!r}"
        if edge.everywhere:
            return f"{stream.name!r} goes to every key interval of {edge.computation}"
        if one_field(edge) is None:
            return f"{edge.computation} takes its key from {stream.name!r} {edge.extractor!r}"
        if (level := topology.computation(edge.computation).level) > 1:
            return f"{edge.computation}, which reads {stream.name!r}, is on level {level}"
    return None


def one_field(edge: Edge) -> str | None:
    """Return the field that a consumer's key is; None if it is more or something else."""
    extractor = None if edge.everywhere else edge.extractor
    if isinstance(extractor, ByFields) and len(extractor.fields) == 1:
        return extractor.fields[0]
    return None
