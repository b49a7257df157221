"""An S3 server that fails, before and after it did what it was asked: no outcome is guessed."""

from __future__ import annotations

import itertools
import logging
import pickle
import secrets
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from killed_store import check_writer_with_killed_store
from logs import append
from s3_server import BUCKET, FaultyProxy, S3Server, no_fault

from millrace.model.errors import CheckpointUnwritable, StoreError
from millrace.model.time import SECOND
from millrace.store import (
    BucketOptions,
    BucketUrl,
    Commit,
    CommitGroup,
    ObjectBlobs,
    ObjectHardState,
)

pytestmark = pytest.mark.timeout(120)

# Short, as what is never answered must be given up; a busy machine may have to try again.
OPTIONS = BucketOptions(timeout_us=SECOND // 2, retry_for_us=20 * SECOND)
#: To put a part may take longer on a busy machine.
LARGE = replace(OPTIONS, timeout_us=10 * SECOND)

COMMITS = [Commit("count", i, 1, 1, 1, [(b"Sk", b"v")], b"p" * 3000) for i in range(3)]
ENTRY = b'{"claim": 1}'


def opened(url: str, options: BucketOptions = OPTIONS) -> ObjectHardState:
    """Return the state at a URL, as a driver sees it; its retries do not wait."""
    bucket = ObjectBlobs(BucketUrl.parse(url), options, sleep=lambda _: None)
    return ObjectHardState.create_or_open(bucket, pipeline="p")


BEFORE = ["500", "503", "429", "409", "drop", "hold"]
AFTER = ["late 500", "late 409", "late drop", "late hold"]


@pytest.mark.parametrize("fault", BEFORE + AFTER)
def test_a_put_that_fails_once_is_put_once(s3: str, faulty: FaultyProxy, fault: str) -> None:
    state = opened(s3)
    faulty.once(fault)
    assert append(state, COMMITS) == [True] * 3
    faulty.once(fault)
    assert append(state, COMMITS) == [False] * 3
    faulty.once(fault)
    assert state.epochs.append(1, ENTRY)
    faulty.once(fault)
    assert not state.epochs.append(1, ENTRY)
    assert [state.commits.read("count", i, 1) for i in range(3)] == COMMITS
    assert state.epochs.read(1) == ENTRY


def test_groups_whose_puts_fail_once_are_there_once(s3: str, faulty: FaultyProxy) -> None:
    incarnations = opened(s3).incarnations
    groups = []
    for incarnation, fault in enumerate(("late drop", "503"), 1):
        faulty.once(fault)
        assert incarnations.seal(incarnation) is not None
        faulty.once(fault)
        segment = incarnations.grow(incarnation, 1, 0, 1)
    for fault in BEFORE + AFTER:
        groups.append(CommitGroup([COMMITS[0]], fault.encode()))
        faulty.once(fault)
        segment.append(*groups[-1])
    faulty.once("late 500")
    assert incarnations.seal(3) is not None
    assert list(incarnations.groups(segment.name)) == groups
    assert (incarnations.superseded(2), incarnations.superseded(3)) == (True, False)


def test_a_group_that_was_given_up_ends_its_segment(s3: str, faulty: FaultyProxy) -> None:
    now = itertools.count()
    bucket = ObjectBlobs(
        BucketUrl.parse(s3), OPTIONS, clock=lambda: float(next(now)), sleep=lambda _: None
    )
    incarnations = ObjectHardState.create_or_open(bucket, pipeline="p").incarnations
    incarnations.seal(1)
    segment = incarnations.grow(1, 1, 0, 1)
    segment.append([COMMITS[0]])
    faulty.fault = lambda method, _path: "late 503" if method == "PUT" else "503"
    with pytest.raises(CheckpointUnwritable, match="put failed"):
        segment.append([COMMITS[1]])
    faulty.fault = no_fault
    with pytest.raises(CheckpointUnwritable, match="an append has failed"):
        segment.append([COMMITS[2]])
    assert incarnations.seal(2) is not None
    # It may count, as nothing of it has left; here it had taken effect.
    assert [group.commits for group in incarnations.groups(segment.name)] == [
        [c] for c in COMMITS[:2]
    ]


@pytest.mark.parametrize("fault", BEFORE)
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_a_read_that_fails_once(s3: str, faulty: FaultyProxy, method: str, fault: str) -> None:
    state = opened(s3)
    append(state, COMMITS)
    faulty.once(fault, method)
    assert state.commits.read("count", 0, 1) == COMMITS[0]
    assert state.commits.exists("count", 0, 1)
    assert not state.commits.exists("count", 0, 2)
    faulty.once(fault, method)
    assert state.commits.numbers("count") == {0: [1], 1: [1], 2: [1]}
    faulty.once(fault, "DELETE")
    state.commits.remove("count", 0, [1])
    assert state.commits.read("count", 0, 1) is None


@pytest.mark.parametrize("fault", ["drop", "500", "hold"])
def test_another_took_the_number_between_two_tries(
    s3: str, faulty: FaultyProxy, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    mine = opened(s3)
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{s3_server.port}")
    theirs = opened(s3)
    won: list[bool] = []

    def meanwhile(method: str, path: str) -> str | None:
        if method != "PUT" or won:
            return None
        won.append(theirs.epochs.append(1, ENTRY))
        return fault

    faulty.fault = meanwhile
    assert not mine.epochs.append(1, ENTRY)
    assert won == [True]


def test_of_two_with_the_same_bytes_and_lost_answers_one_wins(s3: str, faulty: FaultyProxy) -> None:
    """Neither hears the first answer, both are refused the second: only one may go on."""
    states = [opened(s3) for _ in range(2)]
    met: dict[str, int] = {}

    def lose_the_first_answers(method: str, path: str) -> str | None:
        if method != "PUT":
            return None
        met[path] = met.get(path, 0) + 1
        return "late drop" if met[path] <= 2 else None

    faulty.fault = lose_the_first_answers
    with ThreadPoolExecutor(2) as pool:
        for number in range(1, 11):
            won = list(pool.map(lambda state, n=number: state.epochs.append(n, ENTRY), states))
            assert sorted(won) == [False, True]
            commit = commit_of(number)
            assert sum(pool.map(lambda s, c=commit: append(s, [c])[0], states)) == 1


def commit_of(number: int) -> Commit:
    return Commit("count", 0, number, number, 1, [(b"Sk", b"v")])


def test_of_many_clients_at_a_time_one_wins(s3: str) -> None:
    states = [opened(s3) for _ in range(8)]
    with ThreadPoolExecutor(8) as pool:
        for number in range(1, 26):
            commit = commit_of(number)
            assert sum(pool.map(lambda s, c=commit: append(s, [c])[0], states)) == 1


def test_a_server_that_is_killed_under_a_writer_and_started_again(
    s3: str, s3_server: S3Server
) -> None:
    bucket = ObjectBlobs(BucketUrl.parse(s3), replace(OPTIONS, retry_for_us=60 * SECOND))
    check_writer_with_killed_store(bucket, s3_server)


def test_a_server_that_stays_away(
    s3: str, faulty: FaultyProxy, caplog: pytest.LogCaptureFixture
) -> None:
    now = itertools.count()
    bucket = ObjectBlobs(
        BucketUrl.parse(s3), OPTIONS, clock=lambda: float(next(now)), sleep=lambda _: None
    )
    state = ObjectHardState.create_or_open(bucket, pipeline="p")
    faulty.fault = lambda _method, _path: "503"
    faulty.requests.clear()
    with (
        caplog.at_level(logging.WARNING, "millrace"),
        pytest.raises(
            CheckpointUnwritable,
            match=r"epochs/0000000001.json: put failed, \d\d times in 20 s: 503 Injected. What was "
            r"committed before is safe. See what the store's own status says, and start again",
        ),
    ):
        state.epochs.append(1, ENTRY)
    assert 10 <= faulty.count("PUT") <= 20
    assert [record.getMessage() for record in caplog.records] == [
        f"{s3}: put epochs/0000000001.json failed: 503 Injected. Trying again for up to 20 s."
    ]
    with pytest.raises(StoreError, match=r"get failed.*503"):
        state.epochs.read(1)
    faulty.fault = no_fault
    assert state.epochs.append(1, ENTRY)


def test_a_store_without_conditional_puts_is_refused(s3: str, faulty: FaultyProxy) -> None:
    opened(s3)
    faulty.fault = lambda method, _: "late 200" if method == "PUT" else None
    with pytest.raises(CheckpointUnwritable, match="Use a store with conditional puts"):
        opened(s3)


def test_a_large_snapshot(s3: str, faulty: FaultyProxy) -> None:
    state = opened(s3, LARGE)
    pieces = [bytes([n]) * 1_000_000 for n in range(20)]
    faulty.once("503", path="partNumber=2")
    assert state.snapshots.put("count", 0, 7, iter(pieces))
    assert not state.snapshots.put("count", 0, 7, iter([b"other"]))
    assert state.snapshots.put("count", 0, 8, iter([b"small"]))
    found = state.snapshots.read("count", 0, 7)
    assert found is not None
    assert b"".join(found) == b"".join(pieces)
    assert state.snapshots.numbers("count") == {0: [7, 8]}
    state.snapshots.remove("count", 0, [6, 7])
    assert state.snapshots.read("count", 0, 7) is None

    def broken() -> Iterator[bytes]:
        yield bytes(9_000_000)
        raise KeyError("row")

    with pytest.raises(Exception, match="row"):
        state.snapshots.put("count", 0, 9, broken())
    faulty.fault = lambda _method, path: "403" if "partNumber" in path else None
    with pytest.raises(CheckpointUnwritable, match="403"):
        state.snapshots.put("count", 0, 9, iter(pieces))
    # The upload is forgotten before it is given up, as where the answer to that was lost.
    faulty.fault = lambda method, path: {"PUT": "403", "DELETE": "404"}.get(
        method if "uploadId" in path else ""
    )
    with pytest.raises(CheckpointUnwritable):
        state.snapshots.put("count", 0, 9, iter(pieces))
    assert state.snapshots.numbers("count") == {0: [8]}


def test_a_large_snapshot_is_read_on_where_the_answer_was_cut(s3: str, faulty: FaultyProxy) -> None:
    state = opened(s3, LARGE)
    pieces = [bytes([n]) * 1_000_000 for n in range(20)]
    assert state.snapshots.put("count", 0, 7, iter(pieces))
    faulty.once("late cut", "GET", "snapshots/count")
    found = state.snapshots.read("count", 0, 7)
    assert found is not None
    assert b"".join(found) == b"".join(pieces)


def test_a_large_snapshot_that_is_there_though_the_answer_was_lost(
    s3: str, faulty: FaultyProxy
) -> None:
    """Asked to end the upload again, the store knows it no more."""
    state = opened(s3, LARGE)
    pieces = [bytes([n]) * 1_000_000 for n in range(20)]
    faulty.once("late drop", "POST", "uploadId")
    assert state.snapshots.put("count", 0, 7, iter(pieces))
    found = state.snapshots.read("count", 0, 7)
    assert found is not None
    assert b"".join(found) == b"".join(pieces)
    assert (
        len([1 for method, at in faulty.requests if (method, "uploadId" in at) == ("POST", True)])
        > 1
    )


def test_wrong_credentials(s3: str, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = secrets.token_hex(16)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secret)
    with pytest.raises(StoreError, match=r"403.*Give the driver and every worker cred") as caught:
        opened(s3)
    assert secret not in "".join(traceback.format_exception(caught.value))


def test_no_such_bucket(s3: str) -> None:
    with pytest.raises(StoreError, match="Make the bucket 'elsewhere'"):
        opened("s3://elsewhere/c")


def test_no_encryption_unless_asked_for(s3: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ALLOW_HTTP")
    with pytest.raises(StoreError, match="set AWS_ALLOW_HTTP=true where the network is yours"):
        opened(s3)


def test_no_secret_is_in_the_checkpoint_or_travels_or_is_logged(
    s3: str, faulty: FaultyProxy, s3_server: S3Server, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(0):
        state = opened(s3)
        append(state, COMMITS)
        state.epochs.append(1, ENTRY)
        faulty.once("late 500")
        state.epochs.append(2, ENTRY)
    bucket = ObjectBlobs(BucketUrl.parse(s3), OPTIONS)
    names = [name for folder in ("epochs", "commits") for name in bucket.names(folder)]
    assert len(names) == 5
    said = [pickle.dumps(state), repr(state).encode(), caplog.text.encode()]
    said += [bucket.read(name) or b"" for name in [*names, "FORMAT"]]
    for secret in (s3_server.secret, s3_server.key):
        assert not any(secret.encode() in text for text in said)
    copy = pickle.loads(pickle.dumps(state))
    assert copy.commits.read("count", 0, 1) == COMMITS[0]
    assert f"s3://{BUCKET}/" in repr(copy)
