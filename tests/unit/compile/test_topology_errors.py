"""What is found wrong with a pipeline when it is built, before any checkpoint is touched."""

import pytest

import millrace as mr
from millrace.model.errors import PipelineError


def computation(name, inputs, outputs=None):
    hooks = {"process_record": lambda *_: None}
    return type(name, (mr.Computation,), {"inputs": inputs, "outputs": outputs or {}, **hooks})


def by(*streams):
    return {stream: mr.by_key() for stream in streams}


@pytest.fixture
def p():
    pipeline = mr.Pipeline("p")
    pipeline.inject("clicks")
    return pipeline


def test_an_unknown_stream_is_named_with_the_one_that_was_meant(p):
    p.add(computation("Count", by("cliks")))

    with pytest.raises(PipelineError, match=r"'Count'.*'cliks'.*Did you mean 'clicks'\?"):
        p.build()


def test_an_unknown_stream_that_resembles_none_gets_the_list(p):
    p.add(computation("Count", by("orders")))

    with pytest.raises(PipelineError, match="Known streams: clicks") as refused:
        p.build()
    assert "Did you mean" not in str(refused.value)


def test_a_sink_of_an_unknown_stream_is_found(p):
    p.sink("cliks", print)

    with pytest.raises(PipelineError, match="a sink subscribes to stream 'cliks'"):
        p.build()


def test_a_sink_of_a_grouping_without_a_name_says_how_to_give_it_one(p):
    p.stream("clicks").key_by("user").window(mr.FixedWindows("1 h")).count()
    p.sink("counts", print)

    with pytest.raises(PipelineError, match=r"'counts'.*no name.*\.to\('counts'\)"):
        p.build()


def test_steps_alone_are_told_what_is_missing(p):
    p.stream("clicks").filter(bool).to("kept")

    with pytest.raises(PipelineError, match=r"do nothing\. .*p\.sink\('kept', "):
        p.build()


def test_a_step_from_an_unknown_stream_is_found(p):
    p.stream("cliks").filter(bool).to("kept")
    p.sink("kept", print)

    with pytest.raises(PipelineError, match="a filter step subscribes to stream 'cliks'"):
        p.build()


def test_a_computation_without_inputs_is_found(p):
    p.add(computation("Count", {}))

    with pytest.raises(PipelineError, match="'Count' has no inputs"):
        p.build()


def test_inputs_that_are_no_mapping_are_found(p):
    p.add(computation("Count", ["clicks"]))

    with pytest.raises(PipelineError, match="Each input needs a key extractor"):
        p.build()


def test_outputs_that_are_no_mapping_are_found(p):
    p.add(computation("Count", by("clicks"), ["counts"]))

    with pytest.raises(PipelineError, match="Each output needs a record format"):
        p.build()


@pytest.mark.parametrize("extractor", ["user", None, len], ids=repr)
def test_an_input_without_a_key_extractor_is_found(p, extractor):
    p.add(computation("Count", {"clicks": extractor}))

    with pytest.raises(PipelineError, match="no key extractor for stream 'clicks'"):
        p.build()


def test_two_publishers_of_a_stream_must_agree_on_its_format(p):
    p.add(computation("One", by("clicks"), {"counts": int}))
    p.add(computation("Two", by("clicks"), {"counts": str}))

    with pytest.raises(PipelineError, match=r"'counts'.*formats disagree.*'One'.*'Two'"):
        p.build()


def test_a_publisher_without_a_format_agrees_with_every_other(p):
    p.add(computation("One", by("clicks"), {"counts": int}))
    p.stream("clicks").map(len).to("counts")

    assert p.build().streams["counts"].coder == mr.coders.Msgpack(int)


def test_an_injected_stream_and_a_publisher_of_it_must_agree(p):
    p.inject("counts", format=str)
    p.add(computation("One", by("clicks"), {"counts": int}))

    with pytest.raises(PipelineError, match="formats disagree"):
        p.build()


def test_an_output_whose_format_is_no_format_is_found(p):
    p.add(computation("One", by("clicks"), {"counts": "int"}))

    with pytest.raises(PipelineError, match=r"'counts'.*'int' is not a format"):
        p.build()


def test_a_computation_that_feeds_itself_is_a_cycle(p):
    p.add(computation("Loop", by("clicks", "again"), {"again": int}))

    with pytest.raises(PipelineError, match="cycle: Loop -> Loop"):
        p.build()


def test_a_cycle_is_shown_computation_by_computation(p):
    p.add(computation("A", by("clicks", "c"), {"a": int}))
    p.add(computation("B", by("a"), {"b": int}))
    p.add(computation("C", by("b"), {"c": int}))

    with pytest.raises(PipelineError, match="cycle: A -> C -> B -> A"):
        p.build()


def test_a_cycle_through_steps_is_found(p):
    p.add(computation("A", by("clicks", "back"), {"a": int}))
    p.stream("a").map(str).filter(bool).to("back")

    with pytest.raises(PipelineError, match="cycle: A -> A"):
        p.build()


def test_a_cycle_of_steps_alone_is_found(p):
    p.stream("a").map(str).to("b")
    p.stream("b").map(str).to("a")
    p.sink("b", print)

    with pytest.raises(PipelineError, match="cycle"):
        p.build()


def test_a_cycle_of_steps_beside_an_injected_stream_is_found(p):
    p.stream("clicks").map(str).to("b")
    p.stream("b").map(str).to("clicks")
    p.sink("b", print)

    with pytest.raises(PipelineError, match="cycle"):
        p.build()


def test_streams_that_nobody_reads_are_no_pipeline(p):
    with pytest.raises(PipelineError, match="neither computations nor sinks"):
        p.build()


def test_all_problems_are_reported_at_once(p):
    p.add(computation("Empty", {}))
    p.add(computation("Typo", by("cliks")))
    p.add(computation("Unkeyed", {"clicks": "user"}))

    with pytest.raises(PipelineError, match="has 3 problems") as refused:
        p.build()
    assert [name for name in ("Empty", "Typo", "Unkeyed") if name in str(refused.value)] == [
        "Empty",
        "Typo",
        "Unkeyed",
    ]


def test_every_message_names_the_pipeline(p):
    p.add(computation("Empty", {}))

    with pytest.raises(PipelineError, match=r"Pipeline\('p'\)"):
        p.build()
