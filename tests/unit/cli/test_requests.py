"""``millrace status``, ``stop`` and ``drain``, with a run that answers and without."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from millrace.inspect import state_at
from millrace.model.errors import CheckpointMismatch
from millrace.spark.asks import Listener, UpdateAsked


@pytest.fixture
def run(checkpoint: Any) -> Iterator[Callable[..., None]]:
    """Return what lets a run of the checkpoint listen."""
    checkpoint.epoch("home", low_watermark=0)
    over = threading.Event()

    def listen(**acts: Callable[[str], str]) -> None:
        mailbox = state_at(checkpoint.path).mailbox
        by = Listener(mailbox, 1, acts, ended=str, epoch=lambda: 7, every_s=0.01)
        by.start()
        opened.append(by)

    opened: list[Listener] = []
    yield listen
    over.set()
    for one in opened:
        one.close()


def test_a_live_run_says_itself_where_it_stands(millrace: Any, checkpoint: Any, run: Any) -> None:
    run(status=lambda _: "records  12")
    shown = millrace("status", str(checkpoint.path), "--timeout", "60")

    assert (shown.exit_code, shown.output) == (0, "records  12\n")


def test_of_a_dead_run_the_checkpoint_tells(millrace: Any, checkpoint: Any, run: Any) -> None:
    shown = millrace("status", str(checkpoint.path), "--timeout", "0")

    assert shown.exit_code == 3
    assert shown.output.startswith("No run answers within 0 s; the last epoch, 0, was ")
    assert "Counter[bold]" in shown.output


@pytest.mark.parametrize(
    ("state", "said"),
    [("stopped", " by request, after epoch 7.\n"), ("failed", "The run failed at ")],
)
def test_of_a_run_that_ended_in_order_the_status_says_how(
    millrace: Any, checkpoint: Any, state: str, said: str
) -> None:
    checkpoint.epoch("home", low_watermark=0)
    mailbox = state_at(checkpoint.path).mailbox
    run = Listener(mailbox, 1, {}, ended=lambda: state, epoch=lambda: 7, every_s=60)
    run.close()
    run.close()

    shown = millrace("status", str(checkpoint.path))

    assert shown.exit_code == 3
    assert said in shown.output
    assert "No run answers" not in shown.output
    refused = millrace("stop", str(checkpoint.path))
    assert "There is no run to stop." in refused.output


def test_who_stops_a_run_is_told_when_it_took_effect(
    millrace: Any, checkpoint: Any, run: Any
) -> None:
    run(stop=lambda _: "stopped")
    shown = millrace("stop", str(checkpoint.path), "--timeout", "60")

    assert (shown.exit_code, shown.output) == (0, "stopped after epoch 7\n")


def test_a_run_that_does_not_answer_or_refuses_is_an_error(
    millrace: Any, checkpoint: Any, run: Any
) -> None:
    alone = millrace("stop", str(checkpoint.path), "--timeout", "0")
    run(stop=lambda _: "stopped")
    refused = millrace("drain", str(checkpoint.path), "--timeout", "60")

    assert alone.exit_code == refused.exit_code == 1
    assert "The request to stop it was taken back" in alone.output
    assert "the run did not drain: this run cannot 'drain'; it can stop." in refused.output


def test_a_drained_run_cannot_be_stopped(millrace: Any, checkpoint: Any) -> None:
    checkpoint.epoch("home", low_watermark=0, drain=True)
    shown = millrace("stop", str(checkpoint.path))

    assert (shown.exit_code, "was drained: it has ended for good" in shown.output) == (1, True)


def test_an_update_names_the_code_for_the_driver_and_says_what_came_of_it(
    millrace: Any, checkpoint: Any, run: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[UpdateAsked] = []

    def update(about: str) -> str:
        asked.append(msgspec.json.decode(about, type=UpdateAsked))
        if asked[-1].application.startswith("bad"):
            raise CheckpointMismatch("computation 'Counts' is gone")
        return "it has taken over after epoch 7; the run stood still for 0.2 s"

    run(update=update)
    monkeypatch.chdir(tmp_path)
    path = str(checkpoint.path)
    done = millrace("update", "jobs.py:shop", path, "--tasks", "3", "--realtime")
    said = "it has taken over after epoch 7; the run stood still for 0.2 s\n"
    assert (done.exit_code, done.output) == (0, said)
    assert asked == [UpdateAsked(f"{tmp_path}/jobs.py:shop", {"tasks": 3, "realtime": True})]

    refused = millrace("update", "bad.jobs:shop", path)
    assert asked[-1] == UpdateAsked("bad.jobs:shop")
    assert refused.exit_code == 3
    assert "not updated: it failed: computation 'Counts' is gone" in refused.output


def test_a_stream_is_held_back_and_read_again(millrace: Any, checkpoint: Any, run: Any) -> None:
    asked = list[str]()

    def act(about: str) -> str:
        asked.append(about)
        return f"{about} it is"

    run(**{"pause": act, "resume": act, "rate-limit": act})
    path = str(checkpoint.path)
    for arguments in (["pause"], ["resume"], ["rate-limit"]):
        more = ["2.5"] if arguments == ["rate-limit"] else []
        shown = millrace(*arguments, path, "trips", *more, "--timeout", "60")
        assert (shown.exit_code, shown.output) == (0, f"{asked[-1]} it is, after epoch 7\n")

    assert asked == ["trips", "trips", "trips=2.5"]


def test_what_there_is_is_kept(millrace: Any, checkpoint: Any, run: Any) -> None:
    run(savepoint=lambda name: f"kept as {name}", snapshot=lambda _: "kept as epoch-7")
    path = str(checkpoint.path)

    named = millrace("savepoint", path, "before", "--timeout", "60")
    assert (named.exit_code, named.output) == (0, "kept as before\n")
    numbered = millrace("snapshot", path, "--timeout", "60")
    assert (numbered.exit_code, numbered.output) == (0, "kept as epoch-7\n")


def test_what_cannot_be_held_back_is_an_error(millrace: Any, checkpoint: Any, run: Any) -> None:
    run()
    shown = millrace("pause", str(checkpoint.path), "trips", "--timeout", "60")

    assert shown.exit_code == 1
    assert "the run did not pause: this run cannot 'pause'" in shown.output
