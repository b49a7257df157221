"""The graph of a pipeline as a picture: who feeds whom, by which key, level by level.

A notebook shows it for a pipeline. It is one SVG of text and lines, in the colours of the page.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from html import escape
from typing import Final

from millrace.compile.explanation import PLACE, call_text, name_text
from millrace.compile.topology import INJECTOR, ComputationSpec, Edge, StreamSpec, Topology
from millrace.dataflow.operators import operator_of

#: Pixels of a letter, roughly; of a line; between boxes; and between columns, for what stands at
#: the lines there.
_LETTER: Final = 7
_LINE: Final = 16
_BETWEEN: Final = 26
_APART: Final = 150
_MARGIN: Final = 10
#: More letters than these of a text are cut; the whole of it is in the title.
_NAME_MAX: Final = 28
_KEY_MAX: Final = 22

_COLOURS: Final = {"source": "#0072b2", "computation": "#7a7a7a", "sink": "#009e73"}
_SINK: Final = "sink:"


@dataclass
class _Box:
    """A source, a computation or a sink.

    Attributes:
        kind: Which of them.
        column: Counted from the left.
        lines: Its name, and more of it.
        title: What is shown where the mouse rests.
    """

    kind: str
    column: int
    lines: tuple[str, ...]
    title: str
    x: int = 0
    y: int = 0
    before: list[_Box] = field(default_factory=list)

    @property
    def wide(self) -> int:
        """Its width in pixels."""
        return max(90, 20 + _LETTER * max(map(len, self.lines)))

    @property
    def high(self) -> int:
        """Its height in pixels."""
        return 12 + _LINE * len(self.lines)


def graph_svg(topology: Topology) -> str:
    """Return the graph of a pipeline as SVG.

    >>> import millrace as mr
    >>> p = mr.Pipeline("shop")
    >>> p.inject("sales", format=str).key_by(str).window(mr.FixedWindows("1 min")).count().to("n")
    WindowedStream('n')
    >>> p.sink("n", mr.sinks.Memory())
    >>> graph_svg(p.build())[:4]
    '<svg'
    """
    boxes = _boxes(topology)
    titles: dict[tuple[str, str, str], list[str]] = {}
    for source_name, target_name, label, title in _arrows(topology):
        titles.setdefault((source_name, target_name, label), []).append(title)
    arrows = [
        (boxes[source], boxes[target], label, "\n".join(several))
        for (source, target, label), several in titles.items()
    ]
    for source, target, _, _ in arrows:
        target.before.append(source)
    wide, high = _placed(list(boxes.values()))
    drawn = [_arrow(*arrow) for arrow in arrows] + [_drawn(box) for box in boxes.values()]
    name = escape(f"Graph of pipeline {topology.name}")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{name}" '
        f'width="{wide}" height="{high}" viewBox="0 0 {wide} {high}" '
        'style="max-width:100%;height:auto" font-family="sans-serif" font-size="12" '
        f'fill="currentColor">{"".join(drawn)}</svg>'
    )


# -- what there is ---------------------------------------------------------------------------------


def _boxes(topology: Topology) -> dict[str, _Box]:
    """Return the boxes by name: an injector's and a sink's have a prefix."""
    boxes = {
        INJECTOR + spec.name: _source(spec)
        for spec in topology.streams.values()
        if spec.injection is not None
    }
    boxes |= {spec.name: _computation(spec) for spec in topology.computations}
    last = 1 + max((spec.level for spec in topology.computations), default=0)
    for number, sink in enumerate(topology.sinks):
        # Of a sink of Millrace's the kind: its text may say how to get into what it writes to.
        name = name_text(sink) if hasattr(sink, "__qualname__") else type(sink).__name__
        boxes[f"{_SINK}{number}"] = _Box("sink", last, (_cut(name, _NAME_MAX),), name)
    return boxes


def _source(spec: StreamSpec) -> _Box:
    source = None if spec.injection is None else spec.injection.source
    lines = (spec.name,) if source is None else (spec.name, type(source).__name__)
    policy = spec.injection.low_watermark if spec.injection is not None else None
    title = f"injected stream {spec.name!r}" + ("" if policy is None else f", {policy!r}")
    return _Box("source", 0, tuple(_cut(line, _NAME_MAX) for line in lines), title)


def _computation(spec: ComputationSpec) -> _Box:
    told = [line.split(None, 1) for line in operator_of(spec.instance).described()]
    more = [text for word, text in told if word in ("what", "where", "join")]
    lines = [spec.title, *more]
    title = "\n".join([spec.title, *(" ".join(words) for words in told)])
    return _Box("computation", spec.level, tuple(_cut(line, _NAME_MAX) for line in lines), title)


def _arrows(topology: Topology) -> Iterator[tuple[str, str, str, str]]:
    """Yield from where to where records go, what to write there, and the title."""
    made_by = {stream: spec.name for spec in topology.computations for stream in spec.outputs}
    for name, spec in topology.streams.items():
        source = INJECTOR + name if spec.injection is not None else made_by.get(name)
        if source is None:
            continue  # a step makes it
        for steps, edge in _ways(topology, spec):
            to = edge.computation if edge.sink is None else f"{_SINK}{edge.sink}"
            key = "" if edge.extractor is None else PLACE.sub("", repr(edge.extractor))
            key = "to every key" if edge.everywhere else key
            label = edge.stream if edge.sink is not None else key
            title = ", ".join(part for part in (name, *steps, key) if part)
            if to is not None:
                yield source, to, _cut(label, _KEY_MAX), title


def _ways(topology: Topology, spec: StreamSpec) -> Iterator[tuple[list[str], Edge]]:
    """Yield the steps from a stream to each of its edges, and the edge."""
    for edge in spec.edges:
        yield [], edge
    for step in spec.steps:
        for steps, edge in _ways(topology, topology.streams[step.target]):
            yield [call_text(step), *steps], edge


# -- where it stands -------------------------------------------------------------------------------


def _placed(boxes: list[_Box]) -> tuple[int, int]:
    """Give boxes their places; return width and height of the picture."""
    x = high = _MARGIN
    for number in range(1 + max((box.column for box in boxes), default=0)):
        column = [box for box in boxes if box.column == number]
        # Beside what feeds it, so that few lines cross.
        column.sort(key=lambda box: _middle(box.before))
        y = _MARGIN
        for box in column:
            box.x, box.y = x, y
            y += box.high + _BETWEEN
        high = max(high, y - _BETWEEN)
        if column:
            x += max(box.wide for box in column) + _APART
    return max(x - _APART, 0) + _MARGIN, high + _MARGIN


def _middle(boxes: list[_Box]) -> float:
    return sum(box.y for box in boxes) / len(boxes) if boxes else 0.0


def _drawn(box: _Box) -> str:
    lines = "".join(
        f'<text x="{box.x + 10}" y="{box.y + 17 + _LINE * n}"'
        + (' font-weight="bold">' if n == 0 else ' font-size="11" opacity="0.8">')
        + f"{escape(line)}</text>"
        for n, line in enumerate(box.lines)
    )
    colour = _COLOURS[box.kind]
    return (
        f'<g><title>{escape(box.title)}</title><rect x="{box.x}" y="{box.y}" width="{box.wide}" '
        f'height="{box.high}" rx="8" fill="{colour}" fill-opacity="0.12" stroke="{colour}"/>'
        f"{lines}</g>"
    )


def _arrow(source: _Box, target: _Box, label: str, title: str) -> str:
    x1, y1 = source.x + source.wide, source.y + source.high // 2
    x2, y2 = target.x, target.y + target.high // 2
    bend = max(30, (x2 - x1) // 2)
    # Near the end, where lines of one source have parted.
    at_x, at_y = x2 - 14, y2 - 6
    return (
        f'<g><title>{escape(title)}</title><path d="M{x1} {y1}C{x1 + bend} {y1} {x2 - bend} {y2} '
        f'{x2 - 7} {y2}" fill="none" stroke="currentColor" stroke-opacity="0.55"/>'
        f'<path d="M{x2 - 8} {y2 - 4}L{x2} {y2}L{x2 - 8} {y2 + 4}z" fill-opacity="0.7"/>'
        f'<text x="{at_x}" y="{at_y}" font-size="10" text-anchor="end" opacity="0.8">'
        f"{escape(label)}</text></g>"
    )


def _cut(text: str, most: int) -> str:
    """Return a text of at most so many letters.

    >>> _cut("FixedWindows('1 min')", 12), _cut("tea", 12)
    ('FixedWindow…', 'tea')
    """
    return text if len(text) <= most else f"{text[: most - 1]}…"
