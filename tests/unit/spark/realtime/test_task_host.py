"""The loop that lets a live task have its turns, with a task and a coordinator made up here."""

from __future__ import annotations

import pickle
import queue
import threading
from collections import Counter
from collections.abc import Iterable, Iterator

import pytest

from millrace.model.errors import UserCodeError
from millrace.runtime.realtime.messages import (
    At,
    FromTask,
    Mark,
    RenewTask,
    StartTask,
    StatusQuery,
    Stepped,
    StopTask,
    Take,
    TaskEnded,
    TaskReady,
    TaskStatus,
    ToDriver,
    ToTask,
)
from millrace.runtime.realtime.task import Sent, TaskStats, silent
from millrace.spark.realtime import latency as steps_module
from millrace.spark.realtime import task_host
from millrace.spark.realtime.flow_control import TurnBudget
from millrace.spark.realtime.latency import StepTimer
from millrace.spark.realtime.task_host import (
    Backoff,
    IncarnationOver,
    ReceivedPackets,
    ReceiveQueue,
    hosted,
)


class Coordinator:
    """A line on which a test speaks, and reads what was said."""

    def __init__(self, *says: ToTask) -> None:
        self._says: queue.SimpleQueue[ToTask] = queue.SimpleQueue()
        self.told: list[ToDriver] = []
        for message in says:
            self._says.put(message)

    def say(self, message: ToDriver) -> None:
        self.told.append(message)

    def hear(self) -> ToTask:
        return self._says.get()

    def tell(self, message: ToTask) -> None:
        self._says.put(message)


class Echo:
    """A task that sends each packet to the task of the same number, and says how many it had."""

    def __init__(self, level: int = 1) -> None:
        self.level, self.number, self.wake_us = level, 4, 1 << 62
        self.ring, self.calls_pending = silent, 0
        self.outgoing: list[FromTask] = []
        self.stats = TaskStats(level, 4)
        self.started: list[StartTask] = []
        self.told: list[ToTask] = []
        self.sent: list[bytes] = []
        self.left: list[int] = []
        self.closed = 0
        self._packets: list[bytes] = []

    def start(self, start: StartTask, wall_us: int) -> Iterator[Sent]:
        self.started.append(start)
        yield self.number, b"again"

    def tell(self, message: ToTask) -> None:
        self.told.append(message)

    def receive(self, packets: Iterable[bytes]) -> None:
        self._packets += packets

    def turn(self, wall_us: int, wait_s: float) -> Iterator[Sent]:
        packets, self._packets = self._packets, []
        for packet in packets:
            if packet == b"no":
                raise UserCodeError("Echo, key 'no'")
            self.sent.append(packet)
            yield self.number, packet
        self.outgoing.append(TaskStatus(self.level, self.number, len(packets), {}, 0, 0.0))

    def after_turn(self) -> Iterator[Sent]:
        self.left.append(len(self.sent))
        yield from ()

    def at_hand(self) -> str:
        return "its packets"

    def is_outside(self) -> bool:
        return False

    def close(self) -> None:
        self.closed += 1


def sent(task: Echo, line: Coordinator, packets: Iterable[bytes], *then: Echo) -> list[Sent]:
    """Return what a task sends, and those that are made after it in its place."""
    steps, made = StepTimer(), iter([task, *then])
    arriving = (steps.arrived(steps.stamped(packet)) for packet in packets)
    given = hosted(lambda: next(made), line, arriving, steps)
    return [one for together in given for one in together]


def test_a_task_begins_when_told_so_and_ends_with_its_input() -> None:
    task, line = Echo(), Coordinator(StartTask(7, b""))
    assert sent(task, line, [b"a", b"b"]) == [(4, b"again"), (4, b"a"), (4, b"b")]
    assert task.started == [StartTask(7, b"")]
    assert task.closed == 1
    hello, *told, over = line.told
    assert isinstance(hello, TaskReady)
    assert (hello.level, hello.task) == (1, 4)
    assert sum(message.records for message in told if isinstance(message, TaskStatus)) == 2
    assert over == TaskEnded(1, 4)


def test_what_steps_take_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps_module, "_EVERY_S", 0.0)
    task, line = Echo(), Coordinator(StartTask(7, b""))
    sent(task, line, [b"a", b"b", b"c"])
    found: Counter[str] = Counter()
    for message in line.told:
        if isinstance(message, Stepped):
            assert (message.level, message.task) == (1, 4)
            found.update({step: sum(of.values()) for step, of in message.times.items()})
    turns = found.pop("turn")
    assert found == {"on the way": 3, "before its turn": 3}
    assert 1 <= turns <= 3


