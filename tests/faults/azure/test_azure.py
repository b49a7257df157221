"""A checkpoint in Azure Blob Storage: the suite of every store, and failures, over Azurite.

``make test-azure`` runs it; npm fetches the server.
"""

from __future__ import annotations

import pickle
import secrets
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import deltalake
import pyarrow as pa
import pytest
from azure_server import AzureServer
from killed_store import check_run_with_killed_store, check_writer_with_killed_store
from logs import append
from store_contract import contract

import millrace as mr
from millrace.model.errors import PipelineError, StoreError
from millrace.model.time import SECOND
from millrace.runtime.sink_contract import Binding
from millrace.runtime.values import SinkColumns
from millrace.store import (
    BucketOptions,
    BucketUrl,
    Commit,
    ObjectBlobs,
    open_location,
)

PATIENT = BucketOptions(timeout_us=5 * SECOND, retry_for_us=60 * SECOND)


globals().update(contract("azure"))


def commit_of(number: int) -> Commit:
    return Commit("count", 0, number, number, 1, [(b"Sk", b"v")])


def test_of_many_clients_at_a_time_one_wins(azure: str) -> None:
    states = [open_location(azure, pipeline="p") for _ in range(8)]
    with ThreadPoolExecutor(8) as pool:
        for number in range(1, 26):
            commit = commit_of(number)
            assert sum(pool.map(lambda s, c=commit: append(s, [c])[0], states)) == 1


def test_a_server_that_is_killed_under_a_writer_and_started_again(
    azure: str, azure_server: AzureServer
) -> None:
    check_writer_with_killed_store(ObjectBlobs(BucketUrl.parse(azure), PATIENT), azure_server)


def test_an_object_of_many_parts_is_there_whole_or_not_at_all(blobs: ObjectBlobs) -> None:
    pieces = [secrets.token_bytes(1 << 20) for _ in range(20)]
    assert blobs.put_pieces("snapshots/1", iter(pieces))
    assert blobs.read("snapshots/1") == b"".join(pieces)

    def broken() -> Iterator[bytes]:
        yield pieces[0] * 9
        raise RuntimeError("no more")

    with pytest.raises(RuntimeError):
        blobs.put_pieces("snapshots/2", broken())
    assert blobs.read("snapshots/2") is None


def test_wrong_credentials(azure: str, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = "c2VjcmV0" * 4
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", secret)
    with pytest.raises(StoreError, match=r"403.*Give the driver and every worker cred") as caught:
        open_location(azure, pipeline="p")
    assert secret not in "".join(traceback.format_exception(caught.value))
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME")
    with pytest.raises(PipelineError, match="AZURE_STORAGE_ACCOUNT_NAME is not set"):
        open_location(azure, pipeline="p")


def test_no_such_container(azure: str) -> None:
    with pytest.raises(StoreError, match="Make the container 'elsewhere'"):
        open_location(azure.replace("checkpoints", "elsewhere"), pipeline="p")


def test_no_secret_is_in_the_checkpoint_or_travels(azure: str, azure_server: AzureServer) -> None:
    state = open_location(azure, pipeline="p")
    append(state, [commit_of(1)])
    text = pickle.dumps(state) + repr(state).encode()
    assert azure_server.key.encode() not in text
    assert pickle.loads(text).commits.read("count", 0, 1) == commit_of(1)


@pytest.mark.timeout(400)
def test_the_store_is_killed_in_mid_run(
    tmp_path: Path, azure: str, azure_server: AzureServer
) -> None:
    spark_url = "abfss://checkpoints@millrace.dfs.core.windows.net/"
    check_run_with_killed_store(tmp_path, azure, azure_server, hadoop_url=spark_url)


TRIPS = SinkColumns(int, mr.coders.Msgpack(int))


@pytest.mark.parametrize("key", [(), ("_key",)], ids=["appended", "by key"])
def test_a_table_of_delta(azure: str, key: tuple[str, ...]) -> None:
    url = f"{azure}/table"
    for epoch in (1, 2):
        sink = mr.sinks.Delta(url, key=key)
        sink.bind(Binding("p", "s", "me", TRIPS))
        sink.claim(1, 0)
        file = sink.for_tasks().begin(epoch, 0)
        at = pa.array([epoch], pa.timestamp("us", "UTC"))
        columns = [pa.array([epoch]), pa.array(["k"]), at, pa.array([b"i"])]
        file.write(pa.RecordBatch.from_arrays(columns, list(TRIPS.arrow.names)))
        receipt = file.close()
        sink.publish(epoch, [receipt])
        sink.publish_again(epoch, [receipt])
    table = deltalake.DeltaTable(url).to_pyarrow_table()
    assert sorted(table.column("value").to_pylist()) == ([2] if key else [1, 2])
    if key:
        return
    source = mr.sources.Delta(url, schema="value long")
    (process,) = source.processes()
    start = source.advance(process, None).offset
    end = source.advance(process, start).offset
    read = [
        row for piece in source.split(process, start, end) for row in source.read(process, *piece)
    ]
    assert sorted(read) == [(1,), (2,)]


def test_files(azure: str) -> None:
    blobs = ObjectBlobs(BucketUrl.parse(azure), PATIENT)
    blobs.replace("1 a.json", b'{"n": 1}\n{"n": 2}\n')
    blobs.replace("_half.json", b'{"n": 3}\n')
    source = mr.sources.Files(azure, schema="n long")
    offset = source.advance(azure, None).offset
    assert [
        row for piece in source.split(azure, None, offset) for row in source.read(azure, *piece)
    ] == [(1,), (2,)]
