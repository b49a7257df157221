"""Files of a checkpoint are cut, altered, removed or replaced: the same results, or an error."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import millrace as mr
from millrace.epochlog.run_log import RunLog
from millrace.kernel.bundle import ReceivedRecords
from millrace.kernel.execution import Execution
from millrace.model.errors import DamagedStore, StoreError
from millrace.model.keys import encode_key, hash_key
from millrace.store import (
    Collector,
    LmdbCaches,
    LocalHardState,
    SnapshotPolicy,
    lmdb_environments,
    write_if_due,
)
from tests.kit.epochs import run_epoch

INTERVALS = 2
WRITTEN, END = 9, 12
KEYS = 12
#: A snapshot every other commit.
POLICY = SnapshotPolicy(fixed_bytes=100 << 10)


class Count(mr.Computation):
    inputs = {"words": mr.by_key()}
    outputs = {"counts": list}
    n = mr.CombiningState(int)
    seen = mr.MapState(int)

    def process_record(self, record):
        self.n.add(record.value)
        self.seen[record.timestamp % 3] = record.timestamp
        self.set_timer("t", at=record.timestamp + 25)
        self.produce("counts", [self.key, self.n.get(), sorted(self.seen.items())])

    def process_timer(self, timer):
        self.produce("counts", [self.key, "timer", self.n.get()])


def topology():
    p = mr.Pipeline("damage")
    p.inject("words")
    p.add(Count)
    p.sink("counts", print)
    return p.build()


Produced = dict[int, list[bytes]]


def run(home: Path, until: int, weight: int = 1) -> tuple[Produced, Counter[str]]:
    """Go on up to an epoch; return what each produced and what had to be repaired."""
    built = topology()
    state = LocalHardState.create_or_open(home, pipeline="damage")
    caches = LmdbCaches(home / "cache", state.uuid)
    driver, execution = RunLog(built, state, intervals=INTERVALS), Execution(built, state, caches)
    collector, produced, repairs = Collector(state), {}, Counter[str]()
    keys = [encode_key(n) for n in range(KEYS)]
    for epoch in range(driver.completed + 1, until):
        at_us = 10 * epoch
        manifest = driver.begin(epoch, wall_time_us=at_us, injectors={"words": at_us})
        assert manifest is not None
        arrivals = ReceivedRecords(
            np.array([hash_key(key) for key in keys], dtype=np.uint64),
            keys,
            [weight] * KEYS,
            np.full(KEYS, at_us, dtype=np.int64),
            ["words"] * KEYS,
            np.full(KEYS, epoch, dtype=np.int64),
            np.arange(KEYS, dtype=np.int64),
        )
        spec, positions = built.computations[0], driver.positions
        owned = range(len(manifest.interval_map("Count")))
        ran = run_epoch(execution, spec, manifest, positions, owned, arrivals, {100: at_us})
        produced[epoch] = [productions.pack() for _, productions in ran]
        results = [result for result, _ in ran]
        for result in results:
            repairs["rebuilt"] += result.repair.rebuilt
            repairs["damaged"] += result.repair.damaged
            repairs["snapshot"] += result.repair.snapshot > 0
        driver.complete(manifest, results)
        for interval in range(INTERVALS):
            cache = caches.open("Count", interval)
            write_if_due(cache, state.snapshots, "Count", interval, POLICY)
        collector.collect(driver.collectable())
    return produced, repairs


def state_of(home: Path) -> list[list[tuple[bytes, bytes]]]:
    state = LocalHardState.open(home)
    caches = LmdbCaches(home / "cache", state.uuid)
    found = []
    for interval in range(INTERVALS):
        with caches.open("Count", interval).view() as view:
            found.append(list(view.scan(b"A", b"[")))
    return found


#: What every epoch produced, undisturbed.
PRODUCED: Produced = {}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A checkpoint with snapshots, and with commits and snapshots collected; not to be changed."""
    home = tmp_path_factory.mktemp("damage") / "checkpoint"
    PRODUCED.update(run(home, WRITTEN)[0])
    state = LocalHardState.open(home)
    assert all(len(numbers) >= 2 for numbers in state.snapshots.numbers("Count").values())
    assert all(numbers[0] > 1 for numbers in state.commits.numbers("Count").values())
    lmdb_environments.close_all()
    yield home
    shutil.rmtree(home)


@pytest.fixture
def copy(written: Path, tmp_path: Path) -> Iterator[Path]:
    yield Path(shutil.copytree(written, tmp_path / "copy"))
    lmdb_environments.close_all()


@pytest.fixture(scope="module")
def undisturbed(written: Path, tmp_path_factory: pytest.TempPathFactory):
    home = Path(shutil.copytree(written, tmp_path_factory.mktemp("whole") / "c"))
    produced, repairs = run(home, END)
    assert sum(repairs.values()) == 0
    PRODUCED.update(produced)
    result = state_of(home)
    lmdb_environments.close_all()
    return result


def same(home: Path, undisturbed) -> Counter[str]:
    produced, repairs = run(home, END)
    # An epoch whose completion was lost runs again, and sends on what it had committed.
    assert produced == {epoch: PRODUCED[epoch] for epoch in produced}
    assert max(produced) == END - 1
    assert state_of(home) == undisturbed
    return repairs


