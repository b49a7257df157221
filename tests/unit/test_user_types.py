"""What type checkers know of a user's program: values, cells, options, and which names there are.

mypy, and Pyright as ``basedpyright`` ships it: its own package fetches a Node when it is first run.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "src" / "millrace"
PROGRAM = """
from dataclasses import dataclass

import millrace as mr


@dataclass
class Payment:
    cents: int


class Counter(mr.Computation[int | Payment]):
    inputs = {"payments": mr.by("account")}
    outputs = {"totals": int, "payments": Payment}
    minutes = mr.MapState(int)
    last = mr.ValueState(Payment, expires="1 h")
    names = mr.BagState(str, was="labels")
    most = mr.CombiningState(int, max)
    recent = mr.ValueState(list[int])
    raw: mr.ValueState[bytes] = mr.ValueState(mr.coders.Bytes())
    maybe: mr.ValueState[int | None] = mr.ValueState(int | None)

    def process_record(self, record: mr.Record[Payment]) -> None:
        minute = record.timestamp // mr.MINUTE
        self.minutes[minute] = self.minutes.get(minute, 0) + 1
        reveal_type(self.minutes)  # MapState[int]
        reveal_type(self.last.get())  # Payment | None
        reveal_type(self.last.get(Payment(3)))  # Payment
        reveal_type(self.most.get(0))  # int
        reveal_type(self.most.get("none"))  # int | str
        reveal_type(self.recent.get([]))  # list[int]
        reveal_type(self.raw.get())  # bytes | None
        self.last.set(3)  # error: Argument 1 to "set"
        self.names.add(3)  # error: Argument 1 to "add"
        self.minutes["now"] = "one"  # error: Incompatible types in assignment
        reveal_type(record.value)  # Payment
        record.value.sents  # error: "Payment" has no attribute "sents"
        self.produce("totals", self.minutes[minute])
        self.produce("payments", record.value, record.timestamp + mr.SECOND)
        self.produce("totals", "three")  # error: Argument 2 to "produce"
        # What is of one of the outputs may go to the other, for all that can be known of text.
        self.produce("totals", record.value)


class Anything(mr.Computation):
    def process_record(self, record: mr.Record) -> None:
        reveal_type(record.value)  # Any
        self.produce("anything", record.value)


p = mr.Pipeline("shop")
payments = p.inject("payments", format=Payment)
reveal_type(payments)  # Stream
p.add(Counter)
windows = payments.key_by("cents").window(mr.FixedWindows("1 min"), mr.early("5 s"))
reveal_type(windows.sum("cents", keys=True).to("sums"))  # WindowedStream
windows.sum("cents", keyed=True)  # error: Unexpected keyword argument "keyed"
payments.window(mr.FixedWindows("1 min"), mr.early("5 s", lait="1 h"))  # error: Unexpected keyword
p.sink("totals", mr.Parquet("totals", kee="_key"))  # error: Unexpected keyword argument "kee"

by_epochs = p.start(None, checkpoint="c", intervals=64, trigger="1 second")
live = p.start(None, checkpoint="c", realtime=True, marks="1 s")
reveal_type(live)  # Handle
p.start(None, checkpoint="c", intervalls=64)  # error: No overload variant
p.start(None, checkpoint="c", intervals="64")  # error: No overload variant
p.start(None, checkpoint="c", realtime=True, trigger="1 second")  # error: No overload variant
p.run_batch(None, tusks=2)  # error: Unexpected keyword argument "tusks"
live.stopp()  # error: "Handle" has no attribute "stopp"

with mr.testing.Harness(p) as h:
    reveal_type(h.outputs("totals"))  # list[Output]

