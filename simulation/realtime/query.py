"""A simulated query of live tasks: processes, pipes between them, and lines to the driver.

What it promises its code is what Spark's streaming shuffle promises: what one task sends to another
arrives in its order, or stops arriving. And no more: tasks have a pace of their own, one that dies
takes with it what had not arrived, others notice it late or never and go on as if nothing had
happened, and a query that is given up may live on beside the next one.
"""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING

from millrace.model.errors import MillraceError
from millrace.runtime.realtime.coordinator import Orders, TaskKey
from millrace.runtime.realtime.host import IncarnationHost
from millrace.runtime.realtime.injector_task import InjectorTask
from millrace.runtime.realtime.messages import (
    FromTask,
    RenewTask,
    StartTask,
    StopTask,
    TaskEnded,
    TaskReady,
    ToTask,
)
from millrace.runtime.realtime.task import LiveTask, Sent
from millrace.runtime.worker_process import WorkerProcess
from simulation.hosts import Host
from simulation.realtime.pressure import Pressure
from simulation.scheduler import Killed, Process

if TYPE_CHECKING:
    from simulation.realtime.simulation import RealtimeSimulation

#: Level tasks keep commits in memory for so many turns, one of these each: none, few, or all.
_KEPT_TURNS = (1, 3, 64)
#: What weak computations did becomes durable after so many turns: mostly those of production, so
#: that failures find much that waits.
_WEAK_TURNS = (64, 64, 2, 64)

#: Level, number of the task that sends, and of the one that receives.
Pipe = tuple[int, int, int]


class LineBroken(MillraceError):
    """A task cannot reach its driver any more."""


class TaskLost(MillraceError):
    """A task has ended without a word."""


class Packets:
    """Packets of older incarnations, as a network may deliver them again.

    A pipe's are kept by their number.
    """

    def __init__(self) -> None:
        self._old: dict[tuple[Pipe, int], bytes] = {}

    def keep(self, pipe: Pipe, number: int, packet: bytes) -> None:
        """Keep a packet; the last of its number in that pipe stays."""
        self._old[pipe, number] = packet

    def old(self, pipe: Pipe, number: int) -> bytes | None:
        """Return one that an older incarnation sent there."""
        return self._old.get((pipe, number))


