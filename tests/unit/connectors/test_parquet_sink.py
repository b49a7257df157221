"""Parquet by tasks: what attempts leave, what a driver publishes, and what readers see."""

import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from millrace.connectors.parquet import files
from millrace.connectors.parquet.files import STAGING, ParquetWriter, publish, publish_again
from millrace.model.errors import SinkError


def rows(*values: int) -> pa.RecordBatch:
    at = pa.array(values, pa.timestamp("us", tz="UTC"))
    return pa.RecordBatch.from_arrays([pa.array(values), at], ["value", "_timestamp"])


def written(root: Path, *values: int, epoch: int = 3, task: int = 0) -> str:
    """Write an attempt at a task to its end; return its receipt."""
    file = ParquetWriter(str(root), "sink").begin(epoch, task)
    file.write(rows(*values))
    return file.close().decode()


def seen(root: Path) -> list[int]:
    """Return what a reader finds that passes over names with an underscore, as Spark does."""
    return sorted(
        value
        for file in root.glob("epoch=*/*.parquet")
        for value in pq.ParquetFile(file).read().column("value").to_pylist()
    )


def test_nothing_is_seen_before_the_driver_publishes(tmp_path: Path) -> None:
    names = [written(tmp_path, 1, 2), written(tmp_path, 3, task=1)]
    assert seen(tmp_path) == []

    publish(tmp_path, 3, names, "sink")

    assert seen(tmp_path) == [1, 2, 3]
    assert [path.name for path in tmp_path.glob("[!_]*")] == ["epoch=3"]
    assert list((tmp_path / STAGING).iterdir()) == []


def test_an_attempt_that_does_not_count_is_not_seen_and_is_removed(tmp_path: Path) -> None:
    written(tmp_path, 1)
    dies = ParquetWriter(str(tmp_path), "sink").begin(3, 0)
    dies.write(rows(1))
    second = written(tmp_path, 1)

    publish(tmp_path, 3, [second], "sink")

    assert seen(tmp_path) == [1]
    assert list((tmp_path / STAGING).iterdir()) == []
    dies.abort()  # it wakes up, and finds its file gone


def test_a_retried_epoch_keeps_what_was_published(tmp_path: Path) -> None:
    publish(tmp_path, 3, [written(tmp_path, 1)], "sink")
    before = {path: path.stat().st_mtime_ns for path in tmp_path.glob("epoch=3/*")}

    publish(tmp_path, 3, [written(tmp_path, 1)], "sink")

    assert {path: path.stat().st_mtime_ns for path in tmp_path.glob("epoch=3/*")} == before
    assert list((tmp_path / STAGING).iterdir()) == []


def test_a_driver_that_died_while_it_gathered_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dies(*_: object) -> None:
        raise KeyboardInterrupt

    names = [written(tmp_path, 1)]
    with monkeypatch.context() as patch:
        patch.setattr(files, "rename_into_place", dies)
        with pytest.raises(KeyboardInterrupt):
            publish(tmp_path, 3, names, "sink")
    assert seen(tmp_path) == []

    publish(tmp_path, 3, [written(tmp_path, 1)], "sink")

    assert seen(tmp_path) == [1]
    assert list((tmp_path / STAGING).iterdir()) == []


def test_a_superseded_driver_finds_its_files_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is paused after its look at the epoch's directory; meanwhile the other publishes."""
    old, new, exists = written(tmp_path, 1), written(tmp_path, 1), Path.exists

    def paused(path: Path) -> bool:
        monkeypatch.setattr(Path, "exists", exists)
        there = path.exists()
        publish(tmp_path, 3, [new], "sink")
        return there

    monkeypatch.setattr(Path, "exists", paused)
    publish(tmp_path, 3, [old], "sink")

    assert seen(tmp_path) == [1]
    assert list((tmp_path / STAGING).iterdir()) == []


def test_a_mark_that_is_complete_is_published_by_who_goes_on_from_it(tmp_path: Path) -> None:
    names = [written(tmp_path, 1), written(tmp_path, 2, task=1)]
    left = written(tmp_path, 1)  # by an incarnation that died before the mark was complete

    publish_again(tmp_path, 3, names, "sink")
    publish_again(tmp_path, 3, names, "sink")

    assert seen(tmp_path) == [1, 2]
    assert not (tmp_path / STAGING / left).exists()