def test_a_task_whose_input_ends_before_it_begins_does_nothing() -> None:
    task, line = Echo(), Coordinator()
    assert sent(task, line, []) == []
    assert task.started == []
    assert line.told[-1] == TaskEnded(1, 4)


class Slow(Echo):
    """An injector task whose turns take so long, each over as many rows as it may take."""

    def __init__(self, *seconds: float) -> None:
        super().__init__(level=0)
        self._seconds = list(seconds)
        self.took: list[int] = []

    def turn(self, wall_us: int, wait_s: float) -> Iterator[Sent]:
        if self._seconds:
            last = self.told[-1]
            assert isinstance(last, Take)
            self.took.append(last.rows)
            self.stats.records += last.rows
            self.stats.busy_s += self._seconds.pop(0)
            yield self.number, b"rows"


def test_an_injector_task_takes_more_while_turns_are_short_and_less_when_one_is_long() -> None:
    task, line = Slow(*[0.01] * 17, 5.0, 0.4), Coordinator(StartTask(7, b""))

    def packets() -> Iterator[bytes]:
        while len(task.took) < 19:
            threading.Event().wait(0.01)
        yield from ()

    sent(task, line, packets())
    assert task.took == [*[100] * 16, 130, 169, 42]


def test_what_a_turn_sends_has_left_before_the_rest_of_it_is_done() -> None:
    class Marking(Echo):
        """A task that sends a mark after all that was ever sent."""

        def after_turn(self) -> Iterator[Sent]:
            yield from super().after_turn()
            yield self.number, b"mark"

    task, steps = Marking(), StepTimer()
    arriving = (steps.arrived(steps.stamped(packet)) for packet in [b"a", b"b"])
    for together in hosted(lambda: task, Coordinator(StartTask(7, b"")), arriving, steps):
        if (4, b"a") in together:
            assert not any(task.left)  # a turn without packets may have come before
            assert (4, b"mark") not in together
    assert max(task.left) == 2


class Keyed(Echo):
    """A level task in whose turns each packet has ten records of three keys."""

    def turn(self, wall_us: int, wait_s: float) -> Iterator[Sent]:
        self.stats.records += 10 * len(self._packets)
        self.stats.keys += 3 * len(self._packets)
        self.stats.busy_s += 0.5 * len(self._packets)
        yield from super().turn(wall_us, wait_s)


def test_what_a_task_may_take_follows_what_its_turns_were_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Noting(ReceiveQueue):
        def done(self, size: int, turn: TurnBudget) -> None:
            found.append((size, turn))

    found: list[tuple[int, TurnBudget]] = []
    monkeypatch.setattr(task_host, "ReceiveQueue", Noting)
    sent(Keyed(), Coordinator(StartTask(7, b"")), [b"12345", b"6789"])
    assert sum(size for size, _ in found) >= 9  # and what says when a packet was sent
    turns = [turn for size, turn in found if size]
    assert sum(turn.records for turn in turns) == 20
    assert sum(turn.keys for turn in turns) == 6
    assert sum(turn.seconds for turn in turns) == 1.0


def test_messages_reach_the_task() -> None:
    def packets() -> Iterator[bytes]:
        line.tell(Mark(3))
        while not task.told:
            yield b"."

    task, line = Echo(), Coordinator(StartTask(1, b""))
    sent(task, line, packets())
    assert task.told == [Mark(3)]


class Asking(Coordinator):
    """Asks a task what it does, and knows how often it has answered."""

    def __init__(self) -> None:
        super().__init__(StartTask(1, b""))
        self.answers: list[At] = []
        self._answered = threading.Semaphore(0)

    def say(self, message: ToDriver) -> None:
        super().say(message)
        if isinstance(message, At):
            self.answers.append(message)
            self._answered.release()

    def ask(self, times: int = 1) -> None:
        """Ask, from the thread of the task: it is at this while it does."""
        for _ in range(times):
            self.tell(StatusQuery())
        for _ in range(times):
            assert self._answered.acquire(timeout=20)


def test_a_task_that_hangs_says_at_what_and_that_it_does_not_move() -> None:
    class Hanging(Echo):
        def turn(self, wall_us: int, wait_s: float) -> Iterator[Sent]:
            if not line.answers:
                line.ask(2)
            yield from ()

    task, line = Hanging(), Asking()
    sent(task, line, [b"a"])
    assert line.answers == [At(1, 4, "its packets", moves=1)] * 2
    assert task.told == []


def test_a_task_whose_calls_return_is_seen_to_move() -> None:
    class Working(Echo):
        def turn(self, wall_us: int, wait_s: float) -> Iterator[Sent]:
            if not line.answers:
                line.ask()
            yield from ()

        def after_turn(self) -> Iterator[Sent]:
            if len(line.answers) == 1:
                line.ask()
            yield from ()

    task, line = Working(), Asking()
    sent(task, line, [b"a"])
    assert [answer.moves for answer in line.answers] == [1, 2]


