"""Options of a start: one list, for a type checker, for the run and for the documents."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import millrace as mr
from millrace.model.errors import PipelineError
from millrace.options import (
    BatchOptions,
    EpochOptions,
    RealtimeOptions,
    check_options,
    options_of,
    with_defaults,
)

ROOT = Path(__file__).parents[2]

#: What a user may write, and what a type checker is to say of it; "" for nothing.
CALLS = [
    ('p.start(spark, checkpoint="c")', ""),
    ('p.start(spark, checkpoint="c", tasks=2, trigger="1 s", cache_limit=1 << 30)', ""),
    ('p.start(spark, checkpoint="c", realtime=False, balance=Balance(intervals=8))', ""),
    ('p.start(spark, checkpoint="c", realtime=True, marks="1 s", hang_limit=None)', ""),
    ('p.start(spark, checkpoint="c", realtime=maybe, progress="table", metrics=9464)', ""),
    ("p.run_batch(spark, tasks=2, percentile=95)", ""),
    ("p.start(spark)", "No overload variant"),
    ('p.start(spark, checkpoint="c", intervalls=8)', "No overload variant"),
    ('p.start(spark, checkpoint="c", marks="1 s")', "No overload variant"),
    ('p.start(spark, checkpoint="c", realtime=True, trigger="1 s")', "No overload variant"),
    ('p.start(spark, checkpoint="c", realtime=maybe, marks="1 s")', "No overload variant"),
    ('p.start(spark, checkpoint="c", attempts="3")', "No overload variant"),
    ('p.start(spark, checkpoint="c", progress="chart")', "No overload variant"),
    ("p.run_batch(spark, trigger='1 s')", "Unexpected keyword argument"),
]


def test_a_type_checker_knows_the_options_of_each_plane(tmp_path: Path) -> None:
    lines = [
        "from typing import Any",
        "from millrace.pipeline import Pipeline",
        "from millrace.balance.policy import Balance",
        "def program(p: Pipeline, spark: Any, maybe: bool) -> None:",
        *(f"    {call}" for call, _ in CALLS),
    ]
    program = tmp_path / "program.py"
    program.write_text("\n".join(lines) + "\n")
    # Alone, and not with all that they import, which would take a minute.
    sources = [
        str(ROOT / "src" / "millrace" / name)
        for name in ("pipeline.py", "options.py", "balance/policy.py", "model/time.py")
    ]
    # In a process of its own: mypy raises the limit of recursion, and leaves it there.
    ran = subprocess.run(
        [
            sys.executable, "-m", "mypy", "--config-file=", "--follow-imports=skip", "--no-pretty",
            f"--cache-dir={tmp_path / 'cache'}", str(program), *sources,
        ],
        capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert ran.stderr == ""
    errors = dict(re.findall(r"program\.py:(\d+): error: (.*)", ran.stdout))
    first = len(lines) - len(CALLS) + 1
    found = [errors.pop(str(first + n), "") for n in range(len(CALLS))]
    assert errors == {}
    assert [bool(message) for message in found] == [bool(wanted) for _, wanted in CALLS]
    assert all(wanted in message for message, (_, wanted) in zip(found, CALLS, strict=True))


@pytest.mark.parametrize(
    ("kind", "name", "said"),
    [
        (
            RealtimeOptions,
            "cache_limit",
            r"start\(realtime=True, cache_limit=\.\.\.\): cache_limit= is an option of epochs: in "
            "real time a cache cannot be evicted, .*Leave it out, or leave realtime=True out",
        ),
        (
            RealtimeOptions,
            "trigger",
            'is an option of epochs: in real time there are no epochs .*marks="2 s"',
        ),
        (
            EpochOptions,
            "marks",
            r"start\(marks=\.\.\.\): marks= is an option of real time: .*trigger=.*Leave it out, "
            r"or give realtime=True\.$",
        ),
        (EpochOptions, "hang_limit", "is an option of real time: .*time_limit="),
        (EpochOptions, "traks", r"no such option\. Did you mean tasks=\? The options of epochs "),
        (EpochOptions, "mark", r"no such option\. Did you mean marks=, an option of real time\?"),
        (EpochOptions, "chekpoint", r"Did you mean checkpoint= or spark_checkpoint=\?"),
        (RealtimeOptions, "quux", r"\(realtime=True, quux=\.\.\.\): there is no such option\. The"),
        (BatchOptions, "percentil", r"run_batch\(percentil=\.\.\.\): .*mean percentile=\?"),
    ],
)
def test_what_is_no_option_of_a_plane_is_refused_by_name(kind: type, name: str, said: str) -> None:
    with pytest.raises(PipelineError, match=said):
        check_options(kind, {"tasks": 2, name: 1})


def test_it_is_refused_before_anything_is_done() -> None:
    nothing: Any = None
    p = mr.Pipeline("p")
    with pytest.raises(PipelineError, match=r"start\(marks=\.\.\.\): marks= is an option of real"):
        p.start(nothing, checkpoint="nowhere", marks="1 s")  # type: ignore[call-overload]
    with pytest.raises(PipelineError, match="trigger= is an option of epochs"):
        p.start(nothing, checkpoint="nowhere", realtime=True, trigger="1 s")  # type: ignore[call-overload]
    with pytest.raises(PipelineError, match="there is no such option"):
        p.run_batch(nothing, checkpoint="nowhere")  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("kind", "given", "message"),
    [
        (EpochOptions, {"progress": "tabel"}, r"\(progress='tabel'\).*True, False or 'table'"),
        (
            RealtimeOptions,
            {"standby": "yes"},
            r"start\(realtime=True, standby='yes'\).*True or False",
        ),
        (
            BatchOptions,
            {"progress": "table"},
            r"run_batch\(progress='table'\): expected True or False",
        ),
    ],
)
def test_a_switch_is_one_of_its_values(kind: type, given: dict[str, Any], message: str) -> None:
    with pytest.raises(PipelineError, match=message):
        check_options(kind, given)


@pytest.mark.parametrize("given", [{"progress": False}, {"progress": "table"}, {"lease": "5 s"}])
def test_the_values_of_a_switch_are_taken(given: dict[str, Any]) -> None:
    assert with_defaults(EpochOptions, given).items() >= given.items()


@pytest.mark.parametrize(
    "run",
    [
        lambda p, spark: p.start(spark, checkpoint="never made"),
        lambda p, spark: p.run_batch(spark),
    ],
)
@pytest.mark.parametrize("spark", [None, "local[2]"])
def test_what_is_no_session_is_refused(run: Any, spark: Any) -> None:
    p = mr.Pipeline("p")
    p.sink("words", mr.sinks.Memory())
    p.inject("words")
    with pytest.raises(PipelineError, match=r"expected a SparkSession"):
        run(p, spark)


def test_each_option_of_one_plane_says_what_the_other_has_instead() -> None:
    epochs, live = options_of(EpochOptions), options_of(RealtimeOptions)
    for one, other in ((epochs, live), (live, epochs)):
        assert [name for name in one.keys() - other.keys() if not one[name].instead] == []


def test_what_is_not_given_has_its_default() -> None:
    assert with_defaults(RealtimeOptions, {"marks": "1 s"}) == {
        "attempts": 3, "balance": False, "cache": None, "clock": None, "hang_limit": "5 min",
        "host": None, "intervals": None, "lease": False, "marks": "1 s", "metrics": None,
        "pacemaker": None, "progress": True, "segments": None, "spark_batch": "12 h",
        "standby": False, "stuck_after": "10 s", "tasks": None, "time_limit": None,
    }  # fmt: skip


def table(section: str) -> dict[str, str]:
    """Return option -> default, as a table of the page of options has it."""
    page = (ROOT / "docs" / "reference" / "options.md").read_text()
    text = page.split(f"\n## {section}\n")[1].split("\n## ")[0]
    return dict(re.findall(r"^\| `(\w+)` \|[^|]*\| ([^|]*?) \|[^|]*\|$", text, re.M))


@pytest.mark.parametrize(
    ("section", "kind"),
    [("Epochs", EpochOptions), ("Real time", RealtimeOptions), ("Batch", BatchOptions)],
)
def test_the_documents_have_the_same_options_and_defaults(section: str, kind: type) -> None:
    documented = table(section)
    if kind is not BatchOptions:
        documented |= table("Both planes")
        assert documented.pop("checkpoint") == "required"
        assert documented.pop("realtime") == "`False`"
    options = options_of(kind)
    assert documented.keys() == options.keys()
    for name, option in options.items():
        default = documented[name]
        if option.means:
            assert default.startswith(option.means), name
        else:
            value = option.default
            assert default in (repr(value), f"`{value!r}`".replace("'", '"')), name