def test_a_driver_that_dies_while_it_gathers_takes_no_file_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dies(*_: object) -> None:
        raise KeyboardInterrupt

    names = [written(tmp_path, 1), written(tmp_path, 2, task=1)]
    with monkeypatch.context() as patch:
        patch.setattr(files, "rename_into_place", dies)
        with pytest.raises(KeyboardInterrupt):
            publish(tmp_path, 3, names, "sink")

    publish_again(tmp_path, 3, names, "sink")

    assert seen(tmp_path) == [1, 2]
    assert list((tmp_path / STAGING).iterdir()) == []


def test_two_drivers_that_publish_the_same_files_publish_all_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One is paused when it has gathered the first file; meanwhile the other publishes."""
    names, link = [written(tmp_path, 1), written(tmp_path, 2, task=1)], files.link

    def paused(file: Path, name: Path) -> None:
        link(file, name)
        monkeypatch.setattr(files, "link", link)
        publish_again(tmp_path, 3, names, "sink")

    monkeypatch.setattr(files, "link", paused)
    publish(tmp_path, 3, names, "sink")

    assert seen(tmp_path) == [1, 2]
    assert list((tmp_path / STAGING).iterdir()) == []


def test_output_that_was_removed_since_is_not_missed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    names = [written(tmp_path, 1)]
    publish(tmp_path, 3, names, "sink, epoch 3")
    shutil.rmtree(tmp_path / "epoch=3")

    publish_again(tmp_path, 3, names, "sink, epoch 3")

    assert seen(tmp_path) == []
    assert "sink, epoch 3: its directory is gone. Was it removed?" in caplog.text


def test_a_file_system_without_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_links(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(Path, "hardlink_to", no_links)
    publish(tmp_path, 3, [written(tmp_path, 1), written(tmp_path, 2, task=1)], "sink")

    assert seen(tmp_path) == [1, 2]
    assert list((tmp_path / STAGING).iterdir()) == []


def test_what_later_epochs_have_staged_stays(tmp_path: Path) -> None:
    later = written(tmp_path, 9, epoch=4)
    publish(tmp_path, 3, [written(tmp_path, 1)], "sink")

    publish(tmp_path, 4, [later], "sink")

    assert seen(tmp_path) == [1, 9]


def test_files_that_are_gone_are_no_silent_loss(tmp_path: Path) -> None:
    name = written(tmp_path, 1)
    (tmp_path / STAGING / name).unlink()

    with pytest.raises(SinkError, match="No such file"):
        publish(tmp_path, 3, [name], "sink, epoch 3")


def test_many_small_batches_are_one_row_group(tmp_path: Path) -> None:
    file = ParquetWriter(str(tmp_path), "sink").begin(0, 0)
    for value in range(50):
        file.write(rows(value))
    path = tmp_path / STAGING / file.close().decode()

    assert pq.ParquetFile(path).metadata.num_row_groups == 1
    assert pq.ParquetFile(path).read().column("value").to_pylist() == list(range(50))


def test_dictionaries_of_what_repeats_and_not_of_ids(tmp_path: Path) -> None:
    names = pa.array([["a", "b"]] * 3)
    id = pa.array([b"0", b"1", b"2"])
    file = ParquetWriter(str(tmp_path), "sink").begin(0, 0)
    file.write(pa.RecordBatch.from_arrays([names, id], ["names", "_id"]))
    group = pq.read_metadata(tmp_path / STAGING / file.close().decode()).row_group(0)

    found = {group.column(n).path_in_schema: group.column(n) for n in range(group.num_columns)}
    assert found["names.list.element"].has_dictionary_page
    assert not found["_id"].has_dictionary_page


def test_memory_is_bounded_by_row_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_ROW_GROUP_BYTES", rows(1, 2).nbytes)
    file = ParquetWriter(str(tmp_path), "sink").begin(0, 0)
    for value in range(6):
        file.write(rows(value))
    path = tmp_path / STAGING / file.close().decode()

    assert pq.ParquetFile(path).metadata.num_row_groups == 3


def test_a_refusing_disk_names_the_sink(tmp_path: Path) -> None:
    (tmp_path / STAGING).write_text("a file where the directory should be")

    with pytest.raises(SinkError, match=r"Parquet\('x'\), epoch 3: the files cannot be written"):
        ParquetWriter(str(tmp_path), "Parquet('x')").begin(3, 0)


def test_a_disk_that_is_full_is_what_is_told_and_the_file_is_gone(tmp_path: Path) -> None:
    file = ParquetWriter(str(tmp_path), "sink").begin(3, 0)
    file.write(rows(1))

    class Full:
        def close(self) -> None:
            raise OSError(28, "No space left on device")

    file._out.file.close()
    file._out.file = Full()  # type: ignore[assignment]  # what was buffered cannot be written
    file.abort()

    assert list((tmp_path / STAGING).iterdir()) == []