def test_a_task_that_waits_for_who_takes_what_it_sends_does_not_hang() -> None:
    task, line, steps = Echo(), Asking(), StepTimer()
    given = hosted(lambda: task, line, [steps.stamped(b"a")], steps)
    assert next(given) == [(4, b"again")]
    line.ask()
    given.close()
    assert line.answers == [At(1, 4, "")]


def test_a_task_that_does_not_close_at_a_rest_says_so() -> None:
    class Closing(Echo):
        def close(self) -> None:
            super().close()
            line.ask()

        def at_hand(self) -> str:
            return ""

    first, line = Closing(), Asking()
    line.tell(RenewTask())
    line.tell(StopTask())
    sent(first, line, [], Echo())
    (answer,) = line.answers
    assert "close (" in answer.what
    assert "test_task_host.py" in answer.what


def test_a_message_that_comes_with_the_start_reaches_a_task_that_has_begun(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Together:
        """An intake in which everything is there at once."""

        def __init__(self, *_: object) -> None:
            self.messages: list[ToTask] = [StartTask(1, b""), Mark(3)]

        def ring(self) -> None:
            pass

        def take(self, wait_s: float) -> ReceivedPackets:
            messages, self.messages = self.messages, []
            return ReceivedPackets([], messages, ended=True)

        def close(self) -> None:
            pass

    class Beginning(Echo):
        def start(self, start: StartTask, wall_us: int) -> Iterator[Sent]:
            yield from super().start(start, wall_us)
            self.told.clear()

    monkeypatch.setattr(task_host, "ReceiveQueue", Together)
    task = Beginning()
    sent(task, Coordinator(), [])
    assert task.told == [Mark(3)]


def test_what_a_task_raises_is_told_and_raised() -> None:
    task, line = Echo(), Coordinator(StartTask(1, b""))
    with pytest.raises(UserCodeError, match="key 'no'"):
        sent(task, line, [b"no"])
    over = line.told[-1]
    assert isinstance(over, TaskEnded)
    assert isinstance(pickle.loads(over.error), UserCodeError)
    assert task.closed == 1


def test_a_task_that_is_halted_sends_nothing_more_and_waits_for_the_end() -> None:
    def packets() -> Iterator[bytes]:
        line.tell(StopTask())
        yield from [b"."] * 1000
        halted.append(len(line.told))

    halted: list[int] = []
    task, line = Echo(), Coordinator(StartTask(1, b""))
    sent(task, line, packets())
    assert halted
    assert line.told[-1] == TaskEnded(1, 4)


def test_a_task_that_nobody_ends_ends_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_host, "_LINGER_S", 0.01)

    def packets() -> Iterator[bytes]:
        queue.SimpleQueue[bytes]().get()
        yield b""

    with pytest.raises(IncarnationOver, match="level 1, task 4"):
        sent(Echo(), Coordinator(StopTask()), packets())


def test_an_injector_task_waits_in_its_turn() -> None:
    class Counting(Echo):
        turns = 0

        def turn(self, wall_us: int, wait_s: float) -> Iterator[Sent]:
            self.turns += 1
            assert wait_s > 0
            if self.turns == 3:
                line.tell(StopTask())
            yield 0, b"x"

    def packets() -> Iterator[bytes]:
        while task.turns < 3:
            pass
        yield from ()

    task, line = Counting(level=0), Coordinator(StartTask(1, b""))
    assert len(sent(task, line, packets())) >= 3


class Telling(Coordinator):
    """A coordinator that answers each call of a task with what is next."""

    def __init__(self, *answers: ToTask) -> None:
        super().__init__()
        self._answers = iter(answers)
        self.closed: list[int] = []
        self.tasks: list[Echo] = []

    def say(self, message: ToDriver) -> None:
        super().say(message)
        if isinstance(message, TaskReady):
            self.closed.append(sum(task.closed for task in self.tasks))
            if (answer := next(self._answers, None)) is not None:
                self.tell(answer)


def test_at_a_rest_another_task_takes_the_place_of_the_one_that_is_closed() -> None:
    def packets() -> Iterator[bytes]:
        yield b"a"
        while not (first.told and first.sent):
            pass
        line.tell(RenewTask())
        while not second.started:
            pass
        yield b"b"

    first, second = Echo(), Echo()
    line = Telling(StartTask(1, b""), StartTask(2, b""))
    line.tasks = [first, second]
    line.tell(Mark(3))
    data = [data for _, data in sent(first, line, packets(), second)]
    assert data == [b"again", b"a", b"again", b"b"]
    assert (first.started, second.started) == ([StartTask(1, b"")], [StartTask(2, b"")])
    assert (first.told, second.told) == ([Mark(3)], [])
    # Who says that it is ready again has nothing open any more.
    assert line.closed == [0, 1]
    assert (first.closed, second.closed) == (1, 1)
    hellos = [message for message in line.told if isinstance(message, TaskReady)]
    assert hellos[0] == hellos[1]
    assert line.told[-1] == TaskEnded(1, 4)


