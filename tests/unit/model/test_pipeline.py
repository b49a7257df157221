"""What a pipeline refuses at the line that declares it."""

import pytest

import millrace as mr
from millrace.model.errors import PipelineError


class Echo(mr.Computation):
    inputs = {"words": mr.by(str)}
    outputs = {"echoes": str}

    def process_record(self, record):
        self.produce("echoes", record.value)


class Parameterised(Echo):
    def __init__(self, threshold):
        self.threshold = threshold


@pytest.fixture
def p():
    return mr.Pipeline("p")


@pytest.mark.parametrize("name", ["", "  ", None, 7])
def test_a_pipeline_needs_a_name(name):
    with pytest.raises(PipelineError, match="cannot name a pipeline"):
        mr.Pipeline(name)


@pytest.mark.parametrize("name", ["", None, 7, "a\nb"], ids=repr)
def test_a_stream_needs_a_printable_name(p, name):
    with pytest.raises(PipelineError, match="cannot name a stream"):
        p.inject(name)


def test_a_stream_is_injected_once(p):
    p.inject("words")

    with pytest.raises(PipelineError, match="'words' is injected twice"):
        p.inject("words")


def test_an_injection_with_a_source_needs_a_timestamp_column(p):
    with pytest.raises(PipelineError, match='timestamp="time"'):
        p.inject("words", source=object())


@pytest.mark.parametrize("policy", [mr.BoundedDelay, "5 s", 5])
def test_a_low_watermark_is_said_by_a_policy(p, policy):
    with pytest.raises(PipelineError, match=r'low_watermark=.*mr\.BoundedDelay\("5 s"\)'):
        p.inject("words", low_watermark=policy)


def test_a_source_is_no_class(p):
    with pytest.raises(PipelineError, match=r"the class Files.*Files\(\.\.\.\)"):
        p.inject("words", mr.sources.Files, timestamp="at")


def test_an_id_is_the_name_of_a_column(p):
    with pytest.raises(PipelineError, match="expected the name of the column with the ids"):
        p.inject("words", id=0)


@pytest.mark.parametrize("given", [3, None, [3], {"a": 1}.values()], ids=repr)
def test_earlier_names_are_names(p, given):
    with pytest.raises(PipelineError, match=r"inject\('words', was=.*expected a name, or several"):
        p.inject("words", was=given)
    with pytest.raises(PipelineError, match=r"p\.add\(.*Echo.*, was=.*expected a name, or several"):
        p.add(Echo, was=given)
    with pytest.raises(PipelineError, match=r"p\.add\(Echo, dropped=.*expected a name, or several"):
        p.add(Echo, dropped=given)
    with pytest.raises(PipelineError, match=r"Parquet\(key=.*expected a name, or several"):
        mr.sinks.Parquet("out", key=given)


def test_expected_processes_are_several(p):
    p.inject("words", process="partition", expected=[0, 1])
    assert p.injections["words"].expected == ("0", "1")
    with pytest.raises(PipelineError, match=r"expected=3.*expected a name, or several"):
        p.inject("lines", process="partition", expected=3)


def test_a_process_that_is_idle_at_once_is_refused(p):
    with pytest.raises(PipelineError, match=r"inject\(idle\): 0 is no time at all"):
        p.inject("words", idle=0)


def test_migrations_are_named_by_cell(p):
    with pytest.raises(PipelineError, match=r"migrate=<class 'int'>.*cell"):
        p.add(Echo, migrate=int)


def test_a_slack_without_ids_keeps_nothing(p):
    with pytest.raises(PipelineError, match='Name their column: id="event_id"'):
        p.inject("words", slack="2 h")


def test_an_id_is_kept_for_two_hours_unless_it_is_said_otherwise(p):
    p.inject("words", id="uuid")
    p.inject("lines", id="uuid", slack="5 min")
    assert p.injections["words"].slack_us == 2 * mr.HOUR
    assert p.injections["lines"].slack_us == 5 * mr.MINUTE


def test_a_computation_is_named_after_its_class(p):
    p.add(Echo)

    assert list(p.computations) == ["Echo"]


