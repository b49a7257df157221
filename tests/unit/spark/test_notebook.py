"""A run in a notebook: a cell that goes on with it, by IPython's own display."""

import queue
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import millrace as mr
from millrace.compile.change.plan import KEPT, PartChange, planned
from millrace.spark.handle import Handle
from millrace.spark.progress_display import LiveCell
from tests.unit.spark.test_status_text import status

InteractiveShell = pytest.importorskip("IPython.core.interactiveshell").InteractiveShell


class ZMQInteractiveShell(InteractiveShell):  # type: ignore[misc]
    """What libraries take for a notebook, by its name."""


class Run:
    """A run that goes on a step whenever a cell is drawn again."""

    def __init__(self) -> None:
        self.active = True
        self.epoch = 0
        self._steps: queue.Queue[None] = queue.Queue()
        self.asked: queue.Queue[None] = queue.Queue()

    def status(self) -> Any:
        state = "running" if self.active else "stopped"
        return status(epoch=self.epoch, state=state)

    def pause(self, _: float) -> None:
        self.asked.put(None)
        self._steps.get(timeout=60)

    def step(self, *, active: bool = True) -> None:
        self.asked.get(timeout=60)
        self.epoch, self.active = self.epoch + 1, active
        self._steps.put(None)


class Shown(Handle):
    """The handle of such a run."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self._run = run  # type: ignore[assignment]
        self._cell = LiveCell(self.status, self._goes_on, run.pause)


@pytest.fixture
def run() -> Run:
    return Run()


@pytest.fixture
def shell(run: Run, tmp_path: Path) -> Iterator[Any]:
    """Return IPython as a kernel has it: it publishes, and does not print."""
    from IPython.core.displaypub import CapturingDisplayPublisher
    from traitlets.config import Config

    config = Config({"HistoryManager": {"enabled": False}})
    made = ZMQInteractiveShell.instance(config=config, ipython_dir=str(tmp_path))
    made.display_pub = CapturingDisplayPublisher(parent=made)
    made.user_ns["run"] = Shown(run)
    yield made
    ZMQInteractiveShell.clear_instance()


def published(shell: Any, number: int, run: Run) -> Any:
    """Return what was published as the n-th, once it is."""
    run.asked.get(timeout=60)
    run.asked.put(None)
    return shell.display_pub.outputs[number]


def test_a_cell_goes_on_with_the_run_and_ends_with_it(shell: Any, run: Run) -> None:
    assert shell.run_cell("run").success
    first = shell.display_pub.outputs[0]
    assert not first["update"]
    assert "<table" in first["data"]["text/html"]
    assert first["data"]["text/plain"].splitlines()[1].split() == ["state", "running"]

    run.step()
    second = published(shell, 1, run)
    assert second["update"]
    assert second["transient"] == first["transient"], "it is the same cell"
    assert "1 was the last to complete" in second["data"]["text/plain"]

    (follower,) = (one for one in threading.enumerate() if one.name == "millrace-cell")
    run.step(active=False)
    follower.join(60)
    assert "stopped" in shell.display_pub.outputs[-1]["data"]["text/html"]
    assert len(shell.display_pub.outputs) == 3


def test_shown_again_the_new_cell_lives(shell: Any, run: Run) -> None:
    shell.run_cell("run")
    shell.run_cell("run")
    first, second = shell.display_pub.outputs
    assert first["transient"] != second["transient"]

    (follower,) = (one for one in threading.enumerate() if one.name == "millrace-cell")
    run.step(active=False)
    follower.join(60)
    assert shell.display_pub.outputs[-1]["transient"] == second["transient"]
    assert len(shell.display_pub.outputs) == 3


def test_a_run_that_is_over_is_drawn_once(shell: Any, run: Run) -> None:
    run.active = False
    shell.run_cell("run")
    assert ["stopped" in one["data"]["text/plain"] for one in shell.display_pub.outputs] == [True]
    assert not [one for one in threading.enumerate() if one.name == "millrace-cell"]


def test_what_is_text_is_printed_as_text(
    shell: Any, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    run.active = False
    assert shell.run_cell("print(run.status())").success
    assert capsys.readouterr().out.splitlines()[1].split() == ["state", "stopped"]
    assert shell.display_pub.outputs == []


def test_explanations_and_plans_are_drawn_as_they_are_printed(
    shell: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    p = mr.Pipeline("words")
    words = p.inject("words", format=str).key_by(str)
    words.window(mr.FixedWindows("1 min")).count().to("counts")
    with mr.testing.Harness(p) as h:
        h.inject("words", [("a", 1)])
        shell.user_ns.update(
            why=h.explain_watermark(),
            plan=planned("words", 7, [PartChange(KEPT, "computation 'counts'", "its state")]),
        )
    for name in ("why", "plan"):
        assert shell.run_cell(name).success
        assert capsys.readouterr().out.strip().endswith(str(shell.user_ns[name]).strip())


def test_a_console_sink_prints_in_a_notebook_too(
    shell: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    sink = mr.sinks.Console()
    rows = sink.for_tasks().begin(7, 0)
    rows.write(pa.RecordBatch.from_pydict({"key": ["a"]}))
    shell.user_ns.update(sink=sink, receipts=[rows.close()])
    assert shell.run_cell("sink.publish(7, receipts)").success
    assert capsys.readouterr().out.splitlines() == [
        "-- epoch 7",
        "+---+",
        "|key|",
        "+---+",
        "|a  |",
        "+---+",
    ]
    assert shell.display_pub.outputs == []


def test_without_a_notebook_ipython_takes_the_repr(run: Run) -> None:
    from IPython.core.formatters import DisplayFormatter

    data, _ = DisplayFormatter().format(Shown(run))
    assert list(data) == ["text/plain"]