class Query:
    """One query: all tasks of one incarnation, if any, and of those that follow by rests.

    Args:
        world: Where it runs.
        driver: Whose it is.
        name: For the trace.
        levels: Of tasks; the first are the injectors'.
        tasks: Tasks a level.

    Attributes:
        heard: What tasks said: who, and what; nothing if it ended without a word.
        over: Whether Spark ends the batch: the injector tasks' input ends.
        pipes: What is on its way.
        pressure: Whether sources wait for calls.
    """

    def __init__(
        self, world: RealtimeSimulation, driver: Process, name: str, *, levels: int, tasks: int
    ) -> None:
        self._world = world
        self._driver = driver
        self._levels = levels
        self._tasks = tasks
        self.received: deque[tuple[TaskKey, FromTask | None]] = deque()
        self.over = False
        self.pipes: dict[Pipe, deque[bytes]] = {}
        self.pressure = Pressure(world.topology, world.work.pending_most)
        self._sent: dict[Pipe, int] = {}
        self._orders: dict[TaskKey, deque[ToTask]] = {}
        self.members: dict[TaskKey, Process] = {}
        self._hosts: dict[TaskKey, Host] = {}
        self._broken: set[TaskKey] = set()
        self._made = 0
        for level in range(levels):
            for n in range(tasks):
                self._launch((level, n), name)

    def _launch(self, where: TaskKey, name: str) -> None:
        host = self._world.random.choice(self._world.hosts)
        level, n = where
        self._orders[where] = deque()
        self._hosts[where] = host
        self.members[where] = self._world.scheduler.spawn(
            f"{name} task {level}.{n}@{host.number}", host.number, lambda: self._work(where)
        )

    # -- the driver's side -------------------------------------------------------------------------

    def tell(self, orders: Orders) -> None:
        """Send what the coordinator orders; over a broken line nothing goes."""
        for where, message in orders:
            if where not in self._broken:
                self._orders[where].append(message)

    def silent(self) -> TaskKey | None:
        """Return a task that has done nothing for so long that it is given up."""
        now = self._world.scheduler.steps
        for where, process in self.members.items():
            if not process.ended and process.paused_until > now + 200:
                return where
        return None

    def lost(self, where: TaskKey) -> None:
        """Take it that a process has died without a word, or with its line."""
        self.received.append((where, None))

    def hang_up(self, where: TaskKey) -> None:
        """Break the line to a task, which notices it when it next has something to say."""
        self._broken.add(where)
        self.lost(where)

    def cancel(self) -> None:
        """Have all tasks stopped; not all of them hear it in time."""
        for where, process in self.members.items():
            if process.ended:
                continue
            if self._world.random.random() < 0.6:
                self._world.scheduler.kill(process)
            else:
                self._broken.add(where)

    def alive(self) -> list[TaskKey]:
        """Return the tasks that run."""
        return [where for where in self.members if self._is_alive(where)]

    def _is_alive(self, where: TaskKey) -> bool:
        process = self.members[where]
        return not (process.ended or process.dead)

    def deliver_stale(self, pick: int) -> bool:
        """Put a packet of an older incarnation where the next is expected; return whether so."""
        found = [
            (pipe, old)
            for pipe, number in self._sent.items()
            if (old := self._world.packets.old(pipe, number + 1)) is not None
        ]
        if not found:
            return False
        pipe, old = found[pick % len(found)]
        self._pipe(pipe).append(old)
        return True

    # -- a task's process --------------------------------------------------------------------------

    def _work(self, where: TaskKey) -> None:
        """Host tasks, one after the other; what :mod:`millrace.spark.realtime.task_host` does."""
        level, n = where
        kept = partial(self.pressure.kept, where)
        runtime = self._world.live_runtime(self._hosts[where], self._tasks, kept)
        task = self.made(runtime, where)
        killed = False
        try:
            while self._host(task, where, runtime):
                task.close()
                self._numbers_begin_anew(where)
                self._world.scheduler.step("rest")
                task = self.made(runtime, where)
        except Killed:
            killed = True
            self._lose_outputs(where)
            raise
        except LineBroken:
            raise
        except Exception as error:
            self._say(where, TaskEnded(level, n, pickle.dumps(_picklable(error))))
            raise
        finally:
            if not killed:
                task.close()

    def made(self, runtime: WorkerProcess, where: TaskKey) -> LiveTask:
        """Return a task that knows nothing of an incarnation."""
        level, n = where
        if level == 0:
            return InjectorTask(runtime, n)
        self._made += 1
        kept, weak = (turns[self._made % len(turns)] for turns in (_KEPT_TURNS, _WEAK_TURNS))
        return IncarnationHost(runtime, level, n, kept_turns=kept, weak_turns=weak)

    def _numbers_begin_anew(self, where: TaskKey) -> None:
        """Take it that a task's packets are those of another incarnation from now on."""
        level, n = where
        for receiver in range(self._tasks):
            self._sent.pop((level + 1, n, receiver), None)

    def _host(self, task: LiveTask, where: TaskKey, runtime: WorkerProcess) -> bool:
        """Let a task have its turns in one incarnation; return whether another takes its place."""
        level, n = where
        world, host = self._world, self._hosts[where]
        orders = self._orders[where]
        self._say(where, TaskReady(level, n))
        started = False
        restless, there = 2, -1
        while True:
            ended = self._input_ended(where)
            if not (ended or orders or restless):
                world.scheduler.wait(partial(self._has_work, task, where, there), "hear")
                ended = self._input_ended(where)
            if not orders and self._cut_off(where) and world.random.random() < 0.3:
                raise LineBroken("the line to the driver is broken")
            while orders:
                message = orders.popleft()
                self.pressure.ordered(where, message)
                if isinstance(message, StopTask):
                    return False
                if isinstance(message, RenewTask):
                    if not ended:
                        return True
                    self._say(where, TaskEnded(level, n))
                    return False
                if isinstance(message, StartTask):
                    started = True
                    self._send(where, task.start(message, world.host_clock(host)))
                else:
                    task.tell(message)
            if not started:
                if ended:
                    break
                restless = 0
                continue
            there = self._there(where)
            reads, read = level > 0 or self.pressure.reads(where, self._is_alive), _read(task)
            arrived = self._arrived(where, everything=ended)
            task.receive(arrived)
            sent = self._send(where, task.turn(world.host_clock(host), 0.0))
            sent += self._send(where, task.after_turn())
            is_full = level > 0 and bool(self.pressure) and self.pressure.turned(where, runtime)
            said, task.outgoing = task.outgoing, []
            for one in said:
                self._say(where, one)
            has_read = _read(task) > read
            if has_read and not reads:
                world.violated(f"{where} reads on, though a task behind it is full of calls")
            if is_full:
                self.pressure.full(where, world.scheduler.steps)
            # What it has read may all be filtered out.
            restless = 2 if sent or arrived or said or has_read else max(0, restless - 1)
            if ended:
                break
        self._say(where, TaskEnded(level, n))
        return False

    def _has_work(self, task: LiveTask, where: TaskKey, there: int) -> bool:
        level, n = where
        if self._orders[where] or self._cut_off(where) or self._input_ended(where):
            return True
        for sender in range(self._tasks) if level else ():
            if self.pipes.get((level, sender, n)):
                return True
        if task.calls_pending:
            return True
        if task.wake_us <= self._world.host_clock(self._hosts[where]):
            return True
        return self._there(where) != there

    def _there(self, where: TaskKey) -> int:
        """Return how much there is to read by now."""
        return self._world.there() if where[0] == 0 else -1

    def _cut_off(self, where: TaskKey) -> bool:
        return where in self._broken or self._driver.dead or self._driver.ended

    def _input_ended(self, where: TaskKey) -> bool:
        """Return whether nothing more comes: every task before has come to its end."""
        level, _ = where
        if level == 0:
            return self.over
        for sender in range(self._tasks):
            process = self.members[level - 1, sender]
            if not process.ended or process.error is not None:
                return False
        return True

    def _arrived(self, where: TaskKey, *, everything: bool) -> list[bytes]:
        """Return packets, of each pipe the next ones."""
        level, n = where
        found: list[bytes] = []
        if level == 0:
            return found
        senders = list(range(self._tasks))
        self._world.random.shuffle(senders)
        for sender in senders:
            pipe = self._pipe((level, sender, n))
            most = len(pipe) if everything else self._world.random.choice((0, 1, 2, len(pipe)))
            found += [pipe.popleft() for _ in range(min(most, len(pipe)))]
        return found

    def _send(self, where: TaskKey, sent: Iterable[Sent]) -> int:
        level, n = where
        count = 0
        for receiver, packet in sent:
            self._world.scheduler.step("send", receiver)
            pipe = level + 1, n, receiver
            self._pipe(pipe).append(packet)
            number = self._sent[pipe] = self._sent.get(pipe, 0) + 1
            self._world.packets.keep(pipe, number, packet)
            count += 1
        return count

    def _say(self, where: TaskKey, message: FromTask) -> None:
        self._world.scheduler.step("say", type(message).__name__)
        if self._cut_off(where):
            raise LineBroken("the line to the driver is broken")
        self.received.append((where, message))

    def _pipe(self, pipe: Pipe) -> deque[bytes]:
        return self.pipes.setdefault(pipe, deque())

    def _lose_outputs(self, where: TaskKey) -> None:
        """Take back some of what a dead task sent and nobody has yet."""
        level, n = where
        for receiver in range(self._tasks):
            pipe = self._pipe((level + 1, n, receiver))
            for _ in range(self._world.random.randint(0, len(pipe))):
                pipe.pop()


def _read(task: LiveTask) -> int:
    """Return how many records a task has read, or been given, in its incarnation."""
    return task.stats.records


def _picklable(error: Exception) -> Exception:
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # noqa: BLE001  what cannot be told is told as text
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error