mr.KafkaSink  # error: Module has no attribute "KafkaSink"
mr.Pipelin  # error: Module has no attribute "Pipelin"
"""

#: What mypy reads of Millrace with a program. With all that this imports it would take a minute.
READ_BY_MYPY = [
    *("__init__", "options", "pipeline", "sinks", "spark/handle", "connectors/parquet/sink"),
    *("testing/__init__", "testing/harness", "testing/output"),
    *(
        "dataflow/stream",
        "dataflow/projection",
        "dataflow/windowing",
        "dataflow/windows/*",
        "dataflow/triggers/*",
    ),
    "model/*",
]


def expected(program: str) -> dict[int, str]:
    """Return line -> what a checker says of it, a type or the beginning of an error."""
    lines = enumerate(program.split("\n"), 1)
    return {n: line.partition("  # ")[2] for n, line in lines if "#" in line.lstrip()[1:]}


def told_by_mypy(program: str, folder: Path) -> dict[int, str]:
    """Return line -> the type that mypy reveals there, or its first error."""
    (folder / "program.py").write_text(program)
    sources = [str(path) for name in READ_BY_MYPY for path in sorted(SOURCES.glob(f"{name}.py"))]
    ran = subprocess.run(
        [
            sys.executable, "-m", "mypy", "--config-file=", "--follow-imports=skip", "--no-pretty",
            "--check-untyped-defs", f"--cache-dir={folder / 'cache'}",
            str(folder / "program.py"), *sources,
        ],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.stderr == ""
    told: dict[int, str] = {}
    pattern = r"program\.py:(\d+): (?:note: Revealed type is \"(.*)\"|(error: .*))"
    for line, revealed, error in re.findall(pattern, ran.stdout):
        told.setdefault(int(line), error or re.sub(r"\b(?:\w+\.)+(?=\w)", "", revealed))
        if error.startswith("error: No overload"):
            told[int(line)] = error
    return told


def told_by_pyright(program: str, folder: Path) -> dict[int, str]:
    """Return line -> the type that Pyright reveals there, or its first error."""
    (folder / "program.py").write_text(program)
    settings = {
        "typeCheckingMode": "standard",
        "include": ["program.py"],
        "extraPaths": [str(ROOT / "src")],
    }
    (folder / "pyrightconfig.json").write_text(json.dumps(settings))
    ran = subprocess.run(
        [
            sys.executable, "-m", "basedpyright", "--project", str(folder), "--outputjson",
            "--pythonpath", sys.executable,
        ],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    told: dict[int, str] = {}
    for found in json.loads(ran.stdout)["generalDiagnostics"]:
        line, message = found["range"]["start"]["line"] + 1, found["message"]
        revealed = re.fullmatch(r'Type of ".*" is "(.*)"', message)
        told.setdefault(line, revealed[1] if revealed else f"{found['severity']}: {message}")
    return told


def test_mypy_knows_a_users_program(tmp_path: Path) -> None:
    told, wanted = told_by_mypy(PROGRAM, tmp_path), expected(PROGRAM)
    assert told.keys() == wanted.keys(), told
    for line, message in wanted.items():
        if message.startswith("error: "):
            assert told[line].startswith(message), line
        else:
            assert told[line] == message, line


def test_pyright_knows_a_users_program(tmp_path: Path) -> None:
    told, wanted = told_by_pyright(PROGRAM, tmp_path), expected(PROGRAM)
    assert told.keys() == wanted.keys(), told
    for line, message in wanted.items():
        if message.startswith("error: "):
            assert told[line].startswith("error: "), line
        else:
            assert told[line] == message, line


def readme() -> str:
    """Return the programs of the README, one after another, as they run."""
    text = (ROOT / "README.md").read_text()
    programs = re.findall(r"^```python(?: spark)?\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert len(programs) >= 3
    return "\n".join(programs)


def test_mypy_has_nothing_to_say_of_the_readmes_example(tmp_path: Path) -> None:
    assert told_by_mypy(readme(), tmp_path) == {}


def test_pyright_has_nothing_to_say_of_the_readmes_example(tmp_path: Path) -> None:
    assert told_by_pyright(readme(), tmp_path) == {}
