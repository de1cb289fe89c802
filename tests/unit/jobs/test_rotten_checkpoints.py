"""Checkpoints in which a bit has flipped: delta-rs reads over most of them, and takes what they say for the table."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest
from deltalake import DeltaTable
from epochlake.jobs.replicas.commits import commit_files
from epochlake.jobs.replicas.ledger import Ledger, Merge, Replaced
from epochlake.jobs.replicas.outcomes import Acknowledged
from epochlake.jobs.replicas.replica import CHECKPOINT_INTERVAL, ReplicaAddress, open_snapshot
from epochlake.jobs.upkeep.vacuum import vacuum
from epochlake.metastore import checkpoint_seals
from epochlake.metastore.configuration import StorageSettings
from epochlake.metastore.storage.failures import StorageDamaged
from epochlake.metastore.storage.storage import Storage

from tests.support.replicas import TABLE, make_replica, store
from tests.support.storages import STORAGE

FLIPS = 60


def loaded(address: ReplicaAddress, first: int = 0, commits: int = CHECKPOINT_INTERVAL + 2) -> set[str]:
    """Commit files until there is a checkpoint, and some after it; the ids of all that is live."""
    for version in range(first, first + commits):
        outcome = commit_files(address, [store(address)], epoch=1, app_id="load", app_version=version)
        assert isinstance(outcome, Acknowledged)
    return set(open_snapshot(address).all_files)


def checkpoints_of(uri: str) -> list[Path]:
    return sorted(Path(uri, "_delta_log").glob("*.checkpoint.parquet"))


def put_aside_of(uri: str) -> list[Path]:
    return list(Path(uri, "_delta_log").glob(".*.torn-*"))


def flip(path: Path, dice: random.Random) -> None:
    data = bytearray(path.read_bytes())
    data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)
    path.write_bytes(data)


def flip_until_delta_rs_is_wrong(uri: str, path: Path, dice: random.Random) -> None:
    """Flip the one bit that gives delta-rs other live files, without an error."""
    files, whole = sorted(DeltaTable(uri).file_uris()), path.read_bytes()
    for _ in range(5000):
        flip(path, dice)
        try:
            if sorted(DeltaTable(uri).file_uris()) != files:
                return
        except BaseException as error:  # delta-rs panics over some
            if isinstance(error, KeyboardInterrupt):
                raise
        path.write_bytes(whole)
    pytest.fail("no bit was found that delta-rs reads over")


def elsewhere(address: ReplicaAddress) -> ReplicaAddress:
    """The replica as another process knows it, which has nothing of it in memory."""
    storage = Storage(StorageSettings())
    return ReplicaAddress(
        storage, address.cluster_id, address.volume_id, address.volume_uri, address.directory, address.table_id
    )


def test_whatever_bit_flips_a_replica_has_what_was_committed(tmp_path: Path, seed: int) -> None:
    address, dice = make_replica(tmp_path, 1), random.Random(seed)
    committed = loaded(address)
    [checkpoint] = checkpoints_of(address.uri)
    whole, pointer = checkpoint.read_bytes(), checkpoint.with_name("_last_checkpoint").read_bytes()
    for _ in range(FLIPS):
        flip(checkpoint, dice)
        snapshot = open_snapshot(elsewhere(address))
        assert set(snapshot.all_files) == committed
        assert snapshot.fence == open_snapshot(address).fence
        assert snapshot.applied("load") == CHECKPOINT_INTERVAL + 1
        for aside in put_aside_of(address.uri):
            aside.unlink()
        checkpoint.write_bytes(whole)
        checkpoint.with_name("_last_checkpoint").write_bytes(pointer)


def test_what_delta_rs_reads_over_is_put_aside(tmp_path: Path, seed: int) -> None:
    address = make_replica(tmp_path, 1)
    committed = loaded(address)
    [checkpoint] = checkpoints_of(address.uri)
    flip_until_delta_rs_is_wrong(address.uri, checkpoint, random.Random(seed))
    assert set(open_snapshot(elsewhere(address)).all_files) == committed
    assert not checkpoint.exists()
    assert len(put_aside_of(address.uri)) == 2  # it, and the pointer to it


def test_what_alone_stands_for_commits_is_not_read_and_upkeep_deletes_nothing_by_it(tmp_path: Path, seed: int) -> None:
    address = make_replica(tmp_path, 1)
    loaded(address)
    [checkpoint] = checkpoints_of(address.uri)
    flip_until_delta_rs_is_wrong(address.uri, checkpoint, random.Random(seed))
    Path(address.uri, "_delta_log", f"{3:020}.json").unlink()
    before = sorted(Path(address.uri).rglob("*"))
    later = int(time.time() * 1000) + 3_600_000
    for _ in range(2):
        with pytest.raises(StorageDamaged, match=f"the checkpoint {checkpoint.name} .* is not what was written"):
            open_snapshot(elsewhere(address))
        with pytest.raises(StorageDamaged, match="is not what was written"):
            vacuum(elsewhere(address), later, clock_margin_ms=0)
        with pytest.raises(StorageDamaged, match="is not what was written"):  # of who still knows what it had
            vacuum(address, later, clock_margin_ms=0)
    assert sorted(Path(address.uri).rglob("*")) == before


def test_vacuum_puts_what_has_rotted_aside_before_it_cleans_the_log(tmp_path: Path, seed: int) -> None:
    address = make_replica(tmp_path, 1)
    committed = loaded(address)
    [checkpoint] = checkpoints_of(address.uri)
    flip_until_delta_rs_is_wrong(address.uri, checkpoint, random.Random(seed))
    vacuum(address, int(time.time() * 1000) + 3_600_000, clock_margin_ms=0)
    assert not checkpoint.exists()
    assert set(open_snapshot(elsewhere(address)).all_files) == committed


def test_nobody_builds_a_checkpoint_upon_one_that_has_rotted(tmp_path: Path, seed: int) -> None:
    address = make_replica(tmp_path, 1)
    loaded(address)
    [checkpoint] = checkpoints_of(address.uri)
    flip_until_delta_rs_is_wrong(address.uri, checkpoint, random.Random(seed))
    # This process knows what it had, and goes on over it.
    committed = loaded(address, first=CHECKPOINT_INTERVAL + 2, commits=CHECKPOINT_INTERVAL)
    assert len(committed) == 2 * CHECKPOINT_INTERVAL + 2
    [newer] = checkpoints_of(address.uri)
    assert newer.name > checkpoint.name
    assert set(open_snapshot(elsewhere(address)).all_files) == committed


def test_a_checkpoint_without_a_digest_is_taken_as_it_is(tmp_path: Path) -> None:
    """An older version's, or that of a writer who was killed in between."""
    address = make_replica(tmp_path, 1)
    committed = loaded(address)
    [checkpoint] = checkpoints_of(address.uri)
    checkpoint.with_name(f".{checkpoint.name}.sha256").unlink()
    assert set(open_snapshot(elsewhere(address)).all_files) == committed
    assert checkpoint.exists()


