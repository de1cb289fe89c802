"""What can happen to a Delta table on a real disk: full, read-only, gone, littered, damaged, and writers that slept."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from epochlake.metastore import delta_commits
from epochlake.metastore.errors import (
    CommitTimeout,
    HashMismatch,
    LogGap,
    LogTorn,
    LogUnreadable,
    NotInitialised,
    StorageUnavailable,
    UnknownFormat,
)
from epochlake.metastore.following.follower import Follower
from epochlake.metastore.log import delta
from epochlake.metastore.log.delta import DeltaLog, create_log_table
from epochlake.metastore.log.entry import Entry, position_of
from epochlake.metastore.log.epoch_log import AppendConflict, AppendFailed, AppendUncertain
from epochlake.metastore.log.files import LogFile
from epochlake.metastore.rewriting import NewFile
from epochlake.metastore.storage.disk import Disk
from epochlake.metastore.storage.storage import Storage

from tests.support.failures import mounted, no_room_to_write, remount
from tests.support.logs import chain, committer, put, resealed, toggle
from tests.support.storages import STORAGE

HOUR = 3600.0


@pytest.fixture
def uri(tmp_path: Path) -> str:
    uri = str(tmp_path / "root" / "log")
    create_log_table(STORAGE, uri)
    return uri


def files(uri: str) -> list[str]:
    return sorted(str(path.relative_to(uri)) for path in Path(uri).rglob("*") if path.is_file())


def age(uri: str) -> None:
    """Let all versions be an hour old."""
    for path in (Path(uri) / "_delta_log").iterdir():
        os.utime(path, (time.time() - HOUR,) * 2)


def test_a_handle_is_opened_anew_before_clean_up_deletes_what_it_has_not_read(uri: str) -> None:
    deleted_after = DeltaTable(uri).metadata().configuration["delta.logRetentionDuration"]
    assert deleted_after == f"interval {delta.LOG_RETENTION_SECONDS} seconds" == "interval 20 seconds"
    assert delta.REOPEN_SECONDS <= delta.LOG_RETENTION_SECONDS / 2


def test_there_is_no_cluster_where_there_is_no_log(tmp_path: Path) -> None:
    with pytest.raises(NotInitialised, match="epochlake init"):
        DeltaLog(STORAGE, str(tmp_path / "nothing")).read(0)


def test_creating_the_table_twice_at_once_gives_one_table(tmp_path: Path) -> None:
    errors: list[BaseException] = []

    def create(uri: str, everybody: threading.Barrier) -> None:
        everybody.wait()
        try:
            create_log_table(STORAGE, uri)
        except BaseException as error:
            errors.append(error)

    for attempt in range(10):
        uri, everybody = str(tmp_path / str(attempt)), threading.Barrier(4)
        threads = [threading.Thread(target=create, args=(uri, everybody)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        put(DeltaLog(STORAGE, uri), chain(1))
        assert len(DeltaLog(STORAGE, uri).read(0)) == 1
    assert errors == []


def test_parquet_files_that_no_version_names_are_not_read(uri: str) -> None:
    entries = chain(3)
    put(DeltaLog(STORAGE, uri), entries)
    [written] = Path(uri).glob("*.parquet")
    shutil.copy(written, Path(uri) / "part-00000-copied-c000.snappy.parquet")
    (Path(uri) / "part-00000-torn-c000.snappy.parquet").write_bytes(written.read_bytes()[:100])
    pq.write_table(pa.table({"foreign": [1]}), Path(uri) / "foreign.parquet")
    assert DeltaLog(STORAGE, uri).read(0) == entries


@pytest.mark.parametrize("keep", [0, 4, 200])
def test_a_torn_file_of_the_log_is_an_error_that_names_its_epochs(uri: str, keep: int) -> None:
    entries = chain(5)
    log = DeltaLog(STORAGE, uri)
    log.read(0)
    log.append(entries[:2])
    [sound] = Path(uri).glob("*.parquet")
    log.append(entries[2:])
    [torn] = set(Path(uri).glob("*.parquet")) - {sound}
    torn.write_bytes(torn.read_bytes()[:keep])
    follower = Follower(DeltaLog(STORAGE, uri))
    with pytest.raises(LogUnreadable, match="epochs 3 to 5"):
        follower.catch_up()


DAMAGED: list[tuple[str, Callable[[list[Entry]], list[Entry]], type[LogUnreadable], str]] = [
    ("gap", lambda e: [e[0], e[2]], LogGap, "epoch 2 is missing"),
    ("no beginning", lambda e: e[1:], LogGap, "epoch 1 is missing"),
    (
        "twice",
        lambda e: [e[0], e[1], resealed(e[1], reason="x"), e[2]],
        LogUnreadable,
        "epoch 2 is in the log twice, with the hashes",
    ),
    ("altered", lambda e: [e[0], resealed(e[1], reason="x"), e[2]], HashMismatch, "epoch 3 does not continue"),
    ("format", lambda e: [e[0], resealed(e[1], format=2)], UnknownFormat, "epoch 2 is written in format 2"),
    ("kind", lambda e: [e[0], resealed(e[1], event="Fly")], UnknownFormat, "epoch 2 holds an event 'Fly'"),
    ("payload", lambda e: [e[0], resealed(e[1], payload="{")], UnknownFormat, "epoch 2: the payload"),
    ("types", lambda e: [e[0], resealed(e[1], payload='{"on":"x"}')], UnknownFormat, "epoch 2: the payload"),
]


@pytest.mark.parametrize(("damage", "error", "message"), [d[1:] for d in DAMAGED], ids=[d[0] for d in DAMAGED])
def test_a_damaged_log_is_refused_by_epoch_and_nothing_is_written_to_it(
    uri: str, damage: Callable[[list[Entry]], list[Entry]], error: type[LogUnreadable], message: str
) -> None:
    put(DeltaLog(STORAGE, uri), damage(chain(3)))
    before = files(uri)
    for _ in range(2):
        with pytest.raises(error, match=message):
            committer(DeltaLog(STORAGE, uri)).commit(toggle, timeout=1)
    assert files(uri) == before


def test_a_full_disk_fails_the_append_and_leaves_the_log_as_it_was(uri: str) -> None:
    entries = chain(2)
    log = DeltaLog(STORAGE, uri)
    log.read(0)
    log.append(entries[:1])
    with no_room_to_write(), pytest.raises(AppendFailed, match="epoch 2"):
        log.append(entries[1:])
    assert log.read(0) == entries[:1]
    log.append(entries[1:])
    assert DeltaLog(STORAGE, uri).read(0) == entries


def test_a_commit_on_a_full_disk_fails_with_the_cause_and_goes_on_when_there_is_room(tmp_path: Path) -> None:
    with mounted(tmp_path / "disk", size="1m") as disk:
        uri = str(disk / "log")
        create_log_table(STORAGE, uri)
        commits = committer(DeltaLog(STORAGE, uri))
        put(DeltaLog(STORAGE, uri), chain(1))
        ballast = disk / "ballast"
        fill(ballast)
        with pytest.raises(AppendFailed, match="Make room"):
            commits.commit(toggle, request_id="full", timeout=5)
        assert len(DeltaLog(STORAGE, uri).read(0)) == 1
        ballast.unlink()
        assert commits.commit(toggle, request_id="full", timeout=5).epoch == 2


def test_on_a_read_only_file_system_reading_goes_on_and_commits_fail(tmp_path: Path) -> None:
    with mounted(tmp_path / "disk") as disk:
        uri = str(disk / "log")
        create_log_table(STORAGE, uri)
        put(DeltaLog(STORAGE, uri), chain(2))
        commits = committer(DeltaLog(STORAGE, uri))
        remount(disk, "ro")
        with pytest.raises(AppendFailed, match="read-only"):
            commits.commit(toggle, timeout=5)
        assert len(DeltaLog(STORAGE, uri).read(0)) == 2
        remount(disk, "rw")
        assert commits.commit(toggle, timeout=5).epoch == 3


def test_a_root_that_has_gone_takes_no_append_and_is_not_begun_anew(uri: str) -> None:
    entries = chain(2)
    log = DeltaLog(STORAGE, uri)
    log.read(0)
    log.append(entries[:1])
    root = Path(uri).parent
    root.rename(root.with_name("elsewhere"))
    with pytest.raises(AppendConflict):
        log.append(entries[1:])
    for after in (0, 1):
        with pytest.raises(StorageUnavailable, match="has gone"):
            log.read(after)
    assert not root.exists()
    root.with_name("elsewhere").rename(root)
    assert log.read(0) == entries[:1]


def test_a_commit_waits_for_a_root_that_has_gone_and_times_out_or_goes_on(uri: str) -> None:
    put(DeltaLog(STORAGE, uri), chain(1))
    commits = committer(DeltaLog(STORAGE, uri))
    commits.commit(toggle)
    root = Path(uri).parent
    root.rename(root.with_name("elsewhere"))
    with pytest.raises(CommitTimeout, match="has gone"):
        commits.commit(toggle, timeout=0.5)
    assert not root.exists()
    back = threading.Timer(0.5, lambda: root.with_name("elsewhere").rename(root))
    back.start()
    assert commits.commit(toggle, timeout=10).epoch == 3
    back.join()


def test_an_older_copy_in_the_place_of_the_log_stops_those_who_know_more(uri: str, tmp_path: Path) -> None:
    entries = chain(4)
    put(DeltaLog(STORAGE, uri), entries[:2])
    shutil.copytree(uri, tmp_path / "copy")
    log = DeltaLog(STORAGE, uri)
    log.read(0)
    log.append(entries[2:])
    commits = committer(log)
    commits.commit(toggle)
    shutil.rmtree(uri)
    shutil.copytree(tmp_path / "copy", uri)
    with pytest.raises(LogUnreadable, match=r"ends at epoch 2, but epoch 5"):
        commits.commit(toggle, timeout=2)
    assert DeltaLog(STORAGE, uri).read(0) == entries[:2]


def fill(ballast: Path) -> None:
    """Take all the room that there is."""
    with ballast.open("wb", buffering=0) as file, suppress(OSError):
        while file.write(b"x" * 512):
            pass


class Sleeper:
    """A handle that reads now, and whose append is asleep while the others commit `epochs` and clean up.

    It sleeps after its data was stored and before the commit.
    """

    def __init__(self, uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.uri = uri
        self.log = DeltaLog(STORAGE, uri)
        self.known = self.log.read(0)
        self._monkeypatch = monkeypatch
        self._proper = delta.write_entries

    def append(self, entries: list[Entry], meanwhile: Callable[[], None]) -> None:
        def sleepy(storage: Storage, uri: str, entries: list[Entry]) -> LogFile:
            self._monkeypatch.setattr(delta, "write_entries", self._proper)
            stored = self._proper(storage, uri, entries)
            meanwhile()
            return stored

        self._monkeypatch.setattr(delta, "write_entries", sleepy)
        self.log.append(entries)


def others_commit(uri: str, known: list[Entry], count: int) -> None:
    """`count` epochs by somebody else, with clean-up of all the versions that it may delete."""
    log = DeltaLog(STORAGE, uri)
    for entry in chain(count, position_of(known[-1]), tag="awake"):
        log.read(entry.epoch - 1)
        log.append([entry])
        age(uri)
    DeltaTable(uri).create_checkpoint()
    age(uri)
    DeltaTable(uri).cleanup_metadata()


@pytest.mark.parametrize("left", ["nothing", "the version that was read"])
def test_a_writer_that_slept_through_a_clean_up_conflicts_and_leaves_no_version(
    uri: str, monkeypatch: pytest.MonkeyPatch, left: str
) -> None:
    put(DeltaLog(STORAGE, uri), chain(3))
    sleeper = Sleeper(uri, monkeypatch)
    [read_at] = (Path(uri) / "_delta_log").glob(f"*{1:020}.json")
    content = read_at.read_bytes()
    seen: list[list[str]] = []

    def meanwhile() -> None:
        others_commit(uri, sleeper.known, 65)
        assert not read_at.exists(), "clean-up has to be under way for this test to say something"
        if left == "the version that was read":
            read_at.write_bytes(content)  # as if clean-up had not come to it yet
        seen.append(files(f"{uri}/_delta_log"))

    with pytest.raises(AppendConflict):
        sleeper.append(chain(1, position_of(sleeper.known[-1]), tag="asleep"), meanwhile)
    assert files(f"{uri}/_delta_log") == seen[0]
    read_at.unlink(missing_ok=True)
    assert_only_those_awake(uri, sleeper.log)


def test_a_version_that_was_written_where_another_one_was_cleaned_up_does_not_count_and_goes(
    uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(DeltaLog(STORAGE, uri), chain(3))
    sleeper = DeltaLog(STORAGE, uri)
    known = sleeper.read(0)
    stray = Path(uri) / "_delta_log" / f"{2:020}.json"

    proper = delta_commits._is_hole

    def asleep(disk: Disk, directory: str, version: int) -> bool:
        monkeypatch.setattr(delta_commits, "_is_hole", proper)
        # The instant between the last look at the log and the putting of the next version, drawn out.
        found = proper(disk, directory, version)
        others_commit(uri, known, 65)
        return found

    monkeypatch.setattr(delta_commits, "_is_hole", asleep)
    with pytest.raises(AppendConflict, match="too late"):
        sleeper.append(chain(1, position_of(known[-1]), tag="asleep"))
    assert not stray.exists()
    assert_only_those_awake(uri, sleeper)


@pytest.mark.parametrize("when", ["before the append", "as it is stored"])
def test_an_append_does_not_continue_another_log_of_as_many_versions(
    uri: str, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """Somebody stands still while the log is lost and restored: where it ends has the same number by chance."""
    put(DeltaLog(STORAGE, uri), chain(2))
    sleeper = DeltaLog(STORAGE, uri)
    known = sleeper.read(0)
    restored = chain(2, tag="restored")

    def exchange() -> None:
        for path in sorted((Path(uri) / "_delta_log").iterdir()):
            path.unlink()
        create_log_table(STORAGE, uri)
        put(DeltaLog(STORAGE, uri), restored)

    if when == "before the append":
        exchange()
    else:
        proper = sleeper._store

        def asleep(entries: Sequence[Entry]) -> NewFile:
            exchange()
            return proper(entries)

        monkeypatch.setattr(sleeper, "_store", asleep)
    with pytest.raises(AppendConflict, match=r"too long ago|another log"):
        sleeper.append(chain(1, position_of(known[-1]), tag="asleep"))
    assert DeltaLog(STORAGE, uri).read(0) == restored


def _commits_after(storage: Storage, table: str, version: int) -> object:
    return delta_commits.commits_after(storage, delta_commits.CommitName(table, version))


@pytest.mark.parametrize("ask", [delta_commits.has_moved_on, delta_commits.is_missing, _commits_after])
def test_what_others_commit_between_two_looks_is_no_hole(
    uri: str, monkeypatch: pytest.MonkeyPatch, ask: Callable[[Storage, str, int], object]
) -> None:
    """The next commit is not there; before it is looked whether later ones are, others commit it and a later one."""
    put(DeltaLog(STORAGE, uri), chain(1))
    version = DeltaTable(uri).version()
    proper, came = STORAGE.disk.any_there, []

    def late(paths: Sequence[str]) -> bool:
        if not came:
            came.append(paths)
            for number in (1, 2):
                assert delta_commits.put_commit(STORAGE, delta_commits.CommitName(uri, version + number), "WRITE", [])
        return proper(paths)

    monkeypatch.setattr(STORAGE.disk, "any_there", late)
    asked = version + 1 if ask is delta_commits.is_missing else version
    assert ask(STORAGE, uri, asked) in (False, [])
    assert came
    assert delta_commits.commits_after(STORAGE, delta_commits.CommitName(uri, version)) is not None


@pytest.mark.parametrize("lost", [1, 2, 3])
def test_a_handle_before_a_hole_does_not_take_the_log_for_one_that_ends_there(uri: str, lost: int) -> None:
    put(DeltaLog(STORAGE, uri), chain(2))
    behind = DeltaLog(STORAGE, uri)
    known = behind.read(0)
    version = DeltaTable(uri).version()
    others = DeltaLog(STORAGE, uri)
    for entry in chain(4, position_of(known[-1]), tag="others"):
        put(others, [entry])
    Path(f"{uri}/_delta_log/{version + lost:020}.json").unlink()
    for after in (known[-1].epoch, known[-1].epoch - 1):
        with pytest.raises(LogTorn, match=f"commit {version + lost} .* is missing"):
            behind.read(after)


def test_a_handle_before_commits_that_a_checkpoint_stands_for_reads_on(uri: str) -> None:
    put(DeltaLog(STORAGE, uri), chain(3))
    behind = DeltaLog(STORAGE, uri)
    known = behind.read(0)
    others_commit(uri, known, 65)
    kept = int(delta_commits.pointed_at(STORAGE.disk, f"{uri}/_delta_log") or 0)
    for version in range(2, kept):
        Path(f"{uri}/_delta_log/{version:020}.json").unlink(missing_ok=True)
    assert [entry.epoch for entry in behind.read(3)] == list(range(4, 69))


def assert_only_those_awake(uri: str, sleeper: DeltaLog) -> None:
    entries = DeltaLog(STORAGE, uri).read(0)
    assert [entry.epoch for entry in entries] == list(range(1, 69))
    assert not any(entry.request_id.startswith("asleep") for entry in entries)
    assert sleeper.read(3) == entries[3:]


def test_a_writer_that_slept_before_its_append_conflicts(uri: str) -> None:
    put(DeltaLog(STORAGE, uri), chain(3))
    sleeper = DeltaLog(STORAGE, uri)
    known = sleeper.read(0)
    others_commit(uri, known, 65)
    with pytest.raises(AppendConflict):
        sleeper.append(chain(1, position_of(known[-1]), tag="asleep"))
    assert [entry.epoch for entry in sleeper.read(3)] == list(range(4, 69))


def test_a_handle_that_was_idle_for_long_at_the_tail_still_appends(uri: str) -> None:
    entries = chain(4)
    log = DeltaLog(STORAGE, uri)
    log.read(0)
    log.append(entries[:3])
    DeltaTable(uri).create_checkpoint()
    age(uri)
    DeltaTable(uri).cleanup_metadata()
    log.append(entries[3:])
    assert DeltaLog(STORAGE, uri).read(0) == entries


COMMITTING = """
import sys
from epochlake.metastore.configuration import StorageSettings
from epochlake.metastore.storage.storage import Storage
from epochlake.metastore.committing.committer import Committer
from epochlake.metastore.following.follower import Follower
from epochlake.metastore.committing.local_queue import LocalQueue
from epochlake.metastore.log.delta import DeltaLog, create_log_table
from epochlake.metastore.metadata.events import Initialise, SwitchBalancing, TakeSnapshot
from epochlake.metastore.following.snapshots import Snapshots, SnapshotWriter