def test_a_task_that_waits_at_a_rest_may_rest_again_and_be_halted() -> None:
    def packets() -> Iterator[bytes]:
        while len(line.closed) < 3:
            pass
        line.tell(StopTask())
        yield from ()

    tasks = [Echo() for _ in range(3)]
    line = Telling(StartTask(1, b""), RenewTask(), None)  # type: ignore[arg-type]  # of the third it says nothing
    line.tell(RenewTask())
    assert sent(tasks[0], line, packets(), *tasks[1:]) in ([], [(4, b"again")])
    assert [task.closed for task in tasks] == [1, 1, 1]
    assert tasks[2].started == []
    assert line.told[-1] == TaskEnded(1, 4)


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_task_whose_input_ends_at_a_rest_ends(when: str) -> None:
    def packets() -> Iterator[bytes]:
        while not first.started:
            pass
        if when == "after":
            line.tell(RenewTask())
            while len(line.closed) < 2:
                pass
        else:
            ended.set()
        yield from ()

    ended = threading.Event()

    class Ending(Echo):
        def turn(self, wall_us: int, wait_s: float) -> Iterator[Sent]:
            if ended.is_set():
                line.tell(RenewTask())
            yield from ()

    first, second = Ending(), Echo()
    line = Telling(StartTask(1, b""))
    sent(first, line, packets(), second)
    assert second.started == []
    assert line.told[-1] == TaskEnded(1, 4)


def test_what_a_task_raises_that_is_made_at_a_rest_is_told() -> None:
    def packets() -> Iterator[bytes]:
        queue.SimpleQueue[bytes]().get()
        yield b""

    class Refusing(Echo):
        def start(self, start: StartTask, wall_us: int) -> Iterator[Sent]:
            raise UserCodeError("no more")

    line = Telling(RenewTask(), StartTask(2, b""))
    first, second = Echo(), Refusing()
    with pytest.raises(UserCodeError, match="no more"):
        sent(first, line, packets(), second)
    over = line.told[-1]
    assert isinstance(over, TaskEnded)
    assert isinstance(pickle.loads(over.error), UserCodeError)
    assert (first.closed, second.closed) == (1, 1)


def test_packets_of_a_incarnation_that_is_over_do_not_upset_the_steps_of_the_next() -> None:
    """Each packet that arrived is taken by a turn, or what steps are said to take is another's."""

    class Resting(Echo):
        def receive(self, packets: Iterable[bytes]) -> None:
            super().receive(packets)
            received.extend(packets)

    def packets() -> Iterator[bytes]:
        yield from [b"."] * 100
        line.tell(RenewTask())
        yield from [b","] * 100
        while not second.started:
            pass

    received: list[bytes] = []
    first, second = Resting(), Resting()
    line = Telling(StartTask(1, b""), StartTask(2, b""))
    sent(first, line, packets(), second)
    assert received == [b"."] * 100 + [b","] * 100


class Waiting(Echo):
    """An injector task that waits for input in its second turn, and spends CPU time on it."""

    def __init__(self) -> None:
        super().__init__(level=0)
        self.turns = 0

    def turn(self, wall_us: int, wait_s: float) -> Iterator[Sent]:
        self.turns += 1
        if self.turns == 2:
            self.stats.waited_s += 0.25
            self.stats.waited_cpu_s += 100.0
        yield self.number, b"rows"


def test_a_pause_is_by_how_long_the_turn_waited_and_not_by_the_cpu_time_of_that(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[tuple[float, float]] = []

    class Recorded(Backoff):
        def after(self, spent_s: float, began_s: float, waited_s: float, ended_s: float) -> float:
            assert began_s <= ended_s
            asked.append((spent_s, waited_s))
            return 0.0

    def packets() -> Iterator[bytes]:
        while task.turns < 4:
            threading.Event().wait(0.01)
        yield from ()

    monkeypatch.setattr(task_host, "Backoff", Recorded)
    task = Waiting()
    sent(task, Coordinator(StartTask(7, b"")), packets())
    assert [waited_s for _, waited_s in asked[:4]] == [0.0, 0.25, 0.0, 0.0]
    assert asked[0][0] >= 0
    assert asked[1][0] < -99  # this test's time of waiting is made up; what is left is the turn's
