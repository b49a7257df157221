"""A loop whose time is what a test says."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from typing import Any

import pytest

from millrace.model.errors import PipelineError
from millrace.runtime.virtual_loop import VirtualTimeLoop


@pytest.fixture
def loop() -> Iterator[VirtualTimeLoop]:
    loop = VirtualTimeLoop()
    yield loop
    for task in asyncio.all_tasks(loop):
        task.cancel()
    loop.wait(lambda: False, 0)
    loop.close()


def result(loop: VirtualTimeLoop, coroutine: Coroutine[Any, Any, Any]) -> Any:
    task = loop.create_task(coroutine)
    task.add_done_callback(lambda _: loop.notify())
    loop.wait(task.done, None)
    return task.result()


def test_sleepers_wake_in_order_of_time_and_nobody_waits(loop: VirtualTimeLoop) -> None:
    woken = list[tuple[str, float]]()

    async def sleeper(name: str, seconds: float) -> None:
        await asyncio.sleep(seconds)
        woken.append((name, loop.time()))

    async def all_of_them() -> None:
        await asyncio.gather(sleeper("b", 7200), sleeper("a", 3600), sleeper("c", 7200))

    result(loop, all_of_them())
    assert woken == [("a", 3600.0), ("b", 7200.0), ("c", 7200.0)]


def test_the_clock_moves_no_further_than_it_may(loop: VirtualTimeLoop) -> None:
    task = loop.create_task(asyncio.sleep(10, "done"))
    loop.advance_to(9.5)
    assert (loop.time(), task.done()) == (9.5, False)
    loop.advance_to(10.0)
    assert (loop.time(), task.done()) == (10.0, True)
    loop.advance_to(60.0)
    assert loop.time() == 60.0


def test_what_is_due_now_is_run_without_moving_the_clock(loop: VirtualTimeLoop) -> None:
    async def many_steps() -> str:
        for _ in range(100):
            await asyncio.sleep(0)
        return "done"

    task = loop.create_task(many_steps())
    loop.wait(lambda: False, 0)
    assert (loop.time(), task.result()) == (0.0, "done")


def test_timeouts_obey_the_clock(loop: VirtualTimeLoop) -> None:
    async def late() -> str:
        try:
            async with asyncio.timeout(2):
                await asyncio.sleep(3)
        except TimeoutError:
            return f"late at {loop.time()}"
        return "in time"

    assert result(loop, late()) == "late at 2.0"


def test_a_clock_that_began_long_ago_arrives_all_the_same() -> None:
    loop = VirtualTimeLoop(1.7e9)
    result(loop, asyncio.sleep(1e-9))
    result(loop, asyncio.sleep(0.1))
    assert loop.time() == pytest.approx(1.7e9 + 0.1)
    loop.close()


def test_functions_for_threads_run_at_once(loop: VirtualTimeLoop) -> None:
    here = threading.get_ident()
    assert result(loop, asyncio.to_thread(threading.get_ident)) == here

    with pytest.raises(ZeroDivisionError):
        result(loop, asyncio.to_thread(lambda: 1 // 0))


def test_it_runs_within_another_loop() -> None:
    async def cell_of_a_notebook() -> float:
        loop = VirtualTimeLoop()
        result(loop, asyncio.sleep(5))
        loop.close()
        return loop.time()

    assert asyncio.run(cell_of_a_notebook()) == 5.0


async def _connects() -> None:
    await asyncio.open_connection("scores.example", 80)


async def _opens_a_socket_by_itself() -> None:
    import socket

    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        server.setblocking(False)
        await asyncio.get_running_loop().sock_accept(server)


async def _runs_a_program() -> None:
    await asyncio.create_subprocess_exec("true")


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (_connects, "connects to scores.example:80"),
        (_opens_a_socket_by_itself, "waits for a socket"),
        (_runs_a_program, "starts the program true"),
    ],
)
def test_what_is_real_is_refused(loop: VirtualTimeLoop, call: Any, words: str) -> None:
    with pytest.raises(PipelineError, match=f"A call {words}.*time is virtual"):
        result(loop, call())
    assert result(loop, asyncio.sleep(1, "still good")) == "still good"


def test_a_wait_for_what_nobody_does_is_an_error(loop: VirtualTimeLoop) -> None:
    async def forever() -> None:
        await asyncio.Event().wait()

    with pytest.raises(PipelineError, match="within a day of virtual time"):
        result(loop, forever())