STORAGE = Storage(StorageSettings())
create_log_table(STORAGE, sys.argv[1])
first, second = (Committer(Follower(DeltaLog(STORAGE, sys.argv[1])), LocalQueue(), author="a") for _ in range(2))
first.commit(Initialise(name="x", cluster_id="c", product_version="1"))
second.commit(SwitchBalancing(on=False))
assert first.commit(SwitchBalancing(on=True)).epoch == 3
snapshots = Snapshots(STORAGE, f"{sys.argv[1]}-snapshots")
first._follower.add_listener(SnapshotWriter(snapshots))
assert first.commit(TakeSnapshot()).epoch == 4
assert Follower(DeltaLog(STORAGE, sys.argv[1]), snapshots).metadata.epoch == 4
print([name for name in ("pyspark", "pandas") if name in sys.modules])
"""


def test_committing_and_reading_what_others_have_committed_imports_no_pandas(tmp_path: Path) -> None:
    command = [sys.executable, "-c", COMMITTING, str(tmp_path / "log")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert (done.stdout.strip(), done.returncode) == ("[]", 0), done.stderr


@pytest.mark.parametrize(("number", "code"), [(errno.ENOSPC, 75), (errno.EACCES, 1)])
def test_an_append_that_failed_is_worth_retrying_when_its_cause_passes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, code: int
) -> None:
    uri = str(tmp_path / "log")
    create_log_table(STORAGE, uri)
    log = DeltaLog(STORAGE, uri)
    log.read(0)

    def refused(*_: object) -> bool:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(delta, "append_files", refused)
    with pytest.raises(AppendFailed) as failed:
        log.append(chain(1))
    assert failed.value.exit_code == code


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
def test_an_append_whose_commit_has_its_name_is_not_called_failed_whatever_is_said_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    uri = str(tmp_path / "log")
    create_log_table(STORAGE, uri)
    log, entries = DeltaLog(STORAGE, uri), chain(1)
    log.read(0)
    append = delta.append_files

    def landed_and_then(*arguments: object) -> bool:
        assert append(*arguments)
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(delta, "append_files", landed_and_then)
    with pytest.raises(AppendUncertain):
        log.append(entries)
    assert DeltaLog(STORAGE, uri).read(0) == entries


@pytest.mark.parametrize("what", ["is made", "is of other entries", "conflicts", "is forgotten", "comes too late"])
def test_an_append_that_was_prepared_counts_once_it_is_made_and_leaves_nothing_otherwise(
    uri: str, tmp_path: Path, what: str
) -> None:
    entries = chain(3)
    put(DeltaLog(STORAGE, uri), entries[:1])
    log, before = DeltaLog(STORAGE, uri), files(uri)
    log.read(0)
    log.prepare(entries[1:2])
    assert len(files(uri)) == len(before) + 2
    assert DeltaLog(STORAGE, uri).read(0) == entries[:1]
    expected, new = entries[:1], 0
    if what == "is made":
        log.append(entries[1:2])
        expected, new = entries[:2], 2
    elif what == "is of other entries":
        log.append(entries[1:3])
        expected, new = entries, 2
    elif what == "conflicts":
        DeltaLog(STORAGE, uri).fence()
        new = 1
        with pytest.raises(AppendConflict):
            log.append(entries[1:2])
    elif what == "comes too late":
        read_at = Path(uri) / "_delta_log" / f"{log.version():020}.json"
        read_at.rename(tmp_path / "cleaned up")
        with pytest.raises(AppendConflict):
            log.append(entries[1:2])
        (tmp_path / "cleaned up").rename(read_at)
    else:
        log.forget()
        log.forget()
    assert len(files(uri)) == len(before) + new
    assert DeltaLog(STORAGE, uri).read(0) == expected


def test_an_append_that_cannot_be_prepared_leaves_nothing(uri: str) -> None:
    log, before, entries = DeltaLog(STORAGE, uri), files(uri), chain(1)
    log.read(0)
    with (
        patch.object(delta, "prepare_append", side_effect=StorageUnavailable("the disk is full")),
        pytest.raises(StorageUnavailable),
    ):
        log.prepare(entries)
    assert files(uri) == before
    log.append(entries)
    assert DeltaLog(STORAGE, uri).read(0) == entries