def test_who_seals_a_checkpoint_leaves_the_digest_of_a_newer_one(tmp_path: Path, seed: int) -> None:
    """It was paused after it had written its own; the newer one has rotted meanwhile."""
    address = make_replica(tmp_path, 1)
    committed = loaded(address, commits=2 * CHECKPOINT_INTERVAL + 2)
    *_, older, newer = checkpoints_of(address.uri)
    flip(newer, random.Random(seed))
    checkpoint_seals.seal(STORAGE, address.uri, int(older.name[:20]))
    assert checkpoint_seals.rotten_checkpoint(STORAGE, address.uri) == newer.name
    assert set(open_snapshot(elsewhere(address)).all_files) == committed


def test_digests_of_checkpoints_that_are_gone_go(tmp_path: Path) -> None:
    address = make_replica(tmp_path, 1)
    loaded(address)
    [checkpoint] = checkpoints_of(address.uri)
    checkpoint.unlink()
    checkpoint.with_name("_last_checkpoint").unlink()
    loaded(address, first=CHECKPOINT_INTERVAL + 2, commits=CHECKPOINT_INTERVAL)
    [newer] = checkpoints_of(address.uri)
    assert [path.name for path in newer.parent.glob(".*.sha256")] == [f".{newer.name}.sha256"]


def test_the_ledger_says_what_was_written_whatever_bit_flips(tmp_path: Path, seed: int) -> None:
    uri = str(tmp_path / "ledger")
    merges = [Merge(TABLE.table_id, f"merged-{n}", 0, 9, 1, 0, (Replaced(f"f{n}", 0, 9),)) for n in range(22)]
    for merge in merges:
        assert Ledger(STORAGE, uri).record([[merge]]) == (merge,)
    checkpoint = checkpoints_of(uri)[-1]
    flip_until_delta_rs_is_wrong(uri, checkpoint, random.Random(seed))
    again = Ledger(Storage(StorageSettings()), uri)
    assert set(again.merges(TABLE.table_id)) == {merge.file_id for merge in merges}
