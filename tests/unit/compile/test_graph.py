"""A pipeline in a notebook: the picture of its graph."""

import xml.etree.ElementTree as ElementTree
from typing import Any

import millrace as mr

SVG = "{http://www.w3.org/2000/svg}"


class Score(mr.Computation):
    """User code in the middle."""

    inputs = {"<words>": mr.by(str)}
    outputs = {"scores": int}

    def process_record(self, record: mr.Record) -> None:
        self.produce("scores", len(record.value))


def shop() -> mr.Pipeline:
    p = mr.Pipeline("shop & sons")
    p.inject("<words>", format=str)
    p.add(Score)
    scores = p.stream("scores").filter(bool).key_by(lambda n: n % 2)
    scores.window(mr.FixedWindows("1 min"), mr.early("5 s")).sum().to("sums")
    p.sink("sums", mr.sinks.Memory())
    return p


def drawn(p: mr.Pipeline) -> ElementTree.Element:
    """Return the picture, which is XML."""
    return ElementTree.fromstring(p._repr_html_())


def texts(svg: ElementTree.Element) -> list[str]:
    return [text.text or "" for text in svg.iter(f"{SVG}text")]


def test_the_graph_has_sources_computations_and_sinks_with_what_they_do() -> None:
    found = texts(drawn(shop()))
    for text in ("<words>", "Score", "sums", "Sum()", "FixedWindows('1 min')", "Memory"):
        assert text in found
    # At an arrow stands by which key records go, at that to a sink which stream.
    assert "by(str)" in found
    assert "by(<lambda>)" in found
    titles = [title.text for title in drawn(shop()).iter(f"{SVG}title")]
    assert "scores, filter(bool), by(<lambda>)" in titles, "steps are in the title"


def test_who_is_fed_stands_to_the_right() -> None:
    lefts: dict[str, float] = {}
    for group in drawn(shop()).iter(f"{SVG}g"):
        box = group.find(f"{SVG}rect")
        name = group.find(f"{SVG}text")
        if box is not None and name is not None:
            lefts[str(name.text)] = float(box.attrib["x"])
    assert sorted(lefts, key=lambda name: lefts[name]) == ["<words>", "Score", "sums", "Memory"]


def test_boxes_do_not_lie_on_each_other() -> None:
    p = mr.Pipeline("wide")
    words = p.inject("words", format=str)
    for n in range(12):
        words.key_by(str).window(mr.FixedWindows(f"{n + 1} min")).count().to(f"every-{n}")
        p.sink(f"every-{n}", mr.sinks.Memory())
    svg: Any = drawn(p)
    boxes = [
        tuple(float(box.attrib[name]) for name in ("x", "y", "width", "height"))
        for box in svg.iter(f"{SVG}rect")
    ]
    assert len(boxes) == 1 + 12 + 12
    for n, (x, y, wide, high) in enumerate(boxes):
        assert x + wide <= float(svg.attrib["width"])
        assert y + high <= float(svg.attrib["height"])
        for left, top, width, height in boxes[:n]:
            apart = x >= left + width or left >= x + wide or y >= top + height or top >= y + high
            assert apart


def test_a_pipeline_that_cannot_run_says_why() -> None:
    p = mr.Pipeline("<half>")
    p.add(Score)
    shown = p._repr_html_()
    assert "Pipeline(&#x27;&lt;half&gt;&#x27;)" in shown
    assert "which nobody injects or produces" in shown
    assert "<half>" not in shown


def test_an_empty_pipeline_has_a_picture_or_a_reason() -> None:
    assert mr.Pipeline("new")._repr_html_()