def flip(path: Path, offset: int, bit: int = 0) -> None:
    data = bytearray(path.read_bytes())
    data[offset % len(data)] ^= 1 << bit
    path.write_bytes(data)


def caches_of(home: Path) -> list[Path]:
    return sorted(home.glob("cache/**/data.mdb"))


@given(data=st.data())
@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_same_results_or_an_error(written: Path, undisturbed, data: st.DataObject) -> None:
    """All but the inside of LMDB's files, whose own pages have no checksums."""
    names = sorted(
        path.relative_to(written)
        for path in written.rglob("*")
        if path.is_file() and "cache" not in path.parts
    )
    with tempfile.TemporaryDirectory() as directory:
        home = Path(shutil.copytree(written, Path(directory) / "copy"))
        if data.draw(st.booleans(), label="caches lost"):
            shutil.rmtree(home / "cache")
        for _ in range(data.draw(st.integers(1, 3), label="damages")):
            path = home / data.draw(st.sampled_from(names))
            size = path.stat().st_size if path.exists() else 0
            how = data.draw(st.sampled_from(["flip", "cut", "remove", "extend"]))
            if how == "remove" or not size:
                path.unlink(missing_ok=True)
            elif how == "flip":
                flip(path, data.draw(st.integers(0, size - 1)), data.draw(st.integers(0, 7)))
            elif how == "cut":
                path.write_bytes(path.read_bytes()[: data.draw(st.integers(0, size - 1))])
            else:
                path.write_bytes(path.read_bytes() + data.draw(st.binary(min_size=1, max_size=9)))
        try:
            same(home, undisturbed)
        except StoreError:
            pass
        finally:
            lmdb_environments.close_all()


@given(data=st.data())
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_an_altered_row_of_a_cache_is_noticed_and_repaired(
    written: Path, undisturbed, data: st.DataObject
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        home = Path(shutil.copytree(written, Path(directory) / "copy"))
        rows = state_of(home)
        lmdb_environments.close_all()
        interval = data.draw(st.integers(0, INTERVALS - 1))
        path = caches_of(home)[interval]
        values = sorted({value for _, value in rows[interval] if len(value) > 8})
        value = data.draw(st.sampled_from(values))
        stored = path.read_bytes()
        offset = data.draw(st.integers(0, len(value) - 1))
        places = [at for at in range(len(stored)) if stored.startswith(value, at)]
        for at in places:  # Also in pages that are free, where nobody will see it.
            flip(path, at + offset, data.draw(st.integers(0, 7)))
        repairs = same(home, undisturbed)
        assert repairs["rebuilt"] == repairs["damaged"] <= 1
        lmdb_environments.close_all()


def test_lost_caches_are_rebuilt_from_snapshots(copy: Path, undisturbed) -> None:
    shutil.rmtree(copy / "cache")
    assert same(copy, undisturbed) == {"rebuilt": 2, "damaged": 0, "snapshot": 2}


@pytest.mark.parametrize("kept", [0, 1, 4096, 4096 * 3])
def test_truncated_caches_are_rebuilt(copy: Path, undisturbed, kept: int) -> None:
    for path in caches_of(copy):
        path.write_bytes(path.read_bytes()[:kept])
    assert same(copy, undisturbed)["rebuilt"] == 2


def test_caches_that_are_no_caches_are_rebuilt(copy: Path, undisturbed) -> None:
    for path in caches_of(copy):
        path.write_bytes(b"\x00" * path.stat().st_size)
    assert same(copy, undisturbed)["rebuilt"] == 2


def test_an_older_copy_of_the_caches_is_brought_forward(
    written: Path, tmp_path: Path, undisturbed
) -> None:
    """So old that the commits after it were collected: rebuilt; else by the commits."""
    home = tmp_path / "checkpoint"
    run(home, 2)
    lmdb_environments.close_all()
    shutil.copytree(home / "cache", tmp_path / "old")
    run(home, WRITTEN)
    lmdb_environments.close_all()
    shutil.rmtree(home / "cache")
    shutil.move(tmp_path / "old", home / "cache")
    repairs = same(home, undisturbed)
    assert (repairs["rebuilt"], repairs["damaged"]) == (2, 0)
    lmdb_environments.close_all()


@pytest.mark.parametrize("further", [1, 3, 6])
def test_caches_ahead_of_a_checkpoint_restored_from_a_backup(
    copy: Path, written: Path, undisturbed, further: int
) -> None:
    """The lost epochs had other input: their caches are at numbers that come to be again."""
    run(copy, WRITTEN + further, weight=7)
    lmdb_environments.close_all()
    caches = copy.parent / "caches"
    shutil.move(copy / "cache", caches)
    shutil.rmtree(copy)
    shutil.copytree(written, copy)
    shutil.rmtree(copy / "cache")
    shutil.move(caches, copy / "cache")
    assert same(copy, undisturbed)["rebuilt"] == 2


def test_a_checkpoint_with_nothing_left_says_what_is_lost(copy: Path) -> None:
    shutil.rmtree(copy / "cache")
    for path in copy.glob("snapshots/*/*"):
        flip(path, 40)
    with pytest.raises(DamagedStore) as raised:
        run(copy, END)
    message = str(raised.value)
    assert "interval 0 of computation 'Count' cannot be brought to commit 9" in message
    assert "state and timers are lost" in message
    assert "snapshot" in message
    assert "Restore the checkpoint from a copy" in message