def test_two_computations_of_one_class_need_two_names(p):
    p.add(Echo)
    with pytest.raises(PipelineError, match=r"two computations are named 'Echo'.*name="):
        p.add(Echo)

    p.add(Echo, name="second")
    assert list(p.computations) == ["Echo", "second"]


def test_a_class_that_needs_arguments_is_refused_with_what_to_write(p):
    with pytest.raises(PipelineError, match=r"p\.add\(Parameterised\(\.\.\.\)\)"):
        p.add(Parameterised)


def test_an_instance_keeps_its_parameters(p):
    p.add(Parameterised(3))

    assert p.computations["Parameterised"].threshold == 3


@pytest.mark.parametrize(
    "given", [str, "Echo", None, object()], ids=["str", "Echo", "None", "object"]
)
def test_only_a_computation_can_be_added(p, given):
    with pytest.raises(PipelineError, match=r"expected a subclass of mr\.Computation"):
        p.add(given)


def test_a_sink_must_be_callable(p):
    with pytest.raises(PipelineError, match=r"expected mr\.sinks\.Parquet"):
        p.sink("words", "out/words")


@pytest.mark.parametrize("kind", [mr.sinks.Memory, mr.sinks.Kafka, mr.sinks.Parquet])
def test_a_sink_is_no_class(p, kind):
    with pytest.raises(
        PipelineError, match=rf"is the class {kind.__name__}.*{kind.__name__}\(\.\.\.\)"
    ):
        p.sink("words", kind)


def test_a_function_of_batches_is_no_sink_of_dataframes(p):
    def upload(batch):
        raise AssertionError

    with pytest.raises(PipelineError, match=r"mr\.sinks\.Function\(upload\)"):
        p.sink("words", upload)


@pytest.mark.parametrize("sink", [print, lambda *_: None, lambda _, __, *, ___=0: None])
def test_a_sink_that_takes_a_dataframe_and_an_epoch_is_one(p, sink):
    p.sink("words", sink)

    assert p.sinks[-1].sink is sink


def test_there_is_one_dead_letter_stream(p):
    p.dead_letter("dead")

    with pytest.raises(PipelineError, match="'dead'"):
        p.dead_letter("more")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: mr.sinks.Console("x"), r"Console\(rows='x'\): expected an int above zero"),
        (lambda: mr.sinks.Console(0), r"Console\(rows=0\)"),
        (
            lambda: mr.sinks.Function(lambda one, two: (one, two)),
            r"\(batch\).*parameters \(one, two\)",
        ),
        (lambda: mr.sinks.Function(mr.sinks.Memory), "expected a function of an Arrow batch"),
        (
            lambda: mr.sources.Files("in", schema="a long", parse=","),
            r"parse=','.*cannot be called",
        ),
        (lambda: mr.sources.Files("in", schema="a long", created="x.log"), r"created='x.log'.*%Y"),
        (lambda: mr.CombiningState(int, "sum"), r"CombiningState\(add='sum'\).*cannot be called"),
    ],
)
def test_an_argument_that_would_fail_later_is_refused_at_once(make, message):
    with pytest.raises(PipelineError, match=message):
        make()


@pytest.mark.parametrize("step", ["map", "flat_map", "filter"])
def test_a_step_needs_a_function(p, step):
    with pytest.raises(PipelineError, match="cannot be called"):
        getattr(p.stream("words"), step)("upper")


def test_a_stream_is_named_with_one_format(p):
    p.stream("words").map(len).to("lengths", format=int)

    with pytest.raises(PipelineError, match="two formats"):
        p.stream("words").map(len).to("lengths", format=str)


def test_an_injector_whose_schema_has_no_type_for_python_is_refused_when_it_is_declared():
    class Rows(mr.sources.Injector):
        schema = "x timestamp_ntz, at long"

        def processes(self):
            return ["only"]

        def advance(self, process, offset):
            return mr.sources.Advance(0)

        def read(self, process, start, end):
            return []

    with pytest.raises(PipelineError, match=r"inject\('rows'\): .*timestamp_ntz.*no time zone"):
        mr.Pipeline("p").inject("rows", Rows(), timestamp="at")
