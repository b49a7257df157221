"""What a type checker knows of a user's program: what cells hold, and which names there are."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
PROGRAM = """
from dataclasses import dataclass

import millrace as mr


@dataclass
class Payment:
    cents: int


class Counter(mr.Computation):
    inputs = {"payments": mr.by("account")}
    outputs = {"totals": int}
    minutes = mr.MapState(int)
    last = mr.ValueState(Payment, expires="1 h")
    names = mr.BagState(str, was="labels")
    most = mr.CombiningState(int, max)
    recent = mr.ValueState(list[int])
    raw: mr.ValueState[bytes] = mr.ValueState(mr.Coder())
    maybe: mr.ValueState[int | None] = mr.ValueState(int | None)

    def process_record(self, record: mr.Record) -> None:
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


mr.KafkaSink  # error: Module has no attribute "KafkaSink"
mr.Pipelin  # error: Module has no attribute "Pipelin"
"""


def test_a_type_checker_knows_what_cells_hold_and_which_names_there_are(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    # Alone, and not with all that they import, which would take a minute.
    names = ("__init__", *(f"model/{name}" for name in ("state", "computation", "record", "time")))
    sources = [str(ROOT / "src" / "millrace" / f"{name}.py") for name in names]
    ran = subprocess.run(
        [
            sys.executable, "-m", "mypy", "--config-file=", "--follow-imports=skip", "--no-pretty",
            f"--cache-dir={tmp_path / 'cache'}", str(program), *sources,
        ],
        capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert ran.stderr == ""
    told = dict(
        re.findall(r"program\.py:(\d+): (?:note: Revealed type is|error:) (.*)", ran.stdout)
    )
    lines = PROGRAM.split("\n")
    wanted = {
        str(number): line.partition("  # ")[2].removeprefix("error: ")
        for number, line in enumerate(lines, 1)
        if "  # " in line
    }
    assert told.keys() == wanted.keys(), ran.stdout
    for number, message in wanted.items():
        said, line = re.sub(r"\b(?:\w+\.)+(?=\w)", "", told[number]), lines[int(number) - 1]
        assert said == f'"{message}"' if "reveal_type" in line else said.startswith(message), line
